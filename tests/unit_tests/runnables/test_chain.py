"""The chain by itself: shapes of input and output, ids, foreign histories, LangGraph, events, schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter
from traceback import format_exception
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage, trim_messages
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.base import RunnableGenerator
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel

from langchain_memkit import (
    BaseChatMessageHistory,
    EntityMemory,
    InMemoryChatMessageHistory,
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_runnable_with_message_history,
    create_trim_preprocessor,
)
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, StaleTurnError, UnsupportedOutputError
from langchain_memkit.testing import FakeChatModel
from testkit.styles import Styles

S1: Any = {"configurable": {"session_id": "s1"}}


@pytest.fixture
def histories() -> Any:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


@pytest.fixture
def core_history() -> Any:
    """LangChain's own in-memory history: a foreign one."""

    class Foreign(InMemoryChatMessageHistory):  # the class itself warns when it is made
        pass

    return Foreign()


def texts(messages: list[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [m.text for m in messages]


PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Be {mood}."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
)


@pytest.mark.needs_retired_classes
def test_is_an_instance_of_langchains_class(histories: Any) -> None:
    """Existing isinstance checks hold while core has the class; core's constructor is never run (it would warn)."""
    from langchain_core.runnables.history import RunnableWithMessageHistory as CoreClass

    assert isinstance(create_runnable_with_message_history(FakeChatModel(), histories), CoreClass)


def test_prompt_with_history_key(histories: Any) -> None:
    """Dict input with a history key: the prompt gets the history under that key and everything else unchanged."""
    model = FakeChatModel()
    chat = RunnableWithMessageHistory(
        PROMPT | model, histories, input_messages_key="input", history_messages_key="chat_history"
    )
    chat.invoke({"input": "My name is Nemo.", "mood": "brief"}, S1)
    chat.invoke({"input": "What is my name?", "mood": "brief"}, S1)
    assert texts(model.calls[1]) == ["Be brief.", "My name is Nemo.", "Noted.", "What is my name?"]


def test_only_history_key(histories: Any) -> None:
    """A history key alone: the input is found under "input"."""
    model = FakeChatModel()
    chat = RunnableWithMessageHistory(PROMPT | model, histories, history_messages_key="chat_history")
    chat.invoke({"input": "a", "mood": "brief"}, S1)
    assert texts(histories("s1").messages) == ["a", "Noted."]


def test_dict_with_one_key_for_all_messages(histories: Any) -> None:
    """Dict input with an input key: history and input arrive under it together."""
    seen: list[Any] = []

    def chain(value: dict[str, Any]) -> str:
        seen.append(value)
        return "yes"

    chat = create_runnable_with_message_history(chain, histories, input_messages_key="messages")
    chat.invoke({"messages": "a", "other": 1}, S1)
    chat.invoke({"messages": [HumanMessage("b")], "other": 1}, S1)
    assert texts(seen[1]["messages"]) == ["a", "yes", "b"]
    assert seen[1]["other"] == 1


@pytest.mark.parametrize(
    "value",
    [
        "hi",
        HumanMessage("hi"),
        [HumanMessage("hi")],
        (HumanMessage("hi"),),
        [("human", "hi")],
        [{"role": "user", "content": "hi"}],
        [[HumanMessage("hi")]],
        {"anything": "hi"},
        {"input": "hi", "other": 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_inputs(histories: Any, value: Any) -> None:
    """Every input of LangChain's class is one human message here."""
    create_runnable_with_message_history(lambda _: "yes", histories).invoke(value, S1)
    assert [(m.type, m.text) for m in histories("s1").messages] == [("human", "hi"), ("ai", "yes")]


class Answer(BaseModel):
    """Structured output."""

    name: str
    age: int


@pytest.mark.parametrize(
    ("output", "stored"),
    [
        ("yes", ["yes"]),
        (AIMessage("yes"), ["yes"]),
        (AIMessageChunk(content="yes"), ["yes"]),
        ([AIMessage("a"), AIMessage("b")], ["a", "b"]),
        ({"output": "yes"}, ["yes"]),
        ({"answer": AIMessage("yes")}, ["yes"]),
        ({"output": [AIMessage("yes")], "sources": [1]}, ["yes"]),
        ({"messages": [AIMessage("yes")], "step": 1}, ["yes"]),
        (Answer(name="Nemo", age=3), ['{"name":"Nemo","age":3}']),
        ({"name": "Nemo", "age": 3}, ['{"name": "Nemo", "age": 3}']),
        (
            {"raw": AIMessage("x"), "parsed": Answer(name="Nemo", age=3), "parsing_error": None},
            ['{"name":"Nemo","age":3}'],
        ),
        ({"raw": AIMessage("x"), "parsed": {"name": "N"}, "parsing_error": None}, ['{"name": "N"}']),
        (AIMessage("{}", additional_kwargs={"parsed": Answer(name="N", age=3), "refusal": None}), ["{}"]),
        ({"raw": AIMessage("x"), "parsed": None, "parsing_error": ValueError()}, ["x"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outputs(histories: Any, output: Any, stored: list[str]) -> None:
    """Every output of LangChain's class, and structured output as its JSON, is stored and returned unchanged."""
    chat = create_runnable_with_message_history(lambda _: output, histories)
    assert chat.invoke("hi", S1) is output
    answers = histories("s1").messages[1:]
    assert texts(answers) == stored
    assert {type(m) for m in answers} == {AIMessage}


@pytest.mark.parametrize(
    "output", [None, 123, False, object(), [1], {"output": 3, "x": object()}], ids=lambda o: type(o).__name__
)
def test_unsupported_outputs(histories: Any, output: Any) -> None:
    """What is no message raises ValueError, with the output kept in the error."""
    chat = create_runnable_with_message_history(lambda _: output, histories)
    with pytest.raises(ValueError, match=r"Expected str|no key") as raised:
        chat.invoke("hi", S1)
    assert isinstance(raised.value, UnsupportedOutputError)
    assert raised.value.output is output


def test_output_key_is_named(histories: Any) -> None:
    """A missing output key says which keys there are."""
    chat = create_runnable_with_message_history(lambda _: {"a": "x", "b": "y"}, histories, output_messages_key="answer")
    with pytest.raises(UnsupportedOutputError, match=r"'answer'.*\['a', 'b'\]"):
        chat.invoke("hi", S1)


HOSTILE = [123, 1.5, True, b"s", {"$ne": None}, ["s"], "", "\x00", "\ud800", "x" * 513]


@pytest.mark.parametrize("bad", HOSTILE, ids=lambda b: repr(b)[:12])
@pytest.mark.parametrize("name", ["session_id", "thread_id", "user_id", "turn_id"])
def test_ids_are_checked_first(histories: Any, name: str, bad: Any) -> None:
    """A hostile or malformed id in the config is refused before the model or the store is asked."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, histories)
    config = {"session_id": "s1", name: bad}
    if name == "thread_id":
        del config["session_id"]
    with pytest.raises((TypeError, ValueError)):
        chat.invoke("hi", {"configurable": config})
    assert model.calls == []
    assert histories.list_sessions() == []


def test_missing_session_id_shows_an_example(histories: Any) -> None:
    """Without a session the error shows what to pass."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    with pytest.raises(ValueError, match=r"Missing keys \['session_id'\].*'configurable'"):
        chat.invoke("hi")


def test_user_id_is_never_dropped(core_history: Any) -> None:
    """A configured user_id that the callable cannot take is an error: two users would share a conversation."""
    chat = create_runnable_with_message_history(FakeChatModel(), lambda session_id: core_history)
    with pytest.raises(ConfigurationError, match="user_id"):
        chat.invoke("hi", {"configurable": {"session_id": "s1", "user_id": "u1"}})


def test_user_id_beside_configured_keys(histories: Any) -> None:
    """With history_factory_config a user_id is passed on where the callable takes it, else it is an error."""
    specs = [ConfigurableFieldSpec(id="conversation_id", annotation=str)]
    config: Any = {"configurable": {"conversation_id": "c", "user_id": "u1"}}
    careless = create_runnable_with_message_history(FakeChatModel(), histories.__call__, history_factory_config=specs)
    careless.invoke("hi", config)
    assert len(histories("c", "u1").messages) == 2
    dropping = create_runnable_with_message_history(
        FakeChatModel(), lambda conversation_id: histories(conversation_id), history_factory_config=specs
    )
    with pytest.raises(ConfigurationError, match="user_id"):
        dropping.invoke("hi", config)


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("given", ["", "eyJhbGciOi" * 100, "sqlite://tenant", "a\x00b"])
def test_configured_keys_that_are_no_ids(histories: Any, given: str, style: str) -> None:
    """Of the keys in history_factory_config only session and user are checked; others are passed as they are."""
    specs = [ConfigurableFieldSpec(id=name, annotation=str) for name in ("user_id", "session_id", "token")]
    seen: list[str] = []

    def history(user_id: str, session_id: str, token: str) -> Any:
        seen.append(token)
        return histories(session_id, user_id)

    chat = RunnableWithMessageHistory(FakeChatModel(), history, history_factory_config=specs)
    ids = {"user_id": "u1", "session_id": "s1"}
    Styles(style)(chat, "hi", {"configurable": {**ids, "token": given}})
    assert seen == [given]
    assert len(histories("s1", "u1").messages) == 2
    for name in ids:
        with pytest.raises(ValueError, match=name):
            Styles(style)(chat, "hi", {"configurable": {**ids, "token": "t", name: given}})
    alone = [ConfigurableFieldSpec(id="conversation_id", annotation=str)]
    of_one = RunnableWithMessageHistory(FakeChatModel(), histories.__call__, history_factory_config=alone)
    with pytest.raises(ValueError, match="conversation_id"):
        Styles(style)(of_one, "hi", {"configurable": {"conversation_id": given}})


def test_retry_with_before_save(histories: Any) -> None:
    """Redaction does not stand in the way of a retry; done in place, it changes neither answer nor input."""
    answers = iter(["my pin", "your pin"])

    def redact(messages: list[BaseMessage]) -> list[BaseMessage]:
        for message in messages:
            message.content = message.text.replace("pin", "***")
        return messages

    chat = create_runnable_with_message_history(
        lambda _: AIMessage(next(answers)), histories, before_save=redact, on_dropped_turn="report"
    )
    config: Any = {"configurable": {"session_id": "s1", "turn_id": "t1"}}
    asked = HumanMessage("a pin?")
    assert chat.invoke([asked], config).text == "my pin"
    assert chat.invoke([asked], config).text == "your pin"
    assert asked.text == "a pin?"
    assert texts(histories("s1").messages) == ["a ***?", "my ***"]


def test_dropped_turn_raises_beside_log(histories: Any) -> None:
    """on_dropped_turn="raise" is not silenced by on_save_error="log"."""

    def model(_: Any) -> str:
        histories("s1").clear()
        return "answer"

    chat = create_runnable_with_message_history(model, histories, on_dropped_turn="raise", on_save_error="log")
    with pytest.raises(StaleTurnError) as raised:
        chat.invoke("hi", S1)
    assert raised.value.output == "answer"


def test_answers_that_look_like_an_echo(histories: Any) -> None:
    """Lists of answers whose ids or words were there before are new answers, unless the question came back as well."""
    chat = create_runnable_with_message_history(lambda _: [AIMessage("same", id="1")], histories)
    for text in ("one", "two"):
        chat.invoke(text, S1)
    assert texts(histories("s1").messages) == ["one", "same", "two", "same"]
    echo = create_runnable_with_message_history(lambda messages: {"messages": messages}, histories)
    echo.invoke("please", {"configurable": {"session_id": "s2"}})
    assert texts(histories("s2").messages) == ["please"]


def test_errors_hold_no_words(histories: Any) -> None:
    """What was said does not get into errors about its shape."""
    for output in ([("my diagnosis",)], {"a": {"b": object()}, "c": "my diagnosis"}):
        chat = create_runnable_with_message_history(lambda _, output=output: output, histories)
        with pytest.raises(UnsupportedOutputError) as raised:
            chat.invoke("hi", S1)
        assert "diagnosis" not in str(raised.value)


class Picky(InMemoryChatMessageHistory):
    """A history that quotes what it does not store."""

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Refuses them."""
        raise ValueError(f"cannot keep {messages[0].text}")


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("foreign", [True, False])
def test_the_words_of_others_errors_are_not_ours(
    foreign: bool, style: str, histories: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of a history, of `before_save` or of a memory may quote what was said: ours, log and events do not."""
    said = "my card is 4111"
    heard: list[Any] = []

    class Listener(BaseCallbackHandler):
        def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
            heard.append(data)

    def refuse(messages: list[BaseMessage]) -> list[BaseMessage]:
        raise ValueError(f"cannot keep {messages[0].text}")

    def recall(query: str) -> Any:
        raise LookupError(f"nothing about {query}")

    def call(model: Any, **options: Any) -> Any:
        chat = create_runnable_with_message_history(model, source, memories=[RunnableLambda(recall)], **options)
        config = {**S1, "callbacks": [Listener()]}
        return chat.invoke(said, config) if style == "sync" else asyncio.run(chat.ainvoke(said, config))

    source: Any = (lambda session_id: Picky()) if foreign else histories
    options: dict[str, Any] = {} if foreign else {"before_save": refuse}
    with pytest.raises(HistoryWriteError, match=r"^saving the turn raised ValueError$") as raised:
        call(FakeChatModel(), **options)
    assert str(raised.value.__cause__) == f"cannot keep {said}"
    call(FakeChatModel(), **options, on_save_error="log")
    with pytest.raises(OSError, match="down"):
        call(FakeChatModel(error=OSError("down")), **options, on_model_error="save_input")
    failures: list[HistoryWriteError] = []
    call(FakeChatModel(), **options, on_save_error=failures.append)
    assert [str(failure.__cause__) for failure in failures] == [f"cannot keep {said}"]
    left_out = "left out of the turn: RetrieverMemory(RunnableLambda) could not be loaded: LookupError"
    assert caplog.messages == [
        left_out,
        left_out,
        "turn not stored: saving the turn raised ValueError",
        left_out,
        "the model failed, and then its input was not stored: saving the turn raised ValueError",
        left_out,
    ]
    assert len(heard) == 8
    assert "my card" not in str(heard)  # not "4111": a random id may hold it


def test_required_user_id_is_asked_for(core_history: Any) -> None:
    """A callable that needs a user_id is not called without one."""
    chat = create_runnable_with_message_history(FakeChatModel(), lambda session_id, user_id: core_history)
    with pytest.raises(ValueError, match=r"Missing keys \['user_id'\]"):
        chat.invoke("hi", S1)


def test_callable_without_arguments(core_history: Any) -> None:
    """A callable without arguments works without a config."""
    create_runnable_with_message_history(FakeChatModel(), lambda: core_history).invoke("hi")
    assert texts(core_history.messages) == ["hi", "Noted."]


async def test_async_factory_of_histories(histories: Any) -> None:
    """get_session_history may be async; a sync call then says which call to use."""

    async def get(session_id: str) -> Any:
        await asyncio.sleep(0)
        return histories(session_id)

    chat = create_runnable_with_message_history(FakeChatModel(), get)
    await chat.ainvoke("hi", S1)
    assert "".join([chunk.text async for chunk in chat.astream("hi", S1)]) == "Noted."
    assert len(histories("s1").messages) == 4
    with pytest.raises(ConfigurationError, match="ainvoke"):
        chat.invoke("hi", S1)


async def test_slow_factory_does_not_stall_the_loop(histories: Any) -> None:
    """A plain get_session_history runs beside the event loop, not on it."""
    import threading

    ran_on: list[threading.Thread] = []

    def get(session_id: str) -> Any:
        ran_on.append(threading.current_thread())
        return histories(session_id)

    await create_runnable_with_message_history(FakeChatModel(), get).ainvoke("hi", S1)
    assert ran_on[0] is not threading.main_thread()


def test_foreign_history(core_history: Any) -> None:
    """LangChain's own histories work: nothing of theirs is given ids, messages stay the caller's."""
    asked = HumanMessage("My name is Nemo.")
    chat = create_runnable_with_message_history(FakeChatModel(), lambda session_id: core_history)
    chat.invoke([asked], S1)
    assert chat.invoke("What is my name?", S1).text == "You told me: My name is Nemo."
    assert asked.id is None
    assert core_history.messages[0] is asked


def test_foreign_history_that_fails(core_history: Any) -> None:
    """A failing save of a foreign history raises with the answer instead of vanishing in a log."""

    class Broken(type(core_history)):  # type: ignore[misc]  # the fixture's class
        def add_messages(self, messages: Any) -> None:
            raise OSError("disk full")

    chat = create_runnable_with_message_history(FakeChatModel(), lambda session_id: Broken())
    with pytest.raises(HistoryWriteError, match="raised OSError") as raised:
        chat.invoke("hi", S1)
    assert raised.value.output.text == "Noted."
    assert isinstance(raised.value.__cause__, OSError)


FORMS: list[Any] = [
    [{"role": "user", "content": "My name is Nemo."}, {"role": "assistant", "content": "Noted."}],
    [{"type": "human", "content": "My name is Nemo.", "id": "h1"}, {"type": "ai", "content": "Noted."}],
    [("human", "My name is Nemo."), ("ai", "Noted.")],
    ["My name is Nemo.", AIMessage("Noted.")],
    (HumanMessage("My name is Nemo."), AIMessage("Noted.")),
]


class OfForms(BaseChatMessageHistory):
    """A history of another package that keeps messages in a form of its own, and only reads."""

    def __init__(self, messages: Any) -> None:
        self.messages = messages

    def clear(self) -> None:
        """Forget them."""
        self.messages = []


class Kept(OfForms):
    """One that stores messages as well."""

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Keep them."""
        self.messages = [*self.messages, *messages]


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=["roles", "types", "tuples", "texts", "a tuple"])
def test_foreign_history_of_other_forms(form: Any, trimmed: bool, style: str) -> None:
    """Dicts, tuples and texts reach the model as langchain-core converts them, through a preprocessor as well."""
    history, model = Kept(form), FakeChatModel()
    trim = create_trim_preprocessor(max_tokens=1000) if trimmed else None
    chat = create_runnable_with_message_history(model, lambda session_id: history, preprocessor=trim)
    assert Styles(style)(chat, "What is my name?", S1).text == "You told me: My name is Nemo."
    assert [(m.type, m.text) for m in model.calls[0]] == [
        ("human", "My name is Nemo."),
        ("ai", "Noted."),
        ("human", "What is my name?"),
    ]
    assert history.messages[:2] == [*form]
    assert texts(history.messages[2:]) == ["What is my name?", "You told me: My name is Nemo."]


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("form", ["hunter2", {"hunter2": 1}, [7], [{"text": "hunter2"}], [("hunter2", "hi")], None])
def test_foreign_history_of_no_messages(form: Any, style: str) -> None:
    """What langchain-core makes no messages of is refused before the model is called, and not quoted."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, lambda session_id: Kept(form))
    with pytest.raises(ConfigurationError, match="`messages` of a Kept must be a list of messages") as raised:
        Styles(style)(chat, "hi", S1)
    assert model.calls == []
    assert "hunter2" not in "".join(format_exception(raised.value))


class OnlyMessages:
    """What is no subclass of LangChain's class, and has none of its methods."""

    messages: tuple[()] = ()


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("history", [OfForms([]), OnlyMessages()], ids=lambda h: type(h).__name__)
def test_foreign_history_that_only_reads(history: Any, style: str) -> None:
    """A history without methods to add is told which one to define, and how to go on without; nothing was stored."""
    call, name = Styles(style), type(history).__name__
    chat = create_runnable_with_message_history(FakeChatModel(), lambda session_id: history)
    way_out = rf'a {name} has neither add_messages nor add_message.* define add_messages.* on_save_error="log"'
    with pytest.raises(HistoryWriteError, match=way_out) as raised:
        call(chat, "hi", S1)
    assert raised.value.output.text == "Noted."
    assert not raised.value.maybe_stored
    logging_only = create_runnable_with_message_history(
        FakeChatModel(), lambda session_id: history, on_save_error="log"
    )
    assert call(logging_only, "hi", S1).text == "Noted."


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
def test_foreign_history_that_takes_no_tool_messages(style: str) -> None:
    """A history that has the method, and refuses a message in it, is not told that it lacks the method."""

    class Careful(OfForms):
        def add_message(self, message: BaseMessage) -> None:
            if message.type == "ai":
                raise NotImplementedError
            self.messages = [*self.messages, message]

    chat = create_runnable_with_message_history(FakeChatModel(), lambda session_id: Careful([]))
    with pytest.raises(HistoryWriteError, match="saving the turn raised NotImplementedError") as raised:
        Styles(style)(chat, "hi", S1)
    assert raised.value.maybe_stored


def test_trim_messages_is_a_preprocessor(histories: Any) -> None:
    """LangChain's trim_messages fits as it is."""
    model = FakeChatModel()
    trimmer = trim_messages(max_tokens=2, token_counter=len, strategy="last", start_on="human")
    chat = create_runnable_with_message_history(model, histories, preprocessor=trimmer)
    for text in "abc":
        chat.invoke(text, S1)
    assert texts(model.calls[-1]) == ["b", "Noted.", "c"]


def test_history_size_bounds_the_view() -> None:
    """history_size of the factory bounds what the model sees, and never what is stored."""
    histories = SQLiteChatMessageHistory.factory(":memory:", history_size=2)
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, histories)
    for text in "abc":
        chat.invoke(text, S1)
    assert texts(model.calls[-1]) == ["b", "Noted.", "c"]
    assert len(list(histories("s1").iter_messages())) == 6


def test_streams_into_the_next_step(histories: Any) -> None:
    """In a sequence the chain streams on, and the turn is stored."""
    chat: Runnable[Any, str] = create_runnable_with_message_history(FakeChatModel(), histories) | StrOutputParser()
    list(chat.stream("I like tea.", S1))
    assert list(chat.stream("What do I like?", S1))[:6] == ["You ", "told ", "me: ", "I ", "like ", "tea."]
    assert len(histories("s1").messages) == 4


@pytest.mark.parametrize("asynchronous", [False, True])
def test_stream_that_is_no_generator(histories: Any, asynchronous: bool) -> None:
    """A runnable may stream from any iterator: one without close() is fine."""

    class Plain(RunnableLambda[Any, Any]):
        def stream(self, *args: Any, **kwargs: Any) -> Any:
            """A plain iterator."""
            return iter([AIMessageChunk(content="a"), AIMessageChunk(content="b")])

        def astream(self, *args: Any, **kwargs: Any) -> Any:
            """A plain async iterator."""

            class Chunks:
                def __init__(self) -> None:
                    self.chunks = iter("ab")

                def __aiter__(self) -> Any:
                    return self

                async def __anext__(self) -> AIMessageChunk:
                    for chunk in self.chunks:
                        return AIMessageChunk(content=chunk)
                    raise StopAsyncIteration

            return Chunks()

    async def consume(chat: Any) -> None:
        async for _ in chat.astream("hi", S1):
            pass

    chat = create_runnable_with_message_history(Plain(lambda _: "unused"), histories)
    asyncio.run(consume(chat)) if asynchronous else list(chat.stream("hi", S1))
    assert texts(histories("s1").messages) == ["hi", "ab"]


@pytest.mark.parametrize("turn_id", ["t", "x" * 512, "é" * 256], ids=len)
def test_partial_answer_and_retry(histories: Any, turn_id: str) -> None:
    """A stopped turn is stored under an id of its own, so that its retry is stored, too; ids of any length."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    config: Any = {"configurable": {"session_id": "s1", "turn_id": turn_id}}
    stream = chat.stream("What now?", config)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # a generator
    chat.invoke("What now?", config)
    assert texts(histories("s1").messages) == ["What now?", "You ", "What now?", "You have not told me that."]


def test_abort_is_saved_before_the_model_is_told(histories: Any) -> None:
    """The partial answer is stored before the model's stream is closed: closing may take long, or never end."""
    stored: list[int] = []

    def speak(inputs: Any) -> Any:
        try:
            yield from ("so ", "far ", "never read")
        finally:
            stored.append(len(histories("s1").messages))

    stream = create_runnable_with_message_history(RunnableGenerator(speak), histories).stream("hi", S1)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert stored == [2]


def test_input_from_a_previous_step(histories: Any) -> None:
    """A streamed input (transform) is gathered into one turn."""
    chat = RunnableLambda(lambda text: text.upper()) | create_runnable_with_message_history(FakeChatModel(), histories)
    list(chat.stream("hi", S1))
    assert texts(histories("s1").messages) == ["HI", "Noted."]


async def test_stream_events(histories: Any) -> None:
    """astream_events reports the model's tokens inside one run, and the turn is stored."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    events = [event async for event in chat.astream_events("hi", S1, version="v2")]
    assert events[0]["event"] == "on_chain_start"
    assert events[-1]["event"] == "on_chain_end"
    assert any(event["event"] == "on_chat_model_stream" for event in events)
    assert len({event["run_id"] for event in events if not event["parent_ids"]}) == 1
    assert texts(histories("s1").messages) == ["hi", "Noted."]


async def test_stream_events_abandoned(histories: Any) -> None:
    """Closing astream_events early stores the partial answer, too."""
    chat = create_runnable_with_message_history(FakeChatModel(delay=0.01), histories)
    await chat.ainvoke("I like green tea.", S1)
    events = chat.astream_events("What do I like?", S1, version="v2")
    async for event in events:
        if event["event"] == "on_chat_model_stream" and "told" in event["data"]["chunk"].text:
            break
    await events.aclose()  # type: ignore[attr-defined]  # a generator
    for _ in range(3000):  # older cores leave their inner generator to the event loop
        if len(histories("s1").messages) == 4:
            break
        await asyncio.sleep(0.02)
    assert histories("s1").messages[-1].response_metadata["memkit_status"] == "aborted"


class Recorder(BaseCallbackHandler):
    """Notes runs and custom events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.parents: list[Any] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Notes the event."""
        self.events.append((name, data))

    def on_chain_start(self, *args: Any, parent_run_id: Any = None, **kwargs: Any) -> None:
        """Notes whose child the run is."""
        self.parents.append(parent_run_id)


def test_traces_as_one_run(histories: Any) -> None:
    """A turn is one run with everything below it."""
    recorder = Recorder()
    chat = create_runnable_with_message_history(RunnableLambda(lambda _: "yes"), histories)
    chat.invoke("hi", {**S1, "callbacks": [recorder]})
    assert recorder.parents[0] is None
    assert all(recorder.parents[1:])


def test_failures_reach_callbacks(histories: Any) -> None:
    """A dropped turn and a failed save are sent to on_custom_event, without message content."""
    recorder = Recorder()

    def model(_: Any) -> str:
        histories("s1").clear()
        return "secret answer"

    chat = create_runnable_with_message_history(model, histories)
    chat.invoke("secret question", {**S1, "callbacks": [recorder]})
    ((name, data),) = recorder.events
    assert name == "memkit_dropped_turn"
    assert data["error"] == "StaleTurnError"
    assert "secret" not in str(data)


def test_listeners(histories: Any) -> None:
    """with_listeners works around the chain."""
    ended: list[Any] = []
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    chat.with_listeners(on_end=lambda run: ended.append(run.outputs)).invoke("hi", S1)
    assert len(ended) == 1


def test_history_is_visible_below(histories: Any) -> None:
    """Steps inside find the history in the config, as with LangChain's class; a nested chain uses its own."""
    seen: list[Any] = []

    def step(_: Any, config: Any) -> str:
        seen.append(config["configurable"]["message_history"])
        return "yes"

    inner = create_runnable_with_message_history(RunnableLambda(step), lambda session_id: histories("inner"))
    create_runnable_with_message_history(inner, histories).invoke("hi", S1)
    assert [h.session_id for h in seen] == ["inner"]
    assert len(histories("s1").messages) == len(histories("inner").messages) == 2


def test_misspelt_policies_are_refused(histories: Any) -> None:
    """A wrong word is an error when the chain is built."""
    for name in ("on_save_error", "on_model_error", "on_abort", "on_dropped_turn"):
        with pytest.raises(ConfigurationError, match=name):
            create_runnable_with_message_history(FakeChatModel(), histories, **{name: "riase"})
    with pytest.raises(ConfigurationError, match="get_session_history"):
        create_runnable_with_message_history(FakeChatModel(), histories("s1"))


def test_keys_need_a_dict(histories: Any) -> None:
    """String input where a key is set says so."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories, input_messages_key="input")
    with pytest.raises(ValueError, match="must be a dict"):
        chat.invoke("hi", S1)


def test_works_inside_assign(histories: Any) -> None:
    """The usual LCEL shapes compose around it."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    chain: Any = RunnablePassthrough.assign(answer=itemgetter("question") | chat | StrOutputParser())
    assert chain.invoke({"question": "hi"}, S1) == {"question": "hi", "answer": "Noted."}


def test_schemas(histories: Any) -> None:
    """Input schemas name the new input only; the output schema is the wrapped runnable's."""
    keyed = create_runnable_with_message_history(
        FakeChatModel(), histories, input_messages_key="input", history_messages_key="h"
    )
    assert set(keyed.get_input_schema().model_json_schema()["properties"]) == {"input"}
    assert keyed.get_output_schema().model_json_schema()["title"] == "RunnableWithChatHistoryOutput"
    assert [spec.id for spec in keyed.config_specs] == ["session_id"]


def graph(model: Any) -> Any:
    """A compiled graph over `messages`: a tool call, its result, and the model's answer."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("call", lambda _: {"messages": [AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])]})
    builder.add_node("tool", lambda _: {"messages": [ToolMessage("42", tool_call_id="1")]})
    builder.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    for start, end in ((START, "call"), ("call", "tool"), ("tool", "answer"), ("answer", END)):
        builder.add_edge(start, end)
    return builder.compile()


@pytest.mark.parametrize(
    "mode", ["invoke", "ainvoke", "updates", "values", "messages", "updates messages", "subgraphs"]
)
def test_langgraph_stores_each_message_once(histories: Any, mode: str) -> None:
    """A compiled graph over `messages` hands back the whole state: only what is new is stored, however it is run."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(graph(model), histories, input_messages_key="messages")

    def turn(text: str) -> None:
        value = {"messages": [HumanMessage(text)]}
        if mode == "invoke":
            chat.invoke(value, S1)
        elif mode == "ainvoke":
            asyncio.run(chat.ainvoke(value, S1))
        else:
            chosen: Any = {"stream_mode": mode.split() if " " in mode else mode}
            list(chat.stream(value, S1, **({"subgraphs": True} if mode == "subgraphs" else chosen)))

    turn("My name is Nemo.")
    turn("What is my name?")
    stored = histories("s1").messages
    assert [m.type for m in stored] == ["human", "ai", "tool", "ai"] * 2
    assert stored[-1].text == "You told me: My name is Nemo."
    assert len(list(histories("s1").iter_turns())) == 2


def test_what_is_no_memory_is_refused_when_the_chain_is_built(histories: Any) -> None:
    """A preprocessor among the memories, and a store in place of an extractor, are told by what they are."""
    with pytest.raises(ConfigurationError, match=r"memories\[0\] is a preprocessor: give it as preprocessor="):
        create_runnable_with_message_history(
            FakeChatModel(), histories, memories=[create_trim_preprocessor(max_tokens=99)]
        )
    store: Any = SQLiteKeyValueStore(":memory:")
    with pytest.raises(ConfigurationError, match=r"extractor must be a function .* not SQLiteKeyValueStore"):
        EntityMemory.factory(histories, store)
    store.close()
