"""Summaries beside a history of SQLite: the contract, and what is kept elsewhere."""

from __future__ import annotations

import codecs
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.stores import InMemoryStore

from langchain_memkit import (
    InMemoryChatMessageHistory,
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit._histories import keeps_summaries
from langchain_memkit.backends.sqlite.history import SQLiteTurnStore
from langchain_memkit.base import HistoryView, utc_now
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.preprocessors import summarize
from langchain_memkit.stores.history import HistoryFactory, TurnHistory
from langchain_memkit.stores.history_rows import Batch
from langchain_memkit.testing import FakeChatModel, FrozenClock
from testkit.scribe import Scribe, talk
from testkit.stored_summaries import LEAVES_OUT, S1, SMALL, StoredSummariesContract
from testkit.styles import Styles


class TestSQLite(StoredSummariesContract):
    @pytest.fixture
    def histories(self, tmp_path: Path) -> Iterator[Any]:
        """A factory on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory

    @pytest.fixture
    def raw(self, tmp_path: Path) -> Callable[[], str]:
        """Reads the table."""

        def read() -> str:
            with closing(sqlite3.connect(tmp_path / "chat.db")) as connection:
                rows = connection.execute("SELECT value FROM summaries ORDER BY 1").fetchall()
            return "\n".join(value for (value,) in rows)

        return read


# -- where summaries do not lie beside the history


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> Iterator[None]:
    """What is said once in a process is said once in each test."""
    summarize._report_memory.cache_clear()
    yield
    summarize._report_memory.cache_clear()


def turned(text: str) -> str:
    """Encrypt, or decrypt."""
    return codecs.encode(text, "rot13")


def turned_messages(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Copies with other text."""
    return [message.model_copy(update={"content": turned(message.text)}) for message in messages]


class Encrypted(SQLiteChatMessageHistory):
    """Encrypts through LangChain's methods."""

    @property
    def messages(self) -> list[BaseMessage]:
        """What was said."""
        return turned_messages(super().messages)

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store what was said."""
        super().append_turn(turned_messages(messages))


class EncryptedTurns(SQLiteChatMessageHistory):
    """Encrypts through memkit's own methods."""

    def append_turn(self, messages: Sequence[BaseMessage], **given: Any) -> int:
        """Store what was said."""
        return super().append_turn(turned_messages(messages), **given)

    def view(self, **given: Any) -> HistoryView:
        """What was said."""
        view = super().view(**given)
        return view._replace(messages=turned_messages(view.messages))


class EncryptedStore(SQLiteTurnStore):
    """Encrypts below the history."""

    async def append(self, scope: Any, batch: Batch, *args: Any) -> int:
        """Store what was said."""
        rows = [replace(row, messages=json.loads(turned(json.dumps(row.messages)))) for row in batch.rows]
        return await super().append(scope, replace(batch, rows=rows), *args)


def encrypted_store(path: Path) -> Any:
    """A factory of histories over such a store."""
    inner = SQLiteChatMessageHistory(path, "-").turn_store
    assert isinstance(inner, SQLiteTurnStore)
    return HistoryFactory(TurnHistory(EncryptedStore(inner._database, None, None, utc_now), "-"))


@pytest.mark.parametrize("kind", [Encrypted, EncryptedTurns, encrypted_store])
def test_never_beside_what_encrypts(tmp_path: Path, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of the conversation lies in the file in the clear, and it is said once where summaries are."""
    path = tmp_path / "chat.db"
    factory = kind(path) if kind is encrypted_store else kind.factory(path)
    assert not keeps_summaries(factory("s1", "u1"))
    if kind is encrypted_store:  # nothing decrypts here, so there is nothing to summarize
        return
    with factory as histories:
        for i in range(0, 60, 2):
            histories("s1", "u1").add_messages(talk(2, 10, i))
        preprocessor = create_history_preprocessor(Scribe(), **SMALL)
        model = FakeChatModel()
        chat = create_runnable_with_message_history(model, histories, preprocessor=preprocessor)
        for _ in range(2):
            chat.invoke("and now?", S1)
        assert "FACT Nemo" in model.calls[-1][0].text
    assert caplog.text.count("kept in this process's memory") == 1
    assert b"Nemo" not in path.read_bytes()


class Foreign:
    """A history of another package."""

    def __init__(self) -> None:
        self.messages: list[BaseMessage] = []

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store messages."""
        self.messages += messages


class InProcess(InMemoryChatMessageHistory):  # the class itself warns when it is made
    """LangChain's own history, which ends with the process as well."""


@pytest.mark.parametrize(("kind", "times"), [(Foreign, 1), (InProcess, 0)])
@pytest.mark.parametrize("store", [None, InMemoryStore()])
def test_other_histories(kind: Any, times: int, store: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Their summaries are in this process, which is said once if the history outlives it and no store was given."""
    history = kind()
    history.add_messages(talk(60))
    preprocessor = create_history_preprocessor(scribe := Scribe(), store=store, **SMALL)
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, lambda session_id, user_id: history, preprocessor=preprocessor)
    for _ in range(3):
        before = len(scribe.prompts)
        chat.invoke("and now?", S1)
        assert len(scribe.prompts) <= before + 1
    assert "FACT Nemo" in model.calls[-1][0].text
    assert caplog.text.count("kept in this process's memory") == (0 if store else times)


def test_long_list_of_another_history(caplog: pytest.LogCaptureFixture) -> None:
    """The same rule holds for lists: one call, what it leaves out is said, and `summarize` catches up."""
    history = InProcess()
    history.add_messages(talk(2_000))
    scribe = Scribe()
    preprocessor = create_history_preprocessor(scribe, **SMALL)
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, lambda session_id, user_id: history, preprocessor=preprocessor)
    chat.invoke("and now?", S1)
    assert len(scribe.prompts) == 1
    assert LEAVES_OUT in model.calls[-1][0].text
    scribe.prompts.clear()
    assert preprocessor.summarize(history, S1, progress=False) > 1_900
    assert scribe.seen == list(range(len(scribe.seen)))
    chat.invoke("and now?", S1)
    assert "FACT Nemo" in model.calls[-1][0].text
    assert LEAVES_OUT not in model.calls[-1][0].text


def test_a_store_of_ones_own(tmp_path: Path) -> None:
    """`store=` keeps summaries there, and a turn makes one call and reads no more than it needs all the same."""
    store, scribe = InMemoryStore(), Scribe()
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        for i in range(0, 2_000, 2):
            histories("s1", "u1").add_messages(talk(2, 10, i))
        preprocessor = create_history_preprocessor(scribe, store=store, **SMALL)
        model = FakeChatModel()
        chat = create_runnable_with_message_history(model, histories, preprocessor=preprocessor)
        chat.invoke("and now?", S1)
        assert len(scribe.prompts) == 1
        assert LEAVES_OUT in model.calls[-1][0].text
        scribe.prompts.clear()
        preprocessor.summarize(histories("s1", "u1"), progress=False)
        assert scribe.seen == list(range(len(scribe.seen)))
        chat.invoke("and now?", S1)
        assert LEAVES_OUT not in model.calls[-1][0].text
        with closing(sqlite3.connect(tmp_path / "chat.db")) as connection:
            assert connection.execute("SELECT * FROM summaries").fetchall() == []
    assert not [key for key in store.store if "unfinished" in key]


def test_turns_that_expire(tmp_path: Path) -> None:
    """A summary expires with the first turn that it covers, and its text goes with the next write."""
    clock = FrozenClock()
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", ttl=100, now=clock) as histories:
        for i in range(0, 60, 2):
            histories("s1", "u1").add_messages(talk(2, 10, i))
        preprocessor = create_history_preprocessor(Scribe(), now=clock, **SMALL)
        model = FakeChatModel()
        chat = create_runnable_with_message_history(model, histories, preprocessor=preprocessor)
        chat.invoke("and now?", S1)
        assert "FACT Nemo" in model.calls[-1][0].text
        clock.tick(101)
        chat.invoke("and now?", S1)
        assert [message.text for message in model.calls[-1]] == ["and now?"]
    with closing(sqlite3.connect(tmp_path / "chat.db")) as connection:
        assert connection.execute("SELECT * FROM summaries").fetchall() == []


@pytest.mark.parametrize("damage", ["value = '{'", "value = '{\"v\": 1}'", "v = 99", "op = X'00'", "epoch = 'x'"])
def test_damaged_summary(tmp_path: Path, damage: str) -> None:
    """A summary that cannot be read costs no turn, and another one takes its place."""
    path = tmp_path / "chat.db"
    with SQLiteChatMessageHistory.factory(path) as histories:
        for i in range(0, 60, 2):
            histories("s1", "u1").add_messages(talk(2, 10, i))
        preprocessor = create_history_preprocessor(scribe := Scribe(), **SMALL)
        model = FakeChatModel()
        chat = create_runnable_with_message_history(model, histories, preprocessor=preprocessor)
        chat.invoke("and now?", S1)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE summaries SET {damage}")
        for _ in range(3):
            chat.invoke("and now?", S1)
        assert "FACT Nemo" in model.calls[-1][0].text
        assert len(scribe.prompts) == 2


def test_clear_by_id_says_where_to_look(caplog: pytest.LogCaptureFixture) -> None:
    """An id does not lead to a summary beside its history, so that is said."""
    create_history_preprocessor(Scribe(), **SMALL).clear("s1", "u1")
    assert "clear(history)" in caplog.text
    with pytest.raises(ConfigurationError, match="session_id"):
        create_history_preprocessor(Scribe(), **SMALL).clear(Foreign())


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
def test_an_agent(tmp_path: Path, style: str) -> None:
    """An agent keeps summaries beside its transcript as well: a new process makes one call, then goes on."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        for i in range(0, 600, 2):
            histories("s1", "u1").add_messages(talk(2, 10, i))
        for calls in (1, 0):
            preprocessor = create_history_preprocessor(scribe := Scribe(), **SMALL)
            middleware: Any = [MessageHistoryMiddleware(histories, preprocessor=preprocessor)]
            agent = create_agent(model := FakeChatModel(), middleware=middleware)
            Styles(style)(agent, {"messages": [HumanMessage("and now?")]}, S1)
            assert len(scribe.prompts) == calls
            assert LEAVES_OUT in model.calls[-1][0].text
        scribe = Scribe()
        create_history_preprocessor(scribe, **SMALL).summarize(histories("s1", "u1"), progress=False)
        assert scribe.prompts
        Styles(style)(agent, {"messages": [HumanMessage("and now?")]}, S1)
        assert "FACT Nemo" in model.calls[-1][0].text
        assert LEAVES_OUT not in model.calls[-1][0].text
