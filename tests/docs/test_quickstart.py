"""The demo (examples/quickstart.py), run as a newcomer runs it, and what the README says on its first screens."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from pymongo import MongoClient
from pymongo.monitoring import CommandListener, CommandStartedEvent

from langchain_memkit import (
    EntityMemory,
    KeyValueMemory,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    PreferenceMemory,
    SpacyEntityExtractor,
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_history_preprocessor,
    create_runnable_with_message_history,
    find_english_preferences,
)
from langchain_memkit.testing import FakeChatModel

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "quickstart.py"
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
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
    index = (ROOT / "docs" / "index.md").read_text()
    [quoted] = re.findall(r"^```console\n(.*?)^```", index, re.DOTALL | re.MULTILINE)
    parts = [re.escape(stable(part)) for part in quoted.split("[...]\n")]
    assert re.search("(.*\n)+?".join(parts), stable(done.stdout)), "docs/index.md quotes what the demo does not print"


def stable(output: str) -> str:
    """What the demo prints, without what is another in each run: ids, processes, ports and times."""
    return re.sub(r"lc_run--[\w-]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{24}|trip-\d+|(?<=process  )\d+", "#", output)


def without_key(block: str) -> str:
    """The block as its comments say that it is written without a key of a model's."""
    return re.sub(r"^.*# no key\? (.*)$", r"\1", block, flags=re.MULTILINE)


def test_the_readme_remembers_in_a_new_process(tmp_path: Path) -> None:
    """Its first blocks are twelve lines, and what the first one tells a process, the second one knows in another."""
    first, asked, *_ = BLOCKS
    assert len([line for line in (first + asked).splitlines() if line and not line.startswith("#")]) <= 12
    assert first.count("# no key? ") == 2
    setting, told = without_key(first).rsplit("print(", 1)
    assert "My name is Nemo." in told
    run = [sys.executable, "-W", "error", "-c"]
    for program in (without_key(first), setting + asked):
        done = subprocess.run(
            [*run, program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert f"# {done.stdout}" in asked
    assert "Nemo" in done.stdout


def test_the_readme_names_the_commands_for_a_clone() -> None:
    """The demo and the tests stand on the first screen, as targets that the Makefile has."""
    begin = README.split("\n```sh\n")[1].split("```")[0]
    targets = re.findall(r"^make (\w+)", begin, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}: .*##", makefile, re.MULTILINE) for target in targets)
    assert "pip install langchain-memkit" not in README


def test_the_readme_may_be_read_on_in_the_second_process(tmp_path: Path) -> None:
    """Who types on there has all names, whichever of the sections on servers and agents they leave out."""
    recall, see = [block for block in BLOCKS if "VectorMemory" in block or "explain_last_turn(" in block]
    run = [sys.executable, "-c", without_key(BLOCKS[0]) + recall + see]
    done = subprocess.run(run, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 record recalled" in done.stdout
    assert "called him Kiwi" in done.stdout


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


class Commands(CommandListener):
    """Counts what is sent to MongoDB, as reads and writes."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        """Called by the driver."""
        kind = {"find": "reads", "aggregate": "reads", "insert": "writes", "update": "writes", "delete": "writes"}
        if event.command_name in kind:
            self.seen[kind[event.command_name]] += 1

    def succeeded(self, event: Any) -> None:
        """Nothing to count."""

    def failed(self, event: Any) -> None:
        """Nothing to count."""


class Counted(Embeddings):
    """Counts calls of an embedding model."""

    is_local = True

    def __init__(self, seen: Counter[str]) -> None:
        self.inner, self.seen = WordLlamaEmbeddings(), seen

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One call for all of them."""
        self.seen["embeddings"] += 1
        return self.inner.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """One call."""
        self.seen["embeddings"] += 1
        return self.inner.embed_query(text)


def costs(standalone: Any) -> dict[str, list[int]]:
    """Reads, writes, embeddings and model calls of one turn, from a session's second on, by what takes part in it."""
    commands = Commands()
    seen = commands.seen
    with MongoClient[dict[str, Any]](standalone.uri, event_listeners=[commands]) as client:
        place: dict[str, Any] = {"database_name": "memkit_costs", "client": client}
        client.drop_database("memkit_costs")
        histories = MongoDBChatMessageHistory.factory(None, **place)
        store = MongoDBKeyValueStore(None, **place)
        model = FakeChatModel()

        def summarize(prompt: object) -> str:
            seen["summaries"] += 1
            return "They talk of Kiwi."

        entities = EntityMemory.factory(histories, SpacyEntityExtractor())
        titles = KeyValueMemory.factory(store)
        titles("any", "nemo").add({"The Skeleton Songs": "Poems by Arabella Dusk."})
        taking: dict[str, dict[str, Any]] = {
            "MongoDBChatMessageHistory": {},
            "max_tokens=8000": {"max_tokens": 500},
            "create_history_preprocessor": {"preprocessor": create_history_preprocessor(summarize, max_tokens=500)},
            "VectorMemory": {"memories": [VectorMemory.factory(histories, Counted(seen))]},
            "EntityMemory": {"memories": [entities]},
            "PreferenceMemory": {"memories": [PreferenceMemory.factory(histories, find=find_english_preferences)]},
            "KeyValueMemory": {"memories": [titles]},
        }
        counted: dict[str, list[int]] = {}
        for name, options in taking.items():
            chat = create_runnable_with_message_history(model, histories, **options)
            turns: list[tuple[int, ...]] = []
            for i in range(16):
                session = f"{name} monday" if i < 3 else f"{name} friday"
                said = f"Harrison called our parrot Kiwi on day {i} ({name}), and read The Skeleton Songs to him."
                model.calls.clear()
                seen.clear()
                chat.invoke(said, {"configurable": {"session_id": session, "user_id": "nemo"}})
                if i >= 4 and not seen["summaries"]:
                    turns.append((seen["reads"], seen["writes"], seen["embeddings"], len(model.calls)))
            counted[name] = list(Counter(turns).most_common(1)[0][0])
        histories.close()
        client.drop_database("memkit_costs")
    plain = counted["MongoDBChatMessageHistory"]
    return {
        name: row if row is plain else [a - b for a, b in zip(row, plain, strict=True)] for name, row in counted.items()
    }


def test_which_memory_costs_what_the_readme_says(standalone: Any) -> None:
    """The figures of its table are those that are counted at a real MongoDB and at the models."""
    table = README.split("## Which memory?")[1].split("\n## ")[0]
    for name, counted in costs(standalone).items():
        [row] = [line for line in table.splitlines() if f"`{name}`" in line]
        cells = row.split("|")[3].split(";")[0].split(",")
        assert [int(cell) for cell in cells] == counted, row
