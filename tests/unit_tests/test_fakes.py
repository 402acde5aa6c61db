"""`FakeChatModel`: what it answers, and that it is a chat model in every place where an app has one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage, trim_messages
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import (
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
    session,
)
from langchain_memkit.testing import FakeChatModel

CALL = {"name": "weather", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"Snow in {city}."


def scripted() -> FakeChatModel:
    """Calls the tool, then says what came of it."""
    return FakeChatModel(responses=[AIMessage("Let me see.", tool_calls=[CALL], id="a1"), "It snows in Oslo."])


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Hey there! I'm Nemo.", "What's my name?"),
        ("Hi! I'm Bob", "What's my name?"),
        ("hi! I'm bob", "what's my name?"),
        ("Hi, I am Ann.", "What is my name?"),
        ("I'm Nemo.", "Who am I?"),
        ("Call me Ishmael.", "Do you remember my name?"),
        ("My name is Nemo.", "What's my name?"),
        ("My name is Nemo.", "Who am I?"),
        ("I live in Sydney.", "Where do I live?"),
    ],
)
def test_words_of_guides(said: str, asked: str) -> None:
    """Who introduces himself, in the words of LangChain's guides, has told his name."""
    model = FakeChatModel()
    assert model.invoke([HumanMessage(said), AIMessage("Hello!"), HumanMessage(asked)]).text == f"You told me: {said}"


@pytest.mark.parametrize("said", ["I'm tired.", "It's raining.", "That's what I'm after.", "Hello there!"])
def test_what_tells_no_name(said: str) -> None:
    """What shares no word with the question, contractions apart, answers nothing."""
    model = FakeChatModel()
    assert model.invoke([HumanMessage(said), HumanMessage("What's my name?")]).text == "You have not told me that."


def test_responses_come_first() -> None:
    """The script is followed call by call, then the model answers by itself; every call is noted."""
    model = scripted()
    told: list[LanguageModelInput] = ["How is the weather in Oslo?", "And?", "What is my name?"]
    answers = [model.invoke(said) for said in told]
    assert [answer.text for answer in answers] == ["Let me see.", "It snows in Oslo.", "You have not told me that."]
    assert answers[0].tool_calls == [CALL]
    assert len(model.calls) == 3


async def test_streamed_calls() -> None:
    """A stream gives the words and then the calls, which add up to the same message."""
    for stream in ([*scripted().stream("?")], [chunk async for chunk in scripted().astream("?")]):
        assert len(stream) > 3
        total: Any = stream[0]
        for chunk in stream[1:]:
            total = total + chunk
        assert isinstance(total, AIMessageChunk)
        assert (total.text, total.tool_calls, total.id) == ("Let me see.", [CALL], "a1")


def test_agent(tmp_path: Any) -> None:
    """It binds tools, and an agent with a tool runs on it: by itself, with a script, and with a transcript."""
    plain = create_agent(FakeChatModel(), [weather])
    assert plain.invoke({"messages": [("user", "Hello.")]})["messages"][-1].text == "Noted."
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        agent = create_agent(scripted(), [weather], middleware=[MessageHistoryMiddleware(histories)])
        said = agent.invoke({"messages": [("user", "How is the weather?")]}, session("s1"))["messages"]
        assert [type(message) for message in said] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
        assert (said[2].text, said[3].text) == ("Snow in Oslo.", "It snows in Oslo.")
        assert [m.text for m in histories("s1").messages][-2:] == ["Snow in Oslo.", "It snows in Oslo."]


async def test_agent_without_blocking() -> None:
    """The same in async, streamed, with a checkpointer."""
    agent = create_agent(scripted(), [weather], checkpointer=InMemorySaver())
    words = [
        chunk.text
        async for chunk, _ in agent.astream(
            {"messages": [("user", "How is the weather?")]}, session("s1", thread_id="t1"), stream_mode="messages"
        )
    ]
    assert "".join(words) == "Let me see.Snow in Oslo.It snows in Oslo."


def test_tokens_are_counted_without_a_tokenizer() -> None:
    """A count for texts and messages, with which LangChain trims."""
    model = FakeChatModel()
    talk: list[BaseMessage] = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo."), HumanMessage("How are you?")]
    assert model.get_num_tokens_from_messages(talk[:2]) == 16
    assert 0 < model.get_num_tokens("Hello!") < model.get_num_tokens("Hello! " * 20)
    kept = trim_messages(talk, max_tokens=10, token_counter=model, start_on="human")
    assert kept == talk[2:]


def test_in_a_chain() -> None:
    """The chatbot guide's own conversation, remembered by a chain."""
    chat = create_runnable_with_message_history(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"))
    chat.invoke("Hey there! I'm Nemo.", session("s1"))
    assert chat.invoke("What's my name?", session("s1")).text == "You told me: Hey there! I'm Nemo."
    assert chat.invoke("What's my name?", session("s2")).text == "You have not told me that."


def test_a_note_is_answered_with_the_line_that_fits_best() -> None:
    """Not with the whole note, and not with what a model said."""
    note = "Records follow.\n<records>\n- 2026-01-02:\n> human: I live in Perth.\n> ai: You live in Perth!\n</records>"
    answer = FakeChatModel().invoke([HumanMessage(note), HumanMessage("Where do I live?")])
    assert answer.text == "You told me: I live in Perth."


@pytest.mark.parametrize("trace", [False, True])
def test_a_cost_is_filed_under_the_model_that_the_answer_names(trace: bool) -> None:
    """With a stored trace and without one."""
    cost = {"input_tokens": 20, "output_tokens": 2, "total_tokens": 22}
    answer = AIMessage("Noted.", usage_metadata=cost, response_metadata={"model_name": "tiny-1"})
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(FakeChatModel(responses=[answer]), histories, trace=trace)
    chat.invoke("Hi", session("s1", user_id="u1"))
    assert [*histories.usage("u1")] == ["tiny-1"]
