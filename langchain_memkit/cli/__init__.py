"""The command line `memkit`, which looks into stores and moves, deletes and checks what is in them.

It needs the extra `cli`; docs/cli.md shows it.

Exit codes: 0 everything was done, 1 something was skipped or is wrong, 2 the command cannot be run as it stands, 3 a
store failed: run the same command again. Nothing printed contains credentials.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command; the console script `memkit` calls this.

    Args:
        args: The arguments after `memkit`; None takes those of the process.

    Returns:
        The exit code.

    Example:
        >>> main(["--version"]) == 0
        langchain-memkit ...
        True
    """
    try:
        from langchain_memkit.cli.app import run

        return run(sys.argv[1:] if args is None else args)
    except KeyboardInterrupt:  # while libraries are loaded, which takes the first second; commands handle it themselves
        sys.stderr.write("memkit: interrupted: run the same command again\n")
        return 130
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "typer":
            raise
        sys.stderr.write('memkit: the command line needs an extra: pip install "langchain-memkit[cli]"\n')
        return 2
