"""A turn with a preprocessor on MongoDB reads its window, however long the conversation is."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.preprocessors import create_trim_preprocessor
from langchain_memkit.testing import FakeChatModel
from testkit.styles import Styles


def fill(collection: Any, session: str, turns: int) -> None:
    """Copies the turn that memkit stored in "template" into a long session."""
    (template,) = collection.find({"session_id": "template"})
    for begin in range(0, turns, 5000):
        collection.insert_many(
            [
                {
                    **template,
                    "_id": ObjectId(),
                    "session_id": session,
                    "seq": i + 1,
                    "op": f"turn:{i}",
                    "messages": [{**m, "id": f"{i}-{k}"} for k, m in enumerate(template["messages"])],
                }
                for i in range(begin, min(begin + 5000, turns))
            ],
            ordered=False,
        )


@pytest.mark.parametrize("style", ["invoke", "astream"])
@pytest.mark.parametrize(("options", "most"), [({"token_counter": len}, 20), ({}, 80)], ids=["messages", "tokens"])
def test_reads_its_window(standalone: Any, database: str, style: str, options: Any, most: int) -> None:
    """At 1,000 and at 20,000 stored messages a turn examines and returns the same few documents."""
    model, figures = FakeChatModel(), []
    run: Any = Styles(style)
    with (
        MongoClient(standalone.uri) as client,
        MongoDBChatMessageHistory.factory(standalone.uri, database) as histories,
    ):
        collection = client[database]["message_store"]
        histories("template").add_messages([HumanMessage("What do I do?"), AIMessage("You ask the same again.")])
        trimmer = create_trim_preprocessor(21 if options else 300, **options)
        chat = create_runnable_with_message_history(model, histories, preprocessor=trimmer)
        for turns in (500, 10_000):
            config = {"configurable": {"session_id": f"of {turns}"}}
            fill(collection, f"of {turns}", turns)
            run(chat, "Warm?", config)
            figures.append(examined(client[database], lambda config=config: run(chat, "And now?", config)))
        assert len(model.calls[-1]) == len(model.calls[1]) > 15
    assert figures[0] == figures[1]
    assert 0 < figures[1]["docsExamined"] <= most
    assert figures[1]["nreturned"] <= most


def examined(database: Any, action: Any) -> dict[str, int]:
    """What the server looked at for an action, by its own profiler."""
    database.command("profile", 2)
    action()
    database.command("profile", 0)
    entries = list(database["system.profile"].find({"ns": {"$regex": r"\.message_store$"}}))
    database["system.profile"].drop()
    return {name: sum(e.get(name, 0) for e in entries) for name in ("docsExamined", "keysExamined", "nreturned")}
