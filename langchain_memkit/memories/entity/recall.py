"""Select the facts that are shown for a question: the most relevant that fit, shared fairly between entities. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import TypeAlias

from langchain_core.messages import BaseMessage

from langchain_memkit._timezones import in_timezone
from langchain_memkit.base import TokenCounter
from langchain_memkit.matching.normalize import fold_text
from langchain_memkit.memories.entity.listing import display_name
from langchain_memkit.memories.entity.mentions import find_names
from langchain_memkit.memories.entity.registry import EntityRegistry, FactTexts, fact_order
from langchain_memkit.memories.entity.rows import FactRow
from langchain_memkit.memories.entity.statements import NameSpan
from langchain_memkit.messages.notes import Record, lines_of, note_message
from langchain_memkit.messages.tokens import count_text, count_tokens


@dataclass(slots=True)
class EntityCandidate:
    """An entity that a question names, with the facts that may be shown."""

    name: str
    rows: Sequence[FactRow]  # oldest first
    words: set[str]  # of the question, without the names
    seen: Container[tuple[str, str]]  # messages (session and id) that the model sees anyway
    description: str  # what a model said of it; empty without one
    texts: FactTexts  # what is known of each sentence
    zone: tzinfo  # in which days are quoted

    def ranked(self) -> list[FactRow]:
        """Return the facts to show: by words shared with the question, newest first.

        A shared word counts the more, the fewer of the facts contain it (as inverse document frequency).
        """
        # Of equal sentences of a speaker the newest is shown; and a person's, not the model's repetition of it.
        found: dict[tuple[str, str], tuple[int, FactRow, frozenset[str]]] = {}
        by_people: set[str] = set()
        for i, row in sorted(enumerate(self.rows), key=lambda pair: pair[1].role == "ai"):
            said, words = self.texts[row.text]
            if row.role != "ai":
                by_people.add(said)
            elif said in by_people:
                continue
            found[said, row.speaker] = i, row, words
        new = [fact for fact in found.values() if (fact[1].session, fact[1].message) not in self.seen]
        shown = [(i, self.words & words) for i, _, words in new]
        often = Counter(word for _, words in shown for word in words)
        weights = {word: math.log(1 + len(shown) / number) for word, number in often.items()}
        # The sums are exact, since a set has its words in another order in each process; of equal facts the newest is
        # first, as the rows are in order of time.
        ranks = [(math.fsum([weights[word] for word in words]), i) for i, words in shown]
        return [self.rows[i] for _, i in sorted(ranks, reverse=True)]

    def records(self, rows: Sequence[FactRow]) -> list[Record]:
        """Return what is shown of the entity: its description, and these facts."""
        found = [Record(self.description, about=self.name, role="summary")] if self.description else []
        for row in rows:
            source, message = f"session {row.session}", row.message if row.given else None
            at = in_timezone(row.at, self.zone)
            found.append(Record(row.text, self.name, row.speaker or row.role, source, at, message))
        return found


def candidates(
    book: EntityRegistry,
    query: str,
    asked: str,
    mentions: Sequence[NameSpan],
    session_id: str,
    zone: tzinfo,
    most: int,
) -> list[EntityCandidate]:
    """Return the entities that a question names, in the order of mention, each with its newest facts."""
    spots = find_names(asked, mentions, book, asked=True)
    seen = {(session_id, message.id) for message in getattr(query, "seen", ()) if message.id}
    words = set(fold_text(asked).split()) - {word for spot in spots for word in fold_text(spot.surface).split()}
    topics = []
    for root in book.asked([spot.key for spot in spots], asked):
        rows = book.rows([root], most)
        said = book.description(root, rows)
        name = display_name(book, root)[0]
        told = said.text if said else ""
        topics.append(EntityCandidate(name, list(rows.values()), words, seen, told, book.texts, zone))
    return topics


Chosen: TypeAlias = tuple[EntityCandidate, list[FactRow]]
"""An entity, and those of its facts that are shown."""


def choose(topics: Sequence[EntityCandidate], max_tokens: int, counter: TokenCounter) -> list[Chosen]:
    """Choose as many facts as fit, round robin: each entity in turn adds its best remaining fact."""

    def cost(records: Sequence[Record]) -> int:
        return sum(count_text(lines_of(record), counter) for record in records)

    room = max_tokens - count_tokens([note_message([Record("")])], counter)[0]
    room -= sum(cost(topic.records([])) for topic in topics)
    chosen: list[Chosen] = [(topic, []) for topic in topics]
    # A sentence that names two entities is shown once, under the entity that takes it first.
    seen: set[tuple[str, str]] = set()
    waiting = [(topic, rows, iter(topic.ranked())) for topic, rows in chosen]
    while waiting and room > 0:
        for entry in list(waiting):
            topic, rows, queue = entry
            row = next((r for r in queue if (r.message, r.text) not in seen), None)
            tokens = 0 if row is None else cost(topic.records([row])[-1:])
            if row is None or tokens > room:
                waiting.remove(entry)
                continue
            seen.add((row.message, row.text))
            rows.append(row)
            room -= tokens
    return chosen


def compose(chosen: Sequence[Chosen], max_tokens: int, counter: TokenCounter) -> list[BaseMessage]:
    """Return one note with the chosen facts, oldest first per entity; `[]` if there are none.

    The costs in `choose` are estimates of single records. If the whole note is over the limit, the lowest ranked fact
    of the entity with most facts is dropped until it fits, and descriptions after all facts.
    """
    left = [(topic, list(rows)) for topic, rows in chosen]
    while True:
        records = [record for topic, rows in left for record in topic.records(sorted(rows, key=fact_order))]
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
