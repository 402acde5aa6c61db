"""Others clear and edit between any two statements of a read or a fork."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.errors import HistoryConflictError, MemkitError

MOST = 40  # statements of a read or a fork, which the tests prove
SHOWN = ["one", "noted", "two", "noted"]


class Meddled(sqlite3.Connection):
    """Does something before the n-th statement, counted from when it is told."""

    action: ClassVar[Callable[[], Any]] = int
    left: ClassVar[Iterator[int]] = iter(())

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Act, if it is time."""
        if next(Meddled.left, 1) == 0:
            Meddled.left = iter(())
            Meddled.action()
        return super().execute(sql, *parameters)


@pytest.fixture
def histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Histories with which somebody meddles, and who do not wait long for a lock."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Meddled))
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", timeout=0.05) as factory:
        yield factory


def filled(history: Any) -> Any:
    """A session that shows two turns, beside which lie three that were replaced or taken back."""
    for text in ("one", "replaced", "replaced too"):
        history.append_turn([HumanMessage(text, id=text), AIMessage("noted")])
    [_, second, _] = history.iter_turns()
    history.edit(second.seq, [HumanMessage("two", id="two"), AIMessage("noted")])
    history.edit(second.seq + 2, [HumanMessage("taken back", id="taken back"), AIMessage("noted")])
    history.undo_edit()
    return history


def meddling(work: Callable[[], Any], n: int, action: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether there were so many statements, and what the work returned or raised."""

    def act() -> None:
        with suppress(MemkitError):  # who writes holds the lock
            action()

    Meddled.action, Meddled.left = act, iter(range(n, -1, -1))
    try:
        found = work()
    except MemkitError as error:
        found = error
    is_reached = next(Meddled.left, None) is None
    Meddled.left = iter(())
    return is_reached, found


READS: dict[str, Callable[[Any], list[str]]] = {
    "messages": lambda histories: [m.text for m in histories("s2").messages],
    "iter_messages": lambda histories: [m.text for m in histories("s2").iter_messages()],
    "stored_ids": lambda histories: sorted(histories("s2").stored_ids(["one", "replaced", "two", "taken back"])),
    "search_messages": lambda histories: [found.excerpt for found in histories.search_messages(None, "replaced")],
}


@pytest.mark.parametrize("read", READS)
def test_an_erase_amid_a_read(read: str, histories: Any) -> None:
    """What is read is what was shown before the clear, or after it, or a part; nothing that was replaced."""
    wrong = {}
    for n in count():
        assert n < MOST
        history = filled(histories("s2"))
        before = READS[read](histories)
        is_reached, found = meddling(lambda: READS[read](histories), n, history.clear)
        history.clear()
        if not is_reached:
            assert n, "no statement was counted"
            break
        if not set(found) <= set(before):
            wrong[n] = found
    assert wrong == {}


def test_an_edit_amid_a_fork_of_a_part(histories: Any) -> None:
    """A fork up to a turn copies it, or says that it is not shown any more; it does not copy less."""
    wrong = {}
    for n in count():
        assert n < MOST
        source, copy = filled(histories("s2")), histories("s3")
        [first, last] = source.iter_turns()

        def edit(source: Any = source, seq: int = first.seq) -> None:
            source.edit(seq, [HumanMessage("another"), AIMessage("noted")])

        is_reached, found = meddling(partial(source.fork, "s3", at=last.seq), n, edit)
        said = [m.text for m in copy.messages]
        refused = isinstance(found, HistoryConflictError) and said == []
        source.clear()
        copy.clear()
        if not is_reached:
            assert n, "no statement was counted"
            break
        if not refused and said != SHOWN:
            wrong[n] = (found, said)
    assert wrong == {}
