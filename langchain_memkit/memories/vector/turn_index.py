"""What a vector memory keeps in the row of a turn: its records, their words and vectors. Pure.

A version byte, the length of the head, the head (JSON, compressed), then the vectors, 16-bit floats one after the
other. The head holds the version of the stems, a sketch of the embedding model, and a line for each record.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from langchain_core.messages import BaseMessage

from langchain_memkit.memories.vector.rounds import RoundLine, Splitter, is_small_talk, pieces_of, rendered, rounds_of
from langchain_memkit.ranking.records import IndexRecord, Utterance, stems_of
from langchain_memkit.ranking.tokenize import STEMS_VERSION
from langchain_memkit.stores.changes import ChangedRow, Place

Vector: TypeAlias = npt.NDArray[np.float32]
Sketch: TypeAlias = tuple[float, ...]
"""The number of dimensions of a model, and the first of them of its vector of one text."""

VERSION = b"\x01"
ROOM = 1000  # records of a turn that have positions of their own
LARGEST = 2**20  # bytes; an index that is larger is stored without vectors, since a row has room for 16 MB
MOST = 2**26  # bytes of a head, once it is no longer compressed; a longer one is damaged
SKETCHED = 8  # numbers of a vector by which a model is recognized
NEAR = 0.32  # by which these may differ, times what numbers of a vector usually are: a provider's do, a little


@dataclass(slots=True)
class TurnRecord:
    """A record of a turn: a round, or a part of a long one.

    Attributes:
        text: The text, each message after its speaker.
        said: Role, name, begin and end of each message's own words in the text.
        messages: The ids of the messages.
        stems: The words of each message.
        is_worth: Whether it is to be embedded: not greetings and consent, nor what no vector could be made of or kept.
        importance: From 1 to 10; None if unrated.
        vector: Of length 1; None if it is not embedded.
    """

    text: str
    said: list[list[Any]]
    messages: list[str]
    stems: list[tuple[str, ...]]
    is_worth: bool
    importance: float | None = None
    vector: Vector | None = None

    @property
    def lines(self) -> list[RoundLine]:
        """The lines that it was built from."""
        return [
            RoundLine(role, name, self.text[start:end], message)
            for (role, name, start, end), message in zip(self.said, self.messages, strict=True)
        ]


@dataclass(slots=True)
class TurnIndex:
    """What a vector memory derives from a turn."""

    records: list[TurnRecord]
    sketch: Sketch = ()
    """That of the model of the vectors; empty if there are none."""

    @property
    def is_embedded(self) -> bool:
        """Whether all records that are to have a vector have one."""
        return all(record.vector is not None or not record.is_worth for record in self.records)


class Stored(NamedTuple):
    """A record as a memory holds it in process."""

    place: Place
    record: TurnRecord
    entry: IndexRecord
    notes: dict[Any, Any]  # what was made of the record to show it


def derive(messages: Sequence[BaseMessage], splitter: Splitter) -> TurnIndex:
    """Make the records of a turn: of each user's input, with all that follows it, one, or several if it is long.

    Args:
        messages: The turn, oldest first.
        splitter: Splits long texts.

    Returns:
        The index, without vectors and ratings.
    """
    made: list[TurnRecord] = []
    for lines in rounds_of(messages):
        for piece in pieces_of(lines, splitter):
            text, said = rendered(piece)
            stems = stems_of([(line.role, line.text) for line in piece])
            ids = [line.message for line in piece]
            made.append(TurnRecord(text, said, ids, stems, not is_small_talk(piece)))
    return TurnIndex(made[:ROOM])


def encode(index: TurnIndex) -> bytes:
    """Encode an index; from one that is too large the vectors are taken away first, for good."""
    vectors = [record.vector for record in index.records if record.vector is not None]
    lines = [
        [
            record.text,
            record.said,
            record.messages,
            [" ".join(stems) for stems in record.stems],
            int(record.is_worth),
            int(record.vector is not None),
            record.importance,
        ]
        for record in index.records
    ]
    head = [STEMS_VERSION, list(index.sketch), lines]
    packed = zlib.compress(json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
    made = VERSION + len(packed).to_bytes(4, "big") + packed
    made += b"".join(vector.astype("<f2").tobytes() for vector in vectors)
    if len(made) > LARGEST and vectors:
        for record in index.records:
            record.vector, record.is_worth = None, False
        return encode(index)
    return made


def decode(data: bytes | None) -> TurnIndex | None:
    """Decode an index; None if there is none, or it is damaged, or of another version: then it is made anew."""
    if not data or data[:1] != VERSION:
        return None
    try:
        end = 5 + int.from_bytes(data[1:5], "big")
        head = zlib.decompressobj().decompress(data[5:end], MOST)
        version, sketch, lines = json.loads(head.decode())
        is_sound = isinstance(sketch, list) and all(isinstance(number, (int, float)) for number in sketch)
        if version != STEMS_VERSION or not is_sound:
            return None
        records = []
        dims = int(sketch[0]) if sketch else 0
        vectors = np.frombuffer(data, "<f2", offset=end).astype(np.float32).reshape(-1, dims or 1)
        # of length 1 again, which they lost by being rounded
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        vectors /= np.where(lengths > 0, lengths, 1)[:, None]
        used = 0
        for text, said, messages, stems, is_worth, has_vector, importance in lines:
            record = _read_record(text, said, messages, stems, is_worth, importance)
            if has_vector:
                record.vector = vectors[used]
                used += 1
            records.append(record)
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError, zlib.error):
        return None
    return TurnIndex(records, tuple(sketch)) if used == len(vectors) or not dims else None


def _read_record(text: Any, said: Any, messages: Any, stems: Any, is_worth: Any, importance: Any) -> TurnRecord:
    """Return a record that was stored, or raise `ValueError`, `TypeError` or `AttributeError` if it is damaged."""
    words = [tuple(line.split()) for line in stems]
    texts = [text, *messages, *(part for role, name, _, _ in said for part in (role, name))]
    numbers = [0 if importance is None else importance, *(place for _, _, *span in said for place in span)]
    is_sound = all(isinstance(each, str) for each in texts) and all(isinstance(each, (int, float)) for each in numbers)
    if not is_sound or not len(said) == len(messages) == len(words):
        raise ValueError
    return TurnRecord(text, said, messages, words, bool(is_worth), importance)


def sketch_of(probe: Vector) -> Sketch:
    """Return what recognizes an embedding model, given its vector of the text that all are asked for."""
    return (len(probe), *(round(float(number), 3) for number in probe[:SKETCHED]))


def same_model(one: Sketch, other: Sketch) -> bool:
    """Return whether two sketches are of the same model."""
    if one == other:
        return bool(one)
    if not one or not other or one[0] != other[0]:
        return False
    usual = one[0] ** -0.5  # in a vector of length 1
    return all(abs(a - b) <= NEAR * usual for a, b in zip(one[1:], other[1:], strict=False))


def stored_records(index: TurnIndex, row: ChangedRow, ttl: timedelta | None) -> list[Stored]:
    """Return the records of a row as a memory holds them, in order."""
    ends = [row.expires_at] if row.expires_at else []
    if ttl is not None and row.created_at is not None:
        ends.append(row.created_at + ttl)
    expires_at = min(ends, default=None)
    return [
        Stored(row.place, record, _entry(record, row, number, expires_at), {})
        for number, record in enumerate(index.records)
    ]


def _entry(record: TurnRecord, row: ChangedRow, number: int, expires_at: datetime | None) -> IndexRecord:
    said = zip(record.said, record.stems, strict=True)
    return IndexRecord(
        id=f"{row.session_id}:{row.seq}:{number}",
        session=row.session_id,
        round_id=f"{row.session_id}:{row.seq}",
        position=row.seq * ROOM + number,
        at=row.created_at,
        said=tuple(Utterance(role, name, stems) for (role, name, *_), stems in said),
        messages=tuple(record.messages),
        importance=record.importance,
        expires_at=expires_at,
    )
