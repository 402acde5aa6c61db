"""Deleting records: written once for both call styles and for every backend."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends._vectors.reading import whose
from langchain_memkit.backends._vectors.rows import NOBODY, check_ids
from langchain_memkit.backends._vectors.writing import Writing
from langchain_memkit.base import check_id
from langchain_memkit.errors import HistoryReadError, HistoryWriteError


class Forgetting(Writing):
    """A store that forgets; see `SQLiteVectorStore` and `MongoDBVectorStore`."""

    def delete(self, ids: list[str] | None = None, *, user_id: str | None = None, **kwargs: Any) -> bool:
        """Deletes documents of one user, or of nobody, by id for good; those that are not there are no error.

        Args:
            ids: Which; required, because everything of everybody is nothing to delete by leaving out an argument:
                `forget(user_id)` deletes all of a user.
            user_id: Whose. None: documents without a `user_id` in their metadata.
            **kwargs: None are known.

        Returns:
            True.

        Raises:
            TypeError: An id is no string, or there are no ids.
            ValueError: An id is empty or malformed.
            ConfigurationError: No `user_id` is given, and an id belongs to a document of a user. Nothing was deleted.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["mine", "hers"], [{"user_id": "u1"}, {"user_id": "u2"}], ids=["1", "1"])
            >>> store.delete(["1"], user_id="u1")
            True
            >>> [document.page_content for document in store.get_by_ids(["1"], user_id="u2")]
            ['hers']
        """
        user = whose(user_id)
        return drive(self._delete(_wanted(ids, kwargs), user))

    async def adelete(self, ids: list[str] | None = None, *, user_id: str | None = None, **kwargs: Any) -> bool:
        """Async twin of `delete`."""
        user = whose(user_id)
        return await adrive(self._delete(_wanted(ids, kwargs), user))

    async def _delete(self, ids: list[str], user_id: str) -> bool:
        if ids and user_id == NOBODY:
            try:
                await self._stored(ids, user_id, ". Nothing was deleted")
            except HistoryReadError as error:
                msg = f"{error}. Nothing was deleted."
                raise HistoryWriteError(msg) from error
        if ids:
            await self._step(lambda: self._backend.delete(user_id, ids))
        return True

    def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Deletes a session of a user, or all of a user, for good. A save that is under way stores nothing.

        Args:
            user_id: Whose.
            session_id: The conversation; None for everything of the user.

        Returns:
            How many records were deleted.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is empty or malformed.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._forget(check_id(user_id, "user_id"), session_id))

    async def aforget(self, user_id: str, session_id: str | None = None) -> int:
        """Async twin of `forget`."""
        return await adrive(self._forget(check_id(user_id, "user_id"), session_id))

    async def _forget(self, user_id: str, session_id: str | None) -> int:
        session = None if session_id is None else check_id(session_id, "session_id")
        self._shelf.forget(user_id)
        count: int = await self._step(lambda: self._backend.forget(user_id, session))
        self._shelf.forget(user_id)  # once more: somebody may have read in between
        return count

    def purge(self, user_id: str) -> dict[str, int]:
        """Deletes all of a user for good, so that the store is a part of `purge_user`.

        Args:
            user_id: Whose.

        Returns:
            `{"records": n}`: how many were deleted.

        Raises:
            TypeError: `user_id` is no string.
            ValueError: `user_id` is no valid id.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["one", "two"], [{"user_id": "u1"}, {"user_id": "u2"}])
            >>> store.purge("u1"), store.purge("u1")
            ({'records': 1}, {'records': 0})
        """
        return {"records": self.forget(user_id)}

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Async twin of `purge`."""
        return {"records": await self.aforget(user_id)}

    def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Deletes what is too much: first what was never recalled, oldest first, then what was not for longest.

        Args:
            user_id: Whose.
            max_records: How many may stay.
            keep: Ids of records that stay in any case, e.g. those that were just written.

        Returns:
            How many records were deleted.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is malformed, or `max_records` is below 0.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["one", "two"], [{"user_id": "u1"}] * 2, ids=["1", "2"])
            >>> store.evict("u1", 1), [entry.id for entry in store.index("u1").entries]
            (1, ['2'])
        """
        arguments = check_id(user_id, "user_id"), _most(max_records), check_ids(keep)
        return self._backend.run(self._backend.evict(*arguments))

    async def aevict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Async twin of `evict`."""
        arguments = check_id(user_id, "user_id"), _most(max_records), check_ids(keep)
        return await self._backend.arun(self._backend.evict(*arguments))

    def close(self) -> None:
        """Closes the connections that this store opened, and lets go of what it holds in process."""
        self._shelf.clear()
        self._backend.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        self._shelf.clear()
        await self._backend.aclose()


def _wanted(ids: Sequence[str] | None, kwargs: Mapping[str, Any]) -> list[str]:
    if ids is None or kwargs:
        msg = "delete needs a list of ids and nothing else; forget(user_id) deletes all of a user"
        raise TypeError(msg)
    return check_ids(ids)


def _most(max_records: int) -> int:
    if not isinstance(max_records, int) or max_records < 0:  # type: ignore[redundant-expr]  # callers without types
        msg = f"max_records must be a whole number from 0; got {max_records!r:.50}"
        raise ValueError(msg)
    return max_records
