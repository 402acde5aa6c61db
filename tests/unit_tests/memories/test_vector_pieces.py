"""Turns in pieces, twice, at once, or while their session is cleared: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_text_splitters import RecursiveCharacterTextSplitter

from langchain_memkit import SQLiteChatMessageHistory, SQLiteVectorStore, VectorMemory, purge_user
from langchain_memkit._sync import drive
from langchain_memkit.errors import ConfigurationError
from testkit.examples import examples

CALL = [{"name": "f", "args": {}, "id": "c"}]
LONG = " ".join(f"word{i}" for i in range(400))


def h(n: int, text: str = "") -> HumanMessage:
    """A question."""
    return HumanMessage(text or f"question {n}", id=f"h{n}")


def a(n: int, text: str = "") -> AIMessage:
    """An answer."""
    return AIMessage(text or f"answer {n}", id=f"a{n}")


@pytest.fixture
def store() -> Any:
    """Without a file: what is tried here does not depend on it."""
    return SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))


def stored(store: Any, session_id: str = "s1") -> list[tuple[str, bool, bool]]:
    """Text, whether it waits, whether it is embedded: of all records of a session, in order."""
    index = drive(store.records.index("u1"))
    with index.lock:
        embedded = {entry.id: bool(flag) for entry, flag in zip(index.entries, index.embedded, strict=True)}
        entries = sorted((e for e in index.entries if e.session == session_id), key=lambda e: e.position)
    found = {d.id: d for d in store.get_by_ids([entry.id for entry in entries], user_id="u1")}
    return [(found[e.id].page_content, bool(found[e.id].metadata.get("open")), embedded[e.id]) for e in entries]


def memory_of(store: Any, session_id: str = "s1", **options: Any) -> VectorMemory:
    """The memory of a session."""
    return VectorMemory(store, session_id, user_id="u1", **options)


ROUND1, ROUND2 = "human: question 1\nai: answer 1", "human: question 2\nai: answer 2"


@pytest.mark.parametrize(
    ("saves", "wanted"),
    [
        ([[h(1), a(1)], [h(1)]], [ROUND1]),
        ([[h(1)], [h(1), a(1)]], [ROUND1]),
        ([[h(1), a(1)], [h(2), a(2)], [a(1)]], [ROUND1, ROUND2]),
        ([[h(1), a(1)], [h(2)], [h(1), a(1)]], [ROUND1, "human: question 2"]),
        ([[h(1), a(1), h(2)], [h(1), a(1), h(2)], [a(2)]], [ROUND1, ROUND2]),
        ([[h(1), a(1)], [h(2), a(2)], [h(1)], [a(1)]], [ROUND1, ROUND2]),
        ([[h(1)], [h(2)], [a(2)]], ["human: question 1\nhuman: question 2\nai: answer 2"]),
        ([[h(1), a(1)], [a(2)]], [ROUND1 + "\nai: answer 2"]),
        ([[a(1)], [h(2), a(2)]], ["ai: answer 1", ROUND2]),
    ],
)
def test_pieces_and_retries_with_ids(store: Any, saves: Sequence[list[BaseMessage]], wanted: list[str]) -> None:
    """Each message is stored once, in the round that it belongs to, in order."""
    memory = memory_of(store)
    for messages in saves:
        memory.save(messages)
    assert [text for text, _, _ in stored(store)] == wanted


def test_results_of_tools_that_come_again(store: Any) -> None:
    """A redelivered result neither doubles itself nor reopens the round."""
    memory = memory_of(store)
    result = ToolMessage("-11", tool_call_id="c", id="t1")
    for messages in ([h(1), AIMessage("", tool_calls=CALL, id="x1")], [result], [result], [a(1)], [result]):
        memory.save(messages)
    [(text, waits, embedded)] = stored(store)
    assert text == "human: question 1\nai: [calls f({})]\ntool: -11\nai: answer 1"
    assert (waits, embedded) == (False, True)


def test_the_same_opening_words_without_ids(store: Any) -> None:
    """Two questions in pieces are two rounds, whatever they say; a whole turn again is a retry."""
    memory = memory_of(store)
    for answer in ("Sun.", "Rain."):
        memory.save([HumanMessage("Weather?")])
        memory.save([HumanMessage("Weather?")])
        memory.save([AIMessage(answer)])
        memory.save([AIMessage(answer)])
    assert [text for text, _, _ in stored(store)] == ["human: Weather?\nai: Sun.", "human: Weather?\nai: Rain."]
    memory.save([HumanMessage("Tea?"), AIMessage("Yes.")])
    memory.save([HumanMessage("Tea?"), AIMessage("Yes.")])
    assert len(stored(store)) == 3


def test_a_long_question_is_embedded_whole_once_it_is_answered(store: Any) -> None:
    """The full pieces at once, the last one with the answer."""
    memory = memory_of(store)
    memory.save([h(1, LONG), AIMessage("", tool_calls=CALL, id="x1")])
    *full, (_, waits, embedded) = stored(store)
    assert (waits, embedded) == (True, False)
    assert all(embedded and not waits for _, waits, embedded in full)
    memory.save([ToolMessage("ok", tool_call_id="c", id="t1"), a(1)])
    assert len(stored(store)) > 3
    assert all(embedded and not waits for _, waits, embedded in stored(store))


@pytest.mark.parametrize("lost", [{1}, {0}, {2, 3}, {0, 1, 2}])
def test_a_long_round_of_which_a_part_is_gone(store: Any, lost: set[int]) -> None:
    """A retry with ids brings what is missing, once and at its place; not where a text is cut in other pieces now."""
    memory, turn = memory_of(store), [h(1, LONG), a(1)]
    for said in ([h(0), a(0)], turn, [h(2), a(2)]):
        memory.save(said)
    whole = stored(store)
    assert len(whole) > 5
    pieces = RecursiveCharacterTextSplitter(chunk_size=300, chunk_overlap=0)
    memory_of(store, text_splitter=pieces).save(turn)
    assert stored(store) == whole
    entries = sorted(drive(store.records.index("u1")).entries, key=lambda entry: entry.position)[1:-1]
    store.delete([entry.id for i, entry in enumerate(entries) if i in lost], user_id="u1")
    assert len(stored(store)) == len(whole) - len(lost)
    for again in (turn, [*turn, h(2), a(2)]):
        memory.save(again)
        assert stored(store) == whole


def test_forgetting_a_message_of_a_long_round_forgets_the_round(store: Any) -> None:
    """No piece stays."""
    memory = memory_of(store)
    memory.save([h(1, LONG), a(1, "So your PIN is 4711. " + LONG)])
    assert memory.forget_messages(["h1"]) > 3
    assert stored(store) == []


def test_two_who_go_on_with_one_round(store: Any) -> None:
    """Saves at once lose no answer: who comes second reads again."""
    memory = memory_of(store)
    memory.save([h(1)])
    start = threading.Barrier(4)

    def go_on(n: int) -> None:
        start.wait()
        memory.save([a(n)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(go_on, range(1, 5)))
    said = "\n".join(text for text, _, _ in stored(store))
    assert sorted(line for line in said.split("\n") if line.startswith("ai")) == [
        f"ai: answer {n}" for n in range(1, 5)
    ]


ROLES = st.lists(st.sampled_from("hhaatx"), min_size=1, max_size=12)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    roles=ROLES, cuts=st.sets(st.integers(1, 11)), again=st.sets(st.integers(0, 11)), long=st.sets(st.integers(0, 11))
)
def test_any_split_is_what_rebuild_makes(roles: list[str], cuts: set[int], again: set[int], long: set[int]) -> None:
    """Property: however a conversation is cut, and whatever comes twice, its records are those that `rebuild` makes."""
    store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
    messages: list[BaseMessage] = []
    for i, role in enumerate(roles):
        text = f"{LONG if i in long else 'text'} {i}"
        made: dict[str, BaseMessage] = {
            "h": HumanMessage(text, id=f"m{i}"),
            "a": AIMessage(text, id=f"m{i}"),
            "t": ToolMessage(text, tool_call_id="c", id=f"m{i}"),
            "x": AIMessage(text, tool_calls=CALL, id=f"m{i}"),
        }
        messages.append(made[role])
    edges = [0, *sorted(cut for cut in cuts if cut < len(messages)), len(messages)]
    memory = memory_of(store, "pieces")
    for n, (begin, end) in enumerate(pairwise(edges)):
        memory.save(messages[begin:end])
        if n in again:
            memory.save(messages[begin:end])
    history = SQLiteChatMessageHistory(":memory:", "whole", user_id="u1")
    history.add_messages(messages)
    memory_of(store, "whole").rebuild(history, progress=False)
    assert stored(store, "pieces") == stored(store, "whole")


def test_a_session_cleared_while_it_is_rebuilt_stays_cleared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Purged between two batches: nothing comes back, and it is said."""

    class Purging(DeterministicFakeEmbedding):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            calls.append(len(texts))
            if len(calls) == 2:
                purge_user("u1", histories, VectorMemory.factory(store))
            return super().embed_documents(texts)

    calls: list[int] = []
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    history = histories("s1", "u1")
    for i in range(600):
        history.add_messages([h(i), a(i)])
    store = SQLiteVectorStore(":memory:", Purging(size=8))
    memory = memory_of(store)
    with caplog.at_level(logging.WARNING):
        counts = memory.rebuild(history, progress=False)
    assert counts["added"] == 256
    assert len(drive(store.records.index("u1"))) == 0
    assert "cleared while" in caplog.text


def test_max_records_keeps_what_was_just_said(store: Any) -> None:
    """Also where all others were recalled."""
    memory = memory_of(store, max_records=2)
    for i in range(6):
        memory.save([h(i, f"topic{i} is nice"), a(i)])
        assert f"topic{i}" in memory.load(f"What of topic{i}?")[0].text
    assert len(drive(store.records.index("u1"))) == 2


def test_a_question_that_cannot_be_embedded_is_looked_for_by_its_words(caplog: pytest.LogCaptureFixture) -> None:
    """An embedder that fails, or knows none of the words, costs no turn."""

    class Picky(DeterministicFakeEmbedding):
        def embed_query(self, text: str) -> list[float]:
            if "down" in text:
                raise ConnectionError("503")
            return [0.0] * 8

    store = SQLiteVectorStore(":memory:", Picky(size=8))
    memory = memory_of(store)
    memory.save([h(1, "My parrot is called Kiwi."), a(1)])
    memory.save([h(2, "I work in Oslo."), a(2)])
    with caplog.at_level(logging.WARNING):
        for question in ("Who is Kiwi?", "Is Kiwi down?"):
            [note] = memory.load(question)
            assert "Kiwi" in note.text
    assert "only its words" in caplog.text


@pytest.mark.parametrize("value", [None, "high", float("nan")])
def test_an_importance_that_is_no_number(store: Any, value: Any) -> None:
    """The error names the argument, and nothing is stored."""
    memory = memory_of(store, importance=lambda text: value)
    with pytest.raises(ConfigurationError, match="importance"):
        memory.save([h(1), a(1)])
    assert stored(store) == []


def test_times_must_be_aware(store: Any) -> None:
    """A naive time is refused by name, whether anything is stored or not."""
    from datetime import datetime

    memory = memory_of(store, f"s{uuid4().hex}")
    for name in ("since", "until"):
        naive: Any = {name: datetime(2026, 1, 2)}  # noqa: DTZ001  # that is the point
        with pytest.raises(ConfigurationError, match=name):
            memory.search("x", **naive)
