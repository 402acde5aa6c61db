"""Installs every extra of pyproject.toml alone, each into an empty environment, and uses it there.

    python tools/extras.py path/to/langchain_memkit-...-py3-none-any.whl [extra ...]

In each environment: `pip check`; the names of the front door that the extra brings work, and every other one that
needs an extra says which `pip install` brings it; the extra does a little real work (`PROOFS`, one for each). Run it
with the environment's Python, which has the package and the mongod that the extra `mongodb` is tried on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from langchain_memkit import _LAZY

ROOT = Path(__file__).resolve().parents[1]
AT_A_TIME = 2

# what is run in each environment: argv holds the extra and all extras that come with it
NAMES = """
import importlib.util, subprocess, sys
from pathlib import Path
import langchain_memkit
from langchain_memkit.errors import MissingExtraError
extra, brought = sys.argv[1], set(sys.argv[2].split(","))

def asks(load, wanted, packages):
    there = all(importlib.util.find_spec(package) for package in packages)
    try:
        load()
    except MissingExtraError as error:
        assert not there and not set(wanted.split(",")) <= brought, f"{wanted} is installed, but: {error}"
        assert f'pip install "langchain-memkit[{wanted}]"' in str(error), error
        return True
    assert there, f"works without {packages}"
    return False

asking = []
for name in langchain_memkit.__all__:
    module, wanted, packages = langchain_memkit._LAZY.get(name, (None, "", ()))
    if asks(lambda: getattr(langchain_memkit, name), wanted or extra, packages):
        asking.append(name)
asks(lambda: __import__("langchain_memkit.classic"), "classic", ["langchain_classic"])
done = subprocess.run([Path(sys.executable).with_name("memkit"), "--help"], capture_output=True, text=True)
if importlib.util.find_spec("typer"):
    assert done.returncode == 0 and "migrate" in done.stdout, done
else:
    assert done.returncode == 2 and 'pip install "langchain-memkit[cli]"' in done.stderr, done
print(f"{len(langchain_memkit.__all__) - len(asking)} of {len(langchain_memkit.__all__)} names")
"""

# the extra -> a little real work that needs it
PROOFS = {
    "mongodb": """
import os
from langchain_core.messages import AIMessage, HumanMessage
from langchain_memkit import MongoDBChatMessageHistory, MongoDBKeyValueStore
with MongoDBChatMessageHistory.factory(os.environ["EXTRAS_MONGODB"]) as histories:
    histories("s1").add_messages([HumanMessage("Hi."), AIMessage("Ho.")])
    assert [m.text for m in histories("s1").messages] == ["Hi.", "Ho."]
with MongoDBKeyValueStore(os.environ["EXTRAS_MONGODB"]) as store:
    store.mset([("u1/name", {"text": "Nemo"})])
    assert store.mget(["u1/name"]) == [{"text": "Nemo"}]
""",
    "openai": """
import json, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from langchain_openai import ChatOpenAI
from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history
class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        message = {"role": "assistant", "content": f"{len(asked)} messages"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())
server = HTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
model = ChatOpenAI(model="m", api_key="none", base_url=f"http://127.0.0.1:{server.server_port}/v1")
chat = create_runnable_with_message_history(model, SQLiteChatMessageHistory.factory(":memory:"))
config = {"configurable": {"session_id": "s1"}}
assert [chat.invoke(text, config).text for text in ("Hi.", "Ho.")] == ["1 messages", "3 messages"]
""",
    "tokens": """
from langchain_core.messages import HumanMessage
from langchain_memkit import create_trim_preprocessor
from langchain_memkit.messages.tokens import OpenAITokenCounter
count = OpenAITokenCounter("gpt-4o")
assert count([HumanMessage("My name is Nemo.")]) == 9
fit = create_trim_preprocessor(max_tokens=20, token_counter=count)
assert len(fit.invoke([HumanMessage("My name is Nemo.")] * 9)) == 2
""",
    "matching": """
from langchain_memkit import EntityMemory, KeyValueMemory
books = KeyValueMemory({"The Skeleton Songs": "Poems of greedy delight."})
assert "greedy" in books.load("Who wrote the skeletn songs?")[0].text
assert EntityMemory.factory(str.split)("s1", "u1").load("Nemo") == []
""",
    "spacy": """
import spacy
from langchain_memkit import SpacyEntityExtractor
from langchain_memkit.errors import SpacyModelMissing
nlp = spacy.blank("en")
nlp.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Nemo"}])
assert [m.text for m in SpacyEntityExtractor(nlp)("Is Nemo a fish?")] == ["Nemo"]
try:
    SpacyEntityExtractor()
except SpacyModelMissing as error:
    assert "en_core_web_sm" in str(error), error
else:
    raise AssertionError("a pipeline came along")
""",
    "vector": """
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from langchain_memkit import SQLiteVectorStore, VectorMemory
memories = VectorMemory.factory(SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8)))
memories("s1", "u1").save([HumanMessage("My cat is called Nemo.", id="1"), AIMessage("A fine name!", id="2")])
assert "Nemo" in memories("s2", "u1").load("What is my cat called?")[0].text
""",
    "local": """
from langchain_memkit import WordLlamaEmbeddings
assert len(WordLlamaEmbeddings().embed_query("I like tea.")) == 256
""",
    "classic": """
from langchain_memkit import ChatHistoryMemory, SQLiteChatMessageHistory
from langchain_memkit.classic import as_classic_memory
memory = as_classic_memory(ChatHistoryMemory(SQLiteChatMessageHistory(":memory:", "s1")))
memory.save_context({"input": "I'm Nemo."}, {"response": "Hello!"})
assert memory.load_memory_variables({})["history"] == "Human: I'm Nemo.\\nAI: Hello!"
""",
    "langgraph": """
import sqlite3
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.memory import InMemoryStore
from langchain_memkit import LangGraphKeyValueStore, SQLiteChatMessageHistory
from langchain_memkit.migrate import langgraph_source, migrate
store = LangGraphKeyValueStore(InMemoryStore())
store.mset([("u1/name", {"text": "Nemo"})])
assert store.mget(["u1/name"]) == [{"text": "Nemo"}]
state = {"channel_values": {"messages": [HumanMessage("My name is Nemo.", id="1")]}}
columns = "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
with sqlite3.connect("graph.db") as connection:
    connection.execute(f"CREATE TABLE checkpoints ({columns})")
    row = ("t1", "", "1", None, *JsonPlusSerializer().dumps_typed(state), "{}")
    connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
histories = SQLiteChatMessageHistory.factory("new.db")
migrate(langgraph_source("graph.db"), histories, progress=False)
assert [m.text for m in histories("t1").messages] == ["My name is Nemo."]
""",
    "agents": """
from langchain.agents import create_agent
from langchain_memkit import MessageHistoryMiddleware, SQLiteChatMessageHistory
from langchain_memkit.testing import FakeChatModel
histories = SQLiteChatMessageHistory.factory(":memory:")
agent = create_agent(FakeChatModel(), [], middleware=[MessageHistoryMiddleware(histories)])
agent.invoke({"messages": [("user", "My name is Nemo.")]}, {"configurable": {"session_id": "s1"}})
assert [m.text for m in histories("s1").messages] == ["My name is Nemo.", "Noted."]
""",
    "sql": """
import sqlalchemy
from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.migrate import langchain_sql_source, migrate
message = '{"type": "human", "data": {"content": "My name is Nemo."}}'
with sqlalchemy.create_engine("sqlite:///old.db").begin() as connection:
    connection.execute(sqlalchemy.text("CREATE TABLE message_store (id INTEGER, session_id TEXT, message TEXT)"))
    connection.execute(sqlalchemy.text("INSERT INTO message_store VALUES (1, 's1', :m)"), {"m": message})
histories = SQLiteChatMessageHistory.factory("new.db")
migrate(langchain_sql_source("sqlite+pysqlite:///old.db"), histories, progress=False)
assert [m.text for m in histories("s1").messages] == ["My name is Nemo."]
""",
    "cli": """
import subprocess, sys
from pathlib import Path
from langchain_core.messages import HumanMessage
from langchain_memkit import SQLiteChatMessageHistory
with SQLiteChatMessageHistory.factory("chat.db") as histories:
    histories("s1", "u1").add_messages([HumanMessage("My name is Nemo.")])
memkit = Path(sys.executable).with_name("memkit")
moves = "export chat.jsonl --from chat.db", "import chat.jsonl --to new.db", "migrate --from new.db --to newer.db"
for words in moves:
    done = subprocess.run([memkit, *words.split()], capture_output=True, text=True)
    assert done.returncode == 0, done
assert "My name is Nemo." in Path("chat.jsonl").read_text()
assert [m.text for m in SQLiteChatMessageHistory("newer.db", "s1", user_id="u1").messages] == ["My name is Nemo."]
""",
}


def main(args: list[str]) -> int:
    """Tries the named extras, or all, and returns the exit code."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    closures = {extra: brought_by(extra, extras) for extra in extras}
    if not args or set(args[1:]) - set(extras):
        print(f"usage: python tools/extras.py WHEEL [{'|'.join(extras)} ...]", file=sys.stderr)
        return 2
    alone = [extra for extra in args[1:] or extras if extra != "all"]
    together = [] if args[1:] else sorted({wanted for _, wanted, _ in _LAZY.values() if "," in wanted})
    wrong = [f"`all` leaves out {extra}" for extra in sorted(set(extras) - closures["all"])]
    wrong += [f"nothing in PROOFS of tools/extras.py uses {extra}" for extra in alone if extra not in PROOFS]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    begun, wheel, tries = time.monotonic(), Path(args[0]).resolve(), [*alone, *together]
    with tempfile.TemporaryDirectory() as folder, mongodb("mongodb" in alone), ThreadPoolExecutor(AT_A_TIME) as pool:
        good = list(pool.map(lambda extra: attempt(extra, closures, wheel, Path(folder)), tries))
    failed = [extra for extra, well in zip(tries, good, strict=True) if not well]
    print(f"{len(tries)} environments in {time.monotonic() - begun:.0f} s", *(f"FAILED: {extra}" for extra in failed))
    return 1 if failed else 0


def brought_by(extra: str, extras: dict[str, list[str]]) -> set[str]:
    """The extra, and those that it asks for."""
    found = {extra}
    for requirement in extras[extra]:
        if requirement.startswith("langchain-memkit["):
            for other in requirement.partition("[")[2].rstrip("]").split(","):
                found |= brought_by(other, extras)
    return found


@contextmanager
def mongodb(wanted: bool) -> Iterator[None]:
    """A server for the extra of that name; its address is in the environment of what is run."""
    if not wanted:
        yield
        return
    from langchain_memkit.testing import local_mongodb

    with local_mongodb() as server:
        os.environ["EXTRAS_MONGODB"] = server.uri
        yield


def attempt(extra: str, closures: dict[str, set[str]], wheel: Path, folder: Path) -> bool:
    """Whether an extra installs and works alone; prints a line, and on failure what went wrong."""
    begun, home = time.monotonic(), folder / extra
    brought = set().union(*(closures[each] for each in extra.split(",")))
    venv.create(home / "venv", symlinks=os.name != "nt")  # without pip: the one that runs this installs into it
    python = str(home / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    pip = [sys.executable, "-m", "pip", "--python", python]
    work = NAMES + PROOFS.get(extra, "")  # of extras that a name needs together: the name
    steps = [
        [*pip, "install", "--quiet", "--no-compile", f"{wheel}[{extra}]"],
        [*pip, "check"],
        [python, "-I", "-c", work, extra, ",".join(brought)],
    ]
    for step in steps:
        done = subprocess.run(step, cwd=home, capture_output=True, text=True, check=False)
        if done.returncode:
            shown = " ".join(step if work not in step else [*step[:2], "... (tools/extras.py)"])
            print(f"    {extra}: FAILED at {shown}\n{done.stdout}{done.stderr}", file=sys.stderr, flush=True)
            return False
    packages = len(list(home.glob("venv/**/*.dist-info")))
    print(f"    {extra}: {packages} packages, {done.stdout.strip()}, {time.monotonic() - begun:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
