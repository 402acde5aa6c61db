"""Writes that may be sent again, since repeating one changes nothing; and the parts in which much is sent."""

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

BATCH = 500  # documents of one command


class Taken(Exception):  # noqa: N818  # never leaves the flows
    """There is a document with this id already."""


class RepeatingRunner(Runner):
    """A runner whose writes are repeated as they are."""

    upserts_may_meet: ClassVar[bool] = False
    """Whether an id that is taken means that two upserts of it met, of which the other goes through next time."""

    async def _sent(self, function: Callable[[Any], Any], *, begun: bool = False) -> Any:
        """A command, sent again until the deadline: repeating it changes nothing. `begun`: there were writes before.

        Raises:
            Taken: There is a document with this id, and upserts cannot meet.
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
    """Parts that one command takes."""
    return (list(items[i : i + BATCH]) for i in range(0, len(items), BATCH))
