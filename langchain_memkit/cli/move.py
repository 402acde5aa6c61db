"""`memkit migrate`, `export` and `import`: connect the targets that a user names."""

from __future__ import annotations

from contextlib import closing, nullcontext
from enum import StrEnum
from typing import Any

import langchain_memkit
from langchain_memkit.backends.sqlite import SQLiteChatMessageHistory
from langchain_memkit.backends.sqlite.inspection import is_foreign, is_sqlite
from langchain_memkit.cli.output import STREAM, Output, readable, writable
from langchain_memkit.cli.targets import COLLECTION, Format, Target, detect_format
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import (
    MigrationReport,
    export_history,
    import_history,
    langchain_file_source,
    langchain_sql_source,
    langgraph_source,
)
from langchain_memkit.migrate import migrate as moved
from langchain_memkit.migrate.sources import HistorySource
from langchain_memkit.stores.history import HistoryFactory

__all__ = ["OutputFormat", "export", "import_", "migrate"]

LAYOUTS = {"memkit": "turns", "langchain-mongodb": "langchain", "qa": "qa"}
SAME = "--from and --to are the same place: give --user, to hand what belongs to nobody to a user"


class OutputFormat(StrEnum):
    """The formats in which conversations can be written."""

    MEMKIT = "memkit"
    LANGCHAIN_MONGODB = "langchain-mongodb"
    QA = "qa"


def migrate(
    output: Output,
    begin: Target,
    end: Target,
    read_as: Format | None,
    written_as: OutputFormat,
    user_id: str | None,
    *,
    dry_run: bool,
    progress: bool,
) -> int:
    """Copy all conversations of one target to another.

    Args:
        output: Where to print the report.
        begin: The target to read.
        end: The target to write.
        read_as: The format to read; None to detect it.
        written_as: The format to write.
        user_id: Assign all of them to this user.
        dry_run: Only count.
        progress: Draw a progress bar.

    Returns:
        The exit code: 1 if something was skipped.

    Raises:
        ConfigurationError: There is nothing that can be migrated in this way.
        HistoryReadError: The source cannot be read.
        HistoryWriteError: The target cannot be written; calling again continues.
    """
    kept_as, collection = detect_format(begin, read_as, "--from")
    if not _same_file(begin, end):  # a file named as both source and target is not a mistyped new one
        _refuse_foreign(end)
    source, target = _source(begin, kept_as, collection), _factory(end, LAYOUTS[written_as], end.collection)
    there = _named(end, end.collection or COLLECTION)
    output.note(f"from {_named(begin, collection)} ({kept_as}) to {there} ({written_as})")
    with closing(target), closing(source) if isinstance(source, HistoryFactory) else nullcontext():
        if isinstance(source, HistoryFactory):
            source = _whose(source, target, kept_as, user_id, output)
        report = moved(source, target, user_id=user_id, dry_run=dry_run, progress=_bar(output, progress))
    return _report(output, report)


def export(
    output: Output, file: str, place: Target, read_as: Format | None, user_id: str | None, *, progress: bool
) -> int:
    """Write conversations as JSON lines; return the exit code.

    Raises:
        ConfigurationError: They are kept in a format of another package.
        HistoryReadError: They cannot be read.
        HistoryWriteError: The file cannot be written.
    """
    kept_as, collection = detect_format(place, read_as, "--from", of_server="--")
    source = _source(place, kept_as, collection)
    if not isinstance(source, HistoryFactory):
        msg = f"{place.label} holds {kept_as}: move it into a store of memkit first (memkit migrate), then export that"
        raise ConfigurationError(msg)
    with closing(source), writable(file, place) as target:
        bar = _bar(output, progress) and file != STREAM
        report = export_history(source, target, user_id=user_id, progress=bar)
    return _report(output, report, "exported", beside=file == STREAM)


def import_(
    output: Output,
    file: str,
    place: Target,
    written_as: OutputFormat,
    user_id: str | None,
    *,
    dry_run: bool,
    max_line: int,
    max_size: int,
    progress: bool,
) -> int:
    """Import a file that `export` wrote; return the exit code. The limits are in MB.

    Raises:
        ConfigurationError: The file is not an export, or the target cannot take it.
        HistoryReadError: The file cannot be read.
        HistoryWriteError: The target cannot be written; calling again continues.
    """
    _refuse_foreign(place)
    with closing(_factory(place, LAYOUTS[written_as], place.collection)) as target, readable(file) as source:
        bar = _bar(output, progress)
        limits = {"max_line_bytes": max_line * 2**20, "max_bytes": max_size * 2**20}
        report = import_history(target, source, user_id=user_id, dry_run=dry_run, progress=bar, **limits)
    return _report(output, report, "imported")


def _bar(output: Output, wanted: bool) -> bool:
    return wanted and output.is_terminal and not output.quiet


def _named(place: Target, collection: str | None) -> str:
    return f"{place.label}, {place.database}.{collection}" if place.is_mongodb and collection else place.label


def _source(place: Target, kept_as: Format, collection: str | None) -> Any:
    """Return the source for `migrate` in the given format."""
    if kept_as is Format.SQL:
        options = {"table_name": place.table, "session_id_column": place.session_id_column}
        return langchain_sql_source(place.where, **{k: v for k, v in options.items() if v})
    if kept_as is Format.FILE:
        return langchain_file_source(place.where)
    if kept_as is Format.LANGGRAPH:
        names = {"database_name": place.given_database, "collection_name": collection}
        return langgraph_source(place.where, **{k: v for k, v in names.items() if v})
    _refuse_foreign(place)
    return _factory(place, "qa" if kept_as is Format.QA else "turns", collection)


def _is_file(place: Target) -> bool:
    return not (place.is_mongodb or place.is_sql_url) and place.path.is_file()


def _same_file(begin: Target, end: Target) -> bool:
    return _is_file(begin) and _is_file(end) and begin.path.samefile(end.path)


def _refuse_foreign(place: Target) -> None:
    """Refuse a file of another application, since opening it would create memkit's tables in it.

    Raises:
        ConfigurationError: The file holds other tables and none of memkit.
    """
    if _is_file(place) and is_sqlite(place.path) and is_foreign(place.path):
        msg = f"{place.label} holds tables of something else and none of memkit: is the name right? Name a new file"
        raise ConfigurationError(msg)


def _factory(place: Target, layout: str, collection: str | None) -> HistoryFactory[Any]:
    """Return a history factory for a target.

    Raises:
        ConfigurationError: The target cannot hold this layout.
    """
    if place.is_mongodb:
        session_id_key, history_key = place.keys
        return langchain_memkit.MongoDBChatMessageHistory.factory(
            place.where,
            place.database,
            collection or COLLECTION,
            layout=layout,  # type: ignore[arg-type]  # one of LAYOUTS
            session_id_key=session_id_key,
            history_key=history_key,
            user_id_key=place.user_id_key,
        )
    if layout != "turns":
        msg = f"{place.label} is no MongoDB, and only that keeps rows of langchain-mongodb or Q/A documents"
        raise ConfigurationError(msg)
    if place.is_sql_url or place.path.is_dir() or (place.path.exists() and not is_sqlite(place.path)):
        msg = f"{place.label} is neither a SQLite file nor mongodb://..., and nothing else is written to"
        raise ConfigurationError(msg)
    return SQLiteChatMessageHistory.factory(place.path)


def _whose(
    source: HistoryFactory[Any], target: HistoryFactory[Any], kept_as: Format, user_id: str | None, output: Output
) -> Any:
    """Filter the source to unowned conversations where only those can be assigned to a user.

    Raises:
        ConfigurationError: Source and target are the same, and no user is given.
    """
    same = source.turn_store.place == target.turn_store.place
    if same and target.turn_store.layout == "langchain":
        output.note("one collection on both sides: its turns become rows of langchain-mongodb")
        return source
    if same and user_id is None:
        raise ConfigurationError(SAME)
    return HistorySource(source, "") if same or kept_as is Format.LANGCHAIN_MONGODB else source


def _report(output: Output, report: MigrationReport, verb: str = "moved", *, beside: bool = False) -> int:
    """Print the result, on stderr if stdout carries data; return the exit code."""
    output.beside = beside
    done = f"would be {verb}" if report.dry_run else verb
    output.table([done, "count"], [(n, getattr(report, n)) for n in ("sessions", "turns", "messages")])
    if report.skipped:
        output.line()
        lines = [line.partition(": ") for line in report.skipped]
        output.table(["skipped", "why"], [(what, why or what) for what, _, why in lines])
    return int(bool(report.skipped))
