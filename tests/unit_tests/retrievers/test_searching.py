"""Searches for a follow-up question by kind of retriever, fusion, and documents that are left out; in both styles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import bm25s
import numpy as np
import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore, VectorStoreRetriever

from langchain_memkit import WordLlamaEmbeddings
from langchain_memkit.retrievers import CondenseQuestionRetriever, document_key
from langchain_memkit.retrievers.expansion import CAREFUL, STRONG, added_terms, expanded
from langchain_memkit.retrievers.history import question_answer_pairs
from langchain_memkit.retrievers.search import reciprocal_rank_fusion

Run = Callable[..., Any]
PAGES = {
    "macron": "Emmanuel Macron, born in 1977 in Amiens, is 48 years old.",
    "france": "Emmanuel Macron is the president of France since 2017.",
    "merkel": "Angela Merkel, born in 1954 in Hamburg, is 71 years old.",
    "oak": "The oldest oak in the park is 900 years old.",
    "cheese": "An old cheese is harder than a young one.",
    "car": "How old a car may be depends on the city.",
    "bread": "Bread is baked from flour, water and salt.",
    "chess": "In chess the queen moves in every direction.",
}
TALK: list[BaseMessage] = [
    HumanMessage("Who is the president of France?"),
    AIMessage(
        "Emmanuel Macron is the president of France since 2017.", response_metadata={"memkit_documents": ["france"]}
    ),
]
FOLLOW_UP = "How old is he?"


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(retriever, "invoke", ...)` in both styles."""

    def call(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return call


@pytest.fixture(scope="module")
def embedding() -> Embeddings:
    """Real static embeddings."""
    return WordLlamaEmbeddings()


@pytest.fixture
def store(embedding: Embeddings) -> VectorStore:
    """The pages, in a real store."""
    made = InMemoryVectorStore(embedding)
    made.add_documents([Document(text, id=name) for name, text in PAGES.items()])
    return made


class Okapi:
    """BM25 as rank-bm25 offers it, computed by bm25s."""

    def __init__(self, texts: list[list[str]]) -> None:
        self._bm25 = bm25s.BM25()
        self._bm25.index(texts, show_progress=False)

    def get_scores(self, tokens: list[str]) -> Any:
        """A score for each document: a sum over the tokens that are known."""
        known = [token for token in tokens if token in self._bm25.vocab_dict]
        return self._bm25.get_scores(known) if known else np.zeros(len(PAGES))

    def get_top_n(self, tokens: list[str], documents: list[Document], n: int) -> list[Document]:
        """The best documents."""
        return [documents[i] for i in np.argsort(self.get_scores(tokens))[::-1][:n]]


class BM25Retriever(BaseRetriever):
    """The fields and the search of langchain-community's class of this name."""

    vectorizer: Any = None
    docs: list[Document]
    k: int = 4
    preprocess_func: Callable[[str], list[str]]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return self.vectorizer.get_top_n(self.preprocess_func(query), self.docs, n=self.k)  # type: ignore[no-any-return]


def words(text: str) -> list[str]:
    """Lower case, without signs."""
    return text.lower().replace("?", "").replace(",", "").replace(".", "").split()


def lexical(k: int = 4) -> BM25Retriever:
    """The pages, by words."""
    documents = [Document(text, id=name) for name, text in PAGES.items()]
    return BM25Retriever(
        vectorizer=Okapi([words(text) for text in PAGES.values()]), docs=documents, k=k, preprocess_func=words
    )


def names(documents: list[Document]) -> list[str | None]:
    """Ids in order."""
    return [document.id for document in documents]


def follow_up(question: str = FOLLOW_UP) -> dict[str, Any]:
    """The input of a turn."""
    return {"input": question, "chat_history": TALK}


def over(inner: Any, **options: Any) -> CondenseQuestionRetriever:
    """Without a model."""
    return CondenseQuestionRetriever(retriever=inner, **options)


# ------------------------------------------------------------------------------------------------------ vector stores


class Spying(Embeddings):
    """Embeddings that keep what they were asked."""

    def __init__(self, inner: Embeddings) -> None:
        self.inner = inner
        self.queries: list[str] = []
        self.texts: list[str] = []

    def embed_query(self, text: str) -> list[float]:
        """A question's vector."""
        self.queries.append(text)
        return self.inner.embed_query(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Texts' vectors."""
        self.texts += texts
        return self.inner.embed_documents(texts)


def test_vectors_are_blended(run: Run, store: VectorStore) -> None:
    """The person is found, who is not when the question is asked as it is."""
    inner = store.as_retriever(search_kwargs={"k": 2})
    assert "macron" not in names(inner.invoke(FOLLOW_UP))
    found = run(over(inner), "invoke", follow_up())
    assert "macron" in names(found)
    assert found[0].metadata["memkit_question"]["by"] == "weighted"


@pytest.mark.parametrize("search_type", ["similarity", "mmr"])
def test_filter_is_kept(run: Run, store: VectorStore, search_type: str) -> None:
    """What the retriever may not see a blend may not show."""
    own = {"k": 3, "filter": lambda document: document.id == "oak"}
    inner = store.as_retriever(search_type=search_type, search_kwargs=own)
    assert names(run(over(inner), "invoke", follow_up())) == ["oak"]
    assert names(run(over(inner, skip_answered=True), "invoke", follow_up())) == ["oak"]


def test_filter_is_kept_between_users(run: Run, embedding: Embeddings) -> None:
    """The same for the users of one store."""
    store = InMemoryVectorStore(embedding)
    for user in ("u1", "u2"):
        store.add_documents([Document(text, id=f"{user}-{n}", metadata={"user_id": user}) for n, text in PAGES.items()])
    own = {"k": 4, "filter": lambda document: document.metadata["user_id"] == "u1"}
    found = run(over(store.as_retriever(search_kwargs=own)), "invoke", follow_up())
    assert len(found) == 4
    assert {str(name)[:2] for name in names(found)} == {"u1"}


def test_diverse_search_gives_as_many(run: Run, embedding: Embeddings) -> None:
    """Of more than the 20 candidates that LangChain looks at by itself, too."""
    store = InMemoryVectorStore(embedding)
    store.add_texts([f"{text} {i}" for text in PAGES.values() for i in range(5)])
    retriever = over(store.as_retriever(search_type="mmr"), k=25)
    assert len(run(retriever, "invoke", follow_up())) == 25
    assert len(run(retriever, "invoke", FOLLOW_UP)) == 25


def test_what_is_embedded(run: Run, embedding: Embeddings) -> None:
    """The question and the longer string; answers only where answered documents are left out; once for a first one."""
    spy = Spying(embedding)
    store = InMemoryVectorStore(spy)
    store.add_texts([*PAGES.values()], ids=[*PAGES])
    spy.texts.clear()
    run(over(store.as_retriever()), "invoke", follow_up())
    assert spy.queries == [FOLLOW_UP, expanded(FOLLOW_UP, question_answer_pairs(TALK), STRONG)]
    assert spy.texts == []
    run(over(store.as_retriever(), skip_answered=True), "invoke", follow_up())
    assert spy.texts == [TALK[1].text]
    spy.queries.clear()
    run(over(store.as_retriever()), "invoke", {"input": "Where was Barack Obama born?", "chat_history": []})
    assert spy.queries == ["Where was Barack Obama born?"]


class Dropping(InMemoryVectorStore):
    """A store whose search by vector takes no filter."""

    def similarity_search(self, query: str, k: int = 4, filter: Any = None, **kwargs: Any) -> list[Document]:  # noqa: A002
        """By text."""
        return super().similarity_search(query, k, filter=filter, **kwargs)

    async def asimilarity_search(self, query: str, k: int = 4, filter: Any = None, **kwargs: Any) -> list[Document]:  # noqa: A002
        """By text."""
        return await super().asimilarity_search(query, k, filter=filter, **kwargs)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """By vector."""
        return super().similarity_search_by_vector(embedding, k)


def test_store_that_would_drop_a_filter_is_asked_by_text(run: Run, embedding: Embeddings) -> None:
    """Without a filter its vectors are good enough."""
    store = Dropping(embedding)
    store.add_texts([*PAGES.values()], ids=[*PAGES])
    own = {"k": 3, "filter": lambda document: document.id == "oak"}
    assert names(run(over(store.as_retriever(search_kwargs=own)), "invoke", follow_up())) == ["oak"]
    assert "macron" in names(run(over(store.as_retriever(search_kwargs={"k": 2})), "invoke", follow_up()))


class Scoring(InMemoryVectorStore):
    """A store that says how its scores become relevance, as LangChain's does not."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: max(0.0, min(1.0, score))


def test_search_types_without_vectors(run: Run, embedding: Embeddings) -> None:
    """A threshold is kept: the search goes by text."""
    store = Scoring(embedding)
    store.add_texts([*PAGES.values()], ids=[*PAGES])
    for threshold, found in ((0.99, 0), (0.0, 3)):
        limits = {"k": 3, "score_threshold": threshold}
        inner = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=limits)
        assert len(run(over(inner), "invoke", follow_up())) == found


def test_bound_config_and_k(run: Run, store: VectorStore) -> None:
    """A retriever that only has tags is still a store's; `k` of the call, of ours, of the inner one."""
    inner = store.as_retriever(search_kwargs={"k": 5}).with_config(tags=["x"])
    assert len(run(over(inner), "invoke", follow_up())) == 5
    assert len(run(over(inner, k=2), "invoke", follow_up())) == 2
    assert len(run(over(inner, k=2), "invoke", follow_up(), k=7)) == 7
    assert len(run(over(inner, k=2), "invoke", FOLLOW_UP)) == 2
    assert len(run(over(inner), "batch", [FOLLOW_UP, follow_up()], k=1)[1]) == 1
    assert len(run(over(store.as_retriever()), "invoke", follow_up())) == 4


# ----------------------------------------------------------------------------------------------------------- by words


def test_terms_are_weighted(run: Run) -> None:
    """The scores are those of the weighted query, all added terms together at most the best of one; found is who is."""
    inner = lexical(k=8)
    assert names(inner.invoke(FOLLOW_UP))[0] == "car"
    found = run(over(inner), "invoke", follow_up())
    terms = added_terms(FOLLOW_UP, question_answer_pairs(TALK))
    added = [term.weight * inner.vectorizer.get_scores(words(term.word)) for term in terms]
    most = max(map(max, added))
    assert max(sum(added)) > most  # so that the cap tells
    scores = inner.vectorizer.get_scores(words(FOLLOW_UP)) + [min(score, most) for score in sum(added)]
    assert [scores[[*PAGES].index(str(name))] for name in names(found)] == pytest.approx(sorted(scores, reverse=True))
    assert "macron" in names(found)[:3]
    assert len(run(over(lexical(k=2)), "invoke", follow_up())) == 2
    assert len(run(over(lexical(k=2)), "invoke", follow_up(), k=3)) == 3
    assert len(run(over(lexical(k=2), k=3), "invoke", FOLLOW_UP)) == 3


def test_terms_with_answered_documents_left_out(run: Run) -> None:
    """More are asked for, so that there are as many as ever."""
    found = run(over(lexical(k=7), skip_answered=True), "invoke", follow_up())
    assert names(found)[0] == "macron"
    assert set(names(found)) == {*PAGES} - {"france"}
    found = run(over(lexical(k=7), skip_answered=True), "invoke", follow_up("Where was Barack Obama born?"))
    assert set(names(found)) == {*PAGES} - {"france"}


# ------------------------------------------------------------------------------------------------------- by a string


class Words:
    """A search of which nothing is known: the pages that share the most words."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def __call__(self, query: str) -> list[Document]:
        """At most four."""
        self.queries.append(query)
        asked = set(words(query))
        ranked = sorted(PAGES, key=lambda name: -len(asked & set(words(PAGES[name]))))
        return [Document(PAGES[name], id=name) for name in ranked[:4]]


def test_string_is_fused_with_the_question(run: Run) -> None:
    """A retriever that takes no weights is asked both ways; where answered documents go, once."""
    search = Words()
    found = run(over(search), "invoke", follow_up())
    assert search.queries == [expanded(FOLLOW_UP, question_answer_pairs(TALK), CAREFUL), FOLLOW_UP]
    assert len(found) == 4
    search.queries.clear()
    found = run(over(search, skip_answered=True), "invoke", follow_up())
    assert search.queries == [expanded(FOLLOW_UP, question_answer_pairs(TALK), STRONG)]
    assert "france" not in names(found)
    assert found[0].id == "macron"


def test_nothing_known_to_be_left_out(run: Run) -> None:
    """A history whose answers name no documents is searched with care, whatever is wanted."""
    search = Words()
    plain = [HumanMessage(TALK[0].text), AIMessage(TALK[1].text)]
    run(over(search, skip_answered=True), "invoke", {"input": FOLLOW_UP, "chat_history": plain})
    assert search.queries == [expanded(FOLLOW_UP, question_answer_pairs(TALK), CAREFUL), FOLLOW_UP]


def test_documents_without_ids_are_left_out_by_text(run: Run) -> None:
    """By the digest that `document_key` gives."""
    talk = [HumanMessage("q"), AIMessage("a", response_metadata={"memkit_documents": [document_key(Document("one"))]})]
    search = RunnableLambda(lambda query: [Document("one"), Document("two")])
    found = run(over(search, skip_answered=True), "invoke", {"input": FOLLOW_UP, "chat_history": talk})
    assert [document.page_content for document in found] == ["two"]


def test_fusion_counts_each_document_once() -> None:
    """By id, else by text; the same ranking twice is that ranking."""
    a, b, c = Document("a", id="1"), Document("b"), Document("c")
    assert reciprocal_rank_fusion([a, b, c], [a, b, c]) == [a, b, c]
    assert reciprocal_rank_fusion([a, b], [c, b]) == [b, a, c]
    assert reciprocal_rank_fusion([b, b, b], [a]) == [b, a]
    assert reciprocal_rank_fusion([], []) == []


class Sealed(VectorStoreRetriever):
    """A retriever with a search of its own."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        return [Document(query)]

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        return [Document(query)]


class Generous(InMemoryVectorStore):
    """A store that returns six documents where nothing is said."""

    def similarity_search(self, query: str, k: int = 6, **kwargs: Any) -> list[Document]:
        """By text."""
        return super().similarity_search(query, k, **kwargs)

    async def asimilarity_search(self, query: str, k: int = 6, **kwargs: Any) -> list[Document]:
        """By text."""
        return await super().asimilarity_search(query, k, **kwargs)


def test_a_store_keeps_its_default(run: Run, embedding: Embeddings) -> None:
    """As many documents by vector, or with some left out as the retriever gives by itself."""
    store = Generous(embedding)
    store.add_texts([*PAGES.values()], ids=[*PAGES])
    for options in ({}, {"skip_answered": True}):
        assert len(run(over(store.as_retriever(), **options), "invoke", follow_up())) == 6
        assert len(run(over(store.as_retriever(), **options), "invoke", FOLLOW_UP)) == 6


def test_own_searches_are_not_passed_by(run: Run, embedding: Embeddings) -> None:
    """A subclass that searches otherwise is asked as it is."""
    found = run(over(Sealed(vectorstore=InMemoryVectorStore(embedding))), "invoke", follow_up())
    assert found[0].page_content == expanded(FOLLOW_UP, question_answer_pairs(TALK), CAREFUL)


def test_where_nothing_was_answered_nothing_can_be_found_again(run: Run) -> None:
    """Then all that was asked counts; where answers do not name their documents, what they say counts little."""
    search = Words()
    asked = [message for message in TALK if isinstance(message, HumanMessage)]
    run(over(search, skip_answered=True), "invoke", {"input": FOLLOW_UP, "chat_history": asked})
    assert search.queries == [expanded(FOLLOW_UP, question_answer_pairs(asked), STRONG)]
    search.queries.clear()
    unnamed = [message.model_copy(update={"response_metadata": {}}) for message in TALK]
    run(over(search, skip_answered=True), "invoke", {"input": FOLLOW_UP, "chat_history": unnamed})
    assert expanded(FOLLOW_UP, question_answer_pairs(unnamed), CAREFUL) in search.queries


def allowed(documents: list[Document]) -> list[Document]:
    """What the user may see."""
    return [document for document in documents if document.id not in ("macron", "cheese")]


class Guarded(InMemoryVectorStore):
    """A store that hides by text what its searches by vector show."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """By text."""
        return allowed(super().similarity_search(query, k, **kwargs))

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """By text."""
        return allowed(await super().asimilarity_search(query, k, **kwargs))


class GuardedByInvoke(VectorStoreRetriever):
    """A retriever that hides something after its search."""

    def invoke(self, *args: Any, **kwargs: Any) -> list[Document]:
        """Sync."""
        return allowed(super().invoke(*args, **kwargs))

    async def ainvoke(self, *args: Any, **kwargs: Any) -> list[Document]:
        """Async."""
        return allowed(await super().ainvoke(*args, **kwargs))


class GuardedInAsync(VectorStoreRetriever):
    """A retriever that hides something in one style at least: the other is not passed by either."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        return allowed(super()._get_relevant_documents(query, run_manager=run_manager, **kwargs))

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        return allowed(await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs))


class GuardedWords(BM25Retriever):
    """The same by words."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return allowed(super()._get_relevant_documents(query, run_manager=run_manager))


class Swallowing(InMemoryVectorStore):
    """A store that obeys a filter by text only, without saying so."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """By text."""
        return super().similarity_search(query, k, **kwargs)

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """By text."""
        return await super().asimilarity_search(query, k, **kwargs)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """By vector."""
        return super().similarity_search_by_vector(embedding, k)

    async def asimilarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """By vector."""
        return await super().asimilarity_search_by_vector(embedding, k)


@pytest.mark.parametrize("kind", ["store", "invoke", "async", "words", "swallowing"])
def test_what_a_subclass_hides_stays_hidden(run: Run, embedding: Embeddings, kind: str) -> None:
    """Weighted searches never go around a class that does more than the library's, in either style."""
    plain, guarded, swallowing = (made(embedding) for made in (InMemoryVectorStore, Guarded, Swallowing))
    for store in (plain, guarded, swallowing):
        store.add_texts([*PAGES.values()], ids=[*PAGES])
    inner: Any = {
        "store": guarded.as_retriever(),
        "invoke": GuardedByInvoke(vectorstore=plain),
        "async": GuardedInAsync(vectorstore=plain),
        "words": GuardedWords(**dict(lexical())),
        "swallowing": swallowing.as_retriever(search_kwargs={"filter": lambda document: bool(allowed([document]))}),
    }[kind]
    for options in ({}, {"k": 3}, {"skip_answered": True}):
        found = run(over(inner, **options), "invoke", follow_up())
        assert found
        assert {document.id for document in found}.isdisjoint(("macron", "cheese"))


class Textual(InMemoryVectorStore):
    """A store whose search by vector is a promise."""

    def similarity_search_by_vector(self, *args: Any, **kwargs: Any) -> list[Document]:
        """Not there."""
        raise NotImplementedError

    async def asimilarity_search_by_vector(self, *args: Any, **kwargs: Any) -> list[Document]:
        """Not there."""
        raise NotImplementedError


def test_where_there_is_no_search_by_vector_text_is_searched(run: Run, embedding: Embeddings) -> None:
    """The turn goes on."""
    store = Textual(embedding)
    store.add_texts([*PAGES.values()], ids=[*PAGES])
    assert "macron" in names(run(over(store.as_retriever()), "invoke", follow_up()))


class Runs(BaseCallbackHandler):
    """Hears of searches."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[str]]] = []

    def on_retriever_start(self, serialized: Any, query: str, *, name: str, tags: Any, **kwargs: Any) -> None:
        """A search begins."""
        self.heard.append((name, sorted(tags or [])))


def test_weighted_searches_are_traced_as_the_retriever(run: Run, store: VectorStore) -> None:
    """By its name and with what it is bound to, sized or not."""
    for inner in (store.as_retriever(tags=["mine"]), lexical()):
        for options in ({}, {"k": 2}):
            runs = Runs()
            bound = inner.with_config(tags=["bound"], callbacks=[runs])
            run(over(bound, **options), "invoke", follow_up())
            ((name, tags),) = runs.heard
            assert name == type(inner).__name__
            assert {"bound", *(inner.tags or [])} <= {*tags}
