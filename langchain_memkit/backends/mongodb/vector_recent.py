"""What this process knows of the sessions that it wrote to last: their next turn is written without a look before.

A look took 0.55 ms of the 2 ms of a save. What is known may be out of date: so the write names what it goes out from
(`Token`) and replaces nothing, and if the session is not as it was, it is begun again. What is known is never believed:
another thread or process may have changed, or forgotten, anything since.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bson import Int64

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.backends._vectors.rows import Row

SESSIONS = 1000
DIGESTS = 5000


class Token(NamedTuple):
    """What a write goes out from: the session's generation; if nothing was looked at, its stamp and last position.

    `began`: when the turn began then, in nanoseconds of this machine's monotonic clock.
    """

    generation: str
    stamp: int | None = None
    position: int = 0
    began: int = 0

    def __str__(self) -> str:
        return self.generation if self.stamp is None else "@".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> Token:
        """What was made a text."""
        generation, *numbers = text.split("@")
        return cls(generation, *map(int, numbers))


class Session(NamedTuple):
    """A session as this process left it."""

    generation: str
    stamp: int = 0
    last: Mapping[str, Any] | None = None


class Recent:
    """The sessions that were begun or written last, and the digests of the texts that were written last."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._digests: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lock = ForkSafeLock(self._renew)

    def _renew(self) -> None:
        self._sessions.clear()
        self._digests.clear()

    def known(
        self, user_id: str, session_id: str, digests: Sequence[str], messages: Collection[str] | None
    ) -> Token | None:
        """What to write by; None if there must be a look."""
        with self._lock:
            session = self._sessions.get((user_id, session_id))
            if session is None or matters(session.last, digests, messages):
                return None
            if any((user_id, digest) in self._digests for digest in digests):
                return None  # its vector is stored
        position = int(session.last["position"]) if session.last else 0
        return Token(session.generation, session.stamp, position, time.monotonic_ns())

    def begun(self, user_id: str, session_id: str, session: Session) -> None:
        """Keeps how a session was found."""
        with self._lock:
            self._keep((user_id, session_id), session)

    def wrote(self, user_id: str, place: tuple[str, str], change: int, last: Any, digests: Iterable[str]) -> None:
        """Keeps what a write has changed.

        Args:
            user_id: Whose.
            place: Session and generation.
            change: Of the session's stamp.
            last: Of the records that were written, as `last_of` says it; None: the session's last one has to be read.
            digests: Of the texts.
        """
        with self._lock:
            session = self._sessions.get((user_id, place[0]))
            if session is not None and session.generation == place[1]:
                if last is not None and last["waits"]:
                    last = None
                elif last and session.last and last["position"] < session.last["position"]:
                    last = session.last
                self._keep((user_id, place[0]), Session(place[1], session.stamp + change, last))
            for digest in digests:
                self._digests[user_id, digest] = None
                self._digests.move_to_end((user_id, digest))
            while len(self._digests) > DIGESTS:
                self._digests.popitem(last=False)

    def doubt(self, user_id: str, session_id: str | None = None) -> None:
        """Has a session, or all of a user's, looked at before it is written to again."""
        with self._lock:
            for key, session in self._sessions.items():
                if key[0] == user_id and session_id in (None, key[1]):
                    self._sessions[key] = session._replace(last=None)

    def forget(self, user_id: str, session_id: str | None) -> None:
        """Keeps nothing of a session, or of a user."""
        with self._lock:
            for key in [key for key in self._sessions if key[0] == user_id and session_id in (None, key[1])]:
                del self._sessions[key]
            for digest in [key for key in self._digests if key[0] == user_id]:
                del self._digests[digest]

    def _keep(self, key: tuple[str, str], session: Session) -> None:
        self._sessions[key] = session
        self._sessions.move_to_end(key)
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)


def last_of(rows: Sequence[Row]) -> dict[str, Any] | None:
    """What there is to know of the last one of these records."""
    row = max(rows, key=lambda row: row.entry.position, default=None)
    if row is None:
        return None
    waits = bool(row.metadata.get("open")) or bool(row.entry.said and row.entry.said[-1].role == "human")
    messages = [message for message in row.entry.messages if message]
    return {"position": Int64(row.entry.position), "waits": waits, "digest": row.digest, "messages": messages}


def matters(last: Any, digests: Sequence[str], messages: Collection[str] | None) -> bool:
    """Whether a session's last record has to be read.

    Args:
        last: As `last_of` said it.
        digests: Of the texts that are to be written.
        messages: Ids of the messages that are to be written; None if they may go on with it.
    """
    if messages is None or not isinstance(last, Mapping) or last.get("waits") is not False:
        return True
    return last["digest"] in digests or not set(messages).isdisjoint(last["messages"])
