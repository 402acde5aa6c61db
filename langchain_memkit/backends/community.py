"""Read what langchain-community's histories wrote: tables of any database with SQLAlchemy support, and JSON files."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from langchain_memkit.errors import ConfigurationError, HistoryReadError, MissingExtraError

__all__ = ["DatabaseTable", "FileMessages", "read_message_file"]

ROWS_AT_ONCE = 1_000


class DatabaseTable:
    """A table with a message per row, in a database that SQLAlchemy supports: read in one transaction, never written.

    Args:
        url: SQLAlchemy's URL, with a sync driver.
        table: The table's name.
        session_column: The name of the column that holds the session id.
    """

    def __init__(self, url: str, table: str, session_column: str) -> None:
        self._url = url
        self._table = table
        self._session_column = session_column

    def __repr__(self) -> str:
        """Name the table."""
        return f"DatabaseTable({self._table!r})"

    def count(self) -> int:
        """Return the number of rows."""
        with closing(self._run(count_only=True)) as found:
            return int(next(found)[0])

    def rows(self) -> Generator[tuple[Any, Any, Any], None, None]:
        """Yield session id, row id and message of every row, session by session, in the order of the row ids."""
        return self._run(count_only=False)

    def _run(self, *, count_only: bool) -> Generator[Any, None, None]:
        try:
            import sqlalchemy as sql
        except ImportError as error:
            msg = 'reading this database needs an extra: pip install "langchain-memkit[sql]" (sqlalchemy is missing)'
            raise MissingExtraError(msg) from error
        try:
            engine = sql.create_engine(self._url)
        except (sql.exc.SQLAlchemyError, ImportError) as error:
            msg = f"SQLAlchemy does not take this URL ({type(error).__name__}); is its driver installed?"
            raise ConfigurationError(msg) from None  # the original text may hold the URL
        # Leave out the options as well as the credentials: they may be secrets, too.
        where = engine.url.set(username=None, password=None, query={}).render_as_string()
        if engine.dialect.is_async:
            msg = f"{where} names an async driver; give the URL of a sync one, as in postgresql+psycopg://"
            raise ConfigurationError(msg)
        try:
            columns: list[Any] = [sql.column(name) for name in (self._session_column, "id", "message")]
            table = sql.table(sql.quoted_name(self._table, quote=True), *columns)
            self._check(sql.inspect(engine), where)
            session, row_id, message = (table.c[column.name] for column in columns)
            query = sql.select(session, row_id, message).order_by(session, row_id)
            with engine.connect() as connection:
                if count_only:
                    yield connection.execute(sql.select(sql.func.count()).select_from(table)).one()
                    return
                options: dict[str, Any] = {"stream_results": True, "yield_per": ROWS_AT_ONCE}
                if engine.dialect.name == "postgresql":
                    options["postgresql_readonly"] = True
                yield from connection.execution_options(**options).execute(query)
        except sql.exc.SQLAlchemyError as error:
            msg = f"cannot read table {self._table!r} of {where}: {type(error).__name__} (see the cause of this error)"
            raise HistoryReadError(msg) from error
        finally:
            engine.dispose()

    def _check(self, inspector: Any, where: str) -> None:
        if not inspector.has_table(self._table):
            names = ", ".join(map(repr, inspector.get_table_names())) or "none"
            msg = f"{where} has no table {self._table!r}; its tables: {names}"
            raise ConfigurationError(msg)
        there = [column["name"] for column in inspector.get_columns(self._table)]
        if missing := [name for name in ("id", self._session_column, "message") if name not in there]:
            msg = f"table {self._table!r} of {where} has no column {missing[0]!r}; its columns: {', '.join(there)}"
            raise ConfigurationError(msg)


class FileMessages(NamedTuple):
    """The content of a file of `FileChatMessageHistory`.

    Attributes:
        items: Messages in LangChain's own dict form, in order.
        problem: Why the rest could not be read; None if these are all.
        written_at: When the file was last written.
    """

    items: list[Any]
    problem: str | None
    written_at: datetime


def read_message_file(path: Path) -> FileMessages:
    """Read a file of langchain-community's `FileChatMessageHistory`; of a truncated one, the complete messages.

    Args:
        path: The file, a JSON list of messages.

    Returns:
        Its messages, and the problem with the rest.

    Raises:
        HistoryReadError: The file cannot be opened.
    """
    try:
        raw = path.read_bytes()
        written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise HistoryReadError(msg) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return FileMessages([], "it is not UTF-8", written_at)
    items, problem = _items(text)
    return FileMessages(items, problem, written_at)


def _items(text: str) -> tuple[list[Any], str | None]:
    """Return as many items of a JSON list as can be read, and the problem with the rest; None if there is none."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        return (whole, None) if isinstance(whole, list) else ([], "it is no list of messages")
    items: list[Any] = []
    decoder = json.JSONDecoder()
    at = _past_blanks(text, 0)
    if text[at : at + 1] != "[":
        return [], "it is no list of messages"
    at += 1
    while True:
        at = _past_blanks(text, at)
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return items, f"cut off or damaged after message {len(items)}"
        items.append(item)
        at = _past_blanks(text, at)
        if text[at : at + 1] != ",":
            return items, f"cut off or damaged after message {len(items)}"
        at += 1


def _past_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
