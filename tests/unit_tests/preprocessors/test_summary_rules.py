"""`trigger` and `keep`: defaults, refusals, units that differ, and where a conversation is cut."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.stores import InMemoryStore

from langchain_memkit import (
    SQLiteChatMessageHistory,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.preprocessors.summarizer import SummaryTrigger
from langchain_memkit.testing import FakeChatModel
from testkit.scribe import Scribe, marks, talk

S1: Any = {"configurable": {"session_id": "s1"}}


def rules(trigger: Any = None, keep: Any = None, *, max_tokens: int = 8000, counter: Any = None) -> SummaryTrigger:
    """Rules for a budget."""
    return SummaryTrigger.of(Budget.of(max_tokens, counter, 0, None), trigger, keep)


def test_defaults() -> None:
    """Three quarters of the budget; of that 40% stay; a summary takes a tenth."""
    assert rules() == SummaryTrigger(("tokens", 6000), ("tokens", 2400), 800, 560)
    assert rules(("tokens", 1000)).keep == ("tokens", 400)
    assert rules(("messages", 50)).keep == ("tokens", 2400)
    assert rules(counter=len, max_tokens=20).trigger == ("tokens", 15)


@pytest.mark.parametrize(
    ("trigger", "keep"),
    [(("tokens", 100), ("tokens", 100)), (("messages", 4), ("messages", 9)), (None, ("tokens", 6000))],
)
def test_keep_as_large_as_trigger(trigger: Any, keep: Any) -> None:
    """What would call the model at every turn is refused."""
    with pytest.raises(ConfigurationError, match="every turn"):
        rules(trigger, keep)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trigger": 5},
        {"trigger": ("words", 5)},
        {"trigger": ("tokens", 0)},
        {"trigger": ("tokens", 2.5)},
        {"keep": ("tokens", -1)},
        {"keep": ("tokens", True)},
        {"keep": "tokens"},
        {"mode": "later"},
        {"store": {}},
        {"timeout": 0},
        {"max_tokens": 0},
        {"reserve_tokens": 900},
        {"prompt": 3},
        {"on_overflow": "explode"},
        {"token_counter": "no such encoding"},
    ],
    ids=str,
)
def test_bad_arguments(wrong: dict[str, Any]) -> None:
    """Arguments that make no sense are refused when the preprocessor is made."""
    arguments: dict[str, Any] = {"llm": Scribe(), "max_tokens": 900, **wrong}
    with pytest.raises(ConfigurationError):
        create_history_preprocessor(arguments.pop("llm"), **arguments)


def split(
    rule: SummaryTrigger, messages: list[BaseMessage], sizes: list[int], room: int = 10_000, asked: bool = True
) -> int:
    """Where the rule cuts."""
    return rule.split(messages, sizes, room, asked=asked)


def test_units_that_differ_are_capped() -> None:
    """20 messages to keep may be more than the trigger's tokens, and the other way round: never more than 40% stay."""
    rule = rules(("tokens", 1000), ("messages", 20))
    assert split(rule, talk(40), [50] * 40) == 32
    assert split(rules(("messages", 20), ("tokens", 5000)), talk(40), [50] * 40) == 32


@pytest.mark.parametrize(("unit", "words"), [("messages", 400), ("tokens", 1)])
def test_units_that_differ_call_rarely(unit: str, words: int) -> None:
    """With units that do not go together the model is called every few turns, not at each."""
    other = {"messages": "tokens", "tokens": "messages"}[unit]
    scribe, messages, calls = Scribe(), talk(0), 0
    summarize = create_history_preprocessor(scribe, max_tokens=8000, trigger=(other, 4000), keep=(unit, 100))
    if unit == "tokens":
        summarize = create_history_preprocessor(scribe, max_tokens=8000, trigger=(other, 40), keep=(unit, 7000))
    for i in range(120):
        messages += talk(2, words, 2 * i)
        summarize.invoke(messages, S1)
        calls = max(calls, len(scribe.prompts))
    assert 2 <= calls <= 40


def test_newest_turn_is_kept_whole() -> None:
    """A newest turn longer than `keep` stays if it fits, and is cut between tool groups if it does not."""
    turn: list[BaseMessage] = [HumanMessage("do it")]
    for i in range(10):
        turn += [
            AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": f"{i}"}]),
            ToolMessage("r", tool_call_id=f"{i}"),
        ]
    body, rule = [*talk(10), *turn], rules(("tokens", 100), ("tokens", 40))
    sizes = [10] * len(body)
    assert split(rule, body, sizes, room=210) == 10
    cut = split(rule, body, sizes, room=209)
    assert cut > 10
    assert isinstance(body[cut], AIMessage)


def test_question_stays() -> None:
    """By hand the list ends with the question: it is never covered, whatever its size, but when one follows it is."""
    body = [*talk(4), HumanMessage("and now?")]
    rule = rules(("messages", 1), ("messages", 0))
    assert split(rule, body, [1, 1, 1, 1, 500], room=10, asked=False) == 4
    assert split(rule, body, [1, 1, 1, 1, 500], room=10, asked=True) == 5
    many = [*talk(3), HumanMessage("a"), HumanMessage("b")]
    assert split(rule, many, [1, 1, 1, 1, 500], room=10, asked=False) == 4


def test_results_nobody_waits_for() -> None:
    """Results at the end are kept for the model that waits for them, and summarized if a new question follows."""
    call = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    body = [HumanMessage("do it"), call, ToolMessage("r", tool_call_id="1")]
    rule = rules(("tokens", 100), ("tokens", 10))
    assert split(rule, body, [5, 5, 500], room=50, asked=False) == 1
    assert split(rule, body, [5, 5, 500], room=50, asked=True) == 3


def test_the_guides_summary() -> None:
    """`trigger=("messages", 1), keep=("messages", 0)`: the whole history becomes one summary, at every turn."""
    scribe, store = Scribe(), InMemoryStore()
    summarize = create_history_preprocessor(
        scribe, max_tokens=4000, trigger=("messages", 1), keep=("messages", 0), store=store
    )
    for n in (2, 4, 6):
        (summary,) = summarize.invoke(talk(n), S1)
        assert "FACT Nemo" in summary.text
    assert len(scribe.prompts) == 3
    assert scribe.seen == list(range(6))
    assert summarize.invoke([*talk(6), HumanMessage("and now?")], S1)[-1].text == "and now?"


def test_hybrid() -> None:
    """A summary, and the last two messages as they were said."""
    summarize = create_history_preprocessor(Scribe(), max_tokens=4000, trigger=("messages", 6), keep=("messages", 2))
    summary, *last = summarize.invoke(messages := talk(6), S1)
    assert "FACT Nemo" in summary.text
    assert last == messages[-2:]


def test_counting_messages() -> None:
    """`token_counter=len`: budgets, trigger and keep are in messages, the summary is one of them."""
    scribe = Scribe()
    summarize = create_history_preprocessor(scribe, max_tokens=10, token_counter=len)
    messages = talk(0)
    for i in range(40):
        messages += talk(2, 10, 2 * i)
        view = summarize.invoke(messages, S1)
        assert len(view) <= 10
        assert sorted(
            [*scribe.seen, *(mark for m in view[1 if scribe.prompts else 0 :] for mark in marks(m.text))]
        ) == list(range(2 * i + 2))
    assert len(scribe.prompts) <= 20


def test_nothing_left_to_cover() -> None:
    """Everything is covered and the new input takes all the room: no call, no error."""
    scribe, nothing_kept = Scribe(), {"trigger": ("messages", 1), "keep": ("messages", 0)}
    summarize = create_history_preprocessor(scribe, max_tokens=200, store=InMemoryStore(), **nothing_kept)
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        chat = create_runnable_with_message_history(model := FakeChatModel(), histories, preprocessor=summarize)
        histories("s1").add_messages(talk(2))
        summarize.invoke(histories("s1").view(window=summarize.window(S1)).messages, S1)
        chat.invoke("word " * 500, S1)
        chat.invoke("word " * 500, {"configurable": {"session_id": "s2"}})
    assert len(scribe.prompts) == 1
    assert len(model.calls) == 2
