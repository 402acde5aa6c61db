"""`migrate`: copy every conversation of one store into another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

from langchain_memkit._histories import is_native
from langchain_memkit._progress import progress_bar
from langchain_memkit.backends._history.factory import HistoryFactory
from langchain_memkit.backends._history.reading import same_counter
from langchain_memkit.backends._history.rows import Enough, Scope
from langchain_memkit.base import Turn, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate.report import MigrationReport
from langchain_memkit.migrate.sources import Conversation, Source, checked, opened
from langchain_memkit.migrate.writing import copy_turns, known_ids

__all__ = ["amigrate", "migrate"]

ROWS_AT_ONCE = 500


def migrate(
    source: HistoryFactory[Any] | Source,
    target: HistoryFactory[Any],
    *,
    user_id: str | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> MigrationReport:
    """Copy every conversation of one store into another.

    The target is a factory of histories: SQLite or MongoDB, any layout, any collection. The source is one as well, or
    the result of `langchain_sql_source`, `langchain_file_source`, `langchain_memory_source` or `langgraph_source`. The
    source is not changed, with one exception, the in-place downgrade: with the same collection on both sides,
    `layout="turns"` as the source and `layout="langchain"` as the target, native turns *become* rows of
    langchain-mongodb.

    Args:
        source: The store to read.
        target: The store to write.
        user_id: Assign all conversations to this user, which rows of langchain-mongodb need, as they carry none. None
            keeps the owners. If source and target are the same place, only conversations without an owner are
            assigned.
        dry_run: Read and count, but write nothing.
        progress: Show a progress bar if `rich` is installed.

    Returns:
        Counts, and a line for everything that was left out. Running it again changes nothing, or adds new turns.

    Raises:
        HistoryReadError: The source cannot be read.
        HistoryWriteError: The target cannot be written; run the migration again to continue.
        ConfigurationError: Source and target are the same place, or the source is not a source.

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
    checked(target, "target")
    within = isinstance(source, HistoryFactory) and source._store.place == target._store.place
    way_back = within and _is_way_back(source, target, user_id)  # type: ignore[arg-type]  # a factory
    if not (dry_run or isinstance(source, HistoryFactory)):
        # Open the target before reading: that switches a SQLite file to WAL, which a reader of the same file would
        # block.
        target._store.run(target._store.page_back(Scope("", "-"), None, 1, Enough()))
    # Within one place only conversations without an owner are assigned; those of other users stay theirs.
    read = opened(source, native_only=way_back, user_id="" if within and not way_back else None)
    with progress_bar(progress, "migrating", read.size()) as advance, closing(_each(read)) as conversations:
        for conversation in conversations:
            report.sessions += 1
            copied = _move(conversation, target, user_id, report, advance)
            if way_back and not dry_run:
                # Native turns are removed only after their rows are stored, so that an interruption loses nothing.
                store: Any = source._store  # type: ignore[union-attr]  # a factory of MongoDB
                store.run(store.drop_turns(Scope(conversation.user_id, conversation.session_id), copied))
    return report


async def amigrate(
    source: HistoryFactory[Any] | Source,
    target: HistoryFactory[Any],
    *,
    user_id: str | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> MigrationReport:
    """Run `migrate` in a worker thread."""
    work = partial(migrate, source, target, user_id=user_id, dry_run=dry_run, progress=progress)
    return await asyncio.to_thread(work)


def _each(source: Source) -> Generator[Conversation, None, None]:
    yield from source.conversations()


def _move(
    conversation: Conversation,
    target: HistoryFactory[Any],
    user_id: str | None,
    report: MigrationReport,
    advance: Callable[[int], None],
) -> list[str]:
    """Copy one conversation; return the idempotency keys of the turns that arrived."""
    name = conversation.session_id
    try:
        history = target(name, user_id or conversation.user_id or None)
        check_id(name, "session_id")
    except (TypeError, ValueError) as error:
        report.skipped.append(f"session {name!r:.100}: {error}")
        return []
    turns = _reported(conversation.turns(), name, report, advance)
    if conversation.by_id and not report.dry_run:
        turns = _unknown(turns, history)
    return copy_turns(turns, history, report, counted=same_counter(conversation.counter, history.token_counter))


def _reported(
    turns: Iterable[Turn], session_id: str, report: MigrationReport, advance: Callable[[int], None]
) -> Iterator[Turn]:
    for turn in turns:
        report.skipped += [f"session {session_id!r}, {problem}" for problem in turn.problems]
        advance(1)
        if turn.messages:
            yield turn


def _unknown(turns: Iterator[Turn], history: Any) -> Iterator[Turn]:
    """Filter out turns of one message whose id the target has: an agent there has stored it itself."""
    while some := list(islice(turns, ROWS_AT_ONCE)):
        stored = known_ids(history, some)
        yield from (turn for turn in some if turn.messages[0].id not in stored)


def _is_way_back(begin: HistoryFactory[Any], end: HistoryFactory[Any], user_id: str | None) -> bool:
    """Return whether native turns become rows in their own collection.

    Raises:
        ConfigurationError: Source and target are the same place, and it is another kind of move that is not possible.
    """
    source, target = begin._store, end._store
    if not (is_native(begin._first) and is_native(end._first)):
        msg = (
            "source and target are the same place, and a subclass that overrides methods is read and written through "
            "them: move to another place"
        )
        raise ConfigurationError(msg)
    layouts = (source.layout, target.layout)
    if layouts == ("turns", "langchain"):
        return True
    if layouts == ("turns", "turns") and user_id is not None:
        return False  # conversations without an owner are assigned to a user
    msg = "source and target are the same place, and there is nothing to move: rows of langchain-mongodb are read there"
    raise ConfigurationError(msg)
