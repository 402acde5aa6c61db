"""Credentials are never printed: by no command, in no state of the server, with no mistake of the user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory

Memkit = Callable[..., Any]
USER, PASSWORD = "nemo-the-clownfish", "hunter2/:@s3a?#%"
SECRETS = ("clownfish", "hunter2", "s3a", quote(PASSWORD, safe=""), "hunter3", "wrong-pass")
NUMBERS = count()
COMMANDS = {
    "migrate from": ("migrate", "--from", "URI", "--to", "new.db"),
    "migrate to": ("migrate", "--from", "old.db", "--to", "URI"),
    "migrate back": ("migrate", "--from", "old.db", "--to", "URI", "--to-format", "langchain-mongodb"),
    "export": ("export", "-", "--from", "URI"),
    "import": ("import", "good.jsonl", "--to", "URI"),
    "purge": ("purge", "--user", "u1", "--in", "URI", "--yes"),
    "doctor": ("doctor", "URI"),
    "doctor --fix": ("doctor", "URI", "--fix"),
    "doctor --json": ("doctor", "URI", "--json"),
}


@pytest.fixture(scope="module")
def guarded_server(root_of_guarded_server: Any) -> str:
    """`host:port` of a real server that asks for a password; the user may read and write one database only."""
    root_of_guarded_server["chats"].command("createUser", USER, pwd=PASSWORD, roles=["readWrite"])
    host, port = root_of_guarded_server.address
    return f"{host}:{port}"


@pytest.fixture
def words(tmp_path: Path, memkit: Memkit) -> Callable[..., list[str]]:
    """The words of a command with a URI in it; its files are there."""
    SQLiteChatMessageHistory(tmp_path / "old.db", "s1").add_messages([HumanMessage("q"), AIMessage("a")])
    assert memkit("export", "good.jsonl", "--from", "old.db").exit_code == 0
    return lambda command, uri: [uri if word == "URI" else word for word in COMMANDS[command]]


def uri_of(host: str, user: str = USER, password: str = PASSWORD, more: str = "") -> str:
    """A connection string with credentials, and with a name that gets it a client of its own."""
    name = f"memkit-{next(NUMBERS)}"
    return f"mongodb://{quote(user, safe='')}:{quote(password, safe='')}@{host}/chats?appName={name}{more}"


def nothing_secret(text: str) -> None:
    """Fails if a part of the credentials stands in a text."""
    for secret in SECRETS:
        assert secret not in text, text


def cases(host: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Connection strings that lead to errors of many kinds, and the exit codes that fit."""
    return {
        "wrong": (uri_of(host, password="wrong-pass"), (1, 3)),
        "not quoted": (f"mongodb://{USER}:{PASSWORD}@{host}/chats", (1, 2)),
        "no port": (f"mongodb://{USER}:hunter2@{host}9999/chats", (1, 2)),
        "in options": (uri_of(host, more="&authMechanismProperties=AWS_SESSION_TOKEN:hunter3"), (0, 1, 2, 3)),
        "unknown option": (uri_of(host, more="&password=hunter3&w=hunter3"), (0, 1, 2, 3)),
    }


@pytest.mark.filterwarnings("default")  # the driver warns of options, with their values
@pytest.mark.parametrize("command", COMMANDS)
def test_never_in_errors(memkit: Memkit, words: Callable[..., list[str]], guarded_server: str, command: str) -> None:
    """Wrong passwords and strings that are no URI: nothing of them is printed, not even with --debug."""
    for name, (uri, codes) in cases(guarded_server).items():
        done = memkit(*words(command, uri), "--debug")
        assert done.exit_code in codes, (name, done.output)
        nothing_secret(done.output)
        nothing_secret(repr(done.exception))
        if not command.startswith("doctor"):  # which takes it there
            rest = [word for word in words(command, "") if word not in ("", "--from", "--to", "--in")]
            nothing_secret(memkit(*rest, uri).output)  # as a word too many, or in a wrong place


@pytest.mark.parametrize("command", ["migrate to", "doctor"])
def test_never_when_the_server_is_down(memkit: Memkit, words: Callable[..., list[str]], command: str) -> None:
    """A server that cannot be reached is named by its host; without --debug there is no traceback."""
    done = memkit(*words(command, uri_of("127.0.0.1:1")))
    assert done.exit_code in (1, 3)
    assert "127.0.0.1:1" in done.output
    assert "Traceback" not in done.output
    assert "Topology Description" not in done.output
    assert "refused" in done.output
    nothing_secret(done.output)


@pytest.mark.parametrize("command", COMMANDS)
def test_never_when_all_is_well(
    memkit: Memkit, words: Callable[..., list[str]], guarded_server: str, command: str
) -> None:
    """A command that works prints hosts, databases and collections, and no credentials."""
    uri = uri_of(guarded_server)
    memkit("import", "good.jsonl", "--to", uri)
    done = memkit(*words(command, uri))
    assert done.exit_code == 0, done.output
    nothing_secret(done.output)
    if command == "doctor":
        assert re.search(rf"ok    {guarded_server}: server: MongoDB [\d.]+, standalone", done.stdout)


def test_a_misspelled_command(memkit: Memkit) -> None:
    """A word that typer does not know is said without what is secret in it."""
    uri = uri_of("127.0.0.1:1")
    for line in (
        ["migrat", uri],
        [uri],
        ["--from", uri],
        [f"--from={uri}"],
        ["doctor", "--fixx", uri],
        ["import", uri],
    ):
        done = memkit(*line)
        assert done.exit_code == 2
        nothing_secret(done.output)


def test_from_the_environment(memkit: Memkit, guarded_server: str) -> None:
    """What stands in MEMKIT_URI is as secret, in a process of its own too, and in its --help."""
    env = {"MEMKIT_URI": uri_of(guarded_server, password="wrong-pass")}
    script = str(Path(sys.executable).parent / "memkit")
    alone = subprocess.run(
        [script, "doctor", "--debug"], capture_output=True, text=True, check=False, env=os.environ | env
    )
    said = [alone.stdout + alone.stderr]
    for line in (["purge", "--user", "u1", "--yes", "--debug"], ["migrate", "--help"]):
        done = memkit(*line, env=env)
        said.append(done.stdout + done.stderr)
    for text in said:
        nothing_secret(text)
    assert ["Authentication failed" in text for text in said] == [True, True, False]


def test_other_databases(memkit: Memkit, words: Callable[..., list[str]]) -> None:
    """URLs of SQLAlchemy are kept as secret, with and without their driver."""
    for scheme in ("postgresql", "mysql+nodriver", "nonsense", "sqlite"):
        url = f"{scheme}://{USER}:hunter2@127.0.0.1:1/chats?password=hunter3"
        done = memkit("migrate", "--from", url, "--to", "new.db", "--debug")
        assert done.exit_code in (2, 3), done.output
        nothing_secret(done.output)
