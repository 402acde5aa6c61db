"""Entries (title, text, aliases, source): their validation, rows and files. Pure but for reading a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from langchain_memkit.base import value_or_kind
from langchain_memkit.errors import ConfigurationError

__all__ = ["Entries", "Entry", "alias_lists", "entries_of", "read_entries"]

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
                msg = f'entry {number} must be a dict with "title" and "text", not {value_or_kind(value)}'
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
        msg = f"a title must be text that is not empty, not {value_or_kind(title)}"
        raise ConfigurationError(msg)
    if isinstance(value, str):
        return Entry(title, value)
    if not (isinstance(value, Mapping) and isinstance(value.get("text"), str)):
        msg = f'the value of {title!r:.80} must be text or a dict with "text", not {value_or_kind(value)}'
        raise ConfigurationError(msg)
    if unknown := set(value) - {"title", "text", "aliases", "source"}:
        msg = f'{title!r:.80} has {sorted(map(str, unknown))!r:.80}: an entry has "text", "aliases" and "source"'
        raise ConfigurationError(msg)
    source = value.get("source", SOURCE)
    if not isinstance(source, str):
        msg = f'"source" of {title!r:.80} must be text, not {value_or_kind(source)}'
        raise ConfigurationError(msg)
    return Entry(title, value["text"], _names(title, value.get("aliases") or ()), source)


def _names(title: str, names: Any) -> tuple[str, ...]:
    listed = isinstance(names, Sequence) and not isinstance(names, (str, bytes))
    if not (listed and all(isinstance(name, str) and name.strip() for name in names)):
        msg = f"aliases of {title!r:.80} must be a list of texts that are not empty, not {value_or_kind(names)}"
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
