"""The files that an export writes and an import reads."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from langchain_memkit.base import file_given
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError

PathOrFile: TypeAlias = "str | os.PathLike[str] | TextIO"


@contextmanager
def written(path_or_file: PathOrFile) -> Iterator[TextIO]:
    """The file to write into: under another name until it is whole."""
    if not isinstance(path_or_file, (str, os.PathLike)):
        yield _text_file(path_or_file, "write")
        return
    path = Path(file_given(path_or_file))
    in_place = path.exists() and not path.is_file()  # a pipe or a device
    part = path if in_place else path.with_name(f"{path.name}.part")
    mine: os.stat_result | None = None
    try:
        if not in_place:
            part.unlink(missing_ok=True)  # of a process that was killed
        with open(part, "w" if in_place else "x", encoding="utf-8", newline="\n", opener=_owners_alone) as file:
            mine = os.fstat(file.fileno())
            yield file
            file.flush()
            if not in_place:
                os.fsync(file.fileno())
        if not in_place:
            _publish(part, path, mine)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror or error}"
        raise HistoryWriteError(msg) from error
    finally:
        if not in_place and _is_there(part, mine):
            part.unlink(missing_ok=True)  # what is left of an export that broke off


def _publish(part: Path, path: Path, mine: os.stat_result) -> None:
    """Give the file its name, unless another export to the same one has begun since: its half is not ours to show."""
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
    """Return what was given, if it is a file of text."""
    if not hasattr(file, verb) or isinstance(file, (io.RawIOBase, io.BufferedIOBase)):
        msg = f"path_or_file must be a path or a file opened for text, not {type(file).__name__}"
        raise ConfigurationError(msg)
    found: TextIO = file
    return found


def _owners_alone(path: str, flags: int) -> int:
    """Open a new file that only its owner reads."""
    return os.open(path, flags, 0o600)


@contextmanager
def read(path_or_file: PathOrFile) -> Iterator[tuple[TextIO, int | None]]:
    """The file to read from, and its size if that is known."""
    if not isinstance(path_or_file, (str, os.PathLike)):
        yield _text_file(path_or_file, "__iter__"), None
        return
    path = Path(file_given(path_or_file))
    try:
        # what is not UTF-8 is found in its line
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            yield file, path.stat().st_size
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise HistoryReadError(msg) from error
