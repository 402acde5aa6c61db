"""Composed memories on a real MongoDB: the contract, and dialogues with entities in one database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langchain_memkit import (
    ChatHistoryMemory,
    EntityMemory,
    KeyValueMemory,
    MongoDBChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_history_preprocessor,
    create_runnable_with_message_history,
    explain_turn,
    purge_user,
)
from langchain_memkit.memories.composed import ComposedMemory, Source, llama_index_template
from langchain_memkit.messages.notes import split_notes
from langchain_memkit.testing import FakeChatModel
from langchain_memkit.testing.memories import assert_framed
from testkit.memories import HostileTexts

NAMES = ["Harrison", "LangChain", "Priya"]


class TestOnMongoDB(HostileTexts):
    @pytest.fixture
    def make_memory(self, replica_set: Any, database: str) -> Iterator[Any]:
        """Dialogues and entities in one database, within a budget; one factory writes, one reads."""
        with MongoDBChatMessageHistory.factory(replica_set.uri, database_name=database) as histories:

            def factory(*, read_only: bool) -> Any:
                entities = EntityMemory.factory(
                    histories, lambda text: [], names=NAMES, max_tokens=20_000, read_only=read_only
                )
                dialogues = ChatHistoryMemory.factory(histories, read_only=read_only)
                return ComposedMemory.factory(dialogues, Source(entities, timeout=60), max_tokens=50_000)

            writing, reading = factory(read_only=False), factory(read_only=True)
            yield lambda session_id, user_id=None, read_only=False: (reading if read_only else writing)(
                session_id, user_id
            )


class TestWithVectorsOnMongoDB(HostileTexts):
    @pytest.fixture
    def make_memory(self, standalone: Any, database: str) -> Iterator[Any]:
        """Dialogues, and what is recalled of them."""
        with MongoDBChatMessageHistory.factory(standalone.uri, database_name=database) as histories:
            embedding = WordLlamaEmbeddings()

            def make(session_id: str, user_id: str | None = None, **options: Any) -> ComposedMemory:
                return ComposedMemory(
                    ChatHistoryMemory(histories(session_id, user_id), **options),
                    VectorMemory(histories, embedding, session_id, user_id=user_id, max_tokens=20_000, **options),
                )

            yield make


@pytest.fixture
def histories(standalone: Any, database: str) -> Iterator[Any]:
    """A factory of histories."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database_name=database) as opened:
        yield opened


def test_a_conversation_recalled_in_another(histories: Any) -> None:
    """Summary, dialogue and records of three memories within one budget, in both styles; cleared, listed and purged."""
    summarize = create_history_preprocessor(
        lambda prompt: "They talked of tea.", max_tokens=500, trigger=("messages", 8), keep=("messages", 4)
    )
    entities = EntityMemory.factory(histories, lambda text: [], names=NAMES)
    memories = ComposedMemory.factory(
        ChatHistoryMemory.factory(histories, summarize),
        entities,
        KeyValueMemory({"House rules": "No shoes."}),
        max_tokens=400,
    )
    memories.setup()
    asyncio.run(memories.asetup())
    memories("monday", "u1").save([HumanMessage("Harrison likes machine learning."), AIMessage("Great!")])
    friday = memories("friday", "u1")
    for i in range(8):
        friday.save([HumanMessage(f"Remark {i} on tea."), AIMessage("Noted.")])
    for messages in (
        friday.load("Does Harrison know the house rules?"),
        asyncio.run(friday.aload("Does Harrison know the house rules?")),
    ):
        summary, *dialogue, note = messages
        assert "They talked of tea." in summary.text
        assert dialogue[-2].text == "Remark 7 on tea."
        assert_framed(note)
        assert [record.text for record in split_notes([note])[1]] == ["Harrison likes machine learning.", "No shoes."]
    friday.clear()
    assert friday.primary.load() == []
    assert [info.session_id for info in memories.list_sessions("u1")] == ["monday"]
    assert purge_user("u1", memories) == [{"sessions": 1, "turns": 1}]
    assert [message.text for message in split_notes(friday.load("Harrison?"))[0]] == []


def test_in_a_chain_on_the_same_histories(histories: Any) -> None:
    """Composed memories over the chain's own histories double nothing, and a retried turn is stored once."""
    model = FakeChatModel()
    entities = EntityMemory.factory(histories, lambda text: [], names=NAMES)
    memories = ComposedMemory.factory(ChatHistoryMemory.factory(histories), entities)
    chat = create_runnable_with_message_history(model, histories, memories=[memories])
    for session_id in ("s1", "s2"):
        config: Any = {"configurable": {"session_id": session_id, "user_id": "u1", "turn_id": f"t-{session_id}"}}
        for _ in range(2):
            asyncio.run(chat.ainvoke("Priya uses LangChain.", config))
        assert len(histories(session_id, "u1").messages) == 2
    config = {"configurable": {"session_id": "s3", "user_id": "u1"}}
    seen = explain_turn(chat, "What does Priya use?", config)
    assert [message.part for message in seen.messages] == ["notes", "input"]
    assert seen.messages[0].text.count("> Priya uses LangChain.") == 1
    assert chat.invoke("What does Priya use?", config).text.count("Priya uses LangChain.") == 1


def test_a_tool_is_not_asked_twice(standalone: Any, database: str) -> None:
    """The results of tools in an earlier conversation, in the words of LlamaIndex's notebook."""
    call = {"name": "mystery", "args": {"a": 5, "b": 6}, "id": "c1", "type": "tool_call"}
    with MongoDBChatMessageHistory.factory(standalone.uri, database_name=database) as histories:
        memories = ComposedMemory.factory(
            ChatHistoryMemory.factory(histories),
            VectorMemory.factory(histories, WordLlamaEmbeddings()),
            position="system",
            template=llama_index_template,
        )
        turn = [
            HumanMessage("What is the mystery function on 5 and 6?"),
            AIMessage("", tool_calls=[call]),
            ToolMessage("-11", tool_call_id="c1"),
            AIMessage("The mystery function on 5 and 6 returns -11."),
        ]
        asyncio.run(memories("s1", "u1").asave(turn))
        again = "What was the output of the mystery function on 5 and 6 again? Don't recompute."
        (system,) = memories("s2", "u1").load(again)
        assert system.content == (
            "Below are a set of relevant dialogues retrieved from potentially several memory sources:\n\n\n\n"
            "\tUSER: What is the mystery function on 5 and 6?\n\tASSISTANT: None\n\tTOOL: -11\n"
            "\tASSISTANT: The mystery function on 5 and 6 returns -11.\n\n\n\n"
            "This is the end of the retrieved message dialogues."
        )
        assert memories("s1", "u1").load(again) == memories("s1", "u1").primary.load()
        assert memories("s1", "u2").load(again) == []
        assert memories.purge("u1") == {"sessions": 1, "turns": 1}
        assert memories("s2", "u1").load(again) == []
