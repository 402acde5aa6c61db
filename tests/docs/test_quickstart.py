"""The demo (examples/quickstart.py), run as a newcomer runs it: in processes of its own, on a real MongoDB."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from langchain_memkit import SQLiteChatMessageHistory

DEMO = Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "FORCE_COLOR"))}


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo to its end, with its output in pipes."""
    command = [sys.executable, "-W", "error", str(DEMO), *arguments]
    env = ENVIRONMENT | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def section(output: str, number: int) -> str:
    """One numbered part of the output."""
    return output.split(f"\n{number}. ")[1].split(f"\n{number + 1}. ")[0]


def answers(text: str) -> list[str]:
    """What the model said."""
    return re.findall(r"^  model +(.*)$", text, re.MULTILINE)


def test_a_new_process_answers_from_what_the_first_was_told(tmp_path: Path) -> None:
    """Two processes share nothing but a file, and the second one's answers hold the facts told to the first."""
    file = tmp_path / "chat.db"
    done = run_demo("--no-mongodb", "--db", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    told, asked = section(done.stdout, 1), section(done.stdout, 2)
    assert answers(told) == ["Noted."] * 3
    assert answers(asked) == ["You told me: My name is Nemo.", "You told me: On Friday I fly to Perth."]
    assert len(set(re.findall(r"process +(\d+)", done.stdout))) == 2
    assert re.findall(r"given +(\d+) messages", done.stdout) == ["2", "4", "6", "8", "10"]
    assert "a FAKE" in done.stdout
    assert "MongoDB" not in done.stdout
    with SQLiteChatMessageHistory.factory(file) as histories:
        turns = list(histories("trip", user_id="nemo").iter_turns())
    assert [turn.messages[0].text for turn in turns][3:] == ["What is my name?", "Where do I fly on Friday?"]


def test_the_same_on_mongodb_fits_two_screens() -> None:
    """The whole demo shows a stored turn with plain fields, in 70 lines of 100 columns without control codes."""
    done = run_demo("--fake", OPENAI_API_KEY="unused")
    assert (done.returncode, done.stderr) == (0, "")
    assert answers(section(done.stdout, 4)) == ["Noted.", "You told me: My name is Nemo."]
    assert re.search(r"server +mongod \d+\.\d+\.\d+, .* at \S+:\d+", done.stdout)
    document = section(done.stdout, 5)
    for field in ("user_id: 'nemo'", "session_id: 'trip-", "seq: 1", "createdAt: ISODate('20", "kind: 'turn'", "v: 1"):
        assert f"\n  {field}" in document
    assert "{ role: 'human', content: 'My name is Nemo.', id: '" in document
    assert "{ role: 'ai', content: 'Noted.', id: '" in document
    lines = done.stdout.splitlines()
    assert len(lines) <= 70
    assert max(map(len, lines)) <= 100
    assert done.stdout.replace("\n", "").isprintable()


def test_a_model_that_cannot_be_reached_is_a_line() -> None:
    """A closed port behind OPENAI_BASE_URL ends the demo with what failed and what to do, without a traceback."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}/v1"
        done = run_demo(OPENAI_BASE_URL=url)
    assert done.returncode == 1
    assert "Connection error" in done.stderr
    assert "--fake" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "2. " not in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_a_missing_langchain_openai_says_how_to_get_it() -> None:
    """With a key but without the package, the demo names the command that installs it."""
    program = f"import runpy, sys; sys.modules['langchain_openai'] = None; sys.argv = [{str(DEMO)!r}]; "
    command = [sys.executable, "-c", program + "runpy.run_path(sys.argv[0], run_name='__main__')"]
    env = ENVIRONMENT | {"OPENAI_API_KEY": "unused"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "-m pip install langchain-openai" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["missing/chat.db", "text.db"])
def test_a_file_that_cannot_be_used_is_a_line(path: str, tmp_path: Path) -> None:
    """A folder that is not there, or a file that is no database, is named in one line."""
    (tmp_path / "text.db").write_text("not a database" * 100)
    done = run_demo("--no-mongodb", "--db", str(tmp_path / path))
    assert done.returncode == 1
    assert str(tmp_path / path) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_ctrl_c_ends_it_and_its_children() -> None:
    """SIGINT while a child is at work: one line, exit code 130, and the child is gone."""
    command = [sys.executable, str(DEMO), "--no-mongodb"]
    with subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        # a job in the background of a shell, as in CI, is started with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    ) as demo:
        assert demo.stdout
        assert demo.stderr
        child = next(int(line.split()[1]) for line in demo.stdout if line.startswith("  process "))
        demo.send_signal(signal.SIGINT)
        assert demo.stderr.read().split() == ["Stopped."]
    assert demo.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
