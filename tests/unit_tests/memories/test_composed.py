"""Several memories as one: what is composed, what fits, what fails, and what LlamaIndex's notebook prints."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    ChatHistoryMemory,
    EntityMemory,
    KeyValueMemory,
    Memory,
    SQLiteChatMessageHistory,
    VectorMemory,
    create_history_preprocessor,
    create_runnable_with_message_history,
    explain_turn,
    purge_user,
)
from langchain_memkit.base import Mention, Query, SavedTurn
from langchain_memkit.errors import ConfigurationError, MemoryReadError, MemoryWriteError, StaleTurnError
from langchain_memkit.memories.composed import ComposedMemory, Composer, Source, llama_index_template
from langchain_memkit.messages.notes import Record, is_note, note_message, records_of, render_notes, split_notes
from langchain_memkit.messages.text import message_text
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens
from langchain_memkit.messages.trimming import turn_starts
from langchain_memkit.testing import FakeChatModel
from langchain_memkit.testing._styles import call_async, call_sync
from langchain_memkit.testing.memories import assert_framed
from testkit.memories import HOSTILE_TEXTS, HostileTexts
from testkit.styles import Styles

U1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
STOP = {"a", "an", "and", "did", "does", "is", "it", "of", "on", "the", "was", "what", "which", "who", "will"}


class Rounds(Memory):
    """The best rounds of all of a user's sessions by words in common, kept in a dict: a vector memory in small."""

    def __init__(
        self, kept: dict[Any, Any], session_id: str, user_id: str | None = None, *, k: int = 9, read_only: bool = False
    ) -> None:
        self.session_id, self.user_id, self.read_only = session_id, user_id, read_only
        self.mine = kept.setdefault(user_id, {})
        self.k = k

    def load(self, query: str = "") -> list[BaseMessage]:
        """The best k rounds, oldest first, as records of several messages."""
        asked = words(str(query))
        rounds = [r for _, rounds in [*self.mine.values()] for r in rounds]
        scores = {i: len(asked & words(" ".join(map(message_text, r)))) for i, r in enumerate(rounds)}
        best = sorted((i for i in scores if scores[i]), key=lambda i: -scores[i])[: self.k]
        records = [self.record(rounds[i]) for i in sorted(best)]
        return [note_message(records)] if records else []

    @staticmethod
    def record(messages: Sequence[BaseMessage]) -> Record:
        """A round."""
        text = "\n".join(f"{m.name or m.type}: {message_text(m)}" for m in messages)
        return Record(text, source="rounds", parts=tuple((m.id or "", message_text(m)) for m in messages))

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Keeps the rounds; the same messages again are the same rounds."""
        spoken = [m.model_copy(deep=True) for m in messages if m.type != "system"]
        if spoken and not self.read_only:
            starts = [*turn_starts(spoken), len(spoken)]
            key = tuple(m.id or message_text(m) for m in spoken)
            rounds = [spoken[a:b] for a, b in pairwise(starts)]
            self.mine.setdefault((self.session_id, key), (self.session_id, rounds))

    def clear(self) -> None:
        """Forgets the session."""
        for key in [key for key in self.mine if key[0] == self.session_id and not self.read_only]:
            self.mine.pop(key, None)


class Says(Memory):
    """Says what it is told to, and keeps what it hears."""

    def __init__(self, *sayings: str | Record, session_id: str | None = None, user_id: str | None = None) -> None:
        self.sayings = [Record(s, about="saying") if isinstance(s, str) else s for s in sayings]
        self.session_id, self.user_id = session_id, user_id
        self.asked: list[Any] = []
        self.told: list[Any] = []
        self.cleared = 0

    def load(self, query: str = "") -> list[BaseMessage]:
        """The sayings."""
        self.asked.append(query)
        return [note_message(self.sayings)] if self.sayings else []

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Listens."""
        self.told.append(messages)

    def clear(self) -> None:
        """Counts."""
        self.cleared += 1


class Broken(Says):
    """Fails at everything."""

    def load(self, query: str = "") -> list[BaseMessage]:
        """Fails."""
        raise OSError("disk on fire")

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Fails."""
        super().save(messages)
        raise OSError("disk on fire")

    def clear(self) -> None:
        """Fails."""
        super().clear()
        raise OSError("disk on fire")


class Events(BaseCallbackHandler):
    """Keeps the custom events."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps one."""
        self.heard.append((name, data))


class Words(Embeddings):
    """As many directions as there are words."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Counts words."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Counts words."""
        vector = [0.0] * 64
        for word in words(text):
            vector[sum(word.encode()) % 64] += 1.0
        return vector


def words(text: str) -> set[str]:
    """Words that matter, without their plural s."""
    return {word.removesuffix("s") for word in re.findall(r"\w+", text.lower()) if word not in STOP}


def dialogue(*messages: BaseMessage, session_id: str = "s1", user_id: str | None = None) -> ChatHistoryMemory:
    """A dialogue in memory, which holds these messages as one turn."""
    history = SQLiteChatMessageHistory(":memory:", session_id, user_id=user_id)
    if messages:
        history.add_messages(list(messages))
    return ChatHistoryMemory(history)


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [str(message.text) for message in messages]


def recalled(messages: Sequence[BaseMessage]) -> list[str]:
    """The text of each record."""
    return [record.text for record in split_notes(messages)[1]]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`call(memory, "load", ...)` in both styles."""
    if request.param == "sync":
        yield call_sync
        return
    with asyncio.Runner() as runner:
        yield lambda target, name, *args: runner.run(call_async(target, name, *args))


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in each style."""
    return Styles(request.param)


class TestContractWithRounds(HostileTexts):
    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Any:
        """A dialogue in a file, and rounds of all sessions."""
        kept: dict[Any, Any] = {}
        histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")

        def make(session_id: str, user_id: str | None = None, **options: Any) -> ComposedMemory:
            return ComposedMemory(
                ChatHistoryMemory(histories(session_id, user_id), **options),
                Rounds(kept, session_id, user_id, **options),
            )

        return make


class TestContractWithVectors(HostileTexts):
    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Any:
        """The real one in the same file as the dialogue."""
        histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")

        def make(session_id: str, user_id: str | None = None, **options: Any) -> ComposedMemory:
            return ComposedMemory(
                ChatHistoryMemory(histories(session_id, user_id), **options),
                VectorMemory(histories, Words(), session_id, user_id=user_id, max_tokens=20_000, **options),
            )

        return make


class TestContractOfAFactory(HostileTexts):
    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Any:
        """Dialogues, entities, and limits that let everything through."""
        histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")

        def extract(text: str) -> list[Mention]:
            return [Mention("Harrison", "PERSON", m.start(), m.end()) for m in re.finditer("Harrison", text)]

        def factory(*, read_only: bool) -> Any:
            return ComposedMemory.factory(
                ChatHistoryMemory.factory(histories, read_only=read_only),
                Source(EntityMemory.factory(histories, extract, max_tokens=20_000, read_only=read_only), 20_000, 60),
                max_tokens=100_000,
            )

        writing, reading = factory(read_only=False), factory(read_only=True)
        return lambda session_id, user_id=None, read_only=False: (reading if read_only else writing)(
            session_id, user_id
        )


# -- what LlamaIndex's notebook does

BOB = [HumanMessage("Bob likes burgers."), AIMessage("Indeed, Bob likes apples.")]
INTRO = "Below are a set of relevant dialogues retrieved from potentially several memory sources:\n\n\n\n"
OUTRO = "\n\n\n\nThis is the end of the retrieved message dialogues."


def seed() -> ComposedMemory:
    """The notebook's memory: what was said before, and a turn of today."""
    rounds = Rounds({}, "s1", "u1", k=1)
    rounds.save([SystemMessage("You are a SOMEWHAT helpful assistant."), *BOB, HumanMessage("Alice likes apples.")])
    composed = ComposedMemory(dialogue(user_id="u1"), rounds, position="system", template=llama_index_template)
    composed.save([SystemMessage("You are a REALLY helpful assistant.")])
    composed.save([HumanMessage("Jerry likes juice.")])
    return composed


def test_the_notebook_is_printed_as_it_was(call: Callable[..., Any]) -> None:
    """Retrieved dialogues stand in the system line, character for character; the next ones replace them."""
    composed = seed()
    system, jerry = call(composed, "load", "What does Bob like?")
    assert system.type == "system"
    assert system.content == (
        f"You are a REALLY helpful assistant.\n\n{INTRO}"
        f"\tUSER: Bob likes burgers.\n\tASSISTANT: Indeed, Bob likes apples.{OUTRO}"
    )
    assert (jerry.type, jerry.text) == ("human", "Jerry likes juice.")
    system, jerry = call(composed, "load", "What does Alice like?")
    assert system.content == f"You are a REALLY helpful assistant.\n\n{INTRO}\tUSER: Alice likes apples.{OUTRO}"
    assert jerry.text == "Jerry likes juice."


def test_what_the_primary_shows_is_not_recalled(call: Callable[..., Any]) -> None:
    """One sentence is in both, under two ids: the system line stays as it was said."""
    composed = seed()
    assert recalled(composed.secondary[0].load("What does Jerry like?")) == ["human: Jerry likes juice."]
    messages = call(composed, "load", "What does Jerry like?")
    assert texts(messages) == ["You are a REALLY helpful assistant.", "Jerry likes juice."]


def test_clearing_the_primary_alone(call: Callable[..., Any]) -> None:
    """Its own object clears it; what the others know stays."""
    composed = seed()
    call(composed.primary, "clear")
    assert call(composed.primary, "load", "") == []
    assert recalled(call(composed.secondary[0], "load", "What does Alice like?")) == ["human: Alice likes apples."]


def test_clearing_all(call: Callable[..., Any]) -> None:
    """After `clear` nobody knows anything of the session, the round that was under way included."""
    composed = seed()
    call(composed, "clear")
    assert call(composed.primary, "load", "") == []
    for name in ("Alice", "Bob", "Jerry"):
        assert call(composed.secondary[0], "load", f"What does {name} like?") == []
        assert call(composed, "load", f"What does {name} like?") == []


def test_the_notebook_with_a_vector_memory(call: Callable[..., Any], tmp_path: Path) -> None:
    """The same on the real one, which holds what was said before as another session."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "v.db")
    rounds = VectorMemory.factory(histories, Words(), k=1)
    rounds("earlier", "u1").save([*BOB, HumanMessage("Alice likes apples.")])
    composed = ComposedMemory(
        dialogue(user_id="u1"),
        Source(rounds("s1", "u1"), timeout=60),
        position="system",
        template=llama_index_template,
    )
    call(composed, "save", [SystemMessage("You are a REALLY helpful assistant.")])
    call(composed, "save", [HumanMessage("Jerry likes juice.")])
    assert [message.content for message in call(composed, "load", "What does Bob like?")] == [
        f"You are a REALLY helpful assistant.\n\n{INTRO}"
        f"\tUSER: Bob likes burgers.\n\tASSISTANT: Indeed, Bob likes apples.{OUTRO}",
        "Jerry likes juice.",
    ]
    assert f"{INTRO}\tUSER: Alice likes apples.{OUTRO}" in call(composed, "load", "What does Alice like?")[0].text
    assert call(composed, "load", "What does Jerry like?")[0].text == "You are a REALLY helpful assistant."
    call(composed.primary, "clear")
    assert recalled(call(composed, "load", "What does Jerry like?")) == ["human: Jerry likes juice."]
    call(composed, "clear")
    assert recalled(call(composed, "load", "What does Jerry like?")) != ["human: Jerry likes juice."]
    VectorMemory(histories, Words(), "tools", user_id="u2").save(MYSTERY)
    told = VectorMemory(histories, Words(), "s1", user_id="u2")
    tools = ComposedMemory(dialogue(), told, position="system", template=llama_index_template)
    assert call(tools, "load", AGAIN)[0].content == MYSTERY_PRINTED


def round_with_a_tool(question: str, result: str, answer: str) -> list[BaseMessage]:
    """A question that a tool answers."""
    call = {"name": "mystery", "args": {"a": 5, "b": 6}, "id": "c1", "type": "tool_call"}
    return [
        HumanMessage(question),
        AIMessage("", tool_calls=[call]),
        ToolMessage(result, tool_call_id="c1"),
        AIMessage(answer),
    ]


MYSTERY = round_with_a_tool(
    "What is the mystery function on 5 and 6?", "-11", "The mystery function on 5 and 6 returns -11."
)
MULTIPLY = round_with_a_tool("What happens if you multiply 2 and 3?", "6", "If you multiply 2 and 3, the result is 6.")
MYSTERY_PRINTED = (
    f"{INTRO}\tUSER: What is the mystery function on 5 and 6?\n\tASSISTANT: None\n\tTOOL: -11\n"
    f"\tASSISTANT: The mystery function on 5 and 6 returns -11.{OUTRO}"
)
AGAIN = "What was the output of the mystery function on 5 and 6 again? Don't recompute."


def test_a_round_with_a_tool_is_printed_as_it_was(call: Callable[..., Any]) -> None:
    """A new conversation: the call of the tool says `None`, as there; no helpful assistant is invented."""
    kept: dict[Any, Any] = {}
    Rounds(kept, "yesterday", "u1").save([*MYSTERY, *MULTIPLY])
    composed = ComposedMemory(
        dialogue(user_id="u1"), Rounds(kept, "s1", "u1", k=1), position="system", template=llama_index_template
    )
    (system,) = call(composed, "load", AGAIN)
    assert (system.type, system.content) == ("system", MYSTERY_PRINTED)


def test_by_default_none_is_never_printed() -> None:
    """The default frame says which tool was called, and names speakers and sources."""
    kept: dict[Any, Any] = {}
    Rounds(kept, "yesterday", "u1").save(MYSTERY)
    (note,) = ComposedMemory(dialogue(), Rounds(kept, "s1", "u1")).load(AGAIN)
    assert_framed(note)
    assert "None" not in note.text
    assert note.text.splitlines()[2:5] == [
        "- record (rounds):",
        "> human: What is the mystery function on 5 and 6?",
        '> ai: [calls mystery({"a": 5, "b": 6})]',
    ]


def test_an_agent_recalls_an_earlier_conversation(run: Styles) -> None:
    """With the memory a new session knows the results, in one turn after another; without it does not."""
    kept: dict[Any, Any] = {}

    def reads(messages: list[BaseMessage]) -> AIMessage:
        found = re.findall(r"(?:returns|result is) (-?\d+)", "\n".join(texts(messages)))
        return AIMessage(f"It is {found[-1]}." if found else "I don't know.")

    histories = SQLiteChatMessageHistory.factory(":memory:")
    memories = ComposedMemory.factory(
        ChatHistoryMemory.factory(histories), lambda session_id, user_id: Rounds(kept, session_id, user_id, k=1)
    )
    Rounds(kept, "yesterday", "u1").save(MYSTERY)
    Rounds(kept, "yesterday", "u1").save(MULTIPLY)
    without = create_runnable_with_message_history(RunnableLambda(reads), histories)
    run(without, AGAIN, {"configurable": {"session_id": "s0", "user_id": "u1"}})
    chat = create_runnable_with_message_history(RunnableLambda(reads), histories, memories=[memories])
    run(chat, AGAIN, U1)
    run(chat, "What was the result of multiply on 2 and 3 again? Don't recompute.", U1)
    assert texts(histories("s0", "u1").messages)[1] == "I don't know."
    assert texts(histories("s1", "u1").messages)[1::2] == ["It is -11.", "It is 6."]


# -- composition


def test_the_note_stands_before_the_input(call: Callable[..., Any]) -> None:
    """One framed human message at the end, whatever the number of sources; all before it is the dialogue as it is."""
    talk = [SystemMessage("Be brief."), HumanMessage("Hi."), AIMessage("Hello.")]
    retriever = RunnableLambda(lambda query: [Document(f"found for {query}", metadata={"source": "a.md"})])
    composed = ComposedMemory(dialogue(*talk), Says("Be kind."), retriever, Says())
    *before, note = call(composed, "load", "Who?")
    assert texts(before) == ["Be brief.", "Hi.", "Hello."]
    assert_framed(note)
    assert [(r.text, r.source) for r in records_of(note)] == [("Be kind.", ""), ("found for Who?", "a.md")]
    assert texts(call(ComposedMemory(dialogue(*talk), Says()), "load", "Who?")) == texts(before)


def test_calls_that_wait_keep_their_results_next_to_them() -> None:
    """The note goes before calls of tools that are not answered yet, and after those that are."""
    talk = MYSTERY[:2]
    assert [m.type for m in ComposedMemory(dialogue(*talk), Says("x")).load("?")] == ["human", "human", "ai"]
    talk = MYSTERY[:3]
    assert [m.type for m in ComposedMemory(dialogue(*talk), Says("x")).load("?")] == ["human", "ai", "tool", "human"]


def test_in_the_system_line_nothing_stacks_and_nothing_is_invented(call: Callable[..., Any]) -> None:
    """A second load replaces; a line in blocks gets one more; a dialogue without a line gets one with records only."""
    composed = ComposedMemory(dialogue(SystemMessage("Be brief."), HumanMessage("Hi.")), Says("x"), position="system")
    first, again = call(composed, "load", "a"), call(composed, "load", "b")
    assert first == again
    assert first[0].text.startswith("Be brief.\n\nRecords from memory follow")
    assert first[0].text.count("<records>") == 1
    blocks: list[str | dict[Any, Any]] = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    (line,) = ComposedMemory(dialogue(SystemMessage(blocks)), Says("x"), position="system").load("?")
    assert line.content[0] == blocks[0]
    assert len(line.content) == 2
    alone, hi = ComposedMemory(dialogue(HumanMessage("Hi.")), Says("x"), position="system").load("?")
    assert (alone.type, alone.text.splitlines()[1], hi.text) == ("system", "<records>", "Hi.")


def test_nothing_twice(call: Callable[..., Any]) -> None:
    """By id and by words, against the primary, across secondaries and within one; unless it says more."""
    shown = HumanMessage("I live in Oslo, near the sea.", id="m1")
    composed = ComposedMemory(
        dialogue(shown, AIMessage("Nice.", id="m2")),
        Says(
            Record("near the sea.", about="Oslo", id="m1"),  # a sentence of what is shown
            Record("i live  in Oslo, near the sea.", id="other"),  # the same words under another id
            Record("human: I live in Oslo, near the sea.\nai: Nice.", parts=(("m1", shown.text), ("", "Nice."))),
            Record("human: Nice.\nai: And you?", parts=(("m2", "Nice."), ("m3", "And you?"))),
            Record("Tea at five."),
            Record("tea at  FIVE."),
        ),
        Says(Record("Tea at five.", id="m9"), Record("And you?", id="m3"), Record("No shoes.")),
    )
    assert recalled(call(composed, "load", "?")) == ["human: Nice.\nai: And you?", "Tea at five.", "No shoes."]


def test_it_nests(call: Callable[..., Any]) -> None:
    """A composed memory as primary or secondary of another: one note, one block, nothing twice, all are told."""
    heard = [Says("a"), Says("b"), Says("a", "c")]
    for position in ("before_input", "system"):
        inner: Any = ComposedMemory(
            dialogue(SystemMessage("Be brief."), HumanMessage("Hi.")), heard[0], heard[1], position=position
        )
        outer = ComposedMemory(inner, heard[2], position=position)
        messages = call(outer, "load", "?")
        assert recalled(messages) == ["a", "b", "c"]
        assert "\n".join(texts(messages)).count("<records>") == 1
        assert texts(split_notes(messages)[0]) == ["Be brief.", "Hi."]
    outer = ComposedMemory(dialogue(HumanMessage("Hello.")), ComposedMemory(heard[0], heard[1]), heard[2])
    hello, note = call(outer, "load", "?")
    assert hello.text == "Hello."
    assert [record.text for record in records_of(note)] == ["a", "b", "c"]
    call(outer, "save", [HumanMessage("x", id="1")])
    call(outer, "clear")
    assert [len(memory.told) for memory in heard] == [memory.cleared for memory in heard] == [1, 1, 1]


def test_it_pipes() -> None:
    """As any memory: `RunnableLambda(memory.load, memory.aload)`."""
    composed = ComposedMemory(dialogue(HumanMessage("Hi.")), Says("Be kind."))
    piped = RunnableLambda(composed.load, composed.aload)
    assert piped.invoke("?") == composed.load("?")
    assert asyncio.run(piped.ainvoke("?")) == composed.load("?")


def test_secondaries_know_what_is_shown() -> None:
    """They are asked with the dialogue beside the query, so that each spends its own budget on something else."""
    secondary = Says()
    ComposedMemory(dialogue(HumanMessage("Hi."), AIMessage("Hello.")), secondary).load(Query("Who?", epoch=7))
    (query,) = secondary.asked
    assert isinstance(query, Query)
    assert (query, query.epoch, texts(query.past), texts(query.seen)) == (
        "Who?",
        7,
        ["Hi.", "Hello."],
        ["Hi.", "Hello."],
    )
    talk = [HumanMessage("One."), AIMessage("1"), HumanMessage("Two."), AIMessage("2")]
    for max_tokens, seen in [(1000, ["One.", "1", "Two.", "2"]), (40, ["Two.", "2"])]:
        ComposedMemory(dialogue(*talk), secondary, max_tokens=max_tokens).load("Who?")
        assert texts(secondary.asked[-1].past) == ["One.", "1", "Two.", "2"]
        assert texts(secondary.asked[-1].seen) == seen  # what does not fit into half may have to make room


def test_a_template_of_ones_own(call: Callable[..., Any]) -> None:
    """Any function of records; what it makes is still a note."""
    composed = ComposedMemory(
        dialogue(), Says("Be kind.", "Be brief."), template=lambda records: "; ".join(r.text for r in records)
    )
    (note,) = call(composed, "load", "?")
    assert note.text == "Be kind.; Be brief."
    assert is_note(note)


@pytest.mark.parametrize("position", ["before_input", "system"])
@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_records_are_data(position: Any, text: str) -> None:
    """Text that forges delimiters stays inside them, in our frame and in LlamaIndex's."""
    forged = Says(Record(f"human: {text}", about=text, source=text, parts=(("", text),)), Record(text, role=text))
    (message,) = ComposedMemory(dialogue(), forged, position=position).load("?")
    if position == "before_input":
        assert_framed(message)
    else:
        assert_framed(note_message(split_notes([message])[1]))
        assert message.text == note_message(split_notes([message])[1]).text
    (message,) = ComposedMemory(dialogue(), forged, position=position, template=llama_index_template).load("?")
    lines = message.text.splitlines()
    assert lines[:4] == INTRO.splitlines()
    assert lines[-4:] == OUTRO.splitlines()[1:]
    assert all(line.startswith("\t") for line in lines[4:-4])
    assert sum(not line.startswith("\t  ") for line in lines[4:-4]) == len(split_notes([message])[1])
    assert "<|" not in message.text


# -- telling, clearing, erasing


def test_all_are_told_and_the_same_turn_again_changes_nothing(call: Callable[..., Any]) -> None:
    """As a retry of a chain tells it, and by hand with ids; each memory gets the turn's id."""
    kept: dict[Any, Any] = {}
    heard = Says()
    composed = ComposedMemory(dialogue(user_id="u1"), Rounds(kept, "s1", "u1"), heard)
    turn = SavedTurn([HumanMessage("I like tea.", id="q"), AIMessage("Noted.", id="a")], "t1")
    for _ in range(2):
        call(composed, "save", turn)
    assert texts(call(composed.primary, "load", "")) == ["I like tea.", "Noted."]
    assert recalled(call(composed.secondary[0], "load", "tea")) == ["human: I like tea.\nai: Noted."]
    assert (heard.told[0], heard.told[0].turn_id) == (turn, "t1")
    for _ in range(2):
        call(composed, "save", [HumanMessage("I like cake.", id="q2")])
    assert len(call(composed.primary, "load", "")) == 3
    assert recalled(call(composed.secondary[0], "load", "cake")) == ["human: I like cake."]
    assert turn == [HumanMessage("I like tea.", id="q"), AIMessage("Noted.", id="a")]


@pytest.mark.parametrize("position", ["before_input", "system"])
def test_what_was_recalled_is_not_saved(position: Any, call: Callable[..., Any]) -> None:
    """An app that hands back all that the model saw stores what was said, and no records."""
    heard = Says("Be kind.")
    composed = ComposedMemory(dialogue(SystemMessage("Be brief."), HumanMessage("Hi.")), heard, position=position)
    call(composed, "save", [*call(composed, "load", "?"), AIMessage("Hello.")])
    assert texts(heard.told[0]) == ["Be brief.", "Hi.", "Hello."]
    alone = ComposedMemory(dialogue(), heard, position=position)
    call(alone, "save", call(alone, "load", "?"))
    assert alone.primary.load() == []
    assert len(heard.told) == 1


def test_a_secondary_that_fails_to_save(call: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """The primary has the turn and the others are told; then the first failure is raised, and the next logged."""
    heard, first, second = Says(), Broken(), Broken()
    composed = ComposedMemory(dialogue(), first, heard, second)
    with pytest.raises(MemoryWriteError, match=r"Broken was not told of it: OSError$") as caught:
        call(composed, "save", SavedTurn([HumanMessage("Hi.", id="q")], "t1"))
    assert (caught.value.maybe_stored, caught.value.turn_id) == (True, "t1")
    assert texts(composed.primary.load()) == ["Hi."]
    assert len(first.told) == len(heard.told) == len(second.told) == 1
    assert "Broken.save failed as well: OSError" in caplog.text


def test_a_primary_that_fails_to_save(call: Callable[..., Any]) -> None:
    """Its error is raised and nobody else is told: what was erased meanwhile comes back nowhere."""
    heard, histories = Says(), SQLiteChatMessageHistory.factory(":memory:")
    histories("s1").add_messages([HumanMessage("Hi.")])
    composed = ComposedMemory(ChatHistoryMemory(histories("s1")), heard)
    call(composed, "load", "?")
    histories("s1").clear()
    with pytest.raises(StaleTurnError):
        call(composed, "save", [HumanMessage("I live in Oslo.")])
    assert heard.told == []


def test_what_is_erased_while_it_is_saved_is_taken_back(call: Callable[..., Any]) -> None:
    """One look at the transcript after the save; a read-only primary has no say in it."""
    history = SQLiteChatMessageHistory(":memory:", "s1", user_id="u1")

    class Clears(Says):
        def save(self, messages: Sequence[BaseMessage]) -> None:
            history.clear()

    own = SQLiteChatMessageHistory.factory(":memory:")
    entities: Any = EntityMemory(own, lambda text: [], "s1", user_id="u1", names=["LangChain"])
    turn = [HumanMessage("I use LangChain.", id="q")]
    call(ComposedMemory(ChatHistoryMemory(history), Clears(), entities), "save", turn)
    assert entities.entities() == []
    composed = ComposedMemory(ChatHistoryMemory(history, read_only=True), Clears(), entities)
    call(composed, "save", [HumanMessage("I use LangChain.", id="q2")])
    assert [entity.name for entity in entities.entities()] == ["LangChain"]
    assert call(composed, "forget_messages", ["q2"]) == 1
    assert entities.entities() == []


def test_clear_tries_all(call: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """One that fails keeps no other from being cleared; its error is raised."""
    memories = [Broken(), Says(), Broken()]
    with pytest.raises(OSError, match="disk on fire"):
        call(ComposedMemory(*memories), "clear")
    assert [memory.cleared for memory in memories] == [1, 1, 1]
    assert "Broken.clear failed as well" in caplog.text


def test_clear_spares_other_sessions_and_users() -> None:
    """What came from this session goes, in every memory, and nothing else."""
    kept: dict[Any, Any] = {}
    histories = SQLiteChatMessageHistory.factory(":memory:")

    def make(session_id: str, user_id: str) -> ComposedMemory:
        rounds = Rounds(kept, session_id, user_id)
        return ComposedMemory(ChatHistoryMemory(histories(session_id, user_id)), rounds)

    for session_id, user_id in (("s1", "u1"), ("s2", "u1"), ("s1", "u2")):
        make(session_id, user_id).save([HumanMessage(f"tea {session_id} {user_id}")])
    make("s1", "u1").clear()
    assert recalled(make("s3", "u1").load("tea")) == ["human: tea s2 u1"]
    assert recalled(make("s3", "u2").load("tea")) == ["human: tea s1 u2"]
    assert texts(make("s2", "u1").primary.load()) == ["tea s2 u1"]


# -- the budget


def test_records_of_the_last_secondary_go_first(call: Callable[..., Any]) -> None:
    """Whole records, never parts of one; a small one may fit where a large one did not."""
    important, other = Says("word " * 40, "short one"), Says("word " * 41, "short too")
    whole = sum(count_tokens(ComposedMemory(dialogue(), important, other).load("?")))
    for max_tokens in range(1, whole + 1):
        messages = call(ComposedMemory(dialogue(), important, other, max_tokens=max_tokens), "load", "?")
        kept = recalled(messages)
        assert sum(count_tokens(messages)) <= max_tokens
        assert set(kept) <= {"word " * 40, "short one", "word " * 41, "short too"}
        assert not ("word " * 41 in kept and "word " * 40 not in kept)
    assert len(kept) == 4


def test_the_least_relevant_is_cut_first() -> None:
    """Where a memory shows records in another order, their rank says which of them matter; the order stays."""
    ranked = [Record(f"on day {i} it rained", rank=rank) for i, rank in enumerate([2, 0, 3, 1])]
    most = sum(count_tokens(ComposedMemory(dialogue(), Says(*ranked[:2])).load("?")))
    for composed in (
        ComposedMemory(dialogue(), Says(*ranked), max_tokens=most),
        ComposedMemory(dialogue(), Source(Says(*ranked), max_tokens=most)),
    ):
        assert recalled(composed.load("?")) == ["on day 1 it rained", "on day 3 it rained"]


def test_older_turns_get_what_records_leave() -> None:
    """System lines, summary and newest turn stay whatever the budget; older turns go whole, oldest first."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    summarize = create_history_preprocessor(
        lambda prompt: "They talked.", max_tokens=1000, trigger=("messages", 8), keep=("messages", 6)
    )
    memory = ChatHistoryMemory(histories("s1"), summarize)
    memory.save([SystemMessage("Be brief."), HumanMessage("question 0"), AIMessage("answer 0")])
    for i in range(1, 5):
        memory.save([HumanMessage(f"question {i}"), AIMessage(f"answer {i}")])
    whole = memory.load()
    assert "They talked." in "".join(texts(whole))
    lead = len(whole) - len([m for m in whole if re.match(r"question|answer", m.text)])
    least, note = [*whole[:lead], *whole[-2:]], Says("Be kind.").load()[0]
    sizes = set()
    for max_tokens in range(1, 250):
        messages = ComposedMemory(memory, Says("Be kind."), max_tokens=max_tokens).load("?")
        rest, records = split_notes(messages)
        assert sum(count_tokens(messages)) <= max(max_tokens, sum(count_tokens(least)))
        assert texts(rest[:lead]) == texts(whole[:lead])
        assert texts(rest[lead:]) == texts(whole)[-(len(rest) - lead) :]
        assert rest[lead].type == "human"
        assert bool(records) == (max_tokens >= sum(count_tokens([*rest, note])))
        sizes.add(len(rest) - lead)
    assert sizes == {2, 4, 6}


def test_a_budget_of_ones_own() -> None:
    """`Source(max_tokens=...)` limits one source, with or without a limit for all; the counter is the caller's."""
    sayings = [f"saying {i}" for i in range(50)]
    composed = ComposedMemory(dialogue(), Source(Says(*sayings), max_tokens=100), Says("other"))
    kept = recalled(composed.load("?"))
    assert 3 < len(kept) < 20
    assert kept == [*sayings[: len(kept) - 1], "other"]
    talk = [m for i in range(5) for m in (HumanMessage(f"q{i}"), AIMessage(f"a{i}"))]
    counted = ComposedMemory(dialogue(*talk), Says("x"), max_tokens=5, token_counter=len)
    assert [m.text[:2] for m in counted.load("?")] == ["q3", "a3", "q4", "a4", "Re"]
    assert asyncio.run(counted.aload("?")) == counted.load("?")


def test_what_an_older_turn_shows_is_not_told_once_more() -> None:
    """A record is left out if the turn that it comes from fits in the end, and told if it does not."""
    talk = [HumanMessage("I live in Oslo."), AIMessage("Nice. " * 20), HumanMessage("Hi."), AIMessage("Hello.")]
    says = Says("I live in Oslo.")
    enough = sum(count_tokens([*talk, *says.load()]))
    assert recalled(ComposedMemory(dialogue(*talk), says, max_tokens=enough).load("?")) == []
    small = ComposedMemory(dialogue(*talk), says, max_tokens=enough - 1).load("?")
    assert recalled(small) == ["I live in Oslo."]
    assert texts(split_notes(small)[0]) == ["Hi.", "Hello."]


numbers = st.integers(1, 30)


@given(
    turns=st.lists(st.lists(numbers, min_size=1, max_size=3), max_size=5),
    sources=st.lists(
        st.tuples(
            st.lists(st.tuples(numbers, st.none() | st.integers(0, 9)), max_size=5), st.none() | st.integers(1, 150)
        ),
        max_size=4,
    ),
    max_tokens=st.integers(1, 400),
    position=st.sampled_from(["before_input", "system"]),
    system=st.booleans(),
)
def test_any_budget(turns: Any, sources: Any, max_tokens: int, position: Any, system: bool) -> None:
    """Never above the budget but for what is never cut; nothing of less importance costs anything of more."""
    composer = Composer(max_tokens, position, render_notes, approximate_tokens)
    talk: list[BaseMessage] = [SystemMessage("Be brief.")] if system else []
    for i, sizes in enumerate(turns):
        talk += [
            HumanMessage(f"turn {i} " + "a" * sizes[0]),
            *(AIMessage(f"turn {i} {j} " + "b" * n) for j, n in enumerate(sizes[1:])),
        ]
    found = [
        ([Record(f"source {s} record {i} " + "c" * size, rank=rank) for i, (size, rank) in enumerate(records)], cap)
        for s, (records, cap) in enumerate(sources)
    ]
    uncut = composer.kept(talk)
    messages = composer.compose(talk, found)
    assert approximate_tokens(messages) <= max(max_tokens, approximate_tokens(uncut))
    rest, records = split_notes(messages)
    assert rest[: len(rest)] == [m for m in talk if m in rest]
    assert all(m in rest for m in uncut)
    given_records = [record for recalled, _ in found for record in recalled]
    assert records == [record for record in given_records if record in records]
    # fewer sources, or no older turns: the same records of those that are left
    assert split_notes(composer.compose(uncut, found))[1] == records
    for n in range(len(found)):
        names = {record.text for recalled, _ in found[:n] for record in recalled}
        assert split_notes(composer.compose(talk, found[:n]))[1] == [r for r in records if r.text in names]
    for recalled, cap in found:
        own = [record for record in records if record in recalled]
        added = approximate_tokens(composer.place(uncut, own)) - approximate_tokens(uncut)
        assert cap is None or added <= cap


# -- failures and time


@pytest.mark.parametrize("kind", [OSError, TimeoutError])
def test_one_that_fails_is_left_out_and_reported(
    kind: type[Exception], call: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The others are shown; by default it is logged, else raised or handed to the caller."""

    class Fails(Says):
        def load(self, query: str = "") -> list[BaseMessage]:
            raise kind("disk on fire")

    parts: list[Any] = [Says("a"), Source(Fails(), timeout=60), Fails(), Says("b")]
    assert recalled(call(ComposedMemory(dialogue(), *parts), "load", "?")) == ["a", "b"]
    assert caplog.text.count(f"Fails could not be loaded: {kind.__name__}\n") == 2
    heard: list[MemoryReadError] = []
    call(ComposedMemory(dialogue(), *parts, on_load_error=heard.append), "load", "?")
    assert [type(error.__cause__) for error in heard] == [kind, kind]
    with pytest.raises(MemoryReadError, match=f"{kind.__name__}$"):
        call(ComposedMemory(dialogue(), *parts, on_load_error="raise"), "load", "?")


def test_the_primarys_error_is_raised(call: Callable[..., Any]) -> None:
    """A dialogue that cannot be read is never a silent blank; nor is a memory that cannot work as it is configured."""
    with pytest.raises(OSError, match="disk on fire"):
        call(ComposedMemory(Broken(), Says("a")), "load", "?")

    class Misconfigured(Says):
        def load(self, query: str = "") -> list[BaseMessage]:
            raise ConfigurationError("no such model")

    with pytest.raises(ConfigurationError, match="no such model"):
        call(ComposedMemory(dialogue(), Misconfigured()), "load", "?")


class Slow(Says):
    """Answers when it is released."""

    released = threading.Event()

    def load(self, query: str = "") -> list[BaseMessage]:
        """Waits."""
        self.released.wait(60)
        return super().load(query)


class SlowInItsOwnWay(Slow):
    """The same on an event loop."""

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Waits."""
        await asyncio.sleep(60)
        return []


@pytest.mark.parametrize("kind", [Slow, SlowInItsOwnWay])
def test_one_that_is_late_is_left_out_and_reported(
    kind: type[Slow], call: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """After its time nobody waits for it; what it says later, or how it fails, bothers nobody."""
    Slow.released.clear()
    late = kind("late")
    try:
        messages = call(ComposedMemory(dialogue(), Source(late, timeout=0.01), Says("in time")), "load", "?")
        assert recalled(messages) == ["in time"]
        assert f"{kind.__name__} could not be loaded: HistoryReadError: no answer within 0.01 s" in caplog.text
    finally:
        Slow.released.set()
        for thread in threading.enumerate():
            if thread.name == "memkit-load":
                thread.join()
    assert recalled(call(ComposedMemory(dialogue(), Source(Says("in time"), timeout=60)), "load", "?")) == ["in time"]


def test_secondaries_are_loaded_at_once() -> None:
    """On an event loop each waits for the other: one after the other they would never end."""

    class Meets(Says):
        def __init__(self, mine: asyncio.Event, other: asyncio.Event, *sayings: str) -> None:
            super().__init__(*sayings)
            self.mine, self.other = mine, other

        async def aload(self, query: str = "") -> list[BaseMessage]:
            self.mine.set()
            await self.other.wait()
            return super().load(query)

    async def load() -> list[str]:
        a, b = asyncio.Event(), asyncio.Event()
        composed = ComposedMemory(dialogue(), Meets(a, b, "a"), Source(Meets(b, a, "b"), timeout=60))
        return recalled(await composed.aload("?"))

    assert asyncio.run(load()) == ["a", "b"]


def test_a_cancelled_load_is_cancelled() -> None:
    """Who cancels is not kept waiting, and it is no failure of a memory."""

    async def cancel() -> None:
        slow = SlowInItsOwnWay("late")
        task = asyncio.ensure_future(ComposedMemory(dialogue(), Source(slow, timeout=60)).aload("?"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


# -- in a chain


def test_in_a_chain_failures_are_heard(run: Styles) -> None:
    """Callback handlers hear which memory failed, as of a chain's own; the turn goes on with what the others say."""
    model, handler = FakeChatModel(), Events()
    composed = ComposedMemory(Says("a"), Broken(), Source(Broken(), timeout=60), Says("b"))
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(model, histories, memories=[composed], on_save_error="log")
    run(chat, "Who?", {**U1, "callbacks": [handler]})
    assert recalled(model.calls[0]) == ["a", "b"]
    data = {"memory": "Broken", "error": "OSError", "message": "Broken could not be loaded: OSError"}
    assert handler.heard[:2] == [("memkit_load_error", data)] * 2


def test_explain_turn_shows_it() -> None:
    """What is composed are notes; what failed is said."""
    memories = [ComposedMemory(Says("a"), Broken())]
    histories = SQLiteChatMessageHistory.factory(":memory:")
    seen = explain_turn(create_runnable_with_message_history(FakeChatModel(), histories, memories=memories), "Who?", U1)
    assert [message.part for message in seen.messages] == ["notes", "input"]
    assert seen.notes == ["Broken could not be loaded: OSError"]


def test_a_primary_that_is_the_chains_own_history(run: Styles) -> None:
    """It doubles nothing, shown or stored, and what a preprocessor cut does not come back through it."""
    model, kept = FakeChatModel(), {}
    histories = SQLiteChatMessageHistory.factory(":memory:")
    memories = ComposedMemory.factory(
        ChatHistoryMemory.factory(histories), lambda session_id, user_id: Rounds(kept, session_id, user_id)
    )
    chat = create_runnable_with_message_history(model, histories, memories=[memories])
    run(chat, "I like tea.", U1)
    run(chat, "What do I like?", U1)
    assert texts(model.calls[1]) == ["I like tea.", "Noted.", "What do I like?"]
    assert texts(histories("s1", "u1").messages)[::2] == ["I like tea.", "What do I like?"]
    assert len(histories("s1", "u1").messages) == 4
    elsewhere = {"configurable": {"session_id": "s2", "user_id": "u1"}}
    run(chat, "Do I like tea?", elsewhere)
    assert recalled(model.calls[2])[0] == "human: I like tea.\nai: Noted."
    short = create_runnable_with_message_history(
        model, histories, memories=[memories], preprocessor=lambda messages: messages[-2:]
    )
    run(short, "Hm?", U1)
    assert texts(model.calls[3]) == [*texts(histories("s1", "u1").messages)[2:4], "Hm?"]


def test_another_dialogue_is_quoted(run: Styles) -> None:
    """With the dialogue of another session as primary, and in the system position too, all becomes records."""
    model, other = FakeChatModel(), dialogue(SystemMessage("Be brief."), HumanMessage("I like tea."))
    other.session_id = None  # serves all
    composed = ComposedMemory(other, Says("Be kind."), position="system")
    histories = SQLiteChatMessageHistory.factory(":memory:")
    run(create_runnable_with_message_history(model, histories, memories=[composed]), "Who?", U1)
    (note, _) = model.calls[0]
    assert_framed(note)
    assert recalled([note]) == ["Be brief.", "Be kind.", "I like tea."]


# -- ids, options, factories


def test_memories_of_others_are_refused() -> None:
    """All parts serve one session of one user, or everybody."""
    composed = ComposedMemory(Says(), Says(session_id="s1"), Says(user_id="u1"))
    assert (composed.session_id, composed.user_id, composed.read_only) == ("s1", "u1", False)
    assert repr(composed) == "ComposedMemory(Says, Says, Says, session_id='s1', user_id='u1')"
    with pytest.raises(ConfigurationError, match="of one session_id, but Says is bound to 's1' and Says to 's2'"):
        ComposedMemory(Says(session_id="s1"), Says(), Says(session_id="s2"))
    with pytest.raises(ConfigurationError, match="of one user_id"):
        ComposedMemory(Says(user_id="u1"), ComposedMemory(Says(user_id="u2")))
    chat = create_runnable_with_message_history(
        FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"), memories=[composed]
    )
    with pytest.raises(ConfigurationError, match="bound to session_id 's1'"):
        chat.invoke("Hi.", {"configurable": {"session_id": "s2", "user_id": "u1"}})


def test_read_only_parts_are_left_alone(call: Callable[..., Any]) -> None:
    """Each part says for itself whether it is written; the whole is read-only if all are."""
    books, heard = KeyValueMemory({"Tea": "At five."}), Says()
    composed = ComposedMemory(books, heard)
    assert not composed.read_only
    call(composed, "save", [HumanMessage("Hi.")])
    assert len(heard.told) == 1
    assert ComposedMemory(books, books).read_only


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ComposedMemory([]), "primary must be a Memory.*not list"),  # type: ignore[arg-type]
        (lambda: ComposedMemory(SQLiteChatMessageHistory(":memory:", "s1")), "ChatHistoryMemory"),  # type: ignore[arg-type]
        (lambda: ComposedMemory(Source(Says())), "the primary takes no Source"),  # type: ignore[arg-type]
        (lambda: ComposedMemory(Says(), lambda session_id: Says()), r"secondary\[0\].*ComposedMemory.factory"),  # type: ignore[arg-type]
        (lambda: ComposedMemory(Says(), Says(), None), r"secondary\[1\].*not NoneType"),  # type: ignore[arg-type]
        (lambda: ComposedMemory(Says(), max_tokens=0), "max_tokens"),
        (lambda: ComposedMemory(Says(), position="after"), "position must be"),  # type: ignore[arg-type]
        (lambda: ComposedMemory(Says(), token_counter=7), "token_counter"),  # type: ignore[arg-type]
        (lambda: ComposedMemory(Says(), on_load_error="ignore"), "on_load_error"),  # type: ignore[arg-type]
        (lambda: Source(Says(), max_tokens=0), "max_tokens"),
        (lambda: Source(Says(), timeout=0), "timeout"),
        (lambda: Source(Says(), timeout=float("inf")), "timeout"),
        (lambda: Source(Says(), timeout="1"), "timeout"),  # type: ignore[arg-type]
        (lambda: ComposedMemory.factory(Says(), max_tokens=-1), "max_tokens"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], Any], problem: str) -> None:
    """At once, with what was expected."""
    with pytest.raises(ConfigurationError, match=problem):
        make()


def test_factory(call: Callable[..., Any], tmp_path: Path) -> None:
    """Called with the ids; sets up, lists and purges in every part; what all share is left alone."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    entities = EntityMemory.factory(histories, lambda text: [], names=["LangChain"])
    books = KeyValueMemory({"Tea": "At five."})
    retriever = RunnableLambda(lambda query: [Document("found")])
    memories = ComposedMemory.factory(
        ChatHistoryMemory.factory(histories), entities, Source(books, max_tokens=100), retriever, max_tokens=500
    )
    assert repr(memories) == (
        "ComposedMemoryFactory(ChatHistoryMemoryFactory, EntityMemoryFactory, KeyValueMemory, RunnableLambda)"
    )
    with memories:
        call(memories, "setup")
        for session_id, user_id in (("s1", "u1"), ("s2", "u1"), ("s1", "u2")):
            call(memories(session_id, user_id), "save", [HumanMessage("I use LangChain.", id=f"{session_id}{user_id}")])
        assert recalled(call(memories("s3", "u1"), "load", "LangChain or Tea?")) == [
            "I use LangChain.",
            "At five.",
            "found",
        ]
        assert {info.session_id for info in call(memories, "list_sessions", "u1")} == {"s1", "s2"}
        assert call(memories, "purge", "u1") == {"sessions": 2, "turns": 2}
        assert call(memories, "list_sessions", "u1") == []
        assert recalled(call(memories("s3", "u1"), "load", "LangChain?")) == ["found"]
        assert recalled(call(memories("s3", "u2"), "load", "LangChain?")) == ["I use LangChain.", "found"]
        assert purge_user("u2", histories, memories) == [{"sessions": 1, "turns": 1}, {"sessions": 0, "turns": 0}]
    asyncio.run(memories.aclose())


def test_sessions_of_all_parts_are_listed_last_used_first() -> None:
    """A session that only a secondary knows is listed as well; the primary's word counts for the others."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    entities = EntityMemory.factory(SQLiteChatMessageHistory.factory(":memory:"), lambda text: [], names=["LangChain"])
    memories = ComposedMemory.factory(lambda session_id, user_id=None: Says(), histories, entities)
    for session_id in ("s1", "s2"):
        histories(session_id, "u1").add_messages([HumanMessage("I use LangChain."), AIMessage("Nice.")])
    entities("s2", "u1").save([HumanMessage("I use LangChain.")])
    entities("s3", "u1").save([HumanMessage("I use LangChain.")])
    assert [(info.session_id, info.turns) for info in memories.list_sessions("u1")] == [("s3", 1), ("s2", 1), ("s1", 1)]
    with pytest.raises(ConfigurationError, match="none of the factories has list_sessions"):
        ComposedMemory.factory(lambda session_id, user_id=None: Says()).list_sessions("u1")


def test_factories_keep_users_apart() -> None:
    """A function that cannot take a user is refused where there is one; ids are checked before anything is made."""
    memories = ComposedMemory.factory(lambda session_id: Says(session_id=session_id))
    assert memories("s1").session_id == "s1"
    with pytest.raises(ConfigurationError, match="takes no user_id"):
        memories("s1", "u1")
    with pytest.raises(TypeError, match="session_id"):
        memories(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="user_id"):
        memories("s1", "")
    with pytest.raises(ConfigurationError, match="has no purge"):
        memories.purge("u1")
    entities = EntityMemory.factory(SQLiteChatMessageHistory.factory(":memory:"), lambda text: [])
    needs = ComposedMemory.factory(lambda session_id, user_id=None: Says(), entities)
    with pytest.raises(ConfigurationError, match="needs a user_id"):
        needs("s1")

    async def later(session_id: str) -> Any:
        return Says()

    with pytest.raises(ConfigurationError, match="class or async"):
        ComposedMemory.factory(later)("s1")
    with pytest.raises(ConfigurationError, match="Says is a class or async"):
        ComposedMemory.factory(Says)("s1")
    with pytest.raises(ConfigurationError, match=r"secondary\[0\] must be a Memory.*not str"):
        ComposedMemory.factory(lambda session_id: Says(), lambda session_id: "x")("s1")


def test_purge_tries_all(caplog: pytest.LogCaptureFixture) -> None:
    """A part that fails keeps no other from forgetting the user; its error is raised."""

    class Purges:
        def __init__(self, error: Exception | None = None) -> None:
            self.error, self.purged = error, []

        def __call__(self, session_id: str, user_id: str | None = None) -> Memory:
            return Says()

        def purge(self, user_id: str) -> dict[str, int]:
            self.purged.append(user_id)
            if self.error:
                raise self.error
            return {"things": 1}

    parts = [Purges(OSError("first")), Purges(), Purges(OSError("second"))]
    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="first"):
        ComposedMemory.factory(*parts).purge("u1")
    assert [part.purged for part in parts] == [["u1"]] * 3
    assert "Purges.purge failed as well: OSError" in caplog.text


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_template_that_stops_an_iteration_is_an_error(style: str) -> None:
    """A StopIteration of the user's template is an error in both styles; in a thread it could hang a turn for ever."""

    def template(records: Any) -> str:
        return next(iter(()))

    memory = ComposedMemory(Says("one"), Says("two"), template=template)

    async def load() -> Any:
        return await asyncio.wait_for(memory.aload("x"), 60)

    with pytest.raises(RuntimeError):
        asyncio.run(load()) if style == "async" else memory.load("x")
