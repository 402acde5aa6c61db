"""`mode="background"`: the answer does not wait for the summary, and nothing is lost or done twice all the same."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.stores import InMemoryStore

from langchain_memkit import (
    SQLiteChatMessageHistory,
    create_history_preprocessor,
    create_runnable_with_message_history,
    purge_user,
)
from langchain_memkit.testing import FakeChatModel
from testkit.scribe import Scribe, marked, marks, talk

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
BESIDE: dict[str, Any] = {
    "max_tokens": 2000,
    "trigger": ("tokens", 600),
    "keep": ("tokens", 200),
    "mode": "background",
}


def said(messages: list[BaseMessage]) -> list[int]:
    """The marks of what is shown."""
    return [mark for message in messages for mark in marks(message.text)]


def test_answers_before_the_summary_is_there() -> None:
    """The turn sees the longer end and does not wait; the next one has the summary."""
    go, scribe = threading.Event(), Scribe()
    scribe.gate = lambda: go.wait(20)
    summarize = create_history_preprocessor(scribe, **BESIDE)
    assert said(summarize.invoke(talk(60), S1)) == list(range(60))
    go.set()
    summarize.close()
    view = summarize.invoke(talk(60), S1)
    assert "FACT Nemo" in view[0].text
    assert sorted(scribe.seen + said(view[1:])) == list(range(60))


async def test_async_answers_before_the_summary_is_there() -> None:
    """The same on an event loop: a task, with the model's own async call; aclose waits for it."""
    go, scribe = threading.Event(), Scribe()
    scribe.gate = lambda: go.wait(20)
    summarize = create_history_preprocessor(scribe, **BESIDE)
    assert said(await summarize.ainvoke(talk(60), S1)) == list(range(60))
    go.set()
    await summarize.aclose()
    assert scribe.styles == ["async"]
    assert "FACT Nemo" in (await summarize.ainvoke(talk(60), S1))[0].text


def test_one_at_a_time() -> None:
    """While one summary is written no second one begins for the conversation; for another one it does."""
    go, scribe = threading.Event(), Scribe()
    scribe.gate = lambda: go.wait(20)
    summarize = create_history_preprocessor(scribe, **BESIDE)
    workers = [threading.Thread(target=summarize.invoke, args=(talk(60), S1)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    summarize.invoke(talk(60), {"configurable": {"session_id": "s2", "user_id": "u1"}})
    while len(scribe.prompts) < 2:
        time.sleep(0.01)
    go.set()
    summarize.close()
    assert len(scribe.prompts) == 2


def test_summary_that_came_after_the_reading() -> None:
    """A turn that read before the last summary was stored, and begins its own after that, repeats nothing of it."""

    class Late(InMemoryStore):
        late = False

        def yield_keys(self, *, prefix: str | None = None) -> Any:
            keys = list(super().yield_keys(prefix=prefix))
            if self.late:
                self.late = False
                summarize.close()
            return iter(keys)

    store, scribe = Late(), Scribe(delay=0.1)
    summarize = create_history_preprocessor(scribe, store=store, **BESIDE)
    summarize.invoke(talk(60), S1)
    store.late = True
    summarize.invoke(talk(100), S1)
    summarize.close()
    view = summarize.invoke(talk(100), S1)
    assert sorted(scribe.seen + said(view[1:])) == list(range(100))


@pytest.mark.parametrize("style", ["sync", "async"])
def test_nobody_waits_where_the_end_does_not_fit(style: str) -> None:
    """A turn that does not fit is trimmed, not kept waiting; later turns catch up, and repeat nothing."""
    go, scribe = threading.Event(), Scribe()
    scribe.gate = lambda: go.wait(20)
    summarize = create_history_preprocessor(scribe, **BESIDE)

    async def aturns() -> list[BaseMessage]:
        view = await summarize.ainvoke(talk(200), S1)
        go.set()
        await summarize.aclose()
        return view

    if style == "async":
        view = asyncio.run(aturns())
    else:
        view = summarize.invoke(talk(200), S1)
        go.set()
        summarize.close()
    newest = said(view)
    assert newest == list(range(newest[0], 200))
    assert len(scribe.prompts) == 1
    for _ in range(4):
        view = summarize.invoke(talk(200), S1)
        summarize.close()
    assert "FACT Nemo" in view[0].text
    assert sorted(scribe.seen + said(view[1:])) == list(range(200))


def test_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A summary that fails in the background is logged and tried again."""
    scribe = Scribe(fail_on=[1])
    summarize = create_history_preprocessor(scribe, **BESIDE)
    for _ in range(2):
        assert said(summarize.invoke(talk(60), S1)) == list(range(60))
        summarize.close()
    assert "ConnectionError" in caplog.text
    assert "FACT Nemo" in summarize.invoke(talk(60), S1)[0].text


def test_event_loop_ends_in_the_middle() -> None:
    """A loop that ends, or is closed under the task, does not keep the conversation from its summary."""
    scribe = Scribe(delay=60)
    summarize = create_history_preprocessor(scribe, **BESIDE)
    asyncio.run(summarize.ainvoke(talk(60), S1))
    scribe.delay = 0.0
    summarize.invoke(talk(60), S1)
    summarize.close()
    assert "FACT Nemo" in summarize.invoke(talk(60), S1)[0].text


async def test_tasks_of_another_loop_are_left_alone() -> None:
    """Aclose waits for what it can wait for: tasks of another loop are not touched."""
    ended, go, scribe = threading.Event(), threading.Event(), Scribe()
    scribe.gate = lambda: go.wait(20)
    summarize = create_history_preprocessor(scribe, **BESIDE)

    async def elsewhere() -> None:
        await summarize.ainvoke(talk(60), S1)
        ended.set()
        await asyncio.to_thread(go.wait)
        await summarize.aclose()

    other = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    other.start()
    await asyncio.to_thread(ended.wait)
    await summarize.aclose()
    go.set()
    await asyncio.to_thread(other.join)
    assert "FACT Nemo" in (await summarize.ainvoke(talk(60), S1))[0].text


def test_purge_waits() -> None:
    """What is being written for a purged user is gone as well when purge returns."""
    store, scribe = InMemoryStore(), Scribe(delay=0.3)
    summarize = create_history_preprocessor(scribe, store=store, **BESIDE)
    summarize.invoke(talk(60), S1)
    assert summarize.purge("u1") == {"summaries": 1}
    summarize.invoke(talk(60), S1)
    summarize.clear("s1", "u1")
    assert store.store == {}


@pytest.mark.parametrize("style", ["sync", "async"])
def test_over_a_history(style: str) -> None:
    """100 turns through the factory: every message is shown or was summarized once, and purging leaves nothing."""
    store, scribe, model = InMemoryStore(), Scribe(delay=0.002), FakeChatModel()
    summarize = create_history_preprocessor(scribe, store=store, **BESIDE)
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)

        async def aturns() -> None:
            for i in range(100):
                await chat.ainvoke([HumanMessage(marked(i, "word " * 20))], S1)
            await summarize.aclose()

        if style == "async":
            asyncio.run(aturns())
        else:
            for i in range(100):
                chat.invoke([HumanMessage(marked(i, "word " * 20))], S1)
            summarize.close()
        assert len(scribe.seen) == len(set(scribe.seen))
        chat.invoke([HumanMessage("and now?")], S1)
        assert set(scribe.seen) | set(said(model.calls[-1])) == set(range(100))
        assert 3 <= len(scribe.prompts) <= 20
        summarize.close()
        purge_user("u1", histories, summarize)
    assert store.store == {}


def test_cleared_meanwhile() -> None:
    """A session cleared while its summary is written in the background leaves nothing behind."""
    store, scribe = InMemoryStore(), Scribe(delay=0.2)
    summarize = create_history_preprocessor(scribe, store=store, **BESIDE)
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=summarize)
        histories("s1", "u1").add_messages(talk(60))
        chat.invoke("and now?", S1)
        histories("s1", "u1").clear()
        summarize.close()
    assert scribe.prompts
    assert store.store == {}
