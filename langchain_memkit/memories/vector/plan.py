"""Merge plan of a save: which messages of a turn are new, and which stored round they continue. Pure.

A turn may arrive in pieces, twice, or partly a second time (a retry, a resumed agent run). A message with an id is
stored once, in the round that it belongs to. Messages without ids are deduplicated by their text.
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
    """New lines that go into one round.

    Attributes:
        round_id: The stored round that they continue; None for a new round.
        lines: The lines, in order.
        again: Whether a new round repeats an older round's words, so that it needs an id of its own.
    """

    round_id: str | None
    lines: list[Line]
    again: bool = False


@dataclass(slots=True)
class Known:
    """The stored part of a session, as far as a merge plan needs it.

    Attributes:
        rounds: Round id by message id.
        ends: Role of the last line, by round id.
    """

    rounds: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)

    def read(self, documents: Iterable[Document]) -> None:
        """Add stored documents."""
        for document in documents:
            lines = lines_of_document(document)
            if lines:
                self.hold(_round_id(document), lines)

    def look(self, entries: Iterable[Entry], session_id: str) -> None:
        """Add all index entries of a session, in order of position."""
        mine = sorted((entry for entry in entries if entry.session == session_id), key=lambda entry: entry.position)
        for entry in mine:
            if entry.said:
                self._add(entry.round_id, entry.messages, entry.said[-1].role)

    def hold(self, round_id: str, lines: Sequence[Line]) -> None:
        """Treat these lines as stored in this round."""
        self._add(round_id, [line.message for line in lines], lines[-1].role)

    def _add(self, round_id: str, messages: Iterable[str], end: str) -> None:
        self.ends[round_id] = end
        self.rounds.update((message, round_id) for message in messages if message)


def needs_index(lines: Sequence[Line], begun: Begun, known: Known) -> bool:
    """Return whether the user's index must be read to know which messages are stored; false for a plain new turn.

    A turn is plain if the session is empty, if none of its messages has an id (they are compared by text), or if it
    starts with a human message, the last round is answered, and no message is known.
    """
    if not (begun.last or begun.position) or not any(line.message for line in lines):
        return False
    last = begun.last
    told = lines_of_document(last) if last else []
    waiting = bool(last and last.metadata.get("open")) or bool(told and told[-1].role == "human")
    return waiting or lines[0].role != "human" or any(line.message in known.rounds for line in lines)


def parts_of(
    rounds: Sequence[Round], ids: Sequence[str], last: Document | None, records: Mapping[str, Document], known: Known
) -> list[Part]:
    """Plan which lines of a turn to store, and in which rounds.

    Args:
        rounds: The rounds of the turn, taken by itself.
        ids: The id that each of them would have as a new round.
        last: The session's last record, if any.
        records: Stored records with any of these ids, by id.
        known: Messages and rounds that are stored.

    Returns:
        The new lines, grouped by round, in order; empty if all is stored already.
    """
    parts: list[Part] = []
    # `where` is the stored round that the next line would continue, `before` the role of the line in front of it.
    where, before = (_round_id(last), known.ends.get(_round_id(last), "")) if last is not None else (None, "")
    # A record of another epoch is left over from before a clear: a turn must not continue erased text.
    if last is not None and rounds and _erased(last, rounds[0].epoch):
        where, before = None, ""
    fresh: Part | None = None  # the new round that lines are added to
    for i, (round_, name) in enumerate(zip(rounds, ids, strict=True)):
        again = False
        # Without message ids a retry is only recognizable by its text: skip a round that a stored record already says.
        if not any(line.message for line in round_.lines):
            stored = records.get(name)
            holder = next((d for d in (stored, last) if d is not None and _holds(d, round_.lines, d is last)), None)
            if holder is not None:
                where, fresh = _round_id(holder), None
                before = known.ends.get(where, "")
                continue
            # Same opening, other content: a new round, which must not overwrite the stored one of that id.
            again = stored is not None
            # A retried answer or tool result, without the question that it belongs to.
            if i == 0 and last is not None and round_.lines[0].role != "human" and _told(last, round_.lines):
                continue
        for line in round_.lines:
            # A known message is not stored again, but what follows it belongs into its round.
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
    """Return the chunks of a partially written round that are still missing.

    Such a round is left by a writer that was killed between two chunks. The missing chunks get positions and date that
    match the stored ones.

    Args:
        draft: All records of the round.
        records: Stored records with any of their ids, by id.

    Returns:
        The missing chunks; empty if all chunks are stored, or none, or if a stored one differs.
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
    """Return whether a record belongs to another epoch than the turn; false if either epoch is unknown."""
    known = last.metadata.get("epoch") or 0
    return bool(epoch and known and known != epoch)


def _holds(stored: Document, lines: Sequence[Line], is_last: bool) -> bool:
    """Return whether a record equals these lines or, being the open last record, begins with them."""
    told = [(line.role, line.text) for line in lines_of_document(stored)]
    said = [(line.role, line.text) for line in lines]
    return told == said or (is_last and bool(stored.metadata.get("open")) and told[: len(said)] == said)


def _told(last: Document, lines: Sequence[Line]) -> bool:
    """Return whether the last record ends with these lines, as after a retry."""
    told = lines_of_document(last)[-len(lines) :]
    return [(line.role, line.text) for line in told] == [(line.role, line.text) for line in lines]
