"""Trimming random conversations: what must hold whatever a store holds, and where `trim_messages` says the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.messages.utils import count_tokens_approximately

from langchain_memkit.errors import ContextTooLargeError
from langchain_memkit.messages.results import SHORTENED, shortened
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.messages.trimming import STATUS, is_summary, whole_tool_groups
from langchain_memkit.preprocessors import create_trim_preprocessor
from testkit.conversations import conversations, plain_conversations, refused
from testkit.examples import examples

RESULTS = (ToolMessage, FunctionMessage)

budgets = st.one_of(
    st.tuples(st.just(len), st.integers(1, 16)), st.tuples(st.just(approximate_tokens), st.integers(1, 250))
)
start_ons: st.SearchStrategy[Any] = st.sampled_from([None, None, "human", HumanMessage, "ai", ("human", "ai")])
policies: st.SearchStrategy[Any] = st.sampled_from(["keep", "raise"])


def lead_of(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """System lines and summaries in front."""
    lead: list[BaseMessage] = []
    for message in messages:
        if not (isinstance(message, SystemMessage) or is_summary(message)):
            break
        lead.append(message)
    return lead


def must_stay(messages: Sequence[BaseMessage], include_system: bool, start_on: Any) -> list[BaseMessage]:
    """What is kept if nothing fits: the lead, the newest question, and results at the very end with their call."""
    lead = lead_of(messages) if include_system else []
    rest = list(messages[len(lead) :])
    questions = [i for i, m in enumerate(rest) if isinstance(m, HumanMessage)]
    task = rest[questions[-1] : questions[-1] + 1] if questions else []
    after = rest[questions[-1] + 1 :] if questions else rest if start_on is None else []
    results = 0
    while results < len(after) and isinstance(after[-1 - results], RESULTS):
        results += 1
    group = whole_tool_groups(after[len(after) - results - 1 :]) if 0 < results < len(after) else []
    return [*lead, *task, *(group if len(group) > 1 else [])]


def is_within(kept: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> bool:
    """Whether the kept ones are among the messages, in order: the same objects, copies with less, shortened results."""
    rest = iter(messages)
    return all(any(_is_left_of(k, m) for m in rest) for k in kept)


def _is_left_of(kept: BaseMessage, message: BaseMessage) -> bool:
    if kept is message:
        return True
    if isinstance(message, RESULTS) and kept.response_metadata.get(STATUS) == SHORTENED:
        return (kept.id, kept.type) == (message.id, message.type) and len(kept.text) < len(message.text)
    without_calls = isinstance(message, AIMessage) and type(kept) is type(message) and kept.text == message.text
    return without_calls and kept.id == message.id


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversations, budgets, st.booleans(), start_ons, policies)
def test_what_always_holds(
    messages: list[BaseMessage], budget: tuple[Any, int], include_system: bool, start_on: Any, on_overflow: Any
) -> None:
    """Within budget, or exactly what must stay (`"raise"`: an error); sound, in order, newest question in it, stable.

    The documented exception: if the lead, the newest human message and the unseen results of tools at the very end are
    too much by themselves, `"keep"` returns these and nothing else, and `"raise"` raises. A summary in the lead goes
    before that.
    """
    counter, room = budget
    trimmer = create_trim_preprocessor(
        room, token_counter=counter, include_system=include_system, start_on=start_on, on_overflow=on_overflow
    )
    given_ones, copies = list(messages), [m.model_copy(deep=True) for m in messages]
    needed = must_stay(messages, include_system, start_on)
    lead = lead_of(messages) if include_system else []
    questions = [m for m in messages[len(lead) :] if isinstance(m, HumanMessage)]
    if counter is not len:  # results that are yet to be seen are cut, if nothing else helps
        needed = [shortened(m) for m in needed]
    if counter(needed) > room:
        needed = [m for i, m in enumerate(needed) if i >= len(lead) or not is_summary(m)]
        lead = [m for m in lead if not is_summary(m)]
    too_much = counter(needed) > room
    try:
        kept = trimmer.invoke(messages)
    except ContextTooLargeError:
        assert on_overflow == "raise"
        assert too_much
        return
    assert not (too_much and on_overflow == "raise")
    if too_much:
        assert kept == needed
    else:
        assert counter(kept) <= room
    assert refused(kept) == []
    assert is_within(kept, messages)
    assert kept[: len(lead)] == lead
    assert not questions or any(m is questions[-1] for m in kept)
    again = trimmer.invoke(kept)
    # A summary from among the messages that has come to the front counts as lead from then on.
    leads_now = len(lead_of(kept)) > len(lead)
    assert again == kept or (include_system and leads_now and trimmer.invoke(again) == again)
    assert messages == copies
    assert all(a is b for a, b in zip(messages, given_ones, strict=True))


@settings(max_examples=examples(80), deadline=None)
@given(conversations, budgets)
def test_more_budget_never_keeps_less(messages: list[BaseMessage], budget: tuple[Any, int]) -> None:
    """With a larger budget, what was kept before is still kept."""
    counter, room = budget
    fewer, more = (create_trim_preprocessor(n, token_counter=counter).invoke(messages) for n in (room, 2 * room))
    assert {id(m) for m in fewer if any(m is x for x in messages)} <= {id(m) for m in more} | {
        id(m)
        for m in messages
        if isinstance(m, AIMessage)  # copies where a call was taken out are new each time
    }


@settings(max_examples=examples(100), deadline=None)
@given(
    plain_conversations,
    st.sampled_from([(len, len), (None, count_tokens_approximately), ("approximate", "approximate")]),
    st.integers(1, 120),
    st.sampled_from(["human", HumanMessage, ["human"]]),
)
def test_same_as_trim_messages(messages: list[BaseMessage], counters: Any, room: int, start_on: Any) -> None:
    """On ordinary conversations the result is that of `trim_messages`, wherever that keeps the newest question.

    The difference: where the newest question does not fit with what follows it (or with the system line),
    `trim_messages` drops it and often returns nothing at all; ours keeps it with the system line.
    """
    ours, theirs = counters
    kept = create_trim_preprocessor(room, token_counter=ours, start_on=start_on).invoke(messages)
    expected = trim_messages(
        messages, max_tokens=room, token_counter=theirs, strategy="last", include_system=True, start_on=start_on
    )
    questions = [m for m in messages if isinstance(m, HumanMessage)]
    if not questions or any(m is questions[-1] for m in expected):
        lead = lead_of(messages)
        assert kept == expected or (not questions and kept == lead)
    else:
        assert kept[: len(lead_of(messages)) + 1] == [*lead_of(messages), questions[-1]]
