"""Where a conversation is cut, and whole tool groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.trimming import (
    CutPoint,
    find_cut_point,
    leading_system_count,
    message_types,
    trailing_results,
    turn_starts,
    whole_tool_groups,
)
from langchain_memkit.preprocessors.prompt import summary_message
from testkit.conversations import conversations, refused
from testkit.examples import examples

SUMMARY = summary_message("So far: ...", "d")


def calls(*ids: str | None) -> list[Any]:
    """Tool calls with these ids."""
    return [{"name": "f", "args": {}, "id": i, "type": "tool_call"} for i in ids]


def talk(kinds: str) -> list[BaseMessage]:
    """Messages by letter: s(ystem), h(uman), a(i), c(all of a tool), t(ool's result)."""
    made = {
        "s": lambda: SystemMessage("s"),
        "h": lambda: HumanMessage("h"),
        "a": lambda: AIMessage("a"),
        "c": lambda: AIMessage("", tool_calls=calls("1")),
        "t": lambda: ToolMessage("t", tool_call_id="1"),
    }
    return [made[kind]() for kind in kinds]


def cut_of(kinds: str, budget: int, **options: Any) -> CutPoint:
    """The cut where every message is one token."""
    return find_cut_point(talk(kinds), lambda i: 1, budget, **options)


@pytest.mark.parametrize(
    ("kinds", "budget", "expected"),
    [
        ("haha", 4, (0, None, True)),  # everything
        ("haha", 3, (2, None, True)),  # not inside a turn
        ("haha", 1, (4, 2, True)),  # the newest question alone
        ("haha", 0, (4, 2, False)),
        ("hash", 3, (2, None, True)),  # a system line belongs to the turn that it stands before
        ("hash", 1, (3, None, True)),
        ("hashha", 3, (3, None, True)),
        ("hahhha", 3, (3, None, True)),  # several questions in a row are one turn; what fits of them is kept
        ("hahhha", 4, (2, None, True)),
        ("hctctct", 5, (3, 0, True)),  # a long loop: the task, and the newest whole groups
        ("hctctct", 4, (5, 0, True)),
        ("hctctct", 2, (5, 0, False)),  # results that the model has not seen are kept all the same
        ("hctcta", 4, (3, 0, True)),
        ("hctcta", 3, (5, 0, True)),
        ("ctcta", 4, (2, None, True)),  # without any question
        ("ctcta", 0, (5, None, True)),
        ("htt", 1, (3, 0, True)),  # results that nobody asked for keep nothing else away
        ("", 0, (0, None, True)),
    ],
)
def test_where_it_is_cut(kinds: str, budget: int, expected: tuple[Any, ...]) -> None:
    """Between turns, else after the newest question between whole tool groups."""
    assert cut_of(kinds, budget) == expected


def test_lead_is_not_cut() -> None:
    """What stands in front is neither counted nor cut off, and a turn may begin right after it."""
    assert cut_of("sshaha", 4, lead=2) == (2, None, True)
    assert cut_of("sshaha", 3, lead=2) == (4, None, True)
    assert cut_of("sshaha", -1, lead=2) == (6, 4, False)


def test_start_on() -> None:
    """The kept end begins with the wanted type, system lines aside, even if more fits; the newest question stays."""
    assert cut_of("ahaha", 9, start_on=("human",)) == (1, None, True)
    assert cut_of("hashaha", 6, start_on=("human",)).start == 2
    assert cut_of("haha", 9, start_on=("ai",)).start == 1
    assert cut_of("haha", 9, start_on=(AIMessage, "tool")).start == 1
    assert cut_of("hah", 9, start_on=("ai",)).start == 1
    assert cut_of("ha", 9, start_on=("ai",)) == (0, None, True)
    assert cut_of("aa", 9, start_on=("human",)) == (2, None, True)
    chunks = [AIMessage("a"), HumanMessageChunk(content="h"), AIMessage("a")]
    assert find_cut_point(chunks, lambda i: 1, 9, start_on=("human",)).start == 1


def test_message_types() -> None:
    """Types and their names, one or several; anything else is refused before it silently never matches."""
    assert message_types(None, "start_on") is None
    assert message_types([], "start_on") is None
    assert message_types("human", "start_on") == ("human",)
    assert message_types(["user", AIMessage], "start_on") == ("user", AIMessage)
    for bad in (3, "humann", ["human", 3], int, [None], {"human": 1}):
        with pytest.raises(ConfigurationError, match="start_on"):
            message_types(bad, "start_on")


def newest_turn(messages: Sequence[BaseMessage], sizes: Sequence[int], budget: int) -> tuple[int, int | None]:
    """The same cut by trying everything: the first place that is allowed and fits."""
    end = len(messages)

    def fits(i: int) -> bool:
        return sum(sizes[i:]) <= budget

    if fits(0):
        return 0, None
    for i in [*turn_starts(messages)[1:]]:
        if fits(i):
            return i, None
    questions = [i for i in range(end) if isinstance(messages[i], HumanMessage)]
    task = questions[-1] if questions else None
    if task is not None and fits(task):
        return next(i for i in range(end) if fits(i)), None
    left = budget - (0 if task is None else sizes[task])
    begin = 0 if task is None else task + 1
    for i in range(begin, end):
        if not isinstance(messages[i], ToolMessage) and sum(sizes[i:]) <= left:
            return i, task
    ends_in_results = end > begin + 1 and isinstance(messages[-1], ToolMessage)
    return (max(i for i in range(begin, end) if isinstance(messages[i], AIMessage)) if ends_in_results else end), task


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.sampled_from(["h", "h", "sh", "a", "ct", "ctt", "s"]), max_size=9).map("".join),
    st.lists(st.integers(0, 9), min_size=27, max_size=27),
    st.integers(0, 60),
)
def test_cut_is_the_longest_that_fits(kinds: str, sizes: list[int], budget: int) -> None:
    """For any sizes, the cut is the one that trying every place finds."""
    messages = talk(kinds)
    sizes = sizes[: len(messages)]
    start, task, fits = find_cut_point(messages, sizes.__getitem__, budget)
    kept = sum(sizes[start:]) + (sizes[task] if task is not None else 0)
    assert (start, task) == newest_turn(messages, sizes, budget)
    assert fits == (kept <= budget)


def test_cut_costs_what_it_keeps() -> None:
    """Of 50,000 messages only those are sized that are kept, and one more."""
    messages, seen = talk("ha") * 25_000, []

    def size(i: int) -> int:
        seen.append(i)
        return 1

    assert find_cut_point(messages, size, 20).start == 49_980
    assert len(seen) == 21


def test_lead_length() -> None:
    """System lines and summaries in front, in any order, up to the first other message."""
    assert leading_system_count([]) == 0
    assert leading_system_count([*talk("s"), SUMMARY, *talk("shs")]) == 3
    assert leading_system_count([*talk("h"), SUMMARY]) == 0


def test_trailing_results() -> None:
    """Where the results at the end begin, not before the floor."""
    messages = talk("hctt")
    assert trailing_results(messages, 0) == 2
    assert trailing_results(messages, 3) == 3
    assert trailing_results(talk("hcta"), 0) == 4
    assert trailing_results([FunctionMessage(content="r", name="f")], 0) == 0


def test_whole_groups_stay_as_they_are() -> None:
    """What nobody would refuse comes back as the same objects."""
    messages = [*talk("shactacta"), AIMessage("", tool_calls=calls("1", "2"))]
    messages += [ToolMessage("b", tool_call_id="2"), ToolMessage("a", tool_call_id="1")]
    kept = whole_tool_groups(messages)
    assert len(kept) == len(messages)
    assert all(a is b for a, b in zip(kept, messages, strict=True))


def test_calls_without_result_are_taken_out() -> None:
    """Of parallel calls the answered ones stay; a message that holds nothing else goes; the given one is unchanged."""
    raw = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ("1", "2")]
    content: list[Any] = [{"type": "text", "text": "hm"}, {"type": "tool_use", "id": "2", "name": "f", "input": {}}]
    message = AIMessage(content, tool_calls=calls("1", "2", None), additional_kwargs={"tool_calls": raw, "x": 1})
    before = message.model_copy(deep=True)
    (kept, result) = whole_tool_groups([message, ToolMessage("r", tool_call_id="1")])
    assert isinstance(kept, AIMessage)
    assert (kept.tool_calls, kept.content) == (calls("1"), content[:1])
    assert kept.additional_kwargs == {"x": 1}
    assert result.content == "r"
    assert message == before
    assert whole_tool_groups([AIMessage("", tool_calls=calls("1")), *talk("h")]) == talk("h")
    assert whole_tool_groups([AIMessage("so", tool_calls=calls("1")), *talk("h")]) == [AIMessage("so"), *talk("h")]


def test_calls_that_stand_in_the_content_only() -> None:
    """Blocks of providers are calls too: answered by their id (OpenAI's by call_id), else taken out."""
    blocks: list[Any] = [
        {"type": "function_call", "id": "item_1", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "id": "item_2", "call_id": "c2", "name": "f", "arguments": "{}"},
    ]
    kept, _ = whole_tool_groups([AIMessage(blocks), ToolMessage("r", tool_call_id="c1")])
    assert kept.content == blocks[:1]
    assert whole_tool_groups([AIMessage(blocks), *talk("h")]) == talk("h")


def test_chunks_lose_the_parts_of_their_calls() -> None:
    """A call that is taken out of a chunk does not come back when the chunk is made a message or added to another."""
    part: Any = {"name": "f", "args": "{}", "id": "1", "index": 0, "type": "tool_call_chunk"}
    (kept,) = whole_tool_groups([AIMessageChunk(content="so", tool_call_chunks=[part])])
    assert isinstance(kept, AIMessageChunk)
    assert (kept.tool_calls, kept.tool_call_chunks) == ([], [])
    assert (kept + AIMessageChunk(content="!")).tool_calls == []
    assert message_chunk_to_message(kept) == AIMessage("so")


def test_results_without_call_are_left_out() -> None:
    """A result that comes first, twice, late, or after something else is nobody's."""
    message, result = AIMessage("", tool_calls=calls("1")), ToolMessage("r", tool_call_id="1")
    twice = ToolMessage("again", tool_call_id="1")
    assert whole_tool_groups([result, *talk("h"), message, result, twice, *talk("h"), result]) == [
        *talk("h"), message, result, *talk("h")
    ]  # fmt: skip
    assert whole_tool_groups([message, *talk("h"), result]) == talk("h")


def test_functions_of_2023() -> None:
    """A FunctionMessage stays directly behind its call, and only there; a call without one is taken out."""
    call = AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}})
    result = FunctionMessage(content="r", name="f")
    assert whole_tool_groups([call, result, result, *talk("h"), result]) == [call, result, *talk("h")]
    assert whole_tool_groups([call, *talk("h")]) == talk("h")


@settings(max_examples=examples(150), deadline=None)
@given(conversations)
def test_nothing_is_left_that_a_provider_refuses(messages: list[BaseMessage]) -> None:
    """Whatever went in: no open call, no stray result, order kept, the same a second time, nothing else touched."""
    before = [m.model_copy(deep=True) for m in messages]
    kept = whole_tool_groups(messages)
    assert refused(kept) == []
    assert whole_tool_groups(kept) == kept
    assert messages == before
    others = [m for m in messages if not isinstance(m, (AIMessage, ToolMessage, FunctionMessage))]
    assert [m for m in kept if not isinstance(m, (AIMessage, ToolMessage, FunctionMessage))] == others
    if refused(messages) == []:
        assert kept == messages
