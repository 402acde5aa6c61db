"""What every vector store must do."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias
from uuid import NAMESPACE_URL, uuid4, uuid5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.indexing import InMemoryRecordManager, aindex, index

from langchain_memkit.base import apurge_user, purge_user
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryConflictError,
    HistoryReadError,
    HistoryWriteError,
    MessageEncodeError,
)
from langchain_memkit.ranking.index import digest_of, index_record_of
from langchain_memkit.testing._styles import BothStyles, Call
from langchain_memkit.testing.properties import SETTINGS, metadata, texts

__all__ = ["AT", "EMBEDDING", "VectorStoreContract", "expected_entries", "facts", "record"]

MakeStore: TypeAlias = Callable[..., Any]

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
EMBEDDING = DeterministicFakeEmbedding(size=16)


class Wrong(Embeddings):
    """Embedding model that returns given vectors, right or wrong."""

    def __init__(self, *vectors: Any) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the given vectors in order, then the last one again."""
        return [*self.vectors[: len(texts)], *[self.vectors[-1]] * (len(texts) - len(self.vectors))]

    def embed_query(self, text: str) -> list[float]:
        """Return the first vector."""
        return self.vectors[0]  # type: ignore[no-any-return]  # wrong on purpose


def record(n: int, text: str = "", user_id: str = "u1", session_id: str = "s1", **more: Any) -> Document:
    """Make the record of a round of two messages, as `VectorMemory` does; `n` is its position."""
    asked = text or f"what about number {n}"
    page = f"human: {asked}\nai: it is fine"
    name = str(uuid5(NAMESPACE_URL, f"{user_id}/{session_id}/{n}"))
    known = {
        "user_id": user_id,
        "session_id": session_id,
        "round_id": name,
        "position": n,
        "created_at": (AT + timedelta(minutes=n)).isoformat(),
        "said": [["human", "", 7, 7 + len(asked)], ["ai", "Bot", len(page) - 10, len(page)]],
        "messages": [f"q{n}", f"a{n}"],
    }
    return Document(page, id=name, metadata={**known, **more})


def facts(index: Any) -> list[Any]:
    """Return the contents of an index in comparable form, without row numbers."""
    with index.lock:
        assert index.count == len(index) == len(index.entries)
        return sorted((e.id, e.session, e.position, e.at, e.said, e.messages) for e in index.entries)


def expected_entries(documents: Sequence[Document]) -> list[Any]:
    """Return the contents that an index of these documents should have, in the form of `facts`."""
    entries = [index_record_of(document) for document in documents]
    return sorted((e.id, e.session, e.position, e.at, e.said, e.messages) for e in entries)


HOSTILE_IDS = [{"$ne": 1}, {"$gt": ""}, None, 123, b"k", ["k"], True, ("k",)]
BAD_IDS = ["", "a\x00b", "\ud800", "x" * 513]
UNUSUAL_IDS = ["$ne", '{"$gt": ""}', "a.b", "a%", "' OR 1=1 --", "日本", "🐠", "x" * 512]
ODD_TEXTS = ["", "\x00", "a\x00b", "lone \ud83d half", "🐠 naïve " * 10, "word " * 200_000, "$where: 1", "' OR 1=1 --"]


USERS = ("u1", "u2")


JULY = datetime(2026, 7, 1, tzinfo=UTC)
METADATAS: list[dict[str, Any]] = [
    {"n": 1, "tags": ["red", "blue"], "at": JULY, "by": {"name": "Nemo"}},
    {"n": 2.5, "tags": [], "at": JULY.replace(month=8), "by": [{"name": "Kiwi"}, {"name": "Nemo"}]},
    {"n": "2", "tags": "red", "ok": True, "a.b": 1},
    {"n": None, "ok": 1, "by": {"name": "Kiwi"}, "user_id": "u1"},
]
"""Metadata of the documents 0 to 3; the last document belongs to a user."""
PRE_FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "012"),
    ({"n": 1}, "0"),
    ({"n": {"$eq": 1.0}}, "0"),
    ({"n": {"$gte": 1, "$lt": 2.5}}, "0"),
    ({"n": {"$gt": 1}}, "1"),
    ({"n": {"$lte": "2"}}, "2"),
    ({"n": {"$ne": 1}}, "12"),
    ({"n": {"$in": [1, "2", None]}}, "02"),
    ({"n": {"$nin": [1, "2"]}}, "1"),
    ({"tags": "red"}, "02"),
    ({"tags": []}, "1"),
    ({"tags": ["red", "blue"]}, "0"),
    ({"at": {"$gte": JULY.replace(tzinfo=None), "$lt": JULY.replace(month=8)}}, "0"),
    ({"by.name": "Nemo"}, "01"),
    ({"by": {"name": "Nemo"}}, "01"),
    ({"a.b": 1}, "2"),
    ({"ok": True}, "2"),
    ({"ok": {"$exists": False}}, "01"),
    ({"ok": None}, "01"),
    ({"n": {"$not": {"$gte": 1}}}, "2"),
    ({"$or": [{"n": 1}, {"ok": True}]}, "02"),
    ({"$nor": [{"n": 1}, {"ok": True}]}, "1"),
    ({"$and": [{"tags": "red"}, {"n": {"$ne": 1}}]}, "2"),
    ({"user_id": "u1"}, "3"),
    ({"user_id": {"$eq": "u1"}, "ok": 1}, "3"),
    ({"user_id": "u1", "ok": True}, ""),
    ({"$and": [{"user_id": "u1"}, {"by.name": {"$in": ["Kiwi"]}}]}, "3"),
    ({"user_id": "u2"}, ""),
]
"""A `pre_filter`, and the documents that it finds."""
REFUSED: list[tuple[Any, str]] = [
    ({"$where": "true"}, "knows no '\\$where'"),
    ({"$expr": {"$eq": [1, 1]}}, "knows no '\\$expr'"),
    ({"n": {"$regex": ".*"}}, "knows no '\\$regex'"),
    ({"n": {"$gt": 1, "m": 1}}, "knows no 'm'"),
    ({"n": {"$eq": {"$ne": 1}}}, "no operators inside of values"),
    ({"n": re.compile("x")}, "no metadata holds"),
    ({"n": {"$in": 1}}, "needs a list after \\$in"),
    ({"n": {"$not": 1}}, "after \\$not"),
    ({"$or": {"n": 1}}, "needs a list of dicts after \\$or"),
    ({"$and": []}, "needs a list of dicts after \\$and"),
    ({1: 1}, "knows no 1"),
    ([{"n": 1}], "must be a dict"),
    ({"user_id": {"$ne": "u1"}}, "documents of one user"),
    ({"user_id": {"$in": ["u1", "u2"]}}, "documents of one user"),
    ({"$or": [{"user_id": "u1"}, {"user_id": "u2"}]}, "documents of one user"),
    ({"$and": [{"user_id": "u1"}, {"user_id": "u2"}]}, "names several"),
    ({"$and": [{"$nor": [{"user_id": "u2"}]}]}, "documents of one user"),
]
"""Invalid `pre_filter` values, each with the error's text."""


operations = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "add", "delete", "forget", "purge", "evict", "touch", "look", "reopen"]),
        st.sampled_from(USERS),
        st.sampled_from(["s1", "s2"]),
        st.integers(0, 3),
    ),
    max_size=20,
)


class VectorStoreContract(BothStyles):
    """Contract for a store that `VectorMemory` may use; give it a `make_store` fixture.

    `make_store(embedding, **options)` returns a new store object over one place per test; options are `cache_bytes` and
    `now`.
    """

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Return a function that opens a store for an embedding model; override it."""
        raise RuntimeError("give the contract a `make_store` fixture")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Any:
        """Return a store."""
        return make_store(EMBEDDING)

    @pytest.fixture
    def other(self, make_store: MakeStore) -> Any:
        """Return a second store object over the same data, as another process would have."""
        return make_store(EMBEDDING)

    @pytest.fixture
    def save(self, call: Call) -> Call:
        """Return `save(store, documents)`, which saves like `VectorMemory`; `embedded=False` stores no vectors."""

        def save(store: Any, documents: Sequence[Document], embedded: bool = True, **options: Any) -> bool:
            user, session = (documents[0].metadata[name] for name in ("user_id", "session_id"))
            begun = call(store, "begin", user, session)
            vectors: list[Any] = [None] * len(documents)
            if embedded:
                vectors = call(store, "embed", [document.page_content for document in documents])
            return bool(call(store, "write", user, session, begun.generation, documents, vectors, **options))

        return save

    def test_starts_empty(self, store: Any, call: Call) -> None:
        """A new store is empty, and calls without work are no errors."""
        assert len(call(store, "index", "u1")) == 0
        assert call(store, "sessions", "u1") == []
        assert call(store, "accesses", "u1") == {}
        assert call(store, "get_by_ids", ["a"]) == call(store, "get_by_ids", []) == []
        assert call(store, "forget", "u1") == call(store, "forget", "u1", "s1") == call(store, "evict", "u1", 0) == 0
        assert call(store, "similarity_search", "hello", filter={"user_id": "u1"}) == []
        assert call(store, "add_documents", []) == call(store, "embed", []) == []
        call(store, "delete", [])
        call(store, "delete", ["a"])
        call(store, "touch", "u1", ["a"], AT)
        call(store, "setup")

    def test_records_come_back(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """A record is in the index with everything that ranks it, in the process that wrote it and in others."""
        rare: dict[str, Any] = {"epoch": 2**62, "importance": 7.5, "chunk": 1}
        documents = [record(1), record(2, "Zoë likes café au lait", **rare), record(3, open=True)]
        assert save(store, documents)
        for each in (store, other):
            index = call(each, "index", "u1")
            assert facts(index) == expected_entries(documents)
            (second,) = [entry for entry in index.entries if entry.position == 2]
            assert (second.epoch, second.importance, second.expires_at) == (2**62, 7.5, None)
            assert call(each, "get_by_ids", [d.id for d in documents], user_id="u1") == documents
            vector = call(each, "embed_query", documents[1].page_content)
            scores = dict(zip([e.position for e in index.entries], index.dense(vector).tolist(), strict=True))
            assert scores[2] == pytest.approx(1, abs=1e-5) == max(scores.values())

    def test_a_cold_index_is_the_warm_one(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """After its own writes and deletions, a process has cached the index that another one reads from the store."""
        save(store, [record(n) for n in range(5)])
        first = call(store, "index", "u1")
        save(store, [record(2, "another text"), record(9)], delete=[record(0).id])
        assert call(store, "index", "u1") is first
        assert facts(first) == facts(call(other, "index", "u1"))
        assert facts(first) == expected_entries([record(1), record(2, "another text"), record(3), record(4), record(9)])

    def test_foreign_changes_are_seen(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """The next read of the index sees what others added, replaced, deleted, evicted and purged."""
        save(store, [record(n) for n in range(4)])
        save(store, [record(1, session_id="s2")])
        assert len(call(other, "index", "u1")) == 5
        save(store, [record(7)])
        assert len(call(other, "index", "u1")) == 6
        save(store, [record(7, "said differently")])
        assert any(entry.said[0].stems == ("said", "differ") for entry in call(other, "index", "u1").entries)
        call(store, "delete", [record(7).id], user_id="u1")
        assert len(call(other, "index", "u1")) == 5
        save(store, [record(7)], delete=[record(0).id])  # as many as before
        assert facts(call(other, "index", "u1"))[0][0] in {d.id for d in [record(7), *map(record, range(1, 4))]} | {
            record(1, session_id="s2").id
        }
        assert record(0).id not in call(other, "index", "u1")
        call(store, "forget", "u1", "s2")
        assert {entry.session for entry in call(other, "index", "u1").entries} == {"s1"}
        call(store, "evict", "u1", 1)
        assert len(call(other, "index", "u1")) == 1
        call(store, "forget", "u1")
        assert len(call(other, "index", "u1")) == len(call(store, "index", "u1")) == 0

    def test_little_is_held(self, make_store: MakeStore, save: Call, call: Call) -> None:
        """A cache too small for two users keeps the last one, however large, until another one is read."""
        store = make_store(EMBEDDING, cache_bytes=0)
        save(store, [record(n) for n in range(3)])
        save(store, [record(1, user_id="u2")])
        first = call(store, "index", "u1")
        assert call(store, "index", "u1") is first
        assert len(call(store, "index", "u2")) == 1
        save(store, [record(5)])
        assert call(store, "index", "u1") is not first
        assert len(call(store, "index", "u1")) == 4
        for wrong in (-1, 1.5, "64"):
            with pytest.raises(ConfigurationError, match="cache_bytes"):
                make_store(EMBEDDING, cache_bytes=wrong)

    def test_words_of_another_version(
        self, store: Any, other: Any, save: Call, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Stems that another version stored are recomputed in memory."""
        documents = [record(1, "running dogs"), record(2, importance=3.0)]
        save(store, documents)
        call(store, "add_documents", [Document("a plain text", id="p", metadata={"user_id": "u1", "said": "so"})])
        before = facts(call(store, "index", "u1"))
        monkeypatch.setattr("langchain_memkit.stores.vector_rows.STEMS_VERSION", -1)
        assert facts(call(other, "index", "u1")) == before
        assert call(other, "index", "u1") is call(other, "index", "u1")

    def test_expiry(self, make_store: MakeStore, save: Call, call: Call) -> None:
        """An expired record is gone from every answer at that moment, cached indexes included."""
        now = [AT]
        store = make_store(EMBEDDING, now=lambda: now[0])
        save(store, [record(1), record(2, expires_at=(AT + timedelta(minutes=5)).isoformat())])
        assert len(call(store, "index", "u1")) == 2
        now[0] += timedelta(minutes=5)
        fresh = make_store(EMBEDDING, now=lambda: now[0])
        for each in (store, fresh):
            assert [entry.position for entry in call(each, "index", "u1").entries] == [1]
            assert call(each, "get_by_ids", [record(2).id], user_id="u1") == []
            assert call(each, "begin", "u1", "s1").last == record(1)
            assert call(each, "sessions", "u1")[0].turns == 1
        save(store, [record(3)])
        assert [entry.position for entry in call(fresh, "index", "u1").entries] == [1, 3]

    def test_begin(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """A session has one generation, its last record, and the user's vectors of known texts."""
        begun = call(store, "begin", "u1", "s1")
        assert (begun.last, dict(begun.vectors)) == (None, {})
        assert call(other, "begin", "u1", "s1").generation == begun.generation
        assert call(other, "begin", "u1", "s2").generation != begun.generation
        assert call(other, "begin", "u2", "s1").generation != begun.generation
        save(store, [record(10), record(9), record(11, open=True)])
        save(store, [record(99, session_id="s2")])
        save(store, [record(99, "somebody else's", user_id="u2")])
        text = record(10).page_content
        begun = call(other, "begin", "u1", "s1", [digest_of(text), digest_of("none"), digest_of("somebody else's")])
        assert begun.last == record(11, open=True)
        (vector,) = begun.vectors.values()
        assert vector == pytest.approx(call(store, "embed", [text])[0])
        # A vector that the store returned is stored unchanged.
        again = record(12, session_id="s3")
        began = call(store, "begin", "u1", "s3")
        assert call(other, "write", "u1", "s3", began.generation, [again], [vector])

    def test_begin_tells_of_records(self, make_store: MakeStore, save: Call, call: Call) -> None:
        """`begin` returns the requested records of this session; none of others, and none that has expired."""
        now = [AT]
        store = make_store(EMBEDDING, now=lambda: now[0])
        ends = (AT + timedelta(minutes=5)).isoformat()
        documents = [record(1), record(2), record(3, expires_at=ends)]
        theirs = [record(4, session_id="s2"), record(5, user_id="u2")]
        save(store, documents)
        for document in theirs:
            save(store, [document])
        ids = [str(document.id) for document in [*documents[1:], *theirs, record(9)]]
        begun = call(store, "begin", "u1", "s1", [], ids)
        assert begun.records == {documents[1].id: documents[1], documents[2].id: documents[2]}
        assert begun.last == documents[2]
        assert call(store, "begin", "u1", "s1").records == {}
        assert call(store, "begin", "u1", "new", [], ids).records == {}
        now[0] += timedelta(minutes=5)
        assert call(store, "begin", "u1", "s1", [], ids).records == {documents[1].id: documents[1]}

    def test_two_go_on_from_one_record(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """Of two writers that change one record, the second is refused with nothing stored, and must begin again."""
        save(store, [record(1, open=True), record(2)])
        begun = call(store, "begin", "u1", "s1")
        known = {str(record(n).id): digest_of(record(n).page_content) for n in (1, 2)}
        only = {str(record(1).id): known[str(record(1).id)]}

        def write(target: Any, *documents: Document, expected: Any = only, **options: Any) -> Any:
            vectors = [None] * len(documents)
            arguments = ("u1", "s1", begun.generation, documents, vectors)
            return call(target, "write", *arguments, expected=expected, **options)

        assert len(call(store, "index", "u1")) == 2
        assert write(other, record(1, "mine"), record(3))
        assert len(call(store, "index", "u1")) == 3
        before = facts(call(store, "index", "u1"))
        for expected in (only, known, {str(record(9).id): "none"}):
            with pytest.raises(HistoryConflictError, match="begin again"):
                write(store, record(1, "yours"), record(4), expected=expected, delete=[record(2).id])
        assert facts(call(store, "index", "u1")) == facts(call(other, "index", "u1")) == before
        assert call(store, "get_by_ids", [record(1).id, record(2).id], user_id="u1") == [record(1, "mine"), record(2)]
        mine = {str(record(1).id): digest_of(record(1, "mine").page_content)}
        assert write(store, record(1, "both"), record(4), expected={**known, **mine}, delete=[record(2).id])
        assert write(store, record(5), expected={str(record(4).id): digest_of(record(4).page_content)})
        for each in (store, other):
            wanted = [record(1, "both"), record(3), record(4), record(5)]
            assert facts(call(each, "index", "u1")) == expected_entries(wanted)
        call(other, "delete", [record(1).id], user_id="u1")
        with pytest.raises(HistoryConflictError, match="begin again"):
            write(store, record(1, "gone"), expected={str(record(1).id): digest_of(record(1, "both").page_content)})
        # A deleted session is not a conflict.
        call(other, "forget", "u1", "s1")
        assert write(store, record(1)) is write(store, record(1), expected=known) is False
        assert call(store, "get_by_ids", [record(1).id], user_id="u1") == []

    def test_a_forgotten_session_takes_no_save(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """A save that began before its session or user was deleted stores nothing; one of a new session does."""
        for arguments in (("u1", "s1"), ("u1",)):
            save(store, [record(1)])
            begun = call(store, "begin", "u1", "s1")
            assert call(other, "forget", *arguments) == 1
            assert not call(store, "write", "u1", "s1", begun.generation, [record(1), record(2)], [None, None])
            assert not call(store, "write", "u1", "s1", begun.generation, [], [])
            assert len(call(store, "index", "u1")) == 0
            assert call(store, "get_by_ids", [record(1).id], user_id="u1") == []
            again = call(store, "begin", "u1", "s1", since=begun.generation)
            assert not call(store, "write", "u1", "s1", again.generation, [record(1)], [None])
            new = call(other, "begin", "u1", "s1")
            assert new.generation == call(store, "begin", "u1", "s1", since=new.generation).generation
            assert new.generation != begun.generation
            assert new.last is None
            assert call(other, "write", "u1", "s1", new.generation, [record(1, "anew")], [None])
            # Not even over the new session's record with the same id.
            assert not call(store, "write", "u1", "s1", begun.generation, [record(1, "old")], [None])
            assert call(store, "get_by_ids", [record(1).id], user_id="u1") == [record(1, "anew")]
            assert call(store, "forget", "u1") == 1

    def test_sessions(self, store: Any, save: Call, call: Call) -> None:
        """Sessions are listed with their numbers of rounds, the most recently used first."""
        save(store, [record(n) for n in range(3)])
        long = record(9, session_id="s2")
        piece = Document("a piece", id="piece", metadata={**long.metadata, "position": 10})
        save(store, [long, piece])
        save(store, [record(1, user_id="u2")])
        call(store, "add_documents", [Document("plain", metadata={"user_id": "u1"})])
        found = call(store, "sessions", "u1")
        assert [(s.session_id, s.turns) for s in found] == [("s2", 1), ("s1", 3)]
        assert (found[1].created_at, found[1].updated_at) == (AT, AT + timedelta(minutes=2))

    def test_forget(self, store: Any, save: Call, call: Call) -> None:
        """`forget` deletes the session's or the user's records, and nothing else."""
        for user in USERS:
            for session in ("s1", "s2"):
                save(store, [record(n, user_id=user, session_id=session) for n in range(2)])
        call(store, "add_documents", [Document("nobody's", id="n"), Document("x", id="p", metadata={"user_id": "u1"})])
        assert call(store, "forget", "u1", "s1") == 2
        assert {entry.session for entry in call(store, "index", "u1").entries} == {"s2", ""}
        assert call(store, "purge", "u1") == {"records": 3}
        assert call(store, "purge", "u1") == {"records": 0}
        assert len(call(store, "index", "u2")) == 4
        assert call(store, "similarity_search", "x")[0].id == "n"

    def test_is_a_part_of_purge_user(self, store: Any) -> None:
        """`purge_user` and its twin take a store."""
        store.add_texts(["a", "b"], [{"user_id": "u1"}, {"user_id": "u2"}])
        assert purge_user("u1", store) == [{"records": 1}]
        assert asyncio.run(apurge_user("u2", store)) == [{"records": 1}]

    def test_recalls_and_eviction(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """Eviction deletes the oldest record that was never recalled first, then the one recalled longest ago."""
        documents = [record(n) for n in range(6)]
        save(store, documents)
        names = [document.id for document in documents]
        stamps = call(other, "index", "u1").stamps()
        call(store, "touch", "u1", [names[0], names[1]], AT + timedelta(hours=2))
        call(store, "touch", "u1", [names[1], names[5]], AT + timedelta(hours=1))
        call(store, "touch", "u2", [names[2]], AT)
        recalled = {names[0]: AT + timedelta(hours=2), names[1]: AT + timedelta(hours=2)}
        recalled[names[5]] = AT + timedelta(hours=1)
        assert call(other, "accesses", "u1") == recalled
        assert call(other, "accesses", "u2") == {}
        assert call(other, "index", "u1").stamps() == stamps
        save(store, [record(0, "replaced")])
        assert call(other, "accesses", "u1") == recalled
        assert call(store, "evict", "u1", 6) == 0
        assert call(store, "evict", "u1", 4) == 2
        assert [n for n in range(6) if names[n] in call(other, "index", "u1")] == [0, 1, 4, 5]
        assert call(store, "evict", "u1", 2) == 2
        assert [n for n in range(6) if names[n] in call(other, "index", "u1")] == [0, 1]
        call(store, "delete", [names[0]], user_id="u1")
        assert call(store, "accesses", "u1") == {names[1]: AT + timedelta(hours=2)}
        save(store, [record(7), record(8)])
        kept = [str(record(n).id) for n in (7, 8)]
        assert call(store, "evict", "u1", 1, kept) == 1  # new records outlive even recalled ones
        assert call(store, "evict", "u1", 0, kept) == 0
        assert [entry.position for entry in call(other, "index", "u1").entries] == [7, 8]
        assert call(store, "evict", "u1", 1) == 1
        assert call(store, "evict", "u1", 0) == 1
        with pytest.raises(ValueError, match="max_records"):
            call(store, "evict", "u1", -1)
        with pytest.raises(ValueError, match="aware"):
            call(store, "touch", "u1", ["a"], datetime(2026, 1, 1))  # noqa: DTZ001  # wrong on purpose

    @pytest.mark.parametrize("foreign", [DeterministicFakeEmbedding(size=8), Wrong([1.0] * 16)], ids=["size", "model"])
    def test_two_embedders(self, make_store: MakeStore, foreign: Any, call: Call) -> None:
        """A store that one model filled accepts neither texts nor queries of another one."""
        call(make_store(EMBEDDING), "add_documents", [Document("a", id="a")])
        for name, argument in (("add_documents", [Document("b")]), ("similarity_search", "b"), ("embed", ["b"])):
            with pytest.raises(ConfigurationError, match="another embedding model"):
                call(make_store(foreign), name, argument)
        assert [d.id for d in call(make_store(EMBEDDING), "similarity_search", "a")] == ["a"]

    @pytest.mark.parametrize(
        "bad",
        [[math.nan] * 3, [math.inf, 0, 0], [], [[1.0]], "abc", None, [1, "x"], [10**400]],
        ids=lambda bad: repr(bad)[:20],
    )
    def test_bad_vectors(self, make_store: MakeStore, bad: Any, call: Call) -> None:
        """Invalid vectors are refused, and nothing is stored."""
        store = make_store(Wrong(bad, [1.0, 0.0, 0.0]))
        with pytest.raises(ConfigurationError, match="Nothing was stored"):
            call(store, "add_documents", [Document("a", id="a"), Document("b", id="b")])
        assert call(store, "get_by_ids", ["a", "b"]) == []
        begun = call(store, "begin", "u1", "s1")
        if bad is not None:
            with pytest.raises(ConfigurationError):
                call(make_store(Wrong([1.0, 0.0, 0.0])), "write", "u1", "s1", begun.generation, [record(1)], [bad])
        assert len(call(store, "index", "u1")) == 0
        with pytest.raises(ConfigurationError):
            make_store(bad)

    @pytest.mark.parametrize(
        "bad",
        [[0.0] * 3, [math.nan] * 3, [math.inf, 0, 0], [], [[1.0]], "abc", None, [1.0]],
        ids=lambda bad: repr(bad)[:20],
    )
    def test_a_question_without_a_vector(self, make_store: MakeStore, bad: Any, call: Call) -> None:
        """An invalid vector of one query is an error of that query, not of the store."""
        model = Wrong([1.0, 0.0, 0.0])
        store = make_store(model)
        call(store, "add_documents", [Document("a", id="a")])
        model.embed_query = lambda text: bad  # type: ignore[method-assign]  # for this question
        for name in ("embed_query", "similarity_search", "max_marginal_relevance_search"):
            with pytest.raises(HistoryReadError, match="question's vector"):
                call(store, name, "what?")
        del model.embed_query
        assert [d.id for d in call(store, "similarity_search", "a")] == ["a"]
        with pytest.raises(ConfigurationError):
            call(store, "similarity_search_by_vector", bad)

    def test_words_that_the_model_does_not_know(self, make_store: MakeStore, call: Call) -> None:
        """A text with an all-zero vector is stored without one; a model that has none for plain English is refused."""
        store = make_store(Wrong([0.0] * 3, [1.0, 0.0, 0.0]))
        call(store, "add_documents", [Document("qwxz", id="a"), Document("b", id="b")])
        assert [d.id for d in call(store, "get_by_ids", ["a", "b"])] == ["a", "b"]
        assert [d.id for d in call(store, "similarity_search_by_vector", [1.0, 0.0, 0.0])] == ["b"]
        unknown, known = call(store, "embed", ["qwxz", "b"])
        assert unknown is None
        assert known.tolist() == [1.0, 0.0, 0.0]
        begun = call(store, "begin", "u1", "s1")
        assert call(store, "write", "u1", "s1", begun.generation, [record(1)], [[0.0] * 3])
        assert len(call(store, "index", "u1")) == 1
        with pytest.raises(ConfigurationError, match="plain English"):
            call(make_store(Wrong([0.0] * 3)), "embed", ["a"])

    def test_sizes_and_scales(self, make_store: MakeStore, call: Call) -> None:
        """Vectors of another length than the first are refused; huge and tiny ones count by their direction."""
        with pytest.raises(ConfigurationError, match="dimensions"):
            call(make_store(Wrong([1.0, 2.0], [1.0])), "add_documents", [Document("a"), Document("b")])
        with pytest.raises(ConfigurationError, match="vectors for"):
            call(make_store(type("Few", (Wrong,), {"embed_documents": lambda *_: []})([1.0])), "embed", ["a"])
        store = make_store(Wrong([1e300, 0.0], [0.0, 1e-300], [1.0, 0.0]))
        call(store, "add_documents", [Document("a", id="a"), Document("b", id="b")])
        found = call(store, "similarity_search_with_score", "a", k=2)
        assert [(document.id, round(score, 6)) for document, score in found] == [("a", 1.0), ("b", 0.0)]

    def test_whose_a_document_is(self, store: Any, call: Call) -> None:
        """A search finds the documents of one user, or those without an owner; never all of them."""
        metadatas = [{"user_id": "u1", "session_id": "s1"}, {"user_id": "u1", "n": 1}, {"user_id": "u2", "n": 1}, {}]
        call(store, "add_texts", ["same text"] * 4, metadatas, ids=["a", "b", "c", "d"])

        def found(**filter_: Any) -> list[str]:
            return sorted(d.id for d in call(store, "similarity_search", "same text", k=9, filter=filter_))

        assert found(user_id="u1") == ["a", "b"]
        assert found(user_id="u1", session_id="s1") == ["a"]
        assert found(user_id="u1", n=1) == ["b"]
        assert found(user_id="u1", n=2) == found(user_id="u1", m=None) == found(user_id="u3") == found(n=1) == []
        assert found() == [d.id for d in call(store, "similarity_search", "same text")] == ["d"]
        assert len(call(store, "index", "u1")) == 2

    @pytest.mark.parametrize("bad", [{"$ne": 1}, {"$in": ["u1"]}, None, 1, ["u1"], b"u1"], ids=repr)
    def test_filters_know_no_operators(self, store: Any, call: Call, bad: Any) -> None:
        """Only a string names a user or a session, and values are compared, never executed."""
        call(store, "add_texts", ["a"], [{"user_id": "u1", "n": 1}])
        wrong: list[Any] = [{"user_id": bad}, {"user_id": "u1", "session_id": bad}, {"n": {"$gt": 0}}]
        for filter_ in [*wrong, {"$or": [{"user_id": "u1"}]}, [("user_id", "u1")], lambda document: True]:
            with pytest.raises(TypeError):
                call(store, "similarity_search", "a", filter=filter_)
        with pytest.raises(TypeError):
            call(store, "similarity_search", "a", filters={"user_id": "u1"})
        with pytest.raises(TypeError):
            call(store, "add_documents", [Document("a", metadata={"user_id": bad})])

    def test_pre_filters(self, store: Any, call: Call) -> None:
        """Conditions in MongoDB's query language keep their meaning in every search, passed by position or by name."""
        call(store, "add_texts", ["same text"] * 4, METADATAS, ids=list("0123"))
        vector = EMBEDDING.embed_query("a")
        for pre_filter, wanted in PRE_FILTERS:
            scored = call(store, "similarity_search_with_score", "same text", 9, pre_filter=pre_filter)
            retriever = store.as_retriever(search_kwargs={"k": 9, "pre_filter": pre_filter})
            for documents in (
                call(store, "similarity_search", "same text", 9, pre_filter),
                [document for document, _ in scored],
                call(store, "max_marginal_relevance_search", "same text", 9, 20, 0.5, pre_filter),
                call(store, "similarity_search_by_vector", vector, 9, pre_filter=pre_filter),
                call(retriever, "invoke", "same text"),
            ):
                assert "".join(sorted(d.id for d in documents)) == wanted, pre_filter

    @pytest.mark.parametrize(("bad", "said"), REFUSED, ids=[said for _, said in REFUSED])
    def test_pre_filters_that_are_refused(self, make_store: MakeStore, call: Call, bad: Any, said: str) -> None:
        """Other operators, several users and impossible values are refused; no search silently finds too much."""
        with pytest.raises(ConfigurationError, match=said):
            call(make_store(EMBEDDING), "similarity_search", "a", pre_filter=bad)

    def test_arguments_of_langchain_mongodb(self, store: Any, call: Call) -> None:
        """Scores and vectors are added to the metadata on request; options that only Atlas supports are refused."""
        call(store, "add_texts", ["one", "two"], [{"n": 1}, {"n": 2}], ids=["1", "2"])
        options: dict[str, Any] = {"include_scores": True, "include_embeddings": True, "oversampling_factor": 10}
        (found,) = call(store, "similarity_search", "one", 1, post_filter_pipeline=None, **options)
        assert found.metadata["n"] == 1
        assert found.metadata["score"] == pytest.approx(1, abs=1e-5)
        assert len(found.metadata["embedding"]) == len(EMBEDDING.embed_query("one"))
        ((found, _),) = call(store, "similarity_search_with_score", "two", 1, include_embeddings=True)
        assert "embedding" in found.metadata
        assert call(store, "get_by_ids", ["2"])[0].metadata == {"n": 2}
        with pytest.raises(ConfigurationError, match="Use pre_filter="):
            call(store, "similarity_search", "one", post_filter_pipeline=[{"$match": {"n": 1}}])
        with pytest.raises(ConfigurationError, match="either filter or pre_filter"):
            call(store, "similarity_search", "one", filter={"n": 1}, pre_filter={"n": 1})

    def test_batches(self, store: Any, call: Call) -> None:
        """Documents are embedded and stored in batches; an invalid batch size is refused first."""
        texts = [f"text {n}" for n in range(7)]
        metadatas = [{"user_id": f"u{n % 2}", "n": n} for n in range(7)]
        names = call(store, "add_texts", texts, metadatas, ids=list("abcdefg"), batch_size=3)
        assert names == list("abcdefg")
        for user in ("u0", "u1"):
            mine = [text for text, known in zip(texts, metadatas, strict=True) if known["user_id"] == user]
            assert [d.page_content for d in call(store, "get_by_ids", names, user_id=user)] == mine
        assert [len(call(store, "index", user)) for user in ("u0", "u1")] == [4, 3]
        for bad in (0, -1, "3", 1.5):
            with pytest.raises(ValueError, match="batch_size must be"):
                call(store, "add_documents", [Document("a", id="z")], batch_size=bad)
        with pytest.raises(MessageEncodeError):
            call(store, "add_documents", [Document("a", id="z"), Document("b", metadata={"n": object()})], batch_size=1)
        assert call(store, "get_by_ids", ["z"]) == []

    @pytest.mark.parametrize("cleanup", ["incremental", "full", "scoped_full"])
    @pytest.mark.parametrize("style", ["sync", "async"])
    @pytest.mark.parametrize("owner", [{}, {"user_id": "u1"}], ids=["of nobody", "of a user"])
    def test_index(self, store: Any, cleanup: Any, style: str, owner: dict[str, str]) -> None:
        """LangChain's `index` and `aindex` add new documents, skip known ones, and delete obsolete ones."""
        if owner:  # LangChain's indexing passes no owner when it deletes
            store.delete, store.adelete = partial(store.delete, **owner), partial(store.adelete, **owner)
        records = InMemoryRecordManager(namespace="documents")
        records.create_schema()

        def run(*texts: str) -> Any:
            documents = [Document(text, metadata={"source": "a", **owner}) for text in texts]
            options: Any = {"cleanup": cleanup, "source_id_key": "source", "batch_size": 9, "key_encoder": "sha256"}
            if style == "async":
                return asyncio.run(aindex(documents, records, store, **options))
            return index(documents, records, store, **options)

        def stored() -> set[str]:
            found = store.similarity_search("one", k=9, filter=owner or None)
            return {document.page_content for document in found}

        assert run("one", "two", "three") == {"num_added": 3, "num_updated": 0, "num_skipped": 0, "num_deleted": 0}
        assert run("one", "two", "three")["num_skipped"] == 3
        assert stored() == {"one", "two", "three"}
        assert run("one", "four") == {"num_added": 1, "num_updated": 0, "num_skipped": 1, "num_deleted": 2}
        assert stored() == {"one", "four"}

    def test_searches(self, store: Any, call: Call) -> None:
        """Searches by text and by vector give the nearest first: with scores, diversity, thresholds, as a retriever."""
        names = call(store, "add_texts", ["one", "two", "three", "one"], [{"n": n} for n in range(4)])
        assert len(set(names)) == 4
        found = call(store, "similarity_search_with_score", "one", k=3)
        assert {document.id for document, _ in found[:2]} == {names[0], names[3]}
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        assert found[0][1] == pytest.approx(1, abs=1e-5)
        vector = EMBEDDING.embed_query("two")
        assert call(store, "similarity_search_by_vector", vector, k=1)[0].id == names[1]
        assert call(store, "similarity_search", "one", k=0) == []
        with pytest.raises(ValueError, match="k must be"):
            call(store, "similarity_search", "one", k=-1)
        diverse = call(store, "max_marginal_relevance_search", "one", k=3, lambda_mult=0.3)
        assert {d.page_content for d in diverse} == {"one", "two", "three"}
        nearest = call(store, "max_marginal_relevance_search_by_vector", vector, k=2, lambda_mult=1.0)
        assert [d.id for d in nearest] == [d.id for d in call(store, "similarity_search_by_vector", vector, k=2)]
        sure = call(store, "similarity_search_with_relevance_scores", "two", score_threshold=0.99)
        assert [d.id for d, _ in sure] == [names[1]]
        assert call(store.as_retriever(search_kwargs={"k": 1, "filter": {"n": 2}}), "invoke", "one")[0].id == names[2]
        with pytest.raises(ConfigurationError, match="dimensions"):
            call(store, "similarity_search_by_vector", [1.0, 2.0])
        assert store.embeddings is EMBEDDING

    def test_a_rare_match_is_found(self, store: Any, call: Call) -> None:
        """A filter on metadata finds its only document, however far it is from the question."""
        call(store, "add_texts", [f"text {n}" for n in range(300)], [{"n": n} for n in range(300)])
        for n in (0, 150, 299):
            assert [d.metadata for d in call(store, "similarity_search", "text 7", k=1, filter={"n": n})] == [{"n": n}]
        assert len(call(store, "similarity_search", "text 7", k=300)) == 300

    def test_records_without_vectors(self, store: Any, save: Call, call: Call) -> None:
        """Records without vectors are in the index, but similarity searches do not find them."""
        save(store, [record(1)], embedded=False)
        assert len(call(store, "index", "u1")) == 1
        assert call(store, "similarity_search", "number", filter={"user_id": "u1"}) == []
        save(store, [record(2)])
        assert [d.id for d in call(store, "similarity_search", "n", filter={"user_id": "u1"})] == [record(2).id]

    @pytest.mark.parametrize("bad", HOSTILE_IDS, ids=repr)
    def test_ids_must_be_strings(self, store: Any, call: Call, bad: Any) -> None:
        """Anything but a string is a TypeError before any I/O: operators never reach a filter."""
        begun = call(store, "begin", "u1", "s1")
        calls: list[tuple[Any, ...]] = [
            *((name, bad) for name in ("index", "forget", "sessions", "accesses", "purge")),
            ("begin", bad, "s1"),
            ("begin", "u1", bad),
            ("begin", "u1", "s1", [bad]),
            ("begin", "u1", "s1", [], [bad]),
            ("evict", bad, 1),
            ("evict", "u1", 1, [bad]),
            ("touch", bad, ["a"], AT),
            ("touch", "u1", [bad], AT),
            ("write", bad, "s1", begun.generation, [], []),
            ("write", "u1", bad, begun.generation, [], []),
            ("write", "u1", "s1", bad, [], []),
            ("write", "u1", "s1", begun.generation, [], [], [bad]),
            ("write", "u1", "s1", begun.generation, [], [], [], {"a": bad}),
            ("get_by_ids", [bad]),
            ("delete", [bad]),
            ("get_by_ids", "abc"),
            ("delete", None),
        ]
        if bad is not None:
            calls += [("forget", "u1", bad)]
        for name, *arguments in calls:
            with pytest.raises(TypeError):
                call(store, name, *arguments)
        if bad is not None:
            with pytest.raises(TypeError):
                call(store, "add_documents", [Document("a")], ids=[bad])

    @pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: repr(bad[:4]))
    def test_malformed_ids(self, store: Any, call: Call, bad: str) -> None:
        """Empty, too long, NUL and lone surrogates are a ValueError."""
        for name, *arguments in (("index", bad), ("begin", "u1", bad), ("get_by_ids", [bad]), ("delete", [bad])):
            with pytest.raises(ValueError, match="id"):
                call(store, name, *arguments)
        for known in ({"user_id": bad}, {"session_id": bad}):
            with pytest.raises(ValueError, match="id"):
                call(store, "add_texts", ["a"], [known])

    def test_unusual_ids(self, store: Any, save: Call, call: Call) -> None:
        """Any text is an id of a user, a session and a record."""
        for name in UNUSUAL_IDS:
            document = record(1, user_id=name, session_id=name)
            document.id = name
            assert save(store, [document])
        for name in UNUSUAL_IDS:
            assert [entry.id for entry in call(store, "index", name).entries] == [name]
            assert call(store, "forget", name, name) == 1

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: repr(text[:9]))
    def test_odd_texts(self, store: Any, other: Any, save: Call, call: Call, text: str) -> None:
        """Any text comes back as it was, and does no harm to others."""
        odd: dict[str, Any] = {
            "note": text[:99],
            text[:20]: [1, (2, text[:9])],
            "deep": {"$gt": {"a.b": b"\xff"}},
            "at": AT,
        }
        document = record(1, text, **odd)
        document.metadata["messages"] = [text[:99]]
        assert save(store, [document, record(2)])
        plain = call(store, "add_documents", [Document(text, metadata={"user_id": "u1", **odd})])
        for each in (store, other):
            assert len(call(each, "index", "u1")) == 3
            assert call(each, "get_by_ids", [document.id, *plain], user_id="u1")[0] == document
            assert call(each, "get_by_ids", plain, user_id="u1")[0].page_content == text

    def test_other_metadata_than_records_have(self, store: Any, call: Call) -> None:
        """Keys that have a meaning in a record have none in a plain document."""
        known = {"position": "CEO", "created_at": "then", "expires_at": "2000-01-01", "messages": 5, "said": "so"}
        document = Document("a", id="a", metadata={**known, "importance": "high", "epoch": None, "open": "9am"})
        call(store, "add_documents", [document])
        assert call(store, "similarity_search", "a") == [document]

    def test_refusals(self, store: Any, call: Call) -> None:
        """A document that cannot be stored exactly is refused with nothing stored."""
        begun = call(store, "begin", "u1", "s1")

        def write(document: Document, vectors: Any = (None,)) -> None:
            call(store, "write", "u1", "s1", begun.generation, [record(2), document], [None, *vectors])

        wrong: list[dict[str, Any]] = [{"user_id": "u2"}, {"session_id": "s2"}, {"position": "1"}, {"position": 2**63}]
        wrong += [{"said": [1]}, {"created_at": "then"}, {"importance": math.nan}, {"round_id": 5}, {"messages": [1]}]
        for known in wrong:
            with pytest.raises(ValueError, match=r"session_id|metadata"):
                write(record(1, **known))
        with pytest.raises(MessageEncodeError, match=r"metadata\['x'\]"):
            write(record(1, x=object()))
        with pytest.raises(TypeError):
            write(Document("no id", metadata=record(1).metadata))
        with pytest.raises(ValueError, match="vectors"):
            write(record(1), ())
        with pytest.raises(ValueError, match="ids"):
            call(store, "add_documents", [Document("a")], ids=["1", "2"])
        assert len(call(store, "index", "u1")) == 0

    def test_an_id_is_its_users(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """One id of two users and without an owner is three documents: no user sees, replaces or deletes another's."""
        owners: dict[str | None, dict[str, str]] = {who: {"user_id": who} if who else {} for who in (None, "u1", "u2")}
        for who, known in owners.items():
            call(store, "add_documents", [Document(f"of {who}", id="a", metadata=known)])
        call(store, "add_documents", [Document("mine", id="a", metadata=owners["u1"])])
        foreign = record(1, user_id="u2")
        foreign.id = record(1).id
        save(store, [record(1)])
        save(store, [foreign])

        def texts(who: str | None) -> list[str]:
            found = [[d.page_content for d in call(each, "get_by_ids", ["a"], user_id=who)] for each in (store, other)]
            assert found[0] == found[1]
            return found[0]

        assert [texts(who) for who in owners] == [["of None"], ["mine"], ["of u2"]]
        for who in ("u1", "u2"):
            found = call(other, "similarity_search", "mine", k=9, filter={"user_id": who})
            assert {d.metadata["user_id"] for d in found} == {who}
            assert len(call(store, "index", who)) == 2
        assert save(store, [record(5, user_id="u2")], delete=[record(1).id])
        assert call(store, "get_by_ids", [record(1).id], user_id="u1") == [record(1)]
        assert call(store, "get_by_ids", [record(1).id], user_id="u2") == []
        call(store, "touch", "u2", ["a"], AT)
        assert call(store, "accesses", "u1") == {}
        call(store, "delete", ["a"], user_id="u2")
        assert [texts(who) for who in owners] == [["of None"], ["mine"], []]
        call(store, "delete", ["a"])
        assert [texts(who) for who in ("u1", "u2")] == [["mine"], []]

    def test_who_is_meant_must_be_said(self, store: Any, call: Call) -> None:
        """The id of a user's document, given without the user, finds and deletes nothing; the error says what to do."""
        call(store, "add_documents", [Document("mine", id="a", metadata={"user_id": "u1"}), Document("free", id="b")])
        for verb in ("get_by_ids", "delete"):
            with pytest.raises(ConfigurationError, match="user_id="):
                call(store, verb, ["b", "a"])
        assert len(call(store, "get_by_ids", ["a"], user_id="u1")) == len(call(store, "get_by_ids", ["b", "c"])) == 1

    def test_an_id_stays_in_its_session(self, store: Any, call: Call) -> None:
        """A document of another session cannot be overwritten by using its id."""
        call(store, "add_documents", [Document("a", id="a", metadata={"user_id": "u1"})])
        with pytest.raises(HistoryConflictError, match="another session"):
            call(store, "add_documents", [Document("b", id="a", metadata={"user_id": "u1", "session_id": "s9"})])
        assert [d.page_content for d in call(store, "get_by_ids", ["a"], user_id="u1")] == ["a"]

    def test_what_is_accepted_comes_back_equal(self, store: Any) -> None:
        """150 random documents: equal on return, or refused with nothing stored."""
        accepted = 0

        @settings(SETTINGS, max_examples=150)
        @given(texts, metadata)
        def check(text: str, known: dict[Any, Any]) -> None:
            nonlocal accepted
            name = str(uuid4())
            known = {k: v for k, v in known.items() if k not in ("user_id", "session_id")}
            try:
                store.add_documents([Document(text, metadata=known)], ids=[name])
            except HistoryWriteError:
                assert store.get_by_ids([name]) == []
                return
            accepted += 1
            assert store.get_by_ids([name]) == [Document(text, id=name, metadata=known)]

        check()
        assert accepted > 75, "most of what was tried should be storable"

    def test_threads(self, store: Any) -> None:
        """Parallel writers and readers lose nothing, and the cached index equals the stored records."""

        def work(worker: int) -> None:
            session = f"s{worker}"
            for n in range(15):
                begun = store.begin("u1", session)
                documents = [record(n, session_id=session)]
                assert store.write("u1", session, begun.generation, documents, store.embed([documents[0].page_content]))
                assert documents[0].id in store.index("u1")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        wanted = expected_entries([record(n, session_id=f"s{w}") for w in range(4) for n in range(15)])
        assert facts(store.index("u1")) == wanted
        store.close()
        assert facts(store.index("u1")) == wanted

    def test_threads_add_to_one_record(self, store: Any) -> None:
        """Concurrent writers that extend the same record lose nothing: the second one begins again."""
        began = store.begin("u1", "s1")
        assert store.write("u1", "s1", began.generation, [record(1, "start")], [None])
        name = str(record(1).id)

        def work(word: str) -> None:
            for n in range(5):
                while True:
                    begun = store.begin("u1", "s1", [], [name])
                    old = begun.records[name]
                    said = f"{old.page_content[len('human: ') :].splitlines()[0]} {word}{n}"
                    expected = {name: digest_of(old.page_content)}
                    try:
                        arguments = ("u1", "s1", begun.generation, [record(1, said)], [None])
                        assert store.write(*arguments, expected=expected)
                    except HistoryConflictError:
                        continue
                    break

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, "abc"))
        said = store.get_by_ids([name], user_id="u1")[0].page_content.splitlines()[0].split()
        assert sorted(said[2:]) == sorted(f"{word}{n}" for word in "abc" for n in range(5))

    def test_two_users_never_meet(self, make_store: MakeStore) -> None:
        """Random operations of two users with equal words, on two store objects: each sees exactly its own."""
        stores = [make_store(EMBEDDING), make_store(EMBEDDING)]

        @settings(SETTINGS, max_examples=20)
        @given(operations)
        def check(steps: list[tuple[str, str, str, int]]) -> None:
            for user in USERS:
                stores[0].forget(user)
            model: dict[str, dict[str, tuple[str, int]]] = {user: {} for user in USERS}
            for i, (verb, user, session, n) in enumerate(steps):
                run(stores[i % 2], model[user], verb, user, session, n)
                for store in stores:
                    for each in USERS:
                        entries = store.index(each).entries
                        assert {entry.id for entry in entries} == model[each].keys()
                        found = store.similarity_search("what about number", k=50, filter={"user_id": each})
                        assert {document.id for document in found} == model[each].keys()
                        assert all(document.metadata["user_id"] == each for document in found)

        check()


def run(store: Any, mine: dict[str, tuple[str, int]], verb: str, user: str, session: str, n: int) -> None:
    """Perform one operation on a store, and on the model of what it should hold of a user."""
    document = record(n, user_id=user, session_id=session)
    name = str(document.id)
    if verb == "write":
        begun = store.begin(user, session)
        assert store.write(user, session, begun.generation, [document], store.embed([document.page_content]))
        mine[name] = (session, n)
    elif verb == "add":
        store.add_documents([Document("what about number", id=f"{user}-{n}", metadata={"user_id": user})])
        mine[f"{user}-{n}"] = ("", n)
    elif verb == "delete":
        store.delete([name], user_id=user)
        mine.pop(name, None)
    elif verb == "forget":
        assert store.forget(user, session) == sum(place == session for place, _ in mine.values())
        for key in [key for key, (place, _) in mine.items() if place == session]:
            del mine[key]
    elif verb == "purge":
        assert store.forget(user) == len(mine)
        mine.clear()
    elif verb == "evict":
        store.evict(user, max(n, len(mine)))
    elif verb == "touch":
        store.touch(user, [name], AT)
    elif verb == "reopen":
        store.close()
