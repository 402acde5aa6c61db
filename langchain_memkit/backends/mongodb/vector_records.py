"""Flows that write to a collection of vectors.

A standalone server has no transactions. So records are written first, with their session's generation in each, and then
the generation is looked at: if it is gone, what was written is removed again. Nobody has shown it meanwhile, because
records of a generation that is gone are dead; whoever meets some that a killed writer left removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

from langchain_memkit._flow import Flow
from langchain_memkit.backends._vectors.backend import Beginning
from langchain_memkit.backends._vectors.rows import Row, Stored, Written, check_expected
from langchain_memkit.backends.mongodb.commands import Call, Pause, codes_of, is_transient, jitter, text_of
from langchain_memkit.backends.mongodb.vector_documents import (
    BEHIND,
    BY_ID,
    LAST_FIRST,
    ON_DEAD,
    ON_TEXTS,
    begin_pipeline,
    draw_stamps,
    exchange,
    has_expired,
    is_session,
    is_whole,
    live,
    look,
    not_records,
    probe_document,
    records_filter,
    session_filter,
    stored_of,
    upsert,
    vector_of,
    with_ids,
)
from langchain_memkit.backends.mongodb.vector_indexes import ensure_vector_indexes
from langchain_memkit.backends.mongodb.vector_reader import VectorReader, batches
from langchain_memkit.errors import HistoryConflictError, HistoryWriteError

DUPLICATE_KEY = 11000


class VectorRecords(VectorReader):
    """Flows of a store; what they do for memories and searches, `backends/_vectors` says."""

    # -- a session begins

    def begin(self, user_id: str, session_id: str, digests: Sequence[str], ids: Sequence[str]) -> Flow[Beginning]:
        """Generation, last record, stored vectors, and records."""
        pipeline = begin_pipeline(self.settings.names[1], user_id, session_id, digests, ids)
        rows = yield from self.reading(self._rows(pipeline))
        parts: dict[str, list[Any]] = {"last": [], "vectors": [], "records": []}
        for row in rows:
            parts[row["part"]].append(row)
        generation, last = yield from self.reading(self._session(user_id, session_id, parts["last"]))
        vectors = {document["digest"]: vector_of(document) or b"" for document in parts["vectors"]}
        here = [user_id, session_id, generation]
        records = [d for d in parts["records"] if [d.get(n) for n in ("user_id", "session_id", "generation")] == here]
        if generation is None:
            generation = yield from self._draw(user_id, session_id)
        return Beginning(generation, last, vectors, [stored_of(d) for d in records if isinstance(d.get("stamp"), int)])

    def _session(
        self, user_id: str, session_id: str, found: list[dict[str, Any]]
    ) -> Flow[tuple[str | None, list[Stored]]]:
        """The generation and the last record of the two documents that stand last."""
        session, last, now = found[:1], found[1:], self._now()
        if found and not is_session(found[0]):  # a damaged position, or a record that was left behind
            session, last = (yield from self._found(session_filter(user_id, session_id), ON_TEXTS, hint=BY_ID)), found
        if not session:
            return None, []
        generation = str(session[0].get("generation"))
        if last and (not is_whole(last[0]) or last[0].get("generation") != generation or has_expired(last[0], now)):
            live_ones = {"generation": {"$eq": generation}, "position": {"$lt": BEHIND}, "expires_at": live(now)}
            query = records_filter(user_id, session_id, **live_ones)
            last = yield from self._found(query, ON_TEXTS, sort=LAST_FIRST, limit=1)
        return generation, [stored_of(document) for document in last]

    def _draw(self, user_id: str, session_id: str) -> Flow[str]:
        yield from self._ready(again=True)
        here, drawn = (
            session_filter(user_id, session_id),
            {"$setOnInsert": {"generation": uuid4().hex, "position": BEHIND}},
        )
        while True:
            try:
                document = yield from self._sent(
                    lambda c: c.find_one_and_update(here, drawn, upsert=True, return_document=ReturnDocument.AFTER)
                )
            except _Taken:
                continue  # somebody else drew one in the same moment
            return str(document["generation"])

    def keep_probe(self, probe: bytes) -> Flow[bytes]:
        """Keeps the probe unless there is one; returns the one that is kept."""
        yield from self._ready()
        with suppress(_Taken):
            yield from self._sent(lambda c: c.insert_one(probe_document(probe)))
        return (yield from self.probe()) or b""

    # -- writing

    def write(
        self,
        user_id: str,
        rows: Sequence[Row],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
    ) -> Flow[Written | None]:
        """Stores rows and deletes others; None if the session is another one."""
        yield from self._ready()
        if place is None:
            yield from self._check_owners(user_id, rows, "Nothing was stored")
        stamps = draw_stamps(len(rows))
        stamped = list(zip(rows, stamps, strict=True))
        changes = [
            (row, upsert(row, place and place[1], stamp)) for row, stamp in stamped if row.entry.id not in expected
        ]
        begun = alive = False
        if place is not None and expected:
            begun = alive = yield from self._exchanged(user_id, stamped, place, expected)
        if changes or not expected:
            for batch in batches(changes) if changes else [[]]:
                alive = yield from self._upserted(user_id, batch, place, begun=begun)
                begun = True
                if not alive:
                    break
        if place is not None and not alive:
            yield from self._withdraw(user_id, rows, place)
            return None
        if delete:
            gone = records_filter(user_id, **with_ids(delete))
            yield from self._sent(lambda c: c.delete_many(gone), begun=bool(rows))
        return Written(stamps)

    def _upserted(
        self,
        user_id: str,
        batch: Sequence[tuple[Row, UpdateOne]],
        place: tuple[str, str] | None,
        *,
        begun: bool,
    ) -> Flow[bool]:
        """Stores rows; returns whether their session is still there."""
        # all in one command, in this order: the session is looked at after the records were written
        operations = [operation for _, operation in batch]
        if place is not None:
            operations.append(look(user_id, *place))
        while operations:
            try:
                result = yield from self._sent(lambda c: c.bulk_write(operations), begun=begun)
            except _Taken:  # by a foreign record, by one of a forgotten session, or in the same moment
                begun = True
                yield from self._check_owners(user_id, [row for row, _ in batch], "Others of this call may be stored")
                if place is not None:
                    alive = yield from self._sent(lambda c: c.bulk_write([look(user_id, *place)]), begun=True)
                    if not alive.matched_count:
                        return False
                    ids = with_ids([row.entry.id for row, _ in batch])
                    dead = records_filter(user_id, place[0], generation={"$ne": place[1]}, **ids)
                    yield from self._sent(lambda c, dead=dead: c.delete_many(dead), begun=True)  # type: ignore[misc]  # bound now
            else:
                return bool(result.matched_count + len(result.upserted_ids) == len(operations))
        return True

    def _exchanged(
        self,
        user_id: str,
        stamped: Sequence[tuple[Row, int]],
        place: tuple[str, str],
        expected: Mapping[str, str],
    ) -> Flow[bool]:
        """Replaces records that are as they were expected to be, before anything else is stored; raises if one is not.

        False if their session is not there any more.
        """
        stored: Mapping[str, str] = expected
        if len(expected) > 1:  # one is looked at and replaced in one go
            digests = yield from self.reading(self._found(with_ids(list(expected)), {"digest": 1}))
            stored = {d["_id"]: d.get("digest", "") for d in digests}
        new = {row.entry.id: (row, stamp) for row, stamp in stamped}
        operations = [exchange(user_id, place, name, old, new.get(name)) for name, old in expected.items()]
        operations.append(look(user_id, *place))
        if stored == expected:
            result = yield from self._sent(lambda c: c.bulk_write(operations))
            if result.matched_count == len(operations):
                return True
        alive = yield from self._sent(lambda c: c.bulk_write([look(user_id, *place)]), begun=True)
        if not alive.matched_count:
            return False
        check_expected(expected, stored)
        state = "Nothing was stored" if len(expected) == 1 else "Others of this call may be stored"
        msg = f"record {min(expected)!r:.80} was changed or deleted by somebody else meanwhile. {state}: begin again."
        raise HistoryConflictError(msg)

    def _check_owners(self, user_id: str, rows: Sequence[Row], state: str) -> Flow[None]:
        sessions = {row.entry.id: row.entry.session for row in rows}
        for batch in batches(list(sessions)):
            owners = yield from self.reading(self._found(with_ids(batch), {"user_id": 1, "session_id": 1}))
            for owner in owners:
                if (owner.get("user_id"), owner.get("session_id")) != (user_id, sessions[owner["_id"]]):
                    msg = f"id {owner['_id']!r:.80} belongs to a document of another user or session. {state}."
                    raise HistoryConflictError(msg)

    def _withdraw(self, user_id: str, rows: Sequence[Row], place: tuple[str, str]) -> Flow[None]:
        """Removes what was written for a session that is gone."""
        for batch in batches([row.entry.id for row in rows]):
            mine = records_filter(user_id, place[0], generation={"$eq": place[1]}, **with_ids(batch))
            yield from self._sent(lambda c, mine=mine: c.delete_many(mine), begun=True)  # type: ignore[misc]  # bound now

    def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> Flow[None]:
        """Keeps recalls."""
        query, change = records_filter(user_id, **with_ids(ids)), {"$max": {"accessed_at": at}}
        yield from self._sent(lambda c: c.update_many(query, change))

    # -- deleting

    def delete(self, ids: Sequence[str]) -> Flow[None]:
        """Deletes records."""
        for batch in batches(ids):
            yield from self._sent(lambda c, batch=batch: c.delete_many(with_ids(batch)))  # type: ignore[misc]  # bound now

    def forget(self, user_id: str, session_id: str | None) -> Flow[int]:
        """Deletes a session or a user; returns how many records."""
        # the generations first: from then on a save is refused
        first = not_records(user_id) if session_id is None else session_filter(user_id, session_id)
        yield from self._sent(lambda c: c.delete_many(first))
        result = yield from self._sent(lambda c: c.delete_many(records_filter(user_id, session_id)), begun=True)
        # once more: a save that was overtaken may have stored something since, and been killed
        yield from self.reading(self._alive(user_id, records_filter(user_id, session_id), ON_DEAD))
        return int(result.deleted_count)

    def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> Flow[int]:
        """Deletes what is too much; returns how many."""
        count, _ = yield from self.mark(user_id)
        surplus = left = max(0, count - max_records)
        for recalled in (None, {"$type": "date"}):
            order = [("accessed_at", 1), ("created_at", 1)]
            query = records_filter(user_id, accessed_at=recalled, _id={"$nin": list(keep)})
            while left:
                some = {"sort": order, "limit": min(left, 500)}
                found = yield from self.reading(self._found(query, {"_id": 1}, **some))
                if not found:
                    break
                gone = records_filter(user_id, **with_ids([document["_id"] for document in found]))
                result = yield from self._sent(lambda c, gone=gone: c.delete_many(gone))  # type: ignore[misc]  # bound now
                left -= result.deleted_count
        return surplus - left

    # -- sending

    def _ready(self, *, again: bool = False) -> Flow[None]:
        yield from self.writing(ensure_vector_indexes(self.clients, self.settings, again=again))

    def _sent(self, function: Callable[[Any], Any], *, begun: bool = False) -> Flow[Any]:
        """A command, sent again until the deadline: repeating it changes nothing. `begun`: there were writes before."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return (yield Call(function, max(deadline - time.monotonic(), 0.1)))
            except PyMongoError as error:
                if DUPLICATE_KEY in codes_of(error):
                    raise _Taken from error
                again = is_transient(error)
                counts = getattr(error, "details", None) or {}
                begun = begun or counts.get("nUpserted", 0) + counts.get("nMatched", 0) > 0
                begun = begun or (again and not isinstance(error, ServerSelectionTimeoutError))
                if not again or time.monotonic() > deadline:
                    state = "Some of it may be done: calling again is safe" if begun else "Nothing was changed"
                    msg = f"cannot write to {self.clients.hosts}: {text_of(error)}. {state}."
                    raise HistoryWriteError(msg, maybe_stored=begun) from error
            yield Pause(jitter(0.25))


class _Taken(Exception):  # noqa: N818  # never leaves this module
    """There is a document with this id already."""
