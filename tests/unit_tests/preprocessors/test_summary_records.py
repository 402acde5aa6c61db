"""Records of summaries: what they hold, how few there are, which of them is taken, and which is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    ToolMessage,
)
from langchain_core.stores import InMemoryStore

from langchain_memkit import create_history_preprocessor
from langchain_memkit.base import Position
from langchain_memkit.preprocessors.summary_store import SummaryRecord, prefix_hashes
from langchain_memkit.stores.in_memory import MemoryStore
from langchain_memkit.testing import FrozenClock
from testkit.scribe import Scribe, marks, talk

SMALL: dict[str, Any] = {"max_tokens": 600, "trigger": ("messages", 6), "keep": ("messages", 2)}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def config(session: str = "s1", user: str = "u1") -> Any:
    """Whose."""
    return {"configurable": {"session_id": session, "user_id": user}}


def record(**changed: Any) -> SummaryRecord:
    """A record with everything in it."""
    values: dict[str, Any] = {
        "text": "Nemo says hello.",
        "covered": 4,
        "digest": "d" * 64,
        "position": Position(7, 2, "ids:1", "m4"),
        "tokens": 8,
        "model": "fake",
        "created_at": MOMENT,
        "expires_at": MOMENT,
        "sources": {"messages": 4, "first_id": "m1", "last_id": None},
        "lead": ("Be brief.",),
    }
    return SummaryRecord(**values | changed)


@pytest.mark.parametrize("changed", [{}, {"position": None}, {"expires_at": None, "lead": ()}])
def test_round_trip(changed: Any) -> None:
    """A record comes back equal from plain data."""
    assert SummaryRecord.from_dict(record(**changed).to_dict()) == record(**changed)


@pytest.mark.parametrize(
    "damage",
    [
        {"v": 2},
        {"text": None},
        {"covered": "many"},
        {"covered": float("inf")},
        {"position": {"seq": 1}},
        {"position": {"epoch": "7", "seq": 2, "op": "x", "message_id": None}},
        {"position": [1, 2]},
        {"createdAt": 5},
        {"createdAt": "yesterday"},
        {"sources": 3},
        {"lead": None},
    ],
    ids=str,
)
def test_damaged_record_is_none(damage: Any) -> None:
    """Damaged data, and data of a newer version, is no record and no error."""
    assert SummaryRecord.from_dict({**record().to_dict(), **damage}) is None


@pytest.mark.parametrize("data", [None, 3, "text", [], {}])
def test_nonsense_is_none(data: Any) -> None:
    """Whatever a store gives back is survived."""
    assert SummaryRecord.from_dict(data) is None


def test_what_is_stored() -> None:
    """The record says what it covers, made by whom, from what, and when; its key begins with the user's id."""
    store = InMemoryStore()
    summarize = create_history_preprocessor(Scribe(), store=store, now=FrozenClock(), **SMALL)
    summarize.invoke(talk(8), config(user="u/1"))
    ((key, value),) = store.store.items()
    assert key.startswith("u%2F1/summary/s1/list/000000000006-")
    assert value["v"] == 1
    assert value["covered"] == 6
    assert value["model"] == "Scribe"
    assert value["sources"] == {"messages": 6, "first_id": None, "last_id": None}
    assert value["createdAt"] == "2026-01-01T00:00:00+00:00"
    assert value["tokens"] > 0
    assert "FACT Nemo" in value["text"]


def test_records_stay_few_and_are_never_changed() -> None:
    """50 compactions, of several chunks each: two records are there at any time, and none is ever written twice."""
    written: list[str] = []

    class Once(InMemoryStore):
        def mset(self, key_value_pairs: Any) -> None:
            written.extend(key for key, _ in key_value_pairs)
            super().mset(key_value_pairs)

    store, scribe = Once(), Scribe()
    summarize = create_history_preprocessor(scribe, store=store, max_tokens=600, trigger=("tokens", 1500))
    messages: list[BaseMessage] = []
    for i in range(50):
        messages += talk(100, 4, 100 * i)
        summarize.invoke(messages, config())
        assert len(store.store) <= 2
    assert len(written) == len(set(written)) == 50
    assert len(scribe.seen) == len(set(scribe.seen))


def test_racing_workers_leave_few() -> None:
    """What races and edited lists leave behind is bounded, and the record in use is not among what goes."""
    store, scribe = MemoryStore(), Scribe()
    summarize = create_history_preprocessor(scribe, store=store, **SMALL)
    for i in range(30):
        summarize.invoke([HumanMessage(f"edited {i}"), *talk(9)], config())
    assert len(list(store.yield_keys())) == 8
    before = len(scribe.prompts)
    summarize.invoke([HumanMessage("edited 29"), *talk(9)], config())
    assert len(scribe.prompts) == before


@pytest.mark.parametrize("damage", ["newer", "broken", "foreign"])
def test_unreadable_records_are_passed_over(damage: str) -> None:
    """Newer, broken and foreign values that reach furthest hide nothing and cost no turn."""
    store, scribe = InMemoryStore(), Scribe()
    summarize = create_history_preprocessor(scribe, store=store, **SMALL)
    summarize.invoke(messages := talk(8), config())
    ((key, good),) = store.store.items()
    values = {"newer": {**good, "v": 2}, "broken": {"v": 1, "text": 3}, "foreign": None}
    digests = prefix_hashes([*messages, *talk(5, first=8)], range(20))
    for n in range(7, 14):
        store.mset([(key.replace(key.rpartition("/")[2], f"{n:012d}-{digests[n][:24]}"), values[damage])])
    store.mset([(key.rpartition("/")[0] + "/no number", {})])
    view = summarize.invoke([*messages, *talk(2, first=8)], config())
    assert "FACT Nemo" in view[0].text
    assert len(scribe.prompts) == 1


def test_edited_and_rewound_lists_do_not_match() -> None:
    """A word changed under the summary, or messages taken back: the summary is not shown, a new one is written."""
    scribe = Scribe()
    summarize = create_history_preprocessor(scribe, **SMALL)
    messages = talk(8)
    summarize.invoke(messages, config())
    edited = [HumanMessage("FACT Dory"), *messages[1:]]
    assert "Dory" in summarize.invoke(edited, config())[0].text
    assert "Nemo" not in summarize.invoke(edited, config())[0].text
    assert summarize.invoke(messages[:4], config()) == messages[:4]
    assert "Nemo" in summarize.invoke(messages, config())[0].text
    assert len(scribe.prompts) == 2


def test_nobodys_conversations_that_begin_alike() -> None:
    """Without ids 40 conversations that begin alike and are of all lengths each find their own summary."""
    scribe = Scribe()
    summarize = create_history_preprocessor(scribe, **SMALL)
    lists = [[*talk(5), *talk(3 + i, first=100 * i)] for i in range(40)]
    for messages in lists:
        summarize.invoke(messages)
    before = len(scribe.prompts)
    for messages in lists:
        assert marks(summarize.invoke(messages)[-1].text) == marks(messages[-1].text)
    assert len(scribe.prompts) == before


def test_same_list_of_another_user() -> None:
    """Equal lists of two users: the second one is summarized for itself."""
    scribe = Scribe()
    summarize = create_history_preprocessor(scribe, **SMALL)
    for user in ("u1", "u2"):
        summarize.invoke(talk(8), config(user=user))
    assert len(scribe.prompts) == 2


@pytest.mark.parametrize("bad", [5, b"u1", {"$ne": None}])
@pytest.mark.parametrize("name", ["user_id", "session_id"])
def test_ids_are_strings(name: str, bad: Any) -> None:
    """An id that is no string is an error, not nobody's conversation."""
    summarize = create_history_preprocessor(Scribe(), **SMALL)
    ids = {"session_id": "s1", "user_id": "u1", name: bad}
    with pytest.raises(TypeError, match=name):
        summarize.invoke(talk(8), {"configurable": ids})
    with pytest.raises(TypeError, match=name):
        summarize.window({"configurable": ids})


def test_hostile_ids_stay_apart() -> None:
    """Ids with slashes and dots reach no other session's records."""
    store = InMemoryStore()
    summarize = create_history_preprocessor(Scribe(), store=store, **SMALL)
    places = [("s1", "u1"), ("s1/list", "u1"), ("../s1", "u1"), ("s1", "u1/summary"), ("%2F", "u1"), ("/", "u1")]
    for session, user in places:
        summarize.invoke(talk(8), config(session, user))
    assert len(store.store) == len(places)
    for i, (session, user) in enumerate(places, start=1):
        summarize.clear(session, user)
        assert len(store.store) == len(places) - i


texts = st.text(max_size=8)
calls = st.lists(st.fixed_dictionaries({"name": texts, "args": st.dictionaries(texts, texts, max_size=2)}), max_size=2)
said = st.one_of(
    st.builds(HumanMessage, texts),
    st.builds(SystemMessage, texts),
    st.builds(lambda t, c: AIMessage(t, tool_calls=[{**x, "id": "1"} for x in c]), texts, calls),
    st.builds(lambda t: ToolMessage(t, tool_call_id="1"), texts),
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(said, max_size=6), st.lists(said, max_size=6))
def test_equal_hashes_mean_equal_text(one: list[BaseMessage], other: list[BaseMessage]) -> None:
    """Hashes of two lists are equal exactly if roles, contents and calls are, wherever one message ends."""

    def spoken(messages: list[BaseMessage]) -> list[Any]:
        return [(m.type, m.content, [(c["name"], c["args"]) for c in getattr(m, "tool_calls", [])]) for m in messages]

    digests = [prefix_hashes(m, [len(m)])[len(m)] for m in (one, other)]
    assert (digests[0] == digests[1]) == (spoken(one) == spoken(other))


def test_chunks_hash_like_messages() -> None:
    """What was streamed and what was stored are the same conversation; ids and metadata do not count."""
    parts: Any = [{"name": "f", "args": '{"a": 1}', "id": "c1", "index": 0, "type": "tool_call_chunk"}]
    streamed = [HumanMessageChunk(content="a"), AIMessageChunk(content="b", tool_call_chunks=parts)]
    call = {"name": "f", "args": {"a": 1}, "id": "c2"}
    stored = [HumanMessage("a", id="1"), AIMessage("b", tool_calls=[call], response_metadata={"x": 1})]
    assert prefix_hashes(streamed, [1, 2]) == prefix_hashes(stored, [1, 2])


def test_odd_content_has_a_hash() -> None:
    """Keys of several types and values that are no JSON do not stop a conversation."""
    odd = AIMessage([{"type": "x", 1: b"x", "1": {2}}])
    assert len(prefix_hashes([odd], [1])[1]) == 64


def test_default_store_takes_many_threads() -> None:
    """Threads that write, delete and list at once: lists are sorted and exact in the end."""
    store = MemoryStore()

    def work(n: int) -> None:
        for i in range(200):
            store.mset([(f"{n}/{i}", {})])
            assert len(list(store.yield_keys(prefix=f"{n}/"))) == (i + 1) // 2 + 1
            if i % 2:
                store.mdelete([f"{n}/{i}", "never there"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    keys = list(store.yield_keys())
    assert keys == sorted(keys)
    assert len(keys) == 800
