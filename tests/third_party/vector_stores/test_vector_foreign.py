"""Vector stores of others as the store of a vector memory: real Chroma on disk, real FAISS, core's in-memory store."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from chromadb import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends.wordllama import WordLlamaEmbeddings
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.memories.rebuildable import Segment
from langchain_memkit.memories.vector import adapter as access
from langchain_memkit.memories.vector.adapter import VectorStoreAdapter
from langchain_memkit.memories.vector.rounds import Splitter, documents_of, rounds_of
from testkit.ranking import lexical

with warnings.catch_warnings():  # community: that nobody looks after it any more; faiss: of SWIG's and numpy's insides
    warnings.simplefilter("ignore", DeprecationWarning)
    import faiss
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS

START = datetime(2026, 1, 2, tzinfo=UTC)
TEXTS = ["My cat is called Nemo.", "I work in Oslo.", "Tea is at five o'clock.", "The parrot bit me.", "I fear snakes."]

Call = Callable[..., Any]


class Found(dict[str, float]):
    """What a search found: similarities by id, and the records, best first."""

    def __init__(self, hits: Sequence[tuple[Document, float]]) -> None:
        super().__init__({document.id or "": score for document, score in hits})
        self.documents = [document for document, _ in hits]


class Adapted:
    """The adapter's flows as methods in both styles: `similar` and `asimilar`."""

    def __init__(self, store: VectorStore, **options: Any) -> None:
        self.flows = VectorStoreAdapter(store, **options)

    def __getattr__(self, verb: str) -> Any:
        name = verb if hasattr(self.flows, verb) else verb[1:]
        flow = getattr(self.flows, name)

        def found(result: Any) -> Any:
            return Found(result) if name == "similar" else result

        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            return found(await adrive(flow(*args, **kwargs)))

        return asynchronous if verb != name else lambda *args, **kwargs: found(drive(flow(*args, **kwargs)))


class Counting(WordLlamaEmbeddings):
    """Counts the texts that are embedded."""

    def __init__(self) -> None:
        super().__init__(64)
        self.embedded: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Notes them."""
        self.embedded += texts
        return super().embed_documents(texts)


class Deaf(InMemoryVectorStore):
    """Ignores filters."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Of anybody."""
        return super().similarity_search(query, k)

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """Of anybody."""
        return super().similarity_search_with_score(query, k)


class Plain(VectorStore):
    """Adds, deletes, searches and looks ids up; no listing, and no ids of what is found: the least that is needed."""

    def __init__(self, embedding: Any, *, deaf: bool = False) -> None:
        self._inner = InMemoryVectorStore(embedding)
        self._deaf = deaf

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Replaces what has the same id."""
        return self._inner.add_documents(documents, **kwargs)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> None:
        """Passes over what is not there."""
        self._inner.delete(ids)

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Without what is not there."""
        return self._inner.get_by_ids(ids)

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """Without ids."""
        wanted: Mapping[str, str] = {} if self._deaf else kwargs["where"]
        found = self._inner.similarity_search_with_score(query, k, filter=lambda d: access.matches_metadata(d, wanted))
        return [(Document(page_content=d.page_content, metadata=d.metadata), score) for d, score in found]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Without scores, too."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> Plain:
        """None."""
        raise NotImplementedError


def chroma(path: Path, embedding: Any = None, **options: Any) -> Chroma:
    """A collection in a folder."""
    options.setdefault("collection_name", "memories")
    settings_ = Settings(anonymized_telemetry=False, is_persistent=True, persist_directory=str(path))
    return Chroma(
        embedding_function=embedding or Counting(), persist_directory=str(path), client_settings=settings_, **options
    )


def new_faiss(embedding: Any = None) -> FAISS:
    """An empty exact index."""
    return FAISS(embedding or Counting(), faiss.IndexFlatL2(64), InMemoryDocstore(), {})


STORES = ["chroma", "faiss", "memory", "plain"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VectorStore:
    """Each of the real stores, and the least store."""
    if request.param == "chroma":
        return chroma(tmp_path)
    makers: dict[str, Callable[[], Any]] = {
        "faiss": new_faiss,
        "memory": lambda: InMemoryVectorStore(Counting()),
        "plain": lambda: Plain(Counting()),
    }
    return makers[request.param]()


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """`call(store, "write", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return run


def foreign(store: VectorStore, **options: Any) -> Adapted:
    """The store as a memory's; one that nobody knows is told how to filter."""
    if isinstance(store, Plain):
        options["filter_builder"] = lambda wanted: {"where": wanted}
    return Adapted(store, **options)


def records(user: str, session: str, *texts: str, **more: Any) -> list[Document]:
    """One round for each text."""
    found: list[Document] = []
    for i, text in enumerate(texts):
        messages = [HumanMessage(text, id=f"{text}-q", name="Ann"), AIMessage("I see.", id=f"{text}-a")]
        [round_] = rounds_of([Segment(messages, START + timedelta(hours=i), 2**62 + 1, native=True)], START)
        found += documents_of(round_, (user, session), i, Splitter())
    for document in found:
        document.metadata |= more
    return found


def put(target: Adapted, user: str, session: str, *texts: str, **more: Any) -> list[Document]:
    """Writes a round for each text."""
    documents = records(user, session, *texts, **more)
    begun = target.begin(user, session)
    assert target.write(user, session, begun.generation, documents, [None] * len(documents))
    return documents


def texts(similar: Found) -> set[str]:
    """What the user said in what was found."""
    return {d.page_content.split("\n")[0].removeprefix("Ann: ") for d in similar.documents}


# --- writing


def test_a_record_comes_back_as_it_was(store: VectorStore, call: Call) -> None:
    """Lists, 63-bit numbers and all else, by id and by search; none of it is embedded by us."""
    target = foreign(store)
    documents = records("u1", "s1", *TEXTS, importance=7.5)
    documents[0].metadata["open"] = True
    begun = call(target, "begin", "u1", "s1", ["digest"])
    assert (begun.last, begun.vectors) == (None, {})
    assert call(target, "embed", ["a", "b"]) == [None, None]
    assert call(target, "write", "u1", "s1", begun.generation, documents, [None] * len(documents))
    ids = [document.id for document in documents]
    assert call(target, "get_by_ids", "u1", [*ids, "unknown"]) == documents
    similar = call(target, "similar", "u1", "What is my cat called?", 10)
    assert sorted(similar.documents, key=str) == sorted(documents, key=str)
    assert similar.documents[0] == documents[0]


def test_plain_fields_show_in_the_stores_own_tools(tmp_path: Path) -> None:
    """Chroma's own look-up by a field finds the record; lists stand in one field of JSON."""
    mine = chroma(tmp_path)
    put(Adapted(mine), "u1", "s1", TEXTS[0])
    found = mine.get(where={"session_id": "s1"})
    assert found["documents"] == ["Ann: My cat is called Nemo.\nai: I see."]
    [metadata] = found["metadatas"]
    assert (metadata["user_id"], metadata["created_at"]) == ("u1", START.isoformat())
    assert json.loads(metadata["memkit"])["messages"] == ["My cat is called Nemo.-q", "My cat is called Nemo.-a"]


def test_a_retry_stores_and_embeds_nothing(store: VectorStore, call: Call) -> None:
    """The same records again; records that say something else are replaced, in place."""
    target, embedded = foreign(store), store._inner.embedding.embedded if isinstance(store, Plain) else None
    embedded = embedded if embedded is not None else store.embeddings.embedded  # type: ignore[union-attr]
    documents = records("u1", "s1", *TEXTS)
    for _ in range(3):
        assert call(target, "write", "u1", "s1", "", documents, [None] * 5)
    assert len(embedded) == 5
    changed = Document(id=documents[1].id, page_content="Ann: I work in Rome.", metadata=documents[1].metadata)
    changed.metadata["said"] = [["human", "Ann", 5, 20]]
    assert call(target, "write", "u1", "s1", "", [changed, changed], [None, None], [documents[2].id])
    assert len(embedded) == 6
    assert texts(call(target, "similar", "u1", "work", 10)) == {*TEXTS, "I work in Rome."} - {TEXTS[1], TEXTS[2]}


def test_what_faiss_does_with_a_known_id(tmp_path: Path) -> None:
    """It takes the vector, then refuses the document, and is wrong from then on: why nothing is added unseen."""
    theirs = new_faiss()
    theirs.add_documents([Document("I like tea.")], ids=["1"])
    with pytest.raises(ValueError, match="already exist"):
        theirs.add_documents([Document("I like coffee.")], ids=["1"])
    assert (theirs.index.ntotal, len(theirs.index_to_docstore_id)) == (2, 1)
    mine = new_faiss()
    for _ in range(2):
        put(Adapted(mine), "u1", "s1", *TEXTS)
    assert mine.index.ntotal == len(mine.index_to_docstore_id) == 5


def test_many_at_once(store: VectorStore, call: Call) -> None:
    """More than Chroma takes in one call (5,461; nothing else has a limit); all are there, and all go."""
    target, n = foreign(store), 6000 if isinstance(store, Chroma) else 1500
    many = [Document(id=f"r{i}", page_content=f"text {i}", metadata={"user_id": "u1"}) for i in range(n)]
    assert call(target, "write", "u1", "s1", "", many, [None] * n)
    assert len(call(target, "index", "u1")) == n
    assert call(target, "forget", "u1") == n


def test_both_instances_see_what_is_on_disk(tmp_path: Path) -> None:
    """Chroma opened a second time, and FAISS saved and loaded, hold the records; forgetting reaches them."""
    documents = put(Adapted(chroma(tmp_path / "c")), "u1", "s1", *TEXTS)
    ids = [document.id or "" for document in documents]
    second = Adapted(chroma(tmp_path / "c"))
    assert second.get_by_ids("u1", ids) == documents
    assert second.forget("u1", "s1") == 5
    assert Adapted(chroma(tmp_path / "c")).get_by_ids("u1", ids) == []
    mine = new_faiss()
    put(Adapted(mine), "u1", "s1", *TEXTS)
    mine.save_local(str(tmp_path / "f"))
    loaded = FAISS.load_local(str(tmp_path / "f"), Counting(), allow_dangerous_deserialization=True)
    assert Adapted(loaded).get_by_ids("u1", ids) == documents
    assert texts(Adapted(loaded).similar("u1", "Nemo", 9)) == set(TEXTS)


# --- whose


def test_users_find_their_own(store: VectorStore, call: Call) -> None:
    """One record among a hundred of another user's that are all nearer is found; so it is by session."""
    target = foreign(store)
    put(target, "u2", "s1", *(f"My cat is called Nemo {i}." for i in range(100)))
    put(target, "u1", "s1", "Snakes.")
    assert texts(call(target, "similar", "u1", "What is my cat called?", 4)) == {"Snakes."}
    assert len(call(target, "similar", "u2", "What is my cat called?", 4)) == 4
    assert call(target, "similar", "u3", "What is my cat called?", 4) == {}
    assert call(target, "forget", "u1") == 1
    assert len(call(target, "index", "u2")) == 100


def test_ids_are_data(store: VectorStore, call: Call) -> None:
    """Ids that look like operators, or like each other, are different users."""
    target = foreign(store)
    users = ["$ne", '{"$ne": null}', "U1", "u1", "u1 ", "%", "../u1"]
    for user in users:
        put(target, user, "s1", f"I am {user}.")
    for user in users:
        assert texts(call(target, "similar", user, "Who am I?", 50)) == {f"I am {user}."}


def test_a_store_that_ignores_filters_shows_nobody_what_is_anothers(call: Call) -> None:
    """Hits of others are dropped, and forgetting a user spares them; with scores and without."""
    for store in (Deaf(Counting()), Plain(Counting(), deaf=True)):
        target = foreign(store)
        put(target, "u1", "s1", *TEXTS[:2])
        put(target, "u2", "s1", *TEXTS[2:])
        assert texts(call(target, "similar", "u1", "parrot", 50)) == set(TEXTS[:2])
        assert call(target, "forget", "u1", "s2") == 0
        assert call(target, "forget", "u1") == 2
        assert call(target, "similar", "u1", "parrot", 50) == {}
        assert texts(call(target, "similar", "u2", "parrot", 50)) == set(TEXTS[2:])


def test_how_a_store_filters_must_be_known() -> None:
    """A class that nobody knows is refused until `filter_builder` says it."""
    with pytest.raises(ConfigurationError, match="filter_builder="):
        Adapted(Plain(Counting()))


def test_filters_are_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a builder does with its argument, or with what it returned before, changes no later filter."""
    asked: list[Mapping[str, str]] = []

    def build(wanted: Any) -> Mapping[str, Any]:
        asked.append(dict(wanted))
        where = dict(wanted)
        wanted.clear()
        return {"where": where}

    target = Adapted(Plain(Counting()), filter_builder=build)
    for user in ("u1", "u2", "u1"):
        put(target, user, "s1", f"I am {user}.")
        assert texts(target.similar(user, "Who?", 9)) == {f"I am {user}."}
    target.forget("u1", "s1")
    assert asked[:3] == [{"user_id": "u1"}, {"user_id": "u2"}, {"user_id": "u1"}]
    assert asked[-1] == {"user_id": "u1", "session_id": "s1"}


def test_the_dialects() -> None:
    """What stands in a filter for a user, and for a session, where no server is at hand to try."""

    def named(name: str, module: str) -> Any:
        return type(name, (InMemoryVectorStore,), {"__module__": module})(Counting())

    both = {"user_id": "u1", "session_id": "s1"}
    wanted = {"$and": [{"user_id": {"$eq": "u1"}}, {"session_id": {"$eq": "s1"}}]}
    for name, module, key in (
        ("MongoDBAtlasVectorSearch", "langchain_mongodb.vectorstores", "pre_filter"),
        ("PGVector", "langchain_postgres.vectorstores", "filter"),
        ("Chroma", "langchain_chroma.vectorstores", "filter"),
    ):
        store = named(name, module)
        dialect = access.dialect_of(store, None)
        assert dialect.filters(store, both) == {key: wanted}
        assert dialect.filters(store, {"user_id": "u1"}) == {key: {"user_id": {"$eq": "u1"}}}
    mine = type("Mine", (Chroma,), {})
    assert access.dialect_of(mine.__new__(mine), None) is access.DIALECTS["Chroma"]


# --- scores


def test_scores_agree_whatever_the_store_calls_them(tmp_path: Path) -> None:
    """Cosine, cosine distance, inner product and squared distance come out alike: 1 for the best, 0 for the last."""
    embedding = Counting()
    cosine = {"hnsw": {"space": "cosine"}}
    stores = [
        InMemoryVectorStore(embedding),
        new_faiss(embedding),
        chroma(tmp_path, embedding),
        chroma(tmp_path, embedding, collection_name="cosine", collection_configuration=cosine),
    ]
    found = []
    for store in stores:
        put(target := Adapted(store), "u1", "s1", *TEXTS)
        found.append(target.similar("u1", "Who is called Nemo?", 10))
    for similar in found:
        assert next(iter(similar.values())) == 1.0
        assert list(similar.values())[-1] == 0.0
        assert list(similar.values()) == sorted(similar.values(), reverse=True)
        assert {name: round(score, 3) for name, score in similar.items()} == {
            name: round(score, 3) for name, score in found[0].items()
        }
    plain = foreign(Plain(embedding))
    put(plain, "u1", "s1", *TEXTS)
    assert list(plain.similar("u1", "Who is called Nemo?", 10)) == list(found[0])


@pytest.mark.parametrize(
    ("scores", "scaled"),
    [
        ([], []),
        ([0.3], [1.0]),
        ([0.5, 0.5], [1.0, 1.0]),
        ([0.9, 0.5, 0.1], [1.0, 0.5, 0.0]),
        ([0.1, 0.5, 0.9], [1.0, 0.5, 0.0]),
        ([0.1, 0.9, 0.5], [1.0, 0.0, 0.0]),
        ([0.1, float("nan"), 0.9], [1.0, 0.0, 0.0]),
        ([float("nan")], [0.0]),
    ],
)
def test_scaling(scores: list[float], scaled: list[float]) -> None:
    """One hit, equal hits, similarities, distances, scores out of order, and what is no number."""
    assert access._scaled(scores) == pytest.approx(scaled)


def test_any_query(store: VectorStore, call: Call) -> None:
    """Halves of surrogate pairs, control characters, a long text; nothing stored; more wanted than there is."""
    target = foreign(store)
    for query in ("\ud83d", "\x00", "word " * 5000, "tea"):
        assert call(target, "similar", "u1", query, 100) == {}
    put(target, "u1", "s1", TEXTS[0])
    for query in ("\ud83d", "\x00", "word " * 5000, "tea"):
        assert texts(call(target, "similar", "u1", query, 100)) == {TEXTS[0]}


# --- forgetting


def test_forgetting_is_provable(store: VectorStore, call: Call) -> None:
    """A session goes, then a user: by id, by search and for the store's own search; what is left is whole."""
    target = foreign(store)
    gone = put(target, "u1", "s1", *TEXTS[:3])
    rest = put(target, "u1", "s2", *TEXTS[3:])
    other = put(target, "u2", "s1", *TEXTS)
    ids = [document.id for document in (*gone, *rest)]
    assert call(target, "forget", "u1", "s1") == 3
    assert call(target, "forget", "u1", "s1") == 0
    assert call(target, "get_by_ids", "u1", ids) == rest
    assert texts(call(target, "similar", "u1", "cat", 50)) == set(TEXTS[3:])
    assert [info.session_id for info in call(target, "sessions", "u1")] == ["s2"]
    call(target, "touch", "u1", ids, START)
    assert call(target, "forget", "u1") == 2
    assert call(target, "accesses", "u1") == {}
    assert len(call(target, "index", "u1")) == 0
    assert call(target, "get_by_ids", "u2", [document.id for document in other]) == other
    raw = store._inner if isinstance(store, Plain) else store
    assert len(raw.similarity_search("cat", k=50)) == 5


def test_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that can only search is asked for more and more, until nothing comes; its failures are told."""
    monkeypatch.setattr(access, "PAGE", 2)
    for store in (Plain(Counting()), Plain(Counting(), deaf=True)):
        target = foreign(store)
        put(target, "u1", "s1", *(f"text {i}" for i in range(23)))
        put(target, "u2", "s1", *(f"text {i}" for i in range(30)))
        assert target.forget("u1") == 23
        assert len(target.index("u1")) == 0
        assert len(target.index("u2")) == 30
    monkeypatch.setattr(Plain, "similarity_search", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(HistoryWriteError, match="perhaps not deleted in Plain: ZeroDivisionError"):
        target.forget("u1")
    for read in (target.index, target.sessions):
        with pytest.raises(HistoryReadError, match="Plain cannot be read: ZeroDivisionError"):
            read("u1")
    with pytest.raises(HistoryWriteError, match="perhaps not deleted in Plain"):
        target.evict("u1", 3)


class Keeping(InMemoryVectorStore):
    """Says that it deletes."""

    answer: Any = None

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> Any:
        """Answers, or raises."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_a_store_that_keeps_what_it_deletes() -> None:
    """It is found out: by its answer, by looking again, or by its error."""
    store = Keeping(Counting())
    target = Adapted(store)
    [document, *_] = put(target, "u1", "s1", *TEXTS)
    for store.answer in (None, True, False):
        for forget in (lambda: target.forget("u1", "s1"), lambda: target.delete("u1", [document.id or ""])):
            with pytest.raises(HistoryWriteError, match="still holds") as caught:
                forget()
            assert caught.value.maybe_stored
    store.answer = ConnectionError("mongodb://user:secret@host")
    with pytest.raises(HistoryWriteError, match="not deleted in Keeping: ConnectionError"):
        target.forget("u1", "s1")


@pytest.mark.parametrize("name", ["delete", "get_by_ids", "similarity_search_with_score"])
def test_a_store_that_lacks_a_method_is_refused(name: str) -> None:
    """At once: a memory must be able to forget, to find what it stored, and to tell what is nearest."""
    missing = {each: getattr(VectorStore, each) for each in (name, f"a{name}")}
    archive = type("Archive", (InMemoryVectorStore,), missing)
    with pytest.raises(ConfigurationError, match=rf"Archive has no {name}\(\)"):
        Adapted(archive(Counting()))


def test_deleting_what_is_not_there(store: VectorStore, call: Call) -> None:
    """Unknown ids, the same id twice and no ids at all are no error, and nothing else goes."""
    target = foreign(store)
    documents = put(target, "u1", "s1", *TEXTS)
    ids = [document.id or "" for document in documents]
    call(target, "delete", "u1", [])
    call(target, "delete", "u1", ["unknown"])
    call(target, "delete", "u1", [ids[0], ids[0], "unknown"])
    assert call(target, "get_by_ids", "u1", ids) == documents[1:]


def test_a_save_that_a_forget_overtakes_adds_nothing(call: Call) -> None:
    """Of the session or the user, while the store embeds; another session's save goes on."""
    meanwhile: list[tuple[str, ...]] = []

    class Slow(InMemoryVectorStore):
        def add_documents(self, *args: Any, **kwargs: Any) -> list[str]:
            added = super().add_documents(*args, **kwargs)
            for ids in meanwhile:
                target.forget(*ids)
            return added

        async def aadd_documents(self, *args: Any, **kwargs: Any) -> list[str]:
            return self.add_documents(*args, **kwargs)

    for forgotten, kept in ((("u1", "s1"), False), (("u1",), False), (("u1", "s2"), True), (("u2",), True)):
        target = Adapted(Slow(Counting()))
        begun, documents = target.begin("u1", "s1"), records("u1", "s1", TEXTS[0])
        meanwhile[:] = [forgotten]
        assert call(target, "write", "u1", "s1", begun.generation, documents, [None]) is kept
        assert call(target, "get_by_ids", "u1", [documents[0].id]) == (documents if kept else [])
        meanwhile.clear()
        assert call(target, "write", "u1", "s1", target.begin("u1", "s1").generation, documents, [None])


# --- the rest of the contract


def test_the_oldest_that_nobody_recalled_go_first(store: VectorStore, call: Call) -> None:
    """Then what was recalled longest ago; accesses are known."""
    target = foreign(store)
    documents = put(target, "u1", "s1", *TEXTS)
    put(target, "u2", "s1", TEXTS[0])
    ids = [document.id or "" for document in documents]
    call(target, "touch", "u1", ids[:1], START)
    call(target, "touch", "u1", [ids[1]], START + timedelta(hours=1))
    assert call(target, "accesses", "u1") == {ids[0]: START, ids[1]: START + timedelta(hours=1)}
    assert call(target, "evict", "u1", 5) == 0
    assert call(target, "evict", "u1", 4) == 1
    assert {d.id for d in call(target, "get_by_ids", "u1", ids)} == set(ids) - {ids[2]}
    assert call(target, "evict", "u1", 1) == 3
    assert [d.id for d in call(target, "get_by_ids", "u1", ids)] == [ids[1]]
    assert len(call(target, "index", "u2")) == 1


def test_sessions_are_those_in_the_store(store: VectorStore, call: Call) -> None:
    """The last used first, with records and dates."""
    target = foreign(store)
    put(target, "u1", "s1", *TEXTS[:2])
    put(target, "u1", "s2", *TEXTS[2:])
    put(target, "u2", "s3", TEXTS[0])
    found = call(target, "sessions", "u1")
    assert [(info.session_id, info.turns) for info in found] == [("s2", 3), ("s1", 2)]
    assert (found[0].created_at, found[0].updated_at) == (START, START + timedelta(hours=2))
    assert call(target, "sessions", "u4") == []


def test_words_are_those_that_were_found(store: VectorStore, call: Call) -> None:
    """The index for a question holds what its search found; without a question, all that the store holds."""
    target = foreign(store)
    put(target, "u1", "s1", *TEXTS, importance=3.0)
    similar = call(target, "similar", "u1", "What is my cat called?", 2)
    index = access.index_of(similar.documents)
    assert {entry.id for entry in index.entries} == similar.keys()
    assert lexical(index, ["nemo"]).max() > 0
    whole = call(target, "index", "u1")
    assert sorted(len(entry.messages) for entry in whole.entries) == [2] * 5
    assert {(entry.session, entry.epoch, entry.importance) for entry in whole.entries} == {("s1", 2**62 + 1, 3.0)}
    assert whole.dims is None


def test_documents_of_others_are_harmless(store: VectorStore, call: Call) -> None:
    """What an app put there itself has no said, no dates; what is malformed is left out, and nothing breaks."""
    raw = store._inner if isinstance(store, Plain) else store
    bad: list[dict[str, Any]] = [
        {"memkit": "{"},
        {"memkit": "[" * 100_000},
        {"memkit": "[1, 2]"},
        {"memkit": '{"said": [["human", "", 0, 9999]], "messages": ["a"]}'},
        {"memkit": '{"said": [["human", "", 5, 1]]}'},
        {"memkit": '{"said": "all", "messages": 7, "id": 5, "epoch": "x", "user_id": "u2"}'},
        {"created_at": "yesterday", "expires_at": "2026-01-01", "position": "first", "importance": "high"},
        {"position": float("inf"), "importance": float("inf"), "session_id": 5},
        {"created_at": "2026-01-01"},
    ]
    ids = [f"r{i}" for i in range(len(bad))]
    fields = [{"user_id": "u1", **metadata} for metadata in bad]
    raw.add_documents([Document(f"text {i}", metadata=m) for i, m in enumerate(fields)], ids=ids)
    target = foreign(store)
    similar = call(target, "similar", "u1", "text", 50)
    assert len(access.index_of(similar.documents)) == len(similar)
    assert len(call(target, "index", "u1")) == (0 if isinstance(store, Plain) else len(bad))  # it gives no ids
    assert call(target, "sessions", "u1") == []
    call(target, "evict", "u1", 100)
    call(target, "forget", "u1")
    assert call(target, "similar", "u1", "text", 50) == {}


def test_a_store_that_fails(call: Call) -> None:
    """Reading and writing have their errors, which name the store and what it raised, and nothing that is stored."""

    class Down(InMemoryVectorStore):
        def get_by_ids(self, *args: Any, **kwargs: Any) -> Any:
            raise ConnectionError("mongodb://user:secret@host: My cat is called Nemo.")

        async def aget_by_ids(self, *args: Any, **kwargs: Any) -> Any:
            return self.get_by_ids()

        similarity_search_with_score = asimilarity_search_with_score = get_by_ids  # type: ignore[assignment]

    target = Adapted(Down(Counting()))
    for verb, *args in (
        ("get_by_ids", "u1", ["a"]),
        ("similar", "u1", "x", 1),
        ("write", "u1", "s", "", records("u1", "s", "x"), [None]),
    ):
        with pytest.raises(HistoryReadError) as caught:
            call(target, verb, *args)
        assert str(caught.value) == "Down cannot be read: ConnectionError"
        assert isinstance(caught.value.__cause__, ConnectionError)


def test_repr() -> None:
    """The class is named, nothing of it shown."""
    assert repr(VectorStoreAdapter(InMemoryVectorStore(Counting()))) == "VectorStoreAdapter(InMemoryVectorStore)"


# --- threads, and two users


def test_threads_share_faiss() -> None:
    """8 threads write, search and delete through two adapters of one index, which stays in line with its documents."""
    store = new_faiss()
    targets = [Adapted(store), Adapted(store)]

    def work(n: int) -> None:
        target, user = targets[n % 2], f"u{n}"
        for i in range(10):
            put(target, user, f"s{i % 2}", f"I am {user}, {i}.", "We are all here.")
            assert all(f"am {user}" in text or "all here" in text for text in texts(target.similar(user, "Who?", 50)))
            if i == 5:
                target.forget(user, "s0")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert store.index.ntotal == len(store.index_to_docstore_id)
    for n in range(8):
        assert len(targets[0].index(f"u{n}")) == 9


def test_an_event_loop_is_not_held_up(tmp_path: Path) -> None:
    """While Chroma and FAISS store and search, the loop goes on."""

    class Slow(WordLlamaEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            time.sleep(0.3)
            return super().embed_documents(texts)

        async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
            await asyncio.sleep(0.3)
            return super().embed_documents(texts)

    async def run(store: VectorStore) -> None:
        target = Adapted(store)
        loop, ran = threading.get_ident(), False

        async def other() -> None:
            nonlocal ran
            assert threading.get_ident() == loop
            ran = True

        writing = asyncio.ensure_future(target.awrite("u1", "s1", "", records("u1", "s1", *TEXTS), [None] * 5))
        await asyncio.sleep(0)
        await other()
        assert ran
        assert not writing.done()
        assert await writing

    for store in (chroma(tmp_path, Slow(64)), new_faiss(Slow(64)), InMemoryVectorStore(Slow(64))):
        asyncio.run(run(store))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "forget", "delete", "similar", "evict", "purge"]),
        st.sampled_from(["u1", "u2"]),
        st.sampled_from(["s1", "s2", "s3"]),
        st.integers(0, 9),
    ),
    min_size=200,
    max_size=200,
)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], VectorStore]]:
    """Makes collections of one Chroma."""
    first = chroma(tmp_path_factory.mktemp("chroma"))
    return lambda: Chroma(f"c{uuid4().hex}", Counting(), client=first._client)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["chroma", "faiss"])
@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
@given(operations=OPERATIONS)
def test_two_users_never_meet(kind: str, on_disk: Callable[[], VectorStore], operations: list[Any]) -> None:
    """200 random operations of two users: each finds exactly what is theirs, whatever the other did."""
    target = Adapted(on_disk() if kind == "chroma" else new_faiss())
    model: dict[str, dict[str, str]] = {"u1": {}, "u2": {}}  # id -> session
    for verb, user, session, number in operations:
        mine = model[user]
        if verb == "write":
            for document in put(target, user, session, f"{TEXTS[number % 5]} {number}"):
                mine[document.id or ""] = session
        elif verb == "forget":
            gone = {name for name, where in mine.items() if where == session}
            assert target.forget(user, session) == len(gone)
            model[user] = {name: where for name, where in mine.items() if name not in gone}
        elif verb == "purge" and number == 0:
            assert target.forget(user) == len(mine)
            model[user] = {}
        elif verb == "delete":
            gone = set(sorted(mine)[: number % 3])
            target.delete(user, [*gone, f"unknown{number}"])
            model[user] = {name: where for name, where in mine.items() if name not in gone}
        elif verb == "evict":
            assert target.evict(user, 20) == 0
        else:
            found = target.similar(user, TEXTS[number % 5], 100).keys()
            # Chroma's search is approximate: after many deletions it may miss a record.
            assert found == mine.keys() if kind == "faiss" else found <= mine.keys()
    for user, mine in model.items():
        assert {entry.id: entry.session for entry in target.index(user).entries} == mine
