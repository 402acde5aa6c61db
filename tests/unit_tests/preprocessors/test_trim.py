"""Trimming, by example."""

from __future__ import annotations

import re
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompt_values import ChatPromptValue

from langchain_memkit.errors import ConfigurationError, ContextTooLargeError
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.preprocessors import create_trim_preprocessor
from langchain_memkit.preprocessors.prompt import summary_message
from langchain_memkit.testing import FakeChatModel

NEMO: list[BaseMessage] = [
    HumanMessage("Hey there! I'm Nemo."),
    AIMessage("Hello!"),
    HumanMessage("How are you today?"),
    AIMessage("Fine thanks!"),
]
TASK = HumanMessage("Find out everything.")


def texts(messages: list[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [m.text for m in messages]


def loop(rounds: int, size: int = 40, parallel: int = 1) -> list[BaseMessage]:
    """An agent at work: the task, then rounds of tool calls with their results."""
    messages: list[BaseMessage] = [TASK]
    for r in range(rounds):
        ids = [f"{r}-{n}" for n in range(parallel)]
        messages.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": i} for i in ids]))
        messages += [ToolMessage("x" * size, tool_call_id=i) for i in ids]
    return messages


def weather(city: str) -> str:
    """The weather in a city."""
    return city


def test_the_guides_last_two_messages() -> None:
    """`max_tokens=2, token_counter=len` leaves the last two messages, the same objects, and the list as it was."""
    given = list(NEMO)
    kept = create_trim_preprocessor(max_tokens=2, token_counter=len).invoke(given)
    assert kept == NEMO[2:]
    assert all(a is b for a, b in zip(kept, NEMO[2:], strict=True))
    assert given == NEMO
    kept.clear()
    assert len(given) == 4


def test_nothing_to_do() -> None:
    """What fits comes back whole, in a list of its own; nothing comes of nothing."""
    trimmer = create_trim_preprocessor(4, token_counter=len)
    assert trimmer.invoke(NEMO) == NEMO
    assert trimmer.invoke(NEMO) is not NEMO
    assert trimmer.invoke([]) == []


def test_agent_loop_longer_than_the_budget() -> None:
    """The task and the newest groups stay, with parallel results together and nothing in two halves."""
    messages = loop(5, parallel=2)
    kept = create_trim_preprocessor(7, token_counter=len).invoke(messages)
    assert kept == [TASK, *messages[-6:]]
    assert create_trim_preprocessor(6, token_counter=len).invoke(messages) == [TASK, *messages[-3:]]
    assert create_trim_preprocessor(1, token_counter=len).invoke(messages) == [TASK, *messages[-3:]]


def test_agent_loop_of_an_earlier_turn() -> None:
    """Once the agent has answered and was asked again, its loop goes as any turn does."""
    messages = [*loop(3), AIMessage("That is all."), HumanMessage("Thanks, and now?")]
    assert texts(create_trim_preprocessor(4, token_counter=len).invoke(messages)) == ["Thanks, and now?"]


@pytest.mark.parametrize(
    ("include_system", "expected"),
    [
        (True, ["rule", summary_message("so far", "d").text, "How are you today?", "Fine thanks!"]),
        (False, ["How are you today?", "Fine thanks!"]),
    ],
)
def test_system_lines_and_summary_in_front(include_system: bool, expected: list[str]) -> None:
    """Kept if asked for, and counted then; those further on are cut unless they are within what fits."""
    summary = summary_message("so far", "d")
    messages = [SystemMessage("rule"), summary, *NEMO[:2], SystemMessage("old"), *NEMO[:2], *NEMO[2:]]
    trimmer = create_trim_preprocessor(len(expected), token_counter=len, include_system=include_system)
    assert texts(trimmer.invoke(messages)) == expected
    late = [*NEMO[:2], SystemMessage("new rule"), *NEMO[2:]]
    assert texts(create_trim_preprocessor(3, token_counter=len).invoke(late)) == ["new rule", *texts(NEMO[2:])]


def test_truncated_results_name_the_way_out() -> None:
    """The policy that shortened results is gone; a step of one's own behind the trimmer does it."""
    with pytest.raises(ConfigurationError, match=r"'truncate_tool_results' is gone: .* create_trim_preprocessor\("):
        create_trim_preprocessor(100, on_overflow="truncate_tool_results")  # type: ignore[arg-type]

    def shorten(messages: list[BaseMessage]) -> list[BaseMessage]:
        return [m.model_copy(update={"content": m.text[:200]}) if isinstance(m, ToolMessage) else m for m in messages]

    kept = (create_trim_preprocessor(100) | shorten).invoke([*NEMO, *loop(1, 4_000)])
    assert [len(m.text) for m in kept] == [len(TASK.text), 0, 200]


def test_overflow_raises() -> None:
    """`"raise"` says how much there is and how much would fit; `"keep"` returns it; both only if it must be kept."""
    messages = [*NEMO, *loop(1, 4_000)]
    with pytest.raises(ContextTooLargeError, match=r"\d{2} tokens, .* room for 30") as raised:
        create_trim_preprocessor(30, on_overflow="raise").invoke(messages)
    assert "xxx" not in str(raised.value)
    kept = create_trim_preprocessor(30).invoke(messages)
    assert kept[:2] == messages[-3:-1]
    assert kept[2].text.startswith("[Shortened: 4,000 characters that began")
    stray = [*NEMO, TASK, ToolMessage("x" * 4_000, tool_call_id="nobody's")]
    assert create_trim_preprocessor(20, on_overflow="raise").invoke(stray) == [TASK]


def test_reserve_and_tools_take_their_part() -> None:
    """Tokens for the answer and the tools' schemas are not there for the history; of messages, tools take none."""
    messages = NEMO * 50
    schema: Any = {"type": "function", "function": {"name": "f", "description": "d" * 400, "parameters": {}}}
    for options, taken in (({"reserve_tokens": 100}, 100), ({"tools": [weather]}, 40), ({"tools": [schema]}, 100)):
        kept = create_trim_preprocessor(300, **options).invoke(messages)
        assert 300 - taken - 40 <= approximate_tokens(kept) <= 300 - taken
    assert len(create_trim_preprocessor(4, token_counter=len, tools=[weather]).invoke(messages)) == 4
    assert len(create_trim_preprocessor(4, token_counter=len, reserve_tokens=2).invoke(messages)) == 2


@pytest.mark.parametrize(
    "given",
    [
        ChatPromptValue(messages=NEMO),
        tuple(NEMO),
        [("human" if m.type == "human" else "ai", m.content) for m in NEMO],
        [{"role": "user" if m.type == "human" else "assistant", "content": m.content} for m in NEMO],
        [NEMO[0], ("ai", NEMO[1].content), {"role": "user", "content": NEMO[2].content}, NEMO[3]],
        [*NEMO[:2], ("human", NEMO[2].content), ("ai", NEMO[3].content)],
    ],
    ids=["prompt value", "tuple", "tuples", "dicts", "mixed", "mixed at the end"],
)
def test_takes_what_trim_messages_takes(given: Any) -> None:
    """Prompt values, tuples, dicts and mixtures are messages."""
    assert create_trim_preprocessor(2, token_counter=len).invoke(given) == NEMO[2:]
    assert create_trim_preprocessor(18).invoke(given) == NEMO[2:]


@pytest.mark.parametrize("bad", ["text", 3, None, {"messages": []}])
def test_refuses_what_is_no_list(bad: Any) -> None:
    """Anything but a list of messages is a TypeError that says so."""
    with pytest.raises(TypeError, match="list of messages"):
        create_trim_preprocessor(2).invoke(bad)


def of_one(message: BaseMessage) -> int:
    """Counts words of one message."""
    return len(message.text.split())


@pytest.mark.parametrize(
    ("counter", "budget"),
    [(None, 18), ("approximate", 18), ("o200k_base", 20), (len, 2), (lambda ms: 5 * len(ms), 10), (of_one, 6)],
    ids=["default", "approximate", "o200k", "len", "function of messages", "function of a message"],
)
def test_token_counters(counter: Any, budget: int) -> None:
    """Whatever may count tokens decides what fits."""
    assert create_trim_preprocessor(budget, token_counter=counter).invoke(NEMO) == NEMO[2:]


def test_model_as_counter() -> None:
    """A model counts with its own tokenizer."""

    class Model(FakeChatModel):
        def get_num_tokens_from_messages(self, messages: Any, tools: Any = None) -> int:
            return 7 * len(messages)

    assert create_trim_preprocessor(14, token_counter=Model()).invoke(NEMO) == NEMO[2:]


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": "100"},
        {"max_tokens": True},
        {"reserve_tokens": -1},
        {"reserve_tokens": 100},
        {"reserve_tokens": None},
        {"tools": [weather], "reserve_tokens": 60},
        {"token_counter": 3},
        {"strategy": "first"},
        {"on_overflow": "drop"},
        {"start_on": 3},
        {"start_on": "humann"},
        {"start_on": [HumanMessage, dict]},
    ],
    ids=lambda bad: re.sub(r" at 0x\w+", "", str(bad)),
)
def test_bad_arguments(bad: dict[str, Any]) -> None:
    """What makes no sense is a ConfigurationError (a ValueError) at once, which names the argument or the sizes."""
    with pytest.raises(ConfigurationError, match=next(iter(bad)).replace("tools", "tools|max_tokens")) as raised:
        create_trim_preprocessor(**{"max_tokens": 100, **bad})
    assert isinstance(raised.value, ValueError)
