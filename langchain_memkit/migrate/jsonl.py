"""Conversations in JSON Lines files."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

from langchain_memkit._progress import progress_bar
from langchain_memkit.base import Turn, check_id, check_path, utc_now
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MessageDecodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, encode_messages
from langchain_memkit.messages.tokens import counter_name
from langchain_memkit.migrate.sources import Conversation, HistorySource, checked
from langchain_memkit.migrate.transfer import MigrationReport, copy_turns
from langchain_memkit.stores.history import HistoryFactory
from langchain_memkit.stores.history_rows import SessionScope, read_turn

__all__ = ["aexport_history", "aimport_history", "export_history", "import_history"]

PathOrFile: TypeAlias = "str | os.PathLike[str] | TextIO"


@contextmanager
def open_for_writing(path_or_file: PathOrFile) -> Iterator[TextIO]:
    """Open the file to write, under a temporary name until it is complete.

    Raises:
        ConfigurationError: A file object is not opened for text.
        HistoryWriteError: The file cannot be written, or another export to it has begun.
    """
    if not isinstance(path_or_file, (str, os.PathLike)):
        yield _text_file(path_or_file, "write")
        return
    path = Path(check_path(path_or_file))
    in_place = path.exists() and not path.is_file()  # a pipe or a device
    part = path if in_place else path.with_name(f"{path.name}.part")
    mine: os.stat_result | None = None
    try:
        if not in_place:
            part.unlink(missing_ok=True)  # left by a process that was killed
        with open(part, "w" if in_place else "x", encoding="utf-8", newline="\n", opener=_owners_alone) as file:
            mine = os.fstat(file.fileno())
            yield file
            file.flush()
            if not in_place:
                # On disk before the rename, so that a crash cannot leave an incomplete file under the final name.
                os.fsync(file.fileno())
        if not in_place:
            _publish(part, path, mine)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror or error}"
        raise HistoryWriteError(msg) from error
    finally:
        # Remove only this export's own file: another one may have begun under the same name.
        if not in_place and _is_there(part, mine):
            part.unlink(missing_ok=True)  # the remains of an export that failed


def _publish(part: Path, path: Path, mine: os.stat_result) -> None:
    """Rename the file to its final name, unless another export to the same name has begun and replaced it.

    Raises:
        HistoryWriteError: The unfinished file is that of another export.
    """
    if not _is_there(part, mine):
        msg = f"cannot write {path}: another export to it has begun meanwhile; this one is dropped"
        raise HistoryWriteError(msg)
    part.replace(path)


def _is_there(part: Path, mine: os.stat_result | None) -> bool:
    """Return whether the unfinished file is still the one that this export opened."""
    try:
        return mine is not None and os.path.samestat(part.stat(), mine)
    except FileNotFoundError:
        return False


def _text_file(file: Any, verb: str) -> TextIO:
    """Validate that the argument is a file opened for text.

    Raises:
        ConfigurationError: It is not.
    """
    if not hasattr(file, verb) or isinstance(file, (io.RawIOBase, io.BufferedIOBase)):
        msg = f"path_or_file must be a path or a file opened for text, not {type(file).__name__}"
        raise ConfigurationError(msg)
    found: TextIO = file
    return found


def _owners_alone(path: str, flags: int) -> int:
    """Open a new file that only its owner can read."""
    return os.open(path, flags, 0o600)


@contextmanager
def open_for_reading(path_or_file: PathOrFile) -> Iterator[tuple[TextIO, int | None]]:
    """Open the file to read; yield it with its size in bytes, or None if that is unknown.

    Raises:
        ConfigurationError: A file object is not opened for text.
        HistoryReadError: The file cannot be read.
    """
    if not isinstance(path_or_file, (str, os.PathLike)):
        yield _text_file(path_or_file, "__iter__"), None
        return
    path = Path(check_path(path_or_file))
    try:
        # Invalid UTF-8 is read as lone surrogates, so that it is reported for its line alone.
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            yield file, path.stat().st_size
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise HistoryReadError(msg) from error


EXPORT_VERSION = 1


def header_line(created_at: datetime) -> str:
    """Write the first line."""
    return _line({"memkit": "export", "v": EXPORT_VERSION, "created_at": created_at.isoformat()})


def end_line(turns: int) -> str:
    """Write the last line."""
    return _line({"memkit": "end", "turns": turns})


def turn_line(owner: str, session_id: str, turn: Turn, counter: Any) -> str:
    """Write a turn with everything that is stored of it; default values are left out.

    Raises:
        MessageEncodeError: A message holds a value that cannot be written.
    """
    data: dict[str, Any] = {"user_id": owner or None, "session_id": session_id, "op": turn.op}
    if turn.seq:
        data["seq"] = turn.seq
    for name, moment in (("created_at", turn.created_at), ("expires_at", turn.expires_at)):
        if moment is not None:
            data[name] = moment.isoformat()
    if turn.is_deleted:
        data["is_deleted"] = True
    data |= {"messages": encode_messages(turn.messages), "tokens": turn.tokens, "token_counter": counter_name(counter)}
    return _line({**data, "v": FORMAT_VERSION})


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def read_line(text: str) -> dict[str, Any]:
    """Parse a line.

    Raises:
        MessageDecodeError: The line is not a JSON object, or not UTF-8.
    """
    try:
        text.encode()  # the file was opened with surrogateescape, so invalid UTF-8 shows as lone surrogates
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        whole = "damaged" if text.endswith("\n") else "cut off"
        msg = f"{whole} ({type(error).__name__})"
        raise MessageDecodeError(msg) from error
    if not isinstance(data, dict):
        msg = "no JSON object"
        raise MessageDecodeError(msg)
    return data


def read_scope(data: Mapping[str, Any]) -> SessionScope:
    """Return the user and session that a line belongs to.

    Raises:
        MessageDecodeError: The ids are missing or invalid.
    """
    owner, session_id = data.get("user_id"), data.get("session_id")
    try:
        return SessionScope("" if owner is None else check_id(owner, "user_id"), check_id(session_id, "session_id"))
    except (TypeError, ValueError) as error:
        raise MessageDecodeError(str(error)) from error


def turn_of_line(data: Mapping[str, Any], where: str, counter: Any) -> Turn:
    """Decode a line into a turn; damage is reported in its `problems`."""
    op = data.get("op")
    try:
        check_id(op, "op")
    except (TypeError, ValueError) as error:
        return Turn(seq=0, epoch=0, op="", created_at=None, messages=[], tokens=[], problems=[f"{where}: {error}"])
    row = {**data, "createdAt": _date(data.get("created_at")), "expiresAt": _date(data.get("expires_at"))}
    turn = read_turn({**row, "isDeleted": data.get("is_deleted") is True}, counter)
    # Problems name a turn's position; in a file the line is what a user can look up.
    turn.problems[:] = [where + re.sub(r"^turn (-?\d+|\?)", "", problem) for problem in turn.problems]
    return turn


def _date(value: Any) -> datetime | None:
    """Parse an aware date into UTC; None if it is missing, naive or out of range."""
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


MAX_LINE_BYTES = 32 * 2**20
"""Size limit of a line: twice the limit of a stored turn, since text is longer as JSON."""
MAX_BYTES = 10 * 2**30
"""Size limit of all lines together, uncompressed."""
PIECE = 2**20  # characters read at once to skip a line that is too long


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
    with progress_bar(progress, "exporting", source.size()) as advance, open_for_writing(path_or_file) as file:
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
    with open_for_reading(path_or_file) as (file, size), progress_bar(progress, "importing", size) as advance:
        lines = _lines(file, limits, report, advance)
        wanted = (line for line in lines if user_id is None or line.scope.user_id == user_id)
        seen: set[SessionScope] = set()
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


class ConversationLine(NamedTuple):
    """A line with a turn, the session that it belongs to, and its number in the file."""

    number: int
    scope: SessionScope
    data: dict[str, Any]


def _lines(
    file: TextIO, limits: _Limits, report: MigrationReport, advance: Callable[[int], None]
) -> Iterator[ConversationLine]:
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
                yield ConversationLine(number, read_scope(data), data)
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


def _turns(lines: Iterator[ConversationLine], counter: Any, report: MigrationReport) -> Iterator[Turn]:
    for line in lines:
        turn = turn_of_line(line.data, f"line {line.number}", counter)
        report.skipped += turn.problems
        if turn.messages:
            yield turn
