"""What people do with an entity memory: they look, decide who is who, forget, and rebuild."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langchain_memkit._sync import adrive, drive
from langchain_memkit.memories.entity.flows import EntityFlows
from langchain_memkit.memories.entity.listing import EntityList
from langchain_memkit.memories.entity.rebuild import rebuild

__all__ = ["EntityVerbs"]


class EntityVerbs(EntityFlows):
    """The verbs of `EntityMemory` that are for people; see there."""

    def entities(self) -> EntityList:
        """Everyone and everything that the user talked about, in all sessions.

        Returns:
            The last mentioned first; a list that shows as a table in a notebook and has `to_dataframe()`.

        Raises:
            HistoryReadError: The store, or a history, cannot be reached or read.

        Example:
            >>> from langchain_core.messages import HumanMessage
            >>> from langchain_memkit.memories.entity import EntityMemory
            >>> memory = EntityMemory(lambda text: [], "s1", user_id="u1", names=["Bob", "Robert"])
            >>> memory.save([HumanMessage("Bob sings. Robert dances.")])
            >>> [(entity.name, len(entity.facts)) for entity in memory.entities()]
            [('Bob', 1), ('Robert', 1)]
        """
        return drive(self._entities())

    async def aentities(self) -> EntityList:
        """Async twin of `entities`."""
        return await adrive(self._entities())

    def merge(self, name: str, into: str) -> None:
        """Says that two names are one entity, also in what is said later. Of decisions that differ the later one wins.

        Args:
            name: One of them.
            into: The other, under which it is shown.

        Raises:
            ConfigurationError: One of them is no name, or the memory is read-only.
            HistoryWriteError: The store failed.

        Example:
            >>> from langchain_core.messages import HumanMessage
            >>> from langchain_memkit.memories.entity import EntityMemory
            >>> memory = EntityMemory(lambda text: [], "s1", user_id="u1", names=["Bob", "Robert"])
            >>> memory.save([HumanMessage("Bob sings. Robert dances.")])
            >>> memory.merge("Bob", into="Robert")
            >>> [(entity.name, entity.aliases, len(entity.facts)) for entity in memory.entities()]
            [('Robert', ('Bob',), 2)]
        """
        drive(self._decide("merge", name, into))

    async def amerge(self, name: str, into: str) -> None:
        """Async twin of `merge`."""
        await adrive(self._decide("merge", name, into))

    def split(self, name: str, other: str) -> None:
        """Says that two names are not the same, whatever they look like; every fact knows which name stood in it.

        Args:
            name: One of them.
            other: The other.

        Raises:
            ConfigurationError: One of them is no name, both are the same but for case and the like, or the memory is
                read-only.
            HistoryWriteError: The store failed.

        Example:
            >>> from langchain_core.messages import HumanMessage
            >>> from langchain_memkit.memories.entity import EntityMemory
            >>> memory = EntityMemory(lambda text: [], "s1", user_id="u1", names=["Bob", "Robert"])
            >>> memory.save([HumanMessage("Bob sings. Robert dances.")])
            >>> memory.merge("Bob", into="Robert")
            >>> memory.split("Bob", "Robert")
            >>> len(memory.entities())
            2
        """
        drive(self._decide("split", name, other))

    async def asplit(self, name: str, other: str) -> None:
        """Async twin of `split`."""
        await adrive(self._decide("split", name, other))

    def rename(self, name: str, new: str) -> None:
        """Shows an entity under another name, by which it is found as well.

        Args:
            name: Any of its names.
            new: What it is called from now on.

        Raises:
            ConfigurationError: One of them is no name, or the memory is read-only.
            HistoryWriteError: The store failed.

        Example:
            >>> from langchain_core.messages import HumanMessage
            >>> from langchain_memkit.memories.entity import EntityMemory
            >>> memory = EntityMemory(lambda text: [], "s1", user_id="u1", names=["Bob", "Robert"])
            >>> memory.save([HumanMessage("Bob sings. Robert dances.")])
            >>> memory.rename("Bob", "Robert Smith")
            >>> [entity.name for entity in memory.entities()]
            ['Robert', 'Robert Smith']
        """
        drive(self._decide("rename", name, new))

    async def arename(self, name: str, new: str) -> None:
        """Async twin of `rename`."""
        await adrive(self._decide("rename", name, new))

    def forget(self, name: str) -> int:
        """Deletes all that is known of an entity, in all sessions of the user, with the decisions about its names.

        The transcript still says it: what is said of it from now on is kept, and `rebuild` finds the rest again.

        Args:
            name: Any of its names.

        Returns:
            How many sentences were deleted.

        Raises:
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.messages import HumanMessage
            >>> from langchain_memkit.memories.entity import EntityMemory
            >>> memory = EntityMemory(lambda text: [], "s1", user_id="u1", names=["Bob", "Robert"])
            >>> memory.save([HumanMessage("Bob sings. Robert dances.")])
            >>> memory.forget("Bob"), [entity.name for entity in memory.entities()]
            (1, ['Robert'])
        """
        return drive(self._forget(name))

    async def aforget(self, name: str) -> int:
        """Async twin of `forget`."""
        return await adrive(self._forget(name))

    def forget_messages(self, ids: Collection[str]) -> int:
        """Deletes what was taken from messages of this session. `rebuild` finds it again if they are still there.

        Args:
            ids: Of the messages.

        Returns:
            How many sentences were deleted.

        Raises:
            TypeError: `ids` is a string.
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.messages import HumanMessage
            >>> from langchain_memkit.memories.entity import EntityMemory
            >>> memory = EntityMemory(lambda text: [], "s1", user_id="u1", names=["Bob", "Robert"])
            >>> memory.save([HumanMessage("Bob sings. Robert dances.")])
            >>> memory.save([HumanMessage("Bob left.", id="m2")])
            >>> memory.forget_messages(["m2"])
            1
        """
        return drive(self._forget_messages(ids))

    def rebuild(self, history: Any = None, progress: bool = True) -> Mapping[str, int]:
        """Makes this session's facts anew from its transcript, so that names are found that became known only later.

        Args:
            history: Any LangChain chat history; None: that of `get_session_history`.
            progress: Shows a bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second time nothing is added or removed. Facts that are not
            in the transcript are removed, but for those that were saved meanwhile.

        Raises:
            ConfigurationError: There is no history, the extractor is async, or the memory is read-only.
            HistoryReadError: The transcript cannot be read.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.messages import HumanMessage
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> from langchain_memkit.memories.entity import EntityMemory
            >>> history = SQLiteChatMessageHistory(":memory:", "s1", user_id="u1")
            >>> history.add_messages([HumanMessage("Bob sings.")])
            >>> memory = EntityMemory(lambda text: [], "s1", user_id="u1", names=["Bob"])
            >>> memory.rebuild(history, progress=False)
            {'messages': 1, 'added': 1, 'removed': 0}
        """
        return drive(self._rebuild(history, progress))

    async def _rebuild(self, history: Any, progress: bool) -> Mapping[str, int]:
        return await rebuild(self._core, self._user, {self._session: history}, progress=progress)
