"""A vector store in a SQLite file."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import uuid4

from langchain_core.embeddings import Embeddings

from langchain_memkit.backends.sqlite.database import OWNER_ALONE, Transactions, shared_database
from langchain_memkit.backends.sqlite.history import HERE, LIVE, date_of, parse_json
from langchain_memkit.base import Now, SessionInfo, utc_now
from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.ranking.tokenize import STEMS_VERSION
from langchain_memkit.stores import vector_rows
from langchain_memkit.stores.vector_rows import IndexRow, SessionSnapshot, UserChanges, VectorBackend, WriteResult
from langchain_memkit.stores.vectors import CACHE_BYTES, RecordVectorStore

CELLS = "seq, facts, vector, text, metadata, digest, v, stems_version"  # the columns of `IndexRow`
STORED = ", ".join(["seq", *vector_rows.DocumentRow._fields[1:]])
TEXTS = STORED.replace(", vector", ", NULL")  # without the vector, which takes time to read
Row: TypeAlias = Sequence[Any]
COLUMNS = (
    "seq", "id", "user_id", "session_id", "round_id", "position", "digest", "created_at", "expires_at", "facts",
    "stems_version", "vector", "text", "metadata", "v",
)  # fmt: skip
INSERT = f"INSERT INTO vectors ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
UPDATE = f"UPDATE vectors SET {', '.join(f'{name} = ?' for name in COLUMNS)} WHERE id = ? AND user_id = ?"


def values_of(row: vector_rows.NewRecord) -> list[object]:
    """Return the values of a row in the order of `COLUMNS`; its number is filled in when it is written."""
    entry = row.entry
    # text that is not valid Unicode (a lone surrogate) is stored as a blob of JSON
    text = row.text if isinstance(row.text, str) else json.dumps(row.text).encode()
    at, expires_at = (None if date is None else date.timestamp() for date in (entry.at, entry.expires_at))
    facts = [
        entry.id, entry.session, entry.round_id, entry.position, at, entry.importance, entry.epoch, expires_at,
        row.said, entry.messages,
    ]  # fmt: skip
    return [
        None, entry.id, row.user_id, entry.session, entry.round_id, entry.position, row.digest, at, expires_at,
        json.dumps(facts, ensure_ascii=False), STEMS_VERSION, row.vector, text,
        json.dumps(row.metadata, ensure_ascii=False), FORMAT_VERSION,
    ]  # fmt: skip


def cells_of(rows: Sequence[Row]) -> list[IndexRow]:
    """Parse rows with the columns `CELLS`."""
    try:
        facts = json.loads(f"[{','.join([row[1] for row in rows])}]")  # all rows at once, which is faster
        if len(facts) != len(rows):
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        facts = [parse_json(row[1]) for row in rows]
    texts = [parse_json(row[3]) if isinstance(row[3], bytes) else row[3] for row in rows]
    return [IndexRow(row[0], fact, row[2], text, *row[4:]) for row, fact, text in zip(rows, facts, texts, strict=True)]


def stored_of(row: Row) -> vector_rows.DocumentRow:
    """Parse a row with the columns `STORED`."""
    stored = vector_rows.DocumentRow(*row)
    text = parse_json(stored.text) if isinstance(stored.text, bytes) else stored.text
    return stored._replace(text=text, metadata=parse_json(stored.metadata))


STEP = 2**16
GENERATION = f"SELECT generation FROM vector_generations WHERE {HERE}"
# Stamps have random gaps, so two different sets of records hardly ever have the same sum: count and sum are a version.
COUNTS = f"coalesce(max(records), 0), coalesce(max(stamps), 0), ({GENERATION})"
MARK = f"SELECT {COUNTS} FROM vector_counts WHERE user_id = :user"
LAST_STAMP = f"SELECT seq FROM vectors WHERE {HERE} AND {LIVE} ORDER BY position DESC LIMIT 1"
EVER = "SELECT seq FROM sqlite_sequence WHERE name = 'vectors'"
# that any row has or had, so that none is used twice
HIGHEST_STAMP = f"SELECT max(coalesce((SELECT max(seq) FROM vectors), 0), coalesce(({EVER}), 0))"
THESE = "IN (SELECT value FROM json_each(:these))"
KNOWN = f"SELECT id, seq, session_id, digest FROM vectors WHERE id {THESE} AND user_id = :user"
DELETE = f"DELETE FROM vectors WHERE id {THESE} AND user_id = :user"
EXPIRED = "SELECT seq FROM vectors WHERE expires_at <= ? LIMIT 100"
EXPIRE = f"DELETE FROM vectors WHERE seq IN ({EXPIRED}) RETURNING user_id, seq"
PROBE = "probe 1"


class _VectorRows(Transactions, VectorBackend):
    """The `VectorBackend` on SQLite, whose methods are documented there."""

    # -- reading

    async def news(self, user_id: str, session_id: str | None, since: vector_rows.ReadUpTo | None) -> UserChanges:
        """Return the user's version (record count, sum of stamps), a session's generation, and records added since."""
        with self._reading() as connection:
            count, total, generation = connection.execute(MARK, {"user": user_id, "session": session_id}).fetchone()
            # No state: the stamp of the session's last record serves as one.
            session = None if generation is None else vector_rows.SessionState(generation)
            if since is None or since.mark == (count, total):
                return UserChanges(session, (count, total))
            # The process's own writes are cached already. They cannot be skipped by a higher limit, since others may
            # have written lower stamps meanwhile.
            added = f"SELECT {CELLS} FROM vectors WHERE user_id = :user AND seq > :stamp AND seq NOT {THESE}"
            more = {"user": user_id, "stamp": since.stamp, "these": json.dumps(since.own)}
            return UserChanges(session, (count, total), cells_of(connection.execute(added, more).fetchall()))

    def change(self, cells: Sequence[IndexRow], replaced: Sequence[int]) -> vector_rows.Mark:
        return len(cells) - len(replaced), sum(row.stamp for row in cells) - sum(replaced)

    async def stamps(self, user_id: str) -> list[int]:
        rows = await self._select("SELECT seq FROM vectors WHERE user_id = :user ORDER BY seq", user=user_id)
        return [row[0] for row in rows]

    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[IndexRow]:
        # the plus sign makes SQLite look the rows up by number, not by the index on users
        statement = f"SELECT {CELLS} FROM vectors WHERE seq {THESE} AND +user_id = :user"
        return cells_of(await self._select(statement, user=user_id, these=json.dumps(stamps)))

    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[vector_rows.DocumentRow]:
        statement = f"SELECT {STORED if vectors else TEXTS} FROM vectors WHERE id {THESE} AND user_id = :user"
        return [stored_of(row) for row in await self._select(statement, user=user_id, these=json.dumps(ids))]

    async def owned(self, ids: Sequence[str]) -> bool:
        statement = f"SELECT 1 FROM vectors WHERE id {THESE} AND user_id <> '' LIMIT 1"
        return bool(await self._select(statement, these=json.dumps(ids)))

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        rows = await self._select("SELECT id, at FROM vector_accesses WHERE user_id = :user", user=user_id)
        return {name: datetime.fromtimestamp(at, UTC) for name, at in rows}

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        query = "SELECT session_id, count(DISTINCT round_id), min(created_at), max(created_at) FROM vectors"
        query += f" WHERE user_id = :user AND session_id <> '' AND {LIVE} GROUP BY session_id"
        rows = await self._select(f"{query} ORDER BY max(created_at) DESC, max(seq) DESC", user=user_id)
        return [SessionInfo(name, rounds, date_of(first), date_of(last)) for name, rounds, first, last in rows]

    async def probe(self, new: bytes | None = None) -> bytes | None:
        if new is not None:
            await self._change("INSERT OR IGNORE INTO vector_meta VALUES (:name, :probe)", name=PROBE, probe=new)
        rows = await self._select("SELECT value FROM vector_meta WHERE name = :name", name=PROBE)
        return bytes(rows[0][0]) if rows else None

    async def begin(self, user_id: str, session_id: str, wanted: vector_rows.WantedRecords) -> SessionSnapshot:
        digests, ids, _ = wanted
        given = {"user": user_id, "session": session_id, "now": self._now().timestamp()}

        def rows_of(connection: sqlite3.Connection, statement: str, names: Sequence[str]) -> list[Row]:
            return connection.execute(statement, {**given, "these": json.dumps(names)}).fetchall() if names else []

        def draw(connection: sqlite3.Connection) -> str | None:
            # Another process may begin the session at the same time: the first one's generation is used by both.
            statement = "INSERT OR IGNORE INTO vector_generations VALUES (?, ?, ?)"
            connection.execute(statement, (user_id, session_id, uuid4().hex))
            return _generation(connection, user_id, session_id)

        ordered = f"{HERE} AND {LIVE} ORDER BY position DESC LIMIT 1"
        known = f"SELECT digest, vector FROM vectors WHERE user_id = :user AND digest {THESE}"
        named = f"SELECT {TEXTS} FROM vectors WHERE id {THESE} AND +user_id = :user AND +session_id = :session"
        with self._reading() as connection:
            generation = _generation(connection, user_id, session_id)
            last = rows_of(connection, f"SELECT {TEXTS}, position FROM vectors WHERE {ordered}", [session_id])
            vectors = rows_of(connection, f"{known} AND vector IS NOT NULL GROUP BY digest", digests)
            records = rows_of(connection, named, ids)
        drawn, position = str(generation or await self._write(draw)), last[0][-1] if last else 0
        newest, own = [stored_of(row[:-1]) for row in last], [stored_of(row) for row in records]
        return SessionSnapshot(drawn, newest, dict(map(tuple, vectors)), own, position)

    # -- writing

    async def write(self, user_id: str, given: vector_rows.RecordWrite) -> WriteResult | None:
        rows, delete, place, expected, state = given
        ready = [values_of(row) for row in rows]
        sessions = {row.entry.id: row.entry.session for row in rows}
        now = self._now().timestamp()

        def store(connection: sqlite3.Connection) -> WriteResult | None:
            # The session was forgotten after this write began: storing it would bring back erased text.
            if place is not None and _generation(connection, user_id, place[0]) != place[1]:
                return None
            # Compare-and-set: whoever started from a cached snapshot has not seen records added since.
            if place is not None and state is not None:
                last = connection.execute(LAST_STAMP, {"user": user_id, "session": place[0], "now": now}).fetchone()
                if (last[0] if last else 0) != state:
                    msg = f"session {place[0]!r:.80} was changed by somebody else. Nothing was stored: begin again."
                    raise HistoryConflictError(msg)
            expired = connection.execute(EXPIRE, (now,)).fetchall()
            named = {"these": json.dumps([*sessions, *delete, *expected]), "user": user_id}
            old = connection.execute(KNOWN, named).fetchall()
            vector_rows.check_expected(expected, {row[0]: row[3] for row in old if place and row[2] == place[0]})
            for name, _, session, _ in old:
                if sessions.get(name, session) != session:
                    msg = f"id {name!r:.80} belongs to a document of another session. Nothing was stored."
                    raise HistoryConflictError(msg)
            changed = {*sessions, *delete}
            known = {name: seq for name, seq, *_ in old if name in changed}
            stamps, (stamp,) = [], connection.execute(HIGHEST_STAMP).fetchone()
            for row in ready:
                # random gaps make the sum of stamps a version: two sets of records hardly ever have the same one
                stamp += random.randint(1, STEP)  # noqa: S311  # no secret
                stamps.append(stamp)
                if row[1] in known:
                    connection.execute(UPDATE, (stamp, *row[1:], row[1], user_id))
                else:
                    connection.execute(INSERT, (stamp, *row[1:]))
            if gone := [name for name in delete if name in known]:
                connection.execute(DELETE, {"these": json.dumps(gone), "user": user_id})
            # The change covers expired rows too, else the writer's own cache would be taken for outdated.
            lost = [*known.values(), *(seq for owner, seq in expired if owner == user_id)]
            return WriteResult(stamps, (len(stamps) - len(lost), sum(stamps) - sum(lost)))

        return await self._write(store)

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        statement = f"INSERT INTO vector_accesses SELECT user_id, id, :at FROM vectors WHERE id {THESE}"
        statement += " AND user_id = :user ON CONFLICT (user_id, id) DO UPDATE SET at = max(at, excluded.at)"
        await self._change(statement, user=user_id, these=json.dumps(ids), at=at.timestamp())

    # -- deleting

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        if await self._change(DELETE, deleting=True, user=user_id, these=json.dumps(ids)):
            await self._erase()

    async def forget(self, user_id: str, session_id: str | None) -> int:
        here = "user_id = :user" if session_id is None else HERE

        def delete(connection: sqlite3.Connection) -> int:
            given = {"user": user_id, "session": session_id}
            # Without its generation the session is a new one, so a write under way that holds the old one stores
            # nothing.
            connection.execute(f"DELETE FROM vector_generations WHERE {here}", given)
            return connection.execute(f"DELETE FROM vectors WHERE {here}", given).rowcount

        count = await self._write(delete, deleting=True)
        await self._erase(moved=True)
        return count

    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        others = f"user_id = :user AND id NOT {THESE}"
        unseen = "NOT EXISTS (SELECT 1 FROM vector_accesses a WHERE a.user_id = :user AND a.id = v.id)"
        never = f"SELECT seq FROM vectors v WHERE {others} AND {unseen} ORDER BY created_at, seq LIMIT :n"
        longest = f"SELECT id FROM vector_accesses WHERE {others} ORDER BY at LIMIT :n"

        def delete(connection: sqlite3.Connection) -> int:
            (count,) = connection.execute("SELECT count(*) FROM vectors WHERE user_id = ?", (user_id,)).fetchone()
            surplus = left = max(0, int(count) - max_records)
            for chosen in (f"seq IN ({never})", f"user_id = :user AND id IN ({longest})"):
                if left:
                    given = {"user": user_id, "n": left, "these": json.dumps(keep)}
                    left -= connection.execute(f"DELETE FROM vectors WHERE {chosen}", given).rowcount
            return surplus - left

        return await self._write(delete)


def _generation(connection: sqlite3.Connection, user_id: str, session_id: str) -> str | None:
    row = connection.execute(GENERATION, {"user": user_id, "session": session_id}).fetchone()
    return None if row is None else str(row[0])


class SQLiteVectorStore(RecordVectorStore):
    """A LangChain `VectorStore` in one SQLite file: exact search per user, durable, no server.

    Pass it to `VectorMemory`, or use it as any vector store. A document whose metadata has a `user_id` is found only by
    a search with that user in the filter; one without is unowned. Safe with threads and with several processes on one
    file: the next search sees what another process wrote or deleted. The file may hold chat histories as well. Deleted
    text is overwritten, its words and its vector too: `delete`, `forget` and `purge` do so everywhere and at once;
    records that `evict` deleted, that were replaced or have expired stay in the write-ahead log beside the file until
    that is reused, after some 4 MB of writes, or until the last process closes the file. No I/O happens before the
    first use.

    Args:
        path: The file; created at first use, its folder must exist. `":memory:"` keeps the data in this object.
        embedding: The embedding model. Vectors of two models are never mixed: the store knows which one filled it.
        cache_bytes: How many bytes of recently used users' records are cached in process, 96 MB by default; a record
            with 384 dimensions takes about 9 KB. The last user is cached however large, until another one is asked for.
        timeout: Seconds to wait for another process that is writing.
        file_mode: The permissions of the file, its -wal and its -shm if they are created here: 0o600 by default, for
            the owner alone; 0o660 shares it with a group. An existing file keeps its own.
        now: The clock, for tests.

    Raises:
        TypeError: The path is not a file name.
        ConfigurationError: `embedding` is not an `Embeddings`, or `cache_bytes` is not a number of bytes.

    Example:
        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> with SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8)) as store:
        ...     ids = store.add_texts(["Nemo is a fish.", "Kiwi is a parrot."], [{"user_id": "u1"}, {"user_id": "u2"}])
        ...     [document.page_content for document in store.similarity_search("parrot", filter={"user_id": "u1"})]
        ...     store.purge("u1")
        ['Nemo is a fish.']
        {'records': 1}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        embedding: Embeddings,
        *,
        cache_bytes: int = CACHE_BYTES,
        timeout: float = 30.0,
        file_mode: int = OWNER_ALONE,
        now: Now = utc_now,
    ) -> None:
        super().__init__(_VectorRows(shared_database(path, timeout, file_mode), now), embedding, cache_bytes, now)
