"""What an agent's harness puts into a conversation keeps its place there and is nobody's words, in every component."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    CondenseQuestionRetriever,
    EntityMemory,
    InMemoryChatMessageHistory,
    KeyValueMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    explain_turn,
)
from langchain_memkit.base import Mention, Query
from langchain_memkit.classic import as_classic_memory
from langchain_memkit.retrievers.history import question_answer_pairs
from langchain_memkit.testing import FakeChatModel

CONFIG: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
TASK = HumanMessage(
    "Background task 42: Dagobert sailed to Lisbon with The Blue Parrot.",
    additional_kwargs={"lc_source": "async_subagent", "lc_data": {"task_id": "42"}},
    id="task",
)
TALK: list[BaseMessage] = [
    HumanMessage("Harrison lives in Oslo.", id="q1"),
    AIMessage("Noted.", id="a1"),
    TASK,
    AIMessage("Good.", id="a2"),
]

Call = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """`call(memory, "save", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "chat.db"


@pytest.fixture
def histories(path: Path) -> Iterator[Any]:
    """A factory of histories; the user's session s1 holds the talk."""
    with SQLiteChatMessageHistory.factory(path) as factory:
        factory("s1", "u1").add_messages(TALK)
        yield factory


def test_history_keeps_its_place(histories: Any, call: Call) -> None:
    """The log holds it where it was said, mark and data included; it is no question of the user's."""
    history = histories("s1", "u1")
    assert history.messages == TALK
    assert history.messages[2].additional_kwargs == TASK.additional_kwargs
    assert call(history, "last_questions", 5) == ["Harrison lives in Oslo."]


@pytest.mark.parametrize("saved", [False, True], ids=["stored", "saved"])
def test_vector_memory_does_not_quote_it(tmp_path: Path, histories: Any, call: Call, saved: bool) -> None:
    """It is neither recalled as the user's nor found, from the history or as the memory was told of it."""
    own = SQLiteChatMessageHistory.factory(tmp_path / "own.db") if saved else histories
    with VectorMemory.factory(own, WordLlamaEmbeddings()) as memories:
        if saved:
            call(memories("s1", "u1"), "save", TALK)
        loaded = call(memories("s2", "u1"), "load", "Who sailed to Lisbon with a parrot?")
        assert not any("Lisbon" in str(message.content) for message in loaded)
        found = "\n".join(str(m.content) for m in call(memories("s2", "u1"), "load", "Where does Harrison live?"))
        assert "Harrison lives in Oslo." in found
        assert "Dagobert" not in found
        hits = call(memories("s1", "u1"), "search", "Harrison Oslo Lisbon parrot", k=5)
        assert any("Oslo" in hit.text for hit in hits)
        assert not any("Lisbon" in hit.text for hit in hits)


def test_entity_memory_learns_nothing_from_it(path: Path, call: Call) -> None:
    """People that only the harness names are no entities of the user's."""
    names = re.compile("Harrison|Dagobert")

    def extract(text: str) -> list[Mention]:
        return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in names.finditer(text)]

    memory = EntityMemory.factory(SQLiteChatMessageHistory.factory(path), extract)("s1", "u1")
    call(memory, "save", TALK)
    assert [entity.name for entity in call(memory, "entities")] == ["Harrison"]


def test_key_value_memory_does_not_follow_it(call: Call) -> None:
    """A title that only the harness mentions brings no entry in; one that the user mentions does."""
    books = KeyValueMemory({"The Blue Parrot": "A sea story.", "Oslo": "A city."})
    [note] = call(books, "load", Query("And then?", past=TALK))
    assert "A city." in note.content
    assert "A sea story." not in note.content


def test_turns_for_condensing() -> None:
    """The condenser sees what the user asked and what was answered."""
    assert question_answer_pairs(TALK) == [("Harrison lives in Oslo.", "Good.")]


def test_condensing(call: Call) -> None:
    """The model that rewrites a follow-up question is not told what the harness said."""
    model = FakeChatModel()
    found = InMemoryVectorStore.from_documents([Document("Oslo is in Norway.")], WordLlamaEmbeddings()).as_retriever()
    retriever = CondenseQuestionRetriever(retriever=found, llm=model, mode="llm")
    call(retriever, "invoke", {"input": "Where is it?", "chat_history": TALK})
    told = "\n".join(str(m.content) for messages in model.calls for m in messages)
    assert "Harrison lives in Oslo." in told
    assert "Lisbon" not in told


def test_rag_chain_searches_for_the_question(histories: Any, call: Call) -> None:
    """What comes in with the question is not searched for; the last questions are the user's."""
    searched: list[str] = []

    def search(question: str) -> list[Document]:
        searched.append(question)
        return [Document("Oslo is in Norway.")]

    model = FakeChatModel()
    chain = create_conversational_rag_chain(model, RunnableLambda(search), histories, n_questions=2, condense="off")
    call(chain, "invoke", {"input": [HumanMessage("Where is Oslo?"), TASK.model_copy(update={"id": "task2"})]}, CONFIG)
    assert searched == ["Where is Oslo?"]
    assert "Harrison lives in Oslo." in [m.content for m in model.calls[-1]]
    history = [m.id for m in histories("s1", "u1").messages]
    assert "task2" in history


def test_memories_are_asked_for_the_users_words(histories: Any, call: Call) -> None:
    """What memories are asked is the user's question, also in a run that a notification began."""
    asked: list[str] = []

    def recall(query: str) -> list[BaseMessage]:
        asked.append(query)
        return []

    chain = create_runnable_with_message_history(FakeChatModel(), histories, memories=[RunnableLambda(recall)])
    call(chain, "invoke", [HumanMessage("Where is Oslo?"), TASK.model_copy(update={"id": "task2"})], CONFIG)
    call(chain, "invoke", [TASK.model_copy(update={"id": "task3"})], CONFIG)
    assert asked == ["Where is Oslo?", "Where is Oslo?"]


def test_explanation_names_it(histories: Any) -> None:
    """Its role is no human's, its place is the history."""
    chain = create_runnable_with_message_history(FakeChatModel(), histories)
    seen = explain_turn(chain, "Where do I live?", CONFIG)
    assert [(m.part, m.role) for m in seen.messages] == [
        ("history", "human"),
        ("history", "ai"),
        ("history", "notification"),
        ("history", "ai"),
        ("input", "human"),
    ]


def test_summaries_name_it(histories: Any, call: Call) -> None:
    """The summarizer reads that it is a notification."""
    model = FakeChatModel()
    summarize = create_history_preprocessor(model, max_tokens=1000, trigger=("messages", 4), keep=("messages", 0))
    call(summarize, "invoke", TALK)
    [prompt] = model.calls[0]
    assert "human: Harrison lives in Oslo." in prompt.content
    assert "notification: Background task 42" in prompt.content
    assert "human: Background" not in prompt.content


class ChatHistory(InMemoryChatMessageHistory):  # the class itself warns when it is made
    """LangChain's own history."""


def test_summaries_of_long_ones_name_it() -> None:
    """So does every piece of one that is too long for one call, in both kinds of prompt."""
    long = TASK.model_copy(update={"content": "Background task 42 reports a parrot. " * 400})
    template = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "Sum it up.")])
    for prompt in (None, template):
        model = FakeChatModel()
        summarize = create_history_preprocessor(
            model, max_tokens=1000, trigger=("messages", 3), keep=("messages", 0), prompt=prompt
        )
        history = ChatHistory()
        history.add_messages([TALK[0], TALK[1], long, AIMessage("Good.")])
        summarize.summarize(history, {"configurable": {"session_id": "s1"}}, progress=False)
        assert len(model.calls) > 3
        reports = [str(m.content) for messages in model.calls for m in messages if "reports a parrot" in m.content]
        assert reports
        assert all("notification: " in text and "human: Background" not in text for text in reports)


def test_records_of_a_past_name_it(histories: Any, call: Call) -> None:
    """A history that is a memory among others quotes it as a notification."""
    memory = ComposedMemory(KeyValueMemory({"Oslo": "A city."}), ChatHistoryMemory(histories("s1", "u1")))
    told = "\n".join(str(m.content) for m in call(memory, "load", "Where is Oslo?"))
    assert "(notification)" in told
    assert "- record (human):\n> Background" not in told


def test_classic_memory_names_it(histories: Any) -> None:
    """In a history that is a string it has a prefix of its own."""
    memory: Any = as_classic_memory(ChatHistoryMemory(histories("s1", "u1")))
    text = memory.load_memory_variables({"input": "Where do I live?"})["history"]
    assert "Notification: Background task 42" in text
    assert "Human: Background" not in text
