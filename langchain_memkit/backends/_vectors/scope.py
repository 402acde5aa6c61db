"""Where a search looks, and what it takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from langchain_core.documents import Document

from langchain_memkit.backends._vectors.rows import NOBODY, Shown
from langchain_memkit.base import check_id

Filter: TypeAlias = Mapping[str, Any]


class Scope(NamedTuple):
    """Where to search: one user, perhaps one session, and what the metadata must be equal to besides."""

    user_id: str
    session_id: str | None
    others: Filter

    def takes(self, shown: Shown) -> bool:
        """Whether a document may be found."""
        known = shown.document.metadata
        return (
            shown.user_id == self.user_id
            and (self.session_id is None or shown.session_id == self.session_id)
            and all(name in known and known[name] == value for name, value in self.others.items())
        )


def pages_of(ids: Sequence[tuple[str, float]], k: int) -> Iterator[Sequence[tuple[str, float]]]:
    """The best `k`, then larger and larger parts of the rest, for a filter that takes few."""
    begin, size = 0, k
    while begin < len(ids):
        yield ids[begin : begin + size]
        begin, size = begin + size, min(2 * size, 1000)


def scope_of(filter: Filter | None = None) -> Scope:  # noqa: A002  # LangChain's name
    """Where a filter says to search; raises before any I/O if it is none."""
    if filter is None:
        return Scope(NOBODY, None, {})
    if not isinstance(filter, Mapping):
        msg = f"filter must be a dict of what the metadata is equal to, not {type(filter).__name__}"  # type: ignore[unreachable]  # callers without types
        raise TypeError(msg)
    for name, value in filter.items():
        inner = value if isinstance(value, Mapping) else ()
        if not isinstance(name, str) or any(isinstance(key, str) and key.startswith("$") for key in (name, *inner)):  # type: ignore[redundant-expr]  # callers without types
            msg = "filter knows equality only: no operators"
            raise TypeError(msg)
    user = check_id(filter["user_id"], "user_id") if "user_id" in filter else NOBODY
    session = check_id(filter["session_id"], "session_id") if "session_id" in filter else None
    return Scope(user, session, {k: v for k, v in filter.items() if k not in ("user_id", "session_id")})


def check_k(k: int) -> int:
    """The number of documents that are wanted, if it is one."""
    if not isinstance(k, int) or k < 0:  # type: ignore[redundant-expr]  # callers without types
        msg = f"k must be a whole number from 0; got {k!r:.50}"
        raise ValueError(msg)
    return k


def diverse(found: Sequence[tuple[Shown, float]], k: int, lambda_mult: float) -> list[Document]:
    """Maximal marginal relevance among what was found."""
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
