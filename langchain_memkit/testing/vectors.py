"""What every vector store must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import NAMESPACE_URL, uuid5

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.ranking.index import Index, digest_of, index_record_of
from langchain_memkit.stores.vectors import RecordVectorStore as Store
from langchain_memkit.testing._styles import BothStyles, Call

__all__ = ["AT", "EMBEDDING", "VectorStoreContract", "expected_entries", "facts", "record"]

MakeStore: TypeAlias = Callable[..., Store]

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
EMBEDDING = DeterministicFakeEmbedding(size=16)


def record(n: int, text: str = "", user_id: str = "u1", session_id: str = "s1", **more: Any) -> Document:
    """Make the record of a round of two messages, as `VectorMemory` does; `n` is its position."""
    asked = text or f"what about number {n}"
    page = f"human: {asked}\nai: it is fine"
    name = str(uuid5(NAMESPACE_URL, f"{user_id}/{session_id}/{n}"))
    known: dict[str, Any] = {"user_id": user_id, "session_id": session_id, "round_id": name, "position": n}
    known["created_at"] = (AT + timedelta(minutes=n)).isoformat()
    known["said"] = [["human", "", 7, 7 + len(asked)], ["ai", "Bot", len(page) - 10, len(page)]]
    return Document(page, id=name, metadata={**known, "messages": [f"q{n}", f"a{n}"], **more})


def facts(index: Index) -> list[tuple[object, ...]]:
    """Return the contents of an index in comparable form, without row numbers."""
    with index.lock:
        assert index.count == len(index) == len(index.entries)
        return sorted((e.id, e.session, e.position, e.at, e.said, e.messages) for e in index.entries)


def expected_entries(documents: Sequence[Document]) -> list[tuple[object, ...]]:
    """Return the contents that an index of these documents should have, in the form of `facts`."""
    entries = [index_record_of(document) for document in documents]
    return sorted((e.id, e.session, e.position, e.at, e.said, e.messages) for e in entries)


UNUSUAL_IDS = ["$ne", '{"$gt": ""}', "a.b", "a%", "' OR 1=1 --", "日本", "🐠", "x" * 512]
ODD_TEXTS = ["", "\x00", "a\x00b", "lone \ud83d half", "🐠 naïve " * 10, "word " * 200_000, "$where: 1", "' OR 1=1 --"]
USERS = ("u1", "u2")


class VectorStoreContract(BothStyles):
    """Contract for a store that `VectorMemory` may use; give it a `make_store` fixture.

    `make_store(embedding, **options)` returns a new store object over one place per test; options are `cache_bytes` and
    `now`.
    """

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Store:
        """Return a store."""
        return make_store(EMBEDDING)

    @pytest.fixture
    def other(self, make_store: MakeStore) -> Store:
        """Return a second store object over the same data, as another process would have."""
        return make_store(EMBEDDING)

    @pytest.fixture
    def save(self, call: Call) -> Call:
        """Return `save(store, documents)`, which saves like `VectorMemory`; `embedded=False` stores no vectors."""

        def save(store: Store, documents: Sequence[Document], embedded: bool = True, **options: object) -> bool:
            user, session = (documents[0].metadata[name] for name in ("user_id", "session_id"))
            begun = call(store.records, "begin", user, session)
            texts = [document.page_content for document in documents]
            vectors = call(store.records, "embed", texts) if embedded else [None] * len(documents)
            return bool(call(store.records, "write", user, session, begun.generation, documents, vectors, **options))

        return save

    def test_starts_empty(self, store: Store, call: Call) -> None:
        """A new store is empty, and calls without work are no errors."""
        assert len(call(store.records, "index", "u1")) == 0
        assert call(store.records, "sessions", "u1") == []
        assert call(store.records, "accesses", "u1") == {}
        assert call(store, "get_by_ids", ["a"]) == call(store, "get_by_ids", []) == []
        assert call(store, "forget", "u1") == call(store, "forget", "u1", "s1") == 0
        assert call(store.records, "evict", "u1", 0) == 0
        assert call(store, "similarity_search", "hello", filter={"user_id": "u1"}) == []
        assert call(store, "add_documents", []) == call(store.records, "embed", []) == []
        call(store, "delete", [])
        call(store, "delete", ["a"])
        call(store.records, "touch", "u1", ["a"], AT)
        call(store, "setup")

    def test_records_come_back(self, store: Store, other: Store, save: Call, call: Call) -> None:
        """A record is in the index with everything that ranks it, in the process that wrote it and in others."""
        rare: dict[str, Any] = {"epoch": 2**62, "importance": 7.5, "chunk": 1}
        documents = [record(1), record(2, "Zoë likes café au lait", **rare), record(3, open=True)]
        assert save(store, documents)
        for each in (store, other):
            index = call(each.records, "index", "u1")
            assert facts(index) == expected_entries(documents)
            (second,) = [entry for entry in index.entries if entry.position == 2]
            assert (second.epoch, second.importance, second.expires_at) == (2**62, 7.5, None)
            assert call(each, "get_by_ids", [d.id for d in documents], user_id="u1") == documents
            vector = call(each.records, "embed_query", documents[1].page_content)
            scores = dict(zip([e.position for e in index.entries], index.dense(vector).tolist(), strict=True))
            assert scores[2] == pytest.approx(1, abs=1e-5) == max(scores.values())

    def test_foreign_changes_are_seen(self, store: Store, other: Store, save: Call, call: Call) -> None:
        """The next read of the index sees what others added, replaced, deleted, evicted and purged."""
        save(store, [record(n) for n in range(4)])
        save(store, [record(1, session_id="s2")])
        assert len(call(other.records, "index", "u1")) == 5
        save(store, [record(7)])
        assert len(call(other.records, "index", "u1")) == 6
        save(store, [record(7, "said differently")])
        assert any(entry.said[0].stems == ("said", "differ") for entry in call(other.records, "index", "u1").entries)
        call(store, "delete", [record(7).id], user_id="u1")
        assert len(call(other.records, "index", "u1")) == 5
        save(store, [record(7)], delete=[record(0).id])  # as many as before
        left = [*map(record, (1, 2, 3, 7)), record(1, session_id="s2")]
        assert facts(call(other.records, "index", "u1")) == expected_entries(left)
        call(store, "forget", "u1", "s2")
        assert {entry.session for entry in call(other.records, "index", "u1").entries} == {"s1"}
        call(store.records, "evict", "u1", 1)
        assert len(call(other.records, "index", "u1")) == 1
        call(store, "forget", "u1")
        assert len(call(other.records, "index", "u1")) == len(call(store.records, "index", "u1")) == 0

    def test_expiry(self, make_store: MakeStore, save: Call, call: Call) -> None:
        """An expired record is gone from every answer at that moment, cached indexes included."""
        now = [AT]
        store = make_store(EMBEDDING, now=lambda: now[0])
        save(store, [record(1), record(2, expires_at=(AT + timedelta(minutes=5)).isoformat())])
        assert len(call(store.records, "index", "u1")) == 2
        now[0] += timedelta(minutes=5)
        fresh = make_store(EMBEDDING, now=lambda: now[0])
        for each in (store, fresh):
            assert [entry.position for entry in call(each.records, "index", "u1").entries] == [1]
            assert call(each, "get_by_ids", [record(2).id], user_id="u1") == []
            assert call(each.records, "begin", "u1", "s1").last == record(1)
            assert call(each.records, "sessions", "u1")[0].turns == 1
        save(store, [record(3)])
        assert [entry.position for entry in call(fresh.records, "index", "u1").entries] == [1, 3]

    def test_begin(self, store: Store, other: Store, save: Call, call: Call) -> None:
        """A session has one generation, its last record, and the user's vectors of known texts."""
        begun = call(store.records, "begin", "u1", "s1")
        assert (begun.last, dict(begun.vectors)) == (None, {})
        assert call(other.records, "begin", "u1", "s1").generation == begun.generation
        assert call(other.records, "begin", "u1", "s2").generation != begun.generation
        assert call(other.records, "begin", "u2", "s1").generation != begun.generation
        save(store, [record(10), record(9), record(11, open=True)])
        save(store, [record(99, session_id="s2")])
        save(store, [record(99, "somebody else's", user_id="u2")])
        text = record(10).page_content
        digests = [digest_of(each) for each in (text, "none", "somebody else's")]
        begun = call(other.records, "begin", "u1", "s1", digests)
        assert begun.last == record(11, open=True)
        (vector,) = begun.vectors.values()
        assert vector == pytest.approx(call(store.records, "embed", [text])[0])
        # A vector that the store returned is stored unchanged.
        began = call(store.records, "begin", "u1", "s3")
        assert call(other.records, "write", "u1", "s3", began.generation, [record(12, session_id="s3")], [vector])

    def test_begin_tells_of_records(self, make_store: MakeStore, save: Call, call: Call) -> None:
        """`begin` returns the requested records of this session; none of others, and none that has expired."""
        now = [AT]
        store = make_store(EMBEDDING, now=lambda: now[0])
        documents = [record(1), record(2), record(3, expires_at=(AT + timedelta(minutes=5)).isoformat())]
        theirs = [record(4, session_id="s2"), record(5, user_id="u2")]
        save(store, documents)
        for document in theirs:
            save(store, [document])
        ids = [str(document.id) for document in [*documents[1:], *theirs, record(9)]]
        begun = call(store.records, "begin", "u1", "s1", [], ids)
        assert begun.records == {documents[1].id: documents[1], documents[2].id: documents[2]}
        assert begun.last == documents[2]
        assert call(store.records, "begin", "u1", "s1").records == {}
        assert call(store.records, "begin", "u1", "new", [], ids).records == {}
        now[0] += timedelta(minutes=5)
        assert call(store.records, "begin", "u1", "s1", [], ids).records == {documents[1].id: documents[1]}

    def test_two_go_on_from_one_record(self, store: Store, other: Store, save: Call, call: Call) -> None:
        """Of two writers that change one record, the second is refused with nothing stored, and must begin again."""
        save(store, [record(1, open=True), record(2)])
        begun = call(store.records, "begin", "u1", "s1")
        known = {str(record(n).id): digest_of(record(n).page_content) for n in (1, 2)}
        only = {str(record(1).id): known[str(record(1).id)]}

        def write(target: Store, *documents: Document, expected: object = only, **options: object) -> object:
            vectors = [None] * len(documents)
            arguments = ("u1", "s1", begun.generation, documents, vectors)
            return call(target.records, "write", *arguments, expected=expected, **options)

        assert len(call(store.records, "index", "u1")) == 2
        assert write(other, record(1, "mine"), record(3))
        assert len(call(store.records, "index", "u1")) == 3
        before = facts(call(store.records, "index", "u1"))
        for expected in (only, known, {str(record(9).id): "none"}):
            with pytest.raises(HistoryConflictError, match="begin again"):
                write(store, record(1, "yours"), record(4), expected=expected, delete=[record(2).id])
        assert facts(call(store.records, "index", "u1")) == facts(call(other.records, "index", "u1")) == before
        assert call(store, "get_by_ids", [record(1).id, record(2).id], user_id="u1") == [record(1, "mine"), record(2)]
        mine = {str(record(1).id): digest_of(record(1, "mine").page_content)}
        assert write(store, record(1, "both"), record(4), expected={**known, **mine}, delete=[record(2).id])
        assert write(store, record(5), expected={str(record(4).id): digest_of(record(4).page_content)})
        for each in (store, other):
            wanted = [record(1, "both"), record(3), record(4), record(5)]
            assert facts(call(each.records, "index", "u1")) == expected_entries(wanted)
        call(other, "delete", [record(1).id], user_id="u1")
        with pytest.raises(HistoryConflictError, match="begin again"):
            write(store, record(1, "gone"), expected={str(record(1).id): digest_of(record(1, "both").page_content)})
        # A deleted session is not a conflict.
        call(other, "forget", "u1", "s1")
        assert write(store, record(1)) is write(store, record(1), expected=known) is False
        assert call(store, "get_by_ids", [record(1).id], user_id="u1") == []

    def test_a_forgotten_session_takes_no_save(self, store: Store, other: Store, save: Call, call: Call) -> None:
        """A save that began before its session or user was deleted stores nothing; one of a new session does."""
        for arguments in (("u1", "s1"), ("u1",)):
            save(store, [record(1)])
            begun = call(store.records, "begin", "u1", "s1")
            assert call(other, "forget", *arguments) == 1
            assert not call(store.records, "write", "u1", "s1", begun.generation, [record(1), record(2)], [None, None])
            assert not call(store.records, "write", "u1", "s1", begun.generation, [], [])
            assert len(call(store.records, "index", "u1")) == 0
            assert call(store, "get_by_ids", [record(1).id], user_id="u1") == []
            again = call(store.records, "begin", "u1", "s1", since=begun.generation)
            assert not call(store.records, "write", "u1", "s1", again.generation, [record(1)], [None])
            new = call(other.records, "begin", "u1", "s1")
            assert new.generation == call(store.records, "begin", "u1", "s1", since=new.generation).generation
            assert new.generation != begun.generation
            assert new.last is None
            assert call(other.records, "write", "u1", "s1", new.generation, [record(1, "anew")], [None])
            # Not even over the new session's record with the same id.
            assert not call(store.records, "write", "u1", "s1", begun.generation, [record(1, "old")], [None])
            assert call(store, "get_by_ids", [record(1).id], user_id="u1") == [record(1, "anew")]
            assert call(store, "forget", "u1") == 1

    def test_sessions(self, store: Store, save: Call, call: Call) -> None:
        """Sessions are listed with their numbers of rounds, the most recently used first."""
        save(store, [record(n) for n in range(3)])
        long = record(9, session_id="s2")
        piece = Document("a piece", id="piece", metadata={**long.metadata, "position": 10})
        save(store, [long, piece])
        save(store, [record(1, user_id="u2")])
        call(store, "add_documents", [Document("plain", metadata={"user_id": "u1"})])
        found = call(store.records, "sessions", "u1")
        assert [(s.session_id, s.turns) for s in found] == [("s2", 1), ("s1", 3)]
        assert (found[1].created_at, found[1].updated_at) == (AT, AT + timedelta(minutes=2))

    def test_forget(self, store: Store, save: Call, call: Call) -> None:
        """`forget` deletes the session's or the user's records, and nothing else."""
        for user in USERS:
            for session in ("s1", "s2"):
                save(store, [record(n, user_id=user, session_id=session) for n in range(2)])
        call(store, "add_documents", [Document("nobody's", id="n"), Document("x", id="p", metadata={"user_id": "u1"})])
        assert call(store, "forget", "u1", "s1") == 2
        assert {entry.session for entry in call(store.records, "index", "u1").entries} == {"s2", ""}
        assert call(store, "purge", "u1") == {"records": 3}
        assert call(store, "purge", "u1") == {"records": 0}
        assert len(call(store.records, "index", "u2")) == 4
        assert call(store, "similarity_search", "x")[0].id == "n"

    def test_recalls_and_eviction(self, store: Store, other: Store, save: Call, call: Call) -> None:
        """Eviction deletes the oldest record that was never recalled first, then the one recalled longest ago."""
        documents = [record(n) for n in range(6)]
        save(store, documents)
        names = [document.id for document in documents]
        stamps = call(other.records, "index", "u1").stamps()
        call(store.records, "touch", "u1", [names[0], names[1]], AT + timedelta(hours=2))
        call(store.records, "touch", "u1", [names[1], names[5]], AT + timedelta(hours=1))
        call(store.records, "touch", "u2", [names[2]], AT)
        recalled = {names[0]: AT + timedelta(hours=2), names[1]: AT + timedelta(hours=2)}
        recalled[names[5]] = AT + timedelta(hours=1)
        assert call(other.records, "accesses", "u1") == recalled
        assert call(other.records, "accesses", "u2") == {}
        assert call(other.records, "index", "u1").stamps() == stamps
        save(store, [record(0, "replaced")])
        assert call(other.records, "accesses", "u1") == recalled
        assert call(store.records, "evict", "u1", 6) == 0
        assert call(store.records, "evict", "u1", 4) == 2
        assert [n for n in range(6) if names[n] in call(other.records, "index", "u1")] == [0, 1, 4, 5]
        assert call(store.records, "evict", "u1", 2) == 2
        assert [n for n in range(6) if names[n] in call(other.records, "index", "u1")] == [0, 1]
        call(store, "delete", [names[0]], user_id="u1")
        assert call(store.records, "accesses", "u1") == {names[1]: AT + timedelta(hours=2)}
        save(store, [record(7), record(8)])
        kept = [str(record(n).id) for n in (7, 8)]
        assert call(store.records, "evict", "u1", 1, kept) == 1  # new records outlive even recalled ones
        assert call(store.records, "evict", "u1", 0, kept) == 0
        assert [entry.position for entry in call(other.records, "index", "u1").entries] == [7, 8]
        assert call(store.records, "evict", "u1", 1) == 1
        assert call(store.records, "evict", "u1", 0) == 1

    def test_unusual_ids(self, store: Store, save: Call, call: Call) -> None:
        """Every text is an id of a user, a session and a record."""
        for name in UNUSUAL_IDS:
            document = record(1, user_id=name, session_id=name)
            document.id = name
            assert save(store, [document])
        for name in UNUSUAL_IDS:
            assert [entry.id for entry in call(store.records, "index", name).entries] == [name]
            assert call(store, "forget", name, name) == 1

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: repr(text[:9]))
    def test_odd_texts(self, store: Store, other: Store, save: Call, call: Call, text: str) -> None:
        """Every text comes back as it was, and does no harm to others."""
        odd: dict[str, Any] = {"note": text[:99], text[:20]: [1, (2, text[:9])], "at": AT}
        odd["deep"] = {"$gt": {"a.b": b"\xff"}}
        document = record(1, text, **odd)
        document.metadata["messages"] = [text[:99]]
        assert save(store, [document, record(2)])
        plain = call(store, "add_documents", [Document(text, metadata={"user_id": "u1", **odd})])
        for each in (store, other):
            assert len(call(each.records, "index", "u1")) == 3
            assert call(each, "get_by_ids", [document.id, *plain], user_id="u1")[0] == document
            assert call(each, "get_by_ids", plain, user_id="u1")[0].page_content == text

    def test_an_id_is_its_users(self, store: Store, other: Store, save: Call, call: Call) -> None:
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
            assert len(call(store.records, "index", who)) == 2
        assert save(store, [record(5, user_id="u2")], delete=[record(1).id])
        assert call(store, "get_by_ids", [record(1).id], user_id="u1") == [record(1)]
        assert call(store, "get_by_ids", [record(1).id], user_id="u2") == []
        call(store.records, "touch", "u2", ["a"], AT)
        assert call(store.records, "accesses", "u1") == {}
        call(store, "delete", ["a"], user_id="u2")
        assert [texts(who) for who in owners] == [["of None"], ["mine"], []]
        call(store, "delete", ["a"])
        assert [texts(who) for who in ("u1", "u2")] == [["mine"], []]
