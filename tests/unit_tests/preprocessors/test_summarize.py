"""`create_history_preprocessor` piped by hand: plain lists, failures, both call styles, events and traces."""

from __future__ import annotations

import asyncio
import logging
import threading
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListLLM
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.stores import InMemoryStore

from langchain_memkit import create_history_preprocessor
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.preprocessors.budget import EVENT
from langchain_memkit.testing import FakeChatModel
from testkit.scribe import Scribe, marked, marks, talk
from testkit.styles import Styles

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
SMALL: dict[str, Any] = {"max_tokens": 600, "trigger": ("tokens", 300), "keep": ("tokens", 100)}


class Events(BaseCallbackHandler):
    """The events `memkit_context`, and what ran under what."""

    run_inline = True

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.runs: dict[Any, tuple[str, Any]] = {}
        self.tags: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps what preprocessors tell."""
        if name == EVENT:
            self.heard.append(data)

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: Any, **kwargs: Any) -> None:
        """Keeps the run's name and parent."""
        self.runs[run_id] = (kwargs["name"], kwargs["parent_run_id"])

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **kwargs: Any) -> None:
        """Keeps the call's parent and tags."""
        self.runs[run_id] = ("model", kwargs["parent_run_id"])
        self.tags += kwargs["tags"] or []

    @property
    def notes(self) -> list[str]:
        """Notes of the last event."""
        return self.heard[-1]["notes"]


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(runnable, value, config)` in both styles."""
    return Styles(request.param)


def said(messages: list[BaseMessage]) -> list[int]:
    """The marks of all messages."""
    return [mark for message in messages for mark in marks(message.text)]


def test_fact_of_message_0_in_plain_lists(run: Styles) -> None:
    """366 messages, two compactions: the fact passes through both, every covered message is summarized once."""
    scribe, whole = Scribe(), talk(366)
    summarize = create_history_preprocessor(scribe, max_tokens=6000, trigger=("tokens", 3000), keep=("tokens", 300))
    for length in (184, 366):
        messages = [*whole[:length], HumanMessage("and now?")]
        view = run(summarize, messages, S1)
        assert "FACT Nemo" in view[0].text
        assert view[-1] is messages[-1]
    assert len(scribe.prompts) == 2
    assert "FACT Nemo" in scribe.prompts[0].split("<messages>")[1]
    assert "FACT Nemo" in scribe.prompts[1].split("<messages>")[0]
    assert sorted(scribe.seen + said(view[1:])) == list(range(366))


def test_piped_before_a_prompt(run: Styles) -> None:
    """The guide's wiring: itemgetter, preprocessor, prompt, model; system lines in front, then the summary."""
    model = FakeChatModel()
    summarize = create_history_preprocessor(Scribe(), **SMALL)
    prompt = ChatPromptTemplate([("placeholder", "{chat_history}"), ("user", "{input}")])
    chain = RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | summarize) | prompt | model
    run(chain, {"chat_history": [SystemMessage("Be brief."), *talk(60)], "input": "Hi."}, S1)
    system, summary, *rest = model.calls[0]
    assert system.text == "Be brief."
    assert "FACT Nemo" in summary.text
    assert said(rest)[-1] == 59


def test_the_list_is_not_changed(run: Styles) -> None:
    """The caller's list and messages are as they were, also tuples and dicts are taken."""
    summarize = create_history_preprocessor(Scribe(), **SMALL)
    messages = talk(60)
    before = [m.model_copy(deep=True) for m in messages]
    run(summarize, messages, S1)
    assert messages == before
    loose: list[Any] = [*[("human", "word " * 30)] * 600, {"role": "user", "content": "and now?"}]
    assert run(summarize, loose, S1)[-1] == HumanMessage("and now?")


@pytest.mark.parametrize("answer", ["", " \n"])
def test_model_says_nothing(run: Styles, answer: str, caplog: pytest.LogCaptureFixture) -> None:
    """An empty answer is a failure: trimmed tail, logged, in the event, tried again."""
    check_failure(Scribe(say=answer), run, caplog, "ValueError")


def test_model_raises(run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """A model that is away costs the summary, not the turn."""
    check_failure(Scribe(fail_on=range(100)), run, caplog, "ConnectionError")


def test_model_takes_too_long(run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """A model that hangs is given up on after the time-out."""
    check_failure(Scribe(delay=60), run, caplog, "TimeoutError", timeout=0.2)


def check_failure(scribe: Scribe, run: Styles, caplog: Any, error: str, **kwargs: Any) -> None:
    """The turn is answered from the newest messages, reported, and the next one tries again."""
    events, store = Events(), InMemoryStore()
    summarize = create_history_preprocessor(scribe, store=store, **SMALL, **kwargs)
    messages = talk(60)
    view = run(summarize, messages, {**S1, "callbacks": [events]})
    assert view == messages[-len(view) :]
    assert view
    assert events.notes == [f"no summary: {error}"]
    assert error in caplog.text
    assert events.heard[-1]["dropped"] == 60 - len(view)
    assert not store.store
    for name, value in {"say": None, "fail_on": (), "delay": 0.0}.items():
        setattr(scribe, name, value)
    scribe.awake.set()
    scribe.prompts.clear()
    if "timeout" in kwargs:  # a busy machine takes longer than that
        summarize = create_history_preprocessor(scribe, store=store, **SMALL)
    assert "FACT Nemo" in run(summarize, messages, {**S1, "callbacks": [events]})[0].text
    assert events.notes == []


def test_failure_between_chunks(run: Styles) -> None:
    """The third of several turns fails: what the first two covered is shown, stored and not summarized again."""
    scribe, store, events = Scribe(fail_on=[3]), InMemoryStore(), Events()
    summarize = create_history_preprocessor(scribe, store=store, **SMALL)
    messages = talk(200)
    for _ in range(3):
        view = run(summarize, messages, {**S1, "callbacks": [events]})
    assert "Summary 2." in view[0].text
    assert "does not cover all" in view[0].text
    done = len(scribe.seen) - len(marks(scribe.prompts[2]))
    assert events.heard[-1]["summarized"] == max(marks(scribe.prompts[1])) + 1 == done
    for _ in range(4):
        view = run(summarize, messages, S1)
    again = [mark for prompt in scribe.prompts[3:] for mark in marks(prompt)]
    assert again[0] == done
    assert [*range(done), *again, *said(view[1:])] == list(range(200))
    assert "does not cover all" not in view[0].text


class Broken(InMemoryStore):
    """A store whose verbs can be made to fail."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken = set(broken)

    def __getattribute__(self, name: str) -> Any:
        if name.removeprefix("a") in object.__getattribute__(self, "__dict__").get("broken", ()):
            raise ConnectionError(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("verb", ["mget", "yield_keys"])
def test_store_cannot_be_read(run: Styles, verb: str, caplog: pytest.LogCaptureFixture) -> None:
    """The turn goes on with the newest messages, without a call; later the summary is there again."""
    scribe, store, events = Scribe(), Broken(), Events()
    summarize = create_history_preprocessor(scribe, store=store, **SMALL)
    messages = talk(60)
    run(summarize, messages, S1)
    calls = len(scribe.prompts)
    store.broken = {verb}
    view = run(summarize, messages, {**S1, "callbacks": [events]})
    assert view == messages[-len(view) :]
    assert events.notes == ["summaries cannot be read: ConnectionError"]
    assert "cannot be read" in caplog.text
    store.broken = set()
    assert "FACT Nemo" in run(summarize, messages, S1)[0].text
    assert len(scribe.prompts) == calls


def test_store_cannot_be_written(run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """The summary serves its turn; it is reported, and written again at the next one."""
    store, events = Broken("mset"), Events()
    summarize = create_history_preprocessor(Scribe(), store=store, **SMALL)
    view = run(summarize, talk(60), {**S1, "callbacks": [events]})
    assert "FACT Nemo" in view[0].text
    assert set(events.notes) == {"summary not stored: ConnectionError"}
    assert "was not stored" in caplog.text
    store.broken = set()
    run(summarize, talk(60), S1)
    assert len(store.store) == 1


def test_call_styles() -> None:
    """The sync path calls `invoke` of the model, the async path `ainvoke`: real async."""
    for style, expected in (("invoke", "sync"), ("ainvoke", "async")):
        scribe = Scribe()
        Styles(style)(create_history_preprocessor(scribe, **SMALL), talk(60), S1)
        assert set(scribe.styles) == {expected}


async def test_counter_of_the_caller_does_not_block() -> None:
    """On an event loop a slow token counter runs in a thread."""
    threads = set()

    def count(messages: Any) -> int:
        threads.add(threading.current_thread())
        return 10 * len(messages)

    await create_history_preprocessor(Scribe(), token_counter=count, **SMALL).ainvoke(talk(60), S1)
    assert threading.main_thread() not in threads


async def test_cancelled_while_summarizing() -> None:
    """A cancelled turn ends at once; nothing half-done is stored, and the next turn is a good one."""
    scribe, store = Scribe(delay=60), InMemoryStore()
    summarize = create_history_preprocessor(scribe, store=store, **SMALL)
    task = asyncio.create_task(summarize.ainvoke(talk(60), S1))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not store.store
    scribe.delay = 0.0
    assert "FACT Nemo" in (await summarize.ainvoke(talk(60), S1))[0].text


def test_models_of_both_kinds(run: Styles) -> None:
    """A string model, a chat model and a function each summarize."""
    for model in (
        FakeListLLM(responses=["Nemo."]),
        FakeListChatModel(responses=["Nemo."]),
        lambda _: AIMessage("Nemo."),
    ):
        view = run(create_history_preprocessor(model, **SMALL), talk(60), S1)
        assert "\n> Nemo.\n" in view[0].text


def test_trace(run: Styles) -> None:
    """The model's call nests under the preprocessor's run and is tagged so that its tokens are not streamed on."""
    events = Events()
    run(create_history_preprocessor(Scribe(), **SMALL), talk(60), {**S1, "callbacks": [events]})
    (_, parent) = next(value for value in events.runs.values() if value[0] == "model")
    assert events.runs[parent][0] == "summarize"
    assert "nostream" in events.tags


def test_event_of_a_good_turn(run: Styles) -> None:
    """The event counts what is summarized, kept and dropped, without content."""
    events = Events()
    view = run(create_history_preprocessor(Scribe(), **SMALL), talk(60), {**S1, "callbacks": [events]})
    event = events.heard[-1]
    assert event["summarized"] + event["kept"] - 1 == 60
    assert event["dropped"] == 0
    assert event["tokens"]["summary"] > 0
    assert event["kept"] == len(view)
    assert "word" not in str(event)


def test_long_summary_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """A model that does not keep to the length: its summary is cut at twice the length, logged, and the view fits."""
    summarize = create_history_preprocessor(Scribe(say="blah " * 5000), **SMALL)
    view = summarize.invoke(talk(60), S1)
    assert approximate_tokens(view) <= 600
    assert "[...]" in view[0].text
    assert "was cut" in caplog.text


def test_nothing_is_logged_in_a_good_turn(run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """No news is good news."""
    with caplog.at_level(logging.INFO, logger="langchain_memkit"):
        run(create_history_preprocessor(Scribe(), **SMALL), talk(60), S1)
    assert not caplog.records


def test_question_longer_than_everything(run: Styles) -> None:
    """The newest question is in the view even if it alone is over the budget; all before it is summarized."""
    scribe = Scribe()
    question = HumanMessage(marked(50, "word " * 3000))
    view = run(create_history_preprocessor(scribe, **SMALL), [*talk(50), question], S1)
    assert view[-1] is question
    assert sorted(scribe.seen) == list(range(50))
