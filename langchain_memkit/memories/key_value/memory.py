"""Key-value memory."""

from __future__ import annotations

import copy
import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from langchain_core.messages import BaseMessage

from langchain_memkit import base
from langchain_memkit._sync import ClosingMixin, Step, adrive, call_user_function, cpu_bound, drive
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.key_value.store import Entries, Entry, EntryCache, EntryIndex, TitleMatch, read_entries
from langchain_memkit.messages.notes import Record, is_note, note_message, records_of
from langchain_memkit.messages.text import message_text, sentence_spans
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens, resolve_counter
from langchain_memkit.messages.trimming import is_notification
from langchain_memkit.stores.in_memory import DictStore, store_or_memory

__all__ = ["KeyValueMemory", "KeyValueMemoryFactory"]

logger = logging.getLogger("langchain_memkit")

WORD = re.compile(r"\S{1,50}")  # long runs without a space are broken as well
LEAST = 100  # characters that a text cut in the middle of a sentence must keep to be worth showing
MANY = 1000  # entries: searching more of them is worth a thread
LONG = 2000  # characters: searching a longer text is worth a thread whatever the number of entries
USERS = 64  # users whose entries are cached; the least recently used goes first


def without_visible(entries: Iterable[Entry], messages: Sequence[BaseMessage]) -> list[Entry]:
    """Return the entries whose text is in none of the messages (white space is ignored)."""
    wanted = [entry for entry in entries if entry.text.strip()]
    if not wanted:
        return []
    texts = [record.text for m in messages if is_note(m) for record in records_of(m)]
    shown = [_plain(text) for text in (*texts, *(message_text(m) for m in messages if not is_note(m)))]
    plain = {entry.title: _plain(entry.text) for entry in wanted}
    return [entry for entry in wanted if not any(plain[entry.title] in text for text in shown)]


def _plain(text: str) -> str:
    return " ".join(text.split())


def entries_note(entries: Iterable[Entry], max_tokens: int, counter: base.TokenCounter) -> list[BaseMessage]:
    """Render the entries that fit, in order, as one note; a text that is too long is cut at a sentence, and marked."""
    records: list[Record] = []
    for entry in entries:

        def cut(end: int, entry: Entry = entry) -> Record:
            """Return the beginning of the text as a record."""
            mark = f" [cut: {end} of {len(entry.text)} characters]" if end < len(entry.text) else ""
            return Record(entry.text[:end] + mark, about=entry.title, source=entry.source)

        def fits(record: Record) -> bool:
            return count_tokens([note_message([*records, record])], counter)[0] <= max_tokens

        text = entry.text
        if fits(cut(len(text))):
            records.append(cut(len(text)))
            continue
        sentences = [end for _, end in sentence_spans(text) if end < len(text)]
        words = [match.end() for match in WORD.finditer(text) if LEAST <= match.end() < len(text)]
        for ends in (sentences, words):
            # Binary search, since counting may be slow: a longer beginning is taken to have no fewer tokens.
            if fitting := bisect_right(ends, False, key=lambda end: not fits(cut(end))):
                records.append(cut(ends[fitting - 1]))
                break
    return [note_message(records)] if records else []


class KeyValueMemory(base.Memory):
    """Documents keyed by title, shown to the model when a title is mentioned.

    A title is found as it is written, then in other case and punctuation, then with typos; aliases likewise. The text
    of a mentioned entry is quoted in a note, once, as long as the message that mentions it is in the window; it is left
    out if the model sees the text anyway. The entries belong to the app: turns and `clear` never change them.

    Args:
        entries: `{title: text}`, `{title: {"text": ..., "aliases": [...], "source": ...}}`, or a list of dicts with
            `"title"`. They live in this process only; to persist entries, pass a store and `add` them.
        store: Any LangChain key-value store that holds the entries; other processes see changes at their next load.
        user_id: Whose entries of the store; None for the app's, which all users share.
        aliases: Further names: a list for each title.
        matcher: Asked about the new input instead of searching it for typos: `(text, titles)`, plain or async, returns
            titles, or pairs of title and score. `create_model_matcher` makes one.
        min_score: Similarity that a mention with typos must have, 0 to 100, by `rapidfuzz.fuzz.ratio`; None finds none.
        max_tokens: Budget of the whole note. A text that does not fit is cut at a sentence end, and marked.
        lookback: How many of the newest messages before the input are searched for mentions.
        token_counter: Counts tokens; by default an estimate of four characters per token.

    Raises:
        ConfigurationError: An argument or entry is malformed; the error names the title.

    Example:
        >>> books = KeyValueMemory({"The Skeleton Songs": "Poems of greedy delight by Arabella Dusk."})
        >>> books.match("Who wrote the skeletn songs?")
        [TitleMatch(title='The Skeleton Songs', score=97, kind='fuzzy', alias=None)]
        >>> books.load("Who wrote the skeletn songs?")[0].text.splitlines()[-2]
        '> Poems of greedy delight by Arabella Dusk.'
    """

    read_only = True

    def __init__(
        self,
        entries: Entries | None = None,
        *,
        store: DictStore | None = None,
        user_id: str | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        matcher: Callable[[str, list[str]], Any] | None = None,
        min_score: float | None = 88.0,
        max_tokens: int = 1000,
        lookback: int = 10,
        token_counter: base.TokenCounterLike = None,
    ) -> None:
        if entries is not None and store is not None:
            msg = "give entries or a store, not both: memory.add(entries) puts them into the store, once"
            raise ConfigurationError(msg)
        if min_score is not None and not 0 < min_score <= 100:
            msg = f"min_score must be more than 0 and at most 100, or None for no typos, not {min_score!r}"
            raise ConfigurationError(msg)
        self.user_id = None if user_id is None else base.check_id(user_id, "user_id")
        self._matcher = matcher
        self._max_tokens = base.check_size(max_tokens, "max_tokens", 1)
        self._lookback = base.check_size(lookback, "lookback", 0)
        self._counter = resolve_counter(token_counter)
        self._cache = EntryCache(store_or_memory(store), user_id, aliases or {}, None if matcher else min_score)
        if entries is not None:
            self.add(entries)

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Self:
        r"""Create a memory with the entries of a file.

        Args:
            path: `.json`: `{title: text}`, `{title: {"text": ..., "aliases": [...]}}`, or a list of dicts with
                `"title"`. `.txt`: a title, a line `---`, a description, a blank line, and so on.
            **options: Arguments of the class except `store`.

        Raises:
            ConfigurationError: The file has another suffix, or is malformed.

        Example:
            >>> from pathlib import Path
            >>> _ = Path("books.txt").write_text("The Skeleton Songs\n---\nPoems by Arabella Dusk.\n")
            >>> KeyValueMemory.from_file("books.txt").titles()
            ['The Skeleton Songs']
        """
        base.check_arguments(options, cls)
        return cls(read_entries(path), **options)

    @classmethod
    def factory(cls, store: DictStore, **options: Any) -> KeyValueMemoryFactory:
        """Make a factory of memories that share a store, for an app whose users have entries of their own.

        Args:
            store: Any key-value store of LangChain's.
            **options: Arguments of the class except `entries` and `user_id`.

        Returns:
            A callable `(session_id, user_id=None)` that returns a memory of the user's entries, or of the app's without
            `user_id`.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> with KeyValueMemory.factory(SQLiteKeyValueStore(":memory:")) as books:
            ...     books("s1", "u1").add({"My Diary": "Dear diary ..."})
            ...     books("s2", "u1").titles(), books("s1").titles()
            (['My Diary'], [])
        """
        base.check_arguments(options, cls)
        return KeyValueMemoryFactory(cls(store=store, **options))

    def __repr__(self) -> str:
        """Show the user id, never the entries."""
        return f"KeyValueMemory(user_id={self.user_id!r})"

    # -- the entries

    def add(self, entries: Entries) -> None:
        """Add entries; existing ones with the same titles are replaced.

        Args:
            entries: In any shape that the class takes.

        Raises:
            ConfigurationError: An entry is malformed; nothing was added.
            HistoryWriteError: The store failed; calling again is safe.
        """
        drive(self._cache.add(entries))

    async def aadd(self, entries: Entries) -> None:
        """Run `add` asynchronously."""
        await adrive(self._cache.add(entries))

    def remove(self, titles: Iterable[str]) -> None:
        """Delete entries by title; unknown titles are ignored."""
        drive(self._cache.remove(titles))

    async def aremove(self, titles: Iterable[str]) -> None:
        """Run `remove` asynchronously."""
        await adrive(self._cache.remove(titles))

    def titles(self) -> list[str]:
        """Return all titles, sorted."""
        return list(drive(self._cache.current()).titles)

    async def atitles(self) -> list[str]:
        """Run `titles` asynchronously."""
        return list((await adrive(self._cache.current())).titles)

    def match(self, text: str) -> list[TitleMatch]:
        """Return the entries that a text mentions, and how they were found.

        Args:
            text: Any text; its first 20,000 characters are searched.

        Returns:
            A `TitleMatch` for each title, in order of mention; titles that only the matcher found come last.
        """
        return drive(self._match(text))

    async def amatch(self, text: str) -> list[TitleMatch]:
        """Run `match` asynchronously."""
        return await adrive(self._match(text))

    # -- as a memory

    def load(self, query: str = "") -> list[BaseMessage]:
        """Return one note with the entries that the query or recent messages mention; `[]` if there are none.

        Entries that the query mentions come first, in order of mention, then those of the newest message in its `past`,
        and so on back to `lookback` messages. Entries whose text the model sees anyway (in `seen`) are left out.
        """
        return drive(self._load(query))

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Run `load` asynchronously."""
        return await adrive(self._load(query))

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Do nothing: the entries belong to the app."""

    def clear(self) -> None:
        """Do nothing: the entries belong to no session."""

    async def _match(self, text: str) -> list[TitleMatch]:
        return await self._hits(await self._cache.current(), text)

    async def _hits(self, index: EntryIndex, text: str) -> list[TitleMatch]:
        long = len(index.titles) > MANY or len(text) > LONG
        matcher, titles = self._matcher, index.titles
        if matcher is None or not titles or not text.strip():
            return await cpu_bound(lambda: index.hits(text), long=long)
        # The index then holds none for typos: it finds exact and folded mentions, and the matcher all others. The
        # matcher may be slow or cost a model call: it is asked about new inputs only, and its answer is kept.
        hits = {hit.title: hit for hit in await cpu_bound(lambda: index.find(text), long=long)}
        step = call_user_function(matcher, text, list(titles), name="the matcher")
        if hasattr(matcher, "acall"):
            step = Step(step.sync, lambda: matcher.acall(text, list(titles)))
        answer = await step
        for item in [answer] if isinstance(answer, str) else answer or ():
            title, score = (item, 100) if isinstance(item, str) else item
            if title in index.entries:
                hits.setdefault(title, TitleMatch(title, score, "matcher"))
            else:
                logger.warning("the matcher returned a title that is not there: %.80r", title)
        return index.keep(text, list(hits.values()))

    async def _load(self, query: str) -> list[BaseMessage]:
        index = await self._cache.current()
        if not index.titles:
            return []
        hits = await self._hits(index, str(query))
        past, seen = (query.past, query.seen) if isinstance(query, base.Query) else ((), ())
        newest = past[-self._lookback :] if self._lookback else ()

        def note() -> list[BaseMessage]:
            titles = {hit.title: None for hit in hits}
            for message in reversed(newest):
                # A note quotes the entries' titles, so searching notes would keep an entry alive for ever;
                # notifications come from the agent's harness, not from the user.
                if not (is_note(message) or is_notification(message)):
                    titles |= {hit.title: None for hit in index.hits(message_text(message))}
            shown = without_visible((index.entries[title] for title in titles), seen)
            return entries_note(shown, self._max_tokens, self._counter)

        # Short work stays on the event loop; a thread costs more than searching a few short texts.
        long = len(index.titles) > MANY or self._counter is not approximate_tokens
        long = long or any(len(m.content) > LONG or not isinstance(m.content, str) for m in (*newest, *seen))
        return await cpu_bound(note, long=long)


class KeyValueMemoryFactory(ClosingMixin):
    """Callable that makes the `KeyValueMemory` of a session; all of them share a store and a cache.

    Returned by `KeyValueMemory.factory`; pass it to `create_runnable_with_message_history(memories=[...])`. A context
    manager, sync and async. The store belongs to the caller and stays open.
    """

    def __init__(self, memory: KeyValueMemory) -> None:
        self._memory = memory
        # all memories of a user share one, so that the entries are not read for each session
        self._cache_of = lru_cache(USERS)(memory._cache.for_user)

    def __repr__(self) -> str:
        """Show the store."""
        return f"KeyValueMemoryFactory({base.safe_repr(self._memory._cache.store)})"

    def __call__(self, session_id: str, user_id: str | None = None) -> KeyValueMemory:
        """Return the memory of a session; no I/O.

        Args:
            session_id: The conversation.
            user_id: Whose entries; None for the entries of the app.

        Raises:
            TypeError, ValueError: An id is not a string, empty or malformed.
        """
        memory = copy.copy(self._memory)
        memory.session_id = base.check_id(session_id, "session_id")
        memory.user_id = None if user_id is None else base.check_id(user_id, "user_id")
        memory._cache = self._cache_of(user_id)
        return memory

    def setup(self) -> None:
        """Read the app's entries into the cache, so that the first turn does not have to."""
        drive(self._cache_of(None).current())

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await adrive(self._cache_of(None).current())

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete a user's entries; the app's entries stay. Part of `purge_user`.

        Args:
            user_id: Whose entries; required.

        Returns:
            `{"entries": n}`: how many were deleted.
        """
        return {"entries": drive(self._cache_of(base.check_id(user_id, "user_id")).purge())}

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        return {"entries": await adrive(self._cache_of(base.check_id(user_id, "user_id")).purge())}

    def close(self) -> None:
        """Empty the cache; the store stays open."""
        self._cache_of.cache_clear()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        self.close()
