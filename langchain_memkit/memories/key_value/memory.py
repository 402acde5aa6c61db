"""Reference data by title, shown when the title is mentioned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from langchain_core.messages import BaseMessage
from langchain_core.stores import BaseStore

from langchain_memkit._sync import adrive, cpu_bound, drive
from langchain_memkit.base import Memory, TokenCounterLike, check_arguments, check_id, kind_given
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.key_value.catalog import Catalog, Hit
from langchain_memkit.memories.key_value.entries import Entries, alias_lists, entries_of, read_entries
from langchain_memkit.memories.key_value.factory import KeyValueMemoryFactory
from langchain_memkit.memories.key_value.matching import ask_matcher, hits_of
from langchain_memkit.memories.key_value.note import entries_note, not_in
from langchain_memkit.memories.key_value.shelf import Shelf
from langchain_memkit.messages.authors import is_notification
from langchain_memkit.messages.counting import approximate_tokens, resolve_counter
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.text import said
from langchain_memkit.preprocessors.memory_store import MemoryStore

__all__ = ["KeyValueMemory"]

MANY = 1000  # entries whose search is worth a thread
LONG = 2000  # characters of a text of which that is true whatever their number


class KeyValueMemory(Memory):
    """Documents keyed by title, shown to the model when a title is mentioned.

    A title is found as it is written, then in other case and punctuation, then with typos; so are its aliases. Its
    text is quoted in a note as long as the message that mentions it is in the window, once, unless it stands there
    anyway. The entries belong to the app: turns and `clear` never change them.

    Args:
        entries: `{title: text}`, `{title: {"text": ..., "aliases": [...], "source": ...}}`, or a list of dicts with
            `"title"`. They stay in this process; to keep them, give a store and `add` them.
        store: Any key-value store of LangChain's, to keep entries in; other processes see changes at their next load.
        user_id: Whose entries in the store; None for the app's, which all users share.
        aliases: Further names, for each title a list.
        matcher: Asked about the new input in place of the search for typos: `(text, titles)`, plain or async, returns
            titles, or pairs of title and score. `create_model_matcher` makes one.
        min_score: How alike a mention with typos must be, 0 to 100, by `rapidfuzz.fuzz.ratio`; None: no typos.
        max_tokens: Of the whole note. A text that does not fit is cut where a sentence ends, and marked.
        lookback: How many of the newest messages before the input are searched for mentions.
        token_counter: What counts; default an estimate at four characters a token.

    Raises:
        ConfigurationError: An argument or entry is malformed; the error names the title.

    Example:
        >>> books = KeyValueMemory({"The Skeleton Songs": "Poems of greedy delight by Arabella Dusk."})
        >>> books.match("Who wrote the skeletn songs?")
        [Hit(title='The Skeleton Songs', score=97, kind='fuzzy', alias=None)]
        >>> books.load("Who wrote the skeletn songs?")[0].text.splitlines()[-2]
        '> Poems of greedy delight by Arabella Dusk.'
    """

    read_only = True

    def __init__(
        self,
        entries: Entries | None = None,
        *,
        store: BaseStore[str, dict[str, Any]] | None = None,
        user_id: str | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        matcher: Callable[[str, list[str]], Any] | None = None,
        min_score: float | None = 88.0,
        max_tokens: int = 1000,
        lookback: int = 10,
        token_counter: TokenCounterLike = None,
    ) -> None:
        if entries is not None and store is not None:
            msg = "give entries or a store, not both: memory.add(entries) puts them into the store, once"
            raise ConfigurationError(msg)
        if store is not None and not isinstance(store, BaseStore):
            msg = f"store must be a BaseStore of langchain_core.stores, not {kind_given(store, BaseStore)}"  # type: ignore[unreachable]  # callers without types
            raise ConfigurationError(msg)
        if matcher is not None and not callable(matcher):
            msg = f"matcher must be callable: (text, titles), not {type(matcher).__name__}"  # type: ignore[unreachable]  # callers without types
            raise ConfigurationError(msg)
        if min_score is not None and not 0 < min_score <= 100:
            msg = f"min_score must be more than 0 and at most 100, or None for no typos, not {min_score!r}"
            raise ConfigurationError(msg)
        for name, value, least in (("max_tokens", max_tokens, 1), ("lookback", lookback, 0)):
            if not isinstance(value, int) or value < least:  # type: ignore[redundant-expr]  # callers without types
                msg = f"{name} must be a number of at least {least}, not {value!r}"
                raise ConfigurationError(msg)
        self.user_id = None if user_id is None else check_id(user_id, "user_id")
        self._matcher = matcher
        self._max_tokens = max_tokens
        self._lookback = lookback
        self._counter = resolve_counter(token_counter)
        kept: BaseStore[str, dict[str, Any]] = MemoryStore() if store is None else store
        self._shelf = Shelf(kept, self.user_id, alias_lists(aliases), None if matcher else min_score)
        if entries is not None:
            self.add(entries)

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Self:
        r"""Reads entries from a file.

        Args:
            path: `.json`: `{title: text}`, `{title: {"text": ..., "aliases": [...]}}`, or a list of dicts with
                `"title"`. `.txt`: a title, a line `---`, a description, a blank line, and so on.
            **options: Those of the class but `store`.

        Raises:
            ConfigurationError: The file is neither, or malformed.

        Example:
            >>> from pathlib import Path
            >>> _ = Path("books.txt").write_text("The Skeleton Songs\n---\nPoems by Arabella Dusk.\n")
            >>> KeyValueMemory.from_file("books.txt").titles()
            ['The Skeleton Songs']
        """
        check_arguments(options, cls)
        rows = [{**entry.to_row(), "source": entry.source} for entry in read_entries(path)]
        return cls(rows, **options)

    @classmethod
    def factory(cls, store: BaseStore[str, dict[str, Any]], **options: Any) -> KeyValueMemoryFactory:
        """Makes memories that share a store, for an app whose users have entries of their own.

        Args:
            store: Any key-value store of LangChain's.
            **options: Those of the class but `entries` and `user_id`.

        Returns:
            A callable `(session_id, user_id=None)`: a memory of the user's entries, or of the app's without `user_id`.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> with KeyValueMemory.factory(SQLiteKeyValueStore(":memory:")) as books:
            ...     books("s1", "u1").add({"My Diary": "Dear diary ..."})
            ...     books("s2", "u1").titles(), books("s1").titles()
            (['My Diary'], [])
        """
        if not isinstance(store, BaseStore):
            msg = (  # type: ignore[unreachable]  # callers without types
                f"store must be a BaseStore of langchain_core.stores, not {kind_given(store, BaseStore)}; "
                "without a store give KeyValueMemory(entries) itself"
            )
            raise ConfigurationError(msg)
        check_arguments(options, cls)
        return KeyValueMemoryFactory(lambda user_id: cls(store=store, user_id=user_id, **options), store)

    def __repr__(self) -> str:
        """Names the user."""
        return f"KeyValueMemory(user_id={self.user_id!r})"

    # -- the entries

    def add(self, entries: Entries) -> None:
        """Adds entries, in place of those with the same titles.

        Args:
            entries: See the class.

        Raises:
            ConfigurationError: An entry is malformed; nothing was added.
            HistoryWriteError: The store failed; calling again is safe.
        """
        drive(self._shelf.add(entries_of(entries)))

    async def aadd(self, entries: Entries) -> None:
        """Async twin of `add`."""
        await adrive(self._shelf.add(entries_of(entries)))

    def remove(self, titles: Iterable[str]) -> None:
        """Removes entries by title; those that are not there are no error."""
        drive(self._shelf.remove(_listed(titles)))

    async def aremove(self, titles: Iterable[str]) -> None:
        """Async twin of `remove`."""
        await adrive(self._shelf.remove(_listed(titles)))

    def titles(self) -> list[str]:
        """The titles, sorted."""
        return list(drive(self._shelf.current()).titles)

    async def atitles(self) -> list[str]:
        """Async twin of `titles`."""
        return list((await adrive(self._shelf.current())).titles)

    def match(self, text: str) -> list[Hit]:
        """The entries that a text mentions, with how they were found.

        Args:
            text: Any text; of a long one the first 20,000 characters are searched.

        Returns:
            A `Hit` for each title, in order of mention; what only the matcher found comes last.
        """
        return drive(self._match(text))

    async def amatch(self, text: str) -> list[Hit]:
        """Async twin of `match`."""
        return await adrive(self._match(text))

    # -- as a memory

    def load(self, query: str = "") -> list[BaseMessage]:
        """One note with the entries that the query or the newest messages of its `past` mention; `[]` for none.

        Those that the query mentions come first, in order of mention, then those of the newest message, and so on.
        """
        return drive(self._load(query))

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Async twin of `load`."""
        return await adrive(self._load(query))

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Does nothing: entries are the app's."""

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Async twin of `save`."""

    def clear(self) -> None:
        """Does nothing: entries are of no session."""

    async def aclear(self) -> None:
        """Async twin of `clear`."""

    async def _match(self, text: str) -> list[Hit]:
        catalog = await self._shelf.current()
        return await self._hits(catalog, text)

    async def _hits(self, catalog: Catalog, text: str) -> list[Hit]:
        hits: list[Hit] = await cpu_bound(
            lambda: catalog.hits(text), long=len(catalog.titles) > MANY or len(text) > LONG
        )
        if self._matcher is None or not catalog.titles or not text.strip():
            return hits
        answer = await ask_matcher(self._matcher, text, catalog.titles)
        found = {hit.title for hit in hits}
        more = [hit for hit in hits_of(answer, catalog.entries) if hit.title not in found]
        catalog.keep_matched(text, more)
        return [*hits, *more]

    async def _load(self, query: str) -> list[BaseMessage]:
        catalog = await self._shelf.current()
        if not catalog.titles:
            return []
        hits = await self._hits(catalog, str(query))
        past: Sequence[BaseMessage] = getattr(query, "past", ())
        seen: Sequence[BaseMessage] = getattr(query, "seen", ())
        newest = past[-self._lookback :] if self._lookback else ()
        long = len(catalog.titles) > MANY or self._counter is not approximate_tokens
        long = long or any(len(m.content) > LONG or not isinstance(m.content, str) for m in (*newest, *seen))
        return await cpu_bound(lambda: self._note(catalog, hits, past, seen), long=long)

    def _note(
        self, catalog: Catalog, hits: Sequence[Hit], past: Sequence[BaseMessage], seen: Sequence[BaseMessage]
    ) -> list[BaseMessage]:
        titles = {hit.title: None for hit in hits}
        newest = past[-self._lookback :] if self._lookback else ()
        for message in reversed(newest):
            # else a note would keep itself alive, and a harness be taken for the user
            if not (is_note(message) or is_notification(message)):
                text = said(message)
                titles |= {hit.title: None for hit in (*catalog.hits(text), *catalog.matched(text))}
        shown = not_in((catalog.entries[title] for title in titles), seen)
        return list(entries_note(shown, self._max_tokens, self._counter))


def _listed(titles: Iterable[str]) -> list[str]:
    if isinstance(titles, str):  # its letters would be taken for titles
        msg = "titles must be a list of titles, not a str"
        raise ConfigurationError(msg)
    return list(titles)
