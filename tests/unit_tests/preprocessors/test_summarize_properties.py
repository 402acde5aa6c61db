"""Nothing is dropped unseen, nothing is summarized twice, and calls are few: on random histories and long ones."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_memkit import (
    SQLiteChatMessageHistory,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.messages.trimming import is_summary, trailing_results
from langchain_memkit.preprocessors.prompt import LEAVES_OUT
from langchain_memkit.testing import FakeChatModel
from testkit.conversations import refused
from testkit.examples import examples
from testkit.scribe import Scribe, marked, marks

PROPERTY = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}

lengths = st.sampled_from([0, 1, 5, 20, 60, 400])
parts = st.sampled_from("haaagggGs")
turns = st.lists(st.lists(st.tuples(parts, lengths), min_size=1, max_size=12), min_size=1, max_size=8)
amounts = st.tuples(st.sampled_from(["tokens", "messages"]), st.integers(1, 40))


class Marked:
    """Makes messages, each with a mark of its own."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, kind: Any, words: int, **kwargs: Any) -> BaseMessage:
        """The next message."""
        self.n += 1
        return kind(marked(self.n, "word " * words), **kwargs)

    def turn(self, plan: list[tuple[str, int]]) -> list[BaseMessage]:
        """A question, then what the plan says: human, answer, tool group (parallel: G), system line."""
        made = [self(HumanMessage, plan[0][1])]
        for part, words in plan[1:]:
            if part in "gG":
                ids = [f"c{self.n}-{i}" for i in range(1 if part == "g" else 3)]
                made.append(self(AIMessage, 1, tool_calls=[{"name": "f", "args": {}, "id": i} for i in ids]))
                made += [self(ToolMessage, words, tool_call_id=i) for i in ids]
            else:
                made.append(self({"h": HumanMessage, "a": AIMessage, "s": SystemMessage}[part], words))
        return made


def marks_of(messages: list[BaseMessage]) -> list[int]:
    """The marks of what is shown as it was said."""
    return [mark for m in messages if not is_summary(m) for mark in marks(m.text)]


def rules(trigger: Any, keep: Any) -> dict[str, Any]:
    """Arguments that fit together."""
    factor = {"tokens": 20, "messages": 1}
    trigger, keep = (trigger[0], trigger[1] * factor[trigger[0]]), (keep[0], (keep[1] - 1) * factor[keep[0]])
    if keep[0] == trigger[0]:
        keep = (keep[0], min(keep[1], trigger[1] - 1))
    return {"trigger": trigger, "keep": keep}


def check_seen(scribe: Scribe, view: list[BaseMessage], said: list[int]) -> None:
    """Everything is in the view or was summarized, once; or the summary says that it leaves something out."""
    once, shown = scribe.seen, marks_of(view)
    assert set(once) | set(shown) <= set(said)
    summaries = [m.text for m in view if is_summary(m)]
    if set(once) | set(shown) != set(said) and summaries:
        assert LEAVES_OUT in summaries[0]
    assert len(once) == len(set(once)), "summarized twice"


@settings(PROPERTY, max_examples=examples(50))
@given(turns, amounts, amounts, st.sampled_from([250, 600, 2000]), st.booleans())
def test_lists_are_seen_whole(plan: Any, trigger: Any, keep: Any, max_tokens: int, system: bool) -> None:
    """Any list, turn after turn, by hand: one call, all shown or summarized or said to be left out; in budget."""
    scribe, make = Scribe(), Marked()
    summarize = create_history_preprocessor(scribe, max_tokens=max_tokens, **rules(trigger, keep))
    messages: list[BaseMessage] = [SystemMessage("Be brief.")] if system else []
    for turn in plan:
        messages += make.turn(turn)
        before = len(scribe.prompts)
        view = summarize.invoke(messages, S1)
        assert len(scribe.prompts) <= before + 1
        check_seen(scribe, view, list(range(1, make.n + 1)))
        assert not refused(view)
        if isinstance(messages[-1], HumanMessage):
            assert view[-1] is messages[-1]
        if approximate_tokens(view) > max_tokens:  # what has to stay is too much by itself
            assert set(marks_of(view)) <= has_to_stay(messages)
        assert view[:1] == messages[:1] or not system


def has_to_stay(messages: list[BaseMessage]) -> set[int]:
    """Marks of the newest questions, and of the results that the model waits for with the call."""
    newest = max(i for i, m in enumerate(messages) if isinstance(m, HumanMessage))
    first = newest
    while first > 0 and isinstance(messages[first - 1], (HumanMessage, SystemMessage)):
        first -= 1
    results = trailing_results(messages, 0)
    kept = messages[first : newest + 1] + (messages[results - 1 :] if results < len(messages) else [])
    return {mark for m in kept for mark in marks(m.text)}


@settings(PROPERTY, max_examples=examples(20))
@given(turns, amounts, amounts, st.sampled_from([250, 600, 2000]), st.lists(lengths, min_size=8, max_size=8))
def test_histories_are_seen_whole(plan: Any, trigger: Any, keep: Any, max_tokens: int, questions: list[int]) -> None:
    """Over a history of ours, with questions of any length: the same; `summarize` catches up, in order."""
    scribe, make, model = Scribe(), Marked(), FakeChatModel()
    summarize = create_history_preprocessor(scribe, max_tokens=max_tokens, **rules(trigger, keep))
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)
        for turn, words in zip(plan, questions, strict=False):
            histories("s1", "u1").add_messages(make.turn(turn))
            make.n += 1
            question = HumanMessage(marked(make.n, "word " * words))
            before = len(scribe.prompts)
            chat.invoke(question, S1)
            assert len(scribe.prompts) <= before + 1
            view = model.calls[-1]
            check_seen(scribe, view, list(range(1, make.n + 1)))
            assert not refused(view)
            if approximate_tokens(view) > max_tokens:
                assert {m.text for m in view if not is_summary(m)} == {question.text}
        scribe.prompts.clear()
        summarize.summarize(histories("s1", "u1"), progress=False)
        chat.invoke("and now?", S1)
        assert all(LEAVES_OUT not in m.text for m in model.calls[-1])


@settings(PROPERTY, max_examples=examples(20))
@given(st.lists(st.lists(st.tuples(parts, lengths), min_size=1, max_size=6), min_size=2, max_size=12), st.data())
def test_failures_lose_nothing(plan: Any, data: st.DataObject) -> None:
    """Calls that fail at random: after a turn without a failure everything is shown or was summarized."""
    scribe, make = Scribe(), Marked()
    scribe.fail_on = data.draw(st.lists(st.integers(1, 12), max_size=6))
    summarize = create_history_preprocessor(scribe, max_tokens=400, trigger=("tokens", 200), keep=("tokens", 60))
    messages: list[BaseMessage] = []
    for turn in plan:
        messages += make.turn(turn)
        failed = len(scribe.prompts)
        view = summarize.invoke(messages, S1)
        assert not refused(view)
        is_good = not any(n > failed for n in scribe.fail_on if n <= len(scribe.prompts))
        if is_good and any(is_summary(m) and LEAVES_OUT not in m.text for m in view):
            assert set(scribe.seen) | set(marks_of(view)) == set(range(1, make.n + 1))


def test_cost_over_500_turns() -> None:
    """500 turns of 10, 40 and 150 words, default settings at 8,000 tokens: little input, few calls, long summaries."""
    choose = random.Random(7)
    scribe, make = Scribe(words=400), Marked()
    summarize = create_history_preprocessor(scribe, max_tokens=8000)
    messages: list[BaseMessage] = []
    most = 0
    for _ in range(500):
        messages += [make(kind, choose.choice([10, 40, 150])) for kind in (HumanMessage, AIMessage)]
        before = len(scribe.prompts)
        view = summarize.invoke(messages, S1)
        most = max(most, len(scribe.prompts) - before)
        assert approximate_tokens(view) <= 8000
    said = approximate_tokens(messages)
    shown = sum(approximate_tokens([HumanMessage(prompt)]) for prompt in scribe.prompts)
    print(f"{said} tokens: {len(scribe.prompts)} calls, {shown / said:.2f} times the conversation's tokens")
    assert most == 1
    assert len(scribe.prompts) <= said / 2000
    assert shown <= 1.3 * said
    assert sorted(scribe.seen + marks_of(view)) == list(range(1, make.n + 1))
