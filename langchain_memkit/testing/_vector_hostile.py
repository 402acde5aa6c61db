"""Contract cases for vector stores with invalid, hostile and unusual input."""

from __future__ import annotations

import math
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from langchain_core.documents import Document

from langchain_memkit.errors import ConfigurationError, HistoryConflictError, HistoryWriteError, MessageEncodeError
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing._vector_cases import AT, Stores, record
from langchain_memkit.testing.properties import SETTINGS, metadata, texts

HOSTILE_IDS = [{"$ne": 1}, {"$gt": ""}, None, 123, b"k", ["k"], True, ("k",)]
BAD_IDS = ["", "a\x00b", "\ud800", "x" * 513]
UNUSUAL_IDS = ["$ne", '{"$gt": ""}', "a.b", "a%", "' OR 1=1 --", "日本", "🐠", "x" * 512]
ODD_TEXTS = ["", "\x00", "a\x00b", "lone \ud83d half", "🐠 naïve " * 10, "word " * 200_000, "$where: 1", "' OR 1=1 --"]


class HostileCases(Stores):
    """Cases for ids, texts and metadata."""

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
