"""`SQLiteChatMessageHistory`: the embedded default."""

from __future__ import annotations

import os
from functools import partial
from typing import Literal, Self, TypedDict, Unpack

from langchain_memkit.backends._history.factory import HistoryFactory, check_options
from langchain_memkit.backends._history.verbs import TurnHistory
from langchain_memkit.backends.sqlite.database import OWNER_ALONE, shared_database
from langchain_memkit.backends.sqlite.store import SQLiteTurnStore
from langchain_memkit.base import Now, TokenCounterLike, utc_now
from langchain_memkit.messages.counting import resolve_counter


class SQLiteOptions(TypedDict, total=False):
    """The keyword arguments of `SQLiteChatMessageHistory`, which documents them; `factory` takes the same."""

    history_size: int | None
    ttl: float | None
    token_counter: TokenCounterLike
    on_corrupt: Literal["report", "raise"]
    timeout: float
    file_mode: int
    now: Now


class SQLiteChatMessageHistory(TurnHistory):
    """A chat history in one SQLite file: durable, atomic turns, no server. The default for one machine.

    It is a LangChain chat history: use it wherever one is accepted. Safe with threads and with several processes on one
    file (not on a network drive). No I/O happens before the first use.

    Args:
        path: The file; created at first use, its folder must exist. `":memory:"` keeps the data in this object (or
            factory).
        session_id: The conversation, 1 to 512 bytes.
        user_id: The owner. Histories of the same session id and different users share nothing.
        history_size: The greatest number of messages in `messages`, cut at a turn. None returns all.
        ttl: Seconds after which a turn expires. None keeps it.
        token_counter: Counts tokens of messages when they are stored: None or `"approximate"` (fast), an OpenAI
            encoding or model (`"o200k_base"`, `"gpt-4o"`: exact, extra `tokens`), a function of messages, or a model.
            Stored counts are reused by every reader whose counter has the same name.
        on_corrupt: `"report"` leaves damaged messages out and logs them, `"raise"` raises `MessageDecodeError`.
        timeout: Seconds to wait for another process that is writing.
        file_mode: The permissions of the file, its -wal and its -shm if they are created here: 0o600 by default, for
            the owner alone; 0o660 shares it with a group. An existing file keeps its own.
        now: The clock, for tests.

    Raises:
        TypeError: An id is not a string.
        ValueError: An id is empty or malformed, or another argument is wrong.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> history = SQLiteChatMessageHistory(":memory:", "s1")
        >>> history.add_messages([HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")])
        >>> [m.content for m in history.messages]
        ['My name is Nemo.', 'Hello Nemo.']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        session_id: str,
        *,
        user_id: str | None = None,
        history_size: int | None = None,
        ttl: float | None = None,
        token_counter: TokenCounterLike = None,
        on_corrupt: Literal["report", "raise"] = "report",
        timeout: float = 30.0,
        file_mode: int = OWNER_ALONE,
        now: Now = utc_now,
    ) -> None:
        counter = resolve_counter(token_counter)
        store = SQLiteTurnStore(shared_database(path, timeout, file_mode), ttl, counter, now)
        super().__init__(
            store,
            session_id,
            user_id,
            history_size=history_size,
            token_counter=counter,
            on_corrupt=on_corrupt,
        )

    @classmethod
    def factory(
        cls,
        path: str | os.PathLike[str],
        **options: Unpack[SQLiteOptions],
    ) -> HistoryFactory[Self]:
        """Return a `get_session_history(session_id, user_id=None)` for this file.

        Args:
            path: The file, as in the class.
            **options: The class's further arguments, by the same names, and those of your subclass.

        Returns:
            A callable that creates histories of this class, with `list_sessions`, `purge`, `setup` and `close`.

        Raises:
            ConfigurationError: There is no such argument, or the constructor of your subclass takes others.

        Example:
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> histories("s1", user_id="u1").add_user_message("hello")
            >>> len(histories("s1", user_id="u1").messages), len(histories("s1", user_id="u2").messages)
            (1, 0)
        """
        check_options(cls, options)
        make = partial(cls, path, **options)
        return HistoryFactory(make("-"), None if cls.__init__ is SQLiteChatMessageHistory.__init__ else make)
