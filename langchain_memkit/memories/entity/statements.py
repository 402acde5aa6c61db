"""Which sentences of a text tell something, and of whom: questions and pronouns. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from langchain_memkit.matching.names import PERSON, PLACES
from langchain_memkit.messages.text import sentence_spans


class NameSpan(NamedTuple):
    """A name in a text: its key, the surface form, the type and the place in characters."""

    key: str
    surface: str
    label: str
    start: int
    end: int


PEOPLE = {PERSON, ""}  # a name of unknown type is mostly a person's
# How questions begin: those that a full stop makes a statement, and those that are questions without any mark. _ stands
# for a name.
OPEN = re.compile(r"\W*(?:who|whom|whose|what|which|where|when|why|how)\b", re.IGNORECASE)
ASKS = re.compile(
    r"""\W*(?:
    (?:who|what|where|when|why|how)(?:['\u2019]?s|\ (?:is|are|was|were|do|does|did|has|can|will|would))\b
    | (?:is|are|was|were|do|does|did|has|have|can|could|will|would|should)(?:n['\u2019]t)?\s
      (?:(?:i|you|he|she|it|we|they|my|your|his|her|our|their|the|this|that|there|any)\b|_)
    | (?:please\ )?tell\ me\b.*\b(?:about|who|what|where|when|why|how|if|whether)\b
    )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
PRONOUN = re.compile(
    r"\b(?:(?P<person>he|him|his|himself|she|her|hers|herself)|(?P<thing>it|its|itself)"
    r"|they|them|their|theirs|themselves)\b",
    re.IGNORECASE,
)
PLACED = re.compile(r"\b(?:at|from|in|near|to)\s+(?:the\s+)?$", re.IGNORECASE)


def statements(text: str, spots: Sequence[NameSpan], reach: int = 16) -> Iterator[tuple[int, int, list[NameSpan]]]:
    """Yield the start and end of each sentence that tells something of names, with these names.

    A sentence with a pronoun goes on with the last name that the pronoun may stand for, unless a sentence without
    pronouns lies between: "he" stands for a person, "it" for a thing, "they" for all of a sentence but places.

    Args:
        text: A message.
        spots: The names in it, in order.
        reach: How many names back a pronoun is resolved; bounds the time.

    Example:
        >>> text = "Bob is my neighbour. Is he nice? He works at Siemens. I am tired. He snores."
        >>> spots = [NameSpan("bob", "Bob", "PERSON", 0, 3), NameSpan("siemens", "Siemens", "ORG", 45, 52)]
        >>> for start, end, about in statements(text, spots):
        ...     print([name.surface for name in about], text[start:end])
        ['Bob'] Bob is my neighbour.
        ['Siemens', 'Bob'] He works at Siemens.
    """
    waiting = deque(spots)
    known: list[tuple[int, NameSpan]] = []  # the names so far, each with where its sentence begins
    for begin, end in sentence_spans(text):
        named: list[NameSpan] = []
        while waiting and waiting[0].start < end:
            named.append(waiting.popleft())
        about = {spot.key: spot for spot in reversed(named)}
        pronouns = list(PRONOUN.finditer(text, begin, end))
        if not pronouns:
            known = []
        after = 0
        for pronoun in pronouns:
            place, stop = pronoun.span()
            while after < len(named) and named[after].start < place:
                known.append((begin, named[after]))
                after += 1
            for spot in _meant(pronoun, known[-reach:], text):
                about.setdefault(spot.key, spot._replace(start=place, end=stop))
        known += [(begin, spot) for spot in named[after:]]
        if about and not _asks(text[begin:end], begin, named):
            yield begin, end, list(about.values())


def _meant(pronoun: re.Match[str], known: Sequence[tuple[int, NameSpan]], text: str) -> list[NameSpan]:
    """Return the names that a pronoun stands for, of those said before it."""

    def is_placed(spot: NameSpan) -> bool:
        return PLACED.search(text, max(0, spot.start - 20), spot.start) is not None

    if pronoun["thing"]:
        return [spot for _, spot in known if spot.label not in PEOPLE or (not spot.label and is_placed(spot))][-1:]
    if pronoun["person"]:
        # Extractors take a first name for an organisation or a place at times, though not after "in" or "at".
        people = [spot for _, spot in known if spot.label in PEOPLE]
        return (people or [spot for _, spot in known if not is_placed(spot)])[-1:]
    group = [(begin, spot) for begin, spot in known if not (spot.label in PLACES and is_placed(spot))]
    return [spot for begin, spot in group if begin == group[-1][0]]


def _asks(sentence: str, begin: int, named: Sequence[NameSpan]) -> bool:
    """Return whether a sentence is a question: by its mark, or by how it begins."""
    last = next((i for i in range(len(sentence) - 1, -1, -1) if sentence[i].isalnum()), -1)
    mark = sentence[last + 1 :]
    if "?" in mark or "\uff1f" in mark:
        return True
    if named:
        first, rest = named[0].start - begin, named[0].end - begin
        sentence = f"{sentence[:first]}_{sentence[rest:]}"
    if OPEN.match(sentence) and not ("." in mark or "!" in mark):
        return True
    return ASKS.match(sentence) is not None
