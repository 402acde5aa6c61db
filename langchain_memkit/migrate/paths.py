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
    """Open the file to write, under a temporary name until it is complete.

    Raises:
        ConfigurationError: A file object is not opened for text.
        HistoryWriteError: The file cannot be written, or another export to it has begun.
    """
    if not isinstance(path_or_file, (str, os.PathLike)):
        yield _text_file(path_or_file, "write")
        return
    path = Path(file_given(path_or_file))
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
def read(path_or_file: PathOrFile) -> Iterator[tuple[TextIO, int | None]]:
    """Open the file to read; yield it with its size in bytes, or None if that is unknown.

    Raises:
        ConfigurationError: A file object is not opened for text.
        HistoryReadError: The file cannot be read.
    """
    if not isinstance(path_or_file, (str, os.PathLike)):
        yield _text_file(path_or_file, "__iter__"), None
        return
    path = Path(file_given(path_or_file))
    try:
        # Invalid UTF-8 is read as lone surrogates, so that it is reported for its line alone.
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            yield file, path.stat().st_size
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise HistoryReadError(msg) from error
