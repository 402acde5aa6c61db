"""Forks: the turns of one session copied into another, of which nobody sees a part.

The turns go into the new session one after the other, each at the next position, as any turn does. So whatever comes
between, be it a writer, a clear or a purge, takes a position that the copy needs and stops it there. All turns but the
last carry as `base` the position that the last one will have: as long as such a turn is the newest, the session shows
nothing, and whoever wants to append to it waits. The last turn carries the base of the session, and shows them all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING

from bson import Timestamp

from langchain_memkit.backends.mongodb import documents as docs
from langchain_memkit.backends.mongodb.clients import BsonDict
from langchain_memkit.backends.mongodb.commands import DuplicateKey, batches, next_try
from langchain_memkit.backends.mongodb.documents import NO_TURNS, turns_filter
from langchain_memkit.base import SessionHead
from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, StaleTurnError
from langchain_memkit.stores.history_rows import SessionScope, new_epoch

if TYPE_CHECKING:
    from langchain_memkit.backends.mongodb.turns import MongoTurnStore


@dataclass
class Fork:
    """The copy of the turns that a session shows into another session, tried again until the deadline has passed.

    Args:
        store: Where both sessions are kept.
        source: The session to copy.
        target: The new session.
        at: The position of the last turn to copy; None for all.
        page: The number of turns that are read and inserted at a time.
    """

    store: MongoTurnStore
    source: SessionScope
    target: SessionScope
    at: int | None
    page: int = 100
    ops: list[str] | None = field(default=None, init=False)  # the turns to copy, as the first look finds them
    epoch: int = field(default=0, init=False)  # of the target at that time

    async def flow(self) -> bool:
        """Copy the turns; return whether the target holds them now, and nothing else.

        Raises `StaleTurnError` or `HistoryWriteError`.
        """
        deadline = time.monotonic() + self.store.patience
        while True:
            try:
                done = await self._try_once()
            except DuplicateKey:  # somebody was faster at this position, or an earlier try of ours was stored
                done = None
            if done is not None:
                return done
            wait = next_try(deadline, 0.02)
            if wait is None:
                hosts = self.store.clients.hosts
                busy = f"others wrote to session {self.target.session_id!r} every time"
                msg = f"cannot write to {hosts} within {self.store.patience:g} s: {busy}. Fork again to continue."
                raise HistoryWriteError(msg, maybe_stored=True)
            await wait

    async def _try_once(self) -> bool | None:
        """Look at both sessions and copy what is missing; return None if that has to be tried again."""
        # The order is the promise to a purge, which puts a tombstone into every session, and then another one into
        # those that are marked here. If it has not reached the source when its turns are listed, the second tombstone
        # in the target comes after the look at the target: it takes the place of the copy, or lies above it.
        await self._mark()
        there = await self.store.rows_of(self.target)
        head = docs.head_of(there) or SessionHead(0, new_epoch(), 0)
        is_first = self.ops is None
        if self.ops is None:
            self.ops = await self.store.shown_ops(self.source, self.at)
            self.epoch = head.epoch
        if head.last == "marker" and head.epoch != self.epoch:
            raise self._cleared(self.target)
        turns = [d for d in reversed(there) if docs.is_turn(d)]
        if head.last == "copy":
            return await self._continue(head, [d for d in turns if d.get("epoch") == head.epoch])
        is_in_use = head.seq > 0 and head.last != "marker"
        if is_in_use or not self.ops:
            shown = [d.get("op") for d in turns if d["seq"] > head.base]
            # At a later look an earlier try of ours may be stored, and others may have gone on from there.
            return shown == self.ops or (not is_first and shown[: len(self.ops)] == self.ops)
        if turns:  # a clear broke off before it had erased them, and they hold their ops
            await self.store.erase_before(self.target, head._replace(seq=head.base))
        if head.last == "marker" and not await self.store.renew(self.target, head, self.store.settings.timeout):
            return None
        return await self._insert(self.ops, head.seq + len(self.ops), head._replace(base=head.seq))

    async def _continue(self, head: SessionHead, turns: list[BsonDict]) -> bool | None:
        """Go on with a copy under way, given its turns; return False if it is one of other turns."""
        ops = self.ops or []
        first = turns[0]["seq"] - 1
        is_same = head.base == first + len(ops) and [d.get("op") for d in turns] == ops[: len(turns)]
        return await self._insert(ops[len(turns) :], head.base, head._replace(base=first)) if is_same else False

    async def _mark(self) -> None:
        """Make the target known to a purge, as the target of a copy. Nobody's sessions are purged."""
        if self.target.user_id:
            opening, made = docs.opening(self.target, is_copy=True)
            await self.store.sent(lambda c: c.update_one(opening, made, upsert=True))

    async def _insert(self, ops: list[str], end: int, head: SessionHead) -> bool | None:
        """Insert these turns after the head of the target, the last one at `end`; return None to try again."""
        for some in batches(ops, self.page):
            found = await self.store.find(turns_filter(*self.source, op={"$in": some}, kind={"$nin": NO_TURNS}))
            by_op = {d["op"]: d for d in found}
            if len(by_op) < len(some):
                await self._give_up()
                return None
            copies: list[BsonDict] = []
            for op in some:
                head = head._replace(seq=head.seq + 1)
                base = head.base if head.seq == end else end
                copies.append(_copy(by_op[op], self.target, head._replace(base=base)))
            await self.store.sent(methodcaller("insert_many", copies), begun=True)
        # All is shown. The turns get their final base, which still counts when the last one has expired.
        copied = turns_filter(*self.target, epoch={"$eq": head.epoch}, base={"$eq": end}, kind={"$nin": NO_TURNS})
        await self.store.sent(lambda c: c.update_many(copied, {"$set": {"base": head.base}}), begun=True)
        return True

    async def _give_up(self) -> None:
        """Erase what is copied, and say that the source was cleared; return if another call has finished the copy."""
        head = docs.head_of(await self.store.rows_of(self.target))
        if head is not None and head.last == "copy":
            try:
                tombstone = await self.store.tombstone(self.target, "clear", after=head.seq)
            except HistoryConflictError:
                return
            await self.store.erase_before(self.target, tombstone)
        elif head is not None and head.last != "marker":
            return
        raise self._cleared(self.source)

    def _cleared(self, scope: SessionScope) -> StaleTurnError:
        msg = f"session {scope.session_id!r} was cleared while it was copied: nothing of the copy is shown"
        return StaleTurnError(msg)


def _copy(document: BsonDict, target: SessionScope, head: SessionHead) -> BsonDict:
    """Return the document of the same turn in another session, shown, and dated by the server."""
    left_out = ("_id", "replaces", "isDeleted", "isActive")
    kept = {name: value for name, value in document.items() if name not in left_out}
    place = {"seq": head.seq, "epoch": head.epoch, "base": head.base}
    return {**kept, **target._asdict(), **place, "storedAt": Timestamp(0, 0)}
