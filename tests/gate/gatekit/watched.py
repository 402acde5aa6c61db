"""A process that reads a world through every public way, and notes what that imports, runs and opens."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gatekit.stored_code import CANARY, SECRET, TRAP, World, find_nemo
from gatekit.systems import config
from langchain_memkit import EntityMemory, KeyValueMemory, SQLiteChatMessageHistory, explain_turn
from langchain_memkit.errors import MemkitError
from langchain_memkit.migrate import (
    export_history,
    import_history,
    langchain_file_source,
    langchain_sql_source,
    langgraph_source,
    migrate,
)
from langchain_memkit.testing import FakeChatModel

WATCHED = (
    "import", "exec", "compile", "open", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.putenv",
    "subprocess.Popen", "pickle.find_class", "marshal.loads", "code.__new__", "ctypes.dlopen",
)  # fmt: skip
DIARIES = "Diary 0, Diary 1 and Diary 2"
AGO = {"input": f"What did Nemo say, and what is in {DIARIES}?"}


class Seen(NamedTuple):
    """What one way of reading gave: text of what was read or raised, and whether what was raised is ours."""

    text: str
    failed: bool
    typed: bool


class Outcome(NamedTuple):
    """What reading a hostile world came to."""

    ways: dict[str, Seen]
    harmless: dict[str, Seen]
    logged: str
    beyond: list[str]  # events that the harmless world did not cause
    events: int  # that it did
    fields: list[Any]  # of messages that were stored through the front door
    sprung: bool


def readings(world: World) -> dict[str, Callable[[], Any]]:
    """Every public way to read what is stored."""
    store, vectors = world.key_values(), world.vectors(world.histories())
    entries = KeyValueMemory.factory(store)("s1", "u1")
    entities = EntityMemory.factory(world.histories(), find_nemo)("s2", "u1")
    remembered = vectors("s2", "u1")
    checkpoints = {"database_name": world.database} if world.kind == "mongodb" else {}
    where = world.uri if world.kind == "mongodb" else world.folder / "checkpoints.db"
    found: dict[str, Callable[[], Any]] = {
        **_of_histories(world.histories(), "", world),
        "key values": lambda: (keys := list(store.yield_keys()), store.mget(keys)),
        "entries": lambda: (entries.titles(), entries.match(DIARIES), entries.load(DIARIES)),
        "entities": lambda: (entities.entities(), entities.load("Who is Nemo?"), asyncio.run(entities.aload("Nemo"))),
        "records": lambda: (remembered.load("Nemo says"), asyncio.run(remembered.aload("Nemo"))),
        "hits": lambda: (remembered.search("Nemo says", k=30), asyncio.run(remembered.asearch("Nemo", k=30))),
        "indexes": lambda: world.vectors(world.histories())("s1", "u1").index(progress=False),
        "chain": lambda: (given := [], world.chain(given).invoke(AGO, config("s1", "u1"))),
        "async chain": lambda: (given := [], asyncio.run(world.chain(given).ainvoke(AGO, config("s1", "u1")))),
        "explain": lambda: (
            told := explain_turn(world.chain([], FakeChatModel()), AGO, config("s1", "u1")),
            told.messages,
            told.to_dict(),
        ),
        "checkpoints": lambda: _moved(lambda to: migrate(langgraph_source(where, **checkpoints), to, progress=False)),
    }
    if world.kind == "mongodb":
        found |= _of_histories(world.histories(layout="langchain"), "langchain: ", world)
        found |= _of_histories(world.histories(layout="qa", collection_name="pairs"), "qa: ", world)
        return found
    files, table = langchain_file_source(world.folder / "messages"), langchain_sql_source(world.folder / "community.db")
    found["lines"] = lambda: _moved(lambda to: import_history(to, world.folder / "lines.jsonl", progress=False))
    found["files"] = lambda: _moved(lambda to: migrate(files, to, progress=False))
    found["tables"] = lambda: _moved(lambda to: migrate(table, to, progress=False))
    return found


def _of_histories(histories: Any, name: str, world: World) -> dict[str, Callable[[], Any]]:
    users = {"": ["u1", None], "langchain: ": [None], "qa: ": ["u1"]}[name] if world.kind == "mongodb" else ["u1"]
    found = {
        "messages": lambda h: h.messages,
        "async": lambda h: asyncio.run(h.aget_messages()),
        "tail": lambda h: h.tail(max_tokens=500),
        "view": lambda h: h.view(),
        "turns": lambda h: list(h.iter_turns()),
        "questions": lambda h: h.last_questions(50),
        "ids": lambda h: h.stored_ids(["m"]),
    }
    if name:  # what differs between the layouts
        found = {way: found[way] for way in ("messages", "view", "turns")}
    ways = {
        f"{name}{way} of {user}": lambda read=read, user=user: read(histories("s1", user))
        for way, read in found.items()
        for user in users
    }
    ways[f"{name}sessions"] = lambda: [histories.list_sessions(user) for user in users]
    ways[f"{name}export"] = lambda: _exported(histories)
    ways[f"{name}migrate"] = lambda: _moved(lambda to: migrate(histories, to, progress=False))
    return ways


def _exported(histories: Any) -> tuple[str, Any]:
    file = io.StringIO()
    report = export_history(histories, file, progress=False)
    return file.getvalue(), report


def _moved(move: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What was moved into an empty history, and the report."""
    target = SQLiteChatMessageHistory.factory(":memory:")
    report = move(target)
    sessions = [(user, found.session_id) for user in (None, "u1") for found in target.list_sessions(user)]
    return report, [target(session, user).messages for user, session in sessions]


def look(world: World) -> dict[str, Seen]:
    """Reads all of it."""
    seen = {}
    for way, read in readings(world).items():
        try:
            seen[way] = Seen(repr(read()), failed=False, typed=True)
        except Exception as error:  # whatever it is, it is shown
            text = f"{error!r} {error} {''.join(traceback.format_exception(error))}"
            seen[way] = Seen(text, failed=True, typed=isinstance(error, MemkitError))
    return seen


class Watch:
    """Notes events. A hook cannot be taken away, so it belongs into a process that ends."""

    def __init__(self, world: World) -> None:
        self.events: list[str] = []
        self.own = (str(world.folder), world.database)
        sys.addaudithook(self.hear)

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        """Called for every event."""
        if event in WATCHED:
            what = getattr(given[0], "co_filename", None) or repr(given[0])
            for name in self.own:
                what = what.replace(name, "WORLD")
            self.events.append(f"{event} {what:.200}")


def read_under_watch(harmless: World, hostile: World, pipe: Any) -> None:
    """Reads the harmless world twice, the second time under watch; when told, the hostile one; sends an `Outcome`."""
    warnings.simplefilter("ignore")
    os.environ[CANARY] = SECRET
    sys.path.append(str(hostile.folder))
    os.chdir(hostile.folder)  # where a command would leave its file
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.DEBUG, force=True)
    logging.getLogger("pymongo").setLevel(logging.WARNING)
    look(harmless)
    watch = Watch(harmless)
    calm = look(harmless)
    expected = set(watch.events)
    pipe.send("ready")
    pipe.recv()
    watch.events.clear()
    watch.own = (str(hostile.folder), hostile.database)
    ways = look(hostile)
    beyond = sorted(set(watch.events) - expected)
    fields: list[Any] = []
    for message in hostile.histories()("fields", "u1").messages:
        fields += [message.additional_kwargs, message.response_metadata, getattr(message, "artifact", None)]
        fields += [message.content, [call["args"] for call in getattr(message, "tool_calls", [])]]
    sprung = (hostile.folder / "sprung").exists() or TRAP in sys.modules
    pipe.send(Outcome(ways, calm, log.getvalue(), beyond, len(expected), fields, sprung))


def set_trap(folder: Path) -> None:
    """A module that shows if it is imported."""
    (folder / f"{TRAP}.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('sprung').touch()\nBoom = dict\n"
    )
