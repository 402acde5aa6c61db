"""Targets of commands: a file, a folder or a connection string, and the format of the conversations in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import langchain_memkit
from langchain_memkit.errors import ConfigurationError

__all__ = ["Format", "Target", "detect_format", "require_mongodb", "target_of"]

DATABASE = "chat_history"
COLLECTION = "message_store"
NOT_GIVEN = "say where: a SQLite file or mongodb://..., with {option} or in the environment variable MEMKIT_URI"


class Format(StrEnum):
    """The formats in which conversations can be kept."""

    MEMKIT = "memkit"
    LANGCHAIN_MONGODB = "langchain-mongodb"
    QA = "qa"
    SQL = "sql"
    FILE = "file"
    LANGGRAPH = "langgraph"


OF_KIND = {
    "turns": Format.MEMKIT,
    "langchain-mongodb": Format.LANGCHAIN_MONGODB,
    "qa": Format.QA,
    "langgraph": Format.LANGGRAPH,
}
OF_TABLES = {
    "turns": Format.MEMKIT,
    "message_store": Format.SQL,
    "checkpoints": Format.LANGGRAPH,
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target and the names in it. Its repr shows no credentials.

    Attributes:
        where: The path or URL that the user gave.
        given_database: The database in an option or in the connection string.
        collection: The collection in an option.
        keys: `session_id_key` and `history_key` of langchain-mongodb's rows.
        user_id_key: Key of the user in question and answer documents.
        table: Table of langchain-community's SQL history; None for the default one.
        session_id_column: Its column of session ids; None for the default one.
    """

    where: str = field(repr=False)
    given_database: str | None = None
    collection: str | None = None
    keys: tuple[str, str] = ("SessionId", "History")
    user_id_key: str = "userId"
    table: str | None = None
    session_id_column: str | None = None

    @property
    def is_mongodb(self) -> bool:
        """Whether it is a MongoDB server."""
        return self.where.startswith(("mongodb://", "mongodb+srv://"))

    @property
    def is_sql_url(self) -> bool:
        """Whether it is the URL of another database."""
        return "://" in self.where and not self.is_mongodb

    @property
    def database(self) -> str:
        """The database's name."""
        return self.given_database or DATABASE

    @property
    def path(self) -> Path:
        """The file or folder."""
        return Path(self.where)

    @cached_property
    def label(self) -> str:
        """Its name in messages: the hosts or the path, without credentials and options."""
        if not (self.is_mongodb or self.is_sql_url):
            return self.where
        rest = self.where.partition("://")[2].partition("?")[0]
        return rest.rpartition("@")[2].partition("/")[0] or "the server"


def target_of(
    where: str | None,
    option: str,
    *,
    database: str | None = None,
    exists: bool = True,
    **names: Any,
) -> Target:
    """Parse and validate a target that a user named.

    Args:
        where: A path or a URL; None if none was given.
        option: The option's name, for errors.
        database: The database in an option; None for the one in the connection string.
        exists: Whether it must exist already.
        **names: Further fields of `Target`.

    Raises:
        ConfigurationError: It is missing or cannot be a target.

    Example:
        >>> place = target_of("mongodb://nemo:secret@db.example/chat?w=1", "--from")
        >>> place.label, place.database
        ('db.example', 'chat')
    """
    if not where:
        raise ConfigurationError(NOT_GIVEN.format(option=option))
    place = Target(where=where, given_database=database, **names)
    if place.is_mongodb:
        # After the last @, since a password that is not percent-encoded may contain slashes.
        in_uri = unquote(where.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[2])
        return Target(where=where, given_database=database or in_uri or None, **names)
    if database or place.collection:
        msg = f"{place.label} is no MongoDB: it has neither a database nor a collection to name"
        raise ConfigurationError(msg)
    if place.is_sql_url:
        return place
    if where == ":memory:":
        msg = f"{option} :memory: would be gone when the command ends: name a file"
        raise ConfigurationError(msg)
    if exists and not place.path.exists():
        msg = f"{option} {where}: there is no such file or folder"
        raise ConfigurationError(msg)
    if not place.path.absolute().parent.is_dir():
        msg = f"{option} {where}: its folder does not exist"
        raise ConfigurationError(msg)
    return place


def detect_format(
    place: Target, wanted: Format | None, option: str, *, of_server: str = "--from-"
) -> tuple[Format, str | None]:
    """Detect the format of the conversations in a target, and their collection.

    Args:
        place: The target.
        wanted: The format that the user named; None to detect it.
        option: The option that names the target, for errors.
        of_server: Prefix of the options for database and collection, for errors.

    Raises:
        ConfigurationError: There is nothing to move, or more than one possibility.
        HistoryReadError: The target cannot be read.
    """
    if place.is_mongodb:
        return _in_database(place, wanted, of_server)
    if wanted is not None or place.is_sql_url:
        return wanted or Format.SQL, None
    if place.path.is_dir():
        return Format.FILE, None
    from langchain_memkit.backends.sqlite.inspection import is_sqlite, tables_of

    if not is_sqlite(place.path):
        return Format.FILE, None
    formats = [OF_TABLES[table] for table in sorted(tables_of(place.path)) if table in OF_TABLES]
    if len(formats) == 1:
        return formats[0], None
    what = f"holds {' and '.join(formats)}" if formats else "holds no conversations that memkit knows"
    msg = f"{place.label} {what}: say what is meant with {option}-format"
    raise ConfigurationError(msg)


def _in_database(place: Target, wanted: Format | None, of_server: str) -> tuple[Format, str | None]:
    if wanted is not None and place.collection is not None:
        return wanted, place.collection
    if wanted is Format.LANGGRAPH:
        return wanted, None  # its source knows the names of the collections
    kinds = require_mongodb().kinds_in(place.where, place.database, place.keys)
    if place.collection is not None:
        kinds = {place.collection: kinds.get(place.collection, frozenset())}
    formats = {name: _format_of(found) for name, found in kinds.items()}
    fitting = {name: f for name, f in formats.items() if f is not None and wanted in (None, f)}
    if len(fitting) == 1:
        ((name, found),) = fitting.items()
        return found, name
    where = f"{place.label}, {place.collection or f'database {place.database}'}"
    if not fitting:
        what = "conversations that memkit knows" if wanted is None else f"conversations kept as {wanted}"
        msg = f"{where}, holds no {what}. Is that the right {of_server}database?"
        raise ConfigurationError(msg)
    listed = ", ".join(f"{name} ({f})" for name, f in fitting.items())
    msg = f"{where}, holds {listed}: say which is meant with {of_server}collection"
    raise ConfigurationError(msg)


def _format_of(kinds: Iterable[str]) -> Format | None:
    """Return the format in which to read a collection; memkit's own also reads rows of langchain-mongodb in it."""
    known = [OF_KIND[kind] for kind in kinds if kind in OF_KIND]
    return Format.MEMKIT if Format.MEMKIT in known else (known[0] if known else None)


def require_mongodb() -> Any:
    """Return the module that inspects servers.

    Raises:
        MissingExtraError: The extra is not installed; the text says how to install it.
    """
    langchain_memkit.MongoDBChatMessageHistory  # noqa: B018  # raises the package's own error for the missing extra
    from langchain_memkit.backends.mongodb import inspection

    return inspection
