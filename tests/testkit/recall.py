"""Contract for recall by `VectorMemory` over the histories of any store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit import WordLlamaEmbeddings
from langchain_memkit.base import Now, utc_now
from langchain_memkit.memories.vector import VectorMemory, VectorMemoryFactory
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing.memories import MemoryContract

__all__ = ["RecallContract"]

MakeMemory: TypeAlias = Callable[..., VectorMemory]
OpenHistories: TypeAlias = Callable[[Now], Any]

AT = datetime(2026, 1, 2, tzinfo=UTC)


def round_of(asked: str, told: str, name: str | None = None) -> list[BaseMessage]:
    """Make a question and its answer, with ids if they are given a name."""
    ids = (None, None) if name is None else (f"{name}-q", f"{name}-a")
    return [HumanMessage(asked, id=ids[0]), AIMessage(told, id=ids[1])]


class RecallContract(MemoryContract):
    """Contract for histories under `VectorMemory`.

    Give it the fixture `open_histories`: a function of a clock that returns a factory of histories in one place, which
    is empty when a test begins.
    """

    @pytest.fixture
    def make_memory(self, open_histories: OpenHistories) -> MakeMemory:
        """Return a function that opens memories over the histories, whose clock is that of the memory."""

        def make(session_id: str, user_id: str | None = None, **options: Any) -> VectorMemory:
            histories = open_histories(options.get("now", utc_now))
            return VectorMemory(histories, WordLlamaEmbeddings(), session_id, user_id=user_id, **options)

        return make

    @pytest.fixture
    def factory(self, open_histories: OpenHistories) -> VectorMemoryFactory:
        """Return a factory of memories over the histories."""
        return VectorMemory.factory(open_histories(utc_now), WordLlamaEmbeddings())

    def test_another_session_recalls_it(self, make_memory: MakeMemory, call: Call) -> None:
        """Another session recalls a round with its date and speakers, in both styles."""
        call(make_memory("s1", "u1", now=lambda: AT), "save", round_of("My cat is called Nemo.", "A fine name!"))
        call(make_memory("s1", "u1", now=lambda: AT), "save", round_of("I work in Oslo.", "By the sea?"))
        [note] = call(make_memory("s2", "u1"), "load", "What is the name of my cat?")
        assert "- 2026-01-02:\n> human: My cat is called Nemo.\n> ai: A fine name!" in note.text
        [hit] = call(make_memory("s2", "u1"), "search", "What is the name of my cat?", k=1)
        assert (hit.session_id, hit.date, hit.speakers) == ("s1", AT, ("human", "ai"))

    def test_doubled_rounds(self, make_memory: MakeMemory, call: Call) -> None:
        """Saving the same messages again stores the same records (LlamaIndex's `set`, called twice, tripled rounds)."""
        memory = make_memory("s1", "u1")
        turns = [*round_of("My cat is called Nemo.", "Cute!", "1"), *round_of("I work in Oslo.", "By the sea?", "2")]
        for _ in range(3):
            call(memory, "save", turns)
            call(memory, "save", turns[:2])
        assert len(call(memory, "search", "Nemo in Oslo")) == 2

    def test_reset_secret(self, make_memory: MakeMemory, call: Call) -> None:
        """`clear` deletes an open round too (LlamaIndex's `reset` keeps it, so that a deleted number came back)."""
        memory = make_memory("s1", "u1")
        call(memory, "save", [HumanMessage("My SSN is 078-05-1120.")])
        call(memory, "clear")
        call(memory, "save", round_of("I work in Oslo.", "By the sea?"))
        assert not any("078" in hit.text for hit in call(make_memory("s2", "u1"), "search", "SSN 078-05-1120"))

    def test_sticky_filters(self, make_memory: MakeMemory, call: Call) -> None:
        """Filters apply to one call (LlamaIndex's first filter stays on the shared block: user B reads A's memory)."""
        call(make_memory("s1", "u1", now=lambda: AT), "save", round_of("Nemo is my cat.", "Cute!"))
        call(make_memory("s2", "u1", now=lambda: AT + timedelta(days=9)), "save", round_of("Nemo ate a fish.", "Oh!"))
        memory = make_memory("s3", "u1")
        for _ in range(2):
            assert [h.session_id for h in call(memory, "search", "Nemo", session_id="s1")] == ["s1"]
            assert [h.session_id for h in call(memory, "search", "Nemo", since=AT + timedelta(days=1))] == ["s2"]
            assert call(make_memory("s3", "u2"), "search", "Nemo") == []
            assert len(call(memory, "search", "Nemo")) == 2

    def test_purge(self, make_memory: MakeMemory, factory: VectorMemoryFactory, call: Call) -> None:
        """A purge deletes everything of one user, and nothing else."""
        for user in ("u1", "u2"):
            call(make_memory("s1", user), "save", round_of("My cat is called Nemo.", "Cute!"))
        assert sum(call(factory, "purge", "u1").values()) >= 1
        assert call(make_memory("s2", "u1"), "search", "cat Nemo") == []
        assert len(call(make_memory("s2", "u2"), "search", "cat Nemo")) == 1
