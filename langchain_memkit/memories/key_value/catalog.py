"""Index of entries by title and alias, which finds the entries that a text mentions. Pure."""

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

TEXTS = 256  # texts whose hits are cached: the messages of the past are searched again in every turn


class Hit(NamedTuple):
    """An entry that a text mentions.

    Attributes:
        title: Title of the entry.
        score: Similarity of name and mention, 0 to 100.
        kind: `"exact"`: character for character. `"folded"`: in other case or punctuation. `"fuzzy"`: with typos.
            `"matcher"`: found by the `matcher=`.
        alias: The alias that was mentioned; None if it was the title.
    """

    title: str
    score: float
    kind: Literal["exact", "folded", "fuzzy", "matcher"]
    alias: str | None = None


class Catalog:
    """Snapshot of all entries of an app or a user, indexed by name.

    Args:
        entries: The entries, each title once.
        aliases: Further names by title.
        min_score: Similarity that a mention with typos must have, 0 to 100; None finds no typos.
        token: Version token of the store when the entries were read.
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
        """Return the entries that a text mentions, each once, in order of mention."""
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
        """Return the cached hits of the matcher for a text; empty if it was not asked about it.

        The matcher may be slow or cost a model call, so it is asked about new inputs only: for past messages this cache
        is used.
        """
        with self._lock:
            return self._matched.get(text[:QUESTION], ())

    def keep_matched(self, text: str, hits: Sequence[Hit]) -> None:
        """Cache the hits of the matcher for a text; of 256 texts the oldest is dropped."""
        with self._lock:
            self._matched[text[:QUESTION]] = tuple(hits)
            if len(self._matched) > TEXTS:
                self._matched.popitem(last=False)
