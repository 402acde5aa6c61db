"""Strip stored content from the driver's errors: the error of a refused write carries the whole document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bson.errors import BSONError
from pymongo import errors as driver

from langchain_memkit.base import redact

# Where a server begins to quote a document, a command or a value. An apostrophe within a word is no quote.
QUOTE = re.compile(r"""[{"]|(?<!\w)'""")
LISTS = ("writeErrors", "writeConcernErrors")
RETRYABLE = "RetryableWriteError"


@contextmanager
def driver_errors() -> Iterator[None]:
    """Re-raise the driver's errors as copies that quote nothing of what was sent or stored."""
    try:
        yield
    except (driver.PyMongoError, BSONError) as error:
        failure = without_documents(error)
        try:
            raise failure.with_traceback(error.__traceback__)
        finally:
            failure.__context__ = None  # the original error, which a traceback would print


def without_documents(error: Exception) -> Exception:
    """Copy a driver's error: its class, code, label of a retry and the server's text up to the first quotation.

    Of a subclass that is not the driver's own, the copy is of the nearest driver class.
    """
    found = next(cls for cls in type(error).__mro__ if cls.__module__ in ("pymongo.errors", "bson.errors"))
    kind: Callable[..., Exception] = found
    text = redact(str(error).partition(", full error: ")[0])
    if isinstance(error, BSONError):
        is_size = isinstance(error, driver.DocumentTooLarge)
        return kind(text if is_size else "a document holds what the driver cannot encode or decode")
    if isinstance(error, driver.EncryptionError):
        return driver.EncryptionError(Exception(type(error.cause).__name__))
    labels = [RETRYABLE] if isinstance(error, driver.PyMongoError) and error.has_error_label(RETRYABLE) else []
    if isinstance(error, driver.OperationFailure):
        details = _reply(error.details or {}) | ({"errorLabels": labels} if labels else {})
        if isinstance(error, driver.BulkWriteError):
            return driver.BulkWriteError(details)
        kind = driver.OperationFailure if isinstance(error, driver.ClientBulkWriteException) else kind
        return kind(_said(text), error.code, details)
    if isinstance(error, driver.AutoReconnect):
        return kind(text, {"errorLabels": labels})
    return kind(text, labels) if isinstance(error, driver.ConnectionFailure) else kind(text)


def _reply(details: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a server's reply, or the failure of a single write in it: numbers, names and cleaned messages."""
    names = ("codeName", "keyPattern")
    kept = {k: value for k, value in details.items() if isinstance(value, (bool, int, float)) or k in names}
    kept |= {name: [_reply(one) for one in details[name]] for name in LISTS if details.get(name)}
    if "errmsg" in details:
        kept["errmsg"] = _said(redact(str(details["errmsg"])))
    if (details.get("errInfo") or {}).get("wtimeout"):
        kept["errInfo"] = {"wtimeout": True}
    return kept


def _said(text: str) -> str:
    """Return a server's text up to the first quotation."""
    return QUOTE.split(text, maxsplit=1)[0].rstrip(" :,;([") or "failed"
