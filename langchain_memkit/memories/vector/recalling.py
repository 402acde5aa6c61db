"""Recall: rank records for a question, and quote the best ones in a note that fits the token budget."""

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
from langchain_memkit.messages.notes import Record, enclosed, framed, note_message
from langchain_memkit.scoring.index import Entry
from langchain_memkit.scoring.ranking import Ranked, best_first
from langchain_memkit.scoring.words import stems

__all__ = ["recall", "search"]

logger = logging.getLogger("langchain_memkit")

BATCH = 32  # records whose texts are fetched at once from the store
RERANKED = 50  # records that a reranker is given
FEW = 8  # records per batch where the texts come with the index
MANY = 1000  # records; ranking more runs in a thread
SHORT = 2000  # characters; tokenizing more runs in a thread
MISSES = 3  # records that may fail to fit before the note counts as full
LEAST, SURE = 0.05, 0.8  # share of `max_tokens` filled at the floor; distance above the floor at which all is filled

Keep: TypeAlias = Callable[[Entry], bool]
Found: TypeAlias = tuple[Ranked, float | None]


async def search(core: Core, user_id: str, text: str, k: int, keep: Keep) -> HitList:
    """Search for the best `k` records that `keep` accepts, best first, without a floor."""
    text = beginning(text, QUESTION, "a question to the vector memory")
    hits = HitList()
    seen: set[str] = set()
    ranked, _, _ = await _ranked(core, user_id, text, keep)
    while some := list(islice(ranked, BATCH)):
        hits += [hit_of(*found) for *found, _ in await _fetched(core, user_id, some, seen)]
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
    """Quote as many of the best records as fit in one note, in the order in which they were said.

    Args:
        core: The memory's options and store.
        user_id: The user.
        text: The question.
        keep: Predicate: whether a record may be shown.
        trial: Dry run: do not record that the records were recalled.
        place: The session of the turn, which receives its snapshot.
        remarks: A list that receives explanations of what the floor left out; None if they are not wanted.

    Returns:
        A list of one note; empty if there is nothing to look for, nothing related, or nothing that fits.
    """
    text = beginning(text, QUESTION, "a question to the vector memory")
    if await cpu_bound(lambda: SMALL_TALK.issuperset(stems(text)), long=len(text) > SHORT):
        return []  # a greeting or thanks
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
    # Near the floor only a share of the budget is filled. The first record may use all of it, so that one long record
    # is not dropped because the share is small.
    spare = core.max_tokens - int(share * core.max_tokens)
    size = BATCH if core.reads_texts else FEW
    while some := list(islice(ranked, size)):
        for found, rerank, document, notes in await _fetched(core, user_id, some, seen):
            record, lines = record_of(found, rerank, document, len(chosen), notes)
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
    # A tokenizer may count the whole note higher than the sum of its parts: drop the least relevant until it fits.
    while note is not None and count_tokens([note], core.counter)[0] > core.max_tokens:
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
    """Return the share of `max_tokens` to fill: 0 below the floor, 0.05 at it, rising to all of it 0.8 above."""
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
    """Rank the user's records, with the reranker if there is one.

    The reranker is not called if all records are below the floor.

    Returns:
        The records, best first, each with its reranker score or None; the number of records that were compared; and
        the highest `relation` among them.
    """
    index, question = await core.look(user_id, text, place)
    found: Iterator[Ranked]
    long = len(index) > MANY or len(text) > SHORT
    found, count, best = await cpu_bound(lambda: best_first(index, question, core.ranking, keep), long=long)
    # Without similarities every record is ranked, also those that share no word with the question: drop these.
    if question.vector is None and question.similar is None:
        found = (ranked for ranked in found if ranked.score > 0)
    if core.reranker is None or (floor is not None and best < floor):
        return ((ranked, None) for ranked in found), count, best
    by_id = {ranked.entry.id: ranked for ranked in islice(found, RERANKED)}
    if not by_id:
        return iter(()), 0, 0.0
    documents = await core.documents(user_id, list(by_id))
    # Keep the id in the metadata as well: a compressor may build new documents without ids.
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
    """Fetch the texts of ranked records, leaving out duplicates and records erased from their transcripts.

    Args:
        core: The memory's options and store.
        user_id: The user.
        ranked: The records with their reranker scores, best first.
        seen: Normalized texts that were returned already; it is extended.

    Returns:
        A lazy iterator over (record, reranker score, document, what was made of it to show it).
    """
    text_of = await core.texts(user_id, [found.entry.id for found, _ in ranked])
    wanted: dict[str, set[str]] = {}
    for found, _ in ranked:
        if found.entry.session and any(found.entry.messages):
            wanted.setdefault(found.entry.session, set()).update(filter(None, found.entry.messages))
    erased = await erased_messages(core.get_session_history, user_id, wanted)

    def kept() -> Iterator[tuple[Ranked, float | None, Document, Any]]:
        for found, score in ranked:
            entry = found.entry
            # One deleted message hides the whole record, since its text quotes that message.
            if erased and any((entry.session, message) in erased for message in entry.messages):
                continue
            text = text_of(entry.id)
            if text is None:
                continue
            document, notes = text
            said = " ".join(document.page_content.casefold().split())
            if said not in seen:
                seen.add(said)
                yield found, score, document, notes

    return kept()  # lazily: most notes are full long before the last record


async def _touch(core: Core, user_id: str, ids: Sequence[str]) -> None:
    """Record the recall time of these records, where it is needed; a failure is logged and does not fail the turn."""
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
