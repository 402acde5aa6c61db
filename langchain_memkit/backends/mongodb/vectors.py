"""A vector store in a MongoDB collection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, ClassVar, TypeAlias
from uuid import uuid4

from bson import Int64, MaxKey
from langchain_core.embeddings import Embeddings
from pymongo import AsyncMongoClient, IndexModel, MongoClient, ReturnDocument, UpdateOne
from pymongo.collection import Collection as DriverCollection
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends.mongodb import commands
from langchain_memkit.backends.mongodb import vector_documents as docs
from langchain_memkit.backends.mongodb.clients import BsonDict, Clients, scope_filter
from langchain_memkit.backends.mongodb.commands import BATCH, CollectionRef, DuplicateKey, Runner, batches, rows_of
from langchain_memkit.backends.mongodb.vector_documents import BY_ID, SessionWrite, records_filter, with_ids
from langchain_memkit.base import Now, SessionInfo, check_arguments, redact, utc_now
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, HistoryReadError
from langchain_memkit.stores import vector_rows
from langchain_memkit.stores.vector_filters import SearchScope
from langchain_memkit.stores.vector_rows import NewRecord, ReadUpTo, SessionSnapshot, VectorBackend, WriteResult
from langchain_memkit.stores.vectors import CACHE_BYTES, Hits, RecordVectorStore

Stamped: TypeAlias = Sequence[tuple[NewRecord, int]]
"""Records to store, each with its stamp."""

SAME = 8  # the most records read for one text, to find its vector
SEVERAL = 5  # sessions to try, since one may be forgotten meanwhile


class _VectorDocuments(Runner[CollectionRef], VectorBackend):
    """The `VectorBackend` on MongoDB, whose methods are documented there."""

    setup_call = "MongoDBVectorStore(...).setup()"

    def __init__(self, clients: Clients, settings: CollectionRef, now: Now) -> None:
        super().__init__(clients, settings)
        self._now = now
        self._has_search: bool | None = None  # not asked yet

    def index_models(self) -> list[IndexModel]:
        return docs.index_models()

    # -- reading

    async def news(self, user_id: str, session_id: str | None, since: ReadUpTo | None) -> vector_rows.UserChanges:
        """Read in one query what a cached index needs to know: `session` is left out if its last record has to be read.

        The user's version is the sum of the versions of all sessions, None if there are none.
        """
        # The order of the parts matters, because others may write in between. The session's version is read first: of a
        # write after that the records are among the new ones, while the version is the old one, so that the turn's
        # compare-and-set fails. In another order a turn could append without having seen the last record. A write
        # between the sum and the records leaves records that do not explain the sum: the cache lists everything.
        parts: list[list[BsonDict]] = []
        if session_id is not None:
            parts.append([{"$match": docs.session_filter(user_id, session_id)}, {"$project": docs.ON_SESSION}])
        parts.append([{"$match": docs.not_records(user_id)}, {"$group": {"_id": None, "total": {"$sum": "$stamp"}}}])
        if since is not None:
            # Exclude our own writes one by one instead of raising the watermark to them: other processes may have
            # stored records with lower numbers meanwhile.
            stamps = {"$gt": since.stamp, "$nin": [Int64(stamp) for stamp in since.own]}
            parts.append([{"$match": records_filter(user_id, stamp=stamps)}, {"$project": docs.ON_CELLS}])
        first, *others = parts
        pipeline = [*first, *({"$unionWith": {"coll": self.settings.names[1], "pipeline": part}} for part in others)]
        mark: vector_rows.Mark | None = None
        session, cells = None, []
        for found in await self.read(lambda c: rows_of(c.aggregate(pipeline))):
            if found["_id"] is None:
                mark = (int(found["total"]),) if found["total"] else None
            elif not docs.is_session(found):
                cells.append(docs.cells_of(found))
            elif (found.get("last") or {}).get("waits") is False:
                session = vector_rows.SessionState(str(found.get("generation")), int(found.get("stamp") or 0))
        return vector_rows.UserChanges(session, mark, cells)

    def change(self, cells: Sequence[vector_rows.IndexRow], replaced: Sequence[int]) -> vector_rows.Mark:
        """Return the change of the user's version that these records explain: the sum of the distinct steps."""
        # All records of one write share its step, hence the set.
        return (sum({int(row.step) for row in cells if isinstance(row.step, int)}),)

    async def stamps(self, user_id: str) -> list[int]:
        rows = await self.find(records_filter(user_id), {"_id": 0, "stamp": 1}, sort=[("stamp", 1)])
        return [int(row["stamp"]) for row in rows]

    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[vector_rows.IndexRow]:
        query = records_filter(user_id, stamp={"$in": list(stamps)})
        return [docs.cells_of(d) for d in await self._alive(user_id, query, docs.ON_CELLS)]

    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[vector_rows.DocumentRow]:
        found: list[vector_rows.DocumentRow] = []
        for batch in batches(ids):
            query = {**scope_filter(user_id), **with_ids(user_id, batch)}
            documents = await self._found(query, docs.ON_STORED if vectors else docs.ON_TEXTS, hint=BY_ID)
            records = [d for d in documents if isinstance(d.get("stamp"), int)]
            gone = {d["_id"] for d in await self._dead(user_id, records)}
            found += [docs.stored_of(d) for d in records if d["_id"] not in gone]
        return found

    async def owned(self, ids: Sequence[str]) -> bool:
        for batch in batches(ids):
            # Embedded documents compare field by field, so a range holds every `_id` that begins with the record id,
            # and the index on `_id` covers it.
            ranges = [{"_id": {"$gt": {"id": name}, "$lt": {"id": name, "user_id": MaxKey()}}} for name in batch]
            if await self.find({"$or": [{"_id": {"$in": batch}, "user_id": {"$gt": ""}}, *ranges]}, ["_id"], limit=1):
                return True
        return False

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        rows = await self._found(records_filter(user_id, accessed_at={"$type": "date"}), ["accessed_at"])
        return {row["_id"]: row["accessed_at"] for row in rows}

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        match = {**records_filter(user_id, expires_at={"$not": {"$lte": self._now()}}), "session_id": {"$gt": ""}}
        group: BsonDict = {"_id": {"session": "$session_id", "generation": "$generation"}}
        group |= {"first": {"$min": "$created_at"}, "last": {"$max": "$created_at"}}
        group["rounds"] = {"$addToSet": "$round_id"}
        rows = await self.aggregate([{"$match": match}, {"$group": group}, {"$sort": {"last": -1, "_id": 1}}])
        known = await self.find(docs.not_records(user_id), ["session_id", "generation"])
        generations = {d["session_id"]: d.get("generation") for d in known}
        # Documents outside of any session have an empty generation; a forgotten session's differs from the current.
        live = [row for row in rows if row["_id"].get("generation") in ("", generations.get(row["_id"]["session"]))]
        return [SessionInfo(row["_id"]["session"], len(row["rounds"]), row["first"], row["last"]) for row in live]

    async def probe(self, new: bytes | None = None) -> bytes | None:
        if new is not None:
            await self._ready()
            document = {"_id": docs.PROBE_ID, "user_id": "", "session_id": "", "probe": docs.binary(new)}
            with suppress(DuplicateKey):
                await self.sent(lambda c: c.insert_one(document))
        found = await self.find({"_id": {"$eq": docs.PROBE_ID}}, ["probe"])
        return docs.vector_of({"vector": found[0].get("probe")}) if found else None

    # -- the server's own search: Atlas, or a server with mongot

    async def has_search(self) -> bool:
        """Return whether the search index is ready; asks the server once."""
        if self._has_search is None:
            rows: list[BsonDict] = []
            with suppress(ConfigurationError), self._searching():
                rows = await self._search([{"$listSearchIndexes": {}}])
            self._has_search = any(row["name"] == docs.SEARCH_INDEX and row.get("queryable") is True for row in rows)
        return self._has_search

    async def build_search(self, dims: int) -> None:
        """Create the search index unless it exists; the server builds it in the background."""
        models = [docs.search_index_model(dims)]
        with self._searching():
            if docs.SEARCH_INDEX not in {row["name"] for row in await self._search([{"$listSearchIndexes": {}}])}:
                with self.reading():
                    await self.command(lambda c: c.create_search_indexes(models), self.settings.save_timeout)
        self._has_search = None

    @contextmanager
    def _searching(self) -> Iterator[None]:
        """Raise `ConfigurationError` where the server knows no search indexes."""
        try:
            yield
        except HistoryReadError as error:
            cause = error.__cause__
            if not isinstance(cause, OperationFailure) or commands.is_transient(cause):
                raise
            found = commands.text_of(cause)
            msg = f"{self.clients.hosts} has no search indexes: {found}. Leave out search_index=True."
            raise ConfigurationError(msg) from cause

    async def nearest(self, user_id: str, session_id: str | None, vector: Sequence[float], k: int) -> Hits:
        """Return the records with the nearest vectors and their cosines, nearest first, as the server finds them."""
        rows = await self._search(docs.search_pipeline(user_id, session_id, vector, k))
        # The server's score is (1 + cosine) / 2.
        cosines = {docs.record_id_of(row["_id"]): 2 * float(row[docs.SCORE]) - 1 for row in rows}
        shown = vector_rows.readable_documents([docs.stored_of(row) for row in rows], self._now())
        # The user is checked again here: the server's filter alone is never trusted.
        return [(s, cosines[s.document.id]) for s in shown if s.document.id and s.user_id == user_id]

    async def _search(self, pipeline: list[BsonDict]) -> list[BsonDict]:
        """Run a search pipeline with read concern local: the server refuses searches with majority."""
        local, limit = ReadConcern("local"), self.settings.timeout
        with self.reading():
            return await self.command(lambda c: rows_of(c.with_options(read_concern=local).aggregate(pipeline)), limit)

    # -- writing

    async def begin(self, user_id: str, session_id: str, wanted: vector_rows.WantedRecords) -> SessionSnapshot:
        digests, ids, messages = wanted
        most = 1 + len(ids) + SAME * len(digests)
        query = docs.begin_filter(user_id, session_id, digests, ids)
        found = await self._found(query, docs.ON_BEGIN, limit=most)
        # One text that is stored many times may have used up the limit: read the named documents once more, alone.
        if digests and len(found) == most:
            found += await self._found(docs.begin_filter(user_id, session_id, (), ids), docs.ON_BEGIN, hint=BY_ID)
        session = next((d for d in found if docs.is_session(d)), None)
        last, position = [], 0
        if session is None:
            generation = await self._draw(user_id, session_id)
        else:
            generation = str(session.get("generation"))
            told: Any = session.get("last")
            # The last record has to be read if it waits to be continued, or is one of these: the same text or messages.
            known = messages is not None and isinstance(told, Mapping) and told.get("waits") is False
            if not known or told["digest"] in digests or not set(messages or ()).isdisjoint(told["messages"]):
                here = {"generation": {"$eq": session.get("generation")}, "expires_at": {"$not": {"$lte": self._now()}}}
                here["position"] = {"$lt": math.inf}  # a number: it may be damaged
                query = records_filter(user_id, session_id, **here)
                last = await self._found(query, docs.ON_TEXTS, sort=[("position", -1)], limit=1)
                position = int(last[0]["position"]) if last else 0
            else:
                position = int(told["position"])
        vectors = {d["digest"]: docs.vector_of(d) or b"" for d in found if d.get("digest") in digests}
        place, names = [user_id, session_id, generation], set(ids)
        records = [d for d in found if not docs.is_session(d) and d["_id"] in names and isinstance(d.get("stamp"), int)]
        own = [d for d in records if [d.get(n) for n in ("user_id", "session_id", "generation")] == place]
        return SessionSnapshot(generation, [*map(docs.stored_of, last)], vectors, [*map(docs.stored_of, own)], position)

    async def _draw(self, user_id: str, session_id: str) -> str:
        """Begin a session, or return the generation that another process gave it in the same moment."""
        # A new session may be the first of a collection that was dropped and made anew: check its indexes again.
        await self._ready(again=True)
        here = docs.session_filter(user_id, session_id)
        drawn = {"$setOnInsert": {"generation": uuid4().hex, "stamp": Int64(0)}}
        while True:
            with suppress(DuplicateKey):  # another process began it: read its generation
                document: Any = await self.sent(
                    lambda c: c.find_one_and_update(here, drawn, upsert=True, return_document=ReturnDocument.AFTER)
                )
                return str(document["generation"])

    async def write(self, user_id: str, given: vector_rows.RecordWrite) -> WriteResult | None:
        """Store records and delete others; None if the session was forgotten since, and nothing stays stored.

        With a `state` and nothing to replace, the records are only added, and only to an unchanged session.
        """
        await self._ready()
        rows, delete, place, expected, state = given
        session_id, generation = place or ("", None)
        session = SessionWrite(user_id, session_id, generation, docs.random_increment())
        if place is None:
            await self._check_owners(user_id, rows, "Nothing was stored")
        elif state is not None and 0 < len(rows) <= BATCH and not (expected or delete):
            return await self._append(session, rows, state)
        stamps, total = docs.new_record_numbers(len(rows)), 0
        stamped = list(zip(rows, stamps, strict=True))
        changes = [(row, stamp) for row, stamp in stamped if row.entry.id not in expected]
        begun = alive = False
        # Compare-and-set first, in a bulk write of its own: if a record was changed, nothing else has been stored yet.
        if place is not None and expected:
            total = session.step
            begun = alive = await self._exchange(session, stamped, expected)
        if changes or not expected:
            for batch in batches(changes) if changes else [[]]:
                # one step per batch: a reader of new records adds the steps up
                session = session._replace(step=docs.random_increment())
                total += session.step
                alive = await self._upsert(session, batch, begun=begun)
                begun = True
                if not alive:
                    break
        if place is not None and not alive:
            await self._withdraw(session, rows)
            return None
        if delete:
            await self.delete_many(records_filter(user_id, **with_ids(user_id, delete)), begun=bool(rows))
            await self._bump(user_id)
        return WriteResult(stamps, (total,))

    async def _append(self, session: SessionWrite, rows: Sequence[NewRecord], state: int) -> WriteResult | None:
        """Insert new records iff the session's version is unchanged (compare-and-set); replace nothing.

        Returns None if the session was forgotten since, and raises `HistoryConflictError` if another writer changed it.
        """
        # One ordered bulk write: announce the write if the next save has to read our record, insert the records, then
        # bump the version. It succeeded only if every operation took effect.
        stamps, last = docs.new_record_numbers(len(rows)), docs.last_of(rows) or {}
        inserts = [session.insert(row, stamp) for row, stamp in zip(rows, stamps, strict=True)]
        before = [session.announce(state)] if last["waits"] else []
        with suppress(DuplicateKey):
            result = await self.bulk_write([*before, *inserts, session.append_if_unchanged(last, state)])
            if len(result.upserted_ids or ()) == len(rows) and result.matched_count == len(before) + 1:
                return WriteResult(stamps, (session.step,))
        # The records that went in stay, because the caller begins again and finds them stored. They still need a bump
        # of the version, which also tells whether the session exists.
        if not await self._is_alive(session.bump_version()):
            await self._withdraw(session, rows)
            return None
        problem = "was changed by somebody else meanwhile. Others may be stored: begin again."
        raise HistoryConflictError(f"session {session.session_id!r:.80} {problem}")

    async def _upsert(self, session: SessionWrite, batch: Stamped, *, begun: bool) -> bool:
        """Upsert records and bump the session's version; return whether the session still exists."""
        # One ordered bulk write with the session last: its generation has to be checked after the records were written,
        # else a concurrent `forget` could delete the session in between and leave them behind.
        rows = [row for row, _ in batch]
        last = docs.last_of(rows)
        operations = [*(session.upsert(row, stamp) for row, stamp in batch), session.bump_version(last)]
        # If the next save has to read our record, say so before storing it: this process may be killed in between.
        if session.generation is not None and last is not None and last["waits"]:
            operations.insert(0, session.announce())
        while True:
            try:
                result = await self.bulk_write(operations, begun=begun)
                return bool(result.matched_count + len(result.upserted_ids or ()) == len(operations))
            except DuplicateKey:
                # The id is that of a record of another session or user (an error), of a dead record of this session's
                # earlier generation (delete it and try again), or of a concurrent upsert (try again).
                begun = True
            await self._check_owners(session.user_id, rows, "Others of this call may be stored")
            if session.generation is not None:
                if not await self._is_alive(session.announce()):
                    return False
                ids = with_ids(session.user_id, [row.entry.id for row in rows])
                other = {"$ne": session.generation}
                dead = records_filter(session.user_id, session.session_id, generation=other, **ids)
                await self.delete_many(dead, begun=True)

    async def _exchange(self, session: SessionWrite, stamped: Stamped, expected: Mapping[str, str]) -> bool:
        """Replace the records that must be unchanged, before anything else is stored; False if the session is gone."""
        # A single record is compared and replaced by one atomic update. Of several, some could be replaced before one
        # turns out to be changed: compare them all first, which leaves only a short window.
        stored: Mapping[str, str] = expected
        if len(expected) > 1:
            ids = with_ids(session.user_id, list(expected))
            digests = await self._found(records_filter(session.user_id, session.session_id, **ids), ["digest"])
            stored = {d["_id"]: d.get("digest", "") for d in digests}
        if stored == expected:
            new = {row.entry.id: (row, stamp) for row, stamp in stamped}
            exchanges = [session.exchange(name, digest, new.get(name)) for name, digest in expected.items()]
            if (await self.bulk_write([*exchanges, session.bump_version()])).matched_count == len(expected) + 1:
                return True
        if not await self._is_alive(session.announce()):
            return False
        vector_rows.check_expected(expected, stored)
        state = "Nothing was stored" if len(expected) == 1 else "Others of this call may be stored"
        msg = f"record {min(expected)!r:.80} was changed or deleted by somebody else meanwhile. {state}: begin again."
        raise HistoryConflictError(msg)

    async def _is_alive(self, update: UpdateOne) -> bool:
        """Send an update of the session's document; return whether the session still exists."""
        return bool((await self.bulk_write([update], begun=True)).matched_count)

    async def _withdraw(self, session: SessionWrite, rows: Sequence[NewRecord]) -> None:
        """Delete the records just written for a session that was forgotten meanwhile, and bump the user's version."""
        for batch in batches([row.entry.id for row in rows]):
            mine = {"generation": {"$eq": session.generation}, **with_ids(session.user_id, batch)}
            await self.delete_many(records_filter(session.user_id, session.session_id, **mine), begun=True)
        await self._bump(session.user_id)

    async def _check_owners(self, user_id: str, rows: Sequence[NewRecord], state: str) -> None:
        """Raise `HistoryConflictError` if an id belongs to a record of another session or user."""
        sessions = {row.entry.id: row.entry.session for row in rows}
        for batch in batches(list(sessions)):
            # A plain id may belong to a record that memkit 0.1.0 stored for a user, so an unowned write looks at those
            # of all users.
            mine = {**(scope_filter(user_id) if user_id else {}), **with_ids(user_id, batch)}
            for other in await self._found(mine, ["user_id", "session_id"], hint=BY_ID):
                if (other.get("user_id"), other.get("session_id")) != (user_id, sessions[other["_id"]]):
                    msg = f"id {other['_id']!r:.80} belongs to a document of another session or user. {state}."
                    raise HistoryConflictError(msg)

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        query = records_filter(user_id, **with_ids(user_id, ids))
        await self.sent(lambda c: c.update_many(query, {"$max": {"accessed_at": at}}))

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        for batch in batches(ids):
            gone = {**scope_filter(user_id), **with_ids(user_id, batch)}
            # Bump the version before the deletion as well as after it. If this process is killed in between, a repeated
            # call finds no records and bumps nothing, and caches would show the deleted records for ever.
            if await self._look(gone, 1):
                await self._bump(user_id)
                await self.delete_many(gone)
                await self._bump(user_id)

    async def forget(self, user_id: str, session_id: str | None) -> int:
        # The session documents first: without its generation every save of the session is refused from then on.
        first = docs.not_records(user_id) if session_id is None else docs.session_filter(user_id, session_id)
        await self.delete_many(first)
        deleted = await self.delete_many(records_filter(user_id, session_id), begun=True)
        # Once more: a save that was under way may have stored records since, and been killed before withdrawing them.
        # This read deletes dead records.
        await self._alive(user_id, records_filter(user_id, session_id), docs.ON_DEAD)
        await self._bump(user_id)
        return deleted

    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        count = await self.read(lambda c: c.count_documents(records_filter(user_id)))
        surplus = left = max(0, count - max_records)
        if surplus:
            # Before and after, as in `delete`: a repeated call would find no surplus and bump nothing.
            await self._bump(user_id)
        # Documents without `accessed_at` come first in this order.
        order = [("accessed_at", 1), ("created_at", 1)]
        query = records_filter(user_id, _id={"$nin": with_ids(user_id, keep)["_id"]["$in"]})
        while left and (found := await self.find(query, ["_id"], sort=order, limit=min(left, BATCH))):
            left -= await self.delete_many(records_filter(user_id, _id={"$in": [d["_id"] for d in found]}))
        if left < surplus:
            await self._bump(user_id)
        return surplus - left

    # -- flows

    async def _ready(self, *, again: bool = False) -> None:
        with self.writing():
            await self.ensure(again=again)

    async def _found(self, query: BsonDict, fields: object, **options: Any) -> list[BsonDict]:
        """Find documents, with their record id as `_id`."""
        found = await self.find(query, fields, **options)
        for document in found:
            document["_id"] = docs.record_id_of(document.get("_id"))
        return found

    async def _alive(self, user_id: str, query: BsonDict, fields: object) -> list[BsonDict]:
        """Return the matching records of live sessions, and delete those of forgotten ones.

        A writer that was killed may have left records of a forgotten session: they are dead, and never returned.
        """
        found = await self._found(query, fields)
        dead = await self._dead(user_id, found)
        if not dead:
            return found
        gone = {d["stamp"] for d in dead}
        remove = records_filter(user_id, stamp={"$in": sorted(gone)}, **with_ids(user_id, [d["_id"] for d in dead]))
        with suppress(PyMongoError):  # they stay dead; the next reader tries again
            await self.command(lambda c: c.delete_many(remove), self.settings.timeout)
        return [d for d in found if d["stamp"] not in gone]

    async def _dead(self, user_id: str, found: Sequence[BsonDict]) -> list[BsonDict]:
        """Return those of the records whose session was forgotten."""
        # Looked up only now, after the records: a session's document exists before its first record, so a record of a
        # new session is never taken for a dead one.
        bound = [d for d in found if d.get("generation") and isinstance(d["session_id"], str)]
        generations: dict[str, str] = {}
        for batch in batches(sorted({d["session_id"] for d in bound})):
            ids = [{"user_id": user_id, "session_id": session} for session in batch]
            query = {**scope_filter(user_id), "_id": {"$in": ids}}
            sessions = await self.find(query, ["session_id", "generation"], hint=BY_ID)
            generations |= {d["session_id"]: d.get("generation", "") for d in sessions}
        return [d for d in bound if d["generation"] != generations.get(d["session_id"])]

    async def _look(self, query: BsonDict, limit: int, *, begun: bool = False) -> list[BsonDict]:
        """Find documents as part of a write."""
        return await self.sent(lambda c: c.find(query, ["session_id"], limit=limit).to_list(), begun=begun)

    async def _bump(self, user_id: str) -> None:
        """Bump the version of any session of the user, so that cached indexes of this user are read again."""
        # Any session will do, since caches compare the sum. A user without sessions needs no bump: without a version no
        # cache relies on what it holds.
        step, query = {"$inc": {"stamp": Int64(docs.random_increment())}}, docs.not_records(user_id)
        for found in await self._look(query, SEVERAL, begun=True):
            # The filter has the shard key, which servers before 7.0 need for an `update_one`.
            if await self._is_alive(UpdateOne(docs.session_filter(user_id, found["session_id"]), step)):
                return


class MongoDBVectorStore(RecordVectorStore):
    """A LangChain `VectorStore` in MongoDB: exact search per user on any server, writes stored by a majority.

    Give it to `VectorMemory`, or use it as any vector store. A document whose metadata has a `user_id` is found only by
    a search with that user in the filter; one without is unowned. What another process wrote or deleted is seen by the
    next search. A save that is under way while its session or user is forgotten stores nothing. No I/O happens before
    the first use. Clients are shared as with `MongoDBChatMessageHistory`.

    The search is exact and runs in process on the records of one user, so it works on any server. Where the deployment
    has search indexes (Atlas, or a server with mongot) and `setup(search_index=True)` built one, `similarity_search`
    asks the server instead: approximate, seconds behind the writes, and for users too large to be held in process.
    The shard key is `{user_id: 1, session_id: 1}`. Other indexes are built at the first write, unless the collection is
    large already.

    Args:
        connection_string: `mongodb://...`; None if `client` or `async_client` is given. Writes wait for a majority and
            the journal, reads see what a majority has, whatever it says.
        embedding: The embedding model. Vectors of two models are never mixed: the store knows which one filled it.
        database_name: The database.
        collection_name: The collection: one of its own.
        client: Your own `MongoClient`, never closed here. The async methods then use a worker thread.
        async_client: Your own `AsyncMongoClient`, never closed here.
        timeout: Seconds within which reads and the first use fail if the server cannot be reached.
        save_timeout: Seconds for which a write is retried on a server that was reached before.
        cache_bytes: Size of the cache of the most recently used users' records, in bytes, 96 MB by default; a record
            with 384 dimensions takes about 9 KB. The last user is cached however large, until another one is used.
        now: The clock, for tests.

    Raises:
        ConfigurationError: The arguments contradict each other, or `embedding` is no `Embeddings`.

    Example:
        ```python
        from langchain_core.embeddings import DeterministicFakeEmbedding

        embedding = DeterministicFakeEmbedding(size=8)  # yours: OpenAIEmbeddings(), WordLlamaEmbeddings(), ...
        with MongoDBVectorStore("mongodb://localhost:27017", embedding, collection_name="fish") as store:
            store.add_texts(["Nemo is a fish."], [{"user_id": "u1"}])
            assert store.similarity_search("fish", filter={"user_id": "u1"})[0].page_content == "Nemo is a fish."
            assert store.purge("u1") == {"records": 1}
        ```
    """

    is_remote: ClassVar = True
    """True: reads go over the network, so callers should run several of them concurrently."""

    def __init__(
        self,
        connection_string: str | None = None,
        embedding: Embeddings | None = None,
        database_name: str = "chat_history",
        collection_name: str = "vectors",
        *,
        client: MongoClient[BsonDict] | None = None,
        async_client: AsyncMongoClient[BsonDict] | None = None,
        timeout: float = 5.0,
        save_timeout: float = 30.0,
        cache_bytes: int = CACHE_BYTES,
        now: Now = utc_now,
    ) -> None:
        clients = Clients(connection_string, client, async_client)
        place = CollectionRef(names=(database_name, collection_name), timeout=timeout, save_timeout=save_timeout)
        self._records = _VectorDocuments(clients, place, now)
        super().__init__(self._records, embedding, cache_bytes, now)  # type: ignore[arg-type]  # it is checked there
        clients.hold()

    @classmethod
    def from_connection_string(
        cls, connection_string: str, namespace: str, embedding: Embeddings, **kwargs: Any
    ) -> MongoDBVectorStore:
        """Create a store for a namespace, with the signature of langchain-mongodb's vector store. No I/O.

        Args:
            connection_string: `mongodb://...`.
            namespace: `"database.collection"`: a collection of this store's own, not one that langchain-mongodb filled.
            embedding: The embedding model.
            **kwargs: The other arguments of the constructor. There is no index of Atlas to name or describe.

        Returns:
            The store.

        Raises:
            ConfigurationError: `namespace` has no dot, or an argument is unknown.

        Example:
            ```python
            from langchain_core.embeddings import DeterministicFakeEmbedding

            embedding = DeterministicFakeEmbedding(size=8)
            store = MongoDBVectorStore.from_connection_string("mongodb://localhost:27017", "app.fish", embedding)
            ```
        """
        check_arguments(kwargs, cls)
        database, dot, collection = namespace.partition(".")
        if not dot:
            raise ConfigurationError(f"namespace must be 'database.collection', got {redact(namespace)!r:.80}")
        return cls(connection_string, embedding, database, collection, **kwargs)

    @property
    def collection(self) -> DriverCollection[BsonDict]:
        """The collection, with the guarantees pinned, for queries of your own."""
        return self._records.collection(self._records.clients.sync())

    def setup(self, *, search_index: bool = False) -> None:
        """Build the indexes of the collection, however large it is.

        Args:
            search_index: Build that of `$vectorSearch` as well, for vectors of this embedding model. The server builds
                it in the background; a store that searched before must be made anew to use it.

        Raises:
            ConfigurationError: The server has no search indexes.
            HistoryReadError: The server cannot be reached.
        """
        drive(self._setup(search_index))

    async def asetup(self, *, search_index: bool = False) -> None:
        """Run `setup` asynchronously."""
        await adrive(self._setup(search_index))

    async def _setup(self, search_index: bool) -> None:
        await self._step(self._records.setup)
        if search_index:
            dims = await self._embedder.known()
            await self._step(lambda: self._records.build_search(dims))

    async def _nearest(self, vector: vector_rows.Vector, k: int, scope: SearchScope) -> Hits:
        """Search on the server if its index is ready and the scope has only filters that the index covers."""
        if scope.tests or not await self._step(self._records.has_search):
            return await super()._nearest(vector, k, scope)
        found = await self._step(lambda: self._records.nearest(scope.user_id, scope.session_id, vector.tolist(), k))
        return [(shown, score) for shown, score in found if scope.takes(shown)]
