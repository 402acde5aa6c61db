"""Select the facts that are shown for a question: the most relevant that fit, shared fairly between entities. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from langchain_core.messages import BaseMessage, HumanMessage

from langchain_memkit.base import Query, TokenCounter
from langchain_memkit.matching.normalize import fold_text
from langchain_memkit.memories.entity.listing import display_name
from langchain_memkit.memories.entity.mentions import NameSpan, find_names
from langchain_memkit.memories.entity.registry import EntityRegistry, sort_facts
from langchain_memkit.memories.entity.rows import FactRow, id_in
from langchain_memkit.messages.notes import Record, lines_of, note_message
from langchain_memkit.messages.tokens import count_tokens

__all__ = ["EntityCandidate", "candidates", "choose", "compose"]

ASKED = re.compile(r"[?\uff1f]\W*$")


@dataclass(slots=True)
class EntityCandidate:
    """An entity that a question names, with the facts that may be shown.

    Attributes:
        name: The display name.
        rows: Its facts.
        words: Words of the question, without the names.
        seen: Facts whose message the model sees anyway.
        description: What a model said of it; empty without one.
        behind: The facts that the description was made from.
    """

    name: str
    rows: list[FactRow]
    words: set[str]
    seen: set[FactRow]
    description: str = ""
    behind: Sequence[FactRow] = ()
    _facts: list[FactRow] | None = None

    @property
    def facts(self) -> list[FactRow]:
        """Return the facts to be shown, the best first."""
        if self._facts is None:
            self._facts = _ranked([row for row in _told(_once(self.rows)) if row not in self.seen], self.words)
        return self._facts

    def leave_out(self, gone: Container[tuple[str, str]]) -> None:
        """Remove facts of erased messages (session and id), and the description if it was made from one of them."""
        self.rows = [row for row in self.rows if (row.session, row.message) not in gone]
        self._facts = None
        if any((row.session, row.message) in gone for row in self.behind):
            self.description, self.behind = "", ()


def candidates(
    book: EntityRegistry, query: str, asked: str, mentions: Sequence[NameSpan], session_id: str, now: datetime
) -> list[EntityCandidate]:
    """Return the entities that a question names, in the order of mention, with the facts that may be shown.

    Args:
        book: The user's registry.
        query: The question; a `Query` also tells the session's epoch and which messages the model sees anyway.
        asked: The part of it that is searched for names.
        mentions: Names that the extractor found in that part.
        session_id: The current session.
        now: The current time, aware; expired facts are left out.
    """
    spots = find_names(asked, mentions, book, asked=True)
    names = [spot.key for spot in spots]
    names += book.respelled(asked)
    roots = dict.fromkeys(root for name in names for root in book.roots(name) or book.full_names(name))
    past = {message.id for message in getattr(query, "seen", ()) if message.id}
    epoch = query.epoch if isinstance(query, Query) else 0
    # Entities that may be the same as one of these are recalled as well, under their own name.
    roots.update(dict.fromkeys(other for root in list(roots) if (other := book.other_half(root))))
    words = set(fold_text(asked).split()) - {word for spot in spots for word in fold_text(spot.surface).split()}
    topics = []
    for root in roots:
        rows = book.rows(root, now)
        live = {key: row for key, row in rows.items() if _same_talk(row, session_id, epoch)}
        seen = {key for key, row in live.items() if row.session == session_id and row.message in past}
        said = book.description(root, live)
        topic = EntityCandidate(display_name(book, root)[0], list(live.values()), words, {live[key] for key in seen})
        if said:
            topic.description = said.text
            topic.behind = [row for key, row in live.items() if id_in(key) in said.facts]
        if topic.facts or topic.description:
            topics.append(topic)
    return topics


def _same_talk(row: FactRow, session_id: str, epoch: int) -> bool:
    """Return whether a fact may be shown: facts of this session from another epoch belong to an erased conversation."""
    return not (epoch and row.epoch and row.session == session_id and row.epoch != epoch)


def _once(rows: Iterable[FactRow]) -> list[FactRow]:
    """Deduplicate sentences and keep the newest; prefer a person's sentence over the model's repetition of it."""
    found: dict[tuple[str, str], FactRow] = {}
    by_people: set[str] = set()
    for row in sorted(rows, key=lambda row: (row.role == "ai", sort_facts(row))):
        text = " ".join(row.text.split()).casefold().lstrip("> ")
        if row.role != "ai":
            by_people.add(text)
        elif text in by_people:
            continue
        found[text, row.speaker] = row
    return list(found.values())


def _told(rows: Sequence[FactRow]) -> Sequence[FactRow]:
    """Leave out the model's own questions ("Have you ever studied it, Harrison?"), unless nothing else is known."""
    return [row for row in rows if not (row.role == "ai" and ASKED.search(row.text))] or rows


def _ranked(rows: Sequence[FactRow], words: set[str]) -> list[FactRow]:
    """Rank statements before questions, then by words shared with the question, then newest first.

    A shared word counts the more, the fewer of the facts contain it (as inverse document frequency).
    """
    said = [set(fold_text(row.text).split()) & words if words else words for row in rows]
    often = Counter(word for shared in said for word in shared)
    weights = {word: math.log(1 + len(rows) / number) for word, number in often.items()}
    scores = [sum([weights[word] for word in shared]) for shared in said]
    tells = [not ASKED.search(row.text) for row in rows]
    by_time = sorted(range(len(rows)), key=lambda i: sort_facts(rows[i]), reverse=True)
    return [rows[i] for i in sorted(by_time, key=lambda i: (tells[i], scores[i]), reverse=True)]


def choose(
    topics: Sequence[EntityCandidate], max_tokens: int, counter: TokenCounter
) -> list[tuple[EntityCandidate, list[FactRow]]]:
    """Choose as many facts as fit, round robin: each entity in turn adds its best remaining fact.

    Args:
        topics: The entities of the question.
        max_tokens: Budget of the note, frame and descriptions included.
        counter: Counts tokens.
    """
    taken: list[list[FactRow]] = [[] for _ in topics]
    frame = count_tokens([note_message([Record("")])], counter)[0]
    room = max_tokens - frame
    room -= sum(_cost(_said(topic), counter) for topic in topics if topic.description)
    # A sentence that names two entities is shown once, under the entity that takes it first.
    seen: set[tuple[str, str]] = set()
    queues = [iter(topic.facts) for topic in topics]
    open_ones = set(range(len(topics)))
    while open_ones and room > 0:
        for i in sorted(open_ones):
            row = next((r for r in queues[i] if (r.message, r.text) not in seen), None)
            cost = 0 if row is None else _cost(_record(topics[i].name, row), counter)
            if row is None or cost > room:
                open_ones.discard(i)
                continue
            seen.add((row.message, row.text))
            taken[i].append(row)
            room -= cost
    return list(zip(topics, taken, strict=True))


def _cost(record: Record, counter: TokenCounter) -> int:
    return count_tokens([HumanMessage(lines_of(record))], counter)[0]


def compose(
    chosen: Sequence[tuple[EntityCandidate, Sequence[FactRow]]], max_tokens: int, counter: TokenCounter
) -> list[BaseMessage]:
    """Return one note with the chosen facts, oldest first per entity; `[]` if there are none.

    The costs in `choose` are estimates of single records. If the whole note is over the limit, the lowest ranked fact
    of the entity with most facts is dropped until it fits, and descriptions after all facts.
    """
    left = [(topic, list(rows)) for topic, rows in chosen]
    while True:
        records = [record for topic, rows in left for record in _records(topic, rows)]
        if not records:
            return []
        note = note_message(records)
        if count_tokens([note], counter)[0] <= max_tokens:
            return [note]
        longest = max(left, key=lambda pair: len(pair[1]))
        if longest[1]:
            longest[1].pop()
        else:
            next(topic for topic, _ in left if topic.description).description = ""


def _records(topic: EntityCandidate, rows: Sequence[FactRow]) -> list[Record]:
    said = [_said(topic)] if topic.description else []
    return said + [_record(topic.name, row) for row in sorted(rows, key=sort_facts)]


def _said(topic: EntityCandidate) -> Record:
    return Record(topic.description, about=topic.name, role="summary")


def _record(name: str, row: FactRow) -> Record:
    source = f"session {row.session}"
    return Record(row.text, name, row.speaker or row.role, source, row.at, row.message if row.given else None)
