"""Finished turns of a real model, and what stands in the database afterwards."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any
from uuid import uuid4

import openai
import pytest
from bson import ObjectId, Timestamp
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_chunk_to_message
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

from langchain_memkit import (
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
)

pytestmark = pytest.mark.e2e

Call = Callable[..., Any]
Documents = Callable[[str], list[dict[str, Any]]]

QUESTION = "Tell me a long story about the sea."


def config(session_id: str = "s1") -> dict[str, Any]:
    """Whose turn it is."""
    return {"configurable": {"session_id": session_id, "user_id": "nemo"}}


def whole(received: BaseMessage | list[Any]) -> BaseMessage:
    """What the caller received as one message, whichever way it came."""
    return message_chunk_to_message(reduce(add, received)) if isinstance(received, list) else received


def assert_from_a_model(answer: BaseMessage) -> None:
    """Somebody generated this: there is text, and the server counted its tokens."""
    assert type(answer) is AIMessage
    assert answer.text.strip()
    assert answer.id
    assert answer.usage_metadata
    assert answer.usage_metadata["input_tokens"] > 10
    assert 1 < answer.usage_metadata["output_tokens"] <= 24
    assert answer.response_metadata["finish_reason"] in ("length", "stop")
    assert answer.response_metadata["model_name"] == "local"


def assert_holds(document: dict[str, Any], question: str, answer: BaseMessage) -> None:
    """One document is exactly this question and this answer."""
    asked, answered = document["messages"]
    assert asked == {"role": "human", "content": question, "id": asked["id"]}
    assert asked["id"] not in ("", None, answer.id)
    assert (answered["role"], answered["content"], answered["id"]) == ("ai", answer.text, answer.id)
    assert answered["usage_metadata"] == answer.usage_metadata
    assert answered["response_metadata"] == answer.response_metadata


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_turn_is_stored_as_received(model: Any, histories: Any, documents: Documents, call: Call, way: str) -> None:
    """A turn is one document; its answer reads back as the whole message that the caller got, metadata included."""
    chat = create_runnable_with_message_history(model, histories)
    answer = whole(call(chat, way, QUESTION, config()))
    assert_from_a_model(answer)
    (document,) = documents("s1")
    assert_holds(document, QUESTION, answer)
    asked, answered = call(histories("s1", "nemo"), "view").messages
    assert asked == HumanMessage(QUESTION, id=document["messages"][0]["id"])
    assert type(answered) is AIMessage
    assert answered == answer


def leaves(value: Any) -> Iterator[Any]:
    """Every key and every value inside, however deep."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_document_is_plain_fields(model: Any, histories: Any, documents: Documents, call: Call) -> None:
    """A turn of a real model reads in a mongo shell: named fields and plain values, nothing encoded, nothing else."""
    chat = create_runnable_with_message_history(model, histories)
    answer = call(chat, "invoke", QUESTION, config())
    (document,) = documents("s1")
    stored_at = document.pop("createdAt")
    assert timedelta(0) <= datetime.now(UTC) - stored_at < timedelta(hours=1)
    assert isinstance(document.pop("_id"), ObjectId)
    assert isinstance(document.pop("changed"), Timestamp)
    assert document == {
        "user_id": "nemo",
        "session_id": "s1",
        "seq": 1,
        "messages": [
            {"role": "human", "content": QUESTION, "id": document["messages"][0]["id"]},
            {
                "role": "ai",
                "content": answer.text,
                "id": answer.id,
                "additional_kwargs": answer.additional_kwargs,
                "response_metadata": answer.response_metadata,
                "usage_metadata": answer.usage_metadata,
            },
        ],
        "tokens": document["tokens"],
        "token_counter": "approximate",
        "op": document["op"],
        "kind": "turn",
        "epoch": document["epoch"],
        "base": 0,
        "v": 1,
    }
    assert len(document["tokens"]) == 2
    assert all(type(count) is int and count > 0 for count in document["tokens"])
    assert all(leaf is None or isinstance(leaf, (str, int, float)) for leaf in leaves(document))
    assert "_memkit" not in list(leaves(document))


def test_batch_is_one_document_per_turn(model: Any, histories: Any, documents: Documents, call: Call) -> None:
    """A batch over several sessions stores each question with its own answer, in its own session."""
    chat = create_runnable_with_message_history(model, histories)
    questions = {f"s{i}": f"Tell me a long story about {thing}." for i, thing in enumerate(("rain", "wind", "snow"))}
    answers = call(chat, "batch", list(questions.values()), [config(name) for name in questions])
    for name, answer in zip(questions, answers, strict=True):
        assert_from_a_model(answer)
        (document,) = documents(name)
        assert_holds(document, questions[name], answer)


def test_batch_in_one_session(model: Any, histories: Any, documents: Documents, call: Call) -> None:
    """Turns of one session that run at the same time are all stored, one after the other, none split."""
    chat = create_runnable_with_message_history(model, histories)
    questions = [f"Tell me a long story about {thing}." for thing in ("rain", "wind", "snow")]
    answers = call(chat, "batch", questions, [config()] * 3)
    stored = documents("s1")
    assert [document["seq"] for document in stored] == [1, 2, 3]
    by_question = {document["messages"][0]["content"]: document for document in stored}
    for question, answer in zip(questions, answers, strict=True):
        assert_holds(by_question[question], question, answer)


def test_astream_events(model: Any, histories: Any, documents: Documents, runner: Any) -> None:
    """The events of a turn carry the answer that is stored, once, and the run ends as the wrapper's own."""
    chat = create_runnable_with_message_history(model, histories)

    async def events() -> list[Any]:
        return [event async for event in chat.astream_events(QUESTION, config(), version="v2")]

    seen = runner.run(events())
    answer = whole([event["data"]["chunk"] for event in seen if event["event"] == "on_chat_model_stream"])
    assert_from_a_model(answer)
    assert (seen[0]["event"], seen[-1]["event"]) == ("on_chain_start", "on_chain_end")
    assert {seen[0]["name"], seen[-1]["name"]} == {"RunnableWithMessageHistory"}
    (document,) = documents("s1")
    assert_holds(document, QUESTION, answer)


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_second_prompt_contains_the_first_turn(
    model: Any, mongodb_uri: str, database: str, model_server: Any, documents: Documents, call: Call, way: str
) -> None:
    """The model is given the first turn word by word before the second question, after a restart of the app as well."""
    name = f"Nemo{uuid4().hex[:8]}"
    first, second = f"My name is {name}. I live in the sea.", "What is my name?"
    answers = []
    for question in (first, second):
        with MongoDBChatMessageHistory.factory(mongodb_uri, database) as histories:
            chat = create_runnable_with_message_history(model, histories)
            answers.append(whole(call(chat, way, question, config())))
    system_line, *before = model_server.prompts(about=name)[0]
    assert before == [("user", first)]
    assert model_server.prompts(about=name)[1:] == [
        [system_line, ("user", first), ("assistant", answers[0].text), ("user", second)]
    ]
    assert answers[1].usage_metadata["input_tokens"] > answers[0].usage_metadata["input_tokens"]
    assert [document["seq"] for document in documents("s1")] == [1, 2]
    for document, question, answer in zip(documents("s1"), (first, second), answers, strict=True):
        assert_holds(document, question, answer)


def test_history_inside_a_prompt(
    model: Any, histories: Any, model_server: Any, documents: Documents, call: Call
) -> None:
    """In a chain with keys the model is given system line, first turn, second question; only the turns are stored."""
    name = f"Nemo{uuid4().hex[:8]}"
    prompt = ChatPromptTemplate.from_messages(
        [("system", "You are a fish."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    chat = create_runnable_with_message_history(
        prompt | model, histories, input_messages_key="input", history_messages_key="chat_history"
    )
    questions = [f"My name is {name}.", "What is my name?"]
    answers = [call(chat, "invoke", {"input": question}, config()) for question in questions]
    assert model_server.prompts(about=name)[-1] == [
        ("system", "You are a fish."),
        ("user", questions[0]),
        ("assistant", answers[0].text),
        ("user", questions[1]),
    ]
    for document, question, answer in zip(documents("s1"), questions, answers, strict=True):
        assert_holds(document, question, answer)


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_refused_request_stores_nothing(model: Any, histories: Any, documents: Documents, call: Call, way: str) -> None:
    """The server refuses a prompt that is too long: its error reaches the caller, and that turn did not happen."""
    chat = create_runnable_with_message_history(model, histories)
    call(chat, "invoke", QUESTION, config())
    with pytest.raises(openai.BadRequestError, match="context"):
        call(chat, way, "sea " * 2000, config())
    assert [document["seq"] for document in documents("s1")] == [1]


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_sqlite(model: Any, model_server: Any, tmp_path: Path, call: Call, way: str) -> None:
    """The same on a file: two rows of two messages, read back as received, the first turn in the second prompt."""
    name = f"Nemo{uuid4().hex[:8]}"
    questions, answers = [f"My name is {name}.", "What is my name?"], []
    for question in questions:
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
            chat = create_runnable_with_message_history(model, histories)
            answers.append(whole(call(chat, way, question, config())))
    assert model_server.prompts(about=name)[-1][1:] == [
        ("user", questions[0]),
        ("assistant", answers[0].text),
        ("user", questions[1]),
    ]
    with closing(sqlite3.connect(tmp_path / "chat.db")) as database:
        rows = database.execute("SELECT user_id, session_id, seq, messages FROM turns ORDER BY seq").fetchall()
    assert [row[:3] for row in rows] == [("nemo", "s1", 1), ("nemo", "s1", 2)]
    for row, question, answer in zip(rows, questions, answers, strict=True):
        assert_from_a_model(answer)
        assert_holds({"messages": json.loads(row[3])}, question, answer)
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        assert [type(message) for message in histories("s1", "nemo").messages] == [HumanMessage, AIMessage] * 2
        assert histories("s1", "nemo").messages[1::2] == answers
