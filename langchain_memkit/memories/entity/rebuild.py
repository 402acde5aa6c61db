"""Facts made anew from the transcripts: who was named only later is found from the beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_memkit._progress import progress_bar
from langchain_memkit._sync import cpu_bound
from langchain_memkit.memories.derived import check_writable
from langchain_memkit.memories.entity.book import Book
from langchain_memkit.memories.entity.core import Core
from langchain_memkit.memories.entity.mentions import Source, Spot, facts_of, find_names, sources_of
from langchain_memkit.memories.entity.rows import FactRow, fact_id, id_in
from langchain_memkit.memories.transcripts import UNDATED, Stretch, read_transcript

__all__ = ["rebuild"]

BATCH = 128  # messages that are read by the extractor together
ROWS = 1000

Read = list[tuple[Source, list[Spot]]]


async def rebuild(core: Core, user_id: str, sessions: Mapping[str, Any], *, progress: bool) -> Mapping[str, int]:
    """Makes the facts of these sessions anew.

    The text of all of them is held in memory until it is done.

    Args:
        core: The options.
        user_id: Whose.
        sessions: Their histories; None for that of `get_session_history`.
        progress: Whether a bar is shown.
    """
    check_writable(core)
    book = await core.shelf.read(user_id)
    with core.shelf.lock:  # what is stored from now on may be of a turn that is not read below
        before = {session: book.of_session(session) for session in sessions}
    sources: dict[str, list[Source]] = {}
    for session, history in sessions.items():
        stretches = await read_transcript(history, core.get_session_history, session, user_id)
        sources[session] = [source for stretch in stretches for source in _sources(stretch)]
    counts = {"messages": sum(map(len, sources.values())), "added": 0, "removed": 0}
    with progress_bar(progress, "reading names", counts["messages"]) as advance:
        read: dict[str, Read] = {}
        for session, said in sources.items():
            read[session] = []
            for i in range(0, len(said), BATCH):
                batch = said[i : i + BATCH]
                found = await core.extract([source.text for source in batch])
                read[session] += zip(batch, found, strict=True)
                advance(len(batch))
    names = await cpu_bound(lambda: _known_names(core, book, read))
    for session, pairs in read.items():
        rows = await cpu_bound(lambda: _rows(session, pairs, names))  # noqa: B023  # used at once
        added, removed = await _replace(core, user_id, session, rows, before[session])
        counts["added"] += added
        counts["removed"] += removed
    return counts


def _sources(stretch: Stretch) -> list[Source]:
    found = sources_of(stretch.messages, stretch.at or UNDATED, stretch.epoch, stretch.expires_at)
    own = stretch.native or stretch.at is None  # histories of other packages are asked for all their messages
    return found if own else [source._replace(given=False) for source in found]


def _known_names(core: Core, book: Book, read: Mapping[str, Read]) -> Book:
    """A book of the names in these transcripts and in the user's other sessions; some of their facts are missing."""
    names = Book(book.keys, core.shelf.vocabulary)
    with core.shelf.lock:
        others = {key: row for key, row in book.facts.items() if row.session not in read}
    for key, row in others.items():
        names.add(key, row)
    for session, pairs in read.items():
        for source, _ in pairs:
            if source.speaker:
                names.hear(source.speaker)
        for row in _rows(session, pairs, names):
            names.add(f"{session}/{fact_id(row)}", row)
    return names


def _rows(session: str, pairs: Iterable[tuple[Source, Sequence[Spot]]], names: Book) -> list[FactRow]:
    rows: dict[str, FactRow] = {}
    for source, spots in pairs:
        for row in facts_of(session, source, find_names(source.text, spots, names)):
            rows.setdefault(fact_id(row), row)
    return list(rows.values())


async def _replace(
    core: Core, user_id: str, session: str, rows: Sequence[FactRow], before: Sequence[str]
) -> tuple[int, int]:
    """Stores the facts that are missing, and removes those that were there before and are not in the transcript."""
    book = await core.shelf.read(user_id)
    wanted = {fact_id(row) for row in rows}
    removed = [key for key in before if id_in(key) not in wanted and key in book.facts]
    with core.shelf.lock:
        missing = [row for row in rows if not book.holds(row)]
    if not missing and not removed:
        return 0, 0
    generation = await core.shelf.generation(book, session)
    for i in range(0, max(len(missing), 1), ROWS):
        alive = await core.shelf.write(
            user_id, book, (session, generation), missing[i : i + ROWS], removed if i == 0 else ()
        )
        if not alive:
            break
        book = await core.shelf.read(user_id)
    with core.shelf.lock:
        return sum(map(book.holds, missing)), len(removed)
