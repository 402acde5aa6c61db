"""`explain_turn` of a RAG chain and of an agent: it shows what the model is then really given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError

from langchain_memkit import (
    CondenseQuestionRetriever,
    KeyValueMemory,
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_last_turn,
    explain_turn,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.explain import TurnTrace, aexplain_turn
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
BOOKS = KeyValueMemory({"The Skeleton Songs": "Poems by Arabella Dusk."})
FERRY = Document("The ferry to Skye leaves at nine.", id="ferry", metadata={"source": "times.md"})
TEMPLATE = ChatPromptTemplate.from_messages([("system", "Records: {context}"), ("human", "{chat_history} {input}")])


@pytest.fixture
def histories() -> Iterator[Any]:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


async def explained(style: str, runnable: Any, value: Any) -> TurnTrace:
    """What `explain_turn` or its twin says."""
    return explain_turn(runnable, value, S1) if style == "sync" else await aexplain_turn(runnable, value, S1)


def texts(seen: TurnTrace) -> list[str]:
    """What it says that the model is given."""
    return [message.text for message in seen.messages]


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("prompt", [None, TEMPLATE], ids=["default prompt", "template"])
async def test_rag(histories: Any, style: str, prompt: Any) -> None:
    """Documents, instruction and rewritten question are in it, nothing is stored, and the model is given the same."""
    model = FakeChatModel()
    rewriter: Any = RunnableLambda(lambda messages: AIMessage("When does the ferry to Skye arrive?"))
    retriever = CondenseQuestionRetriever(retriever=RunnableLambda(lambda question: [FERRY]), llm=rewriter)
    rag = create_conversational_rag_chain(model, retriever, histories, prompt=prompt)
    rag.invoke({"input": "When does the ferry to Skye leave?"}, S1)
    calls = len(model.calls)
    seen = await explained(style, rag, {"input": "And when does it arrive?"})
    assert len(model.calls) == calls
    assert len(histories("s1", "u1").messages) == 2
    assert seen.searched_for == "When does the ferry to Skye arrive?"
    assert f"searched for: {seen.searched_for}" in str(seen)
    assert seen.searched_for in seen._repr_html_()
    rag.invoke({"input": "And when does it arrive?"}, S1)
    assert texts(seen) == [message.text for message in model.calls[-1]]
    if prompt is None:
        found = seen.recalled[0]
        assert (found.memory, found.about, found.source, found.text) == (
            "retriever",
            "[1]",
            "times.md",
            FERRY.page_content,
        )
        assert [m.part for m in seen.messages] == ["system", "history", "history", "documents", "input"]


async def test_rag_stands_alone(histories: Any) -> None:
    """A question that goes as it is needs no word about it."""
    rag = create_conversational_rag_chain(FakeChatModel(), lambda question: [FERRY], histories)
    seen = explain_turn(rag, {"input": "When does the ferry to Skye leave?"}, S1)
    assert seen.searched_for is None
    assert "searched for" not in str(seen)


def test_rag_nested(histories: Any) -> None:
    """Of two retrievers that rewrite, one around the other, it names the question that the chain was told of."""
    model = FakeChatModel()
    past = histories("s2", "u1")
    past.add_messages([HumanMessage("Tell me of Skye."), AIMessage("An island.")])
    find: Any = RunnableLambda(lambda question: [FERRY])
    inner = CondenseQuestionRetriever(retriever=find, history=past, mode="weighted")
    rewriter: Any = RunnableLambda(lambda messages: AIMessage("When does it get there?"))
    outer = CondenseQuestionRetriever(retriever=inner, llm=rewriter)
    rag = create_conversational_rag_chain(model, outer, histories)
    rag.invoke({"input": "When does the ferry to Skye leave?"}, S1)
    seen = explain_turn(rag, {"input": "And when does it arrive?"}, S1)
    assert seen.searched_for == rag.invoke({"input": "And when does it arrive?"}, S1)["standalone_question"]


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_agent(histories: Any, style: str) -> None:
    """The transcript through the preprocessor, what memories recall, the new input: as the agent's model gets it."""
    model = FakeChatModel()
    options: Any = {"preprocessor": create_trim_preprocessor(200), "memories": [BOOKS]}
    middleware = MessageHistoryMiddleware(histories, **options)
    agent = create_agent(model, [], middleware=[middleware])
    for i in range(20):
        agent.invoke({"messages": [("user", f"It is day {i} at sea, and the wind is fair.")]}, S1)
    calls, stored = len(model.calls), len(histories("s1", "u1").messages)
    value = {"messages": [("user", "Who wrote The Skeleton Songs?")]}
    seen = await explained(style, agent, value)
    assert (len(model.calls), len(histories("s1", "u1").messages)) == (calls, stored)
    assert seen.recalled[0].text == "Poems by Arabella Dusk."
    assert seen.dropped > 0
    assert seen.max_tokens is not None
    assert sum(seen.tokens.values()) <= seen.max_tokens
    agent.invoke(value, S1)
    assert texts(seen) == [message.text for message in model.calls[-1]]


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_agent_stores_nothing(histories: Any, style: str) -> None:
    """Older messages in the input are shown, and not taken into the transcript by a look."""
    model = FakeChatModel()
    middleware = MessageHistoryMiddleware(histories, preprocessor=create_trim_preprocessor(60))
    agent = create_agent(model, [], middleware=[middleware])
    agent.invoke({"messages": [("user", "It rains.")]}, S1)
    talk = [HumanMessage("I am Nemo."), AIMessage("Hello!"), HumanMessage("Who am I?")]
    seen = await explained(style, agent, {"messages": talk})
    assert len(histories("s1", "u1").messages) == 2
    assert [message.part for message in seen.messages] == ["history"] * 4 + ["input"]
    agent.invoke({"messages": talk}, S1)
    assert texts(seen) == [message.text for message in model.calls[-1]]


def test_agent_wrong(histories: Any) -> None:
    """The middleware is not what is called, and says so; what is no input of an agent fails as it does in a run."""
    middleware = MessageHistoryMiddleware(histories)
    model = FakeChatModel()
    with pytest.raises(ConfigurationError, match="what create_agent returned, not its middleware"):
        explain_turn(middleware, {"messages": "hi"}, S1)  # type: ignore[arg-type]  # wrong on purpose
    agent: Any = create_agent(model, [], middleware=[middleware])
    with pytest.raises(InvalidUpdateError):
        explain_turn(agent, "hello", S1)
    assert model.calls == []


def test_agent_options(histories: Any) -> None:
    """A user that tools need is asked for; a look inside another turn is no part of that turn."""
    notes = KeyValueMemory.factory(SQLiteKeyValueStore(":memory:"))
    with_tools = MessageHistoryMiddleware(histories, memories=[notes], tools=True)
    with pytest.raises(ConfigurationError, match="user_id"):
        explain_turn(
            create_agent(FakeChatModel(), [], middleware=[with_tools]),
            {"messages": "hi"},
            {"configurable": {"session_id": "s1"}},
        )
    plain = create_agent(FakeChatModel(), [], middleware=[MessageHistoryMiddleware(histories)])

    def look(messages: Any, config: Any) -> list[HumanMessage]:
        with pytest.raises(ConfigurationError, match="stored twice"):  # a run of it would be refused as well
            explain_turn(plain, {"messages": "hi"}, config)
        seen = explain_turn(plain, {"messages": "hi"}, {"configurable": {"session_id": "s2", "user_id": "u1"}})
        return [HumanMessage(f"{len(seen.messages)} shown")]

    chat = create_runnable_with_message_history(RunnableLambda(look) | FakeChatModel(), histories)
    assert chat.invoke("look", S1).text == "Noted."
    assert [m.text for m in histories("s1", "u1").messages] == ["look", "Noted."]
    traced = explain_last_turn(chat, S1)
    assert traced is not None
    assert [[m.text for m in call.messages] for call in traced.calls] == [["1 shown"]], (
        "a dry run's call is not its own"
    )


def tide(port: str) -> str:
    """Tell when the tide is high."""
    return f"At noon in {port}."


def test_agent_tools(histories: Any) -> None:
    """The schemas of an agent's tools are counted, and no tool runs; a later call of a real turn shows its result."""
    call = {"name": "tide", "args": {"port": "Oban"}, "id": "c1"}
    model = FakeChatModel(responses=[AIMessage("", tool_calls=[call]), "At noon."])
    agent = create_agent(model, [tide], system_prompt="Be kind.", middleware=[MessageHistoryMiddleware(histories)])
    value = {"messages": [("user", "When is high tide in Oban?")]}
    seen = explain_turn(agent, value, S1)
    assert [(m.part, m.role) for m in seen.messages] == [("system", "system"), ("input", "human")]
    assert seen.tokens["tools"] == seen.calls[0].tool_tokens > 20
    assert "tide" not in seen.ran
    assert model.calls == []
    agent.invoke(value, S1)
    traced = explain_last_turn(agent, S1)
    assert traced is not None
    assert [c.purpose for c in traced.calls] == ["answer", "answer"]
    assert texts(seen) == [m.text for m in traced.calls[0].messages]
    assert [(m.part, m.role, m.text) for m in traced.messages[2:]] == [
        ("input", "ai", '[calls tide({"port": "Oban"})]'),
        ("input", "tool", "At noon in Oban."),
    ]
    assert traced.calls[1].tool_tokens == seen.tokens["tools"]


def checkpoints(saver: InMemorySaver) -> list[str]:
    """The ids of all checkpoints, and what is pending in them."""
    return [f"{c.config['configurable']['checkpoint_id']} {c.pending_writes}" for c in saver.list(None)]


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("place", ["alone", "bound", "in a chain", "in a chain with a history"])
async def test_no_checkpoint_is_written(histories: Any, style: str, place: str) -> None:
    """A graph with a checkpointer is read and not written to, wherever a chain pipes it."""
    model, saver = FakeChatModel(), InMemorySaver()
    graph: Any = create_agent(model, [], checkpointer=saver)
    config: Any = {"configurable": {**S1["configurable"], "thread_id": "t1"}}
    await graph.ainvoke({"messages": "My name is Nemo."}, config)
    before, calls = checkpoints(saver), len(model.calls)
    value: Any = {"messages": [HumanMessage("What is my name?")]}
    app: Any = graph
    match place:
        case "bound":
            app = graph.with_config(tags=["t"]).with_retry()
        case "in a chain":
            app = graph | RunnableLambda(lambda state: state["messages"][-1].text)
        case "in a chain with a history":
            inner = RunnableLambda(lambda messages: {"messages": messages[-1:]}) | graph
            answer = RunnableLambda(lambda state: state["messages"][-1])
            app = create_runnable_with_message_history(inner | answer, histories) | StrOutputParser()
            value = "What is my name?"
    seen = explain_turn(app, value, config) if style == "sync" else await aexplain_turn(app, value, config)
    assert texts(seen) == ["My name is Nemo.", "Noted.", "What is my name?"]
    assert (checkpoints(saver), len(model.calls)) == (before, calls)
    assert list(histories.list_sessions("u1")) == []
    await app.ainvoke(value, config)  # the graph is its own again
    assert len(checkpoints(saver)) > len(before)
    assert texts(seen) == [m.text for m in model.calls[-1]]


def test_agent_long_loop(histories: Any) -> None:
    """What of the run itself outgrows the budget is counted as dropped; what is a summary is not called input."""
    fits = create_history_preprocessor(lambda prompt: "Talk of the sea.", max_tokens=300)
    middleware = MessageHistoryMiddleware(histories, preprocessor=fits)
    agent = create_agent(FakeChatModel(), [], middleware=[middleware])
    for i in range(20):
        agent.invoke({"messages": [("user", f"It is day {i} at sea, and the wind is fair.")]}, S1)
    loop: list[Any] = [HumanMessage("Look it all up.")]
    for i in range(6):
        loop.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": f"c{i}"}]))
        loop.append(ToolMessage(f"{i} " + "long " * 40, tool_call_id=f"c{i}"))
    seen = explain_turn(agent, {"messages": loop}, S1)
    assert seen.tokens["summary"] > 0
    shown = sum(message.part == "input" for message in seen.messages)
    assert 1 <= shown < 13
    assert f"{13 - shown} of the run's own messages are left out, since they outgrow the budget" in seen.notes
    assert seen.dropped >= 13 - shown


def test_rag_parts(histories: Any) -> None:
    """Instruction and documents are beside the budget; of an input of several messages each is input."""
    large = Document("word " * 3000, id="large")
    rag = create_conversational_rag_chain(FakeChatModel(), lambda question: [large], histories, max_tokens=1000)
    asked = [HumanMessage("I ask of Skye."), AIMessage("Yes?"), HumanMessage("When does the ferry leave?")]
    seen = explain_turn(rag, {"input": asked}, S1)
    assert [message.part for message in seen.messages] == ["system", "input", "input", "documents", "input"]
    assert seen.max_tokens == 1000
    system, documents = seen.tokens["system"], seen.tokens["documents"]
    over = sum(seen.tokens.values()) - 1000
    assert documents > over > 0
    assert seen.notes == [
        f"{over:,} more than the budget, which does not count what the chain adds (system {system}, documents "
        f"{documents:,}): see reserve_tokens="
    ]
    ending = ChatPromptTemplate.from_messages(
        [("placeholder", "{chat_history}"), ("human", "{input}"), ("system", "Records: {context}")]
    )
    rag = create_conversational_rag_chain(FakeChatModel(), lambda question: [FERRY], histories, prompt=ending)
    rag.invoke({"input": "When does the ferry to Skye leave?"}, S1)
    seen = explain_turn(rag, {"input": "Where does it go?"}, S1)
    assert [message.part for message in seen.messages] == ["history", "history", "input", "system"]


def test_scores_are_plain(histories: Any) -> None:
    """What a reranker gives as numpy's number is plain data in the note, which graphs and histories store."""
    scored = Document("Tea at five.", metadata={"relevance_score": np.float32(0.5)})
    bad = Document("No tea.", metadata={"relevance_score": float("nan"), "score": True})
    find: Any = RunnableLambda(lambda question: [scored, bad])
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[find])
    seen = explain_turn(chat, "When is tea?", S1)
    assert [(type(record.score), record.score) for record in seen.recalled] == [(float, 0.5), (type(None), None)]
    assert json.loads(json.dumps(seen.to_dict()))["recalled"][0]["score"] == 0.5


def test_over_budget(histories: Any) -> None:
    """If what has to be shown does not fit, the explanation says by how much."""
    fits = create_history_preprocessor(lambda prompt: "Talk of the weather.", max_tokens=120)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=fits, memories=[BOOKS])
    seen = explain_turn(chat, "Who wrote The Skeleton Songs? " * 20, S1)
    assert seen.max_tokens is not None
    over = sum(seen.tokens.values()) - seen.max_tokens
    assert over > 0
    assert f"{over:,} more than the budget: what has to be shown does not fit" in seen.notes
    assert seen.tokens["notes"] == 0
    assert "1 of 1 recalled records do not fit into the budget and are left out" in seen.notes
