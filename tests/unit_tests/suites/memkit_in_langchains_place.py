"""A pytest plugin: LangChain's own tests get what is ours in the place of LangChain's."""

from __future__ import annotations

from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Replaces the names in every collected module, and checks that one was there."""
    import langchain_memkit
    from langchain_memkit.retrievers import create_history_aware_retriever

    ours = {
        "RunnableWithMessageHistory": langchain_memkit.create_runnable_with_message_history,
        "create_history_aware_retriever": create_history_aware_retriever,
    }
    for module in {item.module for item in items}:
        replaced = [name for name in ours if hasattr(module, name)]
        assert replaced, f"{module.__name__} tests nothing of ours"
        for name in replaced:
            setattr(module, name, ours[name])
