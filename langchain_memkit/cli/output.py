"""What the command line prints and reads, and how it ends."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import re
import sys
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote, unquote_plus

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from langchain_memkit.backends.sqlite.inspection import is_sqlite
from langchain_memkit.cli.targets import Target
from langchain_memkit.errors import ConfigurationError, MemkitError, MissingExtraError

__all__ = ["STREAM", "Output", "SafeGroup", "escaped", "readable", "secrets_in", "writable"]

HIDDEN = "***"
TELLING = re.compile("password|passwd|pwd|token|secret|properties|credential", re.IGNORECASE)
ASSIGNED = re.compile(rf"(?i:\w*(?:{TELLING.pattern})\w*)\s*=\s*('[^']*'|\"[^\"]*\"|[^\s&;]+)")
USERINFO = re.compile(r"//[^/?#\s]*@")
DETAILS = re.compile(
    r" \(configured timeouts: [^)]*\)|, full error: \{[^}]*\}"
    r"|, (?:Timeout: [\d.]+s, )?Topology Description: .*?(?=\. (?:Nothing|It may|Some) |$)"
)
MARKS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def secrets_in(words: Iterable[str]) -> list[str]:
    """Find the passwords and the values of sensitive options in connection strings, longest first.

    Args:
        words: Arguments of a command and values of environment variables, mistyped URIs included.

    Example:
        >>> secrets_in(["--in", "mongodb://nemo:p%40ss@host/chat?authSource=admin"])
        ['nemo:p%40ss', 'p%40ss', 'p@ss']
    """
    found: set[str] = set()
    for word in words:
        found |= {value.strip("'\"") for value in ASSIGNED.findall(word)}
        head, mark, rest = word.partition("://")
        if not mark or "@" in head:
            # A mistyped URI, as u:secret@host or mongodb:/u:secret@host. Everything after any colon counts, since the
            # password may contain one.
            userinfo = word.rpartition("@")[0]
            behind = [userinfo[i + 1 :] for i, c in enumerate(userinfo) if c == ":"]
            parts = [part for text in behind for part in re.split("[/@?#]", text)]
            found |= {text for raw in (*behind, *parts) for text in (raw, unquote(raw), unquote_plus(raw))}
        if not mark:
            continue
        # Up to the last @: a password that was not percent-encoded may contain anything, and a part of it is a secret
        # as well.
        userinfo = rest.rpartition("@")[0]
        password = userinfo.partition(":")[2]
        options = [option.partition("=") for option in re.split("[&;]", rest.partition("?")[2])]
        values = [value for name, _, value in options if TELLING.search(name)]
        values += [part.partition(":")[2] for value in values for part in value.split(",")]  # NAME:secret,NAME:secret
        parts = re.split("[/@?#]", password)  # as a parser splits one that was not percent-encoded
        found |= {text for raw in (password, *parts, *values) for text in (raw, unquote(raw), unquote_plus(raw))}
        found.add(userinfo)
    # Messages of other packages may show them as Python or JSON writes them.
    found |= {shown for text in found for shown in _spelled(text)}
    return sorted(filter(None, found), key=lambda text: (-len(text), text))


def _spelled(text: str) -> tuple[str, ...]:
    return repr(text)[1:-1], repr('"' + text)[2:-1], json.dumps(text)[1:-1], escaped(text)


def escaped(text: str) -> str:
    r"""Escape line ends and characters that a terminal would act on or that change the reading order.

    Example:
        >>> print(escaped("a\x1b[2Jb\n"))
        a\x1b[2Jb\n
    """
    return "".join(c if c.isprintable() else _code(c) for c in text)


def _code(character: str) -> str:
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")


class Output:
    """The printed output of one command.

    Args:
        words: Texts that may contain secrets: all arguments, and the values of memkit's environment variables.

    Attributes:
        quiet: Whether to print errors only.
        debug: Whether to print tracebacks of errors.
        beside: Whether results go to stderr, because stdout carries data.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        # Stored text is printed as it is: never interpreted as rich's markup, highlighted or wrapped.
        plain = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True, "force_jupyter": False}
        self._out = Console(**plain)  # type: ignore[arg-type]  # a dict of several types
        self._err = Console(stderr=True, **plain)  # type: ignore[arg-type]  # as above
        secrets = secrets_in(words)
        self._secret = re.compile("|".join(map(_whole, secrets))) if secrets else None
        self.quiet = self.beside = False
        self.debug = False
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode must not cause a failure

    @property
    def is_terminal(self) -> bool:
        """Whether both streams are terminals, so that a progress bar may be drawn."""
        return self._out.is_terminal and self._err.is_terminal

    def safe(self, text: object) -> str:
        """Return the text on one line, without credentials and control characters."""
        return escaped(self.scrubbed(str(text)))

    def scrubbed(self, text: str) -> str:
        """Replace credentials in the text."""
        if self._secret is not None:
            text = self._secret.sub(HIDDEN, text)
        return USERINFO.sub("//", text)

    def brief(self, error: BaseException) -> str:
        """Return an error's text without the driver's details for debugging, which `--debug` shows."""
        return DETAILS.sub("", str(error))

    @property
    def _results(self) -> Console:
        return self._err if self.beside else self._out

    def line(self, text: object = "") -> None:
        """Print a line of the result, unless quiet."""
        if not self.quiet:
            self._results.print(Text(self.safe(text)))

    def note(self, text: object) -> None:
        """Print a line on stderr about the progress, or a warning, unless quiet."""
        if not self.quiet:
            self._err.print(Text(self.safe(text)))

    def fault(self, text: object) -> None:
        """Print a line about an error, in any case."""
        self._err.print(Text(f"memkit: {self.safe(text)}"))

    def trace(self, error: BaseException) -> None:
        """Print an error's traceback if `--debug` is given, without the values of variables."""
        if self.debug:
            for entry in traceback.format_exception(error):
                for part in entry.splitlines():
                    self._err.print(Text(self.safe(part)))

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table, drawn on a terminal, else as columns of plain text, unless quiet."""
        if self.quiet:
            return
        heads = [self.safe(head) for head in heads]
        cells = [[self.safe(cell) for cell in row] for row in rows]
        if self._results.is_terminal:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for head in heads:
                table.add_column(head, overflow="fold")
            for row in cells:
                table.add_row(*(Text(cell, style=MARKS.get(cell, "")) for cell in row))
            self._results.print(table, soft_wrap=False)
            return
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        for row in (heads, *cells):
            self._results.print(Text("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()))

    def raw(self, text: str) -> None:
        """Print text for programs, unchanged but for credentials."""
        self._out.out(self.scrubbed(text), highlight=False)


def _whole(secret: str) -> str:
    """Return the pattern of a secret; a short one matches only as a whole word, since other words may contain it."""
    quoted = re.escape(secret)
    return quoted if len(secret) > 3 else rf"(?<!\w){quoted}(?!\w)"


class NotesHandler(logging.Handler):
    """Logging handler that prints the package's warnings."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, unless the final report lists its subject."""
        if "unreadable in session" not in str(record.msg):
            self._output.note(f"{record.levelname.lower()}: {record.getMessage()}")


def show_warning(output: Output) -> Any:
    """Return a replacement for `warnings.showwarning` that hides credentials, which warnings of libraries may quote."""
    return lambda message, *_args, **_kwargs: output.note(f"warning: {message}")


STREAM = "-"
BESIDE = ("-wal", "-shm", "-journal")  # suffixes of the files that belong to a SQLite database


@contextmanager
def writable(file: str, source: Target) -> Iterator[Any]:
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


def _refuse_database(path: Path, source: Target) -> None:
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


URI, FROM_URI, TO_URI = "MEMKIT_URI", "MEMKIT_FROM_URI", "MEMKIT_TO_URI"
DONE, USAGE, STORE, INTERRUPTED = 0, 2, 3, 130
GO_ON = "interrupted: run the same command again to go on; what is done is not done twice"


class SafeGroup(TyperGroup):
    """Command group that reports every error in one line without credentials, and returns an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; exit with its code, or return it if `standalone_mode` is False."""
        words = list(sys.argv[1:] if args is None else args)
        # Every argument is searched for secrets before anything is printed.
        output = Output([*words, *(os.environ.get(name, "") for name in (URI, FROM_URI, TO_URI))])
        # Log records and warnings are printed in the same form, without credentials.
        handler, logger = NotesHandler(output), logging.getLogger("langchain_memkit")
        logger.addHandler(handler)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = show_warning(output)
                extra |= {"prog_name": "memkit", "obj": output, "standalone_mode": False}
                code = super().main(words or ["--help"], *rest, **extra)
        except Exception as error:  # noqa: BLE001  # a traceback could show credentials
            code = _ended(output, error)
        finally:
            logger.removeHandler(handler)
        code = code if isinstance(code, int) else DONE
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; Ctrl-C ends it with a message and exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.obj.fault(GO_ON)
            return INTERRUPTED
        except BrokenPipeError as error:  # before typer turns it into exit code 1
            return _ended(ctx.obj, error)


def _ended(output: Output, error: Exception) -> int:
    """Report an error in one line; return the exit code."""
    output.trace(error)
    if hasattr(error, "format_message"):  # typer's errors about arguments
        output.fault(f"{error.format_message()} (memkit --help)")
        return USAGE
    if isinstance(error, typer.Abort):
        output.fault(GO_ON)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of stdout has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    if isinstance(error, (ConfigurationError, MissingExtraError)):
        output.fault(output.brief(error))
        return USAGE
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)):
        output.fault(f"{error.filename}: {error.strerror}")
        return USAGE
    if isinstance(error, (MemkitError, OSError)):
        output.fault(f"{output.brief(error).rstrip('.')}. Run the same command again to go on.")
        return STORE
    if isinstance(error, (TypeError, ValueError)) and not output.debug:
        output.fault(error)
        return USAGE
    output.fault(f"{type(error).__name__}: {error} (--debug shows where)")
    return STORE
