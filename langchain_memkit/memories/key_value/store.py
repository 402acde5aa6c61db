"""Entries of a key-value memory: checked, held in process, looked up by title."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from langchain_core.stores import BaseStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import describe_value, user_prefix
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.matching.fuzzy import KeyFinder
from langchain_memkit.messages.text import QUESTION, truncate_with_warning

__all__ = ["Entries", "Entry", "EntryCache", "EntryIndex", "TitleMatch", "alias_lists", "entries_of", "read_entries"]

SOURCE = "key-value"
MOST_TITLE = 1500  # bytes of an encoded title in a key: stores take 4096, and the longest user id stands before it

Entries: TypeAlias = Mapping[str, str | Mapping[str, Any]] | Iterable[Mapping[str, Any]]
"""`{title: text}`, `{title: {"text": ..., "aliases": [...]}}`, or a list of `{"title": ..., "text": ..., ...}`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A text under a title.

    Attributes:
        title: The title, which identifies the entry.
        text: The text that is shown when the title is mentioned.
        aliases: Further names under which it is found.
        source: Where the text comes from; shown in the note.
    """

    title: str
    text: str
    aliases: tuple[str, ...] = ()
    source: str = SOURCE

    @property
    def key(self) -> str:
        """Return the last part of its store key: the percent-encoded title, or a hash of a long one."""
        quoted = quote(self.title, safe="", errors="surrogatepass")
        if len(quoted) <= MOST_TITLE:
            return quoted
        return "#" + hashlib.sha256(quoted.encode()).hexdigest()  # quoting leaves no "#": no title has this key

    def to_row(self) -> dict[str, Any]:
        """Return the row as plain JSON data for a store."""
        row = {"title": self.title, "text": self.text, "aliases": list(self.aliases)}
        return row if self.source == SOURCE else {**row, "source": self.source}

    @classmethod
    def from_row(cls, row: Any) -> Entry | None:
        """Return the entry of a row; None if the row is damaged."""
        try:
            return _entry(row["title"], row)
        except (ConfigurationError, KeyError, TypeError):
            return None


def entries_of(data: Any) -> list[Entry]:
    """Validate entries in any of the shapes that a caller may give.

    Args:
        data: See `Entries`.

    Returns:
        The entries, in the given order.

    Raises:
        ConfigurationError: A title is empty or given twice, or a value is neither text nor a dict with `"text"`; the
            error names the title.

    Example:
        >>> entries_of({"The Skeleton Songs": "Poems."})
        [Entry(title='The Skeleton Songs', text='Poems.', aliases=(), source='key-value')]
    """
    if isinstance(data, Mapping):
        entries = [_entry(title, value) for title, value in data.items()]
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        entries = []
        for number, value in enumerate(data):
            if not (isinstance(value, Mapping) and "title" in value):
                msg = f'entry {number} must be a dict with "title" and "text", not {describe_value(value)}'
                raise ConfigurationError(msg)
            entries.append(_entry(value["title"], value))
    else:
        msg = f'entries must be a dict of titles or a list of dicts with "title", not {type(data).__name__}'
        raise ConfigurationError(msg)
    seen: set[str] = set()
    for entry in entries:
        if entry.title in seen:
            msg = f"the title {entry.title!r:.80} is given twice: only one text can stand under it"
            raise ConfigurationError(msg)
        seen.add(entry.title)
    return entries


def _entry(title: Any, value: Any) -> Entry:
    if not isinstance(title, str) or not title.strip():
        msg = f"a title must be text that is not empty, not {describe_value(title)}"
        raise ConfigurationError(msg)
    if isinstance(value, str):
        return Entry(title, value)
    if not (isinstance(value, Mapping) and isinstance(value.get("text"), str)):
        msg = f'the value of {title!r:.80} must be text or a dict with "text", not {describe_value(value)}'
        raise ConfigurationError(msg)
    if unknown := set(value) - {"title", "text", "aliases", "source"}:
        msg = f'{title!r:.80} has {sorted(map(str, unknown))!r:.80}: an entry has "text", "aliases" and "source"'
        raise ConfigurationError(msg)
    source = value.get("source", SOURCE)
    if not isinstance(source, str):
        msg = f'"source" of {title!r:.80} must be text, not {describe_value(source)}'
        raise ConfigurationError(msg)
    return Entry(title, value["text"], _names(title, value.get("aliases") or ()), source)


def _names(title: str, names: Any) -> tuple[str, ...]:
    listed = isinstance(names, Sequence) and not isinstance(names, (str, bytes))
    if not (listed and all(isinstance(name, str) and name.strip() for name in names)):
        msg = f"aliases of {title!r:.80} must be a list of texts that are not empty, not {describe_value(names)}"
        raise ConfigurationError(msg)
    return tuple(names)


def alias_lists(aliases: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    """Validate `aliases=`: a list of further names for each title."""
    if aliases is None:
        return {}
    if not isinstance(aliases, Mapping):
        msg = f"aliases must be a dict of titles with lists of names, not {type(aliases).__name__}"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    return {title: _names(title, names) for title, names in aliases.items()}


def read_entries(path: str | Path) -> list[Entry]:
    """Read entries from a file.

    Args:
        path: `.json`: any shape that `entries_of` takes. `.txt`: a title, a line `---`, a description, a blank line,
            and so on. A new entry begins where a line is followed by a line `---`, so a description may contain line
            breaks and blank lines.

    Raises:
        ConfigurationError: The file has another suffix, is not UTF-8 or is malformed.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in (".json", ".txt"):
        msg = f"{file.name} must be a .txt or a .json file"
        raise ConfigurationError(msg)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{file.name} must be UTF-8: {error}"
        raise ConfigurationError(msg) from error
    if kind == ".txt":
        return entries_of(_plain_entries(text, file.name))
    try:
        data = json.loads(text)
    except ValueError as error:
        msg = f"{file.name} is no valid JSON: {error}"
        raise ConfigurationError(msg) from error
    return entries_of(data)


def _plain_entries(text: str, name: str) -> list[dict[str, str]]:
    lines = text.split("\n")
    rules = {i: None for i, line in enumerate(lines) if line.strip() == "---"}
    # a second rule right after the first one belongs to the description
    titles = [i - 1 for i in rules if i and lines[i - 1].strip() and i - 1 not in rules]
    before = [line for line in lines[: titles[0] if titles else len(lines)] if line.strip()]
    if before:
        msg = f"{name} must begin with a title and a line ---, not with a line of {len(before[0])} characters"
        raise ConfigurationError(msg)
    # Each entry reaches from its title to the next title: line i is the title, i + 1 the rule, the rest the text.
    parts = pairwise([*titles, len(lines)])
    return [{"title": lines[i].strip(), "text": "\n".join(lines[i + 2 : end]).strip()} for i, end in parts]


TEXTS = 256  # texts whose hits are cached: the messages of the past are searched again in every turn


class TitleMatch(NamedTuple):
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


class EntryIndex:
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
        self._matched = LRUCache[str, tuple[TitleMatch, ...]](TEXTS)
        self._lock = ForkSafeLock()

    def hits(self, text: str) -> list[TitleMatch]:
        """Return the entries that a text mentions, each once, in order of mention."""
        return list(self._remembered(truncate_with_warning(text, QUESTION, "a text in which titles are looked for")))

    def _find(self, text: str) -> tuple[TitleMatch, ...]:
        hits: dict[str, TitleMatch] = {}
        for found in self._finder.find(text):
            for title, alias in self._meant[found.key]:
                hit = TitleMatch(title, found.score, found.kind, alias)
                if title not in hits or hits[title].score < hit.score:
                    hits[title] = hit  # the better mention, in the place of the first one
        return tuple(hits.values())

    def matched(self, text: str) -> tuple[TitleMatch, ...]:
        """Return the cached hits of the matcher for a text; empty if it was not asked about it.

        The matcher may be slow or cost a model call, so it is asked about new inputs only: for past messages this cache
        is used.
        """
        with self._lock:
            return self._matched.get(text[:QUESTION]) or ()

    def keep_matched(self, text: str, hits: Sequence[TitleMatch]) -> None:
        """Cache the hits of the matcher for a text; beyond 256 texts the least recently used is dropped."""
        with self._lock:
            self._matched.put(text[:QUESTION], tuple(hits))


logger = logging.getLogger("langchain_memkit")

BATCH = 1000  # keys of a read or a removal
UNREAD = object()


class EntryCache:
    """Cache of the entries of one user (or the app) over a store; shared by the user's memories and by threads.

    Args:
        store: Any key-value store.
        user_id: Whose entries; None for the app's.
        aliases: Further names by title.
        min_score: See `Catalog`.
    """

    def __init__(
        self,
        store: BaseStore[str, dict[str, Any]],
        user_id: str | None,
        aliases: Mapping[str, Sequence[str]],
        min_score: float | None,
    ) -> None:
        self.store = store
        self._prefix = user_prefix(user_id or "") + "key_value/"
        self._version = self._prefix + "version"
        self._entries = self._prefix + "entry/"
        self._aliases = aliases
        self._min_score = min_score
        self._catalog = EntryIndex(token=UNREAD)
        self._lock = ForkSafeLock()

    async def current(self) -> EntryIndex:
        """Return the current entries; costs one read unless they were changed."""
        (row,) = await self._get([self._version])
        token = row.get("token") if isinstance(row, Mapping) else None
        if self._catalog.token == token:
            return self._catalog
        entries: list[Entry] = []
        keys = await self._keys(self._entries)
        for i in range(0, len(keys), BATCH):
            values = await self._get(keys[i : i + BATCH])
            entries += filter(None, map(Entry.from_row, values))
        if len(entries) < len(keys):
            logger.warning("%d of %d key-value entries are damaged and left out", len(keys) - len(entries), len(keys))
        return await cpu_bound(lambda: self._build(token, entries))

    def _build(self, token: Any, entries: list[Entry]) -> EntryIndex:
        with self._lock:  # of several threads that noticed the change, one builds the index
            if self._catalog.token != token:
                catalog = EntryIndex(entries, self._aliases, self._min_score, token)
                # Entries without a version row: they are being added, or purged, at this moment. The snapshot is right
                # for this load, but must not be cached, since nothing would tell that it is out of date.
                if token is None and entries:
                    return catalog
                self._catalog = catalog
            return self._catalog

    async def add(self, entries: Sequence[Entry]) -> None:
        """Store entries; existing ones with the same titles are replaced."""
        if entries:
            await self._set(sorted(((self._entries + e.key, e.to_row()) for e in entries), key=itemgetter(0)))

    async def remove(self, titles: Iterable[str]) -> None:
        """Delete entries by title; unknown titles are ignored."""
        keys = [self._entries + Entry(title, "").key for title in titles]
        if keys:
            # Invalidate the caches before the delete as well: if this process dies before the second write, no other
            # one goes on showing entries that it cached before and that are gone.
            await self._set([])
            await self._delete(keys)
            await self._set([])

    async def purge(self) -> int:
        """Delete every row, the version row included, and return how many entries there were."""
        keys = await self._keys(self._prefix)
        if keys:
            await self._set([])
            await self._delete([*keys, self._version])
        return sum(key.startswith(self._entries) for key in keys)

    def _get(self, keys: Sequence[str]) -> Step[list[dict[str, Any] | None]]:
        return Step(lambda: self.store.mget(keys), lambda: self.store.amget(keys))

    async def _set(self, rows: list[tuple[str, dict[str, Any]]]) -> None:
        # The token comes last: whoever reads the new token finds all the rows that were written before it.
        pairs = [*rows, (self._version, {"token": secrets.token_hex(16)})]
        await Step(lambda: self.store.mset(pairs), lambda: self.store.amset(pairs))

    async def _delete(self, keys: Sequence[str]) -> None:
        for i in range(0, len(keys), BATCH):
            some = keys[i : i + BATCH]
            await Step(partial(self.store.mdelete, some), partial(self.store.amdelete, some))

    async def _keys(self, prefix: str) -> list[str]:
        async def collect() -> list[str]:
            return [key async for key in self.store.ayield_keys(prefix=prefix)]

        return await Step(lambda: list(self.store.yield_keys(prefix=prefix)), collect)
