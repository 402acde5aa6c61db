"""Output for people: results on stdout, all else on stderr; no credentials, no control characters, no markup."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote, unquote_plus

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Output", "escaped", "secrets_in"]

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
