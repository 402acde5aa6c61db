"""Entries of a key-value memory: checked, held in process, looked up by title."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import cpu_bound
from langchain_memkit.base import check_path, describe_value, user_prefix
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.matching.fuzzy import KeyFinder
from langchain_memkit.messages.text import QUESTION, truncate_with_warning
from langchain_memkit.stores.in_memory import DictStore, StoredDict, delete_keys, list_keys, read_values, write_values

logger = logging.getLogger("langchain_memkit")

BATCH = 1000  # keys of a read
TEXTS = 256  # texts whose hits are kept
SOURCE = "key-value"
MOST_TITLE = 1500  # bytes of an encoded title in a key: stores take 4096, and the longest user id stands before it

Entries: TypeAlias = Mapping[str, str | Mapping[str, Any]] | Iterable[Mapping[str, Any]]
"""`{title: text}`, `{title: {"text": ..., "aliases": [...]}}`, or a list of `{"title": ..., "text": ..., ...}`."""

Aliases: TypeAlias = Mapping[str, Sequence[str]]
"""Further names for each title."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A text under a title, which identifies it; the source is shown in the note."""

    title: str
    text: str
    aliases: tuple[str, ...] = ()
    source: str = SOURCE

    @property
    def key(self) -> str:
        """Return the last part of its store key: the percent-encoded title, or a hash of a long one."""
        quoted = quote(self.title, safe="", errors="surrogatepass")
        # Quoting leaves no "#": no title has the key of a hash.
        return quoted if len(quoted) <= MOST_TITLE else "#" + hashlib.sha256(quoted.encode()).hexdigest()

    def to_row(self) -> StoredDict:
        """Return the row as plain JSON data for a store."""
        row: StoredDict = {"title": self.title, "text": self.text, "aliases": list(self.aliases)}
        return row if self.source == SOURCE else {**row, "source": self.source}

    @classmethod
    def from_row(cls, row: StoredDict | None) -> Entry | None:
        """Return the entry of a row; None if the row is damaged."""
        try:
            return _entry(row["title"], row) if row else None
        except (ConfigurationError, KeyError, TypeError):
            return None


def entries_of(data: Any) -> list[Entry]:
    """Validate entries in any of the shapes that a caller, or a file, may give (see `Entries`); keep their order.

    Raises:
        ConfigurationError: A title is empty or given twice, or a value is neither text nor a dict with `"text"`; the
            error names the title.
    """
    if isinstance(data, Mapping):
        entries = [_entry(title, value) for title, value in data.items()]
    else:
        entries = []
        for number, value in enumerate(data):
            if not (isinstance(value, Mapping) and "title" in value):
                msg = f'entry {number} must be a dict with "title" and "text", not {describe_value(value)}'
                raise ConfigurationError(msg)
            entries.append(_entry(value["title"], value))
    title, times = max(Counter(entry.title for entry in entries).items(), key=itemgetter(1), default=("", 0))
    if times > 1:
        raise ConfigurationError(f"the title {title!r:.80} is given twice: only one text can stand under it")
    return entries


def _entry(title: object, value: object) -> Entry:
    if not isinstance(title, str) or not title.strip():
        raise ConfigurationError(f"a title must be text that is not empty, not {describe_value(title)}")
    if isinstance(value, str):
        return Entry(title, value)
    texts = [value.get("text"), value.get("source", SOURCE)] if isinstance(value, Mapping) else [None]
    if not (isinstance(value, Mapping) and all(isinstance(text, str) for text in texts)):
        msg = f'the value of {title!r:.80} must be text, or a dict with "text" and "source" that are text'
        raise ConfigurationError(msg)
    if unknown := set(value) - {"title", "text", "aliases", "source"}:
        msg = f'{title!r:.80} has {sorted(map(str, unknown))!r:.80}: an entry has "text", "aliases" and "source"'
        raise ConfigurationError(msg)
    return Entry(title, value["text"], check_aliases(title, value.get("aliases") or ()), value.get("source", SOURCE))


def check_aliases(title: str, names: object) -> tuple[str, ...]:
    """Validate the further names of a title; a string would be taken for a list of letters."""
    listed = names if isinstance(names, Sequence) and not isinstance(names, (str, bytes)) else [""]
    if not all(isinstance(name, str) and name.strip() for name in listed):
        msg = f"aliases of {title!r:.80} must be a list of texts that are not empty, not {describe_value(names)}"
        raise ConfigurationError(msg)
    return tuple(listed)


def read_entries(path: str | Path) -> Entries:
    """Read entries from a `.json` or a `.txt` file, as `KeyValueMemory.from_file` describes them.

    In a `.txt` file a new entry begins where a line is followed by a line `---`, so a description may contain line
    breaks and blank lines.
    """
    file = Path(check_path(path))
    kind = file.suffix.lower()
    if kind not in (".json", ".txt"):
        raise ConfigurationError(f"{file.name} must be a .txt or a .json file")
    try:
        text = file.read_text(encoding="utf-8-sig")
        return json.loads(text) if kind == ".json" else _plain_entries(text, file.name)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        msg = f"{file.name} must be UTF-8{' and JSON' if kind == '.json' else ''}: {error}"
        raise ConfigurationError(msg) from error


def _plain_entries(text: str, name: str) -> list[dict[str, str]]:
    lines = text.split("\n")
    rules = {i: None for i, line in enumerate(lines) if line.strip() == "---"}
    # a second rule right after the first one belongs to the description
    titles = [i - 1 for i in rules if i and lines[i - 1].strip() and i - 1 not in rules]
    if before := [line for line in lines[: titles[0] if titles else len(lines)] if line.strip()]:
        msg = f"{name} must begin with a title and a line ---, not with a line of {len(before[0])} characters"
        raise ConfigurationError(msg)
    # Each entry reaches from its title to the next title: line i is the title, i + 1 the rule, the rest the text.
    parts = pairwise([*titles, len(lines)])
    return [{"title": lines[i].strip(), "text": "\n".join(lines[i + 2 : end]).strip()} for i, end in parts]


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
    """Snapshot of all entries of an app or a user, indexed by name."""

    def __init__(self, entries: Iterable[Entry], aliases: Aliases, min_score: float | None, token: object) -> None:
        self.token = token
        self.entries = {entry.title: entry for entry in entries}
        self.titles = sorted(self.entries)
        self._meant: dict[str, list[tuple[str, str | None]]] = {}
        for title in self.titles:
            self._meant.setdefault(title, []).append((title, None))
            for alias in dict.fromkeys((*self.entries[title].aliases, *aliases.get(title, ()))):
                if alias != title:
                    self._meant.setdefault(alias, []).append((title, alias))
        self._finder = KeyFinder({name: name for name in self._meant}, min_score=min_score)
        self._hits = LRUCache[str, list[TitleMatch]](TEXTS)
        self._lock = ForkSafeLock()

    def hits(self, text: str) -> list[TitleMatch]:
        """Return what was kept for a text, else search it: the messages of the past come again in every turn."""
        with self._lock:
            known = self._hits.get(text[:QUESTION])
        return self.keep(text, self.find(text)) if known is None else known

    def keep(self, text: str, hits: list[TitleMatch]) -> list[TitleMatch]:
        """Keep the hits of a text and return them; beyond 256 texts the least recently used is dropped."""
        with self._lock:
            self._hits.put(text[:QUESTION], hits)
        return hits

    def find(self, text: str) -> list[TitleMatch]:
        """Return the entries that a text mentions, each once, in order of mention."""
        hits: dict[str, TitleMatch] = {}
        for found in self._finder.find(truncate_with_warning(text, QUESTION, "a text in which titles are looked for")):
            for title, alias in self._meant[found.key]:
                hit = TitleMatch(title, found.score, found.kind, alias)
                if title not in hits or hits[title].score < hit.score:
                    hits[title] = hit  # the better mention, in the place of the first one
        return list(hits.values())


class EntryCache:
    """Cache of the entries of one user (or the app) over a store; shared by the user's memories and by threads."""

    def __init__(self, store: DictStore, user_id: str | None, aliases: Aliases, min_score: float | None) -> None:
        self.store = store
        self._prefix = user_prefix(user_id or "") + "key_value/"
        self._version = self._prefix + "version"
        self._entries = self._prefix + "entry/"
        self._names = {title: check_aliases(title, names) for title, names in aliases.items()}, min_score
        self._index: EntryIndex | None = None
        self._lock = ForkSafeLock()

    def for_user(self, user_id: str | None) -> EntryCache:
        """Return a cache of another user's entries in the same store."""
        return EntryCache(self.store, user_id, *self._names)

    async def current(self) -> EntryIndex:
        """Return the current entries; costs one read unless they were changed."""
        (row,) = await read_values(self.store, [self._version])
        token = row.get("token") if row else None
        index = self._index
        if index is not None and index.token == token:
            return index
        entries: list[Entry] = []
        keys = await list_keys(self.store, self._entries)
        for i in range(0, len(keys), BATCH):
            entries += filter(None, map(Entry.from_row, await read_values(self.store, keys[i : i + BATCH])))
        if len(entries) < len(keys):
            logger.warning("%d of %d key-value entries are damaged and left out", len(keys) - len(entries), len(keys))

        def build() -> EntryIndex:
            with self._lock:  # of several threads that noticed the change, one builds the index
                if self._index is not None and self._index.token == token:
                    return self._index
                index = EntryIndex(entries, *self._names, token)
                # Entries without a version row: they are being added, or purged, at this moment. The snapshot is right
                # for this load, but must not be cached, since nothing would tell that it is out of date.
                if token is not None or not entries:
                    self._index = index
                return index

        return await cpu_bound(build)

    async def add(self, entries: Entries) -> None:
        """Store entries; existing ones with the same titles are replaced."""
        if rows := {self._entries + entry.key: entry.to_row() for entry in entries_of(entries)}:
            await self._set(sorted(rows.items()))

    async def remove(self, titles: Iterable[str]) -> None:
        """Delete entries by title; unknown titles are ignored."""
        if isinstance(titles, str):  # iterating over it would give single letters
            raise ConfigurationError("titles must be a list of titles, not a str")
        if keys := [self._entries + Entry(title, "").key for title in titles]:
            # Invalidate the caches before the delete as well: if this process dies before the second write, no other
            # one goes on showing entries that it cached before and that are gone.
            await self._set([])
            await delete_keys(self.store, keys)
            await self._set([])

    async def purge(self) -> int:
        """Delete every row, the version row included, and return how many entries there were."""
        keys = await list_keys(self.store, self._prefix)
        if keys:
            await self._set([])
            await delete_keys(self.store, [*keys, self._version])
        self._index = None
        return sum(key.startswith(self._entries) for key in keys)

    async def _set(self, rows: list[tuple[str, StoredDict]]) -> None:
        # The token comes last: whoever reads the new token finds all the rows that were written before it.
        await write_values(self.store, [*rows, (self._version, {"token": secrets.token_hex(16)})])
