"""From a question to hits, and from hits to a note that fits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage

from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.errors import HistoryWriteError
from langchain_memkit.memories.transcripts import erased_messages
from langchain_memkit.memories.vector.core import Core, TurnPlace
from langchain_memkit.memories.vector.hits import HitList, hit_of, record_of
from langchain_memkit.memories.vector.rounds import SMALL_TALK
from langchain_memkit.messages.counting import count_text, count_tokens
from langchain_memkit.messages.limits import QUESTION, beginning
from langchain_memkit.messages.notes import Record, enclosed, framed, lines_of, note_message
from langchain_memkit.scoring.index import Entry
from langchain_memkit.scoring.ranking import Ranked, best_first
from langchain_memkit.scoring.words import stems

__all__ = ["recall", "search"]

logger = logging.getLogger("langchain_memkit")

BATCH = 32  # records whose text is fetched at once
RERANKED = 50
FEW = 8  # the same, of texts that come with the index
MANY = 1000  # records whose ranking is worth a thread
SHORT = 2000  # characters whose words are not worth a thread
MISSES = 3  # records that do not fit before the note is full
LEAST, SURE = 0.05, 0.8  # the share of `max_tokens` that is filled at the floor; how far above it all of it is

Keep: TypeAlias = Callable[[Entry], bool]
Found: TypeAlias = tuple[Ranked, float | None]


async def search(core: Core, user_id: str, text: str, k: int, keep: Keep) -> HitList:
    """The best `k` records."""
    text = beginning(text, QUESTION, "a question to the vector memory")
    hits = HitList()
    seen: set[str] = set()
    ranked, _, _ = await _ranked(core, user_id, text, keep)
    while some := list(islice(ranked, BATCH)):
        hits += [hit_of(*found) for found in await _fetched(core, user_id, some, seen)]
        if len(hits) >= k:
            break
    return HitList(hits[:k])


async def recall(
    core: Core,
    user_id: str,
    text: str,
    keep: Keep,
    *,
    trial: bool = False,
    place: TurnPlace | None = None,
    remarks: list[str] | None = None,
) -> list[BaseMessage]:
    """As many of the best records as fit, in the order in which they were said, as one note.

    Args:
        core: The memory.
        user_id: Whose.
        text: The question.
        keep: Whether a record may be shown.
        trial: Whether somebody only wants to see it.
        place: The session of the turn.
        remarks: Where it is said what was left out, and why; None if nobody asks.

    Returns:
        One note, or nothing.
    """
    text = beginning(text, QUESTION, "a question to the vector memory")
    if await cpu_bound(lambda: SMALL_TALK.issuperset(stems(text)), long=len(text) > SHORT):
        return []  # a greeting, a thank-you: nothing to look for
    chosen: list[tuple[Entry, Record, str]] = []
    seen: set[str] = set()
    room = core.max_tokens - count_text(framed([Record("")]), core.counter)
    misses = 0
    ranked, count, best = await _ranked(core, user_id, text, keep, place, core.floor)
    share = _share(core.floor, best)
    if remarks is not None and count and share < 1:
        remarks.append(_remark(core.floor, best, count, share))
    if not share:
        return []
    spare = core.max_tokens - int(share * core.max_tokens)  # which the first record may take all the same
    size = BATCH if core.reads_texts else FEW
    while some := list(islice(ranked, size)):
        for found, rerank, document in await _fetched(core, user_id, some, seen):
            record = record_of(found, rerank, document, len(chosen))
            lines = lines_of(record)
            cost = count_text(lines, core.counter)
            if cost > room - (spare if chosen else 0):
                misses += 1
            elif misses < MISSES and len(chosen) != core.k:
                chosen.append((found.entry, record, lines))
                room -= cost
            if misses >= MISSES or len(chosen) == core.k:
                break
        if misses >= MISSES or len(chosen) == core.k:
            break
    note = _note(chosen) if chosen else None
    while (
        note is not None and count_tokens([note], core.counter)[0] > core.max_tokens
    ):  # a counter may count a whole otherwise
        chosen.pop()
        note = _note(chosen) if chosen else None
    if note is None:
        if misses:
            logger.warning("max_tokens=%d is too little for any of the %d best rounds", core.max_tokens, misses)
        return []
    if not trial:
        await _touch(core, user_id, [entry.id for entry, *_ in chosen])
    return [note]


def _share(floor: float | None, best: float) -> float:
    """How much of `max_tokens` may be filled: nothing below the floor, one record at it, all 0.8 above it."""
    if floor is None:
        return 1.0
    return 0.0 if best < floor else min(1.0, LEAST + (1 - LEAST) * (best - floor) / SURE)


def _remark(floor: float | None, best: float, records: int, share: float) -> str:
    told = f"the best of {records:,} records has {best:.2f} to do with the question, and the floor is {floor:g}"
    return (
        f"VectorMemory filled {share:.0%} of its tokens: {told}" if share else f"VectorMemory recalled nothing: {told}"
    )


async def _ranked(
    core: Core, user_id: str, text: str, keep: Keep, place: TurnPlace | None = None, floor: float | None = None
) -> tuple[Iterator[Found], int, float]:
    """Records, best first, with the reranker's score if there is one; how many; and what the best has to do with it.

    A reranker is not asked where all records are below the floor.
    """
    index, question = await core.look(user_id, text, place)
    found: Iterator[Ranked]
    long = len(index) > MANY or len(text) > SHORT
    found, count, best = await cpu_bound(lambda: best_first(index, question, core.ranking, keep), long=long)
    if question.vector is None and question.similar is None:  # then everything is ranked, matches first
        found = (ranked for ranked in found if ranked.score > 0)
    if core.reranker is None or (floor is not None and best < floor):
        return ((ranked, None) for ranked in found), count, best
    by_id = {ranked.entry.id: ranked for ranked in islice(found, RERANKED)}
    if not by_id:
        return iter(()), 0, 0.0
    documents = await core.documents(user_id, list(by_id))
    given = [
        Document(d.page_content, id=d.id, metadata={**d.metadata, "memkit_id": d.id})
        for d in (documents[name] for name in by_id if name in documents)
    ]
    reranker = core.reranker
    anew = await Step(
        lambda: reranker.compress_documents(given, text), lambda: reranker.acompress_documents(given, text)
    )
    chosen = [(d.metadata.get("memkit_id") or d.id, d.metadata.get("relevance_score")) for d in anew]
    return ((by_id[name], score) for name, score in chosen if name in by_id), count, best


async def _fetched(core: Core, user_id: str, ranked: Sequence[Found], seen: set[str]) -> Iterator[Any]:
    """Texts of records, without what was said before, and without what stands in no transcript any more."""
    document_of = await core.texts(user_id, [found.entry.id for found, _ in ranked])
    wanted: dict[str, set[str]] = {}
    for found, _ in ranked:
        if found.entry.session and any(found.entry.messages):
            wanted.setdefault(found.entry.session, set()).update(filter(None, found.entry.messages))
    erased = await erased_messages(core.get_session_history, user_id, wanted)

    def kept() -> Iterator[tuple[Ranked, float | None, Document]]:
        for found, score in ranked:
            entry = found.entry
            if erased and any((entry.session, message) in erased for message in entry.messages):
                continue
            document = document_of(entry.id)
            if document is None:
                continue
            said = " ".join(document.page_content.casefold().split())
            if said not in seen:
                seen.add(said)
                yield found, score, document

    return kept()  # one by one: most notes are full long before the last of them


async def _touch(core: Core, user_id: str, ids: Sequence[str]) -> None:
    """Remembers that these were recalled; that it cannot be stored costs no turn."""
    store, now = core.store, core.now()
    if core.keeps_access and not core.read_only:
        try:
            await Step(lambda: store.touch(user_id, ids, now), lambda: store.atouch(user_id, ids, now))
        except HistoryWriteError as error:
            logger.warning("when memories were recalled is not stored: %s", error)


def _note(chosen: Sequence[tuple[Entry, Record, str]]) -> HumanMessage:
    undated = datetime.min.replace(tzinfo=UTC)
    in_order = sorted(chosen, key=lambda found: (found[0].at or undated, found[0].session, found[0].position))
    return note_message([record for _, record, _ in in_order], lambda _: enclosed([lines for *_, lines in in_order]))
