"""Histories that langchain-community's real classes wrote, moved in: SQL tables and JSON files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from sqlalchemy.ext.asyncio import create_async_engine

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.backends.sqlite.inspection import MessageTable
from langchain_memkit.errors import ConfigurationError, HistoryReadError, MissingExtraError
from langchain_memkit.migrate import langchain_file_source, langchain_sql_source, langgraph_source, migrate

TALK: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("q1 🐠"),
    AIMessage("", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}], id="run-1"),
    ToolMessage("r1", tool_call_id="c1"),
    AIMessage("a1", response_metadata={"model": "m"}),
    HumanMessage("q2"),
    AIMessage("a2"),
]
SHAPES = [["system", "human", "ai", "tool", "ai"], ["human", "ai"]]
# What the real classes write; a test below compares it with them, where they can be imported.
TABLE = "CREATE TABLE message_store ( id INTEGER NOT NULL, session_id TEXT, message TEXT, PRIMARY KEY (id) )"
WRITTEN = [message_to_dict(message) for message in TALK]


@pytest.fixture
def peer(community: Any) -> Any:
    """The real class, on a file."""

    def history(file: Path, session: str = "s1", **options: Any) -> Any:
        return community.SQLChatMessageHistory(session, connection=f"sqlite:///{file}", **options)

    return history


def unnamed(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Messages without the ids that were made for them."""
    return [
        m.model_copy(update={"id": None}) if str(m.id).partition("-")[0] in ("sql", "file") else m for m in messages
    ]


def shapes(history: Any) -> list[list[str]]:
    """The types of the messages, turn by turn."""
    return [[m.type for m in turn.messages] for turn in history.iter_turns()]


@pytest.fixture
def store(tmp_path: Path, peer: Any) -> Path:
    """A file that the real class wrote: two sessions, their rows mixed."""
    file = tmp_path / "community.db"
    one, two = peer(file), peer(file, "s2")
    one.add_messages(TALK[:4])
    two.add_message(HumanMessage("another"))
    one.add_messages(TALK[4:])
    one.engine.dispose()
    two.engine.dispose()
    return file


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """Where it goes."""
    return SQLiteChatMessageHistory.factory(tmp_path / "memkit.db")


@pytest.mark.parametrize("url", ["{}", "sqlite:///{}", "sqlite+aiosqlite:///{}", "sqlite+pysqlite:///{}"])
def test_sql_rows_become_turns(store: Path, target: Any, url: str) -> None:
    """Every session arrives in order and in whole turns, by the file's name or its URL, through SQLAlchemy as well."""
    before = hashlib.sha256(store.read_bytes()).hexdigest()
    report = migrate(langchain_sql_source(url.format(store)), target, progress=False)
    assert (report.sessions, report.turns, report.messages, report.skipped) == (2, 3, 8, [])
    assert unnamed(target("s1").messages) == TALK
    assert shapes(target("s1")) == SHAPES
    assert [m.text for m in target("s2").messages] == ["another"]
    assert hashlib.sha256(store.read_bytes()).hexdigest() == before


def test_table_and_file_are_what_the_classes_write(store: Path, folder: Path) -> None:
    """What the next test moves is what langchain-community writes."""
    connection = sqlite3.connect(store)
    (table,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'message_store'").fetchone()
    rows = connection.execute("SELECT message FROM message_store WHERE session_id = 's1' ORDER BY id").fetchall()
    connection.close()
    assert " ".join(table.split()) == TABLE
    assert [json.loads(message) for (message,) in rows] == WRITTEN
    assert json.loads((folder / "s1.json").read_text()) == WRITTEN


def test_data_moves_after_the_classes_are_gone(tmp_path: Path, target: Any) -> None:
    """Tables and files move in where langchain-community can no longer be imported: its data is enough."""
    connection = sqlite3.connect(tmp_path / "community.db")
    connection.execute(TABLE)
    rows = [("s1", json.dumps(message)) for message in WRITTEN]
    connection.executemany("INSERT INTO message_store (session_id, message) VALUES (?, ?)", rows)
    connection.commit()
    connection.close()
    (tmp_path / "s2.json").write_text(json.dumps(WRITTEN))
    for source in (langchain_sql_source(tmp_path / "community.db"), langchain_file_source(tmp_path / "s2.json")):
        assert migrate(source, target, progress=False).messages == 7
    assert [unnamed(target(session).messages) for session in ("s1", "s2")] == [TALK, TALK]
    assert [shapes(target(session)) for session in ("s1", "s2")] == [SHAPES, SHAPES]


async def test_rows_of_the_async_class(tmp_path: Path, target: Any, community: Any) -> None:
    """The class in its async mode writes the same table."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}")
    await community.SQLChatMessageHistory("s1", connection=engine).aadd_messages(TALK)
    await engine.dispose()
    report = await asyncio.to_thread(migrate, langchain_sql_source(tmp_path / "async.db"), target, user_id="u1")
    assert report.messages == 7
    assert unnamed(target("s1", "u1").messages) == TALK


def test_sql_twice_is_once(store: Path, target: Any, tmp_path: Path) -> None:
    """A second run adds nothing; ids made for messages without one are the same in another target."""
    for _ in range(2):
        migrate(langchain_sql_source(store), target, progress=False)
    ids = [m.id for m in target("s1").messages]
    assert len(ids) == len(set(ids)) == 7
    assert ids[2] == "run-1"
    other = SQLiteChatMessageHistory.factory(tmp_path / "other.db")
    migrate(langchain_sql_source(f"sqlite+pysqlite:///{store}"), other, progress=False)
    assert [m.id for m in other("s1").messages] == ids


@pytest.mark.parametrize("more", [[AIMessage("re: another")], [HumanMessage("and"), AIMessage("so on")]])
def test_what_came_since_is_added(store: Path, target: Any, more: list[BaseMessage], peer: Any) -> None:
    """An answer that came to a question moved before, or a further question, is added by the next runs, once."""
    migrate(langchain_sql_source(store), target, progress=False)
    old = peer(store, "s2")
    for message in more:
        old.add_message(message)
        for _ in range(2):
            report = migrate(langchain_sql_source(store), target, progress=False)
            assert report.skipped == []
    assert unnamed(target("s2").messages) == old.messages
    assert len(target("s1").messages) == 7
    old.engine.dispose()


def test_row_ids_used_again(store: Path, target: Any, peer: Any) -> None:
    """SQLite hands out the ids of deleted rows again: what is said after a clear is another conversation."""
    migrate(langchain_sql_source(store), target, progress=False)
    peers = [peer(store, session) for session in ("s1", "s2")]
    for old in peers:
        old.clear()
    for old in peers:
        old.add_messages([SystemMessage("Be long."), HumanMessage("from the beginning")])
        old.engine.dispose()
    report = migrate(langchain_sql_source(store), target, progress=False)
    assert report.skipped == []
    assert [m.text for m in target("s2").messages] == ["another", "Be long.", "from the beginning"]
    assert [m.text for m in target("s1").messages][-2:] == ["Be long.", "from the beginning"]


def test_another_turn_in_the_same_row(store: Path, target: Any, peer: Any) -> None:
    """Begun again with the very line that stood in that row before, a turn is a conflict: named, and nothing mixed."""
    migrate(langchain_sql_source(store), target, progress=False)
    for session in ("s2", "s1"):
        old = peer(store, session)
        old.clear()
        old.engine.dispose()
    old = peer(store)
    old.add_messages([TALK[0], HumanMessage("something else")])
    old.engine.dispose()
    report = migrate(langchain_sql_source(store), target, progress=False)
    assert [m.text for m in target("s1").messages] == [m.text for m in TALK]
    assert len(report.skipped) == 1
    assert "with other messages" in report.skipped[0]


@pytest.mark.parametrize("through", ["sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_odd_names_are_names(tmp_path: Path, target: Any, through: str, peer: Any, community: Any) -> None:
    """Names of tables and columns are quoted, whatever they hold."""
    table, column = 'odd "table"; DROP TABLE x; --', 'whose "chat" %s'
    base = sqlalchemy.orm.declarative_base()

    class Message(base):  # type: ignore[misc,valid-type]  # made at run time
        __tablename__ = table
        id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)
        message = sqlalchemy.Column(sqlalchemy.Text)
        owner = sqlalchemy.Column(column, sqlalchemy.Text)

    class Converter(community.BaseMessageConverter):
        def from_sql_model(self, sql_message: Any) -> BaseMessage:
            return messages_from_dict([json.loads(sql_message.message)])[0]

        def to_sql_model(self, message: BaseMessage, session_id: str) -> Any:
            return Message(owner=session_id, message=json.dumps(message_to_dict(message)))

        def get_sql_model_class(self) -> Any:
            return Message

    old = peer(tmp_path / "odd.db", session_id_field_name="owner", custom_message_converter=Converter())
    old.add_messages(TALK)
    old.engine.dispose()
    source = langchain_sql_source(through.format(tmp_path / "odd.db"), table, column)
    assert migrate(source, target, progress=False).messages == 7
    assert unnamed(target("s1").messages) == TALK


@pytest.mark.parametrize("through", ["sqlite:///{}", "sqlite+pysqlite:///{}"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nope",), "no table 'nope'; its tables: 'message_store'"),
        (("message_store", "user"), "no column 'user'; its columns: id, session_id, message"),
    ],
)
def test_wrong_names_are_named(store: Path, target: Any, through: str, arguments: Any, said: str) -> None:
    """A table or column that is not there is an error that lists those that are."""
    with pytest.raises(ConfigurationError, match=said):
        migrate(langchain_sql_source(through.format(store), *arguments), target, progress=False)


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("nowhere.db", ConfigurationError, "there is no file"),
        ("sqlite+pysqlite:////no/such/folder/x.db", HistoryReadError, "OperationalError"),
        ("sqlite+aiosqlite:///x.db?timeout=5", ConfigurationError, "names an async driver"),
        ("sqlite+aiosqlite:///file:x.db?uri=true&wer=geheim", ConfigurationError, "names an async driver"),
        ("oracle+nothing://wer:geheim@localhost/db", ConfigurationError, "driver"),
        ("no url://wer:geheim@localhost", ConfigurationError, "URL"),
    ],
)
def test_unreachable_databases(target: Any, url: str, error: type[Exception], said: str) -> None:
    """What cannot be opened says so, and no password is in the text."""
    with pytest.raises(error, match=said) as raised:
        migrate(langchain_sql_source(url), target, progress=False)
    assert "geheim" not in str(raised.value)
    assert "wer" not in str(raised.value)


def test_not_a_database(tmp_path: Path, target: Any) -> None:
    """A file of another kind is a read error, not a traceback of the driver."""
    (tmp_path / "x.db").write_text("this is no database at all, and it is long enough to be looked at" * 20)
    with pytest.raises(HistoryReadError, match="not a database"):
        migrate(langchain_sql_source(tmp_path / "x.db"), target, progress=False)


@pytest.mark.parametrize("through", ["sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_damaged_rows_are_reported(store: Path, target: Any, through: str) -> None:
    """Rows that are no messages and sessions that are no ids are named; the rest moves."""
    good = json.dumps(message_to_dict(HumanMessage("good")))
    bad = ["{broken", None, "[]", '{"type": "os.system", "data": {"content": "x"}}', '"text"']
    connection = sqlite3.connect(store)
    rows = [("s9", good), *(("s9", text) for text in bad), ("s9", good), (None, good), ("", good)]
    connection.executemany("INSERT INTO message_store (session_id, message) VALUES (?, ?)", rows)
    connection.commit()
    connection.close()
    report = migrate(langchain_sql_source(through.format(store)), target, progress=False)
    assert [m.text for m in target("s9").messages] == ["good", "good"]
    assert sum("'s9', row" in line for line in report.skipped) == len(bad)
    assert [line.partition(":")[0] for line in report.skipped if "row" not in line] == ["session None", "session ''"]
    assert report.messages == 10


def test_into_the_same_file(store: Path, peer: Any) -> None:
    """The tables of both packages stand side by side in one file."""
    old = peer(store, "s3")
    old.add_messages(TALK)  # which is still being read while s1 is written
    with SQLiteChatMessageHistory.factory(store, timeout=0.5) as target:
        migrate(langchain_sql_source(store), target, progress=False)
        assert [unnamed(target(session).messages) for session in ("s1", "s3")] == [TALK, TALK]
    assert old.messages == TALK
    old.engine.dispose()


def test_opened_for_reading_only(store: Path) -> None:
    """The file of the other package cannot be changed through the connection that reads it."""
    table = MessageTable(store, "message_store", "session_id")
    with pytest.raises(HistoryReadError, match="readonly"), table._opened() as connection:
        connection.execute("DELETE FROM message_store")
    assert table.count() == 8


def test_dry_run_leaves_no_file(store: Path, target: Any, tmp_path: Path) -> None:
    """A dry run counts and does not even create the target's file."""
    report = migrate(langchain_sql_source(store), target, dry_run=True, progress=False)
    assert (report.turns, report.messages, report.dry_run) == (3, 8, True)
    assert not (tmp_path / "memkit.db").exists()


def test_bar_knows_the_size(store: Path, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress bar is told how many rows there are, and moves by as many."""
    from contextlib import contextmanager

    moved: list[int] = []

    @contextmanager
    def bar(wanted: bool, what: str, total: int | None) -> Any:
        assert (wanted, what, total) == (True, "migrating", 8)
        yield moved.append

    monkeypatch.setattr("langchain_memkit.migrate.transfer.progress_bar", bar)
    migrate(langchain_sql_source(store), target)
    assert sum(moved) == 8


# -- files


@pytest.fixture
def folder(tmp_path: Path, community: Any) -> Path:
    """Two files that the real class wrote, and things that are none of its."""
    folder = tmp_path / "histories"
    folder.mkdir()
    community.FileChatMessageHistory(str(folder / "s1.json")).add_messages(TALK)
    community.FileChatMessageHistory(str(folder / "s2.json"), ensure_ascii=False, encoding="utf-8").add_messages(
        [HumanMessage("Grüße 🐠")]
    )
    community.FileChatMessageHistory(str(folder / "empty.json"))
    (folder / "notes.txt").write_text("not a history")
    (folder / ".hidden").write_text("nor this")
    (folder / "deeper").mkdir()
    return folder


def test_files_become_sessions(folder: Path, target: Any) -> None:
    """Each file of a folder is a session by its name; other files are named in the report; twice is once."""
    for _ in range(2):
        report = migrate(langchain_file_source(folder), target, progress=False)
        assert (report.sessions, report.messages) == (4, 8)
        assert report.skipped == ["session 'notes', file notes.txt: it is no list of messages"]
    assert unnamed(target("s1").messages) == TALK
    assert shapes(target("s1")) == SHAPES
    assert [m.text for m in target("s2").messages] == ["Grüße 🐠"]


def test_one_file(folder: Path, target: Any, community: Any) -> None:
    """A single file can be given as well; what is said there later is added."""
    file = folder / "s2.json"
    migrate(langchain_file_source(file), target, user_id="u1", progress=False)
    community.FileChatMessageHistory(str(file), encoding="utf-8").add_message(AIMessage("Gleichfalls"))
    migrate(langchain_file_source(file), target, user_id="u1", progress=False)
    assert [m.text for m in target("s2", "u1").messages] == ["Grüße 🐠", "Gleichfalls"]
    assert target.list_sessions() == []


def test_cut_off_file_gives_what_is_whole(folder: Path) -> None:
    """The class does not write atomically: of a file cut anywhere every whole message is moved, and the cut is said."""
    file = folder / "s1.json"
    whole = file.read_bytes()
    lengths = []
    for size in range(0, len(whole), 7):
        file.write_bytes(whole[:size])
        target = SQLiteChatMessageHistory.factory(":memory:")
        report = migrate(langchain_file_source(file), target, progress=False)
        moved = unnamed(target("s1").messages)
        assert moved == TALK[: len(moved)]
        assert len(report.skipped) == 1
        lengths.append(len(moved))
    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(8))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, null]", b"\xff\xfe[]", b"[" * 100_000, b'["\\ud800"]'])
@pytest.mark.usefixtures("no_collection")
def test_odd_files_are_reported(tmp_path: Path, target: Any, content: bytes) -> None:
    """Files of other kinds stop nothing."""
    (tmp_path / "odd.json").write_bytes(content)
    report = migrate(langchain_file_source(tmp_path / "odd.json"), target, progress=False)
    assert report.messages == 0
    assert report.skipped


def test_ids_that_are_none(tmp_path: Path, target: Any) -> None:
    """Messages whose id is no text are named, and numbers become text; the messages beside them move."""
    items = [
        {"type": "human", "data": {"content": f"q{i}", "id": name}} for i, name in enumerate(["\ud800", {}, 5, "x"])
    ]
    (tmp_path / "odd.json").write_text(json.dumps(items))
    report = migrate(langchain_file_source(tmp_path / "odd.json"), target, progress=False)
    assert [(m.content, m.id) for m in target("odd").messages] == [("q2", "5"), ("q3", "x")]
    assert [line.partition(": ")[2] for line in report.skipped] == [
        "its id is no UTF-8",
        "its id is no text but a dict",
    ]


def test_two_files_of_one_name(folder: Path, target: Any) -> None:
    """Two files that would be one session are not mixed: the second is named."""
    (folder / "s1.txt").write_bytes((folder / "s2.json").read_bytes())
    report = migrate(langchain_file_source(folder), target, progress=False)
    assert "session 's1', file s1.txt: left out: s1.json is the same session" in report.skipped
    assert unnamed(target("s1").messages) == TALK


def test_no_such_folder(tmp_path: Path) -> None:
    """A path that is not there is an error at once."""
    with pytest.raises(ConfigurationError, match="no file or folder"):
        langchain_file_source(tmp_path / "nowhere")


@pytest.mark.parametrize("source", [None, "chat.db", 5, lambda: None])
def test_something_else_is_no_source(target: Any, source: Any) -> None:
    """A source that is none is refused with the names of those that are."""
    with pytest.raises(ConfigurationError, match="langchain_sql_source"):
        migrate(source, target, progress=False)


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("sqlalchemy", "sql", lambda target: migrate(langchain_sql_source("mysql://h/d"), target, progress=False)),
        ("ormsgpack", "langgraph", lambda target: langgraph_source("x.db")),
        ("pymongo", "mongodb", lambda target: langgraph_source("mongodb://h")),
    ],
)
def test_missing_extras_are_named(
    target: Any, monkeypatch: pytest.MonkeyPatch, package: str, extra: str, use: Any
) -> None:
    """A source whose extra is not installed says what to install."""
    for name in list(sys.modules):
        if name == package or name.startswith((f"{package}.", "langchain_memkit.backends.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"langchain-memkit\[{extra}\]"):
        use(target)


def test_importing_brings_no_driver() -> None:
    """The package of moves loads drivers when they are used."""
    drivers = "{'pymongo', 'sqlalchemy', 'ormsgpack', 'rich'}"
    code = f"import sys, langchain_memkit.migrate; print({drivers} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
