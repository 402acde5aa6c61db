"""What mkdocstrings needs to know of our docstrings and of pydantic's classes to show them as they are meant."""

from __future__ import annotations

import re
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


def default(field: griffe.Attribute) -> Any:
    """What a field is if it is not given; None if it has to be."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "Field":
        named = {a.name: a.value for a in value.arguments if isinstance(a, griffe.ExprKeyword)}
        return named.get("default")
    return value
