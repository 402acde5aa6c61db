"""Entity memory in a store: many writers, clears that meet saves, caps, damage, other processes."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.stores import InMemoryStore
from langchain_memkit.memories.entity.cache import VERSIONS, _bring_in_line

from langchain_memkit import (
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_runnable_with_message_history,
    purge_user,
)
from langchain_memkit._sync import drive
from langchain_memkit.base import EDITS, Mention, SavedTurn, user_prefix
from langchain_memkit.memories.entity import EntityMemory
from langchain_memkit.messages.notes import records_of
from langchain_memkit.stores.in_memory import MemoryStore
from langchain_memkit.testing import FakeChatModel

NAMES = re.compile(r"\b(?:Nemo|Dory|Bob|Robert|Harrison|Harison|Priya Raman|Priya|Ann Lee|Ann)\b")


def extract(text: str) -> list[Mention]:
    """A few names, as they are written."""
    return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in NAMES.finditer(text)]


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Opens the same store again and again."""
    if request.param == "sqlite":
        return lambda: SQLiteKeyValueStore(tmp_path / "store.db")
    store = MemoryStore()
    return lambda: store


def texts(memory: EntityMemory, query: str = "Who is Nemo?") -> list[str]:
    """What is recalled."""
    return [record.text for message in memory.load(query) for record in records_of(message)]


def facts(store: Any) -> list[str]:
    """Keys of facts in a store."""
    return [key for key in store.yield_keys() if "/fact/" in key]


def test_two_factories_agree(stores: Callable[[], Any]) -> None:
    """What one wrote the other sees at once, whoever wrote last: neither takes its own change for the only one."""
    one, two = (EntityMemory.factory(extract, stores())("s1", "u1") for _ in range(2))
    for i in range(12):
        (one, two)[i % 2].save([HumanMessage(f"Nemo counted {i}")])
        (two, one)[i % 3 == 0].save([HumanMessage(f"Nemo saw {i}")])
        assert one.entities() == two.entities()
        assert len(one.entities()[0].facts) == 2 * (i + 1)
    one.merge("Nemo", into="Captain")
    assert [e.name for e in two.entities()] == ["Captain"]
    two.clear()
    assert one.entities() == []


def test_writers_that_meet_are_both_seen() -> None:
    """Two processes that read the same state and then write: each sees the other's facts."""
    store = SQLiteKeyValueStore(":memory:")
    one = EntityMemory.factory(extract, store)("s1", "u1")

    def meanwhile(text: str) -> list[Mention]:
        if "first" in text:
            one.save([HumanMessage("Nemo came second")])
        return extract(text)

    two = EntityMemory.factory(meanwhile, store)("s1", "u1")
    assert (one.entities(), two.entities()) == ([], [])
    two.save([HumanMessage("Nemo came first")])
    assert len(two.entities()[0].facts) == len(one.entities()[0].facts) == 2


def test_a_turn_costs_few_reads() -> None:
    """A load reads the few keys that tell of changes, and no rows; a save over any store does so and looks once."""

    class Counting(InMemoryStore):
        calls: list[str] = []  # noqa: RUF012  # of the test

        def mget(self, keys: Sequence[str]) -> list[Any]:
            self.calls.append(f"get {len(keys)}")
            return super().mget(keys)

        def yield_keys(self, *, prefix: str | None = None) -> Any:
            self.calls.append(f"list {str(prefix).split('/')[-2]}")
            return super().yield_keys(prefix=prefix)

    memory = EntityMemory(extract, "s1", user_id="u1", store=Counting())
    memory.save([HumanMessage("Nemo swims")])
    Counting.calls.clear()
    assert texts(memory) == ["Nemo swims"]
    assert Counting.calls == ["list version"]
    memory.save([HumanMessage("Nemo sleeps")])
    assert Counting.calls == ["list version", "list version", "get 1"]


def test_a_turn_is_one_read_and_one_write() -> None:
    """Over a store that checks its writes: of a session that goes on nothing is read after the answer."""
    calls: list[str] = []

    class Counting(MemoryStore):
        def __getattribute__(self, name: str) -> Any:
            if name in ("mget", "mset", "mset_if_exists", "mdelete", "yield_keys"):
                calls.append(name)
            return super().__getattribute__(name)

    entities = EntityMemory.factory(extract, Counting())
    entities("s1", "u1").save([HumanMessage("Nemo swims")])
    for i in range(20):
        memory = entities("s1", "u1")
        calls.clear()
        assert "Nemo swims" in texts(memory)
        memory.save([HumanMessage(f"Nemo sleeps {i} times")])
        assert calls == ["yield_keys", "mset_if_exists"]
        assert memory.save_was_checked
    memory.save([HumanMessage("Nemo wakes")])  # a turn that did not load
    assert calls[2:] == ["yield_keys", "mset_if_exists"]
    assert not memory.save_was_checked


def test_a_turn_that_two_store_at_once_keeps_its_place(stores: Callable[[], Any]) -> None:
    """Of two processes that hold one turn the slower one stores it after the other has had the next one."""
    quick, slow = (EntityMemory.factory(extract, stores())("s1", "u1") for _ in range(2))
    turns = [
        [HumanMessage(f"Nemo swam to reef {n}", id=f"q{n}"), AIMessage(f"Nemo was at reef {n}", id=f"a{n}")]
        for n in range(3)
    ]
    quick.save(turns[0])
    slow.load("Where is Nemo?")
    for turn in turns[1:]:
        quick.load("Where is Nemo?")
        quick.save(turn)
    slow.save(turns[1])
    memory = EntityMemory.factory(extract, stores())("s2", "u1")
    assert texts(memory) == [message.text for turn in turns for message in turn]


def test_a_first_turn_that_two_store_at_once_is_listed_once() -> None:
    """Each of them draws a generation of the session, and stores the fact under its own."""

    class Overtaken(MemoryStore):
        """A store in which another one saves just before a generation is stored."""

        def mset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
            nonlocal other
            saving, other = other, None
            if saving:
                saving.save(turn)
            super().mset(key_value_pairs)

    store, turn = Overtaken(), [HumanMessage("Nemo swims", id="q1")]
    other: EntityMemory | None
    one, other = (EntityMemory.factory(extract, store)("s1", "u1") for _ in range(2))
    one.save(turn)
    assert len(facts(store)) == 2
    entities = EntityMemory.factory(extract, store)("s2", "u1").entities()
    assert [fact.text for entity in entities for fact in entity.facts] == ["Nemo swims"]


@pytest.mark.parametrize("checked", [True, False])
async def test_a_save_that_was_overtaken_by_a_clear(checked: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Another process clears between load and save, and begins anew: the turn is left out, what is new stays."""
    store = MemoryStore() if checked else InMemoryStore()
    memory, other = (EntityMemory.factory(extract, store)("s1", "u1") for _ in range(2))
    await memory.asave([HumanMessage("Nemo swims")])
    assert len(await memory.aload("Who is Nemo?")) == 1
    await other.aclear()
    await other.asave([HumanMessage("Dory swims")])
    await memory.asave([HumanMessage("Nemo sleeps")])
    assert "cleared" in caplog.text
    assert [entity.name for entity in await memory.aentities()] == ["Dory"]
    assert len(facts(store)) == 1
    await memory.asave([HumanMessage("Nemo eats")])
    assert [entity.name for entity in await other.aentities()] == ["Nemo", "Dory"]


async def test_what_was_read_beside_the_history() -> None:
    """It is used by one load, and what failed there is raised by that load."""
    calls: list[str] = []

    class Failing(MemoryStore):
        down = False

        def yield_keys(self, *, prefix: str | None = None) -> Any:
            calls.append("list")
            if self.down:
                raise OSError("gone")
            return super().yield_keys(prefix=prefix)

    store = Failing()
    entities = EntityMemory.factory(extract, store)
    entities("s1", "u1").save([HumanMessage("Nemo swims")])
    memory = entities("s1", "u1")
    for prefetch in (memory.aprefetch, lambda: asyncio.to_thread(memory.prefetch)):
        calls.clear()
        await prefetch()
        assert len(await memory.aload("Who is Nemo?")) == 1
        assert calls == ["list"]
        assert len(await memory.aload("Who is Nemo?")) == 1
        assert calls == ["list"] * 2
    store.down = True
    await memory.aprefetch()
    store.down = False
    with pytest.raises(OSError, match="gone"):
        await memory.aload("Who is Nemo?")
    assert len(memory.load("Who is Nemo?")) == 1
    await memory.aprefetch()
    assert entities("s2", "u1")._fetched is None


def test_eight_threads_lose_nothing(stores: Callable[[], Any]) -> None:
    """Eight writers on one entity, in two factories, one session and many."""
    factories = [EntityMemory.factory(extract, stores()) for _ in range(2)]

    def write(n: int) -> None:
        for i in range(8):
            factories[n % 2](f"s{n % 3}", "u1").save([HumanMessage(f"Nemo counted {n} and {i}")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    for factory in factories:
        assert len(factory("s1", "u1").entities()[0].facts) == 64
    assert len(facts(stores())) == 64


async def test_eight_tasks_lose_nothing(stores: Callable[[], Any]) -> None:
    """The same on an event loop."""
    entities = EntityMemory.factory(extract, stores())

    async def write(n: int) -> None:
        for i in range(5):
            await entities(f"s{n % 3}", "u1").asave([HumanMessage(f"Nemo counted {n} and {i}")])

    await asyncio.gather(*map(write, range(8)))
    assert len((await entities("s1", "u1").aentities())[0].facts) == 40
    assert len(facts(stores())) == 40


def test_a_change_that_was_read_over_is_read_again() -> None:
    """A late read takes a fact out of the book again; the next write deletes the sign of it, and is not believed."""
    store = MemoryStore()
    entities = EntityMemory.factory(extract, store)
    memory = entities("s1", "u1")
    for n in range(VERSIONS):
        memory.save([HumanMessage(f"Nemo counted {n}")])
    shelf = entities._core
    book = drive(shelf.read("u1"))
    old, newest = book.versions, max(book.facts, key=lambda key: book.facts[key].at)
    assert len(old) >= VERSIONS
    with shelf.lock:  # as a read leaves it that began before the newest fact was written
        book.remove([newest])
        book.versions = frozenset(list(old)[1:])
    store.mset([(book.keys.version(), {})])
    version = next(key for key in store.yield_keys(prefix=book.keys.versions) if key not in old)
    store.mdelete(list(old))
    with shelf.lock:
        _bring_in_line(book, version, old, {}, ())
    assert len(memory.entities()[0].facts) == VERSIONS


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("verb", ["clear", "purge"])
def test_a_save_under_way_during_clear(stores: Callable[[], Any], verb: str, known: bool, same_process: bool) -> None:
    """Text that was erased does not come back, in a session that was there and in a new one; no row of it stays."""

    def meanwhile(text: str) -> list[Mention]:
        if "late" in text:
            eraser("s1", "u1").clear() if verb == "clear" else eraser.purge("u1")
        return extract(text)

    entities = EntityMemory.factory(meanwhile, stores())
    eraser = entities if same_process else EntityMemory.factory(extract, stores())
    memory = entities("s1", "u1")
    if known:
        memory.save([HumanMessage("Nemo swims")])
    memory.save([HumanMessage("Nemo came late")])
    assert memory.entities() == eraser("s1", "u1").entities() == []
    assert facts(stores()) == []
    if verb == "purge":
        assert list(stores().yield_keys()) == []
    memory.save([HumanMessage("Nemo is back")])
    assert texts(memory) == texts(eraser("s1", "u1")) == ["Nemo is back"]


def test_a_clear_between_the_write_and_its_check() -> None:
    """A clear that comes when the facts are stored already finds them, or the save takes them back."""

    class Slow(InMemoryStore):
        armed = False

        def mset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
            super().mset(key_value_pairs)
            if self.armed and any("/fact/" in key for key, _ in key_value_pairs):
                self.mdelete([key for key in self.yield_keys() if "/session/" in key])  # as far as another clear came

    store = Slow()
    memory = EntityMemory(extract, "s1", user_id="u1", store=store)
    memory.save([HumanMessage("Nemo swims", id="1")])
    store.armed = True
    memory.save([HumanMessage("Nemo sleeps", id="2")])
    assert memory.entities() == []
    assert facts(store) == []


def test_a_turn_that_began_before_a_clear_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A memory that loaded, and whose session was then cleared, leaves the turn out and says so."""
    entities = EntityMemory.factory(extract)
    entities("s1", "u1").save([HumanMessage("Nemo swims")])
    memory = entities("s1", "u1")
    assert texts(memory) == ["Nemo swims"]
    entities("s1", "u1").clear()
    memory.save([HumanMessage("Nemo sleeps")])
    assert memory.entities() == []
    assert "cleared" in caplog.text
    memory.save([HumanMessage("Nemo eats")])
    assert texts(memory) == ["Nemo eats"]


def test_clear_spares_other_sessions_and_users(stores: Callable[[], Any]) -> None:
    """Ids that begin alike, or hold slashes, are told apart."""
    entities = EntityMemory.factory(extract, stores())
    places = [("a", "u"), ("a/b", "u"), ("ab", "u"), ("a", "u/"), ("a%2Fb", "u"), ("a", "u2")]
    for session, user in places:
        entities(session, user).save([HumanMessage(f"Nemo in {session!r} of {user!r}")])
    entities("a", "u").clear()
    assert len(facts(stores())) == len(places) - 1
    assert texts(entities("a/b", "u")) == ["Nemo in 'a/b' of 'u'", "Nemo in 'ab' of 'u'", "Nemo in 'a%2Fb' of 'u'"]
    assert purge_user("u", entities) == [{"facts": 3}]
    assert not [key for key in stores().yield_keys() if key.startswith(user_prefix("u"))]
    assert texts(entities("a", "u/")) == ["Nemo in 'a' of 'u/'"]


def test_caps(stores: Callable[[], Any]) -> None:
    """No entity is above its cap, nor all together, at any time, shown or stored, merged ones included."""
    entities = EntityMemory.factory(extract, stores(), max_facts=5, max_total=12)
    memory = entities("s1", "u1")
    for i in range(20):
        for name in ("Nemo", "Dory", "Bob", "Robert"):
            memory.save([HumanMessage(f"{name} counted {i}")])
            assert all(len(e.facts) <= 5 for e in memory.entities())
            assert len(facts(stores())) <= 12
    assert [f.text for e in memory.entities() if e.name == "Robert" for f in e.facts][-1] == "Robert counted 19"
    memory.merge("Bob", into="Robert")
    assert {e.name: len(e.facts) for e in memory.entities()}["Robert"] == 5
    assert len(facts(stores())) <= 12
    memory.save([HumanMessage(" ".join(f"Nemo saw {i}." for i in range(30)))])
    assert {e.name: len(e.facts) for e in memory.entities()}["Nemo"] == 5


def test_more_users_than_books() -> None:
    """The books of the last 64 users are kept; the others are read again."""
    entities = EntityMemory.factory(extract)
    for i in range(150):
        entities("s1", f"u{i}").save([HumanMessage(f"Nemo saw {i}")])
    assert [texts(entities("s1", f"u{i}")) for i in (0, 149)] == [["Nemo saw 0"], ["Nemo saw 149"]]


def test_damaged_rows_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Rows that are foreign, damaged or of a newer version are skipped, named once, and not deleted."""
    store = SQLiteKeyValueStore(":memory:")
    memory = EntityMemory(extract, "s1", user_id="u1", store=store)
    memory.save([HumanMessage("Nemo swims")])
    [key] = facts(store)
    [row] = store.mget([key])
    assert row is not None
    bad = [
        {},
        {"v": 2},
        {**row, "v": 99},
        {**row, "at": "x"},
        {**row, "key": 7},
        {**row, "start": None},
        {**row, "key": ""},
    ]
    stored = [(f"{key[:-2]}x{i}", value) for i, value in enumerate(bad)]
    prefix = f"{user_prefix('u1')}entities/"
    stored += [(prefix + rest, {"v": 1}) for rest in ("rule/x", "description/x", "other/x", "fact/x", "version/zz")]
    store.mset(stored)
    other = EntityMemory(extract, "s1", user_id="u1", store=store)
    for seen in (memory, other, memory):
        assert texts(seen) == ["Nemo swims"]
        seen.save([HumanMessage("Nemo swims")])
    assert caplog.text.count("unreadable") == 2 * (len(bad) + 3)
    assert store.mget([name for name, _ in stored if "version" not in name]).count(None) == 0


class Failing(InMemoryStore):
    """A store whose disk is full."""

    down = False

    def mset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
        """Fails."""
        if self.down:
            raise OSError("no space")
        super().mset(key_value_pairs)


class FailingChecked(MemoryStore):
    """The same for one that checks its writes."""

    down = False

    def mset_if_exists(self, key: str, key_value_pairs: Any, delete: Any = ()) -> bool:
        """Fails."""
        if self.down:
            raise OSError("no space")
        return super().mset_if_exists(key, key_value_pairs, delete)


@pytest.mark.parametrize("kind", [Failing, FailingChecked])
def test_a_failed_write_leaves_no_trace(kind: type[Any]) -> None:
    """What could not be stored is not shown, and the next save stores it."""
    store = kind()
    memory = EntityMemory(extract, "s1", user_id="u1", store=store)
    memory.save([HumanMessage("Nemo swims")])
    store.down = True
    with pytest.raises(OSError, match="no space"):
        memory.save([HumanMessage("Nemo sleeps")])
    store.down = False
    assert texts(memory) == ["Nemo swims"]
    memory.save([HumanMessage("Nemo sleeps")])
    assert texts(memory) == ["Nemo swims", "Nemo sleeps"]


def test_another_process_sees_the_same(tmp_path: Path) -> None:
    """On SQLite: entities, decisions and all."""
    path = tmp_path / "store.db"
    memory = EntityMemory(extract, "s1", user_id="u1", store=SQLiteKeyValueStore(path))
    for text in ("Harrison likes tea", "I saw Harison", "I met Bob", "I met Robert", "Priya Raman", "Then Priya sang"):
        memory.save([HumanMessage(text)])
    memory.merge("Bob", into="Robert")
    code = """
        import sys
        from langchain_memkit import SQLiteKeyValueStore
        from langchain_memkit.memories.entity import EntityMemory
        memory = EntityMemory(lambda text: [], "s1", user_id="u1", store=SQLiteKeyValueStore(sys.argv[1]))
        print(memory.entities())
        print(memory.load("What does harrison like?")[0].text)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{memory.entities()}\n{memory.load('What does harrison like?')[0].text}\n"


users = st.sampled_from(["u1", "u2", "u/1", "%"])
sentences = st.sampled_from(["Nemo swims", "I met Nemo and Dory", "Ann Lee sang", "Then Ann left", "I saw Harison"])
steps = st.lists(st.tuples(users, st.sampled_from(["s1", "s2"]), sentences, st.sampled_from("ssssscfp")), max_size=25)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_users_never_meet(operations: list[tuple[str, str, str, str]]) -> None:
    """Whatever users do with the same names, each sees what it said and nothing else."""
    store = SQLiteKeyValueStore(":memory:")
    entities = EntityMemory.factory(extract, store)
    said: dict[str, set[tuple[str, str]]] = {user: set() for user in ("u1", "u2", "u/1", "%")}
    for user, session, sentence, verb in operations:
        memory = entities(session, user)
        text = f"{sentence}, says {user}"
        if verb == "s":
            memory.save([HumanMessage(text)])
            said[user].add((session, text))
        elif verb == "c":
            memory.clear()
            said[user] = {pair for pair in said[user] if pair[0] != session}
        elif verb == "f":
            memory.forget("Nemo")
            said[user] = {pair for pair in said[user] if "Nemo" not in pair[1] or "Dory" in pair[1]}
        else:
            entities.purge(user)
            said[user] = set()
    for user, expected in said.items():
        found = {(fact.session_id, fact.text) for e in entities("s1", user).entities() for fact in e.facts}
        assert found == expected
        shown = [
            record.text
            for note in entities("s1", user).load("Nemo, Dory, Ann Lee, Harison?")
            for record in records_of(note)
        ]
        assert set(shown) <= {text for _, text in expected}
    for user in said:
        entities.purge(user)
    assert list(store.yield_keys()) == []


@settings(max_examples=40, deadline=None)
@given(
    st.permutations(
        ["I met Harrison", "I saw Harison", "with Priya Raman", "and Priya", "for Ann", "to Ann Lee", "to Bob"]
    )
)
def test_order_plays_no_part(lines: list[str]) -> None:
    """Who is who does not depend on what was said first."""
    memory = EntityMemory(extract, "s1", user_id="u1", now=lambda: datetime(2026, 1, 2, tzinfo=UTC))
    for line in lines:
        memory.save([HumanMessage(line)])
    found = {(e.name, e.aliases, e.maybe, frozenset(f.text for f in e.facts)) for e in memory.entities()}
    assert found == {
        ("Harrison", ("Harison",), (), frozenset({"I met Harrison", "I saw Harison"})),
        ("Priya Raman", ("Priya",), (), frozenset({"with Priya Raman", "and Priya"})),
        ("Ann Lee", ("Ann",), (), frozenset({"for Ann", "to Ann Lee"})),
        ("Bob", (), (), frozenset({"to Bob"})),
    }


def test_writers_readers_and_clears_end_in_one_state(stores: Callable[[], Any]) -> None:
    """After threads of two factories saved, cleared, decided and read at random, both tell what the store holds."""
    factories = [EntityMemory.factory(extract, stores(), max_facts=15, max_total=25) for _ in range(2)]

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for i in range(15):
            memory = factories[seed % 2](f"s{dice.randrange(3)}", "u1")
            verb = dice.choice("sssssclmf")
            if verb == "s":
                memory.save([HumanMessage(f"{dice.choice(['Nemo', 'Dory', 'Bob', 'Robert'])} {seed} {i}")])
            elif verb == "c":
                memory.clear()
            elif verb == "l":
                memory.load("Nemo and Dory?")
            elif verb == "m":
                dice.choice([memory.merge, memory.split])("Bob", "Robert")
            else:
                memory.forget("Dory")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    for factory in factories:
        factory("s0", "u1").save([HumanMessage("Nemo at last", id=str(id(factory)))])
    fresh = EntityMemory.factory(extract, stores())
    expected = fresh("s1", "u1").entities()
    for factory in factories:
        assert factory("s1", "u1").entities() == expected
    assert sum(len(e.facts) for e in expected) == len(facts(stores())) <= 25


def test_a_repaired_row_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """A damaged row that was repaired under its key is read at the next change, by those who had found it damaged."""
    store = SQLiteKeyValueStore(":memory:")
    memory, other = (EntityMemory(extract, session, user_id="u1", store=store) for session in ("s1", "s2"))
    memory.save([HumanMessage("Nemo swims")])
    [key] = facts(store)
    row = store.mget([key])[0] or {}
    store.mset([(key, {"v": 99})])
    assert texts(other) == []
    store.mset([(key, row)])
    memory.save([HumanMessage("Nemo sleeps")])
    assert texts(other) == ["Nemo swims", "Nemo sleeps"]
    assert caplog.text.count("unreadable") == 1


def test_a_turn_repeated_after_its_history_was_cleared(stores: Callable[[], Any]) -> None:
    """Its facts are stored again, though the erased ones were alike; another process keeps them as well."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1", "turn_id": "t1"}}
    more: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    one, two = (
        create_runnable_with_message_history(
            FakeChatModel(), histories, memories=[EntityMemory.factory(extract, store, names=["Nemo"])]
        )
        for store in (stores(), stores())
    )
    elsewhere = EntityMemory.factory(extract, stores())("s2", "u1")
    for _ in range(3):
        one.invoke("Nemo swims", config)
        two.invoke("Nemo sleeps", more)
        assert {"Nemo swims", "Nemo sleeps"} <= set(texts(elsewhere))
        assert texts(elsewhere).count("Nemo swims") == texts(elsewhere).count("Nemo sleeps") == 1
        histories("s1", "u1").clear()


def test_a_clear_during_a_repeated_turn(stores: Callable[[], Any]) -> None:
    """A turn that is repeated in a new epoch adds nothing if its session is cleared while its names are looked for."""
    store = stores()
    clears = False

    def extract_late(text: str) -> list[Mention]:
        if clears:
            EntityMemory(extract, "s1", user_id="u1", store=store).clear()
        return extract(text)

    memory = EntityMemory(extract_late, "s1", user_id="u1", store=store)
    turn = [HumanMessage("Nemo swims", id="m1")]
    memory.save(SavedTurn(turn, "t1", 1 << EDITS))
    memory.load("Hello")
    clears = True
    memory.save(SavedTurn(turn, "t1", 2 << EDITS))
    assert facts(store) == []
    clears = False
    memory.save(SavedTurn(turn, "t1", 2 << EDITS))
    assert texts(memory) == ["Nemo swims"]
