"""The data that passes between a history and its store, and the rules on it that every store shares. No I/O."""

from __future__ import annotations

import json
import math
import secrets
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage

from langchain_memkit import errors
from langchain_memkit.base import EDITS, Position, SessionHead, TokenCounter, Turn, check_id, describe_value
from langchain_memkit.messages.codec import (
    FORMAT_VERSION,
    Storable,
    decode_message,
    decode_value,
    encode_value,
    storable,
)
from langchain_memkit.messages.tokens import count_tokens, counter_name
from langchain_memkit.messages.trimming import batch_op, same_messages, split_batch, with_ids
from langchain_memkit.stores.backend import UNREADABLE


class SessionScope(NamedTuple):
    """The address of a conversation. `user_id` is empty for unowned sessions; no caller can pass that as an id."""

    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One document or row to store: encoded messages with their token counts.

    With `replaces` it hides every row of the session from that position up to its own. One without messages takes such
    an edit back, whose position it replaces; without that either, it is a decision of the user, which `index` holds.
    `index` holds what was derived from the messages, by name.
    """

    op: str
    messages: list[dict[str, Any]]
    tokens: list[int]
    created_at: datetime | None = None  # None: the present
    expires_at: datetime | None = None  # None: according to the store's `ttl`
    is_deleted: bool = False
    replaces: int | None = None
    trace: Mapping[str, Any] | None = None
    index: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def kind(self) -> Literal["turn", "undo", "decision"]:
        """What the row is: a turn, one that takes an edit back, or a decision."""
        if self.messages:
            return "turn"
        return "decision" if self.replaces is None else "undo"


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one call, ready to store: usually one row, several for a long import.

    Attributes:
        given: The caller's messages, without metadata that cannot be stored exactly.
        identified: Copies of them, each with an id.
        rows: The rows to store.
        turn_id: The caller's id of the turn, if there is one.
    """

    given: list[BaseMessage]
    identified: list[BaseMessage]
    rows: list[TurnRow]
    turn_id: str | None

    def parts(self) -> Iterator[tuple[TurnRow, list[BaseMessage]]]:
        """Yield each row with its messages."""
        begin = 0
        for row in self.rows:
            yield row, self.identified[begin : begin + len(row.messages)]
            begin += len(row.messages)

    @property
    def error_context(self) -> dict[str, Any]:
        """The attributes of a `HistoryWriteError` about this batch."""
        return {"messages": self.identified, "turn_id": self.turn_id}


EMPTY = SessionHead(0, 0, 0)
MARKER_TTL = timedelta(hours=2)
"""Lifetime of a clear or purge marker; a writer that was suspended for longer may miss it."""
MAX_TRACE = 2**20
"""Bytes of JSON that the trace of a turn may have; a longer one is not stored."""
MOST = 2**53
"""Highest valid position: a larger one is damaged, and is neither read nor counted on from."""


class ReadVersion(NamedTuple):
    """The state of the session that a turn saw when it began; all None if the caller did not load first.

    Attributes:
        epoch: The session's epoch; for an empty session, that of the user's last purge (0 if there was none).
        since: The time at which the turn began.
        head: The end of the session at that time, if known.
    """

    epoch: int | None = None
    since: datetime | None = None
    head: SessionHead | None = None


def may_append(head: SessionHead | None, turn: ReadVersion, purged: int, now: datetime) -> bool:
    """Return whether a turn may be stored: not if the session was cleared, or the user purged, since the turn began.

    Args:
        head: The end of the session now; None if it holds nothing.
        turn: The state that the turn saw when it began.
        purged: The epoch of the user's last purge; 0 if there was none in the last two hours.
        now: The present.
    """
    # The caller loaded nothing that could be outdated, or nothing was cleared since: epochs are compared for equality
    # only.
    if turn.epoch is None or (head is not None and head.epoch == turn.epoch):
        return True
    if head is not None:
        # The epochs differ. That is harmless in one case: the session was empty when the turn began (the turn was
        # then given the purge's epoch instead of one of the session's), and another turn has begun it since. A clear
        # since then would show as a base above 0, an edit in the epoch, a purge as another value of `purged`.
        is_only_begun = head.base == 0 and not was_edited(head.epoch)
        return is_only_begun and turn.epoch == purged
    # The session was empty when the turn began, still is, and the user was not purged since.
    if turn.epoch == purged:
        return True
    # What the turn saw is gone, and no tombstone says that it was cleared: it expired. Tombstones stay for two hours,
    # so a turn that began less than one hour ago cannot have missed one.
    return turn.since is not None and not purged and now - turn.since < MARKER_TTL / 2


def new_epoch() -> int:
    """Draw a random 63-bit epoch, never 0; its last bits count edits, of which there are none yet."""
    return (secrets.randbits(63 - EDITS) or 1) << EDITS


def first_head(scope: SessionScope) -> SessionHead:
    """Return the state of a session before its first row: it draws its epoch.

    The rows of a user have that of the last purge, and none if there was none: turns that begin compare with it.
    """
    return SessionHead(0, new_epoch() if scope.session_id else 0, 0)


def next_epoch(epoch: int, row: TurnRow) -> int:
    """Return the epoch of a row after one with this epoch: the same, unless the row replaces others."""
    return epoch if row.replaces is None else epoch >> EDITS << EDITS | ((epoch + 1) % (1 << EDITS) or 1)


def was_edited(epoch: int) -> bool:
    """Return whether a session may hold rows that replace others; it surely holds none if False."""
    return epoch % (1 << EDITS) > 0


class Edit(NamedTuple):
    """A row that replaces others.

    Attributes:
        seq: Its position.
        replaces: The position of the first row that it replaces.
        is_undo: Whether it only takes back the edit at that position, and has no messages.
    """

    seq: int
    replaces: Any
    is_undo: bool = False


class ReplacedTurns:
    """The positions that rows with `replaces` hide: `seq in replaced`.

    The newest row decides first: it hides the rows from `replaces` up to its own position, and a row that is hidden
    hides none.

    Args:
        edits: Position and `replaces` of the rows of a session, newest first; rows that replace nothing do no harm.

    Example:
        >>> replaced = ReplacedTurns([Edit(9, 8), Edit(8, 2), Edit(5, 4)])  # the newest row takes the one at 8 back
        >>> [seq for seq in range(1, 10) if seq not in replaced]
        [1, 2, 3, 5, 6, 7, 9]
    """

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self.first = MOST + 1
        """The lowest of these positions."""
        found: list[tuple[int, int]] = []
        for seq, first, _ in edits:
            if seq < self.first and isinstance(first, int) and 0 < first < seq:
                found.append((first, seq))
                self.first = first
        self.ranges = found[::-1]
        """The first position of each range and the one after its last, in ascending order."""

    def __contains__(self, seq: object) -> bool:
        """Return whether a newer row hides the row at a position."""
        if not isinstance(seq, int):
            return False
        i = bisect_right(self.ranges, (seq, MOST + 1))
        return bool(i) and seq < self.ranges[i - 1][1]


def replaced_in(edits: Iterable[tuple[str, Edit]]) -> list[tuple[str, int, int]]:
    """Return the ranges of positions that rows replace, of many sessions: session, first position, one after the last.

    Args:
        edits: The rows that replace others, each with its session, in any order.
    """
    sessions: dict[str, list[Edit]] = {}
    for session_id, edit in sorted(edits, key=lambda found: -found[1].seq):
        sessions.setdefault(session_id, []).append(edit)
    return [(name, *each) for name, found in sessions.items() for each in ReplacedTurns(found).ranges]


def read_turn(
    row: Mapping[str, Any], counter: TokenCounter | None, newest: int | None = None, replaced: Container[int] = ()
) -> Turn:
    """Decode a stored row into a `Turn`. Damaged messages, or a newer format, become a line in `problems`.

    Args:
        row: The stored row.
        counter: Counts the tokens where the stored counts are of another counter.
        newest: Stop after decoding one message more than this number, counted from the end; None decodes all.
        replaced: The positions of replaced turns.
    """
    seq, created_at, expires_at = row.get("seq"), row.get("createdAt"), row.get("expiresAt")
    replaces = row.get("replaces")
    where = f"turn {seq if isinstance(seq, int) else '?'}"
    turn = Turn(
        seq if isinstance(seq, int) else 0,
        int(row["epoch"]) if isinstance(row.get("epoch"), int) else 0,  # plain, not bson's Int64
        str(row.get("op")),
        created_at if isinstance(created_at, datetime) else None,
        [],
        [],
        expires_at=expires_at if isinstance(expires_at, datetime) else None,
        is_deleted=row.get("isDeleted") is True or row.get("isActive") is False,
        replaces=int(replaces) if isinstance(replaces, int) and isinstance(seq, int) and 0 < replaces < seq else None,
        is_replaced=seq in replaced,
        trace=decode_trace(row.get("trace")),
    )
    version, stored = row.get("v"), row.get("messages")
    if version != FORMAT_VERSION:
        problem = f"format {describe_value(version)}, this version reads {FORMAT_VERSION}; is memkit older here?"
        turn.problems.append(f"{where}: {problem}")
    elif not isinstance(stored, list):
        turn.problems.append(f"{where}: no list of messages")
    else:
        tokens: Any = row.get("tokens")
        named = counter_name(counter)
        # Stored counts are trusted only if they are well-formed and were counted by the same counter; a name with "<"
        # (`<lambda>`) does not identify one.
        is_same = row.get("token_counter") == named and "<" not in named
        fits = isinstance(tokens, list) and len(tokens) == len(stored)
        trusted = is_same and fits and all(isinstance(n, int) and n >= 0 for n in tokens)
        # from the end: a caller that needs only the newest messages of a long row decodes no others
        for i in reversed(range(len(stored))):
            if newest is not None and len(turn.messages) > newest:
                break
            try:
                turn.messages.append(decode_message(stored[i]))
            except errors.MessageDecodeError as error:
                turn.problems.append(f"{where} message {i}: {error}")
            else:
                turn.tokens.append(tokens[i] if trusted else count_tokens(turn.messages[-1:], counter)[0])
        for newest_first in (turn.messages, turn.tokens, turn.problems):
            newest_first.reverse()
    return turn


def encode_trace(trace: object) -> dict[str, Any] | None:
    """Encode a turn's trace as messages are; None, with a line in the log, if that is not possible or too long."""
    try:
        encoded = encode_value(trace, "trace")
        size = len(json.dumps(encoded))
    except Exception as error:  # noqa: BLE001  # a value's own methods may raise anything
        errors.logger.warning("the trace of a turn is not stored: encoding it raised %s", type(error).__name__)
        return None
    if isinstance(encoded, dict) and size <= MAX_TRACE:
        return encoded
    most = f"it has {size:,} bytes, and at most {MAX_TRACE:,} are stored" if size > MAX_TRACE else "it is no dict"
    errors.logger.warning("the trace of a turn is not stored: %s", most)
    return None


def decode_trace(stored: object) -> Mapping[str, Any] | None:
    """Decode a stored trace: an empty one if it is damaged, which costs itself alone; None if there is none."""
    if stored is None:
        return None
    try:
        found = decode_value(stored)
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}


def stored_or_conflict(batch: Batch, index: int, stored: Turn) -> int:
    """Return the position of a row that a retry found stored already, if its messages are the same.

    Raises:
        IdempotencyConflictError: The stored messages differ.
    """
    begin = sum(len(row.messages) for row in batch.rows[:index])
    if not same_messages(stored.messages, batch.given[begin : begin + len(batch.rows[index].messages)]):
        msg = (
            f"turn {batch.rows[index].op!r} is stored already at position {stored.seq}, with other messages. "
            "Use a new turn_id (or new message ids) for a new turn."
        )
        raise errors.IdempotencyConflictError(msg, stored=stored.messages, **batch.error_context)
    return stored.seq


def plan_append(
    scope: SessionScope,
    batch: Batch,
    stored: Mapping[str, Turn],
    head: SessionHead | None,
    *,
    purged: int,
    now: datetime,
    origin: ReadVersion,
    expected_seq: int | None = None,
    last: int = 0,
) -> tuple[list[tuple[SessionHead, TurnRow]], int]:
    """Decide what an append inserts, for a store that reads and inserts in one transaction or under one lock.

    Idempotency comes before every other check: a retry whose first try was stored must succeed, although the session
    has moved on since. Of an import that broke off, only the missing rows are inserted.

    Args:
        scope: The session.
        batch: The rows to store.
        stored: Those of the batch's rows that the session holds, by op.
        head: The end of the session; None if it holds nothing.
        purged: The epoch of the user's last purge; 0 if none is known.
        now: The present.
        origin: What the turn saw when it began.
        expected_seq: The position that the session must be at; None for any.
        last: The last position that was ever taken, if that is known to be above the head: of a damaged row, say.

    Returns:
        The rows to insert, each with its position, epoch and base, which may be none; and what `append` returns.

    Raises:
        IdempotencyConflictError: A row is stored with other messages.
        StaleTurnError: The session was cleared, or the user purged, since the turn began.
        HistoryConflictError: The session is not at `expected_seq`.
    """
    found = [stored_or_conflict(batch, i, stored[row.op]) for i, row in enumerate(batch.rows) if row.op in stored]
    if len(found) == len(batch.rows):
        return [], found[-1] if found else 0
    if not may_append(head, origin, purged, now):
        msg = f"session {scope.session_id!r} was cleared or edited while this turn ran, so the turn was not stored"
        raise errors.StaleTurnError(msg, **batch.error_context)
    if expected_seq is not None and expected_seq != (head or EMPTY).seq:
        msg = f"expected the session at position {expected_seq}, it is at {(head or EMPTY).seq}; read it again"
        raise errors.HistoryConflictError(msg, **batch.error_context)
    # The first turn of a session draws its epoch; later ones copy it.
    end = head or first_head(scope)
    end = end._replace(seq=max(end.seq, last))
    inserts: list[tuple[SessionHead, TurnRow]] = []
    for row in batch.rows:
        if row.op not in stored:
            end = end._replace(seq=end.seq + 1, epoch=next_epoch(end.epoch, row))
            inserts.append((end, row))
    return inserts, end.seq


def not_shown(session_id: str, seq: int, **context: Any) -> errors.HistoryConflictError:
    """Build the error for a position at which a session shows no turn."""
    why = "it was replaced, deleted or cleared, or there never was one"
    msg = f"session {session_id!r} shows no turn at position {seq}: {why}. Read the session again"
    return errors.HistoryConflictError(msg, **context)


def tombstone(seq: int) -> SessionHead:
    """Return the position, epoch and base of a tombstone at a position: it draws an epoch and voids what is older."""
    return SessionHead(seq, new_epoch(), seq)


class PageLimit(NamedTuple):
    """The amounts at which a page may end early: as soon as it holds more messages or more tokens than these.

    Rows of an import hold up to 100 messages: decoding a page of them for the newest twenty would be most of the cost.

    Attributes:
        messages: The number of messages; None for no limit.
        tokens: The number of tokens; None for no limit.
        turns: The least number of turns: no turn counts for more than such a part of either amount, however long.
    """

    messages: int | None = None
    tokens: int | None = None
    turns: int = 1

    def counted(self, turns: Iterable[Turn]) -> tuple[int, int]:
        """Return the numbers of messages and tokens for which some turns count."""
        sizes = [(len(turn.messages), sum(turn.tokens)) for turn in turns]
        if self.turns > 1:
            most_messages, most_tokens = (MOST if most is None else most // self.turns + 1 for most in self[:2])
            sizes = [(min(messages, most_messages), min(tokens, most_tokens)) for messages, tokens in sizes]
        return sum(messages for messages, _ in sizes), sum(tokens for _, tokens in sizes)


TurnPage: TypeAlias = tuple[list[Turn], Any]
"""Turns, and where to continue; None at the end."""


def until_limit(turns: Iterable[Turn], enough: PageLimit) -> tuple[list[Turn], bool]:
    """Return the turns up to the one with which they hold enough, and whether turns were left over."""
    most_messages, most_tokens = (math.inf if most is None else most for most in enough[:2])
    taken: list[Turn] = []
    messages = tokens = 0
    for turn in turns:
        if messages > most_messages or tokens > most_tokens:
            return taken, True
        taken.append(turn)
        more_messages, more_tokens = enough.counted([turn])
        messages += more_messages
        tokens += more_tokens
    return taken, False


class Page(NamedTuple):
    """A page of turns, newest first, with the state of the session as of this read.

    Attributes:
        turns: The turns.
        seq: The last position of the session; 0 if it holds nothing.
        epoch: The session's epoch; if it holds nothing, that of the user's last purge, which `may_append` takes as
            `purged`.
        read_at: The time of the read, by the store's clock.
        older: Where to continue reading; None at the end.
        head: The end of the session, from which an append may start without another read; None if it has to read.
    """

    turns: list[Turn]
    seq: int
    epoch: int
    read_at: datetime | None
    older: Any
    head: SessionHead | None = None


@dataclass(frozen=True, slots=True)
class StoredSummary:
    """A summary that lies beside its conversation.

    Attributes:
        id: Drawn anew for each summary, so that whoever replaces it notices that it is another one by now.
        position: The last message that it covers.
        value: The summary as plain data of JSON's types.
        expires_at: When it expires: with the first of the turns that it covers. None for never.
    """

    id: str
    position: Position
    value: Mapping[str, Any]
    expires_at: datetime | None = None


def read_summary(row: Mapping[str, Any], now: datetime) -> StoredSummary | None:
    """Decode a stored summary; None if it has expired, or is damaged or of a newer format."""
    expires_at, value = row.get("expiresAt"), row.get("value")
    if not isinstance(expires_at, datetime):
        expires_at = None
    if row.get("v") != FORMAT_VERSION or (expires_at is not None and expires_at <= now):
        return None
    position = Position.read(row.get("position"))
    if position is None or not isinstance(value, Mapping):
        return None
    return StoredSummary(str(row.get("id")), position, value, expires_at)


def prepare_batch(
    messages: Iterable[BaseMessage],
    turn_id: str | None,
    counter: TokenCounter | None,
    replaces: int | None = None,
    leave_out: Callable[[Sequence[BaseMessage]], Storable] = storable,
) -> Batch:
    """Validate, identify, encode and count a batch of messages, and split it if it is a long import. No I/O.

    Metadata that cannot be stored exactly is left out, marked and logged: a turn is not lost over an artifact.
    """
    passed: object = messages
    if isinstance(passed, (BaseMessage, str)):  # iterating it would take it apart
        msg = f"messages must be a list of messages, not one {type(passed).__qualname__}: pass a list, [message]"
        raise TypeError(msg)
    given = list(messages)
    for i, message in enumerate[object](given):
        if not isinstance(message, BaseMessage):
            hint = "; text is stored by add_user_message and add_ai_message" if isinstance(message, str) else ""
            raise errors.MessageEncodeError(f"messages[{i}]", f"is a {type(message).__qualname__}, not a message{hint}")
    named = with_ids(given)
    identified, encoded, left_out = leave_out(named)
    if left_out:
        # the names of fields alone: keys may tell of the conversation
        fields = sorted({path.split(".")[1].partition("[")[0] for path in left_out})
        where = ", ".join(fields[:3])
        errors.logger.warning("metadata that cannot be stored is left out of a turn: %d in %s", len(left_out), where)
        # a retry is compared with what is stored
        triples = zip(given, named, identified, strict=True)
        given = [old if new is whole else new.model_copy(update={"id": old.id}) for old, whole, new in triples]
    tokens = count_tokens(identified, counter)
    # Ids, and with them the op, are fixed before the first attempt: every retry of this batch carries the same op, so
    # the store can tell it from a second turn with the same words.
    op = batch_op(identified, None if turn_id is None else check_id(turn_id, "turn_id"))
    if replaces is not None and turn_id is None:  # the same messages may be stored already, as a turn of their own
        op = f"edit:{replaces}:{op}"
    sizes = [len(str(data).encode("utf-8", "replace")) for data in encoded]
    ranges = split_batch(identified, sizes)
    # Each part of an import has an op of its own, so a repeated import finds the parts that are stored.
    names = [op] if len(ranges) == 1 else [f"part:{i:06d}:{op}" for i in range(len(ranges))]
    parts = zip(names, ranges, strict=True)
    rows = [TurnRow(name, encoded[a:b], tokens[a:b], replaces=replaces) for name, (a, b) in parts]
    batch = Batch(given, identified, rows, turn_id)
    if replaces is not None and len(rows) > 1:  # several rows are not stored in one step
        many = f"{len(given)} messages of several turns are too many to replace a turn in one step"
        raise errors.MessageTooLargeError(f"{many}: replace it by one turn", **batch.error_context)
    return batch
