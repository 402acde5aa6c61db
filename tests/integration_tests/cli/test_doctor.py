"""`memkit doctor` on servers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId

Memkit = Callable[..., Any]


def looked_at(memkit: Memkit, *words: Any) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code and the checks by their subject."""
    done = memkit("doctor", *words, "--json")
    return done.exit_code, {check["subject"]: check for check in json.loads(done.stdout)}


def test_topologies(memkit: Memkit, server: Any, database: str) -> None:
    """A server says its version, and what it is."""
    code, checks = looked_at(memkit, server.uri, "--database", database)
    assert code == 0
    label = ",".join(server.hosts)
    topology = "replica set of 3" if len(server.hosts) > 1 else "standalone"
    assert re.fullmatch(rf"MongoDB \d+\.\d+\.\d+, {topology}", checks[f"{label}: server"]["found"])
    assert checks[f"{label}, database {database}"]["status"] == "warn"


def test_all_is_well(memkit: Memkit, full: str, standalone: Any) -> None:
    """Every collection is named with what it holds, and that every index is present."""
    code, checks = looked_at(memkit, standalone.uri, "--database", full)
    assert code == 0
    holds = {
        name: checks[f"{full}.{name}"]["found"].partition(": ")[2] for name in ("message_store", "chats", "vectors")
    }
    assert holds == {
        "message_store": "turns; all indexes are present",
        "chats": "qa; all indexes are present",
        "vectors": "vectors; all indexes are present",
    }


@pytest.mark.parametrize(
    ("name", "index", "code"),
    [("message_store", "memkit_seq", 1), ("message_store", "memkit_ttl", 0), ("chats", "memkit_qa_op", 0)],
)
def test_missing_indexes(
    memkit: Memkit, full: str, client: Any, standalone: Any, name: str, index: str, code: int
) -> None:
    """A missing unique index fails, another one is a warning; --fix says which it builds, and builds it."""
    client[full][name].drop_index(index)
    words = (standalone.uri, "--database", full)
    found, checks = looked_at(memkit, *words)
    check = checks[f"{full}.{name}: index {index}"]
    assert (found, check["status"], check["found"][:7]) == (code, "fail" if code else "warn", "missing")
    done = memkit("doctor", *words, "--fix")
    assert done.exit_code == 0, done.output
    assert f"{full}.{name}: building {index} over" in done.stderr
    assert index in client[full][name].index_information()
    assert memkit("doctor", *words, "--fix").stderr == ""


def test_wrong_indexes(memkit: Memkit, full: str, client: Any, standalone: Any) -> None:
    """An index of the right name that is not unique is as good as missing, and --fix says that it has to go first."""
    collection = client[full]["message_store"]
    collection.drop_index("memkit_seq")
    collection.create_index([("user_id", 1), ("session_id", 1), ("seq", 1)], name="memkit_seq")
    words = (standalone.uri, "--database", full, "--collection", "message_store")
    code, checks = looked_at(memkit, *words)
    assert code == 1
    assert checks[f"{full}.message_store: index memkit_seq"]["found"].startswith("missing, and without it")
    done = memkit("doctor", *words, "--fix")
    assert done.exit_code != 0
    assert "drop another one that has the same name first" in " ".join(done.output.split())
    assert "unique" not in collection.index_information()["memkit_seq"]


def test_renamed_indexes_count(memkit: Memkit, full: str, client: Any, standalone: Any) -> None:
    """An index that somebody built by hand, under another name, is as good."""
    collection = client[full]["message_store"]
    collection.drop_index("memkit_seq")
    keys = [("user_id", 1), ("session_id", 1), ("seq", 1)]
    collection.create_index(keys, name="mine", unique=True, partialFilterExpression={"seq": {"$exists": True}})
    assert looked_at(memkit, standalone.uri, "--database", full)[0] == 0


def test_rows_of_the_peer(memkit: Memkit, peer: Any, client: Any, standalone: Any, database: str) -> None:
    """Rows of langchain-mongodb are named, and nothing is built for them unless it is asked for."""
    before = peer.collection.index_information()
    code, checks = looked_at(memkit, standalone.uri, "--database", database)
    assert code == 0
    assert checks[f"{database}.message_store"]["found"] == "4 documents: langchain-mongodb"
    assert peer.collection.index_information() == before
    assert client[database].list_collection_names() == ["message_store"]


def test_sessions_that_are_no_texts(memkit: Memkit, peer: Any, client: Any, standalone: Any, database: str) -> None:
    """It is said how many sessions have numbers and ObjectIds as ids, and how to name them; none is no line."""
    subject = f"{database}.message_store: session ids"
    assert subject not in looked_at(memkit, standalone.uri, "--database", database)[1]
    rows = [{"SessionId": given, "History": "{}"} for given in (5, 5, 0.5, 2**40, ObjectId(), "6", None)]
    client[database]["message_store"].insert_many(rows)
    code, checks = looked_at(memkit, standalone.uri, "--database", database)
    assert (code, checks[subject]["status"]) == (0, "ok")
    assert checks[subject]["found"].startswith("4 sessions of langchain-mongodb have a number or an ObjectId as id")
