"""LangChain's class for MongoDB Atlas as a store of others, on a real server: all but the search, which it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_mongodb import MongoDBAtlasVectorSearch
from pymongo import MongoClient

from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends.wordllama import WordLlamaEmbeddings
from langchain_memkit.errors import HistoryReadError
from langchain_memkit.memories.vector.adapter import VectorStoreAdapter

START = datetime(2026, 1, 2, tzinfo=UTC)
Call = Callable[..., Any]


@pytest.fixture
def theirs(standalone: Any, database: str) -> Iterator[MongoDBAtlasVectorSearch]:
    """The store on a collection of the test's own."""
    with MongoClient(standalone.uri) as client:
        yield MongoDBAtlasVectorSearch(client[database]["memories"], WordLlamaEmbeddings(64), auto_create_index=False)
        client.drop_database(database)


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """`call(store, "write", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        flow = getattr(target, verb)(*args, **kwargs)
        return drive(flow) if request.param == "sync" else asyncio.run(adrive(flow))

    return run


def records(user: str, session: str, *texts: str) -> list[Document]:
    """A record for each text."""
    return [
        Document(
            id=f"{user}-{session}-{i}",
            page_content=f"human: {text}",
            metadata={
                "user_id": user,
                "session_id": session,
                "created_at": (START + timedelta(hours=i)).isoformat(),
                "said": [["human", "", 7, 7 + len(text)]],
                "messages": [f"m{i}"],
                "epoch": 2**62 + 1,
            },
        )
        for i, text in enumerate(texts)
    ]


def test_records_are_stored_once_and_forgotten_for_good(theirs: MongoDBAtlasVectorSearch, call: Call) -> None:
    """Found by id and in the collection, which does not lag behind as a search index does; others stay."""
    target = VectorStoreAdapter(theirs)
    mine = records("u1", "s1", "tea", "coffee", "milk")
    other = [*records("u1", "s2", "rain"), *records("u2", "s1", "snow")]
    for documents in (mine, other[:1], other[1:], mine):
        known = documents[0].metadata
        assert call(target, "write", known["user_id"], known["session_id"], "", documents, [None] * len(documents))
    ids = [document.id for document in (*mine, *other)]
    assert call(target, "get_by_ids", None, ids) == [*mine, *other]
    assert theirs.collection.count_documents({}) == 5
    assert theirs.collection.find_one({"user_id": "u2"}, {"text": 1, "_id": 0}) == {"text": "human: snow"}
    assert {entry.epoch for entry in call(target, "index", "u1").entries} == {2**62 + 1}
    assert [(s.session_id, s.turns) for s in call(target, "sessions", "u1")] == [("s1", 3), ("s2", 1)]
    assert call(target, "evict", "u1", 3) == 1
    call(target, "delete", "u1", [])
    assert theirs.collection.count_documents({}) == 4
    assert call(target, "forget", "u1", "s1") + call(target, "forget", "u1") == 3
    assert call(target, "get_by_ids", None, ids) == other[1:]
    assert theirs.collection.count_documents({}) == 1


def test_without_atlas_a_search_is_an_error(theirs: MongoDBAtlasVectorSearch, call: Call) -> None:
    """A server without `$vectorSearch` says so; nothing is found in silence."""
    with pytest.raises(HistoryReadError, match="MongoDBAtlasVectorSearch cannot be read: OperationFailure"):
        call(VectorStoreAdapter(theirs), "similar", "u1", "tea", 3)
