"""Operations of an entity memory that people call: list entities, correct them, delete them, rebuild them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langchain_memkit._sync import adrive, drive
from langchain_memkit.memories.entity.flows import EntityFlows
from langchain_memkit.memories.entity.listing import EntityList
from langchain_memkit.memories.entity.rebuild import rebuild

__all__ = ["EntityVerbs"]


class EntityVerbs(EntityFlows):
    """Base class of `EntityMemory` with its operations besides `load`, `save` and `clear`."""

    def entities(self) -> EntityList:
        """List everyone and everything that the user talked about, in all sessions.

        Returns:
            The entities, the last mentioned first; shows as a table in a notebook and has `to_dataframe()`.

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
        """Run `entities` asynchronously."""
        return await adrive(self._entities())

    def merge(self, name: str, into: str) -> None:
        """Declare that two names are one entity, now and in later messages. Of conflicting decisions the latest wins.

        Args:
            name: One of them.
            into: The other one, which becomes the display name.

        Raises:
            ConfigurationError: One of them is not a name, or the memory is read-only.
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
        """Run `merge` asynchronously."""
        await adrive(self._decide("merge", name, into))

    def split(self, name: str, other: str) -> None:
        """Declare that two names are different entities, however similar they look.

        Nothing is lost by a wrong merge: every fact keeps the name that it was stored with.

        Args:
            name: One of them.
            other: The other.

        Raises:
            ConfigurationError: One of them is not a name, both are the same but for case and the like, or the memory is
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
        """Run `split` asynchronously."""
        await adrive(self._decide("split", name, other))

    def rename(self, name: str, new: str) -> None:
        """Change the display name of an entity, which is also found by the new name from now on.

        Args:
            name: Any of its names.
            new: The new display name.

        Raises:
            ConfigurationError: One of them is not a name, or the memory is read-only.
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
        """Run `rename` asynchronously."""
        await adrive(self._decide("rename", name, new))

    def forget(self, name: str) -> int:
        """Delete all facts of an entity in all sessions of the user, and the decisions about its names.

        The transcript is not changed: later messages about the entity are stored again, and `rebuild` finds the old
        facts again.

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
        """Run `forget` asynchronously."""
        return await adrive(self._forget(name))

    def forget_messages(self, ids: Collection[str]) -> int:
        """Delete the facts that were taken from messages of this session.

        `rebuild` finds them again if the messages are still in the transcript.

        Args:
            ids: Ids of the messages.

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
        """Rebuild this session's facts from its transcript, so that names that became known later are found in it.

        Args:
            history: Any LangChain chat history; None: that of `get_session_history`.
            progress: Show a progress bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second run adds and removes nothing. Facts that are not in
            the transcript are removed, except those saved while it runs.

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
