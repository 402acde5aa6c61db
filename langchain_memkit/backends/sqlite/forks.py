"""Safe forking: no operation is running and no connection is open at the moment of a fork.

SQLite keeps its locks per process, in memory of its own. A forked child inherits them and believes in file locks that
it does not have, and in locks held by threads that do not exist in it: it waits for ever, or writes at the same time as
its parent. So a fork waits for the operations under way, and idle connections are closed before it. `subprocess` does
not fork in this sense.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

PATIENCE = 5.0  # seconds; a fork from inside an operation must not wait for itself for ever


class Closable(Protocol):
    """An object whose idle connections are closed before a fork."""

    def close_idle(self) -> None:
        """Close the connections that are not in use."""


class _Gate:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.under_way = 0
        self.forking = False


_gate = _Gate()
databases: weakref.WeakSet[Closable] = weakref.WeakSet()
"""Everything that has connections to files."""


@contextmanager
def operation() -> Iterator[None]:
    """Mark an operation that a fork waits for. If a fork is under way, wait for it first."""
    gate = _gate
    with gate.changed:
        gate.changed.wait_for(lambda: not gate.forking, PATIENCE)
        gate.under_way += 1
    try:
        yield
    finally:
        with gate.changed:
            gate.under_way -= 1
            gate.changed.notify_all()


def _before() -> None:
    with _gate.changed:
        # from here on new operations wait; those under way may take `PATIENCE` seconds to finish
        _gate.forking = True
        _gate.changed.wait_for(lambda: _gate.under_way == 0, PATIENCE)
    for database in list(databases):
        database.close_idle()


def _after_in_parent() -> None:
    with _gate.changed:
        _gate.forking = False
        _gate.changed.notify_all()


def _after_in_child() -> None:
    # The parent's condition may be held by a thread that does not exist in the child, so it is replaced, not
    # released.
    global _gate
    _gate = _Gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
