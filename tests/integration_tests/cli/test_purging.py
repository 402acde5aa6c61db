"""`memkit purge` on a server."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from langchain_memkit import MongoDBChatMessageHistory, MongoDBKeyValueStore
from langchain_memkit.base import user_prefix

Memkit = Callable[..., Any]


def everything(client: Any, database: str) -> str:
    """All documents of a database, as text."""
    return repr([list(client[database][name].find()) for name in client[database].list_collection_names()])


def test_everything_of_one_user_goes(memkit: Memkit, full: str, client: Any, standalone: Any) -> None:
    """Every collection of the database forgets the user; the other one keeps everything."""
    words = ("purge", "--user", "u1", "--in", standalone.uri, "--database", full)
    shown = memkit(*words, input="n\n")
    assert (shown.exit_code, "u1 one" in everything(client, full)) == (2, True)
    done = memkit(*words, "--yes")
    assert done.exit_code == 0, done.stderr
    table = {tuple(re.split(r"\s{2,}", line)) for line in done.stdout.splitlines()[2:]}
    where = f"{standalone.hosts[0]}, {full}."
    assert table == {
        ("sessions", f"{where}message_store", "2", "0"),
        ("turns", f"{where}message_store", "2", "0"),
        ("sessions", f"{where}chats", "1", "0"),
        ("turns", f"{where}chats", "1", "0"),
        ("summaries", f"{where}key_value", "1", "0"),
        ("entities", f"{where}key_value", "1", "0"),
        ("key-values", f"{where}key_value", "1", "0"),
        ("preferences", f"{where}key_value", "0", "0"),
        ("other keys", f"{where}key_value", "1", "0"),
        ("vectors", f"{where}vectors", "2", "0"),
    }
    rest = everything(client, full)
    assert not re.search("u1 (a|b|asks|one|two)", rest)
    assert "'u1/" not in rest
    assert all(f"u2 {text}" in rest for text in ("a", "b", "asks", "one", "two"))


def test_only_one_collection(memkit: Memkit, full: str, standalone: Any) -> None:
    """--collection leaves the others alone."""
    words = ("purge", "--user", "u1", "--in", standalone.uri, "--database", full, "--collection", "chats")
    assert memkit(*words, "--yes").exit_code == 0
    with MongoDBChatMessageHistory.factory(standalone.uri, full) as histories:
        assert len(histories.list_sessions("u1")) == 2


def test_rows_without_a_user_stay(memkit: Memkit, peer: Any, full: str, standalone: Any) -> None:
    """Rows of langchain-mongodb belong to nobody: they stay, and it says so."""
    done = memkit("purge", "--user", "u1", "--in", standalone.uri, "--database", full, "--yes")
    assert done.exit_code == 0
    assert "rows of langchain-mongodb carry no user and are left out" in done.stderr
    assert len(peer.messages) == 4


def test_the_wrong_database(memkit: Memkit, standalone: Any, database: str) -> None:
    """A database with nothing of memkit is an error: a typing mistake must not look like a deletion."""
    done = memkit("purge", "--user", "u1", "--in", standalone.uri, "--database", database, "--yes")
    assert done.exit_code == 2
    assert "holds nothing of memkit" in done.stderr


def test_keys_among_other_documents(memkit: Memkit, client: Any, standalone: Any, database: str) -> None:
    """Key-values go also where a collection holds more else than is looked at; what is not the user's stays."""
    shared = client[database]["shared"]
    shared.insert_many([{"_id": f"{mark}{i:04}", "x": 1} for mark in "!~" for i in range(30)])
    with MongoDBKeyValueStore(standalone.uri, database, "shared") as keys:
        keys.mset([(user_prefix(user) + "summary/x", {"n": 1}) for user in ("u1", "u2")])
    words = ("purge", "--user", "u1", "--in", standalone.uri, "--database", database, "--yes")
    done = memkit(*words)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"summaries .*shared +1 +0", done.stdout)
    assert [document["_id"] for document in shared.find({"value": {"$exists": True}})] == ["u2/summary/x"]
    assert shared.count_documents({}) == 61
