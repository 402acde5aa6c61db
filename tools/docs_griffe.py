"""What mkdocstrings needs to know of our docstrings, keywords and pydantic's classes to show them as they are meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

RETURNS = re.compile(r"(?<=\nReturns:\n    )(?=\S)")


class Docstrings(griffe.Extension):
    """Lets griffe read `Example:` as doctests, what is below `Returns:` as text, and pydantic's fields as arguments."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Renames a heading, and names the type, so that a colon in the text is not taken for the end of one."""
        if obj.docstring is not None:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            if isinstance(obj, griffe.Function) and obj.returns is not None:
                text = RETURNS.sub(f"{obj.returns}: ".replace("\\", r"\\"), text)
            obj.docstring.value = text

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Makes the constructor that pydantic makes when it runs, of the fields that the docstring names."""
        text = cls.docstring.value if cls.docstring else ""
        written = cls.members.get("__init__")
        given = isinstance(written, griffe.Function) and [p.name for p in written.parameters] != ["self", "kwargs"]
        if given or "dataclass" in cls.labels:
            return
        listed = text.partition("\nArgs:")[2].partition("\n\n")[0]
        fields = [m for m in cls.members.values() if isinstance(m, griffe.Attribute) and f"\n    {m.name}: " in listed]
        keyword = griffe.ParameterKind.keyword_only
        made = [griffe.Parameter(f.name, annotation=f.annotation, kind=keyword, default=default(f)) for f in fields]
        if made:
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*made)))

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Names the arguments behind `**options: Unpack[Keywords]` that a docstring explains; types attributes."""
        for function in functions(pkg):
            if function.name == "__init__" and function.parent is not None:
                types = {p.name: p.annotation for p in function.parameters}
                for member in function.parent.members.values():
                    if isinstance(member, griffe.Attribute) and member.annotation is None:
                        member.annotation = types.get(member.name)
            rest = next((p for p in function.parameters if p.kind is griffe.ParameterKind.var_keyword), None)
            if rest is None or not str(rest.annotation).startswith("Unpack["):
                continue
            keywords = pkg[rest.annotation.slice.canonical_path.removeprefix(f"{pkg.path}.")]
            documented = function.parent if function.name == "__init__" else function
            listed = documented.docstring.value if documented is not None and documented.docstring else ""
            names = [name for name in keywords.members if f"\n    {name}: " in listed]
            made = [given(keywords, name) for name in names]
            left = [] if len(names) == len(keywords.members) else [rest]
            function.parameters = griffe.Parameters(*[p for p in function.parameters if p is not rest], *made, *left)


def functions(module: griffe.Module) -> Iterator[griffe.Function]:
    """Every function of a package and of its classes, once."""
    holders: list[griffe.Module | griffe.Class] = [module]
    while holders:
        for member in holders.pop().members.values():
            if isinstance(member, griffe.Function):
                yield member
            elif isinstance(member, (griffe.Module, griffe.Class)):
                holders.append(member)


def given(keywords: griffe.Class, name: str) -> griffe.Parameter:
    """A keyword as a parameter. Its default is what the dataclass beside the keywords has for it."""
    beside = keywords.parent.members.values() if keywords.parent is not None else ()
    fields = [cls.members[name] for cls in beside if isinstance(cls, griffe.Class) and name in cls.members]
    value = next((f.value for f in fields if isinstance(f, griffe.Attribute) and f.value is not None), None)
    annotation = keywords.members[name].annotation
    return griffe.Parameter(name, annotation=annotation, kind=griffe.ParameterKind.keyword_only, default=value or "...")


def default(field: griffe.Attribute) -> Any:
    """What a field is if it is not given; None if it has to be."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "Field":
        named = {a.name: a.value for a in value.arguments if isinstance(a, griffe.ExprKeyword)}
        return named.get("default")
    return value
