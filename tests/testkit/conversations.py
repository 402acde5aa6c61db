"""Random conversations as a store may hold them, and what a provider would refuse of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    ToolMessage,
    ToolMessageChunk,
)

from langchain_memkit.messages.trimming import STATUS, SUMMARY

CALL_BLOCKS = ("tool_use", "tool_call", "function_call")

sentences = st.sampled_from(
    ["", "yes", "What is the weather in Sydney?", "one two three four five six seven eight " * 3]
)
message_ids = st.none() | st.sampled_from(["m1", "m2", "m3"])
call_ids = st.none() | st.sampled_from(["c1", "c2", "c3", ""])


def _calls(ids: Sequence[str | None]) -> list[Any]:
    return [{"name": "f", "args": {"q": "x"}, "id": i, "type": "tool_call"} for i in ids]


def _bad_calls(ids: Sequence[str | None]) -> list[Any]:
    return [{"name": "f", "args": "{", "id": i, "error": "cut", "type": "invalid_tool_call"} for i in ids]


def _block(kind: str, call_id: str | None) -> dict[str, Any]:
    if kind == "function_call":
        return {"type": kind, "id": f"item_{call_id}", "call_id": call_id, "name": "f", "arguments": "{}"}
    return {"type": kind, "id": call_id, "name": "f", "input": {}}


def _chunk(content: Any, calls: Sequence[Any], message_id: str | None) -> AIMessageChunk:
    parts: Any = [
        {"name": "f", "args": '{"q": "x"}', "id": c["id"], "index": n, "type": "tool_call_chunk"}
        for n, c in enumerate(calls)
    ]
    return AIMessageChunk(content=content, tool_call_chunks=parts, id=message_id)


@st.composite
def tool_groups(draw: st.DrawFn) -> list[BaseMessage]:
    """Draw an AI message with tool calls, and results in any order: too few, too many, duplicated, or none."""
    asked = draw(st.lists(call_ids, min_size=1, max_size=3))
    invalid = draw(st.lists(call_ids, max_size=1))
    text = draw(sentences)
    in_blocks: list[list[str | None]] = [asked, asked[:1], ["c9"]]
    blocks = [_block(draw(st.sampled_from(CALL_BLOCKS)), i) for i in draw(st.sampled_from(in_blocks))]
    content: Any = draw(st.sampled_from([text, [{"type": "text", "text": text}, *blocks], blocks]))
    message_id = draw(message_ids)
    head = draw(
        st.sampled_from(
            [
                AIMessage(content, tool_calls=_calls(asked), invalid_tool_calls=_bad_calls(invalid), id=message_id),
                AIMessage(content, tool_calls=_calls(asked), id=message_id),
                AIMessage(content, id=message_id),
                _chunk(content, _calls(asked), message_id),
            ]
        )
    )
    # Mostly complete groups, so that there is something to keep.
    answered = draw(st.just([i for i in asked if i is not None]) | st.permutations(asked) | st.lists(call_ids))
    kind = draw(st.sampled_from([ToolMessage, ToolMessage, ToolMessageChunk]))
    results = [kind(draw(sentences), tool_call_id=i or "none", id=draw(message_ids)) for i in answered]
    return [head, *results]


@st.composite
def legacy_groups(draw: st.DrawFn) -> list[BaseMessage]:
    """Draw a legacy function call, as of 2023, with or without its result."""
    kwargs = {"function_call": {"name": "f", "arguments": "{}"}}
    head = AIMessage(draw(sentences), additional_kwargs=kwargs)
    return [head, *[FunctionMessage(content=draw(sentences), name="f")] * draw(st.integers(0, 2))]


humans = st.builds(lambda t, i: HumanMessage(t, id=i), sentences, message_ids)
chunks = st.builds(lambda t, i: HumanMessageChunk(content=t, id=i), sentences, message_ids)
answers = st.builds(lambda t, i: AIMessage(t, id=i), sentences, message_ids)
systems = st.builds(lambda t, i: SystemMessage(t, id=i), sentences, message_ids)
strays = st.one_of(
    st.builds(lambda t, i: ToolMessage(t, tool_call_id=i or "none"), sentences, call_ids),
    st.builds(lambda t: FunctionMessage(content=t, name="f"), sentences),
    st.builds(lambda t: ChatMessage(content=t, role="pirate"), sentences),
)
summaries = st.builds(
    lambda text, kind: kind(f"{SUMMARY}> {text}", id="memkit-summary-1", response_metadata={STATUS: "summary"}),
    sentences,
    st.sampled_from([HumanMessage, AIMessage, SystemMessage]),
)
_one = st.one_of(humans, humans, chunks, answers, answers, systems, strays).map(lambda m: [m])
_pieces = st.one_of(_one, _one, tool_groups(), tool_groups(), legacy_groups())
conversations: st.SearchStrategy[list[BaseMessage]] = st.builds(
    lambda lead, pieces: [*lead, *(m for piece in pieces for m in piece)],
    st.lists(systems | summaries, max_size=2),
    st.lists(_pieces, max_size=10),
)
"""Conversations that a store may hold after years of aborted turns, retries and foreign writers."""

plain_conversations: st.SearchStrategy[list[BaseMessage]] = st.builds(
    lambda system, rounds, last: [*system, *(m for pair in rounds for m in pair), *last],
    st.lists(systems, max_size=1),
    st.lists(st.tuples(humans, answers), max_size=8),
    st.lists(humans, max_size=1),
)
"""Conversations of an optional system message, then questions and answers in turn."""


def refused(messages: Sequence[BaseMessage]) -> list[str]:
    """List what a provider would refuse, one line each: calls without a result, results without a call."""
    faults: list[str] = []
    waiting: set[Any] = set()
    function = False
    for i, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                faults.append(f"{i}: a result nobody waits for")
            waiting.discard(message.tool_call_id)
            continue
        if isinstance(message, FunctionMessage):
            faults += [] if function else [f"{i}: a function's result nobody waits for"]
            function = False
            continue
        faults += [f"{i}: before it, a call has no result"] if waiting or function else []
        faults += [f"{i}: the same call twice"] if _doubled(message) else []
        waiting, function = called(message), "function_call" in message.additional_kwargs
    return faults + (["the end: a call has no result"] if waiting or function else [])


def _doubled(message: BaseMessage) -> bool:
    calls = [*message.tool_calls, *message.invalid_tool_calls] if isinstance(message, AIMessage) else []
    ids = [call["id"] for call in calls]
    return len(ids) > len(set(ids))


def called(message: BaseMessage) -> set[Any]:
    """Return the ids of all calls in a message, content blocks included."""
    if not isinstance(message, AIMessage):
        return set()
    ids = {c["id"] for c in (*message.tool_calls, *message.invalid_tool_calls)}
    blocks = [b for b in message.content if isinstance(b, dict) and b.get("type") in CALL_BLOCKS]
    parts = {c["id"] for c in message.tool_call_chunks} if isinstance(message, AIMessageChunk) else set()
    return ids | parts | {b.get("call_id") or b.get("id") for b in blocks}
