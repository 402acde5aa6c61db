"""A chat history as a memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, trim_messages

from langchain_memkit import (
    ChatHistoryMemory,
    InMemoryChatMessageHistory,
    SQLiteChatMessageHistory,
    create_history_preprocessor,
    create_trim_preprocessor,
)
from langchain_memkit.base import purge_user
from langchain_memkit.errors import ConfigurationError, StaleTurnError
from testkit.memories import HostileTexts

pytestmark = pytest.mark.filterwarnings(
    # core's history is what a foreign history is tested with
    "ignore:.*InMemoryChatMessageHistory.*:langchain_core._api.deprecation.LangChainDeprecationWarning",
    "ignore:.*BaseChatMessageHistory.*:langchain_core._api.deprecation.LangChainDeprecationWarning",
)


def talk(n: int) -> list[BaseMessage]:
    """Turn number n."""
    return [HumanMessage(f"question {n}"), AIMessage(f"answer {n}")]


def texts(messages: list[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [str(message.text) for message in messages]


class TestOnSQLite(HostileTexts):
    across_sessions = False

    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Any:
        """Over one file."""
        histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")

        def make(session_id: str, user_id: str | None = None, **options: Any) -> ChatHistoryMemory:
            return ChatHistoryMemory(histories(session_id, user_id), **options)

        return make


def test_preprocessor_shapes_what_is_loaded_and_the_query_shares_its_budget() -> None:
    """Whole newest turns that fit beside the query; the log stays whole."""
    history = SQLiteChatMessageHistory(":memory:", "s1")
    memory = ChatHistoryMemory(history, create_trim_preprocessor(max_tokens=40))
    for n in range(20):
        memory.save(talk(n))
    alone, beside = memory.load(), memory.load("a much longer question that takes up half of what there is")
    assert texts(alone)[-1] == texts(beside)[-1] == "answer 19"
    assert 0 < len(beside) < len(alone) < 40
    assert asyncio.run(memory.aload()) == alone
    assert len(history.messages) == 40


def test_clear_takes_the_summaries_along() -> None:
    """What the preprocessor keeps of the session goes with it."""
    summarize = create_history_preprocessor(
        lambda prompt: "They asked.", max_tokens=1000, trigger=("messages", 4), keep=("messages", 2)
    )
    memory = ChatHistoryMemory(SQLiteChatMessageHistory(":memory:", "s1", user_id="u1"), summarize)
    for n in range(4):
        memory.save(talk(n))
    assert "They asked." in memory.load()[0].text
    memory.clear()
    assert memory.load() == []
    assert summarize.purge("u1") == {"summaries": 0}


def test_foreign_history_and_langchains_own_trimmer() -> None:
    """Any LangChain history serves, with any preprocessor, in both styles."""
    memory = ChatHistoryMemory(
        InMemoryChatMessageHistory(), trim_messages(max_tokens=2, token_counter=len, start_on="human")
    )
    memory.save(talk(1))
    asyncio.run(memory.asave(talk(2)))
    assert texts(memory.load()) == texts(asyncio.run(memory.aload())) == ["question 2", "answer 2"]
    memory.clear()
    assert memory.load() == []


def test_foreign_history_of_dicts() -> None:
    """What another package keeps as dicts is loaded as messages, through a preprocessor as well, in both styles."""

    class OfDicts(InMemoryChatMessageHistory):
        messages: list[Any] = [{"role": "user", "content": "question 1"}, ("ai", "answer 1")]  # noqa: RUF012  # pydantic copies it

    for preprocessor in (None, create_trim_preprocessor(max_tokens=40)):
        memory = ChatHistoryMemory(OfDicts(), preprocessor)
        assert memory.load() == asyncio.run(memory.aload()) == talk(1)


def test_turn_that_began_before_a_clear_is_refused() -> None:
    """Erased text does not come back through a memory that loaded before."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    late, other = ChatHistoryMemory(histories("s1")), ChatHistoryMemory(histories("s1"))
    other.save(talk(1))
    late.load()
    other.clear()
    with pytest.raises(StaleTurnError):
        late.save(talk(2))
    assert other.load() == []


def test_several_saves_after_one_load() -> None:
    """A memory kept for long goes on saving."""
    memory = ChatHistoryMemory(SQLiteChatMessageHistory(":memory:", "s1"))
    memory.load()
    memory.save(talk(1))
    memory.save(talk(2))
    assert len(memory.load()) == 4


def test_factory() -> None:
    """Called with the ids, checked; purges as the histories do; refuses what would mix users."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    with ChatHistoryMemory.factory(histories, create_trim_preprocessor(max_tokens=100)) as memories:
        memories("s1", "u1").save(talk(1))
        assert texts(memories("s1", "u1").load()) == ["question 1", "answer 1"]
        assert memories("s1").load() == []
        assert purge_user("u1", memories) == [{"sessions": 1, "turns": 1}]
        assert asyncio.run(memories.apurge("u1")) == {"sessions": 0, "turns": 0}
        with pytest.raises(TypeError, match="session_id"):
            memories(1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="user_id"):
        ChatHistoryMemory.factory(lambda session_id: histories(session_id))("s1", "u1")

    async def later(session_id: str) -> Any:
        return histories(session_id)

    with pytest.raises(ConfigurationError, match="async"):
        ChatHistoryMemory.factory(later)("s1")
    with pytest.raises(ConfigurationError, match="history"):
        ChatHistoryMemory([])
