"""How many examples a test tries: few in `make test`, more in `make test-nightly`."""

from __future__ import annotations

import os

__all__ = ["examples", "is_tried"]

TIMES = int(os.environ.get("MEMKIT_EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return this number of examples, or `MEMKIT_EXAMPLES` times as many."""
    return count * TIMES


def is_tried(case: int, one_in: int) -> bool:
    """Return whether the n-th of many cases is tried: one in so many, or each if `MEMKIT_EXAMPLES` asks for more."""
    return TIMES > 1 or case % one_in == 0
