"""The records of one user in process: words and vectors, kept up to date one by one. No I/O."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.scoring.entries import Begun, Entry, Said, digest_of, entry_of
from langchain_memkit.scoring.matches import match
from langchain_memkit.scoring.postings import Postings
from langchain_memkit.scoring.view import View

__all__ = ["Begun", "Entry", "Index", "Said", "Usual", "digest_of", "entry_of"]

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

FIRST = 64  # vectors that an index has room for; the room doubles
FAR = 2**62  # positions beyond count as this
FEW = 16  # records: of fewer nobody can say how alike they usually are
SAMPLE = 256  # records that are compared with each other to know it
GROWTH = 1.25  # how much an index grows before that is looked at anew
ALIKE = 0.75  # a mean cosine of records over that says nothing: of one topic, or vectors that are near anything
LEAST = 0.01  # nor does a standard deviation below that
NEARLY = 1e-6  # how far the square of a vector's length may be from 1


class Usual(NamedTuple):
    """How alike the records of a user usually are: mean and standard deviation of the cosine of two of them."""

    mean: float
    deviation: float


class Index:
    """The records of one user, to be ranked by words and by vectors. Whoever reads or changes it holds `lock`.

    Adding a record costs its own words, never those of the others, and the statistics of words are of this user alone.

    Attributes:
        lock: Held by whoever reads or changes the index.
        dims: Dimensions of the vectors, `None` before the first one.
        count: Number of records.

    Example:
        >>> from langchain_core.documents import Document
        >>> index = Index()
        >>> index.add(entry_of(Document("The parrot is called Kiwi.", id="1")), [3, 4])
        >>> index.add(entry_of(Document("The sea is cold today.", id="2")), [4, -3])
        >>> index.lexical(["parrot"]).round(2).tolist(), index.dense([3, 4]).round(2).tolist()
        ([0.32, 0.0], [1.0, 0.0])
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.dims: int | None = None
        self._view: View | None = None
        self._seen: tuple[int, Usual | None] | None = None
        self._begin()

    def __len__(self) -> int:
        """Number of records."""
        return self.count

    def __contains__(self, record_id: object) -> bool:
        """Whether there is a record with this id."""
        return record_id in self._slots

    @property
    def entries(self) -> list[Entry]:
        """The records in the order in which they were added; scores come in this order."""
        return [entry for entry in self._entries if entry is not None]

    @property
    def nbytes(self) -> int:
        """What it takes in memory, in bytes, estimated: vectors, words and records."""
        return self._vectors.nbytes + 75 * self._postings.words + 200 * len(self._postings) + 1200 * len(self._entries)

    @property
    def embedded(self) -> Flags:
        """Which records have a vector, in the order of `entries`."""
        return self.view.embedded

    @property
    def view(self) -> View:
        """The index as arrays, as long as it does not change."""
        if self._view is None:
            alive, embedded = np.array(self._alive, bool), np.array(self._embedded, bool)
            sessions, positions, times = np.array(self._sessions), np.array(self._positions), np.array(self._times)
            self._view = View(self.entries, alive, embedded, sessions, positions, times, self._postings)
        return self._view

    def stamps(self) -> set[int]:
        """The stamps of the records in it."""
        return {entry.stamp for entry in self._entries if entry is not None}

    def add(self, entry: Entry, vector: npt.ArrayLike | None) -> None:
        """Adds a record, in place of the one with the same id.

        Args:
            entry: The record.
            vector: Its vector, of any length; the index keeps the direction. `None`: not embedded.

        Raises:
            ConfigurationError: The vector has not as many dimensions as those in the index, or is not finite.
        """
        unit = None if vector is None else self._unit(vector)
        if entry.id in self._slots:
            self.remove([entry.id])
        slot = len(self._entries)
        self._slots[entry.id] = slot
        self._entries.append(entry)
        self._alive.append(1)
        self._embedded.append(unit is not None)
        self._times.append(math.nan if entry.at is None else entry.at.timestamp())
        self._positions.append(_near(entry.position))
        self._sessions.append(self._numbers.setdefault(entry.session, len(self._numbers)) if entry.session else -1)
        if unit is not None:
            self._room(slot, len(unit))[slot] = unit
        self._postings.add(slot, entry.said)
        last = self._last.get(entry.session)
        if last is not None and _near(entry.position) >= _near(last.position):
            self._last[entry.session] = entry
        self.count += 1
        self._view = None

    def remove(self, ids: Iterable[str]) -> None:
        """Removes records; ids that are not there are passed over."""
        for record_id in ids:
            slot = self._slots.pop(record_id, None)
            entry = None if slot is None else self._entries[slot]
            if slot is None or entry is None:
                continue
            self._entries[slot] = None
            self._alive[slot] = 0
            self._last.pop(entry.session, None)
            self.count -= 1
            self._view = None
        if len(self._entries) > 2 * self.count + FIRST:
            self._compact()

    def get(self, record_id: str) -> Entry | None:
        """The record with this id."""
        slot = self._slots.get(record_id)
        return None if slot is None else self._entries[slot]

    def vector_of(self, record_id: str) -> Floats | None:
        """The vector of a record, of length 1; `None` if it has none."""
        slot = self._slots.get(record_id)
        return None if slot is None or not self._embedded[slot] else self._vectors[slot]

    def last(self, session: str) -> Entry | None:
        """The record of a session with the highest position."""
        known, number = self._last.get(session), self._numbers.get(session)
        if known is not None or number is None:
            return known
        slots = np.flatnonzero((np.array(self._sessions) == number) & np.array(self._alive, bool))
        if not len(slots):
            return None
        positions = np.array(self._positions)[slots]
        last = self._entries[int(slots[np.flatnonzero(positions == positions.max())[-1]])]
        if last is not None:
            self._last[session] = last
        return last

    def lexical(self, stems: Sequence[str]) -> Doubles:
        """BM25 of each record for the words of a question, in the order of `entries`."""
        return match(self.view, self._postings, stems).whole

    def dense(self, vector: npt.ArrayLike) -> Floats:
        """Cosine of each record to a vector, in the order of `entries`; 0 for what is not embedded.

        Raises:
            ConfigurationError: The vector has not as many dimensions as those in the index, or is not finite.
        """
        unit, slots = self._unit(vector, learn=False), self.view.slots
        if self.dims is None:
            return np.zeros(self.count, np.float32)
        vectors = self._room(len(self._entries) - 1, self.dims)[: len(self._entries)]
        # not `@`, which from some hundred vectors on spreads over threads, and waits for them where others compute
        scores: Floats = np.einsum("ij,j->i", vectors, unit)
        return scores if self.count == len(scores) else scores[slots]

    @property
    def usual(self) -> Usual | None:
        """How alike two records of different sessions usually are; of one session, if there is no other.

        None for fewer than 16 records with vectors, and where all are much alike. Looked at for up to 256 records
        from first to last, and again when the index has grown by a quarter, shrunk by a fifth or been built anew.
        """
        seen = self._seen
        if seen is None or not seen[0] / GROWTH <= self.count <= seen[0] * GROWTH:
            seen = self._seen = (self.count, self._usual())
        return seen[1]

    def _usual(self) -> Usual | None:
        view = self.view
        rows = np.flatnonzero(self.embedded)
        if len(rows) < FEW:
            return None
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(int)]
        vectors, sessions = self._vectors[view.slots[rows]], view.session[rows]
        cosines = vectors @ vectors.T
        apart = np.triu(sessions[:, None] != sessions[None, :], 1)
        if np.count_nonzero(apart) < FEW:
            apart = np.triu(np.ones_like(apart), 1)
        found = cosines[apart].astype(np.float64)
        usual = Usual(float(found.mean()), float(found.std()))
        return usual if usual.mean < ALIKE and usual.deviation > LEAST else None

    @property
    def postings(self) -> Postings:
        """The words of the records, by slot; for `match`."""
        return self._postings

    def _begin(self) -> None:
        self.count = 0
        self._slots: dict[str, int] = {}
        self._entries: list[Entry | None] = []
        self._alive = array("b")
        self._embedded = array("b")
        self._times = array("d")
        self._positions = array("q")
        self._sessions = array("q")
        self._numbers: dict[str, int] = {}  # of the sessions
        self._last: dict[str, Entry] = {}  # of sessions, where it was asked for
        self._vectors: Floats = np.zeros((0, self.dims or 0), np.float32)
        self._postings = Postings()
        self._view = None
        self._seen = None

    def _compact(self) -> None:
        """Builds the index anew, so that nothing of what was removed stays behind."""
        vectors, slots = self._vectors, self._slots
        kept = [
            (entry, vectors[slots[entry.id]] if self._embedded[slots[entry.id]] else None) for entry in self.entries
        ]
        self._begin()
        for entry, vector in kept:
            self.add(entry, vector)

    def _unit(self, vector: npt.ArrayLike, *, learn: bool = True) -> Floats:
        found = np.asarray(vector, np.float32)
        if found.ndim != 1:
            found = found.ravel()
        if len(found) != (self.dims or len(found)):
            msg = (
                f"the vector has {len(found)} dimensions, those that are stored have {self.dims}; "
                "use one embedding model for all, or embed the records anew"
            )
            raise ConfigurationError(msg)
        square = float(np.vdot(found, found))  # unlike `@` it does not warn of what is too large
        if not math.isfinite(square):
            msg = (
                "the vector holds values that are no numbers or far too large; the embedding model must return numbers"
            )
            raise ConfigurationError(msg)
        if learn:
            self.dims = len(found)
        return found if abs(square - 1) < NEARLY or not square else found / np.float32(math.sqrt(square))

    def _room(self, slot: int, dims: int) -> Floats:
        """The vectors, with room for this slot."""
        if slot >= len(self._vectors) or self._vectors.shape[1] != dims:
            grown = np.zeros((max(FIRST, 2 * slot), dims), np.float32)
            if self._vectors.shape[1] == dims:
                grown[: len(self._vectors)] = self._vectors
            self._vectors = grown
        return self._vectors


def _near(position: int) -> int:
    return max(-FAR, min(position, FAR))
