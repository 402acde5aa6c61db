"""Stores that hold very many turns: half of them in one long session, half in very many short ones."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple
from uuid import uuid4

from bson import ObjectId
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import WriteConcern

LENGTH = 10  # turns of a short session
TURN = [HumanMessage("What do I do?"), AIMessage("You ask the same thing again and again.")]
BATCH, WRITERS = 2000, 3


class At(NamedTuple):
    """The place of a turn."""

    user_id: str
    session_id: str
    seq: int = 0


LONG = At("u-long", "long")


def short(number: int) -> At:
    """The short session of this number; ten are of one user."""
    return At(f"u{number // 10}", f"s{number}")


def place_of(i: int, turns: int) -> At:
    """Where the i-th turn of a store stands: every other one in the long session, the rest in all short ones by turns.

    So the turns of a session lie far apart, as they do where many people talk at once.
    """
    if i % 2 == 0:
        return LONG._replace(seq=i // 2 + 1)
    count = turns // 2 // LENGTH
    return short(i // 2 % count)._replace(seq=i // 2 // count + 1)


def fill_collection(collection: Any, turns: int) -> None:
    """Copies the one document that memkit wrote into every place, then deletes it."""
    template = collection.find_one()
    fast = collection.with_options(write_concern=WriteConcern(1))

    def document(i: int) -> dict[str, Any]:
        said = [{**message, "id": str(uuid4())} for message in template["messages"]]
        return {**template, "_id": ObjectId(), **place_of(i, turns)._asdict(), "op": f"turn:{i}", "messages": said}

    def write(begin: int) -> None:
        fast.insert_many([document(i) for i in range(begin, min(begin + BATCH, turns))], ordered=False)

    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(write, range(0, turns, BATCH)))
    collection.delete_one({"_id": template["_id"]})


def fill_file(path: str, turns: int) -> None:
    """The same for a file."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        cursor = connection.execute("SELECT * FROM turns")
        template = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))
        connection.execute("DELETE FROM turns")
        messages = json.loads(template["messages"])
        insert = f"INSERT INTO turns VALUES ({', '.join(f':{name}' for name in template)})"
        for i in range(turns):
            at, ids = place_of(i, turns), [str(uuid4()) for _ in messages]
            said = json.dumps([{**message, "id": name} for message, name in zip(messages, ids, strict=True)])
            connection.execute(
                insert, {**template, **at._asdict(), "op": f"turn:{i}", "messages": said, "checksum": None}
            )
            places = [(at.user_id, at.session_id, name, at.seq) for name in ids]
            connection.executemany("INSERT INTO message_ids VALUES (?, ?, ?, ?)", places)
