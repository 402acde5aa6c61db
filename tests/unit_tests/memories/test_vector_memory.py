"""`VectorMemory` on SQLite: what it stores, what it finds, what it forgets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langchain_memkit import (
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_runnable_with_message_history,
    explain_turn,
    purge_user,
)
from langchain_memkit.base import Query, utc_now
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.vector.turn_log import PROBE
from langchain_memkit.messages.notes import records_of
from langchain_memkit.messages.tokens import count_tokens, resolve_counter
from langchain_memkit.ranking.score import Ranking
from langchain_memkit.testing.fakes import FakeChatModel

AT = datetime(2026, 1, 2, tzinfo=UTC)


class CountingEmbeddings(WordLlamaEmbeddings):
    """The real ones; `texts` holds what was embedded to be stored, but not that by which a model is recognized."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Counts."""
        self.texts += [text for text in texts if text != PROBE]
        return super().embed_documents(texts)

    def embedded(self, word: str) -> int:
        """How many embedded texts have a word."""
        return sum(word in text for text in self.texts)


@pytest.fixture
def embeddings() -> CountingEmbeddings:
    """What counts."""
    return CountingEmbeddings()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "memory.db"


@pytest.fixture
def make(path: Path, embeddings: CountingEmbeddings) -> Callable[..., VectorMemory]:
    """Memories on one file, whose clock is that of the histories."""

    def memory(session_id: str = "s1", user_id: str = "u1", **options: Any) -> VectorMemory:
        histories = SQLiteChatMessageHistory.factory(path, now=options.get("now", utc_now))
        return VectorMemory(histories, embeddings, session_id, user_id=user_id, **options)

    return memory


def turn(asked: str, told: str, n: int | None = None) -> list[BaseMessage]:
    """A turn, with ids if it has a number."""
    ids = (None, None) if n is None else (f"q{n}", f"a{n}")
    return [HumanMessage(asked, id=ids[0]), AIMessage(told, id=ids[1])]


def texts(memory: VectorMemory, query: str, **options: Any) -> list[str]:
    """What is found."""
    return [hit.text for hit in memory.search(query, **options)]


# -- what is stored


def test_what_was_said_in_another_session_is_recalled_with_date_and_speaker(make: Any) -> None:
    """The point of it all."""
    make("s1", now=lambda: AT).save([HumanMessage("My cat is called Nemo.", name="Ann"), AIMessage("A fine name!")])
    make("s1", now=lambda: AT).save(turn("I work in Oslo.", "By the sea?"))
    [note] = make("s2").load("What is the name of my cat?")
    assert "- 2026-01-02:\n> Ann: My cat is called Nemo.\n> ai: A fine name!" in note.text


@pytest.mark.parametrize("max_tokens", [60, 150, 200, 400])
@pytest.mark.parametrize("counter", [None, "o200k_base"])
def test_a_note_fills_its_budget_whatever_the_session_is_called(
    make: Any, max_tokens: int, counter: str | None
) -> None:
    """What is counted is what is shown: no session ids, a day once. The next record would not have fitted."""
    sizes = []
    for prefix in ("s", f"{uuid4()}-{uuid4()}-"):
        for n in range(40):
            session = make(f"{prefix}{n // 4}", user_id=prefix, now=lambda n=n: AT + timedelta(days=n // 4))
            session.save(turn(f"My cat Nemo found toy {n}.", "Lovely!"))
        options = {"max_tokens": max_tokens, "token_counter": counter, "floor": None}
        [note] = make("new", user_id=prefix, **options).load("What did my cat Nemo find?")
        [size] = count_tokens([note], resolve_counter(counter))
        assert max_tokens - 35 < size <= max_tokens
        found = records_of(note)
        days = {(record.source, record.date and record.date.date()) for record in found}
        assert sum(line.startswith("- ") for line in note.text.splitlines()) == len(days)
        assert all(record.source.startswith(f"session {prefix}") for record in found)
        sizes.append(len(found))
    assert sizes[0] == sizes[1]


def test_a_round_with_a_tool_is_one_record(make: Any, embeddings: CountingEmbeddings) -> None:
    """Question, call, result and answer are found and embedded together."""
    make().save(
        [
            HumanMessage("What is mystery(5, 6)?", id="1"),
            AIMessage("", tool_calls=[{"name": "mystery", "args": {}, "id": "c"}], id="2"),
            ToolMessage("-11", tool_call_id="c", id="3"),
            AIMessage("It returns -11.", id="4"),
        ]
    )
    assert embeddings.embedded("mystery") == 1
    [hit] = make().search("mystery")
    assert hit.message_ids == ("1", "2", "3", "4")


def test_an_unanswered_question_is_found(make: Any, embeddings: CountingEmbeddings) -> None:
    """What was said counts at once, and in another process."""
    make().save([HumanMessage("My cat is called Nemo.")])
    assert texts(make("s2"), "Who is Nemo?") == ["human: My cat is called Nemo."]
    assert embeddings.embedded("Nemo") == 1


@pytest.mark.parametrize("n", [1, None])
def test_a_retried_turn_is_stored_and_embedded_once(make: Any, embeddings: CountingEmbeddings, n: int | None) -> None:
    """With ids and without; a whole conversation again changes nothing (LlamaIndex's `set` doubled rounds)."""
    memory = make()
    turns = [*turn("Nemo is my cat.", "Cute!", n), *turn("I work in Oslo.", "By the sea?", n and 2)]
    memory.save(turns[:2])
    memory.save(turns[2:])
    before = [hit.date for hit in memory.search("Nemo Oslo")]
    for _ in range(3):
        memory.save(turns)
    assert [hit.date for hit in memory.search("Nemo Oslo")] == before
    assert len(before) == 2
    assert embeddings.embedded("Nemo") == 1


@pytest.mark.parametrize("greeting", ["Thanks!", "Good morning!", "Great, got it, thank you."])
def test_of_greetings_nothing_is_embedded_or_quoted_but_they(
    make: Any, embeddings: CountingEmbeddings, greeting: str
) -> None:
    """Whatever is answered: an answer to thanks says nothing that is asked for later."""
    make("s1").save(turn(greeting, "You're welcome! Shall we talk about Nemo?"))
    assert embeddings.texts == []
    assert make("s2").search("Shall we talk about Nemo?") == []
    assert texts(make("s2"), greeting, k=1) == []


@pytest.mark.parametrize("consent", ["Yes, please", "Ok, right.", "Sure, thanks!"])
def test_what_follows_consent_is_kept(make: Any, consent: str) -> None:
    """It may be what the user waited for."""
    make("s1").save(turn(consent, "Then Nemo is fed at noon."))
    assert texts(make("s2"), "When is Nemo fed?") == [f"human: {consent}\nai: Then Nemo is fed at noon."]


def test_duplicates_are_not_embedded(make: Any, embeddings: CountingEmbeddings) -> None:
    """A text that this user has already takes over its vector, and is shown once."""
    memories = VectorMemory.factory(make()._core.store, embeddings)
    for session, n in (("s1", 1), ("s2", 2)):
        memories(session, "u1").load("Which cat?")
        memories(session, "u1").save(turn("My cat is called Nemo.", "Cute!", n))
    assert embeddings.embedded("Nemo") == 1
    assert len(make("s3").search("cat Nemo")) == 1
    make("s1").clear()
    assert [hit.session_id for hit in make("s3").search("cat Nemo")] == ["s2"]
    assert embeddings.embedded("Nemo") == 1


def test_recalled_messages_are_never_stored_again(make: Any, embeddings: CountingEmbeddings) -> None:
    """A note in a turn adds no record."""
    make("s1").save(turn("My PIN is 1234.", "Noted."))
    note = make("s2").load("What is my PIN?")
    make("s2").save([*note, *turn("What is my PIN?", "I told you.")])
    assert embeddings.embedded("1234") == 1


def test_max_records_leaves_out_what_was_used_least_recently(make: Any) -> None:
    """What was recalled counts as if it had been said then."""
    clock = [AT]
    memory = make(max_records=3, now=lambda: clock[0], max_tokens=100)
    for i, word in enumerate(("cat", "boat", "piano", "garden", "violin")):
        clock[0] = AT + timedelta(days=i)
        memory.save(turn(f"I bought a {word} in town number {i}.", "Nice to hear about it."))
        if i == 2:
            clock[0] += timedelta(hours=1)
            assert "cat" in memory.load("What about the cat?")[0].text
    assert sorted(texts(memory, "cat boat piano garden violin")) == sorted(
        f"human: I bought a {word} in town number {i}.\nai: Nice to hear about it."
        for i, word in ((0, "cat"), (3, "garden"), (4, "violin"))
    )


def test_records_expire_with_their_turn_or_their_ttl(path: Path, embeddings: CountingEmbeddings) -> None:
    """The earlier of the two; gone at once, without waiting for a clean-up."""
    clock = [AT]

    def memory(lasts: float | None, ttl: float | None = None) -> VectorMemory:
        histories = SQLiteChatMessageHistory.factory(path, ttl=lasts, now=lambda: clock[0])
        return VectorMemory(histories, embeddings, "s1", user_id="u1", ttl=ttl, now=lambda: clock[0])

    memory(None).save(turn("I work in Oslo.", "By the sea?"))
    clock[0] += timedelta(minutes=1)
    memory(7200.0).save(turn("Nemo is my cat.", "Cute!"))
    short, long = memory(None, ttl=3600.0), memory(None, ttl=9000.0)
    assert len(texts(short, "Nemo Oslo")) == len(texts(long, "Nemo Oslo")) == 2
    clock[0] = AT + timedelta(minutes=60)
    assert texts(short, "Nemo Oslo") == ["human: Nemo is my cat.\nai: Cute!"]
    assert len(texts(long, "Nemo Oslo")) == 2
    clock[0] = AT + timedelta(minutes=122)
    assert texts(short, "Nemo Oslo") == []
    assert texts(long, "Nemo Oslo") == ["human: I work in Oslo.\nai: By the sea?"]
    clock[0] = AT + timedelta(minutes=151)
    assert texts(long, "Nemo Oslo") == []


# -- what is shown


def test_the_note_fits_and_is_in_time_order(make: Any) -> None:
    """Tokens as counted by the caller's counter; oldest first, whatever the score."""
    clock = [AT]
    memory = make(max_tokens=400, token_counter=lambda ms: sum(len(m.text) for m in ms), now=lambda: clock[0])
    for i in range(20):
        clock[0] = AT + timedelta(days=i)
        memory.save(turn(f"Today I saw {i} ships in the harbour.", "I see."))
    [note] = memory.load("How many ships did I see in the harbour?")
    assert len(note.text) <= 400
    dates = [record.date for record in records_of(note)]
    assert len(dates) >= 2
    assert dates == sorted(dates)


def test_what_the_model_sees_anyway_is_not_recalled(make: Any) -> None:
    """By message id, for a round all of whose messages are shown."""
    memory = make()
    seen = turn("My cat is called Nemo.", "Cute!", 1)
    memory.save(seen)
    assert memory.load(Query("Who is Nemo?", seen)) == []
    assert memory.load(Query("Who is Nemo?", seen[1:])) != []


def test_small_talk_recalls_nothing(make: Any) -> None:
    """A greeting is no question."""
    memory = make()
    memory.save(turn("My cat is called Nemo.", "Cute!"))
    assert all(memory.load(text) == [] for text in ("", "  ", "Hi!", "Thanks, great!", "ok"))


def test_both_ends_of_a_time(make: Any) -> None:
    """`since` is the first moment, `until` the first that is left out; a naive time is refused by name."""
    make("s1", now=lambda: AT).save(turn("Nemo is my cat.", "Cute!"))
    make("s2", now=lambda: AT + timedelta(days=9)).save(turn("Nemo ate a fish.", "Oh!"))
    memory, later = make("s3"), AT + timedelta(days=9)
    assert [hit.session_id for hit in memory.search("Nemo", since=later)] == ["s2"]
    assert [hit.session_id for hit in memory.search("Nemo", until=later)] == ["s1"]
    assert [hit.session_id for hit in memory.search("Nemo", since=AT, until=later)] == ["s1"]
    assert len(memory.search("Nemo")) == 2
    for user_id in ("u1", "nobody"):
        for name in ("since", "until"):
            with pytest.raises(ConfigurationError, match=name):
                make("s1", user_id).search("x", **{name: AT.replace(tzinfo=None)})


def test_hits_explain_themselves(make: Any) -> None:
    """Parts sum to the score; table, data frame, and stored text is text in HTML."""
    memory = make()
    memory.save(turn("Nemo <script>alert(1)</script> is my cat.", "Cute!"))
    memory.save(turn("I work in Oslo.", "By the sea?"))
    hits = memory.search("Who is Nemo?")
    assert all(sum(hit.parts.values()) == pytest.approx(hit.score) for hit in hits)
    assert "<script>" not in hits._repr_html_()
    assert "&lt;script&gt;" in hits._repr_html_()
    assert repr(hits).startswith("2 hits\n")


class ByLength(BaseDocumentCompressor):
    """A reranker: the shortest first, the longest dropped."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> list[Document]:
        """Copies, as rerankers return them."""
        best = sorted(documents, key=lambda d: len(d.page_content))[:-1]
        return [Document(d.page_content, metadata={**d.metadata, "relevance_score": 1.0}) for d in best]


def test_a_reranker_orders_and_drops(make: Any) -> None:
    """Any document compressor of LangChain's."""
    memory = make(reranker=ByLength())
    for text in ("Nemo is my cat.", "Nemo.", "Nemo is my big old black cat from Oslo."):
        memory.save(turn(text, "Aha."))
    hits = memory.search("Who is Nemo, my big old black cat?")
    assert [hit.text for hit in hits] == ["human: Nemo.\nai: Aha.", "human: Nemo is my cat.\nai: Aha."]
    assert [hit.rerank for hit in hits] == [1.0, 1.0]


# -- what is forgotten


def test_a_cleared_question_leaves_the_file(make: Any, path: Path) -> None:
    """LlamaIndex's reset keeps the open batch, and a deleted SSN comes back."""
    memory = make()
    memory.save([HumanMessage("My SSN is 078-05-1120.")])
    memory.clear()
    memory.save([AIMessage("Noted."), *turn("Hello there, friend Bob", "Hi!")])
    assert not any("078" in hit.text for hit in memory.search("SSN 078-05-1120"))
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"078-05-1120" not in stored


def test_clear_spares_other_sessions_and_other_users(make: Any) -> None:
    """LlamaIndex's reset clears the whole store, all users."""
    for user in ("u1", "u2"):
        for session in ("s1", "s2"):
            make(session, user).save(turn("Nemo is my cat.", "Cute!"))
    make("s1", "u1").clear()
    assert [hit.session_id for hit in make("s3", "u1").search("Nemo")] == ["s2"]
    assert sorted(hit.session_id for hit in make("s3", "u2").search("Nemo")) == ["s1"]  # an equal text is shown once
    factory = VectorMemory.factory(make()._core.store, WordLlamaEmbeddings())
    assert sorted(info.session_id for info in factory.list_sessions("u2")) == ["s1", "s2"]
    assert [info.session_id for info in factory.list_sessions("u1")] == ["s2"]


def test_purge_user_forgets_everywhere(make: Any, path: Path) -> None:
    """Records, words and vectors of the user are not in the file any more; others are."""
    for user in ("u1", "u2"):
        make("s1", user).save(turn(f"The secret of {user} is zanzibar{user}.", "Ok."))
    factory = VectorMemory.factory(make()._core.store, WordLlamaEmbeddings())
    assert purge_user("u1", factory) == [{"sessions": 1, "turns": 1}]
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"zanzibaru1" not in stored
    assert b"zanzibaru2" in stored


def test_a_save_under_way_adds_nothing_after_a_clear(
    make: Any, embeddings: CountingEmbeddings, caplog: pytest.LogCaptureFixture
) -> None:
    """Clear while the turn is embedded: erased text does not come back, and it is said."""
    memory = make()
    memory.save(turn("I work in Oslo.", "By the sea?"))
    memory.load("Where do I work?")
    embed = embeddings.embed_documents

    def slow(texts: list[str]) -> list[list[float]]:
        make().clear()
        return embed(texts)

    embeddings.embed_documents = slow  # type: ignore[method-assign]  # an embedder that takes its time
    with caplog.at_level(logging.WARNING):
        memory.save(turn("Nemo is my cat.", "Cute!"))
    assert not memory.search("Nemo Oslo")
    assert "does not keep a turn" in caplog.text


def test_forget_messages(make: Any) -> None:
    """The rounds in which they stand go."""
    memory = make()
    memory.save(turn("Nemo is my cat.", "Cute!", 1))
    memory.save(turn("I work in Oslo.", "By the sea?", 2))
    assert memory.forget_messages(["a1", "none"]) == 1
    assert texts(memory, "Nemo Oslo") == ["human: I work in Oslo.\nai: By the sea?"]


# -- a chain


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Any]:
    """Transcripts."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
        yield factory


async def test_in_a_chain_sync_and_async(embeddings: CountingEmbeddings, histories: Any) -> None:
    """The note is what the model sees before the new input; the next conversation knows the first."""
    seen: list[list[BaseMessage]] = []

    def answer(messages: list[BaseMessage]) -> AIMessage:
        seen.append(messages)
        return AIMessage("Fine.")

    chat: Any = create_runnable_with_message_history(
        answer, histories, memories=[VectorMemory.factory(histories, embeddings)]
    )
    chat.invoke("My cat is called Nemo.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    chat.invoke("What is my cat called?", {"configurable": {"session_id": "s2", "user_id": "u1"}})
    assert "> human: My cat is called Nemo." in seen[-1][0].text
    await chat.ainvoke("And what is my cat called?", {"configurable": {"session_id": "s3", "user_id": "u1"}})
    assert "> human: My cat is called Nemo." in seen[-1][0].text
    chat.invoke("What is my cat called?", {"configurable": {"session_id": "s1", "user_id": "u2"}})
    assert len(seen[-1]) == 1


def test_looking_changes_nothing(embeddings: CountingEmbeddings, histories: Any) -> None:
    """`explain_turn` shows what would be recalled, and that is no recall; a turn is one."""
    memories = VectorMemory.factory(histories, embeddings, ranking=Ranking.generative_agents())
    memories("s1", "u1").save(turn("My cat is called Nemo.", "Cute!"))
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memories])
    config = {"configurable": {"session_id": "s2", "user_id": "u1"}}
    assert "Nemo" in explain_turn(chat, "What is my cat called?", config).messages[0].text
    assert memories._core.log.accesses("u1") == {}
    chat.invoke("What is my cat called?", config)
    assert len(memories._core.log.accesses("u1")) == 1


# -- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_records": 1.5}, "max_records"),
        ({"max_records": True}, "max_records"),
        ({"ttl": -1}, "ttl"),
        ({"reranker": print}, "reranker"),
    ],
)
def test_wrong_options_are_named(make: Any, options: dict[str, Any], message: str) -> None:
    """At construction, with what was expected."""
    with pytest.raises(ConfigurationError, match=message):
        make(**options)


def test_a_class_is_no_object(make: Any) -> None:
    """Forgotten parentheses are named; a class that would not do either is not to be called."""

    class Reranker(BaseDocumentCompressor):
        pass

    with pytest.raises(ConfigurationError, match=r"document compressor, not the class Reranker: call it$"):
        make(reranker=Reranker)
    with pytest.raises(ConfigurationError, match=r"document compressor, not the class CountingEmbeddings$"):
        make(reranker=CountingEmbeddings)


def test_read_only(make: Any) -> None:
    """Nothing is forgotten."""
    make().save(turn("Nemo is my cat.", "Cute!", 1))
    memory = make(read_only=True)
    with pytest.raises(ConfigurationError, match="read-only"):
        memory.forget_messages(["a1"])
    assert texts(memory, "Nemo Oslo") == ["human: Nemo is my cat.\nai: Cute!"]


def test_importance_is_asked_once_a_round(make: Any) -> None:
    """A callable of the user's, and the preset that weighs it."""
    asked: list[str] = []

    def rate(text: str) -> float:
        asked.append(text)
        return 9.0 if "divorce" in text else 1.0

    memory = make(importance=rate, ranking=Ranking.generative_agents())
    memory.save(turn("I had tea.", "Good."))
    memory.save(turn("We talked about the divorce.", "I'm sorry."))
    assert len(asked) == 2
    assert "divorce" in memory.search("What happened?", k=1)[0].text


def test_no_secret_in_repr(make: Any) -> None:
    """Names the session only."""
    memory = make()
    memory.save(turn("My PIN is 1234.", "Ok."))
    assert repr(memory) == "VectorMemory(session_id='s1', user_id='u1')"
