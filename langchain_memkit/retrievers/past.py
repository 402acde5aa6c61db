"""A conversation as retrieval sees it: questions with their answers, and the documents that answered them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages

from langchain_memkit._histories import has_native, read_messages
from langchain_memkit._sync import Step
from langchain_memkit.base import Memory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.authors import is_user_message
from langchain_memkit.retrievers.contextualize import Turn

__all__ = ["CITED", "DOCUMENTS", "answered_by", "as_messages", "document_key", "read_past", "turns_of"]

DOCUMENTS = "memkit_documents"
"""Where `response_metadata` of an answer names the documents that it was given, as `document_key` does."""
CITED = "memkit_cited"
"""Where it names those of them that the answer cites."""
CITATIONS = re.compile(r" {0,3}\[\d{1,3}(?: {0,3}, {0,3}\d{1,3})*\]")  # "[1]": marks, not words
READ = 100  # messages of a bound history, which hold the ten turns that are looked at
KEYS = 100  # documents that answered: what is asked for beside them does not grow with the conversation


def document_key(document: Document) -> str:
    """A document's id, or a digest of its text if it has none: what an answer's `DOCUMENTS` are.

    Example:
        >>> document_key(Document("Tea is at five.", id="d1")), document_key(Document("Tea is at five."))
        ('d1', 'sha256:5dc7c8516c27d4108f58fbf32bed013e')
    """
    return document.id or _digest(document)


def _digest(document: Document) -> str:
    digest = hashlib.sha256(document.page_content.encode("utf-8", "surrogatepass"))
    return f"sha256:{digest.hexdigest()[:32]}"


def is_among(document: Document, keys: frozenset[str]) -> bool:
    """Whether one of the keys is the document's."""
    return document.id in keys or _digest(document) in keys


def answered_by(messages: Sequence[BaseMessage]) -> frozenset[str]:
    """The documents that answered earlier turns, by their keys: those that were cited, or all if none was.

    Those of the newest answers, about 100 in all.

    Example:
        >>> answered_by([AIMessage("At five.", response_metadata={"memkit_documents": ["d1"]})])
        frozenset({'d1'})
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


def turns_of(messages: Sequence[BaseMessage]) -> list[Turn]:
    """What a user asked, oldest first, each with the last thing that was answered; what nobody said is left out.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> turns_of([HumanMessage("When is tea?"), AIMessage("At five [1]."), HumanMessage("And dinner?")])
        [('When is tea?', 'At five.'), ('And dinner?', None)]
    """
    turns: list[Turn] = []
    for message in messages:
        if is_user_message(message):
            turns.append((str(message.text), None))
        elif isinstance(message, AIMessage) and turns and (text := CITATIONS.sub("", str(message.text))).strip():
            turns[-1] = (turns[-1][0], text)
    return [turn for turn in turns if turn[0].strip() or turn[1]]


def as_messages(given: Any) -> list[BaseMessage]:
    """A conversation as a caller gives it, in any of the forms that LangChain takes for messages.

    Raises:
        ConfigurationError: It is none.
    """
    if given is None:
        return []
    if isinstance(given, Mapping):
        msg = "chat_history must be a list of messages, not a dict"
        raise ConfigurationError(msg)
    try:
        return convert_to_messages([given] if isinstance(given, (str, BaseMessage)) else given)
    except (NotImplementedError, TypeError, ValueError) as error:
        msg = (
            "chat_history must be a list of messages, or of (role, text), not of (question, answer); langchain-core "
            f"makes no messages of it ({type(error).__name__})"
        )
    raise ConfigurationError(msg)  # out here, since core's error quotes what it was given


def question_of(given: Any) -> tuple[str, dict[str, Any]]:
    """The question, and what else is said of it."""
    more: dict[str, Any] = {}
    if isinstance(given, Mapping):
        if "input" not in given:
            msg = f"the input must have the key 'input', and may have 'chat_history'; it has {sorted(map(str, given))}"
            raise ConfigurationError(msg)
        if "chat_history" in given:
            more["chat_history"] = given["chat_history"]
        given = given["input"]
    question = given.text if isinstance(given, BaseMessage) else given
    if not isinstance(question, str):
        msg = f"the question must be text, not {type(question).__name__}"
        raise ConfigurationError(msg)
    return str(question), more


def read_past(history: Any, question: str) -> Step[Sequence[BaseMessage]]:
    """Reads the bound conversation: a memory, or a chat history, of ours no more than is needed."""
    if isinstance(history, Memory):
        return Step(partial(history.load, question), partial(history.aload, question))
    if has_native(history, "tail", "atail"):
        return Step(partial(history.tail, max_messages=READ), partial(history.atail, max_messages=READ))
    return read_messages(history)
