"""Entries with what finds them in a text. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.matching.finder import KeyFinder
from langchain_memkit.memories.key_value.entries import Entry
from langchain_memkit.messages.limits import QUESTION, beginning

__all__ = ["Catalog", "Hit"]

TEXTS = 256  # whose hits are remembered: the messages of the past are the same at every turn


class Hit(NamedTuple):
    """A title that a text mentions.

    Attributes:
        title: Of the entry.
        score: How alike name and mention are, 0 to 100.
        kind: `"exact"`: as written. `"folded"`: in other case or punctuation. `"fuzzy"`: with typos. `"matcher"`: the
            `matcher=` said so.
        alias: The other name by which it was mentioned; None if it was the title.
    """

    title: str
    score: float
    kind: Literal["exact", "folded", "fuzzy", "matcher"]
    alias: str | None = None


class Catalog:
    """All entries of an app or a user, as they were at one moment.

    Args:
        entries: Each title once.
        aliases: Further names of titles.
        min_score: How alike a mention with typos must be; None: no typos.
        token: Of the version that was read.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        aliases: Mapping[str, Sequence[str]] | None = None,
        min_score: float | None = None,
        token: Any = None,
    ) -> None:
        self.token = token
        self.entries = {entry.title: entry for entry in entries}
        self.titles = sorted(self.entries)
        self._meant: dict[str, list[tuple[str, str | None]]] = {}
        for title in self.titles:
            self._meant.setdefault(title, []).append((title, None))
            for alias in dict.fromkeys((*self.entries[title].aliases, *(aliases or {}).get(title, ()))):
                if alias != title:
                    self._meant.setdefault(alias, []).append((title, alias))
        self._finder = KeyFinder({name: name for name in self._meant}, min_score=min_score)
        self._remembered = lru_cache(maxsize=TEXTS)(self._find)
        self._matched: OrderedDict[str, tuple[Hit, ...]] = OrderedDict()
        self._lock = ForkSafeLock()

    def hits(self, text: str) -> list[Hit]:
        """Return the titles that a text mentions, each once, in order of mention."""
        return list(self._remembered(beginning(text, QUESTION, "a text in which titles are looked for")))

    def _find(self, text: str) -> tuple[Hit, ...]:
        hits: dict[str, Hit] = {}
        for found in self._finder.find(text):
            for title, alias in self._meant[found.key]:
                hit = Hit(title, found.score, found.kind, alias)
                if title not in hits or hits[title].score < hit.score:
                    hits[title] = hit  # the better mention, in the place of the first one
        return tuple(hits.values())

    def matched(self, text: str) -> tuple[Hit, ...]:
        """Return what the matcher said when it was asked about a text, if it is remembered."""
        with self._lock:
            return self._matched.get(text[:QUESTION], ())

    def keep_matched(self, text: str, hits: Sequence[Hit]) -> None:
        """Remember what the matcher said."""
        with self._lock:
            self._matched[text[:QUESTION]] = tuple(hits)
            if len(self._matched) > TEXTS:
                self._matched.popitem(last=False)
