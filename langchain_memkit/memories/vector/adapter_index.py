"""In-process lexical index of a user's transcripts: the lexical half of recall over a third-party vector store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from langchain_core.documents import Document

from langchain_memkit._histories import has_native
from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import GetSessionHistory
from langchain_memkit.memories.rebuildable import UNDATED, Segment, history_of, segment_of, segments_of
from langchain_memkit.memories.vector.rounds import Splitter, documents_of, lines_of_messages, rounds_of, starts_round
from langchain_memkit.ranking.index import Index, IndexRecord, digest_of, index_record_of

__all__ = ["Expiry", "Transcripts"]

Expiry: TypeAlias = Callable[[datetime, datetime | None], datetime | None]
Mark: TypeAlias = tuple[int, datetime | None]
Known: TypeAlias = dict[str, tuple[object, IndexRecord]]


@dataclass(frozen=True, slots=True)
class _Session:
    """The indexed records of one session, and how far they are final.

    Attributes:
        mark: Version of the session when it was read: its number of turns and last date; None if sessions cannot be
            listed.
        settled: Records of the turns before `cut`, which no later turn can change.
        open: Records from `cut` on.
        cut: Seq of the turn from which the session is read again; 0 to read all of it.
        epoch: Epoch of that turn.
        before: Number of turns before it.
    """

    mark: Mark | None = None
    settled: Known = field(default_factory=dict)
    open: Known = field(default_factory=dict)
    cut: int = 0
    epoch: int = 0
    before: int = 0


@dataclass(slots=True)
class _User:
    index: Index = field(default_factory=Index)
    sessions: dict[str, _Session] = field(default_factory=dict)
    size: int = 0


class Transcripts:
    """Cache of lexical indexes over the transcripts, one per user, without vectors.

    A session is read again when its number of turns or its last date has changed. Of one of memkit's own histories,
    only the newest turns are read then.

    Args:
        get_session_history: Creates the histories; if it has `list_sessions`, sessions are discovered through it.
        splitter: Splits long rounds, as the memory does.
        expiry: Function from the date of a round and the expiry of its turn to the expiry of its record.
        cache_bytes: Memory limit of all indexes together, in bytes; the least recently used are dropped.
    """

    def __init__(
        self, get_session_history: GetSessionHistory, splitter: Splitter, expiry: Expiry, cache_bytes: int
    ) -> None:
        self._histories: Any = get_session_history
        self._splitter = splitter
        self._expiry = expiry
        self._users = LRUCache[str, _User](cache_bytes, lambda user: user.size)
        # After a fork the cache starts empty: another thread of the parent may have held an index's lock.
        self._guard = ForkSafeLock(self._users.clear)

    async def index(self, user_id: str, also: Iterable[str] = ()) -> Index:
        """Return the user's index after re-reading the sessions that have changed.

        Args:
            user_id: The user.
            also: Further session ids, for histories that cannot be listed.
        """
        with self._guard:
            user = self._users.get_or_put(user_id, _User())
        listed: Mapping[str, Mark | None] = await self._listed(user_id, [*user.sessions, *also])
        with user.index.lock:
            for session in user.sessions.keys() - listed.keys():
                _put(user, session, None)
        changed = False
        for session, mark in listed.items():
            # Without a mark nothing tells whether the session has changed, so it is read at every call.
            while (base := user.sessions.get(session, _Session())).mark is None or base.mark != mark:
                read = await self._read(user_id, session, base, mark)
                with user.index.lock:
                    # The transcript is read without the lock. If another thread stored a newer read meanwhile, compare
                    # the marks again instead of overwriting it.
                    if user.sessions.get(session, base) is base:
                        _put(user, session, read)
                        changed = True
                        break
        if changed:
            self._bound(user)
        return user.index

    def forget(self, user_id: str, session_id: str | None) -> None:
        """Drop a session or a user from the cache; what is still in a transcript will be read again."""
        with self._guard:
            user = self._users.get(user_id) if session_id else self._users.pop(user_id)
        if user and session_id:
            with user.index.lock:
                _put(user, session_id, None)

    def rate(self, user_id: str, importance: Mapping[tuple[str, str], float]) -> None:
        """Update the importance of indexed records, by session and id: transcripts do not hold it."""
        with self._guard:
            user = self._users.get(user_id)
        if user is None or not importance:
            return
        with user.index.lock:
            for (session_id, name), value in importance.items():
                session = user.sessions.get(session_id, _Session())
                for known in (session.settled, session.open):
                    if name in known and known[name][1].importance != value:
                        rated = replace(known[name][1], importance=value)
                        known[name] = (known[name][0], rated)
                        user.index.add(rated, None)

    def _bound(self, user: _User) -> None:
        with user.index.lock:
            user.size = user.index.nbytes
        with self._guard:
            self._users.evict()

    async def _listed(self, user_id: str, known: Sequence[str]) -> Mapping[str, Mark | None]:
        """List the user's sessions with their marks; the known ones, without marks, if histories cannot be listed."""
        histories = self._histories
        if not hasattr(histories, "list_sessions"):
            return dict.fromkeys(known)
        alist = getattr(histories, "alist_sessions", None)
        found = await Step(
            lambda: histories.list_sessions(user_id),
            lambda: alist(user_id) if alist else asyncio.to_thread(histories.list_sessions, user_id),
        )
        return {info.session_id: (info.turns, info.updated_at) for info in found}

    async def _read(self, user_id: str, session_id: str, base: _Session, mark: Mark | None) -> _Session:
        """Read a session; from a memkit history only the turns from the last cut on, if nothing before has changed."""
        history = await history_of(self._histories, session_id, user_id)
        if not has_native(history, "iter_turns"):
            stretches = await segments_of(history)
            work = lambda: _Session(mark, open=self._known(base.open, user_id, session_id, stretches, 0))  # noqa: E731  # both styles
        else:
            turns = await _turns(history, base.cut - 1 if base.cut else None)
            # Trust the settled records only if the turn at the cut is still the same (seq and epoch) and the number of
            # turns before it, derived from the session's mark, too. Else something was deleted or cleared: read it all.
            first = [(turn.seq, turn.epoch) for turn in turns[:1]]
            whole = not base.cut or first != [(base.cut, base.epoch)]
            if base.cut and (whole or mark is None or mark[0] - len(turns) != base.before):
                whole, turns = True, await _turns(history, None)
            work = lambda: self._session(base, user_id, session_id, turns, mark, whole=whole)  # noqa: E731  # both styles
        return await cpu_bound(work)

    def _session(
        self, base: _Session, user_id: str, session_id: str, turns: Sequence[Any], mark: Mark | None, *, whole: bool
    ) -> _Session:
        stretches = [segment_of(turn) for turn in turns]
        cut = _cut(stretches)
        old = {**base.settled, **base.open}
        settled = {} if whole else base.settled
        last = max((entry.position for _, entry in settled.values()), default=-1)
        before = self._known(old, user_id, session_id, stretches[:cut], last + 1)
        last = max((entry.position for _, entry in before.values()), default=last)
        after = self._known(old, user_id, session_id, stretches[cut:], last + 1)
        seq, epoch = (turns[cut].seq, turns[cut].epoch) if turns else (0, 0)
        return _Session(mark, {**settled, **before}, after, seq, epoch, cut if whole else base.before + cut)

    def _known(self, old: Known, user_id: str, session_id: str, stretches: Sequence[Segment], position: int) -> Known:
        """Build the records of some stretches, reusing the index entries of records that have not changed."""
        known: Known = {}
        for round_ in rounds_of(stretches, UNDATED):
            place = max(position, int(round_.at.timestamp() * 1_000_000))
            round_ = round_._replace(expires_at=self._expiry(round_.at, round_.expires_at))
            for document in documents_of(round_, user_id, session_id, place, self._splitter):
                mark = _signature(document)
                before = old.get(document.id or "")
                entry = before[1] if before and before[0] == mark else index_record_of(document)
                known[entry.id] = (mark, entry)
                position = entry.position + 1
        return known


def _turns(history: Any, after: int | None) -> Step[list[Any]]:
    async def aturns() -> list[Any]:
        return [turn async for turn in history.aiter_turns(after_seq=after)]

    return Step(lambda: list(history.iter_turns(after_seq=after)), aturns)


def _cut(stretches: Sequence[Segment]) -> int:
    """Return the index of the last stretch that begins a round: nothing that follows can change those before it."""
    lines = [list(lines_of_messages(stretches[-1].messages))] if stretches else []
    for i in range(len(stretches) - 1, 0, -1):
        lines.append(list(lines_of_messages(stretches[i - 1].messages)))
        if lines[-2] and lines[-1] and starts_round(lines[-2][0], lines[-1][-1].role):
            return i
    return 0


def _signature(document: Document) -> object:
    known = document.metadata
    names = ("position", "epoch", "expires_at", "created_at", "messages")
    return (digest_of(document.page_content), *(repr(known.get(name)) for name in names))


def _put(user: _User, session_id: str, read: _Session | None) -> None:
    """Replace a session in the index by what was read of it; None removes it. The caller holds the index's lock."""
    base = user.sessions.pop(session_id, _Session())
    old = {**base.settled, **base.open}
    new = {**read.settled, **read.open} if read else {}
    user.index.remove(old.keys() - new.keys())
    for name, (_, entry) in new.items():
        if name not in old or old[name][1] is not entry:
            user.index.add(entry, None)
    if read:
        user.sessions[session_id] = read
