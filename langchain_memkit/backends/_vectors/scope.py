"""Filters of a search: parsing them, matching metadata, and shaping the results. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from operator import ge, gt, le, lt
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from langchain_core.documents import Document

from langchain_memkit.backends._vectors.rows import NOBODY, Shown
from langchain_memkit.base import check_arguments, check_id
from langchain_memkit.errors import ConfigurationError

Filter: TypeAlias = Mapping[str, Any]
Matches: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Whether the metadata of a document fits."""


class Scope(NamedTuple):
    """The scope of a search: one user, perhaps one session, and a test of the metadata (None: no test)."""

    user_id: str
    session_id: str | None
    matches: Matches | None

    def takes(self, shown: Shown) -> bool:
        """Return whether a document is in scope."""
        return (
            shown.user_id == self.user_id
            and (self.session_id is None or shown.session_id == self.session_id)
            and (self.matches is None or self.matches(shown.document.metadata))
        )


def pages_of(ids: Sequence[tuple[str, float]], k: int) -> Iterator[Sequence[tuple[str, float]]]:
    """Yield the best `k`, then larger and larger pages of the rest, for a filter that few documents match."""
    begin, size = 0, k
    while begin < len(ids):
        yield ids[begin : begin + size]
        begin, size = begin + size, min(2 * size, 1000)


def scope_given(options: Mapping[str, Any]) -> Scope:
    """Parse the keyword arguments of a search into a scope.

    Raises:
        TypeError: A search takes no such argument.
    """
    try:
        check_arguments(options, scope_of)
    except ConfigurationError as error:
        raise TypeError(str(error)) from None  # as any method says it of an argument that it does not have
    return scope_of(**options)


def scope_of(
    *,
    filter: Filter | None = None,  # noqa: A002  # LangChain's name
    pre_filter: Filter | None = None,
    post_filter_pipeline: Any = None,
    oversampling_factor: int | None = None,  # an exact search looks at every candidate
) -> Scope:
    """Build the scope of a search. Raise before any I/O if an argument is not supported.

    Args:
        filter: Values that the metadata must be equal to.
        pre_filter: Conditions on the metadata, in MongoDB's query language: see `conditions_of`.
        post_filter_pipeline: Refused unless empty.
        oversampling_factor: Accepted for compatibility with langchain-mongodb, and ignored.
    """
    if post_filter_pipeline:
        msg = (
            "post_filter_pipeline is run by the server of Atlas Vector Search, and this store searches without it. "
            "Use pre_filter=, or filter the documents that are returned"
        )
        raise ConfigurationError(msg)
    if pre_filter and filter:
        msg = "give either filter or pre_filter: pre_filter can say all that filter says"
        raise ConfigurationError(msg)
    if pre_filter is not None and not filter:
        return _scope_of_conditions(pre_filter)
    if filter is None:
        return Scope(NOBODY, None, None)
    if not isinstance(filter, Mapping):
        msg = f"filter must be a dict of what the metadata is equal to, not {type(filter).__name__}"  # type: ignore[unreachable]  # callers without types
        raise TypeError(msg)
    for name, value in filter.items():
        inner = value if isinstance(value, Mapping) else ()
        if not isinstance(name, str) or any(isinstance(key, str) and key.startswith("$") for key in (name, *inner)):  # type: ignore[redundant-expr]  # callers without types
            msg = "filter knows equality only: no operators. Use pre_filter= for these"
            raise TypeError(msg)
    user = check_id(filter["user_id"], "user_id") if "user_id" in filter else NOBODY
    session = check_id(filter["session_id"], "session_id") if "session_id" in filter else None
    others = {k: v for k, v in filter.items() if k not in ("user_id", "session_id")}

    def equal(known: Mapping[str, Any]) -> bool:
        return all(name in known and known[name] == value for name, value in others.items())

    return Scope(user, session, equal if others else None)


# -- pre_filter

COMPARED: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
OPERATORS = ("$eq", "$ne", *COMPARED, "$in", "$nin", "$exists", "$not")
JOINED = {"$and": all, "$or": any, "$nor": lambda found: not any(found)}
PLAIN = (str, int, float, bool, bytes, date, datetime, type(None))
MAX_DEPTH = 20


def _scope_of_conditions(pre_filter: Filter) -> Scope:
    """Build a scope from a `pre_filter`. Like every search it must name one user, or none for unowned documents."""
    if not isinstance(pre_filter, Mapping):
        _refuse(f"must be a dict of conditions, not {type(pre_filter).__name__}")
    rest: list[Filter] = []
    users: dict[str, None] = {}
    # Collect the conditions on `user_id`, at the top and inside `$and`: all of them must name the same user. Anywhere
    # else (in `$or`, say) it could not restrict the search to one user, and is refused.
    waiting = [pre_filter]
    while waiting:
        query = waiting.pop()
        rest.append({k: v for k, v in query.items() if k not in ("user_id", "$and")})
        if "user_id" in query:
            wanted = query["user_id"]
            wanted = wanted["$eq"] if isinstance(wanted, Mapping) and wanted.keys() == {"$eq"} else wanted
            if isinstance(wanted, Mapping):
                _refuse("finds the documents of one user: give user_id a str, or leave it out for those of nobody")
            users[check_id(wanted, "user_id")] = None
        if "$and" in query:
            waiting += _queries("$and", query["$and"])
    if len(users) > 1:
        _refuse("finds the documents of one user, and names several")
    found = [conditions_of(query) for query in rest if query]
    return Scope(next(iter(users), NOBODY), None, (lambda known: all(fits(known) for fits in found)) if found else None)


def conditions_of(query: Filter, depth: int = 0) -> Matches:
    """Compile a query in MongoDB's language into a function of metadata. Values stay data and reach no server.

    Comparisons are those of MongoDB: a list matches if one of its elements does, numbers are compared with numbers and
    texts with texts, a dot leads into a nested dict, and None also matches a missing field.

    Args:
        query: Fields with a value, or with `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$nin`, `$exists` and
            `$not`; `$and`, `$or` and `$nor` with lists of such queries.
        depth: How deep it is nested in another query.

    Raises:
        ConfigurationError: It holds another operator, or a value that no metadata has.

    Example:
        >>> fits = conditions_of({"page": {"$gte": 2}, "tags": "new"})
        >>> fits({"page": 3, "tags": ["new", "long"]}), fits({"page": "3", "tags": "new"})
        (True, False)
    """
    parts: list[Matches] = []
    for name, value in query.items():
        if name in JOINED:
            inner = [conditions_of(each, depth + 1) for each in _queries(name, value, depth)]
            parts.append(lambda known, join=JOINED[name], inner=inner: join(fits(known) for fits in inner))  # type: ignore[misc]  # bound now
        elif not isinstance(name, str) or name.startswith("$"):  # type: ignore[redundant-expr]  # callers without types
            _refuse(f"knows no {name!r:.40}: it takes {', '.join((*OPERATORS, *JOINED))}")
        elif name == "user_id":
            _refuse("finds the documents of one user: user_id belongs at its top, or into its $and")
        else:
            fits = _condition(value, depth)
            parts.append(lambda known, name=name, fits=fits: fits(list(_values(known, name))))  # type: ignore[misc]  # bound now
    return lambda known: all(part(known) for part in parts)


def _condition(value: Any, depth: int) -> Callable[[list[Any]], bool]:
    """Compile the condition on one field into a test of its values: several, if the path leads through a list."""
    if not isinstance(value, Mapping) or not any(isinstance(key, str) and key.startswith("$") for key in value):
        return _operator("$eq", value, depth)
    parts = [_operator(name, wanted, depth) for name, wanted in value.items()]
    return lambda values: all(part(values) for part in parts)


def _operator(name: Any, wanted: Any, depth: int) -> Callable[[list[Any]], bool]:
    if name not in OPERATORS:
        _refuse(f"knows no {name!r:.40}: it takes {', '.join((*OPERATORS, *JOINED))}")
    if depth > MAX_DEPTH:
        _refuse(f"is nested deeper than {MAX_DEPTH} levels")
    if name == "$not":
        if not isinstance(wanted, Mapping) or not any(str(key).startswith("$") for key in wanted):
            _refuse("needs a dict of operators after $not")
        fits = _condition(wanted, depth + 1)
        return lambda values: not fits(values)
    _check_plain(wanted)
    if name == "$exists":
        return lambda values: bool(values) == bool(wanted)
    if name in COMPARED:
        compare = COMPARED[name]
        return lambda values: any(
            _kind(v) == _kind(wanted) and compare(_comparable(v), _comparable(wanted)) for v in _with_elements(values)
        )
    if name in ("$in", "$nin") and not isinstance(wanted, (list, tuple)):
        _refuse(f"needs a list after {name}")
    options = wanted if name in ("$in", "$nin") else [wanted]

    def equal(values: list[Any]) -> bool:
        found = _with_elements(values) or [None]
        return any(_kind(v) == _kind(o) and _comparable(v) == _comparable(o) for v in found for o in options)

    return equal if name in ("$eq", "$in") else lambda values: not equal(values)


def _values(known: Any, path: str) -> Iterator[Any]:
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


def _with_elements(values: list[Any]) -> list[Any]:
    """Return the values, together with the elements of those that are lists."""
    return [*values, *(item for v in values if isinstance(v, (list, tuple, set, frozenset)) for item in v)]


def _kind(value: Any) -> Any:
    """Return the class of values that a value compares with: True does not equal 1, and no text equals a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    kinds: tuple[Any, ...] = (bool, str, bytes, datetime, date, Mapping, (list, tuple))
    return next((kind for kind in kinds if isinstance(value, kind)), type(value))


def _comparable(value: Any) -> Any:
    """Normalize a value for comparing: a naive datetime is taken as UTC, as in MongoDB; a tuple becomes a list."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return list(value) if isinstance(value, tuple) else value


def _queries(name: str, value: Any, depth: int = 0) -> list[Filter]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, Mapping) for each in value):
        _refuse(f"needs a list of dicts after {name}")
    if depth > MAX_DEPTH:
        _refuse(f"is nested deeper than {MAX_DEPTH} levels")
    return list(value)


def _check_plain(value: Any, depth: int = 0) -> None:
    """Raise unless metadata can hold this value: a pattern or an ObjectId would silently match nothing."""
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        for item in value:
            _check_plain(item, depth + 1)
    elif isinstance(value, Mapping) and depth < MAX_DEPTH:
        for key, item in value.items():
            if not isinstance(key, str) or key.startswith("$"):
                _refuse(f"compares with a value that holds the key {key!r:.40}: no operators inside of values")
            _check_plain(item, depth + 1)
    elif not isinstance(value, PLAIN):
        _refuse(f"compares with a {type(value).__name__}, which no metadata holds")


def _refuse(problem: str) -> NoReturn:
    msg = f"pre_filter {problem}"
    raise ConfigurationError(msg)


def check_k(k: int) -> int:
    """Validate the number of documents wanted, and return it."""
    if not isinstance(k, int) or k < 0:  # type: ignore[redundant-expr]  # callers without types
        msg = f"k must be a whole number from 0; got {k!r:.50}"
        raise ValueError(msg)
    return k


def documents_of(
    found: Sequence[tuple[Shown, float]], include_scores: bool, include_embeddings: bool
) -> list[tuple[Document, float]]:
    """Return the documents found; scores and vectors go into their metadata, where langchain-mongodb puts them."""
    for shown, score in found:
        if include_scores:
            shown.document.metadata["score"] = score
        if include_embeddings and shown.vector is not None:
            shown.document.metadata["embedding"] = shown.vector.tolist()
    return [(shown.document, score) for shown, score in found]


def diverse(found: Sequence[tuple[Shown, float]], k: int, lambda_mult: float) -> list[Document]:
    """Select `k` of the documents found by maximal marginal relevance."""
    if not found or k < 1:
        return []
    vectors = np.array([shown.vector for shown, _ in found])
    near = np.array([score for _, score in found])
    chosen: list[int] = []
    worst = np.full(len(found), -np.inf)  # the greatest similarity to one that is chosen
    while len(chosen) < min(k, len(found)):
        scores = lambda_mult * near - ((1 - lambda_mult) * worst if chosen else 0)
        scores[chosen] = -np.inf
        chosen.append(int(np.argmax(scores)))
        worst = np.maximum(worst, vectors @ vectors[chosen[-1]])
    return [found[i][0].document for i in chosen]
