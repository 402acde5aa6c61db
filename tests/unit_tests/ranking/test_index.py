"""The index: the same whatever the order of changes, its own statistics, and what is usual in it."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.ranking.index import Index, IndexRecord, Utterance, index_record_of
from testkit.ranking import lexical

WORDS = ["tea", "sea", "sky", "sun", "dog", "cat", "car"]


def entry(record_id: str, *texts: str, session: str = "s", position: int = 0, **more: Any) -> IndexRecord:
    """A record whose messages say these words, in turn by the user and the model."""
    said = tuple(Utterance(("human", "ai")[i % 2], "", tuple(text.split())) for i, text in enumerate(texts))
    return IndexRecord(record_id, session, record_id, position, None, said, **more)


def filled(*texts: str) -> Index:
    """An index of records with one message each."""
    index = Index()
    for i, text in enumerate(texts):
        index.add(entry(str(i), text, position=i), None)
    return index


change = st.tuples(
    st.sampled_from(["add", "remove"]),
    st.integers(0, 9),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
    st.booleans(),
)


@given(st.lists(change, max_size=60), st.lists(st.sampled_from(WORDS), min_size=1, max_size=5))
def test_any_changes_equal_a_fresh_index(changes: list[tuple[str, int, list[str], bool]], question: list[str]) -> None:
    """Adding, replacing and removing in any order leaves what an index has to which only the rest was added."""
    index, rest = Index(), {}
    for verb, number, words, embedded in changes:
        name = str(number)
        if verb == "add":
            vector = [len(words), number, 1] if embedded else None
            rest.pop(name, None)
            rest[name] = (entry(name, *words, session=str(number % 3), position=number), vector)
            index.add(*rest[name])
        else:
            rest.pop(name, None)
            index.remove([name, "unknown"])
    fresh = Index()
    for record, vector in rest.values():
        fresh.add(record, vector)
    assert index.entries == fresh.entries
    assert (len(index), index.count) == (len(fresh), len(rest))
    assert lexical(index, question).tolist() == lexical(fresh, question).tolist()
    assert index.dense([1, 2, 3]) == pytest.approx(fresh.dense([1, 2, 3]), abs=1e-6)
    assert index.embedded.tolist() == fresh.embedded.tolist()
    mine, other = index.view, fresh.view
    assert sorted(mine.speakers.values()) == sorted(other.speakers.values())
    assert (mine.lengths.tolist(), mine.mean_length, mine.session_count) == (
        other.lengths.tolist(),
        other.mean_length,
        other.session_count,
    )


def test_removed_records_leave_no_words() -> None:
    """What was removed is gone from memory, not only from the results."""
    index = Index()
    for i in range(1000):
        index.add(entry(str(i), f"word{i}"), [1, i / 1000])
    full = index.nbytes
    index.remove(str(i) for i in range(990))
    assert len(index) == 10
    assert index.nbytes < full / 5
    assert len(index.postings) < 100
    assert lexical(index, ["word995"]).argmax() == 5
    assert index.dense([0, 1]).argmax() == 9
    assert len(index.dense([0, 1])) == 10


def test_two_indexes_share_nothing() -> None:
    """How rare a word is for one user does not depend on what another one says."""
    mine, other = filled("tea sea", "sky"), filled("tea sea", "sky")
    for i in range(50):
        other.add(entry(f"more{i}", "tea tea sky"), None)
    assert lexical(mine, ["tea"]).tolist() == lexical(filled("tea sea", "sky"), ["tea"]).tolist()
    assert lexical(mine, ["tea"])[0] != lexical(other, ["tea"])[0]


def test_cosine_of_vectors_of_any_length() -> None:
    """The index keeps directions; what is not embedded has 0; the first vector tells the dimensions."""
    index = filled("tea")
    assert index.dims is None
    assert index.dense([1, 2, 3]).tolist() == [0]
    assert index.dims is None
    index.add(entry("a", "x"), [3, 4])
    index.add(entry("b", "x"), [0, 0])
    index.add(entry("c", "x"), np.array([-1e10, 0]))
    assert index.dims == 2
    assert index.dense([2, 0]).tolist() == pytest.approx([0, 0.6, 0, -1])
    assert index.embedded.tolist() == [False, True, False, True]


@pytest.mark.parametrize("vector", [[1.0], [1.0, 2.0, 3.0]])
def test_other_dimensions_are_refused(vector: list[float]) -> None:
    """A vector of another model is an error that says so, and changes nothing."""
    index = Index()
    index.add(entry("a", "tea"), [1, 0])
    with pytest.raises(ConfigurationError, match="dimensions"):
        index.add(entry("a", "sea"), vector)
    with pytest.raises(ConfigurationError, match="dimensions"):
        index.dense(vector)
    assert lexical(index, ["tea"]).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_vectors_hold_finite_numbers(bad: float) -> None:
    """No number that is none gets in, and nothing is kept of it."""
    index = Index()
    with pytest.raises(ConfigurationError, match="finite numbers"):
        index.add(entry("a", "tea"), [1, bad])
    assert len(index) == 0
    assert index.dims is None


def test_replacing_keeps_one() -> None:
    """A record with the same id takes the place of the old one, with other words."""
    index = Index()
    index.add(entry("a", "tea"), [1, 0])
    index.add(entry("a", "sea"), None)
    assert [record.said[0].stems for record in index.entries] == [("sea",)]
    assert "a" in index
    assert "b" not in index
    assert not lexical(index, ["tea"]).any()
    assert index.dense([1, 0]).tolist() == [0]


def test_threads_that_hold_the_lock() -> None:
    """Writers and readers in many threads see whole records."""
    index, failures = Index(), []

    def work(number: int) -> None:
        try:
            for i in range(100):
                with index.lock:
                    index.add(entry(f"{number}-{i % 7}", "tea sea"), [number, i, 1])
                    assert len(lexical(index, ["tea"])) == len(index.dense([1, 1, 1])) == len(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(index) == 42


def test_entry_of_a_round() -> None:
    """A stored round, with its messages' words taken from the spans, without the speakers' names."""
    text = "Ann: I sing.\nai: Lovely songs!"
    spans = [["human", "Ann", 5, 12], ["ai", "", 17, 30]]
    metadata = {
        "user_id": "u",
        "session_id": "s",
        "round_id": "r",
        "position": 4,
        "created_at": "2024-05-01T10:00:00+02:00",
        "said": spans,
        "messages": ["m1", "m2"],
        "importance": 7.0,
        "expires_at": "2025-01-01T00:00:00+00:00",
    }
    found = index_record_of(Document(text, id="i", metadata=metadata))
    assert found == IndexRecord(
        "i",
        "s",
        "r",
        4,
        datetime(2024, 5, 1, 8, tzinfo=UTC),
        (Utterance("human", "Ann", ("sing",)), Utterance("ai", "", ("love", "song"))),
        ("m1", "m2"),
        7.0,
        datetime(2025, 1, 1, tzinfo=UTC),
    )


def test_entry_of_a_plain_document() -> None:
    """A document without our metadata is one message of nobody; a date without a zone is UTC; an id is needed."""
    assert index_record_of(Document("The sea.", id="i")) == IndexRecord(
        "i", "", "i", 0, None, (Utterance("", "", ("sea",)),)
    )
    dated = index_record_of(Document("", id="i", metadata={"created_at": "2024-05-01"}))
    assert dated.at == datetime(2024, 5, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="id"):
        index_record_of(Document("The sea."))


def test_vectors_outlast_growth() -> None:
    """Vectors stay with their records while the room grows and records go."""
    index, chance = Index(), random.Random(3)
    kept: dict[str, list[float]] = {}
    for i in range(500):
        vector = [chance.gauss(0, 1) for _ in range(5)]
        index.add(entry(str(i), "x"), vector)
        kept[str(i)] = vector
        if i % 3:
            gone = chance.choice(sorted(kept))
            index.remove([gone])
            del kept[gone]
    for name, vector in kept.items():
        assert index.entries[int(index.dense(vector).argmax())].id == name


@pytest.mark.parametrize(
    ("kind", "count", "expected"),
    [
        ("words", 80, 1.0),
        ("noise", 80, 0.0),
        ("noise", 63, 1.0),
        ("far apart", 80, 1.0),
        ("similar", 80, 0.0),
        ("same", 80, 1.0),
    ],
)
def test_trust_in_vectors(kind: str, count: int, expected: float) -> None:
    """Vectors that say nothing about shared words count nothing; few records, or equal vectors, decide nothing.

    Vectors that say little about them count in full if they are far apart, and nothing if all are similar.
    """
    chance = np.random.default_rng(7)
    meaning = {word: chance.normal(size=64) for word in ("tea", "sea", "cat", "dog", "sun", "hat", "pen", "map")}
    index = Index()
    for i in range(count):
        words = chance.choice([*meaning], 3, replace=False).tolist()
        noise, meant = chance.normal(size=64), sum(meaning[word] for word in words)
        vectors = {"words": meant, "noise": noise, "same": np.ones(64)}
        vectors |= {"far apart": meant + 5 * noise, "similar": meant + 5 * noise + 8}
        index.add(index_record_of(Document(" ".join(words), id=str(i))), vectors[kind])
    assert index.vector_trust == expected


def test_what_is_usual_by_hand() -> None:
    """Mean and deviation of all pairs, blended with sixteen pairs that have those of most embedders: .3 and .12."""
    assert filled().usual == pytest.approx((0.3, 0.12))
    index = Index()
    for name, vector in {"a": [1, 0], "b": [3, 4], "c": [4, 3]}.items():
        index.add(entry(name, "x"), vector)
    found = [0.6, 0.8, 0.96]
    mean = (sum(found) + 16 * 0.3) / 19
    square = sum((cosine - mean) ** 2 for cosine in found) + 16 * (0.12**2 + (0.3 - mean) ** 2)
    assert index.usual == pytest.approx((mean, (square / 19) ** 0.5), abs=1e-6)


def test_what_is_usual_follows_the_records() -> None:
    """With many records theirs decides, pairs of other sessions only; all alike have a deviation all the same."""
    index = Index()
    for i in range(200):
        index.add(entry(f"a{i}", "x", session="a"), [1, 0])
        index.add(entry(f"b{i}", "x", session="b"), [3, 4])
    assert index.usual.mean == pytest.approx(0.6, abs=0.001)
    assert 0 < index.usual.deviation < 0.02
