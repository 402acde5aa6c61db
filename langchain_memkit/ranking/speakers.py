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
    r"|\byour (?:\w+ )?(?:answer|reply|suggestion|recommendation|advice|explanation|proposal)s?\b"
    r"|\b(?:hast|hattest) du\b.*\b(?:gesagt|geraten|empfohlen|vorgeschlagen|erkl\u00e4rt|geschrieben|genannt)\b"
    r"|\btu m'(?:as|avais) (?:\w+ )?"
    r"(?:dit|\u00e9crit|donn\u00e9|conseill\u00e9|recommand\u00e9|sugg\u00e9r\u00e9|propos\u00e9|expliqu\u00e9)"
    r"|\bme (?:dijiste|escribiste|diste|aconsejaste|recomendaste|sugeriste|propusiste|explicaste)\b"
    "|\u4f60.{0,8}(?:\u8bf4|\u5efa\u8bae|\u63a8\u8350|\u544a\u8bc9|\u529d)",  # said, suggested, recommended, told
    re.IGNORECASE,
)
# First person, by language; Chinese and Japanese words are looked for in every text without another language.
ME = {
    language: re.compile(rf"\b(?:{words})\b{more}", re.IGNORECASE)
    for language, words, more in (
        ("english", "i|my|mine|myself|i'm|i've|i'd", "|[\u6211\u79c1\u50d5\u4ffa]"),
        ("german", r"ich|mich|mir|mein\w*|wir|uns|unser\w*", ""),
        ("french", "je|j|moi|mon|ma|mes|nous|notre|nos", ""),
        ("spanish", r"yo|me|m\u00ed|mis?|m\u00ed[ao]s?|nosotr[ao]s|nuestr[ao]s?", ""),
        ("italian", "io|mi|mi[oae]|miei|noi|nostr[oaie]", ""),
        ("portuguese", "eu|meus?|minhas?|n\u00f3s|noss[oa]s?", ""),
        ("dutch", "ik|mij|mijn|wij|ons|onze", ""),
    )
}
ROLES = frozenset(tokenize("user human person customer assistant agent ai bot chatbot model"))  # not names of anybody


class AddressedSpeakers(NamedTuple):
    """The speakers that a question asks about."""

    speakers: frozenset[int]  # their numbers; empty if the question asks about none, or about all
    names: frozenset[str]  # stems of the question that are names of speakers


def addressed_speakers(text: str, words: Collection[str], speakers: Mapping[int, Speaker]) -> AddressedSpeakers:
    """Find the people and models that a question asks about.

    A speaker matches by any part of the name or, if the name is a lower-case handle, by all parts. "I" and "my" mean
    the user, "you said" and "your advice" the model; "mein" and "me dijiste", too. Tools never match.

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
