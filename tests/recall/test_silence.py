"""What has nothing to do with the question is left out: `floor` of vector memory, `score_threshold` of retrievers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from benchmarks.common import TEXTS
from benchmarks.dialogues import Dialogue, recall_set
from benchmarks.recall_floors import Kept
from langchain_memkit import (
    ComposedMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_runnable_with_message_history,
    explain_turn,
)
from langchain_memkit.base import Query
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.explain import aexplain_turn
from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.memories.vector import Ranking
from langchain_memkit.memories.vector.core import check_floor
from langchain_memkit.messages.notes import records_of
from langchain_memkit.ranking.floor import FLOOR
from langchain_memkit.ranking.question import read_question
from langchain_memkit.testing import FakeChatModel

UNRELATED = ["What is 2+2?", "Write a haiku about autumn.", "Who painted the Mona Lisa?", "How do I tie a bow tie?"]
FEW = 3  # statements of the user that a question with "my" recalls below the floor


@pytest.fixture(scope="module")
def friends() -> Dialogue:
    """A long conversation of two friends, of the recall set."""
    return recall_set().dialogues[0]


def filled(embedder: Embeddings, dialogue: Dialogue, **options: Any) -> Callable[..., VectorMemory]:
    """Saves a conversation by sessions and returns what makes memories of its user."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    factory = VectorMemory.factory(histories, embedder, **options)
    for session, turns in groupby(dialogue.turns, key=lambda turn: turn.session):
        factory(session, "u1").save(dialogue.messages(turns))
    return lambda **more: VectorMemory(histories, embedder, "q", user_id="u1", **{**options, **more})


def told(texts: Sequence[str], **options: Any) -> VectorMemory:
    """A memory of what a user has told, each in a round of its own."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    memory = VectorMemory(histories, WordLlamaEmbeddings(), "s1", user_id="u1", **options)
    for text in texts:
        memory.save([HumanMessage(text), AIMessage("I see.")])
    return memory


@pytest.fixture(scope="module")
def make(friends: Dialogue) -> Callable[..., VectorMemory]:
    """Memories of two friends, with the local embedder."""
    return filled(WordLlamaEmbeddings(), friends)


def loaded(memory: VectorMemory, query: str, style: str = "sync") -> list[BaseMessage]:
    """What a memory recalls, in either style."""
    return asyncio.run(memory.aload(query)) if style == "async" else memory.load(query)


def quoted(memory: VectorMemory, query: str) -> list[str]:
    """The texts of the recalled records."""
    return [record.text for note in memory.load(query) for record in records_of(note)]


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("question", UNRELATED)
def test_everyday_prompts_recall_nothing(make: Callable[..., VectorMemory], question: str, style: str) -> None:
    """Over a long conversation they fill the note only where there is no floor."""
    assert loaded(make(), question, style) == []
    assert loaded(make(floor=None), question, style) != []
    assert make(floor=0).load(question) == make(floor=None).load(question)


def test_answerable_questions_are_answered(make: Callable[..., VectorMemory], friends: Dialogue) -> None:
    """Nearly all questions with an answer recall something."""
    asked = [question.text for question in friends.questions]
    silent = [text for text in asked if not make().load(text)]
    assert len(silent) <= 0.05 * len(asked), silent


def test_each_quoted_record_is_related_by_itself(saved: Callable[[str], list[Kept]]) -> None:
    """Nothing is brought along by another record; below the floor only a few are, for who asks about himself."""
    prompts = (TEXTS / "everyday.txt").read_text(encoding="utf-8").splitlines()
    shown = 0
    for system in saved("wordllama"):
        memory = system.memories("q", "u1")
        questions = [question.text for question in system.dialogue.questions[::5]]
        for prompt in [*prompts[::2], *questions]:
            hits = memory.search(prompt, k=100)
            scores = {hit.text: hit.score for hit in reversed(hits)}  # of equal texts the best
            of_note = [scores[text] for text in quoted(memory, prompt)]
            below = [score for score in of_note if score < FLOOR]
            assert len(below) <= FEW * read_question(prompt, system.now).first_person
            assert all(score >= FLOOR / 2 for score in below)
            shown += len(of_note)
    assert shown > 100


def test_my_alone_recalls_little() -> None:
    """A subject that is not known: at most three short statements of the user, and nothing that others said."""
    facts = [
        f"I bought {thing} for my {place} in town." for thing in ("a lamp", "soap", "tiles") for place in "abcdefg"
    ]
    memory = told(facts)
    for question in ("What is my blood type?", "When is my dentist's appointment?", "Where did I study?"):
        found = quoted(memory, question)
        assert len(found) <= FEW
        assert all(text.startswith("human: I bought ") and len(text) < 100 for text in found)
    assert memory.load("What is a blood type?") == []


@pytest.mark.parametrize("question", ["Hello!", "Thanks, great!", "Good morning", "And what about her?", "ok", ""])
def test_greetings_and_pronouns_recall_nothing(make: Callable[..., VectorMemory], question: str) -> None:
    """What they mean stands in the conversation, which the model sees."""
    assert make().load(question) == []


def test_other_words_for_what_was_told() -> None:
    """Who asks about himself is shown what he stated, though it scores less than the floor."""
    memory = told(["We moved to a flat in Perth last spring.", *(f"Lunch number {i} was soup." for i in range(20))])
    [hit] = memory.search("In which flat do I live?", k=1)
    assert hit.score >= FLOOR / 2
    assert "Perth" in quoted(memory, "In which flat do I live?")[0]


def test_a_number_sets_the_floor(make: Callable[..., VectorMemory], friends: Dialogue) -> None:
    """The higher, the less is shown; a record that scores just as much is."""
    asked = [question.text for question in friends.questions][:30]
    answered = [sum(bool(make(floor=floor).load(text)) for text in asked) for floor in (0.5, 2.0, 4.0, 100)]
    assert answered == sorted(answered, reverse=True)
    assert answered[0] > answered[2] > answered[3] == 0
    hits = make().search(asked[0], k=5)
    for number, hit in enumerate(hits, 1):
        if not read_question(asked[0], hits[0].date).first_person:  # type: ignore[arg-type]  # all have a date
            assert len(quoted(make(floor=hit.score), asked[0])) == number


def test_search_has_no_floor(make: Callable[..., VectorMemory]) -> None:
    """People who look see everything, with its score."""
    hits = make().search("What is 2+2?", k=5)
    assert len(hits) == 5
    assert max(hit.score for hit in hits) < FLOOR


# -- embedders


def test_a_failed_embedder_leaves_the_words(friends: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words alone tell what has to do with the records."""
    make = filled(WordLlamaEmbeddings(), friends)
    assert make().index() == 0  # all is embedded

    def down(*args: Any) -> Any:
        msg = "down"
        raise RuntimeError(msg)

    monkeypatch.setattr(WordLlamaEmbeddings, "embed_query", down)
    assert [text for text in UNRELATED if make().load(text)] == []
    answered = [bool(make().load(question.text)) for question in friends.questions]
    assert sum(answered) > 0.85 * len(answered)


class Constant(Embeddings):
    """The same vector for all."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """As the class says."""
        return [[1.0, 2.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        """As the class says."""
        return [1.0, 2.0]


class OneNumber(Embeddings):
    """One dimension: whether a text is long."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """As the class says."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """As the class says."""
        return [1.0 if len(text) > 60 else -1.0]


class Opposite(WordLlamaEmbeddings):
    """Questions point away from what answers them."""

    def embed_query(self, text: str) -> list[float]:
        """As the class says."""
        return [-number for number in super().embed_query(text)]


@pytest.mark.parametrize("embedder", [Constant(), OneNumber(), Opposite(), DeterministicFakeEmbedding(size=8)])
def test_vectors_that_say_nothing(friends: Dialogue, embedder: Embeddings) -> None:
    """Then the words decide: most questions are answered, and what nothing answers shows nothing."""
    make = filled(embedder, friends)
    answered = [bool(make().load(question.text)) for question in friends.questions]
    assert sum(answered) >= 0.85 * len(answered)
    assert make().load("Who painted the Mona Lisa?") == []


@pytest.mark.parametrize("records", [1, 3, 10])
def test_small_memories(records: int) -> None:
    """With few records the words decide: no scale of similarity is known yet."""
    facts = [
        "My cat is called Nemo.",
        "Tuesday is choir.",
        "The boiler was mended.",
        "A parcel came for the neighbour.",
    ]
    memory = told([facts[i] if i < 4 else f"Lunch number {i} was soup." for i in range(records)])
    assert "Nemo" in quoted(memory, "What is the name of my cat?")[0]
    assert "Nemo" in quoted(memory, "Where is the cat?")[0]
    assert [text for text in UNRELATED if memory.load(text)] == []


def test_before_anybody_has_answered() -> None:
    """What only the user has said scores as it does with an answer."""
    said = [HumanMessage("My cat is called Nemo."), AIMessage("A fine name.")]
    scores = []
    for turn in (said[:1], said):
        memory = told([], ranking=Ranking(relevance=0.0))  # the answer is embedded, too
        memory.save(turn)
        scores.append(memory.search("What is my cat called?", k=1)[0].score)
    assert scores[0] == pytest.approx(scores[1])


def test_a_memory_of_one_topic_is_not_silent() -> None:
    """Where all records are alike, and no word is rare, what the user asks of himself still recalls."""
    memory = told([f"Today I saw {i} ships in the harbour." for i in range(40)])
    assert memory.load("How many ships did I see in the harbour?") != []
    assert memory.load("What is the capital of Mongolia?") == []


# -- the option


def test_generative_agents_recall_always() -> None:
    """As in their paper, unless a number is given."""
    agents = Ranking.generative_agents()
    assert [check_floor("auto", agents), check_floor(1.5, agents), check_floor("auto", Ranking())] == [None, 1.5, FLOOR]


@pytest.mark.parametrize("floor", [-1, True, "high", float("inf"), float("nan"), [1]])
def test_wrong_floors_are_refused(floor: Any) -> None:
    """With a sentence that says what is taken."""
    with pytest.raises(ConfigurationError, match='floor must be a number from 0 up, "auto"'):
        told([], floor=floor)


class Counting(BaseDocumentCompressor):
    """A reranker that counts what it is given."""

    calls: int = 0
    given: int = 0

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        """Counts, and leaves the order."""
        self.calls += 1
        self.given += len({document.page_content for document in documents})
        return documents


def test_a_reranker_is_given_related_records_only(make: Callable[..., VectorMemory]) -> None:
    """It may be slow, or cost money."""
    reranker = Counting()
    assert make(reranker=reranker).load("What is 2+2?") == []
    assert reranker.calls == 0
    question = "What is Nora's favourite meal?"
    assert make(reranker=reranker).load(question) != []
    related = [hit for hit in make().search(question, k=100) if hit.score >= FLOOR]
    assert (reranker.calls, reranker.given) == (1, len(related))


@pytest.mark.parametrize("composed", [False, True])
def test_explain_says_what_was_left_out(make: Callable[..., VectorMemory], composed: bool) -> None:
    """The number of records, the best of them, and the floor."""
    memory = make()
    memories: Any = lambda session_id, user_id: (  # noqa: E731
        ComposedMemory(memory, max_tokens=1000) if composed else memory
    )
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memories])
    config: Any = {"configurable": {"session_id": "q", "user_id": "u1"}}
    seen = explain_turn(chat, "What is 2+2?", config)
    assert seen.recalled == []
    [note] = seen.notes
    best = memory.search("What is 2+2?", k=1)[0].score
    assert note.startswith("VectorMemory recalled nothing: the best of ")
    assert note.endswith(f" records scores {best:.2f}, and the floor is {FLOOR:g}")
    assert asyncio.run(aexplain_turn(chat, "What is 2+2?", config)).notes == [note]
    assert explain_turn(chat, "What is Nora's favourite meal?", config).recalled


# -- documents


def scored(*scores: Any) -> RunnableLambda[str, list[Document]]:
    """A retriever that finds documents with these scores."""
    return RunnableLambda(lambda query: [Document(f"text {s}", metadata={"relevance_score": s}) for s in scores])


@pytest.mark.parametrize("style", ["sync", "async"])
def test_documents_below_the_score_threshold_are_left_out(style: str) -> None:
    """By the score that the retriever gives; what has none is shown; nothing left is no note."""
    query = Query("When is tea?", remarks=[])
    memory: Any = RetrieverMemory(scored(0.9, 0.4, None), score_threshold=0.5)
    [note] = loaded(memory, query, style)
    assert [text in note.text for text in ("text 0.9", "text 0.4", "text None")] == [True, False, True]
    expected = (
        "RetrieverMemory(RunnableLambda) left out: 1 of 3 documents are below the score_threshold of 0.5; "
        "the best score is 0.9"
    )
    assert query.remarks == [expected]
    strict: Any = RetrieverMemory(scored(0.1), score_threshold=0.5)
    assert loaded(strict, "When is tea?", style) == []
    assert "text 0.1" in loaded(RetrieverMemory(scored(0.1)), "When is tea?", style)[0].text  # type: ignore[arg-type]  # any memory
