"""From a question to hits, and from hits to a note that fits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import chain, islice
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage

from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit._timezones import in_timezone, timezones_named
from langchain_memkit.base import describe_error
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, MissingExtraError
from langchain_memkit.memories.rebuildable import erased_messages
from langchain_memkit.memories.retriever import plain_score
from langchain_memkit.memories.vector.adapter import VectorStoreAdapter, index_of
from langchain_memkit.memories.vector.core import VectorMemoryConfig
from langchain_memkit.memories.vector.rounds import RoundLine, lines_of_document
from langchain_memkit.messages.notes import ROUNDS, NoteParts, Record, note_message, note_parts, render_note_parts
from langchain_memkit.messages.text import QUESTION, printable, printable_html, truncate_with_warning
from langchain_memkit.messages.tokens import count_text, count_tokens
from langchain_memkit.ranking.index import Index, IndexRecord
from langchain_memkit.ranking.ranking import PARTS, Question, Ranked, best_first, statements_first
from langchain_memkit.ranking.relevance import DO, FLOOR, is_about_user
from langchain_memkit.ranking.speakers import YOU
from langchain_memkit.ranking.tokenize import language_of
from langchain_memkit.stores.vector_cache import ReadSession

WIDTH = 80  # characters of a hit's text in its line of the repr


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching round of a conversation, or one chunk of a long round.

    Attributes:
        id: Id of the record in the store.
        text: The messages, one line each: `speaker: text`. If the question names a speaker, messages of others that
            share no word with the question are left out.
        score: How well the record answers; the sum of `parts`. Comparable within one search only.
        parts: The score by feature: `"relevance"`, `"lexical"`, `"neighbours"`, ...; see `Ranking`.
        session_id: The session in which it was said.
        date: When it was said; aware, in the time zone of the memory, by default UTC.
        speakers: The speakers in the text, in order of appearance: names, or `"human"`, `"ai"`, `"tool"`.
        message_ids: Ids of the messages in the text; messages without an id are left out.
        rerank: The reranker's score; None without a reranker, or if it returns no score.
        relation: How related the question is to the record: the number that `floor` is compared with.
    """

    id: str
    text: str
    score: float
    parts: dict[str, float]
    session_id: str
    date: datetime | None
    speakers: tuple[str, ...]
    message_ids: tuple[str, ...]
    rerank: float | None = None
    relation: float = 0.0


class HitList(list[Hit]):
    """A list of hits, best first, that prints one line per hit, renders as a table in notebooks, and can be plotted."""

    def __repr__(self) -> str:
        """Return one line per hit: score, date, session, beginning of the text."""
        lines = [f"{len(self) or 'no'} {'hit' if len(self) == 1 else 'hits'}"]
        for hit in self:
            text = printable(hit.text)
            text = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
            lines.append(f"{hit.score:.2f} ({_day(hit)}, session {printable(hit.session_id)}): {text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Render an HTML table; stored text is escaped."""
        if not self:
            return "<p>No hits.</p>"
        names = self._parts()
        head = "".join(f"<th>{name}</th>" for name in ("score", *names, "when", "where", "text"))
        rows = []
        for hit in self:
            numbers = [hit.score, *(hit.parts.get(name, 0.0) for name in names)]
            cells = [*(f"{number:.2f}" for number in numbers), _day(hit), printable_html(hit.session_id)]
            said = "<br>".join(printable_html(line) for line in hit.text.split("\n"))
            rows.append("".join(f"<td>{cell}</td>" for cell in [*cells, said]))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def plot(self, ax: Any = None) -> Any:
        """Plot one horizontal bar per hit, best on top, with one colour per part of the score.

        Args:
            ax: matplotlib axes to draw on; None creates a figure.

        Returns:
            The axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        try:
            from matplotlib import pyplot
        except ImportError as error:
            msg = "plot() needs matplotlib: pip install matplotlib"
            raise MissingExtraError(msg) from error
        if ax is None:
            _, ax = pyplot.subplots(figsize=(8, 0.4 * len(self) + 1))
        labels = [f"{i + 1}. {printable(hit.text)[:40]}" for i, hit in enumerate(self)]
        lefts = [0.0] * len(self)
        for name in self._parts():
            widths = [hit.parts.get(name, 0.0) for hit in self]
            ax.barh(labels, widths, left=lefts, label=name, color=f"C{PARTS.index(name)}")
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        ax.invert_yaxis()
        ax.set_xlabel("score")
        if self:
            ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return ax

    def _parts(self) -> list[str]:
        """Return the score parts that are non-zero for any hit, in the order of `PARTS`."""
        return [name for name in PARTS if any(hit.parts.get(name) for hit in self)]


def hit_of(ranked: Ranked, rerank: float | None, document: Document, zone: tzinfo = UTC) -> Hit:
    """Build the `Hit` of a ranked record from its stored document, with its date in a time zone."""
    entry, (lines, text) = ranked.entry, _shown(ranked, document)
    speakers = tuple(dict.fromkeys(line.speaker for line in lines))
    messages = tuple(line.message for line in lines if line.message)
    score, parts = ranked.score, dict(ranked.parts)
    at = entry.at and in_timezone(entry.at, zone)
    return Hit(entry.id, text, score, parts, entry.session, at, speakers, messages, rerank, ranked.relation)


def note_record_of(
    ranked: Ranked, rerank: float | None, document: Document, rank: int, notes: dict[Any, Any], zone: tzinfo
) -> tuple[Record, NoteParts]:
    """Build the record of a note, and how it is rendered; `rank` is 0 for the best.

    `notes` holds what was made of the record before, by the messages and the day that it shows: a conversation recalls
    the same records again and again.
    """
    entry = ranked.entry
    score = plain_score(ranked.score if rerank is None else rerank)
    source = f"session {entry.session}" if entry.session else ""
    at = entry.at and in_timezone(entry.at, zone)
    key = _note_key(ranked, at)
    if (known := notes.get(key)) is None:
        lines, text = _shown(ranked, document)
        told = note_parts(Record(text, source=source, date=at, memory=ROUNDS))
        known = notes[key] = text, "", tuple((line.message, line.text) for line in lines), told
    text, role, parts, told = known
    return Record(text, "", role, source, at, None, parts, rank, score, ROUNDS), told


def _note_key(ranked: Ranked, at: datetime | None) -> Any:
    return ranked.shown, at and at.date()


def _shown(ranked: Ranked, document: Document) -> tuple[list[RoundLine], str]:
    """Return the messages to show, those that the ranking selected, else all, with their text; a document has none."""
    lines = lines_of_document(document)
    shown = [lines[i] for i in ranked.shown if i < len(lines)] or lines
    return shown, _text(shown) if shown else document.page_content


def _text(lines: Sequence[RoundLine]) -> str:
    """Render the messages line by line, naming the speaker only when it changes.

    Continuation lines are indented, so that text inside a message cannot pose as another speaker's line.
    """
    told: list[str] = []
    before = ""
    for line in lines:
        first, *rest = line.text.splitlines() or [""]
        speaker = line.speaker
        told.append(f"  {first}" if speaker == before else f"{speaker}: {first}")
        if rest:
            told += [f"  {more}" for more in rest]
        before = speaker
    return "\n".join(told)


def _day(hit: Hit) -> str:
    return hit.date.date().isoformat() if hit.date else "no date"


logger = logging.getLogger("langchain_memkit")

ASKED = "a question to the vector memory"
BATCH = 32  # records whose texts are fetched at once from the store
RERANKED = 50  # records that a reranker is given
FEW = 8  # records per batch where the texts come with the index
MANY = 1000  # records; ranking more runs in a thread
SHORT = 2000  # characters; tokenizing more runs in a thread
MISSES = 3  # records that may fail to fit before the note counts as full
# Tokens: a note of at most so many holds single sentences, since a frame and a few rounds would fill it. The second for
# questions about the user if the search is not sure what answers them.
BRIEF = 72, 128
FIRST = 3  # records that stand behind the best one in a longer note near the floor, because of what they state
TELLS = 0.15  # how much a sentence must tell by its words if all records are below the floor
NEARLY = 0.2  # distance below the floor at which a record is still quoted beside one that is above it
LEAST, SURE = 0.05, 0.97  # share of `max_tokens` filled at the floor; distance above the floor at which all is filled

Keep: TypeAlias = Callable[[IndexRecord], bool]
Found: TypeAlias = tuple[Ranked, float | None]
Fetched: TypeAlias = tuple[Index, ReadSession | None]
"""The index of a user, with the snapshot of a session if a write can start from it."""


async def search(core: VectorMemoryConfig, user_id: str, text: str, k: int, keep: Keep, zone: tzinfo) -> HitList:
    """Search for the best `k` records that `keep` accepts, best first, without a floor."""
    text = truncate_with_warning(text, QUESTION, ASKED)
    hits, seen = HitList(), set[str]()
    ranked, *_ = await _ranked(core, user_id, text, keep, None, None, zone)
    while some := list(islice(ranked, min(k - len(hits), BATCH))):
        fetched = await _fetched(core, user_id, some, seen)
        hits += [hit_of(found, rerank, document, zone) for found, rerank, document, _ in fetched]
    return hits


async def recall(
    core: VectorMemoryConfig,
    user_id: str,
    query: str,
    text: str,
    keep: Keep,
    fetched: Fetched | None,
    zone: tzinfo,
) -> list[BaseMessage]:
    """Quote as many of the best records that `keep` accepts as fit in one note, in the order in which they were said.

    `text` is the question; where `query`, as `load` was given it, is a dry run, it is not recorded that the records
    were recalled, and its `remarks` receive explanations of what the floor left out. `fetched` holds the user's index,
    if it was read already; `zone` is the user's time zone. The result is empty if nothing is related to the question,
    or nothing fits.
    """
    ranked, quotes, budget, share = await _selected(core, user_id, query, text, keep, fetched, zone)
    if not share:
        return []
    brief = quotes is not None
    chosen: list[tuple[IndexRecord, Record, NoteParts]] = []
    headed, seen = set[tuple[str, str]](), set[str]()
    zones = timezones_named([core.now().astimezone(zone)])
    room = budget - count_text(render_note_parts([("", "", "")] if brief else [], zones=zones), core.counter)
    message = count_text("", core.counter)  # what a message costs besides its text
    # Near the floor only a share of the budget is filled. The first record may use all of it, so that one long record
    # is not dropped because the share is small.
    spare = budget - int(share * budget)
    # showing a batch of records costs I/O: for their texts, or to check them against transcripts
    reads = isinstance(core.store, VectorStoreAdapter) or core.get_session_history is not None
    misses, full = 0, False
    while not full and (some := list(islice(ranked, BATCH if reads and not brief else FEW))):
        for found, rerank, document, notes in await _fetched(core, user_id, some, seen):
            shown = notes
            if quotes is not None:
                at = found.entry.at and in_timezone(found.entry.at, zone)
                shown = {_note_key(found, at): quotes[found.entry.id]}
            record, parts = note_record_of(found, rerank, document, len(chosen), shown, zone)
            heading, quote, session = parts
            place = (record.role, record.text) if brief else (heading, session)
            if brief and place in headed:
                continue
            told = quote if brief or (session and place in headed) else f"{heading}\n{quote}"
            cost = count_text(f"{told}\n", core.counter) - message
            if cost > room - (spare if chosen else 0):
                misses += 1
            else:
                chosen.append((found.entry, record, parts))
                headed.add(place)
                room -= cost
            if full := misses >= MISSES or len(chosen) == core.k:
                break
    note = _note(chosen)
    # A tokenizer may count the whole note higher than the sum of its parts: drop the least relevant until it fits.
    while chosen and count_tokens([note], core.counter)[0] > budget:
        chosen.pop()
        note = _note(chosen)
    if not chosen:
        if misses:
            logger.warning("max_tokens=%d is too little for any of the %d best rounds", core.max_tokens, misses)
        return []
    # recency ranking and eviction both need the time of the last recall
    silent = core.read_only or getattr(query, "trial", False)
    if not silent and (core.ranking.recency or core.max_records is not None):
        try:
            await core.records.touch(user_id, [entry.id for entry, *_ in chosen], core.now())
        except HistoryWriteError as error:
            logger.warning("when memories were recalled is not stored: %s", error)
    return [note]


async def _selected(
    core: VectorMemoryConfig,
    user_id: str,
    query: str,
    text: str,
    keep: Keep,
    fetched: Fetched | None,
    zone: tzinfo,
) -> tuple[Iterator[Found], dict[str, Any] | None, int, float]:
    """Select the records of a note.

    Returns them, best first; what is quoted of each, as `_statements` gives it, or None for whole rounds; the tokens of
    the note; and the share of these that is filled, 0 if nothing is recalled.
    """
    remarks: list[str] | None = getattr(query, "remarks", None)
    every, count, best, least = await _ranked(core, user_id, text, keep, fetched, core.floor, zone)
    share = shown = _share(core.floor, best)
    english = core.reranker is None and language_of(text) == "english"
    # The floor measures words in common, of which the newer statement often has none: look at what is stated, too.
    # Below the floor that fills a short note only, or none without vectors, since it would bring too much along.
    about = english and share < 1 and is_about_user(text) and core.floor == FLOOR and not DO.search(text)
    budget = core.max_tokens if share or least == -math.inf else min(core.max_tokens, BRIEF[0])
    brief = english and budget <= BRIEF[about]
    ranked: Iterator[Found] = (pair for pair in every if pair[0].relation >= least)
    quotes: dict[str, Any] | None = None
    if (brief and share) or (about and (brief or share)):
        known = [*every]
        tells = 0.0 if brief and share else TELLS
        stating, quoted = await _statements(core, user_id, text, known, budget, tells, zone)
        some = [*islice(stating, FIRST)]
        if brief:
            ranked, quotes, shown = chain(some, stating), quoted, float(bool(some))
        else:  # behind the best one, which the floor let through
            rest = [pair for pair in known if pair[0].relation >= least]
            ranked = chain(rest[:1], some, rest)
    if remarks is not None and count and share < 1:
        told = f"the best of {count:,} records has {best:.2f} to do with the question, and the floor is {core.floor:g}"
        if isinstance(core.store, VectorStoreAdapter):
            told += f"; the similarities of {core.store.name}, whose scale is not known, do not count"
        filled = "quoted single sentences" if brief else f"filled {share:.0%} of its tokens"
        remarks.append(f"VectorMemory {filled if shown else 'recalled nothing'}: {told}")
    return ranked, quotes, budget, shown


async def _statements(
    core: VectorMemoryConfig,
    user_id: str,
    question: str,
    ranked: Sequence[Found],
    budget: int,
    least: float,
    zone: tzinfo,
) -> tuple[Iterator[Found], dict[str, Any]]:
    """Order records as `statements_first` does: those whose quote fits into a note, and that tell at least so much.

    Returns the records, lazily, and for each id of those returned what is quoted: text, speaker, ids and texts of the
    messages, and how it is rendered.
    """
    role, asked, about = "ai" if YOU.search(question) else "human", question.casefold(), is_about_user(question)
    text_of = await core.records.texts(user_id, [found.entry.id for found, _ in ranked])
    said: list[tuple[Ranked, list[RoundLine]]] = []  # what one speaker said in a record
    for found, _ in ranked:
        if (stored := text_of(found.entry.id)) is None:
            continue
        lines, text = _shown(found, stored[0])
        # What whoever is named said; if the question is about the user, the user's words, or the model's if it says so.
        if about and len(lines) == len(found.entry.said):
            meant = [line for line in lines if line.role == role or (line.name and line.name.casefold() in asked)]
            lines = meant or lines
        lines = lines or [RoundLine("document", "", text, "", False)]
        speakers = dict.fromkeys(line.speaker for line in lines)
        said += [(found, [line for line in lines if line.speaker == speaker]) for speaker in speakers]
    texts = [" ".join(line.text for line in lines) for _, lines in said]
    order = await cpu_bound(
        lambda: statements_first(question, [found for found, _ in said], texts), long=len(said) > FEW
    )
    quotes: dict[str, Any] = {}
    zones = timezones_named([core.now().astimezone(zone)])
    room = budget - count_text(render_note_parts([("", "", "")], zones=zones), core.counter)

    def stating() -> Iterator[Found]:
        for i, sentences, told in order:
            (found, lines), quote = said[i], " ".join(sentences)
            at = found.entry.at and in_timezone(found.entry.at, zone)
            shown = note_parts(Record(quote, role=lines[0].speaker, date=at, memory=ROUNDS))
            if found.entry.id not in quotes and told >= least and count_text(shown[1], core.counter) <= room:
                parts = tuple((next((li.message for li in lines if s in li.text), ""), s) for s in sentences)
                quotes[found.entry.id] = quote, lines[0].speaker, parts, shown
                yield found, None

    return stating(), quotes


def _share(floor: float | None, best: float) -> float:
    """Return the share of `max_tokens` to fill: 0 below the floor, 0.05 at it, rising to all of it 0.97 above."""
    if floor is None:
        return 1.0
    return 0.0 if best < floor else min(1.0, LEAST + (1 - LEAST) * (best - floor) / SURE)


async def _ranked(
    core: VectorMemoryConfig,
    user_id: str,
    text: str,
    keep: Keep,
    fetched: Fetched | None,
    floor: float | None,
    zone: tzinfo,
) -> tuple[Iterator[Found], int, float, float]:
    """Rank the user's records, with the reranker if there is one.

    The reranker is not called if all records are below the floor. Returns the records, best first, each with its
    reranker score or None; the number of records that were compared; the highest `relation` among them; and the lowest
    with which a record is to be shown.
    """
    store, now = core.store, core.now().astimezone(zone)
    accessed: Mapping[str, datetime] = await core.records.accesses(user_id) if core.ranking.recency else {}
    if isinstance(store, VectorStoreAdapter):
        hits = await store.similar(user_id, text, core.ranking.candidates)
        similar = {document.id: score for document, score in hits if document.id}
        index, question = index_of(document for document, _ in hits), Question(text, None, now, similar, accessed)
    else:
        index, _ = fetched or await store.records.read(user_id)
        try:
            vector = await store.records.embed_query(text)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # embedders raise anything; lexical search still works without one
            vector, why = None, describe_error(error)
            logger.warning("the question was not embedded, only its words are looked for: %s", why)
        question = Question(text, vector, now, None, accessed)
    long = len(index) > MANY or len(text) > SHORT
    found, count, best = await cpu_bound(lambda: best_first(index, question, core.ranking, keep), long=long)
    # Without similarities every record is ranked, also those that share no word with the question: drop these.
    if question.vector is None and question.similar is None:
        found = (ranked for ranked in found if ranked.score > 0)
    # Near the floor each record must (nearly) reach it itself. Not without vectors: the words alone miss answers that
    # stand beside a related record.
    floor = -math.inf if floor is None else floor
    near = question.vector is not None and core.ranking.relevance and best < floor + SURE
    least = floor - NEARLY if near else -math.inf
    if core.reranker is None or best < floor:
        return ((ranked, None) for ranked in found), count, best, least
    by_id = {ranked.entry.id: ranked for ranked in islice((r for r in found if r.relation >= least), RERANKED)}
    if not by_id:
        return iter(()), 0, 0.0, least
    # Keep the id in the metadata as well: a compressor may build new documents without ids.
    stored = await core.records.get_by_ids(user_id, list(by_id))
    given = [Document(d.page_content, id=d.id, metadata={**d.metadata, "memkit_id": d.id}) for d in stored]
    reranker = core.reranker
    anew = await Step(
        lambda: reranker.compress_documents(given, text), lambda: reranker.acompress_documents(given, text)
    )
    chosen = [(d.metadata.get("memkit_id") or d.id, d.metadata.get("relevance_score")) for d in anew]
    return ((by_id[name], score) for name, score in chosen if name in by_id), count, best, least


async def _fetched(core: VectorMemoryConfig, user_id: str, ranked: Sequence[Found], seen: set[str]) -> Iterator[Any]:
    """Fetch the texts of ranked records, leaving out duplicates and records erased from their transcripts.

    `seen` holds the normalized texts that were returned already, and is extended. Returns a lazy iterator over (record,
    reranker score, document, what was made of it to show it).
    """
    entries = [found.entry for found, _ in ranked]
    text_of = await core.records.texts(user_id, [entry.id for entry in entries])
    asked = ((entry.session, message) for entry in entries for message in entry.messages if entry.session and message)
    erased = await erased_messages(core.get_session_history, user_id, asked)

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
            if (said := notes.get(())) is None:
                said = notes[()] = " ".join(document.page_content.casefold().split())
            if said not in seen:
                seen.add(said)
                yield found, score, document, notes

    return kept()  # lazily: most notes are full long before the last record


def _note(chosen: Sequence[tuple[IndexRecord, Record, NoteParts]]) -> HumanMessage:
    undated = datetime.min.replace(tzinfo=UTC)
    in_order = sorted(chosen, key=lambda found: (found[0].at or undated, found[0].session, found[0].position))
    parts = [part for *_, part in in_order]
    zones = timezones_named(record.date for _, record, _ in in_order)
    return note_message([record for _, record, _ in in_order], lambda _: render_note_parts(parts, zones=zones))
