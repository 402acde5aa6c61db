"""What has nothing to do with the question is left out: `floor` of vector memory, `score_threshold` of retrievers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_memkit.ranking.ranking import Question, Ranking, best_first
from langchain_memkit.ranking.relevance import FLOOR, is_about_user

from benchmarks.common import TEXTS
from benchmarks.dialogues import Dialogue, recall_set
from benchmarks.recall_floors import WORDS_ONLY, Kept
from langchain_memkit import (
    ComposedMemory,
    SQLiteChatMessageHistory,
    SQLiteVectorStore,
    VectorMemory,
    WordLlamaEmbeddings,
    create_runnable_with_message_history,
    explain_turn,
)
from langchain_memkit.base import Query
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.explain import aexplain_turn
from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.memories.vector.core import check_floor
from langchain_memkit.memories.vector.recalling import FIRST, NEARLY, SURE
from langchain_memkit.messages.notes import records_of
from langchain_memkit.ranking import relevance
from langchain_memkit.testing import FakeChatModel

UNRELATED = ["What is 2+2?", "Write a haiku about autumn.", "Who painted the Mona Lisa?", "How do I tie a bow tie?"]


@pytest.fixture(scope="module")
def friends() -> Dialogue:
    """A long conversation of two friends, of the recall set."""
    return recall_set().dialogues[0]


def filled(store: Any, dialogue: Dialogue, **options: Any) -> Callable[..., VectorMemory]:
    """Saves a conversation and returns what makes memories of its user."""
    factory = VectorMemory.factory(store, **options)
    for said in dialogue.rounds():
        factory(said[0].session, "u1").save(dialogue.messages(said))
    return lambda **more: VectorMemory(store, "q", user_id="u1", **{**options, **more})


@pytest.fixture(scope="module")
def make(friends: Dialogue) -> Callable[..., VectorMemory]:
    """Memories of two friends, with the local embedder."""
    return filled(SQLiteVectorStore(":memory:", WordLlamaEmbeddings()), friends)


def loaded(memory: VectorMemory, query: str, style: str = "sync") -> list[BaseMessage]:
    """What a memory recalls, in either style."""
    return asyncio.run(memory.aload(query)) if style == "async" else memory.load(query)


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("question", UNRELATED)
def test_everyday_prompts_recall_nothing(make: Callable[..., VectorMemory], question: str, style: str) -> None:
    """Over a long conversation they fill the note only where there is no floor."""
    assert loaded(make(), question, style) == []
    assert loaded(make(floor=None), question, style) != []
    assert make(floor=0).load(question) == make(floor=None).load(question)


@pytest.mark.parametrize("style", ["sync", "async"])
def test_answerable_questions_are_answered(make: Callable[..., VectorMemory], friends: Dialogue, style: str) -> None:
    """Nearly all questions with an answer recall something."""
    asked = [question.text for question in friends.questions]
    silent = [text for text in asked if not loaded(make(), text, style)]
    assert len(silent) <= 0.02 * len(asked), silent


@pytest.mark.parametrize(
    "question",
    ["Explain the quarterly budget again.", "Summarize the quarterly budget.", "List the quarterly budgets."],
)
def test_requests_about_records_are_no_tasks(question: str) -> None:
    """A request that could be about what was said is judged by its words, as a question is."""
    memory = VectorMemory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings()), "s1", user_id="u1")
    for i in range(30):
        memory.save([HumanMessage(f"Lunch number {i} was soup with bread."), AIMessage("I see.")])
    memory.save([HumanMessage("Carol presented the quarterly budget to the board."), AIMessage("Good.")])
    assert "Carol" in memory.load(question)[0].text
    assert memory.load("Write a poem about the stars.") == []


def test_near_the_floor_every_record_is_related_itself(saved: Callable[[str], list[Kept]]) -> None:
    """A prompt that one record is related to by chance brings no others along, but some that tell of the user."""
    near = 0
    for system in saved("wordllama"):
        memory = system.memories("q", "u1")
        for prompt in (TEXTS / "everyday.txt").read_text(encoding="utf-8").splitlines():
            relations = {hit.text: hit.relation for hit in memory.search(prompt, k=100)}
            quoted = [record.text for note in memory.load(prompt) for record in records_of(note)]
            if quoted and max(relations.values()) < FLOOR + SURE:
                near += 1
                others = [text for text in quoted if relations.get(text, 0.0) < FLOOR - NEARLY]
                assert len(others) <= FIRST * is_about_user(prompt)
    assert near > 5


def test_an_open_range_of_time_relates_to_no_record(saved: Callable[[str], list[Kept]]) -> None:
    """Most of what was ever said was said before some day; a named day is said of few records."""
    memory = saved("wordllama")[0].memories("q", "u1")
    without, open_range, day = (
        max(hit.relation for hit in memory.search(f"Who painted the Mona Lisa{when}?", k=200))
        for when in ("", " before June 2023", " on 4 March 2023")
    )
    assert open_range == without < day


def test_a_question_with_pronouns_only_recalls_nothing(make: Callable[..., VectorMemory]) -> None:
    """What it means stands in the conversation, which the model sees."""
    assert make().load("And what about her?") == []


def test_a_failed_embedder_leaves_the_words(friends: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words alone tell what has to do with the records."""
    store = SQLiteVectorStore(":memory:", WordLlamaEmbeddings())
    make = filled(store, friends)

    def down(*args: Any) -> Any:
        msg = "down"
        raise RuntimeError(msg)

    monkeypatch.setattr(store.records, "embed_query", down)
    assert [text for text in UNRELATED if make().load(text)] == []
    possible = [question.text for question in friends.questions if make(floor=None).load(question.text)]
    assert len(possible) > 0.9 * len(friends.questions)
    answered = [bool(make().load(text)) for text in possible]
    assert sum(answered) >= 0.98 * len(answered)


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
def test_vectors_that_say_nothing_lose_no_answers(friends: Dialogue, embedder: Embeddings) -> None:
    """A question that names a speaker and a rare word is answered, whatever the vectors."""
    make = filled(SQLiteVectorStore(":memory:", embedder), friends)
    answered = [bool(make().load(question.text)) for question in friends.questions]
    assert sum(answered) >= 0.9 * len(answered)


@pytest.mark.parametrize("embedder", [Constant(), Opposite()])
def test_vectors_that_are_alike_do_not_break_the_silence(friends: Dialogue, embedder: Embeddings) -> None:
    """Then the words decide."""
    make = filled(SQLiteVectorStore(":memory:", embedder), friends)
    assert make().load("Who painted the Mona Lisa?") == []


@pytest.mark.parametrize("records", [1, 3, 10])
def test_small_memories(records: int) -> None:
    """With few records the words decide: no scale of similarity is known yet."""
    memory = VectorMemory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings()), "s1", user_id="u1")
    facts = [
        "My cat is called Nemo.",
        "Tuesday is choir.",
        "The boiler was mended.",
        "A parcel came for the neighbour.",
    ]
    for i in range(records):
        memory.save([HumanMessage(facts[i] if i < 4 else f"Lunch number {i} was soup."), AIMessage("I see.")])
    assert "Nemo" in memory.load("What is the name of my cat?")[0].text
    assert "Nemo" in memory.load("Where is the cat?")[0].text
    assert [text for text in UNRELATED if memory.load(text)] == []


def test_a_memory_of_one_topic_is_not_silent() -> None:
    """Where all records are alike, and no word is rare, what the user asks of himself still recalls."""
    memory = VectorMemory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings()), "s1", user_id="u1")
    for i in range(40):
        memory.save([HumanMessage(f"Today I saw {i} ships in the harbour."), AIMessage("I see.")])
    assert memory.load("How many ships did I see in the harbour?") != []
    assert memory.load("What is the capital of Mongolia?") == []


def test_a_store_of_others(friends: Dialogue) -> None:
    """Its similarities have no known scale, so the words decide."""
    make = filled(InMemoryVectorStore(WordLlamaEmbeddings()), friends.part(200, 20))
    assert make().load("Who painted the Mona Lisa?") == []
    assert make(floor=None).load("Who painted the Mona Lisa?") != []
    answered = [bool(make().load(question.text)) for question in friends.part(200, 20).questions]
    assert sum(answered) >= 0.9 * len(answered)


def test_a_number_sets_the_floor(make: Callable[..., VectorMemory], friends: Dialogue) -> None:
    """The higher, the fewer questions are answered; just above the floor less is shown."""
    asked = [question.text for question in friends.questions][:30]
    answered = [sum(bool(make(floor=floor).load(text)) for text in asked) for floor in (0.5, 3.0, 5.0, 100)]
    assert answered == sorted(answered, reverse=True)
    assert answered[0] > answered[2]
    assert answered[3] == 0
    best = make().search(asked[0], k=1)[0].relation
    little, much = (make(floor=floor).load(asked[0])[0].text for floor in (best - 0.001, best - 1))
    assert len(little) < 0.6 * len(much)


def test_search_has_no_floor(make: Callable[..., VectorMemory]) -> None:
    """People who look see everything, and how much it has to do with the question."""
    hits = make().search("What is 2+2?", k=5)
    assert len(hits) == 5
    assert max(hit.relation for hit in hits) < 1


def test_generative_agents_recall_always() -> None:
    """As in their paper, unless a number is given."""
    agents = Ranking.generative_agents()
    assert [check_floor("auto", agents), check_floor(1.5, agents), check_floor("auto", Ranking())] == [None, 1.5, 1.0]


@pytest.mark.parametrize("floor", [-1, True, "high", float("inf"), float("nan"), [1]])
def test_wrong_floors_are_refused(floor: Any) -> None:
    """With a sentence that says what is taken."""
    with pytest.raises(ConfigurationError, match='floor must be a number from 0 up, "auto"'):
        VectorMemory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings()), "s1", user_id="u1", floor=floor)


class Counting(BaseDocumentCompressor):
    """A reranker that counts its calls."""

    calls: int = 0

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        """Counts, and leaves the order."""
        self.calls += 1
        return documents


def test_a_reranker_is_not_asked_below_the_floor(make: Callable[..., VectorMemory]) -> None:
    """It may be slow, or cost money."""
    reranker = Counting()
    assert make(reranker=reranker).load("What is 2+2?") == []
    assert reranker.calls == 0
    assert make(reranker=reranker).load("What is Nora's favourite meal?") != []
    assert reranker.calls == 1


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
    assert note.startswith("VectorMemory recalled nothing: the best of ")
    assert note.endswith("to do with the question, and the floor is 1")
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


# For each part of the score that the floor is compared with: the vectors, and what is worse without it, the share of
# questions with an answer that recall something ("answered"), or of prompts without one that do ("shown").
POINTS = {
    "NEARNESS": ("wordllama", "shown"),
    "UNKNOWN": (WORDS_ONLY, "shown"),
    "ALONE": (WORDS_ONLY, "shown"),
    "SPEAKER": ("wordllama", "answered"),
    "ONESELF": ("wordllama", "answered"),
    "ACQUAINTANCE": (WORDS_ONLY, "answered"),
    "STRANGER": ("wordllama", "shown"),
    "TASK": ("wordllama", "shown"),
    "DAY": (WORDS_ONLY, "answered"),
}


def above_the_floor(systems: list[Kept]) -> dict[str, float]:
    """The shares of questions with an answer, and of prompts without one, that are related to some record."""
    everyday = (TEXTS / "everyday.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[bool]] = {"answered": [], "shown": []}
    for system in systems:
        others = [question.text for other in systems if other is not system for question in other.dialogue.questions]
        for kind, texts in (
            ("answered", [question.text for question in system.dialogue.questions]),
            ("shown", [*everyday, *others[::5], *system.dialogue.unanswerable]),
        ):
            for text in texts:
                asked = Question(text, system.embeddings.embed_query(text), system.now)
                found[kind].append(best_first(system.index, asked, system.ranking).relation >= FLOOR)
    return {kind: sum(many) / len(many) for kind, many in found.items()}


@pytest.mark.parametrize("name", POINTS)
def test_each_part_of_the_score_is_for_something(
    name: str, saved: Callable[[str], list[Kept]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it fewer questions are answered, or more prompts that the memory cannot help show something."""
    embedder, row = POINTS[name]
    with_it = above_the_floor(saved(embedder))
    monkeypatch.setattr(relevance, name, 0.0)
    without = above_the_floor(saved(embedder))
    print(f"\n{name}, {embedder}: {row} {with_it[row]:.3f}, without it {without[row]:.3f}")
    assert (without[row] < with_it[row]) if row == "answered" else (without[row] > with_it[row])


def test_no_part_of_the_score_is_left_out() -> None:
    """`WHOLE` is for memories that have no scale: small ones, and those of one topic, which have tests above."""
    points = {name for name, value in vars(relevance).items() if name.isupper() and isinstance(value, float)}
    assert points - {"FLOOR", "USUAL", "LOWEST", "MOST", "WHOLE"} == set(POINTS)
