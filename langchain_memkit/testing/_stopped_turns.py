"""Contract cases for turns that are stopped: a closed stream, Ctrl-C, a cancelled task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_memkit.messages.cuts import STATUS
from langchain_memkit.runnables import create_runnable_with_message_history
from langchain_memkit.testing._styles import Styles, streaming
from langchain_memkit.testing.fakes import FakeChatModel
from langchain_memkit.testing.langchain_histories import texts

S1: RunnableConfig = {"configurable": {"session_id": "s1"}}


class StoppedTurnCases:
    """Part of `HistoryTurnContract`, which provides the fixture `get_session_history`."""

    @pytest.fixture(params=["stream", "astream"])
    def stream(self, request: pytest.FixtureRequest) -> Styles:
        """Return `stream(chain, value, config, stop_after=n)` in both styles."""
        return Styles(request.param)

    def test_stream_abandoned(self, get_session_history: Any, stream: Styles) -> None:
        """The chunks yielded before the stream was closed are stored when close() returns, marked as aborted."""
        chat = create_runnable_with_message_history(FakeChatModel(), get_session_history)
        stream(chat, "My name is Captain Nemo.", S1)
        chunks = stream(chat, "What is my name?", S1, stop_after=2)
        question, partial = get_session_history("s1").messages[2:]
        assert question.text == "What is my name?"
        assert type(partial) is AIMessage
        assert partial.text == "".join(chunk.text for chunk in chunks) == "You told "
        assert partial.response_metadata[STATUS] == "aborted"

    def test_stream_abandoned_discard(self, get_session_history: Any, stream: Styles) -> None:
        """With on_abort="discard" a stopped turn leaves nothing."""
        chat = create_runnable_with_message_history(FakeChatModel(), get_session_history, on_abort="discard")
        stream(chat, "What is my name?", S1, stop_after=1)
        assert get_session_history("s1").messages == []

    def test_stream_abandoned_with_open_tool_call(self, get_session_history: Any, stream: Styles) -> None:
        """A tool call that was cut off is not stored: providers refuse a call without its result."""
        call = [{"name": "search", "args": '{"q": "s', "id": "1", "index": 0, "type": "tool_call_chunk"}]

        def speak(_: Any) -> Iterator[AIMessageChunk]:
            yield AIMessageChunk(content="Let me see. ")
            yield AIMessageChunk(content="", tool_call_chunks=call)  # type: ignore[arg-type]  # this dict is one
            yield AIMessageChunk(content="never read")

        chat = create_runnable_with_message_history(streaming(speak), get_session_history)
        stream(chat, "hello", S1, stop_after=2)
        (_, partial) = get_session_history("s1").messages
        assert partial.text == "Let me see. "
        assert not partial.tool_calls
        assert not partial.invalid_tool_calls

    def test_nothing_yielded_nothing_stored(self, get_session_history: Any, stream: Styles) -> None:
        """A stream stopped before anything readable came leaves nothing."""

        def speak(_: Any) -> Iterator[AIMessageChunk]:
            yield AIMessageChunk(content="")
            yield AIMessageChunk(content="never read")

        chat = create_runnable_with_message_history(streaming(speak), get_session_history)
        stream(chat, "hello", S1, stop_after=1)
        assert get_session_history("s1").messages == []

    def test_interrupted_by_the_keyboard(self, get_session_history: Any) -> None:
        """Ctrl-C in the middle of a stream stores the partial answer."""

        def speak(_: Any) -> Iterator[AIMessageChunk]:
            yield AIMessageChunk(content="so far ")
            raise KeyboardInterrupt

        chat = create_runnable_with_message_history(streaming(speak), get_session_history)
        with pytest.raises(KeyboardInterrupt):
            list(chat.stream("hello", S1))
        assert texts(get_session_history("s1").messages) == ["hello", "so far "]

    def test_task_cancelled_while_streaming(self, get_session_history: Any) -> None:
        """A cancelled task has stored its partial answer when the cancellation arrives at its caller."""

        async def go() -> None:
            begun = asyncio.Event()

            async def speak(_: Any) -> AsyncIterator[AIMessageChunk]:
                yield AIMessageChunk(content="so far ")
                begun.set()
                await asyncio.sleep(60)

            chat = create_runnable_with_message_history(streaming(speak), get_session_history)

            async def consume() -> None:
                async for _ in chat.astream("hello", S1):
                    pass

            task = asyncio.create_task(consume())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(go())
        stored = get_session_history("s1").messages
        assert texts(stored) == ["hello", "so far "]
        assert stored[1].response_metadata[STATUS] == "aborted"

    def test_task_cancelled_before_the_answer(self, get_session_history: Any) -> None:
        """A task cancelled while the model thinks stores nothing."""

        async def go() -> None:
            begun = asyncio.Event()

            async def think(_: Any) -> str:
                begun.set()
                await asyncio.sleep(60)
                return "never"

            chat = create_runnable_with_message_history(RunnableLambda(think), get_session_history)
            task = asyncio.create_task(chat.ainvoke("hello", S1))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(go())
        assert get_session_history("s1").messages == []

    def test_task_cancelled_during_the_save(self, get_session_history: Any) -> None:
        """A save that has begun is finished, however often its task is cancelled."""

        async def go() -> None:
            saving = asyncio.Event()

            async def slow(messages: list[BaseMessage]) -> list[BaseMessage]:
                saving.set()
                await asyncio.sleep(0.1)
                return messages

            chat = create_runnable_with_message_history(
                FakeChatModel(),
                get_session_history,
                before_save=slow,  # type: ignore[arg-type]  # async ones are taken too
            )
            task = asyncio.create_task(chat.ainvoke("hello", S1))
            await saving.wait()
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(go())
        assert texts(get_session_history("s1").messages) == ["hello", "Noted."]
