"""What an installed wheel does where one extra is installed, or none: run by `make extras` and `make wheel`.

    python -I tools/extras.py [extra]

Every name of the front door whose packages are there works, and every other one says which `pip install` brings it;
the extra does a little real work. Run it with the Python of that environment, in an empty folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage

import langchain_memkit as memkit
from langchain_memkit import SQLiteChatMessageHistory, create_trim_preprocessor
from langchain_memkit.errors import MissingExtraError, SpacyModelMissing
from langchain_memkit.migrate import langchain_sql_source, langgraph_source, migrate
from langchain_memkit.testing import FakeChatModel

SAID = "My name is Nemo."
PAIR = ("u1/name", {"text": "Nemo"})


def mongodb() -> None:
    with memkit.MongoDBChatMessageHistory.factory(os.environ["MEMKIT_MONGODB"]) as histories:
        histories("s1").add_messages([HumanMessage(SAID)])
        assert [m.text for m in histories("s1").messages] == [SAID]
    with memkit.MongoDBKeyValueStore(os.environ["MEMKIT_MONGODB"]) as store:
        store.mset([PAIR])
        assert store.mget([PAIR[0]]) == [PAIR[1]]


def openai() -> None:
    import httpx
    from langchain_openai import ChatOpenAI

    def answer(request: httpx.Request) -> httpx.Response:
        message = {"role": "assistant", "content": f"{len(json.loads(request.content)['messages'])} messages"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "created": 0, "model": "m", "choices": [choice]})

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        model = ChatOpenAI(model="m", api_key="none", http_client=client)
        chat = memkit.create_runnable_with_message_history(model, SQLiteChatMessageHistory.factory(":memory:"))
        assert [chat.invoke(text, memkit.session("s1")).text for text in ("Hi.", "Ho.")] == ["1 messages", "3 messages"]


def tokens() -> None:
    from langchain_memkit.messages.tokens import OpenAITokenCounter

    count = OpenAITokenCounter("gpt-4o")
    assert count([HumanMessage(SAID)]) == 9
    assert len(create_trim_preprocessor(max_tokens=20, token_counter=count).invoke([HumanMessage(SAID)] * 9)) == 2


def matching() -> None:
    books = memkit.KeyValueMemory({"The Skeleton Songs": "Poems of greedy delight."})
    assert "greedy" in books.load("Who wrote the skeletn songs?")[0].text
    histories = SQLiteChatMessageHistory.factory(":memory:")
    assert memkit.EntityMemory.factory(histories, str.split)("s1", "u1").load("Nemo") == []


def spacy() -> None:
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Nemo"}])
    assert [m.text for m in memkit.SpacyEntityExtractor(nlp)("Is Nemo a fish?")] == ["Nemo"]
    try:
        memkit.SpacyEntityExtractor()
    except SpacyModelMissing as error:
        assert "en_core_web_sm" in str(error), error
    else:
        raise AssertionError("a pipeline came along")


def vector() -> None:
    histories = SQLiteChatMessageHistory.factory(":memory:")
    memories = memkit.VectorMemory.factory(histories, DeterministicFakeEmbedding(size=8))
    memories("s1", "u1").save([HumanMessage("My cat is called Nemo.", id="1")])
    assert "Nemo" in memories("s2", "u1").load("What is my cat called?")[0].text


def local() -> None:
    assert len(memkit.WordLlamaEmbeddings().embed_query("I like tea.")) == 256


def classic() -> None:
    history = memkit.ChatHistoryMemory(SQLiteChatMessageHistory(":memory:", "s1"))
    memory = memkit.classic.as_classic_memory(history)
    memory.save_context({"input": SAID}, {"response": "Hello!"})
    assert memory.load_memory_variables({})["history"] == f"Human: {SAID}\nAI: Hello!"


def langgraph() -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.store.memory import InMemoryStore

    store = memkit.LangGraphKeyValueStore(InMemoryStore())
    store.mset([PAIR])
    assert store.mget([PAIR[0]]) == [PAIR[1]]
    columns = "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
    state = JsonPlusSerializer().dumps_typed({"channel_values": {"messages": [HumanMessage(SAID, id="1")]}})
    with sqlite3.connect("graph.db") as connection:
        connection.execute(f"CREATE TABLE checkpoints ({columns})")
        row = ("t1", "", "1", None, *state, "{}")
        connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    assert moved(langgraph_source("graph.db"), "t1") == [SAID]


def agents() -> None:
    from langchain.agents import create_agent

    histories = SQLiteChatMessageHistory.factory(":memory:")
    agent = create_agent(FakeChatModel(), [], middleware=[memkit.MessageHistoryMiddleware(histories)])
    agent.invoke({"messages": [("user", SAID)]}, memkit.session("s1"))
    assert [m.text for m in histories("s1").messages] == [SAID, "Noted."]


def sql() -> None:
    from sqlalchemy import create_engine, text

    with create_engine("sqlite:///old.db").begin() as connection:
        connection.execute(text("CREATE TABLE message_store (id INTEGER, session_id TEXT, message TEXT)"))
        row = {"m": json.dumps({"type": "human", "data": {"content": SAID}})}
        connection.execute(text("INSERT INTO message_store VALUES (1, 's1', :m)"), row)
    assert moved(langchain_sql_source("sqlite+pysqlite:///old.db"), "s1") == [SAID]


def cli() -> None:
    with SQLiteChatMessageHistory.factory("chat.db") as histories:
        histories("s1", "u1").add_messages([HumanMessage(SAID)])
    for words in ("export chat.jsonl --from chat.db", "import chat.jsonl --to new.db"):
        done = subprocess.run([MEMKIT, *words.split()], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
    assert SAID in Path("chat.jsonl").read_text()
    assert [m.text for m in SQLiteChatMessageHistory("new.db", "s1", user_id="u1").messages] == [SAID]


def moved(source: object, session: str) -> list[str]:
    """Texts of a session after a migration."""
    histories = SQLiteChatMessageHistory.factory("moved.db")
    migrate(source, histories, progress=False)
    return [m.text for m in histories(session).messages]


PROOFS = {f.__name__: f for f in (mongodb, openai, tokens, matching, spacy, vector, local, classic, langgraph, agents,
                                  sql, cli)}  # fmt: skip
MEMKIT = str(Path(sys.executable).with_name("memkit"))


def is_missing(load: Callable[[], object], extra: str, packages: Sequence[str]) -> bool:
    """Load a name, and return whether it asks for its extra, which it must do exactly if a package is not there."""
    missing = not all(importlib.util.find_spec(package) for package in packages)
    try:
        load()
    except MissingExtraError as error:
        assert f'pip install "langchain-memkit[{extra}]"' in str(error), error
        assert missing, f"its packages are there, but: {error}"
        return True
    assert not missing, f"works without {packages}"
    return False


def main(extra: str = "") -> None:
    """Try all names, the command and the extra."""
    names = sorted({*memkit.__all__, *memkit._LAZY})
    asking = []
    for name in names:
        _, wanted, packages = memkit._LAZY.get(name, (None, "", ()))
        if is_missing(lambda name=name: getattr(memkit, name), wanted, packages):
            asking.append(name)
            assert not set(wanted.split(",")) <= set(extra.split(",")), f"{name} does not come with {extra}"
    is_missing(lambda: memkit.classic, "classic", ["langchain_classic"])
    if not importlib.util.find_spec("typer"):
        done = subprocess.run([MEMKIT], capture_output=True, text=True, check=False)
        assert (done.returncode, 'pip install "langchain-memkit[cli]"' in done.stderr) == (2, True), done
    if extra in PROOFS:
        PROOFS[extra]()
    elif not extra:
        others = ("pymongo", "numpy", "rapidfuzz", "spacy", "langchain_classic")
        brought = [package for package in others if importlib.util.find_spec(package)]
        assert not brought, f"{brought} came along"
    print(f"{extra or 'bare'}: {len(names) - len(asking)} of {len(names)} names")


if __name__ == "__main__":
    main(*sys.argv[1:])
