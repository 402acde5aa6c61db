"""Targets of commands: a file, a folder or a connection string, and the format of the conversations in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import langchain_memkit
from langchain_memkit.backends.sqlite.inspection import is_sqlite, tables_of
from langchain_memkit.base import check_address, check_path, hosts_of
from langchain_memkit.errors import ConfigurationError

DATABASE = "chat_history"
COLLECTION = "message_store"


class Format(StrEnum):
    """The formats in which conversations can be kept."""

    MEMKIT = "memkit"
    LANGCHAIN_MONGODB = "langchain-mongodb"
    QA = "qa"
    SQL = "sql"
    FILE = "file"
    LANGGRAPH = "langgraph"
    VECTORS = "vectors"


# The kinds of data in a collection, and the tables in a file, by the format to read them in.
OF_KIND = {f.value: f for f in (Format.LANGCHAIN_MONGODB, Format.QA, Format.LANGGRAPH)} | {"turns": Format.MEMKIT}
OF_TABLE = {"turns": Format.MEMKIT, "message_store": Format.SQL, "checkpoints": Format.LANGGRAPH}


@dataclass(frozen=True)
class Target:
    """A target and the names in it. Its repr shows no credentials.

    Attributes:
        where: The path or URL that the user gave.
        given_database: The database in an option.
        collection: The collection in an option.
        keys: `session_id_key` and `history_key` of langchain-mongodb's rows.
        user_id_key: Key of the user in question and answer documents.
        table: Table of langchain-community's SQL history.
        session_id_column: Its column of session ids.
    """

    where: str = field(repr=False)
    given_database: str | None = None
    collection: str | None = None
    keys: tuple[str, str] = ("SessionId", "History")
    user_id_key: str = "userId"
    table: str = "message_store"
    session_id_column: str = "session_id"

    @property
    def is_mongodb(self) -> bool:
        """Whether it is a MongoDB server."""
        return self.where.startswith(("mongodb://", "mongodb+srv://"))

    @property
    def is_sql_url(self) -> bool:
        """Whether it is the URL of another database."""
        return "://" in self.where and not self.is_mongodb

    @property
    def is_file(self) -> bool:
        """Whether it is a file that exists."""
        return "://" not in self.where and self.path.is_file()

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file that exists."""
        return self.is_file and is_sqlite(self.path)

    @property
    def named_database(self) -> str | None:
        """The database in the option, else in the connection string; None if neither names one."""
        place = self.where.partition("://")[2].partition("?")[0].rpartition("@")[2]
        return self.given_database or (unquote(place.partition("/")[2]) if self.is_mongodb else None) or None

    @property
    def database(self) -> str:
        """The database's name."""
        return self.named_database or DATABASE

    @property
    def path(self) -> Path:
        """The file or folder."""
        return Path(check_path(self.where))

    @property
    def label(self) -> str:
        """Its name in messages: the hosts or the path, without credentials and options."""
        return hosts_of(self.where) if "://" in self.where else self.where


def check_target(place: Target, option: str, *, exists: bool = True) -> Target:
    """Return a target that a user named with an option, or refuse it with a ConfigurationError.

    Example:
        >>> place = check_target(Target(where="mongodb://nemo:secret@db.example/chat?w=1"), "--from")
        >>> place.label, place.database
        ('db.example', 'chat')
    """
    where, msg = place.where, ""
    if not where:
        msg = f"say where: a SQLite file or mongodb://..., with {option} or in the environment variable MEMKIT_URI"
    elif not place.is_mongodb and (place.named_database or place.collection):
        msg = f"{place.label} is no MongoDB: it has neither a database nor a collection to name"
    elif where == ":memory:":
        msg = f"{option} :memory: would be gone when the command ends: name a file"
    elif "://" not in where and exists and not place.path.exists():
        msg = f"{option} {where}: there is no such file or folder"
    elif "://" not in where and not place.path.absolute().parent.is_dir():
        msg = f"{option} {where}: its folder does not exist"
    if msg:
        raise ConfigurationError(msg)
    if place.is_mongodb:
        check_address(where, option)
    return place


def detect_format(
    place: Target, wanted: Format | None, option: str, *, of_server: str = "--from-"
) -> tuple[Format, str | None]:
    """Return the format of the conversations in a target, unless the user named it, and their collection.

    Raises:
        ConfigurationError: There is nothing to move, or more than one possibility; it names the options that decide.
        HistoryReadError: The target cannot be read.
    """
    if place.is_mongodb:
        return _in_database(place, wanted, of_server)
    if wanted is not None or place.is_sql_url:
        return wanted or Format.SQL, None
    if not place.is_sqlite:
        return Format.FILE, None
    formats = [OF_TABLE[table] for table in sorted(tables_of(place.path)) if table in OF_TABLE]
    if len(formats) == 1:
        return formats[0], None
    what = f"holds {' and '.join(formats)}" if formats else "holds no conversations that memkit knows"
    raise ConfigurationError(f"{place.label} {what}: say what is meant with {option}-format")


def _in_database(place: Target, wanted: Format | None, of_server: str) -> tuple[Format, str | None]:
    if wanted is not None and place.collection is not None:
        return wanted, place.collection
    if wanted in (Format.LANGGRAPH, Format.VECTORS):
        return wanted, None  # their sources know the names of the collections
    fitting: dict[str, Format] = {}
    for name, facts in require_mongodb().inspect_database(place.where, place.database, place.keys).items():
        known = [OF_KIND[kind] for kind in facts.kinds if kind in OF_KIND]
        # memkit's own format also reads the rows of langchain-mongodb in its collection.
        held = Format.MEMKIT if Format.MEMKIT in known else next(iter(known), None)
        if held is not None and wanted in (None, held) and place.collection in (None, name):
            fitting[name] = held
    if len(fitting) == 1:
        ((name, held),) = fitting.items()
        return held, name
    where = f"{place.label}, {place.collection or f'database {place.database}'}"
    if not fitting:
        what = "conversations that memkit knows" if wanted is None else f"conversations kept as {wanted}"
        raise ConfigurationError(f"{where}, holds no {what}. Is that the right {of_server}database?")
    listed = ", ".join(f"{name} ({f})" for name, f in fitting.items())
    raise ConfigurationError(f"{where}, holds {listed}: say which is meant with {of_server}collection")


def require_mongodb() -> ModuleType:
    """Return the module that inspects servers; a MissingExtraError says how to install the extra."""
    langchain_memkit.MongoDBChatMessageHistory  # noqa: B018  # raises the package's own error for the missing extra
    from langchain_memkit.backends.mongodb import inspection

    return inspection
