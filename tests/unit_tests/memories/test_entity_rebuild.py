"""Entity memory rebuilt from transcripts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.entity import EntityMemory


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`call(memory, "save", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return run


TALK = [("m1", "dory swam by"), ("m2", "Then we saw Dory again"), ("m3", "Nemo was away. Dory knew.")]


def only(text: str) -> list[tuple[str, str, int, int]]:
    """Finds Dory and Nemo where they are capitalised."""
    return [(m.group(), "PERSON", m.start(), m.end()) for m in re.finditer(r"\b(?:Dory|Nemo)\b", text)]


def test_rebuild(call: Callable[..., Any]) -> None:
    """Names known late are found early; twice changes nothing; what is not in the transcript goes; others stay."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    entities = EntityMemory.factory(only, get_session_history=histories)
    memory, other = entities("s1", "u1"), entities("s2", "u1")
    for name, text in TALK:
        histories("s1", "u1").append_turn([HumanMessage(text, id=name)])
        memory.save(histories("s1", "u1").messages[-1:])
    memory.save([HumanMessage("I dreamt of Nemo", id="never stored")])
    histories("s2", "u1").append_turn([HumanMessage("Nemo left", id="m4")])
    other.save([HumanMessage("Nemo left", id="m4")])
    assert call(memory, "rebuild") == {"messages": 3, "added": 1, "removed": 1}
    assert call(memory, "rebuild", progress=False) == {"messages": 3, "added": 0, "removed": 0}
    found = {e.name: [f.message_id for f in e.facts] for e in memory.entities()}
    assert found == {"Nemo": ["m3", "m4"], "Dory": ["m1", "m2", "m3"]}
    dory = next(e for e in memory.entities() if e.name == "Dory")
    stored = next(turn for turn in histories("s1", "u1").iter_turns())
    assert dory.since == stored.created_at
    again = EntityMemory.factory(only)
    assert call(again, "rebuild", histories, "u1") == {"messages": 4, "added": 5, "removed": 0}
    assert call(again, "rebuild", histories, "u1", progress=False) == {"messages": 4, "added": 0, "removed": 0}
    assert {e.name: [f.message_id for f in e.facts] for e in again("s1", "u1").entities()} == found
    histories("s1", "u1").clear()
    assert call(again, "rebuild", histories, "u1") == {"messages": 1, "added": 0, "removed": 4}


class Foreign:
    """A history of another package: LangChain's verbs only."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages

    async def aget_messages(self) -> list[Any]:
        """Async twin of `messages`."""
        return self.messages


def test_rebuild_from_another_history(call: Callable[..., Any]) -> None:
    """Any LangChain history will do; without one there must be a factory."""
    history = Foreign([HumanMessage(text) for _, text in TALK])
    memory = EntityMemory(only, "s1", user_id="u1")
    assert call(memory, "rebuild", history) == {"messages": 3, "added": 4, "removed": 0}
    assert call(memory, "rebuild", history) == {"messages": 3, "added": 0, "removed": 0}
    of_texts = Foreign([text for _, text in TALK])
    assert call(memory, "rebuild", of_texts) == {"messages": 3, "added": 0, "removed": 0}
    with pytest.raises(ConfigurationError, match="get_session_history"):
        call(memory, "rebuild")


def test_rebuild_keeps_caps() -> None:
    """A transcript with more than the caps allow leaves the newest, and a second time changes nothing."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    for i in range(30):
        histories("s1", "u1").append_turn([HumanMessage(f"I saw Nemo {i} times", id=str(i))])
    entities = EntityMemory.factory(only, get_session_history=histories, max_facts=7)
    assert entities("s1", "u1").rebuild(progress=False)["messages"] == 30
    [entity] = entities("s1", "u1").entities()
    assert [f.message_id for f in entity.facts] == [str(i) for i in range(23, 30)]
    assert entities("s1", "u1").rebuild(progress=False) == {"messages": 30, "added": 0, "removed": 0}
