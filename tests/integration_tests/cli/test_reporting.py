"""`memkit report` on a real MongoDB."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import (
    EntityMemory,
    KeyValueMemory,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import FakeChatModel

Memkit = Callable[..., Any]


def test_everything_in_a_database(memkit: Memkit, standalone: Any, full: str) -> None:
    """Turns in both layouts are added up, and what others said is not shown."""
    done = memkit("report", standalone.uri, "--database", full, "--user", "u1", "-o", "page.html")
    assert done.exit_code == 0, done.stderr
    counts = dict(re.findall(r"^(\S+)  +(\d+)$", done.stdout, re.M))
    assert (counts["conversations"], counts["turns"], counts["messages"]) == ("3", "3", "6")
    page = Path("page.html").read_text(encoding="utf-8")
    assert all(text in page for text in ("u1 a", "u1 b", "u1 asks", "vectors", "message_store"))
    assert "u2" not in page


def test_what_the_memories_themselves_keep(memkit: Memkit, standalone: Any, database: str) -> None:
    """The summary, the entities and the notes of a user in a key-value collection are shown."""
    with (
        MongoDBChatMessageHistory.factory(standalone.uri, database) as histories,
        MongoDBKeyValueStore(standalone.uri, database, "memories") as keys,
    ):
        fits = create_history_preprocessor(lambda prompt: "Nemo sails.", max_tokens=300, store=keys)
        entities = EntityMemory.factory(histories, lambda text: [], names=["Nemo"])
        KeyValueMemory.factory(keys)("s1", "u1").add({"My Diary": "Dear diary"})
        chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=fits, memories=[entities])
        for day in range(30):
            chat.invoke(f"Nemo is quiet on day {day}.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    done = memkit("report", standalone.uri, "--database", database, "--user", "u1", "-o", "page.html")
    assert done.exit_code == 0, done.stderr
    page = Path("page.html").read_text(encoding="utf-8")
    assert re.search(r"summary covers \d+ of 60 messages", page)
    assert all(text in page for text in ("Nemo sails.", "Dear diary", "Nemo is quiet on day 0.", "30 turns"))


def test_without_a_user(memkit: Memkit, standalone: Any, database: str, peer: Any) -> None:
    """What was stored without a user is reported without --user, rows of langchain-mongodb as well."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as histories:
        histories("s2").add_messages([HumanMessage("nobody's"), AIMessage("yes")])
        histories("s3", "u1").add_messages([HumanMessage("somebody's"), AIMessage("yes")])
    done = memkit("report", standalone.uri, "--database", database, "-o", "page.html")
    assert done.exit_code == 0, done.stderr
    page = Path("page.html").read_text(encoding="utf-8")
    assert all(text in page for text in ("Conversations without a user", "nobody&#x27;s", "q0"))
    assert "somebody" not in page


def test_ids_of_others(memkit: Memkit, standalone: Any, client: Any, database: str, peer: Any) -> None:
    """Rows of langchain-mongodb under an id that memkit refuses are counted as left out; the others are shown."""
    row = client[database]["message_store"].find_one({}, {"_id": 0})
    client[database]["message_store"].insert_one({**row, "SessionId": "x" * 600})
    done = memkit("report", standalone.uri, "--database", database, "-o", "page.html")
    assert done.exit_code == 1, done.stderr
    page = Path("page.html").read_text(encoding="utf-8")
    assert "1 turns or messages are damaged and left out." in page
    assert "q0" in page


def test_a_server_that_is_away(memkit: Memkit, tmp_path: Path) -> None:
    """It is told without the password, and no page is written."""
    done = memkit("report", "mongodb://nemo:sesame@127.0.0.1:1", "--user", "u1", "-o", tmp_path / "page.html")
    assert done.exit_code == 3
    assert "sesame" not in done.stderr + done.stdout
    assert not (tmp_path / "page.html").exists()
