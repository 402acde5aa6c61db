"""Query expansion from the conversation, without a language model. Pure.

Gives weighted terms to lexical retrievers, weights of a sum of vectors to dense ones, and a longer string to all
others. Without a model every question gets it: the question's own words weigh most, so a complete one loses little.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from langchain_memkit.ranking.tokenize import tokenize

Turn = tuple[str, str | None]  # a question and its answer, if it has one

# The words of the question weigh 1. Measured on CANARD, CAsT 2019, CAsT 2020 and iKAT 2023: doubling one of these
# constants moves no recall@10 by more than .03, halving one costs up to .10 in one column; none is specific to a data
# set.
DECAY = 0.5  # weight factor of a word per turn back: the topic moves on
SAID = 0.5  # weight of a word of the last question, or of its answer
NAME = 2.0  # a name is what "he" and "it" stand for ...
NAME_DECAY = 0.8  # ... and stays the topic for longer
MOST_WEIGHT = 1.0  # however often it was said, no added word weighs more than the question's own
LEAST_WEIGHT = 0.02  # words below this weight are dropped
TERMS = 20  # most terms added for a lexical retriever
ANSWER_WORDS = 5  # words taken from an answer, besides all names: those of the most turns, then long ones
TURNS = 10  # turns that are read; further back even names weigh next to nothing
CHARACTERS = 4000  # characters of a question or an answer that are read
MOSTLY = 0.5  # share of capitalised words above which capitals do not mark names: SHOUTING, Titles


@dataclass(frozen=True)
class Strength:
    """Parameters of the query expansion: how much of the conversation is added. The defaults are careful.

    The words of an answer find, before anything else, the document that it came from.
    """

    string_terms: int = 3  # most terms added to a string, in which they cannot weigh less than the question
    question_vector: float = 1.0  # weight of the question's own vector, so that it is not drowned out
    answer_vectors: float = 0.0  # weight of the last answer's vector


CAREFUL = Strength()
# For searches that leave out documents which answered earlier turns: these cannot crowd out the new answer.
STRONG = Strength(string_terms=12, question_vector=0.35, answer_vectors=0.35)

# Conversational words, which say nothing about the topic.
_CHATTING = """advice agree anything best compare describe different else example explain find found get give good
    great hear heard help information interesting kind know like list look looking made make many mean much need ok okay
    oh please provide recommend sorry something suggest sure talk tell thank thanks thing things think type use used
    want way ways well wow yeah yes"""
GENERIC = frozenset(tokenize(_CHATTING))


class ExpansionTerm(NamedTuple):
    """A word of the conversation that the question does not contain."""

    stem: str
    word: str  # as it was written
    weight: float  # the question's own words have 1


class Word(NamedTuple):
    """A word as it was first written, or as it was first written as a name if it ever was."""

    text: str
    name: bool


_PIECE = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*(?:\+\+|#)?|[.?!:\n\"]")


def answer_weights(history: Sequence[Turn], strength: Strength = STRONG) -> list[float]:
    """Return the weights of the answers' vectors in a dense retriever's query; 0 without an answer, or too far back."""
    weights = [strength.answer_vectors * DECAY**back for back in reversed(range(len(history)))]
    return [w if answer and w >= LEAST_WEIGHT else 0.0 for w, (_, answer) in zip(weights, history, strict=True)]


def expanded(question: str, history: Sequence[Turn], strength: Strength = STRONG) -> str:
    """Return the question followed by the added terms, heaviest first, as a string; unchanged if there are none.

    With careful weights the question comes twice, so that it dominates where words are counted.

    Example:
        >>> expanded("How old is he?", [("Who is the president of France?", "Emmanuel Macron.")])
        'How old is he? France Macron president Emmanuel'
    """
    words = [term.word for term in added_terms(question, history)[: strength.string_terms]]
    return " ".join([question] * (1 if strength is STRONG else 2) + [*dict.fromkeys(words)]) if words else question


def added_terms(question: str, history: Sequence[Turn]) -> list[ExpansionTerm]:
    """Select the terms that the conversation adds to a question, heaviest first."""
    skipped = GENERIC | set(tokenize(question))
    turns = [(words_of(asked), words_of(answer or "")) for asked, answer in history[-TURNS:]]
    turns_with = Counter(stem for asked, answer in turns for stem in {*asked, *answer})
    weights: defaultdict[str, float] = defaultdict(float)
    written: dict[str, str] = {}
    for back, (asked, answer) in enumerate(reversed(turns)):
        near, name_near = DECAY**back, NAME * NAME_DECAY**back
        # Of a question all words count, of an answer only its names and the words of the most turns: answers are long.
        chosen = [(stem, word) for stem, word in asked.items() if stem not in skipped]
        said = [(stem, word) for stem, word in answer.items() if stem not in skipped]
        said.sort(key=lambda one: (-turns_with[one[0]], -len(one[1].text)))
        chosen += [one for one in said if one[1].name] + [one for one in said if not one[1].name][:ANSWER_WORDS]
        for stem, word in chosen:
            weights[stem] += SAID * (name_near if word.name else near)
            written.setdefault(stem, word.text)
    found = [ExpansionTerm(s, written[s], min(w, MOST_WEIGHT)) for s, w in weights.items() if w >= LEAST_WEIGHT]
    return sorted(found, key=lambda term: -term.weight)[:TERMS]


def words_of(text: str) -> dict[str, Word]:
    """Map each stem of a text, in order, to the word that was written. A capital within a sentence marks a name.

    Example:
        >>> words_of("Who leads France?")
        {'lead': Word(text='leads', name=False), 'franc': Word(text='France', name=True)}
    """
    found: dict[str, Word] = {}
    begins, inner, capitals = True, 0, 0
    for piece in _PIECE.findall(text[:CHARACTERS]):
        if not piece[0].isalnum():
            begins = True
            continue
        capital = piece[0].isupper() and not begins
        inner, capitals, begins = inner + (not begins), capitals + capital, False
        for stem in tokenize(piece):
            if stem not in found or (capital and not found[stem].name):
                found[stem] = Word(piece, capital)
    if text.isupper() or (inner > 8 and capitals > MOSTLY * inner):
        return {stem: Word(word.text, name=False) for stem, word in found.items()}
    return found
