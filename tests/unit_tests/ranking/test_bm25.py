"""BM25 over records: as in the literature, in units of a rare word, by speaker and by session."""

from __future__ import annotations

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_memkit.ranking.bm25 import FEWEST, K1, B, WordMatches, idf, match_words, saturated
from langchain_memkit.ranking.index import Index
from langchain_memkit.ranking.score import said_by
from testkit.ranking import index_of, lexical, record_of

WORDS = ["tea", "sea", "sky", "sun", "dog", "cat", "car"]


def filled(*texts: str) -> Index:
    """An index of records with one message each."""
    return index_of(*(record_of(str(i), text) for i, text in enumerate(texts)))


def matches(index: Index, *stems: str, asked: tuple[int, ...] = (), others: float = 0.25) -> WordMatches:
    """How words are found."""
    by_asked = said_by(index.view, index.postings, asked)
    weights = np.where(by_asked, 1.0, others) if asked else None
    return match_words(index.view, index.postings, stems, weights)


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=12), max_size=30),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=8),
)
def test_it_is_that_of_bm25s(some: list[list[str]], question: list[str]) -> None:
    """The scores are those of an independent implementation with the same constants, in units of a rare word."""
    texts = [*some, *[["pad"]] * (FEWEST - len(some))]
    oracle = bm25s.BM25(method="lucene", k1=K1, b=B, dtype="float64")
    oracle.index(texts, show_progress=False)
    known = [word for word in question if any(word in text for text in texts)]
    expected = oracle.get_scores(known) if known else np.zeros(len(texts))
    found = lexical(filled(*map(" ".join, texts)), question)
    assert found == pytest.approx(expected * (K1 + 1) / idf(1, len(texts)))


def test_the_unit_is_a_word_that_no_other_record_has() -> None:
    """Said once in a record of average length it is 1, however many records there are."""
    for count in (1, 2, 10, 200):
        found = matches(filled("tea", *["x"] * (count - 1)), "tea")
        assert found.found.tolist() == pytest.approx([1.0, *[0.0] * (count - 1)])
        assert found.asked == pytest.approx(1.0)


def test_by_hand() -> None:
    """A word of two in 60 records, said three times in a record of twice the average length."""
    found = matches(filled("tea tea tea x", "tea x", *["x x"] * 57, ""), "tea", "moon")
    mean = (4 + 2 + 57 * 2) / 60
    rare, unit = np.log(1 + 58.5 / 2.5), np.log(1 + 59.5 / 1.5)
    times = 3 / (3 + 1.2 * (0.5 + 0.5 * 4 / mean))
    assert found.found[0] == pytest.approx(2.2 * rare * times / unit)
    assert found.asked == pytest.approx((rare + np.log(1 + 60.5 / 0.5)) / unit)
    assert saturated(np.array([3.0]), np.array([4.0]), mean)[0] == pytest.approx(times)


@pytest.mark.parametrize("count", [1, 5, 49])
def test_in_a_small_index_words_are_as_rare_as_in_one_of_fifty(count: int) -> None:
    """So that of three records each word that two of them share still tells something."""
    texts = ["tea", "tea"] + ["x"] * 48
    shared = matches(filled(*texts[: max(2, count)]), "tea").found[0]
    assert shared == pytest.approx(matches(filled(*texts), "tea").found[0])
    assert 0 < shared < 1


def test_repeated_words_of_a_question_count_repeatedly() -> None:
    """As BM25 has it."""
    index = filled("tea x", "sea x")
    once, twice = matches(index, "tea"), matches(index, "tea", "tea")
    assert twice.found.tolist() == pytest.approx((2 * once.found).tolist())
    assert twice.asked == pytest.approx(2 * once.asked)


def test_words_that_others_say() -> None:
    """They count as a quarter of an occurrence; where nobody is asked about, in full."""
    index = index_of(record_of("0", "ai: tea"), record_of("1", "human: tea"))
    user = index.postings.speakers["human", ""]
    found = matches(index, "tea", asked=(user,)).found
    assert found[0] / found[1] == pytest.approx(0.25 / (0.25 + 1.2) * 2.2)
    assert matches(index, "tea", asked=(user,), others=0.0).found[0] == 0
    assert len(set(matches(index, "tea").found.tolist())) == 1
    assert matches(index, "tea", asked=(user,)).messages.tolist() == [True, True]


def test_sessions_are_one_text() -> None:
    """A session that speaks of it counts for each of its records; what has no session has none."""
    index = index_of(
        record_of("0", "tea", session="a"),
        record_of("1", "x", session="a"),
        record_of("2", "x x", session="b"),
        record_of("3", "tea", session=""),
    )
    assert matches(index, "tea").session.tolist() == pytest.approx([1, 1, 0, 0])


def test_messages_with_a_word() -> None:
    """Which of a record's messages hold one; those of removed records hold none."""
    index = index_of(record_of("0", "tea"), record_of("1", "human: x", "ai: tea", "tool/t: sea"))
    assert matches(index, "tea", "sea").messages.tolist() == [True, False, True, True]
    index.remove(["0"])
    assert matches(index, "tea").messages.tolist() == [False, False, True, False]
    assert (
        matches(index, "tea").found.tolist()
        == lexical(index_of(record_of("1", "human: x", "ai: tea", "tool/t: sea")), ["tea"]).tolist()
    )


def test_long_questions_are_bounded() -> None:
    """Of many words the rarest count."""
    index = filled(*(" ".join(f"w{i}" for i in range(n)) for n in range(100, 0, -1)))
    question = [f"w{i}" for i in range(100)]
    assert lexical(index, question).tolist() == pytest.approx(lexical(index, question[-64:]).tolist())


def test_how_rare_a_word_is() -> None:
    """Robertson's formula with a 1 in the logarithm, never negative."""
    assert idf([0, 1, 2], 2).tolist() == pytest.approx(np.log([6, 2, 1.2]).tolist())


def test_the_mark_of_a_question_is_no_word() -> None:
    """It only says that a message states nothing."""
    index = index_of(record_of("0", "How is tea made?"), record_of("1", "Tea is made. How?"))
    assert index.view.states.tolist() == [False, True]
    assert index.view.lengths.tolist() == [2, 2]
    assert "?" not in index.postings
