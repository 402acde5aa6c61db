"""Rebuild facts from the transcripts, so that a name is also found in messages from before it became known."""

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

BATCH = 128  # messages given to the extractor at once
ROWS = 1000

Read = list[tuple[Source, list[Spot]]]


async def rebuild(core: Core, user_id: str, sessions: Mapping[str, Any], *, progress: bool) -> Mapping[str, int]:
    """Rebuild the facts of these sessions.

    All messages of the sessions are held in memory until it is done.

    Args:
        core: The options.
        user_id: Whose facts.
        sessions: The history of each session; None for that of `get_session_history`.
        progress: Show a progress bar.

    Returns:
        `{"messages": n, "added": n, "removed": n}`.
    """
    check_writable(core)
    book = await core.shelf.read(user_id)
    # Only facts that are stored now may be removed later: a fact stored from now on may come from a turn that is saved
    # after its transcript was read below.
    with core.shelf.lock:
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
    # Ids can be looked up in our rows, and in histories of other packages (`at` is None), which are read whole to look
    # one up; not in rows of other packages that our history reads, so their facts are never reported as gone.
    own = stretch.native or stretch.at is None
    return found if own else [source._replace(given=False) for source in found]


def _known_names(core: Core, book: Book, read: Mapping[str, Read]) -> Book:
    """Build a registry of all names in these transcripts and in the user's other sessions.

    Its facts are incomplete: it serves to find names only.
    """
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
    """Store the missing facts of a session, and delete facts that were there before but are not in the transcript.

    Returns:
        How many facts were added and removed.
    """
    book = await core.shelf.read(user_id)
    wanted = {fact_id(row) for row in rows}
    removed = [key for key in before if id_in(key) not in wanted and key in book.facts]
    with core.shelf.lock:
        missing = [row for row in rows if not book.holds(row)]
    if not missing and not removed:
        return 0, 0
    generation = await core.shelf.generation(book, session)
    # In batches, for a long transcript may yield many facts. The registry is read again after each one; if the session
    # is cleared in between, the rest is not written.
    for i in range(0, max(len(missing), 1), ROWS):
        alive = await core.shelf.write(
            user_id, book, (session, generation), missing[i : i + ROWS], removed if i == 0 else ()
        )
        if not alive:
            break
        book = await core.shelf.read(user_id)
    with core.shelf.lock:
        return sum(map(book.holds, missing)), len(removed)
