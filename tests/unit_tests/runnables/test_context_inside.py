"""A preprocessor that the wrapped runnable calls itself, in the middle of a turn, as an agent's loop does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.errors import ContextTooLargeError
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.preprocessors import create_history_preprocessor, create_trim_preprocessor
from langchain_memkit.testing import FakeChatModel
from testkit.styles import Styles

S1: Any = {"configurable": {"session_id": "s1"}}
CALLS: list[Any] = [{"name": "look", "args": {}, "id": "c1"}]
RESULT = ToolMessage("42", tool_call_id="c1")


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in each style."""
    return Styles(request.param)


@pytest.fixture
def histories() -> Iterator[Any]:
    """A factory with a few turns in session s1."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        factory("s1").add_messages([HumanMessage("q0"), AIMessage("a0"), HumanMessage("q1"), AIMessage("a1")])
        yield factory


def agent_with(preprocessor: Any, seen: list[list[BaseMessage]], *later: BaseMessage) -> Any:
    """A runnable that asks the preprocessor for its second step, after what came of the first."""

    def step(messages: list[BaseMessage], config: RunnableConfig) -> AIMessage:
        seen.append(preprocessor.invoke([*messages, *later], config))
        return AIMessage("done")

    return RunnableLambda(step)


@pytest.mark.parametrize("words", [10, 150], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["trim", "history"])
def test_the_second_step_of_an_agent(histories: Any, run: Styles, kind: str, words: int) -> None:
    """The question and the results that the model has not seen are there, whatever else the turn began with."""
    preprocessor: Any = create_trim_preprocessor(300)
    if kind == "history":
        preprocessor = create_history_preprocessor(lambda prompt: "so far", max_tokens=300)
    seen: list[list[BaseMessage]] = []
    agent = agent_with(preprocessor, seen, AIMessage("", tool_calls=CALLS), RESULT)
    run(create_runnable_with_message_history(agent, histories), "word " * words, S1)
    assert [m.type for m in seen[0]][-3:] == ["human", "ai", "tool"]
    assert seen[0][-3].text == "word " * words
    assert seen[0][-1] == RESULT


def test_a_result_that_is_too_large(histories: Any, run: Styles) -> None:
    """It is cut in the middle; if even that does not fit, `on_overflow` decides, as it does piped by hand alone."""
    huge = ToolMessage("number " * 400, tool_call_id="c1")
    seen: list[list[BaseMessage]] = []
    agent = agent_with(create_trim_preprocessor(200), seen, AIMessage("", tool_calls=CALLS), huge)
    run(create_runnable_with_message_history(agent, histories), "And now?", S1)
    assert [m.type for m in seen[0]] == ["human", "ai", "tool"]
    assert re.fullmatch(r"(number )+(\w*)\n\[[\d,]+ characters are left out here\.\]\n\w*( number)+ ", seen[0][-1].text)
    assert 150 < approximate_tokens(seen[0]) <= 200
    strict = create_trim_preprocessor(40, on_overflow="raise")
    agent = agent_with(strict, [], AIMessage("", tool_calls=CALLS), huge)
    with pytest.raises(ContextTooLargeError):
        run(create_runnable_with_message_history(agent, histories), "And now?", S1)


def test_a_question_of_its_own(histories: Any, run: Styles) -> None:
    """A chain that asks itself something is given its question."""
    seen: list[list[BaseMessage]] = []
    agent = agent_with(create_trim_preprocessor(60), seen, AIMessage("draft"), HumanMessage("criticise " * 20))
    run(create_runnable_with_message_history(agent, histories), "word " * 40, S1)
    assert seen[0][-1].text == "criticise " * 20


def test_messages_of_a_prompt_as_a_list(histories: Any, run: Styles) -> None:
    """A prompt that was made a list of new objects keeps its question."""
    model = FakeChatModel()
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be brief."), ("placeholder", "{chat_history}"), ("human", "{input}")]
    )
    chain: Any = prompt | RunnableLambda(lambda value: value.to_messages()) | create_trim_preprocessor(40) | model
    chat = create_runnable_with_message_history(
        chain, histories, input_messages_key="input", history_messages_key="chat_history"
    )
    run(chat, {"input": "word " * 25}, S1)
    assert [m.text for m in model.calls[0]] == ["Be brief.", "word " * 25]
