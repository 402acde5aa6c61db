"""`BaseChatMessageHistory` and `InMemoryChatMessageHistory` by our name: LangChain's own, and what comes after them."""

from __future__ import annotations

import doctest
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from pydantic import ValidationError

import langchain_memkit
from langchain_memkit import RunnableWithMessageHistory, SQLiteChatMessageHistory, _compat
from langchain_memkit.testing import FakeChatModel

# core deprecates its own class; who makes one is told so
pytestmark = pytest.mark.filterwarnings("ignore:The class `InMemoryChatMessageHistory` was deprecated")
TALK: list[BaseMessage] = [HumanMessage("My name is Nemo."), AIMessage("Noted."), SystemMessage("Be brief.")]
LINES = "Human: My name is Nemo.\nAI: Noted.\nSystem: Be brief."


def after_langchains() -> ModuleType:
    """The module as it is where core has no chat histories: executed once more, with their import refused."""
    name = "langchain_core.chat_history"
    spec = importlib.util.spec_from_file_location("without_cores", _compat.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to refuse an import
    sys.modules[spec.name] = module  # pydantic looks up annotations there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name], sys.modules[spec.name]
        if before is not None:
            sys.modules[name] = before
    return module


AFTER = after_langchains()


@pytest.fixture(params=["the public names", "after LangChain's"])
def names(request: Any) -> Any:
    """Where an app gets the two classes from: today, and where core has them no longer."""
    return langchain_memkit if request.param == "the public names" else AFTER


def kinds(names: Any) -> list[Any]:
    """Histories that people write: `add_message` alone, `add_messages` alone, and LangChain's own."""

    class OneByOne(names.BaseChatMessageHistory):
        def __init__(self) -> None:
            self.messages: list[BaseMessage] = []

        def add_message(self, message: BaseMessage) -> None:
            self.messages.append(message)

        def clear(self) -> None:
            self.messages = []

    class AtOnce(names.BaseChatMessageHistory):
        def __init__(self) -> None:
            self.rows: list[BaseMessage] = []

        @property
        def messages(self) -> list[BaseMessage]:
            return list(self.rows)

        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            self.rows.extend(messages)

        def clear(self) -> None:
            self.rows.clear()

    return [OneByOne(), AtOnce(), names.InMemoryChatMessageHistory()]


def test_every_verb(names: Any) -> None:
    """Each verb of a history follows from what its class defines."""
    for history in kinds(names):
        history.add_user_message("My name is Nemo.")
        history.add_ai_message(AIMessage("Noted."))
        history.add_message(TALK[2])
        assert history.messages == TALK
        assert str(history) == LINES
        history.add_messages(TALK[:2])
        history.add_user_message(HumanMessage("And I live in Sydney."))
        history.add_ai_message("Good.")
        assert [m.text for m in history.messages[3:]] == [
            "My name is Nemo.",
            "Noted.",
            "And I live in Sydney.",
            "Good.",
        ]
        history.clear()
        assert history.messages == []


async def test_every_async_verb(names: Any) -> None:
    """The async twins do the same."""
    for history in kinds(names):
        await history.aadd_messages(TALK[:2])
        await history.aadd_messages(TALK[2:])
        assert await history.aget_messages() == TALK
        await history.aclear()
        assert await history.aget_messages() == history.messages == []


def test_what_a_subclass_must_have(names: Any) -> None:
    """Without `clear` there is no object; without a way to add, adding says what is missing."""

    class Nothing(names.BaseChatMessageHistory):
        pass

    class Silent(names.BaseChatMessageHistory):
        messages: list[BaseMessage] = []  # noqa: RUF012  # as people write it

        def clear(self) -> None:
            pass

    with pytest.raises(TypeError, match="clear"):
        Nothing()
    for add in (Silent().add_message, Silent().add_user_message, lambda text: Silent().add_messages([text])):
        with pytest.raises(NotImplementedError, match="add_messages"):
            add(HumanMessage("hi"))


def test_the_history_in_memory_is_a_model(names: Any) -> None:
    """It takes messages by name, checks them, copies and dumps; two objects share nothing."""
    made = names.InMemoryChatMessageHistory(messages=TALK[:2])
    made.add_message(TALK[2])
    other = names.InMemoryChatMessageHistory()
    assert (made.messages, other.messages, len(TALK)) == (TALK, [], 3)
    assert isinstance(made, names.BaseChatMessageHistory)
    assert made == made.model_copy(deep=True) != other
    assert [message["content"] for message in made.model_dump()["messages"]] == [m.text for m in TALK]
    with pytest.raises(ValidationError):
        names.InMemoryChatMessageHistory(messages="hello")


def test_other_bases_get_their_arguments() -> None:
    """A class with a second base is constructed as LangChain's newest lets it be."""

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    class History(AFTER.BaseChatMessageHistory, Named):  # type: ignore[name-defined,misc]  # made at run time
        def clear(self) -> None:
            """Nothing to remove."""

    assert History(name="n").name == "n"


@pytest.fixture
def app(names: Any) -> Any:
    """A chain as LangChain's guides write it, annotations and dictionary included."""
    store: dict[str, Any] = {}

    def get_session_history(session_id: str) -> names.BaseChatMessageHistory:
        return store.setdefault(session_id, names.InMemoryChatMessageHistory())

    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{input}")])
    return RunnableWithMessageHistory(
        prompt | FakeChatModel(), get_session_history, input_messages_key="input", history_messages_key="chat_history"
    )


def test_an_app_survives_by_its_import_lines(app: Any) -> None:
    """An app that keeps LangChain's histories in a dictionary remembers, and keeps sessions apart."""
    one, two = ({"configurable": {"session_id": name}} for name in ("s1", "s2"))
    app.invoke({"input": "My name is Nemo."}, one)
    assert app.invoke({"input": "What is my name?"}, one).text == "You told me: My name is Nemo."
    assert "Nemo" not in app.invoke({"input": "What is my name?"}, two).text


async def test_an_async_app_survives_by_its_import_lines(app: Any) -> None:
    """The same, invoked and streamed on an event loop."""
    config: Any = {"configurable": {"session_id": "s1"}}
    await app.ainvoke({"input": "My name is Nemo."}, config)
    streamed = [chunk.text async for chunk in app.astream({"input": "What is my name?"}, config)]
    assert "".join(streamed) == "You told me: My name is Nemo."


@pytest.mark.parametrize("cls", [AFTER.BaseChatMessageHistory, AFTER.InMemoryChatMessageHistory])
def test_examples_run(cls: Any) -> None:
    """The examples in the docstrings of what comes after LangChain's classes print what they say."""
    (found,) = [test for test in doctest.DocTestFinder(recurse=False).find(cls, globs={}) if test.examples]
    assert doctest.DocTestRunner().run(found).failed == 0


def test_isinstance_of_our_histories() -> None:
    """Our histories are instances of the public name; the one in memory is no history of ours."""
    assert isinstance(SQLiteChatMessageHistory(":memory:", "s1"), langchain_memkit.BaseChatMessageHistory)
    assert issubclass(langchain_memkit.MongoDBChatMessageHistory, langchain_memkit.BaseChatMessageHistory)
    assert not issubclass(langchain_memkit.InMemoryChatMessageHistory, SQLiteChatMessageHistory)


@pytest.mark.needs_retired_classes
def test_they_are_langchains_own_while_it_has_them() -> None:
    """So an isinstance check of either name holds for objects of the other."""
    from langchain_core import chat_history

    assert langchain_memkit.BaseChatMessageHistory is chat_history.BaseChatMessageHistory
    assert langchain_memkit.InMemoryChatMessageHistory is chat_history.InMemoryChatMessageHistory
    assert AFTER.BaseChatMessageHistory is not chat_history.BaseChatMessageHistory
