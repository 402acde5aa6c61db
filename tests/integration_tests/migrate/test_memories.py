"""LangChain's own memories and histories moved into ours: once, whoever asks how often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_classic.memory import (
    CombinedMemory,
    ConversationBufferMemory,
    ConversationBufferWindowMemory,
    ConversationSummaryBufferMemory,
    ReadOnlySharedMemory,
)
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import amigrate, langchain_memory_source, migrate
from langchain_memkit.testing import FakeChatModel


def remembering(memory: Any) -> Any:
    """The memory after a conversation in which a question was asked twice."""
    for text in ("hi", "What is my name?", "hi"):
        memory.save_context({"input": text}, {"output": f"You said: {text}"})
    return memory


@pytest.fixture
def histories() -> Any:
    """Where they go."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


@pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")
@pytest.mark.parametrize("kind", [ConversationBufferMemory, ConversationBufferWindowMemory])
@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_memory_moved_twice_is_stored_once(histories: Any, kind: Any, style: str) -> None:
    """The same question asked twice stays two turns, a second run adds nothing, and a third what came since."""
    memory = remembering(kind())

    def run(given: Any) -> Any:
        source = langchain_memory_source({"s1": given})
        if style == "async":
            return asyncio.run(amigrate(source, histories, user_id="u1", progress=False))
        return migrate(source, histories, user_id="u1", progress=False)

    assert run(memory).messages == 6
    run(ReadOnlySharedMemory(memory=memory))
    stored = histories("s1", "u1").messages
    assert [m.content for m in stored] == [m.content for m in memory.chat_memory.messages]
    assert [turn.seq for turn in histories("s1", "u1").iter_turns()] == [1, 2, 3]
    assert all(m.id is None for m in memory.chat_memory.messages), "what was given must stay as it is"
    memory.chat_memory.add_user_message("and now?")
    run(memory)
    memory.chat_memory.add_ai_message("now as well")
    run(memory)
    assert [m.content for m in histories("s1", "u1").messages[6:]] == ["and now?", "now as well"]
    assert [m.id for m in histories("s1", "u1").messages[:6]] == [m.id for m in stored]


@pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")
def test_histories_and_lists(histories: Any) -> None:
    """The dict of histories that LangChain's guides keep moves as it is; ids that are there stay."""
    kept = {"s1": InMemoryChatMessageHistory(), "s2": [HumanMessage("one", id="h1"), AIMessage("two", id="a1")]}
    kept["s1"].add_messages([HumanMessage("hello"), AIMessage("you too")])  # type: ignore[union-attr]
    for _ in range(2):
        report = migrate(langchain_memory_source(kept), histories, progress=False)
        assert (report.sessions, report.skipped) == (2, [])
    assert [m.content for m in histories("s1").messages] == ["hello", "you too"]
    assert [m.id for m in histories("s2").messages] == ["h1", "a1"]


def test_dicts_tuples_and_texts(histories: Any) -> None:
    """What langchain-core converts to messages moves as such, once."""
    kept: Any = {"s1": [{"role": "user", "content": "one"}, ("ai", "two"), "three"]}
    for _ in range(2):
        assert migrate(langchain_memory_source(kept), histories, progress=False).skipped == []
    assert [(m.type, m.content) for m in histories("s1").messages] == [
        ("human", "one"),
        ("ai", "two"),
        ("human", "three"),
    ]


@pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")
def test_what_cannot_move_is_said(histories: Any) -> None:
    """A summary, what is no message, and what holds no messages at all."""
    memory = ConversationSummaryBufferMemory(llm=FakeChatModel(), moving_summary_buffer="They spoke of fish.")
    memory.chat_memory.add_user_message("hello")
    kept = {"s1": memory, "s2": [7, {"text": "hi"}]}
    report = migrate(langchain_memory_source(kept), histories, progress=False)
    assert report.messages == 1
    assert "a summary of messages" in report.skipped[0]
    assert "message 0: a int, not a message" in report.skipped[1]
    assert "message 1: a dict, not a message" in report.skipped[2]
    with pytest.raises(ConfigurationError, match="a CombinedMemory holds no messages: pass its memories one by one"):
        migrate(langchain_memory_source({"s1": CombinedMemory(memories=[])}), histories, progress=False)
    wrong: Any = SQLiteChatMessageHistory
    with pytest.raises(ConfigurationError, match=r"X\.factory\(\.\.\.\), not the class SQLiteChatMessageHistory"):
        migrate(langchain_memory_source({"s1": []}), wrong)
    with pytest.raises(ConfigurationError, match=r"langchain_memory_source, .*not the class SQLiteChatMessageHistory"):
        migrate(wrong, histories)
