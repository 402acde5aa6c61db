"""Store and options shared by all vector memories of a factory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any

from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.vectorstores import VectorStore

from langchain_memkit._sync import Step
from langchain_memkit.base import (
    GetSessionHistory,
    Now,
    TokenCounter,
    TokenCounterLike,
    check_seconds,
    describe_error,
    describe_type,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.vector.adapter import VectorStoreAdapter
from langchain_memkit.memories.vector.importance import plain_importance
from langchain_memkit.memories.vector.rounds import Splitter
from langchain_memkit.messages.tokens import resolve_counter
from langchain_memkit.ranking.index import Index
from langchain_memkit.ranking.ranking import Question, Ranking
from langchain_memkit.ranking.relevance import FLOOR

__all__ = ["TurnSession", "VectorMemoryConfig"]

logger = logging.getLogger("langchain_memkit")


@dataclass(slots=True)
class TurnSession:
    """The session of a turn, with the snapshot of it that the turn's load leaves for the turn's save."""

    session_id: str
    fetched: Any = None  # result of `Core.fetch` (index, snapshot), if the turn prefetched it
    looked: Any = None  # the session snapshot; None if the store has none


@dataclass(frozen=True)
class VectorMemoryConfig:
    """Validated options of a `VectorMemory`, whose docstring describes each of them, and its store."""

    store: Any
    max_tokens: int
    k: int | None
    ranking: Ranking
    floor: float | None
    splitter: Splitter
    max_records: int | None
    ttl: timedelta | None
    importance: Any
    reranker: BaseDocumentCompressor | None
    get_session_history: GetSessionHistory | None
    read_only: bool
    counter: TokenCounter
    now: Now

    @classmethod
    def of(
        cls,
        store: VectorStore,
        *,
        max_tokens: int,
        k: int | None,
        ranking: Ranking | None,
        floor: Any,
        text_splitter: Any,
        max_records: int | None,
        ttl: float | None,
        importance: Any,
        reranker: BaseDocumentCompressor | None,
        get_session_history: GetSessionHistory | None,
        filter_builder: Any,
        read_only: bool,
        token_counter: TokenCounterLike,
        now: Now,
    ) -> VectorMemoryConfig:
        """Validate the options and wrap a third-party store in a `VectorStoreAdapter`. No I/O."""
        _check_store(store, text_splitter, reranker)
        _check_numbers(ttl, max_tokens=max_tokens, k=k, max_records=max_records)
        _check_functions(
            get_session_history=get_session_history, importance=importance, filter_builder=filter_builder, now=now
        )
        if ranking is not None and not isinstance(ranking, Ranking):
            msg = f"ranking must be a Ranking, e.g. Ranking.generative_agents(), not {type(ranking).__name__}"  # type: ignore[unreachable]  # callers without types
            raise ConfigurationError(msg)
        splitter, life = Splitter(text_splitter), None if ttl is None else timedelta(seconds=ttl)
        own: Any = store
        if not hasattr(store, "begin"):
            own = VectorStoreAdapter(
                store,
                filter_builder=filter_builder,
                get_session_history=get_session_history,
                splitter=splitter,
                ttl=life,
            )
        weights = ranking or Ranking()
        return cls(
            store=own,
            max_tokens=max_tokens,
            k=k,
            ranking=weights,
            floor=check_floor(floor, weights),
            splitter=splitter,
            max_records=max_records,
            ttl=life,
            importance=importance or (plain_importance if weights.importance else None),
            reranker=reranker,
            get_session_history=get_session_history,
            read_only=read_only,
            counter=resolve_counter(token_counter),
            now=now,
        )

    @property
    def keeps_access(self) -> bool:
        """Return whether recalls have to be recorded: recency ranking and eviction both need the last access."""
        return bool(self.ranking.recency) or self.max_records is not None

    @property
    def reads_texts(self) -> bool:
        """Return whether showing a batch of records costs I/O: for its texts, or to check them against transcripts."""
        return not self.holds_texts or self.get_session_history is not None

    @property
    def holds_texts(self) -> bool:
        """Return whether the store is one of memkit's own, whose index already holds texts and session snapshots."""
        return hasattr(self.store, "_look")

    async def fetch(self, user_id: str, session_id: str) -> Any:
        """Prefetch the user's index and a session snapshot; None for other stores, which need the question first."""
        if not self.holds_texts:
            return None
        return await self.store._look(user_id, session_id)

    async def look(self, user_id: str, text: str, place: TurnSession | None = None) -> tuple[Index, Question]:
        """Read the user's index and embed the question.

        Args:
            user_id: The user.
            text: The question.
            place: The session of the asking turn; its `looked` is set to the session snapshot, so that the save of the
                same turn need not read the session again.

        Returns:
            The index, and the question with its vector (None if embedding failed) or a foreign store's similarities.
        """
        store, now = self.store, self.now()
        accessed: Mapping[str, datetime] = {}
        if self.ranking.recency:
            accessed = await Step(lambda: store.accesses(user_id), lambda: store.aaccesses(user_id))
        if isinstance(store, VectorStoreAdapter):
            most = self.ranking.candidates
            similar = await Step(
                lambda: store.similar(user_id, text, most), lambda: store.asimilar(user_id, text, most)
            )
            index = await Step(lambda: store.index(user_id, similar), lambda: store.aindex(user_id, similar))
            return index, Question(text, None, now, similar, accessed)
        if place is not None and place.fetched is not None:
            index, looked = place.fetched
        elif not self.holds_texts:  # a custom store that satisfies the contract in `langchain_memkit.testing.vectors`
            index, looked = await Step(lambda: store.index(user_id), lambda: store.aindex(user_id)), None
        else:
            index, looked = await store._look(user_id, place.session_id if place is not None else None)
        if place is not None:
            place.looked = looked
        try:
            vector = await Step(lambda: store.embed_query(text), lambda: store.aembed_query(text))
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # embedders raise anything; lexical search still works without one
            logger.warning("the question was not embedded, only its words are looked for: %s", describe_error(error))
            vector = None
        return index, Question(text, vector, now, None, accessed)

    async def documents(self, user_id: str, ids: Sequence[str]) -> dict[str, Document]:
        """Read the user's records with these ids; deleted ones are missing from the result."""
        get = (self.store.get_by_ids, self.store.aget_by_ids)
        found = await Step(*(partial(call, ids, **self._owner(user_id)) for call in get))
        return {document.id: document for document in found if document.id}

    async def texts(self, user_id: str, ids: Sequence[str]) -> Callable[[str], tuple[Document, Any] | None]:
        """Return a lookup from record id to document; memkit's own stores serve it from the cached index.

        Each comes with a dict in which a memory may keep what it made of the record to show it.
        """
        if not self.holds_texts:
            documents = await self.documents(user_id, ids)
            return lambda name: (documents[name], {}) if name in documents else None
        return await self.store._texts(user_id, ids)  # type: ignore[no-any-return]  # a store is untyped

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Delete records of the user."""
        delete = (self.store.delete, self.store.adelete)
        await Step(*(partial(call, list(ids), **self._owner(user_id)) for call in delete))

    def _owner(self, user_id: str) -> dict[str, str]:
        """Return `user_id` as keyword argument; empty for a foreign store, where our ids are unique without it."""
        return {} if isinstance(self.store, VectorStoreAdapter) else {"user_id": user_id}

    def expiry(self, at: datetime, of_turn: datetime | None) -> datetime | None:
        """Return when a record expires: with its turn, or `ttl` after it was said if that is earlier; None: never."""
        ends = [moment for moment in (of_turn, at + self.ttl if self.ttl else None) if moment]
        return min(ends, default=None)


def check_floor(floor: Any, ranking: Ranking) -> float | None:
    """Resolve the `floor=` argument to a number, or to None for no floor.

    Raises:
        ConfigurationError: It is neither a number of at least 0, nor `"auto"`, nor None.

    Example:
        >>> check_floor("auto", Ranking()), check_floor("auto", Ranking.generative_agents()), check_floor(0, Ranking())
        (1.0, None, None)
    """
    if isinstance(floor, str) and floor == "auto":
        return None if ranking.over_all else FLOOR
    if floor is None:
        return None
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor < inf:
        msg = (
            f'floor must be a number from 0 up, "auto" (which is {FLOOR:g}), or None to recall whatever is asked; '
            f"got {floor!r:.50}"
        )
        raise ConfigurationError(msg)
    return float(floor) or None


def _check_store(store: Any, text_splitter: Any, reranker: Any) -> None:
    if not isinstance(store, VectorStore):
        example = "SQLiteVectorStore(path, embedding)"
        msg = f"store must be a LangChain VectorStore, e.g. {example}, not {describe_type(store, VectorStore)}"
        raise ConfigurationError(msg)
    if text_splitter is not None and not hasattr(text_splitter, "split_text"):
        msg = f"text_splitter must be a TextSplitter of langchain_text_splitters, not {type(text_splitter).__name__}"
        raise ConfigurationError(msg)
    if reranker is not None and not isinstance(reranker, BaseDocumentCompressor):
        msg = f"reranker must be a LangChain document compressor, not {describe_type(reranker, BaseDocumentCompressor)}"
        raise ConfigurationError(msg)


def _check_numbers(ttl: Any, **numbers: Any) -> None:
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            msg = f"{name} must be a whole number above 0; got {number!r:.50}"
            raise ConfigurationError(msg)
    check_seconds(ttl, "ttl", none="to keep records")


def _check_functions(**functions: Any) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            msg = f"{name} must be a function, not {type(function).__name__}"
            raise ConfigurationError(msg)
