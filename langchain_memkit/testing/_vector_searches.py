"""What a vector store promises to LangChain, and to whoever sends it nonsense."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from langchain_memkit.errors import ConfigurationError, HistoryReadError
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing._vector_cases import EMBEDDING, MakeStore, Stores, Wrong, record


class SearchCases(Stores):
    """Embedding models, LangChain's verbs."""

    @pytest.mark.parametrize("foreign", [DeterministicFakeEmbedding(size=8), Wrong([1.0] * 16)], ids=["size", "model"])
    def test_two_embedders(self, make_store: MakeStore, foreign: Any, call: Call) -> None:
        """A store that one model filled takes neither texts nor questions of another one."""
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
        """What is no vector is refused, and nothing is stored."""
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
        """A vector that is of no use for one question is an error of that question, not of the store."""
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
        """A text whose vector is all zeros is stored without one; but a model must know a plain sentence."""
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
        """Vectors of another length than the first are refused; huge and tiny ones are directions like others."""
        with pytest.raises(ConfigurationError, match="dimensions"):
            call(make_store(Wrong([1.0, 2.0], [1.0])), "add_documents", [Document("a"), Document("b")])
        with pytest.raises(ConfigurationError, match="vectors for"):
            call(make_store(type("Few", (Wrong,), {"embed_documents": lambda *_: []})([1.0])), "embed", ["a"])
        store = make_store(Wrong([1e300, 0.0], [0.0, 1e-300], [1.0, 0.0]))
        call(store, "add_documents", [Document("a", id="a"), Document("b", id="b")])
        found = call(store, "similarity_search_with_score", "a", k=2)
        assert [(document.id, round(score, 6)) for document, score in found] == [("a", 1.0), ("b", 0.0)]

    def test_whose_a_document_is(self, store: Any, call: Call) -> None:
        """A search finds the documents of one user, or of nobody; never all of them."""
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
        """Nothing but a string names a user or a session, and values are compared, never run."""
        call(store, "add_texts", ["a"], [{"user_id": "u1", "n": 1}])
        wrong: list[Any] = [{"user_id": bad}, {"user_id": "u1", "session_id": bad}, {"n": {"$gt": 0}}]
        for filter_ in [*wrong, {"$or": [{"user_id": "u1"}]}, [("user_id", "u1")], lambda document: True]:
            with pytest.raises(TypeError):
                call(store, "similarity_search", "a", filter=filter_)
        with pytest.raises(TypeError):
            call(store, "similarity_search", "a", filters={"user_id": "u1"})
        with pytest.raises(TypeError):
            call(store, "add_documents", [Document("a", metadata={"user_id": bad})])

    def test_searches(self, store: Any, call: Call) -> None:
        """Nearest first, by text and by vector, with scores, diverse, thresholds, and through a retriever."""
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
        """They are in the index, and no similarity finds them."""
        save(store, [record(1)], embedded=False)
        assert len(call(store, "index", "u1")) == 1
        assert call(store, "similarity_search", "number", filter={"user_id": "u1"}) == []
        save(store, [record(2)])
        assert [d.id for d in call(store, "similarity_search", "n", filter={"user_id": "u1"})] == [record(2).id]
