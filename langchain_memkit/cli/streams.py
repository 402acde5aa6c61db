"""The streams of `memkit export` and `memkit import`: a file, a gzip file or a pipe."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from langchain_memkit.backends.sqlite.inspection import is_sqlite
from langchain_memkit.cli.places import Place
from langchain_memkit.errors import ConfigurationError

__all__ = ["STREAM", "readable", "writable"]

STREAM = "-"
BESIDE = ("-wal", "-shm", "-journal")  # suffixes of the files that belong to a SQLite database


@contextmanager
def writable(file: str, source: Place) -> Iterator[Any]:
    """Open the file for an export, in the form that `export_history` takes.

    Args:
        file: The path; `-` is stdout.
        source: The target that is exported.

    Raises:
        ConfigurationError: The file cannot be written, or is a database.
    """
    if file == STREAM:
        stream = io.TextIOWrapper(_open(sys.stdout, "stdout").buffer, encoding="utf-8", newline="\n")
        try:
            yield stream
            stream.flush()
        finally:
            stream.detach()
        return
    if not Path(file).absolute().parent.is_dir():
        msg = f"{file}: its folder does not exist"
        raise ConfigurationError(msg)
    _refuse_database(Path(file), source)
    if not file.endswith(".gz"):
        yield file
        return
    # A new file with a unique name that only its owner can read.
    number, part = tempfile.mkstemp(".part", f"{Path(file).name}.", Path(file).absolute().parent)
    try:
        with os.fdopen(number, "wb") as raw:
            with gzip.open(raw, "wt", encoding="utf-8", newline="\n") as packed:
                yield packed
            raw.flush()
            os.fsync(raw.fileno())
        Path(part).replace(file)
    finally:
        Path(part).unlink(missing_ok=True)  # the remains of an export that failed


@contextmanager
def readable(file: str) -> Iterator[str | TextIO]:
    """Open the file for an import, in the form that `import_history` takes.

    Args:
        file: The path; `-` is stdin.

    Raises:
        ConfigurationError: There is nothing to read.
    """
    options: Any = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}
    if file == STREAM:
        stream = io.TextIOWrapper(_open(sys.stdin, "stdin").buffer, **options)
        try:
            yield stream
        finally:
            stream.detach()
        return
    if not Path(file).is_file():
        msg = f"{file}: there is no such file"
        raise ConfigurationError(msg)
    if file.endswith(".gz"):
        with gzip.open(file, "rt", **options) as unpacked:
            yield unpacked
    else:
        yield file


def _open(stream: Any, name: str) -> Any:
    """Return a standard stream of this process.

    Raises:
        ConfigurationError: The parent process has closed it.
    """
    if stream is None:
        msg = f"{name} is closed: name a file instead of {STREAM}"
        raise ConfigurationError(msg)
    return stream


def _refuse_database(path: Path, source: Place) -> None:
    """Refuse to export over a database or a file that belongs to one, since an export replaces its file.

    Raises:
        ConfigurationError: The path is such a file.
    """
    of_source = not (source.is_mongodb or source.is_sql_url) and path.exists() and path.samefile(source.path)
    part = Path(f"{path}.part")  # a file of this name counts as the remains of an export and would be replaced
    owners = [path, part, *(Path(str(path).removesuffix(end)) for end in BESIDE if path.name.endswith(end))]
    if of_source or any(_is_database(owner) for owner in owners):
        msg = f"{path} is a database, or belongs to one: an export would replace it. Name another file"
        raise ConfigurationError(msg)


def _is_database(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0 and is_sqlite(path)
