"""Whom a question asks about. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from langchain_memkit.scoring.postings import Speaker
from langchain_memkit.scoring.words import stems

__all__ = ["Asked", "asked_of"]

READ = 2000  # characters of a question
SAY = "say|tell|write|give|mention|suggest|recommend|advise|explain|propose|promise"
SAID = "said|told|wrote|gave|(?:mention|suggest|recommend|explain)ed|(?:advise|propose|promise)d"
YOU = re.compile(
    rf"\b(?:did|have|had) you (?:\w+ )?(?:{SAY}|{SAID})\b|\byou(?:'ve|'d)? (?:(?:have|had|just|once) )?(?:{SAID})\b"
    r"|\byour (?:\w+ )?(?:answer|reply|suggestion|recommendation|advice|explanation|proposal)s?\b",
    re.IGNORECASE,
)
ME = re.compile(r"\b(?:i|my|mine|myself|i'm|i've|i'd)\b", re.IGNORECASE)
ROLES = frozenset(stems("user human person customer assistant agent ai bot chatbot model"))  # names that name nobody


class Asked(NamedTuple):
    """Whom a question asks about.

    Attributes:
        speakers: The numbers of those whose words it is about; empty if it is about nobody, or about all.
        names: The words of the question that are names of speakers.
    """

    speakers: frozenset[int]
    names: frozenset[str]


def asked_of(text: str, words: Collection[str], speakers: Mapping[int, Speaker]) -> Asked:
    """Find the people and models whom a question asks about.

    By any part of a name, or all of it where it is written like a handle, in lower case; "I" and "my" mean the user,
    "you said" and "your advice" the model (English only).

    Args:
        text: The question; its first 2,000 characters are read.
        words: Its stems.
        speakers: Role and name of each speaker, by number. Tools are not asked about.

    Example:
        >>> known = {0: ("human", "Ann Lee"), 1: ("ai", "")}
        >>> for question in ["Where does Ann live?", "What did you suggest?", "Where do I live?", "Who won?"]:
        ...     print(sorted(asked_of(question, stems(question), known).speakers))
        [0]
        [1]
        [0]
        []
    """
    text = text[:READ].replace("\u2019", "'")
    meant = "ai" if YOU.search(text) else "human" if ME.search(text) else ""
    found: set[int] = set()
    names: set[str] = set()
    voices = {number: speaker for number, speaker in speakers.items() if speaker[0] in ("human", "ai")}
    for number, (role, name) in voices.items():
        parts = _parts(name)
        told = parts.intersection(words)
        if told and (told == parts or not name[0].islower()):
            names |= told
            found.add(number)
        elif role == meant:
            found.add(number)
    return Asked(frozenset(found) if len(found) < len(voices) else frozenset(), frozenset(names))


@lru_cache(maxsize=1024)
def _parts(name: str) -> frozenset[str]:
    """Return the words of a name as they stand in the stems of a question."""
    parts = frozenset(stems(name))
    return frozenset() if parts <= ROLES else parts
