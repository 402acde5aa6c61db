"""A progress bar for long work, drawn by `rich` if that is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec


@contextlib.contextmanager
def progress_bar(wanted: bool, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if wanted; yield a function that advances it by some steps; `total` may be unknown."""
    if not wanted or find_spec("rich") is None:
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # in a notebook rich draws with ipywidgets; without them it would warn and draw nothing
    with Progress(transient=True, console=None if find_spec("ipywidgets") else Console(force_jupyter=False)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)
