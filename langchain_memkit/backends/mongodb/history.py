"""`MongoDBChatMessageHistory`: takes the arguments of langchain-mongodb's class, stores turns as memkit does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, Unpack

from pymongo import AsyncMongoClient, MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from langchain_memkit.backends.mongodb.clients import BsonDict, Clients
from langchain_memkit.backends.mongodb.commands import Settings
from langchain_memkit.backends.mongodb.documents import FIELDS
from langchain_memkit.backends.mongodb.layouts import LangChainRowStore, QAStore
from langchain_memkit.backends.mongodb.turns import MongoTurnStore
from langchain_memkit.base import Now, TokenCounterLike, check_id, check_one_of, check_seconds, utc_now
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.tokens import resolve_counter
from langchain_memkit.stores.history import HistoryFactory, HistoryOptions, TurnHistory, check_options

logger = logging.getLogger("langchain_memkit")

_said: set[str] = set()  # warnings that were logged, each once per process

STORES: dict[str, type[MongoTurnStore]] = {"turns": MongoTurnStore, "langchain": LangChainRowStore, "qa": QAStore}
MIN_TTL = 60  # the server removes expired documents once a minute


class MongoDBOptions(HistoryOptions, total=False):
    """The keyword arguments of `MongoDBChatMessageHistory`, which documents them; `factory` takes the same."""

    session_id_key: str
    history_key: str
    create_index: bool
    index_kwargs: Mapping[str, Any] | None
    client: MongoClient[BsonDict] | None
    async_client: AsyncMongoClient[BsonDict] | None
    save_timeout: float
    layout: Literal["turns", "langchain", "qa"]
    user_id_key: str


class MongoDBChatMessageHistory(TurnHistory):
    """A chat history in MongoDB: one document per turn, in order, stored by a majority or an error is raised.

    A drop-in for langchain-mongodb's class of the same name: its arguments mean the same, and its rows in the same
    collection are read in place, before ours. No I/O happens before the first use; all histories of a process share one
    client per connection string (and one per event loop for the async methods), which is closed at exit.

    Args:
        connection_string: `mongodb://...`; None if `client` or `async_client` is given. Writes wait for a majority and
            the journal, reads see what a majority has, whatever it says.
        session_id: The conversation, 1 to 512 bytes.
        database_name: The database.
        collection_name: The collection; indexes are built at first use.
        session_id_key: The field in which langchain-mongodb's rows keep the session id.
        history_key: The field in which they keep the message.
        create_index: Whether indexes are built at first use. If False, writes are refused where the unique indexes are
            missing.
        history_size: `messages` returns at most this many, cut at a turn. None returns all.
        index_kwargs: More options for the index on `session_id_key`.
        client: Your own `MongoClient`, never closed here. The async methods then use a worker thread.
        async_client: Your own `AsyncMongoClient`, never closed here.
        user_id: The user. Histories with the same session id and different users are separate. langchain-mongodb's
            rows carry no user, so only histories without one see them.
        ttl: Seconds (from 60) after which a turn disappears. None keeps it.
        timeout: Seconds within which reads and the first use fail if the server cannot be reached.
        save_timeout: Seconds for which a save is retried on a server that was reached before (elections take over 10).
        token_counter: Counts tokens of messages when they are stored: None or `"approximate"` (fast), an OpenAI
            encoding or model (`"o200k_base"`, `"gpt-4o"`: exact, extra `tokens`), a function of messages, or a model.
            Stored counts are used by every reader whose counter has the same name.
        layout: `"turns"`, the storage model of memkit. `"langchain"` writes langchain-mongodb's rows, for a rolling
            deploy or the way back: turns are not atomic there and have no positions. `"qa"` reads and writes documents
            `{question, response, chatId, userId, isActive, isDeleted, createdAt, updatedAt}`, ordered by date.
        user_id_key: For `layout="qa"`: the field that holds the user's id, `"userId"` or `"email"`.
        on_corrupt: `"report"` leaves damaged messages out and logs them, `"raise"` raises `MessageDecodeError`.
        now: The clock, for tests.

    Raises:
        TypeError: An id is not a string.
        ValueError: An id is empty or malformed, or the arguments contradict each other.

    Example:
        ```python
        history = MongoDBChatMessageHistory("mongodb://localhost:27017", "s1", user_id="u1")
        history.add_messages([HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")])
        ```
    """

    _store: MongoTurnStore
    _fixed: ClassVar[Mapping[str, str]] = {
        **TurnHistory._fixed,
        **dict.fromkeys(("client", "db"), "give client= or database_name= to the constructor, or set `collection`"),
        **dict.fromkeys(("database_name", "collection_name"), "give it to the constructor, or set `collection`"),
        **dict.fromkeys(("session_id_key", "history_key"), "give it to the constructor"),
    }

    def __init__(
        self,
        connection_string: str | None,
        session_id: str,
        database_name: str = "chat_history",
        collection_name: str = "message_store",
        *,
        session_id_key: str = "SessionId",
        history_key: str = "History",
        create_index: bool = True,
        history_size: int | None = None,
        index_kwargs: Mapping[str, Any] | None = None,
        client: MongoClient[BsonDict] | None = None,
        async_client: AsyncMongoClient[BsonDict] | None = None,
        user_id: str | None = None,
        ttl: float | None = None,
        timeout: float = 5.0,
        save_timeout: float = 30.0,
        token_counter: TokenCounterLike = None,
        layout: Literal["turns", "langchain", "qa"] = "turns",
        user_id_key: str = "userId",
        on_corrupt: Literal["report", "raise"] = "report",
        now: Now = utc_now,
    ) -> None:
        check_id(session_id, "session_id")  # before the connection string: the two are easily swapped
        keys = {"session_id_key": session_id_key, "history_key": history_key, "user_id_key": user_id_key}
        for name, value in keys.items():
            if not value or value in FIELDS or value.startswith("$") or "." in value:
                msg = f"{name} must be a plain field name other than {', '.join(FIELDS)}; got {value!r:.50}"
                raise ConfigurationError(msg)
        check_seconds(ttl, "ttl", none="to keep turns")
        if ttl is not None and ttl < MIN_TTL:
            msg = f"ttl is in seconds, from {MIN_TTL} (the server removes expired turns once a minute); got {ttl!r:.50}"
            raise ConfigurationError(msg)
        check_one_of(layout, "layout", [*STORES])
        self.layout = layout
        counter = resolve_counter(token_counter)
        settings = Settings(
            names=(database_name, collection_name),
            legacy_keys=(session_id_key, history_key),
            user_id_key=user_id_key,
            create_index=create_index,
            index_kwargs=dict(index_kwargs or {}),
            ttl=ttl,
            timeout=timeout,
            save_timeout=save_timeout,
            token_counter=counter,
            now=now,
        )
        store = STORES[layout](Clients(connection_string, client, async_client), settings)
        super().__init__(
            store, session_id, user_id, history_size=history_size, token_counter=counter, on_corrupt=on_corrupt
        )

    def _bind(self, session_id: str, user_id: str | None) -> None:
        super()._bind(session_id, user_id)
        if self.layout == "langchain" and user_id is not None:
            msg = "rows of langchain-mongodb carry no user: leave user_id out, or use layout='turns'"
            raise ConfigurationError(msg)
        if self.layout == "qa" and user_id is None:
            raise ConfigurationError("documents of layout='qa' belong to a user: pass user_id")

    @property
    def client(self) -> MongoClient[BsonDict]:
        """The sync client in use, shared by the process unless you gave one."""
        return self._store.clients.sync()

    @property
    def db(self) -> Database[BsonDict]:
        """The database, for queries of your own."""
        return self.client[self.database_name]

    @property
    def collection(self) -> Collection[BsonDict]:
        """The collection, with the guarantees pinned, for queries of your own.

        With `layout="turns"` a document is a turn, with `user_id`, `session_id`, `seq` and `messages`. Queries over
        langchain-mongodb's `SessionId` and `History` need `layout="langchain"`, which is logged once. Set it to another
        collection (of pymongo's sync client) to make this history read and write there.
        """
        if self.layout == "turns" and "collection" not in _said:
            _said.add("collection")
            logger.warning(
                "`collection` holds a document for each turn, with the fields user_id, session_id, seq and messages: "
                "queries over %s and %s neither find nor delete them. For code that makes such queries give "
                "layout='langchain', which writes langchain-mongodb's rows",
                *self._store.settings.legacy_keys,
            )
        return self._store.collection(self.client)

    @collection.setter
    def collection(self, collection: Any) -> None:
        if "_store" not in vars(self):
            return  # a subclass sets it before it calls our constructor
        if not isinstance(collection, Collection):
            msg = f"collection must be a collection of pymongo's MongoClient, not {type(collection).__name__}"
            raise TypeError(msg)
        names = (collection.database.name, collection.name)
        if collection.database.client is self.client and names == self._store.settings.names:
            return
        clients = Clients(None, collection.database.client, None)
        self._store = STORES[self.layout](clients, replace(self._store.settings, names=names))

    @property
    def database_name(self) -> str:
        """The name of the database."""
        return self._store.settings.names[0]

    @property
    def collection_name(self) -> str:
        """The name of the collection."""
        return self._store.settings.names[1]

    @property
    def session_id_key(self) -> str:
        """The field in which langchain-mongodb's rows keep the session id."""
        return self._store.settings.legacy_keys[0]

    @property
    def history_key(self) -> str:
        """The field in which langchain-mongodb's rows keep the message."""
        return self._store.settings.legacy_keys[1]

    def close(self) -> None:
        """Do nothing: the client is shared by every history of the process and closes at exit, or with its factory.

        Kept because apps call it on langchain-mongodb's class.
        """

    @classmethod
    def factory(
        cls,
        connection_string: str | None = None,
        database_name: str = "chat_history",
        collection_name: str = "message_store",
        **options: Unpack[MongoDBOptions],
    ) -> HistoryFactory[Self]:
        """Create a `get_session_history(session_id, user_id=None)` for one collection. No I/O.

        Args:
            connection_string: `mongodb://...`; None if `client` or `async_client` is given.
            database_name: The database.
            collection_name: The collection; indexes are built at first use.
            **options: The other arguments of the constructor, by the same names, and those of your subclass.

        Returns:
            A callable that returns histories of this class, with `list_sessions`, `purge`, `setup` and `close`.

        Raises:
            ConfigurationError: An argument is unknown, or the constructor of your subclass does not take it.

        Example:
            ```python
            histories = MongoDBChatMessageHistory.factory("mongodb://localhost:27017")
            histories("s1", user_id="u1").add_user_message("hello")
            ```
        """
        check_options(cls, options)
        # Pass only what was given, no defaults: the constructor of a subclass may not take these arguments.
        given: dict[str, Any] = dict(options)
        if database_name != "chat_history":
            given["database_name"] = database_name
        if collection_name != "message_store":
            given["collection_name"] = collection_name
        make: Any = partial(cls, connection_string, **given)
        # The template from which the histories of sessions are copied; layout "qa" requires a user.
        first = make("-", user_id="-") if options.get("layout") == "qa" else make("-")
        first._store.clients.hold()
        return HistoryFactory(first, None if cls.__init__ is MongoDBChatMessageHistory.__init__ else make)
