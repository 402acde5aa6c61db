"""`KeyValueMemory`: reference data by title, shown when a title is mentioned."""

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

MANY = 1000  # entries: searching more of them is worth a thread
LONG = 2000  # characters: searching a longer text is worth a thread whatever the number of entries


class KeyValueMemory(Memory):
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
        check_arguments(options, cls)
        rows = [{**entry.to_row(), "source": entry.source} for entry in read_entries(path)]
        return cls(rows, **options)

    @classmethod
    def factory(cls, store: BaseStore[str, dict[str, Any]], **options: Any) -> KeyValueMemoryFactory:
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
        if not isinstance(store, BaseStore):
            msg = (  # type: ignore[unreachable]  # callers without types
                f"store must be a BaseStore of langchain_core.stores, not {kind_given(store, BaseStore)}; "
                "without a store give KeyValueMemory(entries) itself"
            )
            raise ConfigurationError(msg)
        check_arguments(options, cls)
        return KeyValueMemoryFactory(lambda user_id: cls(store=store, user_id=user_id, **options), store)

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
        drive(self._shelf.add(entries_of(entries)))

    async def aadd(self, entries: Entries) -> None:
        """Run `add` asynchronously."""
        await adrive(self._shelf.add(entries_of(entries)))

    def remove(self, titles: Iterable[str]) -> None:
        """Delete entries by title; unknown titles are ignored."""
        drive(self._shelf.remove(_listed(titles)))

    async def aremove(self, titles: Iterable[str]) -> None:
        """Run `remove` asynchronously."""
        await adrive(self._shelf.remove(_listed(titles)))

    def titles(self) -> list[str]:
        """Return all titles, sorted."""
        return list(drive(self._shelf.current()).titles)

    async def atitles(self) -> list[str]:
        """Run `titles` asynchronously."""
        return list((await adrive(self._shelf.current())).titles)

    def match(self, text: str) -> list[Hit]:
        """Return the entries that a text mentions, and how they were found.

        Args:
            text: Any text; its first 20,000 characters are searched.

        Returns:
            A `Hit` for each title, in order of mention; titles that only the matcher found come last.
        """
        return drive(self._match(text))

    async def amatch(self, text: str) -> list[Hit]:
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

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Run `save` asynchronously."""

    def clear(self) -> None:
        """Do nothing: the entries belong to no session."""

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""

    async def _match(self, text: str) -> list[Hit]:
        catalog = await self._shelf.current()
        return await self._hits(catalog, text)

    async def _hits(self, catalog: Catalog, text: str) -> list[Hit]:
        hits: list[Hit] = await cpu_bound(
            lambda: catalog.hits(text), long=len(catalog.titles) > MANY or len(text) > LONG
        )
        if self._matcher is None or not catalog.titles or not text.strip():
            return hits
        # The catalog then holds no index for typos: it finds exact and folded mentions, and the matcher all others.
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
        # Short work stays on the event loop; a thread costs more than searching a few short texts.
        long = len(catalog.titles) > MANY or self._counter is not approximate_tokens
        long = long or any(len(m.content) > LONG or not isinstance(m.content, str) for m in (*newest, *seen))
        return await cpu_bound(lambda: self._note(catalog, hits, past, seen), long=long)

    def _note(
        self, catalog: Catalog, hits: Sequence[Hit], past: Sequence[BaseMessage], seen: Sequence[BaseMessage]
    ) -> list[BaseMessage]:
        titles = {hit.title: None for hit in hits}
        newest = past[-self._lookback :] if self._lookback else ()
        for message in reversed(newest):
            # A note quotes the entries' titles, so searching notes would keep an entry alive for ever; notifications
            # come from the agent's harness, not from the user.
            if not (is_note(message) or is_notification(message)):
                text = said(message)
                titles |= {hit.title: None for hit in (*catalog.hits(text), *catalog.matched(text))}
        shown = not_in((catalog.entries[title] for title in titles), seen)
        return list(entries_note(shown, self._max_tokens, self._counter))


def _listed(titles: Iterable[str]) -> list[str]:
    if isinstance(titles, str):  # iterating over it would give single letters
        msg = "titles must be a list of titles, not a str"
        raise ConfigurationError(msg)
    return list(titles)
