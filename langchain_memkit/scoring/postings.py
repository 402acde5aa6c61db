"""Inverted index from words to messages and records, updated one record at a time."""

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
EMPTY = array("q")


class Postings:
    """Inverted index: for each word the messages that contain it, once per occurrence.

    Append-only: adding a record costs its own words, and messages of removed records stay, to be skipped by readers,
    until the index is rebuilt.

    Attributes:
        slots: For each message, the slot of its record.
        lengths: For each message, its number of words.
        spoken: For each message, the number of its speaker.
        speakers: Number of each speaker.
        words: Total number of words.
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
        """Return the number of distinct words."""
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
        """Return the messages with a word, in the order in which they were added, repeated for repeated occurrences."""
        found = self._messages.get(stem)
        return NONE if found is None else np.array(found)

    def of(self, stems: Sequence[str]) -> tuple[Numbers, list[int]]:
        """Return the messages with each of some words, one word after the other, and how many there are of each."""
        found = [self._messages.get(stem, EMPTY) for stem in stems]
        number = [len(messages) for messages in found]
        return (np.frombuffer(b"".join(found), np.int64) if any(number) else NONE), number
