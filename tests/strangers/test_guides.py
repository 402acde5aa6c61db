"""Chains in the shapes of LangChain's guides: LangChain's class, ours and the function do the same with them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add, itemgetter
from typing import Any

import pytest
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    get_buffer_string,
    trim_messages,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.runnables import (
    ConfigurableField,
    ConfigurableFieldSpec,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.history import RunnableWithMessageHistory as CoreClass
from langchain_core.tools import tool

from langchain_memkit import (
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import FakeChatModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # classic's agents import langchain-community where it is there
    from langchain_classic.agents import AgentExecutor, create_tool_calling_agent

# what ours is compared with says that it is deprecated
pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")

S1 = {"configurable": {"session_id": "s1"}}
TOLD, ASKED = "My name is Nemo.", "What is my name?"
BOTH = {"input_messages_key": "input", "history_messages_key": "chat_history"}
WITH_HISTORY = ChatPromptTemplate([("system", "Be brief."), MessagesPlaceholder("chat_history"), ("human", "{input}")])
CONDENSE = ChatPromptTemplate(
    [("system", "Make it a question that stands alone."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
)
ANSWER = ChatPromptTemplate(
    [("system", "Answer from: {context}"), MessagesPlaceholder("chat_history"), ("human", "{input}")]
)


class ToolModel(FakeChatModel):
    """The fake, for chains that bind tools."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """Binds their names."""
        return self.bind(tools=[each.name for each in tools])


class Kept(InMemoryChatMessageHistory):
    """LangChain's history in memory; the class itself warns that it is deprecated."""


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return word


@dataclass
class Guide:
    """A chain, what it is wrapped with, and what it is asked."""

    chain: Callable[[FakeChatModel], Any]
    options: dict[str, Any] = field(default_factory=dict)
    ask: Callable[[str], Any] = lambda text: {"input": text}
    config: dict[str, Any] = field(default_factory=lambda: S1)


DOWN = FakeChatModel(error=ValueError("down"))
RETRIEVER = RunnableLambda(lambda question: [Document(f"About: {question}", id="d1")])
TRIMMER = trim_messages(max_tokens=4, token_counter=len, strategy="last", start_on="human", include_system=True)


def joined(documents: list[Document]) -> str:
    """Documents as text."""
    return "\n".join(document.page_content for document in documents)


def lines(key: str) -> Any:
    """What `key` holds, as text."""
    return RunnablePassthrough.assign(**{key: lambda value: get_buffer_string(value[key])})


def condensed(model: FakeChatModel, key: str = "input") -> Any:
    """The question, rewritten where there is a past."""
    rewritten = CONDENSE | model | StrOutputParser()
    return RunnableLambda(lambda value: rewritten if value.get("chat_history") else value[key])


def one_question(model: FakeChatModel) -> Any:
    """Only what rewrites the question is told of the past."""
    answer = ChatPromptTemplate([("system", "Answer from: {context}"), ("human", "{question}")])
    return (
        RunnablePassthrough.assign(question=condensed(model))
        | RunnablePassthrough.assign(context=itemgetter("question") | RETRIEVER | joined)
        | answer
        | model
    )


def examples() -> Any:
    """A few-shot prompt between instruction and history."""
    shots = FewShotChatMessagePromptTemplate(
        example_prompt=ChatPromptTemplate([("human", "{q}"), ("ai", "{a}")]), examples=[{"q": "2+2?", "a": "4"}]
    )
    return ChatPromptTemplate(
        [("system", "As shown."), shots, MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )


def branches(model: FakeChatModel) -> Any:
    """A choice between two prompts."""
    formal = ChatPromptTemplate([("system", "Be formal."), *WITH_HISTORY.messages[1:]])
    return RunnableBranch((lambda value: "please" in value["input"], formal | model), WITH_HISTORY | model)


def routed(model: FakeChatModel) -> Any:
    """A function that hands back the chain to run."""

    def route(value: dict[str, Any]) -> Any:
        return (WITH_HISTORY if value["topic"] == "chat" else CONDENSE) | model

    return RunnableParallel(
        topic=lambda _: "chat", input=itemgetter("input"), chat_history=itemgetter("chat_history")
    ) | RunnableLambda(route)


def executor(model: FakeChatModel) -> Any:
    """Classic's agent with tools, which keeps its own scratchpad."""
    prompt = ChatPromptTemplate(
        [
            ("system", "Use your tools."),
            ("placeholder", "{chat_history}"),
            ("human", "{input}"),
            ("placeholder", "{agent_scratchpad}"),
        ]
    )
    return AgentExecutor(
        agent=create_tool_calling_agent(ToolModel(calls=model.calls), [look_up], prompt), tools=[look_up]
    )


def retrieval(model: FakeChatModel) -> Any:
    """Classic's retrieval chain with a retriever that knows the history."""
    retriever = create_history_aware_retriever(model, RETRIEVER, CONDENSE)
    return create_retrieval_chain(retriever, create_stuff_documents_chain(model, ANSWER))


def alternatives(model: FakeChatModel) -> Any:
    """A model that the config may change."""
    field = ConfigurableField(id="llm")
    return WITH_HISTORY | model.configurable_alternatives(field, default_key="this", other=FakeChatModel())


def string_model(model: FakeChatModel) -> Any:
    """A text prompt and a text model, the past as lines."""
    prompt = PromptTemplate.from_template("{chat_history}\nHuman: {input}\nAI:")
    return lines("chat_history") | prompt | FakeListLLM(responses=["Noted.", "Nemo."])


def plain(text: str) -> Any:
    """The input as messages."""
    return [HumanMessage(text)]


def keyed(key: str, **more: Any) -> Callable[[str], Any]:
    """The input as messages under a key, with other values."""
    return lambda text: {key: [HumanMessage(text)], **more}


def in_language(text: str) -> Any:
    """The input with what the prompt takes besides."""
    return {"input": text, "language": "English"}


MESSAGES = ChatPromptTemplate([("system", "Be brief."), MessagesPlaceholder("messages")])
LANGUAGE = ChatPromptTemplate([("system", "Answer in {language}."), MessagesPlaceholder("messages")])
SPECS = [
    ConfigurableFieldSpec(id=name, annotation=str, name=name, default="", is_shared=True)
    for name in ("user_id", "conversation_id")
]

GUIDES: dict[str, Guide] = {
    "chatbot: a model": Guide(lambda model: model, ask=plain),
    "chatbot: a string": Guide(lambda model: model, ask=lambda text: text),
    "chatbot: a prompt for the whole input": Guide(lambda model: MESSAGES | model, ask=plain),
    "chatbot: with a language": Guide(
        lambda model: LANGUAGE | model,
        {"input_messages_key": "messages"},
        keyed("messages", language="English"),
    ),
    "chatbot: trimmed before the prompt": Guide(
        lambda model: RunnablePassthrough.assign(messages=itemgetter("messages") | TRIMMER) | LANGUAGE | model,
        {"input_messages_key": "messages"},
        keyed("messages", language="English"),
    ),
    "message history: history key": Guide(lambda model: WITH_HISTORY | model, BOTH),
    "message history: optional place": Guide(
        lambda model: ChatPromptTemplate([("placeholder", "{chat_history}"), ("human", "{input}")]) | model, BOTH
    ),
    "message history: other variables": Guide(
        lambda model: ChatPromptTemplate([("system", "In {language}."), *WITH_HISTORY.messages[1:]]) | model,
        BOTH,
        in_language,
    ),
    "message history: filled variables": Guide(
        lambda model: (
            ChatPromptTemplate([("system", "On {day}."), *WITH_HISTORY.messages[1:]]).partial(day="Monday") | model
        ),
        BOTH,
    ),
    "message history: messages out": Guide(
        lambda model: RunnableParallel({"output_message": model}), {"output_messages_key": "output_message"}, plain
    ),
    "message history: one key for all": Guide(
        lambda model: itemgetter("input_messages") | model,
        {"input_messages_key": "input_messages"},
        keyed("input_messages"),
    ),
    "message history: a list out": Guide(
        lambda model: model | RunnableLambda(lambda message: [message, AIMessage("Anything else?")]), ask=plain
    ),
    "message history: two ids": Guide(
        lambda model: WITH_HISTORY | model,
        {**BOTH, "history_factory_config": SPECS},
        config={"configurable": {"user_id": "u1", "conversation_id": "c1"}},
    ),
    "message history: a message as input": Guide(
        lambda model: ChatPromptTemplate([MessagesPlaceholder("chat_history"), MessagesPlaceholder("input")]) | model,
        BOTH,
        keyed("input"),
    ),
    "memory: text out": Guide(lambda model: WITH_HISTORY | model | StrOutputParser(), BOTH),
    "memory: trimmed under its key": Guide(
        lambda model: (
            RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | TRIMMER) | WITH_HISTORY | model
        ),
        BOTH,
    ),
    "memory: trimmed messages": Guide(lambda model: TRIMMER | model, ask=plain),
    "memory: an instruction by a function": Guide(
        lambda model: RunnableLambda(lambda messages: [SystemMessage("Be brief."), *messages]) | model, ask=plain
    ),
    "memory: text of the past": Guide(string_model, BOTH),
    "few-shot": Guide(lambda model: examples() | model, BOTH),
    "fallbacks: of the chain": Guide(
        lambda model: (WITH_HISTORY | FakeChatModel(error=ValueError("down"))).with_fallbacks([WITH_HISTORY | model]),
        BOTH,
    ),
    "fallbacks: of the model": Guide(lambda model: WITH_HISTORY | DOWN.with_fallbacks([model]), BOTH),
    "retry: of the chain": Guide(lambda model: (WITH_HISTORY | model).with_retry(), BOTH),
    "retry: of the model": Guide(lambda model: WITH_HISTORY | model.with_retry(), BOTH),
    "config: named and tagged": Guide(
        lambda model: (WITH_HISTORY.with_config(run_name="ask") | model).with_config(tags=["t"]), BOTH
    ),
    "config: alternatives": Guide(alternatives, BOTH),
    "templates: mustache": Guide(
        lambda model: (
            ChatPromptTemplate(
                [("system", "Be brief."), MessagesPlaceholder("chat_history"), ("human", "{{input}}")],
                template_format="mustache",
            )
            | model
        ),
        BOTH,
    ),
    "question answering: classic's retrieval chain": Guide(retrieval, {**BOTH, "output_messages_key": "answer"}),
    "question answering: rewritten in a pipe": Guide(
        lambda model: RunnablePassthrough.assign(context=condensed(model) | RETRIEVER | joined) | ANSWER | model, BOTH
    ),
    "question answering: only the rewriting prompt has the past": Guide(one_question, BOTH),
    "question answering: a dict in front": Guide(
        lambda model: (
            {
                "context": itemgetter("input") | RETRIEVER | joined,
                "input": itemgetter("input"),
                "chat_history": itemgetter("chat_history"),
            }
            | ANSWER
            | model
        ),
        BOTH,
    ),
    "question answering: sources beside the answer": Guide(
        lambda model: (
            RunnablePassthrough.assign(context=itemgetter("input") | RETRIEVER | joined)
            | RunnablePassthrough.assign(answer=ANSWER | model | StrOutputParser())
        ),
        {**BOTH, "output_messages_key": "answer"},
    ),
    "routing: a branch": Guide(branches, BOTH),
    "routing: a function": Guide(routed, BOTH),
    "tools: bound": Guide(lambda model: WITH_HISTORY | ToolModel(calls=model.calls).bind_tools([look_up]), BOTH),
    "tools: classic's executor": Guide(executor, {**BOTH, "output_messages_key": "output"}),
}


def bare(value: Any) -> Any:
    """What was said, without ids and kinds of chunk."""
    if isinstance(value, BaseMessage):
        return value.type.removesuffix("MessageChunk").lower(), value.text
    if isinstance(value, Document):
        return value.page_content
    if isinstance(value, dict):
        return {key: bare(held) for key, held in value.items()}
    return [bare(held) for held in value] if isinstance(value, (list, tuple)) else value


async def run(chat: Any, style: str, value: Any, config: Any) -> Any:
    """One turn in one of the four styles; a stream's chunks are added up."""
    if style == "invoke":
        return bare(chat.invoke(value, config))
    if style == "ainvoke":
        return bare(await chat.ainvoke(value, config))
    chunks = list(chat.stream(value, config)) if style == "stream" else [c async for c in chat.astream(value, config)]
    try:
        return bare(reduce(add, chunks))
    except TypeError:  # plain dicts
        return bare(chunks)


async def conversation(make: Any, guide: Guide, style: str, histories: Any) -> tuple[Any, ...]:
    """What came out of two turns, what the models were given, and what was stored."""
    model = FakeChatModel()
    chat = make(guide.chain(model), histories, **guide.options)
    outputs = [await run(chat, style, guide.ask(text), guide.config) for text in (TOLD, ASKED)]
    return outputs, bare(model.calls), bare(histories(**ids(guide)).messages)


def ids(guide: Guide) -> dict[str, str]:
    """The ids that `get_session_history` is called with."""
    return dict(guide.config["configurable"])


def kept() -> Any:
    """LangChain's histories, a function of what the guide names its ids."""
    known: dict[tuple[str, ...], Kept] = {}

    def one(session_id: str) -> Kept:
        return known.setdefault((session_id,), Kept())

    def two(user_id: str, conversation_id: str) -> Kept:
        return known.setdefault((user_id, conversation_id), Kept())

    return one, two


@pytest.mark.parametrize("style", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("name", GUIDES)
async def test_guides(name: str, style: str, caplog: pytest.LogCaptureFixture) -> None:
    """LangChain's class, ours and the function answer, ask their models and store alike; none refuses or warns."""
    guide = GUIDES[name]
    place = len(guide.config["configurable"]) - 1
    theirs = await conversation(CoreClass, guide, style, kept()[place])
    outputs, calls, stored = theirs
    assert len(outputs) == 2
    assert stored[0] == ("human", TOLD)
    assert len(stored) == 2 * len(stored[: stored.index(("human", ASKED))])
    assert not calls or any(("human", TOLD) in call and ("human", ASKED) in call for call in calls)
    with caplog.at_level(logging.INFO, logger="langchain_memkit"):
        for make in (RunnableWithMessageHistory, create_runnable_with_message_history):
            with SQLiteChatMessageHistory.factory(":memory:") as factory:
                named = (factory, lambda user_id, conversation_id: factory(conversation_id, user_id))[place]
                assert await conversation(make, guide, style, named) == theirs, make
    assert [r.getMessage() for r in caplog.records if r.name == "langchain_memkit"] == []
