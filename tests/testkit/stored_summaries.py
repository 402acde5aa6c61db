"""Contract for summaries that lie beside the history, in the database of memkit's own backends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from langchain_memkit import create_history_preprocessor, create_runnable_with_message_history, explain_turn
from langchain_memkit.base import Position, purge_user
from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.stores.history_rows import SessionScope, StoredSummary
from langchain_memkit.testing.fakes import FakeChatModel
from testkit.scribe import Scribe, marked, marks, talk
from testkit.styles import Styles

__all__ = ["StoredSummariesContract", "stored_turns"]

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
SMALL: dict[str, Any] = {"max_tokens": 600, "trigger": ("tokens", 300), "keep": ("tokens", 100)}
LEAVES_OUT = "does not cover all that was said before"


def stored_turns(history: Any, number: int, words: int = 10, first: int = 0) -> None:
    """Store turns of two messages each, whose numbers go on from `first`."""
    for i in range(first, first + 2 * number, 2):
        history.add_messages(talk(2, words, i))


def stored_by_a_newer_version(history: Any, *, unfinished: bool) -> None:
    """Store a summary of the whole session, in place of any other, in a form that this version cannot read."""
    store, scope = history.turn_store, SessionScope(history.user_id, history.session_id)
    last = list(history.iter_turns())[-1]
    position = Position(last.epoch, last.seq, last.op, last.messages[-1].id)
    summary = StoredSummary("newer", position, {"v": 2}, None)
    there = store.run(store.summary(scope, unfinished=unfinished))
    previous = there.id if there else None
    flow = store.put_summary(scope, summary, previous=previous, turns=[], unfinished=unfinished)
    assert store.run(flow)


class StoredSummariesContract:
    """Contract with two fixtures: `histories`, a factory, and `raw`, which returns all that is stored as text."""

    @pytest.fixture
    def histories(self) -> Any:
        """Return a factory over one store per test; override it."""
        raise RuntimeError("give the contract a `histories` fixture")

    @pytest.fixture
    def raw(self) -> Callable[[], str]:
        """Return a function that reads all summaries in the database as one text; override it."""
        raise RuntimeError("give the contract a `raw` fixture")

    @pytest.fixture(params=["invoke", "ainvoke"])
    def run(self, request: pytest.FixtureRequest) -> Styles:
        """Return `run(chain, value, config)` in both styles."""
        return Styles(request.param)

    @pytest.fixture
    def say(self, histories: Any, run: Styles) -> Any:
        """Return a function that runs a turn with a new preprocessor, as a new process has it."""

        def turn(text: str, scribe: Scribe, session: str = "s1", user: str = "u1", **how: Any) -> list[BaseMessage]:
            model = FakeChatModel()
            summarize = create_history_preprocessor(scribe, **(how or SMALL))
            chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)
            run(chat, text, {"configurable": {"session_id": session, "user_id": user}})
            summarize.close()
            return model.calls[-1]

        return turn

    @pytest.mark.parametrize("number", [200, 600])
    def test_first_turn_of_a_new_process(self, histories: Any, say: Any, number: int) -> None:
        """However much is stored, the first answer waits for one call, and says what the summary leaves out."""
        stored_turns(histories("s1", "u1"), number, 50)
        scribe = Scribe()
        shown = say("and now?", scribe, max_tokens=8_000)
        assert len(scribe.prompts) == 1
        summary, *rest = shown
        assert LEAVES_OUT in summary.text
        newest = marks("".join(m.text for m in rest))
        if number == 600:  # it begins late, and leaves no gap between it and what is shown
            read = [*scribe.seen, *newest]
            assert read == list(range(read[0], 2 * number))
        again = Scribe()
        shown = say("again?", again, max_tokens=8_000)
        assert len(again.prompts) <= 1
        assert "Summary" in shown[0].text

    def test_later_turns_catch_up(self, histories: Any, say: Any) -> None:
        """A little too much for one call is caught up by the turns that follow, one call each, in order."""
        stored_turns(histories("s1", "u1"), 100, 50)
        scribe = Scribe()
        calls = []
        for n in range(8):
            before = len(scribe.prompts)
            shown = say(marked(1_000 + n), scribe, max_tokens=4_000)
            calls.append(len(scribe.prompts) - before)
        assert max(calls) == 1
        assert calls[-1] == 0
        assert "FACT Nemo" in shown[0].text
        assert LEAVES_OUT not in shown[0].text
        newest = marks("".join(m.text for m in shown[1:]))
        assert [mark for mark in [*scribe.seen, *newest] if mark < 1_000] == list(range(200))

    def test_background_calls_nobody_before_the_answer(self, histories: Any) -> None:
        """With mode="background" an answer never waits, not even where the messages do not fit."""
        stored_turns(histories("s1", "u1"), 300)
        answered = threading.Event()
        scribe = Scribe(gate=lambda: answered.wait(20))
        model = FakeChatModel()
        summarize = create_history_preprocessor(scribe, mode="background", **SMALL)
        chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)
        chat.invoke("and now?", S1)
        assert marks("".join(m.text for m in model.calls[-1]))[-1] == 599
        answered.set()
        summarize.close()
        assert len(scribe.prompts) == 1

    def test_survives_the_process(self, histories: Any, say: Any, raw: Any) -> None:
        """The summary lies in the history's own database, and a new process goes on from it."""
        stored_turns(histories("s1", "u1"), 30)
        say("and now?", Scribe())
        assert "FACT Nemo" in raw()
        again = Scribe()
        assert "FACT Nemo" in say("again?", again)[0].text
        assert again.prompts == []

    def test_cleared(self, histories: Any, say: Any, raw: Any) -> None:
        """Clear deletes the summary at once, and no later turn sees it."""
        stored_turns(histories("s1", "u1"), 30)
        say("and now?", Scribe())
        histories("s1", "u1").clear()
        assert raw() == ""
        assert [m.text for m in say("hello", Scribe())] == ["hello"]

    def test_purged(self, histories: Any, say: Any, raw: Any) -> None:
        """Purging a user deletes the user's summaries and no others."""
        for user in ("u1", "u2"):
            histories("s1", user).add_messages([HumanMessage(f"FACT {user}")])
            stored_turns(histories("s1", user), 30, first=2)
            say("and now?", Scribe(), user=user)
        assert "FACT u1" in raw()
        purge_user("u1", histories, create_history_preprocessor(Scribe(), **SMALL))
        assert "FACT u1" not in raw()
        assert "FACT u2" in raw()

    def test_edited(self, histories: Any, say: Any, raw: Any) -> None:
        """An edit of what the summary covers deletes it, and so does taking one back; an edit behind it does not."""
        history = histories("s1", "u1")
        stored_turns(history, 30)
        say("and now?", Scribe())
        before = raw()
        last = max(turn.seq for turn in history.iter_turns())
        history.edit(last, [HumanMessage("better"), AIMessage("Noted.")])
        assert raw() == before
        assert "FACT Nemo" in say("again?", quiet := Scribe())[0].text
        assert quiet.prompts == []
        history.edit(1, [HumanMessage("FACT Dory"), AIMessage("Noted.")])
        assert raw() == ""
        assert "Nemo" not in "".join(m.text for m in say("who?", Scribe()))
        assert history.undo_edit()
        assert "FACT Nemo" in say("who?", Scribe())[0].text

    @pytest.mark.parametrize("by", ["seq", "op"])
    def test_turns_hidden_and_shown(self, histories: Any, say: Any, raw: Any, by: str) -> None:
        """A turn that is deleted is not told by the summary any more; one that is restored is in the next one."""
        history = histories("s1", "u1")
        stored_turns(history, 30)
        say("and now?", Scribe())
        first = next(iter(history.iter_turns()))
        assert history.delete_turn(getattr(first, by))
        assert raw() == ""
        assert "Nemo" not in "".join(m.text for m in say("who?", Scribe()))
        assert history.restore_turn(getattr(first, by))
        assert "FACT Nemo" in say("who?", Scribe())[0].text

    @pytest.mark.parametrize("change", ["clear", "delete_turn", "edit", "purge"])
    def test_changed_while_written(self, histories: Any, raw: Any, change: str) -> None:
        """What is cleared, hidden or replaced while the model writes is in no stored summary."""
        history = histories("s1", "u1")
        stored_turns(history, 30)
        changes: dict[str, Callable[[], object]] = {
            "clear": history.clear,
            "delete_turn": lambda: history.delete_turn(1),
            "edit": lambda: history.edit(1, [HumanMessage("FACT Dory")]),
            "purge": lambda: histories.purge("u1"),
        }
        scribe = Scribe(gate=changes[change])
        model = FakeChatModel()
        summarize = create_history_preprocessor(scribe, **SMALL)
        create_runnable_with_message_history(model, histories, preprocessor=summarize).invoke("and now?", S1)
        assert len(scribe.prompts) == 1
        assert raw() == ""

    def test_two_processes(self, histories: Any, say: Any, raw: Any) -> None:
        """Of two summaries that are written at the same time one is stored, and both turns are good."""
        stored_turns(histories("s1", "u1"), 30)
        inner = Scribe(say="the fast one")
        scribe = Scribe(say="the slow one")
        scribe.gate = lambda: say("meanwhile", inner) if not inner.prompts else None
        model = FakeChatModel()
        chat = create_runnable_with_message_history(
            model, histories, preprocessor=create_history_preprocessor(scribe, **SMALL)
        )
        worker = threading.Thread(target=chat.invoke, args=("and now?", S1))
        worker.start()
        worker.join()
        assert "the slow one" in model.calls[-1][0].text
        assert "the fast one" in raw()
        assert "the slow one" not in raw()

    def test_failed_call(self, histories: Any, say: Any, raw: Any) -> None:
        """A call that fails costs no turn and stores nothing, and the next turn tries again, once."""
        stored_turns(histories("s1", "u1"), 30)
        scribe = Scribe(fail_on=[1])
        shown = say("and now?", scribe)
        assert marks(shown[-2].text) == [59]
        assert raw() == ""
        assert "FACT Nemo" in say("again?", scribe)[0].text
        assert len(scribe.prompts) == 2

    def test_dry_run(self, histories: Any, raw: Any) -> None:
        """`explain_turn` stores no summary and deletes none."""
        stored_turns(histories("s1", "u1"), 30)
        summarize = create_history_preprocessor(Scribe(), **SMALL)
        chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=summarize)
        assert explain_turn(chat, "and now?", S1).summarized
        assert raw() == ""

    def test_system_lines_of_a_long_conversation(self, histories: Any, say: Any) -> None:
        """System lines at the very beginning stay in front, though what follows them is not read."""
        histories("s1", "u1").add_messages([SystemMessage("Be brief."), HumanMessage("a"), AIMessage("b")])
        stored_turns(histories("s1", "u1"), 300)
        for text in ("and now?", "again?"):
            system, summary, *_ = say(text, Scribe())
            assert system.text == "Be brief."
            assert LEAVES_OUT in summary.text

    def test_turn_that_replaces_what_is_summarized(self, histories: Any, raw: Any) -> None:
        """A question answered anew sees nothing of what it replaces, and a failed one leaves the summary as it is."""
        history = histories("s1", "u1")
        stored_turns(history, 30)
        model = FakeChatModel()
        summarize = create_history_preprocessor(Scribe(), **SMALL)
        chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)
        chat.invoke("and now?", S1)
        before = raw()
        again: Any = {"configurable": {**S1["configurable"], "replaces": 3}}
        broken = create_runnable_with_message_history(failing, histories, preprocessor=summarize)
        with pytest.raises(ConnectionError):
            broken.invoke("what?", again)
        assert raw() == before
        chat.invoke("what?", again)
        assert [mark for m in model.calls[-1] for mark in marks(m.text)] == [0, 1, 2, 3]
        assert raw() == ""

    def test_summarize(self, histories: Any, say: Any, raw: Any, run: Styles) -> None:
        """On purpose all of it is summarized, from the beginning and in order; the next turn shows it as whole."""
        history = histories("s1", "u1")
        stored_turns(history, 300)
        say("and now?", Scribe())
        summarize, scribe = self.preprocessor()
        count = self.catch_up(summarize, history, run)
        assert self.catch_up(summarize, history, run) == 0
        assert scribe.seen == list(range(len(scribe.seen)))
        assert count >= len(scribe.seen) > 500
        shown = say("again?", quiet := Scribe())
        assert quiet.prompts == []
        assert "FACT Nemo" in shown[0].text
        assert LEAVES_OUT not in shown[0].text
        newest = marks("".join(m.text for m in shown[1:]))
        assert [*scribe.seen, *newest] == list(range(600))

    def test_summarize_resumes(self, histories: Any, say: Any, run: Styles) -> None:
        """What breaks off goes on where it was, and a turn in between shows what there was before."""
        history = histories("s1", "u1")
        stored_turns(history, 300)
        say("and now?", Scribe())
        summarize, scribe = self.preprocessor(fail_on=[4])
        with pytest.raises(ConnectionError):
            self.catch_up(summarize, history, run)
        done = sum(len(marks(prompt.split("<messages>")[1])) for prompt in scribe.prompts[:3])
        assert LEAVES_OUT in say("meanwhile", Scribe())[0].text
        summarize, again = self.preprocessor()
        self.catch_up(summarize, history, run)
        assert again.seen == list(range(done, done + len(again.seen)))
        assert "FACT Nemo" in again.prompts[0].split("<messages>")[0]
        assert "FACT Nemo" in say("again?", Scribe())[0].text

    @pytest.mark.parametrize("change", ["clear", "delete_turn", "turn"])
    def test_changed_while_it_catches_up(self, histories: Any, say: Any, raw: Any, run: Styles, change: str) -> None:
        """Turns, and what is removed, while `summarize` works: nothing removed is stored, nothing is left out."""
        history = histories("s1", "u1")
        stored_turns(history, 200)
        changes: dict[str, Callable[[], object]] = {
            "clear": history.clear,
            "delete_turn": lambda: history.delete_turn(1),
            "turn": lambda: say("meanwhile", Scribe()),
        }
        summarize, scribe = self.preprocessor()

        def in_a_thread() -> None:  # beside the event loop of the call
            worker = threading.Thread(target=changes[change])
            worker.start()
            worker.join()

        scribe.gate = lambda: in_a_thread() if len(scribe.prompts) == 2 else None
        self.catch_up(summarize, history, run)
        if change == "clear":
            assert raw() == ""
        elif change == "delete_turn":
            assert "Nemo" not in raw()
            assert LEAVES_OUT not in say("again?", Scribe())[0].text
        else:
            shown = say("again?", Scribe())
            assert "FACT Nemo" in shown[0].text
            assert LEAVES_OUT not in shown[0].text

    @pytest.mark.parametrize("unfinished", [True, False])
    def test_summarize_replaces_what_it_cannot_read(
        self, histories: Any, say: Any, raw: Any, run: Styles, unfinished: bool
    ) -> None:
        """A stored summary that is damaged, or of another version, makes room for one from the beginning."""
        history = histories("s1", "u1")
        stored_turns(history, 30)
        stored_by_a_newer_version(history, unfinished=unfinished)
        summarize, scribe = self.preprocessor(fail_on=[50])  # so that a loop without end fails
        assert self.catch_up(summarize, history, run) == len(scribe.seen)
        assert scribe.seen == list(range(len(scribe.seen)))
        assert '"v": 2' not in raw()
        assert "FACT Nemo" in say("and now?", Scribe())[0].text

    def test_summarize_ends_where_it_cannot_go_on(self, histories: Any, raw: Any, run: Styles) -> None:
        """Whoever's summary is replaced again and again is told so after a few calls of the model, and the way out."""
        history = histories("s1", "u1")
        stored_turns(history, 30)
        summarize, scribe = self.preprocessor(fail_on=[50])
        scribe.gate = lambda: stored_by_a_newer_version(history, unfinished=True)
        with pytest.raises(HistoryConflictError, match=r"clear\(history\)"):
            self.catch_up(summarize, history, run)
        assert len(scribe.prompts) == 3
        scribe.gate = None
        summarize.clear(history)
        assert raw() == ""
        assert self.catch_up(summarize, history, run) > 0

    def test_cleared_by_the_preprocessor(self, histories: Any, say: Any, raw: Any) -> None:
        """`clear(history)` deletes the summary and leaves the conversation."""
        history = histories("s1", "u1")
        stored_turns(history, 30)
        say("and now?", Scribe())
        create_history_preprocessor(Scribe(), **SMALL).clear(history)
        assert raw() == ""
        assert len(history.messages) == 62

    def preprocessor(self, **how: Any) -> tuple[Any, Scribe]:
        """Make a preprocessor and its model."""
        scribe = Scribe(**how)
        return create_history_preprocessor(scribe, **SMALL), scribe

    def catch_up(self, summarize: Any, history: Any, run: Styles) -> int:
        """Call `summarize` or its async twin."""
        if run.asynchronous:
            return asyncio.run(summarize.asummarize(history, progress=False))
        return summarize.summarize(history, progress=False)


def failing(messages: object) -> str:
    """Fail as a model that is away."""
    raise ConnectionError("away")
