"""What of a turn is new, and which round it goes on with. Pure.

A turn may come in pieces, twice, or half a second time. Messages with ids are stored once, in the round that they
belong to; what comes without ids is compared by its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from langchain_core.documents import Document

from langchain_memkit.memories.vector.rounds import Line, Round, begins, lines_of_document
from langchain_memkit.scoring.index import Begun, Entry

__all__ = ["Known", "Part", "needs_index", "parts_of", "rest_of"]


@dataclass(slots=True)
class Part:
    """New lines: of a new round, or of one that is stored. `again`: its opening words are those of another round."""

    round_id: str | None
    lines: list[Line]
    again: bool = False


@dataclass(slots=True)
class Known:
    """What is stored of a session, as far as it matters.

    Attributes:
        rounds: The round in which a message stands, by message id.
        ends: Who speaks last in a round, by round id.
    """

    rounds: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)

    def read(self, documents: Iterable[Document]) -> None:
        """Take in records."""
        for document in documents:
            lines = lines_of_document(document)
            if lines:
                self.hold(_round_id(document), lines)

    def look(self, entries: Iterable[Entry], session_id: str) -> None:
        """Take in all records of a session."""
        mine = sorted((entry for entry in entries if entry.session == session_id), key=lambda entry: entry.position)
        for entry in mine:
            if entry.said:
                self._add(entry.round_id, entry.messages, entry.said[-1].role)

    def hold(self, round_id: str, lines: Sequence[Line]) -> None:
        """Take these lines for stored, in this round."""
        self._add(round_id, [line.message for line in lines], lines[-1].role)

    def _add(self, round_id: str, messages: Iterable[str], end: str) -> None:
        self.ends[round_id] = end
        self.rounds.update((message, round_id) for message in messages if message)


def needs_index(lines: Sequence[Line], begun: Begun, known: Known) -> bool:
    """Return whether it must be looked up which of the messages are stored: not for a plain new turn."""
    if not (begun.last or begun.position) or not any(line.message for line in lines):
        return False
    last = begun.last
    told = lines_of_document(last) if last else []
    waiting = bool(last and last.metadata.get("open")) or bool(told and told[-1].role == "human")
    return waiting or lines[0].role != "human" or any(line.message in known.rounds for line in lines)


def parts_of(
    rounds: Sequence[Round], ids: Sequence[str], last: Document | None, records: Mapping[str, Document], known: Known
) -> list[Part]:
    """Return the new lines of a turn, in order, with where they belong.

    Args:
        rounds: The turn by itself.
        ids: What the id of each of them is.
        last: The session's last record.
        records: Stored records with any of these ids.
        known: What else is stored of the session.
    """
    parts: list[Part] = []
    where, before = (_round_id(last), known.ends.get(_round_id(last), "")) if last is not None else (None, "")
    if last is not None and rounds and _erased(last, rounds[0].epoch):
        where, before = None, ""
    fresh: Part | None = None  # the new round that lines are added to
    for i, (round_, name) in enumerate(zip(rounds, ids, strict=True)):
        again = False
        if not any(line.message for line in round_.lines):
            stored = records.get(name)
            holder = next((d for d in (stored, last) if d is not None and _holds(d, round_.lines, d is last)), None)
            if holder is not None:
                where, fresh = _round_id(holder), None
                before = known.ends.get(where, "")
                continue
            again = stored is not None
            if i == 0 and last is not None and round_.lines[0].role != "human" and _told(last, round_.lines):
                continue
        for line in round_.lines:
            if line.message and line.message in known.rounds:
                where, fresh = known.rounds[line.message], None
                before = known.ends.get(where, "")
                continue
            if begins(line, before) or (where is None and fresh is None):
                fresh, where = Part(None, [line], again), None
                parts.append(fresh)
            elif fresh is not None:
                fresh.lines.append(line)
            elif parts and parts[-1].round_id == where:
                parts[-1].lines.append(line)
            else:
                parts.append(Part(where, [line]))
            before = line.role
    return parts


def rest_of(draft: Sequence[Document], records: Mapping[str, Document]) -> list[Document]:
    """Return what is missing of a long round whose writer was killed within it, with the place and date of what is stored.

    Args:
        draft: All records of the round.
        records: Stored records with any of their ids.

    Returns:
        Nothing if all is stored, or nothing, or something else.
    """
    stored = [(i, records[document.id or ""]) for i, document in enumerate(draft) if document.id in records]
    if not 0 < len(stored) < len(draft) or any(draft[i].page_content != found.page_content for i, found in stored):
        return []
    number, found = stored[0]
    for i, document in enumerate(draft):
        document.metadata["position"] = found.metadata["position"] + i - number
        document.metadata["created_at"] = found.metadata["created_at"]
    return [document for document in draft if document.id not in records]


def _round_id(document: Document) -> str:
    return str(document.metadata.get("round_id") or document.id)


def _erased(last: Document, epoch: int) -> bool:
    """Return whether a record is of another epoch than a turn, where both are known."""
    known = last.metadata.get("epoch") or 0
    return bool(epoch and known and known != epoch)


def _holds(stored: Document, lines: Sequence[Line], is_last: bool) -> bool:
    """Return whether a record says these lines already: all of them, or at its beginning, if it waits for an answer."""
    told = [(line.role, line.text) for line in lines_of_document(stored)]
    said = [(line.role, line.text) for line in lines]
    return told == said or (is_last and bool(stored.metadata.get("open")) and told[: len(said)] == said)


def _told(last: Document, lines: Sequence[Line]) -> bool:
    """Return whether these lines end a record already: a retry says the same again."""
    told = lines_of_document(last)[-len(lines) :]
    return [(line.role, line.text) for line in told] == [(line.role, line.text) for line in lines]
