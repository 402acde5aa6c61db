"""What the command line prints and reads, and how it ends."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import traceback
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, TypeAlias
from urllib.parse import unquote_plus

import typer
from typer.core import TyperGroup

from langchain_memkit.backends.sqlite.inspection import is_sqlite
from langchain_memkit.base import check_path
from langchain_memkit.cli.targets import Target
from langchain_memkit.errors import ConfigurationError, MemkitError, MissingExtraError

Objects: TypeAlias = Iterable[Mapping[str, object]]

HIDDEN = "***"
COLOURS = {"human": "cyan", "ai": "green", "tool": "yellow", "system": "blue"}
ASSIGNED = re.compile(r"(?i)(?:passw|pwd|token|secret|properties|credential)\w*\s*=\s*('[^']*'|\"[^\"]*\"|[^\s&;]+)")
USERINFO = re.compile(r"//[^/?#\s]*@")
DETAILS = re.compile(
    r" \(configured timeouts: [^)]*\)|, full error: \{[^}]*\}"
    r"|, (?:Timeout: [\d.]+s, )?Topology Description: .*?(?=\. (?:Nothing|It may|Some) |$)"
)


def secrets_in(words: Iterable[str]) -> list[str]:
    """Find what must not be printed of arguments and environment variables, longest first.

    That is what stands between the first colon, after a scheme if there is one, and the last `@`, and the values of
    options that are called a password, token or the like: whole, percent-decoded, and each of their words of three
    letters or more, since messages of drivers show parts.

    Example:
        >>> secrets_in(["--in", "mongodb://nemo:p%40ss@host/chat?authSource=admin"])
        ['nemo:p%40ss', 'nemo:p@ss', 'p%40ss', '40ss', 'p@ss']
    """
    found: set[str] = set()
    for word in words:
        userinfo = (word.partition("://")[2] or word).rpartition("@")[0]
        raw = {userinfo.partition(":")[2], *(value.strip("'\"") for value in ASSIGNED.findall(word))}
        hidden = raw | {unquote_plus(text) for text in raw}
        found |= hidden | {part for text in hidden for part in re.findall(r"\w{3,}", text)}
        found |= {userinfo, unquote_plus(userinfo)} if ":" in userinfo else set()
    return sorted(filter(None, found), key=lambda text: (-len(text), text))


def escaped(text: str) -> str:
    """Escape line ends and characters that a terminal would act on or that change the reading order."""
    spaces = "".join(" " if unicodedata.category(c) == "Zs" else c for c in text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in spaces)


class Output:
    """The printed output of one command; `words` are texts that may contain secrets, such as all arguments.

    Attributes:
        quiet: Whether to print errors only.
        debug: Whether to print tracebacks of errors.
        beside: Whether results go to stderr, because stdout carries data.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        # A short secret matches only as a whole word, since other words may contain it.
        patterns = [re.escape(s) if len(s) > 3 else rf"(?<!\w){re.escape(s)}(?!\w)" for s in secrets_in(words)]
        self._secret = re.compile("|".join([*patterns, USERINFO.pattern]))
        self.quiet = self.debug = self.beside = False
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode must not cause a failure

    @property
    def is_terminal(self) -> bool:
        """Whether both streams are terminals, so that a progress bar may be drawn."""
        return all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))

    def scrubbed(self, text: str) -> str:
        """Replace credentials in the text."""
        return self._secret.sub(lambda match: "//" if match[0].startswith("//") else HIDDEN, text)

    def safe(self, text: object) -> str:
        """Return the text on one line, without credentials and control characters."""
        return escaped(self.scrubbed(str(text)))

    def brief(self, error: BaseException) -> str:
        """Return an error's text without the driver's details for debugging, which `--debug` shows."""
        return DETAILS.sub("", str(error))

    def line(self, text: object = "") -> None:
        """Print a line of the result, unless quiet."""
        if not self.quiet:
            _write(self.safe(text), sys.stderr if self.beside else sys.stdout)

    def note(self, text: object) -> None:
        """Print a line on stderr about the progress, or a warning, unless quiet."""
        if not self.quiet:
            _write(self.safe(text), sys.stderr)

    def fault(self, text: object) -> None:
        """Print a line about an error, in any case."""
        _write(f"memkit: {self.safe(text)}", sys.stderr)

    def trace(self, error: BaseException) -> None:
        """Print an error's traceback if `--debug` is given, without the values of variables."""
        if self.debug:
            for entry in "".join(traceback.format_exception(error)).splitlines():
                _write(self.safe(entry), sys.stderr)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[object]], objects: Objects | None = None) -> None:
        """Print a table in columns of plain text, unless quiet; `objects` are printed as JSON in its place."""
        if objects is not None:
            self.objects(objects)
            return
        cells = [[self.safe(cell) for cell in row] for row in (heads, *rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            self.line("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())

    def objects(self, rows: Objects) -> None:
        """Print a list of objects as JSON for programs, unchanged but for credentials."""
        _write(self.scrubbed(json.dumps(list(rows), indent=2, default=_plain)), sys.stdout)

    def said(self, who: str, about: str, text: str) -> None:
        """Print a message under a heading, in colour on a terminal; its lines are indented."""
        heading = self.safe(who)
        coloured = typer.style(heading, fg=COLOURS.get(heading, "magenta"), bold=True)
        _write(f"{coloured if self.is_terminal else heading}  {self.safe(about)}", sys.stdout)
        for line in text.splitlines():
            _write(f"  {self.safe(line)}", sys.stdout)
        _write("", sys.stdout)

    def confirm(self, question: str, otherwise: str) -> None:
        """Ask a question on stderr; raise a ConfigurationError with the text `otherwise` unless the answer is yes."""
        try:
            agreed = typer.confirm(self.safe(question), err=True)
        except (typer.Abort, EOFError):
            self.note("")
            agreed = False
        if not agreed:
            raise ConfigurationError(otherwise)


def _plain(value: object) -> str:
    """Return a value that JSON has no type for as text: dates in ISO 8601."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _write(line: str, stream: TextIO | None) -> None:
    if stream is not None:  # closed by the parent process
        stream.write(f"{line}\n")
        stream.flush()


class NotesHandler(logging.Handler):
    """Logging handler that prints the package's warnings."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, unless the final report lists its subject."""
        if "unreadable in session" not in str(record.msg):
            self._output.note(f"{record.levelname.lower()}: {record.getMessage()}")


STREAM = "-"


@contextmanager
def writable(file: str, source: Target) -> Iterator[str | TextIO]:
    """Open the file for an export, in the form that `export_history` takes; `-` is stdout.

    Raises:
        ConfigurationError: It cannot be written, or is a database or belongs to one: an export replaces its file.
    """
    if file == STREAM:
        with _standard(sys.stdout, "stdout", "strict") as stream:
            yield stream
            stream.flush()
        return
    file = check_path(file)
    path = Path(file).absolute()
    if not path.parent.is_dir():
        raise ConfigurationError(f"{file}: its folder does not exist")
    of_source = source.is_file and path.exists() and path.samefile(source.path)
    owners = [path, *(Path(file.removesuffix(end)) for end in ("-wal", "-shm", "-journal") if file.endswith(end))]
    if of_source or any(owner.is_file() and owner.stat().st_size and is_sqlite(owner) for owner in owners):
        msg = f"{file} is a database, or belongs to one: an export would replace it. Name another file"
        raise ConfigurationError(msg)
    yield file


@contextmanager
def readable(file: str) -> Iterator[str | TextIO]:
    """Open the file for an import, in the form that `import_history` takes; `-` is stdin."""
    if file == STREAM:
        with _standard(sys.stdin, "stdin", "surrogateescape") as stream:
            yield stream
        return
    if not Path(check_path(file)).is_file():
        raise ConfigurationError(f"{file}: there is no such file")
    yield file


@contextmanager
def _standard(stream: TextIO | None, name: str, errors: str) -> Iterator[TextIO]:
    """Open a standard stream of this process as UTF-8."""
    if stream is None:
        raise ConfigurationError(f"{name} is closed: name a file instead of {STREAM}")
    text = io.TextIOWrapper(stream.buffer, encoding="utf-8", errors=errors, newline="\n")
    try:
        yield text
    finally:
        text.detach()


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
                # Warnings of libraries may quote credentials.
                warnings.showwarning = lambda message, *_args, **_kwargs: output.note(f"warning: {message}")
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
