"""Strip stored content from the driver's errors: the error of a refused write carries the whole document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bson.errors import BSONError
from pymongo import errors as driver
from pymongo.errors import AutoReconnect, BulkWriteError, ConnectionFailure, OperationFailure, PyMongoError

from langchain_memkit.backends.mongodb.clients import redact

__all__ = ["driver_errors", "without_documents"]

# Where a server begins to quote a document, a command or a value. An apostrophe within a word is no quote.
QUOTE = re.compile(r"""[{"]|(?<!\w)'""")
LABELS = (
    "RetryableWriteError",
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "NoWritesPerformed",
    "RetryableError",
    "SystemOverloadedError",
)
LISTS = ("writeErrors", "writeConcernErrors")


@contextmanager
def driver_errors() -> Iterator[None]:
    """Re-raise the driver's errors as copies that quote nothing of what was sent or stored."""
    try:
        yield
    except (PyMongoError, BSONError) as error:
        failure = without_documents(error)
        try:
            raise failure.with_traceback(error.__traceback__)
        finally:
            failure.__context__ = None  # the original error, which a traceback would print


def without_documents(error: Exception) -> Exception:
    """Copy a driver's error: its class, code, labels and the server's text up to the first quotation.

    Args:
        error: The driver's error. Of a subclass that is not the driver's own, the nearest driver class is used.

    Returns:
        The copy.
    """
    kind: Any = next(cls for cls in type(error).__mro__ if cls.__module__ in ("pymongo.errors", "bson.errors"))
    labels = [label for label in LABELS if isinstance(error, PyMongoError) and error.has_error_label(label)]
    if isinstance(error, BSONError):
        is_size = isinstance(error, driver.DocumentTooLarge)
        text = str(error) if is_size else "a document holds what the driver cannot encode or decode"
        return kind(text)  # type: ignore[no-any-return]  # chosen at run time
    if isinstance(error, OperationFailure):
        details = _reply(error.details or {}, labels)
        if isinstance(error, BulkWriteError):
            return BulkWriteError(details)
        kind = OperationFailure if issubclass(kind, driver.ClientBulkWriteException) else kind
        return kind(_said(str(error).partition(", full error: ")[0]), error.code, details)  # type: ignore[no-any-return]  # chosen at run time
    text = redact(str(error).partition(", full error: ")[0])
    if isinstance(error, AutoReconnect):
        return kind(text, {"errorLabels": labels})  # type: ignore[no-any-return]  # chosen at run time
    if isinstance(error, ConnectionFailure):
        return kind(text, labels)  # type: ignore[no-any-return]  # chosen at run time
    if isinstance(error, driver.EncryptionError):
        return driver.EncryptionError(Exception(type(error.cause).__name__))
    return kind(text)  # type: ignore[no-any-return]  # chosen at run time


def _reply(details: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
    """Copy a server's reply: its numbers, its failures of single writes, and the labels."""
    kept: dict[str, Any] = {k: value for k, value in details.items() if isinstance(value, (bool, int, float))}
    kept |= {name: [_failure(each) for each in details[name]] for name in LISTS if details.get(name)}
    return {**kept, **_failure(details), **({"errorLabels": labels} if labels else {})}


def _failure(one: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: one[name] for name in ("index", "code", "codeName", "keyPattern") if name in one}
    if "errmsg" in one:
        kept["errmsg"] = _said(str(one["errmsg"]))
    if (one.get("errInfo") or {}).get("wtimeout"):
        kept["errInfo"] = {"wtimeout": True}
    return kept


def _said(text: str) -> str:
    """Return a server's text up to the first quotation, without credentials."""
    return QUOTE.split(redact(text), maxsplit=1)[0].rstrip(" :,;([") or "failed"
