"""The interface below a vector store, what it keeps of a document, and how its vector is made."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from langchain_memkit._sync import AsStep, Step
from langchain_memkit.base import SessionInfo, check_id, describe_type
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, HistoryReadError, logger
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_value, encode_value
from langchain_memkit.ranking.index import IndexRecord, Utterance, digest_of, index_record_of, unit_vectors
from langchain_memkit.ranking.tokenize import STEMS_VERSION
from langchain_memkit.stores.backend import UNREADABLE, StoreBackend, encode_exactly

NOBODY = ""  # the user id of unowned records; no caller can pass it as an id
SMALLEST, LARGEST = -(2**63), 2**63 - 1

Vector = npt.NDArray[np.float32]
Mark = tuple[int, ...]
"""Numbers that change when a user's records change, always by something else."""


class IndexRow(NamedTuple):
    """The columns of a record that ranking needs, with its text for showing it later. Values may be damaged."""

    stamp: int
    facts: object  # id, session, round, position, date, importance, epoch, expiry, said, messages
    vector: object
    text: object
    metadata: object
    digest: Any
    v: object
    stems_version: Any = STEMS_VERSION  # of the tokenizer that made the words of `said`; older ones are made anew
    step: int | None = None  # by how much this record's write changed the user's version, where the backend needs it


class DocumentRow(NamedTuple):
    """The columns of a record that are needed to return it as a document. Values may be damaged."""

    stamp: int
    id: Any
    user_id: Any
    session_id: Any
    expires_at: object
    text: object
    metadata: object
    vector: object
    v: object


class StoredDocument(NamedTuple):
    """A stored record as a document, with its owner, session, stamp and vector."""

    document: Document
    user_id: str
    session_id: str
    stamp: int
    vector: Vector | None


@dataclass(slots=True)
class NewRecord:
    """A record to store. `text` and `metadata` are plain data; `vector` holds little-endian floats of 4 bytes each."""

    entry: IndexRecord
    user_id: str
    digest: str
    text: object
    metadata: dict[str, Any]
    vector: bytes | None = None

    @property
    def said(self) -> list[list[str]]:
        """Role, name and stemmed words of each message."""
        return [[part.role, part.name, " ".join(part.stems)] for part in self.entry.said]

    def stamped(self, stamp: int) -> CachedRecord:
        """Return the row as it is cached once it is stored under a stamp."""
        vector = None if self.vector is None else np.frombuffer(self.vector, "<f4")
        return CachedRecord(replace(self.entry, stamp=stamp), vector, CachedText(self.text, self.metadata), self.digest)


class CachedRecord(NamedTuple):
    """A stored record as it is cached: what ranks it, its text, and the digest of the text."""

    entry: IndexRecord
    vector: Vector | None
    text: CachedText
    digest: str


class WantedRecords(NamedTuple):
    """What `begin` has to read of a session.

    Attributes:
        digests: Digests of texts whose stored vectors are wanted.
        ids: Ids of records that are wanted, as far as they are the session's.
        messages: Ids of messages; the last record is needed only if it holds one of them. None: it is needed.
    """

    digests: Sequence[str]
    ids: Sequence[str]
    messages: Collection[str] | None


NOTHING: Mapping[str, str] = MappingProxyType({})


class RecordWrite(NamedTuple):
    """A write of records.

    Attributes:
        rows: The rows to store, which get new stamps.
        delete: Ids of records to delete.
        place: Session id and generation; None for plain documents.
        expected: Digests by id of records that must be unchanged.
        state: The session's state (`SessionState`), which must be unchanged; None: not checked.
    """

    rows: Sequence[NewRecord]
    delete: Sequence[str] = ()
    place: tuple[str, str] | None = None
    expected: Mapping[str, str] = NOTHING
    state: int | None = None


class WriteResult(NamedTuple):
    """The result of a write: the stamps of the rows, in their order, and the change of the user's version."""

    stamps: Sequence[int]
    change: Mark


class ReadUpTo(NamedTuple):
    """The state of a cached user: version, the highest stamp read, and higher stamps of this process's own writes."""

    mark: Mark
    stamp: int
    own: tuple[int, ...]


class SessionState(NamedTuple):
    """A session as it is stored.

    Attributes:
        generation: A random id, drawn when the session began.
        state: A number that changes when records of the session are stored. None: the stamp of its last record serves.
    """

    generation: str
    state: int | None = None


class UserChanges(NamedTuple):
    """A store's answer about a user; its fields are read in this order.

    Attributes:
        session: The session asked for; None if there is none, or if its last record has to be read from the store.
        mark: The user's version; None if the store cannot tell.
        cells: Records with higher stamps than those cached.
    """

    session: SessionState | None
    mark: Mark | None
    cells: Sequence[IndexRow] = ()


class SessionSnapshot(NamedTuple):
    """A backend's answer to `begin`, the read that precedes a write to a session.

    Attributes:
        generation: The session's generation; a session that is forgotten and begun again gets another one.
        last: The session's last record, as a list of at most one; may be empty where it does not matter for the write.
        vectors: The stored vectors of the requested texts, by digest.
        records: The requested records of the session.
        position: The position of the last record; 0 if there is none.
    """

    generation: str
    last: Sequence[DocumentRow]
    vectors: Mapping[str, bytes]
    records: Sequence[DocumentRow]
    position: object


class VectorBackend(StoreBackend, ABC):
    """The interface below a vector store, `RecordVectorStore(backend, ...)`, for which a backend only keeps rows.

    Every method but `change` is a flow (see `StoreBackend`). `langchain_memkit.testing.VectorStoreContract` tests it.
    The invariants:

    * A record carries a *stamp*, the number of its write. Stamps rise, and none is given twice.
    * A user's records have a *version* (a tuple of numbers, `Mark`), which every write and deletion changes, whoever
      makes it, and which `news` returns: a cache whose version is the stored one is current.
    * A session has a *generation*, a random id that is drawn when it begins and dropped when it is forgotten. A write
      of another generation is refused, so that what was forgotten does not come back.
    * An id belongs to one session of a user; every call takes the user, and never shows or changes another's records.
    * Every write may be made again unchanged.

    Reading flows raise `HistoryReadError`, writing ones `HistoryWriteError`, with the driver's error as the cause.
    """

    @abstractmethod
    async def news(self, user_id: str, session_id: str | None, since: ReadUpTo | None) -> UserChanges:
        """Read a user's version, a session, and the records added since, in one look at the database.

        Args:
            user_id: The user; an empty string for unowned documents.
            session_id: The session to read; None for none.
            since: What the cache has read; None returns no records.

        Returns:
            Session, version and records, read in this order: a change that comes in between must show in the version.
        """

    @abstractmethod
    def change(self, cells: Sequence[IndexRow], replaced: Sequence[int]) -> Mark:
        """Compute by how much a user's version changes if records are added. No I/O.

        Args:
            cells: The records, as `news` returned them.
            replaced: The stamps of records that they replace.

        Returns:
            The difference of the versions, number by number.
        """

    @abstractmethod
    async def stamps(self, user_id: str) -> list[int]:
        """List the stamps of all records of a user that are neither expired nor of a forgotten session.

        Args:
            user_id: The user.

        Returns:
            The stamps, in any order.
        """

    @abstractmethod
    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[IndexRow]:
        """Read the columns that ranking needs, and the texts.

        Args:
            user_id: The user.
            stamps: The records' stamps.

        Returns:
            A row for each record that still exists, in any order; values may be damaged.
        """

    @abstractmethod
    async def begin(self, user_id: str, session_id: str, wanted: WantedRecords) -> SessionSnapshot:
        """Read what a write to a session depends on, and draw the generation of a session that begins.

        Args:
            user_id: The user.
            session_id: The session.
            wanted: The records and vectors that are needed.

        Returns:
            The session as it is now.
        """

    @abstractmethod
    async def write(self, user_id: str, given: RecordWrite) -> WriteResult | None:
        """Store rows in place of those with the same ids, and delete others.

        Args:
            user_id: The user.
            given: The rows and the ids, and what must be unchanged.

        Returns:
            The stamps, in the order of the rows, and the change of the version; None, with nothing stored, if the
            session has another generation.

        Raises:
            HistoryConflictError: A record or the session has changed, or an id belongs to another session.
            HistoryWriteError: The database failed; calling again is safe.
        """

    @abstractmethod
    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[DocumentRow]:
        """Read records by id.

        Args:
            user_id: The user.
            ids: The ids.
            vectors: Whether the vectors are wanted.

        Returns:
            A row for each record that exists, in any order.
        """

    @abstractmethod
    async def owned(self, ids: Sequence[str]) -> bool:
        """Return whether any user, that is anybody but nobody, has a record with one of these ids."""

    @abstractmethod
    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Delete records by id; those that do not exist are ignored.

        Args:
            user_id: The user.
            ids: The ids.
        """

    @abstractmethod
    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Delete a session's records and its generation, which goes first: writes under way are then refused.

        Args:
            user_id: The user.
            session_id: The session; None for all of the user.

        Returns:
            How many records were deleted.
        """

    @abstractmethod
    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        """Delete records above a limit: first the oldest of those never recalled, then those recalled the longest ago.

        Args:
            user_id: The user.
            max_records: How many may stay.
            keep: Ids of records that stay in any case.

        Returns:
            How many records were deleted.
        """

    @abstractmethod
    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store when records were recalled, unless a later time is stored. The version of the user does not change.

        Args:
            user_id: The user.
            ids: The records.
            at: The time.
        """

    @abstractmethod
    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Read when records were last recalled.

        Args:
            user_id: The user.

        Returns:
            The times by id, without records that never were.
        """

    @abstractmethod
    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """List the sessions of a user that hold records.

        Args:
            user_id: The user.

        Returns:
            The sessions, most recently used first; each round counts as a turn.
        """

    @abstractmethod
    async def probe(self, new: bytes | None = None) -> bytes | None:
        """Read the vector of the probe, which tells one embedding model from another.

        Args:
            new: The vector to store if there is none: of several writers the first one wins. None: none is stored.

        Returns:
            The stored vector, little-endian floats of 4 bytes each; None if there is none.

        Raises:
            HistoryReadError: The database cannot be reached or read.
            HistoryWriteError: Storing failed; calling again is safe.
        """


def check_ids(ids: Iterable[str]) -> list[str]:
    """Return record ids without duplicates. Raise before any I/O if one is not a valid id."""
    if isinstance(ids, str):  # its letters would be taken for ids
        raise TypeError("ids must be a list of str, not a str")
    return list(dict.fromkeys(check_id(name, "id") for name in ids))


def check_expected(expected: Mapping[str, str], stored: Mapping[str, str]) -> None:
    """Raise `HistoryConflictError` if an expected record is gone or has another text; both hold digests by id."""
    for name, digest in expected.items():
        if stored.get(name) != digest:
            what = "was changed" if name in stored else "was deleted"
            msg = f"record {name!r:.80} {what} by somebody else meanwhile. Nothing was stored: begin again."
            raise HistoryConflictError(msg)


def plain_row(document: Document, name: str) -> NewRecord:
    """Return the row of a document of any origin: it is indexed by all of its words, whoever owns it."""
    known = document.metadata
    if "round_id" in known:  # a record that comes from another store
        return _row(document, name, known)
    session = check_id(known["session_id"], "session_id") if "session_id" in known else ""
    return _row(document, name, {"session_id": session})


def record_row(document: Document, user_id: str, session_id: str) -> NewRecord:
    """Return the row of a record of this session. Raise if its metadata names another user or session."""
    known = document.metadata
    if (known.get("user_id"), known.get("session_id")) != (user_id, session_id):
        msg = f"document {document.id!r:.80} carries another user_id or session_id than those that it is written under"
        raise ValueError(msg)
    return _row(document, check_id(document.id, "id"), known)


def _row(document: Document, name: str, known: Mapping[str, Any]) -> NewRecord:
    given, text = document.metadata, document.page_content
    user = check_id(given["user_id"], "user_id") if "user_id" in given else NOBODY
    try:
        facts = {**known, "messages": [without_surrogates(message) for message in known.get("messages") or ()]}
        if said := known.get("said"):
            facts["said"] = [[without_surrogates(role), without_surrogates(by), *span] for role, by, *span in said]
        entry = index_record_of(Document(without_surrogates(text), id=name, metadata=facts))
        problem = problem_of(entry)
    except UNREADABLE as error:
        entry, problem = None, type(error).__name__
    if entry is None or problem:  # out here, since the other error may quote the value
        raise ValueError(f"document {name!r:.80} has metadata that no record has: {problem}")
    metadata = encode_exactly(given, f"documents[{name!r:.80}].metadata")
    encoded = encode_value(text, f"documents[{name!r:.80}].page_content")
    return NewRecord(entry, user, digest_of(text), encoded, metadata)


def problem_of(entry: IndexRecord) -> str:
    """Describe what is wrong with an index entry made of unchecked metadata; an empty string if nothing is."""
    try:
        if entry.session:
            check_id(entry.session, "session_id")
        check_id(entry.round_id, "round_id")
        finite = entry.importance is None or bool(np.isfinite(entry.importance))
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    numbers: tuple[object, ...] = (entry.position, entry.epoch)
    if not all(isinstance(number, int) and SMALLEST <= number <= LARGEST for number in numbers):
        return "position and epoch must be whole numbers of 64 bits"
    return "" if finite else "importance must be a finite number"


def without_surrogates(text: str) -> str:
    """Replace each lone surrogate of a text with a question mark: neither a store nor a stemmer accepts them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def records_of(rows: Sequence[IndexRow], dims: int | None) -> tuple[list[CachedRecord], set[int]]:
    """Decode rows for the cache, with the dimensions of the index; return records and the stamps of damaged rows."""
    found: list[CachedRecord] = []
    damaged: set[int] = set()
    for row, vector in zip(rows, _vectors([row.vector for row in rows], dims), strict=True):
        try:
            if row.v != FORMAT_VERSION or (vector is None and row.vector is not None):
                raise ValueError
            entry, text = _entry(row), CachedText(row.text, row.metadata)
            if row.stems_version != STEMS_VERSION and (document := text.document(entry.id)) is not None:
                if not any(part.role for part in entry.said):  # a plain document, whose metadata may hold anything
                    document = Document(document.page_content, id=entry.id)
                entry = replace(entry, said=index_record_of(document).said)
            found.append(CachedRecord(entry, vector, text, row.digest))
        except UNREADABLE:
            damaged.add(row.stamp)
    return found, damaged


def _entry(row: IndexRow) -> IndexRecord:
    facts: Any = row.facts
    name, session, round_id, position, at, importance, epoch, expires_at, said, messages = facts
    kinds = [type(fact) for fact in (name, session, round_id, position, epoch, messages)]
    if kinds != [str, str, str, int, int, list] or not (importance is None or isinstance(importance, (int, float))):
        raise ValueError
    said = tuple([Utterance(role, by, tuple(words.split())) for role, by, words in said])
    at, expires_at, ids = parse_timestamp(at), parse_timestamp(expires_at), tuple(messages)
    return IndexRecord(name, session, round_id, position, at, said, ids, epoch, importance, expires_at, row.stamp)


def parse_timestamp(value: Any) -> datetime | None:
    """Parse a stored date: seconds since 1970, or a datetime that the driver made of them."""
    return value if value is None or isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)


def _vectors(cells: Sequence[object], dims: int | None) -> list[Vector | None]:
    """Decode the vectors of all rows at once; None for a missing, damaged or differently sized one."""
    sizes = Counter(len(cell) for cell in cells if isinstance(cell, bytes) and cell)
    # Without an index to compare with, the most frequent size is taken for the right one.
    size = 4 * dims if dims is not None else sizes.most_common(1)[0][0] if sizes else 0
    vectors: list[Vector | None] = [None] * len(cells)
    right = {i: cell for i, cell in enumerate(cells) if isinstance(cell, bytes) and len(cell) == size}
    if not right or not size or size % 4:
        return vectors
    matrix = np.frombuffer(b"".join(right.values()), "<f4").reshape(len(right), -1)
    for i, vector, good in zip(right, matrix, np.isfinite(matrix).all(axis=1).tolist(), strict=True):
        if good:
            vectors[i] = vector
    return vectors


def readable_documents(stored: Iterable[DocumentRow], now: datetime) -> list[StoredDocument]:
    """Decode the records that are readable and have not expired. Damaged ones are logged and left as they are."""
    rows, shown = list(stored), list[StoredDocument]()
    for row, vector in zip(rows, _vectors([row.vector for row in rows], None), strict=True):
        try:
            if row.v != FORMAT_VERSION:
                raise ValueError
            expires = parse_timestamp(row.expires_at)
            document = Document(decode_value(row.text), id=row.id, metadata=decode_value(row.metadata))
        except UNREADABLE as error:
            logger.warning("record %.200r is unreadable and left as it is (%s)", row.id, type(error).__name__)
            continue
        if expires is None or expires > now:
            shown.append(StoredDocument(document, row.user_id, row.session_id, row.stamp, vector))
    return shown


class CachedText:
    """The cached text and metadata (plain data, or its JSON) of a record, decoded when first asked for.

    Attributes:
        notes: What a memory made of the record to show it, by the messages and the day that it shows; for `()` its
            words, which are the same for records that differ in case and white space only.
    """

    __slots__ = ("_document", "metadata", "notes", "text")

    def __init__(self, text: object, metadata: object) -> None:
        self.text = text
        self.metadata = metadata
        self.notes: dict[Any, Any] = {}
        self._document: Document | None = None

    def document(self, name: str) -> Document | None:
        """Return the record as it was stored, one shared object that must not be changed; None if damaged (logged)."""
        if self._document is None:
            try:
                plain = json.loads(self.metadata) if isinstance(self.metadata, str) else self.metadata
                self._document = Document(decode_value(self.text), id=name, metadata=decode_value(plain))
            except UNREADABLE as error:
                logger.warning("record %.200r is unreadable and left as it is (%s)", name, type(error).__name__)
        return self._document


PROBE = "A memory keeps what was said, by whom and when."
"""Its vector tells one model from another; never changed, because it is stored."""
ALIKE = 0.99


class Embedder:
    """The embedding model of a store, compared once per process with the model that filled the store."""

    def __init__(self, embedding: Embeddings, store: VectorBackend, step: AsStep) -> None:
        if not isinstance(embedding, Embeddings):
            msg = f"embedding must be a LangChain Embeddings object, not {describe_type(embedding, Embeddings)}"  # type: ignore[unreachable]  # a class is easily taken for an object
            raise ConfigurationError(msg)
        self.embedding = embedding
        self.dims: int | None = None  # known once the model was compared with the one whose vectors are stored
        self._store = store
        self._step = step

    async def documents(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed texts to store; None for a vector of all zeros. The first call embeds the probe along with them."""
        if not texts:
            return []
        first = self.dims is None
        vectors = await self._embedded([*map(without_surrogates, texts), *([PROBE] if first else [])])
        if first:
            await self._compare(vectors.pop())
        return vectors

    async def query(self, text: str) -> Vector:
        """Embed a question. The model is compared with the stored probe only if there is one."""
        if self.dims is None and await self._step(self._store.probe) is not None:
            await self.known()
        model, asked = self.embedding, without_surrogates(text)
        vector = await Step(lambda: model.embed_query(asked), lambda: model.aembed_query(asked))
        try:
            (found,) = unit_vectors([vector], self.dims)
        except ConfigurationError:
            found = None
        if found is None:
            expected = "finite numbers that are not all 0" + (f", {self.dims} of them" if self.dims else "")
            raise HistoryReadError(
                f"the question's vector is of no use: {type(model).__name__} should have given a list of {expected}. "
                "The store was not searched; nothing can be said of what is in it."
            )
        return found

    async def known(self) -> int:
        """Return the dimensions of the model, after comparing it with the model that filled the store."""
        return self.dims if self.dims is not None else await self._compare((await self._embedded([PROBE]))[0])

    async def _embedded(self, texts: list[str]) -> list[Vector | None]:
        model = self.embedding
        vectors = await Step(lambda: model.embed_documents(texts), lambda: model.aembed_documents(texts))
        if len(vectors) != len(texts):
            msg = f"the embedding model returned {len(vectors)} vectors for {len(texts)} texts. Nothing was stored."
            raise ConfigurationError(msg)
        return unit_vectors(vectors, self.dims)

    async def _compare(self, probe: Vector | None) -> int:
        name = type(self.embedding).__name__
        if probe is None:
            msg = f"{name} gave a vector of all zeros for a plain English sentence. Use another embedding model."
            raise ConfigurationError(f"{msg} Nothing was stored.")
        # Two models may well have the same number of dimensions, and mixing their vectors would make every score
        # meaningless. So the vector of one fixed text is stored, and a model that gives another vector for it is
        # refused. Another process may store its probe first: the one that is returned counts.
        stored = await self._step(self._store.probe)
        if stored is None:
            stored = await self._step(lambda: self._store.probe(probe.tobytes()))
        if not stored or len(stored) % 4:
            raise HistoryReadError("what the store knows of its embedding model is damaged")
        known = np.frombuffer(stored, "<f4")
        if len(known) == len(probe) and float(known @ probe) > ALIKE:
            self.dims = len(probe)
            return self.dims
        reason = "gives other vectors for the same text"
        if len(known) != len(probe):
            reason = f"has {len(probe)} dimensions, the stored vectors have {len(known)}"
        msg = f"this store was filled with another embedding model: the one given ({name}) {reason}."
        raise ConfigurationError(f"{msg} Use the same model, or a new file or collection.")
