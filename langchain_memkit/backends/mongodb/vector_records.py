"""Flows that write to a collection of vectors.

A standalone server has no transactions. So records are written first, with their session's generation in each, and then
the generation is looked at: if it is gone, what was written is removed again. Nobody has shown it meanwhile, because
records of a generation that is gone are dead; whoever meets some that a killed writer left removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

from bson import Int64
from pymongo import ReturnDocument

from langchain_memkit.backends._vectors.backend import Beginning
from langchain_memkit.backends._vectors.rows import Row, Written, check_expected
from langchain_memkit.backends.mongodb.repeating import BATCH, Taken, batches
from langchain_memkit.backends.mongodb.vector_documents import (
    draw_stamps,
    draw_step,
    exchange,
    first_look,
    insert,
    is_session,
    last_of,
    look,
    probe_document,
    records_filter,
    session_filter,
    stir,
    stored_of,
    take_turn,
    upsert,
    vector_of,
    with_ids,
)
from langchain_memkit.backends.mongodb.vector_writer import VectorWriter
from langchain_memkit.errors import HistoryConflictError


class VectorRecords(VectorWriter):
    """Flows of a store; what they do for memories and searches, `backends/_vectors` says."""

    # -- a session begins

    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str],
        ids: Sequence[str],
        messages: Collection[str] | None,
    ) -> Beginning:
        """Generation, last record, stored vectors, and records."""
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
        return Beginning(generation, [stored_of(last)] if last else [], vectors, stored, position)

    async def _draw(self, user_id: str, session_id: str) -> str:
        await self._ready(again=True)
        here = session_filter(user_id, session_id)
        drawn = {"$setOnInsert": {"generation": uuid4().hex, "stamp": Int64(0)}}
        while True:
            try:
                document = await self._sent(
                    lambda c: c.find_one_and_update(here, drawn, upsert=True, return_document=ReturnDocument.AFTER)
                )
            except Taken:
                continue  # somebody else drew one in the same moment
            return str(document["generation"])

    async def keep_probe(self, probe: bytes) -> bytes:
        """Keeps the probe unless there is one; returns the one that is kept."""
        await self._ready()
        with suppress(Taken):
            await self._sent(lambda c: c.insert_one(probe_document(probe)))
        return await self.probe() or b""

    # -- writing

    async def write(
        self,
        user_id: str,
        rows: Sequence[Row],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
    ) -> Written | None:
        """Stores rows and deletes others; None if the session is another one."""
        await self._ready()
        if place is None:
            await self._check_owners(user_id, rows, "Nothing was stored")
        elif state is not None and 0 < len(rows) <= BATCH and not (expected or delete):
            return await self._added(user_id, place, rows, state)
        stamps, total = draw_stamps(len(rows)), 0
        stamped = list(zip(rows, stamps, strict=True))
        changes = [(row, stamp) for row, stamp in stamped if row.entry.id not in expected]
        begun = alive = False
        if place is not None and expected:
            total = step = draw_step()
            begun = alive = await self._exchanged(user_id, stamped, place, expected, step)
        if changes or not expected:
            for batch in batches(changes) if changes else [[]]:
                total += (step := draw_step())  # each of its own: who reads what is new adds them up
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
        return Written(stamps, (total,))

    async def _added(self, user_id: str, place: tuple[str, str], rows: Sequence[Row], state: int) -> Written | None:
        """Stores rows that are new, if their session is as the turn found it; nothing is replaced.

        None if the session was forgotten since.

        Raises:
            HistoryConflictError: Somebody else has added to it since.
        """
        stamps, step, last = draw_stamps(len(rows)), draw_step(), last_of(rows) or {}
        operations = [insert(row, place[1], stamp, step) for row, stamp in zip(rows, stamps, strict=True)]
        operations.append(take_turn(user_id, step, place, last, state))
        if last["waits"]:
            operations.insert(0, first_look(user_id, place, state))
        others = len(operations) - len(rows)
        try:
            result = await self._sent(lambda c: c.bulk_write(operations))
        except Taken:
            added = False
        else:
            added = len(result.upserted_ids) == len(rows) and result.matched_count == others
        if added:
            return Written(stamps, (step,))
        # what was added is of use to whoever begins again
        alive = await self._sent(lambda c: c.bulk_write([stir(user_id, step, place)]), begun=True)
        if not alive.matched_count:
            await self._withdraw(user_id, rows, place)
            return None
        msg = f"session {place[0]!r:.80} was changed by somebody else meanwhile. Others may be stored: begin again."
        raise HistoryConflictError(msg)

    async def _upserted(
        self,
        user_id: str,
        batch: Sequence[tuple[Row, int]],
        place: tuple[str, str] | None,
        step: int,
        *,
        begun: bool,
    ) -> bool:
        """Stores rows; returns whether their session is still there."""
        # all in one command, in this order: the session is looked at after the records were written
        last = last_of([row for row, _ in batch])
        operations = [upsert(row, place and place[1], stamp, step) for row, stamp in batch]
        operations.append(stir(user_id, step, place, last))
        if place is not None and last is not None and last["waits"]:  # known even if this process is killed in between
            operations.insert(0, look(user_id, place))
        while True:
            try:
                result = await self._sent(lambda c: c.bulk_write(operations), begun=begun)
            except Taken:  # by a foreign record, by one of a forgotten session, or in the same moment
                begun = True
                await self._check_owners(user_id, [row for row, _ in batch], "Others of this call may be stored")
                if place is not None:
                    alive = await self._sent(lambda c: c.bulk_write([look(user_id, place)]), begun=True)
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
        stamped: Sequence[tuple[Row, int]],
        place: tuple[str, str],
        expected: Mapping[str, str],
        step: int,
    ) -> bool:
        """Replaces records that are as they were expected to be, before anything else is stored; raises if one is not.

        False if their session is not there any more.
        """
        stored: Mapping[str, str] = expected
        if len(expected) > 1:  # one is looked at and replaced in one go
            mine = records_filter(user_id, place[0], **with_ids(user_id, list(expected)))
            digests = await self.reading(self._found(mine, {"digest": 1}))
            stored = {d["_id"]: d.get("digest", "") for d in digests}
        new = {row.entry.id: (row, stamp, step) for row, stamp in stamped}
        operations = [exchange(user_id, place, name, old, new.get(name)) for name, old in expected.items()]
        operations.append(stir(user_id, step, place))
        if stored == expected:
            result = await self._sent(lambda c: c.bulk_write(operations))
            if result.matched_count == len(operations):
                return True
        alive = await self._sent(lambda c: c.bulk_write([look(user_id, place)]), begun=True)
        if not alive.matched_count:
            return False
        check_expected(expected, stored)
        state = "Nothing was stored" if len(expected) == 1 else "Others of this call may be stored"
        msg = f"record {min(expected)!r:.80} was changed or deleted by somebody else meanwhile. {state}: begin again."
        raise HistoryConflictError(msg)
