"""Reading a conversation for retrieval: questions with their answers, and the documents that answered them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage

from langchain_memkit._histories import has_native, read_messages, to_messages
from langchain_memkit._sync import Step
from langchain_memkit.base import Memory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.retrievers.expansion import CAREFUL, STRONG, Strength, Turn

DOCUMENTS = "memkit_documents"
"""Key in an answer's `response_metadata` of the documents that it was given, as `document_key` values."""
CITED = "memkit_cited"
"""Key in an answer's `response_metadata` of the documents among them that it cites."""
CITATIONS = re.compile(r" {0,3}\[\d{1,3}(?: {0,3}, {0,3}\d{1,3})*\]")  # citation marks such as "[1]"
READ = 100  # messages read from a bound history: enough for the ten turns that are used
KEYS = 100  # documents to leave out: bounds the search, which has to fetch so many more, in long conversations


@dataclass(frozen=True)
class Past:
    """The conversation before a question."""

    turns: Sequence[Turn] = ()  # oldest first
    skipped: frozenset[str] = frozenset()  # keys of documents to leave out
    strength: Strength = CAREFUL  # of the conversation in a question that is not rewritten

    @classmethod
    def of(cls, messages: Sequence[BaseMessage], *, skip_answered: bool) -> Past:
        """Read the messages before a question; `skip_answered` leaves out the documents that answered earlier turns."""
        turns = question_answer_pairs(messages)
        skipped = answered_by(messages) if skip_answered else frozenset()
        # The words of the answers would find their own documents again, unless these are left out, or nothing was
        # answered.
        is_strong = skipped or (skip_answered and not any(answer for _, answer in turns))
        return cls(turns, skipped, STRONG if is_strong else CAREFUL)


def document_key(document: Document) -> str:
    """Return the key of a document, as listed in an answer's `DOCUMENTS`: its id or, without one, a digest of its text.

    Example:
        >>> document_key(Document("Tea is at five.", id="d1")), document_key(Document("Tea is at five."))
        ('d1', 'sha256:5dc7c8516c27d4108f58fbf32bed013e')
    """
    return document.id or _digest(document)


def _digest(document: Document) -> str:
    return f"sha256:{hashlib.sha256(document.page_content.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def is_among(document: Document, keys: frozenset[str]) -> bool:
    """Return whether a document's id or text digest is among the keys."""
    return document.id in keys or _digest(document) in keys


def answered_by(messages: Sequence[BaseMessage]) -> frozenset[str]:
    """Collect the keys of documents that answered earlier turns: those an answer cites, or all that it was given.

    Goes back from the newest answer until there are about 100.
    """
    found: set[str] = set()
    for message in reversed(messages):
        named = message.response_metadata if isinstance(message, AIMessage) else {}
        keys = named.get(CITED) or named.get(DOCUMENTS)
        if isinstance(keys, (list, tuple)):
            found.update(key for key in keys if isinstance(key, str))
        if len(found) >= KEYS:
            break
    return frozenset(found)


def question_answer_pairs(messages: Sequence[BaseMessage]) -> list[Turn]:
    """Pair each user message with the last answer to it, oldest first; empty turns and citation marks are left out."""
    turns: list[Turn] = []
    for message in messages:
        if is_user_message(message):
            turns.append((str(message.text), None))
        elif isinstance(message, AIMessage) and turns and (text := CITATIONS.sub("", str(message.text))).strip():
            turns[-1] = (turns[-1][0], text)
    return [turn for turn in turns if turn[0].strip() or turn[1]]


def as_messages(given: Any) -> list[BaseMessage]:
    """Convert a `chat_history`, in any form that LangChain converts to messages, or raise; None gives an empty list."""
    if given is None:
        return []
    return to_messages([given] if isinstance(given, (str, BaseMessage)) else given, "chat_history")


def question_of(given: object) -> tuple[str, dict[str, object]]:
    """Split a retriever's input, or raise, into the question and further arguments (`chat_history`)."""
    values: Mapping[Any, Any] = given if isinstance(given, Mapping) else {"input": given}
    if "input" not in values:
        msg = f"the input must have the key 'input', and may have 'chat_history'; it has {sorted(map(str, values))}"
        raise ConfigurationError(msg)
    question = values["input"].text if isinstance(values["input"], BaseMessage) else values["input"]
    if not isinstance(question, str):
        raise ConfigurationError(f"the question must be text, not {type(question).__name__}")
    return str(question), ({"chat_history": values["chat_history"]} if "chat_history" in values else {})


def read_past(history: Any, question: str) -> Step[list[BaseMessage]]:
    """Read the bound memory or chat history; of a memkit history only the newest messages."""
    if isinstance(history, Memory):
        return Step(partial(history.load, question), partial(history.aload, question))
    if has_native(history, "tail", "atail"):
        return Step(partial(history.tail, max_messages=READ), partial(history.atail, max_messages=READ))
    return read_messages(history)
