"""Windows over what other packages wrote: rows read in place, with our turns after them, and the other layouts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer

from langchain_memkit import MongoDBChatMessageHistory
from langchain_memkit.base import Window
from langchain_memkit.testing._styles import Call, call_async, call_sync
from langchain_memkit.testing.langchain_histories import exchange, text_of_each


def said(*names: str) -> list[str]:
    """The texts of exchanges."""
    return text_of_each([m for name in names for m in exchange(name)])


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Iterator[Call]:
    """`call(history, "view", ...)` in both styles."""
    if request.param == "sync":
        yield call_sync
        return
    with asyncio.Runner() as runner:
        yield lambda target, name, *args, **kwargs: runner.run(call_async(target, name, *args, **kwargs))


@pytest.fixture
def grown(standalone: Any, database: str) -> Any:
    """Three exchanges by langchain-mongodb, a row a message, and then two of our turns."""
    peer = Peer(standalone.uri, "s1", database)
    for name in ("old 1", "old 2", "old 3"):
        peer.add_messages(exchange(name))
    peer.close()
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database)
    for name in ("new 1", "new 2"):
        history.add_messages(exchange(name))
    return history


def after(history: Any, call: Call, i: int) -> list[str]:
    """What comes after the message at a place of the whole view."""
    position = call(history, "view").messages.position(i)
    view = call(history, "view", window=Window(after=position))
    assert view.messages.window.after == position
    return text_of_each(view.messages)


def test_positions_in_rows_of_the_peer(grown: Any, call: Call) -> None:
    """A position names the row by its id, since such rows have no numbers; what follows is theirs, then ours."""
    whole = call(grown, "view").messages
    assert text_of_each(whole) == said("old 1", "old 2", "old 3", "new 1", "new 2")
    for i in range(6):
        position = whole.position(i)
        assert (position.seq, position.epoch) == (0, whole.epoch)
        assert position.op
    assert len({whole.position(i).op for i in range(6)}) == 6
    for i in range(10):
        assert after(grown, call, i) == text_of_each(whole)[i + 1 :]


def test_peer_goes_on_writing_nothing_is_lost(grown: Any, call: Call, standalone: Any, database: str) -> None:
    """After a position in their rows, a row that an old instance added later is still returned."""
    position = call(grown, "view").messages.position(3)
    peer = Peer(standalone.uri, "s1", database)
    peer.add_messages(exchange("late"))
    peer.close()
    view = call(grown, "view", window=Window(after=position))
    assert text_of_each(view.messages) == said("old 3", "late", "new 1", "new 2")


def test_position_in_rows_that_are_gone(grown: Any, call: Call) -> None:
    """Cleared since, the position is void and everything that is there now is returned."""
    windows = [Window(after=call(grown, "view").messages.position(i)) for i in (2, 7)]
    call(grown, "clear")
    call(grown, "add_messages", exchange("begun anew"))
    for window in windows:
        view = call(grown, "view", window=window)
        assert text_of_each(view.messages) == said("begun anew")
        assert view.messages.window.after is None


def test_budgets_reach_into_rows_of_the_peer(grown: Any, call: Call) -> None:
    """A window by messages or tokens goes on from our turns into their rows."""
    whole = call(grown, "view").messages
    for n in range(1, 11):
        for window in (Window(max_messages=n), Window(max_tokens=sum(whole.tokens[-n:]))):
            got = text_of_each(call(grown, "view", window=window).messages)
            assert n <= len(got) <= 10
            assert got == text_of_each(whole)[10 - len(got) :]


@pytest.mark.parametrize("layout", ["langchain", "qa"])
def test_other_layouts(standalone: Any, database: str, layout: Any, call: Call) -> None:
    """There too a window begins after any message, budgets give at least so much, and a clear voids positions."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database, layout=layout) as factory:
        history = factory("s1", "u1" if layout == "qa" else None)
        for name in "abcd":
            history.add_messages(exchange(name))
        whole: Any = call(history, "view").messages
        assert text_of_each(whole) == said(*"abcd")
        for i in range(8):
            assert whole.position(i).seq == 0
            assert after(history, call, i) == text_of_each(whole)[i + 1 :]
        for n in (1, 3, 8):
            newest: list[BaseMessage] = call(history, "view", window=Window(max_messages=n)).messages
            assert len(newest) >= n
            assert newest == whole[8 - len(newest) :]
        window = Window(after=whole.position(3))
        call(history, "clear")
        history.add_messages(exchange("e"))
        view = call(history, "view", window=window)
        assert text_of_each(view.messages) == said("e")
        assert view.messages.window.after is None


def test_position_in_a_deleted_turn_of_ours(grown: Any, call: Call) -> None:
    """The first of our turns deleted at the position: the rows before it stay known."""
    position = call(grown, "view").messages.position(7)
    call(grown, "delete_turn", 1)
    assert text_of_each(call(grown, "view", window=Window(after=position)).messages) == said("new 2")


def test_position_in_a_turn_of_many_rows(standalone: Any, database: str, call: Call) -> None:
    """A turn that lies over the border of two pages, a row a message: nothing of it is lost."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database, layout="langchain") as factory:
        history = factory("s1")
        history.add_messages([HumanMessage("q"), *[AIMessage(f"a{i}") for i in range(150)]])
        whole = call(history, "view").messages
        for i in (0, 20, 86, 87, 88, 149):
            assert after(history, call, i) == text_of_each(whole)[i + 1 :]
