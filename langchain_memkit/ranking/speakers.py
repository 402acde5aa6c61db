"""Detection of the speakers that a question asks about. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from langchain_memkit.ranking.bm25 import Speaker
from langchain_memkit.ranking.tokenize import language_of, tokenize

READ = 2000  # characters of a question that are read
SAY = "say|tell|write|give|mention|suggest|recommend|advise|explain|propose|promise"
SAID = "said|told|wrote|gave|(?:mention|suggest|recommend|explain)ed|(?:advise|propose|promise)d"
YOU = re.compile(
    rf"\b(?:did|have|had) you (?:\w+ )?(?:{SAY}|{SAID})\b|\byou(?:'ve|'d)? (?:(?:have|had|just|once) )?(?:{SAID})\b"
    r"|\byour (?:\w+ )?(?:answer|reply|suggestion|recommendation|advice|explanation|proposal)s?\b",
    re.IGNORECASE,
)
FIRST_PERSON = {  # Chinese and Japanese words are looked for in every text that is in none of the other languages
    "english": r"\b(?:i|my|mine|myself|i'm|i've|i'd)\b|[\u6211\u79c1\u50d5\u4ffa]",
    "german": r"\b(?:ich|mich|mir|mein\w*|wir|uns|unser\w*)\b",
    "french": r"\b(?:je|j|moi|mon|ma|mes|nous|notre|nos)\b",
    "spanish": r"\b(?:yo|me|m\u00ed|mis?|m\u00ed[ao]s?|nosotr[ao]s|nuestr[ao]s?)\b",
    "italian": r"\b(?:io|mi|mi[oae]|miei|noi|nostr[oaie])\b",
    "portuguese": r"\b(?:eu|meus?|minhas?|n\u00f3s|noss[oa]s?)\b",
    "dutch": r"\b(?:ik|mij|mijn|wij|ons|onze)\b",
}
ME = {language: re.compile(words, re.IGNORECASE) for language, words in FIRST_PERSON.items()}
ROLES = frozenset(tokenize("user human person customer assistant agent ai bot chatbot model"))  # not names of anybody


class AddressedSpeakers(NamedTuple):
    """The speakers that a question asks about."""

    speakers: frozenset[int]  # their numbers; empty if the question asks about none, or about all
    names: frozenset[str]  # stems of the question that are names of speakers


def addressed_speakers(text: str, words: Collection[str], speakers: Mapping[int, Speaker]) -> AddressedSpeakers:
    """Find the people and models that a question asks about.

    A speaker matches by any part of the name or, if the name is a lower-case handle, by all parts. "I" and "my" mean
    the user (so do "mein" and "mis"), "you said" and "your advice" the model (English only). Tools never match.

    `words` are the stems of the question; `speakers` are given by number.

    Example:
        >>> known = {0: ("human", "Ann Lee"), 1: ("ai", "")}
        >>> for question in ["Where does Ann live?", "What did you suggest?", "Where do I live?", "Who won?"]:
        ...     print(sorted(addressed_speakers(question, tokenize(question), known).speakers))
        [0]
        [1]
        [0]
        []
    """
    language = language_of(text)  # a name in it was stemmed like its other words
    text = text[:READ].replace("\u2019", "'")
    meant = "ai" if YOU.search(text) else "human" if ME[language].search(text) else ""
    found: set[int] = set()
    names: set[str] = set()
    voices = {number: speaker for number, speaker in speakers.items() if speaker[0] in ("human", "ai")}
    for number, (role, name) in voices.items():
        parts = _parts(name, language)
        told = parts.intersection(words)
        if told and (told == parts or not name[0].islower()):
            names |= told
            found.add(number)
        elif role == meant:
            found.add(number)
    # A question about all speakers is about nobody in particular: no message is preferred then.
    return AddressedSpeakers(frozenset(found) if len(found) < len(voices) else frozenset(), frozenset(names))


@lru_cache(maxsize=1024)
def _parts(name: str, language: str) -> frozenset[str]:
    """Return the stems of a name in a language; none if all its words are role names such as "user"."""
    parts = frozenset(tokenize(name, language))
    return frozenset() if ROLES.issuperset(tokenize(name)) else parts
