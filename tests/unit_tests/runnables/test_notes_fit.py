"""One budget: whatever memories recall, the model is given no more than the preprocessor's `max_tokens`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_turn,
)
from langchain_memkit.base import Memory
from langchain_memkit.errors import ContextTooLargeError
from langchain_memkit.memories.preferences import PreferenceMemory
from langchain_memkit.messages.notes import Record, is_note, note_message, records_of
from langchain_memkit.messages.tokens import approximate_tokens, count_tool_tokens, resolve_counter
from langchain_memkit.messages.trimming import is_summary, turn_starts
from langchain_memkit.testing import FakeChatModel
from testkit.examples import examples

U1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
Messages = list[BaseMessage]


def count_letters(messages: Sequence[BaseMessage]) -> int:
    """A caller's own counter, which is not the default one."""
    return sum(5 + len(m.text) // 3 for m in messages)


class Notes(Memory):
    """A memory that recalls what it was made with, whatever is asked."""

    read_only = True

    def __init__(self, name: str, sizes: Sequence[int]) -> None:
        self.records = [Record(f"{name}{i}" + " fact" * size, about=name, memory=name) for i, size in enumerate(sizes)]

    def load(self, query: str = "") -> Messages:
        """Its records, in one note."""
        return [note_message(self.records)] if self.records else []

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Nothing."""

    def clear(self) -> None:
        """Nothing."""


def wishing(name: str, sizes: Sequence[int], wish: int) -> Notes:
    """A memory whose own limit is `wish` tokens."""
    kept: list[int] = []
    for size in sizes:
        if approximate_tokens([note_message(Notes(name, [*kept, size]).records)]) <= wish:
            kept.append(size)
    return Notes(name, kept)


@dataclass
class Case:
    """A conversation, the memories, and what asks the model."""

    door: str
    is_async: bool
    counter: Any
    max_tokens: int
    reserve: int
    summary: int | None  # words of the summary; None without one
    system: list[int]  # words of each system line
    turns: list[tuple[int, int]]  # words of question and answer
    question: int
    memories: list[tuple[list[int], int]]  # words of each record, and the wish
    nested: bool  # the last two memories are one composed memory
    loop: list[int]  # words of each tool's result

    def tokens(self, messages: Sequence[BaseMessage]) -> int:
        """The tokens of messages, one by one."""
        count = resolve_counter(self.counter)
        return sum(count([m]) for m in messages)

    @property
    def usable(self) -> int:
        """What is left beside the answer and the schemas of an agent's tools."""
        schemas = 0 if self.door != "agent" or self.counter is len else count_tool_tokens([look], self.tokens)
        return self.max_tokens - self.reserve - schemas

    def sources(self) -> list[Notes]:
        """The memories."""
        return [wishing("abc"[i], *memory) for i, memory in enumerate(self.memories)]

    def history(self) -> Messages:
        """The past."""
        past: Messages = [SystemMessage("rule" + " rule" * size) for size in self.system]
        for i, (asked, answered) in enumerate(self.turns):
            past += [HumanMessage(f"q{i}" + " ask" * asked), AIMessage(f"a{i}" + " say" * answered)]
        return past

    def preprocessor(self) -> Any:
        """The preprocessor."""
        given: Any = {"max_tokens": self.max_tokens, "reserve_tokens": self.reserve, "token_counter": self.counter}
        if self.summary is None:
            return create_trim_preprocessor(**given)
        return create_history_preprocessor(lambda prompt: "sum" + " up" * (self.summary or 0), **given)


cases = st.builds(
    Case,
    door=st.sampled_from(["chain", "agent", "agent", "by hand", "inside"]),
    is_async=st.booleans(),
    counter=st.sampled_from([None, "o200k_base", count_letters, len]),
    max_tokens=st.integers(30, 400) | st.integers(400, 2000),
    reserve=st.sampled_from([0, 0, 15]),
    summary=st.none() | st.none() | st.integers(0, 80),
    system=st.lists(st.integers(0, 30), max_size=2),
    turns=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=12),
    question=st.integers(0, 120),
    memories=st.lists(st.tuples(st.lists(st.integers(0, 120), max_size=8), st.integers(50, 1000)), max_size=3),
    nested=st.booleans(),
    loop=st.lists(st.integers(0, 120), max_size=4),
)


@tool
def look(at: int) -> str:
    """Looks something up."""
    return LOOKED[at]


LOOKED: dict[int, str] = {}


def step(at: int, size: int) -> tuple[AIMessage, ToolMessage]:
    """A step of an agent's run: a call of the tool, and its result."""
    call: Any = {"name": "look", "args": {"at": at}, "id": f"c{at}", "type": "tool_call"}
    result = ToolMessage("result" + " found" * size, name="look", tool_call_id=f"c{at}")
    return AIMessage("", tool_calls=[call]), result


def calls_of(case: Case) -> list[Messages]:
    """What the model is given in each call of one turn."""
    histories = SQLiteChatMessageHistory.factory(":memory:", token_counter=case.counter)
    past, question = case.history(), "Tell me" + " why" * case.question
    if past:
        histories("s1", "u1").add_messages(past)
    sources: list[Any] = [*case.sources()]
    if case.nested and len(sources) > 1:
        sources = [*sources[:-2], ComposedMemory(sources[-2], sources[-1])]
    fits, model = case.preprocessor(), FakeChatModel()
    options: Any = {"preprocessor": fits, "memories": sources}
    value: Any = question
    if case.door == "agent":
        LOOKED.clear()
        LOOKED.update({i: step(i, size)[1].text for i, size in enumerate(case.loop)})
        model = FakeChatModel(responses=[*(step(i, size)[0] for i, size in enumerate(case.loop)), "Done."])
        runnable: Any = create_agent(model, [look], middleware=[MessageHistoryMiddleware(histories, **options)])
        value = {"messages": [HumanMessage(question)]}
    elif case.door == "chain":
        runnable = create_runnable_with_message_history(model, histories, **options)
    elif case.door == "inside":  # the preprocessor is a step of the chain, and is given the note among the messages
        runnable = create_runnable_with_message_history(fits | model, histories, memories=sources)
    else:
        recalled = [message for source in sources for message in source.load(question)]
        runnable, value = fits | model, [*past, *recalled, HumanMessage(question)]
    try:
        if case.is_async:
            asyncio.run(runnable.ainvoke(value, U1))
        else:
            runnable.invoke(value, U1)
    finally:
        histories.close()
    return model.calls


def check(case: Case, shown: Messages, call: int) -> None:
    """What must hold of the model's n-th call."""
    notes = [m for m in shown if is_note(m)]
    known = {r.text for source in case.sources() for r in source.records}
    for note in notes:  # whole records, in their frame
        assert {r.text for r in records_of(note)} <= known
        assert note.content == note_message(records_of(note)).content
    lead = [m for m in shown if isinstance(m, SystemMessage) or is_summary(m)]
    start = next(i for i, m in enumerate(shown) if m.text.startswith("Tell me"))
    asked, loop = shown[start : start + 1], shown[start + 1 :]
    past = [m for m in shown[:start] if m not in lead and m not in notes]
    if case.counter is len:  # a budget in messages is one of the past
        assert len(lead) + len(past) <= max(case.usable, len(case.system))
        return
    system = [m for m in lead if isinstance(m, SystemMessage)]
    unseen = [m for m in loop if isinstance(m, (AIMessage, ToolMessage))][-2:]  # the newest call, with its result
    needed = case.tokens([*system, *asked, *unseen])
    if needed > case.usable:  # what has to be shown, and nothing else
        assert case.tokens(shown) == needed
        return
    assert case.tokens(shown) <= case.usable
    if loop:  # it claims its part of the room in steps, see test_long_runs.py
        return
    # The dialogue keeps half of what is left, or its newest turn.
    free = case.usable - case.tokens([*lead, *asked])
    if case.summary is not None:
        return
    stored = [m for m in case.history() if not isinstance(m, SystemMessage)]
    starts = turn_starts(stored)
    # In an agent's run no older turn must stay beside notes.
    newest = case.tokens(stored[starts[-1] :]) if starts and case.door != "agent" else 0
    share = max(free // 2, newest if newest <= free else 0)
    sure = [stored[start:] for start in starts if case.tokens(stored[start:]) <= share]
    if case.door in ("chain", "agent"):
        assert len(past) >= max(map(len, sure), default=0)
        assert [m.text for m in past] == [m.text for m in stored[len(stored) - len(past) :]]


LONG_RUN = Case(
    door="agent",
    is_async=False,
    counter=None,
    max_tokens=250,
    reserve=0,
    summary=None,
    system=[30, 30],
    turns=[(5, 5)] * 4,
    question=5,
    memories=[([20] * 5, 1000)],
    nested=False,
    loop=[40, 40, 40],
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
@example(LONG_RUN)  # a run that outgrows the budget, beside system lines
@example(replace(LONG_RUN, memories=[]))
@example(replace(LONG_RUN, summary=40, max_tokens=400))
@example(replace(LONG_RUN, system=[], turns=[(0, 0)] * 12, loop=[5], max_tokens=300, memories=[([20] * 20, 1000)]))
def test_what_always_holds(case: Case) -> None:
    """Never over the budget, unless system lines and input are; the dialogue keeps its share; records are whole."""
    calls = calls_of(case)
    assert calls
    for call, shown in enumerate(calls):
        check(case, shown, call)


WORDS = WordLlamaEmbeddings()


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_wish_of_1000_tokens_under_a_budget_of_400(style: str) -> None:
    """A `VectorMemory` may wish for more than there is: whole records are shown, as many as fit beside the dialogue."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    recall = VectorMemory.factory(SQLiteChatMessageHistory.factory(":memory:"), WORDS, floor=None, max_tokens=1000)
    for day in range(30):
        said = [
            HumanMessage(f"On day {day} we saw whales near Iceland" + " and the sea was rough" * 3),
            AIMessage("Oh!"),
        ]
        recall("before", "u1").save(said)
    for i in range(20):
        turn = [HumanMessage(f"Then {i} sailors sang"), AIMessage("And what did they sing, again and again?")]
        histories("s1", "u1").add_messages(turn)
    [wished] = recall("s1", "u1").load("When did we see whales near Iceland?")
    assert 700 < approximate_tokens([wished]) <= 1000
    model, fits = FakeChatModel(), create_trim_preprocessor(400)
    chat = create_runnable_with_message_history(model, histories, preprocessor=fits, memories=[recall])
    question = "When did we see whales near Iceland?"
    seen = explain_turn(chat, question, U1)
    if style == "sync":
        chat.invoke(question, U1)
    else:
        asyncio.run(chat.ainvoke(question, U1))
    [shown] = model.calls
    [note] = [m for m in shown if is_note(m)]
    assert approximate_tokens(shown) <= 400
    assert approximate_tokens([m for m in shown if not is_note(m)]) >= 150
    records, wishes = records_of(note), records_of(wished)
    assert [r for r in wishes if r in records] == records  # in the memory's order
    assert {r.rank for r in records} == {*range(len(records))}  # the best ones
    assert len(records) >= 3
    left_out = len(wishes) - len(records)
    assert seen.notes == [f"{left_out} of {len(wishes)} recalled records do not fit into the budget and are left out"]
    assert [m.text for m in seen.messages] == [m.text for m in shown]
    assert sum(seen.tokens.values()) <= 400
    histories.close()


def test_a_short_dialogue_leaves_more_to_notes() -> None:
    """What the dialogue does not need, notes may have."""
    histories, model = SQLiteChatMessageHistory.factory(":memory:"), FakeChatModel()
    fits = create_trim_preprocessor(400)
    chat = create_runnable_with_message_history(model, histories, preprocessor=fits, memories=[Notes("a", [30] * 20)])
    chat.invoke("Hello.", U1)
    [note] = [m for m in model.calls[0] if is_note(m)]
    assert 340 < approximate_tokens([note]) < 400


def test_every_memory_has_a_share() -> None:
    """The best record of each memory comes before the second best of another, and preferences before all."""
    preferences = PreferenceMemory.factory(SQLiteChatMessageHistory.factory(":memory:"))("s1", "u1")
    for line in ("Answer in one sentence.", "I prefer window seats.", "Always use metric units."):
        preferences.add(line)
    sources = [Notes("a", [30] * 9), Notes("b", [30] * 9), preferences]
    model = FakeChatModel()
    chat = create_runnable_with_message_history(
        model,
        SQLiteChatMessageHistory.factory(":memory:"),
        preprocessor=create_trim_preprocessor(230),
        memories=sources,
    )
    chat.invoke("Hello.", U1)
    [note] = [m for m in model.calls[0] if is_note(m)]
    assert [r.about for r in records_of(note)] == ["a", "b", *["stated preference"] * 3]


def test_a_rag_chain_has_the_same_budget() -> None:
    """Past, question, notes, instruction and documents are within the chain's budget."""
    model = FakeChatModel()
    rag = create_conversational_rag_chain(
        model,
        lambda question: [Document("The ferry leaves at nine.")],
        SQLiteChatMessageHistory.factory(":memory:"),
        max_tokens=500,
        memories=[Notes("a", [30] * 20)],
    )
    for i in range(9):
        rag.invoke({"input": f"When does ferry {i} leave?"}, U1)
    for shown in model.calls:
        if isinstance(shown[0], SystemMessage):
            [note, _documents] = [m for m in shown if is_note(m)]
            assert len(records_of(note)) > 2
            assert approximate_tokens(shown) <= 500


def test_composed_by_hand() -> None:
    """A `ComposedMemory` with a budget leaves the dialogue half of it, in whole turns, and shows whole records."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    for i in range(9):
        histories("s1", "u1").add_messages([HumanMessage(f"q{i} " + "ask " * 20), AIMessage("Yes.")])
    for memory, most in ((Notes("a", [30] * 20), 400), (Notes("a", []), 400), (Notes("a", [30] * 20), 90)):
        loaded = ComposedMemory(ChatHistoryMemory(histories("s1", "u1")), memory, max_tokens=most).load("What?")
        talk = [m for m in loaded if not is_note(m)]
        assert approximate_tokens(loaded) <= most
        assert approximate_tokens(talk) > most // 2 - 35
        assert [m.text.split()[0] for m in talk][-2:] == ["q8", "Yes."]
    histories.close()


def test_a_note_in_another_form_stays_as_it_is_while_it_fits() -> None:
    """By hand, a note that a template of the caller's made is not written anew, unless it has to be cut."""
    records = Notes("a", [10] * 5).records
    note = note_message(records, lambda some: "Known: " + "; ".join(r.text for r in some))
    talk = [SystemMessage("Be brief."), HumanMessage("Hi."), AIMessage("Hello."), note, HumanMessage("And?")]
    assert create_trim_preprocessor(200).invoke(talk) == talk
    cut = create_trim_preprocessor(80).invoke(talk)
    assert [m.text for m in cut if not is_note(m)] == [m.text for m in talk if m is not note]
    assert 0 < len(records_of(cut[3])) < 5


def test_after_a_context_overflow_notes_are_cut_too() -> None:
    """The second attempt has 70% of the budget for everything."""
    model = FakeChatModel()
    told: list[Messages] = []

    def answer(messages: Messages) -> BaseMessage:
        told.append(messages)
        if len(told) == 1:
            raise ContextOverflowError
        return model.invoke(messages)

    chat = create_runnable_with_message_history(
        RunnableLambda(answer),
        SQLiteChatMessageHistory.factory(":memory:"),
        preprocessor=create_trim_preprocessor(400),
        memories=[Notes("a", [30] * 20)],
    )
    chat.invoke("Hello.", U1)
    first, second = (approximate_tokens(messages) for messages in told)
    assert 280 < first <= 400
    assert 200 < second <= 280


def test_a_summary_that_does_not_fit_is_left_out_and_reported() -> None:
    """Beside a very long question not even the summary fits: it is not shown, and `explain_turn` says so."""
    histories, model = SQLiteChatMessageHistory.factory(":memory:"), FakeChatModel()
    fits = create_history_preprocessor(lambda prompt: "It was about the sea, " * 5, max_tokens=200)
    chat = create_runnable_with_message_history(model, histories, preprocessor=fits)
    for i in range(9):
        chat.invoke(f"Day {i}: " + "the sea is calm, " * 5, U1)
    assert any(is_summary(m) for m in model.calls[-1])
    seen = explain_turn(chat, "Tell me why. " * 60, U1)
    assert [m.part for m in seen.messages] == ["input"]
    assert "the summary does not fit and is left out" in seen.notes
    histories.close()


def test_the_newest_turn_stays_beside_a_summary() -> None:
    """Notes share what the summary leaves: beside it, the newest turn is shown if it fits."""
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        fits = create_history_preprocessor(
            lambda prompt: "sea " * 60, max_tokens=300, trigger=("messages", 6), keep=("messages", 2)
        )
        chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=fits)
        for text in (*"abcde", "And then? " * 28):
            chat.invoke(text, U1)
        model, sources = FakeChatModel(), [Notes("a", [20] * 20)]
        chat = create_runnable_with_message_history(model, histories, preprocessor=fits, memories=sources)
        chat.invoke("Go on.", U1)
        [summary, *_, asked, answer, note, _question] = model.calls[0]
        assert is_summary(summary)
        assert (asked.text, answer.type) == ("And then? " * 28, "ai")
        assert len(records_of(note)) > 1
        assert approximate_tokens(model.calls[0]) <= 300


def test_raise_in_a_run_is_for_what_must_be_shown() -> None:
    """With `"raise"` an agent goes on after long results, and is not called if its system prompt alone is too long."""
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        fits = create_trim_preprocessor(300, on_overflow="raise")
        middleware = MessageHistoryMiddleware(histories, preprocessor=fits, memories=[Notes("a", [30] * 9)])
        for sizes in ([80, 80, 80], [10, 400]):
            LOOKED.update({i: step(i, size)[1].text for i, size in enumerate(sizes)})
            model = FakeChatModel(responses=[*(step(i, size)[0] for i, size in enumerate(sizes)), "Done."])
            agent = create_agent(model, [look], middleware=[middleware])
            agent.invoke({"messages": [HumanMessage("Look it up.")]}, U1)
            tools = count_tool_tokens([look])
            assert all(approximate_tokens(shown) + tools <= 300 for shown in model.calls)
            assert len(model.calls) == len(sizes) + 1
        model = FakeChatModel()
        agent = create_agent(model, [look], middleware=[middleware], system_prompt="Be kind. " * 150)
        with pytest.raises(ContextTooLargeError, match="room for 0 beside system prompt, tools"):
            agent.invoke({"messages": [HumanMessage("Look it up.")]}, U1)
        assert model.calls == []
