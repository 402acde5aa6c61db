"""Contract for a chat history with random input: exact round trips, and the behaviour of a list. Needs hypothesis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
)

from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, StaleTurnError
from langchain_memkit.messages import cut_tail

__all__ = ["HistoryPropertiesContract", "messages"]

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
