"""Writing turns to a target: in batches, each turn once; turns that cannot be stored are reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from langchain_memkit._histories import is_native
from langchain_memkit.backends._history.rows import Batch, Origin, Row
from langchain_memkit.base import Turn
from langchain_memkit.errors import HistoryWriteError, IdempotencyConflictError, MessageEncodeError
from langchain_memkit.messages.codec import encode_messages
from langchain_memkit.messages.counting import count_tokens
from langchain_memkit.messages.turns import same_messages
from langchain_memkit.migrate.joining import whole_turns
from langchain_memkit.migrate.report import MigrationReport

BATCH_TURNS = 500
BATCH_MESSAGES = 2_000


def copy_turns(turns: Iterable[Turn], target: Any, report: MigrationReport, *, counted: bool = False) -> list[str]:
    """Copy the turns of one session into one of memkit's histories.

    Args:
        turns: The turns, oldest first; single messages of other packages are grouped into turns.
        target: The history to write to.
        report: Receives the counts and the skipped turns.
        counted: Whether the turns' token counts, if they have any, are those of the target's counter.

    Returns:
        The idempotency keys of the turns that arrived.

    Raises:
        HistoryWriteError: The store failed; running again continues.
    """
    if not is_native(target):
        return _add_turns(turns, target, report)
    arrived: list[str] = []
    for batch in _batches(whole_turns(turns)):
        packed = [(turn, row) for turn in batch if (row := _packed(turn, target, report, counted))]
        stored = [row.op for _, row in packed] if report.dry_run else _store(packed, target, report)
        arrived += stored
        kept = set(stored)
        for turn, row in packed:
            if row.op in kept:
                report.turns += 1
                report.messages += len(turn.messages)
    return arrived


def known_ids(history: Any, turns: Iterable[Turn]) -> set[str]:
    """Return the ids of these turns' messages that a history has stored; for a subclass, all of its ids."""
    if not is_native(history):
        return {message.id for message in history.messages if message.id}
    known: set[str] = history.stored_ids([message.id for turn in turns for message in turn.messages])
    return known


def _add_turns(turns: Iterable[Turn], target: Any, report: MigrationReport) -> list[str]:
    """Copy turns through a subclass's own methods; stored messages are recognised by their ids."""
    arrived: list[str] = []
    known = known_ids(target, ())
    for turn in whole_turns(turns):
        where = f"session {target.session_id!r}, turn {turn.op}"
        if turn.is_deleted:
            report.skipped.append(f"{where}: hidden by delete_turn, and {type(target).__name__} stores no such turns")
            continue
        try:
            if not report.dry_run and (new := [m for m in turn.messages if not m.id or m.id not in known]):
                target.add_messages(new)
        except MessageEncodeError as error:
            report.skipped.append(f"{where}: {error}")
            continue
        arrived.append(turn.op)
        report.turns += 1
        report.messages += len(turn.messages)
    return arrived


def _packed(turn: Turn, target: Any, report: MigrationReport, counted: bool) -> Row | None:
    """Encode a turn as a row of the target; None, and a line in the report, if that is not possible."""
    where = f"session {target.session_id!r}, turn {turn.op}"
    if turn.is_deleted and target._store.layout == "langchain":
        report.skipped.append(f"{where}: hidden by delete_turn, and rows of langchain-mongodb cannot be hidden")
        return None
    try:
        encoded = encode_messages(turn.messages)
    except HistoryWriteError as error:
        report.skipped.append(f"{where}: {error}")
        return None
    known = counted and len(turn.tokens) == len(turn.messages)
    tokens = turn.tokens if known else count_tokens(turn.messages, target.token_counter)
    return Row(turn.op, encoded, tokens, turn.created_at, turn.expires_at, turn.is_deleted)


def _store(packed: list[tuple[Turn, Row]], target: Any, report: MigrationReport) -> list[str]:
    """Store turns in one batch; if a turn is refused, store them one by one, so that it blocks no other."""
    if not packed:
        return []
    given = [m for turn, _ in packed for m in turn.messages]
    batch = Batch(given, given, [row for _, row in packed], None)
    try:
        target._store.run(target._store.append(target._scope, batch, None, Origin()))
    except HistoryWriteError as error:
        # The cause is the driver's error if the store failed; an error about the turn itself has none, or is a
        # ValueError.
        if isinstance(error.__cause__, Exception) and not isinstance(error, ValueError):
            raise  # the store itself failed, so no single turn is at fault
        if len(packed) > 1:
            return [op for one in packed for op in _store([one], target, report)]
        ((turn, row),) = packed
        # The stored turn may be the beginning of this one, which grew since the last run: then append only its new end.
        if isinstance(error, IdempotencyConflictError) and (rest := _grown(turn, row, error)):
            return [row.op] if _store([rest], target, report) else []
        report.skipped.append(f"session {target.session_id!r}, turn {row.op}: {error}")
        return []
    return [row.op for _, row in packed]


def _grown(turn: Turn, row: Row, error: IdempotencyConflictError) -> tuple[Turn, Row] | None:
    """Return the messages that a turn gained since it was migrated, such as the answer to a stored question.

    They form a turn of their own; None if the stored turn is not the beginning of this one.
    """
    size = len(error.stored)
    if not size or size >= len(turn.messages) or not same_messages(error.stored, turn.messages[:size]):
        return None
    rest = Turn(0, 0, f"{turn.op}+{size}", turn.created_at, turn.messages[size:], row.tokens[size:])
    return rest, Row(rest.op, row.messages[size:], rest.tokens, row.created_at, row.expires_at, row.is_deleted)


def _batches(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Group turns into batches with each key at most once: only the store can tell a repeated turn from a conflict."""
    batch: dict[str, Turn] = {}
    size = 0
    for turn in turns:
        if batch and (turn.op in batch or len(batch) >= BATCH_TURNS or size >= BATCH_MESSAGES):
            yield list(batch.values())
            batch, size = {}, 0
        batch[turn.op] = turn
        size += len(turn.messages)
    if batch:
        yield list(batch.values())
