"""A file with a damaged page or index, cut off, or no database: what is shown is whole, or it is reported."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gatekit.files import PAGE, STYLES, attempt, quick_folder
from gatekit.systems import Place, config, echo, texts

from langchain_memkit.errors import HistoryReadError, HistoryWriteError

SESSIONS, TURNS = 4, 12


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not slowed down by what others write."""
    with quick_folder() as found:
        yield found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, system: Any) -> Path:
    """A file of four sessions, with long texts in some turns; all in the file, nothing in its log."""
    path = tmp_path_factory.mktemp("sound") / "chat.db"
    histories = system.histories(Place("sqlite", str(path)))
    chain = system.chain(echo, histories)
    for i in range(TURNS):
        for session in range(SESSIONS):
            chain.invoke(f"q{i} " + "x" * (4500 if i == 5 else 200), config(f"s{session}"))
    histories.close()
    return path


def read_damaged(system: Any, path: Path, said: list[str]) -> list[str]:
    """What each session is after damage: whole, in parts, refused; and what must not be."""
    histories = system.histories(Place("sqlite", str(path)))
    found = []
    for i in range(SESSIONS):
        history = histories(f"s{i}")
        try:
            view = asyncio.run(history.aview()) if i % 2 else history.view()
        except HistoryReadError as error:
            found.append("refused" if str(path) in str(error) and "backup" in str(error) else f"no advice: {error}")
            continue
        got = [message.text for message in view.messages]
        whole = got == said
        in_order = [text for text in said if text in set(got)] == got
        found.append("whole" if whole else "in parts" if view.problems and in_order else f"silent: {len(got)}")
        if i:
            continue
        try:
            history.append_turn(view.messages[:2], turn_id="new")
        except HistoryWriteError as error:
            found[-1] = found[-1] if str(path) in str(error) else f"no name: {error}"
    histories.close()
    return found


def zeros(page: bytes, chance: random.Random) -> bytes:
    """A page that was never written."""
    return bytes(len(page))


def torn(page: bytes, chance: random.Random) -> bytes:
    """A page of which the second half is something else."""
    return page[: len(page) // 2] + chance.randbytes(len(page) // 2)


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("damage", [zeros, torn], ids=lambda damage: damage.__name__)
def test_damaged_page(damage: Any, sound: Path, folder: Path, system: Any, figure: Any) -> None:
    """Whichever page is damaged: each session is whole, or reported, or refused by name and with advice."""
    data, chance = sound.read_bytes(), random.Random(0)
    said = texts(system.history(Place("sqlite", str(sound)), "s0"))
    found: list[str] = []
    for at in range(0, len(data), PAGE):
        path = folder / f"{at}.db"
        path.write_bytes(data[:at] + damage(data[at : at + PAGE], chance) + data[at + PAGE :])
        found += read_damaged(system, path, said)
    for end in (len(data) - PAGE // 2, len(data) - 1):  # within its last page: SQLite takes the rest for zeros
        (path := folder / f"{end}.db").write_bytes(data[:end])
        found += read_damaged(system, path, said)
    figure(f"sqlite: {damage.__name__}, sessions that lie", sum(":" in f for f in found), at_most=0)
    assert found.count("refused") >= SESSIONS, "no damage done"
    figure(f"sqlite: {damage.__name__}, sessions read all the same", found.count("whole") / len(found), at_least=0.2)


@pytest.mark.gate(row=3, memkit_only=True)
def test_damaged_index(sound: Path, folder: Path, system: Any) -> None:
    """An index that has lost one turn: it is reported as missing or refused, never left out in silence."""
    with sqlite3.connect(sound) as connection:
        where = "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_turns_1'"
        begin = (connection.execute(where).fetchone()[0] - 1) * PAGE
    connection.close()
    data = sound.read_bytes()
    said = texts(system.history(Place("sqlite", str(sound)), "s0"))
    entries = [i for i in range(begin, begin + PAGE) if data[i : i + 2] == b"s1"]
    assert len(entries) == TURNS, "the index is no longer one page: fewer turns, please"
    found = []
    for at in entries:
        path = folder / f"{at}.db"
        path.write_bytes(data[:at] + b"s9" + data[at + 2 :])
        found += read_damaged(system, path, said)
    assert [f for f in found if ":" in f] == []
    assert "in parts" in found


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("style", STYLES)
def test_cut_off_or_no_database(style: str, sound: Path, folder: Path, system: Any) -> None:
    """A file that was cut off anywhere, or is something else, is refused by name and with advice, and left as it is."""
    data = sound.read_bytes()
    contents = [data[:end] for end in range(PAGE // 2, len(data) - PAGE, 5 * PAGE + 77)]
    contents += [b"this is a letter, not a database. " * 200, b"\x89PNG\r\n\x1a\n" + bytes(5000), b"{}"]
    for i, content in enumerate(contents):
        path = folder / f"{i}.db"
        path.write_bytes(content)
        histories = system.histories(Place("sqlite", str(path)))
        failure = attempt(style, system.chain(echo, histories), "q", "t")
        assert failure is not None, f"{len(content)} bytes are taken for a database"
        assert failure.kind == "HistoryReadError"
        assert str(path) in failure.text
        assert "backup" in failure.text
        with pytest.raises(HistoryWriteError, match="backup"):
            histories("s1").clear()
        with pytest.raises(HistoryReadError, match="backup"):
            histories.list_sessions()
        assert path.read_bytes() == content
