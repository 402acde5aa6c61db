"""Chains whose prompt and keys do not fit together: what was meant is done, or it is refused or said."""

from __future__ import annotations

import asyncio
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.messages import BaseMessage, HumanMessage, get_buffer_string
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
    StringPromptTemplate,
)
from langchain_core.prompts.structured import StructuredPrompt
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.runnables.history import RunnableWithMessageHistory as CoreClass

from langchain_memkit import (
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    create_conversational_rag_chain,
    create_runnable_with_message_history,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.runnables import wiring
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1"}}
TOLD, ASKED, KNOWN = "My name is Nemo.", "What is my name?", "You told me: My name is Nemo."
PAST = [("human", TOLD), ("ai", "Noted.")]
STYLES = ["invoke", "ainvoke", "stream", "astream"]
PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
ROWS = re.findall(r"^\| `([\[\"].*?)` \| (?:`(.*?)`)? \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
HISTORY = MessagesPlaceholder("chat_history")
USUAL = ChatPromptTemplate([HISTORY, ("human", "{input}")])
BOTH = {"input_messages_key": "input", "history_messages_key": "chat_history"}
THEIRS = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")


class Kept(InMemoryChatMessageHistory):
    """LangChain's history in memory; the class itself warns that it is deprecated."""


class Listener(BaseCallbackHandler):
    """Keeps what is said of pasts that were not shown."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps the reason."""
        if name == "memkit_past_not_shown":
            assert data["turn_id"]
            self.heard.append(data["reason"])


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    """As in a process of its own."""
    wiring.warn_once.cache_clear()
    yield
    wiring.warn_once.cache_clear()


@pytest.fixture
def histories() -> Any:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


def said(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    """Who said what."""
    return [(message.type.replace("AIMessageChunk", "ai"), message.text) for message in messages]


async def run(chat: Any, value: Any, style: str = "invoke", config: Any = S1) -> str:
    """One turn in one of the four styles, as text."""
    if style == "stream":
        return "".join(chunk.text for chunk in chat.stream(value, config))
    if style == "astream":
        return "".join([chunk.text async for chunk in chat.astream(value, config)])
    answer = chat.invoke(value, config) if style == "invoke" else await chat.ainvoke(value, config)
    return str(answer.text)


def made(prompt: str, keys: str) -> tuple[Any, dict[str, Any]]:
    """Prompt and keys of a row."""
    source = eval(prompt)
    template = PromptTemplate.from_template(source) if isinstance(source, str) else ChatPromptTemplate(source)
    return template, eval(f"dict({keys})")


def value_of(prompt: Any, text: str, *, of_messages: str | None = None) -> dict[str, Any]:
    """A dict with all that a prompt wants of its caller."""
    given = {"input": text, **({"mood": "brief"} if "mood" in prompt.input_variables else {})}
    return {of_messages: [HumanMessage(text)], **given} if of_messages else given


# -- the table of docs/errors.md


def test_the_table_is_read() -> None:
    """Every row below the heading is one of the cases."""
    table = PAGE.split("## Chains that are wired wrongly")[1].split("|---|---|---|---|\n")[1].strip().splitlines()
    assert len(ROWS) == len(table) == 21


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("prompt", "keys", "outcome", "_"), ROWS)
async def test_the_function(
    prompt: str, keys: str, outcome: str, _: str, style: str, histories: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`create_runnable_with_message_history` does what the table says: it works, or names the way out."""
    template, options = made(prompt, keys)
    model = FakeChatModel()
    if outcome.startswith("refused: "):
        with pytest.raises(ConfigurationError) as raised:
            create_runnable_with_message_history(template | model, histories, **options)
        names = re.findall(r"`(.*?)`", outcome)
        assert names
        assert all(name in str(raised.value) for name in names)
        assert all(name in str(raised.value) for name in template.input_variables)
        return
    assert outcome.startswith("works")
    chat = create_runnable_with_message_history(template | model, histories, **options)
    key = chat.input_messages_key
    as_text = key is None or (not options and "mood" not in template.input_variables)
    for text in (TOLD, ASKED):
        value = text if as_text else value_of(template, text, of_messages=key if key == "messages" else None)
        answer = await run(chat, value, style)
    assert answer == KNOWN
    assert [m for m in said(model.calls[1]) if m[0] != "system"] == [*PAST, ("human", ASKED)]
    assert said(histories("s1").messages) == [*PAST, ("human", ASKED), ("ai", KNOWN)]
    assert caplog.messages == []


@THEIRS
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("prompt", "keys", "_", "outcome"), ROWS)
async def test_the_class(
    prompt: str, keys: str, _: str, outcome: str, style: str, histories: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`RunnableWithMessageHistory` gives the model what LangChain's class gives it, and says what the table says."""
    template, options = made(prompt, keys)
    model, other, kept, listener = FakeChatModel(), FakeChatModel(), Kept(), Listener()
    theirs = CoreClass(template | other, lambda session_id: kept, **options)
    with pytest.warns(UserWarning, match="Give|give|Use") if outcome.startswith("warns; ") else nullcontext():
        ours = RunnableWithMessageHistory(template | model, histories, **options)
    error = re.search(r"`(\w+Error)`", outcome)
    for chat in (theirs, ours):
        for text in (TOLD, ASKED):
            value: Any = (
                value_of(template, text, of_messages=options.get("input_messages_key"))
                if options
                else [HumanMessage(text)]
            )
            if options.get("input_messages_key") == "input":
                value["input"] = text
            with pytest.raises((TypeError, KeyError)) if error else nullcontext() as raised:
                await run(chat, value, style, {**S1, "callbacks": [listener]})
            assert error is None or raised is None or raised.typename == error[1]
    assert said([m for call in model.calls for m in call if "HumanMessage(" not in m.text]) == said(
        [m for call in other.calls for m in call if "HumanMessage(" not in m.text]
    )
    assert [len(call) for call in model.calls] == [len(call) for call in other.calls]
    assert said(histories("s1").messages) == said(kept.messages)
    assert listener.heard == caplog.messages == []  # the warning said it


# -- keys that are inferred


@pytest.mark.parametrize(
    "value",
    [
        "hi",
        HumanMessage("hi"),
        [HumanMessage("hi")],
        [("human", "hi")],
        {"input": "hi"},
        {"input": HumanMessage("hi")},
        {"input": [HumanMessage("hi")]},
        {"input": HumanMessage([{"type": "text", "text": "hi"}])},
        {"input": "hi", "chat_history": []},
        {"input": "hi", "more": 1},
    ],
    ids=repr,
)
async def test_inputs_with_inferred_keys(histories: Any, value: Any) -> None:
    """Text, messages and dicts are one human message to the model and in the store."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(USUAL | model, histories)
    assert (chat.input_messages_key, chat.history_messages_key) == ("input", "chat_history")
    await run(chat, value)
    await run(chat, value, "ainvoke")
    assert said(model.calls[1]) == [("human", "hi"), ("ai", "Noted."), ("human", "hi")]
    assert said(histories("s1").messages) == 2 * [("human", "hi"), ("ai", "Noted.")]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("value", "way"),
    [
        (HumanMessage([{"type": "text", "text": "hi"}, IMAGE]), r"put MessagesPlaceholder\('input'\)"),
        ([HumanMessage("a"), HumanMessage("b")], r"put MessagesPlaceholder\('input'\)"),
        ({"input": [HumanMessage("a"), HumanMessage("b")]}, r"put MessagesPlaceholder\('input'\)"),
        ({"input": "a", "chat_history": [HumanMessage("b")]}, "give input_messages_key='chat_history'"),
        ({"question": "a"}, "no key 'input'"),
    ],
    ids=repr,
)
async def test_inputs_that_a_prompt_cannot_show(histories: Any, value: Any, way: str) -> None:
    """They are refused with the way out, and nothing is called or stored: a prompt never shows a repr of messages."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(USUAL | model, histories)
    for style in STYLES:
        with pytest.raises(ValueError, match=way) as raised:
            await run(chat, value, style)
        assert "base64" not in str(raised.value)
    assert model.calls == histories("s1").messages == []


async def test_keys_that_are_given_stay(histories: Any) -> None:
    """Given keys take dicts alone, as LangChain's class; a message where the prompt shows text is shown as text."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(USUAL | model, histories, **BOTH)
    with pytest.raises(ValueError, match="must be a dict"):
        await run(chat, "hi")
    await run(chat, {"input": HumanMessage("hi"), "chat_history": [HumanMessage("replaced")]})
    assert said(model.calls[0]) == [("human", "hi")]


async def test_a_variable_named_role(histories: Any) -> None:
    """A dict with an input and a role is no message."""
    prompt = ChatPromptTemplate([("system", "You are a {role}."), HISTORY, ("human", "{input}")])
    for make in (create_runnable_with_message_history, RunnableWithMessageHistory):
        model = FakeChatModel()
        chat = make(prompt | model, histories, **BOTH)
        await run(chat, {"input": "hi", "role": "pirate"}, config={"configurable": {"session_id": make.__name__}})
        assert said(model.calls[0]) == [("system", "You are a pirate."), ("human", "hi")]


def shown(prompt: Any) -> Any:
    """Examples between the messages of a prompt."""
    one = ChatPromptTemplate([("human", "{q}"), ("ai", "{a}")])
    shots = FewShotChatMessagePromptTemplate(example_prompt=one, examples=[{"q": "2+2", "a": "4"}])
    return ChatPromptTemplate([("system", "As shown."), shots, *prompt.messages])


WRAPPED: dict[str, Any] = {
    "bind": lambda model: (USUAL | model).bind(stop=["x"]),
    "with_config": lambda model: USUAL.with_config(tags=["t"]) | model,
    "with_retry": lambda model: (USUAL | model).with_retry(),
    "with_fallbacks": lambda model: (USUAL | model).with_fallbacks([USUAL | model]),
    "a prompt with fallbacks": lambda model: USUAL.with_fallbacks([USUAL]) | model,
    "passthrough": lambda model: RunnablePassthrough() | USUAL | model,
    "assign": lambda model: (
        RunnablePassthrough.assign(day=lambda _: "Monday")
        | ChatPromptTemplate([("system", "On {day}."), *USUAL.messages])
        | model
    ),
    "assign, of what a person says": lambda model: (
        RunnablePassthrough.assign(context=itemgetter("input"))
        | ChatPromptTemplate([HISTORY, ("human", "{context}\n\n{input}")])
        | model
    ),
    "partial text": lambda model: (
        ChatPromptTemplate([("system", "On {day}."), *USUAL.messages]).partial(day="Monday") | model
    ),
    "partial messages": lambda model: (
        ChatPromptTemplate([("placeholder", "{examples}"), *USUAL.messages]).partial(
            examples=[("human", "2+2"), ("ai", "4")]
        )
        | model
    ),
    "partial past": lambda model: USUAL.partial(chat_history=[]) | model,
    "few-shot": lambda model: shown(USUAL) | model,
    "nested": lambda model: ChatPromptTemplate([("system", "Be brief."), USUAL]) | model,
    "a scratchpad": lambda model: ChatPromptTemplate([*USUAL.messages, ("placeholder", "{steps}")]) | model,
    "mustache": lambda model: ChatPromptTemplate([HISTORY, ("human", "{{input}}")], template_format="mustache") | model,
}


@pytest.mark.parametrize("name", WRAPPED)
async def test_keys_are_inferred_through_wrappers(name: str, histories: Any) -> None:
    """The prompt that takes the chain's own input is found, and its one place for the past and for the input."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(WRAPPED[name](model), histories)
    assert (chat.input_messages_key, chat.history_messages_key) == ("input", "chat_history")
    await run(chat, TOLD)
    assert await run(chat, ASKED, "ainvoke") == KNOWN


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
def test_a_structured_prompt(histories: Any) -> None:
    """It is a chat prompt like any other."""
    prompt = StructuredPrompt([*USUAL.messages], {"title": "Answer", "type": "object", "properties": {}})
    chat = create_runnable_with_message_history(Runnable.__or__(prompt, RunnableLambda(lambda _: "yes")), histories)
    assert (chat.input_messages_key, chat.history_messages_key) == ("input", "chat_history")
    with pytest.raises(ConfigurationError, match="Give history_messages_key='chat_history'"):
        create_runnable_with_message_history(prompt, histories, history_messages_key="history")


class Own(StringPromptTemplate):
    """A prompt that formats in a way of its own, as classic's custom agents do."""

    def format(self, **kwargs: Any) -> str:
        """The past as lines."""
        return f"{get_buffer_string(kwargs['history'])}\nHuman: {kwargs['input']}"


def chosen(model: Any) -> Any:
    """A choice of prompts, none of which shows the past."""
    return ChatPromptTemplate([("human", "{input}")]).configurable_alternatives(ConfigurableField(id="p")) | model


QUESTION = ChatPromptTemplate([("human", "{input}")])
LOOP = "{% for m in history %}{{ m.content }}{% endfor %}{{ input }}"
UNDECIDED: dict[str, Any] = {
    "a function": lambda model: lambda value: model,
    "a branch": lambda model: RunnableBranch((lambda _: False, model), QUESTION | model),
    "a dict in front": lambda model: {"input": itemgetter("input")} | QUESTION | model,
    "a later prompt": lambda model: RunnableLambda(lambda value: value) | QUESTION | model,
    "a parallel": lambda model: RunnableParallel(answer=QUESTION | model),
    "alternatives": chosen,
    "its own format": lambda model: Own(input_variables=["history", "input"]) | model,
    "jinja": lambda model: PromptTemplate.from_template(LOOP, template_format="jinja2") | model,
    "the past is made text": lambda model: (
        RunnablePassthrough.assign(history=lambda x: get_buffer_string(x["history"]))
        | PromptTemplate.from_template("{history} {input}")
        | model
    ),
    "the past is used on the way": lambda model: (
        RunnablePassthrough.assign(context=lambda x: str(len(x["history"])))
        | ChatPromptTemplate([("human", "{context} {input}")])
        | model
    ),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_cannot_be_looked_into_decides_nothing(name: str, histories: Any) -> None:
    """No key is inferred, nothing is refused, and the class does not warn."""
    chain = UNDECIDED[name](FakeChatModel())
    options = {"input_messages_key": "input", "history_messages_key": "history"}
    for make in (create_runnable_with_message_history, RunnableWithMessageHistory):
        chat = make(chain, histories, **options)
        assert (chat.input_messages_key, chat.history_messages_key) == ("input", "history")


SHOTS = FewShotPromptTemplate(
    examples=[], example_prompt=PromptTemplate.from_template("{q}"), suffix="{input}", input_variables=["input"]
)


@pytest.mark.parametrize(
    ("chain", "options", "way"),
    [
        (RunnablePassthrough.assign(a=lambda x: 1) | PromptTemplate.from_template("{a}"), {}, "input_messages_key="),
        (RunnablePassthrough.assign(chat_history=lambda x: []) | USUAL, {}, "input_messages_key='input'"),
        (RunnablePassthrough.assign(chat_history=lambda x: []) | USUAL, {"input_messages_key": "input"}, "repr"),
        (USUAL, {"input_messages_key": "question"}, "no 'question'"),
        (
            USUAL,
            {"input_messages_key": "chat_history", "history_messages_key": "chat_history"},
            "but not the new input",
        ),
        (ChatPromptTemplate([("system", "Be brief.")]), {}, "takes no variables, and has no place"),
        (SHOTS, {}, "has no place for the past"),
        (USUAL.with_fallbacks([USUAL]), {"history_messages_key": "past"}, "Give history_messages_key='chat_history'"),
    ],
)
def test_refusals(chain: Any, options: dict[str, Any], way: str, histories: Any) -> None:
    """What cannot work is refused when the chain is built; each would have failed or lost the past in a call."""
    with pytest.raises(ConfigurationError, match=way):
        create_runnable_with_message_history(chain | FakeChatModel(), histories, **options)


def test_the_class_warns_where_it_is_made(histories: Any) -> None:
    """The warning names the caller's line, and Python shows it once for each such line."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for _ in range(3):
            RunnableWithMessageHistory(USUAL | FakeChatModel(), histories)
    assert [Path(warning.filename) for warning in heard] == [Path(__file__)]
    assert "Give input_messages_key='input' and history_messages_key='chat_history'" in str(heard[0].message)


async def test_subclasses_of_the_class_work(histories: Any) -> None:
    """A subclass with a constructor of its own is the class, warnings included."""

    class Mine(RunnableWithMessageHistory):
        def __init__(self, chain: Any, **kwargs: Any) -> None:
            super().__init__(chain, histories, **kwargs)

    chat = Mine(USUAL | FakeChatModel(), **BOTH)
    await run(chat, {"input": TOLD})
    assert await run(chat, {"input": ASKED}) == KNOWN
    with pytest.warns(UserWarning, match="Give input_messages_key='input'"):
        Mine(USUAL | FakeChatModel())


# -- the first turns with a past are watched


def forgetful(model: Any) -> Any:
    """A function that gives its model the question alone."""
    return RunnableLambda(lambda messages: model.invoke(messages[-1:]), name="forgetful")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("make", [create_runnable_with_message_history, RunnableWithMessageHistory])
async def test_a_past_that_no_model_sees(
    make: Any, style: str, histories: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In the second turn it is said, with the way out, to the log and to callbacks; then never again."""
    chat, listener = make(forgetful(FakeChatModel()), histories), Listener()
    config = {**S1, "callbacks": [listener]}
    await run(chat, TOLD, style, config)
    assert listener.heard == caplog.messages == []
    for _ in range(3):
        assert await run(chat, ASKED, style, config) == "You have not told me that."
    assert listener.heard == ["not shown"]
    assert len(caplog.messages) == 1
    assert "history_messages_key" in caplog.messages[0]
    assert TOLD not in caplog.text
    assert len(histories("s1").messages) == 8


@pytest.mark.parametrize("style", STYLES)
async def test_a_chain_for_each_request(style: str, histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Each tells its own callbacks; the log has one line for all chains with these keys."""
    listener = Listener()

    def other(messages: list[BaseMessage]) -> Any:
        return FakeChatModel().invoke(messages[-1:])

    for make in (lambda: forgetful(FakeChatModel()), lambda: RunnableLambda(other).with_config(tags=["other"])):
        for _ in range(4):
            chat = create_runnable_with_message_history(make(), lambda session_id: histories(session_id))
            await run(chat, TOLD, style, {**S1, "callbacks": [listener]})
    assert listener.heard == ["not shown"] * 7
    assert len(caplog.messages) == 1
    assert "none of its text was found in what a model of this turn was given" in caplog.messages[0]


@pytest.mark.parametrize(
    "chain",
    [
        lambda model: PromptTemplate.from_template("{x}") | model,
        lambda model: lambda messages: model.invoke(str(messages)),
        lambda model: lambda messages: FakeListLLM(responses=["yes"]).invoke(f"{messages}"),
    ],
)
async def test_a_past_as_a_repr(chain: Any, histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A past that reaches a model as Python writes lists of messages is said as well."""
    chat = create_runnable_with_message_history(lambda _: coerce_to_runnable(chain(FakeChatModel())), histories)
    listener = Listener()
    for text in (TOLD, ASKED, ASKED):
        chat.invoke(text, {**S1, "callbacks": [listener]})
    assert listener.heard == ["repr"]
    assert "get_buffer_string" in caplog.messages[0]


@pytest.mark.parametrize(
    "chain",
    [
        lambda model: model,
        lambda model: lambda messages: model.invoke(get_buffer_string(messages)),
        lambda model: lambda messages: model.invoke("\n".join(f"> {m.type}: {m.text[:9]}" for m in messages)),
        lambda model: lambda messages: FakeListLLM(responses=["yes"]).invoke(get_buffer_string(messages)),
        lambda model: lambda messages: (model.invoke(messages), model.invoke(messages[-1:]))[1],  # one that rewrites
        lambda model: lambda messages: (model.invoke(str(messages)), model.invoke(messages))[1],  # one that sorts
    ],
)
async def test_a_past_that_is_shown(chain: Any, histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """In whatever form a model is given it, and in whichever call: nothing is said, and nothing is watched any more."""
    handlers: list[int] = []
    wrapped = coerce_to_runnable(chain(FakeChatModel()))

    def counting(messages: Any, config: RunnableConfig) -> Any:
        handlers.append(len(config["callbacks"].handlers))
        return wrapped

    chat = create_runnable_with_message_history(counting, histories)
    for text in (TOLD, ASKED, ASKED):
        chat.invoke(text, S1)
    assert caplog.messages == []
    assert handlers == [1, 1, 1], "the recorder of the trace alone"
    assert not chat.bound.watched


async def test_a_turn_that_cannot_tell(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A turn without a model says nothing, nor does a past that the question repeats; the next one can tell."""
    listener, model = Listener(), FakeChatModel()

    def answer(messages: list[BaseMessage]) -> Any:
        return "Stopped." if messages[-1].text == "stop" else model.invoke(messages[-1:])

    chat = create_runnable_with_message_history(answer, histories)
    config = {**S1, "callbacks": [listener]}
    for text in ("stop", "stop", "stop, I said: Stopped."):
        chat.invoke(text, config)
    assert listener.heard == []
    chat.invoke("And now?", config)
    assert listener.heard == ["not shown"]


async def test_a_turn_that_fails_tells_nothing(histories: Any) -> None:
    """The model's error is what its caller sees; the next turn is watched."""
    model, listener = FakeChatModel(), Listener()
    chat = create_runnable_with_message_history(forgetful(model), histories)
    config = {**S1, "callbacks": [listener]}
    chat.invoke(TOLD, config)
    model.error = ValueError("down")
    with pytest.raises(ValueError, match="down"):
        chat.invoke(ASKED, config)
    assert listener.heard == []
    model.error = None
    chat.invoke(ASKED, config)
    assert listener.heard == ["not shown"]


def test_what_memories_recall_is_no_past(histories: Any) -> None:
    """A first turn with a note has no past."""
    listener = Listener()
    rules = RunnableLambda(lambda query: [Document("Tea is at five.", metadata={"source": "house.md"})])
    chat = create_runnable_with_message_history(forgetful(FakeChatModel()), histories, memories=[rules])
    chat.invoke("Hello!", {**S1, "callbacks": [listener]})
    assert listener.heard == []


def test_a_history_that_is_not_shown_on_purpose(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a preprocessor leaves out is not missed."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=lambda messages: [])
    for _ in range(3):
        chat.invoke(TOLD, S1)
    assert caplog.messages == []


# -- a conversation that is sent again


@THEIRS
@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("native", [True, False])
def test_a_conversation_resent_with_some_ids(native: bool, style: str, histories: Any) -> None:
    """With ids up to the new question it is stored once; where questions have none it is whole, as with LangChain."""
    kept: dict[str, Any] = {}

    def history_of(session_id: str) -> Any:
        return kept.setdefault(session_id, InMemoryChatMessageHistory())

    def talk(make: Any, source: Any, session: str, first: HumanMessage) -> tuple[list[str], list[str]]:
        model, sent = FakeChatModel(), [first]
        chat, config = make(model, source), {"configurable": {"session_id": session}}
        for question in ("What is my name?", ""):
            answer = chat.invoke(sent, config) if style == "invoke" else asyncio.run(chat.ainvoke(sent, config))
            sent = [*sent, answer, HumanMessage(question)]
        assert sent[0] == first
        return [m.text for m in model.calls[1]], [m.text for m in source(session).messages]

    ours: Any = histories if native else history_of
    first = "My name is Nemo."
    expected = talk(CoreClass, history_of, "theirs", HumanMessage(first))
    assert expected[0] == [first, "Noted.", first, "Noted.", "What is my name?"]
    assert talk(create_runnable_with_message_history, ours, "s1", HumanMessage(first)) == expected
    once = [first, "Noted.", "What is my name?"]
    assert talk(create_runnable_with_message_history, ours, "s2", HumanMessage(first, id="q1")) == (
        once,
        [*once, f"You told me: {first}"],
    )


# -- the RAG chain


def test_a_rag_prompt_that_names_the_past_otherwise(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is warned of; a prompt without the past is meant, and nothing is said of it."""
    retriever = RunnableLambda(lambda question: [Document("Tea is at five.")])
    prompt = ChatPromptTemplate([("placeholder", "{history}"), ("human", "{context} {input}")])
    with pytest.warns(UserWarning, match=r"\['history'\], and none is 'chat_history'") as heard:
        create_conversational_rag_chain(FakeChatModel(), retriever, histories, prompt=prompt)
    assert Path(heard[0].filename) == Path(__file__)
    without = ChatPromptTemplate([("human", "{context} {input}")])
    chat = create_conversational_rag_chain(FakeChatModel(), retriever, histories, prompt=without, condense="off")
    with caplog.at_level(logging.INFO, logger="langchain_memkit"):
        for text in (TOLD, ASKED):
            chat.invoke({"input": text}, S1)
    assert caplog.messages == []


PLAIN = ChatPromptTemplate([("human", "{input}")])
BEHIND = ChatPromptTemplate([("human", "{input}"), MessagesPlaceholder("history")])


@pytest.mark.parametrize(
    ("prompt", "keys", "there", "missing"),
    [
        (PLAIN, {}, ["input_messages_key=", "history_messages_key='chat_history'"], ["move it"]),
        (PLAIN, {"input_messages_key": "input"}, ["history_messages_key='chat_history'"], ["give input_messages_key="]),
        (PLAIN, BOTH, ["Use a ChatPromptTemplate with MessagesPlaceholder('chat_history')"], ["give", "move it"]),
        (BEHIND, {}, ["'history' is for the past, move it before the question", "input_messages_key="], []),
        (BEHIND, {"input_messages_key": "input"}, ["move it before the question"], ["give input_messages_key="]),
    ],
)
def test_advice_knows_what_was_given(
    prompt: Any, keys: dict[str, Any], there: list[str], missing: list[str], histories: Any
) -> None:
    """Keys that are given are not asked for again, and a place behind the question is named."""
    with pytest.raises(ConfigurationError) as raised:
        create_runnable_with_message_history(prompt | FakeChatModel(), histories, **keys)
    assert all(words in str(raised.value) for words in there)
    assert not any(words in str(raised.value) for words in missing)
