"""What entity, vector and preference memory share: they are derived from transcripts and can be rebuilt."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, Self, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit._histories import has_native, read_messages, stored_ids, turns_between
from langchain_memkit._sync import ClosingMixin, Step, adrive, call_user_function, drive
from langchain_memkit.base import GetSessionHistory, Memory, SessionInfo, check_id, safe_repr
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.fanout import bound_maker
from langchain_memkit.stores.in_memory import DictStore, StoredDict, delete_keys, list_keys

R = TypeVar("R", bound=NamedTuple)

UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""Date of messages whose date is unknown."""


class Segment(NamedTuple):
    """Messages that were stored together, e.g. one turn, oldest first."""

    messages: Sequence[BaseMessage]
    at: datetime | None  # when they were stored; None if unknown
    epoch: int = 0  # of the session; 0 if unknown
    expires_at: datetime | None = None
    native: bool = False  # whether they are a row of our own, whose message ids can be looked up

    @classmethod
    def of_turn(cls, messages: Sequence[BaseMessage], at: datetime) -> Segment:
        """Return a turn that is being saved; a `SavedTurn` knows epoch and expiry."""
        return cls(messages, at, getattr(messages, "epoch", 0), getattr(messages, "expires_at", None), native=True)

    @property
    def has_ids(self) -> bool:
        """Return whether the history can later be asked for the message ids.

        That is so for our rows, and for histories of other packages (`at` is None), which are read as a whole; not for
        rows of other packages that our history reads.
        """
        return self.native or self.at is None


VERSION = 1  # of the rows of entity and preference memory


def clean(text: str) -> str:
    """Replace lone surrogates and NUL characters, which some stores refuse."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def write_row(row: NamedTuple) -> StoredDict:
    """Return a row as plain JSON data for a store."""
    data: StoredDict = {"v": VERSION, **row._asdict()}
    for name, value in data.items():
        if isinstance(value, (datetime, tuple)):
            data[name] = value.isoformat() if isinstance(value, datetime) else list(value)
    return data


def read_row(cls: type[R], data: Any) -> R | None:
    """Return the row in a stored value; None if there is none, or it is damaged or of a newer version."""
    try:
        row = cls._make(READERS.get(name, _text)(data[name]) for name in cls._fields)
        return row if data["v"] == VERSION else None
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# how each field is read; those that are not here are texts
READERS: dict[str, Callable[[Any], object]] = {
    "at": _moment,
    "expires_at": lambda text: _moment(text) if text else None,
    "facts": lambda ids: tuple(map(_text, ids)),
    "given": bool,
    **dict.fromkeys(("start", "end", "epoch"), int),
}


async def wipe(store: DictStore, *prefixes: str) -> list[int]:
    """Delete all keys under each prefix, one prefix after the other, and return how many there were."""
    found = []
    for prefix in prefixes:
        if keys := await list_keys(store, prefix):
            await delete_keys(store, keys)
        found.append(len(keys))
    return found


def history_of(get_session_history: GetSessionHistory, session_id: str, user_id: str) -> Step[Any]:
    """Make a step that returns the history of a session."""
    return call_user_function(bound_maker(get_session_history, session_id, user_id), name="get_session_history")


async def read_transcript(
    history: Any, get_session_history: GetSessionHistory | None, session_id: str, user_id: str
) -> list[Segment]:
    """Return the whole history, oldest first; without `history` that of `get_session_history`."""
    if history is None:
        if get_session_history is None:
            raise ConfigurationError("rebuild() needs the session's history, or a memory with get_session_history")
        history = await history_of(get_session_history, session_id, user_id)
    if not has_native(history, "iter_turns"):
        return [Segment(await read_messages(history), None)]
    turns = await turns_between(history, None)
    # rows of other packages have no position (`seq` is 0), and their message ids cannot be looked up
    return [Segment(turn.messages, turn.created_at, turn.epoch, turn.expires_at, bool(turn.seq)) for turn in turns]


async def erased_messages(
    get_session_history: GetSessionHistory | None, user_id: str, asked: Iterable[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return those of the asked (session, message id) that are no longer in their history: one query per session.

    A history of another package is read as a whole.
    """
    if get_session_history is None:
        return set()
    wanted: dict[str, set[str]] = {}
    for session, message in asked:
        wanted.setdefault(session, set()).add(message)
    erased: set[tuple[str, str]] = set()
    for session, ids in wanted.items():
        history = await history_of(get_session_history, session, user_id)
        if has_native(history, "stored_ids"):
            found = await stored_ids(history, sorted(ids))
        else:
            found = {message.id for message in await read_messages(history) if message.id}
        erased |= {(session, message) for message in ids - found}
    return erased


def session_infos(records: Iterable[tuple[str, datetime | None]]) -> list[SessionInfo]:
    """Return the sessions of records, given as session and date, the last used first; `turns` counts records."""
    dates: dict[str, list[datetime | None]] = {}
    for session, at in records:
        dates.setdefault(session, []).append(at)
    found: list[SessionInfo] = []
    for session, listed in dates.items():
        known = list(filter(None, listed))
        found.append(SessionInfo(session, len(listed), min(known, default=None), max(known, default=None)))
    return sorted(found, key=lambda info: (info.updated_at or UNDATED, info.session_id), reverse=True)


M = TypeVar("M", bound="DerivedMemory")


def check_writable(core: Any) -> None:
    """Raise `ConfigurationError` if the memory is read-only."""
    if core.read_only:
        raise ConfigurationError("this memory is read-only")


class DerivedMemory(Memory):
    """Base class of a memory of one session and its user that is derived from transcripts.

    A subclass has the flows behind these methods; `_core` holds what all memories of a factory share.
    """

    save_was_checked: bool = False
    """Whether the last save would have stored nothing if the session had been cleared since the load before it."""

    _core: Any
    _fetched: object = None
    _session: str
    _user: str

    def _bind(self, session_id: str, user_id: str | None) -> None:
        self.session_id = self._session = check_id(session_id, "session_id")
        if user_id is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs a user_id: what it remembers is of all sessions of one user. "
                "In a chain it comes from the config: chain.invoke(..., session('s1', user_id='u1'))"
            )
        self.user_id = self._user = check_id(user_id, "user_id")

    def _for_session(self, session_id: str, user_id: str | None) -> Self:
        """Return a copy of this memory, of which nothing was loaded yet, bound to another session and user."""
        other = copy.copy(self)  # shallow: the core with its cache is shared
        other._bind(session_id, user_id)
        return other

    def __repr__(self) -> str:
        """Show the ids, never what is remembered."""
        return f"{type(self).__name__}(session_id={self.session_id!r}, user_id={self.user_id!r})"

    @property
    def is_remote(self) -> bool:
        """Return whether reads wait for a server.

        A sync turn then reads in a thread, at the same time as it reads the history.
        """
        return bool(getattr(self._core.store, "is_remote", False))

    def prefetch(self) -> None:
        """Read what the next `load` needs for any query; a turn calls it while the history is read.

        An error is kept and raised by that `load`.
        """
        drive(self._prefetched())

    async def aprefetch(self) -> None:
        """Run `prefetch` asynchronously."""
        await adrive(self._prefetched())

    async def _prefetched(self) -> None:
        try:
            self._fetched = await self._prefetch()
        except Exception as error:  # noqa: BLE001  # whatever a store raises is raised by the load that follows
            self._fetched = error

    def _take_fetched(self) -> Any:
        """Return what `prefetch` read, once, or raise its error; None if nothing was prefetched."""
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    def load(self, query: str = "") -> list[BaseMessage]:
        """Return what is remembered that answers the new input, as much as fits into `max_tokens`.

        Args:
            query: The new input. In a turn it is a `Query`, and messages that the model sees anyway are not repeated.

        Returns:
            A list of one note with quoted records; `[]` if nothing is related to the input, or nothing is stored.

        Raises:
            ConfigurationError: The extractor is async.
            HistoryReadError: The store, or a history, cannot be reached or read.
        """
        return drive(self._load(query))

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Run `load` asynchronously."""
        return await adrive(self._load(query))

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Store what a finished turn tells; saving the same turn again stores nothing.

        A turn is left out, with a warning in the log, if its session was cleared after `load`.

        Args:
            messages: One turn or a whole conversation, oldest first. Notes from memories and summaries are left out.

        Raises:
            ConfigurationError: The extractor is async.
            HistoryWriteError: The store failed; calling again is safe.
        """
        drive(self._save(messages))

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Run `save` asynchronously."""
        await adrive(self._save(messages))

    def clear(self) -> None:
        """Delete what came from this session for good; a save that runs at the same time adds nothing."""
        drive(self._clear())

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""
        await adrive(self._clear())

    def forget_messages(self, ids: Collection[str]) -> int:
        """Delete what was taken from messages of this session: sentences, or the whole rounds that contain them.

        A vector memory hides the turns with these messages; of others `rebuild` restores what is still in the
        transcript.

        Args:
            ids: Ids of the messages.

        Returns:
            How many sentences or records were deleted.

        Raises:
            TypeError: `ids` is a string.
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._forget_messages(ids))

    async def aforget_messages(self, ids: Collection[str]) -> int:
        """Run `forget_messages` asynchronously."""
        return await adrive(self._forget_messages(ids))

    def rebuild(self, history: Any = None, progress: bool = True) -> Mapping[str, int]:
        """Rebuild what is stored of this session from its transcript, for example to import a whole conversation.

        Args:
            history: Any LangChain chat history; None uses `get_session_history`.
            progress: Show a progress bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second run adds and removes nothing. What is not in the
            transcript is removed, except what is saved while it runs.

        Raises:
            ConfigurationError: There is no history, the extractor is async, or the memory is read-only.
            HistoryReadError: The transcript cannot be read.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._rebuild_sessions(self._user, {self._session: history}, progress))

    async def arebuild(self, history: Any = None, progress: bool = True) -> Mapping[str, int]:
        """Run `rebuild` asynchronously."""
        return await adrive(self._rebuild_sessions(self._user, {self._session: history}, progress))

    async def _forget_messages(self, ids: Collection[str]) -> int:
        check_writable(self._core)
        if isinstance(ids, str):
            raise TypeError("ids must be a list of str, not a str")
        return await self._delete_messages(ids)

    @abstractmethod
    async def _prefetch(self) -> Any: ...

    @abstractmethod
    async def _load(self, query: str) -> list[BaseMessage]: ...

    @abstractmethod
    async def _save(self, messages: Sequence[BaseMessage]) -> None: ...

    @abstractmethod
    async def _clear(self) -> None: ...

    @abstractmethod
    async def _delete_messages(self, ids: Collection[str]) -> int: ...

    @abstractmethod
    async def _rebuild_sessions(
        self, user_id: str, sessions: Mapping[str, Any], progress: bool
    ) -> Mapping[str, int]: ...


class DerivedMemoryFactory(ClosingMixin, Generic[M]):
    """Base class of the factories of derived memories: they return copies of a memory, which share its store.

    A subclass has the flows behind these methods.
    """

    does_no_io = True
    """Whether calling the factory does no I/O, so that it needs no worker thread."""

    def __init__(self, memory: M) -> None:
        self._memory = memory
        self._core = memory._core

    def __repr__(self) -> str:
        """Show the store."""
        return f"{type(self).__name__}({safe_repr(self._core.store)})"

    def __call__(self, session_id: str, user_id: str | None = None) -> M:
        """Return the memory of a session; no I/O.

        Args:
            session_id: The conversation.
            user_id: The user; required.

        Raises:
            ConfigurationError: `user_id` is missing.
            TypeError, ValueError: An id is not a string, empty or malformed.
        """
        return self._memory._for_session(session_id, user_id)

    def setup(self) -> None:
        """Set up the store, if it has a `setup`."""
        drive(self._setup())

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await adrive(self._setup())

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """Return the user's sessions of which something is stored, the last used first.

        `turns` counts what the memory stores: facts of an entity memory; a vector memory tells the histories' turns.
        """
        return drive(self._list_sessions(check_id(user_id, "user_id")))

    async def alist_sessions(self, user_id: str) -> list[SessionInfo]:
        """Run `list_sessions` asynchronously; it returns a list, not an async iterator."""
        return await adrive(self._list_sessions(check_id(user_id, "user_id")))

    def rebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Rebuild all that is stored of a user from the transcripts, for example to import the user's conversations.

        Args:
            histories: A history factory of this package, or any callable that takes the ids and has
                `list_sessions(user_id)`.
            user_id: The user.
            progress: Show a progress bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second run adds and removes nothing. What came from sessions
            that no longer exist is removed.
        """
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    async def arebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Run `rebuild` asynchronously."""
        return await adrive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete everything that is stored of a user for good; part of `purge_user`.

        Returns:
            How many were deleted: `{"facts": n}` of an entity memory, those of the histories of a vector memory,
            `{"preferences": n}` of a preference memory.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Empty the cache, if there is one; a store that you passed in stays open."""

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        self.close()

    async def _setup(self) -> None:
        store = self._core.store
        if hasattr(store, "setup"):
            await Step(lambda: store.setup(), lambda: store.asetup())

    async def _rebuild(self, histories: Any, user_id: str, progress: bool) -> Mapping[str, int]:
        # List the remembered sessions before the histories: a session that begins in between is then only in the second
        # list, and is not mistaken for one whose transcript is gone.
        known = await self._list_sessions(user_id)
        found = await Step(lambda: histories.list_sessions(user_id), lambda: histories.alist_sessions(user_id))
        names = dict.fromkeys(info.session_id for info in [*found, *known])
        sessions = {name: await history_of(histories, name, user_id) for name in names}
        return await self._memory._rebuild_sessions(user_id, sessions, progress)

    @abstractmethod
    async def _list_sessions(self, user_id: str) -> list[SessionInfo]: ...

    @abstractmethod
    async def _purge(self, user_id: str) -> Mapping[str, int]: ...
