"""Which documents a search may return: those of one user, perhaps of one session, that meet conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from itertools import chain
from operator import eq, ge, gt, le, lt
from typing import Any, NamedTuple, NoReturn, TypeAlias

from langchain_memkit.base import check_arguments, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.stores.vector_rows import NOBODY, StoredDocument

Filter: TypeAlias = Mapping[str, object]
Matches: TypeAlias = Callable[[Filter], bool]
"""A function from a document's metadata to whether it meets the conditions."""

COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
OPERATORS = ("$eq", "$ne", *COMPARED, "$in", "$nin")
JOINED = ("$and", "$or")
ORDERED = (str, int, float, bytes, date)
PLAIN = (*ORDERED, type(None))
LISTS = (list, tuple, set, frozenset)


class SearchScope(NamedTuple):
    """The scope of a search: one user, perhaps one session, and tests that the metadata has to pass."""

    user_id: str
    session_id: str | None
    tests: Sequence[Matches]

    def takes(self, stored: StoredDocument) -> bool:
        """Return whether a document is in scope."""
        here = stored.user_id == self.user_id and self.session_id in (None, stored.session_id)
        return here and all(test(stored.document.metadata) for test in self.tests)


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
        msg = "post_filter_pipeline needs Atlas Vector Search. Use pre_filter=, or filter what comes back"
        raise ConfigurationError(msg)
    if pre_filter and filter:
        raise ConfigurationError("give either filter or pre_filter: pre_filter can say all that filter says")
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

    return SearchScope(user, session, [matches] if others else [])


def _meeting(pre_filter: Filter) -> SearchScope:
    """Build the scope of a `pre_filter`. Like every search it must name one user, or none for unowned documents."""
    users: set[str] = set()
    tests = _tests_of(pre_filter, users)
    if len(users) > 1:
        _refuse("finds the documents of one user, and names several")
    return SearchScope(users.pop() if users else NOBODY, None, tests)


# MongoDB's query language: a list matches if one of its elements does, numbers are compared with numbers and texts
# with texts, and None also matches a missing field. Values stay data and reach no server.


def _tests_of(query: object, users: set[str] | None) -> list[Matches]:
    """Build the tests of a query, all of which metadata has to pass; raise for what is not known.

    Every `user_id` goes into `users`, which is None within `$or`: there it could not restrict the search to one user.
    """
    if not isinstance(query, Mapping):
        _refuse(f"must be a dict of conditions, not {type(query).__name__}")
    tests: list[Matches] = []
    for name, value in query.items():
        if name in JOINED:
            if not isinstance(value, (list, tuple)) or not value:
                _refuse(f"needs a list of dicts after {name}")
            parts = [_tests_of(each, users if name == "$and" else None) for each in value]
            tests += chain(*parts) if name == "$and" else [partial(_meets_any, parts)]
        elif name == "user_id":
            wanted = value["$eq"] if isinstance(value, Mapping) and value.keys() == {"$eq"} else value
            if users is None or isinstance(wanted, Mapping):
                _refuse("finds the documents of one user: user_id is a str, and belongs at its top or into its $and")
            users.add(check_id(wanted, "user_id"))
        elif not isinstance(name, str) or name.startswith("$") or "." in name:
            _refuse_name(name)
        else:
            operators = value if _has_operators(value) else {"$eq": value}
            tests += [_test_of(name, operator, wanted) for operator, wanted in operators.items()]
    return tests


def _meets_any(parts: Iterable[Iterable[Matches]], known: Filter) -> bool:
    return any(all(test(known) for test in tests) for tests in parts)


def _test_of(field: str, operator: str, wanted: object) -> Matches:
    """Build the test of a field with one operator."""
    if operator not in OPERATORS:
        _refuse_name(operator)
    _check_value(wanted)
    if operator in COMPARED and not isinstance(wanted, ORDERED):
        _refuse(f"needs a number, text or date after {operator}")
    if operator not in ("$in", "$nin"):
        wanted = [wanted]
    elif not isinstance(wanted, (list, tuple)):
        _refuse(f"needs a list after {operator}")
    options, negated = [*map(_typed, wanted)], operator in ("$ne", "$nin")
    holds: Callable[[Any, Any], bool] = COMPARED.get(operator, eq)

    def test(known: Filter) -> bool:
        value = known.get(field)
        values = map(_typed, [value, *value] if isinstance(value, LISTS) else [value])
        return negated != any(holds(found, limit) for kind, found in values for same, limit in options if kind == same)

    return test


def _typed(value: object) -> tuple[object, Any]:
    """Return a value with the class of values that it compares with: True does not equal 1, and no text a number."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, (int, float)):
        return float, value
    if isinstance(value, datetime):  # a naive one is taken as UTC, as in MongoDB
        return datetime, value if value.tzinfo else value.replace(tzinfo=UTC)
    return (list, list(value)) if isinstance(value, (list, tuple)) else (type(value), value)


def _has_operators(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(key, str) and key.startswith("$") for key in value)


def _check_value(value: object) -> None:
    """Raise unless metadata can hold this value: a pattern or an ObjectId would silently match nothing."""
    if _has_operators(value):
        _refuse("compares with a dict that holds operators: no operators inside of values")
    if isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_value(item)
    elif not isinstance(value, PLAIN):
        _refuse(f"compares with a {type(value).__name__}, which no metadata holds")


def _refuse_name(name: object) -> NoReturn:
    known = ", ".join((*OPERATORS, *JOINED))
    _refuse(f"knows no {name!r:.40}: it takes names of metadata, without dots, and {known}")


def _refuse(problem: str) -> NoReturn:
    raise ConfigurationError(f"pre_filter {problem}")
