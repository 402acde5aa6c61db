"""`explain_last_turn`: what the models of a real turn were given, what it left out, how long it took, its cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from rich.console import Console

from langchain_memkit import (
    CondenseQuestionRetriever,
    KeyValueMemory,
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    VectorMemory,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_last_turn,
    explain_stored_turn,
    explain_turn,
    session,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.explain import TurnTrace
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
HOSTILE = "[bold red]x[/] <script>alert('x')</script> \x1b[31m"
BOOKS = KeyValueMemory({"The Skeleton Songs": "Poems by Arabella Dusk."})


@pytest.fixture
def histories() -> Iterator[Any]:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


def last(runnable: Any, config: Any = S1) -> TurnTrace:
    """The trace of the last turn, which there is."""
    seen = explain_last_turn(runnable, config)
    assert seen is not None
    return seen


def texts(messages: Any) -> list[str]:
    """The texts of messages, shown ones or LangChain's."""
    return [message.text for message in messages]


async def run(style: str, runnable: Any, value: Any, config: Any = S1) -> None:
    """A turn in one of the four call styles, to its end."""
    match style:
        case "invoke":
            runnable.invoke(value, config)
        case "ainvoke":
            await runnable.ainvoke(value, config)
        case "stream":
            list(runnable.stream(value, config))
        case _:
            _ = [piece async for piece in runnable.astream(value, config)]


@pytest.mark.parametrize("style", ["invoke", "ainvoke", "stream", "astream"])
async def test_a_turn(histories: Any, style: str) -> None:
    """Messages with their parts, what was dropped, times and the turn's id; nothing of it is stored."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, histories, preprocessor=create_trim_preprocessor(60))
    for n in range(9):
        await run(style, chat, f"It is day {n} at sea.")
    seen = last(chat)
    assert texts(seen.messages) == texts(model.calls[-1])
    assert [m.part for m in seen.messages] == ["history"] * (len(seen.messages) - 1) + ["input"]
    assert seen.max_tokens == 60
    assert len(seen.dropped_ids) == seen.dropped > 0
    assert seen.seconds.keys() == {"load", "model", "save"}
    assert all(seconds >= 0 for seconds in seen.seconds.values())
    assert [(call.purpose, call.error) for call in seen.calls] == [("answer", None)]
    assert [turn.op for turn in histories("s1", "u1").iter_turns()][-1] == f"turn:{seen.turn_id}"
    assert json.loads(json.dumps(seen.to_dict())) == seen.to_dict()


def say(histories: Any, turns: int) -> None:
    """Turns of a question and an answer each."""
    for n in range(turns):
        histories("s1", "u1").add_messages([HumanMessage(f"It is day {n} at sea."), AIMessage("Noted.")])


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
async def test_what_was_not_read(histories: Any, style: str) -> None:
    """Every stored message is accounted for: shown, dropped, or of a turn that was not even read."""
    say(histories, 4)
    histories("s1", "u1").clear()  # those are gone, and count no more
    say(histories, 30)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=create_trim_preprocessor(60))
    await run(style, chat, "And today?", S1)
    seen = last(chat)
    assert seen.kept + seen.dropped + 2 * (seen.unread_turns or 0) == 60
    assert f"{seen.unread_turns} older turns not read" in str(seen)
    assert (seen.kept, seen.dropped, seen.unread_turns) == (6, 2, 26)
    assert explain_turn(chat, "And now?", S1).unread_turns == 27


def test_all_is_read(histories: Any) -> None:
    """Where all of the session is read, nothing is said; an agent tells it as a chain does."""
    say(histories, 3)
    for window in (create_trim_preprocessor(6_000), create_trim_preprocessor(60, token_counter=len), None):
        chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=window)
        seen = explain_turn(chat, "And today?", S1)
        assert (seen.unread_turns, seen.kept, "not read" in str(seen)) == (0, 6, False)
    say(histories, 20)
    middleware = MessageHistoryMiddleware(histories, preprocessor=create_trim_preprocessor(60))
    agent = create_agent(FakeChatModel(), [], middleware=[middleware])
    agent.invoke({"messages": [("user", "And today?")]}, S1)
    seen = last(agent)
    assert seen.kept + seen.dropped + 2 * (seen.unread_turns or 0) == 46


def test_history_size_leaves_turns_unread() -> None:
    """What `history_size` cuts off was not shown either."""
    with SQLiteChatMessageHistory.factory(":memory:", history_size=6) as histories:
        say(histories, 30)
        for preprocessor in (None, create_trim_preprocessor(6_000)):
            chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=preprocessor)
            seen = explain_turn(chat, "And today?", S1)
            assert (seen.kept, seen.dropped, seen.unread_turns) == (6, 0, 27)


def test_how_many_were_not_read_is_not_always_known(histories: Any) -> None:
    """Of an edited session positions do not tell it, nor where turns expire: then only that there are some is said."""
    say(histories, 30)
    histories("s1", "u1").edit(30, [HumanMessage("No: day 31."), AIMessage("Noted.")])
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=create_trim_preprocessor(60))
    seen = explain_turn(chat, "And today?", S1)
    assert seen.unread_turns is None
    assert "dropped, older turns not read" in str(seen)
    with SQLiteChatMessageHistory.factory(":memory:", ttl=60) as expiring:
        say(expiring, 30)
        chat = create_runnable_with_message_history(
            FakeChatModel(), expiring, preprocessor=create_trim_preprocessor(60)
        )
        assert explain_turn(chat, "And today?", S1).unread_turns is None


def test_what_a_summary_covers_is_not_unread(histories: Any) -> None:
    """It was read when it was summarized."""
    say(histories, 30)
    summarize = create_history_preprocessor(lambda _: "Thirty days at sea.", max_tokens=120)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=summarize)
    for _ in range(2):
        chat.invoke("And today?", S1)
        seen = last(chat)
        assert (seen.unread_turns, seen.summarized > 40) == (0, True)


def test_a_dry_run_is_no_turn(histories: Any) -> None:
    """`explain_turn` leaves the last turn as it is."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    assert explain_last_turn(chat, S1) is None
    explain_turn(chat, "hello", S1)
    assert explain_last_turn(chat, S1) is None
    chat.invoke("hello", S1)
    explain_turn(chat, "again", S1)
    assert texts(last(chat).messages) == ["hello"]


def test_which_turn(histories: Any) -> None:
    """The last one with the ids that are given, and of that chain; other ids find none."""
    ours, theirs = (create_runnable_with_message_history(FakeChatModel(), histories) for _ in range(2))
    ours.invoke("one", session("s1", user_id="u1"))
    first = last(ours)
    ours.invoke("two", session("s2", user_id="u1"))
    theirs.invoke("three", session("s1", user_id="u1"))
    named: Any = {"configurable": {**S1["configurable"], "turn_id": "t4"}}
    ours.invoke("four", named)
    theirs.invoke("five", session("s1", user_id="u2"))
    assert last(ours).messages[-1].text == "four"
    assert explain_last_turn(ours, None) is None, "of whom is not said"
    assert last(ours.with_config(tags=["t"]) | StrOutputParser()).messages[-1].text == "four"
    assert last(theirs).messages[-1].text == "three", "two chains on one session"
    assert last(ours, session("s2", user_id="u1")).messages[-1].text == "two"
    assert last(ours, named).turn_id == "t4"
    assert first.turn_id is not None
    by_id: Any = {"configurable": {**S1["configurable"], "turn_id": first.turn_id}}
    assert last(ours, by_id).messages[-1].text == "one", "an id that a trace told"
    for ids in ({"session_id": "s3"}, {"session_id": "s2", "user_id": "u2"}, {"turn_id": "t5"}, {"thread_id": "s1"}):
        assert explain_last_turn(ours, {"configurable": ids}) is None
    assert explain_last_turn(theirs, named) is None


def test_the_last_32_are_at_hand(histories: Any) -> None:
    """And no more."""
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    for n in range(34):
        chat.invoke(f"ask {n}", {"configurable": {"session_id": f"s{n}"}})
    found = [explain_last_turn(chat, {"configurable": {"session_id": f"s{n}"}}) for n in range(34)]
    assert [seen is not None for seen in found] == [False] * 2 + [True] * 32


@pytest.mark.parametrize("style", ["invoke", "ainvoke", "stream", "astream"])
async def test_a_turn_that_failed(histories: Any, style: str) -> None:
    """What the model was given before it failed, and the kind of its error, without its text."""
    model = FakeChatModel(error=ConnectionError("the key is sk-secret"))
    chat = create_runnable_with_message_history(model, histories)
    with pytest.raises(ConnectionError):
        await run(style, chat, "hello")
    seen = last(chat)
    assert texts(seen.messages) == ["hello"]
    assert seen.calls[0].error == "ConnectionError"
    assert "failed with ConnectionError" in str(seen)
    assert "sk-secret" not in str(seen) + json.dumps(seen.to_dict())
    assert "save" not in seen.seconds


def test_a_retry_and_a_fallback_are_calls_of_one_turn(histories: Any) -> None:
    """Each call of a model is told, with what it was given; the last one gave the answer."""
    broken, spare = FakeChatModel(error=ConnectionError("429")), FakeChatModel()
    model = broken.with_retry(stop_after_attempt=2, wait_exponential_jitter=False).with_fallbacks([spare])
    chat = create_runnable_with_message_history(model, histories)
    chat.invoke("hello", S1)
    seen = last(chat)
    assert [call.error for call in seen.calls] == ["ConnectionError", "ConnectionError", None]
    assert [texts(call.messages) for call in seen.calls] == [["hello"]] * 3


async def test_a_stream_that_is_running(histories: Any) -> None:
    """It is shown as far as it has come, and whole when it has ended."""
    chat = create_runnable_with_message_history(FakeChatModel(responses=["one two three"] * 2), histories)
    running = chat.stream("hello", S1)
    next(running)
    seen = last(chat)
    assert (texts(seen.messages), seen.seconds.keys(), seen.calls[0].seconds) == (["hello"], {"load"}, None)
    list(running)
    assert last(chat).seconds.keys() == {"load", "model", "save"}
    again = chat.astream("again", S1)
    await anext(again)
    assert last(chat).messages[-1].text == "again"
    await again.aclose()


async def test_what_memories_recalled_and_left_out(histories: Any) -> None:
    """Records with scores and sources, and why a memory showed none, in a real turn as in a dry run."""
    vectors = VectorMemory.factory(histories, DeterministicFakeEmbedding(size=8), floor=2)
    said: list[BaseMessage] = [HumanMessage("Harrison likes green tea.", id="h0"), AIMessage("Noted.", id="a0")]
    histories("s0", "u1").add_messages(said)
    find: Any = RunnableLambda(lambda question: [Document("No shoes.", metadata={"title": "Rules", "score": 0.5})])

    def broken(question: str) -> list[Document]:
        raise ConnectionError

    memories: list[Any] = [vectors, BOOKS, find, RunnableLambda(broken)]
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=memories)
    asked = "What are The Skeleton Songs?"
    tried = explain_turn(chat, asked, S1)
    await chat.ainvoke(asked, S1)
    seen = last(chat)
    assert [(r.text, r.about, r.score) for r in seen.recalled] == [
        ("Poems by Arabella Dusk.", "The Skeleton Songs", None),
        ("No shoes.", "Rules", 0.5),
    ]
    assert any(note.startswith("VectorMemory recalled nothing: the best of ") for note in seen.notes)
    assert any("ConnectionError" in note for note in seen.notes)
    assert (seen.recalled, sorted(seen.notes)) == (tried.recalled, sorted(tried.notes))


def test_what_the_provider_counted(histories: Any) -> None:
    """`usage_metadata` of each call, and a line that says it."""
    usage: Any = {"input_tokens": 1234, "output_tokens": 5, "total_tokens": 1239}
    call = {"name": "tide", "args": {"port": "Oban"}, "id": "c1"}
    model = FakeChatModel(responses=[AIMessage("", tool_calls=[call]), AIMessage("At noon.", usage_metadata=usage)])

    def tide(port: str) -> str:
        """Tell when the tide is high."""
        return f"At noon in {port}."

    agent = create_agent(model, [tide], middleware=[MessageHistoryMiddleware(histories)])
    agent.invoke({"messages": [("user", "When is high tide in Oban?")]}, S1)
    seen = last(agent)
    assert [(c.usage, c.tool_tokens > 0) for c in seen.calls] == [(None, True), (usage, True)]
    assert seen.tokens["tools"] == seen.calls[-1].tool_tokens
    assert "provider counted 1,234 in and 5 out" in str(seen)
    assert seen.seconds.keys() == {"load", "model", "save"}
    assert json.loads(json.dumps(seen.to_dict()))["calls"][1]["usage"] == usage
    assert len(texts(seen.messages)) == 3


def test_calls_that_only_prepare(histories: Any) -> None:
    """A summary that was due and a rewritten question are calls of their own; the messages are those of the answer."""
    small, model = FakeChatModel(responses=["Talk of the sea."] * 9), FakeChatModel()
    fits = create_history_preprocessor(small, max_tokens=90)
    chat = create_runnable_with_message_history(model, histories, preprocessor=fits)
    due = [chat.invoke(f"It is day {n} at sea.", S1) and [c.purpose for c in last(chat).calls] for n in range(9)]
    assert ["summary", "answer"] in due
    assert ["answer"] in due
    ferry = Document("The ferry to Skye leaves at nine.", metadata={"source": "times.md"})
    rewriter = FakeChatModel(responses=["When does the ferry to Skye arrive?"])
    find: Any = RunnableLambda(lambda question: [ferry])
    rag = create_conversational_rag_chain(model, CondenseQuestionRetriever(retriever=find, llm=rewriter), histories)
    there: Any = session("s2", user_id="u1")
    rag.invoke({"input": "When does the ferry to Skye leave?"}, there)
    rag.invoke({"input": "And when does it arrive?"}, there)
    seen = last(rag, there)
    assert [call.purpose for call in seen.calls] == ["question", "answer"]
    assert seen.searched_for == "When does the ferry to Skye arrive?"
    assert texts(seen.calls[0].messages) == texts(rewriter.calls[-1])
    assert texts(seen.messages) == texts(model.calls[-1])
    assert seen.tokens["documents"] > 0


class Imagined(BaseRetriever):
    """Asks a chain for its document, as LangChain's MultiQueryRetriever does for its questions."""

    chain: Any
    fails: bool = False

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found = Document(self.chain.invoke({"question": query}, {"callbacks": run_manager.get_child()}))
        if self.fails:
            raise ConnectionError
        return [found]


IMAGINE = ChatPromptTemplate.from_template("Imagine an answer: {question}") | FakeChatModel() | StrOutputParser()


@pytest.mark.parametrize("fails", [False, True])
def test_models_inside_a_retriever(histories: Any, fails: bool) -> None:
    """What a retriever asks of a model, in however many steps, gives no answer, in a dry run and in a turn."""
    imagined: Any = Imagined(chain=IMAGINE, fails=fails)
    find = imagined.with_fallbacks([RunnableLambda(lambda question: [])])  # a retriever that failed has ended, too
    rag = create_conversational_rag_chain(FakeChatModel(), find, histories)
    value = {"input": "When does the ferry to Skye leave?"}
    tried = explain_turn(rag, value, S1)
    assert ([call.purpose for call in tried.calls], tried.calls[0].seconds is None) == (["retrieval", "answer"], False)
    assert {"ChatPromptTemplate", "StrOutputParser"} <= set(tried.ran)
    rag.invoke(value, S1)
    seen = last(rag)
    assert ([call.purpose for call in seen.calls], seen.ran) == (["retrieval", "answer"], ["Imagined"])


def test_models_inside_a_tool(histories: Any) -> None:
    """What a tool asks of a model is a call of the turn, and not the one that gave the answer."""

    def imagine(question: str) -> str:
        """Imagine something."""
        return IMAGINE.invoke({"question": question})

    call = {"name": "imagine", "args": {"question": "x"}, "id": "c1"}
    model = FakeChatModel(responses=[AIMessage("", tool_calls=[call]), "Done."])
    agent = create_agent(model, [imagine], middleware=[MessageHistoryMiddleware(histories)])
    agent.invoke({"messages": "Imagine."}, S1)
    seen = last(agent)
    assert ([c.purpose for c in seen.calls], seen.ran) == (["answer", "tool", "answer"], ["imagine"])
    assert texts(seen.calls[1].messages) == ["Imagine an answer: x"]
    assert texts(seen.messages) == ["Imagine.", '[calls imagine({"question": "x"})]', "Noted."]


def test_what_a_chain_was_not_given(histories: Any) -> None:
    """A step that forgets the past: the trace shows what reached the model, not what was composed for it."""
    forgets = RunnableLambda(lambda messages: messages[-1:]) | FakeChatModel()
    chat = create_runnable_with_message_history(forgets, histories)
    chat.invoke("My name is Nemo.", S1)
    chat.invoke("What is my name?", S1)
    assert (texts(last(chat).messages), last(chat).kept) == (["What is my name?"], 0)


def test_hostile_names_are_shown_as_text(histories: Any) -> None:
    """A model's name and a text do nothing in HTML, in a terminal or with rich."""
    model = FakeChatModel().with_config(metadata={"ls_model_name": HOSTILE})
    chat = create_runnable_with_message_history(model, histories)
    chat.invoke(HOSTILE, S1)
    seen = last(chat)
    assert seen.calls[0].model == HOSTILE
    assert "<script" not in seen._repr_html_()
    assert "\x1b" not in str(seen)
    printed = StringIO()
    Console(file=printed, width=200, force_terminal=True, color_system="truecolor").print(seen)
    assert printed.getvalue().count("[bold red]x[/]") == 2
    assert "\x1b[31m" not in printed.getvalue()


def test_users_stay_apart() -> None:
    """A config that leaves out user or session finds no turn of somebody, nor does one of another user."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    chat.invoke("My secret is 42.", {"configurable": {"session_id": "apart", "user_id": "nemo"}})
    for ids in ({"session_id": "apart"}, {"user_id": "nemo"}, {}, {"session_id": "apart", "user_id": "dory"}):
        assert explain_last_turn(chat, {"configurable": ids}) is None, ids
    assert explain_last_turn(chat, {"configurable": {"session_id": "apart", "user_id": "nemo"}}) is not None


def test_wrong_arguments_are_named() -> None:
    """Each argument that cannot be what it is given is told by its own name, and nothing is changed."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    history: Any = histories("wrong", user_id="nemo")
    history.add_user_message("Hello.")
    wrong: list[tuple[str, Any]] = [
        ("seq must be a whole number", lambda: history.edit("1", [HumanMessage("x")])),
        ("llm must be a chat model", lambda: histories.generate_title("wrong", None, "nemo")),
        ("since must be an aware datetime", lambda: histories.usage("nemo", since=datetime(2026, 1, 1))),  # noqa: DTZ001
        ("traces are stored by histories of langchain_memkit", lambda: explain_stored_turn(object())),
        ("trace must be True or False", lambda: MessageHistoryMiddleware(histories, trace="y")),
    ]
    for told, call in wrong:
        with pytest.raises(ConfigurationError, match=told):
            call()
    assert [m.text for m in history.messages] == ["Hello."]
