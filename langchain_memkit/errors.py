"""The errors of memkit.

```
MemkitError
├── ConfigurationError (ValueError)          wrong or missing arguments, ids, indexes
├── MissingExtraError (ImportError)          an optional dependency is not installed
│   └── SpacyModelMissing                    no trained spaCy pipeline is there
├── ContextTooLargeError (ValueError)        what a model must be given does not fit its budget
├── HistoryReadError                         the stored conversation could not be read
│   ├── MessageDecodeError (ValueError)      a stored row is damaged (only with on_corrupt="raise")
│   └── MemoryReadError                      a memory could not be loaded (only with on_load_error="raise")
└── HistoryWriteError                        a turn was not (or perhaps not) stored; has .output
    ├── MemoryWriteError                     the turn is in the history, but a memory was not told of it
    ├── MessageEncodeError (ValueError)      a value cannot be stored; has .path
    ├── MessageTooLargeError (ValueError)    one turn is larger than a document may be
    ├── UnsupportedOutputError (ValueError)  the chain returned nothing that is a message
    ├── HistoryConflictError                 the conversation is not where the caller expected it
    │   └── StaleTurnError                   the session was cleared or purged while the turn ran
    └── IdempotencyConflictError             the same turn_id was used for another turn
```

Ids that are no strings raise `TypeError`, empty or malformed ids `ValueError`, both before any I/O.
Where a driver failed, its error is the `__cause__`: of pymongo's a copy without documents. No message of ours, and none
that it is caused by, holds credentials or what was said; what you handed in (a model, a store) fails in its own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage

__all__ = [
    "ConfigurationError",
    "ContextTooLargeError",
    "HistoryConflictError",
    "HistoryReadError",
    "HistoryWriteError",
    "IdempotencyConflictError",
    "MemkitError",
    "MemoryReadError",
    "MemoryWriteError",
    "MessageDecodeError",
    "MessageEncodeError",
    "MessageTooLargeError",
    "MissingExtraError",
    "SpacyModelMissing",
    "StaleTurnError",
    "UnsupportedOutputError",
]


class MemkitError(Exception):
    """Base of every error that memkit raises on purpose."""


class ConfigurationError(MemkitError, ValueError):
    """Arguments, ids or the server's set-up do not fit together. Nothing was read or written."""


class MissingExtraError(MemkitError, ImportError):
    """An optional dependency is missing; the text names the `pip install` that brings it."""


class SpacyModelMissing(MissingExtraError):  # noqa: N818  # the name that was asked for
    """There is no trained spaCy pipeline that may be used; the text lists the ways to one."""


class ContextTooLargeError(MemkitError, ValueError):
    """What has to be kept does not fit into the budget (only with `on_overflow="raise"`)."""


class HistoryReadError(MemkitError):
    """The history could not be read. A copy of the driver's error, without documents, is the `__cause__`."""


class MessageDecodeError(HistoryReadError, ValueError):
    """A stored row cannot be turned back into messages. Raised only with `on_corrupt="raise"`."""


class MemoryReadError(HistoryReadError):
    """A memory could not be loaded. Raised only with `on_load_error="raise"`; its own error is the `__cause__`."""


class HistoryWriteError(MemkitError):
    """A turn could not be stored, or nobody can tell whether it was.

    Attributes:
        output: What the chain had answered, so that the answer is not lost with the save. `None` outside a chain.
        messages: The messages that were to be stored, as given to the history.
        turn_id: The turn's id: calling again with the same one stores the turn at most once.
        maybe_stored: True when the outcome is unknown (time-out, lost connection); False when it is certain that
            nothing was stored.

    Example:
        >>> error = HistoryWriteError("the server went away", maybe_stored=True, turn_id="t1")
        >>> error.maybe_stored, error.output
        (True, None)
    """

    def __init__(
        self,
        message: str,
        *,
        output: Any = None,
        messages: Sequence[BaseMessage] = (),
        turn_id: str | None = None,
        maybe_stored: bool = False,
    ) -> None:
        super().__init__(message)
        self.output = output
        self.messages = list(messages)
        self.turn_id = turn_id
        self.maybe_stored = maybe_stored


class MemoryWriteError(HistoryWriteError):
    """The turn is stored in the history, but one of the memories beside it failed; its error is the `__cause__`.

    `maybe_stored` is True: the turn is stored. Calling again with the same `turn_id` stores it once and tells the
    memories again.
    """


class MessageEncodeError(HistoryWriteError, ValueError):
    """A value would not come back equal, of a message or in a store, so it was refused before anything was stored.

    Attributes:
        path: Where the value sits, as in `messages[1].artifact['df']` or `values['key']['df']`.
    """

    def __init__(self, path: str, problem: str, **kwargs: Any) -> None:
        where = ", in the tool or with `before_save=`" if path.startswith("message") else " before you store it"
        super().__init__(f"{path} {problem}. Nothing was stored. Convert or drop it{where}.", **kwargs)
        self.path = path


class MessageTooLargeError(HistoryWriteError, ValueError):
    """One turn is larger than the store takes in one document, so it cannot be stored whole."""


class UnsupportedOutputError(HistoryWriteError, ValueError):
    """The chain's output is no string, message, list of messages, dict of them or structured output."""


class HistoryConflictError(HistoryWriteError):
    """The conversation moved: `expected_seq` is not the position of the last turn any more."""


class StaleTurnError(HistoryConflictError):
    """The session was cleared or purged after this turn began, so the turn was not stored."""


class IdempotencyConflictError(HistoryWriteError):
    """A turn with this `turn_id` (or these message ids) is stored already, with other content.

    Attributes:
        stored: The messages of the turn that is stored.
    """

    def __init__(self, message: str, *, stored: Sequence[BaseMessage] = (), **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.stored = list(stored)
