"""Contract for a chat history with random input: exact round trips, and the behaviour of a list. Needs hypothesis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
from langchain_memkit.testing.changes import Reader
from langchain_memkit.testing.langchain_histories import MakeHistory
from testkit.examples import examples

__all__ = ["HistoryPropertiesContract", "messages"]


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

    def test_edits_like_a_list(self, make_history: MakeHistory) -> None:
        """Random turns, edits, undos and soft deletes: every way to read shows what a list of them shows."""

        @settings(SETTINGS, max_examples=examples(15))
        @given(st.lists(st.tuples(st.sampled_from("aaaeeudr"), st.integers(0, 99)), min_size=1, max_size=25))
        def check(steps: list[tuple[str, int]]) -> None:
            user = str(uuid4())
            history: Any = make_history(str(uuid4()), user)
            reader = Reader(history)
            shown, count, deleted = list[int](), 0, set[int]()
            before: dict[int, list[int]] = {}  # what was shown before each edit
            for step, n in steps:
                told = [seq for seq in shown if seq not in deleted]
                assert [seq for _, seq, _ in reader.shown()] == told
                if step == "u":
                    newest = max((seq for seq in shown if seq in before), default=None)
                    assert history.undo_edit() is (newest is not None)
                    count += newest is not None
                    shown = shown if newest is None else before[newest]
                elif step in "dr" and shown:
                    seq = shown[n % len(shown)]
                    (history.delete_turn if step == "d" else history.restore_turn)(seq)
                    (deleted.add if step == "d" else deleted.discard)(seq)
                elif step == "e" and told:
                    seq, count = told[n % len(told)], count + 1
                    before[count] = shown
                    shown = [each for each in shown if each < seq] + [count]
                    assert history.edit(seq, [HumanMessage(str(count), id=str(count))]) == count
                elif step == "a":
                    count += 1
                    shown = [*shown, count]
                    assert history.append_turn([HumanMessage(str(count), id=str(count))]) == count
            told = [seq for seq in shown if seq not in deleted]
            assert [seq for _, seq, _ in reader.shown()] == [seq for _, seq, _ in Reader(history).shown()] == told
            assert [int(m.text) for m in history.messages] == told
            assert [turn.seq for turn in history.iter_turns()] == told
            assert [int(text) for text in history.last_questions(99)] == told[::-1]
            assert {int(each) for each in history.stored_ids([str(n) for n in range(30)])} == {*told}
            assert [int(m.text) for m in history.tail(max_messages=3)] == told[-3:]
            store = history.turn_store
            assert [each.turns for each in store.run(store.sessions(user))] == [len(told)] * bool(told)
            assert [each.turns for each in store.run(store.sessions(user, hidden=True))] == [len(shown)] * bool(shown)
            for seq in told:
                view = history.view(replaces=seq, max_messages=4)
                assert [int(m.text) for m in view.messages] == [n for n in told if n < seq][-4:]
                assert view.seq == count
            if told:
                fork = history.fork(str(uuid4()))
                assert [int(m.text) for m in fork.messages] == told
                assert [turn.seq for turn in fork.iter_turns()] == list(range(1, len(told) + 1))

        check()

    def test_what_is_accepted_comes_back_equal(self, make_history: MakeHistory) -> None:
        """Random batches: equal on return, ids apart, or refused with nothing stored."""
        accepted = tried = 0

        @settings(SETTINGS, max_examples=examples(100))
        @given(st.lists(messages, min_size=1, max_size=3))
        def check(batch: list[BaseMessage]) -> None:
            nonlocal accepted, tried
            tried += 1
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
        assert accepted > tried / 2, "most of what was tried should be storable"

    def test_behaves_like_a_list(self, make_history: MakeHistory) -> None:
        """After random operations of several writers, in both call styles, the session holds the same as a list."""

        @settings(SETTINGS, max_examples=examples(12))
        @given(operations)
        def check(steps: list[tuple[str, int, bool, list[str], int]]) -> None:
            session = str(uuid4())
            writers = [make_history(session, "u1") for _ in range(WRITERS)]
            turns: dict[str, list[BaseMessage]] = {}
            last = 0
            for verb, writer, asynchronous, said, n in steps:
                call = partial(_call, runner if asynchronous else None, writers[writer])
                if verb == "append":
                    batch: list[BaseMessage] = [m for text in said for m in (HumanMessage(text), AIMessage(text))]
                    turn_id, last = str(uuid4()), last + 1
                    assert call("append_turn", batch, turn_id=turn_id) == last
                    turns[turn_id] = batch
                elif verb == "retry" and turns:  # changes nothing
                    turn_id = [*turns][n % len(turns)]
                    call("append_turn", turns[turn_id], turn_id=turn_id)
                elif verb == "clear":
                    before = call("view").epoch
                    call("clear")
                    turns, last = {}, last + 1
                    with pytest.raises(StaleTurnError):
                        call("append_turn", [HumanMessage("late")], epoch=before)
                elif verb == "conflict":
                    with pytest.raises(HistoryConflictError):
                        call("append_turn", [HumanMessage("x")], expected_seq=last + 1 + n)
                everything = [message for batch in turns.values() for message in batch]
                view = call("view")
                assert view.seq == last
                assert _words(view.messages) == _words(writers[writer].iter_messages()) == _words(everything)
                tail = cut_tail(everything, [0] * len(everything), max_messages=n)
                assert _words(call("tail", max_messages=n)) == _words(tail)

        with asyncio.Runner() as runner:
            check()


operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "retry", "clear", "conflict"]),
        st.integers(0, WRITERS - 1),
        st.booleans(),
        st.lists(texts, min_size=1, max_size=3),
        st.integers(0, 12),
    ),
    max_size=20,
)
"""What a writer does, which one, whether asynchronously, with which texts and which number."""


def _call(runner: asyncio.Runner | None, history: Any, name: str, *args: object, **kwargs: object) -> Any:
    if runner is None:
        return getattr(history, name)(*args, **kwargs)
    return runner.run(getattr(history, f"a{name}")(*args, **kwargs))


def _words(messages: Iterable[BaseMessage]) -> list[tuple[str, object]]:
    return [(message.type, message.content) for message in messages]
