"""`books(session_id, user_id)` as an object: one store, many memories."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.stores import BaseStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._sync import ClosingMixin, adrive, drive
from langchain_memkit.base import check_id, shown

if TYPE_CHECKING:
    from langchain_memkit.memories.key_value.memory import KeyValueMemory
    from langchain_memkit.memories.key_value.shelf import Shelf

__all__ = ["KeyValueMemoryFactory"]

USERS = 64  # whose entries are kept in memory


class KeyValueMemoryFactory(ClosingMixin):
    """What `KeyValueMemory.factory` makes; give it to `create_runnable_with_message_history(memories=[...])`.

    A context manager, sync and async. The store is the caller's: it stays open.

    Example:
        >>> from langchain_core.stores import InMemoryStore
        >>> from langchain_memkit.memories.key_value import KeyValueMemory
        >>> books = KeyValueMemory.factory(InMemoryStore())
        >>> books("s1", "u1").add({"My Diary": "Dear diary ..."})
        >>> books.purge("u1"), books("s1", "u1").titles()
        ({'entries': 1}, [])
    """

    def __init__(self, make: Callable[[str | None], KeyValueMemory], store: BaseStore[str, dict[str, Any]]) -> None:
        self._make = make
        self._store = store
        self._shelves: OrderedDict[str | None, Shelf] = OrderedDict()
        self._lock = ForkSafeLock()
        make(None)  # so that wrong options are known now

    def __repr__(self) -> str:
        """Names the store."""
        return f"KeyValueMemoryFactory({shown(self._store)})"

    def __call__(self, session_id: str, user_id: str | None = None) -> KeyValueMemory:
        """The memory of a session; no I/O.

        Args:
            session_id: The conversation.
            user_id: Whose entries; None for those of the app.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is empty or malformed.
        """
        memory = self._make(user_id)
        memory.session_id = check_id(session_id, "session_id")
        with self._lock:
            memory._shelf = self._shelves.setdefault(memory.user_id, memory._shelf)
            self._shelves.move_to_end(memory.user_id)
            if len(self._shelves) > USERS:
                self._shelves.popitem(last=False)
        return memory

    def setup(self) -> None:
        """Reads the entries of the app now, so that the first turn need not."""
        drive(self._shelf(None).current())

    async def asetup(self) -> None:
        """Async twin of `setup`."""
        await adrive(self._shelf(None).current())

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Removes a user's entries; those of the app stay. A part of `purge_user`.

        Args:
            user_id: Whose; required.

        Returns:
            `{"entries": n}`: how many there were.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        count = await self._shelf(user_id).purge()
        with self._lock:
            self._shelves.pop(user_id, None)
        return {"entries": count}

    def _shelf(self, user_id: str | None) -> Shelf:
        with self._lock:
            return self._shelves.setdefault(user_id, self._make(user_id)._shelf)

    def close(self) -> None:
        """Forgets what was read of the store, which stays open."""
        with self._lock:
            self._shelves.clear()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        self.close()
