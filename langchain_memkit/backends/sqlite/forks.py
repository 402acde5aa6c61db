"""Forking with SQLite open: nothing is under way and nothing is open at the moment of the fork.

SQLite keeps locks per process in memory of its own. A child that inherits them believes in locks that it does not have,
and in locks of threads that it does not have either: it waits for ever, or writes beside its parent. So a fork waits
for the operations under way, and idle connections are closed before it. `subprocess` does not fork in this sense.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

PATIENCE = 5.0  # seconds; a fork from inside an operation must not wait for itself


class Closable(Protocol):
    """What is closed before a fork."""

    def close_idle(self) -> None:
        """Close what nobody uses."""


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
    """Mark an operation, which a fork waits for; begins after a fork that is under way."""
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
        _gate.forking = True
        _gate.changed.wait_for(lambda: _gate.under_way == 0, PATIENCE)
    for database in list(databases):
        database.close_idle()


def _after_in_parent() -> None:
    with _gate.changed:
        _gate.forking = False
        _gate.changed.notify_all()


def _after_in_child() -> None:
    global _gate  # the parent's condition may be held by a thread that does not exist here
    _gate = _Gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
