"""The order of records: each part by hand, the preset's formula, properties of any ranking."""

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
from langchain_memkit.ranking.bm25 import ROOM
from langchain_memkit.ranking.index import Index, IndexRecord, Utterance
from langchain_memkit.ranking.ranking import PARTS, Question, Ranked, Ranking, best_first, min_max_scale
from langchain_memkit.ranking.tokenize import tokenize

NOW = datetime(2024, 5, 15, 12, tzinfo=UTC)
NONE = Ranking(relevance=0, lexical=0, speaker=0, neighbours=0, session=0, date=0)


DEFAULT = Ranking()


def rank(index: Index, question: Question, ranking: Ranking = DEFAULT, keep: Any = None) -> list[Ranked]:
    """All records that are ranked for a question, best first."""
    return list(best_first(index, question, ranking, keep).records)


def entry(record_id: str, *lines: str, session: str = "s", position: int | None = None, **more: Any) -> IndexRecord:
    """A record of lines "role/name: text"."""
    said = []
    for line in lines:
        speaker, text = line.split(": ", 1) if ": " in line else ("human", line)
        role, _, name = speaker.partition("/")
        said.append(Utterance(role, name, tuple(tokenize(text))))
    place = ROOM * (int(record_id) if position is None else position)
    return IndexRecord(record_id, session, record_id, place, more.pop("at", NOW), tuple(said), **more)


def filled(*entries: IndexRecord, vectors: list[list[float] | None] | None = None) -> Index:
    """An index of these records."""
    index = Index()
    for record, vector in zip(entries, vectors or [None] * len(entries), strict=True):
        index.add(record, vector)
    return index


def asked(index: Index, text: str, ranking: Ranking, **more: Any) -> dict[str, Ranked]:
    """What is found, by id, best first."""
    found = rank(index, Question(text, more.pop("vector", None), NOW, **more), ranking)
    return {ranked.entry.id: ranked for ranked in found}


def parts(found: dict[str, Ranked], name: str) -> dict[str, float]:
    """One part of each score."""
    return {key: round(ranked.parts[name], 4) for key, ranked in sorted(found.items())}


def test_nothing_in_the_index() -> None:
    """No records, no hits."""
    assert rank(Index(), Question("tea", None, NOW)) == []


def test_generative_agents_by_hand() -> None:
    """Recency .995 per hour since the last access, importance, cosine: each from 0 to 1 over all, then summed."""
    index = filled(
        entry("1", "tea", at=NOW - timedelta(hours=100), importance=1),
        entry("2", "tea tea", at=NOW - timedelta(hours=10), importance=10),
        entry("3", "sea", at=NOW - timedelta(hours=50), importance=4),
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
    index = filled(*(entry(str(i), "tea") for i in range(120)), vectors=[[120 - i, i] for i in range(120)])
    few = replace(Ranking.generative_agents(), candidates=60)
    found = asked(index, "tea", few, vector=[1, 0])
    assert len(found) == 60
    assert min(ranked.parts["relevance"] for ranked in found.values()) > 0.6
    found = asked(index, "tea", replace(few, over_all=False), vector=[1, 0])
    assert min(ranked.parts["relevance"] for ranked in found.values()) == 0


@pytest.mark.parametrize("feature", ["relevance", "lexical", "speaker", "session", "date", "recency", "importance"])
def test_a_constant_feature_adds_nothing(feature: str) -> None:
    """What is the same for all records moves no score."""
    index = filled(*(entry(str(i), "human/Ann: tea", importance=5) for i in range(3)), vectors=[[1, 1]] * 3)
    found = asked(index, "When on 15 May did Ann have tea?", replace(NONE, **{feature: 1.0}), vector=[1, 0])
    assert {ranked.score for ranked in found.values()} == {0.0}
    assert [*found] == ["0", "1", "2"]


def test_unrated_and_undated_records() -> None:
    """What nobody rated counts as the mean, what has no date as the oldest."""
    index = filled(entry("1", "a", importance=2, at=None), entry("2", "b", importance=8), entry("3", "c"))
    found = asked(index, "tea", replace(NONE, importance=1.0))
    assert parts(found, "importance") == {"1": 0, "2": 1, "3": 0.5}
    found = asked(index, "tea", replace(NONE, recency=1.0))
    assert parts(found, "recency") == {"1": 0, "2": 1, "3": 1}
    later = asked(
        filled(entry("1", "a", at=NOW + timedelta(days=9)), entry("2", "b")), "tea", replace(NONE, recency=1.0)
    )
    assert parts(later, "recency") == {"1": 0, "2": 0}  # a clock that runs ahead makes nothing more recent than now


def test_words_and_vectors_from_0_to_1() -> None:
    """Each leg is spread over the question's candidates before they are weighed and added."""
    index = filled(entry("1", "tea"), entry("2", "sea"), entry("3", "sky"), vectors=[[1, 0], [0, 1], [1, 1]])
    found = asked(index, "tea", replace(NONE, relevance=1.0, lexical=2.0), vector=[0, 1])
    assert parts(found, "lexical") == {"1": 2, "2": 0, "3": 0}
    assert parts(found, "relevance") == pytest.approx({"1": 0, "2": 1, "3": 0.7071})


def test_records_with_more_of_the_question_come_first() -> None:
    """Two of its words beat one that is said often."""
    index = filled(
        entry("1", "tea tea tea tea"), entry("2", "tea milk cup pot jug"), *(entry(f"{i}", "x") for i in range(3, 9))
    )
    assert next(iter(asked(index, "tea with milk", Ranking()))) == "2"


def test_neighbours_take_part() -> None:
    """What stands beside a match in its session gets a share, the next but one its square; no other session does."""
    texts = ["x", "x", "x", "tea", "x", "x", "x"]
    other = [
        entry("7", "x", session="t", position=4),
        entry("8", "x", session="", position=3),
        entry("9", "x", session="", position=4),
    ]
    index = filled(*reversed([entry(str(i), text) for i, text in enumerate(texts)]), *other)
    found = asked(index, "tea", replace(NONE, lexical=1.0, neighbours=0.3))
    expected = {"0": 0, "1": 0.09, "2": 0.3, "3": 0, "4": 0.3, "5": 0.09, "6": 0, "7": 0, "8": 0, "9": 0}
    assert parts(found, "neighbours") == pytest.approx(expected)


def test_records_of_one_round_take_part() -> None:
    """The pieces of a long answer get two thirds of the share, up to six away; the next round the usual share."""
    pieces = [entry(str(i), "tea" if i == 1 else "x") for i in range(9)]
    rounds = [replace(piece, round_id="long", position=9_000 + i) for i, piece in enumerate(pieces)]
    index = filled(entry("10", "x"), *rounds, entry("8", "x", position=8))
    found = asked(index, "tea", replace(NONE, lexical=1.0, neighbours=0.3))
    expected = {"10": 0.0, "8": 0.09} | {str(i): 0.2 for i in (0, 2, 3, 4, 5, 6, 7)} | {"1": 0.0}
    assert parts(found, "neighbours") == pytest.approx(expected)


def test_sessions_that_speak_of_it() -> None:
    """A whole session that speaks of the question lifts all its records; plain documents have no session."""
    index = filled(
        entry("1", "tea", session="a"),
        entry("2", "x", session="a"),
        entry("3", "y", session="b"),
        entry("4", "tea", session=""),
    )
    assert parts(asked(index, "tea", replace(NONE, session=0.3)), "session") == {"1": 0.3, "2": 0.3, "3": 0, "4": 0}


def test_what_the_asked_speaker_says() -> None:
    """A record in which who is asked about says nothing loses a share of its score; nobody is shut out."""
    index = filled(
        entry("1", "human/Ann: tea x", "ai/Bob: x"),
        entry("2", "human/Ann: tea x x"),
        entry("3", "ai/Bob: tea x x"),
        entry("4", "human/Ann: x x", "ai/Bob: x"),
    )
    ranking = replace(NONE, lexical=1.0, speaker=0.5)
    assert parts(asked(index, "Does Ann like tea?", ranking), "speaker") == {"1": 0, "2": 0, "3": -0.5, "4": 0}
    assert parts(asked(index, "Does Bob like tea?", ranking), "speaker") == {"1": 0, "2": -0.5, "3": 0, "4": 0}
    assert parts(asked(index, "Do Ann and Bob like tea?", ranking), "speaker") == {"1": 0, "2": 0, "3": 0, "4": 0}
    assert parts(asked(index, "Does Ann like tea?", ranking), "lexical") == {"1": 1, "2": 1, "3": 1, "4": 0}


def test_names_of_speakers_are_no_words_of_the_question() -> None:
    """People name those they speak to: who is greeted by name has not said anything."""
    index = filled(entry("1", "ai/Bob: hello Ann"), entry("2", "human/Ann: tea"), entry("3", "ai/Bob: x"))
    assert next(iter(asked(index, "What does Ann drink? Tea?", Ranking()))) == "2"
    only = asked(index, "Ann?", replace(NONE, lexical=1.0))
    assert parts(only, "lexical") == {"1": 1, "2": 0, "3": 0}  # nothing else to look for


def test_dates_are_soft() -> None:
    """Records of the named days come first, those around them next, and the others stay."""
    days = {
        "1": datetime(2023, 5, 7, 23, tzinfo=UTC),
        "2": datetime(2023, 5, 9, tzinfo=UTC),
        "3": datetime(2022, 5, 7, tzinfo=UTC),
    }
    index = filled(*(entry(key, "x", at=at) for key, at in days.items()), entry("4", "x", at=None))
    found = asked(index, "What happened on 7 May 2023?", replace(NONE, date=1.0))
    assert parts(found, "date") == pytest.approx({"1": 1, "2": 0.7143, "3": 0, "4": 0})
    assert parts(asked(index, "on 7 May", replace(NONE, date=1.0)), "date")["3"] == 1


def test_dates_with_one_end() -> None:
    """What was said before a date, or since, comes first, however long before or after it was."""
    days = {"1": (2021, 1, 1), "2": (2023, 2, 1), "3": (2023, 3, 15), "4": (2023, 4, 20), "5": (2024, 5, 1)}
    index = filled(*[entry(key, "tea", at=datetime(*day, tzinfo=UTC)) for key, day in days.items()])
    for question, first in {"before March 2023": "12", "after March 2023": "45", "since March 2023": "345"}.items():
        found = parts(asked(index, f"What tea did I buy {question}?", replace(NONE, date=1.0)), "date")
        assert {key for key, close in found.items() if close == 1} == {*first}


def test_similarities_of_a_foreign_store() -> None:
    """They take the place of vectors; what the store did not find has nothing of them."""
    index = filled(entry("1", "x"), entry("2", "tea"), entry("3", "x"), entry("4", "x"))
    found = asked(index, "tea", replace(NONE, relevance=1.0), similar={"1": 0.2, "3": 0.9, "gone": 1.0})
    assert parts(found, "relevance") == {"1": 0, "2": 0, "3": 1}  # 4: neither the store nor a word found it


def test_records_without_a_vector() -> None:
    """They are found by words alone, not by what they stand beside, and do not move the scale of the others."""
    index = filled(
        entry("1", "x"), entry("2", "x"), entry("3", "tea"), entry("4", "x"), vectors=[[1, 0], [1, 1], None, None]
    )
    found = asked(index, "tea", replace(Ranking(), relevance=1.0), vector=[1, 0])
    assert parts(found, "relevance") == {"1": 1, "2": 0, "3": 0}
    assert [*asked(index, "tea", Ranking())] == ["3", "2", "4", "1"]  # without a vector words and neighbours decide


def test_expired_and_unwanted_records() -> None:
    """What has expired is not returned, nor what `keep` refuses; the rest moves up."""
    index = filled(*(entry(str(i), "tea", expires_at=NOW + timedelta(hours=i - 3)) for i in range(10)))
    few = replace(Ranking(), candidates=3)
    found = rank(index, Question("tea", None, NOW), few, lambda record: record.id != "5")
    assert [ranked.entry.id for ranked in found] == ["4", "6", "7"]


def test_at_most_so_many() -> None:
    """No more than the candidates come back, the best of them, also where only the last of many are wanted."""
    index = filled(*(entry(str(i), "tea " * (1 + i % 7)) for i in range(500)))
    few = replace(Ranking(), candidates=4)
    assert len(rank(index, Question("tea", None, NOW), few)) == 4
    found = rank(index, Question("tea", None, NOW), few, lambda record: int(record.id) % 100 == 7)
    assert len(found) == 4
    assert all(int(ranked.entry.id) % 100 == 7 for ranked in found)


def test_what_is_worth_showing() -> None:
    """Of a record the asked speaker's messages and those with a word of the question; else all."""
    index = filled(
        entry("1", "human/Ann: I drink tea", "ai/Bob: how nice", "ai/Bob: more tea", "tool/t: x"),
        entry("2", "ai/Bob: hello", "ai/Bob: you"),
        entry("3", "x", "y"),
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
        {"recency": True},
    ],
)
def test_weights_are_checked(wrong: dict[str, Any]) -> None:
    """A weight that makes no sense is refused when it is given."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Ranking(**wrong)


words = st.sampled_from(["tea", "sea", "sky", "Ann", "Bob", "I", "you", "said", "May", "2024", "the"])
records = st.lists(
    st.tuples(
        st.lists(words, max_size=6),
        st.lists(words, max_size=6),
        st.sampled_from(["", "a", "b"]),
        st.one_of(st.none(), st.integers(0, 400)),
        st.one_of(st.none(), st.lists(st.integers(-3, 3), min_size=2, max_size=2)),
        st.one_of(st.none(), st.integers(1, 10)),
    ),
    max_size=12,
)
weights = st.floats(0, 3)


@given(
    records,
    st.lists(words, max_size=8),
    st.lists(st.integers(-3, 3), min_size=2, max_size=2),
    st.builds(
        Ranking,
        weights,
        weights,
        weights,
        weights,
        st.floats(0, 1),
        weights,
        weights,
        weights,
        candidates=st.integers(1, 8),
        over_all=st.booleans(),
    ),
)
def test_any_ranking(given_records: list[Any], question: list[str], vector: list[int], ranking: Ranking) -> None:
    """Parts sum to the score, scores fall, each record comes once, and the same question has the same answer."""
    index = Index()
    for i, (mine, yours, session, days, direction, importance) in enumerate(given_records):
        at = None if days is None else NOW - timedelta(days=days)
        record = entry(
            str(i),
            f"human/Ann: {' '.join(mine)}",
            f"ai/Bob: {' '.join(yours)}",
            session=session,
            at=at,
            importance=importance,
        )
        index.add(record, direction)
    asks = Question(" ".join(question), vector, NOW)
    found = rank(index, asks, ranking)
    assert found == rank(index, asks, ranking)
    assert len(found) <= min(len(given_records), ranking.candidates)
    assert len(rank(index, Question(asks.text, None, NOW), ranking)) == min(len(given_records), ranking.candidates)
    assert len({ranked.entry.id for ranked in found}) == len(found)
    assert all(tuple(ranked.parts) == PARTS for ranked in found)
    assert [ranked.score for ranked in found] == pytest.approx([sum(ranked.parts.values()) for ranked in found])
    assert all(one.score >= next_.score - 1e-9 for one, next_ in pairwise(found))
    assert all((name == "speaker") != (part >= 0) or not part for r in found for name, part in r.parts.items())
    assert all(ranked.shown and set(ranked.shown) <= {0, 1} for ranked in found)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(1, 10))
def test_spread(values: list[float], most: int) -> None:
    """From 0 to 1, in the order of the values, unless all are the same."""
    found = min_max_scale(np.array(values), most)
    assert found.min() >= 0
    assert found.max() in (0, 1)
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
