"""Conversations in JSON Lines files."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TextIO, TypeAlias

from langchain_memkit._progress import progress_bar
from langchain_memkit.base import TokenCounter, Turn, check_id, check_path, check_size, utc_now
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MessageDecodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, encode_messages
from langchain_memkit.messages.tokens import counter_name
from langchain_memkit.migrate.sources import (
    AnyFactory,
    Decision,
    checked,
    history_source,
    in_thread,
    unreadable,
    utc_date,
)
from langchain_memkit.migrate.transfer import Advance, MigrationReport, copy_decisions, copy_turns, reported
from langchain_memkit.stores.history_rows import SessionScope, read_turn

PathOrFile: TypeAlias = "str | os.PathLike[str] | TextIO"
Data: TypeAlias = dict[str, object]
"""A line, parsed."""
Line: TypeAlias = tuple[int, SessionScope, Data]
"""The number of a line, the session of its turn, and what it holds."""

EXPORT_VERSION = 1
MAX_LINE_BYTES = 32 * 2**20
"""Size limit of a line: twice the limit of a stored turn, since text is longer as JSON."""
MAX_BYTES = 10 * 2**30
"""Size limit of all lines together, uncompressed."""
PIECE = 2**20  # characters read at once to skip a line that is too long


def export_history(
    factory: AnyFactory, path_or_file: PathOrFile, *, user_id: str | None = None, progress: bool = True
) -> MigrationReport:
    """Write every conversation as JSON lines, one turn per line, without losing anything that is stored of a turn.

    Users, sessions, turn ids, times, message ids, token counts and hidden (soft-deleted) turns come back with
    `import_history`, and so does what was decided for entity and preference memory. The file appears under its name
    only when it is complete, and only its owner can read it. It is packed if its name ends in `.gz`. An export that is
    killed may leave a file NAME.*.part beside it.

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
    source = history_source(checked(factory), None if user_id is None else check_id(user_id, "user_id"))
    report = MigrationReport()
    with progress_bar(progress, "exporting", source.size()) as advance, open_for_writing(path_or_file) as file:
        file.write(_line({"memkit": "export", "v": EXPORT_VERSION, "created_at": utc_now().isoformat()}))
        for conversation in source.conversations():
            report.sessions += 1
            session = f"session {conversation.session_id!r}"
            for turn in reported(conversation.turns(), report, f"{session}, ", advance):
                try:
                    file.write(turn_line(conversation.user_id, conversation.session_id, turn, conversation.counter))
                except HistoryWriteError as error:
                    report.skipped.append(f"{session}, turn {turn.op}: {error}")
                    continue
                report.turns += 1
                report.messages += len(turn.messages)
        for decision in source.decisions():
            file.write(_decision_line(decision))
            report.decisions += 1
        file.write(_line({"memkit": "end", "turns": report.turns}))
    return report


aexport_history = in_thread(export_history)
"""Run `export_history` in a worker thread."""


def import_history(
    factory: AnyFactory,
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
        path_or_file: Path to read, unpacked if it ends in `.gz`, or a file opened for text.
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
        ConfigurationError: The file is not an export, or one of a newer memkit.
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
    for name, limit in (("max_line_bytes", max_line_bytes), ("max_bytes", max_bytes)):
        check_size(1 if limit is None else limit, name, 1)
    report = MigrationReport(dry_run=dry_run)
    checked(factory)
    with open_for_reading(path_or_file) as (file, size), progress_bar(progress, "importing", size) as advance:
        lines = _lines(_texts(file, max_line_bytes, max_bytes, report, advance), max_line_bytes, report)
        wanted = (line for line in lines if user_id is None or line[1].user_id == user_id)
        seen: set[SessionScope] = set()
        decisions: list[Decision] = []
        # An export writes session after session, so each session is imported in one pass.
        for scope, found in groupby(wanted, key=lambda line: line[1]):
            if not scope.session_id:
                decisions += [_decision_of(scope.user_id, data) for _, _, data in found]
                continue
            seen.add(scope)
            try:
                history = factory(scope.session_id, scope.user_id or None)
            except (ConfigurationError, ValueError) as error:
                report.skipped.append(f"session {scope.session_id!r}: {error}")
                continue
            turns = (turn_of_line(data, f"line {number}", history.token_counter) for number, _, data in found)
            copy_turns(reported(turns, report, "", lambda n: None), history, report, counted=True)
        copy_decisions(decisions, factory, report)
        report.sessions = len(seen)
    return report


aimport_history = in_thread(import_history)
"""Run `import_history` in a worker thread."""


# -- files


@contextmanager
def open_for_writing(path_or_file: PathOrFile) -> Iterator[TextIO]:
    """Open the file to write, under a temporary name that only its owner can read until it is complete."""
    if not isinstance(path_or_file, (str, os.PathLike)):
        yield path_or_file
        return
    path, part = Path(check_path(path_or_file)), ""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            with path.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            return
        number, part = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
        with os.fdopen(number, "wb") as raw:
            packed = gzip.GzipFile(path.stem, "wb", fileobj=raw) if path.suffix == ".gz" else None
            with io.TextIOWrapper(packed or raw, encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                if packed:
                    packed.close()
                raw.flush()
                # On disk before the rename, so that a crash cannot leave an incomplete file under the final name.
                os.fsync(number)
        Path(part).replace(path)
    except OSError as error:
        raise HistoryWriteError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if part:
            Path(part).unlink(missing_ok=True)  # the remains of an export that failed


@contextmanager
def open_for_reading(path_or_file: PathOrFile) -> Iterator[tuple[TextIO, int | None]]:
    """Open the file to read; yield it with its size in bytes, or None if that is unknown."""
    if not isinstance(path_or_file, (str, os.PathLike)):
        if not hasattr(path_or_file, "readline"):
            msg = f"give a path or a file opened for text, as io.StringIO(text) is; got a {type(path_or_file).__name__}"
            raise ConfigurationError(msg)
        yield path_or_file, None
        return
    path = Path(check_path(path_or_file))
    is_packed = path.suffix == ".gz"
    try:
        with (
            gzip.open(path) if is_packed else path.open("rb") as raw,
            # Invalid UTF-8 is read as lone surrogates, so that it is reported for its line alone.
            io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", newline="\n") as text,
        ):
            yield text, None if is_packed else path.stat().st_size
    except OSError as error:
        raise HistoryReadError(f"cannot read {path}: {error.strerror or error}") from error


# -- lines


def _line(data: Data) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def turn_line(owner: str, session_id: object, turn: Turn, counter: TokenCounter | None) -> str:
    """Write a turn with everything that is stored of it; default values are left out."""
    data: Data = {"user_id": owner or None, "session_id": session_id, "op": turn.op}
    created_at, expires_at = (date and date.isoformat() for date in (turn.created_at, turn.expires_at))
    facts = {"seq": turn.seq, "created_at": created_at, "expires_at": expires_at, "is_deleted": turn.is_deleted}
    data |= {name: fact for name, fact in facts.items() if fact}
    data |= {"messages": encode_messages(turn.messages), "tokens": turn.tokens, "token_counter": counter_name(counter)}
    return _line({**data, "v": FORMAT_VERSION})


def _decision_line(one: Decision) -> str:
    """Write a decision."""
    data: Data = {"user_id": one.user_id, "decision": one.name, "op": one.op}
    if one.created_at is not None:
        data["created_at"] = one.created_at.isoformat()
    return _line({**data, "data": base64.b64encode(one.data).decode(), "v": FORMAT_VERSION})


def _decision_of(user_id: str, data: Data) -> Decision:
    """Read the line of a decision that `_check_decision` has accepted."""
    at = utc_date(data.get("created_at"), aware=True)
    return Decision(user_id, str(data["decision"]), str(data["op"]), at, base64.b64decode(str(data["data"])))


def _check_decision(data: Data) -> None:
    """Raise `ValueError` if the line of a decision is damaged."""
    name = check_id(data["decision"], "decision")
    check_id(data.get("op"), "op")
    if not name.isidentifier() or not isinstance(data.get("data"), str):
        raise MessageDecodeError("no decision")
    base64.b64decode(str(data["data"]), validate=True)


def turn_of_line(data: Data, where: str, counter: TokenCounter) -> Turn:
    """Decode a line into a turn; damage is reported in its `problems`."""
    try:
        check_id(data.get("op"), "op")
    except (TypeError, ValueError) as error:
        return unreadable(f"{where}: {error}")
    created_at, expires_at = (utc_date(data.get(name), aware=True) for name in ("created_at", "expires_at"))
    row = {"createdAt": created_at, "expiresAt": expires_at, "isDeleted": data.get("is_deleted") is True}
    turn = read_turn({**data, **row}, counter)
    # Problems name a turn's position; in a file the line is what a user can look up.
    turn.problems[:] = [where + re.sub(r"^turn (-?\d+|\?)", "", problem) for problem in turn.problems]
    return turn


def _lines(texts: Iterator[str | None], max_line_bytes: int | None, report: MigrationReport) -> Iterator[Line]:
    """Iterate over the turns with their lines' numbers; check header and end line, and report damaged lines."""
    _check_header(next(texts, None), max_line_bytes)
    ended, number = False, 1
    for number, text in enumerate(texts, 2):
        try:
            data = _parsed(text, max_line_bytes)
            if "memkit" in data:
                ended = ended or data["memkit"] == "end"
            else:
                yield number, _scope_of(data), data
        except (TypeError, ValueError) as error:
            report.skipped.append(f"line {number}: {error}")
    if not ended:
        report.skipped.append(f"line {number}: the file ends here without its last line: it was cut off")


def _parsed(text: str | None, max_line_bytes: int | None) -> Data:
    """Parse a line; None stands for one that is too long."""
    if text is None:
        name = "max_line_bytes= (memkit import --max-line)"
        raise MessageDecodeError(f"longer than {_size(max_line_bytes or 0)}, so left out: {name} sets the limit")
    try:
        text.encode()  # the file was opened with surrogateescape, so invalid UTF-8 shows as lone surrogates
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        whole = "damaged" if text.endswith("\n") else "cut off"
        raise MessageDecodeError(f"{whole} ({type(error).__name__})") from error
    if not isinstance(data, dict):
        raise MessageDecodeError("no JSON object")
    return data


def _scope_of(data: Data) -> SessionScope:
    """Return the user and session that a line belongs to; a decision belongs to the user alone."""
    owner = data.get("user_id")
    if "decision" in data:
        _check_decision(data)
        return SessionScope(check_id(owner, "user_id"), "")
    user_id = "" if owner is None else check_id(owner, "user_id")
    return SessionScope(user_id, check_id(data.get("session_id"), "session_id"))


def _check_header(text: str | None, max_line_bytes: int | None) -> None:
    data: Data = {}
    with suppress(MessageDecodeError):
        data = _parsed(text, max_line_bytes)
    version = data.get("v")
    if data.get("memkit") != "export" or not isinstance(version, int):
        raise ConfigurationError("this is no export of memkit: its first line is not the header")
    if version > EXPORT_VERSION:
        msg = f"this export was written by a newer memkit (format {version}); this one reads {EXPORT_VERSION}"
        raise ConfigurationError(msg)


def _texts(
    file: TextIO, max_line_bytes: int | None, max_bytes: int | None, report: MigrationReport, advance: Advance
) -> Iterator[str | None]:
    """Iterate over the lines of a file, with None for one that is too long, which is never in memory as a whole.

    From a compressed file that is truncated or damaged, the lines before the damage are read.
    """
    total = 0
    most = sys.maxsize - 1 if max_line_bytes is None else max_line_bytes
    try:
        while text := file.readline(most + 1):
            rest, size = text, len(text.encode("utf-8", "surrogatepass"))
            is_long = size > most
            while is_long and rest and not rest.endswith("\n"):
                rest = file.readline(PIECE)
                size += len(rest.encode("utf-8", "surrogatepass"))
            total += size
            advance(size)
            if max_bytes is not None and total > max_bytes:
                raise HistoryReadError(
                    f"the export is larger than {_size(max_bytes)}: what was read so far is stored. max_bytes= "
                    "(memkit import --max-size) sets the limit, and the next run goes on"
                )
            yield None if is_long else text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"the compressed file is cut off or damaged ({type(error).__name__})"
        if not total:
            raise HistoryReadError(msg) from error
        report.skipped.append(msg)


def _size(number: int) -> str:
    """Format a number of bytes for people."""
    return f"{number / 2**20:,.0f} MB" if number >= 2**20 else f"{number:,} bytes"
