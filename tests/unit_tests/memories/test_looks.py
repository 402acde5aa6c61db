"""What a vector memory recalls and keeps where turns change, and models and stores fail, meanwhile."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
)
from langchain_memkit._sync import drive
from langchain_memkit.base import SavedTurn
from langchain_memkit.errors import HistoryWriteError
from langchain_memkit.memories.fanout import notify_memories
from testkit.recall import round_of


def test_a_clear_and_an_edit_amid_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at old turns meets a clear of one session and an edit in another: it shows what is there then."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    histories("s1", "u1").add_messages(round_of("I had a boat.", "Did you?"))
    for told in ("I have a cat.", "I have a dog."):
        histories("s2", "u1").append_turn(round_of(told, "Nice."))
    memory = VectorMemory.factory(histories, WordLlamaEmbeddings())("s3", "u1")
    store = memory._core.log.store
    read, meddled = store.turns_at, []

    def turns_at(user_id: str, places: Any) -> Any:
        if not meddled:
            meddled.append(True)
            histories("s1", "u1").clear()
            histories("s2", "u1").edit(2, round_of("I have a parrot.", "Nice."))
        return read(user_id, places)

    monkeypatch.setattr(store, "turns_at", turns_at)
    hits = memory.search("What do I have?")
    assert {hit.text.split("\n")[0] for hit in hits} == {"human: I have a cat.", "human: I have a parrot."}
    assert meddled


def test_a_clear_amid_a_save(tmp_path: Path) -> None:
    """A turn that is saved without a load is refused, too, if its session is cleared while it is embedded."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "memory.db")

    class Clearing(WordLlamaEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if any("parrot" in text for text in texts):
                histories("s1", "u1").clear()
            return super().embed_documents(texts)

    memory = VectorMemory.factory(histories, Clearing())("s1", "u1")
    memory.save(round_of("I have a cat.", "Nice."))
    memory.save(round_of("I have a parrot.", "Nice."))
    assert histories("s1", "u1").messages == []


def test_a_local_model_that_fails(tmp_path: Path) -> None:
    """A turn that is saved by hand is kept, and found by its words."""

    class Failing(WordLlamaEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise MemoryError("no room")

    memory = VectorMemory.factory(SQLiteChatMessageHistory.factory(tmp_path / "memory.db"), Failing())("s1", "u1")
    memory.save(round_of("I have a parrot.", "Nice."))
    assert [hit.text.split("\n")[0] for hit in memory.search("Who has a parrot?")] == ["human: I have a parrot."]


class Down(WordLlamaEmbeddings):
    """A model on a server that is down."""

    is_local = False

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Fail."""
        raise ConnectionError("down")


def said(memory: VectorMemory, asked: str) -> list[str]:
    """What the user says in the records that are found, best first."""
    return [hit.text.split("\n")[0].removeprefix("human: ") for hit in memory.search(asked, k=50)]


def test_all_words_are_found_while_the_model_is_down(tmp_path: Path) -> None:
    """Also those of more old turns than are indexed at once."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    for i in range(300):
        histories(f"s{i % 7}", "u1").add_messages(round_of(f"I saw film{i}.", "Was it good?"))
    memory = VectorMemory.factory(histories, Down())("now", "u1")
    for number in (299, 100, 0):
        assert said(memory, f"film{number}")[0] == f"I saw film{number}."


def test_what_max_records_left_out_comes_back(tmp_path: Path) -> None:
    """Where the newest are hidden, the ones before them are recalled, in every process; and each can be hidden."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    for i in range(5):
        histories("s1", "u1").append_turn(round_of(f"I have boat{i}.", "Fine.", f"m{i}"))
    memories = VectorMemory.factory(histories, WordLlamaEmbeddings(), max_records=2)
    assert sorted(said(memories("s2", "u1"), "boat")) == ["I have boat3.", "I have boat4."]
    assert memories("s1", "u1").forget_messages(["m0-q", "m3-q", "m4-a"]) == 3
    for found in (memories, VectorMemory.factory(histories, WordLlamaEmbeddings(), max_records=2)):
        assert sorted(said(found("s2", "u1"), "boat")) == ["I have boat1.", "I have boat2."]


def test_an_edit_that_keeps_an_id(tmp_path: Path) -> None:
    """A turn that replaces another one and keeps the id of its question stays, in a memory over the same histories."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    history, memory = histories("s1", "u1"), VectorMemory.factory(histories, WordLlamaEmbeddings())("s1", "u1")
    asked = HumanMessage("I have a cat.", id="q1")
    history.append_turn([asked, AIMessage("Nice.", id="a1")])
    seq = history.edit(1, [asked, AIMessage("Lovely.", id="a2")])
    turn = SavedTurn([asked, AIMessage("Lovely.", id="a2")])
    drive(notify_memories([memory], turn, history, seq, replaces=1))
    assert [message.text for message in history.messages] == ["I have a cat.", "Lovely."]
    assert said(memory, "cat") == ["I have a cat."]


def test_a_save_that_failed_and_a_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry is of the same turn, which a clear in between refuses; the next turn is stored."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "memory.db")
    memory = VectorMemory.factory(histories, WordLlamaEmbeddings())("s1", "u1")
    memory.save(round_of("I have a cat.", "Nice."))
    memory.load("What about the cat?")

    def fail(*args: object, **options: object) -> int:
        raise HistoryWriteError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteChatMessageHistory, "append_turn", fail)
        with pytest.raises(HistoryWriteError):
            memory.save(round_of("The cat is called Nemo.", "Good."))
    histories("s1", "u1").clear()
    memory.save(round_of("The cat is called Nemo.", "Good."))
    assert histories("s1", "u1").messages == []
    memory.save(round_of("It rains.", "Again."))
    assert len(histories("s1", "u1").messages) == 2


def test_a_turn_that_is_there_in_part(tmp_path: Path) -> None:
    """What follows a known message is new, with an id or without one."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "memory.db")
    memory = VectorMemory.factory(histories, WordLlamaEmbeddings())("s1", "u1")
    memory.save([HumanMessage("Which cat?", id="1")])
    memory.save([HumanMessage("Which cat?", id="1"), AIMessage("The grey one.")])
    assert [message.text for message in histories("s1", "u1").messages] == ["Which cat?", "The grey one."]
    note = memory.load("Which cat is grey?")
    memory.save(note)  # of notes alone nothing is kept
    assert len(note) == 1
    assert len(histories("s1", "u1").messages) == 2


def test_a_composed_memory_over_the_same_histories(tmp_path: Path) -> None:
    """A turn whose answer alone has an id is stored once."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    memories = ComposedMemory.factory(
        ChatHistoryMemory.factory(histories), VectorMemory.factory(histories, WordLlamaEmbeddings())
    )
    memories("s1", "u1").save([HumanMessage("What does Bob like?"), AIMessage("Burgers.", id="lc_run--1")])
    assert [message.text for message in histories("s1", "u1").messages] == ["What does Bob like?", "Burgers."]


def test_a_table_of_the_app(tmp_path: Path) -> None:
    """An app's own table of vectors in the same file is left alone by clears and purges."""
    path = tmp_path / "app.db"
    histories = SQLiteChatMessageHistory.factory(path)
    histories("s1", "u1").add_messages(round_of("I have a cat.", "Nice."))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE vectors (user_id TEXT, session_id TEXT, v BLOB)")
        connection.execute("INSERT INTO vectors VALUES ('u1', 's1', 'mine')")
    histories("s1", "u1").clear()
    histories.purge("u1")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT v FROM vectors").fetchall() == [("mine",)]
