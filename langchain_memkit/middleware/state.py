"""The turn's marker in an agent's state, and where in its messages the turn begins. Pure functions and a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NotRequired, TypedDict

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, convert_to_messages
from langgraph.channels.untracked_value import UntrackedValue

from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.text import notification_source
from langchain_memkit.messages.trimming import index_of, is_summary, turn_starts, with_turn_ids

__all__ = [
    "HistoryState",
    "Marker",
    "dialogue_in_state",
    "dialogue_of_run",
    "in_state_order",
    "is_dialogue",
    "is_foreign_summary",
    "messages_in",
    "start_of_turn",
    "turn_started_at",
    "unstored_start",
]


class Marker(TypedDict):
    """Plain JSON that identifies the turn in a checkpoint, so that any process can resume it.

    Attributes:
        key: Random id of the run.
        place: User and session of the run, as one text.
        turn_id: Idempotency key under which the turn is stored once.
        first: Id of the run's first message; None if it has none.
        start: Its position in the state's messages.
        end: Id of the last message: of the input while the turn is open, then of the stored turn.
        held: Number of messages in the state then.
        done: Whether the turn was saved.
        epoch: The session's epoch when the turn began; 0 if it had no turn.
        since: When the turn began, ISO 8601, by the history's clock; None if unknown.
        base: Position in the transcript of the thread's previous turn; 0 if there was none.
        seq: Last position in the transcript of this branch of the thread.
        skip: Ranges of positions, both ends included, of branches that this thread left.
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
    """The agent's state with the middleware's private keys, which are neither input nor output.

    `memkit_turn` is the marker, `memkit_run` the run in this process, which is not checkpointed, and `memkit_seen` the
    messages of the run once some of them were removed from the state.
    """

    memkit_turn: NotRequired[Annotated[Marker, PrivateStateAttr]]
    memkit_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]
    memkit_seen: NotRequired[Annotated[list[AnyMessage], PrivateStateAttr]]


def messages_in(state: Mapping[str, Any]) -> list[BaseMessage]:
    """Return the messages of a state, converted: reducers other than `add_messages` may keep what the caller gave."""
    return convert_to_messages(state["messages"])


def unstored_start(messages: Sequence[BaseMessage], marker: Marker | None, *, settled: bool = False) -> int:
    """Find the position of the first message that the transcript may not have.

    A message is found by its id. Where it has none (states with another reducer than LangGraph's `add_messages`), the
    number of messages that the state held decides.

    Args:
        messages: The messages of the state when a run begins.
        marker: The marker of the previous run; None if there is none.
        settled: Whether to ignore what the state held then, as the session was cleared since.

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
        # A reducer has shortened the list below the length in the marker; the input is new all the same.
        return start_of_turn(messages, 0)
    return start


def start_of_turn(messages: Sequence[BaseMessage], start: int) -> int:
    """Return the position of the last turn from `start` on; unanswered questions before it belong to it."""
    starts = turn_starts(messages[start:])
    return start + (starts[-1] if starts else 0)


def dialogue_of_run(state: Mapping[str, Any]) -> list[BaseMessage]:
    """Return the messages of the marker's run, removed ones included."""
    marker: Marker | None = state.get("memkit_turn")
    seen: list[BaseMessage] = list(state.get("memkit_seen") or [])
    if marker is None or marker["done"]:
        return seen
    messages = messages_in(state)
    start = unstored_start(messages, marker)
    own = with_turn_ids(messages[start:], [marker["place"]], marker["turn_id"])
    return in_state_order(seen, [m for m in own if is_dialogue(m)])


def in_state_order(seen: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the run's messages in state order, preferring the state's current copy, with newer ones at the end."""
    current = {m.id: m for m in messages}
    before = {m.id for m in seen}
    return [*(current.get(m.id, m) for m in seen), *(m for m in messages if m.id not in before)]


def dialogue_in_state(seen: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the run's messages up to the last one that is still in the state; later ones were taken back."""
    current = {m.id for m in messages}
    last = next((i for i in reversed(range(len(seen))) if seen[i].id in current), -1)
    return list(seen[: last + 1])


def turn_started_at(marker: Marker) -> datetime | None:
    """Return when the turn began, by the history's clock; None if unknown."""
    return datetime.fromisoformat(marker["since"]) if marker["since"] else None


def is_foreign_summary(message: BaseMessage) -> bool:
    """Return whether the message is a summary that LangChain's `SummarizationMiddleware` put in place of others."""
    return notification_source(message) == "summarization"


def is_dialogue(message: BaseMessage) -> bool:
    """Return whether the message belongs in the transcript: it is neither a summary nor a note of memories."""
    return not (is_foreign_summary(message) or is_summary(message) or is_note(message))


def _position(marker: Marker, key: str, message_id: str | None, length: int) -> int:
    """Return a position from the marker; 0 if the message had an id that is gone, since nothing is known then."""
    return 0 if message_id is not None else min(int(marker.get(key, 0)), length)  # type: ignore[call-overload]
