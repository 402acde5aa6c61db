"""The trimmer as a runnable: piped by hand, in every style, its event, stored counts, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.preprocessors import create_trim_preprocessor
from langchain_memkit.preprocessors.prompt import summary_message
from langchain_memkit.testing import FakeChatModel

TALK: list[BaseMessage] = [m for i in range(6) for m in (HumanMessage(f"q{i}", id=f"q{i}"), AIMessage(f"a{i}"))]
COUNTED: list[str] = []
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Be kind."), ("placeholder", "{chat_history}"), ("human", "{input}")]
)


def counted(messages: Sequence[BaseMessage]) -> int:
    """Counts messages as ten tokens each, and remembers which."""
    COUNTED.extend(m.text for m in messages)
    return 10 * len(messages)


def also_counted(messages: Sequence[BaseMessage]) -> int:
    """The same by another name."""
    return counted(messages)


@pytest.fixture(autouse=True)
def forget() -> None:
    """Each test counts from nothing."""
    COUNTED.clear()


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [m.text for m in messages]


class Heard(BaseCallbackHandler):
    """Keeps the custom events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps one."""
        self.events.append((name, data))


class HeardAsync(AsyncCallbackHandler):
    """The same for async callbacks."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps one."""
        self.events.append((name, data))


@pytest.mark.parametrize("counter", [len, None, counted], ids=["len", "approximate", "callable"])
def test_every_style_says_the_same(counter: Any) -> None:
    """invoke, ainvoke, batch, abatch, stream and astream return the same list."""
    trimmer = create_trim_preprocessor(20, token_counter=counter)

    async def in_async() -> list[Any]:
        streamed = [chunk async for chunk in trimmer.astream(TALK)]
        return [await trimmer.ainvoke(TALK), *await trimmer.abatch([TALK, TALK]), *streamed]

    expected = trimmer.invoke(TALK)
    assert 0 < len(expected) <= len(TALK)
    results = [*trimmer.batch([TALK, TALK]), *trimmer.stream(TALK), *asyncio.run(in_async())]
    assert results == [expected] * 7


def piped(model: FakeChatModel, preprocessor: Any) -> Any:
    """The guide's chain."""
    return RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | preprocessor) | PROMPT | model


def test_piped_by_hand() -> None:
    """As in the guide: `RunnablePassthrough.assign(chat_history=itemgetter(...) | preprocessor) | prompt | model`."""
    model = FakeChatModel()
    chain = piped(model, create_trim_preprocessor(max_tokens=2, token_counter=len))
    asked = {"chat_history": TALK, "input": "And now?"}
    chain.invoke(asked)
    asyncio.run(chain.ainvoke(asked))
    list(chain.stream(asked))
    chain.batch([asked, asked])
    assert [texts(call) for call in model.calls] == [["Be kind.", "q5", "a5", "And now?"]] * 5
    assert len(TALK) == 12


def test_a_whole_prompt() -> None:
    """Behind a prompt, the trimmer takes its value: system line and question stay."""
    model = FakeChatModel()
    chain = PROMPT | create_trim_preprocessor(4, token_counter=len) | model
    chain.invoke({"chat_history": TALK, "input": "And now?"})
    assert texts(model.calls[0]) == ["Be kind.", "q5", "a5", "And now?"]


def stored(counter: Any) -> Any:
    """A history whose messages were counted when they were stored, read back."""
    history = SQLiteChatMessageHistory.factory(":memory:", token_counter=counter)("s1")
    history.add_messages(TALK)
    COUNTED.clear()
    return history.messages


def test_stored_counts_are_used() -> None:
    """Messages of a history that counts by the same function are not counted again, and the cut is the same."""
    messages = stored(counted)
    assert texts(create_trim_preprocessor(40, token_counter=counted).invoke(messages)) == texts(TALK[-4:])
    assert COUNTED == []


def test_stored_counts_of_others_are_not() -> None:
    """Numbers of another counter, and numbers of a list that was changed since, are not trusted."""
    for counter in (also_counted, None):
        messages = stored(counter)
        create_trim_preprocessor(40, token_counter=counted).invoke(messages)
        assert COUNTED == ["a5", "q5", "a4", "q4", "a3"]
    messages = stored(counted)
    messages[-1] = AIMessage("changed")
    create_trim_preprocessor(40, token_counter=counted).invoke(messages)
    assert COUNTED == ["changed"]
    for change in (lambda ms: ms.append(AIMessage("more")), lambda ms: ms.pop(0), lambda ms: ms.reverse()):
        messages = stored(counted)
        change(messages)
        create_trim_preprocessor(20, token_counter=counted).invoke(messages)
        assert COUNTED[:2] == texts(messages)[:-3:-1]


def test_nameless_counters_are_not_trusted() -> None:
    """A lambda is itself only: another lambda's numbers are not used."""
    messages = stored(lambda ms: 1)
    assert len(create_trim_preprocessor(40, token_counter=lambda ms: 10 * len(ms)).invoke(messages)) == 4


@pytest.mark.parametrize("limit", [4, 40])
def test_cost_is_that_of_what_is_kept(limit: int) -> None:
    """Of 50,000 messages as many are counted as are kept, and one more."""
    messages = [m for i in range(25_000) for m in (HumanMessage(f"q{i}"), AIMessage(f"a{i}"))]
    kept = create_trim_preprocessor(10 * limit, token_counter=counted).invoke(messages)
    assert len(kept) == limit
    assert len(COUNTED) == limit + 1


def event_talk() -> list[BaseMessage]:
    """A system line, a summary, an old turn and a new one with an open call beside an answered one."""
    calls = [{"name": "f", "args": {}, "id": i} for i in ("1", "2")]
    return [
        SystemMessage("SECRET rule", id="s"),
        summary_message("SECRET past", "sum"),
        HumanMessage("SECRET old", id="old"),
        AIMessage("SECRET old answer", id="new"),  # the same id twice, as data of others has it
        HumanMessage("SECRET new", id="new"),
        AIMessage("SECRET call", id="call", tool_calls=calls),
        ToolMessage("SECRET result", tool_call_id="1", id="result"),
    ]


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("handler", [Heard, HeardAsync])
@pytest.mark.parametrize("counter", [counted, len], ids=["callable", "len"])
def test_event(style: str, handler: Any, counter: Any) -> None:
    """`memkit_context` says what was kept and dropped, by id, and tokens by part; nothing that was said is in it."""
    heard, each = handler(), 10 if counter is counted else 1
    trimmer = create_trim_preprocessor(5 * each, token_counter=counter)
    config: Any = {"callbacks": [heard]}
    if style == "invoke":
        trimmer.invoke(event_talk(), config)
    else:
        asyncio.run(trimmer.ainvoke(event_talk(), config))
    ((name, data),) = heard.events
    assert name == "memkit_context"
    assert data == {
        "preprocessor": "trim",
        "max_tokens": 5 * each,
        "room": 5 * each,
        "reserved": 0,
        "beside": 0,
        "tokens": {"system": each, "summary": each, "history": 3 * each},
        "kept": 5,
        "dropped": 2,
        "over": 0,
        "shortened": 0,
        "summarized": 0,
        "kept_ids": ["s", "memkit-summary-sum", "new", "call", "result"],
        "dropped_ids": ["old", "new"],
        "summarized_ids": [],
        "notes": [],
    }
    assert "SECRET" not in repr(data)


def test_nobody_listens() -> None:
    """Without callbacks nothing is gathered: the counter is asked for what the cut needs only."""
    create_trim_preprocessor(20, token_counter=counted).invoke(TALK)
    assert COUNTED == ["a5", "q5", "a4"]
    create_trim_preprocessor(20, token_counter=counted).invoke(TALK, {"callbacks": [Heard()]})
    assert len(COUNTED) == 3 + 3 + 2
