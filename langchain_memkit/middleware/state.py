"""What an agent's state says about the turn, and where in its messages the turn begins. Pure but for the schema."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Annotated, Any, NotRequired, TypedDict

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langgraph.channels.untracked_value import UntrackedValue

from langchain_memkit.messages.cuts import is_summary
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.turns import turn_starts

__all__ = ["HistoryState", "Mark", "divide", "index_of", "is_foreign_summary", "is_said", "moment"]


class Mark(TypedDict):
    """The turn as a checkpoint knows it, so that another process can go on with it. Plain JSON.

    Attributes:
        key: Of this run.
        place: Whose conversation it belongs to.
        turn_id: Under which the turn is stored once.
        first: Id of the run's first message; None if it has none.
        end: Id of the last message: of the input while the turn is open, then of all that is stored.
        done: Whether the turn was saved.
        epoch: Of the session when the turn began.
        since: When that was, ISO 8601; None if unknown.
        base: Position in the transcript of the thread's turn before this one; 0 if there was none.
        seq: Position that this branch of the thread has come to.
        skip: Ranges of positions that belong to branches not taken.
    """

    key: str
    place: str
    turn_id: str
    first: str | None
    end: str | None
    done: bool
    epoch: int
    since: str | None
    base: int
    seq: int
    skip: list[list[int]]


class HistoryState(AgentState[Any]):
    """The agent's state with what the middleware keeps in it, which is neither input nor output.

    The turn; the run, which is not checkpointed; and, once a part of it was taken from the state, all that it said.
    """

    memkit_turn: NotRequired[Annotated[Mark, PrivateStateAttr]]
    memkit_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]
    memkit_seen: NotRequired[Annotated[list[AnyMessage], PrivateStateAttr]]


def divide(
    messages: Sequence[BaseMessage], mark: Mark | None, others: Collection[str] = (), *, settled: bool = False
) -> tuple[int, int]:
    """Where what the transcript may not have begins, and where the run's own messages begin.

    Args:
        messages: Of the state, when a run begins.
        mark: What the run before it left.
        others: Ids of what runs say that are under way; it is theirs to store, as all that is before it.
        settled: Whether what the state had then is nobody's business any more: the session was cleared since.

    Returns:
        Two positions, the first not behind the second. Questions that nobody answered belong to the run.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> divide([HumanMessage("a"), AIMessage("b"), HumanMessage("c")], None)
        (0, 2)
    """
    start = 0
    if mark is not None:
        settled = settled or mark["done"]
        start = max(index_of(messages, mark["end" if settled else "first"]) + settled, 0)
    others = {*others} - {messages[-1].id} if messages else ()  # that one came with this run, whoever has seen it
    if others:
        start = next((i + 1 for i in range(len(messages) - 1, start - 1, -1) if messages[i].id in others), start)
    starts = turn_starts(messages[start:])
    return start, start + (starts[-1] if starts else 0)


def moment(mark: Mark) -> datetime | None:
    """When the turn began, by the history's clock."""
    return datetime.fromisoformat(mark["since"]) if mark["since"] else None


def index_of(messages: Sequence[BaseMessage], name: str | None) -> int:
    """Position of the message with this id, looked for from the back; -1 if there is none."""
    if name is None:
        return -1
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].id == name), -1)


def is_foreign_summary(message: BaseMessage) -> bool:
    """Whether LangChain's `SummarizationMiddleware` put it into the state, in place of what it removed."""
    return isinstance(message, HumanMessage) and message.additional_kwargs.get("lc_source") == "summarization"


def is_said(message: BaseMessage) -> bool:
    """Whether somebody said it: neither a summary nor a note of a memory."""
    return not (is_foreign_summary(message) or is_summary(message) or is_note(message))
