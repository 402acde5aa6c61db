"""What a history hands to a store and gets back. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit._sync import Flow
from langchain_memkit.base import Head, SessionInfo, TokenCounter, Turn, check_id, value_or_kind
from langchain_memkit.errors import IdempotencyConflictError, MessageDecodeError, MessageEncodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_message, encode_messages
from langchain_memkit.messages.counting import count_tokens, counter_name
from langchain_memkit.messages.turns import batch_op, same_messages, split_batch, with_ids

T = TypeVar("T")


class Scope(NamedTuple):
    """Whose conversation: `user_id` is an empty string for the unowned space, which no caller can name."""

    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Row:
    """One document to be stored: encoded messages with their tokens."""

    op: str
    messages: list[dict[str, Any]]
    tokens: list[int]
    created_at: datetime | None = None  # None: now
    expires_at: datetime | None = None  # None: as the store's own ttl says
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call stores: usually one row, several for a long import."""

    given: list[BaseMessage]
    identified: list[BaseMessage]
    rows: list[Row]
    turn_id: str | None

    def parts(self) -> Iterator[tuple[Row, list[BaseMessage]]]:
        """Each row with its messages."""
        begin = 0
        for row in self.rows:
            yield row, self.identified[begin : begin + len(row.messages)]
            begin += len(row.messages)

    @property
    def error_context(self) -> dict[str, Any]:
        """What a `HistoryWriteError` about this batch carries."""
        return {"messages": self.identified, "turn_id": self.turn_id}


EMPTY = Head(0, 0, 0)
MARKER_TTL = timedelta(hours=2)
"""How long a clear or purge is known. A writer that was frozen for longer may miss it."""
MOST = 2**53
"""No session has so many turns: a larger position is damaged, and is neither read nor counted on from."""


class Origin(NamedTuple):
    """What a turn saw when it began: the epoch (for an empty session `purged` of that moment), and when that was.

    `epoch` None: the caller did not load first. `head`: where the session stood then, if that is known.
    """

    epoch: int | None = None
    since: datetime | None = None
    head: Head | None = None


SEEN: dict[str, tuple[str, type]] = {
    "expected_seq": ("seq", int),
    "epoch": ("epoch", int),
    "since": ("read_at", datetime),
    "head": ("head", Head),
}


def check_seen(**seen: object) -> None:
    """Refuse arguments of `append_turn` that are not what a view of the history gives.

    Args:
        seen: The arguments; None is one that was not given.

    Raises:
        TypeError: One is of another type.
    """
    for name, value in seen.items():
        field, kind = SEEN[name]
        if value is not None and not isinstance(value, kind):
            msg = f"{name} must be what view().{field} gives, not {value_or_kind(value)}"
            raise TypeError(msg)


def admits(head: Head | None, turn: Origin, purged: int, now: datetime) -> bool:
    """Whether a turn may still be stored, or belongs to what was cleared or purged since it began.

    Args:
        head: The session now; None if it holds nothing.
        turn: What the turn saw when it began.
        purged: Changes whenever the user is purged; 0 if that did not happen in the last two hours.
        now: The present.
    """
    if turn.epoch is None or (head is not None and head.epoch == turn.epoch):
        return True
    if head is not None:
        return head.base == 0 and turn.epoch == purged
    if turn.epoch == purged:
        return True
    # what the turn saw is gone, and no marker says that it was cleared: it expired. Markers stay for two hours,
    # so a turn that began less than that ago cannot have missed one
    return turn.since is not None and not purged and now - turn.since < MARKER_TTL / 2


def new_epoch() -> int:
    """A random 63-bit value, never 0."""
    return secrets.randbits(63) or 1


def read_turn(row: Mapping[str, Any], counter: TokenCounter | None, newest: int | None = None) -> Turn:
    """A stored row as a `Turn`; what is damaged or newer than this version becomes a line in `problems`.

    With `newest`, decoding ends after one more message than this, counted from the end.
    """
    seq = row.get("seq")
    where = f"turn {seq if isinstance(seq, int) else '?'}"
    created_at = row.get("createdAt")
    turn = Turn(
        seq if isinstance(seq, int) else 0,
        row["epoch"] if isinstance(row.get("epoch"), int) else 0,
        str(row.get("op")),
        created_at if isinstance(created_at, datetime) else None,
        [],
        [],
        expires_at=expires_at if isinstance(expires_at := row.get("expiresAt"), datetime) else None,
        is_deleted=row.get("isDeleted") is True or row.get("isActive") is False,
    )
    version, stored = row.get("v"), row.get("messages")
    if version != FORMAT_VERSION:
        turn.problems.append(
            f"{where}: format {value_or_kind(version)}, this version reads {FORMAT_VERSION}; is memkit older here?"
        )
    elif not isinstance(stored, list):
        turn.problems.append(f"{where}: no list of messages")
    else:
        tokens = row.get("tokens")
        named = counter_name(counter)
        trusted = row.get("token_counter") == named and "<" not in named and _are_counts(tokens, len(stored))
        for i in reversed(range(len(stored))):
            if newest is not None and len(turn.messages) > newest:
                break
            try:
                message = decode_message(stored[i])
            except MessageDecodeError as error:
                turn.problems.append(f"{where} message {i}: {error}")
                continue
            turn.messages.append(message)
            turn.tokens.append(tokens[i] if trusted and tokens else count_tokens([message], counter)[0])
        for newest_first in (turn.messages, turn.tokens, turn.problems):
            newest_first.reverse()
    return turn


def _are_counts(tokens: Any, size: int) -> bool:
    return isinstance(tokens, list) and len(tokens) == size and all(isinstance(n, int) and n >= 0 for n in tokens)


def stored_or_conflict(batch: Batch, index: int, stored: Turn) -> int:
    """The position of a row that a retry found stored already, if it says the same.

    Raises:
        IdempotencyConflictError: It says something else.
    """
    begin = sum(len(row.messages) for row in batch.rows[:index])
    given = batch.given[begin : begin + len(batch.rows[index].messages)]
    if not same_messages(stored.messages, given):
        msg = (
            f"turn {batch.rows[index].op!r} is stored already at position {stored.seq}, with other messages. "
            "Use a new turn_id (or new message ids) for a new turn."
        )
        raise IdempotencyConflictError(msg, stored=stored.messages, **batch.error_context)
    return stored.seq


class Enough(NamedTuple):
    """When a page may end early: when it holds more than so many messages or tokens.

    Rows of an import hold up to 100 messages: decoding a page of them for the newest twenty would be most of the cost.
    """

    messages: int | None = None
    tokens: int | None = None


def until_enough(turns: Iterable[Turn], enough: Enough) -> tuple[list[Turn], bool]:
    """Turns until they hold enough, and whether that was before the end."""
    taken: list[Turn] = []
    messages = tokens = 0
    for turn in turns:
        if (enough.messages is not None and messages > enough.messages) or (
            enough.tokens is not None and tokens > enough.tokens
        ):
            return taken, True
        taken.append(turn)
        messages += len(turn.messages)
        tokens += sum(turn.tokens)
    return taken, False


class Page(NamedTuple):
    """Turns newest first, the session's `seq` and `epoch` as seen by this read, and where to go on.

    For a session that holds nothing, `epoch` is what `admits` calls `purged`. `head`: where an append may begin without
    a look of its own; None where it has to look anyway.
    """

    turns: list[Turn]
    seq: int
    epoch: int
    read_at: datetime | None
    older: Any | None
    head: Head | None = None


class TurnStore(Protocol):
    """What a backend implements for `TurnHistory` and `HistoryFactory`; all but the runners are flows."""

    layout: str

    @property
    def place(self) -> Any: ...
    @property
    def ttl(self) -> float | None: ...

    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...
    async def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> int: ...
    async def page_back(self, scope: Scope, older: Any | None, limit: int, enough: Enough, floor: int = 0) -> Page: ...
    async def page_forward(
        self, scope: Scope, after: Any | None, limit: int, *, hidden: bool = False
    ) -> tuple[list[Turn], Any | None]: ...
    async def unowned(self, session_id: str) -> str | None: ...
    async def stored_ids(self, scope: Scope, ids: Sequence[str]) -> set[str]: ...
    async def flag(self, scope: Scope, turn: int | str, *, deleted: bool) -> bool: ...
    async def clear(self, scope: Scope) -> None: ...
    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]: ...
    async def owners(self) -> list[str]: ...
    async def purge(self, user_id: str) -> dict[str, int]: ...
    async def setup(self) -> None: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...


def check_list(messages: object) -> None:
    """Refuses one message, or a text, where a list belongs: it would be taken apart."""
    if isinstance(messages, (BaseMessage, str)):
        msg = f"messages must be a list of messages, not one {type(messages).__qualname__}: pass a list, [message]"
        raise TypeError(msg)


def prepare(messages: Iterable[BaseMessage], turn_id: str | None, counter: TokenCounter | None) -> Batch:
    """Checks, identifies, encodes, counts and, if it is a long import, splits a batch. No I/O."""
    check_list(messages)
    given = list(messages)
    for i, message in enumerate(given):
        if not isinstance(message, BaseMessage):
            way_out = "; text is stored by add_user_message and add_ai_message" if isinstance(message, str) else ""  # type: ignore[unreachable]
            raise MessageEncodeError(f"messages[{i}]", f"is a {type(message).__qualname__}, not a message{way_out}")
    identified = with_ids(given)
    encoded = encode_messages(identified)
    tokens = count_tokens(identified, counter)
    op = batch_op(identified, None if turn_id is None else check_id(turn_id, "turn_id"))
    sizes = [len(str(data).encode("utf-8", "replace")) for data in encoded]
    ranges = split_batch(identified, sizes)
    names = [op] if len(ranges) == 1 else [f"part:{i:06d}:{op}" for i in range(len(ranges))]
    rows = [Row(name, encoded[a:b], tokens[a:b]) for name, (a, b) in zip(names, ranges, strict=True)]
    return Batch(given, identified, rows, turn_id)
