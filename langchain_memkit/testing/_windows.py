"""Contract cases for `view(window=...)` of a history, which preprocessors use."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit.base import HistoryMessages, Position, Window
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing.langchain_histories import LangChainHistoryContract, MakeHistory, exchange, texts

__all__ = ["WindowCases", "position_of"]


def position_of(messages: Any, text: str) -> Position:
    """Return the position of the message with this text."""
    return messages.position(texts(messages).index(text))  # type: ignore[no-any-return]  # any history


def _filled(history: Any, call: Call, said: str = "abcd") -> Any:
    """Append turns of two messages, and return them as read back."""
    for text in said:
        call(history, "append_turn", exchange(text))
    return call(history, "view").messages


class WindowCases(LangChainHistoryContract):
    """Cases for histories whose `view` takes a window."""

    def test_window_after_a_position(self, make_history: MakeHistory, call: Call) -> None:
        """Everything after a message is returned, whether it ends its turn or is inside it; limits are ignored."""
        history = make_history("s1")
        everything = _filled(history, call)
        for i, message in enumerate(everything):
            window = Window(after=everything.position(i), max_messages=1, max_tokens=1, summary="so far")
            view = call(history, "view", window=window)
            assert view.messages == everything[i + 1 :], message.text
            assert view.messages.window == window
            assert (view.seq, view.epoch) == (4, everything.epoch)
        call(history, "append_turn", exchange("e"))
        after = Window(after=everything.position(7))
        assert texts(call(history, "view", window=after).messages) == ["e", "re: e"]

    def test_window_after_a_message_that_is_not_there(self, make_history: MakeHistory, call: Call) -> None:
        """A position whose message is unknown starts at its whole turn: rather too much than too little."""
        history = make_history("s1")
        inside = position_of(_filled(history, call), "b")
        for unknown in ("nobody", None):
            view = call(history, "view", window=Window(after=inside._replace(message_id=unknown)))
            assert texts(view.messages) == texts([m for text in "bcd" for m in exchange(text)])

    def test_window_of_a_cleared_session(self, make_history: MakeHistory, call: Call) -> None:
        """A position from before a clear is void: everything is returned, and the view says so."""
        history = make_history("s1")
        before = Window(after=position_of(_filled(history, call), "re: b"), summary="so far")
        call(make_history("s1"), "clear")
        view = call(history, "view", window=before)
        assert view.messages == []
        assert view.messages.window.after is None
        _filled(history, call, "xyz")
        view = call(history, "view", window=before)
        assert texts(view.messages) == texts([m for text in "xyz" for m in exchange(text)])
        assert view.messages.window.after is None
        again = Window(after=position_of(view.messages, "re: y"))
        assert texts(call(history, "view", window=again).messages) == ["z", "re: z"]

    def test_window_after_a_deleted_turn(self, make_history: MakeHistory, call: Call) -> None:
        """A turn deleted at the position, or after it, changes nothing else."""
        history = make_history("s1")
        everything = _filled(history, call)
        first, middle, last = (Window(after=position_of(everything, f"re: {text}")) for text in "abd")
        call(history, "delete_turn", 2)
        assert texts(call(history, "view", window=middle).messages) == ["c", "re: c", "d", "re: d"]
        assert texts(call(history, "view", window=first).messages) == ["c", "re: c", "d", "re: d"]
        call(history, "delete_turn", 1)
        assert texts(call(history, "view", window=first).messages) == ["c", "re: c", "d", "re: d"]
        call(history, "delete_turn", 4)
        view = call(history, "view", window=last)
        assert view.messages == []
        assert view.messages.window == last
        call(history, "restore_turn", 2)
        assert texts(call(history, "view", window=first).messages) == ["b", "re: b", "c", "re: c"]

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

    def test_messages_know_what_was_stored(self, make_history: MakeHistory, call: Call) -> None:
        """A view, from the beginning or from inside a turn, knows tokens, turn and position of each message."""
        history = make_history("s1")
        stored = call(history, "iter_turns") if _filled(history, call) else []
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
        messages = _filled(history, call, "ab")
        where = messages.position(3)
        messages[1] = AIMessage("other")
        assert [messages.knows(i) for i in range(4)] == [True, False, True, True]
        messages.append(HumanMessage("more"))
        assert not any(messages.knows(i) for i in range(5))
        messages.pop()
        messages.reverse()
        assert not any(messages.knows(i) for i in range(4))
        assert call(history, "view", window=Window(after=where)).messages == []
        assert texts(call(history, "messages")) == ["a", "re: a", "b", "re: b"]


def _check_newest(got: Any, everything: Any, least: int, sizes: list[int]) -> None:
    """Assert that these are the newest whole rows, with at least `least` in sum."""
    begin = len(everything) - len(got)
    assert list(got) == list(everything[begin:])
    assert sum(sizes[begin:]) >= least
    assert begin == 0 or everything.turns[begin - 1].seq != everything.turns[begin].seq
