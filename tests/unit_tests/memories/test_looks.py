"""What a vector memory recalls where turns change while it looks at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory, VectorMemory, WordLlamaEmbeddings
from testkit.recall import round_of


def test_a_clear_and_an_edit_amid_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at old turns meets a clear of one session and an edit in another: it shows what is there then."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    histories("s1", "u1").add_messages(round_of("I had a boat.", "Did you?"))
    for told in ("I have a cat.", "I have a dog."):
        histories("s2", "u1").append_turn(round_of(told, "Nice."))
    memory = VectorMemory.factory(histories, WordLlamaEmbeddings())("s3", "u1")
    store = memory._core.log.store
    read, meddled = store.turns_at, []

    def turns_at(user_id: str, places: Any) -> Any:
        if not meddled:
            meddled.append(True)
            histories("s1", "u1").clear()
            histories("s2", "u1").edit(2, round_of("I have a parrot.", "Nice."))
        return read(user_id, places)

    monkeypatch.setattr(store, "turns_at", turns_at)
    hits = memory.search("What do I have?")
    assert {hit.text.split("\n")[0] for hit in hits} == {"human: I have a cat.", "human: I have a parrot."}
    assert meddled


def test_a_clear_amid_a_save(tmp_path: Path) -> None:
    """A turn that is saved without a load is refused, too, if its session is cleared while it is embedded."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "memory.db")

    class Clearing(WordLlamaEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if any("parrot" in text for text in texts):
                histories("s1", "u1").clear()
            return super().embed_documents(texts)

    memory = VectorMemory.factory(histories, Clearing())("s1", "u1")
    memory.save(round_of("I have a cat.", "Nice."))
    memory.save(round_of("I have a parrot.", "Nice."))
    assert histories("s1", "u1").messages == []


def test_a_local_model_that_fails(tmp_path: Path) -> None:
    """A turn that is saved by hand is kept, and found by its words."""

    class Failing(WordLlamaEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise MemoryError("no room")

    memory = VectorMemory.factory(SQLiteChatMessageHistory.factory(tmp_path / "memory.db"), Failing())("s1", "u1")
    memory.save(round_of("I have a parrot.", "Nice."))
    assert [hit.text.split("\n")[0] for hit in memory.search("Who has a parrot?")] == ["human: I have a parrot."]
