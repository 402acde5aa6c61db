"""`export_history` and `import_history`: every conversation as JSON lines, and back."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TextIO

from langchain_memkit._progress import progress_bar
from langchain_memkit.backends._history.factory import HistoryFactory
from langchain_memkit.backends._history.rows import Scope
from langchain_memkit.base import Turn, check_id, utc_now
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MessageDecodeError
from langchain_memkit.migrate.lines import (
    EXPORT_VERSION,
    end_line,
    header_line,
    read_line,
    read_scope,
    turn_line,
    turn_of_line,
)
from langchain_memkit.migrate.paths import PathOrFile, read, written
from langchain_memkit.migrate.report import MigrationReport
from langchain_memkit.migrate.sources import Conversation, HistorySource, checked
from langchain_memkit.migrate.writing import copy_turns

MAX_LINE_BYTES = 32 * 2**20
"""A line may have this much: twice what a store takes as one turn, since text is longer as JSON."""
MAX_BYTES = 10 * 2**30
"""All lines together may have this much, unpacked."""
PIECE = 2**20  # characters read at once to skip a line that is too long

__all__ = ["aexport_history", "aimport_history", "export_history", "import_history"]


def export_history(
    factory: HistoryFactory[Any],
    path_or_file: PathOrFile,
    *,
    user_id: str | None = None,
    progress: bool = True,
) -> MigrationReport:
    """Write every conversation as JSON lines, one turn per line, without losing anything that is stored of a turn.

    Users, sessions, turn ids, times, message ids, token counts and hidden (soft-deleted) turns come back with
    `import_history`. The file appears under its name only when it is complete, and only its owner can read it.

    Args:
        factory: The histories: any layout of MongoDB, or SQLite.
        path_or_file: Path to write, or a file opened for text.
        user_id: Export only this user's conversations. None exports everybody's.
        progress: Show a progress bar if `rich` is installed.

    Returns:
        Counts, and a line for everything that could not be read.

    Raises:
        HistoryReadError: The store cannot be read.
        HistoryWriteError: The file cannot be written.

    Example:
        >>> import io
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> histories("s1", "u1").add_user_message("hello")
        >>> file = io.StringIO()
        >>> print(export_history(histories, file, progress=False))
        moved 1 messages in 1 turns of 1 sessions; 0 skipped
        >>> [line[:21] for line in file.getvalue().splitlines()]
        ['{"memkit": "export", ', '{"user_id": "u1", "se', '{"memkit": "end", "tu']
    """
    source = HistorySource(checked(factory), None if user_id is None else check_id(user_id, "user_id"))
    report = MigrationReport()
    with progress_bar(progress, "exporting", source.size()) as advance, written(path_or_file) as file:
        file.write(header_line(utc_now()))
        for conversation in source.conversations():
            _export(conversation, file, report, advance)
        file.write(end_line(report.turns))
    return report


async def aexport_history(
    factory: HistoryFactory[Any],
    path_or_file: PathOrFile,
    *,
    user_id: str | None = None,
    progress: bool = True,
) -> MigrationReport:
    """Run `export_history` in a worker thread."""
    return await asyncio.to_thread(partial(export_history, factory, path_or_file, user_id=user_id, progress=progress))


def _export(conversation: Conversation, file: TextIO, report: MigrationReport, advance: Callable[[int], None]) -> None:
    report.sessions += 1
    name = conversation.session_id
    for turn in conversation.turns():
        advance(1)
        report.skipped += [f"session {name!r}, {problem}" for problem in turn.problems]
        # Nothing of the turn could be read; its problems are reported already.
        if not turn.messages:
            continue
        try:
            file.write(turn_line(conversation.user_id, name, turn, conversation.counter))
        except HistoryWriteError as error:
            report.skipped.append(f"session {name!r}, turn {turn.op}: {error}")
            continue
        report.turns += 1
        report.messages += len(turn.messages)


def import_history(
    factory: HistoryFactory[Any],
    path_or_file: PathOrFile,
    *,
    user_id: str | None = None,
    dry_run: bool = False,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    max_bytes: int | None = MAX_BYTES,
    progress: bool = True,
) -> MigrationReport:
    """Import a file that `export_history` wrote. Importing twice stores nothing twice.

    From a truncated file, the complete lines are imported; damaged lines are skipped and named. An interrupted import
    is finished by the next run.

    Args:
        factory: The histories to write to.
        path_or_file: Path to read, or a file opened for text.
        user_id: Import only this user's conversations. None imports everybody's.
        dry_run: Read and count, but write nothing.
        max_line_bytes: Maximum size of a line, which is a turn. A longer one is skipped, named, and never held in
            memory: a small packed file may unpack to anything. 32 MB by default, twice what a store takes as one turn.
            None: no limit.
        max_bytes: Maximum size of all lines; reading more is an error. 10 GB by default. None: no limit.
        progress: Show a progress bar if `rich` is installed.

    Returns:
        Counts, and a line for everything that was left out.

    Raises:
        ConfigurationError: The file is not an export, or one of a newer memkit, or a limit is not a number of bytes.
        HistoryReadError: The file cannot be read, or is larger than `max_bytes`.
        HistoryWriteError: The store cannot be written; run the import again to continue.

    Example:
        >>> import io
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> old, new = (SQLiteChatMessageHistory.factory(":memory:") for _ in range(2))
        >>> old("s1", "u1").add_user_message("hello")
        >>> file = io.StringIO()
        >>> report = export_history(old, file, progress=False)
        >>> _ = file.seek(0)
        >>> report = import_history(new, file, progress=False)
        >>> [m.content for m in new("s1", "u1").messages]
        ['hello']
    """
    if user_id is not None:
        check_id(user_id, "user_id")
    limits = _Limits(_limit_given(max_line_bytes, "max_line_bytes"), _limit_given(max_bytes, "max_bytes"))
    report = MigrationReport(dry_run=dry_run)
    checked(factory)
    with read(path_or_file) as (file, size), progress_bar(progress, "importing", size) as advance:
        lines = _lines(file, limits, report, advance)
        wanted = (line for line in lines if user_id is None or line.scope.user_id == user_id)
        seen: set[Scope] = set()
        # An export writes session after session, so each session is imported in one pass.
        for scope, found in groupby(wanted, key=lambda line: line.scope):
            seen.add(scope)
            try:
                history = factory(scope.session_id, scope.user_id or None)
            except (ConfigurationError, ValueError) as error:
                report.skipped.append(f"session {scope.session_id!r}: {error}")
                continue
            copy_turns(_turns(found, history.token_counter, report), history, report, counted=True)
        report.sessions = len(seen)
    return report


async def aimport_history(
    factory: HistoryFactory[Any],
    path_or_file: PathOrFile,
    *,
    user_id: str | None = None,
    dry_run: bool = False,
    max_line_bytes: int | None = MAX_LINE_BYTES,
    max_bytes: int | None = MAX_BYTES,
    progress: bool = True,
) -> MigrationReport:
    """Run `import_history` in a worker thread."""
    options: Any = {"user_id": user_id, "dry_run": dry_run, "max_line_bytes": max_line_bytes, "max_bytes": max_bytes}
    return await asyncio.to_thread(partial(import_history, factory, path_or_file, **options, progress=progress))


class _Limits(NamedTuple):
    """Limits on the bytes of text that are read; None for no limit."""

    of_line: int | None
    of_all: int | None


class Line(NamedTuple):
    """A line with a turn, the session that it belongs to, and its number in the file."""

    number: int
    scope: Scope
    data: dict[str, Any]


def _lines(file: TextIO, limits: _Limits, report: MigrationReport, advance: Callable[[int], None]) -> Iterator[Line]:
    """Iterate over the lines with turns; check header and end line, and report damaged lines."""
    ended = False
    number = 0
    for number, text in enumerate(_whole(file, limits, report, advance), 1):
        try:
            if text is None:
                name = "max_line_bytes= (memkit import --max-line)"
                msg = f"longer than {_size(limits.of_line)}, so left out: {name} sets the limit"
                raise MessageDecodeError(msg)
            data = read_line(text)
            if number == 1:
                _check_header(data)
            elif "memkit" in data:
                ended = ended or data["memkit"] == "end"
            else:
                yield Line(number, read_scope(data), data)
        except MessageDecodeError as error:
            if number == 1:
                _check_header({})
            report.skipped.append(f"line {number}: {error}")
    if number == 0:
        _check_header({})
    if not ended:
        report.skipped.append(f"line {number}: the file ends here without its last line: it was cut off")


def _whole(
    file: TextIO, limits: _Limits, report: MigrationReport, advance: Callable[[int], None]
) -> Iterator[str | None]:
    """Iterate over the lines of a file, with None for one that is too long.

    From a compressed file that is truncated or damaged, the lines before the damage are read.
    """
    begun, total = False, 0
    try:
        for text, size in _measured(file, limits.of_line):
            begun = True
            total += size
            advance(size)
            if limits.of_all is not None and total > limits.of_all:
                msg = (
                    f"the export is larger than {_size(limits.of_all)}: what was read so far is stored. max_bytes= "
                    "(memkit import --max-size) sets the limit, and the next run goes on"
                )
                raise HistoryReadError(msg)
            yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"the compressed file is cut off or damaged ({type(error).__name__})"
        if not begun:
            raise HistoryReadError(msg) from error
        report.skipped.append(msg)


def _measured(file: TextIO, most: int | None) -> Iterator[tuple[str | None, int]]:
    """Iterate over the lines with their sizes in bytes; a line that is too long is skipped and yielded as None."""
    if most is None or not hasattr(file, "readline"):
        for text in file:
            size = _bytes_of(text)
            yield (None if most is not None and size > most else text), size
        return
    while text := file.readline(most + 1):
        size = _bytes_of(text)
        if size <= most:
            yield text, size
            continue
        while text and not text.endswith("\n"):
            text = file.readline(PIECE)
            size += _bytes_of(text)
        yield None, size


def _limit_given(number: Any, name: str) -> int | None:
    if number is None or (type(number) is int and number > 0):
        return number
    msg = f"{name} must be a whole number of bytes from 1, or None for no limit; got {number!r:.50}"
    raise ConfigurationError(msg)


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _size(number: int | None) -> str:
    """Format a number of bytes for people."""
    whole = number or 0
    return f"{whole / 2**20:,.0f} MB" if whole >= 2**20 else f"{whole:,} bytes"


def _check_header(data: dict[str, Any]) -> None:
    version = data.get("v")
    if data.get("memkit") != "export" or not isinstance(version, int):
        msg = "this is no export of memkit: its first line is not the header"
        raise ConfigurationError(msg)
    if version > EXPORT_VERSION:
        msg = f"this export was written by a newer memkit (format {version}); this one reads {EXPORT_VERSION}"
        raise ConfigurationError(msg)


def _turns(lines: Iterator[Line], counter: Any, report: MigrationReport) -> Iterator[Turn]:
    for line in lines:
        turn = turn_of_line(line.data, f"line {line.number}", counter)
        report.skipped += turn.problems
        if turn.messages:
            yield turn
