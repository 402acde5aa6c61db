"""The savers whose threads are moved."""

from testkit.checkpoints import store, target

__all__ = ["store", "target"]  # fixtures
