"""The score: each part by hand, the preset's formula, properties of any ranking."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.ranking.bm25 import idf
from langchain_memkit.ranking.index import Index, IndexRecord, UsualSimilarity
from langchain_memkit.ranking.question import read_question
from langchain_memkit.ranking.score import (
    PARTS,
    Ranked,
    Ranking,
    best_first,
    min_max,
    nearness,
)
from testkit.ranking import NOW, index_of, record_of

NONE = Ranking(relevance=0, lexical=0, neighbours=0, session=0, name=0, speaker=0, date=0)
DEFAULT = Ranking()


def rank(index: Index, text: str, ranking: Ranking = DEFAULT, keep: Any = None, **more: Any) -> list[Ranked]:
    """All records that are ranked for a question, best first."""
    return list(best_first(index, replace(read_question(text, NOW), **more), ranking, keep).records)


def asked(index: Index, text: str, ranking: Ranking, **more: Any) -> dict[str, Ranked]:
    """What is found, by id, best first."""
    return {ranked.entry.id: ranked for ranked in rank(index, text, ranking, **more)}


def parts(found: dict[str, Ranked], name: str) -> dict[str, float]:
    """One part of each score."""
    return {key: round(ranked.parts[name], 4) for key, ranked in sorted(found.items())}


def test_nothing_in_the_index() -> None:
    """No records, no hits."""
    assert rank(Index(), "tea") == []


def test_generative_agents_by_hand() -> None:
    """Recency .995 per hour since the last access, importance, cosine: each from 0 to 1 over all, then summed."""
    index = index_of(
        record_of("1", "tea", at=NOW - timedelta(hours=100), importance=1),
        record_of("2", "tea tea", at=NOW - timedelta(hours=10), importance=10),
        record_of("3", "sea", at=NOW - timedelta(hours=50), importance=4),
        vectors=[[1, 0], [0, 1], [3, 4]],
    )
    found = asked(index, "tea in 2024", Ranking.generative_agents(), vector=[2, 0], accessed={"1": NOW})
    low, high = 0.995**50, 0.995**0
    recent = {"1": 1.0, "2": (0.995**10 - low) / (high - low), "3": 0.0}
    important = {"1": 0.0, "2": 1.0, "3": 3 / 9}
    near = {"1": 1.0, "2": 0.0, "3": 0.6}
    assert parts(found, "recency") == pytest.approx(recent, abs=1e-4)
    assert parts(found, "importance") == pytest.approx(important, abs=1e-4)
    assert parts(found, "relevance") == pytest.approx(near, abs=1e-4)
    for key, ranked in found.items():
        assert ranked.score == pytest.approx(recent[key] + important[key] + near[key])
    assert [*found] == ["1", "2", "3"]


def test_generative_agents_compares_all_records() -> None:
    """The least of all records has 0, not the least of the candidates."""
    index = index_of(*(record_of(str(i), "tea") for i in range(120)), vectors=[[120 - i, i] for i in range(120)])
    few = replace(Ranking.generative_agents(), candidates=60)
    found = asked(index, "tea", few, vector=[1, 0])
    assert len(found) == 60
    assert min(ranked.parts["relevance"] for ranked in found.values()) > 0.6
    found = asked(index, "tea", replace(few, over_all=False), vector=[1, 0])
    assert min(ranked.parts["relevance"] for ranked in found.values()) == 0


def test_the_unit_is_a_word_that_no_other_record_has() -> None:
    """A question of one such word, and a record of it: 1, whatever else there is."""
    for others in (1, 5, 300):
        index = index_of(record_of("0", "tea"), *(record_of(str(i), "x") for i in range(1, 1 + others)))
        found = asked(index, "tea", replace(NONE, lexical=1.0))
        assert (found["0"].score, found["0"].parts["lexical"]) == pytest.approx((1, 1))


def test_words_by_hand() -> None:
    """The square root of what is found, times the share of the question: `found / sqrt(asked)`."""
    index = index_of(record_of("1", "tea milk"), record_of("2", "tea sky"), record_of("3", "sea sky"))
    found = asked(index, "tea milk moon", replace(NONE, lexical=2.0))
    one, two, none = (float(idf(count, 50) / idf(1, 50)) for count in (1, 2, 0))
    worth = one + two + none
    expected = {"1": 2 * (one + two) / worth**0.5, "2": 2 * two / worth**0.5, "3": 0.0}
    assert parts(found, "lexical") == pytest.approx(expected, abs=1e-4)


def test_relevance_by_hand() -> None:
    """0 at a cosine that is usual, 1 at four deviations above it, and no more, nor less."""
    cosines = np.array([0.1, 0.3, 0.54, 0.78, 0.9, 0.9])
    known = np.array([True] * 5 + [False])
    expected = pytest.approx([0, 0, 0.5, 1, 1, 0])
    assert nearness(cosines, known, UsualSimilarity(0.3, 0.12)).tolist() == expected
    index = index_of(record_of("1", "x"), record_of("2", "x"), vectors=[[1, 0], [3, 4]])
    mean, deviation = index.usual
    found = asked(index, "tea", replace(NONE, relevance=0.5), vector=[0.8, 0.6])
    near = {name: min(1, (cosine - mean) / (4 * deviation)) / 2 for name, cosine in {"1": 0.8, "2": 0.96}.items()}
    assert parts(found, "relevance") == pytest.approx(near, abs=1e-4)


def test_neighbours_get_a_share_of_words_and_vectors() -> None:
    """Of both together, with their weights, but not of what neighbours got."""
    index = index_of(record_of("1", "tea"), record_of("2", "x"), record_of("3", "x"), vectors=[[1, 0], [0, 1], [0, 1]])
    found = asked(index, "tea", replace(NONE, lexical=2.0, relevance=0.5, neighbours=0.2), vector=[1, 0])
    match = found["1"].parts["lexical"] + found["1"].parts["relevance"]
    assert match > 2
    assert parts(found, "neighbours") == pytest.approx({"1": 0, "2": 0.2 * match, "3": 0.04 * match}, abs=1e-4)


def test_sessions_that_speak_of_it() -> None:
    """A whole session that speaks of the question lifts all its records; plain documents have no session."""
    index = index_of(
        record_of("1", "tea", session="a"),
        record_of("2", "x", session="a"),
        record_of("3", "y y", session="b"),
        record_of("4", "z", session=""),
    )
    found = asked(index, "tea", replace(NONE, session=0.3))
    assert parts(found, "session") == {"1": 0.3, "2": 0.3, "3": 0, "4": 0}


def test_names_in_a_record() -> None:
    """What is said by a speaker whom the question names, or holds another name of it."""
    index = index_of(record_of("1", "human/Ann: x"), record_of("2", "ai/Bob: with Nemo"), record_of("3", "ai/Bob: x"))
    ranking = replace(NONE, name=0.5)
    assert parts(asked(index, "What does Ann say?", ranking), "name") == {"1": 0.5, "2": 0, "3": 0}
    assert parts(asked(index, "Nemo is where?", ranking), "name") == {"1": 0, "2": 0, "3": 0}  # a first word
    assert parts(asked(index, "Where is Nemo?", ranking), "name") == {"1": 0, "2": 0.5, "3": 0}
    assert parts(asked(index, "Did Bob see Nemo?", ranking), "name") == {"1": 0, "2": 0.5, "3": 0.5}
    assert parts(asked(index, "Who is it?", ranking), "name") == {"1": 0, "2": 0, "3": 0}


def test_statements_of_who_is_asked_about() -> None:
    """A record in which they state something gains a share of all that says what it is about; questions gain none."""
    index = index_of(
        record_of("1", "human/Ann: tea", "ai/Bob: x"),
        record_of("2", "human/Ann: Is it tea?", "ai/Bob: x"),
        record_of("3", "human/Ann: Is it x?", "ai/Bob: tea"),
        record_of("4", "tool/t: tea x"),
    )
    ranking = replace(NONE, lexical=1.0, speaker=0.5, name=0.2, date=1.0)
    for text, stating in {
        "Does Ann like tea?": "1",
        "Does Bob like tea?": "123",
        "Who likes tea?": "1",
        "What tea did you suggest?": "123",
        "Do Ann and Bob like tea?": "",
    }.items():
        found = asked(index, text, ranking)
        assert "".join(sorted(key for key, one in found.items() if one.states)) == stating
        for one in found.values():
            about = one.parts["lexical"] + one.parts["name"]
            assert one.parts["speaker"] == pytest.approx(0.5 * about * one.states)


def test_words_that_others_say_count_less() -> None:
    """A quarter of an occurrence, before it is saturated; where all speakers are meant, in full."""
    index = index_of(record_of("1", "human/Ann: tea", "ai/Bob: x"), record_of("2", "human/Ann: x", "ai/Bob: tea"))
    ranking = replace(NONE, lexical=1.0)
    found = parts(asked(index, "Does Ann like tea?", ranking), "lexical")
    assert found["2"] / found["1"] == pytest.approx(0.25 / 1.45 * 2.2, abs=1e-3)
    assert parts(asked(index, "Does Ann like tea?", replace(ranking, others=0.0)), "lexical")["2"] == 0
    both = parts(asked(index, "Do Ann and Bob like tea?", ranking), "lexical")
    assert both["1"] == both["2"] == found["1"]


def test_recency_and_importance_by_hand() -> None:
    """Both are absolute: `decay_rate ** hours`, and a tenth of the rating; unrated ones count as the mean."""
    index = index_of(
        record_of("1", "a", importance=2, at=None),
        record_of("2", "b", importance=8, at=NOW - timedelta(hours=3)),
        record_of("3", "c", at=NOW + timedelta(days=9)),
    )
    found = asked(index, "tea", replace(NONE, importance=2.0))
    assert parts(found, "importance") == pytest.approx({"1": 0.4, "2": 1.6, "3": 1.0})
    found = asked(index, "tea", replace(NONE, recency=0.5, decay_rate=0.9))
    assert parts(found, "recency") == pytest.approx({"1": 0, "2": 0.3645, "3": 0.5})  # no date: as if endlessly old
    found = asked(index, "tea", replace(NONE, recency=0.5, decay_rate=0.9), accessed={"2": NOW})
    assert parts(found, "recency")["2"] == 0.5
    unrated = asked(index_of(record_of("1", "a")), "tea", replace(NONE, importance=2.0))
    assert parts(unrated, "importance") == {"1": 0}


def test_the_default_score_by_hand() -> None:
    """All parts together: (1 + .5 + ...) x 1.7, with the day on top."""
    index = index_of(record_of("1", "human/Ann: tea", "ai/Bob: x"), record_of("2", "human/Ann: x", "ai/Bob: x"))
    index.add(record_of("3", "human/Ann: x", "ai/Bob: x", session="t"), None)
    found = asked(index, "Did Ann have tea on 15 May?", DEFAULT)["1"]
    words, session = found.parts["lexical"], found.parts["session"]
    assert words > 0 < session
    assert found.parts["name"] == 0.5
    assert found.parts["speaker"] == pytest.approx(0.7 * (words + session + 0.5))
    assert found.parts["date"] == 1
    assert found.score == pytest.approx(1.7 * (words + session + 0.5) + 1)


def test_records_with_more_of_the_question_come_first() -> None:
    """Two of its words beat one that is said often."""
    index = index_of(
        record_of("1", "tea tea tea tea"),
        record_of("2", "tea milk cup pot jug"),
        *(record_of(f"{i}", "x x x x") for i in range(3, 9)),
    )
    assert next(iter(asked(index, "tea with milk", replace(DEFAULT, neighbours=0)))) == "2"


def test_neighbours_take_part() -> None:
    """What stands beside a match in its session gets a share, the next but one its square; no other session does."""
    texts = ["x", "x", "x", "tea", "x", "x", "x"]
    other = [
        record_of("7", "x", session="t", position=4),
        record_of("8", "x", session="", position=3),
        record_of("9", "x", session="", position=4),
    ]
    index = index_of(*reversed([record_of(str(i), text) for i, text in enumerate(texts)]), *other)
    found = asked(index, "tea", replace(NONE, lexical=1.0, neighbours=0.3))
    expected = {"0": 0, "1": 0.09, "2": 0.3, "3": 0, "4": 0.3, "5": 0.09, "6": 0, "7": 0, "8": 0, "9": 0}
    assert parts(found, "neighbours") == pytest.approx(expected)


def test_names_of_speakers_are_no_words_of_the_question() -> None:
    """People name those they speak to: who is greeted by name has not said anything."""
    index = index_of(record_of("1", "ai/Bob: hello Ann"), record_of("2", "human/Ann: tea"), record_of("3", "ai/Bob: x"))
    assert next(iter(asked(index, "What does Ann drink? Tea?", Ranking()))) == "2"
    only = asked(index, "Ann?", replace(NONE, lexical=1.0))
    assert [key for key, words in parts(only, "lexical").items() if words] == ["1"]  # nothing else to look for


def test_dates_are_soft() -> None:
    """Records of the named days come first, those around them next, and the others stay."""
    days = {
        "1": datetime(2023, 5, 7, 23, tzinfo=UTC),
        "2": datetime(2023, 5, 9, tzinfo=UTC),
        "3": datetime(2022, 5, 7, tzinfo=UTC),
    }
    index = index_of(*(record_of(key, "x", at=at) for key, at in days.items()), record_of("4", "x", at=None))
    found = asked(index, "What happened on 7 May 2023?", replace(NONE, date=1.0))
    assert parts(found, "date") == pytest.approx({"1": 1, "2": 0.7143, "3": 0, "4": 0})
    assert parts(asked(index, "on 7 May", replace(NONE, date=1.0)), "date")["3"] == 1


def test_dates_with_one_end() -> None:
    """What was said before a date, or since, comes first, however long ago; but a date alone makes nothing related."""
    days = {"1": (2021, 1, 1), "2": (2023, 2, 1), "3": (2023, 3, 15), "4": (2023, 4, 20), "5": (2024, 5, 1)}
    index = index_of(*[record_of(key, "tea", at=datetime(*day, tzinfo=UTC)) for key, day in days.items()])
    for question, first in {"before March 2023": "12", "after March 2023": "45", "since March 2023": "345"}.items():
        weights = replace(NONE, lexical=5.0, date=1.0)
        found = parts(asked(index, f"What tea did I buy {question}?", weights), "date")
        best = max(found.values())
        assert {key for key, close in found.items() if close == best} == {*first}
        unrelated = parts(asked(index, f"What did Zoe buy {question}?", replace(NONE, lexical=5.0, date=1.0)), "date")
        assert set(unrelated.values()) == {0.0}


def test_vectors_of_an_embedder_that_does_not_read_the_language_count_nothing() -> None:
    """Their weight is scaled by the trust in them."""
    chance = np.random.default_rng(7)
    records = [record_of(str(i), " ".join(chance.choice(["tea", "sea", "cat", "dog"], 2))) for i in range(80)]
    index = index_of(*records, vectors=chance.normal(size=(80, 64)).tolist())
    assert index.vector_trust == 0
    vector = index.vector_of("5")
    found = asked(index, "moon", DEFAULT, vector=vector)
    assert {one.score for one in found.values()} == {0.0}


def test_records_without_a_vector() -> None:
    """They are found by words alone, not by what they stand beside."""
    index = index_of(
        record_of("1", "x"),
        record_of("2", "x"),
        record_of("3", "tea"),
        record_of("4", "x"),
        vectors=[[1, 0], [1, 1], None, None],
    )
    found = asked(index, "tea", replace(DEFAULT, relevance=1.0), vector=[1, 0])
    assert set(found) == {"1", "2", "3"}
    assert found["3"].parts["relevance"] == 0
    assert next(iter(asked(index, "tea", DEFAULT))) == "3"  # without a vector words and neighbours decide
    assert len(asked(index, "tea", DEFAULT)) == 4


def test_expired_and_unwanted_records() -> None:
    """What has expired is not returned, nor what `keep` refuses; the rest moves up."""
    index = index_of(*(record_of(str(i), "tea", expires_at=NOW + timedelta(hours=i - 3)) for i in range(10)))
    few = replace(Ranking(), candidates=3)
    found = rank(index, "tea", few, lambda record: record.id != "5")
    assert [ranked.entry.id for ranked in found] == ["4", "6", "7"]


def test_at_most_so_many() -> None:
    """No more than the candidates come back, the best of them, also where only the last of many are wanted."""
    index = index_of(*(record_of(str(i), "tea " * (1 + i % 7)) for i in range(500)))
    few = replace(Ranking(), candidates=4)
    assert len(rank(index, "tea", few)) == 4
    found = rank(index, "tea", few, lambda record: int(record.id) % 100 == 7)
    assert len(found) == 4
    assert all(int(ranked.entry.id) % 100 == 7 for ranked in found)


def test_what_is_worth_showing() -> None:
    """Of a record the asked speaker's messages and those with a word of the question; else all."""
    index = index_of(
        record_of("1", "human/Ann: I drink tea", "ai/Bob: how nice", "ai/Bob: more tea", "tool/t: x"),
        record_of("2", "ai/Bob: hello", "ai/Bob: you"),
        record_of("3", "x", "y"),
    )
    assert {key: r.shown for key, r in asked(index, "Does Ann like tea?", Ranking()).items()} == {
        "1": (0, 2),
        "2": (0, 1),
        "3": (0, 1),
    }
    assert asked(index, "Who likes tea?", Ranking())["1"].shown == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lexical": -1},
        {"date": float("nan")},
        {"decay_rate": 0},
        {"decay_rate": 1.5},
        {"candidates": 0},
        {"candidates": 2.5},
        {"session": "much"},
        {"name": -0.1},
        {"others": 1.1},
        {"recency": True},
    ],
)
def test_weights_are_checked(wrong: dict[str, Any]) -> None:
    """A weight that makes no sense is refused when it is given."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Ranking(**wrong)


words = st.sampled_from(["tea", "sea", "sky", "Ann", "Bob", "Nemo", "I", "you", "said", "May", "2024", "the", "?"])
said = st.lists(words, max_size=6).map(" ".join)
vectors = st.lists(st.integers(-3, 3), min_size=2, max_size=2)
records = st.lists(
    st.tuples(
        st.builds(
            record_of,
            st.just("0"),
            said.map("human/Ann: {}".format),
            said.map("ai/Bob: {}".format),
            session=st.sampled_from(["", "a", "b"]),
            at=st.one_of(st.none(), st.integers(0, 400).map(lambda days: NOW - timedelta(days=days))),
            importance=st.one_of(st.none(), st.integers(1, 10)),
        ),
        st.one_of(st.none(), vectors),
    ),
    max_size=12,
)
weights = st.floats(0, 3)
rankings = st.builds(
    Ranking,
    relevance=weights,
    lexical=weights,
    neighbours=st.floats(0, 1),
    session=weights,
    name=weights,
    speaker=weights,
    others=st.floats(0, 1),
    date=weights,
    recency=weights,
    importance=weights,
    candidates=st.integers(1, 8),
    over_all=st.booleans(),
)


@given(records, said, vectors, rankings)
def test_any_ranking(
    some: list[tuple[IndexRecord, list[int] | None]], text: str, vector: list[int], ranking: Ranking
) -> None:
    """Parts are no less than 0 and sum to the score, scores fall, equals keep their order, answers are the same."""
    index = Index()
    for i, (record, direction) in enumerate(some):
        index.add(replace(record, id=str(i), round_id=str(i), position=i), direction)
    found = rank(index, text, ranking, vector=vector)
    assert found == rank(index, text, ranking, vector=vector)
    assert len(found) <= min(len(some), ranking.candidates)
    assert len(rank(index, text, ranking)) == min(len(some), ranking.candidates)
    assert len({ranked.entry.id for ranked in found}) == len(found)
    assert all(tuple(ranked.parts) == PARTS for ranked in found)
    assert [ranked.score for ranked in found] == pytest.approx([sum(ranked.parts.values()) for ranked in found])
    for one, after in pairwise(found):
        assert one.score >= after.score - 1e-9
        assert one.score > after.score or int(one.entry.id) < int(after.entry.id)
    assert all(part >= 0 for ranked in found for part in ranked.parts.values())
    assert all(ranked.shown and set(ranked.shown) <= {0, 1} for ranked in found)


@given(records, said, rankings)
def test_any_score_is_absolute(some: list[tuple[IndexRecord, Any]], text: str, ranking: Ranking) -> None:
    """What may be returned, and how much of it, changes no score."""
    index = Index()
    for i, (record, direction) in enumerate(some):
        index.add(replace(record, id=str(i), round_id=str(i), position=i), direction)
    scores = {one.entry.id: one.score for one in rank(index, text, replace(ranking, candidates=100))}
    odd = rank(index, text, replace(ranking, candidates=2), lambda record: int(record.id) % 2 == 1)
    assert all(one.score == scores[one.entry.id] for one in odd)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_from_0_to_1(values: list[float]) -> None:
    """In the order of the values, unless all are the same."""
    found = min_max(np.array(values))
    assert found.min() >= 0
    assert found.max() in (0, 1)
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
