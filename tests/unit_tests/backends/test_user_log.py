"""`UserLog`: what a user's sessions show, as their rows change; orders in which no store of ours tells it, too."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from langchain_memkit._sync import drive
from langchain_memkit.stores.changes import ChangedRow, Changes, UserLog
from langchain_memkit.stores.looks import catch_up

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def turn(seq: int, **more: Any) -> ChangedRow:
    """A turn of the session s1."""
    return ChangedRow("s1", seq, f"op{seq}", "turn", 8, more.pop("base", 0), **more)


def shown(log: UserLog) -> list[int]:
    """The positions that are shown."""
    return [row.seq for row in log.shown()]


def test_any_order_leads_to_the_same() -> None:
    """Turns, an edit, a hidden turn and its undo: whichever comes first, the same turns are shown."""
    undo = ChangedRow("s1", 5, "undo", "undo", 9, 0, replaces=3)
    for rows, expected in (
        ([turn(1), turn(2), turn(3, replaces=2), turn(4)], [1, 3, 4]),
        ([turn(1), turn(2), turn(3, replaces=2), turn(4), undo], [1, 2]),
        ([turn(1, is_deleted=True), turn(2), turn(3)], [2, 3]),
        ([turn(1), ChangedRow("s1", 2, "c", "tombstone", 16, 2), turn(3, base=2)], [3]),
    ):
        for seed in range(20):
            mixed = random.Random(seed).sample(rows, len(rows))
            log = UserLog()
            for row in mixed:
                log.apply([row], NOW)
            assert shown(log) == expected
            assert not log.missing - {("s1", row.seq) for row in rows}


def test_a_copy_under_way_is_not_shown() -> None:
    """Turns of a copy carry the position that its last one will have: none is shown before that one has come."""
    log = UserLog()
    log.apply([turn(1, base=3), turn(2, base=3)], NOW)
    assert shown(log) == []
    assert [row.seq for row in log.apply([turn(3, base=0)], NOW).come] == [1, 2, 3] or shown(log) == [1, 2, 3]


def test_rows_expire_by_themselves() -> None:
    """A row that has expired is not shown, though nobody said that it changed; a later look does not miss its place."""
    log = UserLog()
    log.apply([turn(1, expires_at=NOW + timedelta(hours=1)), turn(2), turn(3, expires_at=NOW)], NOW)
    assert shown(log) == [1, 2]
    assert log.apply([], NOW + timedelta(hours=1)).gone == [("s1", 1)]
    assert (shown(log), log.missing) == ([2], frozenset())


class Late:
    """A store whose rows come when the test says so; the mark is the number of the last one."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, ChangedRow]] = []
        self.slacks: list[float] = []

    async def changes(self, user_id: str, since: Any, names: Any, limit: int, slack: float = 0) -> Changes:
        """The rows after the mark, less the slack."""
        self.slacks.append(slack)
        found = [(at, row) for at, row in self.rows if since is None or at > since - slack]
        return Changes([row for _, row in found], max((at for at, _ in found), default=since), has_more=False)


@pytest.mark.parametrize("late", [5, 600])
def test_a_write_that_was_stalled(late: float) -> None:
    """A row that becomes visible after later ones is found within the slack, and else with the next turn there."""
    store: Any = Late()
    log = UserLog()
    store.rows = [(1000.0, turn(1))]
    drive(catch_up(store, "u1", log, [], NOW))
    store.rows.append((1000.0 - late, turn(2)))
    drive(catch_up(store, "u1", log, [], NOW))
    assert shown(log) == ([1, 2] if late < 10 else [1])
    store.rows.append((1001.0, turn(3)))
    drive(catch_up(store, "u1", log, [], NOW))
    assert shown(log) == [1, 2, 3]
    store.slacks.clear()
    drive(catch_up(store, "u1", log, [], NOW))
    assert store.slacks == [10.0]


def test_a_gap_that_stays_is_looked_for_once() -> None:
    """A position of which nothing is stored any more costs one look, not one in each turn."""
    store: Any = Late()
    log = UserLog()
    store.rows = [(1.0, turn(1))]
    drive(catch_up(store, "u1", log, [], NOW))
    store.rows.append((2.0, turn(3)))
    drive(catch_up(store, "u1", log, [], NOW))
    assert store.slacks[-2:] == [10.0, 3600.0]
    store.rows.append((3.0, turn(4)))
    drive(catch_up(store, "u1", log, [], NOW))
    assert store.slacks[-1] == 10.0
    assert shown(log) == [1, 3, 4]


def test_all_is_read_anew_every_few_hours() -> None:
    """Who looks all the time notices at last what was changed past memkit."""
    store: Any = Late()
    log = UserLog()
    store.rows = [(1.0, turn(1)), (2.0, turn(2))]
    drive(catch_up(store, "u1", log, [], NOW))
    store.rows = [(1.0, turn(1))]
    for minutes in range(10, 360, 10):
        drive(catch_up(store, "u1", log, [], NOW + timedelta(minutes=minutes)))
    assert shown(log) == [1, 2]
    drive(catch_up(store, "u1", log, [], NOW + timedelta(minutes=370)))
    assert shown(log) == [1]


def test_two_that_look_at_once() -> None:
    """What an older look has read does not take the place of what a newer one has."""
    log = UserLog()

    class Meanwhile(Late):
        """Another thread looks, and sees more, before this one's answer is used."""

        async def changes(self, user_id: str, since: Any, names: Any, limit: int, slack: float = 0) -> Changes:
            found = await super().changes(user_id, since, names, limit, slack)
            if not self.rows[0][1].is_deleted:
                self.rows = [(2.0, turn(1, is_deleted=True))]
                await catch_up(self, "u1", log, [], NOW)  # type: ignore[arg-type]  # the one method that is called
            return found

    store: Any = Meanwhile()
    store.rows = [(1.0, turn(1))]
    drive(catch_up(store, "u1", log, [], NOW))
    assert shown(log) == []
