"""Vector memory over SQLite histories: the contract of recall, and what only one log can give."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_memkit import (
    ComposedMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_runnable_with_message_history,
    explain_turn,
    session,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.vector import Ranking
from langchain_memkit.testing import FakeChatModel
from langchain_memkit.testing._styles import BothStyles, Call
from testkit.memories import RecallCases
from testkit.recall import round_of

CAT = round_of("My cat is called Nemo.", "A fine name!")
OSLO = round_of("I work in Oslo.", "By the sea?")
ASKED = "What is the name of my cat?"


class TestSQLite(RecallCases):
    @pytest.fixture
    def open_histories(self, tmp_path: Path) -> Any:
        """Histories in a file."""
        return lambda now: SQLiteChatMessageHistory.factory(tmp_path / "chat.db", now=now)


class Remote(WordLlamaEmbeddings):
    """A model behind a server, which counts what it embeds and may fail."""

    is_local = False

    def __init__(self, dims: int = 256) -> None:
        super().__init__(dims)
        self.texts: list[str] = []
        self.fails = False

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Count them."""
        if self.fails:
            raise ConnectionError("no server")
        self.texts += texts
        return super().embed_documents(texts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that does not exist yet."""
    return tmp_path / "chat.db"


@pytest.fixture
def histories(path: Path) -> Iterator[Any]:
    """Histories in it."""
    with SQLiteChatMessageHistory.factory(path) as made:
        yield made


@pytest.fixture
def memories(histories: Any) -> Any:
    """Memories over them."""
    return VectorMemory.factory(histories, WordLlamaEmbeddings())


def texts(memory: Any, asked: str = ASKED) -> list[str]:
    """What the user says in the records that are found, best first."""
    return [hit.text.split("\n")[0].removeprefix("human: ") for hit in memory.search(asked, k=50)]


def indexes(path: Path) -> list[tuple[str, int, str]]:
    """Session, position and name of what is derived in a file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT session_id, seq, name FROM turn_indexes ORDER BY 1, 2, 3").fetchall()


def chat(histories: Any, *memories: Any, **options: Any) -> Any:
    """A chain that answers anything."""
    return create_runnable_with_message_history(FakeChatModel(), histories, memories=list(memories), **options)


def test_a_turn_of_a_chain(path: Path, histories: Any, memories: Any) -> None:
    """The records of a turn are stored with it, in one transaction, and recalled in another session."""
    statements: list[str] = []
    chain = chat(histories, memories)
    chain.invoke("It rains.", session("s0", user_id="u1"))
    with histories.turn_store._database.connection() as connection:
        connection.set_trace_callback(statements.append)
    chain.invoke("My cat is called Nemo.", session("s1", user_id="u1"))
    assert sum(statement.startswith("BEGIN IMMEDIATE") for statement in statements) == 1
    assert sum(statement.startswith("COMMIT") for statement in statements) == 1
    assert indexes(path) == [("s0", 1, "vectors"), ("s1", 1, "vectors")]
    [note] = memories("s2", "u1").load(ASKED)
    assert "> human: My cat is called Nemo." in note.text
    assert memories("s2", "u2").load(ASKED) == []


class TestBothStyles(BothStyles):
    def test_a_year_of_conversations(self, path: Path, histories: Any, call: Call) -> None:
        """What was stored before there was a memory is recalled at the first question, and then it has its index."""
        for i in range(30):
            histories(f"s{i}", "u1").add_messages(round_of(f"I saw film {i}.", "Was it good?"))
        histories("s7", "u1").add_messages(CAT)
        memory = VectorMemory.factory(histories, WordLlamaEmbeddings())("now", "u1")
        assert call(memory, "search", ASKED, k=1)[0].text.startswith("human: My cat is called Nemo.")
        assert len(indexes(path)) == 31

    def test_indexing_is_bounded_and_can_be_asked_for(self, histories: Any, path: Path, call: Call) -> None:
        """A question indexes the newest turns first, and so many at most; `index` does all."""
        for i in range(20):
            histories("s1", "u1").add_messages(round_of(f"I saw film {i}.", "Was it good?"))
        memory = VectorMemory.factory(histories, WordLlamaEmbeddings())("now", "u1")
        memory._core.log._lazy = 5
        call(memory, "search", "film")
        assert [seq for _, seq, _ in indexes(path)] == [16, 17, 18, 19, 20]
        assert call(memory, "index", progress=False) == 15
        assert len(indexes(path)) == 20
        assert call(memory, "index", progress=False) == 0

    def test_saved_by_hand(self, histories: Any, memories: Any, call: Call) -> None:
        """A turn that the session ends with, or whose ids it has, is not stored again."""
        history, memory = histories("s1", "u1"), memories("s1", "u1")
        history.add_messages(CAT)
        call(memory, "save", CAT)
        named = round_of("I work in Oslo.", "By the sea?", "1")
        for _ in range(2):
            call(memory, "save", named)
        assert len(history.messages) == 4
        assert len(texts(memory)) == 2


CHANGES: dict[str, tuple[Callable[[Any, Any], Any], list[str]]] = {
    "hide": (lambda history, _: history.delete_turn(1), ["I work in Oslo."]),
    "clear": (lambda history, _: history.clear(), []),
    "edit": (lambda history, _: history.edit(1, round_of("My cat is called Tom.", "Oh?")), ["My cat is called Tom."]),
    "purge": (lambda _, histories: histories.purge("u1"), []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_by_another_process(name: str, path: Path, histories: Any, memories: Any) -> None:
    """A warm memory sees at its next question what another process has done to a turn, and what it took back."""
    change, left = CHANGES[name]
    history = histories("s1", "u1")
    for turn in (CAT, OSLO):
        history.add_messages(turn)
    warm = memories("s2", "u1")
    assert sorted(texts(warm)) == ["I work in Oslo.", "My cat is called Nemo."]
    with SQLiteChatMessageHistory.factory(path) as others:
        change(others("s1", "u1"), others)
        assert texts(warm) == left
        if name == "hide":
            others("s1", "u1").restore_turn(1)
            assert len(texts(warm)) == 2
        if name == "edit":
            others("s1", "u1").undo_edit()
            assert len(texts(warm)) == 2


def test_a_fork_is_recalled_at_once(histories: Any, memories: Any) -> None:
    """Its turns have the index of those that they were copied from."""
    history = histories("s1", "u1")
    history.add_messages(CAT)
    warm = memories("s3", "u1")
    texts(warm)
    history.fork("s2")
    assert sorted(hit.session_id for hit in warm.search(ASKED)) == ["s1"]  # an equal text is shown once
    history.clear()
    assert [hit.session_id for hit in warm.search(ASKED)] == ["s2"]


def test_turns_expire(path: Path) -> None:
    """What has expired is not recalled, although nobody has said that it changed."""
    at = datetime(2026, 1, 2, tzinfo=UTC)

    def clock() -> datetime:
        return at

    with SQLiteChatMessageHistory.factory(path, ttl=60, now=lambda: clock()) as histories:
        histories("s1", "u1").add_messages(CAT)
        memory = VectorMemory.factory(histories, WordLlamaEmbeddings(), now=lambda: clock())("s2", "u1")
        assert texts(memory) == ["My cat is called Nemo."]
        at += timedelta(seconds=61)
        assert texts(memory) == []


def test_a_remote_model(path: Path, histories: Any) -> None:
    """The words are stored with the turn, the vectors right after it; equal texts of a user are embedded once."""
    model = Remote()
    memories = VectorMemory.factory(histories, model)
    chain = chat(histories, memories)
    chain.invoke("My cat is called Nemo.", session("s1", user_id="u1"))
    embedded = [text for text in model.texts if "Nemo" in text]
    assert len(embedded) == 1
    fresh = Remote()
    again = VectorMemory.factory(histories, fresh)("s2", "u1")
    assert texts(again) == ["My cat is called Nemo."]
    assert [text for text in fresh.texts if "Nemo" in text] == []
    histories("s3", "u1").add_messages(histories("s1", "u1").messages[:0] or CAT)
    histories("s4", "u1").add_messages(round_of(*[m.text for m in CAT]))
    texts(again)
    assert len([text for text in fresh.texts if "A fine name!" in text]) == 1


def test_a_model_that_fails(path: Path, histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The turn is stored, its words are found, and it is embedded when the model answers again."""
    model = Remote()
    memories = VectorMemory.factory(histories, model)
    chain = chat(histories, memories)
    chain.invoke("It rains.", session("s1", user_id="u1"))
    model.fails = True
    chain.invoke("My cat is called Nemo.", session("s1", user_id="u1"))
    assert len(histories("s1", "u1").messages) == 4
    assert texts(memories("s2", "u1"))[0] == "My cat is called Nemo."
    assert "not embedded" in caplog.text
    model.fails = False
    memories._core.log._failed_at = float("-inf")  # a minute later
    texts(memories("s2", "u1"))
    assert any("Nemo" in text for text in model.texts)


class Blind(WordLlamaEmbeddings):
    """Gives no usable vector of one word."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors, but for texts with this word."""
        found = zip(texts, super().embed_documents(texts), strict=True)
        return [[float("nan")] if "Nemo" in text else vector for text, vector in found]


def test_a_text_that_cannot_be_embedded(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It costs neither the turn nor later questions, and is found by its words."""
    histories("s0", "u1").add_messages(CAT)
    memories = VectorMemory.factory(histories, Blind())
    chat(histories, memories).invoke("Nemo sleeps all day.", session("s1", user_id="u1"))
    assert len(histories("s1", "u1").messages) == 2
    assert sorted(texts(memories("s2", "u1"), "Nemo")) == ["My cat is called Nemo.", "Nemo sleeps all day."]
    assert "by its words alone" in caplog.text


@pytest.mark.parametrize("value", [None, "very", float("nan")])
def test_a_rating_that_is_none(histories: Any, caplog: pytest.LogCaptureFixture, value: Any) -> None:
    """It costs neither the turn nor later questions."""
    memories = VectorMemory.factory(histories, WordLlamaEmbeddings(), importance=lambda text: value)
    chat(histories, memories).invoke("My cat is called Nemo.", session("s1", user_id="u1"))
    assert texts(memories("s2", "u1")) == ["My cat is called Nemo."]
    assert "is not rated" in caplog.text


def test_a_turn_that_cannot_be_read_now(path: Path, histories: Any) -> None:
    """A row of a newer version has no index stored for good: once it can be read, it is recalled."""
    histories("s1", "u1").add_messages(CAT)
    for add, expected in ((1, []), (-1, ["My cat is called Nemo."])):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE turns SET v = v + ?", [add])
        assert texts(VectorMemory.factory(histories, WordLlamaEmbeddings())("s2", "u1")) == expected
    assert len(indexes(path)) == 1


@pytest.mark.parametrize("erase", ["clear", "purge"])
def test_a_turn_under_way_is_erased(histories: Any, memories: Any, erase: str) -> None:
    """What a memory with histories of its own is told after a clear or purge, of a turn from before, is not kept."""
    memory = memories("s1", "u1")
    memory.save(OSLO)
    memory.load(ASKED)
    memories("s1", "u1").clear() if erase == "clear" else memories.purge("u1")
    memory.save(CAT)
    assert texts(memories("s2", "u1")) == []
    memory.save(CAT)
    assert texts(memories("s2", "u1")) == ["My cat is called Nemo."]


def test_a_new_model_that_does_not_answer_at_first(histories: Any) -> None:
    """Vectors of the model before are not taken for its own: words are found, and later all."""
    histories("s1", "u1").add_messages(CAT)
    texts(VectorMemory.factory(histories, WordLlamaEmbeddings(64))("s2", "u1"))
    model = Remote(128)
    model.fails = True
    memories = VectorMemory.factory(histories, model)
    log = memories._core.log
    assert texts(memories("s2", "u1")) == ["My cat is called Nemo."]
    model.fails, log._failed_at = False, float("-inf")
    assert texts(memories("s2", "u1")) == ["My cat is called Nemo."]
    assert log._held("u1").index.dims == 128


def test_a_file_that_is_replaced(path: Path, histories: Any, memories: Any) -> None:
    """Another file in its place, or a restored backup, is read from the beginning."""
    for turn in (CAT, OSLO):
        histories("s1", "u1").add_messages(turn)
    warm = memories("s2", "u1")
    assert len(texts(warm)) == 2
    histories.close()
    for file in path.parent.glob("chat.db*"):
        file.unlink()
    histories("s1", "u1").add_messages(round_of("My parrot is called Kiwi.", "Oh!"))
    assert texts(warm, "Nemo Oslo Kiwi") == ["My parrot is called Kiwi."]


def test_text_that_is_changed_with_sql(path: Path, histories: Any, memories: Any) -> None:
    """What somebody has redacted past memkit is quoted by nobody at the next question."""
    histories("s1", "u1").add_messages(CAT)
    readers = [memories("s2", "u1"), VectorMemory.factory(histories, WordLlamaEmbeddings(), read_only=True)("s2", "u1")]
    for name in ("Nemo", "Dory", "Coral"):
        assert [texts(reader) for reader in readers] == [[f"My cat is called {name}."]] * 2
        with closing(sqlite3.connect(path)) as connection, connection:
            following = {"Nemo": "Dory", "Dory": "Coral", "Coral": "X"}[name]
            connection.execute("UPDATE turns SET messages = replace(messages, ?, ?)", [name, following])


def test_another_model(histories: Any) -> None:
    """Turns that were embedded by another model are embedded anew, by each process once."""
    histories("s1", "u1").add_messages(CAT)
    one, other = Remote(256), Remote(64)
    first, second = (VectorMemory.factory(histories, model)("s2", "u1") for model in (one, other))
    for _ in range(3):
        assert texts(first) == texts(second) == ["My cat is called Nemo."]
    assert [len([text for text in model.texts if "Nemo" in text]) <= 3 for model in (one, other)] == [True, True]


class Theirs:
    """A history with LangChain's methods alone."""

    def __init__(self) -> None:
        self.messages: list[BaseMessage] = []

    def add_messages(self, messages: Any) -> None:
        """Keep them."""
        self.messages += messages

    def clear(self) -> None:
        """Forget them."""
        self.messages = []


def test_a_history_of_another_package(path: Path, histories: Any, memories: Any) -> None:
    """The memory keeps the turns that it is told of in histories of its own, each once; a clear empties both."""
    theirs: dict[tuple[str, str], Any] = {}

    def their_history(session_id: str, user_id: str = "") -> Any:
        return theirs.setdefault((session_id, user_id), Theirs())

    chain = chat(their_history, memories)
    for _ in range(2):  # the second is a retry
        chain.invoke("My cat is called Nemo.", session("s1", user_id="u1", turn_id="t1"))
    assert texts(memories("s2", "u1")) == ["My cat is called Nemo."]
    assert len(histories("s1", "u1").messages) == 2
    memories("s1", "u1").clear()
    assert texts(memories("s2", "u1")) == []


class Encrypting(SQLiteChatMessageHistory):
    """Changes what is stored."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        """Turn the texts round."""
        turned = [m.model_copy(update={"content": m.text[::-1]}) for m in messages]
        return super().append_turn(turned, **options)


def test_histories_that_change_what_they_store(path: Path, histories: Any, memories: Any) -> None:
    """They are refused, in the memory and where a chain stores by them what a memory reads; the error names the way."""
    with pytest.raises(ConfigurationError, match=r"histories of its own, as in VectorMemory\.factory"):
        VectorMemory.factory(Encrypting.factory(path), WordLlamaEmbeddings())
    with pytest.raises(ConfigurationError, match="changes what it stores"):
        chat(Encrypting.factory(path), memories).invoke("Hi Nemo!", session("s1", user_id="u1"))


def test_wrong_arguments(histories: Any) -> None:
    """The errors name the way out."""
    model = WordLlamaEmbeddings()
    for given in ("chat.db", histories("s1"), lambda session_id: histories(session_id)):
        with pytest.raises(ConfigurationError, match=r"a factory of our histories, as in VectorMemory\.factory\("):
            VectorMemory.factory(given, model)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(
        ConfigurationError, match=r"not in a vector store \(InMemoryVectorStore\); RetrieverMemory\(store\.as_retriever"
    ):
        VectorMemory.factory(InMemoryVectorStore(model), model)  # type: ignore[arg-type]  # the form before
    with pytest.raises(ConfigurationError, match=r"not the class SQLiteChatMessageHistory$"):
        VectorMemory(SQLiteChatMessageHistory, model, "s1", user_id="u1")  # type: ignore[arg-type]  # the mistake
    for given, said in ((WordLlamaEmbeddings, "the class WordLlamaEmbeddings: call it"), ("s1", "str")):
        with pytest.raises(ConfigurationError, match=rf"must be a LangChain Embeddings object, not {said}$"):
            VectorMemory(histories, given, "s1", user_id="u1")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TypeError, match="embedding"):
        VectorMemory.factory(histories)  # type: ignore[call-arg]  # the mistake
    with pytest.raises(ConfigurationError, match="user_id"):
        VectorMemory(histories, model, "s1")
    for index in ("text", {"a.b": b"x"}, {"vectors": "text"}, {1: b"x", "$a": b"y"}):
        with pytest.raises(ConfigurationError, match="index must be a dict of bytes by name"):
            histories("s1", "u1").append_turn(CAT, index=index)
    assert histories("s1", "u1").messages == []


def test_what_is_stored_is_indexed(path: Path, histories: Any, memories: Any) -> None:
    """What `before_save` takes out is in no index."""

    def redact(messages: Any) -> Any:
        return [m.model_copy(update={"content": m.text.replace("Nemo", "a fish")}) for m in messages]

    chat(histories, memories, before_save=redact).invoke("My cat is called Nemo.", session("s1", user_id="u1"))
    assert texts(memories("s2", "u1")) == ["My cat is called a fish."]
    assert b"Nemo" not in path.read_bytes()


def test_nothing_is_stored_by_who_only_reads(path: Path, histories: Any, memories: Any) -> None:
    """A memory that is read-only recalls, and a dry run tells; neither stores an index."""
    histories("s1", "u1").add_messages(CAT)
    reader = VectorMemory.factory(histories, WordLlamaEmbeddings(), read_only=True)
    assert texts(reader("s2", "u1")) == ["My cat is called Nemo."]
    reader("s1", "u1").save(OSLO)
    reader("s1", "u1").clear()
    assert reader.purge("u1") == {}
    explained = explain_turn(chat(histories, memories), ASKED, session("s2", user_id="u1"))
    assert [record.text.split("\n")[0] for record in explained.recalled] == ["human: My cat is called Nemo."]
    assert indexes(path) == []
    assert len(histories("s1", "u1").messages) == 2


def test_an_index_that_is_damaged(path: Path, histories: Any) -> None:
    """It is made anew."""
    histories("s1", "u1").add_messages(CAT)
    assert texts(VectorMemory.factory(histories, WordLlamaEmbeddings())("s2", "u1"))
    for damage in (b"", b"\x00", b"\x01\x00\x00\x00\x05abc", b"\x09" * 100):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE turn_indexes SET made = ?", [damage])
        fresh = VectorMemory.factory(histories, WordLlamaEmbeddings())("s2", "u1")
        assert texts(fresh) == ["My cat is called Nemo."]
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT made FROM turn_indexes").fetchone()[0] != damage


def test_a_turn_does_not_wait_to_be_rated(histories: Any) -> None:
    """A model rates the importance of a turn once, after the turn was stored; another process reads the rating."""
    rated: list[int] = []

    def rate(text: str) -> int:
        rated.append(len(histories("s1", "u1").messages))
        return 9

    memories = VectorMemory.factory(histories, WordLlamaEmbeddings(), importance=rate)
    chat(histories, memories).invoke("My cat is called Nemo.", session("s1", user_id="u1"))
    assert rated == [2]
    weights = Ranking(importance=1.0)
    other = VectorMemory.factory(histories, WordLlamaEmbeddings(), importance=rate, ranking=weights)
    [hit] = other("s2", "u1").search(ASKED)
    assert hit.parts["importance"] == pytest.approx(0.9)
    assert rated == [2]


def test_recency_is_remembered(histories: Any) -> None:
    """When a turn was recalled is kept in its row, for other processes."""
    histories("s1", "u1").add_messages(CAT)
    at = datetime.now(UTC) + timedelta(days=3)
    options: Any = {"ranking": Ranking.generative_agents(), "now": lambda: at}
    assert VectorMemory.factory(histories, WordLlamaEmbeddings(), **options)("s2", "u1").load(ASKED)
    other = VectorMemory.factory(histories, WordLlamaEmbeddings(), **options)
    [hit] = other("s2", "u1").search(ASKED)
    assert list(other._core.log.accesses("u1").values()) == [at]
    assert hit.parts["recency"] >= 0


def test_the_oldest_are_left_out(histories: Any) -> None:
    """With `max_records` the newest are held, and with `ttl` those that are not too old."""
    for text in ("My cat is Nemo.", "My dog is Rex.", "My parrot is Kiwi."):
        histories("s1", "u1").add_messages(round_of(text, "Oh!"))
    few = VectorMemory.factory(histories, WordLlamaEmbeddings(), max_records=2)
    assert sorted(texts(few("s2", "u1"), "Nemo Rex Kiwi")) == ["My dog is Rex.", "My parrot is Kiwi."]
    later = datetime.now(UTC) + timedelta(minutes=2)
    short = VectorMemory.factory(histories, WordLlamaEmbeddings(), ttl=60, now=lambda: later)
    assert texts(short("s2", "u1"), "Nemo Rex Kiwi") == []


def test_in_a_composed_memory(path: Path, histories: Any, memories: Any) -> None:
    """The parts of a composed memory have their share stored with the turn, too."""
    from langchain_memkit import ChatHistoryMemory

    composed = ComposedMemory.factory(ChatHistoryMemory.factory(histories), memories)
    chat(histories, composed).invoke("My cat is called Nemo.", session("s1", user_id="u1"))
    assert indexes(path) == [("s1", 1, "vectors")]
    assert len(histories("s1", "u1").messages) == 2
    assert texts(memories("s2", "u1")) == ["My cat is called Nemo."]


def test_a_replaced_turn_in_a_chain(histories: Any, memories: Any) -> None:
    """A question that is answered again is recalled with its new answer alone."""
    model = iter(["One.", "Two."])
    chain = create_runnable_with_message_history(
        RunnableLambda(lambda _: AIMessage(next(model))), histories, memories=[memories]
    )
    chain.invoke("What is my cat Nemo?", session("s1", user_id="u1"))
    again = histories("s1", "u1").regenerate()
    chain.invoke(again.messages, session("s1", user_id="u1", replaces=again.replaces))
    assert [hit.text for hit in memories("s2", "u1").search("cat Nemo")] == ["human: What is my cat Nemo?\nai: Two."]


def test_messages_one_by_one(histories: Any, memories: Any) -> None:
    """A question and its answer that are stored apart are two records, next to each other."""
    histories("s1", "u1").add_message(HumanMessage("My cat is called Nemo."))
    histories("s1", "u1").add_message(AIMessage("A fine name for a cat!"))
    assert sorted(hit.text for hit in memories("s2", "u1").search("cat")) == [
        "ai: A fine name for a cat!",
        "human: My cat is called Nemo.",
    ]
