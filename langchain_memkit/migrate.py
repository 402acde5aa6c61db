"""Moving conversations: between layouts, backends and collections; into memkit, and back.

Nothing is read twice into the target: every turn keeps the name it is stored under, so a second run adds what is new
and nothing else, and a run that broke off is finished by the next one. Rows that cannot be read are counted and named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_memkit._progress import progress_bar
from langchain_memkit.backends._history.factory import HistoryFactory
from langchain_memkit.backends._history.rows import Batch, Origin, Row
from langchain_memkit.base import Turn, check_id
from langchain_memkit.errors import ConfigurationError, HistoryWriteError
from langchain_memkit.messages.codec import encode_messages
from langchain_memkit.messages.turns import MAX_BATCH_MESSAGES

__all__ = ["MigrationReport", "amigrate", "migrate"]

ROW = "row:"  # how a row of langchain-mongodb is named as a turn

BATCH_TURNS = 500
BATCH_MESSAGES = 2_000


@dataclass
class MigrationReport:
    """What a migration did, or would do.

    Attributes:
        sessions: Conversations looked at.
        turns: Turns written (or, in a dry run, that would be written); those already there are not counted apart.
        messages: Messages in them.
        skipped: What could not be moved and why, a line each.
        dry_run: Whether nothing was written.
    """

    sessions: int = 0
    turns: int = 0
    messages: int = 0
    skipped: list[str] = field(default_factory=list)
    dry_run: bool = False

    def __str__(self) -> str:
        """One line, then the skipped ones."""
        verb = "would move" if self.dry_run else "moved"
        head = f"{verb} {self.messages} messages in {self.turns} turns of {self.sessions} sessions"
        return "\n".join([f"{head}; {len(self.skipped)} skipped", *(f"- {line}" for line in self.skipped)])


def migrate(
    source: HistoryFactory[Any],
    target: HistoryFactory[Any],
    *,
    user_id: str | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> MigrationReport:
    """Copies every conversation of one store into another.

    Source and target are factories of histories: SQLite or MongoDB, any layout, any collection. The source stays as it
    is, with one exception, which is the way back: with the same collection on both sides, `layout="turns"` as the
    source and `layout="langchain"` as the target, native turns *become* rows of langchain-mongodb.

    Args:
        source: Where conversations are read.
        target: Where they are written.
        user_id: Gives all of them to this user, as rows of langchain-mongodb need that carry none. None keeps owners.
        dry_run: Reads and counts, writes nothing.
        progress: Shows a bar if `rich` is installed.

    Returns:
        Counts, and a line for everything that was left out. Running it again changes nothing.

    Raises:
        HistoryReadError: The source cannot be read.
        HistoryWriteError: The target cannot be written; run it again to go on.
        ConfigurationError: Source and target are the same place.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> old = SQLiteChatMessageHistory.factory(":memory:")
        >>> new = SQLiteChatMessageHistory.factory(":memory:")
        >>> old("s1").add_user_message("hello")
        >>> print(migrate(old, new, user_id="u1", progress=False))
        moved 1 messages in 1 turns of 1 sessions; 0 skipped
        >>> new("s1", "u1").messages[0].content
        'hello'
    """
    if user_id is not None:
        check_id(user_id, "user_id")
    report = MigrationReport(dry_run=dry_run)
    way_back = _is_way_back(source._store, target._store, user_id)
    owners = source._store.run(source._store.owners())
    sessions = [(owner, s) for owner in owners for s in source.list_sessions(owner or None)]
    with progress_bar(progress, "migrating", sum(s.turns for _, s in sessions)) as advance:
        for owner, session in sessions:
            report.sessions += 1
            try:
                begin = source(session.session_id, owner or None)
                end = target(session.session_id, user_id or owner or None)
            except (ConfigurationError, ValueError) as error:
                report.skipped.append(f"session {session.session_id!r}: {error}")
                continue
            turns = begin.iter_turns(after_seq=0) if way_back else begin.iter_turns()
            copied = _copy(_reported(turns, session.session_id, report, advance), end, report)
            if way_back and not dry_run:
                begin._store.run(begin._store.drop_turns(begin._scope, copied))
    return report


async def amigrate(
    source: HistoryFactory[Any],
    target: HistoryFactory[Any],
    *,
    user_id: str | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> MigrationReport:
    """Async twin of `migrate`: the same in a worker thread."""
    work = partial(migrate, source, target, user_id=user_id, dry_run=dry_run, progress=progress)
    return await asyncio.to_thread(work)


def _is_way_back(source: Any, target: Any, user_id: str | None) -> bool:
    """Whether native turns become rows in their own collection; refuses other moves within one place."""
    if source.place != target.place:
        return False
    layouts = (source.layout, target.layout)
    if layouts == ("turns", "langchain"):
        return True
    if layouts == ("turns", "turns") and user_id is not None:
        return False  # from nobody's space into a user's
    msg = "source and target are the same place, and there is nothing to move: rows of langchain-mongodb are read there"
    raise ConfigurationError(msg)


def _copy(turns: Iterable[Turn], target: Any, report: MigrationReport) -> list[str]:
    """Copies the turns of one session; returns the ops of those that arrived."""
    arrived: list[str] = []
    for batch in _batches(_whole_turns(turns)):
        rows: list[Row] = []
        given: list[BaseMessage] = []
        for turn in batch:
            try:
                rows.append(Row(turn.op, encode_messages(turn.messages), turn.tokens, turn.created_at))
                given += turn.messages
            except HistoryWriteError as error:
                report.skipped.append(f"session {target.session_id!r}, turn {turn.op}: {error}")
        try:
            if rows and not report.dry_run:
                target._store.run(target._store.append(target._scope, Batch(given, given, rows, None), None, Origin()))
        except (ConfigurationError, HistoryWriteError) as error:
            if isinstance(error.__cause__, Exception) and not isinstance(error, ValueError):
                raise  # the store failed: run again to go on
            report.skipped.append(f"session {target.session_id!r}, {len(rows)} turns from {rows[0].op}: {error}")
            continue
        arrived += [row.op for row in rows]
        report.turns += len(rows)
        report.messages += len(given)
    return arrived


def _reported(
    turns: Iterable[Turn], session_id: str, report: MigrationReport, advance: Callable[[int], None]
) -> Iterator[Turn]:
    for turn in turns:
        report.skipped += [f"session {session_id!r}, {problem}" for problem in turn.problems]
        advance(1)
        if turn.messages:
            yield turn


def _whole_turns(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Rows of one message each, as langchain-mongodb keeps them, put together to turns; other turns as they are."""
    rows: list[Turn] = []
    for turn in turns:
        keep = _rows_of_next_turn(rows, turn)
        if len(keep) < len(rows):
            yield _joined(rows[: len(rows) - len(keep)])
            rows = keep
        if turn.seq == 0 and len(turn.messages) == 1 and not turn.op.startswith("qa:"):
            rows.append(turn)
        else:
            yield turn
    if rows:
        yield _joined(rows)


def _rows_of_next_turn(rows: list[Turn], turn: Turn) -> list[Turn]:
    """Which of the gathered rows belong to a turn that begins with this one; all of them if none begins."""
    if not rows:
        return rows
    if rows[-1].op == turn.op and turn.seq == 0:
        return rows  # written by us as one turn
    if turn.seq or len(turn.messages) != 1 or not (turn.op.startswith(ROW) and rows[-1].op.startswith(ROW)):
        return []
    if len(rows) >= MAX_BATCH_MESSAGES and not isinstance(turn.messages[0], ToolMessage):
        return []
    if not isinstance(turn.messages[0], HumanMessage):
        return rows
    system = len(rows)
    while system > 0 and isinstance(rows[system - 1].messages[0], SystemMessage):
        system -= 1
    asks_on = system > 0 and isinstance(rows[system - 1].messages[0], HumanMessage)
    return rows if asks_on or system == 0 else rows[system:]


def _joined(rows: list[Turn]) -> Turn:
    messages: list[BaseMessage] = [m for row in rows for m in row.messages]
    return Turn(0, 0, rows[0].op, rows[0].created_at, messages, [n for row in rows for n in row.tokens])


def _batches(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    batch: list[Turn] = []
    size = 0
    for turn in turns:
        batch.append(turn)
        size += len(turn.messages)
        if len(batch) >= BATCH_TURNS or size >= BATCH_MESSAGES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
