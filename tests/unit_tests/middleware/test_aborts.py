"""A run that nobody waits for any more: cancelled in a call, closed between its steps, stopped by Ctrl-C."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt

from langchain_memkit import MessageHistoryMiddleware
from langchain_memkit.messages.trimming import STATUS

ANSWER = "one two three four five"


async def test_cancelled_while_the_model_speaks(histories: Any, history: Any, checkpointer: Any) -> None:
    """What had been said when the task was cancelled is stored when it ends, marked; the streaming is the caller's."""
    said = asyncio.Event()
    model = Scripted(script=[ANSWER], delay=0.01, on_word=lambda i: said.set() if i == 2 else None)
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)

    async def consume() -> None:
        async for _ in agent.astream(asking("q"), CONFIG, stream_mode="messages"):
            pass

    task = asyncio.create_task(consume())
    await said.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (row,) = rows(history)
    assert row[0] == "q"
    assert ANSWER.startswith(row[1])
    assert row[1]
    assert history.messages[-1].response_metadata[STATUS] == "aborted"


async def test_closed_while_the_model_speaks(histories: Any, history: Any, checkpointer: Any) -> None:
    """As for a cancelled task: the partial answer is stored when `aclose()` returns."""
    model = Scripted(script=[ANSWER], delay=0.01)
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    async with aclosing(agent.astream(asking("q"), CONFIG, stream_mode="messages")) as stream:
        async for _ in stream:
            break
    ((question, partial),) = rows(history)
    assert question == "q"
    assert ANSWER.startswith(partial)


async def test_cancelled_before_a_word(histories: Any, history: Any, checkpointer: Any) -> None:
    """A model that does not stream has said nothing, so nothing is stored."""

    class Slow(Scripted):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            begun.set()
            await asyncio.sleep(30)

    begun = asyncio.Event()
    agent = create_agent(Slow(), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    task = asyncio.create_task(agent.ainvoke(asking("q"), CONFIG))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rows(history) == []


class Looking(AgentMiddleware[Any, Any, Any]):
    """Tells when the history's middleware has had so many results of `look_up`: stand it before that."""

    def __init__(self, results: int) -> None:
        self.left, self.done = results, threading.Event()

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Around a call."""
        return self._seen(handler(request))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        """The same on an event loop."""
        return self._seen(await handler(request))

    def _seen(self, result: Any) -> Any:
        self.left -= result.name == "look_up"
        if not self.left:
            self.done.set()
        return result


@pytest.mark.parametrize("on_abort", ["save_partial", "discard"])
async def test_cancelled_in_a_tool(histories: Any, history: Any, checkpointer: Any, on_abort: Any) -> None:
    """What came before the tool that was stopped is stored, with the results that were there; the open call is not."""

    async def wait() -> str:
        """Takes long."""
        begun.set()
        await asyncio.sleep(30)
        return "never"

    begun, looking = asyncio.Event(), Looking(2)
    script = [calling(("look_up", {"word": "a"})), calling(("look_up", {"word": "b"}), ("wait", {}), text="hm")]
    history_of = MessageHistoryMiddleware(histories, on_abort=on_abort)
    middleware = [looking, history_of]
    agent = create_agent(Scripted(script=script), [look_up, wait], middleware=middleware, checkpointer=checkpointer)
    task = asyncio.create_task(agent.ainvoke(asking("q"), CONFIG))
    await begun.wait()
    assert await asyncio.to_thread(looking.done.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    kept = [["q", "look_up", "a is a word", "look_up", "b is a word"]]
    assert rows(history) == (kept if on_abort == "save_partial" else [])


async def test_timeout(histories: Any, history: Any) -> None:
    """`asyncio.timeout` around an agent that streams keeps what was said."""
    agent = create_agent(
        Scripted(script=[ANSWER], delay=0.1, on_word=None),
        [],
        middleware=[MessageHistoryMiddleware(histories)],
    )

    async def consume() -> None:
        async with asyncio.timeout(None) as limit:
            async for _ in agent.astream(asking("q"), CONFIG, stream_mode="messages"):
                limit.reschedule(asyncio.get_running_loop().time())  # over once something was said, however slow

    with pytest.raises(TimeoutError):
        await consume()
    assert len(rows(history)) == 1


async def test_sibling_of_a_failed_tool(histories: Any, history: Any) -> None:
    """A tool that is cancelled because another one raised was not abandoned: nothing is stored."""

    async def wait() -> str:
        """Takes long."""
        await asyncio.sleep(30)
        return "never"

    async def explode() -> str:
        """Fails."""
        await asyncio.sleep(0.05)
        raise OSError("down")

    model = Scripted(script=[calling(("look_up", {"word": "a"})), calling(("wait", {}), ("explode", {}))])
    agent = create_agent(model, [wait, explode, look_up], middleware=[MessageHistoryMiddleware(histories)])
    with pytest.raises(OSError, match="down"):
        await agent.ainvoke(asking("q"), CONFIG)
    assert rows(history) == []


def test_keyboard(histories: Any, history: Any, checkpointer: Any) -> None:
    """Ctrl-C while the model speaks keeps what it had said."""
    agent = create_agent(
        Scripted(script=[calling(("look_up", {"word": "a"})), KeyboardInterrupt()]),
        [look_up],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(asking("q"), CONFIG)
    assert rows(history) == [["q", "look_up", "a is a word"]]


class Masking(AgentMiddleware[Any, Any, Any]):
    """Puts another result in the place of a tool's."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Around a call."""
        return ToolMessage("masked", tool_call_id=handler(request).tool_call_id)


def test_masked_result(histories: Any, history: Any, checkpointer: Any) -> None:
    """Of a stopped run, too, the result of a tool is stored as another middleware has made it."""
    agent = create_agent(
        Scripted(script=[calling(("look_up", {"word": "a"})), KeyboardInterrupt()]),
        [look_up],
        middleware=[Masking(), MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(asking("q"), CONFIG)
    assert rows(history) == [["q", "look_up", "masked"]]


def test_keyboard_in_a_tool(histories: Any, history: Any, checkpointer: Any) -> None:
    """Ctrl-C in one of two tools keeps the other one's result."""

    def stop() -> str:
        """Is interrupted."""
        assert looking.done.wait(60)
        raise KeyboardInterrupt

    looking = Looking(1)
    agent = create_agent(
        Scripted(script=[calling(("look_up", {"word": "a"}), ("stop", {}))]),
        [look_up, stop],
        middleware=[looking, MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(asking("q"), CONFIG)
    assert rows(history) == [["q", "look_up", "a is a word"]]


def test_keyboard_between_words(histories: Any, history: Any, checkpointer: Any) -> None:
    """Ctrl-C in the middle of a streamed answer keeps its words."""

    def stop(i: int) -> None:
        if i == 3:
            raise KeyboardInterrupt

    class Streaming(Scripted):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            return generate_from_stream(self._stream(messages, stop, run_manager))

    model = Streaming(script=["hello", ANSWER], on_word=stop)
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    agent.invoke(asking("hi"), CONFIG)
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(asking("q"), CONFIG)
    assert rows(history)[1:] == [["q", "one two three "]]
    model.on_word = None
    agent.invoke(asking("and?"), CONFIG)
    assert model.shown == ["hi", "hello", "q", "one two three ", "and?"]
    assert rows(history)[2:] == [["and?", "ok 3"]]


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
@pytest.mark.skipif(not hasattr(Pregel, "stream_events"), reason="LangGraph has it from 1.2 on")
def test_keyboard_in_the_newer_protocol(histories: Any, history: Any) -> None:
    """As for a stream of tokens: what came as events counts."""

    def stop(i: int) -> None:
        if i == 3:
            raise KeyboardInterrupt

    class Native(Scripted):
        def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            yield from self._chunks(messages)

    agent = create_agent(Native(script=[ANSWER], on_word=stop), [], middleware=[MessageHistoryMiddleware(histories)])
    with pytest.raises(KeyboardInterrupt):
        for _ in agent.stream_events(asking("q"), CONFIG, version="v3"):
            pass
    assert rows(history) == [["q", "one two three "]]


def test_stopped_after_a_failure(histories: Any, history: Any) -> None:
    """A run that recovered from an error, by another middleware's retry, and is then stopped, was abandoned."""
    script = [OSError("down"), calling(("look_up", {"word": "a"})), KeyboardInterrupt()]
    retry = ModelRetryMiddleware(initial_delay=0, jitter=False)
    agent = create_agent(Scripted(script=script), [look_up], middleware=[retry, MessageHistoryMiddleware(histories)])
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(asking("q"), CONFIG)
    assert rows(history) == [["q", "look_up", "a is a word"]]


def test_closed_sync_within_a_call(histories: Any, history: Any, checkpointer: Any) -> None:
    """Python runs the call to its end, and nobody else has looked at what it said: that is not stored."""
    agent = create_agent(
        Scripted(script=[ANSWER, "b"], delay=0.01),
        [],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )
    chunks = agent.stream(asking("q"), CONFIG, stream_mode="messages")
    next(chunks)
    chunks.close()
    assert rows(history) == []
    agent.invoke(asking("q2"), CONFIG)
    assert [row[-1] for row in rows(history)] == ["b"]


def test_asked_again_after_an_abort(histories: Any, history: Any, checkpointer: Any) -> None:
    """The next question is shown after what the stopped run had said, and only it is stored."""
    model = Scripted(script=[calling(("look_up", {"word": "a"})), KeyboardInterrupt(), "done"])
    agent = create_agent(model, [look_up], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(asking("q"), CONFIG)
    agent.invoke(asking("and?"), CONFIG)
    assert model.shown == ["q", "", "a is a word", "and?"]
    assert rows(history) == [["q", "look_up", "a is a word"], ["and?", "done"]]


def test_resumed_after_an_abort(histories: Any, history: Any) -> None:
    """A stopped run that is taken up again adds what it says now; its question is stored once, and shown once."""
    model = Scripted(script=[calling(("look_up", {"word": "a"})), KeyboardInterrupt(), "done"])
    agent = create_agent(
        model, [look_up], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
    )
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(asking("q"), CONFIG)
    agent.invoke(None, CONFIG)
    assert rows(history) == [["q", "look_up", "a is a word"], ["done"]]
    assert model.shown == ["q", "", "a is a word"]


async def test_cancelled_in_a_resumed_tool(histories: Any, history: Any) -> None:
    """A tool that asked a person, went on, and is cancelled then: what had been said is stored."""

    async def ask() -> str:
        """Asks, then takes long."""
        interrupt("?")
        begun.set()
        await asyncio.sleep(30)
        return "never"

    begun = asyncio.Event()
    model = Scripted(script=[calling(("ask", {}), text="I ask")])
    agent = create_agent(model, [ask], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    await agent.ainvoke(asking("q"), CONFIG)
    task = asyncio.create_task(agent.ainvoke(Command(resume="yes"), CONFIG))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rows(history) == [["q", "I ask"]]
