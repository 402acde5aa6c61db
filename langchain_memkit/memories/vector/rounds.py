"""From messages to rounds, the records of a vector memory: what a user said with what followed. Pure.

A round begins with a human message that follows something else, and is finished when the model has answered without
calling a tool. What is too long for an embedder is cut into several records, each with its round's date and speakers.
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
WINDOW = 1000  # characters: about 256 word pieces, the window of small embedders
OVERLAP = 100
TOOL = 2000  # characters of a tool's result that are kept; the transcript has all of it
KIND = "a message that the vector memory is to save"
SHORT = 80  # characters of small talk
SMALL_TALK = frozenset(
    stem
    for stem in stems(
        "ok okay yes yeah yep no nope sure right fine great good nice cool perfect awesome thanks thank welcome please "
        "hi hello hey bye goodbye morning evening night got understood done alright problem glad help cheers"
    )
)


class Line(NamedTuple):
    """What one message says, or a piece of it."""

    role: str
    name: str
    text: str
    message: str  # the message's id; empty if it has none
    ends: bool  # whether a round may end here: an answer without calls

    @property
    def speaker(self) -> str:
        """A name, or "human", "ai"; every tool is "tool", since the call before it names it."""
        return self.name if self.name and self.role != "tool" else self.role


class Round(NamedTuple):
    """A user's message with what follows."""

    lines: tuple[Line, ...]
    at: datetime
    epoch: int
    expires_at: datetime | None
    closed: bool = False  # whether another round began after it

    @property
    def open(self) -> bool:
        """Whether an answer is still to come."""
        return not (self.closed or self.lines[-1].ends)


class Splitter:
    """Cuts long texts by a text splitter of LangChain's.

    Args:
        splitter: Anything with `split_text`; None for one that cuts at 1,000 characters with an overlap of 100, made
            when the first long text comes.
    """

    def __init__(self, splitter: Any = None) -> None:
        self._given = splitter
        self._made: Any = None

    def split(self, text: str) -> list[str]:
        """Return the text in pieces, in order."""
        if self._given is None and len(text) <= WINDOW:
            return [text]
        if self._made is None:
            self._made = self._given or _default_splitter()
        return [piece for piece in self._made.split_text(text) if piece.strip()] or [text]


def _default_splitter() -> Any:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(chunk_size=WINDOW, chunk_overlap=OVERLAP)


def lines_of_messages(messages: Iterable[BaseMessage]) -> Iterator[Line]:
    """Return what people, models and tools said; without system lines and what nobody said."""
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
    """Return the rounds of a conversation, oldest first.

    Args:
        stretches: What was stored together; a round may go on in the next one.
        undated: When what has no date was said.
    """
    rounds: list[Round] = []
    for stretch in stretches:
        asked = stretch.native or stretch.at is None  # whether a history can be asked for these messages
        for found in lines_of_messages(stretch.messages):
            line = found if asked else found._replace(message="")
            if rounds and rounds[-1].epoch == stretch.epoch and not begins(line, rounds[-1].lines[-1].role):
                rounds[-1] = rounds[-1]._replace(lines=(*rounds[-1].lines, line), expires_at=stretch.expires_at)
            else:
                rounds[-1:] = [round_._replace(closed=True) for round_ in rounds[-1:]]
                rounds.append(Round((line,), stretch.at or undated, stretch.epoch, stretch.expires_at))
    return rounds


def begins(line: Line, before: str) -> bool:
    """Return whether a line begins a round, given the role of the line before it: several human messages are one input."""
    return line.role == "human" and before != "human"


def is_small_talk(lines: Iterable[Line]) -> bool:
    """Return whether nothing is said that anybody would look for: greetings, thanks, consent; never at length."""
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
    """Return the records of a round: one, or several if it is long.

    Args:
        round_: What was said.
        user_id: Whose.
        session_id: The conversation.
        position: Of the first record; the others follow.
        splitter: Cuts what is too long.
        last: The record that this round goes on from, which is the first that is returned, under its old id.
        salt: For an id of its own, although it begins with the words of another round.
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
        is_last = i == first + len(chunks) - 1  # the others are full, whatever is still to come
        rare = {"chunk": i, "epoch": round_.epoch, "expires_at": expires_at, "open": is_last and round_.open}
        metadata |= {name: value for name, value in rare.items() if value}
        documents.append(Document(id=_chunk_id(round_id, i), page_content=text, metadata=metadata))
    return documents


def placed(documents: Sequence[Document], position: int) -> Sequence[Document]:
    """Return the records of a round, from another position on."""
    for i, document in enumerate(documents):
        document.metadata["position"] = position + i
    return documents


def lines_of_document(document: Document) -> list[Line]:
    """Return the lines that a record was made of."""
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
    """Return a record of a round to which nothing is added any more."""
    metadata = {name: value for name, value in document.metadata.items() if name != "open"}
    return Document(id=document.id, page_content=document.page_content, metadata=metadata)


def _round_id(user_id: str, session_id: str, lines: Sequence[Line], salt: str) -> str:
    """Return the same messages make the same id; a message without an id is known by what the round says."""
    first = lines[0].message or digest_of("\n".join(f"{line.role}: {line.text}" for line in lines))
    return str(uuid5(ROUNDS, json.dumps([user_id, session_id, first, salt] if salt else [user_id, session_id, first])))


def _chunk_id(round_id: str, number: int) -> str:
    return str(uuid5(ROUNDS, f"{round_id}#{number}")) if number else round_id


def _chunk_number(document: Document) -> int:
    return int(document.metadata.get("chunk", 0))


def _chunks(lines: Sequence[Line], splitter: Splitter) -> list[list[Line]]:
    """Lines packed into as few records as the splitter leaves whole; a long message is cut into overlapping pieces."""
    chunks: list[list[Line]] = []
    for line in lines:
        for i, piece in enumerate(splitter.split(line.text)):
            part = line._replace(text=piece)
            # pieces of one message stay apart, as the splitter put them
            if i == 0 and chunks and len(splitter.split(_rendered([*chunks[-1], part])[0])) == 1:
                chunks[-1].append(part)
            else:
                chunks.append([part])
    return chunks


def _rendered(lines: Sequence[Line]) -> tuple[str, list[list[Any]]]:
    """Return the lines as text, each after its speaker, and where in it their words stand."""
    text, spans = "", []
    for line in lines:
        text += f"\n{line.speaker}: " if text else f"{line.speaker}: "
        spans.append([line.role, line.name, len(text), len(text) + len(line.text)])
        text += line.text
    return text, spans
