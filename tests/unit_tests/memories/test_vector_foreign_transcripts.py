"""The words beside a vector store of others: read from transcripts, only where these changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from chromadb import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_chroma import Chroma
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.backends.wordllama import WordLlamaEmbeddings
from langchain_memkit.base import SessionInfo
from langchain_memkit.memories.rebuildable import Segment, segments_of
from langchain_memkit.memories.vector import VectorMemory
from langchain_memkit.memories.vector.adapter import SearchScores, VectorStoreAdapter
from langchain_memkit.memories.vector.rounds import Splitter, documents_of, rounds_of
from langchain_memkit.ranking.index import Index
from langchain_memkit.testing import FrozenClock
from langchain_memkit.testing.memories import ListHistory

NOTHING = SearchScores()
CALL = [{"name": "mystery", "args": {}, "id": "c1"}]
Call = Callable[..., Any]


class Watched:
    """A factory of SQLite's histories that notes what is read."""

    def __init__(self, path: Path | str = ":memory:", **options: Any) -> None:
        self.histories = SQLiteChatMessageHistory.factory(path, **options)
        self.list_sessions = self.histories.list_sessions
        self.alist_sessions = self.histories.alist_sessions
        self.read: list[tuple[str, int]] = []

    def __call__(self, session_id: str, user_id: str | None = None) -> Any:
        """A history that notes from where it is read, and how many turns."""
        history, read = self.histories(session_id, user_id), self.read

        class Noted:
            def iter_turns(self, *, after_seq: int | None = None) -> Iterator[Any]:
                turns = list(history.iter_turns(after_seq=after_seq))
                read.append((session_id, len(turns)))
                yield from turns

            async def aiter_turns(self, *, after_seq: int | None = None) -> Any:
                for turn in self.iter_turns(after_seq=after_seq):
                    yield turn

        return Noted()

    def say(self, session: str, *said: str, user: str = "u1") -> None:
        """Stores a turn for each text."""
        for text in said:
            self.histories(session, user).add_messages([HumanMessage(text), AIMessage(f"You say: {text}")])


@pytest.fixture
def transcripts() -> Iterator[Watched]:
    """Transcripts in SQLite."""
    watched = Watched()
    yield watched
    watched.histories.close()


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """`call(store, "index", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return run


def foreign(get_session_history: Any, **options: Any) -> VectorStoreAdapter:
    """An empty store beside transcripts."""
    store = InMemoryVectorStore(WordLlamaEmbeddings(64))
    return VectorStoreAdapter(store, get_session_history=get_session_history, **options)


def contents(index: Index) -> dict[str, Any]:
    """All that ranking sees of the records, by id."""
    return {entry.id: entry for entry in index.entries}


def afresh(histories: Any, user: str = "u1") -> dict[str, Any]:
    """What an index is that reads everything now."""
    return contents(foreign(histories).index(user, NOTHING))


# --- what is read, and when


def test_only_sessions_that_changed_are_read(transcripts: Watched, call: Call) -> None:
    """At first all; then nothing; then of the one that went on its last turn and what is new."""
    for session in ("s1", "s2", "s3"):
        transcripts.say(session, *(f"{session} says {i}" for i in range(5)))
    transcripts.say("s1", "of another user", user="u2")
    target = foreign(transcripts)
    assert len(call(target, "index", "u1", NOTHING)) == 15
    assert sorted(transcripts.read) == [("s1", 5), ("s2", 5), ("s3", 5)]
    transcripts.read.clear()
    index = call(target, "index", "u1", NOTHING)
    assert (len(index), transcripts.read) == (15, [])
    transcripts.say("s2", "I have a parrot.", "It is called Kiwi.")
    assert call(target, "index", "u1", NOTHING) is index
    assert transcripts.read == [("s2", 3)]
    assert (len(index), index.lexical(["kiwi"]).astype(bool).sum()) == (17, 1)
    assert contents(index) == afresh(transcripts)
    assert len(call(target, "index", "u2", NOTHING)) == 1
    assert len(call(target, "index", "u3", NOTHING)) == 0


def test_a_long_session_is_not_read_again(transcripts: Watched, call: Call) -> None:
    """What a turn costs does not grow with the conversation."""
    target = foreign(transcripts)
    for i in range(60):
        transcripts.say("s1", f"number {i}")
        if i > 1:
            call(target, "index", "u1", NOTHING)
    assert max(turns for _, turns in transcripts.read[1:]) == 2
    assert contents(target.index("u1", NOTHING)) == afresh(transcripts)


def test_what_is_cleared_is_gone(transcripts: Watched, call: Call) -> None:
    """Cleared, cleared and begun again, purged: words of erased turns match nothing."""
    target = foreign(transcripts)
    transcripts.say("s1", "My PIN is 1234.", "Keep it.")
    transcripts.say("s2", "I have a parrot.")
    assert len(call(target, "index", "u1", NOTHING)) == 3
    transcripts.histories("s1", "u1").clear()
    assert len(index := call(target, "index", "u1", NOTHING)) == 1
    assert not index.lexical(["pin"]).any()
    transcripts.say("s1", "Hello again.", "Anybody?")
    assert contents(call(target, "index", "u1", NOTHING)) == afresh(transcripts)
    transcripts.histories("s1", "u1").clear()
    transcripts.say("s1", "Third beginning.", "With two turns.")  # as many as before
    index = call(target, "index", "u1", NOTHING)
    assert contents(index) == afresh(transcripts)
    assert index.lexical(["begin"]).any() or index.lexical(["beginning"]).any()
    transcripts.histories.purge("u1")
    assert len(call(target, "index", "u1", NOTHING)) == 0


def test_turns_that_expire_or_are_deleted_go(tmp_path: Path, call: Call) -> None:
    """An old turn that goes makes the session be read anew, also if another came meanwhile."""
    clock = FrozenClock()
    transcripts = Watched(tmp_path / "chat.db", ttl=60, now=clock)
    target = foreign(transcripts)
    for i in range(4):
        transcripts.say("s1", f"number {i}")
        clock.tick(10)
    index = call(target, "index", "u1", NOTHING)
    assert {entry.expires_at for entry in index.entries} == {
        clock() + timedelta(seconds=60 - 10 * n) for n in range(1, 5)
    }
    clock.tick(25)
    transcripts.say("s1", "number 4")
    assert len(call(target, "index", "u1", NOTHING)) == 4
    assert contents(index) == afresh(transcripts)
    transcripts.histories.close()


def test_the_memorys_ttl_holds_for_transcripts(transcripts: Watched) -> None:
    """What was read of them expires with what was stored."""
    transcripts.say("s1", "I have a parrot.")
    [entry] = foreign(transcripts, ttl=timedelta(hours=1)).index("u1", NOTHING).entries
    assert entry.at is not None
    assert entry.expires_at == entry.at + timedelta(hours=1)


def test_a_round_that_goes_on_is_one(transcripts: Watched, call: Call) -> None:
    """Calls and results in later turns, several questions in a row: as if all had been read at once."""
    target, history = foreign(transcripts), transcripts.histories("s1", "u1")
    turns: list[list[BaseMessage]] = [
        [HumanMessage("Hi"), AIMessage("Hello")],
        [HumanMessage("5 and 6?"), AIMessage("", tool_calls=CALL)],
        [ToolMessage("-11", tool_call_id="c1"), AIMessage("It is -11.")],
        [HumanMessage("And")],
        [HumanMessage("7?")],
        [AIMessage("", tool_calls=CALL)],
        [AIMessage("I cannot say.")],
        [HumanMessage("Bye"), AIMessage("Bye")],
    ]
    for messages in turns:
        history.add_messages(messages)
        assert contents(call(target, "index", "u1", NOTHING)) == afresh(transcripts)
    assert sorted(len(e.said) for e in target.index("u1", NOTHING).entries) == [2, 2, 4, 4]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "say", "ask", "call", "answer", "clear", "index"]), st.sampled_from(["s1", "s2"])
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(steps=STEPS)
def test_always_as_if_read_at_once(steps: list[tuple[str, str]]) -> None:
    """Whatever is said, cleared and asked in between, the index is that of the transcripts as they stand."""
    transcripts = Watched()
    target = foreign(transcripts)
    for i, (verb, session) in enumerate(steps):
        history = transcripts.histories(session, "u1")
        if verb == "say":
            transcripts.say(session, f"number {i}")
        elif verb == "ask":
            history.add_messages([HumanMessage(f"question {i}")])
        elif verb == "call":
            history.add_messages([AIMessage("", tool_calls=CALL), ToolMessage(f"{i}", tool_call_id="c1")])
        elif verb == "answer":
            history.add_messages([AIMessage(f"answer {i}")])
        elif verb == "clear":
            history.clear()
        else:
            target.index("u1", NOTHING)
    assert contents(target.index("u1", NOTHING)) == afresh(transcripts)
    transcripts.histories.close()


def test_a_turn_between_the_list_and_the_reading(transcripts: Watched, call: Call) -> None:
    """It is there at once, counted once, and what goes afterwards is missed by nobody."""
    target = foreign(transcripts)
    transcripts.say("s1", "first", "second")
    stale = transcripts.list_sessions("u1")
    transcripts.say("s1", "third")
    listed = transcripts.list_sessions
    transcripts.list_sessions = lambda user_id: stale  # type: ignore[assignment,misc]  # as if just before
    del transcripts.alist_sessions
    assert len(call(target, "index", "u1", NOTHING)) == 3
    transcripts.list_sessions = listed
    transcripts.say("s1", "fourth")
    assert contents(call(target, "index", "u1", NOTHING)) == afresh(transcripts)
    transcripts.histories("s1", "u1").clear()
    assert len(call(target, "index", "u1", NOTHING)) == 0


def test_threads_bring_it_up_to_date_together(transcripts: Watched) -> None:
    """8 threads that ask while others speak end with the index that one makes."""
    target = foreign(transcripts)

    def work(n: int) -> None:
        for i in range(8):
            if n % 2:
                transcripts.say(f"s{n}", f"{n} says {i}")
            target.index("u1", NOTHING)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert contents(target.index("u1", NOTHING)) == afresh(transcripts)


def test_who_asked_longest_ago_is_read_again(transcripts: Watched) -> None:
    """Indexes together stay within `cache_bytes`."""
    for user in ("u1", "u2", "u3"):
        transcripts.say("s1", *(f"{user} says {i}" for i in range(20)), user=user)
    size = foreign(transcripts).index("u1", NOTHING).nbytes
    target = foreign(transcripts, cache_bytes=int(2.5 * size))
    transcripts.read.clear()
    for user in ("u1", "u2", "u1", "u2", "u3", "u2", "u1", "u3"):
        assert len(target.index(user, NOTHING)) == 20
    assert len(transcripts.read) == 5


# --- other histories


def test_histories_that_cannot_be_listed(call: Call) -> None:
    """Those that were seen are read at every question: of a save, or of what a search found."""
    histories: dict[str, ListHistory] = {}

    def get_session_history(session_id: str, user_id: str) -> ListHistory:
        return histories.setdefault(f"{user_id}/{session_id}", ListHistory())

    get_session_history("s1", "u1").add_messages([HumanMessage("I have a parrot.", id="1"), AIMessage("Oh.", id="2")])
    target = foreign(get_session_history)
    assert len(call(target, "index", "u1", NOTHING)) == 0
    call(target, "begin", "u1", "s1")
    index = call(target, "index", "u1", NOTHING)
    assert [entry.messages for entry in index.entries] == [("1", "2")]
    get_session_history("s1", "u1").add_messages([HumanMessage("It is Kiwi.", id="3"), AIMessage("Oh.", id="4")])
    get_session_history("s2", "u1").add_messages([HumanMessage("I moved.", id="5"), AIMessage("Oh.", id="6")])
    assert len(call(target, "index", "u1", NOTHING)) == 2
    [round_] = rounds_of([Segment(get_session_history("s2", "u1").messages, None)], datetime(2026, 1, 2, tzinfo=UTC))
    found = documents_of(round_, "u1", "s2", 0, Splitter())
    index = call(target, "index", "u1", SearchScores([(document, 1.0) for document in found]))
    assert {entry.session for entry in index.entries} == {"s1", "s2"}
    get_session_history("s1", "u1").clear()
    assert [entry.session for entry in call(target, "index", "u1", NOTHING).entries] == ["s2"]
    call(target, "forget", "u1", "s2")
    assert len(call(target, "index", "u1", NOTHING)) == 0


def test_async_histories() -> None:
    """A `get_session_history` that is a coroutine, and a list of sessions in one style only."""
    transcripts = Watched()
    transcripts.say("s1", "I have a parrot.")

    class Half:
        async def __call__(self, session_id: str, user_id: str) -> Any:
            return transcripts(session_id, user_id)

        def list_sessions(self, user_id: str) -> list[SessionInfo]:
            return transcripts.list_sessions(user_id)

    half = Half()

    async def get(session_id: str, user_id: str) -> Any:
        return await half(session_id, user_id)

    get.list_sessions = half.list_sessions  # type: ignore[attr-defined]  # as a factory has it
    assert len(asyncio.run(foreign(get).aindex("u1", NOTHING))) == 1
    transcripts.histories.close()


# --- beside what is stored


def test_importance_is_taken_from_what_was_found(transcripts: Watched, call: Call) -> None:
    """It stands in no transcript; once found it stays, also when the session goes on."""
    target = foreign(transcripts)
    transcripts.say("s1", "I have a parrot.", "It bit me.")
    rounds = rounds_of(segments_of(transcripts.histories("s1", "u1")).sync(), datetime(2026, 1, 2, tzinfo=UTC))
    documents = [d for i, r in enumerate(rounds) for d in documents_of(r, "u1", "s1", i, Splitter())]
    for document in documents:
        document.metadata["importance"] = 8.0
    assert call(target, "write", "u1", "s1", "", documents[:1], [None])
    similar = call(target, "similar", "u1", "parrot", 10)
    index = call(target, "index", "u1", similar)
    assert {entry.id: entry.importance for entry in index.entries} == {documents[0].id: 8.0, documents[1].id: None}
    transcripts.say("s1", "It flew away.")
    index = call(target, "index", "u1", NOTHING)
    assert sorted(entry.importance or 0 for entry in index.entries) == [0, 0, 8]


def test_records_have_the_ids_that_the_memory_gave_them(transcripts: Watched, tmp_path: Path, call: Call) -> None:
    """Short and long rounds: what a memory stored in Chroma is what the transcript's words find."""
    chroma = Chroma(
        "memories",
        WordLlamaEmbeddings(),
        persist_directory=str(tmp_path),
        client_settings=Settings(anonymized_telemetry=False, is_persistent=True, persist_directory=str(tmp_path)),
    )
    memories = VectorMemory.factory(chroma, get_session_history=transcripts.histories)
    for text in ("My parrot is called Kiwi.", "word " * 600 + "the end", "Thanks!"):
        history = transcripts.histories("s1", "u1")
        seq = len(list(history.iter_turns()))
        transcripts.say("s1", text)
        [turn] = history.iter_turns(after_seq=seq)
        call(memories("s1", "u1"), "save", turn.messages)
    stored = VectorStoreAdapter(chroma).index("u1")
    target = VectorStoreAdapter(chroma, get_session_history=transcripts)
    similar = target.similar("u1", "parrot", 50)
    assert len(stored) > 4
    assert contents(stored).keys() == contents(target.index("u1", similar)).keys() == similar.keys()
    [note] = call(memories("s2", "u1"), "load", "What is my parrot called?")
    assert "Kiwi" in note.text
    transcripts.histories("s1", "u1").clear()
    assert call(memories("s2", "u1"), "load", "What is my parrot called?") == []
    assert call(memories, "purge", "u1") == {"records": len(stored)}
