"""Contract cases for what `VectorMemory` needs from a vector store."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from langchain_core.documents import Document

from langchain_memkit.base import apurge_user, purge_user
from langchain_memkit.errors import ConfigurationError, HistoryConflictError
from langchain_memkit.scoring.index import digest_of
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing._vector_cases import AT, EMBEDDING, MakeStore, Stores, facts, record
from langchain_memkit.testing._vector_cases import expected as expected_facts

USERS = ("u1", "u2")


class RecordCases(Stores):
    """Cases for the index, sessions, recalls and eviction."""

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
            assert facts(index) == expected_facts(documents)
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
        assert facts(first) == expected_facts([record(1), record(2, "another text"), record(3), record(4), record(9)])

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
        monkeypatch.setattr("langchain_memkit.backends._vectors.rows.STEMS_VERSION", -1)
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

    # -- sessions

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
            assert facts(call(each, "index", "u1")) == expected_facts(wanted)
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
