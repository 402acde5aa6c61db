"""Export and import: nothing is lost, a damaged file loses no more than its damage, and twice is once."""

from __future__ import annotations

import gzip
import inspect
import io
import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit import migrate as module
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.migrate import aexport_history, aimport_history, export_history, import_history, migrate
from langchain_memkit.migrate.jsonl import open_for_writing
from langchain_memkit.testing.langchain_histories import exchange, one_of_each
from testkit.examples import examples
from testkit.properties import SETTINGS, messages

WHEN = datetime(2025, 5, 5, 12, 30, 1, 250_000, tzinfo=UTC)


def fresh(**options: Any) -> Any:
    """An empty store."""
    return SQLiteChatMessageHistory.factory(":memory:", **options)


def sevens(found: list[BaseMessage]) -> int:
    """A counter by name, whose stored counts are trusted."""
    return 7 * len(found)


def everything(factory: Any) -> list[Any]:
    """All that is stored of every turn, hidden ones included."""
    found = []
    for owner in factory._store.run(factory._store.owners()):
        for session in factory._store.run(factory._store.sessions(owner, hidden=True)):
            history = factory(session.session_id, owner or None)
            turns, _ = history._store.run(history._page_forward(None, None, hidden=True))
            for t in turns:
                facts = (t.op, t.created_at, t.expires_at, t.is_deleted, t.tokens, t.messages, t.problems)
                found.append((owner, session.session_id, t.seq, *facts))
    return sorted(found, key=lambda turn: turn[:3])


@pytest.fixture
def store() -> Any:
    """Three sessions of two users and of nobody, with every message type, a turn id, a date and a hidden turn."""
    factory = fresh(now=lambda: WHEN)
    mine = factory("s1", "u1")
    mine.append_turn(exchange("first"), turn_id="t1")
    mine.add_messages(one_of_each())
    mine.append_turn(exchange("hidden\u2028\r\n line"), turn_id="t3")
    mine.delete_turn("turn:t3")
    mine.add_messages(exchange("last"))
    factory("s1", "u2").add_messages(exchange("another's"))
    factory("only hidden", "u2").append_turn(exchange("gone"), turn_id="t9")
    factory("only hidden", "u2").delete_turn("turn:t9")
    factory("s1").add_messages(exchange("nobody's"))
    return factory


@pytest.fixture
def file(store: Any, tmp_path: Path) -> Path:
    """Its export."""
    export_history(store, tmp_path / "all.jsonl", progress=False)
    return tmp_path / "all.jsonl"


def test_nothing_is_lost(store: Any, file: Path) -> None:
    """Users, sessions, order, ids, times, token counts, hidden turns: all is there again after an import."""
    target = fresh()
    report = import_history(target, file, progress=False)
    assert (report.sessions, report.turns, report.skipped) == (4, 7, [])
    assert everything(target) == everything(store)
    assert len(everything(target)) == 7
    assert target("s1", "u1").restore_turn("turn:t3")
    assert [m.text for m in target("s1", "u1").messages][-4:-2] == [
        "hidden\u2028\r\n line",
        "re: hidden\u2028\r\n line",
    ]


def test_export_of_an_import_is_the_export(store: Any, file: Path, tmp_path: Path) -> None:
    """The second export says line by line what the first one said."""
    target = fresh()
    import_history(target, file, progress=False)
    export_history(target, tmp_path / "again.jsonl", progress=False)
    one, two = (sorted(path.read_text().split("\n")[1:]) for path in (file, tmp_path / "again.jsonl"))
    assert one == two


def test_whatever_is_stored_comes_back() -> None:
    """Random batches of every message type: what a store takes comes back equal through a file."""

    @settings(SETTINGS, max_examples=examples(60))
    @given(st.lists(messages, min_size=1, max_size=3))
    def check(batch: list[BaseMessage]) -> None:
        source, target, text = fresh(), fresh(), io.StringIO()
        try:
            source(str(uuid4()), "u1").add_messages(batch)
        except HistoryWriteError:
            return
        export_history(source, text, progress=False)
        text.seek(0)
        assert import_history(target, text, progress=False).skipped == []
        assert everything(target) == everything(source)

    check()


def test_twice_is_once(store: Any, file: Path) -> None:
    """Importing again, or after the source was migrated, adds nothing."""
    target = fresh()
    for _ in range(2):
        import_history(target, file, progress=False)
    migrate(store, target, progress=False)
    assert everything(target) == everything(store)


def test_one_user(store: Any, file: Path, tmp_path: Path) -> None:
    """`user_id` filters, on the way out and on the way in."""
    report = export_history(store, tmp_path / "u1.jsonl", user_id="u1", progress=False)
    assert (report.sessions, report.turns) == (1, 4)
    assert {json.loads(line).get("user_id") for line in (tmp_path / "u1.jsonl").read_text().split("\n")[1:-2]} == {"u1"}
    target = fresh()
    import_history(target, file, user_id="u1", progress=False)
    assert everything(target) == [turn for turn in everything(store) if turn[0] == "u1"]


def test_dry_run_writes_nothing(file: Path, tmp_path: Path) -> None:
    """A dry run counts the same and creates no file."""
    target = SQLiteChatMessageHistory.factory(tmp_path / "new.db")
    report = import_history(target, file, dry_run=True, progress=False)
    assert (report.sessions, report.turns, report.dry_run) == (4, 7, True)
    assert not (tmp_path / "new.db").exists()


def test_cut_anywhere(store: Any, file: Path) -> None:
    """Of a file cut at any byte every whole turn arrives, the cut is named, and the whole file completes it."""
    whole = file.read_bytes()
    header = whole.index(b"\n") + 1
    stored = everything(store)
    for size in range(header, len(whole) - 1, 97):
        file.write_bytes(whole[:size])
        target = fresh()
        report = import_history(target, file, progress=False)
        assert report.turns == max(whole[:size].count(b"\n") - 1, 0)
        assert "cut off" in report.skipped[-1]
        assert report.skipped[-1].startswith(f"line {len(whole[:size].splitlines())}:")
        file.write_bytes(whole)
        import_history(target, file, progress=False)
        assert everything(target) == stored


DAMAGE: dict[str, Any] = {
    "no JSON": "{broken",
    "no object": "[1, 2]",
    "nested": "[" * 100_000,
    "no session": {"user_id": None, "op": "turn:x", "messages": [], "v": 1},
    "an operator": {"user_id": {"$ne": ""}, "session_id": "s", "op": "turn:x", "messages": [], "v": 1},
    "no op": {"user_id": None, "session_id": "s", "messages": [{"role": "human", "content": "x"}], "v": 1},
    "no messages": {"user_id": None, "session_id": "s", "op": "turn:x", "messages": "text", "v": 1},
    "no type": {"user_id": None, "session_id": "s", "op": "turn:x", "messages": [{"role": "os.system"}], "v": 1},
    "newer": {"user_id": None, "session_id": "s", "op": "turn:x", "messages": [], "v": 99},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.usefixtures("no_collection")
def test_damaged_lines_are_named(store: Any, file: Path, damage: Any) -> None:
    """A damaged line in the middle is named by its number; everything else arrives."""
    lines = file.read_text().split("\n")
    lines.insert(3, damage if isinstance(damage, str) else json.dumps(damage))
    file.write_text("\n".join(lines))
    target = fresh()
    report = import_history(target, file, progress=False)
    assert len(report.skipped) == 1
    assert report.skipped[0].startswith("line 4")
    assert everything(target) == everything(store)


def test_damaged_messages_leave_the_others(file: Path) -> None:
    """One damaged message costs itself, not its turn; dates and counts that are none are made anew."""
    line = {
        "user_id": "u7", "session_id": "s7", "op": "turn:t7", "created_at": "yesterday", "expires_at": 5,
        "messages": [{"role": "human", "content": "q"}, {"role": "human"}, {"role": "ai", "content": "a"}],
        "tokens": ["many"], "token_counter": "approximate", "v": 1,
    }  # fmt: skip
    file.write_text(file.read_text().replace('{"memkit": "end"', json.dumps(line) + '\n{"memkit": "end"'))
    target = fresh()
    report = import_history(target, file, progress=False)
    assert len(report.skipped) == 1
    assert report.skipped[0].startswith("line 9 message 1: not a valid human message")
    (turn,) = target("s7", "u7").iter_turns()
    assert [m.text for m in turn.messages] == ["q", "a"]
    assert turn.created_at is not None
    assert turn.tokens == [5, 6]


def test_bytes_that_are_no_text(store: Any, file: Path) -> None:
    """A line that is not UTF-8 is named, and costs no other."""
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"nobody's", b"nobody\xff\xfes", 1))
    target = fresh()
    report = import_history(target, file, progress=False)
    assert len(report.skipped) == 1
    assert "damaged (UnicodeEncodeError)" in report.skipped[0]
    assert everything(target) == [turn for turn in everything(store) if turn[0] != ""]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("", "first line"),
        ("{}", "first line"),
        ("{broken", "first line"),
        ('{"memkit": "export", "v": 2}', "newer memkit"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, first: str, said: str) -> None:
    """A file without our header, or of a newer version, is refused before anything is written."""
    (tmp_path / "x").write_text(first)
    target = fresh()
    with pytest.raises(ConfigurationError, match=said):
        import_history(target, tmp_path / "x", progress=False)
    assert everything(target) == []


def test_conflicts_are_named(file: Path) -> None:
    """A turn that is there with other content is named and left alone; the others are stored all the same."""
    target = fresh()
    target("s1", "u1").append_turn(exchange("not the same"), turn_id="t1")
    report = import_history(target, file, progress=False)
    assert len(report.skipped) == 1
    assert "turn:t1" in report.skipped[0]
    assert report.turns == 6
    assert [m.text for m in target("s1", "u1").messages][:2] == ["not the same", "re: not the same"]


def test_expiry_is_kept(tmp_path: Path) -> None:
    """A turn that was to expire expires on the same day, unless the target has a rule of its own; expired ones stay."""
    now = [datetime.now(UTC)]
    source = fresh(ttl=3600, now=lambda: now[0])
    source("s1").add_messages(exchange("soon gone"))
    export_history(source, tmp_path / "x", progress=False)
    plain, own = fresh(now=lambda: now[0]), fresh(ttl=60, now=lambda: now[0])
    for target in (plain, own):
        import_history(target, tmp_path / "x", progress=False)
    assert [t.expires_at - now[0] for f in (plain, own) for t in f("s1").iter_turns()] == [
        timedelta(hours=1),
        timedelta(minutes=1),
    ]
    now[0] += timedelta(hours=2)
    assert plain("s1").messages == []
    assert export_history(plain, tmp_path / "y", progress=False).turns == 0


def test_other_counter_counts_again(store: Any, file: Path) -> None:
    """Token counts of another counter are not trusted: messages are counted with the target's own."""
    target, moved = fresh(token_counter=sevens), fresh(token_counter=sevens)
    import_history(target, file, progress=False)
    migrate(store, moved, progress=False)
    for factory in (target, moved):
        assert {n for turn in everything(factory) for n in turn[7]} == {7}


def test_damaged_rows_of_the_store(store: Any, tmp_path: Path) -> None:
    """What the store itself cannot read is named in the report of the export; the rest is written."""
    with store._store._database.connection() as connection:
        connection.execute("UPDATE turns SET messages = '{broken' WHERE op = 'turn:t1'")
    report = export_history(store, tmp_path / "x", progress=False)
    assert report.turns == 6
    assert report.skipped == ["session 's1', turn 1: no list of messages"]
    assert import_history(fresh(), tmp_path / "x", progress=False).turns == 6


def test_file_is_the_owners_and_whole(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others cannot read the file; one that breaks off leaves the one before in its place and nothing else."""
    path = tmp_path / "all.jsonl"
    export_history(store, path, progress=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()

    def broken(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("langchain_memkit.migrate.jsonl.turn_line", broken)
    with pytest.raises(KeyboardInterrupt):
        export_history(store, path, progress=False)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["all.jsonl"]


def test_two_exports_to_one_file(tmp_path: Path) -> None:
    """Of two exports at once each is whole; the file is that of the last to end, and nothing stands beside it."""
    path = tmp_path / "all.jsonl"
    with open_for_writing(path) as first:
        first.write("fir")
        with open_for_writing(path) as second:
            second.write("second")
        assert path.read_text() == "second"
        first.write("st")
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["all.jsonl"]


def test_packed_by_name(store: Any, tmp_path: Path) -> None:
    """A name that ends in .gz is packed and unpacked; only its owner reads it."""
    path = tmp_path / "all.jsonl.gz"
    export_history(store, path, progress=False)
    assert gzip.decompress(path.read_bytes()).startswith(b'{"memkit": "export"')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    target = fresh()
    assert import_history(target, path, progress=False).skipped == []
    assert everything(target) == everything(store)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-200], lambda raw: raw[:-200] + b"\xff" * 200])
def test_damaged_compressed_files(store: Any, tmp_path: Path, damage: Any) -> None:
    """A compressed export that was cut off or damaged gives what stands before, and says so."""
    for i in range(200):
        store("long").add_messages(exchange(f"{i} {uuid4()}"))
    export_history(store, tmp_path / "x", progress=False)
    packed = io.BytesIO(damage(gzip.compress((tmp_path / "x").read_bytes())))
    with gzip.open(packed, "rt", encoding="utf-8", errors="surrogateescape") as text:
        report = import_history(fresh(), text, progress=False)
    assert report.turns > 50
    assert any("the compressed file is cut off or damaged" in line for line in report.skipped)
    assert report.skipped[-1].endswith("it was cut off")


def test_compressed_files_with_nothing_in_them(file: Path) -> None:
    """Where not even the first line can be read, the file is damaged, not something else."""
    packed = io.BytesIO(gzip.compress(file.read_bytes())[:12])
    with gzip.open(packed, "rt", encoding="utf-8") as text, pytest.raises(HistoryReadError, match="cut off or damaged"):
        import_history(fresh(), text, progress=False)


def with_a_long_line(file: Path, size: int) -> str:
    """The export with a turn of this size after its first one."""
    header, *rest = io.StringIO(file.read_text(encoding="utf-8"))
    long = {"session_id": "s9", "op": "t9", "messages": [{"role": "human", "content": ""}], "v": 1}
    empty = len(json.dumps(long)) + 1
    long["messages"] = [{"role": "human", "content": "x" * (size - empty)}]
    return "".join([header, rest[0], json.dumps(long) + "\n", *rest[1:]])


def test_lines_that_are_too_long(file: Path) -> None:
    """A line over the limit is left out and named with the option; the others come in; at the limit it is one."""
    for size, kept in ((5000, True), (5001, False), (5_000_000, False)):
        text = with_a_long_line(file, size)
        target = fresh()
        report = import_history(target, io.StringIO(text), max_line_bytes=5000, progress=False)
        assert bool(target("s9").messages) == kept
        said = "line 3: longer than 5,000 bytes, so left out: max_line_bytes= (memkit import --max-line) sets the limit"
        assert report.skipped == ([] if kept else [said])
        assert report.turns == import_history(fresh(), file, progress=False).turns + kept


def test_wide_characters_count_as_bytes(file: Path) -> None:
    """What is more in UTF-8 than it has characters is measured as it is in a file."""
    text = with_a_long_line(file, 4000).replace("x" * 3000, "\U0001f420" * 3000)
    target = fresh()
    report = import_history(target, io.StringIO(text), max_line_bytes=5000, progress=False)
    assert ("longer than" in report.skipped[0], target("s9").messages) == (True, [])
    import_history(target, io.StringIO(text), max_line_bytes=None, progress=False)
    assert target("s9").messages


def test_the_whole_is_too_large(file: Path) -> None:
    """More than the limit ends the import with the option's name; the next run goes on where it ended."""
    size = file.stat().st_size
    target = fresh()
    with pytest.raises(HistoryReadError, match=r"max_bytes= \(memkit import --max-size\)"):
        import_history(target, file, max_bytes=size - 1, progress=False)
    import_history(target, file, max_bytes=size, progress=False)
    whole = fresh()
    import_history(whole, file, max_bytes=None, progress=False)
    assert everything(target) == everything(whole)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "32", True])
@pytest.mark.parametrize("name", ["max_line_bytes", "max_bytes"])
def test_wrong_limits(file: Path, name: str, limit: Any) -> None:
    """What is no number of bytes is refused before anything is read."""
    with pytest.raises(ConfigurationError, match=name):
        import_history(fresh(), file, progress=False, **{name: limit})


UNPACKED = """
import gzip, resource, sys
from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.migrate import import_history
target = SQLiteChatMessageHistory.factory(":memory:")
target("s1").messages
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with gzip.open(sys.argv[1], "rt", encoding="utf-8", errors="surrogateescape", newline="\\n") as text:
    report = import_history(target, text, progress=False)
print(report.turns, len(report.skipped), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_small_file_that_unpacks_to_much(file: Path, tmp_path: Path) -> None:
    """A packed line of 200 MB is passed over: it is never in memory, and the turns beside it come in."""
    header, *rest = file.read_bytes().splitlines(keepends=True)
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb") as packed:
        packed.write(header + b'{"session_id": "s9", "op": "t9", "messages": [{"role": "human", "content": "')
        for _ in range(200):
            packed.write(b"x" * 2**20)
        packed.write(b'"}], "v": 1}\n' + b"".join(rest))
    assert bomb.stat().st_size < 2**20
    command = [sys.executable, "-c", UNPACKED, str(bomb)]
    turns, skipped, megabytes = map(int, subprocess.check_output(command, text=True).split())
    assert (turns, skipped) == (import_history(fresh(), file, progress=False).turns, 1)
    assert megabytes < 150


def test_dates_at_the_edge(store: Any, file: Path) -> None:
    """Dates that are none in UTC are left out, and their turns come in."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    lines[1] |= {"created_at": "0001-01-01T00:00:00+14:00", "expires_at": "9999-12-31T23:59:59-14:00"}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = fresh()
    report = import_history(target, file, progress=False)
    assert (report.turns, report.skipped) == (7, [])
    turns = [t for t in target(lines[1]["session_id"], lines[1]["user_id"]).iter_turns() if t.op == lines[1]["op"]]
    assert [t.expires_at for t in turns] == [None]


def test_unusable_paths(store: Any, tmp_path: Path) -> None:
    """A folder that is not there is an error of ours on both ways, with the path in it."""
    with pytest.raises(HistoryWriteError, match=r"cannot write .*nowhere"):
        export_history(store, tmp_path / "nowhere" / "x", progress=False)
    with pytest.raises(HistoryReadError, match=r"cannot read .*nowhere"):
        import_history(store, tmp_path / "nowhere" / "x", progress=False)


def test_into_a_device(store: Any) -> None:
    """What is no plain file, as a pipe or a terminal, is written in place."""
    assert export_history(store, "/dev/null", progress=False).turns == 7
    assert Path("/dev/null").is_char_device()


async def test_async_twins(store: Any, tmp_path: Path) -> None:
    """The async twins do the same beside the event loop."""
    target = fresh()
    assert (await aexport_history(store, tmp_path / "x", user_id="u2")).turns == 2
    assert (await aimport_history(target, tmp_path / "x", user_id="u2", progress=False)).turns == 2
    assert everything(target) == [turn for turn in everything(store) if turn[0] == "u2"]


def test_migration_keeps_hidden_turns_hidden(store: Any) -> None:
    """`migrate` moves soft-deleted turns as such: they are not shown, and can be restored."""
    target = fresh()
    migrate(store, target, progress=False)
    assert everything(target) == everything(store)
    assert target("only hidden", "u2").messages == []
    migrate(store, target, user_id="u3", progress=False)
    assert target("only hidden", "u3").messages == []


def test_more_than_a_page(tmp_path: Path) -> None:
    """Sessions of more turns than a page or a batch arrive whole and in order."""
    source, target = fresh(), fresh()
    said = [m for i in range(1_201) for m in (HumanMessage(f"q{i}"), AIMessage(f"a{i}"))]
    for begin in range(0, len(said), 2):
        source("s1").append_turn(said[begin : begin + 2])
    export_history(source, tmp_path / "x", progress=False)
    import_history(target, tmp_path / "x", progress=False)
    assert target("s1").messages == source("s1").messages
    assert [t.seq for t in target("s1").iter_turns()] == list(range(1, 1_202))


@pytest.mark.parametrize("name", ["migrate", "export_history", "import_history"])
def test_twins_take_the_same(name: str) -> None:
    """Every verb has an async twin with the same arguments."""
    sync, twin = (inspect.signature(getattr(module, found)) for found in (name, f"a{name}"))
    assert list(sync.parameters.values()) == list(twin.parameters.values())
    assert inspect.iscoroutinefunction(getattr(module, f"a{name}"))


@pytest.mark.parametrize("lines", [["{}"], iter(["{}"]), 5])
def test_lines_are_no_file(tmp_path: Path, lines: Any) -> None:
    """Lines in place of a file are refused with what to give."""
    factory = SQLiteChatMessageHistory.factory(tmp_path / "empty.db")
    with pytest.raises(ConfigurationError, match=r"a path or a file opened for text, as io\.StringIO"):
        import_history(factory, lines, progress=False)


def test_what_is_no_factory(tmp_path: Path) -> None:
    """Arguments in the wrong order, or a path for a store, are named before anything is read or written."""
    histories, path = fresh(), str(tmp_path / "chat.jsonl")
    wrong: Any = path
    for call in (
        lambda: export_history(wrong, histories, progress=False),
        lambda: import_history(wrong, histories, progress=False),
        lambda: migrate(histories, wrong, progress=False),
    ):
        with pytest.raises(ConfigurationError, match="must be a factory"):
            call()
    histories.close()
    assert not [*tmp_path.iterdir()]
