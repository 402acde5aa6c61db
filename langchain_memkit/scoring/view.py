"""An index as arrays, one number for each record; made again when the index has changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.scoring.postings import Speaker

if TYPE_CHECKING:
    from langchain_memkit.scoring.entries import Entry
    from langchain_memkit.scoring.postings import Postings

__all__ = ["View"]

Doubles: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


class View:
    """What ranking asks of an index, in the order of its entries.

    Args:
        entries: The records.
        alive: For each slot whether it holds a record.
        embedded: For each slot whether its record has a vector.
        sessions: For each slot the number of its session, -1 for none.
        positions: For each slot the record's position.
        times: For each slot when it was said, in seconds since 1970, `nan` if nobody knows.
        postings: The words, by slot.

    Attributes:
        entries: As given.
        slots: The slot of each record.
        embedded: Which records have a vector.
        row: For each message the record that it is in, -1 if that was removed.
        removed: Whether there is such a message.
        spoken: For each message the number of its speaker.
        speakers: Those who say something, by number.
        first: For each record its first message; the others follow.
        lengths: The number of words of each record.
        mean_length: Their mean.
        times: When each record was said.
        session: The number of each record's session, -1 for none.
        session_lengths: The number of words of each session.
        session_count: The number of sessions.
        order: The records by session and position.
        nearby: For each distance, 1 and 2, whether the record so much further in `order` is of the same session.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        alive: Flags,
        embedded: Flags,
        sessions: Numbers,
        positions: Numbers,
        times: Doubles,
        postings: Postings,
    ) -> None:
        self.entries = entries
        self.slots = np.flatnonzero(alive)
        self.embedded = embedded[self.slots]
        rows = np.full(len(alive), -1)
        rows[self.slots] = np.arange(len(self.slots))
        message_slots, lengths = np.array(postings.slots), np.array(postings.lengths)
        self.row = rows[message_slots] if len(message_slots) else message_slots
        self.spoken = np.array(postings.spoken)
        live = self.row >= 0
        self.removed = not live.all()
        told = set(np.bincount(self.spoken[live]).nonzero()[0].tolist())
        self.speakers: dict[int, Speaker] = {n: speaker for speaker, n in postings.speakers.items() if n in told}
        self.first = np.searchsorted(message_slots, self.slots)
        self.lengths: Doubles = np.bincount(self.row[live], lengths[live], minlength=len(entries)).astype(np.float64)
        self.mean_length = float(self.lengths.sum()) / max(len(entries), 1) or 1.0
        self.times = times[self.slots]
        self.session = sessions[self.slots]
        grouped = self.session >= 0
        self.session_lengths: Doubles = np.bincount(self.session[grouped], self.lengths[grouped]).astype(np.float64)
        self.session_count = int(np.count_nonzero(np.bincount(self.session[grouped])))
        self.order = np.lexsort((positions[self.slots], self.session))
        ordered = self.session[self.order]
        self.nearby = [(ordered[d:] == ordered[:-d]) & (ordered[d:] >= 0) for d in (1, 2)]
