"""Contract for summaries over a durable history, for memkit's histories and key-value stores."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langchain_memkit.base import purge_user
from langchain_memkit.preprocessors import create_history_preprocessor
from langchain_memkit.runnables import create_runnable_with_message_history
from langchain_memkit.testing.fakes import FakeChatModel
from testkit.scribe import Scribe, marked, marks, talk
from testkit.styles import Styles

__all__ = ["SummariesContract"]

SMALL: dict[str, Any] = {"max_tokens": 600, "trigger": ("tokens", 300), "keep": ("tokens", 100)}


def shown(model: FakeChatModel) -> str:
    """Return the last prompt of the model as text."""
    return "\n".join(message.text for message in model.calls[-1])


class SummariesContract:
    """Contract with two fixtures: a `get_session_history` factory, and `make_store`, which reopens one store."""

    @pytest.fixture
    def get_session_history(self) -> Any:
        """Return a factory over one store per test; override it."""
        raise RuntimeError("give the contract a `get_session_history` fixture")

    @pytest.fixture
    def make_store(self) -> Any:
        """Return a function that opens the key-value store; override it."""
        raise RuntimeError("give the contract a `make_store` fixture")

    @pytest.fixture(params=["invoke", "ainvoke"])
    def run(self, request: pytest.FixtureRequest) -> Styles:
        """Return `run(chain, value, config)` in both styles."""
        return Styles(request.param)

    @pytest.fixture
    def say(self, get_session_history: Any, run: Styles) -> Any:
        """Return a function that runs one turn with a new preprocessor and returns the model's prompt."""

        def turn(text: str, scribe: Scribe, store: Any, session: str = "s1", user: str = "u1", **how: Any) -> str:
            model = FakeChatModel()
            summarize = create_history_preprocessor(scribe, store=store, **{**SMALL, **how})
            chat = create_runnable_with_message_history(model, get_session_history, preprocessor=summarize)
            run(chat, text, {"configurable": {"session_id": session, "user_id": user}})
            return shown(model)

        return turn

    def test_fact_of_message_0(self, get_session_history: Any, make_store: Any, run: Styles) -> None:
        """366 messages: a fact in message 0 reaches the second prompt; every covered message was summarized once."""
        scribe, model = Scribe(), FakeChatModel()
        budget: dict[str, Any] = {"max_tokens": 6000, "trigger": ("tokens", 3000), "keep": ("tokens", 300)}
        summarize = create_history_preprocessor(scribe, store=make_store(), **budget)
        chat = create_runnable_with_message_history(model, get_session_history, preprocessor=summarize)
        config = {"configurable": {"session_id": "s1", "user_id": "u1"}}
        history = get_session_history("s1", "u1")
        whole = talk(366)
        for begin in (0, 184):
            history.add_messages(whole[begin : begin + 184])
            run(chat, marked(1000 + begin, "and now?"), config)
        assert len(scribe.prompts) == 2, "a budget of one chunk for each half"
        assert "FACT Nemo" in scribe.prompts[0].split("<messages>")[1]
        assert "FACT Nemo" in scribe.prompts[1].split("<messages>")[0], "the summary so far is in the second prompt"
        assert "FACT Nemo" in shown(model)
        asked = marks(shown(model))
        stored = [mark for message in history.messages for mark in marks(message.text)][:-1]
        assert sorted(scribe.seen + asked[:-1]) == sorted(stored), "each message: summarized once, or shown"

    def test_log_is_never_changed(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """The stored messages are equal before and after a summary."""
        history = get_session_history("s1", "u1")
        history.add_messages(talk(60))
        before = history.messages
        say("and now?", scribe := Scribe(), make_store())
        assert scribe.prompts
        assert history.messages[: len(before)] == before
        assert len(history.messages) == len(before) + 2

    def test_survives_a_restart(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """A new preprocessor on the reopened store shows the summary without a new call."""
        get_session_history("s1", "u1").add_messages(talk(60))
        say("and now?", Scribe(), make_store())
        view = say("again?", again := Scribe(), make_store())
        assert again.prompts == []
        assert "FACT Nemo" in view

    def test_cleared(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """After clear() the old summary is never shown, and its records go with the next turn."""
        store, history = make_store(), get_session_history("s1", "u1")
        history.add_messages(talk(60))
        assert "FACT Nemo" in say("and now?", Scribe(), store)
        assert list(store.yield_keys())
        history.clear()
        assert say("hello", Scribe(), store) == "hello"
        assert list(store.yield_keys()) == []

    def test_cleared_while_written(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """A clear during the call leaves nothing behind, neither of this summary nor of the one before it."""
        store, history = make_store(), get_session_history("s1", "u1")
        history.add_messages(talk(200))
        scribe = Scribe()
        scribe.gate = lambda: history.clear() if len(scribe.prompts) == 2 else None
        for text in ("and now?", "again?"):
            say(text, scribe, store)
        assert len(scribe.prompts) == 2
        assert list(store.yield_keys()) == []

    def test_purged(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """purge_user over histories and preprocessor, or over the store, forgets one user and no other."""
        store, summarize = make_store(), create_history_preprocessor(Scribe(), store=make_store(), **SMALL)
        for user in ("u1", "u2", "u3"):
            get_session_history("s1", user).add_messages(talk(60))
            say("and now?", Scribe(), store, user=user)
        counts = purge_user("u1", get_session_history, summarize)
        assert counts[1]["summaries"] >= 1
        assert {key.split("/")[0] for key in store.yield_keys()} == {"u2", "u3"}
        purge_user("u2", get_session_history, store)
        assert {key.split("/")[0] for key in store.yield_keys()} == {"u3"}
        assert say("hello", Scribe(), store, user="u1") == "hello"
        assert "FACT Nemo" in say("hello", Scribe(), store, user="u3")

    def test_equal_conversations_share_nothing(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """Two users, equal words, one store: each has a summary of their own."""
        store, scribe = make_store(), Scribe()
        for user in ("u1", "u2"):
            get_session_history("s1", user).add_messages(talk(60))
            say("and now?", scribe, store, user=user)
        assert len(scribe.seen) == 2 * len(set(scribe.seen))
        assert {key.split("/")[0] for key in store.yield_keys()} == {"u1", "u2"}

    def test_exactly_once_over_many_turns(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """40 turns of changing length: every stored message is shown or was summarized, once; records are few."""
        store, scribe, history = make_store(), Scribe(), get_session_history("s1", "u1")
        view = ""
        for i in range(40):
            history.add_messages([HumanMessage(marked(2 * i, "word " * (i % 7 * 9))), *talk(1, 20, 2 * i + 1)])
            view = say("and now?", scribe, store)
        stored = {mark for message in history.messages for mark in marks(message.text)}
        assert sorted(scribe.seen) == sorted(set(scribe.seen))
        assert set(scribe.seen) | set(marks(view)) == stored
        assert not set(scribe.seen) & set(marks(view))
        assert 5 < len(scribe.prompts) < 30
        assert len(list(store.yield_keys())) <= 2

    def test_position_inside_an_imported_row(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """A summary may end within a row of 100 messages: exactly the messages after it are read."""
        history = get_session_history("s1", "u1")
        history.add_messages(talk(250))
        scribe, store = Scribe(), make_store()
        create_history_preprocessor(scribe, store=store, **SMALL).summarize(history, progress=False)
        first = marks(say("and now?", scribe, store))
        assert sorted(scribe.seen + first) == list(range(250))
        assert first[0] % 100, "the cut is inside a row"
        assert marks(say("again?", scribe, store)) == first

    def test_hidden_turn_at_the_position(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """The turn at which the summary ends is soft-deleted: the messages after it are found all the same."""
        history = get_session_history("s1", "u1")
        for i in range(0, 60, 2):
            history.add_messages(talk(2, 10, i))
        scribe, store = Scribe(), make_store()
        first = marks(say("and now?", scribe, store))
        assert history.delete_turn(max(scribe.seen) // 2 + 1)
        assert marks(say("again?", scribe, store)) == first

    def test_history_size_leaves_no_gap(self, get_session_history: Any, make_store: Any, run: Styles) -> None:
        """A history that is limited for other readers is read whole: summarized or shown, each message."""
        get_session_history("s1", "u1").add_messages(talk(100))

        def limited(session_id: str, user_id: str) -> Any:
            history = get_session_history(session_id, user_id)
            history.history_size = 6
            return history

        scribe, model = Scribe(), FakeChatModel()
        summarize = create_history_preprocessor(scribe, store=make_store(), **SMALL)
        chat = create_runnable_with_message_history(model, limited, preprocessor=summarize)
        for text in ("and now?", "again?", "and again?"):
            run(chat, text, {"configurable": {"session_id": "s1", "user_id": "u1"}})
        assert sorted(scribe.seen + marks(shown(model))) == list(range(100))

    def test_racing_workers(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """Two workers summarize at the same moment: both turns are good, and the next reader takes one of the two."""
        get_session_history("s1", "u1").add_messages(talk(60))
        both = threading.Barrier(2, timeout=20)
        scribes = [Scribe(gate=both.wait) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            views = list(pool.map(lambda s: say("and now?", s, make_store()), scribes))
        for scribe, view in zip(scribes, views, strict=True):
            assert set(range(60)) <= {*scribe.seen, *marks(view)}
            assert "FACT Nemo" in view
        later = Scribe()
        assert "FACT Nemo" in say("again?", later, make_store())
        assert later.prompts == []

    def test_furthest_record_is_taken(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """A slow worker whose summary covers less does not hide one that covers more."""
        history, store = get_session_history("s1", "u1"), make_store()
        history.add_messages(talk(60))
        slow = Scribe(say="the slow one")

        def overtake() -> None:
            history.add_messages(talk(60, first=60))
            with ThreadPoolExecutor(1) as pool:
                pool.submit(say, "meanwhile", Scribe(say="the fast one"), store, max_tokens=4000).result()

        slow.gate = overtake
        say("and now?", slow, store)
        assert "the fast one" in say("again?", Scribe(), store)

    def test_long_turn_of_an_agent(self, get_session_history: Any, make_store: Any, say: Any) -> None:
        """A turn longer than the budget: its beginning is summarized, its newest tool groups and its task are shown."""
        loop: Sequence[BaseMessage] = agent_loop(40)
        get_session_history("s1", "u1").add_messages(loop)
        scribe, store = Scribe(), make_store()
        view = say("and now?", scribe, store)
        assert 0 in marks(view), "the task stays in sight"
        for text in ("again?", "and again?"):
            view = say(text, scribe, store)
        assert sorted({*scribe.seen, *marks(view)}) == list(range(81))
        assert len(scribe.seen) == len(set(scribe.seen))


def agent_loop(n: int) -> list[BaseMessage]:
    """Make one question and `n` tool groups, each message with its number."""
    messages: list[BaseMessage] = [HumanMessage(marked(0, "do it"))]
    for i in range(n):
        call = {"name": "look", "args": {"q": "x"}, "id": f"c{i}"}
        messages.append(AIMessage(marked(2 * i + 1), tool_calls=[call]))
        messages.append(ToolMessage(marked(2 * i + 2, "word " * 8), tool_call_id=f"c{i}"))
    return messages
