"""Memory components for LangChain: memory is a list of messages.

Start with `create_runnable_with_message_history` and `SQLiteChatMessageHistory`. Names are loaded when they
are first used; `from langchain_memkit import *` leaves out those whose extra is not installed.

To learn the code, read in this order: `base` has the vocabulary and the central abstraction, `memories/composed`
combines several memories into one, `runnables` runs a turn, `testing` holds the contracts that all parts keep. `_sync`
explains how one body of logic serves sync and async callers. All code that touches an outside dependency is in
`backends`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_memkit import classic as classic
    from langchain_memkit import errors as errors
    from langchain_memkit import migrate as migrate
    from langchain_memkit import testing as testing
    from langchain_memkit._compat import BaseChatMessageHistory, InMemoryChatMessageHistory
    from langchain_memkit.backends.langgraph_store import LangGraphKeyValueStore
    from langchain_memkit.backends.mongodb import MongoDBChatMessageHistory, MongoDBKeyValueStore
    from langchain_memkit.backends.spacy import SpacyEntityExtractor
    from langchain_memkit.backends.sqlite import SQLiteChatMessageHistory, SQLiteKeyValueStore
    from langchain_memkit.backends.wordllama import WordLlamaEmbeddings
    from langchain_memkit.base import Memory, purge_user, session
    from langchain_memkit.explain import explain_last_turn, explain_stored_turn, explain_turn
    from langchain_memkit.memories.chat_history import ChatHistoryMemory
    from langchain_memkit.memories.composed import ComposedMemory
    from langchain_memkit.memories.english_preferences import find_english_preferences
    from langchain_memkit.memories.entity import EntityMemory
    from langchain_memkit.memories.key_value import KeyValueMemory
    from langchain_memkit.memories.preferences import PreferenceMemory
    from langchain_memkit.memories.vector import VectorMemory
    from langchain_memkit.middleware import MessageHistoryMiddleware
    from langchain_memkit.preprocessors import create_history_preprocessor, create_trim_preprocessor
    from langchain_memkit.retrievers import CondenseQuestionRetriever
    from langchain_memkit.runnables import RunnableWithMessageHistory, create_runnable_with_message_history
    from langchain_memkit.runnables.rag import create_conversational_rag_chain

    __version__: str

__all__ = [
    "BaseChatMessageHistory",
    "ChatHistoryMemory",
    "ComposedMemory",
    "CondenseQuestionRetriever",
    "EntityMemory",
    "InMemoryChatMessageHistory",
    "KeyValueMemory",
    "LangGraphKeyValueStore",
    "Memory",
    "MessageHistoryMiddleware",
    "MongoDBChatMessageHistory",
    "MongoDBKeyValueStore",
    "PreferenceMemory",
    "RunnableWithMessageHistory",
    "SQLiteChatMessageHistory",
    "SQLiteKeyValueStore",
    "SpacyEntityExtractor",
    "VectorMemory",
    "WordLlamaEmbeddings",
    "create_conversational_rag_chain",
    "create_history_preprocessor",
    "create_runnable_with_message_history",
    "create_trim_preprocessor",
    "explain_last_turn",
    "explain_stored_turn",
    "explain_turn",
    "find_english_preferences",
    "purge_user",
    "session",
]

_NAMES = tuple(__all__)
_MODULES = ("classic", "errors", "migrate", "testing")

_MONGODB = ("langchain_memkit.backends.mongodb", "mongodb", ("pymongo", "bson"))
_MATCHING = ("matching", ("rapidfuzz", "ahocorasick_rs"))
_LOCAL = ("local", ("wordllama", "safetensors", "tokenizers", "numpy"))
_VECTOR = ("vector", ("numpy", "Stemmer", "langchain_text_splitters"))
_PLAIN = {
    "_compat": "BaseChatMessageHistory InMemoryChatMessageHistory",
    "backends.sqlite": "SQLiteChatMessageHistory SQLiteKeyValueStore",
    "base": "Memory purge_user session",
    "explain": "explain_last_turn explain_stored_turn explain_turn",
    "memories.chat_history": "ChatHistoryMemory",
    "memories.composed": "ComposedMemory",
    "memories.english_preferences": "find_english_preferences",
    "memories.preferences": "PreferenceMemory",
    "preprocessors": "create_history_preprocessor create_trim_preprocessor",
    "runnables": "RunnableWithMessageHistory create_runnable_with_message_history",
}
"""Module -> names that need no extra."""
_LAZY = {name: (f"{__name__}.{module}", "", ()) for module, names in _PLAIN.items() for name in names.split()} | {
    "CondenseQuestionRetriever": ("langchain_memkit.retrievers", *_VECTOR),
    "EntityMemory": ("langchain_memkit.memories.entity", *_MATCHING),
    "KeyValueMemory": ("langchain_memkit.memories.key_value", *_MATCHING),
    "LangGraphKeyValueStore": ("langchain_memkit.backends.langgraph_store", "langgraph", ("langgraph",)),
    "MessageHistoryMiddleware": ("langchain_memkit.middleware", "agents", ("langchain", "langgraph")),
    "MongoDBChatMessageHistory": _MONGODB,
    "MongoDBKeyValueStore": _MONGODB,
    "SpacyEntityExtractor": ("langchain_memkit.backends.spacy", "spacy", ("spacy",)),
    "VectorMemory": ("langchain_memkit.memories.vector", *_VECTOR),
    "WordLlamaEmbeddings": ("langchain_memkit.backends.wordllama", *_LOCAL),
    "create_conversational_rag_chain": ("langchain_memkit.runnables.rag", *_VECTOR),
}
"""Name -> module, extra, and the packages that the extra brings."""


def _load(name: str) -> Any:
    """Load a module or a name that needs an extra (PEP 562), or read the version of the installed package."""
    if name == "__all__":  # looked up by `import *`
        return [name for name in _NAMES if _is_there(name)]
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("langchain-memkit")
        except PackageNotFoundError:  # a folder on the path, not installed
            raise AttributeError(name) from None
    if name not in _LAZY:
        from langchain_memkit.errors import missing_name

        raise missing_name(__name__, name, __dir__(), lambda: _where(name))
    module, extra, packages = _LAZY[name]
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        # Something else failed to import: a broken installation must not be reported as a missing extra.
        if package not in packages:
            raise
        from langchain_memkit.errors import MissingExtraError

        msg = f'{name} needs an extra: pip install "langchain-memkit[{extra}]" ({package} is missing or too old)'
        raise MissingExtraError(msg) from error


def _where(name: str) -> str:
    """Return the end of an error message about a name that is gone, or in one of the modules; else nothing."""
    if name in ("SQLiteVectorStore", "MongoDBVectorStore"):
        return (
            ": VectorMemory.factory(histories, embedding) needs no store of its own; what was kept in one is moved by "
            "langchain_memkit.migrate.vector_records_source, and documents belong into a vector store of LangChain's"
        )
    homes = [module for module in _MODULES if name in getattr(import_module(f"{__name__}.{module}"), "__all__", ())]
    return f"; it is in {__name__}.{homes[0]}" if homes else ""


def _is_there(name: str) -> bool:
    """Return whether the extra that a name needs is installed."""
    from langchain_memkit.errors import MissingExtraError

    try:
        return name in globals() or _load(name) is not None
    except MissingExtraError:
        return False


if not TYPE_CHECKING:  # a type checker would believe that every name exists
    __getattr__ = _load
    del __all__  # `import *` then calls `__getattr__("__all__")`, which finds out what is installed


def __dir__() -> list[str]:
    return sorted([*_NAMES, *_MODULES, "__version__"])
