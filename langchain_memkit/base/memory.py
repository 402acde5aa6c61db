"""The central abstraction: a memory loads messages for a prompt, and saves finished turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from langchain_core.messages import BaseMessage
from langchain_core.runnables import run_in_executor

from langchain_memkit.base.validation import check_id
from langchain_memkit.errors import ConfigurationError


@runtime_checkable
class Purgeable(Protocol):
    """Anything that can delete a user: memkit's stores, and its factories of histories and memories."""

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete all content of the user, and return counts."""
        ...

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        ...


def purge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Delete a user from every part of an app: histories, and the stores and memories derived from them.

    Args:
        user_id: The user whose content is deleted.
        *parts: The factories, stores and memories in use, in any order; they are purged in this order.

    Returns:
        The counts of what each part deleted, in the order of `parts`.

    Raises:
        TypeError: `user_id` is not a string.
        ValueError: `user_id` is not a valid id.
        ConfigurationError: There are no parts, or one of them cannot delete a user; nothing was deleted.
        HistoryWriteError: A part failed; calling again continues.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> histories("s1", "u1").add_user_message("hello")
        >>> purge_user("u1", histories)
        [{'sessions': 1, 'turns': 1}]
    """
    _check(user_id, parts)
    return [part.purge(user_id) for part in parts]


async def apurge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Run `purge_user` asynchronously."""
    _check(user_id, parts)
    return [await part.apurge(user_id) for part in parts]


def _check(user_id: str, parts: Sequence[object]) -> None:
    """Validate the user and the parts, before anything is deleted."""
    check_id(user_id, "user_id")
    if not parts:
        msg = "purge_user takes the user and the factories, stores and memories in use; without them nothing is deleted"
        raise ConfigurationError(msg)
    for i, part in enumerate(parts):
        if not isinstance(part, Purgeable):
            msg = f"parts[{i}], a {type(part).__name__}, has no purge(user_id) to forget a user. Nothing was deleted."
            raise ConfigurationError(msg)


class Query(str):
    """The input of a turn as text, passed to `Memory.load`, which also knows what else the model will see.

    Attributes:
        past: The history as it was read for this turn, oldest first.
        seen: The part of the history that the model is certain to see, so that it need not be recalled; empty where a
            preprocessor may still leave some of it out.
        epoch: The epoch of the session; 0 if unknown. Data derived in another epoch belongs to an erased conversation.
        trial: Whether this is a dry run, which must not store anything.
        remarks: A list to which a memory may append a line for each thing that it left out, and why: `explain_turn`
            shows them. None unless they are wanted.

    Example:
        >>> query = Query("Who wrote it?")
        >>> query.upper(), query.past, query.seen
        ('WHO WROTE IT?', (), ())
    """

    __slots__ = ("epoch", "past", "remarks", "seen", "trial")

    past: Sequence[BaseMessage]
    seen: Sequence[BaseMessage]
    epoch: int
    trial: bool
    remarks: list[str] | None

    def __new__(
        cls,
        text: str,
        past: Sequence[BaseMessage] = (),
        epoch: int = 0,
        seen: Sequence[BaseMessage] | None = None,
        *,
        trial: bool = False,
        remarks: list[str] | None = None,
    ) -> Query:
        """Create a query from a text; `seen` defaults to all of the past."""
        query = super().__new__(cls, text)
        query.past = past
        query.seen = past if seen is None else seen
        query.epoch = epoch
        query.trial = trial
        query.remarks = remarks
        return query


class SavedTurn(list[BaseMessage]):
    """The messages of a turn as they were stored, ids included: a list that also knows the turn.

    Attributes:
        turn_id: The turn's id: a second save with the same one is a retry.
        epoch: The epoch of the session; 0 if unknown.
        expires_at: When the stored turn expires; None for never.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> turn = SavedTurn([HumanMessage("hi", id="1")], turn_id="t1")
        >>> len(turn), turn.turn_id, turn.epoch
        (1, 't1', 0)
    """

    def __init__(
        self,
        messages: Iterable[BaseMessage],
        turn_id: str | None = None,
        epoch: int = 0,
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(messages)
        self.turn_id = turn_id
        self.epoch = epoch
        self.expires_at = expires_at


class Memory(ABC):
    """A memory of an app besides the history, bound to one session and its user.

    Subclass it with `load`, `save` and `clear`; their async twins run these in a thread unless you override them. Pass
    a memory, or a function `(session_id, user_id)` that creates one, to
    `create_runnable_with_message_history(memories=[...])`, or pipe it: `RunnableLambda(memory.load, memory.aload)`.

    Attributes:
        session_id: The conversation; None if it serves all.
        user_id: The user; None if it serves all.
        read_only: `save` and `clear` leave it as it is.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> class Motto(Memory):
        ...     read_only = True
        ...
        ...     def load(self, query=""):
        ...         return [HumanMessage("Our motto: be brief.")]
        ...
        ...     def save(self, messages):
        ...         pass
        ...
        ...     def clear(self):
        ...         pass
        >>> Motto().load("What is our motto?")[0].content
        'Our motto: be brief.'
    """

    session_id: str | None = None
    user_id: str | None = None
    read_only: bool = False

    @abstractmethod
    def load(self, query: str = "") -> list[BaseMessage]:
        """Return the messages that the model should see for a query, oldest first.

        Args:
            query: The new input as text; within a turn a `Query`, which knows the history as well.

        Returns:
            New objects, which the caller may change; `[]` if there is nothing to say.
        """

    @abstractmethod
    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Record one finished turn, unedited. Saving the same turn again must change nothing.

        Args:
            messages: Oldest first, with ids where the history gives them; within a turn a `SavedTurn`.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget what came from this session, but nothing that came from the user's other sessions."""

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Run `load` asynchronously."""
        return await run_in_executor(None, self.load, query)

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Run `save` asynchronously."""
        await run_in_executor(None, self.save, messages)

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""
        await run_in_executor(None, self.clear)


MemoryFactory: TypeAlias = Callable[..., Memory]
"""`memory(session_id, user_id=None)`: called with the configured ids, like `get_session_history`."""


class Mention(NamedTuple):
    """A name found in a text.

    Attributes:
        text: The name as it is written there.
        label: Its kind, as a spaCy label: `"PERSON"`, `"ORG"`, `"GPE"`, ...
        start: Its first character, as an index.
        end: Its end, as an index, exclusive: `source[start:end] == text`.

    Example:
        >>> mention = Mention("Harrison", "PERSON", 0, 8)
        >>> "Harrison likes tea."[mention.start : mention.end]
        'Harrison'
    """

    text: str
    label: str
    start: int
    end: int


EntityExtractor: TypeAlias = Callable[[str], Any]
"""Text in, names out, plain or async: an iterable of `Mention`s, of tuples like it, or of dicts with its keys (as
GLiNER returns); places may be left out. With a method `batch(texts)` that returns one such list for each text, many
texts are read at once."""
