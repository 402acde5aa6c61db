"""What a vector store keeps of a document, and how its vector is made."""

from __future__ import annotations

import json
import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from langchain_memkit._sync import AsStep, Step
from langchain_memkit.base import check_id, describe_type
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, HistoryReadError, MessageEncodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_value, encode_value
from langchain_memkit.ranking.index import IndexRecord, Utterance, digest_of, index_record_of
from langchain_memkit.ranking.tokenize import STEMS_VERSION

logger = logging.getLogger("langchain_memkit")

NOBODY = ""  # the user id of unowned records; no caller can pass it as an id
UNREADABLE = (AttributeError, KeyError, OSError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions that decoding damaged data raises."""
SMALLEST, LARGEST = -(2**63), 2**63 - 1

Vector = npt.NDArray[np.float32]
Mark = tuple[int, ...]
"""Numbers that change when a user's records change, always by something else."""


class IndexRow(NamedTuple):
    """The columns of a record that ranking needs, with its text for showing it later. Values may be damaged."""

    stamp: Any
    facts: Any  # id, session, round, position, date, importance, epoch, expiry, said, messages
    stems_version: Any
    vector: Any
    text: Any
    metadata: Any
    digest: Any
    v: Any
    step: Any = None  # by how much this record's write changed the user's version, where the backend needs it


class DocumentRow(NamedTuple):
    """The columns of a record that are needed to return it as a document. Values may be damaged."""

    stamp: Any
    id: Any
    user_id: Any
    session_id: Any
    expires_at: Any
    text: Any
    metadata: Any
    vector: Any
    v: Any


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
    text: Any
    metadata: dict[str, Any]
    vector: bytes | None = None

    @property
    def said(self) -> list[list[str]]:
        """Role, name and stemmed words of each message."""
        return [[part.role, part.name, " ".join(part.stems)] for part in self.entry.said]

    def stamped(self, stamp: int) -> tuple[IndexRecord, Vector | None]:
        """Return the index entry and vector of this row once it is stored under a stamp."""
        vector = None if self.vector is None else np.frombuffer(self.vector, "<f4")
        return replace(self.entry, stamp=stamp), vector


class WriteResult(NamedTuple):
    """The result of a write: the stamps of the rows, in their order, and the change of the user's version."""

    stamps: Sequence[int]
    change: Mark


def check_ids(ids: Iterable[str]) -> list[str]:
    """Return record ids without duplicates. Raise before any I/O if one is not a valid id."""
    if isinstance(ids, str):  # its letters would be taken for ids
        msg = "ids must be a list of str, not a str"
        raise TypeError(msg)
    return list(dict.fromkeys(check_id(name, "id") for name in ids))


def check_expected(expected: Mapping[str, str], stored: Mapping[str, str]) -> None:
    """Raise if an expected record is gone or has another text.

    Args:
        expected: Digests of the texts, by id.
        stored: Digests of the stored texts, by id.

    Raises:
        HistoryConflictError: A record was changed or deleted.
    """
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
    given = document.metadata
    user = check_id(given["user_id"], "user_id") if "user_id" in given else NOBODY
    text = document.page_content
    try:
        facts = {**known, "messages": [without_surrogates(message) for message in known.get("messages") or ()]}
        if known.get("said"):
            facts["said"] = [
                [without_surrogates(role), without_surrogates(by), *span] for role, by, *span in known["said"]
            ]
        entry = index_record_of(Document(without_surrogates(text), id=name, metadata=facts))
        problem = _problem(entry)
    except UNREADABLE as error:
        entry, problem = None, type(error).__name__
    if entry is None or problem:  # out here, since the other error may quote the value
        msg = f"document {name!r:.80} has metadata that no record has: {problem}"
        raise ValueError(msg)
    metadata = _encoded(given, f"documents[{name!r:.80}].metadata")
    encoded = encode_value(text, f"documents[{name!r:.80}].page_content")
    return NewRecord(entry, user, digest_of(text), encoded, metadata)


def _problem(entry: IndexRecord) -> str:
    """Describe what is wrong with an entry; an empty string if nothing is."""
    try:
        if entry.session:
            check_id(entry.session, "session_id")
        check_id(entry.round_id, "round_id")
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    for field in ("position", "epoch"):
        value = getattr(entry, field)
        if not isinstance(value, int) or not SMALLEST <= value <= LARGEST:
            return f"{field} must be a whole number of 64 bits"
    try:
        finite = entry.importance is None or bool(np.isfinite(entry.importance))
    except (TypeError, ValueError):
        finite = False
    return "" if finite else "importance must be a finite number"


def without_surrogates(text: str) -> str:
    """Replace each lone surrogate of a text with a question mark: neither a store nor a stemmer accepts them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encoded(metadata: dict[str, Any], path: str) -> dict[str, Any]:
    encoded, problem = encode_value(metadata, path), ""
    if encoded == metadata:  # all of it plain, as in every record of a memory: read back it is the same
        return encoded  # type: ignore[no-any-return]  # a dict is encoded as a dict
    back: Any = None
    try:
        # decoded and compared before it is stored: a value that changes on the way must be refused now, not found on
        # reading
        back = decode_value(encoded)
    except UNREADABLE as error:
        problem = f"would be unreadable once stored ({type(error).__name__})"
    if problem:  # out here, since the other error may quote the value
        raise MessageEncodeError(path, problem)
    if back != metadata:
        wrong = [key for key in metadata if key not in back or back[key] != metadata[key]]
        raise MessageEncodeError(f"{path}[{wrong[0]!r:.80}]" if wrong else path, "would not come back equal")
    return encoded  # type: ignore[no-any-return]  # a dict is encoded as a dict


def entries_of(
    cells: Sequence[IndexRow], dims: int | None
) -> tuple[list[tuple[IndexRecord, Vector | None]], set[int], dict[int, tuple[IndexRow, Vector | None]]]:
    """Build index entries from rows.

    Args:
        cells: The rows, as they were read.
        dims: The dimensions of the vectors in the index; None if it has none yet.

    Returns:
        Entries with their vectors, the stamps of damaged rows, and by stamp the rows that another version of the
        stemmer wrote.
    """
    vectors = _vectors([row.vector for row in cells], dims)
    found: list[tuple[IndexRecord, Vector | None]] = []
    damaged: set[int] = set()
    stale: dict[int, tuple[IndexRow, Vector | None]] = {}
    for row, vector in zip(cells, vectors, strict=True):
        try:
            if row.v != FORMAT_VERSION or (vector is None and row.vector is not None):
                raise ValueError
            if row.stems_version != STEMS_VERSION:
                stale[row.stamp] = (row, vector)
            else:
                found.append((_entry(row), vector))
        except UNREADABLE:
            damaged.add(row.stamp)
    return found, damaged, stale


def _entry(row: IndexRow) -> IndexRecord:
    name, session, round_id, position, at, importance, epoch, expires_at, said, messages = row.facts
    if not (
        type(name) is type(session) is type(round_id) is str
        and type(position) is type(epoch) is int
        and type(messages) is list
        and (importance is None or isinstance(importance, (int, float)))
    ):
        raise ValueError
    return IndexRecord(
        name,
        session,
        round_id,
        position,
        parse_timestamp(at),
        tuple([Utterance(role, by, tuple(words.split())) for role, by, words in said]),
        tuple(messages),
        epoch,
        importance,
        parse_timestamp(expires_at),
        row.stamp,
    )


def parse_timestamp(value: Any) -> datetime | None:
    """Parse a stored date: seconds since 1970, or a datetime that the driver made of them."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value
    return datetime.fromtimestamp(value, UTC)


def _vectors(cells: Sequence[Any], dims: int | None) -> list[Vector | None]:
    """Decode the vectors of all rows at once; None for a missing, damaged or differently sized one."""
    sizes = Counter(len(cell) for cell in cells if isinstance(cell, bytes) and cell)
    # Without an index to compare with, the most frequent size is taken for the right one.
    size = 4 * dims if dims is not None else sizes.most_common(1)[0][0] if sizes else 0
    vectors: list[Vector | None] = [None] * len(cells)
    where = [i for i, cell in enumerate(cells) if isinstance(cell, bytes) and len(cell) == size]
    if not where or not size or size % 4:
        return vectors
    matrix = np.frombuffer(b"".join([cells[i] for i in where]), "<f4").reshape(len(where), -1)
    for i, vector, good in zip(where, matrix, np.isfinite(matrix).all(axis=1).tolist(), strict=True):
        if good:
            vectors[i] = vector
    return vectors


def readable_documents(stored: Iterable[DocumentRow], now: datetime) -> list[StoredDocument]:
    """Decode the records that are readable and have not expired. Damaged ones are logged and left as they are."""
    rows, shown = list(stored), list[StoredDocument]()
    if not rows:
        return shown
    for row, vector in zip(rows, _vectors([row.vector for row in rows], None), strict=True):
        try:
            if row.v != FORMAT_VERSION:
                raise ValueError
            text, metadata, expires = (
                decode_value(row.text),
                decode_value(row.metadata),
                parse_timestamp(row.expires_at),
            )
            document = Document(text, id=row.id, metadata=metadata)
        except UNREADABLE as error:
            logger.warning("record %.200r is unreadable and left as it is (%s)", row.id, type(error).__name__)
            continue
        if expires is None or expires > now:
            shown.append(StoredDocument(document, row.user_id, row.session_id, row.stamp, vector))
    return shown


class CachedText:
    """The cached text and metadata of a record, decoded when first asked for.

    Args:
        text: Plain data, as `encode_value` gives it.
        metadata: The same, or its JSON.

    Attributes:
        notes: What a memory made of the record to show it, by the numbers of the messages that it shows.
    """

    __slots__ = ("_document", "metadata", "notes", "text")

    def __init__(self, text: Any, metadata: Any) -> None:
        self.text = text
        self.metadata = metadata
        self.notes: dict[tuple[int, ...], Any] = {}
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


def restem(row: IndexRow, shown: StoredDocument) -> IndexRecord:
    """Stem a record again whose stored words are of another version of the stemmer, and return its entry."""
    document = shown.document
    # A plain document is stored as one part without role or name; the parts of a round are the spans in its metadata.
    alone = [(role, by) for role, by, _ in row.facts[8]] == [("", "")]
    facts = {} if alone else {"said": document.metadata["said"]}
    fresh = index_record_of(Document(without_surrogates(document.page_content), id=document.id, metadata=facts))
    return replace(_entry(row), said=fresh.said)


PROBE = "A memory keeps what was said, by whom and when."
"""Its vector tells one model from another; never changed, because it is stored."""
ALIKE = 0.99
NEARLY = 1e-6
HUGE = 1e200  # squares up to this and down to its inverse are exact enough


class ProbeStore(Protocol):
    """Storage for the vector of a fixed text, by which the model that filled a store is recognised. Both are flows."""

    @abstractmethod
    async def probe(self) -> bytes | None:
        """Read the vector of the probe.

        Returns:
            Little-endian floats of 4 bytes each; None if none is stored.

        Raises:
            HistoryReadError: The database cannot be reached or read.
        """

    @abstractmethod
    async def keep_probe(self, probe: bytes) -> bytes:
        """Store the vector of the probe unless there is one: of several writers the first one wins.

        Args:
            probe: The vector.

        Returns:
            The vector that is stored now.

        Raises:
            HistoryWriteError: The database failed; calling again is safe.
        """


class Embedder:
    """The embedding model of a store, compared once per process with the model that filled the store.

    Args:
        embedding: The model.
        store: Stores the probe's vector.
        step: Turns a flow of the store into a step.
    """

    def __init__(self, embedding: Embeddings, store: ProbeStore, step: AsStep) -> None:
        if not isinstance(embedding, Embeddings):
            msg = f"embedding must be a LangChain Embeddings object, not {describe_type(embedding, Embeddings)}"  # type: ignore[unreachable]  # callers without types
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
            (found,) = checked([vector], self.dims)
        except ConfigurationError:
            found = None
        if found is None:
            expected = "finite numbers that are not all 0" + (f", {self.dims} of them" if self.dims else "")
            msg = (
                f"the question's vector is of no use: {type(model).__name__} should have given a list of {expected}. "
                "The store was not searched; nothing can be said of what is in it."
            )
            raise HistoryReadError(msg)
        return found

    async def known(self) -> int:
        """Return the dimensions of the model, after comparing it with the model that filled the store."""
        if self.dims is None:
            await self._compare((await self._embedded([PROBE]))[0])
        assert self.dims is not None  # noqa: S101  # the comparison says so or raises
        return self.dims

    async def _embedded(self, texts: list[str]) -> list[Vector | None]:
        model = self.embedding
        vectors = await Step(lambda: model.embed_documents(texts), lambda: model.aembed_documents(texts))
        if len(vectors) != len(texts):
            msg = f"the embedding model returned {len(vectors)} vectors for {len(texts)} texts. Nothing was stored."
            raise ConfigurationError(msg)
        return checked(vectors, self.dims)

    async def _compare(self, probe: Vector | None) -> None:
        if probe is None:
            msg = (
                f"{type(self.embedding).__name__} gave a vector of all zeros for a plain English sentence. Use another "
                "embedding model. Nothing was stored."
            )
            raise ConfigurationError(msg)
        # Two models may well have the same number of dimensions, and mixing their vectors would make every score
        # meaningless. So the vector of one fixed text is stored, and a model that gives another vector for it is
        # refused.
        stored = await self._step(self._store.probe)
        if stored is None:
            # Another process may store its probe first: the one that is returned counts, also if it is of another
            # model.
            stored = await self._step(lambda: self._store.keep_probe(probe.tobytes()))
        if len(stored) % 4 or not stored:
            msg = "what the store knows of its embedding model is damaged"
            raise HistoryReadError(msg)
        known = np.frombuffer(stored, "<f4")
        if len(known) != len(probe):
            reason = f"has {len(probe)} dimensions, the stored vectors have {len(known)}"
        elif not float(known @ probe) > ALIKE:
            reason = "gives other vectors for the same text"
        else:
            self.dims = len(probe)
            return
        msg = (
            f"this store was filled with another embedding model: the one given ({type(self.embedding).__name__}) "
            f"{reason}. Use the same model, or a new file or collection."
        )
        raise ConfigurationError(msg)


def checked(vectors: Sequence[Any], dims: int | None) -> list[Vector | None]:
    """Validate vectors and scale them to length 1; None for one that is all zeros (the model knows none of the words).

    Args:
        vectors: Sequences of numbers, as the model returned them.
        dims: The number of dimensions that each must have; None for that of the first.

    Returns:
        A float32 vector or None for each, in order.

    Raises:
        ConfigurationError: An item is no list of finite numbers, or has another number of dimensions.
    """
    found: list[Vector | None] = []
    for i, vector in enumerate(vectors):
        if _is_ready(vector, dims):
            found.append(vector)
            continue
        try:
            numbers = np.asarray(vector, np.float64)
        except (OverflowError, TypeError, ValueError):
            numbers = np.empty((0, 0))
        dims = dims if dims is not None else numbers.size
        square = float(np.vdot(numbers, numbers)) if numbers.ndim == 1 and numbers.size == dims else 0.0
        if 1 / HUGE < square < HUGE:  # as of every usual vector
            found.append((numbers / math.sqrt(square)).astype("<f4"))
            continue
        with np.errstate(over="ignore"):
            largest = np.abs(numbers).max(initial=0.0)
        if numbers.ndim != 1 or not numbers.size or not np.isfinite(largest):
            problem = "is no list of finite numbers"
        elif numbers.size != dims:
            problem = f"has {numbers.size} dimensions instead of {dims}"
        elif not largest:
            found.append(None)
            continue
        else:
            numbers = numbers / largest  # so that squares neither overflow nor vanish
            found.append((numbers / np.sqrt(numbers @ numbers)).astype("<f4"))
            continue
        msg = f"vector {i} of the embedding model {problem}. Nothing was stored."
        raise ConfigurationError(msg)
    return found


def _is_ready(vector: Any, dims: int | None) -> bool:
    """Return whether a value is a vector that was validated and scaled already."""
    plain = isinstance(vector, np.ndarray) and vector.dtype == "<f4" and vector.shape == (dims,)
    return plain and abs(float(vector @ vector) - 1) < NEARLY


def question_vector(vector: Any, dims: int | None) -> Vector:
    """Validate a search vector that the caller passed, and scale it to length 1.

    Raises:
        ConfigurationError: It is no list of finite numbers, has another number of dimensions, or is all zeros.
    """
    (found,) = checked([vector], dims)
    if found is None:
        msg = "the vector to search by is all zeros, so it has no direction: nothing is near to it"
        raise ConfigurationError(msg)
    return found
