"""Cases of memkit's own histories beyond the contract: what is the same over every backend, and hostile input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import BaseModel

from langchain_memkit.base import HistoryMessages, Position, Window
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryConflictError,
    HistoryWriteError,
    IdempotencyConflictError,
    MessageEncodeError,
)
from langchain_memkit.messages.codec import LEFT_OUT
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing.changes import ChangesContract
from langchain_memkit.testing.histories import ChatMessageHistoryContract
from langchain_memkit.testing.langchain_histories import MakeHistory, exchange, text_of_each
from langchain_memkit.testing.sessions import SessionListContract

HOSTILE_IDS = [{"$ne": None}, {"$gt": ""}, None, 123, b"s1", ["s1"], True, 1.5, ("s1",)]
BAD_IDS = ["", "a\x00b", "\ud800", "x" * 513, "é" * 257]


class Colour(Enum):
    """An enumeration of an app's."""

    RED = 1


class Row(BaseModel):
    """A model of an app's."""

    n: int = 1


@dataclass
class Point:
    """A dataclass of an app's."""

    x: int = 1


ODD_VALUES: dict[str, Callable[[], object]] = {
    "array": lambda: np.arange(3),
    "numpy number": lambda: np.float32(0.5),
    "pydantic": Row,
    "dataclass": Point,
    "message": lambda: HumanMessage("hi"),
    "decimal": lambda: Decimal("1.10"),
    "enum": lambda: Colour.RED,
    "uuid": lambda: UUID(int=7),
    "nan": lambda: float("nan"),
    "set": lambda: {Point.__name__, Row},
    "object": object,
}
"""Values that no store keeps, made anew for each try, as in a new process."""


def position_of(messages: HistoryMessages, text: str) -> Position:
    """Return the position of the message with this text."""
    return messages.position(text_of_each(messages).index(text))


def filled(history: object, call: Call, said: str = "abcd") -> HistoryMessages:
    """Append turns of two messages, and return them as read back."""
    for text in said:
        call(history, "append_turn", exchange(text))
    messages: HistoryMessages = call(history, "view").messages
    return messages


def _check_newest(got: HistoryMessages, everything: HistoryMessages, least: int, sizes: list[int]) -> None:
    """Assert that these are the newest whole rows, with at least `least` in sum."""
    begin = len(everything) - len(got)
    assert list(got) == list(everything[begin:])
    assert sum(sizes[begin:]) >= least
    assert begin == 0 or everything.turns[begin - 1].seq != everything.turns[begin].seq


class HistoryCases(SessionListContract, ChangesContract, ChatMessageHistoryContract):
    """The contract, and these cases; the fixture is the contract's."""

    @pytest.mark.parametrize("bad", HOSTILE_IDS, ids=repr)
    @pytest.mark.parametrize("name", ["session_id", "user_id"])
    def test_ids_must_be_strings(self, make_history: MakeHistory, name: str, bad: Any) -> None:
        """Anything but a string is a TypeError before any I/O: operators never reach a filter."""
        if name == "user_id" and bad is None:
            bad = {"$exists": True}  # None means "nobody's"
        with pytest.raises(TypeError):
            make_history(**{"session_id": "s1", name: bad})

    @pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: repr(bad[:4]))
    @pytest.mark.parametrize("name", ["session_id", "user_id"])
    def test_malformed_ids(self, make_history: MakeHistory, name: str, bad: str) -> None:
        """Empty, too long, NUL and lone surrogates are a ValueError."""
        with pytest.raises(ValueError, match=name):
            make_history(**{"session_id": "s1", name: bad})

    def test_wrong_arguments_of_lists(self, histories: Any, call: Call) -> None:
        """Limits, cursors, titles and metadata are checked before anything is read or written."""
        self.fill(histories, call, "a")
        deep: dict[str, Any] = {"x": "y" * 20_000}
        for verb, args, options in (
            ("list_sessions", ["u1"], {"limit": 0}),
            ("list_sessions", ["u1"], {"limit": 1, "before": "yesterday"}),
            ("list_sessions", ["u1"], {"limit": 1, "before": {"$gt": ""}}),
            ("search_messages", ["u1", "a"], {"before": "2026-01-01T00:00:00 1 0 s"}),
            ("update_session", ["a", "u1"], {"metadata": deep}),
            ("update_session", ["a", "u1"], {"metadata": {1: 2}}),
            ("update_session", ["a", "u1"], {"metadata": {"x": float("nan")}}),
            ("update_session", ["a", "u1"], {"metadata": {"x": "\ud800"}}),
        ):
            with pytest.raises(ConfigurationError):
                call(histories, verb, *args, **options)
        with pytest.raises(TypeError):
            call(histories, "search_messages", {"$ne": None}, "a")

    def test_refused_value_stores_nothing(self, make_history: MakeHistory, call: Call) -> None:
        """Content that cannot come back equal is refused with its path, and the whole turn with it."""
        history = make_history("s1")
        for value in (object(), float("nan"), lambda: 1):
            called: Any = {"name": "f", "args": {"x": value}, "id": "1"}
            block: Any = [{"type": "x", "x": value}]
            for bad, path in (
                (AIMessage("", tool_calls=[called]), "tool_calls[0]['args']['x']"),
                (ToolMessage(block, tool_call_id="1", artifact=object()), "content[0]['x']"),
            ):
                with pytest.raises(MessageEncodeError) as raised:
                    call(history, "append_turn", [HumanMessage("q"), bad])
                assert raised.value.path == f"messages[1].{path}"
        with pytest.raises(MessageEncodeError, match=r"messages\[0\]"):
            call(history, "append_turn", ["no message"])
        assert call(history, "messages") == []

    @pytest.mark.parametrize("turn_id", [None, "t1"])
    def test_odd_metadata_loses_no_turn(
        self, make_history: MakeHistory, call: Call, caplog: pytest.LogCaptureFixture, turn_id: str | None
    ) -> None:
        """Metadata that cannot come back equal is left out, marked and logged once; a retry is the same turn."""
        for name, make in ODD_VALUES.items():
            caplog.clear()
            history = make_history(f"s-{name}")

            def turn(make: Callable[[], object] = make) -> list[BaseMessage]:
                return [
                    HumanMessage("q", id="q", additional_kwargs={"n": 1, "deep": [{"odd": make()}, "kept"]}),
                    AIMessage("a", id="a", response_metadata={"model_name": "m", "odd": make()}),
                    ToolMessage("r", tool_call_id="1", id="r", artifact=make()),
                ]

            given = {} if turn_id is None else {"turn_id": turn_id}
            begun = call(history, "append_turn", turn(), **given)
            assert [r.levelname for r in caplog.records] == ["WARNING"], name
            # keys are not told, since they may tell of the conversation
            assert "in additional_kwargs, artifact, response_metadata" in caplog.text
            again = make_history(f"s-{name}")
            assert call(again, "append_turn", turn(), **given) == begun
            asked, answered, looked = stored = call(again, "messages")
            assert asked.additional_kwargs == {"n": 1, "deep": [{}, "kept"]}
            assert asked.response_metadata == {LEFT_OUT: ["additional_kwargs['deep'][0]['odd']"]}
            assert answered.response_metadata == {"model_name": "m", LEFT_OUT: ["response_metadata['odd']"]}
            assert (looked.artifact, looked.response_metadata) == (None, {LEFT_OUT: ["artifact"]})
            # as somebody sends it who has read it, and to somewhere else
            assert call(again, "append_turn", stored, **given) == begun
            call(make_history(f"t-{name}"), "append_turn", stored)
            assert call(make_history(f"t-{name}"), "messages") == stored
            other = [HumanMessage("another question", id="q"), *turn()[1:]]
            with pytest.raises(IdempotencyConflictError):
                call(again, "append_turn", other, **given)
            assert len(call(again, "messages")) == 3

    def test_numbers_beyond_64_bits(self, make_history: MakeHistory, call: Call) -> None:
        """A number of any size is stored exactly, or there is nothing at that position: no OverflowError."""
        history = make_history("s1", "u1")
        for number in (2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400):
            used: Any = {"input_tokens": number, "output_tokens": 1, "total_tokens": number}
            block: Any = [{"type": "x", "n": number}]
            turn = [
                HumanMessage(block, additional_kwargs={"n": number}),
                AIMessage("", usage_metadata=used, tool_calls=[{"name": "f", "args": {"n": number}, "id": "1"}]),
            ]
            call(history, "append_turn", turn, trace={"calls": [{"model": "m", "usage": used}], "n": number})
            asked, answered = call(history, "tail", max_messages=2)
            assert (asked.content, asked.additional_kwargs) == (block, {"n": number})
            assert (answered.usage_metadata, answered.tool_calls[0]["args"]) == (used, {"n": number})
            assert call(history, "iter_turns")[-1].trace["n"] == number
            for verb in ("delete_turn", "restore_turn"):
                assert call(history, verb, number) is False
            for verb, args, options in (
                ("edit", [number, turn], {}),
                ("regenerate", [number], {}),
                ("fork", ["s2"], {"at": number}),
                ("append_turn", [turn], {"replaces": number}),
                ("append_turn", [turn], {"expected_seq": number}),
                ("append_turn", [turn], {"epoch": number}),
                ("view", [], {"replaces": number}),
            ):
                with pytest.raises(HistoryConflictError):
                    call(history, verb, *args, **options)
            for verb in ("view", "tail"):
                for limit in ("max_messages", "max_tokens"):
                    with suppress(ConfigurationError):
                        call(history, verb, **{limit: number})

    def test_custom_message_class_is_refused(self, make_history: MakeHistory, call: Call) -> None:
        """A class of the caller's own could not be rebuilt without running its code: refused."""

        class Mine(HumanMessage):
            pass

        with pytest.raises(HistoryWriteError, match="Mine"):
            call(make_history("s1"), "add_messages", [Mine(content="a")])

    def test_tail_is_cut_at_turns(self, make_history: MakeHistory, call: Call) -> None:
        """A tail is within its limits and begins at a human message."""
        history = make_history("s1")
        for text in "abcd":
            call(history, "add_messages", exchange(text))
        cases = {0: [], 1: ["re: d"], 2: ["d", "re: d"], 3: ["d", "re: d"], 4: ["c", "re: c", "d", "re: d"]}
        for limit, expected in cases.items():
            assert text_of_each(call(history, "tail", max_messages=limit)) == expected
        assert len(call(history, "tail", max_messages=99)) == 8
        per_turn = [sum(turn.tokens) for turn in call(history, "iter_turns")]
        assert text_of_each(call(history, "tail", max_tokens=sum(per_turn[2:]))) == ["c", "re: c", "d", "re: d"]
        assert text_of_each(call(history, "tail", max_tokens=sum(per_turn[2:]) - 1)) == ["d", "re: d"]

    def test_tail_keeps_tool_groups_whole(self, make_history: MakeHistory, call: Call) -> None:
        """A newest turn over the limit keeps its newest whole groups: never a result without its call."""
        history = make_history("s1")
        turn: list[BaseMessage] = [HumanMessage("go")]
        for i in range(3):
            turn.append(AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": str(i)}]))
            turn.append(ToolMessage(f"r{i}", tool_call_id=str(i)))
        call(history, "add_messages", turn)
        assert [m.type for m in call(history, "tail", max_messages=3)] == ["ai", "tool"]
        assert [m.type for m in call(history, "tail", max_messages=6)] == ["ai", "tool"] * 3

    def test_limits_are_checked(self, make_history: MakeHistory, call: Call) -> None:
        """A limit that is not a whole number is refused, not ignored."""
        for bad in (-1, 1.5, "3", True):
            with pytest.raises(ValueError, match="max_messages"):
                call(make_history("s1"), "tail", max_messages=bad)

    def test_messages_know_what_was_stored(self, make_history: MakeHistory, call: Call) -> None:
        """A view, from the beginning or from inside a turn, knows tokens, turn and position of each message."""
        history = make_history("s1")
        stored = call(history, "iter_turns") if filled(history, call) else []
        whole = call(history, "view").messages
        part = call(history, "view", window=Window(after=whole.position(2))).messages
        for messages, begin in ((whole, 0), (part, 3), (call(history, "view", max_messages=4).messages, 4)):
            assert isinstance(messages, HistoryMessages)
            assert list(messages.tokens) == [n for turn in stored for n in turn.tokens][begin:]
            assert [turn.seq for turn in messages.turns] == [1, 1, 2, 2, 3, 3, 4, 4][begin:]
            assert messages.counter == "approximate"
            assert all(messages.knows(i) for i in range(len(messages)))
            for i, message in enumerate(messages):
                seq = (begin + i) // 2 + 1
                assert messages.position(i) == (whole.epoch, seq, stored[seq - 1].op, message.id)

    def test_changed_list_knows_what_still_holds(self, make_history: MakeHistory, call: Call) -> None:
        """After a change, metadata is given only for messages that are the ones read at their positions."""
        history = make_history("s1")
        messages = filled(history, call, "ab")
        where = messages.position(3)
        messages[1] = AIMessage("other")
        assert [messages.knows(i) for i in range(4)] == [True, False, True, True]
        messages.append(HumanMessage("more"))
        assert not any(messages.knows(i) for i in range(5))
        messages.pop()
        messages.reverse()
        assert not any(messages.knows(i) for i in range(4))
        assert call(history, "view", window=Window(after=where)).messages == []
        assert text_of_each(call(history, "messages")) == ["a", "re: a", "b", "re: b"]

    def test_window_after_a_position(self, make_history: MakeHistory, call: Call) -> None:
        """Everything after a message is returned, whether it ends its turn or is inside it; limits are ignored."""
        history = make_history("s1")
        everything = filled(history, call)
        for i, message in enumerate(everything):
            window = Window(after=everything.position(i), max_messages=1, max_tokens=1, summary="so far")
            view = call(history, "view", window=window)
            assert view.messages == everything[i + 1 :], message.text
            assert view.messages.window == window
            assert (view.seq, view.epoch) == (4, everything.epoch)
        call(history, "append_turn", exchange("e"))
        after = Window(after=everything.position(7))
        assert text_of_each(call(history, "view", window=after).messages) == ["e", "re: e"]

    def test_window_of_a_cleared_session(self, make_history: MakeHistory, call: Call) -> None:
        """A position from before a clear is void: everything is returned, and the view says so."""
        history = make_history("s1")
        before = Window(after=position_of(filled(history, call), "re: b"), summary="so far")
        call(make_history("s1"), "clear")
        view = call(history, "view", window=before)
        assert view.messages == []
        assert view.messages.window.after is None
        filled(history, call, "xyz")
        view = call(history, "view", window=before)
        assert text_of_each(view.messages) == text_of_each([m for text in "xyz" for m in exchange(text)])
        assert view.messages.window.after is None
        again = Window(after=position_of(view.messages, "re: y"))
        assert text_of_each(call(history, "view", window=again).messages) == ["z", "re: z"]

    def test_window_after_a_message_that_is_not_there(self, make_history: MakeHistory, call: Call) -> None:
        """A position whose message is unknown starts at its whole turn: rather too much than too little."""
        history = make_history("s1")
        inside = position_of(filled(history, call), "b")
        for unknown in ("nobody", None):
            view = call(history, "view", window=Window(after=inside._replace(message_id=unknown)))
            assert text_of_each(view.messages) == text_of_each([m for text in "bcd" for m in exchange(text)])

    def test_window_after_a_deleted_turn(self, make_history: MakeHistory, call: Call) -> None:
        """A turn deleted at the position, or after it, changes nothing else."""
        history = make_history("s1")
        everything = filled(history, call)
        first, middle, last = (Window(after=position_of(everything, f"re: {text}")) for text in "abd")
        call(history, "delete_turn", 2)
        assert text_of_each(call(history, "view", window=middle).messages) == ["c", "re: c", "d", "re: d"]
        assert text_of_each(call(history, "view", window=first).messages) == ["c", "re: c", "d", "re: d"]
        call(history, "delete_turn", 1)
        assert text_of_each(call(history, "view", window=first).messages) == ["c", "re: c", "d", "re: d"]
        call(history, "delete_turn", 4)
        view = call(history, "view", window=last)
        assert view.messages == []
        assert view.messages.window == last
        call(history, "restore_turn", 2)
        assert text_of_each(call(history, "view", window=first).messages) == ["b", "re: b", "c", "re: c"]

    def test_window_in_an_import(self, make_history: MakeHistory, call: Call) -> None:
        """A position inside a row of a hundred messages, or at its end, is resolved to the message."""
        history = make_history("s1")
        given = [m.model_copy(update={"id": f"{i}-{m.type}"}) for i in range(150) for m in exchange(str(i))]
        call(history, "add_messages", given)
        everything = call(history, "view").messages
        assert everything == given
        ends = [i for i in range(299) if everything.turns[i] is not everything.turns[i + 1]]
        assert ends
        for i in (0, 57, 100, ends[0] - 1, ends[0], ends[0] + 1, 298, 299):
            view = call(history, "view", window=Window(after=everything.position(i)))
            assert view.messages == given[i + 1 :]

    @pytest.mark.parametrize("rows", ["turns", "import"])
    def test_window_by_budget(self, make_history: MakeHistory, call: Call, rows: str) -> None:
        """Budgets return the newest whole rows that reach them, or everything if there is less."""
        history = make_history("s1")
        given = [m for i in range(150) for m in exchange(str(i))]
        batches = [given] if rows == "import" else [given[i : i + 2] for i in range(0, 300, 2)]
        for batch in batches:
            call(history, "add_messages", batch)
        everything = call(history, "view").messages
        for n in (1, 7, 130, 300, 999):
            messages = call(history, "view", window=Window(max_messages=n)).messages
            _check_newest(messages, everything, min(n, 300), [1] * 300)
            tokens = n * everything.tokens[-1]
            messages = call(history, "view", window=Window(max_tokens=tokens)).messages
            _check_newest(messages, everything, min(tokens, sum(everything.tokens)), everything.tokens)
            assert rows == "import" or len(messages) <= 3 * n + 128
        assert call(history, "view", window=Window()).messages == everything

    def test_a_conversation_of_nobody(
        self, make_history: MakeHistory, call: Call, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The first use of a user_id logs once that the conversation exists without an owner, and how to migrate it."""

        def said() -> list[str]:
            return [r.getMessage() for r in caplog.records if r.name == "langchain_memkit" and "user_id" in r.msg]

        call(make_history("s1", "u1"), "messages")
        call(make_history("s1"), "add_messages", exchange("Ophelia"))
        call(make_history("s1"), "messages")
        assert said() == []
        for _ in range(2):
            assert call(make_history("s1", "u1"), "tail", max_messages=5) == []
        assert len(said()) == 1
        assert "session 's1' of user 'u1' is empty" in said()[0]
        assert "migrate(histories, histories, user_id=...)" in said()[0]
        assert "Ophelia" not in caplog.text
        call(make_history("s2", "u1"), "add_messages", exchange("new"))
        call(make_history("s2"), "add_messages", exchange("old"))
        assert len(call(make_history("s2", "u1"), "messages")) == 2
        assert len(said()) == 1, "a session that holds turns is left alone"
