"""What is asked, read once: words, language, days, and whom it asks about. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

import numpy.typing as npt

from langchain_memkit.ranking.bm25 import Speaker
from langchain_memkit.ranking.dates import DAYS, MONTHS, DateRange, parse_date_ranges
from langchain_memkit.ranking.tokenize import read_words, tokenize

SAY = "say|tell|write|give|mention|suggest|recommend|advise|explain|propose|promise"
SAID = "said|told|wrote|gave|(?:mention|suggest|recommend|explain)ed|(?:advise|propose|promise)d"
MODEL_ASKED = re.compile(
    rf"\b(?:did|have|had) you (?:\w+ )?(?:{SAY}|{SAID})\b|\byou(?:'ve|'d)? (?:(?:have|had|just|once) )?(?:{SAID})\b"
    r"|\byour (?:\w+ )?(?:answer|reply|suggestion|recommendation|advice|explanation|proposal)s?\b",
    re.IGNORECASE,
)
FIRST_PERSON = {  # Chinese and Japanese words are looked for in every text that is in none of the other languages
    "english": r"\b(?:i|me|my|mine|myself|we|us|our|ours|i'm|i've|i'd)\b|[\u6211\u79c1\u50d5\u4ffa]",
    "german": r"\b(?:ich|mich|mir|mein\w*|wir|uns|unser\w*)\b",
    "french": r"\b(?:je|j|moi|mon|ma|mes|nous|notre|nos)\b",
    "spanish": r"\b(?:yo|me|m\u00ed|mis?|m\u00ed[ao]s?|nosotr[ao]s|nuestr[ao]s?)\b",
    "italian": r"\b(?:io|mi|mi[oae]|miei|noi|nostr[oaie])\b",
    "portuguese": r"\b(?:eu|meus?|minhas?|n\u00f3s|noss[oa]s?)\b",
    "dutch": r"\b(?:ik|mij|mijn|wij|ons|onze)\b",
}
USER_ASKS = {language: re.compile(words, re.IGNORECASE) for language, words in FIRST_PERSON.items()}
ROLES = frozenset(tokenize("user human person customer assistant agent ai bot chatbot model"))  # not names of anybody
CALENDAR = frozenset([*MONTHS, *DAYS])
# What may be a name: a word within a sentence, or with "'s"; the first one has a capital anyway.
WITHIN = re.compile(r"(?<=[\w,;:] )\w{3,}|\b\w{3,}(?='s\b)")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, as everything that ranks records reads it. `read_question` makes one.

    Attributes:
        text: What is asked.
        words: Its stems, in order, without stop words.
        spelled: The same words as they were written, in small letters.
        language: The language as which its words were read.
        capitals: Stems of the capitalized words within sentences, which may be names or nicknames; without those of
            months and days of the week, and none in German, where every noun has a capital.
        dates: The days that it names.
        first_person: Whether it says "I", "my" or "we".
        of_model: Whether it asks for what the model said ("What did you suggest?"). English only.
        now: The time of asking, aware, in the zone in which days are meant.
        vector: Its vector; None if there is none.
        accessed: When records were last recalled, by id.
    """

    text: str
    words: tuple[str, ...]
    spelled: tuple[str, ...]
    language: str
    capitals: frozenset[str]
    dates: Sequence[DateRange]
    first_person: bool
    of_model: bool
    now: datetime
    vector: npt.ArrayLike | None = None
    accessed: Mapping[str, datetime] = field(default_factory=dict)

    def words_among(self, known: Container[str]) -> list[str]:
        """Return its stems as records of another language have them, where these are `known`."""
        return [*self.words] if self.language == "english" else tokenize(self.text, known=known)


def read_question(text: str, now: datetime, most: int = 2000) -> Question:
    """Read a question.

    Args:
        text: What is asked.
        now: The time of asking, aware, in the zone in which days are meant.
        most: In how many characters, from its beginning, names and days are looked for.

    Returns:
        The question, without a vector.

    Example:
        >>> from datetime import UTC
        >>> asked = read_question("What did you suggest for Ann's birthday in May?", datetime(2026, 1, 2, tzinfo=UTC))
        >>> asked.words, asked.of_model, sorted(asked.capitals)
        (('ann', 'birthday', 'may'), True, ['ann'])
    """
    # "What did you suggest" says whose words are meant, and is not looked for itself.
    spelled, words, language = read_words(MODEL_ASKED.sub(" ", text))
    beginning = text[:most].replace("\u2019", "'")
    may_be_names = [word for word in WITHIN.findall(beginning) if word.istitle() and word.lower() not in CALENDAR]
    capitals = [] if language == "german" else may_be_names
    return Question(
        text=text,
        words=tuple(words),
        spelled=tuple(spelled),
        language=language,
        capitals=frozenset(tokenize(" ".join(capitals), language)),
        dates=parse_date_ranges(beginning, now.date()),
        first_person=bool(USER_ASKS[language].search(beginning)),
        of_model=bool(MODEL_ASKED.search(beginning)),
        now=now,
    )


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
