"""What all memories of a factory share: the options, the extractor, the books."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.runnables import run_in_executor
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.stores import BaseStore

from langchain_memkit._sync import Step, cpu_bound, is_async
from langchain_memkit.base import EntityExtractor, GetSessionHistory, Now, TokenCounter, TokenCounterLike, kind_given
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.matching.names import kind_of, name_key
from langchain_memkit.memories.entity.book import Limits
from langchain_memkit.memories.entity.describe import Describer
from langchain_memkit.memories.entity.mentions import Spot, read_mentions
from langchain_memkit.memories.entity.rows import FactRow
from langchain_memkit.memories.entity.shelf import Shelf
from langchain_memkit.memories.transcripts import erased_messages
from langchain_memkit.messages.counting import resolve_counter
from langchain_memkit.preprocessors.memory_store import MemoryStore

__all__ = ["Core", "NameList"]

SHORT = 2000  # characters whose names are not worth a thread

NameList = Collection[str] | Mapping[str, str]


@dataclass(frozen=True)
class Core:
    """See `EntityMemory` for what each of them is."""

    extractor: EntityExtractor
    shelf: Shelf
    max_tokens: int
    counter: TokenCounter
    get_session_history: GetSessionHistory | None
    describer: Describer | None
    read_only: bool
    now: Now

    @classmethod
    def of(
        cls,
        extractor: EntityExtractor,
        store: BaseStore[str, dict[str, Any]] | None,
        *,
        names: NameList,
        max_tokens: int,
        max_facts: int,
        max_total: int,
        get_session_history: GetSessionHistory | None,
        describe: Any,
        read_only: bool,
        token_counter: TokenCounterLike,
        now: Now,
    ) -> Core:
        """Checks the options; no I/O."""
        if not callable(extractor):
            msg = f"extractor must be a function from a text to its names, not {type(extractor).__name__}"  # type: ignore[unreachable]  # callers without types
            raise ConfigurationError(msg)
        if store is not None and not isinstance(store, BaseStore):
            msg = f"store must be a BaseStore of langchain_core.stores, not {kind_given(store, BaseStore)}"  # type: ignore[unreachable]  # callers without types
            raise ConfigurationError(msg)
        for name, value in (("max_tokens", max_tokens), ("max_facts", max_facts), ("max_total", max_total)):
            if not isinstance(value, int) or value < 1:  # type: ignore[redundant-expr]  # callers without types
                msg = f"{name} must be a whole number above 0; got {value!r:.50}"
                raise ConfigurationError(msg)
        for name, function in (("get_session_history", get_session_history), ("now", now)):
            if function is not None and not callable(function):
                msg = f"{name} must be a function, not {type(function).__name__}"  # type: ignore[unreachable]  # callers without types
                raise ConfigurationError(msg)
        shelf = Shelf(
            MemoryStore() if store is None else store,
            _vocabulary(names),
            Limits(max_facts, max_total),
            now,
            read_only=read_only,
        )
        describer = None if describe is None else Describer(coerce_to_runnable(describe), shelf)
        counter = resolve_counter(token_counter)
        return cls(extractor, shelf, max_tokens, counter, get_session_history, describer, read_only, now)

    @property
    def store(self) -> BaseStore[str, dict[str, Any]]:
        """Where all is kept."""
        return self.shelf.store

    @property
    def style(self) -> Step[None]:
        """Refuses an async extractor under the sync verbs."""

        async def anything() -> None:
            return None

        if is_async(self.extractor):
            return Step(_refuse_async, anything)
        return Step(lambda: None, anything)

    async def extract(self, texts: Sequence[str]) -> list[list[Spot]]:
        """The names in each text; many are read at once where the extractor can."""
        batch = getattr(self.extractor, "batch", None)
        if callable(batch) and len(texts) > 1:
            found = list(await _call(lambda: _whole(batch(list(texts)))))
        else:
            found = []
            for text in texts:
                found.append(await _call(partial(self.extractor, text)))
        long = sum(map(len, texts)) > SHORT
        return await cpu_bound(lambda: [read_mentions(*pair) for pair in zip(found, texts, strict=True)], long=long)

    async def gone(self, user_id: str, rows: Iterable[FactRow]) -> set[tuple[str, str]]:
        """Session and message of facts whose message does not stand in its history any more: one query a session."""
        wanted: dict[str, set[str]] = {}
        for row in rows:
            if row.given:
                wanted.setdefault(row.session, set()).add(row.message)
        return await erased_messages(self.get_session_history, user_id, wanted)


def _whole(found: Any) -> Any:
    """What a `batch` that is a generator does is done here, where it is called."""
    return found if inspect.isawaitable(found) else list(found)


def _refuse_async() -> None:
    msg = "the extractor is async, so use the async verbs: aload, asave, arebuild, ainvoke"
    raise ConfigurationError(msg)


def _call(function: Callable[[], Any]) -> Step[Any]:
    """The extractor, plain or async; on an event loop a plain one runs in a thread."""

    def sync() -> Any:
        result = function()
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            _refuse_async()
        return result

    async def asynchronous() -> Any:
        result = await run_in_executor(None, function)
        return await result if inspect.isawaitable(result) else result

    return Step(sync, asynchronous)


def _vocabulary(names: NameList) -> dict[str, str]:
    """Names with their kinds; an empty kind where none was said."""
    if isinstance(names, str):
        msg = f"names must be a list of names, or a dict of names with their types: names=[{names!r:.50}]"
        raise ConfigurationError(msg)
    given = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, "")
    kinds: dict[str, str] = {}
    for name, label in given.items():
        if not isinstance(name, str) or name_key(name, given=True) is None:
            msg = f"names: {name!r:.50} is no name"
            raise ConfigurationError(msg)
        kind = kind_of(label)
        if kind is None:
            msg = f"names: {name!r:.50} cannot be a {label!r:.50}: dates and numbers are no entities"
            raise ConfigurationError(msg)
        kinds[name] = kind
    return kinds
