"""Contract for a chat history with random input: exact round trips, and the behaviour of a list. Needs hypothesis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    ToolMessageChunk,
)

from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, StaleTurnError
from langchain_memkit.messages import cut_tail
from langchain_memkit.messages.trimming import STATUS, SUMMARY

__all__ = ["HistoryPropertiesContract", "messages"]

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


MakeHistory: TypeAlias = Callable[..., Any]

WRITERS = 3
SETTINGS = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)

# Surrogates and NUL included, since models do produce them.
texts = st.text(st.characters(codec=None), max_size=20)
keys = texts | st.integers() | st.sampled_from(["$ne", "a.b", "_memkit", "", "\x00", "role", "id"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**400), max_value=10**400)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=8)
    | st.datetimes()
    | st.dates()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers() | texts, max_size=3)
        | st.builds(lambda text, value: Document(text, metadata={"v": value}), texts, inner)
    ),
    max_leaves=8,
)
metadata = st.dictionaries(texts, values, max_size=3)
ids = st.none() | st.text(min_size=1, max_size=10)
arguments = st.dictionaries(texts, values, max_size=2)
calls = st.builds(lambda n, a, i: {"name": n, "args": a, "id": i, "type": "tool_call"}, texts, arguments, texts)
blocks = st.lists(
    texts
    | st.builds(lambda t: {"type": "text", "text": t}, texts)
    | st.builds(lambda u: {"type": "image_url", "image_url": {"url": u}}, texts),
    max_size=3,
)
contents = texts | blocks
usage = st.none() | st.fixed_dictionaries(
    {n: st.integers(0, 9) for n in ("input_tokens", "output_tokens", "total_tokens")}
)
common = {"content": contents, "id": ids, "name": st.none() | texts}
extras = {**common, "additional_kwargs": metadata, "response_metadata": metadata}
messages: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(HumanMessage, **extras),
    st.builds(SystemMessage, **common),
    st.builds(
        AIMessage, **common, response_metadata=metadata, tool_calls=st.lists(calls, max_size=2), usage_metadata=usage
    ),
    st.builds(ToolMessage, **common, tool_call_id=texts, artifact=values, status=st.sampled_from(["success", "error"])),
    st.builds(FunctionMessage, content=contents, id=ids, name=texts),
    st.builds(ChatMessage, **common, role=texts),
    st.builds(lambda i: RemoveMessage(id=i), st.text(min_size=1, max_size=10)),
    st.builds(HumanMessageChunk, **common),
    st.builds(
        lambda text, i, args: AIMessageChunk(
            content=text,
            id=i,
            tool_call_chunks=[{"name": "f", "args": args, "id": "1", "index": 0, "type": "tool_call_chunk"}],
        ),
        texts,
        ids,
        texts,
    ),
)
"""Messages of every type, with every kind of value that is stored."""


class HistoryPropertiesContract:
    """Contract with random input; give it the `make_history` fixture of the other contracts."""

    @pytest.fixture
    def make_history(self) -> MakeHistory:
        """Return a function of (session_id, user_id=None) that opens the history; override it."""
        raise RuntimeError("give the contract a `make_history` fixture")

    def test_what_is_accepted_comes_back_equal(self, make_history: MakeHistory) -> None:
        """500 random batches: equal on return, ids apart, or refused with nothing stored."""
        accepted = 0

        @settings(SETTINGS, max_examples=500)
        @given(st.lists(messages, min_size=1, max_size=3))
        def check(batch: list[BaseMessage]) -> None:
            nonlocal accepted
            history = make_history(str(uuid4()))
            try:
                history.add_messages(batch)
            except HistoryWriteError:
                assert history.messages == []
                return
            accepted += 1
            stored = history.view()
            assert not stored.problems
            assert [type(m) for m in stored.messages] == [type(m) for m in batch]
            for got, want in zip(stored.messages, batch, strict=True):
                assert got == (want if want.id else want.model_copy(update={"id": got.id}))

        check()
        assert accepted > 250, "most of what was tried should be storable"

    def test_behaves_like_a_list(self, make_history: MakeHistory) -> None:
        """After random operations of several writers, in both call styles, the session holds the same as a list."""
        run_state_machine_as_test(
            lambda: _ListMachine(make_history),  # type: ignore[arg-type]  # any callable will do
            settings=settings(SETTINGS, max_examples=40, stateful_step_count=25),
        )


class _ListMachine(RuleBasedStateMachine):
    """State machine that compares a session with a plain list of turns."""

    def __init__(self, make_history: MakeHistory) -> None:
        super().__init__()
        self.make_history = make_history
        self.runner = asyncio.Runner()
        self.turns: list[tuple[str, list[BaseMessage]]] = []
        self.last_seq = 0

    @initialize()
    def open_session(self) -> None:
        """Open a new session for each run, with several writers."""
        session = str(uuid4())
        self.writers = [self.make_history(session, "u1") for _ in range(WRITERS)]

    def call(self, writer: int, asynchronous: bool, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method as one writer, in one style."""
        history = self.writers[writer]
        if not asynchronous:
            return getattr(history, name)(*args, **kwargs)
        return self.runner.run(getattr(history, f"a{name}")(*args, **kwargs))

    writer, style = st.integers(0, WRITERS - 1), st.booleans()

    @rule(writer=writer, asynchronous=style, said=st.lists(texts, min_size=1, max_size=3))
    def append(self, writer: int, asynchronous: bool, said: list[str]) -> None:
        """Append a turn and check that it gets the next position."""
        batch: list[BaseMessage] = [m for text in said for m in (HumanMessage(text), AIMessage(text))]
        turn_id = str(uuid4())
        seq = self.call(writer, asynchronous, "append_turn", batch, turn_id=turn_id)
        assert seq == self.last_seq + 1
        self.last_seq = seq
        self.turns.append((turn_id, batch))

    @precondition(lambda self: self.turns)
    @rule(writer=writer, asynchronous=style, data=st.data())
    def retry(self, writer: int, asynchronous: bool, data: st.DataObject) -> None:
        """Append a stored turn again, which changes nothing."""
        turn_id, batch = data.draw(st.sampled_from(self.turns))
        self.call(writer, asynchronous, "append_turn", batch, turn_id=turn_id)

    @rule(writer=writer, asynchronous=style)
    def look(self, writer: int, asynchronous: bool) -> None:
        """Read a view and check messages and position."""
        view = self.call(writer, asynchronous, "view")
        self.check(view.messages)
        assert view.seq == self.last_seq

    @rule(writer=writer, asynchronous=style)
    def clear(self, writer: int, asynchronous: bool) -> None:
        """Clear the session, and check that a turn which began before is refused."""
        before = self.call(writer, asynchronous, "view").epoch
        self.call(writer, asynchronous, "clear")
        self.turns.clear()
        self.last_seq += 1
        try:
            self.call(writer, asynchronous, "append_turn", [HumanMessage("late")], epoch=before)
        except StaleTurnError:
            return
        raise AssertionError("a turn from before the clear was stored")

    @rule(writer=writer, asynchronous=style, wrong=st.integers(1, 3))
    def conflict(self, writer: int, asynchronous: bool, wrong: int) -> None:
        """Append with a wrong expected position, which stores nothing."""
        try:
            self.call(writer, asynchronous, "append_turn", [HumanMessage("x")], expected_seq=self.last_seq + wrong)
        except HistoryConflictError:
            return
        raise AssertionError("a wrong expected_seq was accepted")

    @rule(writer=writer, asynchronous=style, limit=st.integers(0, 12))
    def tail(self, writer: int, asynchronous: bool, limit: int) -> None:
        """Compare the tail with the cut of the list."""
        everything = [m for _, batch in self.turns for m in batch]
        expected = cut_tail(everything, [0] * len(everything), max_messages=limit)
        got = self.call(writer, asynchronous, "tail", max_messages=limit)
        assert [(m.type, m.content) for m in got] == [(m.type, m.content) for m in expected]

    @rule(writer=writer)
    def iterate(self, writer: int) -> None:
        """Check that iterating gives the same messages as reading at once."""
        self.check(list(self.writers[writer].iter_messages()))

    def check(self, got: list[BaseMessage]) -> None:
        """Check that the session holds what the list holds."""
        assert [(m.type, m.content) for m in got] == [(m.type, m.content) for _, batch in self.turns for m in batch]

    def teardown(self) -> None:
        """Close the event loop."""
        self.runner.close()
