"""`SQLiteVectorStore`: LangChain's own suite, the contract, and what only a file can do wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from langchain_memkit import (
    EntityMemory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    SQLiteVectorStore,
    VectorMemory,
    purge_user,
)
from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends.sqlite import database
from langchain_memkit.backends.sqlite.database import MIGRATIONS
from langchain_memkit.backends.sqlite.inspection import inspect_file
from langchain_memkit.backends.sqlite.vectors import INSERT, values_of
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.ranking.index import digest_of, index_record_of
from langchain_memkit.ranking.tokenize import STEMS_VERSION, tokenize
from langchain_memkit.stores.vector_rows import plain_row, record_row
from langchain_memkit.testing.vectors import AT, EMBEDDING, expected_entries, facts, record
from testkit.older_files import WITHOUT_CHANGES
from testkit.ranking import lexical
from testkit.vector_stores import VectorStoreCases


class TestFile(VectorStoreCases):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Any:
        """Stores made one by one, on one file."""
        return lambda embedding, **options: SQLiteVectorStore(tmp_path / "chat.db", embedding, **options)


class TestMemory(VectorStoreCases):
    @pytest.fixture
    def make_store(self) -> Any:
        """Stores made one by one, on one database in memory."""
        made: list[Any] = []

        def make(embedding: Any, **options: Any) -> Any:
            store = SQLiteVectorStore(":memory:", embedding, **options)
            made.append(store)
            store._backend._database = made[0]._backend._database
            store.close = store.records.cache.clear  # closing it would empty it
            return store

        return make


class TestLangChain(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Any:
        """An empty store."""
        with SQLiteVectorStore(tmp_path / "chat.db", self.get_embeddings()) as store:
            yield store


class TestLangChainMemory(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> Any:
        """An empty store, in memory."""
        with SQLiteVectorStore(":memory:", self.get_embeddings()) as store:
            yield store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database file that does not exist yet."""
    return tmp_path / "chat.db"


@pytest.fixture
def store(path: Path) -> Iterator[Any]:
    """A store on it."""
    with SQLiteVectorStore(path, EMBEDDING) as store:
        yield store


def execute(path: Path, statement: str, *values: Any) -> list[Any]:
    """Works on the file behind memkit's back."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(statement, values).fetchall()
    connection.close()
    return rows


def save(store: Any, *documents: Document) -> bool:
    """Stores records with their vectors."""
    user, session = documents[0].metadata["user_id"], documents[0].metadata["session_id"]
    begun = drive(store.records.begin(user, session))
    vectors = drive(store.records.embed([document.page_content for document in documents]))
    return bool(drive(store.records.write(user, session, begun.generation, documents, vectors)))


def statements(store: Any) -> list[str]:
    """What the store's connection runs from now on."""
    seen: list[str] = []
    with store._backend._database.connection() as connection:
        connection.set_trace_callback(seen.append)
    return seen


def test_constructor_does_no_io(path: Path) -> None:
    """Nothing is created before the first use, nor by arguments that are refused; the store names its file."""
    store = SQLiteVectorStore(path, EMBEDDING)
    with pytest.raises(TypeError):
        drive(store.records.index({"$ne": 1}))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="id must be"):
        store.get_by_ids([""])
    with pytest.raises(TypeError):
        store.similarity_search("a", filter={"user_id": 1})
    assert not path.exists()
    assert repr(store) == f"SQLiteVectorStore({str(path)!r})"
    with pytest.raises(TypeError):
        SQLiteVectorStore(None, EMBEDDING)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationError, match="Embeddings"):
        SQLiteVectorStore(path, None)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationError, match=f"not the class {type(EMBEDDING).__name__}: call it$"):
        SQLiteVectorStore(path, type(EMBEDDING))  # type: ignore[arg-type]  # wrong on purpose
    store.setup()
    assert path.exists()


def test_from_texts(path: Path) -> None:
    """LangChain's own ways to make a store, with our arguments."""
    store = SQLiteVectorStore.from_texts(["one", "two"], EMBEDDING, [{"n": 1}, {"n": 2}], ids=["a", "b"], path=path)
    assert [d.id for d in SQLiteVectorStore(path, EMBEDDING).similarity_search("two", k=1)] == ["b"]
    documents = [Document("three", id="c")]
    other = asyncio.run(SQLiteVectorStore.afrom_documents(documents, EMBEDDING, path=path))
    assert other.get_by_ids(["c"]) == store.get_by_ids(["c"]) == documents


def test_readable_with_any_sqlite_tool(store: Any, path: Path) -> None:
    """A record is a row with plain text, plain JSON and a vector of 4-byte floats."""
    save(store, record(1, "running dogs"))
    ((text, metadata, facts, vector),) = execute(path, "SELECT text, metadata, facts, vector FROM vectors")
    assert text == "human: running dogs\nai: it is fine"
    assert json.loads(metadata) == record(1).metadata | {"said": [["human", "", 7, 19], ["ai", "Bot", 24, 34]]}
    assert json.loads(facts)[8] == [["human", "", "run dog"], ["ai", "Bot", "fine"]]
    assert len(vector) == 4 * 16


def test_words_of_an_older_version_are_made_anew(store: Any, path: Path) -> None:
    """Records that version 1 stored are found by the words of today; those of today are read as they are."""
    said = [record(1, "Meine Schwestern haben zwei Häuser gekauft."), record(2, "Meine Brüder nicht.")]
    save(store, *said)
    [facts], [_] = execute(path, "SELECT facts FROM vectors ORDER BY position")
    old = json.loads(facts)
    old[8][0][2] = "mein schwestern haben zwei hauser gekauft"
    execute(path, "UPDATE vectors SET facts = ?, stems_version = 1 WHERE position = 1", json.dumps(old))
    with SQLiteVectorStore(path, EMBEDDING) as other:
        index = drive(other.records.index("u1"))
        assert lexical(index, tokenize("Welches Haus haben wir?")).tolist()[0] > 0
        assert index.entries[0].said == index_record_of(other.get_by_ids([said[0].id], user_id="u1")[0]).said
    execute(path, "UPDATE vectors SET stems_version = ?", STEMS_VERSION)
    with SQLiteVectorStore(path, EMBEDDING) as other:
        assert "hauser" in drive(other.records.index("u1")).entries[0].said[0].stems


def test_spellings_of_an_older_version_are_found(store: Any, path: Path) -> None:
    """Records that version 2 stored, which knew no British spelling and no hyphen, are found by both spellings."""
    save(store, record(1, "My favourite colour is in your e-mail."))
    [facts] = execute(path, "SELECT facts FROM vectors")[0]
    old = json.loads(facts)
    old[8][0][2] = "favourit colour e mail"
    execute(path, "UPDATE vectors SET facts = ?, stems_version = 2", json.dumps(old))
    with SQLiteVectorStore(path, EMBEDDING) as other:
        index = drive(other.records.index("u1"))
        for question in ("color", "Which colour?", "favorite", "email"):
            assert lexical(index, tokenize(question)).tolist()[0] > 0


def test_what_a_look_costs(store: Any) -> None:
    """A look at an unchanged user is one statement, answered by an index; also after a save of one's own."""
    save(store, *[record(n) for n in range(20)])
    drive(store.records.index("u1"))
    save(store, record(20))
    seen = statements(store)
    assert len(drive(store.records.index("u1"))) == 21
    assert len(seen) == 1
    save(store, record(21))
    assert len(seen) < 20
    del seen[:]
    store.delete([record(3).id], user_id="u1")
    del seen[:]
    assert len(drive(store.records.index("u1"))) == 21
    assert len(seen) == 3  # what is new, which does not explain it, and which records there are
    assert "facts" not in seen[0] + seen[2]  # nothing that is held is read again


@pytest.mark.parametrize("style", ["sync", "async"])
def test_what_a_turn_costs(store: Any, style: str) -> None:
    """In a session that goes on: one statement to load, one transaction to save; a text that is stored is not read."""

    def turn(n: int) -> None:
        said = [HumanMessage(f"Where is number {n}?", id=f"q{n}"), AIMessage(f"It is at {n}.", id=f"a{n}")]
        if style == "sync":
            memory.load(said[0].text)
            loaded.append(len(seen))
            memory.save(said)
        else:
            asyncio.run(memory.aload(said[0].text))
            loaded.append(len(seen))
            asyncio.run(memory.asave(said))

    memory = VectorMemory(store, "s1", user_id="u1")
    seen: list[str] = []
    loaded: list[int] = []
    for n in range(3):
        turn(n)
    seen, loaded[:] = statements(store), []
    for n in range(3, 6):
        turn(n)
        verbs = [statement.split()[0] for statement in dict.fromkeys(seen)]  # a trigger repeats the one that fires it
        assert loaded.pop() == 1
        assert verbs[0] == "SELECT"
        assert verbs[1] == "BEGIN"
        assert verbs[-1] == "COMMIT"
        assert sorted(verbs[2:-1]) == ["DELETE", "INSERT", "SELECT", "SELECT", "SELECT", "SELECT"]
        assert "metadata" not in " ".join(seen[:1])
        del seen[:]
    assert len(drive(store.records.index("u1"))) == 6


@pytest.mark.parametrize("style", ["sync", "async"])
def test_what_a_turn_with_entities_costs(path: Path, style: str) -> None:
    """In a session that goes on: one statement to load, one transaction to save; none for a question."""
    turns = ["Bob sings in Oslo.", "Does Bob sing with Ann?", "What else?", "Ann and Bob sail."]
    with SQLiteKeyValueStore(path) as store:
        memory = EntityMemory(lambda text: [], "s1", user_id="u1", store=store, names=["Bob", "Ann", "Oslo"])
        seen: list[str] = []
        for n, text in enumerate(["Bob is here.", "Ann is here.", *turns]):
            said = [HumanMessage(text, id=f"q{n}"), AIMessage("Noted.", id=f"a{n}")]
            if n == 2:
                seen = statements(store)
            if style == "sync":
                memory.load(text)
                loaded = [*seen]
                memory.save(said)
            else:
                asyncio.run(memory.aload(text))
                loaded = [*seen]
                asyncio.run(memory.asave(said))
            if n < 2:
                continue
            saved = [statement.split()[0] for statement in seen[len(loaded) :]]
            assert [statement.split()[0] for statement in loaded] == ["SELECT"]
            frame = [verb for verb in saved if verb in ("BEGIN", "COMMIT")]
            tells_something = not text.endswith("?")
            assert frame == [*saved[:1], *saved[-1:]] == (["BEGIN", "COMMIT"] if tells_something else [])
            del seen[:]
        assert len(memory.entities()) == 3


def test_vectors_are_read_where_they_are_used(store: Any) -> None:
    """Looking up documents by id reads no vector."""
    save(store, record(1))
    seen = statements(store)
    assert store.get_by_ids([record(1).id], user_id="u1") == [record(1)]
    drive(store.records.begin("u1", "s1", [], [record(1).id]))
    assert "vector," not in " ".join(seen)
    del seen[:]
    assert store.max_marginal_relevance_search("number", filter={"user_id": "u1"}) == [record(1)]
    assert "vector," in " ".join(seen)


def test_plans(store: Any, path: Path) -> None:
    """Every statement finds its rows by an index, and the frequent ones need no row at all."""
    store.setup()
    seen = statements(store)
    save(store, record(1), record(2))
    drive(store.records.index("u1"))
    store.get_by_ids(["a"], user_id="u1")
    drive(store.records.touch("u1", ["a"], AT))
    drive(store.records.accesses("u1"))
    drive(store.records.begin("u1", "s1", ["a"], ["b"]))
    drive(store.records.sessions("u1"))
    drive(store.records.evict("u1", 1, ["a"]))
    store.forget("u1", "s1")
    store.forget("u1")
    store.delete(["a"], user_id="u1")
    plans = {
        statement: " | ".join(row[-1] for row in execute(path, f"EXPLAIN QUERY PLAN {statement}"))
        for statement in dict.fromkeys(seen)
        if statement.startswith(("SELECT", "DELETE", "INSERT", "UPDATE")) and "trigger" not in statement
    }
    assert len(plans) > 15
    small = ("json_each", "CONSTANT ROW", "sqlite_sequence", "sqlite_master")
    for statement, plan in plans.items():
        scans = [step for step in plan.split(" | ") if step.startswith("SCAN")]
        assert all(any(name in scan for name in small) for scan in scans), (statement, plan)

    def plan_of(part: str) -> str:
        (plan,) = {plan for statement, plan in plans.items() if part in statement}
        return plan

    assert plan_of("max(stamps)").startswith("SEARCH vector_counts USING PRIMARY KEY (user_id=?)")
    assert "vectors_digest (user_id=? AND digest=?)" in plan_of("SELECT digest")
    assert "TEMP B-TREE" not in plan_of("ORDER BY position")
    assert "vectors_user (user_id=?)" in plan_of("ORDER BY created_at")
    assert "TEMP B-TREE" not in plan_of("ORDER BY created_at")


@pytest.mark.parametrize("erase", ["forget", "forget session", "delete", "purge"])
def test_erased_records_are_gone_from_the_disk(store: Any, path: Path, erase: str) -> None:
    """After a deletion neither text nor words nor vectors are in the file or in the write-ahead log."""
    documents = [record(n, "secrets about parrots " * 20) for n in range(40)]
    save(store, *documents)
    save(store, record(1, user_id="u2"))
    vector = drive(store.records.embed([documents[0].page_content]))[0].tobytes()

    def left() -> bytes:
        return b"".join(file.read_bytes() for file in path.parent.iterdir())

    assert b"secrets" in left()
    assert b"parrot" in left()
    assert vector in left()
    if erase == "delete":
        store.delete([document.id for document in documents], user_id="u1")
    else:
        name, *more = erase.split()
        getattr(store, name)("u1", *(["s1"] if more else []))
    assert not any(found in left() for found in (b"secret", b"parrot", vector, documents[3].id.encode()))
    assert b"number" in left()


def test_a_call_is_stored_whole_or_not_at_all(store: Any, path: Path) -> None:
    """When one record cannot be written, none is, and none is deleted; what is held stays true."""
    save(store, record(1))
    drive(store.records.index("u1"))
    execute(
        path, "CREATE TRIGGER no BEFORE INSERT ON vectors WHEN new.position = 3 BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    begun = drive(store.records.begin("u1", "s1"))
    documents = [record(1, "changed"), record(2), record(3)]
    with pytest.raises(HistoryWriteError, match="Nothing was stored") as raised:
        drive(store.records.write("u1", "s1", begun.generation, documents, [None] * 3, delete=[record(1).id]))
    assert not raised.value.maybe_stored
    assert store.get_by_ids([document.id for document in documents], user_id="u1") == [record(1)]
    assert [entry.position for entry in drive(store.records.index("u1")).entries] == [1]


def test_in_the_file_of_the_histories(path: Path, store: Any) -> None:
    """Store and histories share a file, and `purge_user` empties both."""
    histories = SQLiteChatMessageHistory.factory(path)
    histories("s1", "u1").add_messages([HumanMessage("secret"), AIMessage("answer")])
    save(store, record(1))
    assert purge_user("u1", histories, store) == [{"sessions": 1, "turns": 1}, {"records": 1}]


def test_older_file_is_migrated(path: Path, store: Any) -> None:
    """A file of the version before, which had no vectors, keeps what it has and gets the tables."""
    SQLiteChatMessageHistory(path, "s1").add_user_message("old")
    for name in ("vectors", "vector_accesses", "vector_generations", "vector_meta", "vector_counts"):
        execute(path, f"DROP TABLE {name}")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(WITHOUT_CHANGES)
    execute(path, "DROP TRIGGER turns_edited")
    execute(path, "ALTER TABLE turns DROP COLUMN checksum")
    for name in ("summaries", "session_details"):
        execute(path, f"DROP TABLE {name}")
    execute(path, "DROP INDEX turns_by_time")
    execute(path, "DROP INDEX turns_replaces")
    for column in ("replaces", "trace"):
        execute(path, f"ALTER TABLE turns DROP COLUMN {column}")
    execute(path, "PRAGMA user_version = 2")
    store.close()
    save(store, record(1))
    assert len(drive(store.records.index("u1"))) == 1
    assert [m.text for m in SQLiteChatMessageHistory(path, "s1").messages] == ["old"]
    assert execute(path, "PRAGMA user_version") == [(len(database.MIGRATIONS),)]


def test_expired_rows_go_with_the_next_write(store: Any, path: Path) -> None:
    """What has expired is deleted by whoever writes next."""
    save(store, record(1, expires_at="2020-01-01T00:00:00+00:00"), record(2, expires_at="2999-01-01T00:00:00Z"))
    assert len(drive(store.records.index("u1"))) == 1
    assert execute(path, "SELECT count(*) FROM vectors") == [(2,)]
    save(store, record(1, user_id="u2"))
    assert execute(path, "SELECT count(*) FROM vectors") == [(2,)]
    assert [entry.position for entry in drive(store.records.index("u1")).entries] == [2]


DAMAGE = {
    "no JSON": "facts = 'not json'",
    "two values": "facts = '[1],[2]'",
    "empty": "facts = ''",
    "an object": "facts = '{}'",
    "short": "facts = '[1, 2]'",
    "id of another type": "facts = json_set(facts, '$[0]', 7)",
    "words of another type": "facts = json_set(facts, '$[8]', 7)",
    "words inside": "facts = json_set(facts, '$[8][0][2]', 7)",
    "no position": "facts = json_set(facts, '$[3]', 'first')",
    "no date": "facts = json_set(facts, '$[4]', 'then')",
    "far date": "facts = json_set(facts, '$[4]', 1e300)",
    "facts are bytes": "facts = x'fffe00'",
    "null facts": "facts = 5",
    "short vector": "vector = substr(vector, 1, 20)",
    "odd vector": "vector = substr(vector, 1, 21)",
    "no numbers": "vector = zeroblob(0) || x'0000c07f0000c07f' || substr(vector, 9)",
    "vector is text": "vector = 'vector'",
    "newer": "v = 2",
    "deeply nested": f"facts = '{'[' * 5000}{']' * 5000}'",
}
UNSEEN = {  # the record can be ranked, but not shown
    "metadata": "metadata = 'no json'",
    "a list": "metadata = '[1]'",
    "unknown tag": 'metadata = \'{"a": {"_memkit": "code", "value": "import os"}}\'',
    "text is bytes": "text = x'ff00'",
}


@pytest.mark.parametrize("change", [*DAMAGE.values(), *UNSEEN.values()], ids=[*DAMAGE, *UNSEEN])
@pytest.mark.usefixtures("no_collection")
def test_damaged_rows(store: Any, path: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged record is left out and reported; the others are found, it is not deleted, and can be replaced."""
    save(store, *[record(n) for n in range(5)])
    if change.startswith("vector = zeroblob"):
        change = f"vector = x'{'0000c07f' * 16}'"
    execute(path, f"UPDATE vectors SET {change} WHERE position = 3")
    with SQLiteVectorStore(path, EMBEDDING) as fresh:
        for each in range(2):
            found = fresh.similarity_search("what about number 3", k=9, filter={"user_id": "u1"})
            assert sorted(document.metadata["position"] for document in found) == [0, 1, 2, 4]
            assert len(drive(fresh.records.index("u1"))) == (5 if change in UNSEEN.values() else 4), each
        assert "unreadable and left as" in caplog.text
        assert "number" not in caplog.text
        assert execute(path, "SELECT count(*) FROM vectors") == [(5,)]
        assert drive(fresh.records.begin("u1", "s1")).last == record(4)
        save(fresh, record(3, "as good as new"))
        assert len(drive(fresh.records.index("u1"))) == 5
        assert fresh.get_by_ids([record(3).id], user_id="u1") == [record(3, "as good as new")]


def test_damage_elsewhere(store: Any, path: Path) -> None:
    """A damaged probe is an error that says so; other tables do no harm."""
    save(store, record(1))
    execute(path, "UPDATE vector_meta SET value = x'000102'")
    with SQLiteVectorStore(path, EMBEDDING) as fresh:
        with pytest.raises(HistoryReadError, match="damaged"):
            drive(fresh.records.embed(["a"]))
        assert len(drive(fresh.records.index("u1"))) == 1


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """What is no database, or has no folder, is a typed error that names the file."""
    other = tmp_path / "other.txt"
    other.write_text("this is no database, but a text of some length" * 40)
    for bad in (other, tmp_path / "no" / "chat.db"):
        store = SQLiteVectorStore(bad, EMBEDDING)
        for read in (
            lambda s: drive(s.records.index("u1")),
            lambda s: s.get_by_ids(["a"]),
            lambda s: s.similarity_search("a"),
        ):
            with pytest.raises(HistoryReadError, match=bad.name):
                read(store)
        for write in (
            lambda s: s.delete(["a"]),
            lambda s: s.forget("u1"),
            lambda s: drive(s.records.touch("u1", ["a"], AT)),
        ):
            with pytest.raises(HistoryWriteError, match=bad.name):
                write(store)


def test_an_error_that_ends_the_transaction(path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When SQLite rolled back by itself, as on a full disk, the error tells why, not that there is nothing to end."""
    monkeypatch.setattr(database, "MIGRATIONS", ["ROLLBACK;\nINSERT INTO nowhere VALUES (1);"])
    with pytest.raises(HistoryReadError, match="no such table: nowhere"):
        drive(store.records.index("u1"))


def test_locked_database(path: Path) -> None:
    """A writer that does not let go is a typed error after `timeout`; readers go on."""
    store = SQLiteVectorStore(path, EMBEDDING, timeout=0.1)
    save(store, record(1))
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(HistoryWriteError, match="locked"):
        save(store, record(2))
    assert len(drive(store.records.index("u1"))) == 1
    blocker.close()
    save(store, record(2))
    assert len(drive(store.records.index("u1"))) == 2


def test_async_calls_do_not_block_the_loop(path: Path, store: Any) -> None:
    """SQLite runs in a worker thread: while a call waits for a lock, the event loop goes on."""
    save(store, record(1))
    begun = drive(store.records.begin("u1", "s1"))
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")

    async def go() -> None:
        task = asyncio.create_task(adrive(store.records.write("u1", "s1", begun.generation, [record(2)], [None])))
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert not task.done()
        blocker.close()
        assert await task

    asyncio.run(go())


PROGRAM = """
import sys
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_memkit._sync import drive
from langchain_memkit.backends.sqlite.vectors import SQLiteVectorStore
from langchain_memkit.testing.vectors import record
store = SQLiteVectorStore(sys.argv[1], DeterministicFakeEmbedding(size=16))
session = sys.argv[2]
for n in range(int(sys.argv[3])):
    documents = [record(3 * n + i, "whole record " * 30, session_id=session) for i in range(3)]
    begun = drive(store.records.begin("u1", session))
    vectors = drive(store.records.embed([d.page_content for d in documents]))
    assert drive(store.records.write("u1", session, begun.generation, documents, vectors))
    assert documents[2].id in drive(store.records.index("u1"))
    print(n, flush=True)
"""


def program(path: Path, session: str, rounds: int, **options: Any) -> subprocess.Popen[bytes]:
    """A process that writes records, three at once."""
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), session, str(rounds)], **options)


def test_two_processes(path: Path, store: Any) -> None:
    """Two processes that begin on a new file at once lose nothing, and a third sees all they do."""
    processes = [program(path, name, 30, stdout=subprocess.DEVNULL) for name in ("s1", "s2")]
    while any(process.poll() is None for process in processes):
        count = len(drive(store.records.index("u1")))
        assert count % 3 == 0
        time.sleep(0.02)  # the processor is theirs
    assert [process.returncode for process in processes] == [0, 0]
    assert len(drive(store.records.index("u1"))) == 180
    assert {(s.session_id, s.turns) for s in drive(store.records.sessions("u1"))} == {("s1", 90), ("s2", 90)}


def test_kill(path: Path, store: Any) -> None:
    """A process that is killed while it writes leaves whole records, as many as it said at least."""
    for session in ("s1", "s2"):
        process = program(path, session, 10_000, stdout=subprocess.PIPE)
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(10)]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        entries = [entry for entry in drive(store.records.index("u1")).entries if entry.session == session]
        assert len(entries) % 3 == 0
        assert len(entries) >= 3 * (told[-1] + 1)
        documents = store.get_by_ids([entry.id for entry in entries], user_id="u1")
        assert {d.page_content for d in documents} == {record(1, "whole record " * 30).page_content}
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
def test_fork(store: Any) -> None:
    """A forked child opens connections of its own, and holds nothing of what its parent held."""
    save(store, record(1))
    index = drive(store.records.index("u1"))
    with index.lock:  # as another thread may, at that moment
        child = os.fork()
        if child == 0:
            try:
                found = (
                    record(1).id in drive(store.records.index("u1")) and drive(store.records.index("u1")) is not index
                )
                save(store, record(2))
                os._exit(0 if found and record(2).id in drive(store.records.index("u1")) else 1)
            except BaseException:
                os._exit(2)
    save(store, record(3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(entry.position for entry in drive(store.records.index("u1")).entries) == [1, 2, 3]


def test_importing_needs_numpy_only_where_it_is_used() -> None:
    """The package and its SQLite histories load without numpy."""
    code = "import sys; sys.modules['numpy'] = None; import langchain_memkit; langchain_memkit.SQLiteKeyValueStore"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_files_of_0_1_0(path: Path) -> None:
    """A file in which an id was unique for all users is brought up to date by the first use, and nothing is lost."""
    old = MIGRATIONS[:3]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for script in old:
            connection.executescript(script)
        connection.execute(f"PRAGMA user_version = {len(old)}")
        rows = [values_of(record_row(record(n), "u1", "s1")) for n in (1, 2, 3)]
        rows.append(values_of(plain_row(Document("theirs", id="a", metadata={"user_id": "u2"}), "a")))
        for number, row in enumerate(rows):
            connection.execute(INSERT, [number + 1, *row[1:]])
        connection.execute("DELETE FROM vectors WHERE seq = 3")
        connection.execute("UPDATE sqlite_sequence SET seq = 900")  # a record with this number was deleted
        connection.execute("INSERT INTO vector_accesses VALUES ('u1', ?, 7)", (record(1).id,))
        connection.execute("INSERT INTO vector_generations VALUES ('u1', 's1', 'g')")
    store = SQLiteVectorStore(path, EMBEDDING)
    assert facts(drive(store.records.index("u1"))) == expected_entries([record(1), record(2)])
    assert list(drive(store.records.accesses("u1"))) == [record(1).id]
    assert store.get_by_ids(["a"], user_id="u2")[0].page_content == "theirs"
    store.add_documents([Document("mine", id="a", metadata={"user_id": "u1"})])
    assert store.get_by_ids(["a"], user_id="u2")[0].page_content == "theirs"
    assert execute(path, "SELECT min(seq) > 900 FROM vectors WHERE user_id = 'u1' AND id = 'a'") == [(1,)]
    assert drive(store.records.begin("u1", "s1")).generation == "g"
    store.delete([str(record(1).id)], user_id="u1")
    assert drive(store.records.accesses("u1")) == {}
    counted = "SELECT user_id, count(*), sum(seq) FROM vectors GROUP BY user_id ORDER BY user_id"
    assert execute(path, "SELECT * FROM vector_counts ORDER BY user_id") == execute(path, counted)
    facts_of_file = inspect_file(path)
    assert (facts_of_file.version, facts_of_file.problems) == (len(MIGRATIONS), [])


def test_the_vector_of_a_replaced_text_is_not_taken_for_that_text(tmp_path: Path) -> None:
    """A round that grew keeps its id: what it said before is embedded anew for whoever says it next."""
    with SQLiteVectorStore(tmp_path / "m.db", EMBEDDING) as store:
        generation = drive(store.records.begin("u1", "s1")).generation
        for text in ("human: hello", "human: hello\nai: hi"):
            document = Document(text, id="r1", metadata={"user_id": "u1", "session_id": "s1", "position": 1})
            drive(store.records.index("u1"))
            drive(store.records.write("u1", "s1", generation, [document], drive(store.records.embed([text]))))
        drive(store.records.index("u1"))
        _, looked = drive(store.records.read("u1", "s1"))
        assert looked is not None
        digests = [digest_of(text) for text in ("human: hello", "human: hello\nai: hi")]
        known = looked.begun(digests, [])
        assert known is not None
        assert list(known.vectors) == digests[1:]
