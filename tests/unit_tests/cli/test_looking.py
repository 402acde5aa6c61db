"""`memkit list`, `show`, `search`, `stats`: what a file holds, as text and JSON; and what asks before it replaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory


@pytest.fixture
def reefs(tmp_path: Path) -> Path:
    """A file with conversations of two users and of nobody, one with a title."""
    path = tmp_path / "reefs.db"
    with SQLiteChatMessageHistory.factory(path) as histories:
        for user in ("dory", "nemo", None):
            for name in ("a", "b"):
                said = [HumanMessage(f"Where is reef {name}? \x1b[31mred"), AIMessage("East\nof here.")]
                histories(name, user).add_messages(said)
        histories.update_session("a", "nemo", title="Reefs", metadata={"folder": "sea"})
    return path


def test_list(memkit: Callable[..., Any], reefs: Path) -> None:
    """A line for each conversation, the newest first; pages by the cursor that JSON has."""
    shown = memkit("list", "--from", reefs, "--user", "nemo").stdout.splitlines()
    assert [line.split()[2:5] for line in shown[1:]] == [["nemo", "b", "1"], ["nemo", "a", "1"]]
    assert shown[2].endswith("Reefs")
    assert "\x1b" not in "".join(shown)
    everybody = memkit("list", "--from", reefs, "--json")
    assert [(one["user_id"], one["session_id"]) for one in json.loads(everybody.stdout)] == [
        ("", "b"), ("", "a"), ("dory", "b"), ("dory", "a"), ("nemo", "b"), ("nemo", "a")
    ]  # fmt: skip
    (first,) = json.loads(memkit("list", "--from", reefs, "--user", "nemo", "--limit", 1, "--json").stdout)
    assert first["updated_at"].count("T") == 1
    (second,) = json.loads(
        memkit("list", "--from", reefs, "--user", "nemo", "--before", first["cursor"], "--json").stdout
    )
    assert (second["title"], second["metadata"]) == ("Reefs", {"folder": "sea"})


def test_show(memkit: Callable[..., Any], reefs: Path) -> None:
    """A conversation with who said what; control characters do nothing; JSON has the messages whole."""
    shown = memkit("show", "a", "--from", reefs, "--user", "nemo")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")] == ["human", "ai"]
    assert "  Where is reef a? \\x1b[31mred" in lines
    assert lines[lines.index("  East") + 1] == "  of here."
    (last,) = json.loads(memkit("show", "a", "--from", reefs, "--user", "nemo", "--last", 1, "--json").stdout)
    assert (last["seq"], last["type"], last["data"]["content"]) == (1, "ai", "East\nof here.")
    owned_by_nobody = memkit("show", "a", "--from", reefs)
    assert owned_by_nobody.exit_code == 0
    missing = memkit("show", "a", "--from", reefs, "--user", "marlin")
    assert missing.exit_code == 2
    assert "holds no session 'a' of that user: memkit list" in missing.stderr


def test_search(memkit: Callable[..., Any], reefs: Path) -> None:
    """What a user said, or everybody; words may be given apart, and need not be whole."""
    shown = memkit("search", "where", "ree", "--from", reefs, "--user", "dory").stdout.splitlines()
    assert [line.split()[2:6] for line in shown[1:]] == [["dory", "b", "1", "human"], ["dory", "a", "1", "human"]]
    found = json.loads(memkit("search", "east", "--from", reefs, "--json").stdout)
    assert [one["user_id"] for one in found] == ["", "", "dory", "dory", "nemo", "nemo"]
    assert found[0]["message"]["data"]["content"] == "East\nof here."
    nothing = memkit("search", "submarine", "--from", reefs)
    assert (nothing.exit_code, len(nothing.stdout.splitlines())) == (0, 1)


def test_stats(memkit: Callable[..., Any], reefs: Path) -> None:
    """The numbers of each user."""
    found = json.loads(memkit("stats", "--from", reefs, "--json").stdout)
    assert [(one["user_id"], one["sessions"], one["turns"]) for one in found] == [
        ("", 2, 2), ("dory", 2, 2), ("nemo", 2, 2)
    ]  # fmt: skip
    assert memkit("stats", "--from", reefs).stdout.splitlines()[2].split()[:3] == ["dory", "2", "2"]


@pytest.fixture
def morning(tmp_path: Path) -> Path:
    """A file with a turn of a Tuesday morning in Sydney, when it was Monday in UTC."""
    path = tmp_path / "morning.db"
    with SQLiteChatMessageHistory.factory(path, now=lambda: datetime(2026, 3, 2, 21, 5, tzinfo=UTC)) as histories:
        histories("s1", "nemo").add_messages([HumanMessage("Good morning!"), AIMessage("Good morning!")])
    return path


@pytest.mark.parametrize(
    ("options", "day", "zone"),
    [
        ([], "2026-03-02 21:05", "UTC"),
        (["--timezone", "Australia/Sydney"], "2026-03-03 08:05", "Australia/Sydney"),
        (["--timezone", "America/Los_Angeles"], "2026-03-02 13:05", "America/Los_Angeles"),
    ],
)
def test_days_are_those_of_a_time_zone(
    memkit: Callable[..., Any], morning: Path, options: list[str], day: str, zone: str
) -> None:
    """Times are UTC, or of the zone that is named, and it is said which, in every list and in the report."""
    for command in (["list"], ["search", "morning"], ["stats"]):
        head, *rows = memkit(*command, "--from", morning, *options).stdout.splitlines()
        assert f"({zone})" in head
        assert rows
        assert all(day in row for row in rows)
    assert f"human  {day} {zone}  turn 1" in memkit("show", "s1", "--from", morning, "--user", "nemo", *options).stdout
    page = memkit("report", morning, "--user", "nemo", "-o", "-", *options).stdout
    assert f"Days and times are in {zone}." in page
    assert f"{day}</bdi></dd>" in page
    assert f"<small>{day[:10]}</small>" in page
    # What programs read is as it is stored.
    (one,) = json.loads(memkit("list", "--from", morning, "--json", *options).stdout)
    assert one["updated_at"] == "2026-03-02T21:05:00+00:00"


@pytest.mark.parametrize("command", [["list"], ["show", "s1"], ["search", "x"], ["stats"]])
def test_time_zones_that_are_none(memkit: Callable[..., Any], morning: Path, command: list[str]) -> None:
    """A wrong name is refused with a similar one, before anything is read."""
    refused = memkit(*command, "--from", morning, "--timezone", "Sydney")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no time zone is named 'Sydney'; did you mean 'Australia/Sydney'?" in refused.stderr


def test_export_asks_before_it_replaces(memkit: Callable[..., Any], reefs: Path, tmp_path: Path) -> None:
    """A file that is there is replaced after a yes, or with `--yes`; nobody to answer is a no."""
    file = tmp_path / "out.jsonl"
    file.write_text("mine\n")
    for answer in ("n\n", ""):
        asked = memkit("export", file, "--from", reefs, input=answer)
        assert (asked.exit_code, file.read_text()) == (2, "mine\n")
        assert "nothing was written" in asked.stderr
    assert memkit("export", file, "--from", reefs, input="y\n").exit_code == 0
    whole = file.read_text()
    assert whole.count("\n") == 8
    file.write_text("mine\n")
    assert memkit("export", file, "--from", reefs, "--yes").exit_code == 0
    assert file.read_text().count("\n") == 8


def test_doctor_says_first_what_was_asked(memkit: Callable[..., Any], reefs: Path) -> None:
    """The file comes before the machine."""
    lines = memkit("doctor", reefs).stdout.splitlines()
    assert str(reefs) in lines[0]
    assert lines[-1].startswith("ok    langchain-core")


INTERRUPTED = """
import sys
from langchain_memkit.cli import main
assert not any(name.startswith("langchain_core") for name in sys.modules), "loaded before Ctrl-C is handled"

class Finder:
    def find_spec(self, name, *rest):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
sys.exit(main(["doctor"]))
"""


def test_ctrl_c_while_it_loads() -> None:
    """Ctrl-C in the first second, in which libraries are loaded, is one line."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "memkit: interrupted: run the same command again\n"


def test_the_folder_of_the_user(
    memkit: Callable[..., Any], reefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~` is expanded where no shell does it: after `=`, and in an environment variable."""
    home = tmp_path / "home"
    home.mkdir()
    assert memkit("doctor", "./reefs.db").exit_code == 0
    reefs.rename(home / "reefs.db")
    monkeypatch.setenv("HOME", str(home))
    assert memkit("list", "--from=~/reefs.db").stdout.count("Where is reef") == 5
    monkeypatch.setenv("MEMKIT_URI", "~/reefs.db")
    assert "Reefs" in memkit("list").stdout
    assert memkit("doctor").exit_code == 0
    assert memkit("export", "~/out.jsonl").exit_code == 0
    assert memkit("report", "-o", "~/page.html").exit_code == 0
    assert memkit("migrate", "--to=~/new.db").exit_code == 0
    assert memkit("import", "~/out.jsonl", "--to=~/again.db").exit_code == 0
    assert memkit("purge", "--user", "dory", "--yes").exit_code == 0
    assert {file.name for file in home.iterdir()} >= {"out.jsonl", "page.html", "new.db", "again.db"}
    asked = memkit("export", "~/out.jsonl")
    assert (asked.exit_code, "Replace" in asked.stderr) == (2, True)
    assert memkit("export", "~/reefs.db", "--yes").exit_code == 2
    assert not (tmp_path / "~").exists()
