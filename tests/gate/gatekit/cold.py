"""The first question of a user in a new process: `python -m gatekit.cold PLACE`. What R25 measures.

Nothing is cached but what the server and the system keep of files: a new process, new connections, an index that is
read and built for the first time.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from gatekit.systems import SYSTEMS, Place
from langchain_memkit import VectorMemory, WordLlamaEmbeddings
from langchain_memkit.base import Turn
from langchain_memkit.migrate import migrate
from langchain_memkit.migrate.sources import Conversation, ConversationSource

SESSION = 100  # rounds
QUESTION = "Where did I put the violin that my sister gave me in the winter?"
EVIDENCE = "My sister's violin stands behind the blue cupboard since the winter."
TEXT = (
    "garden harbour recipe ladder mountain ticket doctor painting river camera blanket engine teacher passport lemon "
    "bicycle island concert window letter pepper theatre kitchen forest market jacket bridge holiday meeting project "
    "deadline invoice museum orchestra saddle compass lantern basket thunder pillow candle mirror puzzle rocket salad"
)
WORDS = TEXT.split()


@contextmanager
def memories_of(place: Place) -> Iterator[tuple[Any, Any]]:
    """Histories of their own clients, and vector memories over them."""
    with SYSTEMS["memkit"]().histories(place) as histories:
        yield histories, VectorMemory.factory(histories, WordLlamaEmbeddings())


def fill(place: Place, user: str, rounds: int) -> None:
    """So many rounds of a user, each a turn with its index, in sessions of a hundred; one holds what will be asked."""
    with memories_of(place) as (histories, memories):
        migrate(ConversationSource(partial(_conversations, user, rounds)), histories, progress=False)
        assert memories("now", user).index(progress=False) == rounds


def _conversations(user: str, rounds: int) -> Generator[Conversation, None, None]:
    for begin in range(0, rounds, SESSION):
        yield Conversation(f"s{begin}", user, partial(_turns, begin, rounds))


def _turns(begin: int, rounds: int) -> Iterator[Turn]:
    for i in range(begin, begin + SESSION):
        yield Turn(0, 0, f"turn:{i}", datetime.now(UTC), _round(i, rounds), tokens=[])


def _round(i: int, rounds: int) -> list[Any]:
    if i == rounds // 3:
        return [HumanMessage(EVIDENCE), AIMessage("I shall remember that.")]
    one, two = (" ".join(WORDS[(i * step + k * k) % len(WORDS)] for k in range(12)) for step in (7, 11))
    return [HumanMessage(f"{i}: {one}."), AIMessage(f"{two}, {i}.")]


def bare_read(place: Place, user: str) -> int:
    """All turns of the user with their indexes as the driver gives them, over a new connection: how many."""
    if place.kind == "sqlite":
        query = "SELECT * FROM turns JOIN turn_indexes USING (user_id, session_id, seq) WHERE user_id = ?"
        with closing(sqlite3.connect(place.uri)) as file:
            return len(file.execute(query, (user,)).fetchall())
    client: MongoClient[dict[str, Any]]
    with MongoClient(place.uri) as client:
        return len(client[place.database]["message_store"].find({"user_id": user}).to_list())


def measured(place: Place, user: str) -> dict[str, Any]:
    """Processor time of the first recall and of the bare read, in seconds; and whether what was asked was found.

    Processor time, and of the bare read the least of two: other processes on the machine hardly change them.
    """
    WordLlamaEmbeddings().embed_query("warm")  # a file is loaded once, whatever is asked: not what grows with a user
    bare = []
    for _ in range(2):  # the first one loads the driver's own modules
        started = time.process_time()
        records = bare_read(place, user)
        bare.append(time.process_time() - started)
    with memories_of(place) as (_, memories):
        started = time.process_time()
        notes = memories("now", user).load(QUESTION)
        first = time.process_time() - started
    said = "\n".join(message.text for message in notes)
    return {"records": records, "bare": min(bare), "first": first, "found": EVIDENCE in said}


if __name__ == "__main__":
    kind, uri, database, user = json.loads(sys.argv[1])
    print(json.dumps(measured(Place(kind, uri, database), user)))
