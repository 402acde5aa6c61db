"""Which words stand in which messages of which records; kept up to date one record at a time."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.scoring.entries import Said

__all__ = ["Postings", "Speaker"]

Numbers: TypeAlias = npt.NDArray[np.int64]
Speaker: TypeAlias = tuple[str, str]
"""A role and a name."""

NONE = np.zeros(0, np.int64)


class Postings:
    """For each word the messages in which it stands, a message as often as the word does.

    Adding a record costs its own words only; what is removed stays until the index is built anew, and is passed over.

    Attributes:
        slots: For each message the slot of its record.
        lengths: For each message its number of words.
        spoken: For each message the number of its speaker.
        speakers: The numbers of the speakers.
        words: The number of words of all messages.
    """

    __slots__ = ("_messages", "lengths", "slots", "speakers", "spoken", "words")

    def __init__(self) -> None:
        self.slots = array("q")
        self.lengths = array("q")
        self.spoken = array("q")
        self.speakers: dict[Speaker, int] = {}
        self.words = 0
        self._messages: defaultdict[str, array[int]] = defaultdict(partial(array, "q"))

    def __len__(self) -> int:
        """Return number of different words."""
        return len(self._messages)

    def add(self, slot: int, said: Sequence[Said]) -> None:
        """Add the messages of a record."""
        known = self._messages
        for role, name, stems in said:
            message = len(self.slots)
            self.slots.append(slot)
            self.lengths.append(len(stems))
            self.spoken.append(self.speakers.setdefault((role, name), len(self.speakers)))
            self.words += len(stems)
            for stem in stems:
                known[stem].append(message)

    def messages(self, stem: str) -> Numbers:
        """Return the messages with a word, in the order in which they were added."""
        found = self._messages.get(stem)
        return NONE if found is None else np.array(found)
