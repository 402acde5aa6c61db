"""What every chat message history must do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit.base import Window
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, IdempotencyConflictError, StaleTurnError
from langchain_memkit.stores.history import TurnHistory
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing.langchain_histories import LangChainHistoryContract, MakeHistory, exchange, text_of_each

__all__ = ["ChatMessageHistoryContract"]


def editable(history: TurnHistory) -> TurnHistory:
    """Return a history, or skip the test if its store refuses edits."""
    try:
        history.turn_store.check_edits()
    except ConfigurationError:
        pytest.skip("the store refuses edits")
    return history


class ChatMessageHistoryContract(LangChainHistoryContract):
    """Contract for memkit's history methods: atomic turns, positions, epochs, retries, strict ids, separate users."""

    def test_users_are_apart(self, make_history: MakeHistory, call: Call) -> None:
        """The same session id of two users, and without an owner, names three conversations."""
        users = ["u1", "u2", None]
        for user in users:
            call(make_history("s1", user), "add_messages", [HumanMessage(str(user))])
        histories = [make_history("s1", user) for user in users]
        assert [text_of_each(call(history, "messages")) for history in histories] == [["u1"], ["u2"], ["None"]]
        call(make_history("s1", "u1"), "clear")
        assert [text_of_each(call(history, "messages")) for history in histories] == [[], ["u2"], ["None"]]

    def test_positions_have_no_gaps(self, make_history: MakeHistory, call: Call) -> None:
        """Appending returns 1, 2, 3, and the view knows the last position."""
        history = make_history("s1")
        assert [call(history, "append_turn", exchange(t)) for t in "abc"] == [1, 2, 3]
        view = call(history, "view")
        assert view.seq == 3
        assert view.epoch
        assert [turn.seq for turn in call(history, "iter_turns")] == [1, 2, 3]

    def test_retried_turn_is_stored_once(self, make_history: MakeHistory, call: Call) -> None:
        """The same turn_id, or the same message ids, stores nothing twice and returns the position."""
        history = make_history("s1")
        assert call(history, "append_turn", exchange("a"), turn_id="t1") == 1
        assert call(history, "append_turn", exchange("a"), turn_id="t1") == 1
        named = [HumanMessage("b", id="1"), AIMessage("c", id="2")]
        assert [call(history, "append_turn", named) for _ in range(2)] == [2, 2]
        assert text_of_each(call(history, "messages")) == ["a", "re: a", "b", "c"]

    def test_same_turn_id_with_other_content(self, make_history: MakeHistory, call: Call) -> None:
        """A reused turn_id with other content raises an error that holds the stored messages, and changes nothing."""
        history = make_history("s1")
        call(history, "append_turn", exchange("a"), turn_id="t1")
        with pytest.raises(IdempotencyConflictError) as raised:
            call(history, "append_turn", exchange("b"), turn_id="t1")
        assert text_of_each(raised.value.stored) == ["a", "re: a"]
        assert not raised.value.maybe_stored
        assert len(call(history, "messages")) == 2

    def test_expected_position(self, make_history: MakeHistory, call: Call) -> None:
        """A turn with an expected position is stored only if no other turn was stored first (compare-and-set)."""
        history = make_history("s1")
        assert call(history, "append_turn", exchange("a"), expected_seq=0) == 1
        with pytest.raises(HistoryConflictError):
            call(history, "append_turn", exchange("b"), expected_seq=0)
        assert call(history, "append_turn", exchange("b"), expected_seq=1) == 2

    def test_turn_that_began_before_a_clear(self, make_history: MakeHistory, call: Call) -> None:
        """Erased text does not come back through a turn that was in progress; a new turn is stored."""
        history = make_history("s1")
        call(history, "add_messages", exchange("a"))
        before = call(history, "view")
        call(make_history("s1"), "clear")
        with pytest.raises(StaleTurnError):
            call(history, "append_turn", exchange("about a"), epoch=before.epoch)
        after = call(history, "view")
        assert after.epoch not in (0, before.epoch)
        call(history, "append_turn", exchange("b"), epoch=after.epoch)
        assert text_of_each(call(history, "messages")) == ["b", "re: b"]

    def test_first_turn_of_a_session_and_clear(self, make_history: MakeHistory, call: Call) -> None:
        """A turn that began on an empty session is stored after another one, but not after a clear."""
        history = make_history("s1")
        empty = call(history, "view").epoch
        call(make_history("s1"), "add_messages", exchange("other"))
        call(history, "append_turn", exchange("mine"), epoch=empty)
        assert text_of_each(call(history, "messages")) == ["other", "re: other", "mine", "re: mine"]
        call(history, "clear")
        with pytest.raises(StaleTurnError):
            call(history, "append_turn", exchange("late"), epoch=empty)

    def test_same_turn_after_clear(self, make_history: MakeHistory, call: Call) -> None:
        """A turn_id that was cleared away is free again."""
        history = make_history("s1")
        call(history, "append_turn", exchange("a"), turn_id="t1")
        call(history, "clear")
        call(history, "append_turn", exchange("a"), turn_id="t1")
        assert text_of_each(call(history, "messages")) == ["a", "re: a"]

    def test_tail_counts_messages_not_rows(self, make_history: MakeHistory, call: Call) -> None:
        """Rounds added message by message are cut like rounds added at once."""
        history = make_history("s1")
        for message in [*exchange("a"), *exchange("b"), *exchange("c")]:
            call(history, "add_messages", [message])
        assert text_of_each(call(history, "tail", max_messages=3)) == ["c", "re: c"]

    def test_long_import_keeps_order_and_resumes(self, make_history: MakeHistory, call: Call) -> None:
        """Hundreds of messages in one call come back in order; a second call with the same ids adds none."""
        history = make_history("s1")
        given = [m.model_copy(update={"id": f"{i}-{m.type}"}) for i in range(150) for m in exchange(str(i))]
        call(history, "add_messages", given)
        call(history, "add_messages", given)
        assert call(history, "messages") == given
        turns = call(history, "iter_turns")
        assert [turn.seq for turn in turns] == list(range(1, len(turns) + 1))
        assert len(turns) > 1

    def test_iterating_between_positions(self, make_history: MakeHistory, call: Call) -> None:
        """Iteration takes exclusive bounds of positions."""
        history = make_history("s1")
        for text in "abcd":
            call(history, "add_messages", [HumanMessage(text)])
        assert text_of_each(call(history, "iter_messages")) == ["a", "b", "c", "d"]
        assert text_of_each(call(history, "iter_messages", after_seq=1, before_seq=4)) == ["b", "c"]
        assert text_of_each(call(history, "iter_messages", after_seq=4)) == []

    def test_soft_delete(self, make_history: MakeHistory, call: Call) -> None:
        """A deleted turn is hidden and can be restored; positions do not move."""
        history = make_history("s1")
        for text in "abc":
            call(history, "add_messages", [HumanMessage(text, id=text)])
        assert call(history, "delete_turn", 2)
        assert text_of_each(call(history, "messages")) == text_of_each(call(history, "iter_messages")) == ["a", "c"]
        assert call(history, "stored_ids", ["a", "b"]) == {"a"}
        assert call(history, "view").seq == 3
        assert call(history, "restore_turn", 2)
        assert text_of_each(call(history, "messages")) == ["a", "b", "c"]
        assert not call(history, "delete_turn", 99)

    def test_edit(self, make_history: MakeHistory, call: Call) -> None:
        """An edit replaces a turn and all after it, for every reader; it is stored once, and can be taken back."""
        history = editable(make_history("s1"))
        for text in "abcd":
            call(history, "append_turn", exchange(text), turn_id=text)
        assert [call(history, "edit", 2, exchange("e"), turn_id="e") for _ in range(2)] == [5, 5]
        call(history, "append_turn", exchange("f"))
        told = ["a", "re: a", "e", "re: e", "f", "re: f"]
        ids = [m.id for m in call(history, "messages")]
        assert text_of_each(call(history, "messages")) == text_of_each(call(history, "iter_messages")) == told
        assert text_of_each(call(history, "tail", max_messages=4)) == told[2:]
        assert call(history, "last_questions", 9) == ["f", "e", "a"]
        turns = call(history, "iter_turns", hidden=True)
        assert [turn.is_replaced for turn in turns] == [False, True, True, True, False, False]
        assert [turn.replaces for turn in turns] == [None, None, None, None, 2, None]
        assert call(history, "stored_ids", [m.id for turn in turns for m in turn.messages]) == {*ids}
        for gone in (3, 9):
            with pytest.raises(HistoryConflictError):
                call(history, "edit", gone, exchange("x"))
        assert call(history, "delete_turn", 5)
        assert text_of_each(call(history, "messages")) == [*told[:2], *told[4:]]
        assert call(history, "undo_edit")
        assert text_of_each(call(history, "messages")) == [text for t in "abcd" for text in (t, f"re: {t}")]
        assert text_of_each(call(history, "messages")) == text_of_each(call(history, "iter_messages"))
        assert not call(history, "undo_edit")
        call(history, "edit", 4, exchange("g"))
        call(history, "clear")
        assert call(history, "messages") == []
        assert not call(history, "undo_edit")

    def test_turn_that_began_before_an_edit(self, make_history: MakeHistory, call: Call) -> None:
        """A turn that saw what an edit replaced is refused; what came before the edit stays known."""
        history = editable(make_history("s1"))
        for text in "abc":
            call(history, "append_turn", exchange(text))
        before = call(history, "view")
        call(history, "edit", 3, exchange("d"))
        with pytest.raises(StaleTurnError):
            call(history, "append_turn", exchange("about c"), epoch=before.epoch)
        window = Window(after=before.messages.position(1))
        assert text_of_each(call(history, "view", window=window).messages) == ["b", "re: b", "d", "re: d"]
        window = Window(after=before.messages.position(5))
        assert len(call(history, "view", window=window).messages) == 6

    def test_first_turn_of_a_session_and_an_edit(self, make_history: MakeHistory, call: Call) -> None:
        """A turn that began on an empty session is refused once another turn was stored there and edited."""
        history = editable(make_history("s1"))
        empty = call(history, "view").epoch
        call(make_history("s1"), "append_turn", exchange("other"))
        call(make_history("s1"), "edit", 1, exchange("another"))
        with pytest.raises(StaleTurnError):
            call(history, "append_turn", exchange("mine"), epoch=empty)
        assert text_of_each(call(history, "messages")) == ["another", "re: another"]

    def test_fork(self, make_history: MakeHistory, call: Call) -> None:
        """A fork holds what is shown up to a position, and nothing that was replaced; it is repeatable."""
        history = editable(make_history("s1"))
        for text in "abcd":
            call(history, "append_turn", exchange(text))
        call(history, "edit", 2, exchange("e"))
        call(history, "append_turn", exchange("f"))
        for _ in range(2):
            assert call(history, "fork", "s2", at=5).session_id == "s2"
        other = make_history("s2")
        assert text_of_each(call(other, "messages")) == ["a", "re: a", "e", "re: e"]
        assert [turn.seq for turn in call(other, "iter_turns")] == [1, 2]
        assert len(call(other, "stored_ids", [m.id for m in call(history, "messages")])) == 4
        assert call(other, "append_turn", exchange("g")) == 3
        with pytest.raises(HistoryConflictError):
            call(history, "fork", "s2")
        assert len(call(history, "messages")) == len(call(other, "messages")) == 6

    def test_stored_ids(self, make_history: MakeHistory, call: Call) -> None:
        """Only ids of this session are known."""
        call(make_history("s1"), "add_messages", [HumanMessage("a", id="1")])
        call(make_history("s2"), "add_messages", [HumanMessage("b", id="2")])
        assert call(make_history("s1"), "stored_ids", ["1", "2", "3"]) == {"1"}
        assert call(make_history("s1"), "stored_ids", []) == set()

    def test_clear_against_writers(self, make_history: MakeHistory) -> None:
        """While others write, a clear leaves no partial turn and no gap between positions."""
        stop = threading.Event()

        def write(writer: int) -> None:
            i = 0
            while not stop.is_set():
                make_history("s1").add_messages(exchange(f"{writer}-{i}"))
                i += 1

        with ThreadPoolExecutor(3) as pool:
            writers = [pool.submit(write, w) for w in range(3)]
            for _ in range(5):
                make_history("s1").clear()
            stop.set()
        for writer in writers:
            writer.result()
        turns = list(make_history("s1").iter_turns())
        assert all(len(turn.messages) == 2 for turn in turns)
        seqs = [turn.seq for turn in turns]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True
