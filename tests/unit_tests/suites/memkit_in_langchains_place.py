"""A pytest plugin: LangChain's own tests get what is ours in the place of LangChain's."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says what stands in the place of `RunnableWithMessageHistory`."""
    parser.addoption("--runnable-with-message-history", default="RunnableWithMessageHistory")


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Replace the names in every collected module, and check that one was there."""
    import langchain_memkit
    from langchain_memkit.retrievers import create_history_aware_retriever

    ours = {
        "RunnableWithMessageHistory": getattr(langchain_memkit, config.getoption("runnable_with_message_history")),
        "BaseChatMessageHistory": langchain_memkit.BaseChatMessageHistory,
        "InMemoryChatMessageHistory": langchain_memkit.InMemoryChatMessageHistory,
        "create_history_aware_retriever": create_history_aware_retriever,
    }
    for module in {item.module for item in items}:
        replaced = [name for name in ours if hasattr(module, name)]
        assert replaced, f"{module.__name__} tests nothing of ours"
        for name in replaced:
            setattr(module, name, ours[name])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which packages were tested, and where they lie."""
    for name in ("langchain-core", "langchain-classic", "langchain-memkit"):
        if module := sys.modules.get(name.replace("-", "_")):
            terminalreporter.write_line(f"tested: {name} {importlib.metadata.version(name)} {module.__file__}")
