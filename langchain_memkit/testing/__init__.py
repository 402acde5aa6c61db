"""Test support: contract suites for histories, stores and memories, fakes, and a real throwaway MongoDB.

To test a history of your own, subclass `ChatMessageHistoryContract` (or `LangChainHistoryContract` if it has only
LangChain's methods) and give it a `make_history` fixture; pytest runs every case in both call styles.
`HistoryTurnContract` runs a history under `create_runnable_with_message_history`; `HistoryPropertiesContract` tests it
with random input. `KeyValueStoreContract` does the same for key-value stores, with a `make_store` fixture, and
`MemoryContract` for memories, with `make_memory`. `RecallContract` runs `VectorMemory` over a vector store, with a
`store` fixture; `VectorStoreContract` tests a vector store that implements memkit's own interface.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_memkit.testing.fakes import FakeChatModel, FrozenClock

if TYPE_CHECKING:
    from langchain_memkit.testing.histories import ChatMessageHistoryContract
    from langchain_memkit.testing.key_value import KeyValueStoreContract
    from langchain_memkit.testing.langchain_histories import LangChainHistoryContract
    from langchain_memkit.testing.memories import MemoryContract
    from langchain_memkit.testing.mongod import local_mongodb
    from langchain_memkit.testing.properties import HistoryPropertiesContract
    from langchain_memkit.testing.recall import RecallContract
    from langchain_memkit.testing.turns import HistoryTurnContract
    from langchain_memkit.testing.vectors import VectorStoreContract

__all__ = [
    "ChatMessageHistoryContract",
    "FakeChatModel",
    "FrozenClock",
    "HistoryPropertiesContract",
    "HistoryTurnContract",
    "KeyValueStoreContract",
    "LangChainHistoryContract",
    "MemoryContract",
    "RecallContract",
    "VectorStoreContract",
    "local_mongodb",
]

# Loaded on first use, since they need pytest or pymongo, which a program that uses only the fakes may not have.
_LAZY = {
    "ChatMessageHistoryContract": "langchain_memkit.testing.histories",
    "HistoryPropertiesContract": "langchain_memkit.testing.properties",
    "HistoryTurnContract": "langchain_memkit.testing.turns",
    "KeyValueStoreContract": "langchain_memkit.testing.key_value",
    "LangChainHistoryContract": "langchain_memkit.testing.langchain_histories",
    "MemoryContract": "langchain_memkit.testing.memories",
    "RecallContract": "langchain_memkit.testing.recall",
    "VectorStoreContract": "langchain_memkit.testing.vectors",
    "local_mongodb": "langchain_memkit.testing.mongod",
}


_CASES = ("_stopped_turns", "_vector_hostile", "_vector_records", "_vector_searches", "_windows")
"""Names of the modules whose test cases the contracts are made of."""


def _load(name: str) -> Any:
    """Import a name that needs pytest or pymongo on its first use (PEP 562)."""
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    if "pytest" in sys.modules:
        found = [_LAZY[name], *(f"{__name__}.{cases}" for cases in _CASES)]
        unseen = [module for module in found if module not in sys.modules]
        sys.modules["pytest"].register_assert_rewrite(*unseen)  # so that a failed case shows its values
    return getattr(import_module(_LAZY[name]), name)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = _load
