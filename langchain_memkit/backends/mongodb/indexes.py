"""Indexes: built once per process and collection, or asked for."""

from __future__ import annotations

from typing import Any

from pymongo import IndexModel
from pymongo.errors import OperationFailure

from langchain_memkit.backends.mongodb.clients import Clients, redact
from langchain_memkit.backends.mongodb.commands import Call, Settings
from langchain_memkit.backends.mongodb.documents import index_models
from langchain_memkit.errors import ConfigurationError

MAX_AUTO_INDEX = 100_000
NOT_ALLOWED_CODES = (13, 8000)

_known: set[Any] = set()


async def ensure_indexes(clients: Clients, settings: Settings, *, forced: bool = False, again: bool = False) -> None:
    """Sees to it that the collection has its indexes; asks once per process, and at the first turn of a session.

    Args:
        clients: For the server's name.
        settings: Which collection, and whether indexes may be built.
        forced: Build them, however large the collection is.
        again: Ask the server also if it was asked before.

    Raises:
        ConfigurationError: The unique indexes are missing and are not to be built, or the server refuses them.
    """
    key = (clients.key, settings.names, settings.legacy_keys[0])
    if key in _known and not (forced or again):
        return
    existing = await Call(lambda c: c.index_information(), settings.timeout)
    missing = _missing(settings, existing)
    critical = [m.document["name"] for m in missing if m.document.get("unique")]
    if missing and (settings.create_index or forced):
        if not forced:
            await _refuse_large(settings, missing)
        await _build(clients, settings, missing)
    elif critical:
        msg = (
            f"collection {'.'.join(settings.names)} lacks the unique indexes {critical}, without which turns could be "
            "lost or doubled, and create_index=False. Build them with MongoDBChatMessageHistory.factory(...).setup()."
        )
        raise ConfigurationError(msg)
    _known.add(key)


def _missing(settings: Settings, existing: dict[str, Any]) -> list[IndexModel]:
    # by keys and uniqueness, because users rename indexes and build them by hand
    present = {(tuple(map(tuple, i["key"])), bool(i.get("unique"))) for i in existing.values()}
    wanted = index_models(settings.legacy_keys[0], settings.index_kwargs)
    return [
        model
        for model in wanted
        if (tuple(model.document["key"].items()), bool(model.document.get("unique"))) not in present
    ]


async def _refuse_large(settings: Settings, missing: list[IndexModel]) -> None:
    count = await Call(lambda c: c.estimated_document_count(), settings.timeout)
    if count > MAX_AUTO_INDEX:
        names = [m.document["name"] for m in missing]
        msg = (
            f"collection {'.'.join(settings.names)} holds {count:,} documents and lacks the indexes {names}. "
            "Building them takes a while, so it is not done by surprise: run "
            "MongoDBChatMessageHistory.factory(...).setup() once."
        )
        raise ConfigurationError(msg)


async def _build(clients: Clients, settings: Settings, missing: list[IndexModel]) -> None:
    try:
        await Call(lambda c: c.create_indexes(missing), None)
    except OperationFailure as error:
        if error.code in NOT_ALLOWED_CODES:
            raise
        msg = (
            f"{clients.hosts} refused an index of collection {'.'.join(settings.names)}: {redact(str(error))}. "
            "memkit needs partial unique indexes (MongoDB 5.0 or newer, Atlas, or a compatible server that has them)."
        )
        raise ConfigurationError(msg) from error
