"""The one abstraction: a memory loads messages, and is told of finished turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.runnables import run_in_executor

__all__ = ["EntityExtractor", "Memory", "MemoryFactory", "Mention", "Query", "SavedTurn"]


class Query(str):
    """What a memory is asked in a turn: the new input as text, which also knows what else the model will see.

    Attributes:
        past: The history of the turn as it was read, oldest first: what was talked about just now.
        seen: What of it the model is sure to see, so that it need not be recalled; nothing where a preprocessor may
            still leave some of it out.
        epoch: Of the session; 0 if unknown. What was derived in another one belongs to an erased conversation.
        trial: Whether somebody only wants to see what would be recalled: then nothing may be stored.
        remarks: A list to which a memory may add what it left out, and why, a line each: `explain_turn` shows them.
            None where nobody asks.

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
        """Return the text with what is known beside it; `seen` is all of the past if nothing is said."""
        query = super().__new__(cls, text)
        query.past = past
        query.seen = past if seen is None else seen
        query.epoch = epoch
        query.trial = trial
        query.remarks = remarks
        return query


class SavedTurn(list[BaseMessage]):
    """The messages of a turn as they were stored, ids included: a list that also knows where from.

    Attributes:
        turn_id: The turn's id: the same one again is a retry.
        epoch: Of the session; 0 if unknown.
        expires_at: When the stored turn goes of itself; None for never.

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
    """What an app remembers besides the history, bound to one session and its user.

    Write one by giving it `load`, `save` and `clear`; the async twins run these in a thread until you write better
    ones. Give it, or a function `(session_id, user_id)` that makes one, to
    `create_runnable_with_message_history(memories=[...])`, or pipe it: `RunnableLambda(memory.load, memory.aload)`.

    Attributes:
        session_id: The conversation; None if it serves all.
        user_id: Whose; None if it serves all.
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
        """Return what the model should see for a query, oldest first.

        Args:
            query: The new input as text; in a turn a `Query`, which knows the history as well.

        Returns:
            New objects, which the caller may change; `[]` if there is nothing to say.
        """

    @abstractmethod
    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Records one finished turn, unedited; the same turn again changes nothing.

        Args:
            messages: Oldest first, with ids where the history gives them; in a turn a `SavedTurn`.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget what came from this session; never what came from the user's others."""

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
        text: As it stands there.
        label: Its kind, in spaCy's words: `"PERSON"`, `"ORG"`, `"GPE"`, ...
        start: Where it begins, in characters.
        end: Where it ends: `source[start:end] == text`.

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
