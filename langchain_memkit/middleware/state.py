"""What an agent's state says about the turn, and where in its messages the turn begins. Pure but for the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NotRequired, TypedDict

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, convert_to_messages
from langgraph.channels.untracked_value import UntrackedValue

from langchain_memkit.messages.authors import notification_source
from langchain_memkit.messages.cuts import is_summary
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.turns import index_of, turn_starts, with_turn_ids

__all__ = [
    "HistoryState",
    "Marker",
    "in_order",
    "is_foreign_summary",
    "is_said",
    "messages_in",
    "moment",
    "said_so_far",
    "start_of_turn",
    "still_said",
    "unstored_start",
]


class Marker(TypedDict):
    """The turn as a checkpoint knows it, so that any process can go on with it. Plain JSON.

    Attributes:
        key: Of this run.
        place: The user and session of the run.
        turn_id: Under which the turn is stored once.
        first: Id of the run's first message; None if it has none.
        start: Its position in the state's messages.
        end: Id of the last message: of the input while the turn is open, then of all that is stored.
        held: How many messages the state had then.
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
    start: NotRequired[int]
    end: str | None
    held: NotRequired[int]
    done: bool
    epoch: int
    since: str | None
    base: int
    seq: int
    skip: list[list[int]]


class HistoryState(AgentState[Any]):
    """The agent's state with what the middleware keeps in it, which is neither input nor output.

    The turn; the run, which is not checkpointed; and all that the run has said, once a part of it was removed.
    """

    memkit_turn: NotRequired[Annotated[Marker, PrivateStateAttr]]
    memkit_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]
    memkit_seen: NotRequired[Annotated[list[AnyMessage], PrivateStateAttr]]


def messages_in(state: Mapping[str, Any]) -> list[BaseMessage]:
    """Return the messages of a state; a reducer other than `add_messages` may leave them as the caller gave them."""
    return convert_to_messages(state["messages"])


def unstored_start(messages: Sequence[BaseMessage], marker: Marker | None, *, settled: bool = False) -> int:
    """Return the position where messages begin that the transcript may not have.

    A message is found by its id. Where it has none (states with another reducer than LangGraph's `add_messages`), the
    number of messages that the state held decides.

    Args:
        messages: Of the state, when a run begins.
        marker: What the run before it left.
        settled: Whether what the state had then is not to be stored any more: the session was cleared since.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> unstored_start([HumanMessage("a"), AIMessage("b"), HumanMessage("c")], None)
        0
    """
    if marker is None:
        return 0
    if settled or marker["done"]:
        found = index_of(messages, marker["end"])
        start = found + 1 if found >= 0 else _position(marker, "held", marker["end"], len(messages))
    else:
        found = index_of(messages, marker["first"])
        start = found if found >= 0 else _position(marker, "start", marker["first"], len(messages))
    if start >= len(messages) and messages and isinstance(messages[-1], HumanMessage):
        return start_of_turn(messages, 0)  # a reducer has shortened the list to less than it held: the input is new
    return start


def start_of_turn(messages: Sequence[BaseMessage], start: int) -> int:
    """Return the position of the last turn from `start` on. Questions that nobody answered belong to it."""
    starts = turn_starts(messages[start:])
    return start + (starts[-1] if starts else 0)


def said_so_far(state: Mapping[str, Any]) -> list[BaseMessage]:
    """Return what the run of a state's marker has said, with what was removed from the state and noted there."""
    marker: Marker | None = state.get("memkit_turn")
    seen: list[BaseMessage] = list(state.get("memkit_seen") or [])
    if marker is None or marker["done"]:
        return seen
    messages = messages_in(state)
    start = unstored_start(messages, marker)
    own = with_turn_ids(messages[start:], [marker["place"]], marker["turn_id"])
    return in_order(seen, [m for m in own if is_said(m)])


def in_order(seen: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return what a run was seen to say, as far as it stands there now as it stands there, and what came after it."""
    current = {m.id: m for m in messages}
    before = {m.id for m in seen}
    return [*(current.get(m.id, m) for m in seen), *(m for m in messages if m.id not in before)]


def still_said(seen: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return what a run was seen to say up to the last message that is still there; what followed was taken back."""
    current = {m.id for m in messages}
    last = next((i for i in reversed(range(len(seen))) if seen[i].id in current), -1)
    return list(seen[: last + 1])


def moment(marker: Marker) -> datetime | None:
    """Return when the turn began, by the history's clock."""
    return datetime.fromisoformat(marker["since"]) if marker["since"] else None


def is_foreign_summary(message: BaseMessage) -> bool:
    """Return whether LangChain's `SummarizationMiddleware` put it into the state, in place of what it removed."""
    return notification_source(message) == "summarization"


def is_said(message: BaseMessage) -> bool:
    """Return whether it belongs into the transcript: neither a summary nor a note of a memory."""
    return not (is_foreign_summary(message) or is_summary(message) or is_note(message))


def _position(marker: Marker, key: str, message_id: str | None, length: int) -> int:
    """Return a stored position; 0 where it goes by an id that is not there any more, since then nothing is known."""
    return 0 if message_id is not None else min(int(marker.get(key, 0)), length)  # type: ignore[call-overload]
