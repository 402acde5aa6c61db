"""Vector records in a MongoDB collection: read, written, forgotten."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

from bson import Int64
from pymongo import ReturnDocument
from pymongo.errors import PyMongoError

from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import (
    BATCH,
    CollectionRef,
    Command,
    DuplicateKey,
    Runner,
    batches,
)
from langchain_memkit.backends.mongodb.vector_documents import (
    A_NUMBER,
    BY_ID,
    LAST_FIRST,
    ON_BEGIN,
    ON_CELLS,
    ON_DEAD,
    ON_STORED,
    ON_TEXTS,
    PROBE_ID,
    append_if_unchanged,
    begin_filter,
    bump_version,
    cells_of,
    ensure_vector_indexes,
    exchange,
    if_generation,
    if_unchanged,
    insert,
    is_session,
    last_of,
    must_read_last,
    new_record_numbers,
    news_pipeline,
    not_expired,
    not_records,
    owned_filter,
    probe_document,
    random_increment,
    record_id_of,
    records_filter,
    session_filter,
    stored_of,
    upsert,
    vector_of,
    with_ids,
)
from langchain_memkit.base import Now, SessionInfo
from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.stores.vector_cache import ReadUpTo, SessionState, UserChanges
from langchain_memkit.stores.vector_rows import DocumentRow, IndexRow, Mark, NewRecord, WriteResult, check_expected
from langchain_memkit.stores.vectors import SessionSnapshot

SAME = 8  # the most records read for one text, to find its vector


SEVERAL = 5  # sessions to try, since one may be forgotten meanwhile


class MongoDBVectorRecords(Runner[CollectionRef]):
    """Flows of a vector collection: implements `VectorBackend` of `stores.vectors`.

    Args:
        clients: The driver clients.
        settings: The collection's names and time limits.
        now: The clock, by which records expire.
    """

    def __init__(self, clients: Clients, settings: CollectionRef, now: Now) -> None:
        super().__init__(clients, settings)
        self._now = now

    async def setup(self) -> None:
        """Build missing indexes, however large the collection is."""
        await self.reading(ensure_vector_indexes(self.clients, self.settings, forced=True))

    # -- reading

    async def news(self, user_id: str, session_id: str | None, since: ReadUpTo | None) -> UserChanges:
        """Read what a cached index needs to know, in one query.

        Args:
            user_id: The user.
            session_id: The session of the coming write; None for none.
            since: What the cache holds; None if it holds nothing that can be brought up to date.

        Returns:
            The session, unless its last record has to be read; the user's version, which is the sum of the versions of
            all sessions (None if there are none); and the records added since.
        """
        pipeline = news_pipeline(self.settings.names[1], user_id, session_id, since)
        mark: Mark | None = None
        session, cells = None, []
        for found in await self.reading(self._rows(pipeline)):
            if found["_id"] is None:
                mark = (int(found["total"]),) if found["total"] else None
            elif not is_session(found):
                cells.append(cells_of(found))
            elif (found.get("last") or {}).get("waits") is False:
                session = SessionState(str(found.get("generation")), int(found.get("stamp") or 0))
        return UserChanges(session, mark, cells)

    def change(self, cells: Sequence[IndexRow], replaced: Sequence[int]) -> Mark:
        """Return the change of the user's version that these records explain: the sum of the distinct steps."""
        # All records of one write share its step, hence the set.
        return (sum({int(row.step) for row in cells if isinstance(row.step, int)}),)

    async def stamps(self, user_id: str) -> list[int]:
        """Return the numbers of the user's records, ascending."""
        listing = self._found(records_filter(user_id), {"_id": 0, "stamp": 1}, sort=[("stamp", 1)])
        rows = await self.reading(listing)
        return [int(row["stamp"]) for row in rows]

    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[IndexRow]:
        """Return the records with these numbers, with the columns for ranking."""
        query = records_filter(user_id, stamp={"$in": list(stamps)})
        return [cells_of(d) for d in await self.reading(self._alive(user_id, query, ON_CELLS))]

    async def stored(self, user_id: str, stamps: Sequence[int]) -> list[DocumentRow]:
        """Return the records with these numbers, with the columns for showing them."""
        query = records_filter(user_id, stamp={"$in": list(stamps)})
        return [stored_of(d) for d in await self.reading(self._alive(user_id, query, ON_TEXTS))]

    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[DocumentRow]:
        """Return a user's records with these ids, with the columns for showing them; `vectors` adds the vectors."""
        return await self.reading(self._by_ids(user_id, ids, ON_STORED if vectors else ON_TEXTS))

    async def owned(self, ids: Sequence[str]) -> bool:
        """Return whether any user has a record with one of these ids."""
        for batch in batches(ids):
            if await self.reading(self._found(owned_filter(batch), {"_id": 1}, limit=1)):
                return True
        return False

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the time of the last recall by record id, for the records that were recalled."""
        query = records_filter(user_id, accessed_at={"$type": "date"})
        rows = await self.reading(self._found(query, {"accessed_at": 1}))
        return {row["_id"]: row["accessed_at"] for row in rows}

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """Return the user's sessions, most recently used first."""
        match = {**records_filter(user_id), "session_id": {"$gt": ""}, "expires_at": not_expired(self._now())}
        rounds = {"session": "$session_id", "round": "$round_id", "generation": "$generation"}
        sessions = {"session": "$_id.session", "generation": "$_id.generation"}
        ends = {"first": {"$min": "$first"}, "last": {"$max": "$last"}}
        pipeline = [
            {"$match": match},
            {"$group": {"_id": rounds, "first": {"$min": "$created_at"}, "last": {"$max": "$created_at"}}},
            {"$group": {"_id": sessions, "rounds": {"$sum": 1}, **ends}},
            {"$sort": {"last": -1, "_id": 1}},
        ]
        rows = await self.reading(self.aggregate(pipeline))
        known = await self.reading(self._found(not_records(user_id), {"session_id": 1, "generation": 1}))
        generations = {d["session_id"]: d.get("generation") for d in known}
        return [
            SessionInfo(row["_id"]["session"], row["rounds"], row["first"], row["last"])
            for row in rows
            # Documents outside of any session have an empty generation; a forgotten session's differs from the current.
            if row["_id"].get("generation") in ("", generations.get(row["_id"]["session"]))
        ]

    async def probe(self) -> bytes | None:
        """Return the stored probe of the embedding model; None if there is none."""
        found = await self.reading(self._found({"_id": {"$eq": PROBE_ID}}, {"probe": 1}))
        return vector_of({"vector": found[0].get("probe")}) if found else None

    # -- writing

    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str],
        ids: Sequence[str],
        messages: Collection[str] | None,
    ) -> SessionSnapshot:
        """Read what a save needs to know of its session, and begin the session if there is none.

        Args:
            user_id: The user.
            session_id: The session.
            digests: Digests of the texts to be saved, whose stored vectors can be used again.
            ids: Ids of records to read.
            messages: Ids of the messages to be saved; None if they may continue the last record.

        Returns:
            The generation, the last record if it has to be read, vectors by digest, the records with these ids in this
            session, and the position of the last record (0 if there is none).
        """
        found = await self.reading(self._known(user_id, session_id, digests, ids))
        session = next((d for d in found if is_session(d)), None)
        last, position = None, 0
        if session is None:
            generation = await self._draw(user_id, session_id)
        else:
            generation = str(session.get("generation"))
            last, position = await self.reading(self._last(session, digests, messages))
        vectors = {d["digest"]: vector_of(d) or b"" for d in found if d.get("digest") in digests}
        here, names = [user_id, session_id, generation], set(ids)
        records = [d for d in found if not is_session(d) and d["_id"] in names]
        records = [d for d in records if [d.get(n) for n in ("user_id", "session_id", "generation")] == here]
        stored = [stored_of(d) for d in records if isinstance(d.get("stamp"), int)]
        return SessionSnapshot(generation, [stored_of(last)] if last else [], vectors, stored, position)

    async def write(
        self,
        user_id: str,
        rows: Sequence[NewRecord],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
    ) -> WriteResult | None:
        """Store records and delete others.

        Args:
            user_id: The user.
            rows: The records to store; one with the same id in the same session is replaced.
            delete: Ids of records to delete after that.
            place: Session id and generation; None for documents outside of any session.
            expected: Digests by record id, which these records must still have (compare-and-set).
            state: The session's version, if records may only be added to an unchanged session; None adds in any case.

        Returns:
            The numbers of the stored records and the change of the user's version; None if the session was forgotten
            since, in which case nothing stays stored.

        Raises:
            HistoryConflictError: A record or the session was changed since, or an id belongs to someone else.
        """
        await self._ready()
        if place is None:
            await self._check_owners(user_id, rows, "Nothing was stored")
        elif state is not None and 0 < len(rows) <= BATCH and not (expected or delete):
            return await self._added(user_id, place, rows, state)
        stamps, total = new_record_numbers(len(rows)), 0
        stamped = list(zip(rows, stamps, strict=True))
        # Compare-and-set first, in a bulk write of its own: if a record was changed, nothing else has been stored yet.
        changes = [(row, stamp) for row, stamp in stamped if row.entry.id not in expected]
        begun = alive = False
        if place is not None and expected:
            total = step = random_increment()
            begun = alive = await self._exchanged(user_id, stamped, place, expected, step)
        if changes or not expected:
            for batch in batches(changes) if changes else [[]]:
                total += (step := random_increment())  # one step per batch: a reader of new records adds the steps up
                alive = await self._upserted(user_id, batch, place, step, begun=begun)
                begun = True
                if not alive:
                    break
        if place is not None and not alive:
            await self._withdraw(user_id, rows, place)
            return None
        if delete:
            gone = records_filter(user_id, **with_ids(user_id, delete))
            await self._sent(lambda c: c.delete_many(gone), begun=bool(rows))
            await self._stir(user_id)
        return WriteResult(stamps, (total,))

    async def keep_probe(self, probe: bytes) -> bytes:
        """Store the probe of the embedding model unless there is one; return the stored one."""
        await self._ready()
        with suppress(DuplicateKey):
            await self._sent(lambda c: c.insert_one(probe_document(probe)))
        return await self.probe() or b""

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Note that records were recalled at a time; an earlier time changes nothing."""
        query, change = records_filter(user_id, **with_ids(user_id, ids)), {"$max": {"accessed_at": at}}
        await self._sent(lambda c: c.update_many(query, change))

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Delete records of a user by their ids."""
        for batch in batches(ids):
            gone = {"user_id": {"$eq": user_id}, **with_ids(user_id, batch)}
            # Bump the version before the deletion as well as after it. If this process is killed in between, a repeated
            # call finds no records and bumps nothing, and caches would show the deleted records for ever.
            if await self._sent(lambda c, gone=gone: c.find(gone, {"_id": 1}, limit=1).to_list()):  # type: ignore[misc]  # bound now
                await self._stir(user_id)
                await self._sent(lambda c, gone=gone: c.delete_many(gone))  # type: ignore[misc]  # bound now
                await self._stir(user_id)

    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Delete a session, or with None all of the user's; return how many records that were."""
        # The session documents first: without its generation every save of the session is refused from then on.
        first = not_records(user_id) if session_id is None else session_filter(user_id, session_id)
        await self._sent(lambda c: c.delete_many(first))
        result = await self._sent(lambda c: c.delete_many(records_filter(user_id, session_id)), begun=True)
        # Once more: a save that was under way may have stored records since, and been killed before withdrawing them.
        # This read deletes dead records.
        await self.reading(self._alive(user_id, records_filter(user_id, session_id), ON_DEAD))
        await self._stir(user_id)
        return int(result.deleted_count)

    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        """Delete the records above a limit; return how many that were.

        Args:
            user_id: The user.
            max_records: How many records may stay. Those never recalled go first, then those whose last recall is the
                oldest; among equals the older record.
            keep: Ids of records that are not deleted.
        """
        counting = self._call(lambda c: c.count_documents(records_filter(user_id)))
        count: int = await self.reading(counting)
        surplus = left = max(0, count - max_records)
        if surplus:
            # Before and after, as in `delete`: a repeated call would find no surplus and bump nothing.
            await self._stir(user_id)
        for recalled in (None, {"$type": "date"}):
            order = [("accessed_at", 1), ("created_at", 1)]
            query = records_filter(user_id, accessed_at=recalled, _id={"$nin": with_ids(user_id, keep)["_id"]["$in"]})
            while left:
                some = {"sort": order, "limit": min(left, BATCH)}
                found = await self.reading(self._found(query, {"_id": 1}, **some))
                if not found:
                    break
                gone = records_filter(user_id, **with_ids(user_id, [document["_id"] for document in found]))
                result = await self._sent(lambda c, gone=gone: c.delete_many(gone))  # type: ignore[misc]  # bound now
                left -= result.deleted_count
        if left < surplus:
            await self._stir(user_id)
        return surplus - left

    # -- flows

    async def _call(self, function: Callable[[Any], Any]) -> Any:
        return await Command(function, self.settings.timeout)

    async def _found(self, query: dict[str, Any], fields: Any, **options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._call(lambda c: c.find(query, fields, **options).to_list())
        for document in found:
            document["_id"] = record_id_of(document.get("_id"))
        return found

    async def _rows(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        cursor = await self._call(lambda c: c.aggregate(pipeline))
        rows: list[dict[str, Any]] = await self._call(lambda c: cursor.to_list())
        return rows

    async def _alive(self, user_id: str, query: dict[str, Any], fields: Any) -> list[dict[str, Any]]:
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
            await self._call(lambda c: c.delete_many(remove))
        return [d for d in found if d["stamp"] not in gone]

    async def _dead(self, user_id: str, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of the records whose session was forgotten."""
        # Looked up only now, after the records: a session's document exists before its first record, so a record of a
        # new session is never taken for a dead one.
        bound = [d for d in found if d.get("generation") and isinstance(d["session_id"], str)]
        generations = await self._generations(user_id, sorted({d["session_id"] for d in bound}))
        return [d for d in bound if d["generation"] != generations.get(d["session_id"])]

    async def _generations(self, user_id: str, sessions: Sequence[str]) -> dict[str, str]:
        generations: dict[str, str] = {}
        for batch in batches(sessions):
            ids = [{"user_id": user_id, "session_id": session} for session in batch]
            query = {"user_id": {"$eq": user_id}, "_id": {"$in": ids}}
            found = await self._found(query, {"session_id": 1, "generation": 1}, hint=BY_ID)
            generations.update((d["session_id"], d.get("generation", "")) for d in found)
        return generations

    async def _known(
        self, user_id: str, session_id: str, digests: Sequence[str], ids: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return a session's document, the records with these ids, and up to `SAME` records for each digest."""
        most = 1 + len(ids) + SAME * len(digests)
        found = await self._found(begin_filter(user_id, session_id, digests, ids), ON_BEGIN, limit=most)
        # One text that is stored many times may have used up the limit: read the named documents once more, alone.
        if digests and len(found) == most:
            found += await self._found(begin_filter(user_id, session_id, (), ids), ON_BEGIN, hint=BY_ID)
        return found

    async def _last(
        self, session: Mapping[str, Any], digests: Sequence[str], messages: Collection[str] | None
    ) -> tuple[dict[str, Any] | None, int]:
        """Return the session's last record if it has to be read, else None; and its position, 0 if there is none."""
        told: Any = session.get("last")
        if not must_read_last(told, digests, messages):
            return None, int(told["position"])
        here = {
            "generation": {"$eq": session.get("generation")},
            "position": A_NUMBER,
            "expires_at": not_expired(self._now()),
        }
        query = records_filter(session["user_id"], session["session_id"], **here)
        found = await self._found(query, ON_TEXTS, sort=LAST_FIRST, limit=1)
        return (found[0], int(found[0]["position"])) if found else (None, 0)

    async def _by_ids(self, user_id: str, ids: Sequence[str], fields: Any) -> list[DocumentRow]:
        found: list[DocumentRow] = []
        for batch in batches(ids):
            query = {"user_id": {"$eq": user_id}, **with_ids(user_id, batch)}
            documents = await self._found(query, fields, hint=BY_ID)
            records = [d for d in documents if isinstance(d.get("stamp"), int)]
            gone = {d["_id"] for d in await self._dead(user_id, records)}
            found += [stored_of(d) for d in records if d["_id"] not in gone]
        return found

    async def _stir(self, user_id: str) -> None:
        """Bump the version of any session of the user, so that cached indexes of this user are read again."""
        # Any session will do, since caches compare the sum. A user without sessions needs no bump: without a version no
        # cache relies on what it holds.
        step = {"$inc": {"stamp": Int64(random_increment())}}
        some = not_records(user_id)
        found = await self._sent(lambda c: c.find(some, {"session_id": 1}, limit=SEVERAL).to_list(), begun=True)
        for session in found:
            # The filter has the shard key, which servers before 7.0 need for an `update_one`.
            one = session_filter(user_id, session["session_id"])
            result = await self._sent(lambda c, one=one: c.update_one(one, step), begun=True)  # type: ignore[misc]  # bound now
            if result.matched_count:
                return

    async def _check_owners(self, user_id: str, rows: Sequence[NewRecord], state: str) -> None:
        sessions = {row.entry.id: row.entry.session for row in rows}
        for batch in batches(list(sessions)):
            mine = {"user_id": {"$eq": user_id}, **with_ids(user_id, batch)}
            # A plain id may belong to a record that memkit 0.1.0 stored for a user, so an unowned write looks at those
            # of all users.
            if not user_id:
                del mine["user_id"]
            for other in await self.reading(self._found(mine, {"user_id": 1, "session_id": 1}, hint=BY_ID)):
                if (other.get("user_id"), other.get("session_id")) != (user_id, sessions[other["_id"]]):
                    msg = f"id {other['_id']!r:.80} belongs to a document of another session or user. {state}."
                    raise HistoryConflictError(msg)

    async def _withdraw(self, user_id: str, rows: Sequence[NewRecord], place: tuple[str, str]) -> None:
        """Delete the records just written for a session that was forgotten meanwhile, and bump the user's version."""
        for batch in batches([row.entry.id for row in rows]):
            mine = records_filter(user_id, place[0], generation={"$eq": place[1]}, **with_ids(user_id, batch))
            await self._sent(lambda c, mine=mine: c.delete_many(mine), begun=True)  # type: ignore[misc]  # bound now
        await self._stir(user_id)

    async def _ready(self, *, again: bool = False) -> None:
        await self.writing(ensure_vector_indexes(self.clients, self.settings, again=again))

    async def _draw(self, user_id: str, session_id: str) -> str:
        # A new session may be the first of a collection that was dropped and made anew: check its indexes again.
        await self._ready(again=True)
        here = session_filter(user_id, session_id)
        drawn = {"$setOnInsert": {"generation": uuid4().hex, "stamp": Int64(0)}}
        while True:
            try:
                document = await self._sent(
                    lambda c: c.find_one_and_update(here, drawn, upsert=True, return_document=ReturnDocument.AFTER)
                )
            except DuplicateKey:
                continue  # another process began the session in the same moment: read its generation
            return str(document["generation"])

    async def _added(
        self, user_id: str, place: tuple[str, str], rows: Sequence[NewRecord], state: int
    ) -> WriteResult | None:
        """Insert new records iff the session's version is unchanged (compare-and-set); replace nothing.

        Returns:
            The numbers and the change of the user's version; None if the session was forgotten since.

        Raises:
            HistoryConflictError: Another writer has changed the session since.
        """
        # One ordered bulk write: announce the write if the next save has to read our record, insert the records, then
        # bump the version. It succeeded only if every operation took effect.
        stamps, step, last = new_record_numbers(len(rows)), random_increment(), last_of(rows) or {}
        operations = [insert(row, place[1], stamp, step) for row, stamp in zip(rows, stamps, strict=True)]
        operations.append(append_if_unchanged(user_id, step, place, last, state))
        if last["waits"]:
            operations.insert(0, if_unchanged(user_id, place, state))
        others = len(operations) - len(rows)
        try:
            result = await self._sent(lambda c: c.bulk_write(operations))
        except DuplicateKey:
            added = False
        else:
            added = len(result.upserted_ids) == len(rows) and result.matched_count == others
        if added:
            return WriteResult(stamps, (step,))
        # The records that went in stay, because the caller begins again and finds them stored. They still need a bump
        # of the version, which also tells whether the session exists.
        alive = await self._sent(lambda c: c.bulk_write([bump_version(user_id, step, place)]), begun=True)
        if not alive.matched_count:
            await self._withdraw(user_id, rows, place)
            return None
        msg = f"session {place[0]!r:.80} was changed by somebody else meanwhile. Others may be stored: begin again."
        raise HistoryConflictError(msg)

    async def _upserted(
        self,
        user_id: str,
        batch: Sequence[tuple[NewRecord, int]],
        place: tuple[str, str] | None,
        step: int,
        *,
        begun: bool,
    ) -> bool:
        """Upsert records and bump the session's version; return whether the session still exists."""
        # One ordered bulk write with the session last: its generation has to be checked after the records were written,
        # else a concurrent `forget` could delete the session in between and leave them behind.
        last = last_of([row for row, _ in batch])
        operations = [upsert(row, place and place[1], stamp, step) for row, stamp in batch]
        operations.append(bump_version(user_id, step, place, last))
        # If the next save has to read our record, say so before storing it: this process may be killed in between.
        if place is not None and last is not None and last["waits"]:
            operations.insert(0, if_generation(user_id, place))
        while True:
            try:
                result = await self._sent(lambda c: c.bulk_write(operations), begun=begun)
            except DuplicateKey:
                # The id is that of a record of another session or user (an error), of a dead record of this session's
                # earlier generation (delete it and try again), or of a concurrent upsert (try again).
                begun = True
                await self._check_owners(user_id, [row for row, _ in batch], "Others of this call may be stored")
                if place is not None:
                    alive = await self._sent(lambda c: c.bulk_write([if_generation(user_id, place)]), begun=True)
                    if not alive.matched_count:
                        return False
                    ids = with_ids(user_id, [row.entry.id for row, _ in batch])
                    dead = records_filter(user_id, place[0], generation={"$ne": place[1]}, **ids)
                    await self._sent(lambda c, dead=dead: c.delete_many(dead), begun=True)  # type: ignore[misc]  # bound now
            else:
                return bool(result.matched_count + len(result.upserted_ids) == len(operations))

    async def _exchanged(
        self,
        user_id: str,
        stamped: Sequence[tuple[NewRecord, int]],
        place: tuple[str, str],
        expected: Mapping[str, str],
        step: int,
    ) -> bool:
        """Replace the records that must be unchanged, before anything else is stored.

        Returns:
            False if their session does not exist any more.

        Raises:
            HistoryConflictError: A record was changed or deleted since.
        """
        # A single record is compared and replaced by one atomic update. Of several, some could be replaced before one
        # turns out to be changed: compare them all first, which leaves only a short window.
        stored: Mapping[str, str] = expected
        if len(expected) > 1:
            mine = records_filter(user_id, place[0], **with_ids(user_id, list(expected)))
            digests = await self.reading(self._found(mine, {"digest": 1}))
            stored = {d["_id"]: d.get("digest", "") for d in digests}
        new = {row.entry.id: (row, stamp, step) for row, stamp in stamped}
        operations = [exchange(user_id, place, name, old, new.get(name)) for name, old in expected.items()]
        operations.append(bump_version(user_id, step, place))
        if stored == expected:
            result = await self._sent(lambda c: c.bulk_write(operations))
            if result.matched_count == len(operations):
                return True
        alive = await self._sent(lambda c: c.bulk_write([if_generation(user_id, place)]), begun=True)
        if not alive.matched_count:
            return False
        check_expected(expected, stored)
        state = "Nothing was stored" if len(expected) == 1 else "Others of this call may be stored"
        msg = f"record {min(expected)!r:.80} was changed or deleted by somebody else meanwhile. {state}: begin again."
        raise HistoryConflictError(msg)
