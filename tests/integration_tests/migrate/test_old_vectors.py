"""Records that vector memories of versions 0.1 and 0.2 kept in stores of their own are moved, recalled, and erased.

In `old_vectors`, written by these versions, on SQLite and on MongoDB: of nemo the session "kept", of which the
histories beside it have the transcript, and without one "alone", "cleared", and "again" with a round before and one
after a clear; of dory a session; marlin was purged; and there is a document that belongs to nobody.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bson import json_util
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory, VectorMemory, WordLlamaEmbeddings
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import amigrate, migrate, vector_records_source

DATA = Path(__file__).parent / "old_vectors"


class Old:
    """A copy of the data of one version on one engine.

    Attributes:
        histories: Those beside the records.
        others: Histories that are empty, as those of an app that had none.
        source: Of the records.
    """

    def __init__(self, histories: Any, others: Any, source: Any) -> None:
        self.histories, self.others, self.source = histories, others, source


def recalled(histories: Any, user_id: str, asked: str) -> list[str]:
    """The first line of each record that is found, best first."""
    hits = VectorMemory.factory(histories, WordLlamaEmbeddings(64))("new", user_id).search(asked)
    return [hit.text.split("\n")[0].removeprefix("human: ") for hit in hits]


def on_sqlite(data: Path, folder: Path) -> Old:
    """A copy of the file."""
    path = folder / "memory.db"
    shutil.copy(data / "memory.file", path)
    factory = SQLiteChatMessageHistory.factory
    return Old(factory(path), factory(folder / "new.db"), vector_records_source(path))


def on_mongodb(data: Path, client: MongoClient[Any], uri: str, database: str) -> Old:
    """A copy of the collections."""
    for name in ("vectors", "message_store"):
        lines = (data / f"{name}.jsonl").read_text("utf-8").splitlines()
        client[database][name].insert_many([json_util.loads(line) for line in lines])
    factory = MongoDBChatMessageHistory.factory
    source = vector_records_source(uri, database_name=database)
    return Old(factory(uri, database), factory(uri, database, "new"), source)


@pytest.fixture(params=["0_1_0", "0_2_0"])
def data(request: pytest.FixtureRequest) -> Path:
    """The data of a version."""
    return DATA / str(request.param)


@pytest.fixture(params=["sqlite", "standalone"])
def old(request: pytest.FixtureRequest, data: Path, tmp_path: Path, database: str) -> Iterator[Old]:
    """A copy of it on an engine."""
    if request.param == "sqlite":
        yield on_sqlite(data, tmp_path)
        return
    server = request.getfixturevalue("standalone")
    with MongoClient(server.uri) as client:
        yield on_mongodb(data, client, server.uri, database)
        client.drop_database(database)


def test_with_a_transcript(old: Old) -> None:
    """What has a transcript is recalled from it, and is not moved, since what was erased would come back."""
    assert recalled(old.histories, "nemo", "What is my parrot called?")[0] == "My parrot is called Kiwi."
    with pytest.raises(ConfigurationError, match="was made of turns that the target holds, as in session 'kept'"):
        migrate(old.source, old.histories, progress=False)
    assert [found.session_id for found in old.histories.list_sessions("nemo")] == ["kept"]


@pytest.mark.parametrize("is_async", [False, True])
def test_without_one(old: Old, is_async: bool) -> None:
    """Rounds become turns with their dates and ids, once, and are recalled; what was cleared and purged stays away."""
    for done in ((5, 8), (1, 0)):
        if is_async:
            report = asyncio.run(amigrate(old.source, old.others, progress=False))
        else:
            report = migrate(old.source, old.others, progress=False)
        assert (report.sessions, report.turns) == done
        [line] = report.skipped
        assert line == "session 'documents', documents: 1 of them are of no conversation, and stay where they are"
    for user, asked, best in [
        ("nemo", "What is my parrot called?", "My parrot is called Kiwi."),
        ("nemo", "What is my cat called?", "My cat is called Nemo."),
        ("nemo", "Which instrument do I play?", "I play the cello."),
        ("nemo", "Was I in Paris?", "I was in Paris."),
        ("dory", "What is my boat called?", "My boat is called Argo."),
    ]:
        assert recalled(old.others, user, asked)[0] == best
    found = [text for user in ("nemo", "marlin") for text in recalled(old.others, user, "My secret phone in Rome?")]
    assert not any(word in text for text in found for word in ("1234", "555", "Rome"))
    turns = list(old.others("alone", "nemo").iter_turns())
    said = ["My cat is called Nemo.", "What time is it?", "I play the cello.", "Is this answered?"]
    assert [turn.messages[0].text for turn in turns] == said
    assert {turn.created_at.date().isoformat() for turn in turns if turn.created_at} == {"2026-01-02"}
    assert [message.id for message in turns[0].messages] == ["q-l1", "a-l1"]
    answer = ["A", "fine", "name!", *["It", "is", "a", "fish,", "and", "it", "swims."] * 20]
    assert turns[0].messages[1].text.split() == answer
    assert [message.text for message in turns[1].messages][-2:] == ["5 pm", "Five."]


def test_clear_and_purge_after_the_move(old: Old) -> None:
    """What was moved is erased as any turn."""
    migrate(old.source, old.others, progress=False)
    old.others("alone", "nemo").clear()
    assert not any("cat" in text for text in recalled(old.others, "nemo", "What is my cat called?"))
    old.others.purge("nemo")
    migrate(old.source, old.others, progress=False)  # again, which brings nothing back
    assert recalled(old.others, "nemo", "What is my parrot called?") == []
    assert recalled(old.others, "dory", "What is my boat called?") == ["My boat is called Argo."]


def test_a_dry_run_deletes_nothing(old: Old) -> None:
    """It only counts, as often as it is run."""
    for _ in range(2):
        assert migrate(old.source, old.others, dry_run=True, progress=False).turns == 8
    assert old.others.list_sessions("nemo") == []


def test_a_greeting_that_comes_again(old: Old) -> None:
    """Equal words on another day are no copy."""
    cello = [HumanMessage("I play the cello."), AIMessage("Since when?")]
    old.others("alone", "nemo").append_turn(cello)
    assert migrate(old.source, old.others, progress=False).turns == 8


def test_a_session_that_went_on(old: Old) -> None:
    """What an app has added to a session before the move stays, and the rounds come behind it."""
    old.others("alone", "dory").append_turn([HumanMessage("My boat is red."), AIMessage("Lovely.")])
    migrate(old.source, old.others, progress=False)
    turns = old.others("alone", "dory").iter_turns()
    assert [turn.messages[0].text for turn in turns] == ["My boat is red.", "My boat is called Argo."]


def test_sqlite_erases_the_old_records(data: Path, tmp_path: Path) -> None:
    """A clear or purge of the histories in a file erases old records there, too: a move would bring them back."""
    old, path = on_sqlite(data, tmp_path), tmp_path / "memory.db"

    def stored() -> str:
        with closing(sqlite3.connect(path)) as connection:
            return str(connection.execute("SELECT text FROM vectors").fetchall())

    old.histories("alone", "nemo").clear()
    assert "cat is called" not in stored()
    assert "parrot" in stored()
    old.histories.purge("nemo")
    assert "parrot" not in stored()
    assert "Argo" in stored()
    assert b"cat is called" not in path.read_bytes()
    migrate(old.source, old.histories, progress=False)
    assert recalled(old.histories, "nemo", "What is my cat called?") == []
    assert recalled(old.histories, "dory", "What is my boat called?") == ["My boat is called Argo."]


@pytest.mark.parametrize("made", [False, True])
def test_nothing_to_move(tmp_path: Path, made: bool) -> None:
    """A file that is not there, or holds no such records, is refused with a sentence."""
    path = tmp_path / "chat.db"
    histories = SQLiteChatMessageHistory.factory(tmp_path / "new.db")
    if made:
        SQLiteChatMessageHistory(path, "s1").add_user_message("hello")
    with pytest.raises(ConfigurationError, match="has no table 'vectors'" if made else "there is no file"):
        migrate(vector_records_source(path), histories, progress=False)


def test_a_collection_without_records(standalone: Any, database: str) -> None:
    """A collection that holds nothing of a vector memory is refused with a sentence."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    with pytest.raises(ConfigurationError, match="vectors holds no records of a vector memory"):
        migrate(vector_records_source(standalone.uri, database_name=database), histories, progress=False)
