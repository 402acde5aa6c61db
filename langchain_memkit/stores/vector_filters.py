"""Which documents a search may return: those of one user, perhaps of one session, that meet conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from operator import ge, gt, le, lt
from typing import Any, NamedTuple, NoReturn, TypeAlias

from langchain_memkit.base import check_arguments, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.stores.vector_rows import NOBODY, StoredDocument

Filter: TypeAlias = Mapping[str, object]
Matches: TypeAlias = Callable[[Filter], bool]
"""A function from a document's metadata to whether it meets the conditions."""

COMPARED: Mapping[str, Callable[..., bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
JOINED: Mapping[str, Callable[[Iterable[bool]], bool]] = {"$and": all, "$or": any, "$nor": lambda met: not any(met)}
OPERATORS = ("$eq", "$ne", *COMPARED, "$in", "$nin", "$exists", "$not")
PLAIN = (str, int, float, bool, bytes, date, datetime, type(None))


class SearchScope(NamedTuple):
    """The scope of a search: one user, perhaps one session, and a test of the metadata (None: no test)."""

    user_id: str
    session_id: str | None
    matches: Matches | None

    def takes(self, stored: StoredDocument) -> bool:
        """Return whether a document is in scope."""
        return (
            stored.user_id == self.user_id
            and (self.session_id is None or stored.session_id == self.session_id)
            and (self.matches is None or self.matches(stored.document.metadata))
        )


def _scope(
    *,
    filter: Filter | None = None,  # noqa: A002  # LangChain's name
    pre_filter: Filter | None = None,
    post_filter_pipeline: object = None,
    oversampling_factor: int | None = None,  # an exact search looks at every candidate
) -> SearchScope:
    """Build the scope of a search from its keyword arguments, or raise, before any I/O.

    `filter` holds values that the metadata must be equal to, `pre_filter` conditions in MongoDB's query language.
    """
    if post_filter_pipeline:
        msg = (
            "post_filter_pipeline is run by the server of Atlas Vector Search, and this store searches without it. Use "
            "pre_filter=, or filter the documents that are returned"
        )
        raise ConfigurationError(msg)
    if pre_filter and filter:
        msg = "give either filter or pre_filter: pre_filter can say all that filter says"
        raise ConfigurationError(msg)
    return _equal_to(filter or {}) if pre_filter is None or filter else _meeting(pre_filter)


def scope_of(**options: Any) -> SearchScope:
    """Build the scope of a search from the keyword arguments that the caller passed; TypeError for unknown ones."""
    try:
        check_arguments(options, _scope)
    except ConfigurationError as error:
        raise TypeError(str(error)) from None  # as any method says it of an argument that it does not have
    return _scope(**options)


def _equal_to(wanted: Filter) -> SearchScope:
    """Build the scope of a `filter`, which knows equality only."""
    if not isinstance(wanted, Mapping) or any(map(_has_operators, (wanted, *wanted.values()))):  # type: ignore[redundant-expr]  # a function is what other stores take
        msg = "filter must be a dict of what the metadata is equal to, with no operators. Use pre_filter= for these"
        raise TypeError(msg)
    user = check_id(wanted["user_id"], "user_id") if "user_id" in wanted else NOBODY
    session = check_id(wanted["session_id"], "session_id") if "session_id" in wanted else None
    others = {name: value for name, value in wanted.items() if name not in ("user_id", "session_id")}

    def matches(known: Filter) -> bool:
        return all(name in known and known[name] == value for name, value in others.items())

    return SearchScope(user, session, matches if others else None)


def _meeting(pre_filter: Filter) -> SearchScope:
    """Build the scope of a `pre_filter`. Like every search it must name one user, or none for unowned documents."""
    if not isinstance(pre_filter, Mapping):
        _refuse(f"must be a dict of conditions, not {type(pre_filter).__name__}")
    parts: list[Filter] = []
    users: set[str] = set()
    # Collect the conditions on `user_id`, at the top and inside `$and`: all of them must name the same user. Anywhere
    # else (in `$or`, say) it could not restrict the search to one user, and is refused.
    waiting: list[Filter] = [pre_filter]
    while waiting:
        query = waiting.pop()
        rest = {name: value for name, value in query.items() if name not in ("user_id", "$and")}
        _check(rest)
        parts += [rest] if rest else []
        if "user_id" in query:
            wanted = query["user_id"]
            wanted = wanted["$eq"] if isinstance(wanted, Mapping) and wanted.keys() == {"$eq"} else wanted
            if isinstance(wanted, Mapping):
                _refuse("finds the documents of one user: give user_id a str, or leave it out for those of nobody")
            users.add(check_id(wanted, "user_id"))
        if "$and" in query:
            waiting += _queries("$and", query["$and"])
    if len(users) > 1:
        _refuse("finds the documents of one user, and names several")
    matches = (lambda known: all(_meets(known, part) for part in parts)) if parts else None
    return SearchScope(users.pop() if users else NOBODY, None, matches)


# MongoDB's query language: a list matches if one of its elements does, numbers are compared with numbers and texts
# with texts, a dot leads into a nested dict, and None also matches a missing field. Values stay data and reach no
# server.


def _check(query: Filter) -> None:
    """Raise unless a query holds known operators only, and values that metadata may have."""
    for name, value in query.items():
        if name in JOINED:
            for each in _queries(name, value):
                _check(each)
        elif name == "user_id":
            _refuse("finds the documents of one user: user_id belongs at its top, or into its $and")
        elif not isinstance(name, str) or name.startswith("$"):  # type: ignore[redundant-expr]  # it may come from JSON
            _refuse(f"knows no {name!r:.40}: it takes {', '.join((*OPERATORS, *JOINED))}")
        else:
            _check_operators(_operators_of(value))


def _check_operators(operators: Filter) -> None:
    for name, wanted in operators.items():
        if name not in OPERATORS:
            _refuse(f"knows no {name!r:.40}: it takes {', '.join((*OPERATORS, *JOINED))}")
        if name == "$not":
            if not _has_operators(wanted):
                _refuse("needs a dict of operators after $not")
            _check_operators(_operators_of(wanted))
        else:
            _check_value(wanted)
        if name in ("$in", "$nin") and not isinstance(wanted, (list, tuple)):
            _refuse(f"needs a list after {name}")


def _meets(known: Filter, query: Filter) -> bool:
    """Return whether metadata meets a query, which was checked."""
    return all(
        JOINED[name](_meets(known, each) for each in _queries(name, value))
        if name in JOINED
        else _fits(list(_values(known, name)), _operators_of(value))
        for name, value in query.items()
    )


def _fits(values: list[object], operators: Filter) -> bool:
    """Return whether the values of a field, several if its path leads through a list, fit all operators."""
    typed = [_typed(value) for value in _with_elements(values)]

    def fits(name: str, wanted: Any) -> bool:
        if name == "$not":
            return not _fits(values, wanted)
        if name == "$exists":
            return bool(values) == bool(wanted)
        if name in COMPARED:
            kind, limit = _typed(wanted)
            return any(each == kind and COMPARED[name](value, limit) for each, value in typed)
        options = [_typed(each) for each in (wanted if name in ("$in", "$nin") else [wanted])]
        return any(value in options for value in typed or [_typed(None)]) == (name in ("$eq", "$in"))

    return all(fits(name, wanted) for name, wanted in operators.items())


def _operators_of(condition: object) -> Filter:
    return condition if isinstance(condition, Mapping) and _has_operators(condition) else {"$eq": condition}


def _values(known: Filter, path: str) -> Iterator[object]:
    """Yield the values at a dotted path; none if it does not exist."""
    if path in known:
        yield known[path]
        return
    head, dot, rest = path.partition(".")
    if dot and head in known:
        inner = known[head]
        for item in inner if isinstance(inner, (list, tuple)) else [inner]:
            if isinstance(item, Mapping):
                yield from _values(item, rest)


def _with_elements(values: list[object]) -> list[object]:
    """Return the values, together with the elements of those that are lists."""
    return [*values, *(item for v in values if isinstance(v, (list, tuple, set, frozenset)) for item in v)]


def _typed(value: object) -> tuple[object, object]:
    """Return a value with the class of values that it compares with: True does not equal 1, and no text a number."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, (int, float)):
        return float, value
    if isinstance(value, datetime):  # a naive one is taken as UTC, as in MongoDB
        return datetime, value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, (list, tuple)):
        return list, list(value)
    return type(value), value


def _has_operators(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(key, str) and key.startswith("$") for key in value)


def _queries(name: str, value: object) -> list[Filter]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, Mapping) for each in value):
        _refuse(f"needs a list of dicts after {name}")
    return list(value)


def _check_value(value: object) -> None:
    """Raise unless metadata can hold this value: a pattern or an ObjectId would silently match nothing."""
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_value(item)
    elif isinstance(value, Mapping):
        if _has_operators(value):
            _refuse("compares with a dict that holds operators: no operators inside of values")
        for item in value.values():
            _check_value(item)
    elif not isinstance(value, PLAIN):
        _refuse(f"compares with a {type(value).__name__}, which no metadata holds")


def _refuse(problem: str) -> NoReturn:
    msg = f"pre_filter {problem}"
    raise ConfigurationError(msg)
