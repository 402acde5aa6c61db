"""What clients of this process send, for tests that count it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pymongo import monitoring


class _Listener(monitoring.CommandListener):
    """Tells every list that is being filled."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []

    def started(self, event: Any) -> None:
        """Notes the name."""
        for names in self.lists:
            names.append(event.command_name)

    def succeeded(self, event: Any) -> None:
        """Nothing to note."""

    def failed(self, event: Any) -> None:
        """Nothing to note."""


_listener = _Listener()
monitoring.register(_listener)  # for clients that are made after this; it cannot be taken back


@contextlib.contextmanager
def sent() -> Iterator[list[str]]:
    """The names of the commands that are sent meanwhile."""
    names: list[str] = []
    _listener.lists.append(names)
    try:
        yield names
    finally:
        _listener.lists.remove(names)
