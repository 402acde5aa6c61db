"""A vector store in a SQLite file."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.embeddings import Embeddings

from langchain_memkit.backends.sqlite.database import OWNER_ALONE, Database, Transactions, shared_database
from langchain_memkit.backends.sqlite.history import LIVE, date_of, parse_json
from langchain_memkit.base import Now, SessionInfo, utc_now
from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.ranking.tokenize import STEMS_VERSION
from langchain_memkit.stores.vector_cache import ReadUpTo, SessionState, UserChanges
from langchain_memkit.stores.vector_rows import DocumentRow, IndexRow, Mark, NewRecord, WriteResult, check_expected
from langchain_memkit.stores.vectors import CACHE_BYTES, RecordVectorStore, SessionSnapshot

CELLS = "seq, facts, stems_version, vector, text, metadata, digest, v"  # the columns of `Cells`, in order
STORED = ", ".join(["seq", *DocumentRow._fields[1:]])
TEXTS = STORED.replace(", vector", ", NULL")  # without the vector, which takes time to read
COLUMNS = (
    "seq", "id", "user_id", "session_id", "round_id", "position", "digest", "created_at", "expires_at", "facts",
    "stems_version", "vector", "text", "metadata", "v",
)  # fmt: skip
INSERT = f"INSERT INTO vectors ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
UPDATE = f"UPDATE vectors SET {', '.join(f'{name} = ?' for name in COLUMNS)} WHERE id = ? AND user_id = ?"


def values_of(row: NewRecord) -> list[Any]:
    """Return the values of a row in the order of `COLUMNS`; its number is filled in when it is written."""
    entry = row.entry
    # text that is not valid Unicode (a lone surrogate) is stored as a blob of JSON
    text = row.text if isinstance(row.text, str) else json.dumps(row.text).encode()
    at, expires_at = _seconds(entry.at), _seconds(entry.expires_at)
    facts = [
        entry.id, entry.session, entry.round_id, entry.position, at, entry.importance, entry.epoch, expires_at,
        row.said, entry.messages,
    ]  # fmt: skip
    return [
        None, entry.id, row.user_id, entry.session, entry.round_id, entry.position, row.digest, at, expires_at,
        json.dumps(facts, ensure_ascii=False), STEMS_VERSION, row.vector, text,
        json.dumps(row.metadata, ensure_ascii=False), FORMAT_VERSION,
    ]  # fmt: skip


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def cells_of(rows: Sequence[Sequence[Any]]) -> list[IndexRow]:
    """Parse rows with the columns `CELLS`."""
    try:
        facts = json.loads(f"[{','.join([row[1] for row in rows])}]")  # all rows at once, which is faster
        if len(facts) != len(rows):
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        facts = [parse_json(row[1]) for row in rows]
    return [
        IndexRow(row[0], fact, row[2], row[3], parse_json(row[4]) if isinstance(row[4], bytes) else row[4], *row[5:])
        for row, fact in zip(rows, facts, strict=True)
    ]


def stored_of(row: Sequence[Any]) -> DocumentRow:
    """Parse a row with the columns `STORED`."""
    stored = DocumentRow(*row)
    text = parse_json(stored.text) if isinstance(stored.text, bytes) else stored.text
    return stored._replace(text=text, metadata=parse_json(stored.metadata))


STEP = 2**16
# Stamps have random gaps, so two different sets of records hardly ever have the same sum: count and sum are a version
# that no write has to maintain, and that rows deleted by hand change as well.
MARK = (
    "SELECT count(*), coalesce(sum(seq), 0), (SELECT generation FROM vector_generations"
    " WHERE user_id = :user AND session_id = :session) FROM vectors WHERE user_id = :user"
)
LAST_STAMP = (
    f"SELECT seq FROM vectors WHERE user_id = :user AND session_id = :session AND {LIVE} ORDER BY position DESC LIMIT 1"
)
THESE = "IN (SELECT value FROM json_each(:these))"
PROBE = "probe 1"


class SQLiteVectorRecords(Transactions):
    """The vector backend on SQLite; see `backends/_vectors` for how memories and searches use it."""

    def __init__(self, database: Database, now: Now) -> None:
        self._database = database
        self._now = now

    async def setup(self) -> None:
        """Open the file, which creates its tables."""
        await self._read(lambda connection: None)

    # -- reading

    async def _select(self, statement: str, **parameters: Any) -> list[Any]:
        given = {"now": self._now().timestamp(), **parameters}
        return await self._read(lambda connection: connection.execute(statement, given).fetchall())

    async def news(self, user_id: str, session_id: str | None, since: ReadUpTo | None) -> UserChanges:
        """Return the user's version (record count, sum of stamps), a session's generation, and records added since."""

        def look(connection: sqlite3.Connection) -> UserChanges:
            given = {"user": user_id, "session": session_id}
            count, total, generation = connection.execute(MARK, given).fetchone()
            # No state: the stamp of the session's last record serves as one.
            session = None if generation is None else SessionState(generation)
            if since is None or since.mark == (count, total):
                return UserChanges(session, (count, total))
            # The process's own writes are cached already. They cannot be skipped by a higher limit, since others may
            # have written lower stamps meanwhile.
            added = f"SELECT {CELLS} FROM vectors WHERE user_id = :user AND seq > :stamp AND seq NOT {THESE}"
            more = {"user": user_id, "stamp": since.stamp, "these": json.dumps(since.own)}
            return UserChanges(session, (count, total), cells_of(connection.execute(added, more).fetchall()))

        return await self._read(look)

    def change(self, cells: Sequence[IndexRow], replaced: Sequence[int]) -> Mark:
        """Return by how much the version changes when records are added in place of those with some stamps."""
        return len(cells) - len(replaced), sum(row.stamp for row in cells) - sum(replaced)

    async def stamps(self, user_id: str) -> list[int]:
        """Return the stamps of the user's records, in ascending order."""
        rows = await self._select("SELECT seq FROM vectors WHERE user_id = :user ORDER BY seq", user=user_id)
        return [row[0] for row in rows]

    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[IndexRow]:
        """Read the records with some stamps, to rank them."""
        rows = await self._rows(CELLS, user_id, stamps)
        return cells_of(rows)

    async def stored(self, user_id: str, stamps: Sequence[int]) -> list[DocumentRow]:
        """Read the records with some stamps, to return them as documents."""
        rows = await self._rows(STORED, user_id, stamps)
        return [stored_of(row) for row in rows]

    async def _rows(self, columns: str, user_id: str, stamps: Sequence[int]) -> list[Any]:
        # the plus sign makes SQLite look the rows up by number, not by the index on users
        statement = f"SELECT {columns} FROM vectors WHERE seq {THESE} AND +user_id = :user"
        return await self._select(statement, user=user_id, these=json.dumps(stamps))

    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[DocumentRow]:
        """Read records of a user by id, to return them as documents."""
        statement = f"SELECT {STORED if vectors else TEXTS} FROM vectors WHERE id {THESE} AND user_id = :user"
        rows = await self._select(statement, user=user_id, these=json.dumps(ids))
        return [stored_of(row) for row in rows]

    async def owned(self, ids: Sequence[str]) -> bool:
        """Return whether any user has a record with one of these ids."""
        statement = f"SELECT 1 FROM vectors WHERE id {THESE} AND user_id <> '' LIMIT 1"
        return bool(await self._select(statement, these=json.dumps(ids)))

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the times at which the user's records were last recalled, by id."""
        rows = await self._select("SELECT id, at FROM vector_accesses WHERE user_id = :user", user=user_id)
        return {name: datetime.fromtimestamp(at, UTC) for name, at in rows}

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """Return the user's sessions, most recently used first."""
        rows = await self._select(
            "SELECT session_id, count(DISTINCT round_id), min(created_at), max(created_at) FROM vectors"
            f" WHERE user_id = :user AND session_id <> '' AND {LIVE} GROUP BY session_id"
            " ORDER BY max(created_at) DESC, max(seq) DESC",
            user=user_id,
        )
        return [SessionInfo(name, rounds, date_of(first), date_of(last)) for name, rounds, first, last in rows]

    async def probe(self) -> bytes | None:
        """Return the stored vector of the probe text; None if nothing was embedded yet."""
        rows = await self._select("SELECT value FROM vector_meta WHERE name = :name", name=PROBE)
        return bytes(rows[0][0]) if rows else None

    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str],
        ids: Sequence[str],
        messages: Collection[str] | None,
    ) -> SessionSnapshot:
        """Read generation, last record (always: it costs nothing here), stored vectors, and records."""
        given = {"user": user_id, "session": session_id, "now": self._now().timestamp()}

        def look(connection: sqlite3.Connection) -> tuple[str | None, list[Any], list[Any], list[Any]]:
            generation = _generation(connection, user_id, session_id)
            last = f"SELECT {TEXTS}, position FROM vectors WHERE user_id = :user AND session_id = :session AND {LIVE}"
            last += " ORDER BY position DESC LIMIT 1"
            vectors = f"SELECT digest, vector FROM vectors WHERE user_id = :user AND digest {THESE}"
            vectors += " AND vector IS NOT NULL GROUP BY digest"
            records = f"SELECT {TEXTS} FROM vectors WHERE id {THESE} AND +user_id = :user AND +session_id = :session"

            def found(statement: str, names: Sequence[str]) -> list[Any]:
                return connection.execute(statement, {**given, "these": json.dumps(names)}).fetchall() if names else []

            return generation, found(last, [session_id]), found(vectors, digests), found(records, ids)

        def draw(connection: sqlite3.Connection) -> str:
            # Another process may begin the session at the same time: the first one's generation is used by both.
            statement = "INSERT OR IGNORE INTO vector_generations VALUES (?, ?, ?)"
            connection.execute(statement, (user_id, session_id, uuid4().hex))
            return _generation(connection, user_id, session_id) or ""

        generation, last, vectors, records = await self._read(look)
        if generation is None:
            generation = await self._write(draw)
        shown = [[stored_of(row) for row in rows] for rows in ([row[:-1] for row in last], records)]
        return SessionSnapshot(generation, shown[0], dict(map(tuple, vectors)), shown[1], last[0][-1] if last else 0)

    # -- writing

    async def keep_probe(self, probe: bytes) -> bytes:
        """Store the probe's vector unless there is one, and return the stored one."""

        def keep(connection: sqlite3.Connection) -> bytes:
            connection.execute("INSERT OR IGNORE INTO vector_meta VALUES (?, ?)", (PROBE, probe))
            return bytes(connection.execute("SELECT value FROM vector_meta WHERE name = ?", (PROBE,)).fetchone()[0])

        return await self._write(keep)

    async def write(
        self,
        user_id: str,
        rows: Sequence[NewRecord],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
    ) -> WriteResult | None:
        """Store rows and delete others in one transaction; None if the session has another generation."""
        ready = [values_of(row) for row in rows]
        return await self._write(partial(self._store, user_id, ready, delete, place, expected, state))

    def _store(
        self,
        user_id: str,
        rows: Sequence[list[Any]],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
        connection: sqlite3.Connection,
    ) -> WriteResult | None:
        # The session was forgotten after this write began: storing it would bring back erased text.
        if place is not None and _generation(connection, user_id, place[0]) != place[1]:
            return None
        # Compare-and-set: whoever started from a cached snapshot has not seen records added since.
        if place is not None and state is not None:
            session = {"user": user_id, "session": place[0], "now": self._now().timestamp()}
            last = connection.execute(LAST_STAMP, session).fetchone()
            if (last[0] if last else 0) != state:
                msg = f"session {place[0]!r:.80} was changed by somebody else. Nothing was stored: begin again."
                raise HistoryConflictError(msg)
        expired = connection.execute(
            "DELETE FROM vectors WHERE seq IN (SELECT seq FROM vectors WHERE expires_at <= ? LIMIT 100)"
            " RETURNING user_id, seq",
            (self._now().timestamp(),),
        ).fetchall()
        ids = [row[1] for row in rows]
        old = connection.execute(
            f"SELECT id, seq, session_id, digest FROM vectors WHERE id {THESE} AND user_id = :user",
            {"these": json.dumps([*ids, *delete, *expected]), "user": user_id},
        ).fetchall()
        here = {name: digest for name, _, session, digest in old if place and session == place[0]}
        check_expected(expected, here)
        old = [row for row in old if row[0] in {*ids, *delete}]
        sessions = {row[1]: row[3] for row in rows}
        for name, _, session, _ in old:
            if name in sessions and session != sessions[name]:
                msg = f"id {name!r:.80} belongs to a document of another session. Nothing was stored."
                raise HistoryConflictError(msg)
        known = {name: seq for name, seq, *_ in old}
        stamp = _last_stamp(connection)
        for row in rows:
            # random gaps make the sum of stamps a version: two sets of records hardly ever have the same one
            row[0] = stamp = stamp + random.randint(1, STEP)  # noqa: S311  # no secret
            if row[1] in known:
                connection.execute(UPDATE, (*row, row[1], user_id))
            else:
                connection.execute(INSERT, row)
        gone = [name for name in delete if name in known]
        if gone:
            remove = f"DELETE FROM vectors WHERE id {THESE} AND user_id = :user"
            connection.execute(remove, {"these": json.dumps(gone), "user": user_id})
        # The change covers expired rows too, else the writer's own cache would be taken for outdated.
        lost = [*known.values(), *(seq for owner, seq in expired if owner == user_id)]
        return WriteResult([row[0] for row in rows], (len(rows) - len(lost), sum(row[0] for row in rows) - sum(lost)))

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store the time at which records were recalled, unless a later one is stored."""
        statement = (
            f"INSERT INTO vector_accesses SELECT user_id, id, :at FROM vectors WHERE id {THESE} AND user_id = :user"
            " ON CONFLICT (user_id, id) DO UPDATE SET at = max(at, excluded.at)"
        )
        await self._changed(statement, user=user_id, these=json.dumps(ids), at=at.timestamp())

    async def _changed(self, statement: str, *, deleting: bool = False, **parameters: Any) -> int:
        def change(connection: sqlite3.Connection) -> int:
            return connection.execute(statement, parameters).rowcount

        count: int = await self._write(change, deleting=deleting)
        return count

    # -- deleting

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Delete records of a user."""
        remove = f"DELETE FROM vectors WHERE id {THESE} AND user_id = :user"
        if await self._changed(remove, deleting=True, user=user_id, these=json.dumps(ids)):
            await self._erase()

    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Delete a session, or all of a user, and return the number of records deleted."""
        here = "user_id = :user" if session_id is None else "user_id = :user AND session_id = :session"

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
        """Delete the records above the limit, first those never recalled, and return their number."""
        never = (
            "DELETE FROM vectors WHERE seq IN (SELECT seq FROM vectors v WHERE user_id = :user AND NOT EXISTS"
            " (SELECT 1 FROM vector_accesses a WHERE a.user_id = :user AND a.id = v.id)"
            f" AND id NOT {THESE} ORDER BY created_at, seq LIMIT :n)"
        )
        longest = (
            "DELETE FROM vectors WHERE user_id = :user AND id IN"
            f" (SELECT id FROM vector_accesses WHERE user_id = :user AND id NOT {THESE} ORDER BY at LIMIT :n)"
        )

        def delete(connection: sqlite3.Connection) -> int:
            (count,) = connection.execute("SELECT count(*) FROM vectors WHERE user_id = ?", (user_id,)).fetchone()
            surplus = left = max(0, int(count) - max_records)
            for statement in (never, longest):
                if left:
                    given = {"user": user_id, "n": left, "these": json.dumps(keep)}
                    left -= connection.execute(statement, given).rowcount
            return surplus - left

        return await self._write(delete)


def _last_stamp(connection: sqlite3.Connection) -> int:
    """Return the highest stamp that any row has or had, so that none is used twice."""
    (stamp,) = connection.execute(
        "SELECT max(coalesce((SELECT max(seq) FROM vectors), 0),"
        " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'vectors'), 0))"
    ).fetchone()
    return int(stamp)


def _generation(connection: sqlite3.Connection, user_id: str, session_id: str) -> str | None:
    statement = "SELECT generation FROM vector_generations WHERE user_id = ? AND session_id = ?"
    row = connection.execute(statement, (user_id, session_id)).fetchone()
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
        database = shared_database(path, timeout, file_mode)
        super().__init__(SQLiteVectorRecords(database, now), embedding, cache_bytes, now)
        self._path = database.path

    def __repr__(self) -> str:
        """Show the file."""
        return f"{type(self).__name__}({self._path!r})"
