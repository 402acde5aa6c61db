"""Rounds of a conversation, and the lines of which they consist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_memkit.messages.text import MESSAGE, message_text, truncate_with_warning, without_records
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.ranking.records import GREETINGS, is_greeting
from langchain_memkit.ranking.tokenize import tokenize

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

    @property
    def speaker(self) -> str:
        """The speaker's name, else the role; always "tool" for tools, since the call before it names the tool."""
        return self.name if self.name and self.role != "tool" else self.role


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
            yield RoundLine(role, " ".join((message.name or "").split()), text, message.id or "")


def _result_text(message: ToolMessage, *, most: int = 2000, begins: int = 200) -> str:
    """Return a tool's result; of more than `most` characters only how it begins, since the transcript has all of it.

    A page that an agent has read would else fill the memory with what nobody said.
    """
    text = message_text(message)
    return text if len(text) <= most else f"{text[:begins]} ..."


def rounds_of(messages: Iterable[BaseMessage]) -> list[list[RoundLine]]:
    """Group messages into rounds, oldest first: each user's input with everything that follows it."""
    rounds: list[list[RoundLine]] = []
    for line in lines_of_messages(messages):
        # Consecutive messages of the user are one input.
        begins = line.role == "human" and not (rounds and rounds[-1][-1].role == "human")
        if begins or not rounds:
            rounds.append([])
        rounds[-1].append(line)
    return rounds


def is_small_talk(lines: Sequence[RoundLine]) -> bool:
    """Return whether there is nothing worth finding: short greetings, thanks and consent.

    A greeting or thanks by the user is small talk whatever the model answers to it.
    """
    said = [line.text for line in lines if line.role == "human"]
    all_short = all(len(line.text) <= SHORT and SMALL_TALK.issuperset(tokenize(line.text, "english")) for line in lines)
    return all_short or (bool(said) and all(map(is_greeting, said)))


def pieces_of(lines: Sequence[RoundLine], splitter: Splitter) -> list[list[RoundLine]]:
    """Pack the lines of a round into as few pieces as the splitter leaves whole; a long message is cut into several."""
    found: list[list[RoundLine]] = []
    for line in lines:
        parts = splitter.split(line.text)
        # A part of an answer beside the question would make a piece about neither.
        is_whole = len(parts) == 1
        if is_whole and found and len(splitter.split(rendered([*found[-1], line])[0])) == 1:
            found[-1].append(line)
        else:
            found += [[line._replace(text=part)] for part in parts]
    return found


def rendered(lines: Sequence[RoundLine]) -> tuple[str, list[list[Any]]]:
    """Render lines as text, each after its speaker, with a span `[role, name, start, end]` of each line's own words."""
    text, spans = "", []
    for line in lines:
        text += f"\n{line.speaker}: " if text else f"{line.speaker}: "
        spans.append([line.role, line.name, len(text), len(text) + len(line.text)])
        text += line.text
    return text, spans
