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
# What may be a name: a word within a sentence, or with "'s"; the first one has a capital anyway.
WITHIN = re.compile(r"(?<=[\w,;:] )\w{3,}|\b\w{3,}(?='s\b)")
ROLES = frozenset(tokenize("user human person customer assistant agent ai bot chatbot model"))  # not names of anybody


class AddressedSpeakers(NamedTuple):
    """The speakers that a question asks about."""

    speakers: frozenset[int]  # their numbers; empty if the question asks about none, or about all
    names: frozenset[str]  # stems of the question that are names of speakers


def addressed_speakers(text: str, words: Collection[str], speakers: Mapping[int, Speaker]) -> AddressedSpeakers:
    """Find the people and models that a question asks about.

    A speaker matches by any part of the name or, if the name is a lower-case handle, by all parts; also by a nickname:
    a capitalized word with which one speaker's name begins, and no other's ("Mel" for "Melanie", but not "Paul" for
    "Paula": from three letters to two thirds of the name). "I" and "my" mean the user (so do "mein" and "mis"), "you
    said" and "your advice" the model (English only). Tools never match.

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
    joined = ["".join(f" {part}" for part in _parts(name, language)) for _, name in voices.values()]
    capitals = {*tokenize(" ".join(word for word in WITHIN.findall(text) if word.istitle()), language)}
    clear = {word for word in capitals if sum(f" {word}" in parts for parts in joined) == 1}
    for number, (role, name) in voices.items():
        parts = _parts(name, language)
        nicknames = {part[:size] for part in parts for size in range(3, 2 * len(part) // 3 + 1)}
        told = parts.intersection(words) | clear.intersection(nicknames)
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
