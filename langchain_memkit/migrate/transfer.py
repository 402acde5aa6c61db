"""Conversations moved from one store to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, TypeAlias

from langchain_memkit._histories import is_native, read_messages
from langchain_memkit._progress import progress_bar
from langchain_memkit._sync import run_step
from langchain_memkit.base import Turn, check_id
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, IdempotencyConflictError, MessageEncodeError
from langchain_memkit.messages.codec import encode_messages
from langchain_memkit.messages.tokens import count_tokens
from langchain_memkit.messages.trimming import same_messages
from langchain_memkit.migrate import sources
from langchain_memkit.migrate.sources import (
    AnyFactory,
    AnySource,
    Conversation,
    ConversationSource,
    Decision,
    in_thread,
    whole_turns,
)
from langchain_memkit.stores.history import HistoryFactory, TurnHistory, same_counter
from langchain_memkit.stores.history_rows import Batch, PageLimit, ReadVersion, SessionScope, TurnRow


@dataclass
class MigrationReport:
    """Counts of what a migration, an export or an import did, or in a dry run would do.

    Attributes:
        sessions: Conversations read.
        turns: Turns written (in a dry run: that would be written); turns the target had are not counted separately.
        messages: Messages in these turns.
        decisions: Decisions beside the turns that were written: names that are one, lines that the user removed.
        skipped: A line for each item that could not be moved, with the reason.
        dry_run: Whether nothing was written.

    Example:
        >>> print(MigrationReport(sessions=1, turns=2, messages=4, skipped=["line 7: cut off"]))
        moved 4 messages in 2 turns of 1 sessions; 1 skipped
        - line 7: cut off
    """

    sessions: int = 0
    turns: int = 0
    messages: int = 0
    decisions: int = 0
    skipped: list[str] = field(default_factory=list)
    dry_run: bool = False

    def __str__(self) -> str:
        """Format the counts in one line, followed by the skipped items."""
        verb = "would move" if self.dry_run else "moved"
        head = f"{verb} {self.messages} messages in {self.turns} turns of {self.sessions} sessions"
        if self.decisions:
            head += f", and {self.decisions} decisions"
        return "\n".join([f"{head}; {len(self.skipped)} skipped", *(f"- {line}" for line in self.skipped)])


Advance: TypeAlias = Callable[[int], None]
"""A function that moves a progress bar on by some steps."""

BATCH_TURNS = 500
BATCH_MESSAGES = 2_000


def copy_turns(turns: Iterable[Turn], target: TurnHistory, report: MigrationReport, *, counted: bool) -> list[str]:
    """Copy the turns of one session into one of memkit's histories, and return the keys of those that arrived.

    Single messages of other packages are grouped into turns. `counted` says whether the turns' token counts, if they
    have any, are those of the target's counter. After a HistoryWriteError, running again continues.
    """
    if not is_native(target):
        return _add_turns(turns, target, report)
    arrived: list[str] = []
    for batch in _batches(whole_turns(turns)):
        packed = [(turn, row) for turn in batch if (row := _packed(turn, target, report, counted))]
        stored = [row.op for _, row in packed] if report.dry_run else _store(packed, target, report)
        arrived += stored
        sizes = {row.op: len(turn.messages) for turn, row in packed}
        report.turns += len(stored)
        report.messages += sum(sizes[op] for op in stored)
    return arrived


def copy_decisions(decisions: Iterable[Decision], target: AnyFactory, report: MigrationReport) -> None:
    """Copy decisions into histories; one that is there is not stored again."""
    store = target.turn_store
    for one in decisions:
        if not store.keeps_index:
            report.skipped.append(f"user {one.user_id!r}: a decision about {one.name}, which has no place there")
            continue
        report.decisions += 1
        if not report.dry_run:
            store.run(store.decide(one.user_id, one.name, one.data, at=one.created_at, op=one.op))


def known_ids(history: TurnHistory, turns: Iterable[Turn]) -> set[str]:
    """Return the ids of these turns' messages that a history has stored; for a subclass, all of its ids."""
    if not is_native(history):
        return {message.id for message in run_step(read_messages(history)) if message.id}
    return history.stored_ids([message.id for turn in turns for message in turn.messages if message.id])


def _add_turns(turns: Iterable[Turn], target: TurnHistory, report: MigrationReport) -> list[str]:
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


def _packed(turn: Turn, target: TurnHistory, report: MigrationReport, counted: bool) -> TurnRow | None:
    """Encode a turn as a row of the target; None, and a line in the report, if that is not possible."""
    where = f"session {target.session_id!r}, turn {turn.op}"
    if turn.is_deleted and target.turn_store.layout == "langchain":
        report.skipped.append(f"{where}: hidden by delete_turn, and rows of langchain-mongodb cannot be hidden")
        return None
    try:
        encoded = encode_messages(turn.messages)
    except HistoryWriteError as error:
        report.skipped.append(f"{where}: {error}")
        return None
    known = counted and len(turn.tokens) == len(turn.messages)
    tokens = turn.tokens if known else count_tokens(turn.messages, target.token_counter)
    return TurnRow(turn.op, encoded, tokens, turn.created_at, turn.expires_at, turn.is_deleted)


def _store(packed: list[tuple[Turn, TurnRow]], target: TurnHistory, report: MigrationReport) -> list[str]:
    """Store turns in one batch; if a turn is refused, store them one by one, so that it blocks no other."""
    if not packed:
        return []
    given = [m for turn, _ in packed for m in turn.messages]
    batch = Batch(given, given, [row for _, row in packed], None)
    try:
        store, scope = target.turn_store, SessionScope(target.user_id or "", target.session_id)
        store.run(store.append(scope, batch, None, ReadVersion()))
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


def _grown(turn: Turn, row: TurnRow, error: IdempotencyConflictError) -> tuple[Turn, TurnRow] | None:
    """Return the messages that a turn gained since it was migrated, such as the answer to a stored question.

    They form a turn of their own; None if the stored turn is not the beginning of this one.
    """
    size = len(error.stored)
    if not size or size >= len(turn.messages) or not same_messages(error.stored, turn.messages[:size]):
        return None
    rest = Turn(0, 0, f"{turn.op}+{size}", turn.created_at, turn.messages[size:], row.tokens[size:])
    return rest, TurnRow(rest.op, row.messages[size:], rest.tokens, row.created_at, row.expires_at, row.is_deleted)


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


def migrate(
    source: AnySource, target: AnyFactory, *, user_id: str | None = None, dry_run: bool = False, progress: bool = True
) -> MigrationReport:
    """Copy every conversation of one store into another.

    The target is a factory of histories: SQLite or MongoDB, any layout, any collection. The source is one as well, or
    the result of `langchain_sql_source`, `langchain_file_source`, `langchain_memory_source`, `langgraph_source` or
    `vector_records_source`. The source is not changed, with two exceptions. Old records of a vector memory are deleted
    where they were, session by session, once they have arrived. And there is the in-place downgrade: with the same
    collection on both sides, `layout="turns"` as the source and `layout="langchain"` as the target, native turns
    *become* rows of langchain-mongodb.

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
        ConfigurationError: Source and target are the same place, the source is not a source, or its records were made
            of turns that the target holds.

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
    sources.checked(target, "target")
    begin = source if isinstance(source, HistoryFactory) else None
    within = begin is not None and begin.turn_store.place == target.turn_store.place
    way_back = begin if begin and within and _is_way_back(begin, target, user_id) else None
    if not (dry_run or begin):
        # Open the target before reading: that switches a SQLite file to WAL, which a reader of the same file would
        # block.
        target.turn_store.run(target.turn_store.page_back(SessionScope("", "-"), None, 1, PageLimit()))
    # Within one place only conversations without an owner are assigned; those of other users stay theirs.
    read = sources.opened(source, native_only=way_back is not None, user_id="" if within and not way_back else None)
    if read.copies:
        _refuse_copies(read, target, user_id)
    with progress_bar(progress, "migrating", read.size()) as advance, closing(read.conversations()) as conversations:
        for conversation in conversations:
            report.sessions += 1
            left = len(report.skipped)
            copied = _move(conversation, target, user_id, report, advance)
            has_arrived = len(report.skipped) == left and not dry_run
            if read.drop is not None and has_arrived:  # else what is erased later would come back with another run
                read.drop(conversation)
            if way_back and not dry_run:
                # Native turns are removed only after their rows are stored, so that an interruption loses nothing.
                store: Any = way_back.turn_store  # of MongoDB
                store.run(store.drop_turns(SessionScope(conversation.user_id, str(conversation.session_id)), copied))
        if not within:
            given = (one._replace(user_id=user_id or one.user_id) for one in read.decisions())
            copy_decisions(given, target, report)
    return report


amigrate = in_thread(migrate)
"""Run `migrate` in a worker thread."""


def _move(
    conversation: Conversation, target: AnyFactory, user_id: str | None, report: MigrationReport, advance: Advance
) -> list[str]:
    """Copy one conversation; return the idempotency keys of the turns that arrived."""
    try:
        name = check_id(conversation.session_id, "session_id")
        history = target(name, user_id or conversation.user_id or None)
    except (TypeError, ValueError) as error:
        report.skipped.append(f"session {conversation.session_id!r:.100}: {error}")
        return []
    turns = reported(conversation.turns(), report, f"session {name!r}, ", advance)
    if conversation.by_id and not report.dry_run:
        turns = _unknown(turns, history)
    return copy_turns(turns, history, report, counted=same_counter(conversation.counter, history.token_counter))


def _refuse_copies(source: ConversationSource, target: AnyFactory, user_id: str | None) -> None:
    """Refuse turns that were made of the target's own: what was erased there since would come back with the others."""
    with closing(source.conversations()) as conversations:
        for conversation in conversations:
            given = [turn for turn in conversation.turns() if turn.messages]
            try:
                history = target(str(conversation.session_id), user_id or conversation.user_id or None)
            except (TypeError, ValueError):  # an id that the target refuses, which the report will name
                continue
            for turn in history.iter_turns(hidden=True):
                is_ours = turn.op.startswith(source.copies)
                if not is_ours and any(_is_copy(one, turn) for one in given):
                    raise ConfigurationError(
                        f"what is to be moved was made of turns that the target holds, as in session "
                        f"{history.session_id!r}. A memory over these histories recalls them already, so there is "
                        "nothing to move, and what was erased there would come back. Nothing was moved"
                    )


def _is_copy(one: Turn, turn: Turn, *, within: timedelta = timedelta(hours=1)) -> bool:
    """Return whether a turn has a message of another by its id, or says the same at about the same time."""
    ids = {message.id for message in one.messages if message.id}
    if any(message.id in ids for message in turn.messages):
        return True
    dates = [at for at in (one.created_at, turn.created_at) if at is not None]
    is_near = len(dates) < 2 or abs(dates[0] - dates[1]) <= within
    return is_near and _said(one) == _said(turn)


def _said(turn: Turn) -> list[str]:
    return " ".join(message.text for message in turn.messages).split()


def reported(turns: Iterable[Turn], report: MigrationReport, where: str, advance: Advance) -> Iterator[Turn]:
    """Report the problems of turns, and pass on those that hold messages."""
    for turn in turns:
        report.skipped += [f"{where}{problem}" for problem in turn.problems]
        advance(1)
        if turn.messages:
            yield turn


def _unknown(turns: Iterator[Turn], history: TurnHistory) -> Iterator[Turn]:
    """Filter out turns of one message whose id the target has: an agent there has stored it itself."""
    while some := list(islice(turns, BATCH_TURNS)):
        stored = known_ids(history, some)
        yield from (turn for turn in some if turn.messages[0].id not in stored)


def _is_way_back(begin: AnyFactory, end: AnyFactory, user_id: str | None) -> bool:
    """Return whether native turns become rows in their own collection; refuse another move within one place."""
    source, target = begin.turn_store, end.turn_store
    if begin.has_overrides or end.has_overrides:
        msg = "source and target are the same place, and a subclass overrides how it is read: move to another place"
        raise ConfigurationError(msg)
    layouts = (source.layout, target.layout)
    if layouts == ("turns", "langchain"):
        return True
    if layouts == ("turns", "turns") and user_id is not None:
        return False  # conversations without an owner are assigned to a user
    raise ConfigurationError(
        "source and target are the same place, and there is nothing to move: rows of langchain-mongodb are read there. "
        "With user_id= (--user) what belongs to nobody is given to that user"
    )
