"""Memories in a turn: when they are asked, where what they say stands, when they are told, and what happens if not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    ChatHistoryMemory,
    Memory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_turn,
)
from langchain_memkit._locks import THREADS, shared_threads
from langchain_memkit.base import Query, SavedTurn
from langchain_memkit.errors import (
    ConfigurationError,
    ContextTooLargeError,
    HistoryWriteError,
    MemoryReadError,
    MemoryWriteError,
)
from langchain_memkit.messages.notes import Record, is_note, note_message, records_of
from langchain_memkit.messages.tokens import count_tokens
from langchain_memkit.testing import FakeChatModel
from langchain_memkit.testing.memories import assert_framed
from testkit.styles import Styles
from testkit.turns import streaming

U1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in each style."""
    return Styles(request.param)


class Notes(Memory):
    """Says what it is told to say, and keeps what it hears."""

    def __init__(self, *sayings: str, fail_load: Exception | None = None, fail_save: Exception | None = None) -> None:
        self.sayings = sayings
        self.fail_load = fail_load
        self.fail_save = fail_save
        self.asked: list[str] = []
        self.told: list[SavedTurn] = []

    def load(self, query: str = "") -> list[BaseMessage]:
        """The sayings."""
        self.asked.append(query)
        if self.fail_load:
            raise self.fail_load
        return [note_message([Record(text, about="saying") for text in self.sayings])] if self.sayings else []

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Listens."""
        if self.fail_save:
            raise self.fail_save
        assert isinstance(messages, SavedTurn)
        self.told.append(messages)

    def clear(self) -> None:
        """Forgets."""
        self.told.clear()


class Events(BaseCallbackHandler):
    """Keeps the custom events."""

    def __init__(self) -> None:
        self.heard: dict[str, Any] = {}

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps one."""
        self.heard[name] = data


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [str(message.text) for message in messages]


# -- what the model sees


def test_notes_stand_just_before_the_new_input(run: Styles) -> None:
    """Several memories and a retriever make one quoted note between history and input, which is never stored."""
    model, histories = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
    retriever = RunnableLambda(lambda query: [Document(f"found for {query}", metadata={"source": "a.md"})])
    memories = [Notes("Be kind."), retriever, lambda session_id, user_id: Notes(f"of {user_id} in {session_id}")]
    chat = create_runnable_with_message_history(model, histories, memories=memories)
    run(chat, "Hello.", U1)
    run(chat, "Who am I?", U1)
    first, reply, note, question = model.calls[1]
    assert texts([first, reply, question]) == ["Hello.", "Noted.", "Who am I?"]
    assert_framed(note)
    assert [(r.text, r.source) for r in records_of(note)] == [
        ("Be kind.", ""),
        ("found for Who am I?", "a.md"),
        ("of u1 in s1", ""),
    ]
    assert texts(histories("s1", "u1").messages)[::2] == ["Hello.", "Who am I?"]
    assert len(histories("s1", "u1").messages) == 4


def test_notes_travel_in_the_history_key(run: Styles) -> None:
    """No prompt has to change: the note ends what stands under `history_messages_key`."""
    model, histories = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be brief."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    chat = create_runnable_with_message_history(
        prompt | model,
        histories,
        input_messages_key="input",
        history_messages_key="chat_history",
        memories=[Notes("Be kind.")],
    )
    for _ in range(2):
        run(chat, {"input": "Hello."}, U1)
    assert [m.type for m in model.calls[0]] == ["system", "human", "human"]
    assert [m.type for m in model.calls[1]] == ["system", "human", "ai", "human", "human"]
    assert is_note(model.calls[1][3])
    assert len(histories("s1", "u1").messages) == 4


def test_system_lines_stay_first_and_results_follow_their_calls() -> None:
    """A note comes after a system line that opens the input, and before calls whose results are the input."""
    model, histories = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(model, histories, memories=[memory := Notes("Be kind.")])
    chat.invoke([SystemMessage("Be brief."), HumanMessage("Hello.")], U1)
    assert [m.type for m in model.calls[0]] == ["system", "human", "human"]
    assert is_note(model.calls[0][1])

    call = {"name": "look", "args": {}, "id": "c1", "type": "tool_call"}
    histories("s2", "u1").add_messages([HumanMessage("Look it up."), AIMessage("", tool_calls=[call])])
    chat.invoke([ToolMessage("found", tool_call_id="c1")], {"configurable": {"session_id": "s2", "user_id": "u1"}})
    assert [m.type for m in model.calls[1]] == ["human", "human", "ai", "tool"]
    assert is_note(model.calls[1][1])
    assert memory.asked[-1] == "Look it up."


def test_nothing_twice_and_nothing_that_is_shown_anyway() -> None:
    """A record of a message in view, or of the same words, is left out; without any there is no note."""
    model, histories = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")

    class Echo(Notes):
        def load(self, query: str = "") -> list[BaseMessage]:
            assert isinstance(query, Query)
            return [m for m in query.past if m.id is not None]

    chat = create_runnable_with_message_history(model, histories, memories=[Echo()])
    chat.invoke("Hello.", U1)
    chat.invoke("Hello again.", U1)
    assert texts(model.calls[1]) == ["Hello.", "Noted.", "Hello again."]
    twice = create_runnable_with_message_history(model, histories, memories=[Notes("Be  kind."), Notes("be kind.")])
    twice.invoke("Hello.", U1)
    assert [r.text for r in records_of(model.calls[2][-2])] == ["Be  kind."]


def test_memories_are_asked_with_what_the_turn_knows() -> None:
    """The query is the new input as text, with the history beside it and the session's epoch."""
    memory, histories = Notes(), SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memory])
    chat.invoke("Hello.", U1)
    chat.invoke([HumanMessage("Who am I?"), HumanMessage("Really?")], U1)
    query = memory.asked[1]
    assert query == "Who am I?\nReally?"
    assert isinstance(query, Query)
    assert texts(query.past) == ["Hello.", "Noted."]
    assert query.epoch == histories("s1", "u1").view().epoch != 0


def test_notes_share_the_preprocessors_budget() -> None:
    """What memories say makes the history shorter: the whole stays within `max_tokens`."""
    model, histories = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
    trim = create_trim_preprocessor(max_tokens=200)
    plain = create_runnable_with_message_history(model, histories, preprocessor=trim)
    for n in range(15):
        plain.invoke(f"This is remark number {n}, and it says nothing of note.", U1)
    noted = create_runnable_with_message_history(model, histories, preprocessor=trim, memories=[Notes("word " * 60)])
    plain.invoke("Hello.", U1)
    noted.invoke("Hello.", U1)
    without, beside = model.calls[-2:]
    assert sum(count_tokens(without)) <= 200
    assert sum(count_tokens(beside)) <= 200
    assert 3 < len(beside) < len(without)


def test_notes_count_for_a_trimmer_inside_the_wrapped_chain() -> None:
    """A trimmer between history and prompt still sees a past that the input follows, and keeps the note."""
    model, histories = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
    histories("s1", "u1").add_messages([m for n in range(20) for m in (HumanMessage(f"remark {n}"), AIMessage("Ok."))])
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{input}")])
    trim = create_trim_preprocessor(max_tokens=150)
    cut = RunnableLambda(lambda value, config: {**value, "chat_history": trim.invoke(value["chat_history"], config)})
    chat = create_runnable_with_message_history(
        cut | prompt | model,
        histories,
        input_messages_key="input",
        history_messages_key="chat_history",
        memories=[Notes("Be kind.")],
    )
    chat.invoke({"input": "Is this long question counted as well, although it is not in the list?"}, U1)
    *past, note, _ = model.calls[0]
    assert is_note(note)
    assert past
    assert sum(count_tokens(model.calls[0])) <= 150


def test_overflow_is_tried_again_with_the_note() -> None:
    """A second try with less of the past asks the memories again and keeps what they say."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    histories("s1", "u1").add_messages([m for n in range(40) for m in (HumanMessage(f"remark {n}"), AIMessage("Ok."))])
    seen: list[list[BaseMessage]] = []

    def picky(messages: list[BaseMessage]) -> AIMessage:
        seen.append(messages)
        if len(seen) == 1:
            raise ContextOverflowError("too much")
        return AIMessage("fits")

    chat = create_runnable_with_message_history(
        RunnableLambda(picky),
        histories,
        preprocessor=create_trim_preprocessor(max_tokens=300),
        memories=[memory := Notes("Be kind.")],
    )
    assert chat.invoke("Hello.", U1).content == "fits"
    assert len(seen[1]) < len(seen[0])
    assert all(is_note(messages[-2]) for messages in seen)
    assert len(memory.told) == 1


def test_note_that_is_over_the_budget_is_left_out() -> None:
    """A record that does not fit is not shown, and is no error: only what must be shown is, with `"raise"`."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(
        model,
        SQLiteChatMessageHistory.factory(":memory:"),
        preprocessor=create_trim_preprocessor(max_tokens=50, on_overflow="raise"),
        memories=[Notes("word " * 300)],
    )
    chat.get_session_history("s1", "u1").add_user_message("hi")
    chat.invoke("Hello.", U1)
    assert [m.text for m in model.calls[0]] == ["hi", "Hello."]
    with pytest.raises(ContextTooLargeError):
        chat.invoke("Hello. " * 60, U1)


def test_explain_turn_shows_notes() -> None:
    """What memories say is a part of its own, and one that failed is a note."""
    chat = create_runnable_with_message_history(
        FakeChatModel(),
        SQLiteChatMessageHistory.factory(":memory:"),
        memories=[Notes("Be kind."), Notes(fail_load=OSError("gone"))],
    )
    seen = explain_turn(chat, "Hello.", U1)
    assert [m.part for m in seen.messages] == ["notes", "input"]
    assert seen.tokens["notes"] > 0
    assert "Notes could not be loaded: OSError" in seen.notes
    assert "- saying: > Be kind." in str(seen)
    assert "notes" in seen._repr_html_()


# -- what the memories are told


def test_memories_are_told_what_was_stored(run: Styles) -> None:
    """Question and answer with the ids of the store, the turn's id, its epoch and expiry; after the history."""
    histories = SQLiteChatMessageHistory.factory(":memory:", ttl=3600.0)

    class After(Notes):
        def save(self, messages: Sequence[BaseMessage]) -> None:
            assert [m.id for m in messages] == [m.id for m in histories("s1", "u1").messages[-2:]]
            super().save(messages)

    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memory := After()])
    run(chat, "Hello.", U1)
    run(chat, "Who am I?", {"configurable": {**U1["configurable"], "turn_id": "t2"}})
    first, second = memory.told
    assert [type(m) for m in first] == [HumanMessage, AIMessage]
    assert texts(second)[0] == "Who am I?"
    assert second.turn_id == "t2"
    assert first.epoch == second.epoch == histories("s1", "u1").view().epoch != 0
    assert second.expires_at is not None


def test_before_save_serves_the_memories_as_well(run: Styles) -> None:
    """Redacted text is what the memories hear."""

    def redact(messages: list[BaseMessage]) -> list[BaseMessage]:
        return [m.model_copy(update={"content": str(m.content).replace("1234", "****")}) for m in messages]

    memory = Notes()
    chat = create_runnable_with_message_history(
        FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"), memories=[memory], before_save=redact
    )
    run(chat, "My PIN is 1234.", U1)
    assert texts(memory.told[0])[0] == "My PIN is ****."


def test_a_failed_memory_raises_after_all_were_tried(run: Styles) -> None:
    """The history is saved first, every memory is told, then the first failure raises with the answer in it."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    memories = [Notes(fail_save=OSError("disk full")), last := Notes(), Notes(fail_save=ValueError("second"))]
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=memories)
    with pytest.raises(MemoryWriteError, match=r"stored, but Notes .*: OSError$") as raised:
        run(chat, "Hello.", U1)
    error = raised.value
    assert isinstance(error, HistoryWriteError)
    assert error.output.text == "Noted."
    assert error.maybe_stored
    assert error.turn_id
    assert isinstance(error.__cause__, OSError)
    assert len(last.told) == 1
    assert len(histories("s1", "u1").messages) == 2


def test_on_save_error_serves_memories(run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """`"log"` logs a memory's failure, a callable gets it, and both return the answer; an event is sent."""
    heard: list[HistoryWriteError] = []
    for policy in ("log", heard.append):
        events = Events()
        chat = create_runnable_with_message_history(
            FakeChatModel(),
            SQLiteChatMessageHistory.factory(":memory:"),
            memories=[Notes(fail_save=OSError("disk full"))],
            on_save_error=policy,
        )
        run(chat, "Hello.", {**U1, "callbacks": [events]})
        assert events.heard["memkit_save_error"]["error"] == "MemoryWriteError"
    assert caplog.messages == ["the turn is stored, but Notes was not told of it: OSError"]
    assert len(heard) == 1


def test_a_retry_tells_a_memory_that_was_not_told() -> None:
    """The same `turn_id` again: stored once, and told with the ids and words that are stored."""
    histories, memory = SQLiteChatMessageHistory.factory(":memory:"), Notes(fail_save=OSError("gone"))
    config: Any = {"configurable": {**U1["configurable"], "turn_id": "t1"}}
    answers = iter(["first", "second", "third"])
    chat = create_runnable_with_message_history(
        RunnableLambda(lambda messages: AIMessage(next(answers))), histories, memories=[memory]
    )
    with pytest.raises(MemoryWriteError):
        chat.invoke("Hello.", config)
    memory.fail_save = None
    for _ in range(2):
        chat.invoke("Hello.", config)
    stored = histories("s1", "u1").messages
    assert texts(stored) == ["Hello.", "first"]
    assert [list(turn) for turn in memory.told] == [stored, stored]


def test_history_fails_then_no_memory_is_told(run: Styles) -> None:
    """What is derived is never ahead of the transcript."""
    memory = Notes()
    chat = create_runnable_with_message_history(
        FakeChatModel(),
        SQLiteChatMessageHistory.factory(":memory:"),
        memories=[memory],
        before_save=lambda messages: [*messages, HumanMessage([{"type": "x", "value": object()}])],
    )
    with pytest.raises(HistoryWriteError):
        run(chat, "Hello.", U1)
    assert memory.told == []


def test_dropped_turn_is_told_to_nobody(run: Styles) -> None:
    """A session that was cleared meanwhile: the memories do not hear what the history refuses."""
    histories, memory = SQLiteChatMessageHistory.factory(":memory:"), Notes()
    histories("s1", "u1").add_user_message("before")

    def forgetful(messages: list[BaseMessage]) -> AIMessage:
        histories("s1", "u1").clear()
        return AIMessage("Noted.")

    run(
        create_runnable_with_message_history(RunnableLambda(forgetful), histories, memories=[memory]),
        "My PIN is 1234.",
        U1,
    )
    assert memory.told == []
    assert histories("s1", "u1").messages == []


@pytest.mark.parametrize("style", ["stream", "astream"])
def test_partial_answer_is_told(style: str) -> None:
    """A stream that is closed: the memories hear what the history keeps."""
    memory = Notes()
    chat = create_runnable_with_message_history(
        streaming(lambda messages: iter(["one ", "two ", "three"])),
        SQLiteChatMessageHistory.factory(":memory:"),
        memories=[memory],
    )
    Styles(style)(chat, "Count.", U1, stop_after=2)
    assert texts(memory.told[0]) == ["Count.", "one two "]


def test_model_fails(run: Styles) -> None:
    """Nothing is told, or with `save_input` the question, as with the history."""
    model = FakeChatModel(error=ValueError("no"))
    for policy, told in (("discard", []), ("save_input", [["Hello."]])):
        memory = Notes()
        chat = create_runnable_with_message_history(
            model,
            SQLiteChatMessageHistory.factory(":memory:"),
            memories=[memory],
            on_model_error=policy,  # type: ignore[arg-type]  # one of the two
        )
        with pytest.raises(ValueError, match="no"):
            run(chat, "Hello.", U1)
        assert [texts(turn) for turn in memory.told] == told


def test_read_only_memories_are_not_told() -> None:
    """A memory that says `read_only` is left alone."""
    memory = Notes("Be kind.")
    memory.read_only = True
    chat = create_runnable_with_message_history(
        FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"), memories=[memory]
    )
    chat.invoke("Hello.", U1)
    assert memory.told == []
    assert memory.asked


# -- failures while loading


def test_a_memory_that_cannot_be_loaded_is_reported(run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """The turn goes on without it, with a line in the log and an event; the others are heard, and all are told."""
    model, events = FakeChatModel(), Events()
    broken = Notes(fail_load=OSError("gone"))
    chat = create_runnable_with_message_history(
        model, SQLiteChatMessageHistory.factory(":memory:"), memories=[broken, Notes("Be kind.")]
    )
    run(chat, "Hello.", {**U1, "callbacks": [events]})
    assert [r.text for r in records_of(model.calls[0][0])] == ["Be kind."]
    assert events.heard["memkit_load_error"] == {
        "memory": "Notes",
        "error": "OSError",
        "message": "Notes could not be loaded: OSError",
    }
    assert "Notes could not be loaded: OSError" in caplog.text
    assert "gone" not in caplog.text
    assert len(broken.told) == 1


def test_on_load_error(run: Styles) -> None:
    """`"raise"` raises before the model is called; a callable gets the error; another word is refused."""
    heard: list[MemoryReadError] = []
    model = FakeChatModel()
    options: Any = {"memories": [Notes(fail_load=OSError("gone"))]}
    histories = SQLiteChatMessageHistory.factory(":memory:")
    strict = create_runnable_with_message_history(model, histories, on_load_error="raise", **options)
    with pytest.raises(MemoryReadError, match=r"OSError$") as raised:
        run(strict, "Hello.", U1)
    assert isinstance(raised.value.__cause__, OSError)
    assert model.calls == []
    run(create_runnable_with_message_history(model, histories, on_load_error=heard.append, **options), "Hello.", U1)
    assert len(heard) == 1
    with pytest.raises(ConfigurationError, match="on_load_error"):
        create_runnable_with_message_history(model, histories, on_load_error="skip", **options)  # type: ignore[arg-type]


def test_async_memories_are_loaded_and_told_at_once() -> None:
    """On an event loop, two memories that wait for each other both come through."""

    class Waiting(Notes):
        def __init__(self, barrier: asyncio.Barrier) -> None:
            super().__init__("Be kind.")
            self.barrier = barrier

        async def aload(self, query: str = "") -> list[BaseMessage]:
            await self.barrier.wait()
            return super().load(query)

        async def asave(self, messages: Sequence[BaseMessage]) -> None:
            await self.barrier.wait()
            super().save(messages)

    async def main() -> list[Waiting]:
        barrier = asyncio.Barrier(2)
        memories = [Waiting(barrier), Waiting(barrier)]
        chat = create_runnable_with_message_history(
            FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"), memories=memories
        )
        await asyncio.wait_for(chat.ainvoke("Hello.", U1), timeout=60)
        return memories

    assert all(memory.told for memory in asyncio.run(main()))


# -- what may be given


def test_memory_of_somebody_else_is_refused(run: Styles) -> None:
    """One bound object serves its own session and user only; its factory serves all."""
    model, histories = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
    mine = ChatHistoryMemory(histories("s1", "u1"), read_only=True)
    chat = create_runnable_with_message_history(model, histories, memories=[mine])
    run(chat, "Hello.", U1)
    for session_id, user_id in (("s1", "u2"), ("s2", "u1")):
        with pytest.raises(ConfigurationError, match="factory"):
            run(chat, "Hello.", {"configurable": {"session_id": session_id, "user_id": user_id}})
    assert len(model.calls) == 1


def test_memory_factories_are_called_as_get_session_history_is(run: Styles) -> None:
    """By signature; a user that a factory cannot take is an error, and so is one that is missing."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    model = FakeChatModel()

    async def later(session_id: str, user_id: str) -> Memory:
        return Notes(f"later of {user_id}")

    if run.asynchronous:
        run(create_runnable_with_message_history(model, histories, memories=[later]), "Hello.", U1)
        assert "later of u1" in model.calls[-1][0].text
    else:
        with pytest.raises(ConfigurationError, match=r"memories\[0\] is async"):
            run(create_runnable_with_message_history(model, histories, memories=[later]), "Hello.", U1)
    with pytest.raises(ConfigurationError, match="user_id"):
        run(create_runnable_with_message_history(model, histories, memories=[lambda session_id: Notes()]), "Hi.", U1)
    needs = create_runnable_with_message_history(model, histories, memories=[lambda session_id, user_id: Notes()])
    with pytest.raises(ValueError, match="user_id"):
        run(needs, "Hi.", {"configurable": {"session_id": "s1"}})
    made = create_runnable_with_message_history(model, histories, memories=[lambda session_id, user_id: "no memory"])
    with pytest.raises(ConfigurationError, match=r"memories\[0\] made a str"):
        run(made, "Hi.", U1)


@pytest.mark.parametrize("memories", ["abc", [3], [Notes], Notes(), [None], {"a": 1}])
def test_what_is_no_list_of_memories(memories: Any) -> None:
    """Refused when the chain is made, with what was expected."""
    with pytest.raises(ConfigurationError, match="memories"):
        create_runnable_with_message_history(
            FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"), memories=memories
        )


def test_foreign_history_with_memories() -> None:
    """Over a history of another package the memories hear the messages as they are, without ids of ours."""
    from langchain_memkit.testing.memories import ListHistory

    history, memory = ListHistory(), Notes()
    chat = create_runnable_with_message_history(FakeChatModel(), lambda session_id: history, memories=[memory])
    chat.invoke("Hello.", {"configurable": {"session_id": "s1"}})
    assert texts(memory.told[0]) == texts(history.messages) == ["Hello.", "Noted."]
    assert memory.told[0].epoch == 0


def test_turns_without_memories_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The empty default costs no word."""
    with caplog.at_level(logging.DEBUG, "langchain_memkit"):
        create_runnable_with_message_history(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")).invoke(
            "Hello.", U1
        )
    assert caplog.text == ""


def test_history_factory_config_names_the_ids_otherwise(run: Styles) -> None:
    """Config keys of other names: memories get the ids of the history in use."""
    from langchain_core.runnables import ConfigurableFieldSpec

    specs = [ConfigurableFieldSpec(id=name, annotation=str) for name in ("owner", "conversation")]
    histories, model = SQLiteChatMessageHistory.factory(":memory:"), FakeChatModel()
    chat = create_runnable_with_message_history(
        model,
        lambda owner, conversation: histories(conversation, owner),
        history_factory_config=specs,
        memories=[lambda session_id, user_id: Notes(f"{user_id} in {session_id}")],
    )
    run(chat, "Hello.", {"configurable": {"owner": "u1", "conversation": "s1"}})
    assert [r.text for r in records_of(model.calls[0][0])] == ["u1 in s1"]


def test_a_memory_that_is_set_up_wrongly_raises(run: Styles) -> None:
    """A `ConfigurationError` of a memory would come in every turn, so it is not merely reported."""
    chat = create_runnable_with_message_history(
        model := FakeChatModel(),
        SQLiteChatMessageHistory.factory(":memory:"),
        memories=[Notes(fail_load=ConfigurationError("wrong"))],
    )
    with pytest.raises(ConfigurationError, match="wrong"):
        run(chat, "Hello.", U1)
    assert model.calls == []


# -- what must not happen


def test_a_note_that_comes_back_is_never_stored(run: Styles) -> None:
    """A client that resends a graph's state, or a runnable that returns it: the note is nobody's message."""
    histories, memory = SQLiteChatMessageHistory.factory(":memory:"), Notes("Be kind.")
    echo = RunnableLambda(lambda messages: [*messages, AIMessage("Noted.")])
    for runnable in (echo, FakeChatModel()):
        histories("s1", "u1").clear()
        chat = create_runnable_with_message_history(runnable, histories, memories=[memory])
        run(chat, "Hello.", U1)
        run(chat, [note_message([Record("Be kind.")]), HumanMessage("Who am I?")], U1)
        assert texts(histories("s1", "u1").messages)[::2] == ["Hello.", "Who am I?"]
        assert not any(is_note(m) for m in histories("s1", "u1").messages)
    assert not any(is_note(m) for turn in memory.told for m in turn)


@pytest.mark.parametrize("max_tokens", [100, 150, 250])
def test_what_was_trimmed_away_is_recalled(max_tokens: int) -> None:
    """A fact is in the history that is shown or in the note, at whatever turn the trimmer lets it go."""

    class Recalling(Notes):
        def load(self, query: str = "") -> list[BaseMessage]:
            assert isinstance(query, Query)
            seen = {m.id for m in query.seen}
            known = [m for turn in self.told for m in turn if m.id not in seen and "machine" in str(m.content)]
            return [note_message([Record(str(m.content), id=m.id) for m in known])] if known else []

    model, memory = FakeChatModel(), Recalling()
    chat = create_runnable_with_message_history(
        model,
        SQLiteChatMessageHistory.factory(":memory:"),
        preprocessor=create_trim_preprocessor(max_tokens=max_tokens),
        memories=[memory, RunnableLambda(lambda query: [Document("Tea is served at five.")])],
    )
    chat.invoke("Harrison likes machine learning a lot.", U1)
    noted = []
    for n in range(12):
        chat.invoke(f"Small talk number {n}.", U1)
        shown = [m for m in model.calls[-1] if "machine learning" in m.text]
        assert len(shown) == 1, f"turn {n}: {'not ' if not shown else 'twice '}shown"
        noted.append(is_note(shown[0]))
    assert noted[-1]
    assert noted == sorted(noted)


def test_erased_while_the_memories_are_told(run: Styles) -> None:
    """A user who is purged between the save of the history and that of a memory: what was told is taken back."""

    class Taking(Notes):
        def forget_messages(self, ids: Sequence[str]) -> int:
            gone = [turn for turn in self.told if {m.id for m in turn} & set(ids)]
            self.told = [turn for turn in self.told if turn not in gone]
            return len(gone)

        async def aforget_messages(self, ids: Sequence[str]) -> int:
            return self.forget_messages(ids)

    histories, memory = SQLiteChatMessageHistory.factory(":memory:"), Taking()

    class Purging(Notes):
        def save(self, messages: Sequence[BaseMessage]) -> None:
            histories.purge("u1")

    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[Purging(), memory])
    run(chat, "My PIN is 1234.", U1)
    assert memory.told == []
    plain = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memory])
    run(plain, "Hello.", U1)
    assert len(memory.told) == 1


class Remote(Memory):
    """Reads from a server, it says: its reads are noted with the threads in which they happen."""

    is_remote = True

    def __init__(self, read: list[str]) -> None:
        self.read = read

    def prefetch(self) -> None:
        """Note the thread."""
        self.read.append(threading.current_thread().name)

    async def aprefetch(self) -> None:
        """Not asked of in sync code."""

    def load(self, query: str = "") -> list[BaseMessage]:
        """Nothing."""
        return []

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Nothing."""

    def clear(self) -> None:
        """Nothing."""


def chat_with(*memories: Any) -> Any:
    """A chain over a store in memory, with these memories."""
    return create_runnable_with_message_history(
        FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"), memories=list(memories)
    )


def test_reads_beside_the_history_share_threads() -> None:
    """Turns of sync code, one after the other, start no thread each."""
    read: list[str] = []
    chat = chat_with(Remote(read), Remote(read))
    for _ in range(10):
        chat.invoke("Hi.", U1)
    assert read  # what has not begun when the history is read may be left to the memory's load
    assert all(name.startswith("memkit") for name in read)
    assert len(set(read)) <= THREADS


def test_more_turns_than_threads_at_once() -> None:
    """A turn does not wait for a thread: what has not begun when the history is read is left to the memory's load."""
    read: list[str] = []
    gate = threading.Event()
    held = [shared_threads().submit(gate.wait, 60) for _ in range(THREADS)]
    try:
        assert chat_with(Remote(read)).invoke("Hi.", U1).text
        assert read == []
    finally:
        gate.set()
    assert all(each.result() for each in held)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")  # that is what is tried
def test_a_forked_process_has_threads_of_its_own() -> None:
    """Those of its parent are not there: a read that waited for them would never end."""
    chat_with(Remote([])).invoke("Hi.", U1)
    child = os.fork()
    if child == 0:
        try:
            threading.Timer(60, os._exit, [3]).start()
            read: list[str] = []
            chat = chat_with(Remote(read))
            while not read:  # a thread may come too late for one turn, not for all
                chat.invoke("Hi.", U1)
            os._exit(0)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
