"""The errors of memkit.

```
MemkitError
├── ConfigurationError (ValueError)          wrong or missing arguments, ids, indexes
├── MissingExtraError (ImportError)          an optional dependency is not installed
│   └── SpacyModelMissing                    no trained spaCy pipeline is installed
├── ContextTooLargeError (ValueError)        the required part of a prompt does not fit its budget
├── HistoryReadError                         the stored conversation could not be read
│   ├── MessageDecodeError (ValueError)      a stored row is damaged (only with on_corrupt="raise")
│   └── MemoryReadError                      a memory could not be loaded (only with on_load_error="raise")
└── HistoryWriteError                        a turn was not (or perhaps not) stored; has .output
    ├── MemoryWriteError                     the turn is in the history, but a memory failed to save it
    ├── MessageEncodeError (ValueError)      a value cannot be stored; has .path
    ├── MessageTooLargeError (ValueError)    one turn is larger than a document may be
    ├── UnsupportedOutputError (ValueError)  the chain's output contains no message
    ├── HistoryConflictError                 the conversation is not at the position that the caller expected
    │   └── StaleTurnError                   the session was cleared or purged while the turn ran
    └── IdempotencyConflictError             the same turn_id was used for another turn
```

Ids that are not strings raise `TypeError`, malformed ids `ConfigurationError`, both before any I/O. If a driver failed,
its error is the `__cause__`; for pymongo, a copy without documents. No message of memkit's errors or of their causes
holds credentials or conversation text; objects that you pass in (a model, a store) fail with their own messages.
"""

from __future__ import annotations

import dis
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

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

logger = logging.getLogger("langchain_memkit")
"""The package's logger, for what is no error to the caller."""


class MemkitError(Exception):
    """Base of every error that memkit raises on purpose."""


class ConfigurationError(MemkitError, ValueError):
    """Arguments, ids or the server's set-up do not fit together. Nothing was read or written."""


class MissingExtraError(MemkitError, ImportError):
    """An optional dependency is missing; the message names the `pip install` command for it."""


class SpacyModelMissing(MissingExtraError):  # noqa: N818  # the name that was asked for
    """No usable trained spaCy pipeline is installed; the message lists the ways to get one."""


@contextmanager
def required_extra(extra: str, what: str) -> Iterator[None]:
    """Import within this what an extra brings: a missing package becomes a `MissingExtraError` that names the extra."""
    try:
        yield
    except ImportError as error:
        msg = f'{what} needs an extra: pip install "langchain-memkit[{extra}]" ({error.name} is missing)'
        raise MissingExtraError(msg) from error


class ContextTooLargeError(MemkitError, ValueError):
    """The messages that must be kept do not fit into the budget (only with `on_overflow="raise"`)."""


class HistoryReadError(MemkitError):
    """The history could not be read. A copy of the driver's error, without documents, is the `__cause__`."""


class MessageDecodeError(HistoryReadError, ValueError):
    """A stored row cannot be turned back into messages. Raised only with `on_corrupt="raise"`."""


class MemoryReadError(HistoryReadError):
    """A memory could not be loaded. Raised only with `on_load_error="raise"`; the memory's error is the `__cause__`."""


class HistoryWriteError(MemkitError):
    """A turn could not be stored, or its outcome is unknown.

    Attributes:
        output: The chain's answer, so that it is not lost with the save. `None` outside a chain.
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
    """The turn is stored in the history, but another memory failed; its error is the `__cause__`.

    `maybe_stored` is True: the turn is stored. Calling again with the same `turn_id` stores it once and calls the
    memories again.
    """


class MessageEncodeError(HistoryWriteError, ValueError):
    """A value of a message or store would not come back equal, so it was refused before anything was stored.

    Attributes:
        path: The place of the value, as in `messages[1].artifact['df']` or `values['key']['df']`.
    """

    def __init__(self, path: str, problem: str, **kwargs: Any) -> None:
        where = ", in the tool or with `before_save=`" if path.startswith("message") else " before you store it"
        super().__init__(f"{path} {problem}. Nothing was stored. Convert or drop it{where}.", **kwargs)
        self.path = path


class MessageTooLargeError(HistoryWriteError, ValueError):
    """One turn is larger than the store accepts in one document, so it cannot be stored whole."""


class UnsupportedOutputError(HistoryWriteError, ValueError):
    """The chain's output is not a string, message, list of messages, dict of them or structured output."""


class HistoryConflictError(HistoryWriteError):
    """The conversation has moved on: `expected_seq` is no longer the position of the last turn."""


class StaleTurnError(HistoryConflictError):
    """The session was cleared or purged after this turn began, so the turn was not stored."""


class IdempotencyConflictError(HistoryWriteError):
    """A turn with this `turn_id` (or these message ids) is stored already, with other content.

    Attributes:
        stored: The messages of the stored turn.
    """

    def __init__(self, message: str, *, stored: Sequence[BaseMessage] = (), **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.stored = list(stored)


# -- names that do not exist


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: a similar known one, or nothing."""
    lower = {other.lower(): other for other in known}
    # "session" for "session_id": too short for a close match, but its first word
    begun = [other for other in lower if len(name) > 2 and other.startswith(f"{name.lower()}_")]
    found = get_close_matches(name.lower(), lower, n=1, cutoff=0.7) or begun
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def missing_name(module: str, name: str, known: Iterable[str], where: Callable[[], str] = str) -> Exception:
    """Return the error for a name that a module lacks, which the `__getattr__` of the module raises.

    It is an AttributeError, as `hasattr` needs it; but an ImportError for `from module import name`, where Python would
    replace an AttributeError by one without the suggestion.

    Args:
        module: The module.
        name: The name.
        known: The names that it has, of which a similar one is suggested.
        where: Called in an import statement, to tell in which other module the name is.
    """
    asking: Any = sys._getframe(1).f_back  # who has asked `__getattr__`
    is_import = asking is not None and dis.opname[asking.f_code.co_code[asking.f_lasti]] == "IMPORT_FROM"
    if is_import:
        return ImportError(
            f"cannot import name {name!r} from {module!r}{where() or did_you_mean(name, known)}", name=module
        )
    # Python asks every module for `__path__` and the like, and would add a suggestion of its own to one with a name.
    hint = "" if name.startswith("__") else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", obj=sys.modules[module])


def _lacking(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


if not TYPE_CHECKING:  # a type checker would believe that every name exists
    __getattr__ = _lacking
