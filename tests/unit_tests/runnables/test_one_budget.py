"""One budget: whatever a call of the model holds is within `max_tokens`, in random chains, RAG chains and agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pydantic import Field

from langchain_memkit import (
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
)
from langchain_memkit.base import Memory
from langchain_memkit.errors import ConfigurationError, ContextTooLargeError
from langchain_memkit.messages.notes import Record, note_message
from langchain_memkit.messages.results import shortened
from langchain_memkit.messages.tokens import approximate_tokens, count_tool_tokens
from langchain_memkit.runnables.rag import INSTRUCTION, context_message
from testkit.conversations import refused
from testkit.examples import examples

U1: Any = {"configurable": {"session_id": "s1", "thread_id": "s1", "user_id": "u1"}}
WORDS = {"latin": "word ", "cjk": "記憶の話", "code": "f(x)={y};"}
IMAGE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}


class Model(BaseChatModel):
    """Keeps what it is given, with its tools, and follows a script of tool calls."""

    calls: list[Any] = Field(default_factory=list)
    script: list[AIMessage] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "model"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """Bind tools as chat models do."""
        return self.bind(tools=list(tools), **kwargs)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.calls.append((list(messages), list(kwargs.get("tools") or ())))
        answer = self.script.pop(0) if self.script else AIMessage("Yes.")
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def held(self) -> list[int]:
        """The tokens of each call, schemas and all."""
        return [approximate_tokens(messages) + count_tool_tokens(tools) for messages, tools in self.calls]


class Heard(BaseCallbackHandler):
    """Keeps by how much what must be shown was over the budget."""

    def __init__(self) -> None:
        self.over: list[int] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keep one."""
        if name == "memkit_context":
            self.over.append(data["over"])


class Notes(Memory):
    """Returns the same records for every question."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.records = [Record(f"a{i}" + " fact" * size, about="a") for i, size in enumerate(sizes)]

    read_only = True

    def load(self, query: str = "") -> list[BaseMessage]:
        """Return a note of all records."""
        return [note_message(self.records)]

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Save nothing."""

    def clear(self) -> None:
        """Clear nothing."""


def tool_of(words: int) -> Any:
    """A tool with a description of some length."""

    def look(at: int) -> str:
        return RESULTS[at]

    look.__doc__ = "Looks something up. " + "Carefully. " * words
    return look


RESULTS: dict[int, str] = {}


@dataclass
class Case:
    """A chain or an agent with a history."""

    door: str
    is_async: bool
    text: str
    max_tokens: int
    summary: bool
    mode: str
    on_overflow: str
    system: int
    tool: int | None
    turns: list[tuple[int, int]]
    images: bool
    notes: list[int]
    documents: list[int]
    question: int
    loop: list[int] = field(default_factory=list)

    def words(self, n: int) -> str:
        """A text of n words."""
        return WORDS[self.text] * n

    @property
    def tools(self) -> list[Any]:
        """The tools of the model."""
        return [] if self.tool is None else [tool_of(self.tool)]

    @property
    def asked(self) -> str:
        """The question."""
        return "Tell me " + self.words(self.question)

    def preprocessor(self) -> Any:
        """The preprocessor, or none for `max_tokens=` in one word."""
        if self.summary:
            mode: Any = self.mode
            summarizer = RunnableLambda(lambda prompt: "They talked.")
            policy: Any = self.on_overflow
            return create_history_preprocessor(summarizer, max_tokens=self.max_tokens, mode=mode, on_overflow=policy)
        policy = self.on_overflow
        return create_trim_preprocessor(self.max_tokens, on_overflow=policy)

    def least(self) -> int:
        """The tokens of what must be shown in any case: with the longest of a loop's unseen results as one line."""
        shown: list[BaseMessage] = [HumanMessage(self.asked)]
        if self.system:
            shown.append(SystemMessage(self.words(self.system)))
        if self.door == "rag":
            shown += [SystemMessage(INSTRUCTION), context_message(self.found())]
        if self.loop:
            calls = [(step(i), shortened(result(i))) for i in range(len(self.loop))]
            shown += max(calls, key=approximate_tokens)
        return approximate_tokens(shown) + count_tool_tokens(self.tools)

    def found(self) -> list[Document]:
        """What the retriever finds."""
        return [Document(self.words(n), id=str(i)) for i, n in enumerate(self.documents)]


def step(at: int) -> AIMessage:
    """A call of the tool."""
    return AIMessage("", tool_calls=[{"name": "look", "args": {"at": at}, "id": f"c{at}"}])


def result(at: int) -> ToolMessage:
    """What the tool gives back."""
    return ToolMessage(RESULTS[at], name="look", tool_call_id=f"c{at}")


def runnable_of(case: Case, histories: Any, model: Model) -> tuple[Any, Any]:
    """The chain or agent, and its input."""
    options: Any = {"preprocessor": case.preprocessor()}
    if case.notes:
        options["memories"] = [Notes(case.notes)]
    if case.door == "agent":
        middleware = MessageHistoryMiddleware(histories, read_results=False, **options)
        system = case.words(case.system) or None
        agent = create_agent(model, case.tools, middleware=[middleware], system_prompt=system)
        return agent, {"messages": [HumanMessage(case.asked)]}
    bound = model.bind_tools(case.tools) if case.tools else model
    if case.door == "rag":
        chain = create_conversational_rag_chain(
            bound, RunnableLambda(lambda query: case.found()), histories, condense="off", **options
        )
        return chain, {"input": case.asked}
    if case.door == "model":
        return create_runnable_with_message_history(bound, histories, **options), case.asked
    system = [("system", case.words(case.system).replace("{", "{{").replace("}", "}}"))] if case.system else []
    prompt = ChatPromptTemplate.from_messages([*system, MessagesPlaceholder("chat_history"), ("human", "{input}")])
    chain = create_runnable_with_message_history(prompt | bound, histories, **options)
    return chain, {"input": case.asked}


cases = st.builds(
    Case,
    door=st.sampled_from(["model", "prompt", "prompt", "rag", "agent", "agent", "agent"]),
    is_async=st.booleans(),
    text=st.sampled_from(["latin", "latin", "cjk", "code"]),
    max_tokens=st.integers(100, 600) | st.integers(600, 4000),
    summary=st.booleans(),
    mode=st.sampled_from(["inline", "inline", "background"]),
    on_overflow=st.sampled_from(["keep", "keep", "raise"]),
    system=st.integers(0, 60) | st.integers(0, 400),
    tool=st.none() | st.integers(0, 60),
    turns=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 120)), max_size=14),
    images=st.booleans(),
    notes=st.lists(st.integers(0, 60), max_size=8),
    documents=st.lists(st.integers(0, 120), max_size=4),
    question=st.integers(0, 120),
    loop=st.lists(st.integers(0, 400) | st.integers(0, 4000), max_size=6),
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
def test_no_call_is_over_the_budget(case: Case) -> None:
    """Where what must be shown fits, every call does; else it is refused before it, or told."""
    if case.door in ("model", "rag"):
        case.system = 0
    if case.door != "agent" or case.tool is None:
        case.loop = []
    RESULTS.clear()
    RESULTS.update({i: f"{i} " + case.words(n) for i, n in enumerate(case.loop)})
    heard, model = Heard(), Model(script=[step(i) for i in range(len(case.loop))])
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        past: list[BaseMessage] = []
        for asked, answered in case.turns:
            content: Any = case.words(asked) or "Hm."
            if case.images:
                content = [{"type": "text", "text": content}, IMAGE]
            past += [HumanMessage(content), AIMessage(case.words(answered) or "Hm.")]
        if past:
            histories("s1", "u1").add_messages(past)
        runnable, value = runnable_of(case, histories, model)
        config: Any = {**U1, "callbacks": [heard], "recursion_limit": 100}
        refusal: Exception | None = None
        try:
            if case.is_async:
                asyncio.run(runnable.ainvoke(value, config))
            else:
                runnable.invoke(value, config)
        except ContextTooLargeError as error:
            refusal = error
    fits = case.least() <= case.max_tokens
    event(f"{case.door}, {'fits' if fits else 'does not fit'}")
    if refusal is not None:
        assert case.on_overflow == "raise"
        assert not fits
    for (messages, _), held in zip(model.calls, model.held(), strict=True):
        assert not refused(messages)
        if held > case.max_tokens:
            assert not fits
            assert case.on_overflow == "keep"
            assert max(heard.over) > 0


# -- what a chain's prompt holds besides

SYSTEM = "Be kind. " * 100
PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("placeholder", "{chat_history}"), ("human", "{input}")])


@pytest.fixture
def histories() -> Any:
    """Histories of which one is long."""
    made = SQLiteChatMessageHistory.factory(":memory:")
    for n in range(60):
        made("s1", "u1").add_messages([HumanMessage(f"Question {n}? " + "why " * 20), AIMessage("So. " * 20)])
    return made


def test_max_tokens_in_one_word(histories: Any) -> None:
    """The system prompt and the tools bound to the model are counted; the history gets what is left, and uses it."""
    model = Model()
    chat = create_runnable_with_message_history(PROMPT | model.bind_tools([tool_of(9)]), histories, max_tokens=1000)
    for text in ("One?", "Two?"):
        chat.invoke({"input": text}, U1)
    assert all(900 < held <= 1000 for held in model.held())


def test_max_tokens_and_a_preprocessor(histories: Any) -> None:
    """Both say what is left out: one of them is refused, with the way out."""
    trim = create_trim_preprocessor(100)
    with pytest.raises(ConfigurationError, match=r"give one of them, as in preprocessor=create_trim_preprocessor"):
        create_runnable_with_message_history(Model(), histories, max_tokens=100, preprocessor=trim)


def test_nothing_of_the_users_is_called_twice(histories: Any) -> None:
    """A prompt with a function among its variables, or behind a step that makes some, is measured and not formatted."""
    called: list[str] = []

    def today() -> str:
        called.append("today")
        return "Be kind. " * 100

    def made(value: Any) -> str:
        called.append("made")
        return "Be kind. " * 100

    template = [("system", "{rule}"), ("placeholder", "{chat_history}"), ("human", "{input}")]
    partial = ChatPromptTemplate.from_messages(template).partial(rule=today)
    assigned = RunnablePassthrough.assign(rule=RunnableLambda(made)) | ChatPromptTemplate.from_messages(template)
    for chain in (partial, assigned):
        model = Model()
        keys: Any = {"input_messages_key": "input", "history_messages_key": "chat_history"}
        chat = create_runnable_with_message_history(chain | model, histories, max_tokens=1000, **keys)
        called.clear()
        for text in ("One?", "Two?"):
            chat.invoke({"input": text}, U1)
        assert len(called) == 2
        first, second = model.held()
        assert first > 1000 >= second > 900


def test_documents_of_a_rag_chain(histories: Any) -> None:
    """They share the budget; all are shown, and of the past what fits beside them."""
    model = Model()
    found = [Document("fact " * 100, id=str(n)) for n in range(4)]
    chat = create_conversational_rag_chain(
        model, RunnableLambda(lambda query: found), histories, condense="off", max_tokens=1500
    )
    chat.invoke({"input": "What is known?"}, U1)
    assert 1400 < model.held()[0] <= 1500
    assert model.calls[0][0][-2].text.count("fact " * 99) == 4
