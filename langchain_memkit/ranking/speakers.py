"""Detection of the speakers that a question asks about. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from langchain_memkit.ranking.bm25 import Speaker
from langchain_memkit.ranking.question import Question
from langchain_memkit.ranking.tokenize import tokenize

ROLES = frozenset(tokenize("user human person customer assistant agent ai bot chatbot model"))  # not names of anybody


class AskedSpeakers(NamedTuple):
    """The speakers that a question asks about."""

    numbers: frozenset[int]  # of the speakers; empty if it asks about all of them, or there is none
    names: frozenset[str]  # stems of the question that are names of speakers


def speakers_asked(question: Question, speakers: Mapping[int, Speaker]) -> AskedSpeakers:
    """Find the speakers that a question asks about: those that it names, else the user.

    A speaker matches by any part of the name or, if the name is a lower-case handle, by all parts; also by a nickname:
    a capitalized word with which one speaker's name begins, and no other's ("Mel" for "Melanie", but not "Paul" for
    "Paula": from three letters to two thirds of the name). A question that names nobody is about the user, whether it
    says "I" or not, or about the model if it asks for what that said. Tools never match.

    Args:
        question: The question.
        speakers: Role and name of each speaker, by number.

    Returns:
        Their numbers, and the words of the question that are their names. A question about all of several speakers is
        about nobody in particular.

    Example:
        >>> from datetime import UTC, datetime
        >>> from langchain_memkit.ranking.question import read_question
        >>> known = {0: ("human", "Ann Lee"), 1: ("ai", "")}
        >>> for text in ["Where does Ann live?", "What did you suggest?", "Where do I live?", "Who won?"]:
        ...     print(sorted(speakers_asked(read_question(text, datetime.now(UTC)), known).numbers))
        [0]
        [1]
        [0]
        [0]
    """
    voices = {number: speaker for number, speaker in speakers.items() if speaker[0] in ("human", "ai")}
    parts = {number: _parts(name, question.language) for number, (_, name) in voices.items()}
    named: set[int] = set()
    names: set[str] = set()
    clear = _clear(question.capitals, [*parts.values()])
    for number, (_, name) in voices.items():
        own = parts[number]
        told = own.intersection(question.words) | clear.intersection(_nicknames(own))
        is_handle = name[:1].islower()
        if told and (told == own or not is_handle):
            names |= told
            named.add(number)
    meant = "ai" if question.of_model else "human"
    found = named or {number for number, (role, _) in voices.items() if role == meant}
    everybody = len(found) == len(voices) > 1
    return AskedSpeakers(frozenset() if everybody else frozenset(found), frozenset(names))


def _clear(capitals: frozenset[str], parts: list[frozenset[str]]) -> set[str]:
    """Return the capitalized words with which the name of one speaker begins, and no other's."""
    return {word for word in capitals if sum(any(part.startswith(word) for part in some) for some in parts) == 1}


def _nicknames(parts: frozenset[str]) -> set[str]:
    return {part[:size] for part in parts for size in range(3, 2 * len(part) // 3 + 1)}


@lru_cache(maxsize=1024)
def _parts(name: str, language: str) -> frozenset[str]:
    """Return the stems of a name in a language; none if all its words are role names such as "user"."""
    parts = frozenset(tokenize(name, language))
    return frozenset() if ROLES.issuperset(tokenize(name)) else parts
