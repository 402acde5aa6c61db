"""In-process index of one user's records: words and vectors, updated incrementally. No I/O."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.ranking.bm25 import Flags, IndexSnapshot, Postings
from langchain_memkit.ranking.records import IndexRecord, Utterance, index_record_of

__all__ = [
    "Index",
    "IndexRecord",
    "UsualSimilarity",
    "Utterance",
    "index_record_of",
    "unit_vectors",
]

Floats: TypeAlias = npt.NDArray[np.float32]

FIRST = 64  # initial capacity, in vectors; it doubles
FAR = 2**62  # positions are clamped to this, so that they fit 64 bits
FEW = 16  # pairs of records; fewer do not tell how similar records usually are
STEMS = 500  # words of a message that are compared with others
SAMPLE = 256  # records compared with each other to estimate that
GROWTH = 1.25  # factor by which an index grows before the estimate is repeated
FEW_RECORDS = 64  # up to so many it is repeated with each
LEAST = 0.01  # standard deviation of the usual cosine, at least
ENOUGH = 64  # records with vectors; fewer do not tell whether the embedder reads their language
# Correlation of cosine and shared words up to which the vectors count nothing, and from which they count in full, at
# these mean cosines and between them. Where the mean is low, an embedder tells texts apart, and less is enough, since
# texts about many things share few words.
MEANS, BLIND, READS = (0.4, 0.5), (0.03, 0.18), (0.06, 0.25)
NEARLY = 1e-6  # tolerance for the squared length of a vector that counts as normalized


class UsualSimilarity(NamedTuple):
    """Usual similarity of a user's records: mean and standard deviation of the cosine of two of them."""

    mean: float
    deviation: float


class Index:
    """Lexical and dense index of one user's records. Hold `lock` to read or change it.

    Adding a record costs time for its own words only, whatever the size of the index. Word statistics (BM25) are per
    user.

    Attributes:
        lock: Reentrant lock that every reader and writer must hold.
        dims: Dimensions of the vectors; `None` before the first vector.
        count: Number of records.
        postings: Inverted index of the words, by slot.

    Example:
        >>> from langchain_core.documents import Document
        >>> index = Index()
        >>> index.add(index_record_of(Document("The parrot is called Kiwi.", id="1")), [3, 4])
        >>> index.add(index_record_of(Document("The sea is cold today.", id="2")), [4, -3])
        >>> index.dense([3, 4]).round(2).tolist()
        [1.0, 0.0]
    """

    _entries: list[IndexRecord | None]
    _alive: array[int]

    def __init__(self) -> None:
        self.lock = RLock()
        self.dims: int | None = None
        self._view: IndexSnapshot | None = None
        self._seen: tuple[int, UsualSimilarity] | None = None
        self._trust = 1.0
        self._begin()

    def __len__(self) -> int:
        """Return the number of records."""
        return self.count

    def __contains__(self, record_id: object) -> bool:
        """Return whether there is a record with this id."""
        return record_id in self._slots

    @property
    def entries(self) -> list[IndexRecord]:
        """The records in the order in which they were added, which is the order of all score arrays.

        The list is not to be changed; it may grow when a record is added, and only then.
        """
        if len(self._entries) == self.count:
            return cast("list[IndexRecord]", self._entries)
        return [entry for entry in self._entries if entry is not None]

    @property
    def nbytes(self) -> int:
        """Estimated memory use in bytes: vectors, words and records."""
        return self._vectors.nbytes + 75 * self.postings.words + 200 * len(self.postings) + 1200 * len(self._entries)

    @property
    def embedded(self) -> Flags:
        """Flags of the records that have a vector, in the order of `entries`."""
        return self.view.embedded

    @property
    def view(self) -> IndexSnapshot:
        """Snapshot of the index as arrays; cached until a record is added or removed."""
        if self._view is None:
            columns = (self._alive, self._embedded, self._sessions, self._positions, self._times)
            self._view = IndexSnapshot(self.entries, columns, self.postings)
        return self._view

    def add(self, entry: IndexRecord, vector: npt.ArrayLike | None) -> None:
        """Add a record, replacing the one with the same id.

        Args:
            entry: The record.
            vector: Its vector, which is scaled to length 1; `None`, or all zeros, for a record that is not embedded.

        Raises:
            ConfigurationError: The vector has another number of dimensions than the index, or is not finite.
        """
        # A replaced record gets a new slot instead of the old one's: postings are append-only. `_compact` reclaims the
        # old slots once they are more than half.
        unit = None if vector is None else unit_vectors([vector], self.dims)[0]
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
            self.dims = len(unit)
            self._room(slot, len(unit))[slot] = unit
        self.postings.add(slot, entry.said)
        # `_last` caches only sessions that were asked for: update the cached record, never insert one here, since a
        # session without a cached one may hold higher positions.
        last = self._last.get(entry.session)
        if last is not None and _near(entry.position) >= _near(last.position):
            self._last[entry.session] = entry
        self.count += 1
        self._view = None

    def remove(self, ids: Iterable[str]) -> None:
        """Remove records; missing ids are ignored."""
        ids = [record_id for record_id in ids if record_id in self._slots]
        if not ids:
            return
        self._entries = list(self._entries)  # who reads the list of before goes on with that
        for record_id in ids:
            slot = self._slots.pop(record_id, None)
            entry = None if slot is None else self._entries[slot]
            if slot is None or entry is None:
                continue
            self._entries[slot] = None
            self._alive[slot] = 0
            self._last.pop(entry.session, None)
            self.count -= 1
            self._view = self._seen = None
        if len(self._entries) > 2 * self.count + FIRST:
            self._compact()

    def get(self, record_id: str) -> IndexRecord | None:
        """Return the record with this id, or `None`."""
        slot = self._slots.get(record_id)
        return None if slot is None else self._entries[slot]

    def vector_of(self, record_id: str) -> Floats | None:
        """Return a record's vector, normalized to length 1; `None` if it has none."""
        slot = self._slots.get(record_id)
        return None if slot is None or not self._embedded[slot] else self._vectors[slot]

    def last(self, session: str) -> IndexRecord | None:
        """Return the record of a session with the highest position (of equals the latest added); `None` without one."""
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

    def dense(self, vector: npt.ArrayLike) -> Floats:
        """Return the cosine of each record to a vector, in the order of `entries`; 0 for records without a vector.

        Raises:
            ConfigurationError: The vector has another number of dimensions than the index, or is not finite.
        """
        (unit,), slots = unit_vectors([vector], self.dims), self.view.slots
        if self.dims is None or unit is None:
            return np.zeros(self.count, np.float32)
        vectors = self._room(len(self._entries) - 1, self.dims)[: len(self._entries)]
        # Not `@`: BLAS spreads it over threads from some hundred vectors on, and waits for them if the cores are busy.
        scores: Floats = np.einsum("ij,j->i", vectors, unit)
        return scores if self.count == len(scores) else scores[slots]

    @property
    def usual(self) -> UsualSimilarity:
        """Usual cosine of two records of different sessions, or of any two if there are too few such pairs.

        Estimated from up to 256 records, evenly spaced from first to last, and from what is usual with most embedders,
        which counts as much as 16 pairs. Of more than 64 records only so many count, from the first on, as the index
        had when it last grew by a quarter: so it is estimated rarely, and is the same in every process.
        """
        basis = FEW_RECORDS
        while basis * GROWTH <= self.count:
            basis = int(basis * GROWTH)
        basis = min(basis, self.count)
        seen = self._seen
        if seen is not None and seen[0] == basis:
            return seen[1]
        view, rows = self.view, np.flatnonzero(self.embedded[:basis])
        self._trust = 1.0
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(int)]
        vectors, sessions = self._vectors[view.slots[rows]], view.session[rows]
        cosines = vectors @ vectors.T
        apart = np.triu(sessions[:, None] != sessions[None, :], 1)
        if np.count_nonzero(apart) < FEW:
            apart = np.triu(np.ones_like(apart), 1)
        found = cosines[apart].astype(np.float64)
        usual = _blended(found)
        if len(rows) >= ENOUGH:
            with np.errstate(invalid="ignore", divide="ignore"):  # all equal
                alike = np.corrcoef(found, self._shared_words(rows)[apart])[0, 1]
            blind, reads = (float(np.interp(usual.mean, MEANS, bounds)) for bounds in (BLIND, READS))
            self._trust = float(np.nan_to_num(np.clip((alike - blind) / (reads - blind), 0, 1), nan=1.0))
        self._seen = (basis, usual)
        return usual

    @property
    def vector_trust(self) -> float:
        """Factor from 0 to 1 of the vectors' weight: whether the embedder reads the language of the user's texts.

        Where it does, texts that share words are more similar than others. 1 for fewer than 64 records with vectors.
        Estimated with `usual`.
        """
        _ = self.usual
        return self._trust

    def _shared_words(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Return the share of words that each two of some records have in common."""
        numbers: dict[str, int] = {}
        entries, places = self.view.entries, array("q")
        for i, row in enumerate(rows):
            for word in {stem for part in entries[row].said for stem in part.stems[:STEMS]}:
                places.extend((i, numbers.setdefault(word, len(numbers))))
        table = np.zeros((len(rows), len(numbers)), np.float32)
        table[np.array(places[::2]), np.array(places[1::2])] = 1
        sizes = np.maximum(table.sum(axis=1), 1)
        shared: Floats = table @ table.T / np.sqrt(sizes[:, None] * sizes)
        return shared

    def _begin(self) -> None:
        self.count = 0
        self._slots: dict[str, int] = {}
        self._entries = []
        self._alive = array("b")
        self._embedded = array("b")
        self._times = array("d")
        self._positions = array("q")
        self._sessions = array("q")
        self._numbers: dict[str, int] = {}  # session id -> number
        self._last: dict[str, IndexRecord] = {}  # session id -> last record; a cache, filled by `last`
        self._vectors: Floats = np.zeros((0, self.dims or 0), np.float32)
        self.postings = Postings()
        self._view = None
        self._seen = None

    def _compact(self) -> None:
        """Rebuild the index without the slots and postings of removed records."""
        kept = [(entry, self.vector_of(entry.id)) for entry in self.entries]
        self._begin()
        for entry, vector in kept:
            self.add(entry, vector)

    def _room(self, slot: int, dims: int) -> Floats:
        """Return the matrix of vectors, grown so that it has room for this slot."""
        if slot >= len(self._vectors) or self._vectors.shape[1] != dims:
            grown = np.zeros((max(FIRST, 2 * slot), dims), np.float32)
            if self._vectors.shape[1] == dims:
                grown[: len(self._vectors)] = self._vectors
            self._vectors = grown
        return self._vectors


def _blended(cosines: npt.NDArray[np.float64], mean: float = 0.3, deviation: float = 0.12) -> UsualSimilarity:
    """Return mean and deviation of some cosines, and of `FEW` more that have the usual ones of most embedders."""
    count = len(cosines) + FEW
    middle = (float(cosines.sum()) + FEW * mean) / count
    square = float(((cosines - middle) ** 2).sum()) + FEW * (deviation**2 + (mean - middle) ** 2)
    return UsualSimilarity(middle, max((square / count) ** 0.5, LEAST))


def _near(position: int) -> int:
    return max(-FAR, min(position, FAR))


def unit_vectors(vectors: Sequence[Any], dims: int | None) -> list[Floats | None]:
    """Validate vectors of `dims` dimensions (None: as many as the first) and scale them to length 1, as float32.

    None for a vector that is all zeros: the model knows none of the words.
    """
    found: list[Floats | None] = []
    for i, vector in enumerate(vectors):
        ready = isinstance(vector, np.ndarray) and vector.dtype == "<f4" and vector.shape == (dims,)
        if ready and abs(float(np.vdot(vector, vector)) - 1) < NEARLY:  # validated and scaled before
            found.append(vector)
            continue
        try:
            numbers = np.asarray(vector, np.float64)
        except (OverflowError, TypeError, ValueError):
            numbers = np.empty((0, 0))
        dims = numbers.size if dims is None else dims
        largest = np.abs(numbers).max(initial=0.0)
        problem = f"has {numbers.size} dimensions instead of {dims}" if numbers.size != dims else ""
        if numbers.ndim != 1 or not numbers.size or not np.isfinite(largest):
            problem = "is no list of finite numbers"
        if problem:
            msg = f"vector {i} of the embedding model {problem}"
            raise ConfigurationError(msg)
        # divided by the largest first, so that squares neither overflow nor vanish
        scaled = numbers / largest if largest else numbers
        found.append((scaled / np.sqrt(scaled @ scaled)).astype("<f4") if largest else None)
    return found
