"""Pages of sessions among 100,000, and a search over 1,000,000 messages: `python -m benchmarks.sessions`.

Method. One process, one SQLite file and one standalone mongod on this machine; every write is on disk or in memory
alike for what is compared, since only reads are timed. One user has 100,000 sessions of two turns (four messages); one
session in ten was returned to at another time, so that its turns lie far apart. Another user has 500,000 turns
(1,000,000 messages) of passages of texts/english.txt in 5,000 sessions. Rows and documents are those that the stores
make, inserted in bulk. Pages of 50 are read from the front, each with the cursor of the page before, and page 1 and
page 1,000 are timed in turns. Commands are what the driver sends, statements what SQLite runs. A rare word stands in
five messages, among the oldest half of all; a frequent one in most; one that is nowhere shows what a look through all
costs.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from benchmarks.common import TEXTS, Case, Row, alternate, arguments, environment, finish, median, ratio, say
from benchmarks.turn_costs import Sent, statements
from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.backends.mongodb import documents
from langchain_memkit.base import SessionHead
from langchain_memkit.stores import SessionScope, TurnRow
from tools.local_mongodb import local_mongodb

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
PAGE = 50
LISTED, SEARCHED = "lists", "searches"  # the users
RARE, FREQUENT, NOWHERE = "quokka", "the", "axolotl"
Stored = tuple[SessionScope, SessionHead, TurnRow]


def turn_of(scope: SessionScope, seq: int, minute: float, texts: tuple[str, str]) -> Stored:
    """A turn as a store is given it."""
    said = zip(("human", "ai"), texts, strict=True)
    messages = [{"role": role, "content": text, "id": f"{scope.session_id}-{seq}-{role}"} for role, text in said]
    row = TurnRow(f"turn:{seq}", messages, [len(text) // 4 for text in texts], BEGIN + timedelta(minutes=minute))
    return scope, SessionHead(seq, 1, 0), row


def listed_turns(sessions: int) -> Iterator[Stored]:
    """Two turns of each session."""
    chance = random.Random(1)
    for i in range(sessions):
        scope = SessionScope(LISTED, f"session-{i:06}")
        again = chance.uniform(i, sessions) if chance.random() < 0.1 else i + 0.5
        yield turn_of(scope, 1, i, (f"Where is reef number {i}?", "It is in the north. " * 5))
        yield turn_of(scope, 2, again, ("And how deep is it?", f"Reef {i} is {i % 90} metres deep. " * 5))


def searched_turns(turns: int) -> Iterator[Stored]:
    """Turns of many sessions in turn, with the rare word in five messages of the older half."""
    words = (TEXTS / "english.txt").read_text(encoding="utf-8").split()
    rare = {turns // 20 + i * turns // 10 for i in range(5)}
    sessions = max(1, turns // 100)
    for i in range(turns):
        begin = (i * 37) % (len(words) - 60)
        question, answer = " ".join(words[begin : begin + 15]), " ".join(words[begin + 15 : begin + 60])
        scope = SessionScope(SEARCHED, f"session-{i % sessions:05}")
        yield turn_of(scope, i // sessions + 1, i, (question, f"{answer} {RARE}" if i in rare else answer))


def in_batches(turns: Iterator[Stored], size: int = 5_000) -> Iterator[list[Stored]]:
    """The turns, some thousand at a time."""
    while some := list(itertools.islice(turns, size)):
        yield some


@contextmanager
def sqlite(turns: Iterator[Stored]) -> Iterator[tuple[Any, Callable[[Callable[[], object]], Counter[str]]]]:
    """Histories in a filled SQLite file, and a way to count the statements of a call."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat.db"
        with SQLiteChatMessageHistory.factory(path) as histories:
            store: Any = histories.turn_store
            for some in in_batches(turns):

                def insert(connection: Any, some: list[Stored] = some) -> None:
                    for scope, head, row in some:
                        store._insert(connection, scope, head, "turn", row)

                store.run(store._write(insert))

            def count(call: Callable[[], object]) -> Counter[str]:
                counted: Counter[str] = Counter()
                store._database.close()
                with statements(counted):
                    call()  # opens a connection
                    counted.clear()
                    call()
                store._database.close()
                return counted

            yield histories, count


def watched_client(uri: str, sent: Sent) -> MongoClient[dict[str, Any]]:
    """A client whose commands are counted."""
    return MongoClient(uri, event_listeners=[sent], tz_aware=True)


@contextmanager
def mongodb(turns: Iterator[Stored]) -> Iterator[tuple[Any, Callable[[Callable[[], object]], Counter[str]]]]:
    """Histories in a filled collection, and a way to count the commands of a call."""
    sent = Sent()
    with (
        local_mongodb() as server,
        closing(watched_client(server.uri, sent)) as client,
        MongoDBChatMessageHistory.factory(None, client=client) as histories,
    ):
        histories.setup()
        store: Any = histories.turn_store
        settings = store.settings
        collection = client[settings.names[0]][settings.names[1]]
        for some in in_batches(turns):
            made = [documents.turn_document(*each, settings, BEGIN) for each in some]
            collection.insert_many(made, ordered=False)

        def count(call: Callable[[], object]) -> Counter[str]:
            call()
            sent.names.clear()
            call()
            return Counter(sent.names)

        yield histories, count


def measure(store: str, opened: Any, sessions: int, turns: int, runs: int, *, quick: bool) -> list[Row]:
    """All rows of one store."""
    say(f"{store}: {sessions:,} sessions and {2 * turns:,} messages are inserted")
    with opened(itertools.chain(listed_turns(sessions), searched_turns(turns))) as (histories, count):
        last = (sessions // PAGE) // 2 if not quick else 10
        say(f"{store}: pages 1 to {last}")
        cursor, seen = None, set()
        for _ in range(last - 1):
            page = histories.list_sessions(LISTED, limit=PAGE, before=cursor)
            seen |= {session.session_id for session in page}
            cursor = page[-1].cursor
        assert len(seen) == (last - 1) * PAGE
        calls = {
            1: partial(histories.list_sessions, LISTED, limit=PAGE),
            last: partial(histories.list_sessions, LISTED, limit=PAGE, before=cursor),
        }
        cases = [
            Case({"measurement": "page", "store": store, "page": number, "sessions": sessions, "size": PAGE}, run=call)
            for number, call in calls.items()
        ]
        rows = alternate(cases, runs, budget=30.0)
        for row in rows:
            row["commands"] = sum(count(calls[row["page"]]).values())
        say(f"{store}: searches")
        searches = {
            (word, limit): partial(histories.search_messages, SEARCHED, word, limit=limit)
            for word, limit in ((FREQUENT, 20), (RARE, 5), (NOWHERE, 20))
        }
        names = {FREQUENT: "frequent", RARE: "rare", NOWHERE: "nowhere"}
        cases = [
            Case({"measurement": "search", "store": store, "word": names[word], "messages": 2 * turns,
                  "found": len(call())}, run=call)
            for (word, _), call in searches.items()
        ]  # fmt: skip
        return rows + alternate(cases, 3, budget=60.0)


def main() -> None:
    """Runs it."""
    options = arguments("Pages of sessions among 100,000, and a search over 1,000,000 messages.").parse_args()
    about = environment(quick=options.quick, packages=("pymongo",))
    size = (1_000, 2_000, 3) if options.quick else (100_000, 500_000, 41)
    rows: list[Row] = []
    for store, opened in (("sqlite", sqlite), ("mongodb", mongodb)):
        rows += measure(store, opened, *size, quick=options.quick)
    last = max(row.get("page", 0) for row in rows)
    ratios = [
        ratio(
            f"time, page {last:,} / page 1",
            median(rows, measurement="page", store=store, page=last)
            / median(rows, measurement="page", store=store, page=1),
            None if options.quick else "<= 1.3",
            store=store,
        )
        for store in ("sqlite", "mongodb")
    ]
    finish("sessions", options.output, about, rows, ratios, full=not options.quick)


if __name__ == "__main__":
    main()
