"""The agent's state: the marker of its turn, which of its messages belong to the turn, and what it says of the past.

**The state is the app's, the transcript is the log.** The marker keeps the positions of the rows that this thread
wrote. Of those rows the model sees what the request still holds, in the request's copy and order; of all other rows (a
chain's, another thread's, those from before the thread began) what is stored. So what either side removed stays
removed: by `delete_turn`, `edit`, `clear` and `purge` in the transcript, by trimming, `RemoveMessage` and
`update_state` in the state. A message is recognized by its id, and one without an id, or with a new one, by its type
and text, in order. System messages that only the state has stand in front and are never stored. The log does not
follow the state.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict
from uuid import uuid4

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages
from langgraph.channels.untracked_value import UntrackedValue

from langchain_memkit.base import HistoryMessages, HistoryView, Messages
from langchain_memkit.messages import trimming
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.trimming import index_of, is_id_of_turn, turn_starts, with_turn_ids

Ranges: TypeAlias = list[list[int]]
"""Ranges of positions in the transcript, both ends included."""


class Marker(TypedDict):
    """Plain JSON that identifies the turn in a checkpoint, so that any process can resume it."""

    key: str  # random id of the run
    place: str  # user and session of the run, as one text
    turn_id: str  # idempotency key under which the turn is stored once
    first: str | None  # id of the run's first message, if it has one
    start: NotRequired[int]  # its position in the state's messages
    end: str | None  # id of the last message: of the input while the turn is open, then of the stored turn
    held: NotRequired[int]  # number of messages in the state then
    done: bool  # whether the turn was saved
    epoch: int  # the session's epoch when the turn began; 0 if it had no turn
    since: str | None  # when the turn began, ISO 8601, by the history's clock; None if unknown
    seq: int  # last position in the transcript of this branch of the thread
    skip: Ranges  # ranges of positions of branches that this thread left
    wrote: NotRequired[Ranges]  # ranges of positions that this thread wrote; markers of 0.2.0 lack it
    void: NotRequired[list[str]]  # what was erased, or is another user's, and still in the state: see `with_void`
    covered: NotRequired[list[str]]  # ids of messages in place of which the state has a void summary


class HistoryState(AgentState[Any]):
    """The agent's state with the middleware's private keys, which are neither input nor output.

    `memkit_turn` is the marker, `memkit_run` the run in this process, which is not checkpointed, and `memkit_seen` the
    messages of the run once some of them were removed from the state.
    """

    memkit_turn: NotRequired[Annotated[Marker, PrivateStateAttr]]
    memkit_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]
    memkit_seen: NotRequired[Annotated[list[AnyMessage], PrivateStateAttr]]


State = Mapping[str, Any]
"""A state as LangGraph hands it over: its keys depend on the agent's other middleware."""


def messages_in(state: State) -> list[BaseMessage]:
    """Return the messages of a state, converted: reducers other than `add_messages` may keep what the caller gave."""
    return convert_to_messages(state["messages"])


# -- where in the state's messages the turn begins


def is_lost(messages: Messages, marker: Marker | None, *, settled: bool = False) -> bool:
    """Return whether the message is gone by which the marker knows where in the state the turn begins."""
    message_id = _landmark(marker, settled=settled)
    return message_id is not None and index_of(messages, message_id) < 0


def unstored_start(messages: Messages, marker: Marker | None, *, settled: bool = False) -> int:
    """Find the position of the first message that the transcript may not have, given the previous run's marker.

    A message is found by its id. Where it has none (states with another reducer than LangGraph's `add_messages`), the
    number of messages that the state held decides. `settled` ignores that, as the session was cleared since.
    """
    if marker is None or is_lost(messages, marker, settled=settled):
        return 0
    done = settled or marker["done"]
    start = index_of(messages, _landmark(marker, settled=settled))
    if start >= 0:
        start += 1 if done else 0
    else:
        start = min(marker.get("held", 0) if done else marker.get("start", 0), len(messages))
    if start >= len(messages) and messages and isinstance(messages[-1], HumanMessage):
        # A reducer has shortened the list below the length in the marker; the input is new all the same.
        return start_of_turn(messages, 0)
    return start


def _landmark(marker: Marker | None, *, settled: bool) -> str | None:
    if marker is None:
        return None
    return marker["end"] if settled or marker["done"] else marker["first"]


def start_of_turn(messages: Messages, start: int) -> int:
    """Return the position of the last turn from `start` on; unanswered questions before it belong to it."""
    starts = turn_starts(messages[start:])
    return start + (starts[-1] if starts else 0)


def dialogue_of_run(state: State) -> list[BaseMessage]:
    """Return the messages of the marker's run, removed ones included."""
    marker: Marker | None = state.get("memkit_turn")
    seen: list[BaseMessage] = list(state.get("memkit_seen") or [])
    if marker is None or marker["done"]:
        return seen
    messages = messages_in(state)
    start = unstored_start(messages, marker)
    if is_lost(messages, marker):  # what was seen of the run says where it goes on
        names = {m.id for m in seen}
        start = next((i for i, m in enumerate(messages) if m.id in names), len(messages))
    own = with_turn_ids(messages[start:], [marker["place"]], marker["turn_id"])
    return in_state_order(seen, [m for m in own if is_dialogue(m)])


def in_state_order(seen: Messages, messages: Messages) -> list[BaseMessage]:
    """Return the run's messages in state order, preferring the state's current copy, with newer ones at the end."""
    current = {m.id: m for m in messages}
    before = {m.id for m in seen}
    return [*(current.get(m.id, m) for m in seen), *(m for m in messages if m.id not in before)]


def dialogue_in_state(seen: Messages, messages: Messages) -> list[BaseMessage]:
    """Return the run's messages up to the last one that is still in the state; later ones were taken back."""
    current = {m.id for m in messages}
    last = next((i for i in reversed(range(len(seen))) if seen[i].id in current), -1)
    return list(seen[: last + 1])


def turn_started_at(marker: Marker) -> datetime | None:
    """Return when the turn began, by the history's clock; None if unknown."""
    return datetime.fromisoformat(marker["since"]) if marker["since"] else None


# -- which message is which


def is_foreign_summary(message: BaseMessage) -> bool:
    """Return whether the message is a summary that LangChain's `SummarizationMiddleware` put in place of others."""
    return trimming.notification_source(message) == "summarization"


def is_dialogue(message: BaseMessage) -> bool:
    """Return whether the message belongs in the transcript: it is neither a summary nor a note of memories."""
    return not (is_foreign_summary(message) or trimming.is_summary(message) or is_note(message))


def found_in(messages: Messages, known: Messages) -> list[int | None]:
    """Return for each message its position in another list, None if it is not there.

    Ids decide. A message that has none in one of the lists, or got one when it was stored, is found by what it says, in
    order, the newest first; or by its type before the same neighbour, as its text may have been changed when stored.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> stored = [HumanMessage("hi", id="1"), AIMessage("a", id="2"), HumanMessage("hi", id="3")]
        >>> found_in([AIMessage("a", id="2"), HumanMessage("hi")], stored)
        [1, 2]
    """
    if len(messages) >= len(known) and all(map(_same, messages, known)):  # the usual case: only new ones were added
        return [*range(len(known)), *[None] * (len(messages) - len(known))]
    ids = {m.id: i for i, m in enumerate(known) if m.id}
    found = [ids.get(m.id) if m.id else None for m in messages]
    if None in found:
        _find_by_words(found, messages, known)
        _find_by_neighbour(found, messages, known)
    return found


def missing_in(messages: Messages, found: Sequence[int | None]) -> list[BaseMessage]:
    """Return the messages that `found_in` did not find."""
    return [message for message, place in zip(messages, found, strict=True) if place is None]


def _find_by_words(found: list[int | None], messages: Messages, known: Messages) -> None:
    """Find messages by what they say, each between the positions of those before and after it."""
    free: dict[str, list[int]] = {}
    for i in sorted({*range(len(known))} - {*found}):
        free.setdefault(_words(known[i]), []).append(i)
    least, highest = list[int](), -1
    for place in found:
        least.append(highest)
        highest = max(highest, -1 if place is None else place)
    upper = len(known)
    for i in reversed(range(len(messages))):
        place = found[i]
        if place is None:
            between = [at for at in free.get(_words(messages[i]), ()) if least[i] < at < upper]
            fitting = [at for at in between if _may_be(messages[i], known[at])]
            place = found[i] = fitting[-1] if fitting else None
        upper = upper if place is None else place


def _find_by_neighbour(found: list[int | None], messages: Messages, known: Messages) -> None:
    """Find messages of other words directly before one that was found."""
    taken = {*found}
    for i in reversed(range(len(messages) - 1)):
        after = found[i + 1]
        if found[i] is not None or after is None or after == 0 or after - 1 in taken:
            continue
        place = after - 1
        is_alike = messages[i].type == known[place].type and not isinstance(messages[i], SystemMessage)
        if is_alike and _may_be(messages[i], known[place]):
            found[i] = place


def _same(message: BaseMessage, known: BaseMessage) -> bool:
    return message.id == known.id if message.id and known.id else _words(message) == _words(known)


def _may_be(message: BaseMessage, known: BaseMessage) -> bool:
    """Return whether two messages can be the same, though they do not have the same id."""
    return not (message.id and known.id) or is_id_of_turn(known.id)


def _words(message: BaseMessage) -> str:
    """Return what a message says, and which calls it makes or answers."""
    if isinstance(message, ToolMessage):
        return f"tool {message.tool_call_id}"
    calls = [call["id"] for call in getattr(message, "tool_calls", ())]
    return f"{message.type} {calls} {message.content}"


def key_of(message: BaseMessage) -> str:
    """Return a message's id, or where it has none a digest of what it says."""
    return message.id or hashlib.sha256(_words(message).encode("utf-8", "surrogatepass")).hexdigest()


# -- what was erased, and is still in the state


def with_void(marker: Marker, before: Messages, messages: Messages) -> Marker:
    """Return the marker of a run whose state had other messages `before`, with what of the new ones is void.

    After a clear, or when another user goes on, all that the state has before the input is void: what stands apart of
    it is not shown. While any of it is there, all of LangChain's summaries are void, too, since they may be made of it.
    What they stand for besides is shown as it is stored.
    """
    void = marker.get("void", [])
    if not void:
        return marker
    held = {key_of(m) for m in messages}
    summaries = {key_of(m) for m in messages if is_foreign_summary(m)} - {*void}
    covered = marker.get("covered", [])
    if summaries:
        covered = [*covered, *(m.id for m in before if m.id and m.id not in held)]
    void = [key for key in [*void, *sorted(summaries)] if key in held]
    return {**marker, "void": void, "covered": covered if void else []}


# -- what the transcript may not have


@dataclass(slots=True)
class NewMessages:
    """The end of a state when a run begins: messages that the transcript may not have, and then the new input."""

    messages: list[BaseMessage]  # all of the state
    before: Marker | None  # of the thread's previous run, if it tells anything
    place: str
    turn_id: str
    seen: Messages  # the messages of the previous run, removed ones included
    start: int = 0  # position of the first message that the transcript may not have
    first: int = 0  # position of the input
    named: list[BaseMessage] = field(default_factory=list)  # the messages from `start` on, each with an id
    void: list[str] = field(default_factory=list)
    covered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = unstored_start(self.messages, self.before)
        self.first = start_of_turn(self.messages, self.start)
        # Messages without an id get the ids that the previous run stored them by, or would have: so the indexed
        # lookup recognizes them, and a second attempt to store them changes nothing.
        namer = f"{self.turn_id}:before"
        if self.before is not None:
            self.void, self.covered = self.before.get("void", []), self.before.get("covered", [])
            namer = f"{self.before['turn_id']}:after" if self.before["done"] else self.before["turn_id"]
        self.named = with_turn_ids(self.messages[self.start :], [self.place], namer)

    @property
    def input(self) -> list[BaseMessage]:
        """The new input."""
        return self.messages[self.first :]

    @property
    def moved(self) -> bool:
        """Whether the previous run was another user's or session's."""
        return self.before is not None and self.before["place"] != self.place

    def may_fork(self, known: set[str]) -> bool:
        """Return whether the thread has turns: it has a marker, or messages of this very turn are stored already."""
        asked = {m.id for m in self.named[self.first - self.start :]}
        return not self.moved and (self.before is not None or bool(asked & known))

    def forget(self) -> None:
        """Leave out what the state held when the session was cleared, or under another user or session.

        It must not come back, nor do system messages and summaries of it. Where it is unknown what was there, the input
        is the newest question.
        """
        before = self.before
        if before is None:
            return
        if is_lost(self.messages, before, settled=True):
            questions = [i for i, message in enumerate(self.messages) if isinstance(message, HumanMessage)]
            self.start = self.first = questions[-1] if questions else 0
        else:
            self.start = unstored_start(self.messages, before, settled=True)
            self.first = start_of_turn(self.messages, self.start)
        if self.moved and not before["done"]:  # whose the messages in between are is unknown
            self.start = self.first
        self.named = with_turn_ids(self.messages[self.start :], [self.place], self.turn_id)
        self.void, self.covered = [key_of(m) for m in self.messages[: self.first]], []
        self.before, self.seen = None, ()

    def left(self, known: set[str], view: HistoryView) -> list[BaseMessage]:
        """Return the messages before the input that the transcript lacks; the input is cut to what is new."""
        left = in_state_order(self.seen, self.named[: self.first - self.start])
        past = self._past(known, view)
        gone = {m.id for m, is_past in zip(self.named, past[self.start :], strict=False) if is_past}
        gone = (gone - {m.id for m in self.seen}) | known
        self.first += len([*takewhile(bool, past[self.first :])])
        if self.before is not None and not self.before["done"]:
            self.first += self._already_asked(self.before, known)
        return [m for m in left if m.id not in gone and is_dialogue(m)]

    def _past(self, known: set[str], view: HistoryView) -> list[bool]:
        """Return for each message whether it is of the past, or the app's own, where the marker does not tell.

        Without a marker the system messages before the input are the app's. If the end of the last run is gone from the
        state, all but the newest message may be of the past: what is stored is, and system messages are the app's.
        """
        if self.before is None:
            return [isinstance(m, SystemMessage) for m in self.messages[: self.first]]
        if not is_lost(self.messages, self.before):
            return []
        stored = in_log(self.messages[:-1], known, view)
        return [is_old or isinstance(m, SystemMessage) for m, is_old in zip(self.messages, stored, strict=False)]

    def _already_asked(self, before: Marker, known: set[str]) -> int:
        """Count the input's leading messages that belong to the past, after a run that was not finished.

        They are stored, or a retry with the same turn id asks them again.
        """
        count, newest = 0, self.messages[-1]
        retried = before["turn_id"] == self.turn_id and isinstance(newest, HumanMessage)
        for message, named in zip(self.input[:-1], self.named[self.first - self.start :], strict=False):
            again = isinstance(message, HumanMessage) and message.content == newest.content
            if not (named.id in known or (retried and again)):
                break
            count += 1
        return count

    def marker(self, view: HistoryView, skip: Ranges) -> Marker:
        """Return the marker of the run that begins."""
        ids = {m.id for m in (*self.seen, *self.messages, *self.named) if m.id}
        return Marker(
            key=uuid4().hex,
            place=self.place,
            turn_id=self.turn_id,
            first=self.input[0].id if self.input else None,
            start=self.first,
            end=self.messages[-1].id if self.messages else None,
            held=len(self.messages),
            done=False,
            epoch=view.epoch,
            since=view.read_at.isoformat() if view.read_at else None,
            seq=view.seq,
            skip=skip,
            wrote=written(self.before, view, ids, self.messages),
            void=self.void,
            covered=self.covered,
        )


def in_log(messages: Messages, known: set[str], view: HistoryView) -> list[bool]:
    """Return for each message whether it is stored, by its id or by what it says."""
    found = found_in(messages, view.messages)
    return [m.id in known or place is not None for m, place in zip(messages, found, strict=True)]


# -- positions in the transcript


def within(ranges: Ranges, position: int) -> bool:
    """Return whether one of the ranges holds a position; they are in order and apart."""
    before = bisect_right(ranges, position, key=lambda pair: pair[0])
    return before > 0 and position <= ranges[before - 1][1]


def with_positions(ranges: Ranges, positions: Iterable[int] = ()) -> Ranges:
    """Return the ranges with positions added, adjacent ones joined.

    Example:
        >>> with_positions([[1, 2], [7, 7]], [3, 9])
        [[1, 3], [7, 7], [9, 9]]
    """
    joined: Ranges = []
    for begin, end in sorted([*ranges, *([position, position] for position in positions)]):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return joined


def written(before: Marker | None, view: HistoryView, ids: Collection[str | None], messages: Messages) -> Ranges:
    """Return the positions that a thread wrote: those in its marker, and rows with a message that its state holds."""
    read = view.messages
    turns = read.turns if isinstance(read, HistoryMessages) else ()
    mine = {turn.seq for turn, message in zip(turns, read, strict=False) if turn.seq and message.id in ids}
    wrote: Ranges = before.get("wrote", []) if before else []
    if before is not None and "wrote" not in before and any(map(is_foreign_summary, messages)):
        # A marker of 0.2.0: what the summary stands for is not known, but that it comes before what it left.
        wrote = [[1, min(mine, default=before["seq"] + 1) - 1]]
    return with_positions(wrote, mine)
