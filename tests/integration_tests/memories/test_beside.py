"""What memories read before they are asked: beside the history, in sync turns too where that waits for a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

from langchain_memkit import (
    ComposedMemory,
    EntityMemory,
    KeyValueMemory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    VectorMemory,
    WordLlamaEmbeddings,
    create_runnable_with_message_history,
    session,
)
from langchain_memkit.base import Mention
from langchain_memkit.testing import FakeChatModel

HERE = session("s1", user_id="u1")


def extract(text: str) -> list[Mention]:
    """One name."""
    return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in re.finditer("Nemo", text)]


class Meeting(CommandListener):
    """Holds a read of the history back until a memory reads as well: in a turn that reads one by one that never is.

    A history reads the rows of its session, a vector memory those of all sessions of its user.
    """

    def __init__(self) -> None:
        self.begun, self.met, self.missed = Event(), 0, 0
        self.waits = False

    def started(self, event: Any) -> None:
        """Wait in the read of the history; tell it of those of memories."""
        if event.command_name not in ("find", "aggregate"):
            return
        of_session = "session_id" in event.command.get("filter", {})
        if event.command.get(event.command_name) != "turns" or not of_session:
            self.begun.set()
        elif self.waits:
            met = self.begun.wait(60)
            self.met, self.missed = self.met + met, self.missed + (not met)

    def succeeded(self, event: Any) -> None:
        """Nothing."""

    def failed(self, event: Any) -> None:
        """Nothing."""


@pytest.fixture
def meeting() -> Meeting:
    """Of the reads of one client."""
    return Meeting()


@pytest.fixture
def histories(client: MongoClient[Any], database: str) -> Any:
    """Over that client."""
    return MongoDBChatMessageHistory.factory(None, database, "turns", client=client)


@pytest.fixture
def client(standalone: Any, meeting: Meeting) -> Iterator[MongoClient[Any]]:
    """One that is listened to."""
    with MongoClient(standalone.uri, event_listeners=[meeting]) as client:
        yield client


@pytest.fixture(params=["vector", "entity", "composed"])
def memories(request: pytest.FixtureRequest, client: MongoClient[Any], database: str, histories: Any) -> Any:
    """A factory of memories that know something of the user."""
    values = MongoDBKeyValueStore(None, database, client=client)
    entities = EntityMemory.factory(histories, extract)
    made: Any = {
        "vector": VectorMemory.factory(histories, WordLlamaEmbeddings()),
        "entity": entities,
        "composed": ComposedMemory.factory(KeyValueMemory.factory(values), entities),
    }[request.param]
    made("old", "u1").save([HumanMessage("Nemo lives in the reef."), AIMessage("I see.")])
    return made


@pytest.mark.parametrize("door", ["chain", "agent"])
def test_a_sync_turn_reads_them_beside_the_history(door: str, meeting: Meeting, histories: Any, memories: Any) -> None:
    """The read of the history and that of the memories are under way at the same time, and the model sees both."""
    model = FakeChatModel()
    chat: Any = create_runnable_with_message_history(model, histories, memories=[memories])
    value: Any = "Where does Nemo live?"
    if door == "agent":
        chat = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories, memories=[memories])])
        value = {"messages": [("user", value)]}
    chat.invoke(value, HERE)  # opens connections, and finds what was saved before
    meeting.begun.clear()
    meeting.waits = True
    chat.invoke(value, HERE)
    assert (meeting.met > 0, meeting.missed) == (True, 0)
    assert "Nemo lives in the reef." in "\n".join(message.text for message in model.calls[-1])
