"""The deleting verbs of the vector stores, written once for both call styles and for every backend."""

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
    """A vector store that can delete; base of `SQLiteVectorStore` and `MongoDBVectorStore`."""

    def delete(self, ids: list[str] | None = None, *, user_id: str | None = None, **kwargs: Any) -> bool:
        """Delete documents of one user, or unowned ones, by id for good. Ids that are not stored are ignored.

        Args:
            ids: The documents' ids. Required: leaving out an argument must not delete everything of everybody;
                `forget(user_id)` deletes all of a user.
            user_id: The user. None: documents without a `user_id` in their metadata.
            **kwargs: Not supported: any name is refused.

        Returns:
            True.

        Raises:
            TypeError: An id is not a string, `ids` is None, or an argument is unknown.
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
        """Run `delete` asynchronously."""
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
        """Delete a session of a user, or everything of the user, for good. A save that is under way stores nothing.

        Args:
            user_id: The user.
            session_id: The conversation; None for everything of the user.

        Returns:
            The number of records deleted.

        Raises:
            TypeError: An id is not a string.
            ValueError: An id is empty or malformed.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._forget(check_id(user_id, "user_id"), session_id))

    async def aforget(self, user_id: str, session_id: str | None = None) -> int:
        """Run `forget` asynchronously."""
        return await adrive(self._forget(check_id(user_id, "user_id"), session_id))

    async def _forget(self, user_id: str, session_id: str | None) -> int:
        session = None if session_id is None else check_id(session_id, "session_id")
        self._shelf.forget(user_id)
        count: int = await self._step(lambda: self._backend.forget(user_id, session))
        # A read that began before the deletion may put what it read back into the cache, so the entry is dropped
        # again.
        self._shelf.forget(user_id)
        return count

    def purge(self, user_id: str) -> dict[str, int]:
        """Delete everything of a user for good. This makes the store a part that `purge_user` accepts.

        Args:
            user_id: The user.

        Returns:
            `{"records": n}`: the number of records deleted.

        Raises:
            TypeError: `user_id` is not a string.
            ValueError: `user_id` is not a valid id.
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
        """Run `purge` asynchronously."""
        return {"records": await self.aforget(user_id)}

    def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Delete the records above a limit: first those never recalled, oldest first, then the least recently recalled.

        Args:
            user_id: The user.
            max_records: The number of records that may stay.
            keep: Ids of records that stay in any case, e.g. those that were just written.

        Returns:
            The number of records deleted.

        Raises:
            TypeError: An id is not a string.
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
        """Run `evict` asynchronously."""
        arguments = check_id(user_id, "user_id"), _most(max_records), check_ids(keep)
        return await self._backend.arun(self._backend.evict(*arguments))

    def close(self) -> None:
        """Close the connections that this store opened, and empty the cache."""
        self._shelf.clear()
        self._backend.close()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
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
