"""What people do with a vector memory: they look, forget messages, and bring it in line with the transcripts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from langchain_memkit._sync import Step, adrive, drive
from langchain_memkit.base import check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.derived import DerivedMemory
from langchain_memkit.memories.vector.core import Core
from langchain_memkit.memories.vector.hits import HitList
from langchain_memkit.memories.vector.rebuild import rebuild
from langchain_memkit.memories.vector.recalling import search
from langchain_memkit.scoring.index import Entry

__all__ = ["VectorVerbs"]


class VectorVerbs(DerivedMemory):
    """The verbs of `VectorMemory` that are for people; see there."""

    _core: Core
    _looked: Any = None  # what the session was like when the turn under way was loaded

    def _bind(self, session_id: str, user_id: str | None) -> None:
        super()._bind(session_id, user_id)
        self._looked = None

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        session_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> HitList:
        """The rounds that answer a question best, with their scores.

        Args:
            query: The question.
            k: How many at most; there are no more than `Ranking.candidates`.
            session_id: Only what was said there.
            since: Only what was said then or later, aware.
            until: Only what was said before, aware.

        Returns:
            Best first; a list that is a table in a notebook and has `to_dataframe()` and `plot()`.

        Raises:
            ConfigurationError: `k` is below 1, a time is not aware, or the store was filled with another embedder.
            HistoryReadError: The store, or a history, cannot be reached or read.

        Example:
            >>> from langchain_core.messages import AIMessage, HumanMessage
            >>> from langchain_memkit import SQLiteVectorStore, VectorMemory, WordLlamaEmbeddings
            >>> memory = VectorMemory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings()), "s1", user_id="u1")
            >>> memory.save([HumanMessage("My cat is called Nemo."), AIMessage("A fine name!")])
            >>> memory.save([HumanMessage("I work in Oslo."), AIMessage("By the sea?")])
            >>> [hit.speakers for hit in memory.search("Where do I work?", k=1)]
            [('human', 'ai')]
        """
        return drive(self._search(query, k, session_id, since, until))

    async def asearch(
        self,
        query: str,
        k: int = 10,
        *,
        session_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> HitList:
        """Async twin of `search`."""
        return await adrive(self._search(query, k, session_id, since, until))

    def forget_messages(self, ids: Collection[str]) -> int:
        """Deletes the rounds of this session in which these messages stand. `rebuild` finds what is still there.

        Args:
            ids: Of the messages.

        Returns:
            How many records were deleted.

        Raises:
            TypeError: `ids` is a string.
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._forget_messages(ids))

    def rebuild(self, history: Any = None, progress: bool = True) -> Mapping[str, int]:
        """Brings this session's records in line with its transcript: so a whole conversation is imported.

        Args:
            history: Any LangChain chat history; None: that of `get_session_history`.
            progress: Shows a bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second time nothing is added or removed.

        Raises:
            ConfigurationError: There is no history, or the memory is read-only.
            HistoryReadError: The transcript cannot be read.
            HistoryWriteError: The store failed; calling again goes on.

        Example:
            >>> from langchain_core.messages import AIMessage, HumanMessage
            >>> from langchain_memkit import (
            ...     SQLiteChatMessageHistory,
            ...     SQLiteVectorStore,
            ...     VectorMemory,
            ...     WordLlamaEmbeddings,
            ... )
            >>> history = SQLiteChatMessageHistory(":memory:", "s1", user_id="u1")
            >>> history.add_messages([HumanMessage("My cat is called Nemo."), AIMessage("A fine name!")])
            >>> memory = VectorMemory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings()), "s1", user_id="u1")
            >>> memory.rebuild(history, progress=False)
            {'messages': 2, 'added': 1, 'removed': 0}
        """
        return drive(self._rebuild(history, progress))

    # -- flows

    async def _search(
        self, query: str, k: int, session_id: str | None, since: datetime | None, until: datetime | None
    ) -> HitList:
        if session_id is not None:
            check_id(session_id, "session_id")
        for name, moment in (("since", since), ("until", until)):
            if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):  # type: ignore[redundant-expr]  # callers without types
                msg = f"{name} must be an aware datetime, e.g. datetime(2026, 1, 2, tzinfo=UTC); got {moment!r:.50}"
                raise ConfigurationError(msg)
        if not isinstance(query, str):
            msg = f"query must be a str, not {type(query).__name__}"  # type: ignore[unreachable]  # callers without types
            raise TypeError(msg)
        if not isinstance(k, int) or k < 1:  # type: ignore[redundant-expr]  # callers without types
            msg = f"k must be a whole number above 0; got {k!r:.50}"
            raise ConfigurationError(msg)

        def keep(entry: Entry) -> bool:
            if session_id is not None and entry.session != session_id:
                return False
            if since is not None and (entry.at is None or entry.at < since):
                return False
            return until is None or (entry.at is not None and entry.at < until)

        if not query.strip():
            return HitList()
        return await search(self._core, self._user, str(query), k, keep)

    async def _delete_messages(self, ids: Collection[str]) -> int:
        store, wanted = self._core.store, set(ids)
        index = await Step(lambda: store.index(self._user), lambda: store.aindex(self._user))
        with index.lock:
            mine = [entry for entry in index.entries if entry.session == self._session]
        rounds = {entry.round_id for entry in mine if not wanted.isdisjoint(entry.messages)}
        gone = [entry.id for entry in mine if entry.round_id in rounds]
        if gone:
            await self._core.delete(self._user, gone)
        return len(gone)

    async def _rebuild(self, history: Any, progress: bool) -> Mapping[str, int]:
        return await rebuild(self._core, self._user, {self._session: history}, progress=progress)
