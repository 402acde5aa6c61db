"""Rounds of a conversation as records, and which of them are to be stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID, uuid5

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_memkit.memories.rebuildable import Segment
from langchain_memkit.messages.text import MESSAGE, message_text, truncate_with_warning, without_records
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.ranking.index import IndexRecord, StoredSession, digest_of
from langchain_memkit.ranking.records import GREETINGS, is_greeting
from langchain_memkit.ranking.tokenize import tokenize

ROUNDS = UUID("5b1f7d2e-6c0a-4c39-9a57-2f3d8f4f2a10")
SIZE = 300  # characters of a record: some 75 tokens, so that a short note has room for many
# Ends of paragraphs, lines, sentences, clauses and words, as regular expressions: where a long text is cut.
ENDS = (r"\n\n", r"\n", r"[.!?][\"')\]]*\s+", r"[\u3002\uff01\uff1f]", r"[,;:]\s+", r"\s", "")
KIND = "a message that the vector memory is to save"
SHORT = 80  # characters; a longer message is never small talk
CONSENT = "ok okay yes yeah yep no nope sure right please done alright"
SMALL_TALK = GREETINGS | frozenset(tokenize(CONSENT))


class RoundLine(NamedTuple):
    """The text of one message, or a piece of it, with its speaker."""

    role: str
    name: str
    text: str
    message: str  # the message's id; empty if it has none
    ends: bool  # whether a round may end here: an answer without calls

    @property
    def speaker(self) -> str:
        """The speaker's name, else the role; always "tool" for tools, since the call before it names the tool."""
        return self.name if self.name and self.role != "tool" else self.role


class Round(NamedTuple):
    """A user's input with everything that follows it, up to the next input."""

    lines: tuple[RoundLine, ...]
    at: datetime
    epoch: int
    expires_at: datetime | None
    closed: bool = False  # whether another round began after it

    @property
    def open(self) -> bool:
        """Return whether the round still waits for its answer."""
        return not (self.closed or self.lines[-1].ends)


Place: TypeAlias = tuple[str, str]
"""A user and a session."""

Draft: TypeAlias = tuple[Round, list[Document]]
"""A round, and the records that it would be stored as if it were new."""


class TextSplitter(Protocol):
    """A splitter of langchain-text-splitters, or any object with this method."""

    def split_text(self, text: str) -> list[str]:
        """Split a text into pieces, in order."""


class Splitter:
    """Splits long texts with any object that has `split_text`; None for pieces of at most 300 characters, by sentences.

    The default splitter is imported only when the first long text comes.
    """

    def __init__(self, splitter: TextSplitter | None = None) -> None:
        self._splitter = splitter
        self._window = SIZE if splitter is None else 0

    def split(self, text: str) -> list[str]:
        """Split a text into pieces, in order; a text that fits comes back whole."""
        if len(text) <= self._window:
            return [text]
        if self._splitter is None:
            from langchain_text_splitters import RecursiveCharacterTextSplitter

            self._splitter = RecursiveCharacterTextSplitter(
                [*ENDS], chunk_size=SIZE, chunk_overlap=0, is_separator_regex=True, keep_separator="end"
            )
        return [piece for piece in self._splitter.split_text(text) if piece.strip()] or [text]


def lines_of_messages(messages: Iterable[BaseMessage]) -> Iterator[RoundLine]:
    """Yield a line for each message of a user, model or tool; skip system messages and messages without text."""
    for message in messages:
        if is_user_message(message):
            role, text = "human", truncate_with_warning(message_text(message), MESSAGE, KIND)
        elif isinstance(message, AIMessage):
            role, text = "ai", without_records(truncate_with_warning(message_text(message), MESSAGE, KIND))
        elif isinstance(message, ToolMessage):
            role, text = "tool", _result_text(message)
        else:
            continue
        text = text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd").strip()
        if text:
            ends = role == "ai" and not getattr(message, "tool_calls", None)
            yield RoundLine(role, " ".join((message.name or "").split()), text, message.id or "", ends)


def _result_text(message: ToolMessage, *, most: int = 2000, begins: int = 200) -> str:
    """Return a tool's result; of more than `most` characters only how it begins, since the transcript has all of it.

    A page that an agent has read would else fill the memory with what nobody said.
    """
    text = message_text(message)
    return text if len(text) <= most else f"{text[:begins]} ..."


def rounds_of(stretches: Iterable[Segment], undated: datetime) -> list[Round]:
    """Group messages, in batches as they were stored, into rounds, oldest first; a round may go on in the next batch.

    `undated` is the time of rounds whose messages have no date.
    """
    rounds: list[Round] = []
    for stretch in stretches:
        for found in lines_of_messages(stretch.messages):
            # Recall hides records whose messages the history no longer has: ids that it never knew would hide them all.
            line = found if stretch.has_ids else found._replace(message="")
            # A round never spans two epochs: the session was cleared between them.
            if rounds and rounds[-1].epoch == stretch.epoch and not starts_round(line, rounds[-1].lines[-1].role):
                rounds[-1] = rounds[-1]._replace(lines=(*rounds[-1].lines, line), expires_at=stretch.expires_at)
            else:
                rounds[-1:] = [round_._replace(closed=True) for round_ in rounds[-1:]]
                rounds.append(Round((line,), stretch.at or undated, stretch.epoch, stretch.expires_at))
    return rounds


def starts_round(line: RoundLine, before: str) -> bool:
    """Return whether a line begins a round; consecutive human messages are one input. `before`: the previous role."""
    return line.role == "human" and before != "human"


def is_small_talk(lines: Sequence[RoundLine]) -> bool:
    """Return whether there is nothing worth finding: short greetings, thanks and consent.

    A greeting or thanks by the user is small talk whatever the model answers to it.
    """
    said = [line.text for line in lines if line.role == "human"]
    all_short = all(len(line.text) <= SHORT and SMALL_TALK.issuperset(tokenize(line.text, "english")) for line in lines)
    return all_short or (bool(said) and all(map(is_greeting, said)))


def documents_of(
    round_: Round, place: Place, position: int, splitter: Splitter, last: Document | None = None, salt: str = ""
) -> list[Document]:
    """Build the records of a round in order: one, or several chunks if it is long, with positions one after the other.

    With `last`, the last stored record of the round that is continued, it is rebuilt with the new lines and returned
    first, under its old id, position and date. `salt` makes the round's id differ from that of an older round with the
    same words.
    """
    lines = (*(lines_of_document(last) if last else ()), *round_.lines)
    known: Mapping[str, Any] = last.metadata if last else {}
    round_id = known.get("round_id")
    if not round_id:
        # From the first message's id, else from the round's text, so that a retry gets the same.
        opening = lines[0].message or digest_of("\n".join(f"{line.role}: {line.text}" for line in lines))
        named = [*place, opening, salt] if salt else [*place, opening]
        round_id = str(uuid5(ROUNDS, json.dumps(named)))
    first = int(known.get("chunk", 0))
    documents: list[Document] = []
    chunks = _chunks(lines, splitter)
    for i, chunk in enumerate(chunks, first):
        text, spans = _rendered(chunk)
        metadata: dict[str, Any] = {"user_id": place[0], "session_id": place[1], "round_id": round_id}
        metadata["position"] = known.get("position", position) + i - first
        metadata["created_at"] = known.get("created_at") or round_.at.isoformat()
        metadata |= {"said": spans, "messages": [line.message for line in chunk]}
        expires_at = round_.expires_at and round_.expires_at.isoformat()
        is_last = i == first + len(chunks) - 1  # only the last chunk can grow, so only it stays open
        rare = {"chunk": i, "epoch": round_.epoch, "expires_at": expires_at, "open": is_last and round_.open}
        # Most records have none of these: leave defaults out, which keeps the rows small.
        metadata |= {name: value for name, value in rare.items() if value}
        name = str(uuid5(ROUNDS, f"{round_id}#{i}")) if i else round_id
        documents.append(Document(id=name, page_content=text, metadata=metadata))
    return documents


def lines_of_document(document: Document) -> list[RoundLine]:
    """Restore the lines that a record was built from."""
    metadata = document.metadata
    spans, messages = metadata.get("said") or [], metadata.get("messages") or []
    ids = messages if len(messages) == len(spans) else [""] * len(spans)
    is_open = bool(metadata.get("open"))
    last = len(spans) - 1
    return [
        RoundLine(role, name, document.page_content[start:end], id_, i == last and role == "ai" and not is_open)
        for i, ((role, name, start, end), id_) in enumerate(zip(spans, ids, strict=True))
    ]


def _chunks(lines: Sequence[RoundLine], splitter: Splitter) -> list[list[RoundLine]]:
    """Pack whole lines into as few chunks as the splitter leaves whole; a long message becomes pieces of its own."""
    chunks: list[list[RoundLine]] = []
    for line in lines:
        pieces = splitter.split(line.text)
        # A piece of an answer beside the question would make a record about neither.
        if len(pieces) == 1 and chunks and len(splitter.split(_rendered([*chunks[-1], line])[0])) == 1:
            chunks[-1].append(line)
        else:
            chunks += [[line._replace(text=piece)] for piece in pieces]
    return chunks


def _rendered(lines: Sequence[RoundLine]) -> tuple[str, list[list[Any]]]:
    """Render lines as text, each after its speaker, with a span `[role, name, start, end]` of each line's own words."""
    text, spans = "", []
    for line in lines:
        text += f"\n{line.speaker}: " if text else f"{line.speaker}: "
        spans.append([line.role, line.name, len(text), len(text) + len(line.text)])
        text += line.text
    return text, spans


@dataclass(slots=True)
class PlannedLines:
    """New lines that go into one round: a stored one (`round_id`), or a new one, perhaps with the words of an older."""

    round_id: str | None
    lines: list[RoundLine]
    again: bool = False  # the new round repeats an older round's words, so that it needs an id of its own


@dataclass(slots=True)
class StoredRounds:
    """The stored part of a session, as far as a merge plan needs it."""

    rounds: dict[str, str] = field(default_factory=dict)  # round id by message id
    ends: dict[str, str] = field(default_factory=dict)  # role of the last line, by round id

    def look(self, entries: Iterable[IndexRecord], session_id: str) -> None:
        """Add all index entries of a session, in order of position."""
        mine = [entry for entry in entries if entry.session == session_id and entry.said]
        for entry in sorted(mine, key=lambda entry: entry.position):
            self.hold(entry.round_id, entry.messages, entry.said[-1].role)

    def hold(self, round_id: str, messages: Iterable[str], end: str) -> None:
        """Treat messages with these ids as stored in this round, which ends with a line of the role `end`."""
        self.ends[round_id] = end
        self.rounds.update((message, round_id) for message in messages if message)


def needs_index(lines: Sequence[RoundLine], begun: StoredSession, known: StoredRounds) -> bool:
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


def plan_rounds(drafts: Sequence[Draft], begun: StoredSession, known: StoredRounds) -> list[PlannedLines]:
    """Plan which lines of a turn to store, and in which rounds: new lines in order, none if all is stored already.

    `drafts` are the turn's rounds, `begun` holds the session's last record and stored ones with any of their ids, and
    `known` are the messages and rounds that are stored.
    """
    parts: list[PlannedLines] = []
    last, records = begun.last, begun.records
    # `where` is the stored round that the next line would continue, `before` the role of the line in front of it.
    where: str | None = None
    before = ""
    # A record of another epoch is left over from before a clear: a turn must not continue erased text.
    epochs = {drafts[0][0].epoch, last.metadata.get("epoch")} if last is not None and drafts else set[int]()
    if last is not None and len(epochs - {0, None}) < 2:
        where = stored_round_id(last)
        before = known.ends.get(where, "")
    fresh: PlannedLines | None = None  # the new round that lines are added to
    for i, (round_, draft) in enumerate(drafts):
        again, name = False, stored_round_id(draft[0])
        # Without message ids a retry is only recognizable by its text: skip a round that a stored record already says.
        if not any(line.message for line in round_.lines):
            stored = records.get(name)
            holder = next((d for d in (stored, last) if d is not None and _holds(d, round_.lines, d is last)), None)
            known_chunks = [(records.get(str(document.id)), document) for document in draft]
            if holder is not None or all(old and old.page_content == new.page_content for old, new in known_chunks):
                holder = holder or draft[0]
                where, fresh = stored_round_id(holder), None
                before = known.ends.get(where, "")
                continue
            # Same opening, other content: a new round, which must not overwrite the stored one of that id.
            again = stored is not None
            # A retried answer or tool result, without the question that it belongs to.
            if i == 0 and last is not None and round_.lines[0].role != "human":
                said = _words(round_.lines)
                if _words(lines_of_document(last))[-len(said) :] == said:
                    continue
        for line in round_.lines:
            # A known message is not stored again, but what follows it belongs into its round.
            if line.message and line.message in known.rounds:
                where, fresh = known.rounds[line.message], None
                before = known.ends.get(where, "")
                continue
            if starts_round(line, before) or (where is None and fresh is None):
                fresh, where = PlannedLines(None, [line], again), None
                parts.append(fresh)
            elif fresh is not None:
                fresh.lines.append(line)
            elif parts and parts[-1].round_id == where:
                parts[-1].lines.append(line)
            else:
                parts.append(PlannedLines(where, [line]))
            before = line.role
    return parts


def missing_chunks(draft: Sequence[Document], records: Mapping[str, Document]) -> list[Document]:
    """Return the chunks that a writer who was killed between two chunks of a round has left out.

    They get positions and date that match the stored ones. There are none if all chunks are stored, or none is, or if a
    stored one differs.
    """
    stored = [(i, records[document.id or ""]) for i, document in enumerate(draft) if document.id in records]
    if not 0 < len(stored) < len(draft) or any(draft[i].page_content != found.page_content for i, found in stored):
        return []
    number, found = stored[0]
    for i, document in enumerate(draft):
        document.metadata["position"] = found.metadata["position"] + i - number
        document.metadata["created_at"] = found.metadata["created_at"]
    return [document for document in draft if document.id not in records]


def stored_round_id(document: Document) -> str:
    """Return the id of the round that a stored record belongs to."""
    return str(document.metadata.get("round_id") or document.id)


def _words(lines: Iterable[RoundLine]) -> list[tuple[str, str]]:
    return [(line.role, line.text) for line in lines]


def _holds(stored: Document, lines: Sequence[RoundLine], is_last: bool) -> bool:
    """Return whether a record equals these lines or, being the open last record, begins with them."""
    told, said = _words(lines_of_document(stored)), _words(lines)
    return told == said or (is_last and bool(stored.metadata.get("open")) and told[: len(said)] == said)
