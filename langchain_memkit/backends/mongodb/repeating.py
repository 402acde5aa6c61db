"""Retry idempotent writes, and split large ones into batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

from langchain_memkit.backends.mongodb.commands import (
    DUPLICATE_KEY,
    Call,
    Pause,
    Runner,
    codes_of,
    is_transient,
    jitter,
    text_of,
)
from langchain_memkit.errors import HistoryWriteError

BATCH = 500  # documents in one command


class Taken(Exception):  # noqa: N818  # never leaves the flows
    """A document with this id exists already."""


class RepeatingRunner(Runner):
    """A runner whose writes are idempotent, so that they can be sent again unchanged."""

    upserts_may_meet: ClassVar[bool] = False
    """Whether an id that is taken means that two upserts of it met, of which the other goes through next time."""

    async def _sent(self, function: Callable[[Any], Any], *, begun: bool = False) -> Any:
        """Run an idempotent write command, retrying it until the deadline.

        Args:
            function: The command, given the collection.
            begun: Earlier commands of the same call have written already.

        Returns:
            The command's result.

        Raises:
            Taken: A document with this id exists. With `upserts_may_meet` the command is retried instead.
            HistoryWriteError: The server refused, or the deadline has passed.
        """
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return await Call(function, max(deadline - time.monotonic(), 0.1))
            except PyMongoError as error:
                taken = DUPLICATE_KEY in codes_of(error)
                if taken and not self.upserts_may_meet:
                    raise Taken from error
                again = taken or is_transient(error)
                # The error must tell whether anything may be stored: the bulk write was done in part, or its outcome is
                # unknown. Only a failed server selection proves that nothing was sent.
                counts = getattr(error, "details", None) or {}
                begun = begun or counts.get("nUpserted", 0) + counts.get("nMatched", 0) > 0
                begun = begun or (again and not isinstance(error, ServerSelectionTimeoutError))
                if not again or time.monotonic() > deadline:
                    state = "Some of it may be done: calling again is safe" if begun else "Nothing was changed"
                    limit = f" within {self.patience:g} s" if again else ""
                    msg = f"cannot write to {self.clients.hosts}{limit}: {text_of(error)}. {state}."
                    raise HistoryWriteError(msg, maybe_stored=begun) from error
            await Pause(jitter(0.25))


def batches(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Split a list into parts of at most `BATCH` items, as many as one command takes."""
    return (list(items[i : i + BATCH]) for i in range(0, len(items), BATCH))
