"""Conversion of records between documents, stored rows and index entries. No I/O."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from langchain_core.documents import Document

from langchain_memkit.base import check_id
from langchain_memkit.errors import HistoryConflictError, MessageEncodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_value, encode_value
from langchain_memkit.scoring.index import Entry, Said, digest_of, entry_of
from langchain_memkit.scoring.words import STEMS_VERSION

logger = logging.getLogger("langchain_memkit")

NOBODY = ""  # the user id of unowned records; no caller can pass it as an id
UNREADABLE = (AttributeError, KeyError, OSError, OverflowError, RecursionError, TypeError, ValueError)
"""What damaged data raises."""
SMALLEST, LARGEST = -(2**63), 2**63 - 1

Vector = npt.NDArray[np.float32]
Mark = tuple[int, ...]
"""Numbers that change when a user's records change, always by something else."""


class Cells(NamedTuple):
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


class Stored(NamedTuple):
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


class Shown(NamedTuple):
    """A stored record as a document, with its owner, session, stamp and vector."""

    document: Document
    user_id: str
    session_id: str
    stamp: int
    vector: Vector | None


@dataclass(slots=True)
class Row:
    """A record to store. `text` and `metadata` are plain data; `vector` holds little-endian floats of 4 bytes each."""

    entry: Entry
    user_id: str
    digest: str
    text: Any
    metadata: dict[str, Any]
    vector: bytes | None = None

    @property
    def said(self) -> list[list[str]]:
        """Role, name and stemmed words of each message."""
        return [[part.role, part.name, " ".join(part.stems)] for part in self.entry.said]

    def stamped(self, stamp: int) -> tuple[Entry, Vector | None]:
        """Return the index entry and vector of this row once it is stored under a stamp."""
        vector = None if self.vector is None else np.frombuffer(self.vector, "<f4")
        return replace(self.entry, stamp=stamp), vector


class Written(NamedTuple):
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


def plain_row(document: Document, name: str) -> Row:
    """Return the row of a document of any origin: it is indexed by all of its words, whoever owns it."""
    known = document.metadata
    if "round_id" in known:  # a record that comes from another store
        return _row(document, name, known)
    session = check_id(known["session_id"], "session_id") if "session_id" in known else ""
    return _row(document, name, {"session_id": session})


def record_row(document: Document, user_id: str, session_id: str) -> Row:
    """Return the row of a record of this session. Raise if its metadata names another user or session."""
    known = document.metadata
    if (known.get("user_id"), known.get("session_id")) != (user_id, session_id):
        msg = f"document {document.id!r:.80} carries another user_id or session_id than those that it is written under"
        raise ValueError(msg)
    return _row(document, check_id(document.id, "id"), known)


def _row(document: Document, name: str, known: Mapping[str, Any]) -> Row:
    given = document.metadata
    user = check_id(given["user_id"], "user_id") if "user_id" in given else NOBODY
    text = document.page_content
    try:
        facts = {**known, "messages": [readable(message) for message in known.get("messages") or ()]}
        if known.get("said"):
            facts["said"] = [[readable(role), readable(by), *span] for role, by, *span in known["said"]]
        entry = entry_of(Document(readable(text), id=name, metadata=facts))
        problem = _problem(entry)
    except UNREADABLE as error:
        entry, problem = None, type(error).__name__
    if entry is None or problem:  # out here, since the other error may quote the value
        msg = f"document {name!r:.80} has metadata that no record has: {problem}"
        raise ValueError(msg)
    metadata = _encoded(given, f"documents[{name!r:.80}].metadata")
    encoded = encode_value(text, f"documents[{name!r:.80}].page_content")
    return Row(entry, user, digest_of(text), encoded, metadata)


def _problem(entry: Entry) -> str:
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


def readable(text: str) -> str:
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
    cells: Sequence[Cells], dims: int | None
) -> tuple[list[tuple[Entry, Vector | None]], set[int], dict[int, tuple[Cells, Vector | None]]]:
    """Build index entries from rows.

    Args:
        cells: The rows, as they were read.
        dims: The dimensions of the vectors in the index; None if it has none yet.

    Returns:
        Entries with their vectors, the stamps of damaged rows, and by stamp the rows that another version of the
        stemmer wrote.
    """
    vectors = _vectors([row.vector for row in cells], dims)
    found: list[tuple[Entry, Vector | None]] = []
    damaged: set[int] = set()
    stale: dict[int, tuple[Cells, Vector | None]] = {}
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


def _entry(row: Cells) -> Entry:
    name, session, round_id, position, at, importance, epoch, expires_at, said, messages = row.facts
    if not (
        type(name) is type(session) is type(round_id) is str
        and type(position) is type(epoch) is int
        and type(messages) is list
        and (importance is None or isinstance(importance, (int, float)))
    ):
        raise ValueError
    return Entry(
        name,
        session,
        round_id,
        position,
        moment(at),
        tuple([Said(role, by, tuple(words.split())) for role, by, words in said]),
        tuple(messages),
        epoch,
        importance,
        moment(expires_at),
        row.stamp,
    )


def moment(value: Any) -> datetime | None:
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


def shown_of(stored: Iterable[Stored], now: datetime) -> list[Shown]:
    """Decode the records that are readable and have not expired. Damaged ones are logged and left as they are."""
    rows, shown = list(stored), list[Shown]()
    if not rows:
        return shown
    for row, vector in zip(rows, _vectors([row.vector for row in rows], None), strict=True):
        try:
            if row.v != FORMAT_VERSION:
                raise ValueError
            text, metadata, expires = decode_value(row.text), decode_value(row.metadata), moment(row.expires_at)
            document = Document(text, id=row.id, metadata=metadata)
        except UNREADABLE as error:
            logger.warning("record %.200r is unreadable and left as it is (%s)", row.id, type(error).__name__)
            continue
        if expires is None or expires > now:
            shown.append(Shown(document, row.user_id, row.session_id, row.stamp, vector))
    return shown


class Text:
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


def again(row: Cells, shown: Shown) -> Entry:
    """Stem a record again whose stored words are of another version of the stemmer, and return its entry."""
    document = shown.document
    # A plain document is stored as one part without role or name; the parts of a round are the spans in its metadata.
    alone = [(role, by) for role, by, _ in row.facts[8]] == [("", "")]
    facts = {} if alone else {"said": document.metadata["said"]}
    fresh = entry_of(Document(readable(document.page_content), id=document.id, metadata=facts))
    return replace(_entry(row), said=fresh.said)
