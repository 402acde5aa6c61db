"""Read what langchain-community's histories wrote: tables of any database with SQLAlchemy support, and JSON files."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from langchain_memkit.errors import ConfigurationError, HistoryReadError, required_extra

ROWS_AT_ONCE = 1_000
BEGIN = re.compile(r"\s*\[\s*")
SEPARATOR = re.compile(r"\s*,\s*")


class DatabaseTable:
    """A table with a message per row, in a database that SQLAlchemy supports: read in one transaction, never written.

    The `url` is SQLAlchemy's, with a sync driver.
    """

    def __init__(self, url: str, table: str, session_column: str) -> None:
        self._url = url
        self._table = table
        self._session_column = session_column

    def count(self) -> int:
        """Return the number of rows."""
        with closing(self._run(count_only=True)) as found:
            return int(next(found)[0])

    def rows(self) -> Generator[tuple[object, object, object], None, None]:
        """Yield session id, row id and message of every row, session by session, in the order of the row ids."""
        return self._run(count_only=False)

    def _run(self, *, count_only: bool) -> Generator[Any, None, None]:
        with required_extra("sql", "reading this database"):
            import sqlalchemy as sql
        try:
            engine = sql.create_engine(self._url)
        except (sql.exc.SQLAlchemyError, ImportError) as error:
            msg = f"SQLAlchemy does not take this URL ({type(error).__name__}); is its driver installed?"
            raise ConfigurationError(msg) from None  # the original text may hold the URL
        if engine.url.host and self._url.count("@") > 1:
            msg = "the URL is not valid: percent-encode user name and password with urllib.parse.quote_plus; @ is %40"
            raise ConfigurationError(msg)
        # Leave out the options as well as the credentials: they may be secrets, too.
        where = engine.url.set(username=None, password=None, query={}).render_as_string()
        if engine.dialect.is_async:
            msg = f"{where} names an async driver; give the URL of a sync one, as in postgresql+psycopg://"
            raise ConfigurationError(msg)
        try:
            inspector = sql.inspect(engine)
            if not inspector.has_table(self._table):
                names = ", ".join(map(repr, inspector.get_table_names())) or "none"
                raise ConfigurationError(f"{where} has no table {self._table!r}; its tables: {names}")
            there = [column["name"] for column in inspector.get_columns(self._table)]
            if missing := [name for name in ("id", self._session_column, "message") if name not in there]:
                msg = f"table {self._table!r} of {where} has no column {missing[0]!r}; its columns: {', '.join(there)}"
                raise ConfigurationError(msg)
            columns: list[Any] = [sql.column(name) for name in (self._session_column, "id", "message")]
            table = sql.table(sql.quoted_name(self._table, quote=True), *columns)
            with engine.connect() as connection:
                if count_only:
                    yield connection.execute(sql.select(sql.func.count()).select_from(table)).one()
                    return
                options = {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
                connection = connection.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)
                yield from connection.execute(sql.select(*columns).select_from(table).order_by(*columns[:2]))
        except sql.exc.SQLAlchemyError as error:
            msg = f"cannot read table {self._table!r} of {where}: {type(error).__name__} (see the cause of this error)"
            raise HistoryReadError(msg) from error
        finally:
            engine.dispose()


class FileMessages(NamedTuple):
    """The content of a file of `FileChatMessageHistory`."""

    items: list[object]  # messages in LangChain's own dict form, in order
    problem: str | None  # why the rest could not be read; None if these are all
    written_at: datetime


def read_message_file(path: Path) -> FileMessages:
    """Read a file of langchain-community's `FileChatMessageHistory`; of a truncated one, the complete messages."""
    try:
        raw = path.read_bytes()
        written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise HistoryReadError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return FileMessages([], "it is not UTF-8", written_at)
    return FileMessages(*_items(text), written_at)


def _items(text: str) -> tuple[list[object], str | None]:
    """Return as many items of a JSON list as can be read, and the problem with the rest; None if there is none."""
    with suppress(ValueError, RecursionError):
        whole = json.loads(text)
        return (whole, None) if isinstance(whole, list) else ([], "it is no list of messages")
    before = BEGIN.match(text)
    if before is None:
        return [], "it is no list of messages"
    items: list[object] = []
    with suppress(ValueError, RecursionError):
        while before is not None:
            item, end = json.JSONDecoder().raw_decode(text, before.end())
            items.append(item)
            before = SEPARATOR.match(text, end)
    return items, f"cut off or damaged after message {len(items)}"
