"""A lock that is released in a forked process, whichever thread held it."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from weakref import WeakSet

__all__ = ["ForkSafeLock"]


class ForkSafeLock:
    """A `threading.Lock` that is unlocked in a forked child: the thread that would release it does not exist there.

    Args:
        renew: Called in the child after a fork, to drop data that was perhaps half changed under the lock.
    """

    def __init__(self, renew: Callable[[], object] | None = None) -> None:
        self._renew = renew
        self._lock = Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        """Acquire the lock."""
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self._lock.release()

    def enter_now(self) -> bool:
        """Acquire the lock without waiting, and return whether that worked; release it with `__exit__`."""
        return self._lock.acquire(blocking=False)

    def open_in_child(self) -> None:
        """Replace the lock after a fork, in the child."""
        self._lock = Lock()
        if self._renew is not None:
            self._renew()


# weak: a lock goes with the object it guards
_locks: WeakSet[ForkSafeLock] = WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.open_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
