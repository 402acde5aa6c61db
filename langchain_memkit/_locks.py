"""What a fork of the process needs: objects that are told of it, a lock that is open in the child, its own threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from threading import Lock
from typing import TypeVar
from weakref import WeakSet

from langchain_core.runnables.config import ContextThreadPoolExecutor

THREADS = 16  # that are started at most, when as many turns of sync code read at once

T = TypeVar("T")


class ForkAware:
    """Base of what is told of forks: all that a child must not inherit is given up in these two methods."""

    def __init__(self) -> None:
        _aware.add(self)

    def before_fork(self) -> None:
        """Get ready for a fork, in the parent; nothing by default."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on after a fork. In the child only the forking thread exists, whatever locks others held."""


class ForkSafeLock(ForkAware):
    """A `threading.Lock` that is unlocked in a forked child: the thread that would release it does not exist there.

    Args:
        renew: Called in the child after a fork, to drop data that was perhaps half changed under the lock.
    """

    def __init__(self, renew: Callable[[], object] | None = None) -> None:
        self._renew = renew
        self._lock = Lock()
        super().__init__()

    def __enter__(self) -> None:
        """Acquire the lock."""
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        """Release the lock."""
        self._lock.release()

    def enter_now(self) -> bool:
        """Acquire the lock without waiting, and return whether that worked; release it with `__exit__`."""
        return self._lock.acquire(blocking=False)

    def after_fork(self, *, in_child: bool) -> None:
        """Replace the lock in the child."""
        if in_child:
            self._lock = Lock()
            if self._renew is not None:
                self._renew()


@lru_cache(maxsize=1)
def shared_threads() -> ContextThreadPoolExecutor:
    """Return the threads of this process for short reads: starting one in each turn took a tenth of the turn's time."""
    return ContextThreadPoolExecutor(THREADS, "memkit")


# weak: a lock goes with the object it guards
_aware: WeakSet[ForkAware] = WeakSet()


def members(things: WeakSet[T]) -> list[T]:
    """Copy a weak set, once more if another thread has added to it meanwhile."""
    while True:
        with suppress(RuntimeError):
            return list(things)


def _before_fork() -> None:
    for thing in members(_aware):
        thing.before_fork()


def _after_fork(*, in_child: bool) -> None:
    if in_child:  # a submit that another thread was in would hold the lock of these for ever
        shared_threads.cache_clear()
    for thing in members(_aware):
        thing.after_fork(in_child=in_child)


if hasattr(os, "register_at_fork"):
    in_parent, in_child = partial(_after_fork, in_child=False), partial(_after_fork, in_child=True)
    os.register_at_fork(before=_before_fork, after_in_parent=in_parent, after_in_child=in_child)
