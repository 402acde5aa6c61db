"""The systems of benchmarks/recall.py: memkit, its peers as their packages are, and two references.

A system takes a conversation as an app would give it, message by message or round by round, and is asked for records,
best first.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import bm25s  # type: ignore[import-untyped]  # it has none
import numpy as np
import Stemmer  # type: ignore[import-not-found]  # compiled, without stubs
from langchain_classic.memory import VectorStoreRetrieverMemory
from langchain_classic.retrievers import TimeWeightedVectorStoreRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.language_models import FakeListChatModel
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.store.memory import InMemoryStore
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import VectorMemory as LlamaIndexMemory

from benchmarks.dialogues import Dialogue, Found, Turn
from langchain_memkit import SQLiteChatMessageHistory, VectorMemory
from langchain_memkit.messages.notes import records_of
from langchain_memkit.ranking.score import Ranking

MEMKIT = "memkit"
DEPTH = 60  # records that a system is asked for: enough for the largest budget
NOTE_TOKENS = 1_024
PACKAGES = (
    "pymongo",
    "langchain-classic",
    "langgraph",
    "llama-index-core",
    "mem0ai",
    "qdrant-client",
    "bm25s",
    "PyStemmer",
    "numpy",
)


class System(Protocol):
    """Holds one conversation."""

    def save(self, dialogue: Dialogue) -> None:
        """Takes all of it, in order."""

    def search(self, question: str, k: int) -> list[Found]:
        """The `k` best records."""

    def close(self) -> None:
        """Lets go what it has opened."""


class InMemory:
    """What nothing has to be let go of."""

    def close(self) -> None:
        pass


# -- memkit


class Memkit:
    """`VectorMemory` over histories in a SQLite file, with its defaults; the clock is that of the conversation.

    Without embeddings the vectors mean nothing, and have no weight.
    """

    def __init__(self, embeddings: Embeddings | None, folder: Path) -> None:
        self.now = datetime.now(UTC)
        self.histories = SQLiteChatMessageHistory.factory(folder / "memkit.db", now=lambda: self.now)
        model = embeddings or DeterministicFakeEmbedding(size=8)
        ranking = Ranking() if embeddings else Ranking(relevance=0.0)
        size: dict[str, Any] = {"max_tokens": NOTE_TOKENS, "token_counter": "o200k_base"}
        self.memories = VectorMemory.factory(self.histories, model, ranking=ranking, now=lambda: self.now, **size)

    def save(self, dialogue: Dialogue) -> None:
        for said in dialogue.rounds():
            self.now = said[0].at
            self.memories(said[0].session, "u1").save(dialogue.messages(said))
        self.now += timedelta(hours=1)  # when the questions are asked

    def search(self, question: str, k: int) -> list[Found]:
        hits = self.memories("questions", "u1").search(question, k=k)
        return [Found(tuple(hit.message_ids), hit.text) for hit in hits]

    def noted(self, question: str) -> set[str]:
        """Ids of the messages in the note that `load` makes."""
        notes = self.memories("questions", "u1").load(question)
        return {name for note in notes for record in records_of(note) for name, _ in record.parts}

    def close(self) -> None:
        self.memories.close()
        self.histories.close()


# -- peers


class ClassicMemory(InMemory):
    """langchain-classic: a document for each question and answer."""

    def __init__(self, embeddings: Embeddings, folder: Path) -> None:
        retriever = InMemoryVectorStore(embeddings).as_retriever()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated in favour of agents
            self.memory = VectorStoreRetrieverMemory(retriever=retriever, return_docs=True, input_key="input")
        self.ids: dict[str, tuple[str, ...]] = {}

    def save(self, dialogue: Dialogue) -> None:
        for said in dialogue.rounds():
            first, rest = said[0].line, "\n".join(turn.line for turn in said[1:])
            self.memory.save_context({"input": first}, {"output": rest})
            self.ids.setdefault(f"input: {first}\noutput: {rest}", tuple(turn.id for turn in said))

    def search(self, question: str, k: int) -> list[Found]:
        self.memory.retriever.search_kwargs["k"] = k
        documents: Any = self.memory.load_memory_variables({"input": question})["history"]
        return [Found(self.ids[document.page_content], document.page_content) for document in documents]


class Relevant(InMemoryVectorStore):
    """Says how a cosine becomes a relevance, which core's class leaves open: it is one."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: cosine


class TimeWeighted(InMemory):
    """langchain-classic, as shipped: asking changes what later questions find, and its clock is the machine's."""

    def __init__(self, embeddings: Embeddings, folder: Path) -> None:
        self.retriever = TimeWeightedVectorStoreRetriever(vectorstore=Relevant(embeddings))

    def save(self, dialogue: Dialogue) -> None:
        for turn in dialogue.turns:
            at = turn.at.replace(tzinfo=None)  # it compares with datetime.now()
            self.retriever.add_documents([Document(turn.line, metadata={"turn": turn.id})], current_time=at)

    def search(self, question: str, k: int) -> list[Found]:
        self.retriever.k = k
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a cosine below 0 is no relevance between 0 and 1
            found = self.retriever.invoke(question)
        return [Found((document.metadata["turn"],), document.page_content) for document in found]


class LangGraph(InMemory):
    """langgraph's store in memory, with an index of the text."""

    def __init__(self, embeddings: Embeddings, folder: Path) -> None:
        width = len(embeddings.embed_query("width"))
        self.store = InMemoryStore(index={"dims": width, "embed": embeddings, "fields": ["text"]})

    def save(self, dialogue: Dialogue) -> None:
        for turn in dialogue.turns:
            self.store.put(("memories", "u1"), turn.id, {"text": turn.line})

    def search(self, question: str, k: int) -> list[Found]:
        found = self.store.search(("memories", "u1"), query=question, limit=k)
        return [Found((item.key,), item.value["text"]) for item in found]


class LlamaIndexEmbeddings(BaseEmbedding):
    """LangChain's embeddings as LlamaIndex calls them."""

    inner: Any

    def _get_text_embedding(self, text: str) -> list[float]:
        return list(self.inner.embed_documents([text])[0])

    def _get_query_embedding(self, query: str) -> list[float]:
        return list(self.inner.embed_query(query))

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class LlamaIndex(InMemory):
    """LlamaIndex's `VectorMemory`: a node for each message of the user with what follows it."""

    def __init__(self, embeddings: Embeddings, folder: Path) -> None:
        self.memory = LlamaIndexMemory.from_defaults(embed_model=LlamaIndexEmbeddings(inner=embeddings))
        self.round: dict[str, str] = {}

    def save(self, dialogue: Dialogue) -> None:
        first = ""
        for turn in dialogue.turns:
            role = "user" if turn.speaker == dialogue.user else "assistant"
            first = turn.id if role == "user" or not first else first
            self.round[turn.id] = first
            self.memory.put(ChatMessage(turn.line, role=role, additional_kwargs={"turn": turn.id}))

    def search(self, question: str, k: int) -> list[Found]:
        self.memory.retriever_kwargs = {"similarity_top_k": k}
        rounds: dict[str, list[Any]] = {}  # it gives messages; those of a round stand together
        for message in self.memory.get(question):
            rounds.setdefault(self.round[message.additional_kwargs["turn"]], []).append(message)
        return [
            Found(tuple(m.additional_kwargs["turn"] for m in said), "\n".join(str(m.content) for m in said))
            for said in rounds.values()
        ]


class Mem0:
    """mem0 without a model (`infer=False`), over its local Qdrant, as `pip install mem0ai` brings it.

    Telemetry is off, and all of its files are in the folder.
    """

    def __init__(self, embeddings: Embeddings, folder: Path) -> None:
        os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=str(folder / "mem0"))  # it reads them when imported
        from mem0 import Memory  # type: ignore[import-untyped]  # it has none
        from mem0.utils import spacy_models  # type: ignore[import-untyped]

        for state in ("_load_failed_full", "_load_failed_lemma"):
            assert hasattr(spacy_models, state)
            setattr(spacy_models, state, True)  # else it would install a model: it sees spaCy, which memkit has brought
        logging.getLogger("mem0").setLevel(logging.ERROR)  # for each object it names the packages that it misses
        store = {"path": str(folder / "qdrant"), "embedding_model_dims": len(embeddings.embed_query("width"))}
        self.memory = Memory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": {"collection_name": "memories", **store}},
                "embedder": {"provider": "langchain", "config": {"model": embeddings}},
                "llm": {"provider": "langchain", "config": {"model": FakeListChatModel(responses=[])}},
                "history_db_path": str(folder / "history.db"),
            }
        )

    def save(self, dialogue: Dialogue) -> None:
        for turn in dialogue.turns:
            role = "user" if turn.speaker == dialogue.user else "assistant"
            message = {"role": role, "content": turn.line}
            self.memory.add([message], user_id="u1", infer=False, metadata={"turn": turn.id})

    def search(self, question: str, k: int) -> list[Found]:
        found = self.memory.search(question, filters={"user_id": "u1"}, top_k=k, threshold=0.0)["results"]
        return [Found((one["metadata"]["turn"],), one["memory"]) for one in found]

    def close(self) -> None:
        self.memory.close()


# -- references


class Words(InMemory):
    """BM25 over stems without stop words (bm25s), built at once when all is there."""

    def __init__(self, embeddings: Embeddings | None, folder: Path) -> None:
        self.stemmer = Stemmer.Stemmer("english")
        self.turns: tuple[Turn, ...] = ()

    def tokens(self, texts: list[str]) -> Any:
        return bm25s.tokenize(
            texts, stopwords="english_plus", stemmer=self.stemmer, return_ids=False, show_progress=False
        )

    def save(self, dialogue: Dialogue) -> None:
        self.turns = dialogue.turns
        self.index = bm25s.BM25()
        self.index.index(self.tokens([turn.line for turn in self.turns]), show_progress=False)

    def scores(self, question: str) -> Any:
        (tokens,) = self.tokens([question])
        return self.index.get_scores(tokens) if tokens else np.zeros(len(self.turns))

    def search(self, question: str, k: int) -> list[Found]:
        return self.records(self.scores(question), k)

    def records(self, scores: Any, k: int) -> list[Found]:
        best = np.argsort(-scores, kind="stable")[:k]
        return [Found((self.turns[i].id,), self.turns[i].line) for i in best]


class Fused(Words):
    """Ranks of BM25 and of cosines, the first hundred of each, fused: the sum of 1 / (60 + rank)."""

    def __init__(self, embeddings: Embeddings, folder: Path) -> None:
        super().__init__(None, folder)
        self.embeddings = embeddings

    def save(self, dialogue: Dialogue) -> None:
        super().save(dialogue)
        self.vectors = np.array(self.embeddings.embed_documents([turn.line for turn in self.turns]))

    def search(self, question: str, k: int) -> list[Found]:
        fused = np.zeros(len(self.turns))
        for scores in (self.scores(question), self.vectors @ np.array(self.embeddings.embed_query(question))):
            best = np.argsort(-scores, kind="stable")[:100]
            fused[best] += 1 / (60 + np.arange(1, len(best) + 1))
        return self.records(fused, k)


Make = Callable[[Any, Path], System]
WITHOUT_VECTORS: Mapping[str, Make] = {MEMKIT: Memkit, "BM25, stems": Words}
WITH_VECTORS: Mapping[str, Make] = {
    MEMKIT: Memkit,
    "LlamaIndex VectorMemory": LlamaIndex,
    "VectorStoreRetrieverMemory": ClassicMemory,
    "TimeWeightedVectorStoreRetriever": TimeWeighted,
    "langgraph InMemoryStore": LangGraph,
    "mem0 infer=False": Mem0,
    "BM25 and cosine, ranks fused": Fused,
}
