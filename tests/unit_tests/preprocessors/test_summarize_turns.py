"""Summaries in a turn of the factory over SQLite: expiry, damage, streams, stores that fail, and what a turn costs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.stores import InMemoryStore

from langchain_memkit import (
    InMemoryChatMessageHistory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
)
from langchain_memkit.preprocessors.budget import EVENT
from langchain_memkit.testing import FakeChatModel, FrozenClock
from testkit.scribe import Scribe, marks, talk
from testkit.styles import Styles

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
SMALL: dict[str, Any] = {"max_tokens": 600, "trigger": ("tokens", 300), "keep": ("tokens", 100)}


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in each style."""
    return Styles(request.param)


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Any]:
    """A factory on one file."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
        yield factory


class Heard(BaseCallbackHandler):
    """Notes of the preprocessor's events."""

    def __init__(self) -> None:
        self.notes: list[list[str]] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps the notes."""
        if name == EVENT:
            self.notes.append(data["notes"])


def shown(model: FakeChatModel) -> list[int]:
    """The marks of what the model was given as it was said: without the summary."""
    return [mark for message in model.calls[-1] for mark in marks(message.text)]


def text_of(model: FakeChatModel) -> str:
    """What the model was given last."""
    return "\n".join(message.text for message in model.calls[-1])


def chat_over(histories: Any, scribe: Scribe, **how: Any) -> tuple[Any, FakeChatModel]:
    """A chat with a summarizing preprocessor, and its model."""
    model = FakeChatModel()
    summarize = create_history_preprocessor(scribe, **{**SMALL, **how})
    return create_runnable_with_message_history(model, histories, preprocessor=summarize), model


def test_tokens_of_the_summary_are_not_streamed(histories: Any, run: Styles) -> None:
    """Only the answer comes out of the chain, in every style."""
    histories("s1", "u1").add_messages(talk(60))
    chat, _ = chat_over(histories, scribe := Scribe())
    out = run(chat, "Hello.", S1)
    assert scribe.prompts
    assert "".join(chunk.text for chunk in (out if isinstance(out, list) else [out])) == "Noted."


def test_system_lines_stay_in_front(histories: Any, run: Styles) -> None:
    """System lines that begin the stored conversation are in front of the summary, later turns included."""
    histories("s1", "u1").add_messages([SystemMessage("Be brief."), *talk(60)])
    chat, model = chat_over(histories, scribe := Scribe())
    for _ in range(2):
        run(chat, "Hello.", S1)
        system, summary, *_ = model.calls[-1]
        assert system == SystemMessage("Be brief.", id=system.id)
        assert "FACT Nemo" in summary.text
    assert "Be brief." not in "".join(scribe.prompts)


def test_summary_goes_with_its_turns(tmp_path: Path, run: Styles) -> None:
    """With a ttl the summary expires with the first turn in it, and is made anew of what is left."""
    clock, store = FrozenClock(), InMemoryStore()
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", ttl=100, now=clock) as histories:
        history = histories("s1", "u1")
        history.add_messages(talk(2))
        clock.tick(50)
        history.add_messages(talk(60, first=2))
        scribe = Scribe()
        chat, model = chat_over(histories, scribe, store=store, now=clock)
        run(chat, "Hello.", S1)
        assert "FACT Nemo" in text_of(model)
        old = set(store.store)
        clock.tick(51)
        scribe.prompts.clear()
        run(chat, "Hello.", S1)
        assert "FACT" not in text_of(model) + "".join(scribe.prompts)
        assert sorted(scribe.seen + shown(model)) == list(range(2, 62))
        assert not old & set(store.store), "what has expired is no longer stored"


def test_session_that_expired_and_began_again(tmp_path: Path, run: Styles) -> None:
    """A session emptied by its ttl and begun again is another one: the old summary hides none of its turns."""
    clock, store = FrozenClock(), InMemoryStore()
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", ttl=100, now=clock) as histories:
        histories("s1", "u1").add_messages(talk(60))
        chat, model = chat_over(histories, Scribe(), store=store)  # its own clock: the record looks valid
        run(chat, "Hello.", S1)
        assert store.store
        clock.tick(1000)
        histories("s1", "u1").add_messages(talk(3, first=100))
        run(chat, "Hello.", S1)
        assert shown(model) == [100, 101, 102]
        assert "FACT" not in text_of(model)
        assert store.store == {}


def test_damaged_row(histories: Any, tmp_path: Path, run: Styles) -> None:
    """A row that cannot be read, at the position and after it, hides no other one."""
    for i in range(0, 60, 2):
        histories("s1", "u1").add_messages(talk(2, 10, i))
    chat, model = chat_over(histories, scribe := Scribe())
    run(chat, "Hello.", S1)
    first, last = shown(model), max(scribe.seen)
    with sqlite3.connect(tmp_path / "chat.db") as connection:
        for turn in (last // 2 + 1, last // 2 + 3):
            connection.execute("UPDATE turns SET messages = '[7]' WHERE seq = ?", (turn,))
    connection.close()
    run(chat, "Hello.", S1)
    assert shown(model) == [mark for mark in first if mark // 2 != last // 2 + 2]


def test_store_that_cannot_be_read(histories: Any, run: Styles) -> None:
    """The turn goes on with the newest messages, without a call, and says so; nothing is lost."""

    class Away(InMemoryStore):
        away = False

        def yield_keys(self, *, prefix: str | None = None) -> Any:
            if self.away:
                raise ConnectionError("away")
            return super().yield_keys(prefix=prefix)

        async def ayield_keys(self, *, prefix: str | None = None) -> Any:
            for key in self.yield_keys(prefix=prefix):
                yield key

    store, scribe, heard = Away(), Scribe(), Heard()
    histories("s1", "u1").add_messages(talk(60))
    chat, model = chat_over(histories, scribe, store=store)
    run(chat, "Hello.", S1)
    calls = len(scribe.prompts)
    store.away = True
    run(chat, "Hello.", {**S1, "callbacks": [heard]})
    assert heard.notes == [["summaries cannot be read"]]
    assert shown(model)[-1] == 59
    assert "FACT" not in text_of(model)
    store.away = False
    run(chat, "Hello.", S1)
    assert "FACT Nemo" in text_of(model)
    assert len(scribe.prompts) == calls


def test_foreign_history(run: Styles) -> None:
    """Over LangChain's own history the whole list is read, recognised by its hash, and summarized once."""

    class Foreign(InMemoryChatMessageHistory):  # the class itself warns when it is made
        pass

    history, scribe = Foreign(), Scribe()
    history.add_messages(talk(60))
    chat, model = chat_over(lambda session_id, user_id: history, scribe)
    for _ in range(3):
        run(chat, "Hello.", S1)
        assert sorted(scribe.seen + shown(model)) == list(range(60))
        assert "FACT Nemo" in text_of(model)


def test_behind_a_trimmer(histories: Any, run: Styles) -> None:
    """As the second of a sequence it gets what the first one leaves, as a list."""
    histories("s1", "u1").add_messages(talk(200))
    scribe = Scribe()
    both = create_trim_preprocessor(max_tokens=1500) | create_history_preprocessor(scribe, **SMALL)
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, histories, preprocessor=both)
    run(chat, "Hello.", S1)
    seen = sorted(scribe.seen + shown(model))
    assert seen == list(range(seen[0], 200))
    assert seen[0] > 0


def read_of(histories: Any, call: Any) -> int:
    """How many rows of turns the reads of a call return: its statements are traced and run again."""
    database, statements = histories._store._database, []
    with database.connection() as connection:  # the only one, so the call gets it too
        connection.set_trace_callback(statements.append)
    call()
    with database.connection() as connection:
        connection.set_trace_callback(None)
        selects = [s for s in statements if s.lstrip().upper().startswith("SELECT") and "turns" in s]
        assert selects
        return sum(len(connection.execute(statement).fetchall()) for statement in selects)


def test_a_turn_of_a_long_conversation(tmp_path: Path) -> None:
    """With 20,000 stored messages and a summary a turn reads about the rows that one of 1,000 messages reads."""
    read: dict[int, int] = {}
    for length in (1_000, 20_000):
        with SQLiteChatMessageHistory.factory(tmp_path / f"{length}.db") as histories:
            histories("s1", "u1").add_messages(talk(length, 5))
            scribe, store = Scribe(), SQLiteKeyValueStore(tmp_path / f"{length}.db")
            budget: Any = {"max_tokens": 200_000, "trigger": ("tokens", 4000), "store": store}
            create_history_preprocessor(scribe, **{**SMALL, **budget}).summarize(histories("s1", "u1"), progress=False)
            chat, model = chat_over(histories, scribe, **budget)
            chat.invoke("Hello.", S1)
            calls = len(scribe.prompts)
            read[length] = read_of(histories, lambda chat=chat: chat.invoke("Hello.", S1))
            assert len(scribe.prompts) == calls
            assert sorted(scribe.seen + shown(model)) == list(range(length))
    print(f"rows read in a turn: {read}")
    assert read[20_000] <= read[1_000] + 2


async def test_many_turns_at_once(histories: Any) -> None:
    """30 conversations at once on one preprocessor: each has its own summary."""
    chat, _ = chat_over(histories, scribe := Scribe(delay=0.01))
    for i in range(30):
        history: Any = histories(f"s{i}", "u1")
        await history.aadd_messages([HumanMessage(f"FACT word{i} " + "word " * 30), *talk(40, first=2)])
    messages: list[BaseMessage] = [HumanMessage("Hello.")]
    configs = [{"configurable": {"session_id": f"s{i}", "user_id": "u1"}} for i in range(30)]
    await asyncio.gather(*(chat.ainvoke(messages, config) for config in configs))
    first = [prompt for prompt in scribe.prompts if "[#2]" in prompt]
    assert sorted(int(prompt.split("FACT word")[1].split()[0]) for prompt in first) == list(range(30))
