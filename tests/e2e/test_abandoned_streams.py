"""Streams of a real model that nobody reads to the end: what had come is kept and marked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, closing
from functools import reduce
from operator import add
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage, message_chunk_to_message

from langchain_memkit import create_runnable_with_message_history

pytestmark = pytest.mark.e2e

Documents = Callable[[str], list[dict[str, Any]]]

QUESTION = "Tell me a long story about the sea."
CONFIG = {"configurable": {"session_id": "s1", "user_id": "nemo"}}
ENOUGH = 5


def stop_at_break(chat: Any, received: list[Any], runner: asyncio.Runner) -> None:
    """The usual way: `break`, and the generator goes with its last reference."""
    for chunk in chat.stream(QUESTION, CONFIG):
        received.append(chunk)
        if len(received) == ENOUGH:
            break


def stop_by_close(chat: Any, received: list[Any], runner: asyncio.Runner) -> None:
    """`close()`, as a web framework calls it when its client has gone."""
    with closing(chat.stream(QUESTION, CONFIG)) as stream:
        received += [next(stream) for _ in range(ENOUGH)]


def stop_by_aclose(chat: Any, received: list[Any], runner: asyncio.Runner) -> None:
    """`aclose()`."""

    async def consume() -> None:
        async with aclosing(chat.astream(QUESTION, CONFIG)) as stream:
            received.extend([await anext(stream) for _ in range(ENOUGH)])

    runner.run(consume())


def stop_by_cancel(chat: Any, received: list[Any], runner: asyncio.Runner) -> None:
    """The task is cancelled while it waits for the model."""

    async def consume(stream: AsyncIterator[Any]) -> None:
        async for chunk in stream:
            received.append(chunk)
            if len(received) == ENOUGH:
                asyncio.current_task().cancel()

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(consume(chat.astream(QUESTION, CONFIG)))

    runner.run(main())


@pytest.fixture(params=[stop_at_break, stop_by_close, stop_by_aclose, stop_by_cancel])
def received(request: pytest.FixtureRequest, model: Any, histories: Any, runner: asyncio.Runner) -> list[Any]:
    """The chunks that the consumer got before the stream ended early, in each of the ways."""
    chunks: list[Any] = []
    request.param(create_runnable_with_message_history(model, histories), chunks, runner)
    return chunks


def test_partial_answer_is_kept_and_marked(received: list[Any], histories: Any, documents: Documents) -> None:
    """What the consumer got is stored, with its question, at once, as one document marked as aborted."""
    (document,) = documents("s1")
    asked, answered = document["messages"]
    partial = message_chunk_to_message(reduce(add, received))
    assert partial.text.strip()
    assert len(received) == ENOUGH
    assert asked == {"role": "human", "content": QUESTION, "id": asked["id"]}
    assert answered == {
        "role": "ai",
        "content": partial.text,
        "id": partial.id,
        "response_metadata": {**partial.response_metadata, "memkit_status": "aborted"},
    }
    assert "finish_reason" not in answered["response_metadata"]
    human, ai = histories("s1", "nemo").messages
    assert (type(human), type(ai)) == (HumanMessage, AIMessage)
    assert ai.response_metadata["memkit_status"] == "aborted"


def test_conversation_goes_on(model: Any, histories: Any, model_server: Any, documents: Documents) -> None:
    """After an aborted turn the model is given what the user has seen of it, and the next turn is an ordinary one."""
    question = f"Tell me a long story about Nemo{uuid4().hex[:8]}."
    chat = create_runnable_with_message_history(model, histories)
    with closing(chat.stream(question, CONFIG)) as stream:
        seen = "".join(next(stream).text for _ in range(ENOUGH))
    answer = chat.invoke("Go on.", CONFIG)
    assert model_server.prompts(about=question)[-1][1:] == [("user", question), ("assistant", seen), ("user", "Go on.")]
    assert [document["seq"] for document in documents("s1")] == [1, 2]
    assert histories("s1", "nemo").messages[-1] == answer
    assert "memkit_status" not in answer.response_metadata


def test_stopped_before_the_first_word(model: Any, histories: Any, documents: Documents) -> None:
    """A stream that is closed when only its empty opening chunk has come leaves nothing."""
    chat = create_runnable_with_message_history(model, histories)
    with closing(chat.stream(QUESTION, CONFIG)) as stream:
        assert next(stream).text == ""
    assert documents("s1") == []


def test_cancelled_call_stores_nothing(
    model: Any, histories: Any, documents: Documents, runner: asyncio.Runner
) -> None:
    """A call that runs into a time limit has yielded nothing, so its turn did not happen."""
    chat = create_runnable_with_message_history(model, histories)
    runner.run(chat.ainvoke(QUESTION, CONFIG))
    with pytest.raises(TimeoutError):
        runner.run(asyncio.wait_for(chat.ainvoke("Go on.", CONFIG), 0.05))
    assert [document["seq"] for document in documents("s1")] == [1]


@pytest.mark.parametrize("stop", [stop_by_close, stop_by_aclose])
def test_discard(model: Any, histories: Any, documents: Documents, runner: asyncio.Runner, stop: Any) -> None:
    """With `on_abort="discard"` an abandoned stream leaves nothing."""
    chunks: list[Any] = []
    stop(create_runnable_with_message_history(model, histories, on_abort="discard"), chunks, runner)
    assert len(chunks) == ENOUGH
    assert documents("s1") == []
