"""Where conversations come from: our own stores here, those of other packages in `foreign`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

from langchain_memkit._histories import is_native
from langchain_memkit.backends._history.factory import HistoryFactory
from langchain_memkit.base import TokenCounter, Turn, kind_given
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate.joining import ROW


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a source; read it before the next one is asked for.

    Attributes:
        session_id: Its name there, which may be no valid id here.
        user_id: Whose; an empty string for nobody's.
        turns: Reads it, oldest first.
        counter: What the turns' tokens were counted with; turns without counts are counted when they are stored.
        by_id: Whether its messages' own ids say what the target has already, under whatever turn.
    """

    session_id: Any
    user_id: str
    turns: Callable[[], Iterator[Turn]]
    counter: TokenCounter | None = None
    by_id: bool = False


class Source(Protocol):
    """What `migrate` reads from."""

    def size(self) -> int | None:
        """Return how many rows there are, for the progress bar; None if that is not known."""

    def conversations(self) -> Iterator[Conversation]:
        """Return every conversation, one after the other."""


class HistorySource:
    """The conversations of a factory of ours, hidden turns included; of a subclass, what its `messages` returns."""

    def __init__(self, factory: HistoryFactory[Any], user_id: str | None = None, *, native_only: bool = False) -> None:
        self._factory = factory
        self._native_only = native_only
        self._counter = _counter_of(factory)
        store = factory._store
        owners = store.run(store.owners()) if user_id is None else [user_id]
        self._sessions = [(owner, found) for owner in owners for found in store.run(store.sessions(owner, hidden=True))]

    def size(self) -> int:
        """Return rows stored."""
        return sum(found.turns for _, found in self._sessions)

    def conversations(self) -> Iterator[Conversation]:
        """Return every session of every user."""
        for owner, found in self._sessions:
            try:
                turns = partial(self._turns, self._factory(found.session_id, owner or None))
            except (ConfigurationError, ValueError) as error:  # an id of others that is none here, say
                turns = partial(iter, [unreadable(str(error))])
            yield Conversation(found.session_id, owner, turns, self._counter)

    def _turns(self, history: Any) -> Iterator[Turn]:
        if not is_native(history):
            place = f"{history.user_id!r} {history.session_id!r}"
            for i, message in enumerate(history.messages):
                name = ("history", place, message.id or f"{i} {message.type} {message.content!r}")
                yield message_turn(message.model_copy(), name, None, "")
            return
        after: Any | None = 0 if self._native_only else None
        while True:
            turns, after = history._store.run(history._page_forward(after, None, hidden=True))
            yield from turns
            if after is None:
                return


def unreadable(text: str) -> Turn:
    """Return a turn without messages that says what could not be read."""
    return Turn(0, 0, "", None, [], [], [text])


def message_turn(
    message: BaseMessage, name: tuple[str, str, str], when: datetime | None, where: str, lost: Iterable[str] = ()
) -> Turn:
    """Return one message as a turn; its name is made of where and what it is, so that it is the same at every run."""
    digest = hashlib.sha256("\x00".join(name).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if not message.id:
        message.id = f"{name[0]}-{digest}"
    return Turn(0, 0, f"{ROW}{name[0]}:{digest}", when, [message], [], [f"{where}, {line}" for line in lost])


def checked(factory: HistoryFactory[Any], name: str = "factory") -> HistoryFactory[Any]:
    """Return the factory, if it is one of ours."""
    if not isinstance(factory, HistoryFactory):
        msg = f"{name} must be a factory of our histories, X.factory(...), not {kind_given(factory, HistoryFactory)}"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    return factory


def _counter_of(factory: HistoryFactory[Any]) -> TokenCounter | None:
    """Return what a factory's histories count with; some layouts have no sessions without a user, others none with one."""
    try:
        history = factory("-", "-")
    except ConfigurationError:
        history = factory("-")
    counter: TokenCounter | None = history.token_counter
    return counter


def opened(source: HistoryFactory[Any] | Source, *, native_only: bool = False, user_id: str | None = None) -> Source:
    """Return what was given, as a source; of a factory only what belongs to `user_id`, an empty string for nobody's.

    Raises:
        ConfigurationError: It is neither a factory of ours nor made by one of the functions here.
    """
    if isinstance(source, HistoryFactory):
        return HistorySource(source, user_id, native_only=native_only)
    if not callable(getattr(source, "conversations", None)):
        msg = (
            "source must be a factory of histories, or what langchain_sql_source, langchain_file_source, "
            f"langchain_memory_source or langgraph_source returned; got {kind_given(source, type(None))}"
        )
        raise ConfigurationError(msg)
    return source
