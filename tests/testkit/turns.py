"""Cases of turns in a chain, whatever keeps its history: retries, clears, failures, aborts, redaction."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.base import RunnableGenerator

from langchain_memkit.errors import (
    HistoryWriteError,
    IdempotencyConflictError,
    MessageEncodeError,
    StaleTurnError,
)
from langchain_memkit.messages.trimming import STATUS
from langchain_memkit.runnables import create_runnable_with_message_history
from langchain_memkit.testing.fakes import FakeChatModel
from langchain_memkit.testing.langchain_histories import MakeHistory, text_of_each
from testkit.styles import AnyRunnable, Styles

BROKEN = AIMessage("", tool_calls=[{"name": "f", "args": {"x": object()}, "id": "1"}])


def streaming(function: Callable[[Any], Any]) -> AnyRunnable:
    """Make a runnable that streams what the generator function yields for its whole input."""

    def transform(inputs: Iterator[object]) -> Iterator[object]:
        for value in inputs:
            yield from function(value)

    async def atransform(inputs: AsyncIterator[object]) -> AsyncIterator[object]:
        async for value in inputs:
            if inspect.isasyncgenfunction(function):
                async for chunk in function(value):
                    yield chunk
            else:
                for chunk in function(value):
                    yield chunk

    if inspect.isasyncgenfunction(function):
        return RunnableGenerator(atransform)
    return RunnableGenerator(transform, atransform)


S1: RunnableConfig = {"configurable": {"session_id": "s1"}}


class HistoryTurnCases:
    """Cases of a chain's turns over a history; give it a `get_session_history(session_id, user_id=None)` fixture."""

    @pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
    def run(self, request: pytest.FixtureRequest) -> Styles:
        """Return `run(chain, value, config)` in each style."""
        return Styles(request.param)

    def test_remembers(self, get_session_history: MakeHistory, run: Styles) -> None:
        """The second turn sees the first; question and answer are stored as whole messages, one row a turn."""
        chat = create_runnable_with_message_history(FakeChatModel(), get_session_history)
        run(chat, "My name is Nemo.", S1)
        run(chat, "What is my name?", S1)
        stored = get_session_history("s1").messages
        assert [type(m) for m in stored] == [HumanMessage, AIMessage] * 2
        assert text_of_each(stored)[::3] == ["My name is Nemo.", "You told me: My name is Nemo."]
        assert [len(turn.messages) for turn in get_session_history("s1").iter_turns()] == [2, 2]

    def test_cleared_during_the_turn(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A turn that began before a clear is answered, but not stored, and that is reported."""
        dropped: list[HistoryWriteError] = []

        def model(messages: list[BaseMessage]) -> str:
            get_session_history("s1").clear()
            return "about what you said before"

        get_session_history("s1").add_user_message("a secret")
        chat = create_runnable_with_message_history(model, get_session_history, on_dropped_turn=dropped.append)
        assert "about what" in str(run(chat, "hello", S1))
        assert [type(error) for error in dropped] == [StaleTurnError]
        assert get_session_history("s1").messages == []
        strict = create_runnable_with_message_history(model, get_session_history, on_dropped_turn="raise")
        with pytest.raises(StaleTurnError) as raised:
            run(strict, "hello", S1)
        assert "about what" in str(raised.value.output)

    def test_retried_turn(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A retry with the same turn_id stores once, even if the model words its answer differently."""
        answers = iter(["first", "second", "third"])
        dropped: list[HistoryWriteError] = []
        chat = create_runnable_with_message_history(
            lambda _: next(answers), get_session_history, on_dropped_turn=dropped.append
        )
        config: RunnableConfig = {"configurable": {"session_id": "s1", "turn_id": "t1"}}
        run(chat, "hello", config)
        run(chat, "hello", config)
        assert text_of_each(get_session_history("s1").messages) == ["hello", "first"]
        assert [type(error) for error in dropped] == [IdempotencyConflictError]
        with pytest.raises(IdempotencyConflictError):
            run(chat, "another question", config)

    def test_resent_conversation(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A client that sends the whole conversation again, with ids, does not double it; the model sees it once."""
        model = FakeChatModel()
        chat = create_runnable_with_message_history(model, get_session_history)
        sent: list[BaseMessage] = []
        for i in range(3):
            sent.append(HumanMessage(f"fact {i}", id=f"q{i}"))
            run(chat, list(sent), S1)
            sent.append(get_session_history("s1").messages[-1])
        assert get_session_history("s1").messages == sent
        assert [len(call) for call in model.calls] == [1, 3, 5]

    def test_parallel_turns_of_one_session(self, get_session_history: MakeHistory) -> None:
        """Overlapping turns with list input lose no message and keep question and answer together."""
        chat = create_runnable_with_message_history(lambda messages: f"re: {messages[-1].text}", get_session_history)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: chat.invoke([HumanMessage(f"q{i}")], S1), range(24)))
        stored = text_of_each(get_session_history("s1").messages)
        assert sorted(stored[::2]) == sorted(f"q{i}" for i in range(24))
        assert stored[1::2] == [f"re: {q}" for q in stored[::2]]

    def test_tool_messages_are_part_of_the_turn(self, get_session_history: MakeHistory, run: Styles) -> None:
        """Tool calls and results in the output are stored with question and answer, as one row."""
        calls = [tool_call(name="f", args={}, id="1")]

        def agent(_: object) -> dict[str, list[BaseMessage]]:
            return {"output": [AIMessage("", tool_calls=calls), ToolMessage("42", tool_call_id="1"), AIMessage("42.")]}

        run(create_runnable_with_message_history(agent, get_session_history), "compute", S1)
        (turn,) = get_session_history("s1").iter_turns()
        assert [m.type for m in turn.messages] == ["human", "ai", "tool", "ai"]

    def test_users_and_sessions_are_apart(self, get_session_history: MakeHistory, run: Styles) -> None:
        """user_id and session_id (else thread_id) of the config choose the conversation."""
        chat = create_runnable_with_message_history(FakeChatModel(), get_session_history)
        run(chat, "I am one.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
        run(chat, "I am two.", {"configurable": {"thread_id": "s1", "user_id": "u2"}})
        assert text_of_each(get_session_history("s1", "u1").messages)[0] == "I am one."
        assert text_of_each(get_session_history("s1", "u2").messages)[0] == "I am two."
        assert get_session_history("s1").messages == []

    @pytest.fixture(params=["stream", "astream"])
    def stream(self, request: pytest.FixtureRequest) -> Styles:
        """Return `stream(chain, value, config, stop_after=n)` in both styles."""
        return Styles(request.param)

    def test_stream_abandoned(self, get_session_history: MakeHistory, stream: Styles) -> None:
        """The chunks yielded before the stream was closed are stored when close() returns, marked as aborted."""
        chat = create_runnable_with_message_history(FakeChatModel(), get_session_history)
        stream(chat, "My name is Captain Nemo.", S1)
        chunks = stream(chat, "What is my name?", S1, stop_after=2)
        question, partial = get_session_history("s1").messages[2:]
        assert question.text == "What is my name?"
        assert type(partial) is AIMessage
        assert partial.text == "".join(chunk.text for chunk in chunks) == "You told "
        assert partial.response_metadata[STATUS] == "aborted"

    def test_task_cancelled_while_streaming(self, get_session_history: MakeHistory) -> None:
        """A cancelled task has stored its partial answer when the cancellation arrives at its caller."""
        model = FakeChatModel(responses=["so far and no further"], delay=0.2)
        chat = create_runnable_with_message_history(model, get_session_history)

        async def go() -> None:
            begun = asyncio.Event()

            async def consume() -> None:
                async for _ in chat.astream("hello", S1):
                    begun.set()

            task = asyncio.create_task(consume())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(go())
        stored = get_session_history("s1").messages
        assert text_of_each(stored) == ["hello", "so "]
        assert stored[1].response_metadata[STATUS] == "aborted"

    def test_batch(self, get_session_history: MakeHistory) -> None:
        """Each input of a batch is a turn of its own session."""
        chat = create_runnable_with_message_history(FakeChatModel(), get_session_history)
        configs: list[RunnableConfig] = [{"configurable": {"session_id": f"s{i}"}} for i in range(4)]
        chat.batch([f"I am {i}." for i in range(4)], configs)
        asyncio.run(chat.abatch(["Who am I?"] * 4, configs))
        assert [get_session_history(f"s{i}").messages[-1].text for i in range(4)] == [
            f"You told me: I am {i}." for i in range(4)
        ]

    def test_save_fails(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A failed save raises, carries the answer, and leaves nothing half stored."""
        broken = create_runnable_with_message_history(
            FakeChatModel(), get_session_history, before_save=lambda messages: [*messages, BROKEN]
        )
        with pytest.raises(HistoryWriteError) as raised:
            run(broken, "My name is Nemo.", S1)
        assert isinstance(raised.value, MessageEncodeError)
        assert raised.value.output.content == "Noted."
        assert raised.value.turn_id
        assert get_session_history("s1").messages == []

    def test_task_cancelled_during_the_save(self, get_session_history: MakeHistory) -> None:
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
        assert text_of_each(get_session_history("s1").messages) == ["hello", "Noted."]

    def test_save_fails_logged(
        self, get_session_history: MakeHistory, run: Styles, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With on_save_error="log" the answer is returned and the failure is in the log."""
        chat = create_runnable_with_message_history(
            FakeChatModel(), get_session_history, before_save=lambda messages: [BROKEN], on_save_error="log"
        )
        assert run(chat, "hello", S1)
        assert "turn not stored" in caplog.text

    def test_save_fails_callable(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A callable gets the error with the answer in it."""
        seen: list[HistoryWriteError] = []
        chat = create_runnable_with_message_history(
            FakeChatModel(), get_session_history, before_save=lambda messages: [BROKEN], on_save_error=seen.append
        )
        run(chat, "hello", S1)
        assert [error.output.content for error in seen] == ["Noted."]

    def test_model_fails(self, get_session_history: MakeHistory, run: Styles) -> None:
        """The turn did not happen: the model's own error is raised and nothing is stored."""
        chat = create_runnable_with_message_history(
            FakeChatModel(error=OSError("model down"), error_after=1), get_session_history
        )
        with pytest.raises(OSError, match="model down"):
            run(chat, "hello", S1)
        assert get_session_history("s1").messages == []

    def test_model_fails_save_input(self, get_session_history: MakeHistory, run: Styles) -> None:
        """With on_model_error="save_input" the question is kept."""
        model = FakeChatModel(error=OSError("model down"), error_after=1)
        chat = create_runnable_with_message_history(model, get_session_history, on_model_error="save_input")
        with pytest.raises(OSError, match="model down"):
            run(chat, "hello", S1)
        assert text_of_each(get_session_history("s1").messages) == ["hello"]

    def test_before_save_redacts(self, get_session_history: MakeHistory, run: Styles) -> None:
        """The result of before_save is stored; the caller gets the answer unredacted, and the input is not changed."""

        def redact(messages: list[BaseMessage]) -> list[BaseMessage]:
            return [m.model_copy(update={"content": m.text.replace("4711", "[pin]")}) for m in messages]

        asked = HumanMessage("My pin is 4711.")
        chat = create_runnable_with_message_history(lambda _: "4711 it is", get_session_history, before_save=redact)
        assert "4711" in str(run(chat, [asked], S1))
        assert text_of_each(get_session_history("s1").messages) == ["My pin is [pin].", "[pin] it is"]
        assert asked == HumanMessage("My pin is 4711.")

    def test_preprocessor_changes_the_view_only(self, get_session_history: MakeHistory, run: Styles) -> None:
        """The model sees what the preprocessor returns; the log keeps everything."""
        model = FakeChatModel()
        chat = create_runnable_with_message_history(
            model, get_session_history, preprocessor=lambda messages: [SystemMessage("summary"), *messages[-2:]]
        )
        for i in range(3):
            run(chat, f"fact {i}", S1)
        assert text_of_each(model.calls[-1]) == ["summary", "fact 1", "Noted.", "fact 2"]
        assert len(get_session_history("s1").messages) == 6

    def test_stream_abandoned_discard(self, get_session_history: MakeHistory, stream: Styles) -> None:
        """With on_abort="discard" a stopped turn leaves nothing."""
        chat = create_runnable_with_message_history(FakeChatModel(), get_session_history, on_abort="discard")
        stream(chat, "What is my name?", S1, stop_after=1)
        assert get_session_history("s1").messages == []

    def test_stream_abandoned_with_open_tool_call(self, get_session_history: MakeHistory, stream: Styles) -> None:
        """A tool call that was cut off is not stored: providers refuse a call without its result."""
        call = tool_call_chunk(name="search", args='{"q": "s', id="1", index=0)

        def speak(_: object) -> Iterator[AIMessageChunk]:
            yield AIMessageChunk(content="Let me see. ")
            yield AIMessageChunk(content="", tool_call_chunks=[call])
            yield AIMessageChunk(content="never read")

        chat = create_runnable_with_message_history(streaming(speak), get_session_history)
        stream(chat, "hello", S1, stop_after=2)
        (_, partial) = get_session_history("s1").messages
        assert partial.text == "Let me see. "
        assert not partial.tool_calls
        assert not partial.invalid_tool_calls

    def test_nothing_yielded_nothing_stored(self, get_session_history: MakeHistory, stream: Styles) -> None:
        """A stream stopped before anything readable came leaves nothing."""

        def speak(_: object) -> Iterator[AIMessageChunk]:
            yield AIMessageChunk(content="")
            yield AIMessageChunk(content="never read")

        chat = create_runnable_with_message_history(streaming(speak), get_session_history)
        stream(chat, "hello", S1, stop_after=1)
        assert get_session_history("s1").messages == []

    def test_interrupted_by_the_keyboard(self, get_session_history: MakeHistory) -> None:
        """Ctrl-C in the middle of a stream stores the partial answer."""

        def speak(_: object) -> Iterator[AIMessageChunk]:
            yield AIMessageChunk(content="so far ")
            raise KeyboardInterrupt

        chat = create_runnable_with_message_history(streaming(speak), get_session_history)
        with pytest.raises(KeyboardInterrupt):
            list(chat.stream("hello", S1))
        assert text_of_each(get_session_history("s1").messages) == ["hello", "so far "]

    def test_task_cancelled_before_the_answer(self, get_session_history: MakeHistory) -> None:
        """A task cancelled while the model thinks stores nothing."""

        async def go() -> None:
            begun = asyncio.Event()

            async def think(_: object) -> str:
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
