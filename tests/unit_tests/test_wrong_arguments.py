"""Mistakes of the kind that everybody makes are told at once, and without what is secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from langchain_memkit import (
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_conversational_rag_chain,
    create_runnable_with_message_history,
    purge_user,
)
from langchain_memkit.base import apurge_user
from langchain_memkit.testing import FakeChatModel

URI = "mongodb://clownfish:hunter2@h1,h2/"
MODEL, HISTORIES = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
RAG: Any = create_conversational_rag_chain

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "swapped": (lambda: MongoDBChatMessageHistory("s1", URI), "session_id is a connection string"),
    "swapped, with a user": (lambda: SQLiteChatMessageHistory("x.db", "s1", user_id=URI), "user_id is a connection"),
    "twice": (lambda: MongoDBKeyValueStore(URI, URI), "database_name must be a str without"),
    "a blank": (lambda: MongoDBChatMessageHistory(URI, "s1", "my db"), "database_name must be"),
    "a number": (lambda: MongoDBChatMessageHistory(URI, "s1", 5), "database_name must be"),  # type: ignore[arg-type]
    "a dollar": (lambda: MongoDBChatMessageHistory(URI, "s1", "db", "$x"), "collection_name must be"),
    "misspelt": (lambda: RunnableWithMessageHistory(MODEL, HISTORIES, input_message_key="x"), "input_message_key"),
    "misspelt, in rag": (lambda: RAG(MODEL, lambda q: [], HISTORIES, on_save_eror="log"), "on_save_eror"),
    "no function": (lambda: create_runnable_with_message_history(MODEL, HISTORIES, before_save="x"), "before_save"),  # type: ignore[arg-type]
    "no seconds": (lambda: SQLiteChatMessageHistory(":memory:", "s1", ttl="1d"), "ttl must be seconds above 0, or"),  # type: ignore[arg-type]
    "no time": (lambda: MongoDBChatMessageHistory(URI, "s1", ttl=-1), "ttl must be seconds above 0, or None to keep"),
    "quoted": (lambda: SQLiteKeyValueStore(":memory:", timeout="5"), "timeout must be seconds above 0; got '5'"),  # type: ignore[arg-type]
    "quoted, MongoDB": (lambda: MongoDBChatMessageHistory(URI, "s1", timeout="5"), "timeout must be seconds above 0"),  # type: ignore[arg-type]
    "endless": (lambda: MongoDBChatMessageHistory(URI, "s1", save_timeout=float("inf")), r"at most 9e\+09; got inf"),
    "a budget": (lambda: create_runnable_with_message_history(MODEL, HISTORIES, preprocessor=100), "preprocessor must"),  # type: ignore[arg-type]
    "no parts": (lambda: purge_user("u1"), "without them nothing is deleted"),
    "no part": (lambda: purge_user("u1", HISTORIES, "w.db"), r"parts\[1\], a str, has no purge"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    """Each is a ValueError that names the argument, before anything is read or written, and shows no password."""
    make, said = MISTAKES[name]
    with pytest.raises(ValueError, match=said) as raised:
        make()
    assert "hunter2" not in f"{raised.value!r}"


async def test_nothing_is_purged_by_mistake() -> None:
    """A part that cannot forget is told before the others have forgotten; the same in async."""
    HISTORIES("s1", "u1").add_user_message("hi")
    parts: Any = (HISTORIES, object())
    with pytest.raises(ValueError, match="Nothing was deleted"):
        purge_user("u1", *parts)
    with pytest.raises(ValueError, match="Nothing was deleted"):
        await apurge_user("u1", *parts)
    assert len(HISTORIES("s1", "u1").messages) == 1


def test_addresses_that_are_ids() -> None:
    """An address without a password is an id like any other."""
    assert SQLiteChatMessageHistory(":memory:", "https://example.org/rooms/5").session_id.endswith("/5")
