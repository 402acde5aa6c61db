"""What the model saw: `explain_turn` on chains and preprocessors, as data, as text and in a notebook."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    InMemoryChatMessageHistory,
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_last_turn,
    explain_turn,
)
from langchain_memkit.errors import ConfigurationError, ContextTooLargeError
from langchain_memkit.explain import TurnTrace, aexplain_turn
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.runnables.trace import PARTS
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Be kind."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
)


@pytest.fixture(params=["sync", "async"])
def explain(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`explain_turn` in both call styles, to be awaited."""

    async def call(*args: Any, **options: Any) -> TurnTrace:
        return explain_turn(*args, **options) if request.param == "sync" else await aexplain_turn(*args, **options)

    return call


@pytest.fixture
def histories() -> Iterator[Any]:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


class Summarizer:
    """Numbers its summaries and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None

    def __call__(self, prompt: Any) -> str:
        """Answers, or fails."""
        if self.error is not None:
            raise self.error
        self.asked.append(prompt[0].text)
        return f"summary {len(self.asked)}"


def talk(turns: int, begin: int = 0) -> list[BaseMessage]:
    """Questions and answers with ids."""
    numbers = range(begin, begin + turns)
    return [m for n in numbers for m in (HumanMessage(f"ask {n}", id=f"h{n}"), AIMessage(f"say {n}", id=f"a{n}"))]


def texts(seen: TurnTrace, part: str) -> list[str]:
    """The texts of a part."""
    return [m.text for m in seen.messages if m.part == part]


def assert_sums(seen: TurnTrace) -> None:
    """Tokens by part are those of the messages of the part."""
    assert list(seen.tokens) == list(PARTS)
    for part, tokens in seen.tokens.items():
        assert tokens == sum(m.tokens for m in seen.messages if m.part == part)
    assert sum(seen.tokens.values()) == sum(m.tokens for m in seen.messages)


async def test_a_chain_without_a_preprocessor(explain: Any, histories: Any) -> None:
    """Shows the whole past and the new input; the model is not called and nothing is stored."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, histories)
    histories("s1", "u1").add_messages([SystemMessage("Be kind."), *talk(2)])
    seen = await explain(chat, "ask 2", S1)
    assert [(m.part, m.role, m.text) for m in seen.messages] == [
        ("system", "system", "Be kind."),
        ("history", "human", "ask 0"),
        ("history", "ai", "say 0"),
        ("history", "human", "ask 1"),
        ("history", "ai", "say 1"),
        ("input", "human", "ask 2"),
    ]
    assert (seen.max_tokens, seen.dropped, seen.summarized, seen.notes) == (None, 0, 0, [])
    assert [m.id for m in seen.messages[1:3]] == ["h0", "a0"]
    assert_sums(seen)
    assert model.calls == []
    assert len(histories("s1", "u1").messages) == 5
    assert [s.session_id for s in histories.list_sessions("u1")] == ["s1"]


async def test_a_session_that_does_not_exist_is_not_made(explain: Any, histories: Any) -> None:
    """Of a new session only the input is shown, and no session is there afterwards."""
    chat = create_runnable_with_message_history(
        FakeChatModel(), histories, preprocessor=create_history_preprocessor(Summarizer(), max_tokens=100)
    )
    seen = await explain(chat, [HumanMessage("hello", id="x")], S1)
    assert [(m.part, m.text, m.id) for m in seen.messages] == [("input", "hello", "x")]
    assert seen.max_tokens == 100
    assert list(histories.list_sessions("u1")) == []


async def test_it_shows_what_the_model_is_given_next(explain: Any, histories: Any) -> None:
    """The messages, in order, are those that the model gets when the same turn is run."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, histories, preprocessor=create_trim_preprocessor(60))
    for n in range(12):
        seen = await explain(chat, f"ask {n}", S1)
        await chat.ainvoke(f"ask {n}", S1)
        assert [m.text for m in seen.messages] == [m.text for m in model.calls[-1]]
        assert_sums(seen)
        assert sum(seen.tokens.values()) <= 60


async def test_what_a_trim_drops(explain: Any, histories: Any) -> None:
    """Of what was read, all is either shown or dropped, and the ids say which."""
    histories("s1", "u1").add_messages(talk(20))
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=create_trim_preprocessor(40))
    seen = await explain(chat, "ask 20", S1)
    assert texts(seen, "history") == ["ask 18", "say 18", "ask 19", "say 19"]
    assert seen.max_tokens == 40
    assert seen.dropped == len(seen.dropped_ids)
    assert not set(seen.dropped_ids) & {m.id for m in seen.messages}
    whole = await explain(create_trim_preprocessor(40), talk(20))
    assert (whole.dropped, whole.dropped_ids[:2], len(whole.messages)) == (34, ["h0", "a0"], 6)


async def test_with_a_history_key_the_past_and_the_input_are_told_apart(explain: Any, histories: Any) -> None:
    """With `history_messages_key` too; what the prompt adds is seen beside them."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(
        PROMPT | model,
        histories,
        input_messages_key="input",
        history_messages_key="chat_history",
        preprocessor=create_trim_preprocessor(100),
    )
    await chat.ainvoke({"input": "ask 0"}, S1)
    model.calls.clear()
    seen = await explain(chat, {"input": "ask 1"}, S1)
    assert [(m.part, m.text) for m in seen.messages] == [
        ("system", "Be kind."),
        ("history", "ask 0"),
        ("history", "Noted."),
        ("input", "ask 1"),
    ]
    assert seen.ran == ["trim", "ChatPromptTemplate"]
    assert_sums(seen)
    assert model.calls == []
    assert len(histories("s1", "u1").messages) == 2
    other = ChatPromptTemplate.from_messages(
        [("human", "Be kind."), MessagesPlaceholder("chat_history"), ("human", "Asked: {input}")]
    )
    options: Any = {"input_messages_key": "input", "history_messages_key": "chat_history"}
    seen = await explain(
        create_runnable_with_message_history(other | model, histories, **options), {"input": "ask 1"}, S1
    )
    assert [m.part for m in seen.messages] == ["prompt", "history", "history", "input"]


async def test_input_that_is_stored_already_is_past(explain: Any, histories: Any) -> None:
    """A list that repeats what is stored: only its new end is input."""
    histories("s1", "u1").add_messages(talk(2))
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    seen = await explain(chat, [*talk(2), HumanMessage("ask 2", id="h2")], S1)
    assert texts(seen, "history") == ["ask 0", "say 0", "ask 1", "say 1"]
    assert texts(seen, "input") == ["ask 2"]


async def test_bindings_bring_their_config(explain: Any, histories: Any) -> None:
    """Ids that `with_config` binds count, the call's own more; retries and a parser behind are seen through."""
    histories("s1", "u1").add_messages(talk(1))
    histories("s2", "u1").add_messages(talk(1, begin=7))
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    bound = chat.with_config(S1).with_retry()
    for runnable in (bound, bound | StrOutputParser(), bound.with_config({"tags": ["t"]}) | str | str):
        assert texts(await explain(runnable, "next"), "history") == ["ask 0", "say 0"]
    other = {"configurable": {"session_id": "s2"}}
    assert texts(await explain(bound, "next", other), "history") == ["ask 7", "say 7"]


async def test_the_history_of_an_enclosing_chain_is_not_taken(explain: Any, histories: Any) -> None:
    """Called within a turn of another chain, it shows its own session, as the turn itself would."""
    histories("s2", "u1").add_messages(talk(1, begin=7))
    inner = create_runnable_with_message_history(FakeChatModel(), histories)
    found = []

    async def outer(messages: list[BaseMessage]) -> str:
        found.append(await explain(inner, "next", {"configurable": {"session_id": "s2", "user_id": "u1"}}))
        return "done"

    histories("s1", "u1").add_messages(talk(1))
    await create_runnable_with_message_history(outer, histories).ainvoke("go", S1)
    assert texts(found[0], "history") == ["ask 7", "say 7"]


async def test_foreign_histories_and_async_factories(explain: Any) -> None:
    """A history of another package is shown and not written to."""

    class Foreign(InMemoryChatMessageHistory):  # the class itself warns when it is made
        pass

    history = Foreign(messages=talk(10))
    chat = create_runnable_with_message_history(
        FakeChatModel(), lambda session_id: history, preprocessor=create_trim_preprocessor(2, token_counter=len)
    )
    seen = await explain(chat, [], {"configurable": {"session_id": "s1"}})
    assert [m.text for m in seen.messages] == ["ask 9", "say 9"]
    assert history.messages == talk(10)
    assert (seen.dropped, len(history.messages)) == (18, 20)

    async def slow(session_id: str) -> Any:
        return history

    chat = create_runnable_with_message_history(FakeChatModel(), slow)
    assert len((await aexplain_turn(chat, "x", {"configurable": {"session_id": "s1"}})).messages) == 21


async def test_several_compactions(explain: Any, histories: Any) -> None:
    """Over six compactions: summarized and shown are together the whole conversation, and nothing is dropped."""
    model, summarizer = FakeChatModel(), Summarizer()
    preprocessor = create_history_preprocessor(
        summarizer, max_tokens=500, trigger=("messages", 6), keep=("messages", 2)
    )
    chat = create_runnable_with_message_history(model, histories, preprocessor=preprocessor)
    written = 0
    for n in range(15):
        seen = await explain(chat, f"ask {n}", S1)
        assert seen.summarized + len(texts(seen, "history")) == 2 * n
        assert (seen.dropped, seen.dropped_ids, seen.notes) == (0, [], [])
        assert len(seen.summarized_ids) in (0, seen.summarized, 4)
        assert not set(seen.summarized_ids) & {m.id for m in seen.messages}
        assert len(texts(seen, "summary")) == (1 if seen.summarized else 0)
        assert_sums(seen)
        due = len(summarizer.asked) - written
        await chat.ainvoke(f"ask {n}", S1)
        assert len(summarizer.asked) == written + 2 * due, "a summary that was due was written, and not stored"
        told, given = [m.text for m in seen.messages], [m.text for m in model.calls[-1]]
        if due:  # this summarizer numbers its answers
            told, given = (["".join(c for c in text if not c.isdigit()) for text in each] for each in (told, given))
        assert told == given
        written = len(summarizer.asked)
    assert len(summarizer.asked) == 12
    assert seen.summarized == 24
    assert "summary 12" in texts(seen, "summary")[0]
    assert len(model.calls) == 15
    assert len(histories("s1", "u1").messages) == 30


async def test_a_preprocessor_piped_by_hand_over_several_compactions(explain: Any) -> None:
    """A list alone: summarized, shown and dropped add up to what was given, each time; no summary is stored."""
    summarizer = Summarizer()
    preprocessor = create_history_preprocessor(
        summarizer, max_tokens=500, trigger=("messages", 6), keep=("messages", 2)
    )
    for turns in range(1, 15):
        given = talk(turns)
        seen = await explain(preprocessor, given, S1)
        assert seen.summarized + len(texts(seen, "history")) + seen.dropped == 2 * turns
        assert (seen.dropped, seen.max_tokens, seen.tokens["input"]) == (0, 500, 0)
        assert_sums(seen)
        assert given == talk(turns)
    assert len(summarizer.asked) == 12, "each time that one was due"


async def test_several_preprocessors_in_a_row(explain: Any, histories: Any) -> None:
    """What each of them said is added up: the summary of the first, what the second dropped, the smaller budget."""
    preprocessor = create_history_preprocessor(
        Summarizer(), max_tokens=500, trigger=("messages", 6), keep=("messages", 5)
    )
    row = preprocessor | create_trim_preprocessor(45)
    seen = await explain(row, talk(6), S1)
    assert (seen.max_tokens, seen.summarized) == (45, 8)
    assert seen.summarized + seen.dropped + len(texts(seen, "history")) == 12
    assert seen.dropped == len(seen.dropped_ids) > 0
    assert_sums(seen)
    histories("s1", "u1").add_messages(talk(6))
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=row)
    assert (await explain(chat, "next", S1)).summarized == 8


async def test_functions_beside_a_preprocessor(explain: Any) -> None:
    """A function before or behind one of ours takes part, and the counter is still that of ours."""
    trimmer = create_trim_preprocessor(2, token_counter=len)
    seen = await explain(
        itemgetter("chat_history") | trimmer | RunnableLambda(lambda m: m[-1:]), {"chat_history": talk(3)}
    )
    assert ([m.text for m in seen.messages], seen.counter, seen.tokens["history"]) == (["say 2"], "len", 1)
    assert seen.dropped == 4, "what the trim dropped: the function does not say"
    bound = trimmer.with_config({"tags": ["t"]})
    assert (await explain(bound, talk(3))).counter == "len"
    assert (await explain(bound | RunnableLambda(lambda m: m[-1:]), talk(3))).max_tokens == 2


async def test_a_preprocessor_of_somebody_else(explain: Any, histories: Any) -> None:
    """LangChain's trim_messages shows its result, and a note that nobody said what it left out."""
    histories("s1", "u1").add_messages(talk(5))
    trimmer = trim_messages(max_tokens=2, token_counter=len)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=trimmer)
    seen = await explain(chat, "next", S1)
    assert texts(seen, "history") == ["ask 4", "say 4"]
    assert (seen.max_tokens, seen.notes) == (None, ["the preprocessor does not say what it left out"])


async def test_a_summarizer_that_failed(explain: Any, histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A note names the failure, what does not fit counts as dropped, and the next look tries again."""
    summarizer = Summarizer()
    summarizer.error = RuntimeError("the key is sk-secret")
    preprocessor = create_history_preprocessor(summarizer, max_tokens=60)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=preprocessor)
    histories("s1", "u1").add_messages(talk(10))
    with caplog.at_level(logging.ERROR):
        seen = await explain(chat, "next", S1)
    assert seen.notes == ["no summary: RuntimeError"]
    assert "note no summary: RuntimeError" in str(seen)
    assert "<p>no summary: RuntimeError</p>" in seen._repr_html_()
    assert "sk-secret" not in str(seen)
    assert (seen.summarized, seen.dropped + len(texts(seen, "history"))) == (0, 20)
    assert seen.dropped > 0
    summarizer.error = None
    seen = await explain(chat, "next", S1)
    assert seen.notes == []
    assert seen.summarized + len(texts(seen, "history")) == 20


async def test_what_is_said_elsewhere_is_still_raised(explain: Any, histories: Any) -> None:
    """An input that cannot fit raises here as it does in the turn; so does a config without a session."""
    trimmer = create_trim_preprocessor(5, on_overflow="raise")
    with pytest.raises(ContextTooLargeError):
        await explain(trimmer, [HumanMessage("word " * 50)])
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    with pytest.raises(ValueError, match="session_id"):
        await explain(chat, "hello")


@pytest.mark.parametrize("thing", [lambda messages: messages, None, "chat", MessageHistoryMiddleware(lambda s: None)])
async def test_anything_else_is_refused(explain: Any, thing: Any) -> None:
    """What is no runnable is refused by its type, an agent's middleware among it, with a word on what to give."""
    told = rf"what create_agent returned, not its middleware.* got {type(thing).__name__}$"
    with pytest.raises(ConfigurationError, match=told):
        await explain(thing, [HumanMessage("hello")], S1)
    with pytest.raises(ConfigurationError, match=told):
        explain_last_turn(thing, S1)


async def test_chains_without_a_conversation(explain: Any) -> None:
    """A model alone, a prompt before it, a preprocessor before it: what the model would be given, and no call."""
    model = FakeChatModel()
    seen = await explain(model.with_config(tags=["t"]), [HumanMessage("hello")])
    assert [(m.part, m.text) for m in seen.messages] == [("prompt", "hello")]
    seen = await explain(PROMPT | model, {"chat_history": [], "input": "hello"})
    assert [(m.part, m.text) for m in seen.messages] == [("system", "Be kind."), ("prompt", "hello")]
    seen = await explain(create_trim_preprocessor(2, token_counter=len) | model, talk(3))
    assert ([m.text for m in seen.messages], seen.max_tokens, seen.dropped) == (["ask 2", "say 2"], 2, 4)
    assert (seen.turn_id, model.calls) == (None, [])


async def test_a_function_as_the_model_runs(explain: Any, histories: Any) -> None:
    """A function fires no event of a model, so it is run and named; what it returns is not stored."""
    asked = []

    def answer(messages: list[BaseMessage]) -> str:
        asked.append(messages[-1].text)
        return "Noted."

    chat = create_runnable_with_message_history(RunnableLambda(answer), histories)
    seen = await explain(chat, "hello", S1)
    assert (asked, seen.ran, seen.messages, seen.calls) == (["hello"], ["answer"], [], [])
    assert seen.notes == ["no model was called: what ran to the end is listed, and what it returned was not stored"]
    assert list(histories.list_sessions("u1")) == []


async def test_models_that_prepare_the_answer(explain: Any, histories: Any) -> None:
    """A summary that is due is made by a call that is told and not stored; without such calls it ends before that."""
    model, small = FakeChatModel(), FakeChatModel(responses=["Talk of the sea."] * 9)
    store = SQLiteKeyValueStore(":memory:")
    fits = create_history_preprocessor(small, max_tokens=90, store=store)
    histories("s1", "u1").add_messages(talk(10))
    chat = create_runnable_with_message_history(model, histories, preprocessor=fits)
    seen = await explain(chat, "next", S1)
    assert [call.purpose for call in seen.calls] == ["summary", "answer"]
    assert [m.text for m in seen.calls[0].messages] == [m.text for m in small.calls[0]]
    assert seen.calls[0].seconds is not None
    assert (seen.calls[1].seconds, seen.calls[1].messages) == (None, seen.messages)
    assert "Talk of the sea." in texts(seen, "summary")[0]
    assert list(store.yield_keys()) == []
    ended = await explain(chat, "next", S1, run_inner=False)
    assert (ended.messages, [call.purpose for call in ended.calls]) == ([], ["summary"])
    assert ended.notes == ["ended before the call for summary, on which the answering call depends"]
    assert (len(small.calls), model.calls, list(store.yield_keys())) == (1, [], [])
    alone = await explain(fits, talk(10), S1)  # a preprocessor that calls a model is shown by its result, too
    assert [call.purpose for call in alone.calls] == ["summary"]
    assert len(texts(alone, "history")) + alone.summarized == 20
    assert (alone.notes, len(small.calls), list(store.yield_keys())) == ([], 2, [])


async def test_a_step_behind_a_preprocessor_that_makes_something_else(explain: Any) -> None:
    """What is no list of messages is no prompt."""
    seen = await explain(create_trim_preprocessor(100) | RunnableLambda(lambda m: m[-1].text), talk(1))
    assert (seen.messages, seen.max_tokens) == ([], 100)
    assert seen.notes[-1].startswith("no model was called")


async def test_handlers_of_the_caller_are_told(explain: Any, histories: Any) -> None:
    """Handlers of all kinds hear of the run as of any other, and no coroutine of theirs is left without an await."""

    class Inline(BaseCallbackHandler):
        run_inline = True

        def __init__(self) -> None:
            self.told: list[str] = []

        def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
            self.told.append("chain")

        def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            self.told.append(messages[0][-1].text)

    class Threaded(Inline):
        run_inline = False

    class Async(AsyncCallbackHandler):
        def __init__(self) -> None:
            self.told: list[str] = []

        async def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
            await asyncio.sleep(0)
            self.told.append("chain")

        async def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            await asyncio.sleep(0)
            self.told.append(messages[0][-1].text)

    handlers: list[Any] = [Inline(), Threaded(), Async()]
    chat = create_runnable_with_message_history(RunnableLambda(lambda messages: messages) | FakeChatModel(), histories)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = await explain(chat, "hello", {**S1, "callbacks": handlers})
        gc.collect()  # a coroutine that nobody awaited warns when it goes
    assert [m.text for m in seen.messages] == ["hello"]
    for handler in handlers:
        assert "chain" in handler.told
        assert handler.told.count("hello") == 1


async def test_callbacks_of_the_caller_hear_the_event(explain: Any, histories: Any) -> None:
    """The caller's handlers stay in place, in the config and in what `with_config` bound."""

    class Events(BaseCallbackHandler):
        def __init__(self) -> None:
            self.names: list[str] = []

        def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
            self.names.append(name)

    given, bound = Events(), Events()
    chat = create_runnable_with_message_history(
        FakeChatModel(), histories, preprocessor=create_trim_preprocessor(100)
    ).with_config({"callbacks": [bound]})
    config = {**S1, "callbacks": [given]}
    await explain(chat, "hello", config)
    assert given.names == bound.names == ["memkit_context"]
    assert config["callbacks"] == [given]


HOSTILE = "<script>alert('x')</script> & \"quotes\"\n</td></tr></table>\n\x1b[31mred\u202e"


def test_hostile_text_is_shown_as_text(histories: Any) -> None:
    """Tags, quotes, newlines and control codes in messages, calls and notes do nothing in HTML or in a terminal."""
    call = {"name": "<b>f</b>", "args": {"q": "<i>"}, "id": "1"}
    histories("s1", "u1").add_messages(
        [HumanMessage(HOSTILE), AIMessage("", tool_calls=[call]), ToolMessage("<u>", tool_call_id="1"), AIMessage("ok")]
    )
    seen = explain_turn(create_runnable_with_message_history(FakeChatModel(), histories), HOSTILE, S1)
    seen.notes.append(HOSTILE)
    shown = seen._repr_html_()
    for tag in ("<script", "<b>f", "<i>", "<u>"):
        assert tag not in shown
    assert shown.count("</table>") == 1
    assert shown.count("</tr>") == 1 + len(seen.messages)
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quotes&quot;\n&lt;/td&gt;" in shown
    assert "white-space:pre-wrap" in shown
    printed = str(seen)
    assert "<script>alert('x')</script> & \"quotes\" </td></tr></table>" in printed
    assert printed.replace("\n", "").isprintable()
    assert len(printed.splitlines()) == 1 + 2 + len(seen.messages) + 1
    assert seen.messages[0].text == HOSTILE, "data is left as it is"


def test_it_reads_well_in_a_terminal() -> None:
    """A line of figures, a bar for each part, and a line for each message, cut at 100 characters."""
    preprocessor = create_history_preprocessor(
        lambda prompt: "Nemo lives in Sydney.", max_tokens=200, trigger=("messages", 4), keep=("messages", 2)
    )
    call = {"name": "tide", "args": {"port": "Sydney"}, "id": "1"}
    given = [
        SystemMessage("Be kind."),
        *talk(2),
        HumanMessage("When is high tide?\nIn Sydney, please. " + "Thanks. " * 20),
        AIMessage("", tool_calls=[call]),
        ToolMessage("11:40", tool_call_id="1"),
        AIMessageChunk(content="At 11:40."),
    ]
    seen = explain_turn(preprocessor, given)
    assert str(seen) == (
        "133 of 200 tokens (approximate); 4 messages kept, 4 summarized, 0 dropped\n"
        "   system █                                              7\n"
        "  summary ███████                                       33\n"
        "  history ███████████████████                           93\n"
        "   system system      7  Be kind.\n"
        "  summary  human     33  Nemo lives in Sydney.\n"
        "  history  human     54  When is high tide? In Sydney, please. Thanks. Thanks. Thanks. Thanks. Thanks. "
        "Thanks. Thanks. Tha...\n"
        '  history     ai     25  [calls tide({"port": "Sydney"})]\n'
        "  history   tool      6  11:40\n"
        "  history     ai      8  At 11:40."
    )
    assert repr(seen) == str(seen), "what a prompt shows"


def test_messages_as_the_unit(histories: Any) -> None:
    """With `token_counter=len` figures are messages, and are called so; the budget is held against the past alone."""
    trimmer = create_trim_preprocessor(2, token_counter=len)
    seen = explain_turn(trimmer, talk(2))
    assert str(seen).startswith("2 of 2 messages; 2 messages kept, 0 summarized, 2 dropped\n")
    assert "<b>2 of 2 messages</b>; 2 messages kept, 0 summarized, 2 dropped" in seen._repr_html_()
    assert explain_turn(trimmer | FakeChatModel(), talk(2)).size == "2 of 2 messages"
    histories("s1", "u1").add_messages(talk(2))
    chat = create_runnable_with_message_history(
        PROMPT | FakeChatModel(),
        histories,
        input_messages_key="input",
        history_messages_key="chat_history",
        preprocessor=trimmer,
    )
    seen = explain_turn(chat, {"input": "ask 2"}, S1)
    assert (seen.size, sum(seen.tokens.values()), seen.notes) == ("2 of 2 messages", 4, [])


def test_nothing_at_all() -> None:
    """No messages: zeros, and a line."""
    seen = explain_turn(create_trim_preprocessor(10), [])
    assert str(seen) == "0 of 10 tokens (approximate); 0 messages kept, 0 summarized, 0 dropped"
    assert sum(seen.tokens.values()) == 0
    assert "<table>" in seen._repr_html_()


def test_to_dict_is_json(histories: Any) -> None:
    """`to_dict()` is plain data with everything in it, content blocks included."""
    histories("s1", "u1").add_messages(
        [
            HumanMessage(
                [{"type": "text", "text": "Look:"}, {"type": "image", "base64": "aGk=", "mime_type": "image/png"}]
            )
        ]
    )
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=create_trim_preprocessor(500))
    seen = explain_turn(chat, "And?", S1)
    data = json.loads(json.dumps(seen.to_dict()))
    assert data == seen.to_dict()
    assert data["messages"][0]["text"] == "Look: [image_url]"
    assert data["messages"][0]["tokens"] == seen.messages[0].tokens > 85
    assert data["counter"] == "approximate"
    assert data.keys() == {
        "messages", "tokens", "max_tokens", "dropped", "summarized", "dropped_ids", "summarized_ids", "recalled",
        "notes", "counter", "searched_for", "calls", "ran", "seconds", "turn_id", "unread_turns",
    }  # fmt: skip


async def test_the_counter_is_that_of_the_preprocessor(explain: Any, histories: Any) -> None:
    """Figures are those of the preprocessor's counter, so that they can be held against its budget."""
    histories("s1", "u1").add_messages(talk(2))

    def words(messages: list[BaseMessage]) -> int:
        return sum(len(m.text.split()) for m in messages)

    trimmer = create_trim_preprocessor(5, token_counter=words)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=trimmer)
    seen = await explain(chat, "only", S1)
    assert (seen.tokens["history"], seen.tokens["input"]) == (4, 1)
    plain = await explain(create_runnable_with_message_history(FakeChatModel(), histories), "only", S1)
    assert plain.tokens["input"] == approximate_tokens([HumanMessage("only")])
