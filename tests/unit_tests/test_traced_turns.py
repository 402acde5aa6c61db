"""Random chains and agents: the trace of a turn, and a dry run of it, show what a recording model is then given."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import (
    CondenseQuestionRetriever,
    KeyValueMemory,
    MessageHistoryMiddleware,
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_last_turn,
    explain_turn,
)
from langchain_memkit.explain import TurnTrace, aexplain_turn
from langchain_memkit.testing import FakeChatModel
from testkit.examples import examples

FERRY = Document("The ferry to Skye leaves at nine.", id="ferry", metadata={"source": "times.md"})
SUMMARIES = ("summarization", "middleware")  # the purpose of the middleware's calls, with its mark or without
SUMMARIZE = "<role>"  # how langchain's prompt for summaries begins
ASKED = ["My name is Nemo.", "What is my name?", "Who wrote The Skeleton Songs?", "When does the ferry leave?", "And?"]


@tool
def tide(port: str) -> str:
    """Tell when the tide is high."""
    return f"At noon in {port}."


class Case:
    """A random app with everything that could be written to."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # no secret
        self.kind = self.dice.choice(["model", "prompt", "text prompt", "wrong", "steps", "rag", "agent", "agent"])
        self.histories = SQLiteChatMessageHistory.factory(":memory:")
        self.notes = SQLiteKeyValueStore(":memory:")
        self.summaries = SQLiteKeyValueStore(":memory:")
        self.saver = InMemorySaver() if self.kind == "agent" and self.dice.random() < 0.6 else None
        self.with_tools = self.kind == "agent" and self.dice.random() < 0.5
        self.model = FakeChatModel()
        self.prepared: list[list[BaseMessage]] = []  # what models that prepare the answer were given
        self.summarizes = False  # whether there is such a model
        self.config: Any = {"configurable": {"session_id": "s1", "user_id": "u1", "thread_id": "s1"}}
        self.app = self._app()

    def _prepare(self, answer: str) -> Any:
        model = FakeChatModel(responses=[answer] * 1000)
        self.prepared, self.summarizes = model.calls, True
        return model

    def _options(self) -> dict[str, Any]:
        dice, options = self.dice, dict[str, Any]()
        match dice.choice(["none", "trim", "summary", "background"]):
            case "trim":
                options["preprocessor"] = create_trim_preprocessor(dice.choice([40, 90, 400]))
            case "summary" | "background" as mode:
                options["preprocessor"] = create_history_preprocessor(
                    self._prepare("Talk of the sea."),
                    max_tokens=dice.choice([120, 300]),
                    store=self.summaries,
                    mode="inline" if mode == "summary" else "background",
                )
        memories: list[Any] = []
        if dice.random() < 0.5:
            memories.append(KeyValueMemory({"The Skeleton Songs": "Poems by Arabella Dusk."}))
        if dice.random() < 0.5:
            memories.append(KeyValueMemory.factory(self.notes))
        if dice.random() < 0.4:
            memories.append(RunnableLambda(lambda question: [FERRY]))
        return {**options, "memories": memories}

    def _app(self) -> Any:
        dice, model, options = self.dice, self.model, self._options()
        system = "You are kind. " * dice.choice([1, 40])
        placed = ChatPromptTemplate.from_messages(
            [("system", system), ("placeholder", "{chat_history}"), ("human", dice.choice(["{input}", "Q: {input}"]))]
        )
        if self.kind == "rag":
            condensed = self._prepare("When does the ferry to Skye leave?") if dice.random() < 0.6 else None
            find: Any = RunnableLambda(lambda question: [FERRY])
            mode: Any = {"llm": condensed} if condensed else {"mode": "weighted"}
            retriever = CondenseQuestionRetriever(retriever=find, **mode)
            return create_conversational_rag_chain(model, retriever, self.histories)
        if self.kind == "agent":
            middleware: list[Any] = [MessageHistoryMiddleware(self.histories, **options)]
            if dice.random() < 0.3 and self.saver and not self.summarizes:
                self.prepared = (small := FakeChatModel(responses=["A talk."] * 1000)).calls
                middleware.append(SummarizationMiddleware(small, trigger=("messages", 4), keep=("messages", 2)))
            tools = [tide] if self.with_tools else []
            return create_agent(model, tools, system_prompt=system, middleware=middleware, checkpointer=self.saver)
        if self.kind == "wrong":  # the class takes the keys as they are: the past goes nowhere
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bare = ChatPromptTemplate.from_messages([("system", system), ("human", "{input}")])
                wrong: Any = RunnableWithMessageHistory(
                    bare | model,
                    self.histories,
                    input_messages_key="input",
                    history_messages_key="history",
                    **options,
                )
                return wrong
        if self.kind == "text prompt":
            as_text = ChatPromptTemplate.from_template("Past: {past}\nNow: {input}")
            steps = RunnablePassthrough.assign(past=lambda x: "; ".join(m.text for m in x["chat_history"]))
            chain: Any = steps | as_text | model
        elif self.kind == "steps":
            chain = placed.with_config(tags=["t"]) | model.with_retry().with_fallbacks([FakeChatModel()])
            chain = chain | StrOutputParser() if dice.random() < 0.5 else chain
        else:
            return create_runnable_with_message_history(
                model if self.kind == "model" else placed | model, self.histories, **options
            )
        return create_runnable_with_message_history(
            chain, self.histories, input_messages_key="input", history_messages_key="chat_history", **options
        )

    def value(self, text: str) -> Any:
        """The input in the form that the app takes."""
        if self.kind == "agent":
            return {"messages": [HumanMessage(text)]}
        return text if self.kind == "model" else {"input": text}

    async def run(self, text: str, style: str) -> None:
        """A turn; with tools, the model calls one first."""
        if self.with_tools:
            call = {"name": "tide", "args": {"port": "Oban"}, "id": f"c{len(self.model.calls)}"}
            self.model.responses = [*[""] * len(self.model.calls), AIMessage("", tool_calls=[call])]
        match style:
            case "invoke":
                self.app.invoke(self.value(text), self.config)
            case "ainvoke":
                await self.app.ainvoke(self.value(text), self.config)
            case _:
                async for _ in self.app.astream(self.value(text), self.config):
                    pass

    def written(self) -> Any:
        """All that is stored."""
        checkpoints = (
            [] if self.saver is None else [c.config["configurable"]["checkpoint_id"] for c in self.saver.list(None)]
        )
        stores = [sorted(self.notes.yield_keys()), sorted(self.summaries.yield_keys())]
        return [m.id for m in self.histories("s1", "u1").messages], stores, checkpoints


def same(seen: list[str], given: list[BaseMessage]) -> None:
    """The texts shown are those given; of an answer without a text, its tool call is told."""
    assert len(seen) == len(given)
    for text, message in zip(seen, given, strict=True):
        assert text == message.text or (not message.text and text.startswith("[calls tide")), (text, message)


@pytest.mark.parametrize("seed", range(examples(40)))
async def test_it_shows_what_the_model_is_given(seed: int) -> None:
    """A dry run shows what the next real turn gives to the model and changes nothing; that turn's trace agrees."""
    case = Case(seed)
    for _ in range(case.dice.randrange(5)):
        await case.run(case.dice.choice(ASKED), case.dice.choice(["invoke", "ainvoke", "astream"]))
    text, before, calls, first = case.dice.choice(ASKED), case.written(), len(case.model.calls), len(case.prepared)
    value = case.value(text)
    if case.dice.random() < 0.5:
        tried: TurnTrace = explain_turn(case.app, value, case.config)
    else:
        tried = await aexplain_turn(case.app, value, case.config)
    assert len(case.model.calls) == calls, "the answering model was called"
    assert case.written() == before
    prepared = len(case.prepared)
    await case.run(text, case.dice.choice(["invoke", "ainvoke", "astream"]))
    given = case.model.calls[calls:]
    same([m.text for m in tried.messages], given[0])
    traced = explain_last_turn(case.app, case.config)
    assert traced is not None
    answers = [call for call in traced.calls if call.purpose == "answer"]
    assert len(answers) == len(given)
    for call, messages in zip(answers, given, strict=True):
        same([m.text for m in call.messages], messages)
    if case.kind != "agent":
        assert [m.part for m in tried.messages] == [m.part for m in traced.messages]
        assert tried.tokens == traced.tokens
    # What an agent's other middleware calls in a step of its own is heard of in a dry run alone.
    for trace, expected in [(tried, case.prepared[first:prepared]), (traced, case.prepared[prepared:])]:
        inner = [call for call in trace.calls if call.purpose not in ("answer", *SUMMARIES)]
        shown = [messages for messages in expected if not messages[0].text.startswith(SUMMARIZE)]
        for call, messages in zip(inner, shown, strict=True):
            same([m.text for m in call.messages], messages)
    told = sum(call.purpose in SUMMARIES for call in tried.calls)
    assert told == sum(messages[0].text.startswith(SUMMARIZE) for messages in case.prepared[first:prepared])
    stored = len(case.written()[0]) - len(before[0])
    assert stored == (4 if case.with_tools else 2)
    assert sum(traced.tokens.values()) == sum(m.tokens for m in traced.messages) + traced.tokens["tools"]
