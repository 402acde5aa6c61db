"""The role of notes and summaries, chosen by test: what we compose passes the request builders of three providers.

Nothing is sent. A system line in the middle is what the alternative would be, and is tried as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI

from langchain_memkit import (
    Memory,
    SQLiteChatMessageHistory,
    WordLlamaEmbeddings,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.messages.notes import Record, is_note, note_message
from langchain_memkit.runnables.rag import create_conversational_rag_chain

U1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
CALL = {"name": "look", "args": {"what": "tea"}, "id": "c1", "type": "tool_call"}


def openai(messages: list[BaseMessage]) -> tuple[str, list[str]]:
    """What the system is told, and who speaks in which order."""
    payload = ChatOpenAI(model="gpt-4o", api_key="x")._get_request_payload(messages)  # type: ignore[arg-type]
    system = [m["content"] for m in payload["messages"] if m["role"] == "system"]
    return "".join(system), [m["role"] for m in payload["messages"] if m["role"] != "system"]


def anthropic(messages: list[BaseMessage]) -> tuple[str, list[str]]:
    """The same of ChatAnthropic."""
    payload = ChatAnthropic(model="claude-sonnet-4-5", api_key="x")._get_request_payload(messages)  # type: ignore[call-arg,arg-type]
    return str(payload.get("system", "")), [m["role"] for m in payload["messages"]]


def google(messages: list[BaseMessage]) -> tuple[str, list[str]]:
    """The same of ChatGoogleGenerativeAI."""
    request = ChatGoogleGenerativeAI(model="gemini-2.5-flash", api_key="x")._prepare_request(messages)
    told = request["config"].system_instruction
    return "".join(part.text for part in told.parts) if told else "", [c.role for c in request["contents"]]


BUILDERS = [openai, anthropic, google]


class Notes(Memory):
    """Says one thing."""

    def load(self, query: str = "") -> list[BaseMessage]:
        """A note."""
        return [note_message([Record("Harrison likes machine learning.", about="Harrison")])]

    def save(self, messages: Any) -> None:
        """Nothing."""

    def clear(self) -> None:
        """Nothing."""


def shown_by(inputs: list[Any], **options: Any) -> list[list[BaseMessage]]:
    """What the model is given, turn by turn, with a summary and notes on the way."""
    shown: list[list[BaseMessage]] = []

    def model(value: Any) -> AIMessage:
        messages = value.to_messages() if hasattr(value, "to_messages") else list(value)
        shown.append(messages)
        asks = messages[-1].text == "Look it up."
        return AIMessage("", tool_calls=[CALL]) if asks else AIMessage(f"answer {len(shown)}")

    chain: Any = RunnableLambda(model)
    if prompt := options.pop("prompt", None):
        chain = prompt | chain
    chat = create_runnable_with_message_history(
        chain,
        SQLiteChatMessageHistory.factory(":memory:"),
        memories=[Notes()],
        preprocessor=create_history_preprocessor(
            lambda prompt: "They met.", max_tokens=4000, trigger=("messages", 4), keep=("messages", 2)
        ),
        **options,
    )
    for value in inputs:
        chat.invoke(value, U1)
    return shown


@pytest.mark.parametrize("build", BUILDERS)
def test_list_input(build: Callable[..., tuple[str, list[str]]]) -> None:
    """A system line in the first input, summaries, notes: the system is told that line alone, a human asks last."""
    turns = shown_by([[SystemMessage("Be brief."), HumanMessage("Hello.")], *(f"question {n}" for n in range(5))])
    assert any("They met." in m.text for m in turns[-1]), "there is a summary by then"
    for messages in turns:
        system, roles = build(messages)
        assert system == "Be brief."
        assert roles[0] == "user"
        assert roles[-1] == "user"
        assert any("Harrison likes machine learning." in m.text for m in messages)


@pytest.mark.parametrize("build", BUILDERS)
def test_prompt_with_history_key(build: Callable[..., tuple[str, list[str]]]) -> None:
    """The same through a prompt, where the note ends the history."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be brief."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    turns = shown_by(
        [{"input": f"question {n}"} for n in range(6)],
        prompt=prompt,
        input_messages_key="input",
        history_messages_key="chat_history",
    )
    for messages in turns:
        system, roles = build(messages)
        assert (system, roles[-1]) == ("Be brief.", "user")


@pytest.mark.parametrize("build", BUILDERS)
def test_results_follow_their_calls(build: Callable[..., tuple[str, list[str]]]) -> None:
    """A turn that brings tool results: calls and results stay together, whatever notes say."""
    turns = shown_by(["Hello.", "Look it up.", [ToolMessage("found", tool_call_id="c1")]])
    kinds = [m.type for m in turns[-1]]
    assert kinds[-2:] == ["ai", "tool"]
    build(turns[-1])


def test_why_not_the_system() -> None:
    """A system line in the middle is refused by one builder, and by another moved up front, with its authority."""
    scattered = [
        SystemMessage("Be brief."),
        HumanMessage("a"),
        AIMessage("b"),
        SystemMessage("note"),
        HumanMessage("c"),
    ]
    with pytest.raises(ValueError, match="system"):
        anthropic(scattered)
    assert "note" in google(scattered)[0]


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("options", [{}, {"n_questions": 2}])
def test_a_chain_with_documents(build: Callable[..., tuple[str, list[str]]], options: dict[str, int]) -> None:
    """What a RAG chain composes, with a history of questions alone as well: documents are quoted, a human asks last."""
    shown: list[list[BaseMessage]] = []

    def llm(messages: list[BaseMessage]) -> str:
        shown.append(messages)
        return "answer"

    store = InMemoryVectorStore(WordLlamaEmbeddings())
    store.add_documents([Document("Emmanuel Macron is the president of France, and 48 years old.", id="d1")])
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_conversational_rag_chain(llm, store.as_retriever(), histories, condense="weighted", **options)
    for question in ("Who is the president of France?", "How old is he?", "How old is he?"):
        chat.invoke({"input": question}, U1)
    assert len(shown) == 3
    for messages in shown:
        assert is_note(messages[-2])
        system, roles = build(messages)
        assert "quoted" in system
        assert roles[0] == roles[-1] == "user"
