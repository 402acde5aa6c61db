"""What a store must do that keeps an index of its turns and tells what changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit.errors import StaleTurnError
from langchain_memkit.stores.changes import ChangedRow, Difference, Place, UserLog
from langchain_memkit.stores.history import TurnStore
from langchain_memkit.stores.history_rows import ReadVersion, SessionScope, prepare_batch
from langchain_memkit.stores.looks import catch_up
from langchain_memkit.testing._styles import BothStyles, Call
from langchain_memkit.testing.langchain_histories import MakeHistory, exchange

__all__ = ["ChangesContract"]

NAME = "seen"


class Reader:
    """A process that looks again and again at what changed in the turns of a user."""

    def __init__(self, history: Any) -> None:
        self.store = history.turn_store
        self.user_id = history.user_id
        self.log = UserLog()
        self.now = datetime.now(UTC)

    def look(self, page: int = 1000) -> Difference:
        """Look once."""
        self.store.run(catch_up(self.store, self.user_id, self.log, [NAME], self.now, page=page))
        return self.log.news()

    def keep(self, made: list[tuple[Place, str, bytes]]) -> None:
        """Store what was derived from turns."""
        self.store.run(self.store.keep_index(self.user_id, NAME, made))

    def shown(self) -> list[tuple[str, int, bytes | None]]:
        """Look, and return session, position and index of all turns that are shown."""
        self.look()
        return [(row.session_id, row.seq, row.index.get(NAME)) for row in self.log.shown()]


class ChangesContract(BothStyles):
    """Contract for `TurnStore.changes`, `turns_at` and `keep_index`, skipped for a store that keeps no index.

    It takes the `make_history` fixture of the other contracts.
    """

    @pytest.fixture
    def user(self, make_history: MakeHistory) -> str:
        """Name a user of such a store."""
        if not make_history("s1", "u1").turn_store.keeps_index:
            pytest.skip("the store keeps no index")
        return f"user-{uuid4()}"

    def test_index_comes_with_the_turn(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """What was derived from a turn is stored with it and told with it, in all sessions of the user alone."""
        one, other = make_history("s1", user), make_history("s2", user)
        call(one, "append_turn", exchange("a"), index={NAME: b"A\x00", "other": b"x"})
        call(other, "append_turn", exchange("b"))
        call(make_history("s1", f"not-{user}"), "append_turn", exchange("c"), index={NAME: b"C"})
        assert Reader(one).shown() == [("s1", 1, b"A\x00"), ("s2", 1, None)]
        assert [m.content for m in call(one, "messages")] == ["a", "re: a"]

    def test_what_changed(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """Each look tells what came, and what is not shown any more: hidden, replaced, shown again, cleared, purged."""
        history = make_history("s1", user)
        reader = Reader(history)
        for text in "abc":
            call(history, "append_turn", exchange(text), index={NAME: text.encode()})
        assert [row.seq for row in reader.look().come] == [1, 2, 3]
        assert reader.look() == ([], [])
        call(history, "delete_turn", 1)
        assert reader.look() == ([("s1", 1)], [])
        call(history, "restore_turn", 1)
        assert [(row.seq, row.index) for row in reader.look().come] == [(1, {NAME: b"a"})]
        if self._edits(history):
            call(history, "edit", 2, exchange("e"))
            found = reader.look()
            assert (found.gone, [row.seq for row in found.come]) == ([("s1", 2), ("s1", 3)], [4])
            call(history, "undo_edit")
            found = reader.look()
            assert (found.gone, sorted(row.seq for row in found.come)) == ([("s1", 4)], [2, 3])
        call(history, "clear")
        assert reader.look() == ([("s1", 1), ("s1", 2), ("s1", 3)], [])
        call(history, "append_turn", exchange("new"))
        call(make_history("s2", user), "append_turn", exchange("b"))
        assert sorted(row.session_id for row in reader.look().come) == ["s1", "s2"]
        reader.store.run(reader.store.purge(user))
        assert len(reader.look().gone) == 2
        assert reader.shown() == []

    def test_decisions(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """Decisions come in their order to every process, are no turns, keep no turn from being stored, and go last."""
        history, reader = make_history("s1", user), Reader(make_history("-", user))
        store = history.turn_store
        begun = history.view()
        for data in (b"one", b"two"):
            store.run(store.decide(user, NAME, data))
        call(history, "append_turn", exchange("a"), epoch=begun.epoch, since=begun.read_at)
        assert [place for *place, _ in reader.shown()] == [["s1", 1]]
        assert [row.index[NAME] for row in reader.log.decisions()] == [b"one", b"two"]
        store.run(store.decide(user, NAME, b"three"))
        assert (reader.look(), reader.log.decisions()[-1].index[NAME]) == (([], []), b"three")
        row = reader.log.decisions()[-1]
        store.run(store.decide(user, NAME, b"three", op=row.op, at=row.created_at))  # stored once
        reader.keep([(row.place, row.op, b"3")])
        reader.look()
        assert [each.index[NAME] for each in reader.log.decisions()] == [b"one", b"two", b"3"]
        assert [session.session_id for session in store.run(store.sessions(user, hidden=True))] == ["s1"]
        call(history, "clear")
        reader.look()
        assert len(reader.log.decisions()) == 3
        begun = make_history("s2", user).view()
        store.run(store.purge(user))
        reader.look()
        assert reader.log.decisions() == []
        with pytest.raises(StaleTurnError):
            call(make_history("s2", user), "append_turn", exchange("b"), epoch=begun.epoch, since=begun.read_at)
        store.run(store.decide(user, NAME, b"four"))
        begun = make_history("s3", user).view()
        store.run(store.decide(user, NAME, b"five"))
        call(make_history("s3", user), "append_turn", exchange("c"), epoch=begun.epoch, since=begun.read_at)
        late = Reader(make_history("-", user))
        assert [place for *place, _ in late.shown()] == [["s3", 1]]
        store.run(store.decide(f"{user} alone", NAME, b"six"))
        assert f"{user} alone" in store.run(store.owners())
        assert [row.index[NAME] for row in late.log.decisions()] == [b"four", b"five"]

    def test_what_tells_rows_apart(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """A row has another revision whenever anything of it has changed."""
        history, reader = make_history("s1", user), Reader(make_history("-", user))
        call(history, "append_turn", exchange("a"))
        (row,) = reader.look().come
        found = [row.revision]
        reader.keep([(row.place, row.op, b"made")])
        found += [row.revision for row in reader.look().come]
        call(history, "delete_turn", 1)
        call(history, "restore_turn", 1)
        found += [row.revision for row in reader.look().come]
        assert None not in found
        assert len(found) == len({str(revision) for revision in found}) == 3

    def test_expired_turns(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """A turn that has expired is shown by nothing, whatever was derived from it."""
        history = make_history("s1", user)
        batch = prepare_batch(exchange("old"), "t1", None)
        (row,) = batch.rows
        past = replace(row, expires_at=datetime.now(UTC) - timedelta(seconds=1), index={NAME: b"old"})
        store = history.turn_store
        store.run(store.append(SessionScope(user, "s1"), replace(batch, rows=[past]), None, ReadVersion()))
        assert call(history, "messages") == []
        assert Reader(history).shown() == []

    def test_a_turn_that_began_before_a_purge(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """A turn is refused if its user was purged since it began, also in a session that was empty then."""
        store = make_history("s1", user).turn_store
        call(make_history("s1", user), "append_turn", exchange("a"))
        begun = {name: make_history(name, user).view() for name in ("s1", "s2")}
        store.run(store.purge(user))
        for name, view in begun.items():
            with pytest.raises(StaleTurnError):
                call(make_history(name, user), "append_turn", exchange("b"), epoch=view.epoch, since=view.read_at)
        assert Reader(make_history("-", user)).shown() == []

    def test_index_made_later(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """An index is kept for turns that are stored already, and not for one that was erased or is another by now."""
        history = make_history("s1", user)
        reader, late = Reader(history), Reader(history)
        for text in "ab":
            call(history, "append_turn", exchange(text))
        late.look()
        first, second = reader.look().come
        kept = [(first.place, first.op, b"A"), (second.place, "another op", b"B"), (("s9", 1), first.op, b"C")]
        reader.keep(kept)
        assert reader.shown() == late.shown() == [("s1", 1, b"A"), ("s1", 2, None)]
        reader.keep([(first.place, first.op, b"AA")])
        assert [(row.seq, row.index[NAME]) for row in reader.look().come] == [(1, b"AA")]
        call(history, "clear")
        reader.keep([(first.place, first.op, b"late")])
        assert reader.shown() == []

    def test_turns_at_places(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """Turns are read by session and position; what is not there is left out."""
        for session in ("s1", "s2"):
            for text in "ab":
                call(make_history(session, user), "append_turn", exchange(f"{session} {text}"))
        store = make_history("s1", user).turn_store
        found = store.run(store.turns_at(user, [("s2", 1), ("s1", 2), ("s1", 3), ("s3", 1)]))
        assert sorted((name, turn.messages[0].text) for name, turn in found) == [("s1", "s1 b"), ("s2", "s2 a")]
        assert store.run(store.turns_at(f"not-{user}", [("s2", 1)])) == []

    def test_a_copy_has_the_index(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """The turns of a fork are told with what was derived from them."""
        history = make_history("s1", user)
        if not self._edits(history):
            pytest.skip("the store makes no copies")
        reader = Reader(history)
        for text in "ab":
            call(history, "append_turn", exchange(text), index={NAME: text.encode()})
        reader.look()
        call(history, "fork", "s2", at=1)
        assert [(row.place, row.index) for row in reader.look().come] == [(("s2", 1), {NAME: b"a"})]

    def test_pages_of_any_size(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """However many rows a page has, a look tells each once, and the next look begins after them."""
        history = make_history("s1", user)
        for i in range(7):
            call(history, "append_turn", [HumanMessage(str(i))])
        for page in (1, 2, 3, 7, 8):
            reader = Reader(history)
            assert [row.seq for row in reader.look(page).come] == [1, 2, 3, 4, 5, 6, 7]
            assert reader.look(page) == ([], [])

    def test_a_look_after_a_long_time(self, make_history: MakeHistory, call: Call, user: str) -> None:
        """After more than an hour everything is read anew, since tombstones do not stay: what was erased is gone."""
        history = make_history("s1", user)
        reader = Reader(history)
        for text in "ab":
            call(history, "append_turn", exchange(text))
        reader.look()
        reader.log.apply([ChangedRow("s9", 1, "op", "turn", 8, 0)], reader.now)
        call(history, "delete_turn", 1)
        reader.now += timedelta(hours=1, seconds=1)
        assert reader.look() == ([("s1", 1), ("s9", 1)], [])

    @staticmethod
    def _edits(history: Any) -> bool:
        """Return whether turns may be replaced."""
        return type(history.turn_store).edits is not TurnStore.edits
