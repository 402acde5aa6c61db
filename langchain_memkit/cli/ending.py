"""Conversion of every way that a command can end into one line without credentials, and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from langchain_memkit.cli.printing import NotesHandler, Output, show_warning
from langchain_memkit.errors import ConfigurationError, MemkitError, MissingExtraError

__all__ = ["Guarded"]

URI, FROM_URI, TO_URI = "MEMKIT_URI", "MEMKIT_FROM_URI", "MEMKIT_TO_URI"
DONE, USAGE, STORE, INTERRUPTED = 0, 2, 3, 130
GO_ON = "interrupted: run the same command again to go on; what is done is not done twice"


class Guarded(TyperGroup):
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
