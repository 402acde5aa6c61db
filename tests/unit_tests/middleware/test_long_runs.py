"""Agents that run long: a loop that outgrows its budget keeps its calls, and reads shortened results again."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ContextEditingMiddleware
from langchain.agents.middleware.context_editing import ClearToolUsesEdit
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import (
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    VectorMemory,
    create_history_preprocessor,
    create_trim_preprocessor,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.tokens import approximate_tokens, count_tool_tokens
from testkit.conversations import refused
from testkit.examples import examples
from testkit.styles import Styles

BUDGET = 32_000
DONE = "All pages are read."


def code_of(n: int) -> str:
    """What stands in the middle of a page, and on no other."""
    return f"code-{n * 7919 % 100_003}"


def page(n: int) -> str:
    """Returns a page of 20 kB."""
    filler = "The rest of this page is about nothing in particular.\n" * 180
    return f"Page {n} begins here.\n{filler}The code of page {n} is {code_of(n)}.\n{filler}"


class Reader(Scripted):
    """Calls the tool for the first page that it was not given a call of yet, and is done when there is none."""

    pages: int = 50

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        self.calls.append(list(messages))
        asked = [call["args"]["n"] for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
        n = next((n for n in range(self.pages) if n not in asked), None)
        is_next_turn = bool(asked) and not isinstance(messages[-1], ToolMessage)
        if n is None or is_next_turn:
            return AIMessage(DONE)
        return AIMessage("", tool_calls=[{"name": "page", "args": {"n": n}, "id": f"page-{n}"}])


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(agent, value, config)` in both styles."""
    return Styles(request.param)


@pytest.fixture
def histories() -> Iterator[Any]:
    """A factory of histories."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


def changes_of_prefix(calls: Sequence[Sequence[BaseMessage]]) -> int:
    """How often what a provider has cached of the prompt was no longer its beginning."""
    pairs = itertools.pairwise(calls)
    return sum([m.text for m in before] != [m.text for m in after[: len(before)]] for before, after in pairs)


def preprocessor_of(kind: str, asked: list[str]) -> Any:
    """A preprocessor of each kind, whose summaries are counted."""
    if kind == "trim":
        return create_trim_preprocessor(BUDGET)

    def summarize(prompt: Any) -> str:
        asked.append(str(prompt))
        return "They read pages."

    return create_history_preprocessor(RunnableLambda(summarize), max_tokens=BUDGET)


@pytest.mark.parametrize("edited", [False, True], ids=["alone", "with ContextEditingMiddleware"])
@pytest.mark.parametrize("kind", ["trim", "history"])
def test_a_loop_keeps_its_calls(histories: Any, run: Styles, kind: str, edited: bool) -> None:
    """Each page is read once, within the budget, with no half group; the turn after it does not wait for summaries."""
    read_all(histories, run, kind, edited=edited, pages=int(os.environ.get("MEMKIT_PAGES", "50")))


def read_all(histories: Any, run: Styles, kind: str, *, edited: bool, pages: int) -> None:
    """Have an agent read all pages, and thank it."""
    asked: list[str] = []
    model = Reader(pages=pages)
    ours = MessageHistoryMiddleware(histories, preprocessor=preprocessor_of(kind, asked))
    theirs = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=BUDGET // 2, keep=3)])
    agent = create_agent(
        model, [page], middleware=[ours, theirs] if edited else [ours], system_prompt="Read carefully. " * 50
    )
    run(agent, asking("Read all pages."), {**CONFIG, "recursion_limit": 1000})
    assert len(model.calls) == pages + 1
    tools = count_tool_tokens([page])
    held = [approximate_tokens(call) + tools for call in model.calls]
    assert max(held) <= BUDGET
    assert [problem for call in model.calls for problem in refused(call)] == []
    changes = changes_of_prefix(model.calls)
    print(f"{pages} pages, {kind}, edited {edited}: at most {max(held)} tokens, prefix changed {changes} times")
    if not edited:
        assert changes <= pages // 3
    stored = histories("s1", "u1").messages
    assert [m.text for m in stored if isinstance(m, ToolMessage)] == [page(n) for n in range(pages)]
    before = len(asked)
    run(agent, asking("Thank you."), CONFIG)
    assert len(asked) - before <= 1
    assert approximate_tokens(model.calls[-1]) + tools <= BUDGET


def test_200_pages(histories: Any) -> None:
    """The lines that stand for results have room, and the beginning of the prompt changes as rarely."""
    read_all(histories, Styles("invoke"), "trim", edited=False, pages=200)


def test_read_results_is_a_choice(histories: Any) -> None:
    """A number, or the name of a tool, is refused."""
    with pytest.raises(ConfigurationError, match="read_results must be True or False, not 1"):
        MessageHistoryMiddleware(histories, read_results=1)  # type: ignore[arg-type]


def test_a_lone_result_that_is_too_long(histories: Any, run: Styles) -> None:
    """Its beginning and its end are shown with a mark between them, and all of it is stored."""
    text = "beginning " + "x y z " * 20_000 + " end"

    def page(n: int) -> str:
        """Returns a page."""
        return text

    model = Reader(pages=1)
    agent = create_agent(model, [page], middleware=[MessageHistoryMiddleware(histories, max_tokens=2000)])
    run(agent, asking("Read the page."), CONFIG)
    shown = model.shown[-1]
    assert re.match(r"beginning x y .*\n\[[\d,]+ characters are left out here\.\]\n.* end$", shown, re.DOTALL)
    assert 1500 < approximate_tokens(model.calls[-1]) + count_tool_tokens([page]) <= 2000
    assert histories("s1", "u1").messages[2].text == text


def test_what_is_piped_behind_sees_the_run(histories: Any, run: Styles) -> None:
    """A step of one's own behind the trimmer may shorten the results of the run as well."""

    def shorten(messages: list[BaseMessage]) -> list[BaseMessage]:
        return [m.model_copy(update={"content": m.text[:20]}) if isinstance(m, ToolMessage) else m for m in messages]

    model = Reader(pages=3)
    piped = create_trim_preprocessor(BUDGET) | shorten
    agent = create_agent(model, [page], middleware=[MessageHistoryMiddleware(histories, preprocessor=piped)])
    run(agent, asking("Read all pages."), CONFIG)
    assert [m.text for m in model.calls[-1] if isinstance(m, ToolMessage)] == [page(n)[:20] for n in range(3)]
    assert len(histories("s1", "u1").messages[2].text) > 10_000


def test_recall_is_not_filled_with_pages(histories: Any, run: Styles) -> None:
    """A run of 50 pages becomes one record for each call, of what was called and how the page begins."""
    recall = VectorMemory.factory(histories, DeterministicFakeEmbedding(size=8))
    ours = MessageHistoryMiddleware(histories, max_tokens=BUDGET, memories=[recall])
    agent = create_agent(Reader(pages=50), [page], middleware=[ours])
    run(agent, asking("Read all pages."), {**CONFIG, "recursion_limit": 1000})
    records = recall("s1", "u1").search("page", k=1000)
    print(f"{len(records)} records of 50 pages")
    assert 50 <= len(records) <= 60


# -- reading a shortened result again


def read(call_id: str, word: str | None = None, n: int = 0) -> AIMessage:
    """A call of the tool."""
    args = {"call_id": call_id} if word is None else {"call_id": call_id, "word": word}
    return AIMessage("", tool_calls=[{"name": "read_result", "args": args, "id": f"read-{n}"}])


def results(call: Sequence[BaseMessage], name: str = "read_result") -> list[str]:
    """The results of a tool."""
    return [m.text for m in call if isinstance(m, ToolMessage) and m.name == name]


@pytest.mark.parametrize("later", [False, True], ids=["in the run", "in a later turn"])
@pytest.mark.parametrize("saved", [False, True], ids=["no saver", "saver"])
def test_questions_about_shortened_results(histories: Any, run: Styles, later: bool, saved: bool) -> None:
    """Each of the codes in the middle of pages is read again by call id and word, from state or transcript."""
    choose, count = random.Random(3), examples(20)
    pages: list[Any] = [
        AIMessage("", tool_calls=[{"name": "page", "args": {"n": n}, "id": f"page-{n}"}]) for n in range(count)
    ]
    order = choose.sample(range(count), count)
    questions = [read(f"page-{n}", "the code", n) for n in order]
    script = [*pages, DONE, *questions, DONE] if later else [*pages, *questions, DONE]
    model = Scripted(script=script)
    ours = MessageHistoryMiddleware(histories, max_tokens=BUDGET, read_results=True)
    agent = create_agent(model, [page], middleware=[ours], checkpointer=InMemorySaver() if saved else None)
    run(agent, asking("Read all pages."), {**CONFIG, "recursion_limit": 1000})
    if later:
        run(agent, asking("What are the codes?"), {**CONFIG, "recursion_limit": 1000})
    found = results(model.calls[-1])
    assert found == [f"The code of page {n} is {code_of(n)}." for n in order]
    shortened = [m.text for m in model.calls[count - 1] if isinstance(m, ToolMessage)]
    assert any(
        re.search(r'^\[Shortened: .* read_result\(call_id="page-0"\) shows them\.\]$', text) for text in shortened
    )


def test_what_cannot_be_read(histories: Any, run: Styles) -> None:
    """Results of other sessions and users, and of sessions that were cleared or purged, are not there."""
    model = Scripted(script=[AIMessage("", tool_calls=[{"name": "page", "args": {"n": 7}, "id": "page-7"}]), DONE])
    ours = MessageHistoryMiddleware(histories, max_tokens=BUDGET, read_results=True)
    agent = create_agent(model, [page], middleware=[ours], checkpointer=InMemorySaver())
    run(agent, asking("Read page 7."), CONFIG)

    def asked(user: str, session: str) -> str:
        model.script = [read("page-7", "code"), DONE]
        config = {"configurable": {"session_id": session, "thread_id": f"{user}-{session}", "user_id": user}}
        run(agent, asking("And now?"), config)
        return results(model.calls[-1])[-1]

    missing = "There is no result of a call with the id 'page-7'."
    assert asked("u1", "s1") == f"The code of page 7 is {code_of(7)}."
    assert asked("u1", "s2") == missing
    assert asked("u2", "s1") == missing
    histories("s1", "u1").clear()
    assert asked("u1", "s1") == missing


def test_a_cleared_session_is_not_read_from_the_state(histories: Any, run: Styles) -> None:
    """The state of the thread still holds the result of a turn that was cleared; the tool does not give it."""
    model = Scripted(script=[AIMessage("", tool_calls=[{"name": "page", "args": {"n": 7}, "id": "page-7"}]), DONE])
    ours = MessageHistoryMiddleware(histories, max_tokens=BUDGET, read_results=True)
    agent = create_agent(model, [page], middleware=[ours], checkpointer=InMemorySaver())
    run(agent, asking("Read page 7."), CONFIG)
    histories("s1", "u1").clear()
    model.script = [read("page-7", "code"), DONE]
    run(agent, asking("And now?"), CONFIG)
    assert results(model.calls[-1]) == ["There is no result of a call with the id 'page-7'."]


def test_of_equal_call_ids_the_newest_is_read(histories: Any, run: Styles) -> None:
    """Some models count their calls from the beginning in each turn."""
    script: list[Any] = []
    for n in (1, 2):
        script += [AIMessage("", tool_calls=[{"name": "page", "args": {"n": n}, "id": "call-0"}]), DONE]
    model = Scripted(script=[*script, read("call-0", "code"), DONE])
    ours = MessageHistoryMiddleware(histories, max_tokens=BUDGET, read_results=True)
    agent = create_agent(model, [page], middleware=[ours])
    for text in ("Page 1?", "Page 2?", "What was the code?"):
        run(agent, asking(text), CONFIG)
    assert results(model.calls[-1]) == [f"The code of page 2 is {code_of(2)}."]


# -- one budget


def test_system_prompt_and_tools_are_counted(histories: Any, run: Styles) -> None:
    """What the request holds besides is part of the budget, from the first call on."""
    for n in range(40):
        histories("s1", "u1").add_messages([*asking_of(n)])
    model = Scripted()
    agent = create_agent(
        model,
        [page],
        system_prompt="Be kind. " * 200,
        middleware=[MessageHistoryMiddleware(histories, max_tokens=1000)],
    )
    run(agent, asking("And now?"), CONFIG)
    held = approximate_tokens(model.calls[0]) + count_tool_tokens([page])
    assert 900 < held <= 1000


def asking_of(n: int) -> list[Any]:
    """A turn of some 30 tokens."""
    return [HumanMessage(f"Question {n}: " + "why " * 10), AIMessage(f"Answer {n}: " + "so " * 10)]


def test_what_other_middleware_adds_is_reserved_next(
    histories: Any, run: Styles, caplog: pytest.LogCaptureFixture
) -> None:
    """An overrun that nobody could know of is said once, and from the next call on there is room for it."""

    class Adds(AgentMiddleware[Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(system_message=SystemMessage("Be brief. " * 100)))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(system_message=SystemMessage("Be brief. " * 100)))

    for n in range(40):
        histories("s1", "u1").add_messages([*asking_of(n)])
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories, max_tokens=1000), Adds()])
    for text in ("One?", "Two?", "Three?"):
        run(agent, asking(text), CONFIG)
    held = [approximate_tokens(call) for call in model.calls]
    assert held[0] > 1000
    assert max(held[1:]) <= 1000
    assert min(held[1:]) > 900
    assert caplog.text.count("tokens of max_tokens=1000") == 1


def test_a_long_history_without_a_limit(histories: Any, run: Styles, caplog: pytest.LogCaptureFixture) -> None:
    """A history that is longer than the model's own window is said once."""
    histories("s1", "u1").add_messages([HumanMessage("word " * 30_000), AIMessage("Yes.")])
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)])
    for _ in range(2):
        run(agent, asking("And now?"), CONFIG)
    assert len(re.findall(r"a history of 37\d{3} tokens is given to a model that takes 32000", caplog.text)) == 1
    asyncio.run(histories.aclose())


@pytest.mark.parametrize("changes", ["a space", "another system prompt"])
def test_what_other_middleware_replaces_is_no_excess(histories: Any, run: Styles, changes: str) -> None:
    """Messages that are changed on their way are not counted as added: each call is given as much of the past."""

    class Changes(AgentMiddleware[Any, Any]):
        def changed(self, request: Any) -> Any:
            if changes == "a space":
                messages = [m.model_copy(update={"content": f"{m.text} "}) for m in request.messages]
                return request.override(messages=messages)
            return request.override(system_message=SystemMessage("Be short. " * 40))

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(self.changed(request))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(self.changed(request))

    for n in range(60):
        histories("s1", "u1").add_messages([*asking_of(n)])
    model = Scripted()
    ours = MessageHistoryMiddleware(histories, max_tokens=1500)
    agent = create_agent(model, [], middleware=[ours, Changes()], system_prompt="Be kind. " * 40)
    for text in ("One?", "Two?", "Three?", "Four?"):
        run(agent, asking(text), CONFIG)
    held = [approximate_tokens(call) for call in model.calls]
    assert min(held) > 1300
    assert max(held[1:]) <= 1500


def test_what_is_added_for_one_user_costs_no_other(histories: Any, run: Styles) -> None:
    """Documents that a middleware adds to the calls of one user take no room from another's past."""

    class ForAdmins(AgentMiddleware[Any, Any]):
        def changed(self, request: Any) -> Any:
            added = [HumanMessage("document " * 3000)] if request.messages[-1].text.startswith("Admin") else []
            return request.override(messages=[*added, *request.messages])

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(self.changed(request))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(self.changed(request))

    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories, max_tokens=1500), ForAdmins()])
    for user, text in (("bob", "I am Bob."), ("admin", "Admin?"), ("bob", "Who am I?"), ("carol", "I am Carol.")):
        run(agent, asking(text), {"configurable": {"session_id": user, "thread_id": user, "user_id": user}})
    assert model.calls[2][0].text == "I am Bob."
    assert len(model.calls[3]) == 1


def test_a_long_result_is_read_in_pieces(histories: Any, run: Styles) -> None:
    """Each piece says where the next one begins, and a result of the tool is never said to be read by itself."""
    text = "".join(f"[{n}]" for n in range(4000))

    def page(n: int) -> str:
        """Returns a page."""
        return text

    starts = [0, 6000, 12_000, 18_000]
    calls = [
        AIMessage("", tool_calls=[{"name": "read_result", "args": {"call_id": "c", "start": start}, "id": f"r{start}"}])
        for start in starts
    ]
    first = AIMessage("", tool_calls=[{"name": "page", "args": {"n": 0}, "id": "c"}])
    model = Scripted(script=[first, *calls, DONE])
    ours = MessageHistoryMiddleware(histories, max_tokens=3000, read_results=True)
    run(create_agent(model, [page], middleware=[ours]), asking("Read it."), CONFIG)
    stored = [m.text for m in histories("s1", "u1").messages if isinstance(m, ToolMessage) and m.name == "read_result"]
    assert stored[0].endswith(f"\n[{len(text) - 6000:,} more characters: give start=6000.]")
    assert "".join(piece.partition("\n")[0] for piece in stored) == text
    assert re.search(r'left out here\. read_result\(call_id="c", start=\d+\) shows them', model.calls[1][-1].text)
    shown = [m.text for call in model.calls for m in call if isinstance(m, ToolMessage)]
    assert not any('call_id="r' in each for each in shown)


def test_results_of_past_turns_give_way_from_the_oldest(histories: Any, run: Styles) -> None:
    """As much as fits stays whole, the newest first, and what is shortened can be read again."""
    for n in range(10):
        call: Any = {"name": "page", "args": {"n": n}, "id": f"page-{n}"}
        result = ToolMessage(f"Page {n}. " + "word " * 400, name="page", tool_call_id=f"page-{n}")
        histories("s1", "u1").add_messages(
            [HumanMessage(f"Page {n}?"), AIMessage("", tool_calls=[call]), result, AIMessage("Read.")]
        )
    model = Scripted()
    agent = create_agent(
        model, [], middleware=[MessageHistoryMiddleware(histories, max_tokens=4000, read_results=True)]
    )
    run(agent, asking("And now?"), CONFIG)
    shown = [m.text for m in model.calls[0] if isinstance(m, ToolMessage)]
    whole = [text.startswith("Page") for text in shown]
    assert whole == sorted(whole)
    assert 4 <= sum(whole) <= 8
    assert re.search(r'\. read_result\(call_id="page-\d"\) shows them\.\]$', shown[0])
    assert 3300 < approximate_tokens(model.calls[0]) <= 4000
