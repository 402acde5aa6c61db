"""What memories read beside the history, and where: in threads only where that waits for a server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    EntityMemory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
    session,
)
from langchain_memkit._sync import Step, adrive, drive
from langchain_memkit.base import Mention
from langchain_memkit.memories.composed import Source
from langchain_memkit.runnables.saving import TurnOptions
from langchain_memkit.stores.in_memory import MemoryStore
from langchain_memkit.testing import FakeChatModel

HERE = session("s1", user_id="u1")


def extract(text: str) -> list[Mention]:
    """One name."""
    return [Mention("Nemo", "PERSON", text.index("Nemo"), text.index("Nemo") + 4)] if "Nemo" in text else []


class Store(MemoryStore):
    """Notes in which threads it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[str] = []

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """As the class does."""
        self.readers.append(threading.current_thread().name)
        return super().yield_keys(prefix=prefix)


class RemoteStore(Store):
    """One that waits for a server."""

    is_remote = True


@pytest.mark.parametrize("kind", [Store, RemoteStore])
def test_threads_are_for_what_waits_for_a_server(kind: type[Store]) -> None:
    """A store in this process is read in the caller's thread; both know what was said elsewhere."""
    store, model, here = kind(), FakeChatModel(), threading.current_thread().name
    entities = EntityMemory.factory(extract, store)
    entities("old", "u1").save([HumanMessage("Nemo lives in the reef.")])
    chat = create_runnable_with_message_history(
        model, SQLiteChatMessageHistory.factory(":memory:"), memories=[entities]
    )
    first: set[str] = set()
    for _ in range(1 if kind is Store else 50):  # a thread may come too late for one turn, not for all
        store.readers.clear()
        chat.invoke("Where is Nemo?", HERE)
        first.add(store.readers[0])
    assert first == {here} if kind is Store else first - {here}
    assert "Nemo lives in the reef." in model.calls[0][0].text


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_a_part_with_a_timeout_reads_within_it(style: str) -> None:
    """A composed memory reads beside the history only for parts that may take any time."""
    patient, hasty = RemoteStore(), RemoteStore()
    dialogue = ChatHistoryMemory(SQLiteChatMessageHistory(":memory:", "s1", user_id="u1"))
    parts = [EntityMemory(extract, "s1", user_id="u1", store=store) for store in (patient, hasty)]
    composed = ComposedMemory(dialogue, parts[0], Source(parts[1], timeout=60))
    assert composed.is_remote
    assert not ComposedMemory(dialogue, Source(parts[1], timeout=60)).is_remote
    composed.prefetch() if style == "sync" else await composed.aprefetch()
    assert (len(patient.readers) > 0, hasty.readers) == (True, [])


def test_a_turn_when_the_interpreter_ends() -> None:
    """No threads begin any more: the memory is read after the history."""
    code = """
        import atexit
        from langchain_core.messages import HumanMessage
        from langchain_memkit import EntityMemory, SQLiteChatMessageHistory
        from langchain_memkit import create_runnable_with_message_history, session
        from langchain_memkit.stores.in_memory import MemoryStore
        from langchain_memkit.testing import FakeChatModel

        store, model = MemoryStore(), FakeChatModel()
        store.is_remote = True
        entities = EntityMemory.factory(lambda text: [("Nemo", "PERSON")] if "Nemo" in text else [], store)
        entities("old", "u1").save([HumanMessage("Nemo lives in the reef.")])
        histories = SQLiteChatMessageHistory.factory(":memory:")
        chat = create_runnable_with_message_history(model, histories, memories=[entities])

        @atexit.register
        def last():
            chat.invoke("Where is Nemo?", session("s1", user_id="u1"))
            print("the reef" in model.calls[0][0].text)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_two_reads_give_both_results_or_the_first_error(style: str) -> None:
    """The history is read, and resent messages are looked up, in one go: both succeed, or the first error is raised."""

    def step(result: object) -> Step[object]:
        def read() -> object:
            if isinstance(result, Exception):
                raise result
            return result

        async def aread() -> object:
            return read()

        return Step(read, aread)

    async def both(*results: object) -> list[object]:
        flow = TurnOptions().prompt.beside([], *map(step, results))
        return drive(flow) if style == "sync" else await adrive(flow)

    assert await both(1, "two") == [1, "two"]
    for results in ((KeyError("1"), LookupError()), (1, KeyError("1"))):
        with pytest.raises(KeyError):
            await both(*results)
