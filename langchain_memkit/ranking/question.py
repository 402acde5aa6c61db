"""What is asked, read once: words, language, days, and whom it asks about. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy.typing as npt

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
        similar: In place of a vector, similarities by record id, from a third-party store.
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
    similar: Mapping[str, float] | None = None
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
        (('suggest', 'ann', 'birthday', 'may'), True, ['ann'])
    """
    spelled, words, language = read_words(text)
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
