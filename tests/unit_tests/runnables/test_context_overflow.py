"""A model says that it was given more than it can take: once more with 70% of the budget, or its error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.preprocessors import create_trim_preprocessor
from langchain_memkit.testing import FakeChatModel
from testkit.styles import Styles
from testkit.turns import streaming

S1: Any = {"configurable": {"session_id": "s1"}}
KEYS: dict[str, Any] = {"input_messages_key": "input", "history_messages_key": "chat_history"}
PROMPT = ChatPromptTemplate.from_messages([("placeholder", "{chat_history}"), ("human", "{input}")])
BUDGET = 20
SMALLER = 14


class SmallModel(FakeChatModel):
    """Takes so many messages and no more, as a provider that refuses too long a prompt."""

    most: int = 15

    def _answer(self, messages: list[BaseMessage]) -> str:
        answer = super()._answer(messages)
        if len(messages) > self.most:
            msg = f"at most {self.most} messages"
            raise ContextOverflowError(msg)
        return answer


class Heard(BaseCallbackHandler):
    """Keeps the custom events by name."""

    def __init__(self) -> None:
        self.events: dict[str, list[Any]] = {}

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps one."""
        self.events.setdefault(name, []).append(data)


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in each style."""
    return Styles(request.param)


@pytest.fixture
def histories() -> Iterator[Any]:
    """A factory with 60 stored messages in each of three sessions."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        for session in ("s1", "s2", "s3"):
            factory(session).add_messages([m for i in range(30) for m in (HumanMessage(f"q{i}"), AIMessage(f"a{i}"))])
        yield factory


def one_each(messages: list[BaseMessage]) -> int:
    """A token for each message: a budget that the new input shares, other than with `len`."""
    return len(messages)


def trimmer() -> Runnable[Any, Any]:
    """Twenty messages, the new one included."""
    return create_trim_preprocessor(BUDGET, token_counter=one_each)


def given_to_factory(model: Any, histories: Any, **options: Any) -> Any:
    """The trimmer as `preprocessor=`."""
    return create_runnable_with_message_history(PROMPT | model, histories, preprocessor=trimmer(), **KEYS, **options)


def piped_by_hand(model: Any, histories: Any, **options: Any) -> Any:
    """The trimmer inside the wrapped chain."""
    chain = RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | trimmer()) | PROMPT | model
    return create_runnable_with_message_history(chain, histories, **KEYS, **options)


def behind_the_prompt(model: Any, histories: Any, **options: Any) -> Any:
    """The trimmer between prompt and model."""
    return create_runnable_with_message_history(PROMPT | trimmer() | model, histories, **KEYS, **options)


@pytest.fixture(params=[given_to_factory, piped_by_hand, behind_the_prompt])
def make(request: pytest.FixtureRequest) -> Any:
    """Each place where a trimmer may stand."""
    return request.param


def sizes(model: FakeChatModel) -> list[int]:
    """How many messages each call was given."""
    return [len(call) for call in model.calls]


def test_once_more_with_less(make: Any, histories: Any, run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """The answer comes from a second call with 70% of the budget; stored once, logged, and callbacks are told."""
    model, heard = SmallModel(), Heard()
    chat = make(model, histories)
    with caplog.at_level(logging.WARNING, "langchain_memkit"):
        run(chat, {"input": "And now?"}, {**S1, "callbacks": [heard]})
    assert sizes(model) == [19, 13]
    assert [m.text for m in model.calls[1]][-3:] == ["q29", "a29", "And now?"]
    stored = histories("s1").messages[60:]
    assert [m.text for m in stored] == ["And now?", "You have not told me that."]
    assert heard.events["memkit_context_overflow"] == [{"error": "ContextOverflowError", "scale": 0.7}]
    # In front of the chain the trimmer knows of the prompt's system line as well, elsewhere of the question or nothing.
    rooms = [data["room"] for data in heard.events["memkit_context"]]
    assert rooms in ([BUDGET - 2, SMALLER - 2], [BUDGET - 1, SMALLER - 1], [BUDGET, SMALLER])
    assert caplog.text.count("70%") == 1


def test_batches(make: Any, histories: Any) -> None:
    """Each turn of a batch has its own second try."""
    model = SmallModel()
    configs: Any = [{"configurable": {"session_id": s}} for s in ("s1", "s2", "s3")]
    chat = make(model, histories)
    chat.batch([{"input": "And now?"}] * 3, configs)
    asyncio.run(chat.abatch([{"input": "And then?"}] * 3, configs))
    assert sorted(sizes(model)) == [13] * 6 + [19] * 6
    assert [len(histories(s).messages) for s in ("s1", "s2", "s3")] == [64] * 3


def test_turned_off(make: Any, histories: Any, run: Styles) -> None:
    """`on_context_overflow="raise"` leaves the model's error to the caller, after one call; nothing is stored."""
    model, heard = SmallModel(), Heard()
    chat = make(model, histories, on_context_overflow="raise")
    with pytest.raises(ContextOverflowError, match="at most 15"):
        run(chat, {"input": "And now?"}, {**S1, "callbacks": [heard]})
    assert sizes(model) == [19]
    assert "memkit_context_overflow" not in heard.events
    assert len(histories("s1").messages) == 60


@pytest.mark.parametrize(("policy", "kept"), [("discard", []), ("save_input", ["And now?"])])
def test_no_third_try(make: Any, histories: Any, run: Styles, policy: str, kept: list[str]) -> None:
    """If the second call is too large as well, its error is raised and the policy for failed models applies."""
    model, heard = SmallModel(most=5), Heard()
    with pytest.raises(ContextOverflowError):
        run(make(model, histories, on_model_error=policy), {"input": "And now?"}, {**S1, "callbacks": [heard]})
    assert sizes(model) == [19, 13]
    assert len(heard.events["memkit_context_overflow"]) == 1
    assert [m.text for m in histories("s1").messages[60:]] == kept


def test_second_try_fails_otherwise(make: Any, histories: Any, run: Styles) -> None:
    """Another error of the second call is that error, and the question is kept if so wished."""

    class Broken(SmallModel):
        def _answer(self, messages: list[BaseMessage]) -> str:
            super()._answer(messages)
            raise OSError("model down")

    model = Broken()
    with pytest.raises(OSError, match="model down"):
        run(make(model, histories, on_model_error="save_input"), {"input": "And now?"}, S1)
    assert sizes(model) == [19, 13]
    assert [m.text for m in histories("s1").messages[60:]] == ["And now?"]


def test_nothing_of_ours_to_make_smaller(histories: Any, run: Styles) -> None:
    """Without a preprocessor of ours, or with a function, less cannot be given: the error is raised at once."""
    for preprocessor in (None, lambda messages: messages[-30:]):
        model = SmallModel()
        chat = create_runnable_with_message_history(PROMPT | model, histories, preprocessor=preprocessor, **KEYS)
        with pytest.raises(ContextOverflowError):
            run(chat, {"input": "And now?"}, S1)
        assert len(model.calls) == 1
    assert len(histories("s1").messages) == 60


def test_a_fitting_turn_is_not_touched(make: Any, histories: Any, run: Styles) -> None:
    """The next turn has its whole budget again."""
    model = SmallModel()
    chat = make(model, histories)
    run(chat, {"input": "And now?"}, S1)
    model.most = 99
    run(chat, {"input": "And then?"}, S1)
    assert sizes(model) == [19, 13, 19]


@pytest.mark.parametrize("style", ["stream", "astream"])
def test_not_after_a_chunk(make: Any, histories: Any, style: str) -> None:
    """Once the caller has seen a part of the answer, another one cannot begin: the error is raised."""
    calls = []

    def speak(_: Any) -> Iterator[AIMessageChunk]:
        calls.append(1)
        yield AIMessageChunk(content="So ")
        raise ContextOverflowError("too much after all")

    chat = make(streaming(speak), histories)
    with pytest.raises(ContextOverflowError, match="after all"):
        Styles(style)(chat, {"input": "And now?"}, S1)
    assert len(calls) == 1
    assert len(histories("s1").messages) == 60


def test_history_in_front_of_the_input(histories: Any, run: Styles) -> None:
    """The same where the history is put before the input instead of under a key, and behind other parts."""
    model = SmallModel()
    run(create_runnable_with_message_history(model, histories, preprocessor=trimmer()), "And now?", S1)
    assert sizes(model) == [19, 13]
    model = SmallModel()
    same = RunnableLambda(lambda messages: messages)
    run(create_runnable_with_message_history(same | trimmer() | model, histories), "And then?", S1)
    assert sizes(model) == [19, 13]
    assert [m.text for m in histories("s1").messages[-4::2]] == ["And now?", "And then?"]
