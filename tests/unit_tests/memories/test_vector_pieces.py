"""Turns in pieces, twice, at once, or while their session is erased: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_text_splitters import CharacterTextSplitter

from langchain_memkit import SQLiteChatMessageHistory, VectorMemory, purge_user
from langchain_memkit._sync import drive
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
def histories() -> Any:
    """Without a file: what is tried here does not depend on it."""
    return SQLiteChatMessageHistory.factory(":memory:")


def memory_of(histories: Any, session_id: str = "s1", **options: Any) -> VectorMemory:
    """The memory of a session."""
    return VectorMemory(histories, DeterministicFakeEmbedding(size=8), session_id, user_id="u1", **options)


def stored(memory: VectorMemory) -> list[tuple[str, bool]]:
    """Text, and whether it is embedded: of all records of the memory's session, in order."""
    held = drive(memory._core.log.look("u1"))
    with held.index.lock:
        embedded = {entry.id: bool(flag) for entry, flag in zip(held.index.entries, held.index.embedded, strict=True)}
        entries = sorted(held.index.entries, key=lambda entry: entry.position)
    mine = [entry.id for entry in entries if entry.session == memory.session_id]
    return [(held.stored[name].record.text, embedded[name]) for name in mine]


ROUND1, ROUND2 = "human: question 1\nai: answer 1", "human: question 2\nai: answer 2"
ASKED1, ASKED2 = "human: question 1", "human: question 2"
CALLED1, CALLED = f"{ASKED1}\nai: [calls f({{}})]", "tool: -11"
LOOKS, RESULT = AIMessage("", tool_calls=CALL, id="x1"), ToolMessage("-11", tool_call_id="c", id="t1")


@pytest.mark.parametrize(
    ("saves", "wanted"),
    [
        ([[h(1), a(1)], [h(1)]], [ROUND1]),
        ([[h(1)], [h(1), a(1)]], [ASKED1, "ai: answer 1"]),
        ([[h(1), a(1)], [h(2), a(2)], [a(1)]], [ROUND1, ROUND2]),
        ([[h(1), a(1)], [h(2)], [h(1), a(1)]], [ROUND1, ASKED2]),
        ([[h(1), a(1), h(2)], [h(1), a(1), h(2)], [a(2)]], [ROUND1, ASKED2, "ai: answer 2"]),
        ([[h(1), a(1)], [h(2), a(2)], [h(1)], [a(1)]], [ROUND1, ROUND2]),
        ([[h(1)], [h(2)], [a(2)]], [ASKED1, ASKED2, "ai: answer 2"]),
        ([[h(1), a(1)], [a(2)]], [ROUND1, "ai: answer 2"]),
        ([[a(1)], [h(2), a(2)]], ["ai: answer 1", ROUND2]),
        ([[h(1), LOOKS], [RESULT], [RESULT], [a(1)], [RESULT]], [CALLED1, CALLED, "ai: answer 1"]),
        ([[h(1), LOOKS, RESULT, a(1)], [RESULT]], [f"{CALLED1}\n{CALLED}\nai: answer 1"]),
    ],
)
def test_pieces_and_retries_with_ids(histories: Any, saves: Sequence[list[BaseMessage]], wanted: list[str]) -> None:
    """Each message is stored once, with those that it was saved with, in order."""
    memory = memory_of(histories)
    for messages in saves:
        memory.save(messages)
    assert stored(memory) == [(text, True) for text in wanted]
    ids = [message.id for messages in saves for message in messages]
    assert [message.id for message in histories("s1", "u1").messages] == [*dict.fromkeys(ids)]


def test_the_same_opening_words_without_ids(histories: Any) -> None:
    """Two questions in pieces are two, whatever they say; what the session ends with, again, is a retry."""
    memory = memory_of(histories)
    for answer in ("Sun.", "Rain."):
        for said in (HumanMessage("Weather?"), AIMessage(answer)):
            memory.save([said])
            memory.save([said])
    wanted = ["human: Weather?", "ai: Sun.", "human: Weather?", "ai: Rain."]
    assert [text for text, _ in stored(memory)] == wanted
    memory.save([HumanMessage("Tea?"), AIMessage("Yes.")])
    memory.save([HumanMessage("Tea?"), AIMessage("Yes.")])
    assert [text for text, _ in stored(memory)] == [*wanted, "human: Tea?\nai: Yes."]


@pytest.mark.parametrize("ids", [True, False])
def test_a_long_turn_is_stored_once(histories: Any, ids: bool) -> None:
    """A retry is told by its ids or its text, also where that is several records, which are all embedded."""
    for _ in range(2):
        said = [h(1, LONG), a(1, LONG[::-1])]
        memory_of(histories).save(said if ids else [m.model_copy(update={"id": None}) for m in said])
    found = stored(memory_of(histories))
    assert len(found) > 10
    assert all(is_embedded for _, is_embedded in found)
    assert len(dict(found)) == len(found)
    assert len(histories("s1", "u1").messages) == 2


def test_forgetting_a_message_of_a_long_round_forgets_the_round(histories: Any) -> None:
    """No piece stays, and nothing else of the turn is shown."""
    memory = memory_of(histories)
    memory.save([h(1, LONG), a(1, "So your PIN is 4711. " + LONG)])
    memory.save([h(2), a(2)])
    assert memory.forget_messages(["h1"]) == 1
    assert stored(memory) == [(ROUND2, True)]
    assert [message.id for message in histories("s1", "u1").messages] == ["h2", "a2"]


def test_two_who_go_on_with_one_session(histories: Any) -> None:
    """Saves at once lose no answer."""
    memory = memory_of(histories)
    memory.save([h(1)])
    start = threading.Barrier(4)

    def go_on(n: int) -> None:
        start.wait()
        memory_of(histories).save([a(n)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(go_on, range(1, 5)))
    assert sorted(text for text, _ in stored(memory)) == [*(f"ai: answer {n}" for n in range(1, 5)), ASKED1]


ROLES = st.lists(st.sampled_from("hhaatx"), min_size=1, max_size=12)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    roles=ROLES, cuts=st.sets(st.integers(1, 11)), again=st.sets(st.integers(0, 11)), long=st.sets(st.integers(0, 11))
)
def test_any_split_is_what_an_index_makes(roles: list[str], cuts: set[int], again: set[int], long: set[int]) -> None:
    """Property: whatever comes twice, the records are those that a memory makes which finds the turns later."""
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
    told, found = (SQLiteChatMessageHistory.factory(":memory:") for _ in range(2))
    memory, later = memory_of(told), memory_of(found)
    for begin, end in pairwise(edges):
        memory.save(messages[begin:end])
        if begin in again:
            memory.save(messages[: end if end % 2 else begin + 1])
        found("s1", "u1").add_messages(messages[begin:end])
    assert later.index(progress=False) == len(edges) - 1
    assert memory.index(progress=False) == 0
    assert told("s1", "u1").messages == found("s1", "u1").messages
    assert stored(memory) == stored(later)


def test_a_user_purged_while_turns_are_indexed_stays_purged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Purged between two batches: nothing comes back, in no process."""

    class Purging(DeterministicFakeEmbedding):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            calls.append(len(texts))
            if len(calls) == 3:  # the first is of the text by which a model is recognized
                purge_user("u1", histories)
            return super().embed_documents(texts)

    calls: list[int] = []
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    history = histories("s1", "u1")
    for i in range(600):
        history.add_messages([h(i), a(i)])
    memory = VectorMemory(histories, Purging(size=8), "s1", user_id="u1")
    with caplog.at_level(logging.WARNING):
        memory.index(progress=False)
    assert len(calls) == 3
    assert stored(memory) == stored(memory_of(histories)) == []
    assert memory.search("question") == []
    with histories.turn_store._database.connection() as connection:
        assert connection.execute("SELECT COUNT(*) FROM turn_indexes").fetchone()[0] == 0


def test_max_records_keeps_what_was_just_said(histories: Any) -> None:
    """Also where all others were recalled."""
    memory = memory_of(histories, max_records=2)
    for i in range(6):
        memory.save([h(i, f"topic{i} is nice"), a(i)])
        assert f"topic{i}" in memory.load(f"What of topic{i}?")[0].text
    assert len(memory.search("topic nice", k=50)) == 2


def test_a_question_that_cannot_be_embedded_is_looked_for_by_its_words(
    histories: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An embedder that fails, or knows none of the words, costs no turn."""

    class Picky(DeterministicFakeEmbedding):
        def embed_query(self, text: str) -> list[float]:
            if "down" in text:
                raise ConnectionError("503")
            return [0.0] * 8

    memory = VectorMemory(histories, Picky(size=8), "s1", user_id="u1")
    memory.save([h(1, "My parrot is called Kiwi."), a(1)])
    memory.save([h(2, "I work in Oslo."), a(2)])
    with caplog.at_level(logging.WARNING):
        for question in ("Who is Kiwi?", "Is Kiwi down?"):
            [note] = memory.load(question)
            assert "Kiwi" in note.text
    assert "only its words" in caplog.text


def test_a_splitter_that_is_given_later(histories: Any) -> None:
    """`index(anew=True)` cuts turns again that are indexed already, and stores the new pieces."""
    memory_of(histories).save([h(1, LONG), a(1)])
    splitter = CharacterTextSplitter(separator=" ", chunk_size=1000, chunk_overlap=0)
    later = memory_of(histories, text_splitter=splitter)
    before = stored(later)
    assert later.index(progress=False) == 0
    assert later.index(progress=False, anew=True) == 1
    after = stored(later)
    assert len(after) < len(before)
    assert all(is_embedded for _, is_embedded in after)
    assert stored(memory_of(histories)) == after  # as another process reads it
