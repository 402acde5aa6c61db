"""What memories hold in process of the turns of users: derived from them, and kept in their rows.

At each look only rows that changed are read. What a turn lacks, since it is slow to make or another writer stored the
turn, is made then, of the newest turns first, and kept in the row.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Flow, Step, dry_run
from langchain_memkit.base import Now, describe_error
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, logger
from langchain_memkit.stores.changes import ChangedRow, Place, UserLog
from langchain_memkit.stores.history import HistoryFactory, TurnStore
from langchain_memkit.stores.looks import catch_up

T = TypeVar("T")
H = TypeVar("H", bound="HeldTurns")

Said = tuple[Place, Sequence[BaseMessage]]
"""Where a turn is stored, and its messages."""
UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""Date of what has none."""
HELD_BYTES = 2000  # of a user in process
ROW_BYTES = 1500  # of a row, without what is derived from it
ROWS = 50  # that are taken in without a thread
TURNS = 64  # that are read at once for what they lack
AGAIN = 5  # looks, where turns go while it is looked at them


VERSION = 1
LARGEST = 2**26  # bytes of what is stored, once it is no longer compressed; a longer one is damaged


def pack(content: list[Any]) -> bytes:
    """Encode what was derived from a turn, or a decision: JSON with a version, compressed."""
    text = json.dumps([VERSION, content], ensure_ascii=False, separators=(",", ":"))
    return zlib.compress(text.encode("utf-8", "replace"))


def unpack(data: bytes | None) -> list[Any] | None:
    """Decode what `pack` made; None if there is nothing, or it is damaged or of another version."""
    if not data:
        return None
    try:
        version, content = json.loads(zlib.decompressobj().decompress(data, LARGEST).decode())
    except (RecursionError, TypeError, ValueError, zlib.error):
        return None
    return content if version == VERSION and isinstance(content, list) else None


def as_text(value: object) -> str:
    """Return a stored text, or raise `TypeError` for anything else."""
    if not isinstance(value, str):
        raise TypeError
    return value


@dataclass
class HeldTurns(ABC):
    """What a process holds of the turns of one user. Hold the lock of the `DerivedLog` to use it."""

    log: UserLog = field(default_factory=UserLog)
    rows: dict[Place, ChangedRow] = field(default_factory=dict)
    lacking: set[Place] = field(default_factory=set)  # rows from which nothing was derived
    decided: list[Any] = field(default_factory=list)  # what tells the decisions that are taken in from others

    @property
    def nbytes(self) -> int:
        """Return the memory that it takes, about; a subclass adds what it has derived."""
        return HELD_BYTES + ROW_BYTES * len(self.rows)

    @abstractmethod
    def put(self, row: ChangedRow) -> bool:
        """Hold what was derived from a row; return whether there was anything that could be read."""

    @abstractmethod
    def drop(self, place: Place) -> None:
        """Forget what was derived from a row."""

    @abstractmethod
    def decide(self, rows: Sequence[ChangedRow]) -> None:
        """Take in the decisions of the user, in place of those before."""

    def take(self) -> None:
        """Take in what the log has found."""
        decisions = self.log.decisions()
        known = [(row.op, row.revision) for row in decisions]
        if known != self.decided:
            self.decided = known
            self.decide(decisions)
        found = self.log.news()
        come = {row.place for row in found.come}
        self.forget(place for place in found.gone if place not in come)
        for row in sorted(found.come, key=lambda row: row.created_at or UNDATED):
            held = self.rows.get(row.place)
            is_held = held is not None and _content(held) == _content(row)
            if not is_held or row.place in self.lacking:
                self.hold(row)

    def hold(self, row: ChangedRow) -> None:
        """Hold a row in place of what stood there."""
        self.forget([row.place])
        self.rows[row.place] = row
        if not self.put(row):
            self.lacking.add(row.place)

    def forget(self, places: Iterable[Place]) -> None:
        """Forget rows."""
        for place in places:
            if self.rows.pop(place, None) is not None:
                self.drop(place)
            self.lacking.discard(place)

    def newest(self, most: int) -> list[ChangedRow]:
        """Return the newest rows from which nothing was derived."""
        rows = [self.rows[place] for place in self.lacking]
        return sorted(rows, key=lambda row: row.created_at or UNDATED, reverse=True)[:most]


def _content(row: ChangedRow) -> tuple[Any, ...]:
    """Return what of a row is held in process."""
    return row.op, row.index, row.expires_at


class DerivedLog(ABC, Generic[H]):
    """What is derived from the turns of all users over histories; all memories of a factory share it.

    Args:
        histories: A factory of histories whose store keeps an index.
        read_only: Whether nothing is stored.
        now: The clock.
        cache_bytes: How much memory all users may take. The last user stays, however large.
        lazy: How many turns are read at most in one look for what they lack.
        pause: Seconds for which, after a failure, turns are not read for what they lack.
    """

    name: str
    """The name of the index in a turn's row, and in that of a decision."""
    other_names: Sequence[str] = ()
    """Other indexes that are read with it."""
    is_whole_at_once: bool
    """Whether a turn is stored with all that is derived from it: no server, and nothing slow, has to be asked."""

    def __init__(
        self,
        histories: HistoryFactory[Any],
        *,
        read_only: bool,
        now: Now,
        cache_bytes: int,
        lazy: int = 1000,
        pause: float = 60.0,
    ) -> None:
        self.histories = histories
        self.read_only = read_only
        self.now = now
        self._lazy = lazy
        self._pause = pause
        self._failed_at = -pause
        self._users = LRUCache[str, H](cache_bytes, lambda held: held.nbytes)
        # Held for work on what is held, never while waiting for the store. A forked child finds the lock open and the
        # cache empty: the thread that held the lock, and might have half changed it, is not there.
        self.lock = ForkSafeLock(self._users.clear)

    def __repr__(self) -> str:
        return repr(self.histories)

    @abstractmethod
    def new_user(self) -> H:
        """Return what is held of a user of whom nothing was read yet."""

    @abstractmethod
    async def derive(self, user_id: str, messages: Sequence[BaseMessage]) -> bytes | None:
        """Make the index of a turn that is to be stored, as far as that is quick; None if it follows later."""

    @abstractmethod
    async def read(self, turns: Sequence[Said]) -> list[Any]:
        """Read what is to be derived from turns, oldest first: the part that may be slow, or wait."""

    @abstractmethod
    def encode(self, held: H, read: Any) -> bytes:
        """Encode what was read of a turn; those before it are held."""

    @property
    def store(self) -> TurnStore:
        """Where the histories keep their turns."""
        return self.histories.turn_store

    def held(self, work: Callable[[], T], *, long: bool = False) -> Step[T]:
        """Call `work` under the lock; on an event loop in a thread if it is `long`.

        A lock that is taken is waited for in a thread as well, since its holder may be reading a long text.
        """

        def sync() -> T:
            with self.lock:
                return work()

        async def asynchronous() -> T:
            # Usually the lock is free: a thread is used only if it is not.
            if long or not self.lock.enter_now():
                return await asyncio.to_thread(sync)
            try:
                return work()
            finally:
                self.lock.__exit__(None, None, None)

        return Step(sync, asynchronous)

    def held_of(self, user_id: str) -> Step[H]:
        """Return what is held of a user, without a look."""
        return self.held(lambda: self._users.get_or_put(user_id, self.new_user()))

    async def known_of(self, user_id: str) -> H:
        """Return what is held of a user, after a first look: what is read of a turn may rest on those before it."""
        held = await self.held_of(user_id)
        return held if held.log.looked_at else await self.look(user_id, most=0)

    async def look(self, user_id: str, *, most: int | None = None, held: H | None = None) -> H:
        """Look at what changed in a user's turns, and derive what they lack.

        Args:
            user_id: The user.
            most: How many turns are read at most for what they lack, also after a failure; None for `lazy`, and none
                for a while after a failure.
            held: What is held of the user, as an earlier look returned it, however little memory there is.

        Returns:
            What is held of the user.
        """
        held = held or await self.held_of(user_id)
        await self._catch_up(user_id, held)
        if most is None:
            most = 0 if self._is_paused else self._lazy
        for _ in range(AGAIN):
            if not await self._complete(user_id, held, most):
                break
            # Turns went while this one looked: what came for them is taken in with that.
            await self._catch_up(user_id, held)
        await self.held(lambda: self._users.put(user_id, held))
        return held

    async def derive_later(self, user_id: str, turn: Said, op: str) -> None:
        """Derive from a turn that was just stored what was not stored with it, and keep it in its row.

        It is held by the next look, like what other processes store.
        """
        if self._is_paused:
            return
        held = await self.known_of(user_id)
        for place, read in (await self._read(held, [turn])).items():
            data = await self.held(partial(self.encode, held, read), long=True)
            await self.keep(user_id, self.name, [(place, op, data)])

    async def decide(self, user_id: str, data: bytes, after: datetime | None = None) -> None:
        """Store a decision of a user.

        Clocks of writers differ: it is not dated before `after`, when the last was said that it is about.
        """
        at = after if after is not None and after > self.now() else None
        await self._step(lambda: self.store.decide(user_id, self.name, data, at=at))

    async def blank(self, user_id: str, decisions: Sequence[ChangedRow]) -> None:
        """Erase what decisions hold that others have replaced: the rows stay, without a text."""
        await self.keep(user_id, self.name, [(row.place, row.op, pack([])) for row in decisions])

    async def keep(self, user_id: str, name: str, made: Sequence[tuple[Place, str, bytes]]) -> None:
        """Store what was derived from turns; a failure is logged."""
        if self.read_only or dry_run.get() or not made:
            return
        try:
            await self._step(lambda: self.store.keep_index(user_id, name, made))
        except HistoryWriteError as error:
            logger.warning("what was derived from %d turns is not stored, but made again: %s", len(made), error)

    async def renew(self, held: H) -> None:
        """Take all turns that are held of a user for turns from which nothing was derived."""
        await self.held(lambda: held.lacking.update(held.rows))

    def forget(self, user_id: str) -> None:
        """Drop what is held of a user."""
        with self.lock:
            self._users.pop(user_id)

    def close(self) -> None:
        """Drop what is held of all users."""
        with self.lock:
            self._users.clear()

    async def _catch_up(self, user_id: str, held: H) -> None:
        names = [self.name, *self.other_names]
        await self._step(lambda: catch_up(self.store, user_id, held.log, names, self.now()))
        try:
            await self.held(held.take, long=held.log.unread > ROWS)
        except BaseException:
            self.forget(user_id)  # what it was told of may not be held: the next look begins anew
            raise

    async def _complete(self, user_id: str, held: H, most: int) -> bool:
        """Derive what the newest turns lack; return whether any of them was erased meanwhile."""
        if not most:
            return False
        newest = await self.held(lambda: held.newest(most))
        # Oldest first, since what is read of a turn may rest on those before it.
        oldest_first = newest[::-1]
        has_erased = False
        for begin in range(0, len(oldest_first), TURNS):
            rows = oldest_first[begin : begin + TURNS]
            places = [row.place for row in rows]
            found = await self._step(partial(self.store.turns_at, user_id, places))
            turns = {(session_id, turn.seq): turn for session_id, turn in found}
            there = [(place, turns[place].messages) for place in places if place in turns]
            read = await self._read(held, there)
            if there and not read:
                break
            made = [(row, read[row.place]) for row in rows if row.place in read]
            fresh = await self.held(partial(self._hold, held, made), long=True)
            erased = [place for place in places if place not in turns]
            await self.held(partial(held.forget, erased))
            has_erased = has_erased or bool(erased)
            # What is damaged, or of a newer version, is not stored: somebody may read it whole one day.
            await self.keep(user_id, self.name, [each for each in fresh if not turns[each[0]].problems])
        return has_erased

    async def _read(self, held: H, turns: Sequence[Said]) -> dict[Place, Any]:
        """Read turns; one that cannot be read is left out in this process, unless none can, and the next look tries."""
        try:
            return dict(zip([place for place, _ in turns], await self.read(turns), strict=True))
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # the functions of apps raise anything
            problem = describe_error(error)
        found: dict[Place, Any] = {}
        failed: list[Place] = []
        for place, messages in turns if len(turns) > 1 else ():
            try:
                (found[place],) = await self.read([(place, messages)])
            except Exception:  # noqa: BLE001
                failed.append(place)
                if len(failed) > len(found) + 1:  # it is not one turn alone
                    break
        if found:
            await self.held(lambda: held.lacking.difference_update(failed))
        else:
            self._failed_at = time.monotonic()
        name = type(self).__name__
        logger.warning("%s could not read turns, and tries again later: %s", name, problem)
        return found

    @property
    def _is_paused(self) -> bool:
        return time.monotonic() - self._failed_at < self._pause

    def _hold(self, held: H, turns: Sequence[tuple[ChangedRow, Any]]) -> list[tuple[Place, str, bytes]]:
        """Hold what was read of turns; return what is to be stored."""
        fresh = []
        for row, made in turns:
            if held.rows.get(row.place) is not row:  # it went, or changed, meanwhile: it is read as it is now
                continue
            data = self.encode(held, made)
            index: Mapping[str, bytes] = {**row.index, self.name: data}
            held.hold(replace(row, index=dict(index)))
            fresh.append((row.place, row.op, data))
        return fresh

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        async def asynchronous() -> T:
            return await self.store.arun(make_flow())

        return Step(lambda: self.store.run(make_flow()), asynchronous)
