"""Cases of memkit's own vector stores beyond the contract: what is the same over every backend, and hostile input."""

from __future__ import annotations

import asyncio
import math
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.indexing import InMemoryRecordManager, aindex, index

from langchain_memkit._sync import drive
from langchain_memkit.base import apurge_user, purge_user
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryConflictError,
    HistoryReadError,
    HistoryWriteError,
    MessageEncodeError,
)
from langchain_memkit.ranking.index import digest_of
from langchain_memkit.stores.vectors import RecordVectorStore as Store
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing.vectors import (
    AT,
    EMBEDDING,
    USERS,
    MakeStore,
    VectorStoreContract,
    expected_entries,
    facts,
    record,
)
from testkit.examples import examples
from testkit.properties import SETTINGS, metadata, texts

HOSTILE_IDS = [{"$ne": 1}, {"$gt": ""}, None, 123, b"k", ["k"], True, ("k",)]
BAD_IDS = ["", "a\x00b", "\ud800", "x" * 513]
JULY = datetime(2026, 7, 1, tzinfo=UTC)
METADATAS: list[dict[str, Any]] = [
    {"n": 1, "tags": ["red", "blue"], "at": JULY, "by": {"name": "Nemo"}},
    {"n": 2.5, "tags": [], "at": JULY.replace(month=8), "by": [{"name": "Kiwi"}, {"name": "Nemo"}]},
    {"n": "2", "tags": "red", "ok": True},
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
    ({"by": {"name": "Nemo"}}, "01"),
    ({"ok": True}, "2"),
    ({"ok": None}, "01"),
    ({"$or": [{"n": 1}, {"ok": True}]}, "02"),
    ({"$or": [{"$and": [{"n": 1}, {"ok": True}]}, {"n": 2.5}]}, "1"),
    ({"$and": [{"tags": "red"}, {"n": {"$ne": 1}}]}, "2"),
    ({"user_id": "u1"}, "3"),
    ({"user_id": {"$eq": "u1"}, "ok": 1}, "3"),
    ({"user_id": "u1", "ok": True}, ""),
    ({"$and": [{"user_id": "u1"}, {"by": {"$in": [{"name": "Kiwi"}]}}]}, "3"),
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
    ({"n": {"$not": {"$gte": 1}}}, "knows no '\\$not': it takes names of metadata, without dots, and \\$eq, .*\\$or$"),
    ({"n": {"$exists": False}}, "knows no '\\$exists'"),
    ({"$nor": [{"n": 1}]}, "knows no '\\$nor'"),
    ({"by.name": "Nemo"}, "knows no 'by.name': it takes names of metadata, without dots"),
    ({"by": {"name": {"$gt": "a"}}}, "no operators inside of values"),
    ({"n": {"$gt": None}}, "needs a number, text or date after \\$gt"),
    ({"$or": {"n": 1}}, "needs a list of dicts after \\$or"),
    ({"$and": []}, "needs a list of dicts after \\$and"),
    ({1: 1}, "knows no 1"),
    ([{"n": 1}], "must be a dict"),
    ({"user_id": {"$ne": "u1"}}, "documents of one user"),
    ({"user_id": {"$in": ["u1", "u2"]}}, "documents of one user"),
    ({"$or": [{"user_id": "u1"}, {"user_id": "u2"}]}, "documents of one user"),
    ({"$and": [{"user_id": "u1"}, {"user_id": "u2"}]}, "names several"),
    ({"$and": [{"$or": [{"user_id": "u2"}]}]}, "documents of one user"),
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


class Wrong(Embeddings):
    """Embedding model that returns given vectors, right or wrong."""

    def __init__(self, *vectors: Any) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the given vectors in order, then the last one again."""
        return [*self.vectors[: len(texts)], *[self.vectors[-1]] * (len(texts) - len(self.vectors))]

    def embed_query(self, text: str) -> list[float]:
        """Return the first vector."""
        return self.vectors[0]


class VectorStoreCases(VectorStoreContract):
    """The contract, and these cases; the fixture is the contract's."""

    def test_little_is_held(self, make_store: MakeStore, save: Call, call: Call) -> None:
        """A cache too small for two users keeps the last one, however large, until another one is read."""
        store = make_store(EMBEDDING, cache_bytes=0)
        save(store, [record(n) for n in range(3)])
        save(store, [record(1, user_id="u2")])
        first = call(store.records, "index", "u1")
        assert call(store.records, "index", "u1") is first
        assert len(call(store.records, "index", "u2")) == 1
        save(store, [record(5)])
        assert call(store.records, "index", "u1") is not first
        assert len(call(store.records, "index", "u1")) == 4
        for wrong in (-1, 1.5, "64"):
            with pytest.raises(ConfigurationError, match="cache_bytes"):
                make_store(EMBEDDING, cache_bytes=wrong)

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
        begun = call(store.records, "begin", "u1", "s1")
        if bad is not None:
            other = make_store(Wrong([1.0, 0.0, 0.0]))
            with pytest.raises(ConfigurationError):
                call(other.records, "write", "u1", "s1", begun.generation, [record(1)], [bad])
        assert len(call(store.records, "index", "u1")) == 0
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
        for name in ("similarity_search", "max_marginal_relevance_search"):
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
        unknown, known = call(store.records, "embed", ["qwxz", "b"])
        assert unknown is None
        assert known.tolist() == [1.0, 0.0, 0.0]
        begun = call(store.records, "begin", "u1", "s1")
        assert call(store.records, "write", "u1", "s1", begun.generation, [record(1)], [[0.0] * 3])
        assert len(call(store.records, "index", "u1")) == 1
        with pytest.raises(ConfigurationError, match="plain English"):
            call(make_store(Wrong([0.0] * 3)).records, "embed", ["a"])

    def test_sizes_and_scales(self, make_store: MakeStore, call: Call) -> None:
        """Vectors of another length than the first are refused; huge and tiny ones count by their direction."""
        with pytest.raises(ConfigurationError, match="dimensions"):
            call(make_store(Wrong([1.0, 2.0], [1.0])), "add_documents", [Document("a"), Document("b")])
        with pytest.raises(ConfigurationError, match="vectors for"):
            call(make_store(type("Few", (Wrong,), {"embed_documents": lambda *_: []})([1.0])).records, "embed", ["a"])
        store = make_store(Wrong([1e300, 0.0], [0.0, 1e-300], [1.0, 0.0]))
        call(store, "add_documents", [Document("a", id="a"), Document("b", id="b")])
        found = call(store, "similarity_search_with_score", "a", k=2)
        assert [(document.id, round(score, 6)) for document, score in found] == [("a", 1.0), ("b", 0.0)]

    def test_whose_a_document_is(self, store: Store, call: Call) -> None:
        """A search finds the documents of one user, or those without an owner; never all of them."""
        metadatas = [{"user_id": "u1", "session_id": "s1"}, {"user_id": "u1", "n": 1}, {"user_id": "u2", "n": 1}, {}]
        call(store, "add_texts", ["same text"] * 4, metadatas, ids=["a", "b", "c", "d"])

        def found(**filter_: object) -> list[str]:
            return sorted(d.id for d in call(store, "similarity_search", "same text", k=9, filter=filter_))

        assert found(user_id="u1") == ["a", "b"]
        assert found(user_id="u1", session_id="s1") == ["a"]
        assert found(user_id="u1", n=1) == ["b"]
        assert found(user_id="u1", n=2) == found(user_id="u1", m=None) == found(user_id="u3") == found(n=1) == []
        assert found() == [d.id for d in call(store, "similarity_search", "same text")] == ["d"]
        assert len(call(store.records, "index", "u1")) == 2

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
        assert [len(call(store.records, "index", user)) for user in ("u0", "u1")] == [4, 3]
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

    @pytest.mark.parametrize("bad", HOSTILE_IDS, ids=repr)
    def test_ids_must_be_strings(self, store: Any, call: Call, bad: Any) -> None:
        """Anything but a string is a TypeError before any I/O: operators never reach a filter."""
        begun = call(store.records, "begin", "u1", "s1")
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
                call(store if hasattr(store, name) else store.records, name, *arguments)
        if bad is not None:
            with pytest.raises(TypeError):
                call(store, "add_documents", [Document("a")], ids=[bad])

    def test_wrong_limits_and_times(self, store: Store, call: Call) -> None:
        """A limit below 0 and a time without a zone are refused."""
        with pytest.raises(ValueError, match="max_records"):
            call(store.records, "evict", "u1", -1)
        with pytest.raises(ValueError, match="aware"):
            call(store.records, "touch", "u1", ["a"], datetime(2026, 1, 1))  # noqa: DTZ001  # wrong on purpose

    def test_threads_add_to_one_record(self, store: Store) -> None:
        """Concurrent writers that extend the same record lose nothing: the second one begins again."""
        began = drive(store.records.begin("u1", "s1"))
        assert drive(store.records.write("u1", "s1", began.generation, [record(1, "start")], [None]))
        name = str(record(1).id)

        def work(word: str) -> None:
            for n in range(5):
                while True:
                    begun = drive(store.records.begin("u1", "s1", [], [name]))
                    old = begun.records[name]
                    said = f"{old.page_content[len('human: ') :].splitlines()[0]} {word}{n}"
                    expected = {name: digest_of(old.page_content)}
                    try:
                        arguments = ("u1", "s1", begun.generation, [record(1, said)], [None])
                        assert drive(store.records.write(*arguments, expected=expected))
                    except HistoryConflictError:
                        continue
                    break

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, "abc"))
        said = store.get_by_ids([name], user_id="u1")[0].page_content.splitlines()[0].split()
        assert sorted(said[2:]) == sorted(f"{word}{n}" for word in "abc" for n in range(5))

    @pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: repr(bad[:4]))
    def test_malformed_ids(self, store: Any, call: Call, bad: str) -> None:
        """Empty, too long, NUL and lone surrogates are a ValueError."""
        for name, *arguments in (("index", bad), ("begin", "u1", bad), ("get_by_ids", [bad]), ("delete", [bad])):
            with pytest.raises(ValueError, match="id"):
                call(store if hasattr(store, name) else store.records, name, *arguments)
        for known in ({"user_id": bad}, {"session_id": bad}):
            with pytest.raises(ValueError, match="id"):
                call(store, "add_texts", ["a"], [known])

    def test_other_metadata_than_records_have(self, store: Any, call: Call) -> None:
        """Keys that have a meaning in a record have none in a plain document."""
        known = {"position": "CEO", "created_at": "then", "expires_at": "2000-01-01", "messages": 5, "said": "so"}
        document = Document("a", id="a", metadata={**known, "importance": "high", "epoch": None, "open": "9am"})
        call(store, "add_documents", [document])
        assert call(store, "similarity_search", "a") == [document]

    def test_refusals(self, store: Any, call: Call) -> None:
        """A document that cannot be stored exactly is refused with nothing stored."""
        begun = call(store.records, "begin", "u1", "s1")

        def write(document: Document, vectors: Any = (None,)) -> None:
            call(store.records, "write", "u1", "s1", begun.generation, [record(2), document], [None, *vectors])

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
        assert len(call(store.records, "index", "u1")) == 0

    def test_a_cold_index_is_the_warm_one(self, store: Any, other: Any, save: Call, call: Call) -> None:
        """After its own writes and deletions, a process has cached the index that another one reads from the store."""
        save(store, [record(n) for n in range(5)])
        first = call(store.records, "index", "u1")
        save(store, [record(2, "another text"), record(9)], delete=[record(0).id])
        assert call(store.records, "index", "u1") is first
        assert facts(first) == facts(call(other.records, "index", "u1"))
        assert facts(first) == expected_entries([record(1), record(2, "another text"), record(3), record(4), record(9)])

    @pytest.mark.parametrize("foreign", [DeterministicFakeEmbedding(size=8), Wrong([1.0] * 16)], ids=["size", "model"])
    def test_two_embedders(self, make_store: MakeStore, foreign: Embeddings, call: Call) -> None:
        """A store that one model filled accepts neither texts nor queries of another one."""
        call(make_store(EMBEDDING), "add_documents", [Document("a", id="a")])
        for name, argument in (("add_documents", [Document("b")]), ("similarity_search", "b")):
            with pytest.raises(ConfigurationError, match="another embedding model"):
                call(make_store(foreign), name, argument)
        assert [d.id for d in call(make_store(EMBEDDING), "similarity_search", "a")] == ["a"]

    def test_a_rare_match_is_found(self, store: Any, call: Call) -> None:
        """A filter on metadata finds its only document, however far it is from the question."""
        call(store, "add_texts", [f"text {n}" for n in range(300)], [{"n": n} for n in range(300)])
        for n in (0, 150, 299):
            assert [d.metadata for d in call(store, "similarity_search", "text 7", k=1, filter={"n": n})] == [{"n": n}]
        assert len(call(store, "similarity_search", "text 7", k=300)) == 300

    def test_records_without_vectors(self, store: Any, save: Call, call: Call) -> None:
        """Records without vectors are in the index, but similarity searches do not find them."""
        save(store, [record(1)], embedded=False)
        assert len(call(store.records, "index", "u1")) == 1
        assert call(store, "similarity_search", "number", filter={"user_id": "u1"}) == []
        save(store, [record(2)])
        assert [d.id for d in call(store, "similarity_search", "n", filter={"user_id": "u1"})] == [record(2).id]

    def test_an_id_stays_in_its_session(self, store: Any, call: Call) -> None:
        """A document of another session cannot be overwritten by using its id."""
        call(store, "add_documents", [Document("a", id="a", metadata={"user_id": "u1"})])
        with pytest.raises(HistoryConflictError, match="another session"):
            call(store, "add_documents", [Document("b", id="a", metadata={"user_id": "u1", "session_id": "s9"})])
        assert [d.page_content for d in call(store, "get_by_ids", ["a"], user_id="u1")] == ["a"]

    def test_is_a_part_of_purge_user(self, store: Store) -> None:
        """`purge_user` and its twin take a store."""
        store.add_texts(["a", "b"], [{"user_id": "u1"}, {"user_id": "u2"}])
        assert purge_user("u1", store) == [{"records": 1}]
        assert asyncio.run(apurge_user("u2", store)) == [{"records": 1}]

    def test_who_is_meant_must_be_said(self, store: Store, call: Call) -> None:
        """The id of a user's document, given without the user, finds and deletes nothing; the error says what to do."""
        call(store, "add_documents", [Document("mine", id="a", metadata={"user_id": "u1"}), Document("free", id="b")])
        for verb in ("get_by_ids", "delete"):
            with pytest.raises(ConfigurationError, match="user_id="):
                call(store, verb, ["b", "a"])
        assert len(call(store, "get_by_ids", ["a"], user_id="u1")) == len(call(store, "get_by_ids", ["b", "c"])) == 1

    def test_what_is_accepted_comes_back_equal(self, store: Store) -> None:
        """Random documents: equal on return, or refused with nothing stored."""
        accepted = tried = 0

        @settings(SETTINGS, max_examples=examples(40))
        @given(texts, metadata)
        def check(text: str, known: dict[str, object]) -> None:
            nonlocal accepted, tried
            tried += 1
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
        assert accepted > tried / 2, "most of what was tried should be storable"

    def test_threads(self, store: Store) -> None:
        """Parallel writers and readers lose nothing, and the cached index equals the stored records."""

        def work(worker: int) -> None:
            session = f"s{worker}"
            for n in range(15):
                begun = drive(store.records.begin("u1", session))
                documents = [record(n, session_id=session)]
                assert drive(
                    store.records.write(
                        "u1",
                        session,
                        begun.generation,
                        documents,
                        drive(store.records.embed([documents[0].page_content])),
                    )
                )
                assert documents[0].id in drive(store.records.index("u1"))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        wanted = expected_entries([record(n, session_id=f"s{w}") for w in range(4) for n in range(15)])
        assert facts(drive(store.records.index("u1"))) == wanted
        store.close()
        assert facts(drive(store.records.index("u1"))) == wanted

    def test_two_users_never_meet(self, make_store: MakeStore) -> None:
        """Random operations of two users with equal words, on two store objects: each sees exactly its own."""
        stores = [make_store(EMBEDDING), make_store(EMBEDDING)]

        @settings(SETTINGS, max_examples=examples(8))
        @given(operations)
        def check(steps: list[tuple[str, str, str, int]]) -> None:
            for user in USERS:
                stores[0].forget(user)
            model: dict[str, dict[str, tuple[str, int]]] = {user: {} for user in USERS}
            for i, (verb, user, session, n) in enumerate(steps):
                run(stores[i % 2], model[user], verb, user, session, n)
                for store in stores:
                    for each in USERS:
                        entries = drive(store.records.index(each)).entries
                        assert {entry.id for entry in entries} == model[each].keys()
                        found = store.similarity_search("what about number", k=50, filter={"user_id": each})
                        assert {document.id for document in found} == model[each].keys()
                        assert all(document.metadata["user_id"] == each for document in found)

        check()


def run(store: Store, mine: dict[str, tuple[str, int]], verb: str, user: str, session: str, n: int) -> None:
    """Perform one operation on a store, and on the model of what it should hold of a user."""
    document = record(n, user_id=user, session_id=session)
    name = str(document.id)
    if verb == "write":
        begun = drive(store.records.begin(user, session))
        assert drive(
            store.records.write(
                user, session, begun.generation, [document], drive(store.records.embed([document.page_content]))
            )
        )
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
        drive(store.records.evict(user, max(n, len(mine))))
    elif verb == "touch":
        drive(store.records.touch(user, [name], AT))
    elif verb == "reopen":
        store.close()
