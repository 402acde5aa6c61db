"""From a question to hits, and from hits to a note that fits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage

from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit._timezones import in_timezone, timezones_named
from langchain_memkit.base import describe_error
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, MissingExtraError
from langchain_memkit.memories.retriever import plain_score
from langchain_memkit.memories.vector.core import VectorMemoryConfig
from langchain_memkit.memories.vector.rounds import RoundLine
from langchain_memkit.memories.vector.turn_index import TurnRecord
from langchain_memkit.memories.vector.turn_log import TurnLog
from langchain_memkit.messages.notes import ROUNDS, NoteParts, Record, note_message, note_parts, render_note_parts
from langchain_memkit.messages.text import printable, printable_html
from langchain_memkit.messages.tokens import count_text, count_tokens
from langchain_memkit.ranking.floor import reasons_for, related
from langchain_memkit.ranking.index import Index, IndexRecord
from langchain_memkit.ranking.question import Question
from langchain_memkit.ranking.score import PARTS, Ranked, best_first

WIDTH = 80  # characters of a hit's text in its line of the repr


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching round of a conversation, or one chunk of a long round.

    Attributes:
        id: Id of the record: session, position of the turn, number in it.
        text: The messages, one line each: `speaker: text`. If the question names a speaker, messages of others that
            share no word with it are left out.
        score: How related the record is to the question; the sum of `parts`, and what `floor` is compared with.
        parts: The score by feature: `"relevance"`, `"lexical"`, `"neighbours"`, ...; see `Ranking`.
        session_id: The session in which it was said.
        date: When it was said; aware, in the time zone of the memory, by default UTC.
        speakers: The speakers in the text, in order of appearance: names, or `"human"`, `"ai"`, `"tool"`.
        message_ids: Ids of the messages in the text; messages without an id are left out.
        rerank: The reranker's score; None without a reranker, or if it returns no score.
        why: Why it was found, in words: "shares: lemon, tree; said by you; 3 days ago".
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
    why: str = ""


class HitList(list[Hit]):
    """A list of hits, best first, that prints one line per hit, renders as a table in notebooks, and can be plotted."""

    def __repr__(self) -> str:
        """Return one line per hit: score, date, session, beginning of the text, and why it was found."""
        lines = [f"{len(self) or 'no'} {'hit' if len(self) == 1 else 'hits'}"]
        for hit in self:
            text = printable(hit.text)
            text = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
            why = f" ({printable(hit.why)})" if hit.why else ""
            lines.append(f"{hit.score:.2f} ({_day(hit)}, session {printable(hit.session_id)}): {text}{why}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Render an HTML table; stored text is escaped."""
        if not self:
            return "<p>No hits.</p>"
        names = self._parts()
        head = "".join(f"<th>{name}</th>" for name in ("score", *names, "why", "when", "where", "text"))
        rows = []
        for hit in self:
            numbers = [hit.score, *(hit.parts.get(name, 0.0) for name in names)]
            where = printable_html(hit.session_id)
            cells = [*(f"{number:.2f}" for number in numbers), printable_html(hit.why), _day(hit), where]
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


def hit_of(ranked: Ranked, rerank: float | None, record: TurnRecord, question: Question) -> Hit:
    """Build the `Hit` of a ranked record, with its date in the question's time zone."""
    entry, (lines, text) = ranked.entry, _shown(ranked, record)
    at = entry.at and in_timezone(entry.at, question.now.tzinfo or UTC)
    return Hit(
        entry.id,
        text,
        ranked.score,
        dict(ranked.parts),
        entry.session,
        at,
        tuple(dict.fromkeys(line.speaker for line in lines)),
        tuple(line.message for line in lines if line.message),
        rerank,
        reasons_for(ranked, question),
    )


def note_record_of(
    ranked: Ranked, rerank: float | None, record: TurnRecord, rank: int, notes: dict[Any, Any], question: Question
) -> tuple[Record, NoteParts]:
    """Build the record of a note, and how it is rendered; `rank` is 0 for the best.

    `notes` holds what was made of the record before, by the messages and the day that it shows: a conversation recalls
    the same records again and again.
    """
    entry = ranked.entry
    score = plain_score(ranked.score if rerank is None else rerank)
    source = f"session {entry.session}" if entry.session else ""
    at = entry.at and in_timezone(entry.at, question.now.tzinfo or UTC)
    key = ranked.shown, at and at.date()
    known = notes.get(key)
    if known is None:
        lines, text = _shown(ranked, record)
        told = note_parts(Record(text, source=source, date=at, memory=ROUNDS))
        known = notes[key] = text, tuple((line.message, line.text) for line in lines), told
    text, parts, told = known
    why = reasons_for(ranked, question)
    return Record(text, "", "", source, at, None, parts, rank, score, ROUNDS, why), told


def _shown(ranked: Ranked, record: TurnRecord) -> tuple[list[RoundLine], str]:
    """Return the messages to show, those that the ranking selected, else all, with their text."""
    lines = record.lines
    shown = [lines[i] for i in ranked.shown if i < len(lines)] or lines
    return shown, _text(shown)


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
BATCH = 8  # records that are looked at together
RERANKED = 50  # records that a reranker is given
MANY = 1000  # records; ranking more runs in a thread
SHORT = 2000  # characters; tokenizing more runs in a thread
MISSES = 3  # records that may fail to fit before the note counts as full

Keep: TypeAlias = Callable[[IndexRecord], bool]
Found: TypeAlias = tuple[Ranked, float | None]
"""A ranked record, with the reranker's score."""


async def search(core: VectorMemoryConfig, user_id: str, question: Question, k: int, keep: Keep) -> HitList:
    """Search for the best `k` records that `keep` accepts, best first, without a floor."""
    hits, seen = HitList(), set[str]()
    index = (await core.log.look(user_id)).index
    every, _ = await _ranked(core, user_id, question, keep, index)
    ranked = await _reranked(core, user_id, question, every)
    while some := list(islice(ranked, min(k - len(hits), BATCH))):
        fetched = await _fetched(core, user_id, some, seen)
        hits += [hit_of(found, rerank, record, question) for found, rerank, record, _ in fetched]
    return hits


async def recall(
    core: VectorMemoryConfig, user_id: str, query: str, question: Question, keep: Keep, index: Index
) -> list[BaseMessage]:
    """Quote the records that `keep` accepts and that are related to the question, as many of the best as fit in a note.

    Related is what scores at least `floor`. Where `query`, as `load` was given it, is a dry run, it is not recorded
    that the records were recalled, and its `remarks` receive what the floor left out. The result is empty if nothing is
    related, or nothing fits.
    """
    every, count = await _ranked(core, user_id, question, keep, index)
    best = next(every, None)
    if best is None:
        return []
    wanted = related(chain([best], every), question, core.floor)
    first = next(wanted, None)
    if first is None:
        _remark(
            query,
            f"VectorMemory recalled nothing: the best of {count:,} records scores {best.score:.2f}, and the floor is "
            f"{core.floor:g}",
        )
        return []
    ranked = await _reranked(core, user_id, question, chain([first], wanted))
    note, chosen = await _filled(core, user_id, ranked, question)
    # recency ranking and eviction both need the time of the last recall
    silent = core.read_only or getattr(query, "trial", False)
    needs_times = bool(core.ranking.recency) or core.max_records is not None
    if chosen and needs_times and not silent:
        try:
            await core.log.touch(user_id, [entry.id for entry in chosen], core.now())
        except HistoryWriteError as error:
            logger.warning("when memories were recalled is not stored: %s", error)
    return note


def _remark(query: str, text: str) -> None:
    """Tell a dry run what is worth knowing."""
    remarks: list[str] | None = getattr(query, "remarks", None)
    if remarks is not None:
        remarks.append(text)


async def _filled(
    core: VectorMemoryConfig, user_id: str, ranked: Iterator[Found], question: Question
) -> tuple[list[BaseMessage], list[IndexRecord]]:
    """Put as many of the ranked records into a note as fit, in the order in which they were said."""
    chosen: list[tuple[IndexRecord, Record, NoteParts]] = []
    headed, seen = set[tuple[str, str]](), set[str]()
    zones = timezones_named([question.now])
    room = core.max_tokens - count_text(render_note_parts([], zones=zones), core.counter)
    message = count_text("", core.counter)  # what a message costs besides its text
    misses, full = 0, False
    while not full and (some := list(islice(ranked, BATCH))):
        for found, rerank, kept, notes in await _fetched(core, user_id, some, seen):
            record, parts = note_record_of(found, rerank, kept, len(chosen), notes, question)
            heading, quote, session = parts
            shares_heading = bool(session) and (heading, session) in headed
            told = quote if shares_heading else f"{heading}\n{quote}"
            cost = count_text(f"{told}\n", core.counter) - message
            if cost > room:
                misses += 1
            else:
                chosen.append((found.entry, record, parts))
                headed.add((heading, session))
                room -= cost
            full = misses >= MISSES or len(chosen) == core.k
            if full:
                break
    note = _note(chosen)
    # A tokenizer may count the whole note higher than the sum of its parts: drop the least relevant until it fits.
    while chosen and count_tokens([note], core.counter)[0] > core.max_tokens:
        chosen.pop()
        note = _note(chosen)
    if not chosen and misses:
        logger.warning("max_tokens=%d is too little for any of the %d best rounds", core.max_tokens, misses)
    return ([note] if chosen else []), [entry for entry, *_ in chosen]


async def _ranked(
    core: VectorMemoryConfig, user_id: str, question: Question, keep: Keep, index: Index
) -> tuple[Iterator[Ranked], int]:
    """Rank the user's records. Returns them, best first, and the number of records that were compared."""
    if core.ranking.recency:
        question = replace(question, accessed=core.log.accesses(user_id))
    question = replace(question, vector=await _embedded(core.log, question.text))
    surplus = core.log.surplus(user_id)

    def recalls(entry: IndexRecord) -> bool:
        return entry.id not in surplus and keep(entry)

    long = len(index) > MANY or len(question.text) > SHORT
    found, count = await cpu_bound(lambda: best_first(index, question, core.ranking, recalls), long=long)
    # Without a vector every record is ranked, also those that share no word with the question: drop these.
    return (ranked for ranked in found if ranked.score > 0 or question.vector is not None), count


async def _embedded(log: TurnLog, text: str) -> Any:
    """Embed a question; None if that fails, since its words can be looked for without a vector."""
    try:
        return await log.embed_query(text)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001  # embedders raise anything
        why = describe_error(error)
        logger.warning("the question was not embedded, only its words are looked for: %s", why)
        return None


async def _reranked(
    core: VectorMemoryConfig, user_id: str, question: Question, ranked: Iterator[Ranked]
) -> Iterator[Found]:
    """Reorder the best records with the reranker, if there is one."""
    reranker = core.reranker
    if reranker is None:
        return ((found, None) for found in ranked)
    by_id = {found.entry.id: found for found in islice(ranked, RERANKED)}
    if not by_id:
        return iter(())
    text_of = await core.log.texts(user_id, list(by_id))
    stored = [(name, found[0]) for name in by_id if (found := text_of(name))]
    # The id is in the metadata as well, since a compressor may build new documents without ids.
    given = [Document(record.text, id=name, metadata={"memkit_id": name}) for name, record in stored]
    text = question.text
    anew = await Step(
        lambda: reranker.compress_documents(given, text), lambda: reranker.acompress_documents(given, text)
    )
    chosen = [(d.metadata.get("memkit_id") or d.id, d.metadata.get("relevance_score")) for d in anew]
    return ((by_id[name], score) for name, score in chosen if name in by_id)


async def _fetched(core: VectorMemoryConfig, user_id: str, ranked: Sequence[Found], seen: set[str]) -> Iterator[Any]:
    """Fetch ranked records, leaving out duplicates and what was erased meanwhile.

    `seen` holds the normalized texts that were returned already, and is extended. Returns a lazy iterator over (ranked,
    reranker score, record, what was made of it to show it).
    """
    text_of = await core.log.texts(user_id, [found.entry.id for found, _ in ranked])

    def kept() -> Iterator[tuple[Ranked, float | None, TurnRecord, Any]]:
        for found, score in ranked:
            text = text_of(found.entry.id)
            if text is None:
                continue
            record, notes = text
            if (said := notes.get(())) is None:
                said = notes[()] = " ".join(record.text.casefold().split())
            if said not in seen:
                seen.add(said)
                yield found, score, record, notes

    return kept()  # lazily: most notes are full long before the last record


def _note(chosen: Sequence[tuple[IndexRecord, Record, NoteParts]]) -> HumanMessage:
    undated = datetime.min.replace(tzinfo=UTC)
    in_order = sorted(chosen, key=lambda found: (found[0].at or undated, found[0].session, found[0].position))
    parts = [part for *_, part in in_order]
    zones = timezones_named(record.date for _, record, _ in in_order)
    return note_message([record for _, record, _ in in_order], lambda _: render_note_parts(parts, zones=zones))
