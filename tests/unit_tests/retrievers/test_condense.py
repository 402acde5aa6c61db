"""Follow-up questions through `CondenseQuestionRetriever`, in both styles: who decides, what a failing model costs."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_classic.chains import create_retrieval_chain
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_memkit import ChatHistoryMemory, InMemoryChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.retrievers import CondenseQuestionRetriever, StandaloneQuestion, create_history_aware_retriever
from langchain_memkit.testing import FakeChatModel

Run = Callable[..., Any]
TALK: list[BaseMessage] = [HumanMessage("Who is the president of France?"), AIMessage("Emmanuel Macron.")]
FOLLOW_UP = "How old is he?"
GOOD = "How old is Emmanuel Macron?"


class Recorder:
    """A runnable's function that keeps what it was given."""

    def __init__(self, answer: Any = GOOD) -> None:
        self.calls: list[Any] = []
        self.answer = answer

    def __call__(self, given: Any) -> Any:
        """The answer."""
        self.calls.append(given)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(given) if callable(self.answer) else self.answer


class Echo(Recorder):
    """A retriever that finds what it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda text: [Document(text, metadata={"page": 1})])


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(retriever, "invoke", ...)` in both styles."""

    def call(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return call


def over(inner: Any, llm: Any = None, **options: Any) -> CondenseQuestionRetriever:
    """A retriever over a function."""
    return CondenseQuestionRetriever(retriever=inner, llm=llm, **options)


def follow_up(question: str = FOLLOW_UP, history: Any = TALK) -> dict[str, Any]:
    """The input of a turn."""
    return {"input": question, "chat_history": history}


# ------------------------------------------------------------------------------------------------- left as they are

UNRELATED = [
    ("human", "Can you recommend a good science fiction novel?"),
    ("ai", "Dune by Frank Herbert is a classic of the genre."),
    ("human", "How long is the audiobook?"),
    ("ai", "It runs for about 21 hours."),
]
STAND_ALONE = [
    "Who is the president of France?",
    "what is the boiling point of water at high altitude?",
    "Explain the difference between TCP and UDP.",
    'Who wrote "Pride and Prejudice"?',
    "Thanks! Now, where can tourists swim near Lisbon?",
    "\tWhat   is the GDP of Norway ?\n",
    "Wie hoch ist der Eiffelturm?",
]


def obedient(messages: list[BaseMessage]) -> str:
    """A model that takes the latest question to stand alone, and returns it a little tidied."""
    return " ".join(messages[-1].text.partition("Latest question:\n> ")[2].partition("\n\nDo not")[0].split())


@pytest.mark.parametrize("question", STAND_ALONE)
def test_what_the_model_leaves_as_it_is_is_searched_for_as_it_was(run: Run, question: str) -> None:
    """After another topic: one call of the model, and byte for byte what was asked for the inner retriever."""
    inner, model = Echo(), Recorder(obedient)
    found = run(over(inner, model), "invoke", follow_up(question, UNRELATED))[0].metadata["memkit_question"]
    assert inner.calls == [question] == [found["question"]]
    assert not found["rewritten"]
    assert (found["by"], found["reason"]) == ("model", "the model says that it stands alone")
    assert len(model.calls) == 1


@pytest.mark.parametrize("history", [[], None, [AIMessage("Hello!")]])
@pytest.mark.parametrize("mode", [None, "llm", "weighted", "off"])
def test_without_history_no_model_is_called(run: Run, mode: Any, history: Any) -> None:
    """A first question goes through untouched, in every mode, as a string and in a dict."""
    inner, model = Echo(), Recorder()
    retriever = over(inner, model, mode=mode)
    run(retriever, "invoke", FOLLOW_UP)
    run(retriever, "invoke", {"input": FOLLOW_UP})
    run(retriever, "invoke", {"input": HumanMessage(FOLLOW_UP), "chat_history": history})
    assert inner.calls == [FOLLOW_UP] * 3
    assert model.calls == []
    assert run(retriever, "condense_question", FOLLOW_UP).by == ("off" if mode == "off" else "original")


def test_empty_question_is_searched_as_it_is(run: Run) -> None:
    """There is nothing to rewrite."""
    inner, model = Echo(), Recorder()
    run(over(inner, model), "invoke", follow_up("  "))
    assert (inner.calls, model.calls) == (["  "], [])


# --------------------------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize("mode", [None, "llm"])
def test_the_model_rewrites_every_follow_up(run: Run, mode: Any) -> None:
    """In one call each, also what looks complete; what it returns unchanged is the original, byte for byte."""
    inner, model = Echo(), Recorder()
    retriever = over(inner, model, mode=mode)
    found = run(retriever, "condense_question", FOLLOW_UP, TALK)
    assert (found.question, found.original, found.rewritten, found.by) == (GOOD, FOLLOW_UP, True, "model")
    run(retriever, "invoke", follow_up())
    assert inner.calls == [GOOD]
    assert len(model.calls) == 2
    question = "Where was Barack Obama born? "
    model.answer = "where was Barack  Obama born"
    found = run(retriever, "condense_question", question, TALK)
    assert (found.question, found.by, found.rewritten) == (question, "model", False)
    assert len(model.calls) == 3


def test_weighted_never_asks(run: Run) -> None:
    """The terms of the conversation are added to every question, and not to the one that a person reads."""
    inner, model = Echo(), Recorder()
    retriever = over(inner, model, mode="weighted")
    found = run(retriever, "condense_question", FOLLOW_UP, TALK)
    assert found.by == "weighted"
    assert (found.question, found.rewritten) == (FOLLOW_UP, False)
    assert found.searched_for.startswith(FOLLOW_UP)
    assert "Macron" in found.searched_for
    assert run(retriever, "condense_question", "Where was Barack Obama born?", TALK).by == "weighted"
    assert model.calls == []


def test_without_a_model_terms_are_weighted(run: Run) -> None:
    """That is what no mode means then, in every language."""
    for question in ("Where was Barack Obama born?", FOLLOW_UP, "Wie alt ist er?"):
        unsaid, weighted = (
            run(over(Echo(), mode=mode), "condense_question", question, TALK) for mode in (None, "weighted")
        )
        assert (unsaid.by, unsaid.searched_for) == ("weighted", weighted.searched_for)


def test_off_is_the_inner_retriever(run: Run) -> None:
    """Not a document is changed; `k` counts."""
    pages = [Document(str(i)) for i in range(5)]
    found = run(over(lambda text: pages, Recorder(), mode="off", k=2), "invoke", follow_up())
    assert found == pages[:2]
    assert found[0] is pages[0]


class Ruled(CondenseQuestionRetriever):
    """A retriever with a rule of the application's."""

    check: Any = None

    def refusal(self, question: str, rewrite: str, earlier: Any) -> str | None:
        """Ask the application."""
        return self.check(question, rewrite, earlier) if self.check else super().refusal(question, rewrite, earlier)


def test_a_gate_of_the_app_is_refused() -> None:
    """A subclass with rules for the gate, which is gone, is told so, and the way that it tells works."""
    with pytest.raises(ConfigurationError, match=r"Gated has stands_alone, .*give a function as llm="):

        class Gated(CondenseQuestionRetriever):
            def stands_alone(self, question: str, history: Any) -> tuple[bool, str]:
                raise AssertionError

    model = Recorder()

    def long_ones_stand_alone(messages: list[BaseMessage]) -> Any:
        question = obedient(messages)
        return question if len(question.split()) > 4 else model(messages)

    retriever = over(Echo(), long_ones_stand_alone)
    assert retriever.condense_question(FOLLOW_UP, TALK).question == GOOD
    question = "Where was Barack Obama born?"
    assert retriever.condense_question(question, TALK).question == question
    assert len(model.calls) == 1


# ------------------------------------------------------------------------------------------------------ fault matrix

ASKED = 'Did he meet Angela Merkel 3 times before "Brexit"?'
FAULTS: dict[str, tuple[Any, str]] = {
    "answers": ("Emmanuel Macron is 48.", "it answers instead of asking"),
    "answers in two sentences": ("How old is Macron? He is 48.", "it says more than one sentence"),
    "nothing": ("", "it is empty"),
    "blanks": (" \n ", "it is empty"),
    "a sermon": ("How old is he, " + "and how " * 100 + "?", "it is too long"),
    "refuses": ("I'm sorry, I can't help with that.", "it refuses or asks back"),
    "repeats": ("Who is the president of France?", "it repeats an earlier question"),
    "None": (lambda messages: None, "the model failed: TypeError"),
    "a dict": (lambda messages: {"question": GOOD}, "the model failed: TypeError"),
    "a list": (lambda messages: [GOOD], "the model failed: TypeError"),
    "an error": (ZeroDivisionError("bug"), "the model failed: ZeroDivisionError"),
    "a time-out of its own": (TimeoutError("slow"), "the model took too long"),
    "a stop": (StopIteration("odd"), "the model failed: "),
    "blank message": (AIMessage(" "), "it is empty"),
    "cut off": (AIMessage("How old is Emma", response_metadata={"finish_reason": "length"}), "it was cut off"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_model_changes_nothing_for_the_user(run: Run, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """The terms are weighted instead; one warning, no exception."""
    answer, why = FAULTS[fault]
    retriever, plain = over(Echo(), Recorder(answer)), over(Echo())
    with caplog.at_level(logging.WARNING):
        found = run(retriever, "condense_question", FOLLOW_UP, TALK)
    assert (found.by, found.question) == ("weighted", FOLLOW_UP)
    assert found.searched_for == plain.condense_question(FOLLOW_UP, TALK).searched_for != FOLLOW_UP
    assert why in found.reason
    assert len(caplog.records) == 1
    assert FOLLOW_UP not in caplog.text
    pages = [d.page_content for d in run(retriever, "invoke", follow_up())]
    assert pages == [d.page_content for d in plain.invoke(follow_up())]


@pytest.mark.parametrize(
    ("rewrite", "why"),
    [
        ('Did Macron meet Angela Merkel before "Brexit"?', "number"),
        ("Did Macron meet Angela Merkel 3 times before the vote?", "quotation"),
        ('Did Macron meet the chancellor 3 times before "Brexit"?', "name"),
    ],
)
def test_what_loses_something_is_refused(run: Run, rewrite: str, why: str) -> None:
    """A number, a quoted name, a capitalised name."""
    found = run(over(Echo(), Recorder(rewrite)), "condense_question", ASKED, TALK)
    assert found.by == "weighted"
    assert found.reason == f"the rewrite was refused: it lost a {why}"
    kept = 'Did Macron meet Angela Merkel 3 times before "Brexit"?'
    assert run(over(Echo(), Recorder(kept)), "condense_question", ASKED, TALK).question == kept


@given(st.text(max_size=300) | st.dictionaries(st.text(), st.text()) | st.none() | st.binary(), st.text(max_size=80))
@settings(max_examples=200, deadline=None)
def test_whatever_a_model_returns(answer: Any, question: str) -> None:
    """Any text, and what is none, for any question: something is searched for, and what was asked is in it."""
    logging.disable(logging.WARNING)
    try:
        found = over(Echo(), Recorder(answer), mode="llm").condense_question(question, TALK)
    finally:
        logging.disable(logging.NOTSET)
    assert found.original == question
    assert found.question.strip() or not question.strip()
    assert found.by == "model" or found.question.startswith(question)


def test_what_is_left_as_it_was_though_it_points_back(run: Run) -> None:
    """A model that returns "How old is he?" does not end the search: the terms are weighted."""
    found = run(over(Echo(), Recorder(FOLLOW_UP)), "condense_question", FOLLOW_UP, TALK)
    assert (found.by, found.reason) == ("weighted", "the rewrite was refused: it still points back")
    assert found.question == FOLLOW_UP
    assert "Macron" in found.searched_for


def test_checks(run: Run) -> None:
    """Any function may check, none at all, and one that fails costs the rewrite and not the search."""
    asked: list[Any] = []

    def strict(question: str, rewrite: str, earlier: Any) -> str | None:
        asked.append((question, rewrite, list(earlier)))
        return "too French" if "Macron" in rewrite else None

    def found(answer: str, check: Any) -> StandaloneQuestion:
        retriever = Ruled(retriever=Echo(), llm=Recorder(answer), check=check)
        return run(retriever, "condense_question", FOLLOW_UP, TALK)  # type: ignore[no-any-return]

    assert found(GOOD, strict).reason == "the rewrite was refused: too French"
    assert found("How old is the president?", strict).by == "model"
    assert asked == [
        (FOLLOW_UP, GOOD, ["Who is the president of France?"]),
        (FOLLOW_UP, "How old is the president?", ["Who is the president of France?"]),
    ]
    assert found("Emmanuel Macron age 48", lambda *_: None).question == "Emmanuel Macron age 48"
    assert found(" \n", lambda *_: None).reason == "the rewrite was refused: it is empty"
    assert found(GOOD, lambda *_: 1 / 0).by == "weighted"


def test_slow_model_is_given_up(run: Run) -> None:
    """After `timeout` seconds, also where it blocks its thread."""
    given_up, ended = threading.Event(), list[str]()

    async def later(messages: Any) -> str:
        await asyncio.sleep(60)
        return GOOD

    def blocks(messages: Any) -> str:
        given_up.wait(60)
        ended.append(GOOD)
        return GOOD

    slow = run(over(Echo(), RunnableLambda(blocks, later), timeout=0.05), "condense_question", FOLLOW_UP, TALK)
    assert not ended
    given_up.set()
    assert (slow.by, slow.reason) == ("weighted", "the model took too long")
    assert slow.seconds >= 0.05
    quick = run(over(Echo(), Recorder(), timeout=None), "condense_question", FOLLOW_UP, TALK)
    assert quick.by == "model"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()])
def test_what_ends_the_program_passes(error: BaseException) -> None:
    """An interruption is no failure of the model."""

    async def fails(messages: Any) -> str:
        raise error

    retriever = over(Echo(), RunnableLambda(Recorder(error), fails))
    with pytest.raises(type(error)):
        retriever.condense_question(FOLLOW_UP, TALK)
    if isinstance(error, asyncio.CancelledError):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(retriever.acondense_question(FOLLOW_UP, TALK))


def test_cancelling_the_caller_cancels_the_model() -> None:
    """Nothing is searched for then."""
    inner, begun = Echo(), asyncio.Event()

    async def later(messages: Any) -> str:
        begun.set()
        await asyncio.sleep(60)
        return GOOD

    async def main() -> None:
        task = asyncio.create_task(over(inner, RunnableLambda(Recorder(), later)).ainvoke(follow_up()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert inner.calls == []


def test_errors_of_the_inner_retriever_are_raised(run: Run) -> None:
    """They are not the model's."""

    def fails(text: str) -> list[Document]:
        raise ConnectionError(text)

    with pytest.raises(ConnectionError):
        run(over(fails, Recorder()), "invoke", follow_up())
    with pytest.raises(TypeError, match="must return documents, not str"):
        run(over(lambda text: ["page"], Recorder()), "invoke", follow_up())


# ----------------------------------------------------------------------------------------------------- models, prompts


def test_chat_and_string_models(run: Run) -> None:
    """FakeChatModel, which notes what it is told, and models of LangChain's own."""
    fake = FakeChatModel()
    assert run(over(Echo(), fake), "condense_question", FOLLOW_UP, TALK).by == "weighted"  # "Noted." asks nothing
    assert len(fake.calls) == 1
    assert [type(message) for message in fake.calls[0]] == [HumanMessage]
    failing = over(Echo(), FakeChatModel(error=ConnectionError("down")))
    assert run(failing, "condense_question", FOLLOW_UP, TALK).reason == "the model failed: ConnectionError"
    for model in (FakeListChatModel(responses=[GOOD]), FakeListLLM(responses=[f"\nStandalone question: {GOOD}\n"])):
        assert run(over(Echo(), model), "condense_question", FOLLOW_UP, TALK).question == GOOD


class Offering(FakeListChatModel):
    """A chat model with structured output: its answer is what `result` says."""

    result: Any = None
    asked: list[str] = []  # noqa: RUF012  # a field

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, **kwargs: Any) -> Any:
        """Returns what was set."""
        assert schema["title"] == "StandaloneQuestion"

        def answer(messages: Any) -> Any:
            self.asked.append("structured")
            if isinstance(self.result, Exception):
                raise self.result
            return self.result

        return RunnableLambda(answer)


class Refused(Exception):  # noqa: N818
    """A server's refusal."""

    status_code = 400


@pytest.mark.parametrize(
    ("result", "expected", "calls"),
    [
        ({"raw": AIMessage(""), "parsed": {"question": GOOD}, "parsing_error": None}, GOOD, 1),
        (
            {"raw": AIMessage("", response_metadata={"stop_reason": "max_tokens"}), "parsed": {"question": "How"}},
            None,
            2,
        ),
        ({"raw": AIMessage(GOOD), "parsed": None, "parsing_error": ValueError()}, GOOD, 1),
        ({"raw": AIMessage(GOOD), "parsed": {"question": 7}, "parsing_error": None}, GOOD, 1),
        (NotImplementedError(), "How old is Macron?", 1),
        (Refused(), "How old is Macron?", 1),
        (ConnectionError(), None, 2),
        ({"raw": AIMessage("Macron."), "parsed": {"question": ""}, "parsing_error": None}, None, 2),
        (None, None, 2),
    ],
)
def test_structured_output(run: Run, result: Any, expected: str | None, calls: int) -> None:
    """Used where it is offered; where it is not done plain text is asked for, then and from then on."""
    model = Offering(responses=["How old is Macron?"], result=result, asked=[])
    retriever = over(Echo(), model)
    for question in (FOLLOW_UP, "How old is he now?"):
        found = run(retriever, "condense_question", question, TALK)
        if expected and question == FOLLOW_UP:
            assert found.question == expected
        elif not expected:
            assert found.by == "weighted"
    unsupported = isinstance(result, (NotImplementedError, Refused))
    assert len(model.asked) == (1 if unsupported else 2)
    model.asked.clear()
    run(over(Echo(), model, prompt="Make it whole."), "condense_question", FOLLOW_UP, TALK)
    assert model.asked == []


def test_prompts_and_limits(run: Run) -> None:
    """An instruction, a template, `n` and `max_tokens`; the model is given past questions, oldest first."""
    model = Recorder()
    talk = [*TALK, *(HumanMessage(f"Question number {i}?") for i in range(4))]
    run(over(Echo(), model, n=2), "condense_question", FOLLOW_UP, talk)
    run(over(Echo(), model, prompt="Make it whole.", max_tokens=1), "condense_question", FOLLOW_UP, talk)
    template = PromptTemplate.from_template("hi! {input} {chat_history}")
    run(over(Echo(), model, prompt=template), "condense_question", FOLLOW_UP, ["hi", "hi"])
    first, second, third = model.calls
    assert "number 2?" in first[0].text
    assert first[0].text.index("number 2?") < first[0].text.index("number 3?")
    assert "number 1?" not in first[0].text
    assert second[0].text.startswith("Make it whole.")
    assert third.to_string().startswith("hi! How old is he?")


# ----------------------------------------------------------------------------------------------------------- copies


def test_each_question_is_asked(run: Run) -> None:
    """No rewrite is kept: a model or a prompt that was changed, and what the run is configured with, count at once."""
    who = RunnableLambda(lambda _, config: f"How old is {config['configurable']['who']}?")
    retriever = over(Echo(), who)
    for name in ("Ann", "Bob", "Ann"):
        config = {"configurable": {"who": name}}
        assert run(retriever, "condense_question", FOLLOW_UP, TALK, config).question == f"How old is {name}?"
    first = over(Echo(), Recorder("How old is Ann?"))
    second = first.model_copy(update={"llm": RunnableLambda(Recorder("How old is Bob?"))})
    third = first.model_copy(update={"prompt": "Rewrite the question."})
    for made, name in ((first, "Ann"), (second, "Bob"), (first, "Ann"), (third, "Ann")):
        assert run(made, "condense_question", FOLLOW_UP, TALK).question == f"How old is {name}?"


def test_copies(run: Run) -> None:
    """A deep copy works."""
    retriever = over(Echo(), Recorder())
    run(retriever, "condense_question", FOLLOW_UP, TALK)
    assert run(deepcopy(retriever), "condense_question", FOLLOW_UP, TALK).question == GOOD


def test_concurrency() -> None:
    """200 calls from 16 threads and 200 at once on a loop: each gets its own question's documents."""
    model = Recorder(lambda messages: obedient(messages).replace("he ", "Macron "))
    retriever = over(Echo(), model)
    inputs = [follow_up(f"How old is he in {2000 + i % 50}?") for i in range(200)]

    def right(given: dict[str, Any], found: list[Document]) -> bool:
        return found[0].page_content == given["input"].replace("he ", "Macron ") and len(found) == 1

    with ThreadPoolExecutor(16) as pool:
        assert all(right(given, found) for given, found in zip(inputs, pool.map(retriever.invoke, inputs), strict=True))

    async def at_once() -> list[list[Document]]:
        return await asyncio.gather(*(retriever.ainvoke(given) for given in inputs))

    assert all(right(given, found) for given, found in zip(inputs, asyncio.run(at_once()), strict=True))


# ------------------------------------------------------------------------------------------------- what is told of it


class Events(BaseCallbackHandler):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.runs: list[tuple[str, str]] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """An event."""
        self.events.append((name, data))

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        """A model that is a function."""
        self.runs.append((kwargs["name"], str(kwargs["parent_run_id"])))

    def on_retriever_start(self, serialized: Any, query: str, *, run_id: Any, **kwargs: Any) -> None:
        """The retriever."""
        self.runs.append((query, str(run_id)))


def test_metadata_and_event(run: Run) -> None:
    """Each document, a copy, holds the fields, and a handler hears them; the model's call is a part of the run."""
    pages = [Document("a", metadata={"page": 1}, id="1"), Document("b")]
    handler = Events()
    found = run(over(lambda text: pages, Recorder()), "invoke", follow_up(), {"callbacks": [handler]})
    told = found[0].metadata["memkit_question"]
    assert told == {
        "question": GOOD,
        "original": FOLLOW_UP,
        "rewritten": True,
        "by": "model",
        "reason": "the model rewrote it",
        "seconds": told["seconds"],
        "searched_for": GOOD,
    }
    assert [d.metadata["memkit_question"] for d in found] == [told, told]
    assert (found[0].id, found[0].metadata["page"]) == ("1", 1)
    assert pages == [Document("a", metadata={"page": 1}, id="1"), Document("b")]
    assert handler.events == [("memkit_condense_question", told)]
    (question, mine), *below = handler.runs
    assert question == FOLLOW_UP
    assert ("condense_question", mine) in below


def test_batch(run: Run) -> None:
    """Questions with and without history, each by itself, with `k`."""
    inputs: list[Any] = [FOLLOW_UP, follow_up(), {"input": "Why?"}]
    found = run(over(Echo(), Recorder()), "batch", inputs, k=1)
    assert [[d.page_content for d in documents] for documents in found] == [[FOLLOW_UP], [GOOD], ["Why?"]]


def test_in_a_chain(run: Run) -> None:
    """Piped behind a dict, as `create_history_aware_retriever` is; its schema says what it takes."""
    retriever = over(Echo(), Recorder())
    chain = RunnableLambda(lambda given: {"input": given["q"], "chat_history": TALK}) | retriever
    assert run(chain, "invoke", {"q": FOLLOW_UP})[0].page_content == GOOD
    assert {kind["type"] for kind in retriever.get_input_jsonschema()["anyOf"]} == {"string", "object"}


@pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")
def test_in_create_retrieval_chain(run: Run) -> None:
    """LangChain hands a retriever the question alone, anything else the conversation too."""
    retriever = over(Echo(), Recorder())
    for made, found in ((retriever, FOLLOW_UP), (retriever.with_config(run_name="aware"), GOOD)):
        output = run(create_retrieval_chain(made, lambda value: "48"), "invoke", follow_up())
        assert [document.page_content for document in output["context"]] == [found]


def test_history_aware_retriever_in_its_chain(run: Run) -> None:
    """In LangChain's chain it is handed the conversation; documents are the retriever's own; a 429 ends nothing."""
    prompt = ChatPromptTemplate([("placeholder", "{chat_history}"), ("human", "{input}")])
    for llm, searched in ((Recorder("no question"), "no question"), (Recorder(ConnectionError("429")), None)):
        inner = Echo()
        chain = create_retrieval_chain(
            create_history_aware_retriever(RunnableLambda(llm), RunnableLambda(inner), prompt), lambda value: "48"
        )
        context = run(chain, "invoke", follow_up())["context"]
        first = context[0].page_content
        assert first in inner.calls  # with the question as it was asked, if no model rewrote it, in either order
        assert context[0] == Document(first, metadata={"page": 1})
        assert searched is None or inner.calls == [searched]
        assert "president" in first or searched
    with pytest.raises(ValueError, match="prompt must take 'input'"):
        create_history_aware_retriever(RunnableLambda(llm), RunnableLambda(inner), ChatPromptTemplate(["hi"]))


def test_config_and_arguments_reach_the_inner_retriever(run: Run) -> None:
    """What is configured for the run, and arguments other than `k`."""
    seen: list[Any] = []

    def inner(text: str, config: Any, **kwargs: Any) -> list[Document]:
        seen.append((config["configurable"]["user"], kwargs))
        return []

    assert run(over(inner), "invoke", FOLLOW_UP, {"configurable": {"user": "u1"}}, tenant="t") == []
    assert seen == [("u1", {"tenant": "t"})]


# ----------------------------------------------------------------------------------------------------- bound histories


@pytest.mark.parametrize("kind", ["history", "memory", "foreign"])
def test_bound_to_a_conversation(run: Run, kind: str) -> None:
    """A string is enough; what is given with the question counts instead."""
    history: Any = SQLiteChatMessageHistory(":memory:", "s1")
    if kind == "foreign":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # core deprecates its own class
            history = InMemoryChatMessageHistory()
    bound = ChatHistoryMemory(history) if kind == "memory" else history
    inner, model = Echo(), Recorder()
    retriever = over(inner, model, history=bound)
    run(retriever, "invoke", FOLLOW_UP)
    history.add_messages(TALK)
    run(retriever, "invoke", FOLLOW_UP)
    run(retriever, "invoke", {"input": FOLLOW_UP})
    run(retriever, "invoke", follow_up(history=[]))
    assert inner.calls == [FOLLOW_UP, GOOD, GOOD, FOLLOW_UP]
    assert run(retriever, "condense_question", FOLLOW_UP).question == GOOD
    assert len(history.messages) == 2


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"question": "x"}, "key 'input'"),
        ({"input": 7}, "must be text"),
        (7, "must be text"),
        ({"input": "x", "chat_history": 7}, "list of messages"),
    ],
)
def test_wrong_input(run: Run, given: Any, problem: str) -> None:
    """What is no question is refused before anything is searched for."""
    inner = Echo()
    with pytest.raises(ConfigurationError, match=problem):
        run(over(inner), "invoke", given)
    assert inner.calls == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "llm"}, "needs an llm"),
        ({"mode": "sometimes"}, "mode must be 'llm' or"),
        ({"mode": "auto"}, 'gone.*leave mode= out.*mode="weighted" never'),
        ({"prompt": ""}, "no instruction"),
        ({"history": 7}, "chat history or a memory"),
        ({"n": 0}, "n"),
        ({"timeout": 0}, "timeout"),
        ({"k": 0}, "k"),
        ({"retreiver": 7}, "retreiver"),
        ({"retriever": None}, "retriever must be"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], problem: str) -> None:
    """Mistakes are named when the retriever is made."""
    with pytest.raises(ValueError, match=problem):
        CondenseQuestionRetriever(**{"retriever": Echo(), **options})


def test_errors_of_the_constructor_hold_no_secrets() -> None:
    """They name the argument, and nothing of what the others hold."""
    secret = FakeListChatModel(responses=["sk-secret"])
    for options in ({"prompt": ""}, {"history": 7}, {"n": 0}, {"timeout": -1}, {"nonsense": 1}, {"mode": "always"}):
        with pytest.raises(ConfigurationError, match=next(iter(options))) as failure:
            over(Echo(), secret, **options)
        assert "sk-secret" not in "".join(traceback.format_exception(failure.value))


def test_what_it_shows_holds_no_secrets() -> None:
    """Neither model nor history nor inner retriever are shown."""
    shown = repr(over(Echo(), FakeListChatModel(responses=["sk-secret"])))
    assert "sk-secret" not in shown
    assert "CondenseQuestionRetriever" in shown


class TestStandard(RetrieversIntegrationTests):
    """LangChain's own suite for retrievers, over a vector store."""

    @property
    def retriever_constructor(self) -> type[CondenseQuestionRetriever]:
        """Ours."""
        return CondenseQuestionRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        """Ten documents, bound to a conversation."""
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        store.add_texts([f"Page {i}" for i in range(10)])
        history = SQLiteChatMessageHistory(":memory:", "s1")
        history.add_messages(TALK)
        return {"retriever": store.as_retriever(), "history": history}

    @property
    def retriever_query_example(self) -> str:
        """A follow-up question."""
        return FOLLOW_UP
