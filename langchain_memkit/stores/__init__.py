"""The public interfaces of storage, and what every store promises and shares, whatever keeps the rows.

Who writes a backend for a database of his own subclasses one of two: `TurnStore`, under a chat history, or
`KeyValueBackend`, under a key-value store. docs/backends.md writes one in full. The names below are public; no
dependency on any engine.
"""

from langchain_memkit._sync import Flow, Operation, Step, adrive, drive, drive_in_thread
from langchain_memkit.stores.backend import StoreBackend
from langchain_memkit.stores.changes import ChangedRow, Changes, Place
from langchain_memkit.stores.history import HistoryFactory, TurnHistory, TurnStore
from langchain_memkit.stores.history_rows import (
    EMPTY,
    MARKER_TTL,
    Batch,
    Edit,
    Page,
    PageLimit,
    ReadVersion,
    ReplacedTurns,
    SessionScope,
    TurnRow,
    may_append,
    new_epoch,
    plan_append,
    read_turn,
    stored_or_conflict,
    tombstone,
    until_limit,
)
from langchain_memkit.stores.key_value import KeyRange, KeyValueBackend, KeyValueStore, StoredValue
from langchain_memkit.stores.sessions import SessionDetails, SessionQuery, describe_session, page_by_time, page_of

__all__ = [
    "EMPTY",
    "MARKER_TTL",
    "Batch",
    "ChangedRow",
    "Changes",
    "Edit",
    "Flow",
    "HistoryFactory",
    "KeyRange",
    "KeyValueBackend",
    "KeyValueStore",
    "Operation",
    "Page",
    "PageLimit",
    "Place",
    "ReadVersion",
    "ReplacedTurns",
    "SessionDetails",
    "SessionQuery",
    "SessionScope",
    "Step",
    "StoreBackend",
    "StoredValue",
    "TurnHistory",
    "TurnRow",
    "TurnStore",
    "adrive",
    "describe_session",
    "drive",
    "drive_in_thread",
    "may_append",
    "new_epoch",
    "page_by_time",
    "page_of",
    "plan_append",
    "read_turn",
    "stored_or_conflict",
    "tombstone",
    "until_limit",
]
