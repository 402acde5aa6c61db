"""Contract for recall by `VectorMemory` over any vector store.

Example:
    ```python
    class TestMyStore(RecallContract):
        @pytest.fixture
        def store(self):
            return MyVectorStore(embedding)
    ```
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeAlias
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.vectorstores import VectorStore

from langchain_memkit.memories.vector import VectorMemory
from langchain_memkit.testing.memories import MemoryContract

__all__ = ["RecallContract"]

MakeMemory: TypeAlias = Callable[..., VectorMemory]
Call: TypeAlias = Callable[..., Any]

AT = datetime(2026, 1, 2, tzinfo=UTC)
WORDS = ("my cat is called Nemo", "I work in Oslo", "the piano is out of tune", "tea at five", "a boat to Bergen")
VERBS = ("save", "save", "save", "search", "search", "load", "clear", "purge", "retry")


def _turn(asked: str, told: str, name: str | None = None) -> list[BaseMessage]:
    ids = (None, None) if name is None else (f"{name}-q", f"{name}-a")
    return [HumanMessage(asked, id=ids[0]), AIMessage(told, id=ids[1])]


class RecallContract(MemoryContract):
    """Contract for a vector store under `VectorMemory`; give it a `store` fixture with an empty store for each test.

    Attributes:
        operations: Number of random operations of two users.
    """

    operations: ClassVar[int] = 500

    @pytest.fixture
    def store(self) -> VectorStore:
        """Return the store under test; override it."""
        raise RuntimeError("give the contract a `store` fixture")

    @pytest.fixture
    def make_memory(self, store: VectorStore) -> MakeMemory:
        """Return a function that opens memories over the store."""
        return lambda session_id, user_id=None, **options: VectorMemory(store, session_id, user_id=user_id, **options)

    def test_another_session_recalls_it(self, make_memory: MakeMemory, call: Call) -> None:
        """Another session recalls a round with its date and speakers, in both styles."""
        call(make_memory("s1", "u1", now=lambda: AT), "save", _turn("My cat is called Nemo.", "A fine name!"))
        call(make_memory("s1", "u1", now=lambda: AT), "save", _turn("I work in Oslo.", "By the sea?"))
        [note] = call(make_memory("s2", "u1"), "load", "What is the name of my cat?")
        assert "(2026-01-02, session s1):\n> human: My cat is called Nemo.\n> ai: A fine name!" in note.text
        [hit] = call(make_memory("s2", "u1"), "search", "What is the name of my cat?", k=1)
        assert (hit.session_id, hit.date, hit.speakers) == ("s1", AT, ("human", "ai"))

    def test_doubled_rounds(self, make_memory: MakeMemory, call: Call) -> None:
        """Saving the same messages again stores the same records (LlamaIndex's `set`, called twice, tripled rounds)."""
        memory = make_memory("s1", "u1")
        turns = [*_turn("My cat is called Nemo.", "Cute!", "1"), *_turn("I work in Oslo.", "By the sea?", "2")]
        for _ in range(3):
            call(memory, "save", turns)
            call(memory, "save", turns[:2])
        assert len(call(memory, "search", "Nemo in Oslo")) == 2

    def test_reset_secret(self, make_memory: MakeMemory, call: Call) -> None:
        """`clear` deletes an open round too (LlamaIndex's `reset` keeps it, so that a deleted number came back)."""
        memory = make_memory("s1", "u1")
        call(memory, "save", [HumanMessage("My SSN is 078-05-1120.")])
        call(memory, "clear")
        call(memory, "save", _turn("I work in Oslo.", "By the sea?"))
        assert not any("078" in hit.text for hit in call(make_memory("s2", "u1"), "search", "SSN 078-05-1120"))

    def test_other_users_cleared(self, make_memory: MakeMemory, call: Call) -> None:
        """`clear` empties one session of one user (LlamaIndex's `reset` clears the store of all users)."""
        for user in ("u1", "u2"):
            for session in ("s1", "s2"):
                call(make_memory(session, user), "save", _turn("My cat is called Nemo.", f"Cute, {session}!"))
        call(make_memory("s1", "u1"), "clear")
        found = {
            user: [h.session_id for h in call(make_memory("s3", user), "search", "cat Nemo")] for user in ("u1", "u2")
        }
        assert {user: sorted(sessions) for user, sessions in found.items()} == {"u1": ["s2"], "u2": ["s1", "s2"]}

    def test_sticky_filters(self, make_memory: MakeMemory, call: Call) -> None:
        """Filters apply to one call (LlamaIndex's first filter stays on the shared block: user B reads A's memory)."""
        call(make_memory("s1", "u1", now=lambda: AT), "save", _turn("Nemo is my cat.", "Cute!"))
        call(make_memory("s2", "u1", now=lambda: AT + timedelta(days=9)), "save", _turn("Nemo ate a fish.", "Oh!"))
        memory = make_memory("s3", "u1")
        for _ in range(2):
            assert [h.session_id for h in call(memory, "search", "Nemo", session_id="s1")] == ["s1"]
            assert [h.session_id for h in call(memory, "search", "Nemo", since=AT + timedelta(days=1))] == ["s2"]
            assert call(make_memory("s3", "u2"), "search", "Nemo") == []
            assert len(call(memory, "search", "Nemo")) == 2

    def test_purge(self, make_memory: MakeMemory, store: VectorStore, call: Call) -> None:
        """A purge deletes everything of one user, and nothing else."""
        for user in ("u1", "u2"):
            call(make_memory("s1", user), "save", _turn("My cat is called Nemo.", "Cute!"))
        factory = VectorMemory.factory(store)
        assert call(factory, "purge", "u1") == {"records": 1}
        assert call(make_memory("s2", "u1"), "search", "cat Nemo") == []
        assert len(call(make_memory("s2", "u2"), "search", "cat Nemo")) == 1

    def test_two_users_never_meet(self, make_memory: MakeMemory, store: VectorStore) -> None:
        """Random operations of two users with equal words and sessions: nobody finds another's or deleted records."""
        step = st.tuples(st.sampled_from(VERBS), st.booleans(), st.sampled_from("xyz"), st.sampled_from(WORDS))

        @settings(
            max_examples=max(1, self.operations // 50),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(st.lists(step, min_size=50, max_size=50))
        def run(steps: list[tuple[str, bool, str, str]]) -> None:
            _play(make_memory, VectorMemory.factory(store), steps)

        run()


def _play(make_memory: MakeMemory, factory: Any, steps: list[tuple[str, bool, str, str]]) -> None:
    users = {first: f"{uuid4().hex}-{first}" for first in (True, False)}
    kept: dict[tuple[str, str], dict[str, list[BaseMessage]]] = {}
    for n, (verb, first, session, words) in enumerate(steps):
        user = users[first]
        memory, mine = make_memory(session, user), kept.setdefault((user, session), {})
        if verb == "save":
            name = f"{user}-{session}-{n}"
            mine[name] = _turn(words, f"Aha, {words}.", name)
            memory.save(mine[name])
        elif verb == "retry" and mine:
            memory.save(mine[min(mine)])
        elif verb == "clear":
            memory.clear()
            mine.clear()
        elif verb == "purge":
            factory.purge(user)
            for place in kept:
                if place[0] == user:
                    kept[place] = {}
        else:
            live = {name for place, turns in kept.items() if place[0] == user for name in turns}
            hits = memory.search(words, k=100)
            assert {h.message_ids[0].removesuffix("-q") for h in hits} <= live
            said = {t[0].text for place, turns in kept.items() if place[0] == user for t in turns.values()}
            assert (words in {h.text.split("\n")[0].removeprefix("human: ") for h in hits}) == (words in said)
            note = memory.load(words)
            assert all((words in m.text) == (words in said) for m in note)
