"""A pytest plugin: langchain-core's tests of `RunnableWithMessageHistory` get our factory instead of the class."""

from __future__ import annotations

from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Replaces the name in every collected module, and checks that it was there."""
    import langchain_memkit

    for module in {item.module for item in items}:
        assert module.RunnableWithMessageHistory
        module.RunnableWithMessageHistory = langchain_memkit.create_runnable_with_message_history
