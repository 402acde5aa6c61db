"""The console script itself, in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory

SCRIPT = Path(sys.executable).parent / "memkit"
NO_EXTRA = """
import sys
sys.modules["{name}"] = None  # as if it were not installed
from langchain_memkit.cli import main
sys.exit(main(["--version"]))
"""


def run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the installed script."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMKIT_")}
    command = [str(SCRIPT), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)  # type: ignore[call-overload,no-any-return]  # as given


def test_through_a_pipe(full: Path, tmp_path: Path) -> None:
    """What is exported to stdout is imported from stdin."""
    exported = run("export", "-", "--from", full)
    assert (exported.returncode, exported.stdout.count("\n")) == (0, 8)
    assert "exported" in exported.stderr
    imported = run("import", "-", "--to", tmp_path / "new.db", input=exported.stdout)
    assert (imported.returncode, imported.stdout.splitlines()[2]) == (0, "turns     6")


def test_without_the_extra() -> None:
    """Where the extra is not installed the script says how to install it."""
    done = subprocess.run(
        [sys.executable, "-c", NO_EXTRA.format(name="typer")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == 'memkit: the command line needs an extra: pip install "langchain-memkit[cli]"\n'


ONLY_THE_EXTRA = """
import sys
for name in "pymongo bson numpy Stemmer spacy sqlalchemy ormsgpack rapidfuzz langgraph langchain".split():
    sys.modules[name] = None  # as if it were not installed
from langchain_memkit.cli import main
print(main(["migrate", "--from", "full.db", "--to", "new.db"]), main(["doctor", "new.db"]))
print(main(["migrate", "--from", "mongodb://h", "--to", "new.db"]), main(["doctor", "mongodb://h"]))
"""


def test_with_no_other_extra(full: Path) -> None:
    """With this extra alone files are moved and checked; a server is answered with the extra that it needs."""
    command = [sys.executable, "-c", ONLY_THE_EXTRA]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=full.parent)
    codes = [line for line in done.stdout.splitlines() if line in ("0 0", "2 1")]
    assert codes == ["0 0", "2 1"], done.stdout + done.stderr
    assert (done.stdout + done.stderr).count('pip install "langchain-memkit[mongodb]"') == 2


def test_other_import_errors_are_not_disguised() -> None:
    """Something else that cannot be imported is not called a missing extra."""
    done = subprocess.run(
        [sys.executable, "-c", NO_EXTRA.format(name="sqlite3")], capture_output=True, text=True, check=False
    )
    assert "langchain-memkit[cli]" not in done.stderr
    assert "sqlite3" in done.stderr


def many(path: Path, count: int) -> None:
    """A table as langchain-community's SQL history leaves it."""
    text = [json.dumps({"type": kind, "data": {"content": "word " * 20, "type": kind}}) for kind in ("human", "ai")]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)")
        rows = ((f"s{i // 1000}", text[i % 2]) for i in range(count))
        connection.executemany("INSERT INTO message_store (session_id, message) VALUES (?, ?)", rows)
        connection.commit()


def stored(path: Path) -> int:
    """Turns in a file, while another process writes it."""
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT COUNT(*) FROM turns").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def broken_off(command: list[str], target: Path, number: int) -> tuple[int, str, str]:
    """Runs a command and sends a signal as soon as something is stored; exit code, stdout and stderr."""
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what a shell starts with & may ignore it
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heeding, **pipes) as process:
        while stored(target) == 0 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_broken_off_and_gone_on(tmp_path: Path, number: int) -> None:
    """Ctrl-C ends with one line that says how to go on; the next run finishes, also after a kill."""
    source, target = tmp_path / "old.db", tmp_path / "new.db"
    many(source, 6_000)
    command = [str(SCRIPT), "migrate", "--from", str(source), "--to", str(target)]
    for _ in range(20):  # it may have been too fast
        code, out, err = broken_off(command, target, number)
        if code:
            break
        target.unlink()
    assert 0 < stored(target) < 3_000, err
    if number == signal.SIGINT:
        assert (code, out) == (130, "")
        go_on = "memkit: interrupted: run the same command again to go on; what is done is not done twice"
        assert err.splitlines()[1:] == [go_on]
    assert run(*command[1:]).returncode == 0
    assert stored(target) == 3_000
    assert len(SQLiteChatMessageHistory(target, "s5").messages) == 1_000


def on_a_terminal(*words: object, answer: bytes = b"") -> tuple[int, bytes]:
    """The exit code, and what a terminal was sent; the answer is typed when it asks."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    command = [str(SCRIPT), *map(str, words)]
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment) as process:
        os.close(child)
        shown = b""
        try:
            while chunk := os.read(parent, 4096):
                shown += chunk
                if answer and b"[y/N]" in shown:
                    os.write(parent, answer)
                    answer = b""
        except OSError:  # how Linux says that the other side was closed
            pass
    os.close(parent)
    return process.returncode, shown


def test_a_question_on_a_terminal(full: Path) -> None:
    """On a terminal the question is asked and answered there, and the table is drawn."""
    code, shown = on_a_terminal("purge", "--user", "u1", "--in", full, answer=b"y\n")
    assert code == 0
    assert b"Delete all of this for good, of user 'u1'?" in shown
    assert b"deleted" in shown


def test_a_bar_on_a_terminal(full: Path, tmp_path: Path) -> None:
    """On a terminal a bar moves, unless it is not wanted."""
    code, shown = on_a_terminal("migrate", "--from", full, "--to", tmp_path / "a.db")
    assert (code, b"migrating" in shown) == (0, True)
    code, shown = on_a_terminal("migrate", "--from", full, "--to", tmp_path / "b.db", "--no-progress")
    assert (code, b"migrating" in shown) == (0, False)


@pytest.mark.parametrize("shell", ["| head -c 10", "| true"])
def test_whoever_reads_less(tmp_path: Path, shell: str) -> None:
    """`memkit export - | head -1` ends without an error, also if there is more than a pipe holds."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "long.db")
    histories("s1").add_user_message("word " * 100_000)
    command = f"('{SCRIPT}' export - --from '{tmp_path / 'long.db'}'; echo $? >code) {shell}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == ('{"memkit":' if "head" in shell else "")
    assert "Traceback" not in done.stderr
    for _ in range(3000):  # the shell does not wait for the first of a pipe's commands
        if (tmp_path / "code").exists() and (code := (tmp_path / "code").read_text()):
            break
        time.sleep(0.02)
    assert code == "0\n"


@pytest.mark.parametrize("words", ["export - --from full.db >&-", "import - --to new.db <&-"])
def test_streams_that_are_closed(full: Path, words: str) -> None:
    """Where stdout or stdin is closed, `-` is a mistake that is said."""
    command = f"'{SCRIPT}' {words}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, cwd=full.parent)
    assert (done.returncode, "is closed: name a file" in done.stderr) == (2, True), done.stderr


def test_without_words(memkit: Any) -> None:
    """`memkit` alone prints its help, in lines."""
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == memkit("--help").stdout
    assert "\n  migrate " in done.stdout
