"""Query expansion from the conversation, without a language model. Pure.

Gives weighted terms to lexical retrievers, weights of a sum of vectors to dense ones, and a longer string to all
others. Without a model every follow-up question gets it: the question's own words weigh most, so a complete one loses
little.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from langchain_memkit.messages.text import sentence_spans
from langchain_memkit.ranking.tokenize import tokenize
from langchain_memkit.retrievers.questions import asks

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
ANSWER_WORDS = 5  # words taken from an answer, besides all names: what it says most often, then those of the most turns
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


class ExpansionTerm(NamedTuple):
    """A word of the conversation that the question does not contain."""

    stem: str
    word: str  # as it was written
    weight: float  # the question's own words have 1


class Word(NamedTuple):
    """A word as it was first written, or as it was first written as a name if it ever was."""

    text: str
    name: bool
    times: int  # how often the text says it


class TurnWords(NamedTuple):
    """The words of a turn that tell its topic, by their stems."""

    asked: dict[str, Word]
    answered: dict[str, Word]


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
    """Select the terms that the conversation adds to a question, heaviest first.

    Example:
        >>> talk = [("Thanks! Who founded the company?", "Noted. Falcon was founded by Ada Smith.")]
        >>> [term.word for term in added_terms("When?", talk)]
        ['founded', 'Smith', 'Ada', 'company', 'Falcon']
    """
    skipped = set(tokenize(question))
    # A turn without a topic does not count as a turn: thanks make nothing older.
    turns = [turn for turn in topics(history[-TURNS:]) if turn.asked or turn.answered]
    turns_with = Counter(stem for turn in turns for stem in {*turn.asked, *turn.answered})
    weights: defaultdict[str, float] = defaultdict(float)
    written: dict[str, str] = {}
    for back, (asked, answered) in enumerate(reversed(turns)):
        near, name_near = DECAY**back, NAME * NAME_DECAY**back
        # Of a question all words count, of an answer its names and a few more: answers are long.
        said = [(stem, word) for stem, word in answered.items() if stem not in skipped]
        said.sort(key=lambda one: (-one[1].times, -turns_with[one[0]], -len(one[1].text)))
        names = [one for one in said if one[1].name]
        others = [one for one in said if not one[1].name]
        chosen = [(stem, word) for stem, word in asked.items() if stem not in skipped]
        for stem, word in [*chosen, *names, *others[:ANSWER_WORDS]]:
            weights[stem] += SAID * (name_near if word.name else near)
            written.setdefault(stem, word.text)
    found = [ExpansionTerm(s, written[s], min(w, MOST_WEIGHT)) for s, w in weights.items() if w >= LEAST_WEIGHT]
    return sorted(found, key=lambda term: -term.weight)[:TERMS]


def topics(history: Sequence[Turn]) -> list[TurnWords]:
    """Read of each turn the words that may tell its topic; an acknowledgement ("Thanks!", "Noted.") is nobody's topic.

    Not read are remarks of the user's, and those that an answer begins with. Of what the user says without asking only
    names count, and what an answer says as well; if there is nothing of the kind, of the answer only names.
    """
    answers = [words_of(_answering(asked, answer or "")) for asked, answer in history]
    heard = {stem for words in answers for stem in words}
    turns = []
    for (asked, answer), answered in zip(history, answers, strict=True):
        sentences = _sentences(asked)
        asking = [sentence for sentence in sentences if asks(sentence)]
        telling = [sentence for sentence in sentences if sentence in asking or not is_remark(sentence)]
        words = words_of("\n".join(telling or sentences))  # "dark chocolate": the answer tells whether it is a remark
        if answer:
            counted = heard.union(words_of("\n".join(asking)))
            words = {stem: word for stem, word in words.items() if word.name or stem in counted}
            if not words and not _is_question(asked):  # "You're welcome! ..." follows
                answered = {stem: word for stem, word in answered.items() if word.name}
        turns.append(TurnWords(words, answered))
    return turns


def _answering(asked: str, answer: str) -> str:
    """Return an answer without the remarks that it begins with."""
    sentences = _sentences(answer)
    # "Paris." may be all that is answered to a question, but after a statement "Noted." says nothing.
    least = 1 if _is_question(asked) else 0
    while len(sentences) > least and is_remark(sentences[0]):
        del sentences[0]
    return "\n".join(sentences)


def _is_question(asked: str) -> bool:
    """Return whether a message asks something, as one without text does, such as an image."""
    return not asked.strip() or any(map(asks, _sentences(asked)))


def is_remark(sentence: str, most_words: int = 2) -> bool:
    """Return whether a sentence has at most so many words besides stop words, none of them a name or a number.

    Example:
        >>> is_remark("Great question!"), is_remark("In 1998."), is_remark("Emmanuel Macron.")
        (True, False, False)
    """
    words = words_of(sentence)
    says_more = any(word.name or stem[0].isdigit() for stem, word in words.items())
    return len(words) <= most_words and not says_more


def _sentences(text: str) -> list[str]:
    read = text[:CHARACTERS]
    return [read[start:end] for start, end in sentence_spans(read)]


def words_of(text: str) -> dict[str, Word]:
    """Map each stem of a text, in order, to the word that was written. A capital within a sentence marks a name.

    Example:
        >>> words_of("Who leads France?")
        {'lead': Word(text='leads', name=False, times=1), 'franc': Word(text='France', name=True, times=1)}
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
            word = found.get(stem, Word(piece, capital, 0))
            if capital and not word.name:
                word = Word(piece, True, word.times)
            found[stem] = word._replace(times=word.times + 1)
    if text.isupper() or (inner > 8 and capitals > MOSTLY * inner):
        return {stem: word._replace(name=False) for stem, word in found.items()}
    return found
