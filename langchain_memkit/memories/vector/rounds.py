"""Convert messages to rounds, the records of a vector memory: a user's input with everything that follows. Pure.

A round begins with a human message that does not follow another one, and is finished when the model has answered
without calling a tool. A round that is too long for an embedder is split into several records (chunks), each with the
round's date and speakers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_memkit.memories.transcripts import Stretch
from langchain_memkit.messages.authors import is_user_message
from langchain_memkit.messages.limits import MESSAGE, beginning
from langchain_memkit.messages.text import said, without_records
from langchain_memkit.scoring.index import digest_of
from langchain_memkit.scoring.words import stems

__all__ = [
    "Line",
    "Round",
    "Splitter",
    "begins",
    "closed",
    "documents_of",
    "is_small_talk",
    "lines_of_document",
    "placed",
    "rounds_of",
]

ROUNDS = UUID("5b1f7d2e-6c0a-4c39-9a57-2f3d8f4f2a10")
WINDOW = 1000  # characters of a chunk: about 256 word pieces, the window of small embedders
OVERLAP = 100  # characters
TOOL = 2000  # characters of a tool's result that are kept; the transcript has all of it
KIND = "a message that the vector memory is to save"
SHORT = 80  # characters; a longer message is never small talk
SMALL_TALK = frozenset(
    stem
    for stem in stems(
        "ok okay yes yeah yep no nope sure right fine great good nice cool perfect awesome thanks thank welcome please "
        "hi hello hey bye goodbye morning evening night got understood done alright problem glad help cheers"
    )
)


class Line(NamedTuple):
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

    lines: tuple[Line, ...]
    at: datetime
    epoch: int
    expires_at: datetime | None
    closed: bool = False  # whether another round began after it

    @property
    def open(self) -> bool:
        """Return whether the round still waits for its answer."""
        return not (self.closed or self.lines[-1].ends)


class Splitter:
    """Splits long texts with a LangChain text splitter.

    Args:
        splitter: Any object with `split_text`; None for a `RecursiveCharacterTextSplitter` of 1,000 characters with an
            overlap of 100, imported only when the first long text comes.
    """

    def __init__(self, splitter: Any = None) -> None:
        self._given = splitter
        self._made: Any = None

    def split(self, text: str) -> list[str]:
        """Split a text into pieces, in order; a text that fits comes back whole."""
        if self._given is None and len(text) <= WINDOW:
            return [text]
        if self._made is None:
            self._made = self._given or _default_splitter()
        return [piece for piece in self._made.split_text(text) if piece.strip()] or [text]


def _default_splitter() -> Any:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(chunk_size=WINDOW, chunk_overlap=OVERLAP)


def lines_of_messages(messages: Iterable[BaseMessage]) -> Iterator[Line]:
    """Yield a line for each message of a user, model or tool; skip system messages and messages without text."""
    for message in messages:
        if is_user_message(message):
            role, text = "human", beginning(said(message), MESSAGE, KIND)
        elif isinstance(message, AIMessage):
            role, text = "ai", without_records(beginning(said(message), MESSAGE, KIND))
        elif isinstance(message, ToolMessage):
            role, text = "tool", said(message)
            text = text if len(text) <= TOOL else text[:TOOL] + " ..."
        else:
            continue
        text = text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd").strip()
        if text:
            ends = role == "ai" and not getattr(message, "tool_calls", None)
            yield Line(role, " ".join((message.name or "").split()), text, message.id or "", ends)


def rounds_of(stretches: Iterable[Stretch], undated: datetime) -> list[Round]:
    """Group the messages of a conversation into rounds, oldest first.

    Args:
        stretches: Messages in batches as they were stored; a round may continue in the next batch.
        undated: The time of rounds whose messages have no date.
    """
    rounds: list[Round] = []
    for stretch in stretches:
        # Keep message ids only where the history can later be asked for them: recall hides records whose messages the
        # history no longer has, and ids that it never knew would hide all of them.
        asked = stretch.native or stretch.at is None
        for found in lines_of_messages(stretch.messages):
            line = found if asked else found._replace(message="")
            # A round never spans two epochs: the session was cleared between them.
            if rounds and rounds[-1].epoch == stretch.epoch and not begins(line, rounds[-1].lines[-1].role):
                rounds[-1] = rounds[-1]._replace(lines=(*rounds[-1].lines, line), expires_at=stretch.expires_at)
            else:
                rounds[-1:] = [round_._replace(closed=True) for round_ in rounds[-1:]]
                rounds.append(Round((line,), stretch.at or undated, stretch.epoch, stretch.expires_at))
    return rounds


def begins(line: Line, before: str) -> bool:
    """Return whether a line begins a round; consecutive human messages are one input. `before`: the previous role."""
    return line.role == "human" and before != "human"


def is_small_talk(lines: Iterable[Line]) -> bool:
    """Return whether the lines hold nothing worth finding: only short greetings, thanks and consent."""
    return all(len(line.text) <= SHORT and SMALL_TALK.issuperset(stems(line.text)) for line in lines)


def documents_of(
    round_: Round,
    user_id: str,
    session_id: str,
    position: int,
    splitter: Splitter,
    last: Document | None = None,
    salt: str = "",
) -> list[Document]:
    """Build the records of a round: one, or several chunks if it is long.

    Args:
        round_: The round, or the lines that continue a stored one.
        user_id: The user.
        session_id: The conversation.
        position: Position of the first record; the others follow one by one.
        splitter: Splits long rounds.
        last: The last stored record of the round that is continued. It is rebuilt with the new lines and returned
            first, under its old id, position and date.
        salt: Mixed into the round's id, so that it differs from that of an older round with the same words.

    Returns:
        Documents with ids, in order.
    """
    lines = (*(lines_of_document(last) if last else ()), *round_.lines)
    known: Mapping[str, Any] = last.metadata if last else {}
    round_id = known.get("round_id") or _round_id(user_id, session_id, lines, salt)
    first = _chunk_number(last) if last else 0
    documents: list[Document] = []
    chunks = _chunks(lines, splitter)
    for i, chunk in enumerate(chunks, first):
        metadata: dict[str, Any] = {
            "user_id": user_id,
            "session_id": session_id,
            "round_id": round_id,
            "position": known.get("position", position) + i - first,
            "created_at": known.get("created_at") or round_.at.isoformat(),
        }
        text, spans = _rendered(chunk)
        metadata |= {"said": spans, "messages": [line.message for line in chunk]}
        expires_at = round_.expires_at and round_.expires_at.isoformat()
        is_last = i == first + len(chunks) - 1  # only the last chunk can grow, so only it stays open
        rare = {"chunk": i, "epoch": round_.epoch, "expires_at": expires_at, "open": is_last and round_.open}
        # Most records have none of these: leave defaults out, which keeps the rows small.
        metadata |= {name: value for name, value in rare.items() if value}
        documents.append(Document(id=_chunk_id(round_id, i), page_content=text, metadata=metadata))
    return documents


def placed(documents: Sequence[Document], position: int) -> Sequence[Document]:
    """Renumber the records of a round, in place, from a position on."""
    for i, document in enumerate(documents):
        document.metadata["position"] = position + i
    return documents


def lines_of_document(document: Document) -> list[Line]:
    """Restore the lines that a record was built from."""
    metadata = document.metadata
    spans, messages = metadata.get("said") or [], metadata.get("messages") or []
    ids = messages if len(messages) == len(spans) else [""] * len(spans)
    is_open = bool(metadata.get("open"))
    last = len(spans) - 1
    return [
        Line(role, name, document.page_content[start:end], id_, i == last and role == "ai" and not is_open)
        for i, ((role, name, start, end), id_) in enumerate(zip(spans, ids, strict=True))
    ]


def closed(document: Document) -> Document:
    """Return a copy of a record that is marked as finished, so that nothing is added to its round any more."""
    metadata = {name: value for name, value in document.metadata.items() if name != "open"}
    return Document(id=document.id, page_content=document.page_content, metadata=metadata)


def _round_id(user_id: str, session_id: str, lines: Sequence[Line], salt: str) -> str:
    """Derive the round's id, so that a retry gets the same: from its first message's id, else from the round's text."""
    first = lines[0].message or digest_of("\n".join(f"{line.role}: {line.text}" for line in lines))
    return str(uuid5(ROUNDS, json.dumps([user_id, session_id, first, salt] if salt else [user_id, session_id, first])))


def _chunk_id(round_id: str, number: int) -> str:
    return str(uuid5(ROUNDS, f"{round_id}#{number}")) if number else round_id


def _chunk_number(document: Document) -> int:
    return int(document.metadata.get("chunk", 0))


def _chunks(lines: Sequence[Line], splitter: Splitter) -> list[list[Line]]:
    """Pack lines into as few chunks as the splitter leaves whole; a long message becomes overlapping pieces."""
    chunks: list[list[Line]] = []
    for line in lines:
        for i, piece in enumerate(splitter.split(line.text)):
            part = line._replace(text=piece)
            # Pieces of one message overlap, so they are never packed together.
            if i == 0 and chunks and len(splitter.split(_rendered([*chunks[-1], part])[0])) == 1:
                chunks[-1].append(part)
            else:
                chunks.append([part])
    return chunks


def _rendered(lines: Sequence[Line]) -> tuple[str, list[list[Any]]]:
    """Render lines as text, each after its speaker, with a span `[role, name, start, end]` of each line's own words."""
    text, spans = "", []
    for line in lines:
        text += f"\n{line.speaker}: " if text else f"{line.speaker}: "
        spans.append([line.role, line.name, len(text), len(text) + len(line.text)])
        text += line.text
    return text, spans
