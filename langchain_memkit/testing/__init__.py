"""Test support: contract suites for histories, stores and memories, a chat model that knows only its prompt, a clock.

To test a history of your own, subclass `ChatMessageHistoryContract` (or `LangChainHistoryContract` if it has only
LangChain's methods) and give it a `make_history` fixture; pytest runs every case in both call styles.
`SessionListContract` tests lists of sessions, their titles and the search, with the same fixture, and
`ChangesContract` what a store tells that keeps an index of its turns.
`KeyValueStoreContract` does the same for key-value stores, with a `make_store` fixture, and `MemoryContract` for
memories, with `make_memory`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from langchain_memkit.errors import missing_name
from langchain_memkit.testing.fakes import FakeChatModel, FrozenClock

if TYPE_CHECKING:
    from langchain_memkit.testing.changes import ChangesContract
    from langchain_memkit.testing.histories import ChatMessageHistoryContract
    from langchain_memkit.testing.key_value import KeyValueStoreContract
    from langchain_memkit.testing.langchain_histories import LangChainHistoryContract
    from langchain_memkit.testing.memories import MemoryContract
    from langchain_memkit.testing.sessions import SessionListContract

__all__ = [
    "ChangesContract",
    "ChatMessageHistoryContract",
    "FakeChatModel",
    "FrozenClock",
    "KeyValueStoreContract",
    "LangChainHistoryContract",
    "MemoryContract",
    "SessionListContract",
]

# Loaded on first use, since they need pytest, which a program that uses only the fakes may not have.
_LAZY = {
    "ChangesContract": f"{__name__}.changes",
    "ChatMessageHistoryContract": f"{__name__}.histories",
    "KeyValueStoreContract": f"{__name__}.key_value",
    "LangChainHistoryContract": f"{__name__}.langchain_histories",
    "MemoryContract": f"{__name__}.memories",
    "SessionListContract": f"{__name__}.sessions",
}


def _load(name: str) -> object:
    """Import a contract on its first use (PEP 562)."""
    if name not in _LAZY:
        raise missing_name(__name__, name, __all__)
    if "pytest" in sys.modules:
        unseen = [module for module in _LAZY.values() if module not in sys.modules]
        sys.modules["pytest"].register_assert_rewrite(*unseen)  # so that a failed case shows its values
    return getattr(import_module(_LAZY[name]), name)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = _load
