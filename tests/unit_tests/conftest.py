"""What tests of moving over and of old chains are written with: classes of packages that core 2.0 leaves behind."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

# They import langchain_core.chat_history, so `make newest` leaves out the tests that ask for them.
OF_RETIRED_CLASSES = {"classic", "community"}


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that ask for such a package, in an argument or through a fixture."""
    for item in items:
        if OF_RETIRED_CLASSES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("needs_retired_classes")


@pytest.fixture
def community() -> Any:
    """langchain-community's real chat histories."""
    with warnings.catch_warnings():  # it says that nobody looks after it any more
        warnings.simplefilter("ignore", DeprecationWarning)
        module = import_module("langchain_community.chat_message_histories")
        names = ("FileChatMessageHistory", "SQLChatMessageHistory")
        converter = import_module("langchain_community.chat_message_histories.sql").BaseMessageConverter
        return SimpleNamespace(BaseMessageConverter=converter, **{name: getattr(module, name) for name in names})


@pytest.fixture
def classic() -> Any:
    """langchain-classic's real chains, and its memory of several memories."""
    chains = import_module("langchain_classic.chains")
    names = ("ConversationChain", "ConversationalRetrievalChain")
    memory = import_module("langchain_classic.memory").CombinedMemory
    return SimpleNamespace(CombinedMemory=memory, **{name: getattr(chains, name) for name in names})
