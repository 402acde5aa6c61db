"""A preprocessor given to the factory: what is read for it, and what it shares the budget with."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from langchain_memkit import InMemoryChatMessageHistory, SQLiteChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.base import HistoryMessages
from langchain_memkit.errors import ContextTooLargeError, MessageDecodeError
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.preprocessors import create_history_preprocessor, create_trim_preprocessor
from langchain_memkit.testing import FakeChatModel
from testkit.styles import Styles

S1: Any = {"configurable": {"session_id": "s1"}}
KEYS: dict[str, Any] = {"input_messages_key": "input", "history_messages_key": "chat_history"}
PROMPT = ChatPromptTemplate.from_messages([("placeholder", "{chat_history}"), ("human", "{input}")])


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [m.text for m in messages]


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in each style."""
    return Styles(request.param)


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Any]:
    """A factory on one file."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", on_corrupt="raise") as factory:
        yield factory


def fill(histories: Any, path: Path, n: int, whole: int) -> None:
    """Stores n turns, a row each, and damages all but the newest: whoever reads one of those, raises."""
    for i in range(n):
        histories("s1").add_messages([HumanMessage(f"q{i}"), AIMessage(f"a{i}")])
    with sqlite3.connect(path / "chat.db") as connection:
        connection.execute("UPDATE turns SET messages = 'damaged' WHERE seq <= ?", (n - whole,))
    connection.close()


class Seen:
    """A preprocessor that remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, messages: list[BaseMessage]) -> list[BaseMessage]:
        """Returns what it was given."""
        self.given.append(messages)
        return messages


@pytest.mark.parametrize(
    ("counter", "budget", "rows"), [(len, 21, 13), (None, 120, 64)], ids=["messages", "approximate tokens"]
)
def test_only_what_fits_is_read(
    histories: Any, tmp_path: Path, run: Styles, counter: Any, budget: int, rows: int
) -> None:
    """The model sees the newest turns that fill the budget; rows further back than a page are not looked into."""
    fill(histories, tmp_path, 200, whole=rows)
    with pytest.raises(MessageDecodeError):
        histories("s1").messages  # noqa: B018  # reading is the test
    model = FakeChatModel()
    trimmer = create_trim_preprocessor(budget, token_counter=counter)
    run(create_runnable_with_message_history(model, histories, preprocessor=trimmer), "And now?", S1)
    shown = model.calls[0]
    assert texts(shown)[-3:] == ["q199", "a199", "And now?"]
    assert shown[0].type == "human"
    assert budget - 13 <= (counter or approximate_tokens)(shown) <= budget
    assert len(histories("s1").tail(max_messages=2)) == 2


@pytest.mark.parametrize("size", [0, 1, 3, 4, 9, 99])
def test_history_size_and_preprocessor(tmp_path: Path, run: Styles, size: int) -> None:
    """Both hold: never more than `history_size` messages, cut at a turn, also where rows of an import are long."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", history_size=size) as histories:
        histories("s1").add_messages([m for i in range(60) for m in (HumanMessage(f"q{i}"), AIMessage(f"a{i}"))])
        expected, seen = histories("s1").tail(max_messages=size), Seen()
        for budget in (10_000, 60):
            both: Any = create_trim_preprocessor(budget) | RunnableLambda(seen)
            chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=both)
            run(chat, "And now?", S1)
            histories("s1").delete_turn(list(histories("s1").iter_turns())[-1].seq)
        large, small = seen.given
        assert large == expected
        assert len(small) <= min(size, 10)
        assert small == large[len(large) - len(small) :]


def test_the_new_input_shares_the_budget(histories: Any, run: Styles) -> None:
    """A longer question leaves less room for the past; both together fit."""
    model = FakeChatModel()
    trimmer = create_trim_preprocessor(200, reserve_tokens=20)
    chat = create_runnable_with_message_history(model, histories, preprocessor=trimmer)
    for words in (1, 60, 100):
        session = f"s{words}"
        histories(session).add_messages([m for i in range(30) for m in (HumanMessage(f"q{i}"), AIMessage(f"a{i}"))])
        run(chat, "word " * words, {"configurable": {"session_id": session}})
    lengths = [len(call) for call in model.calls]
    assert lengths[0] > lengths[1] > lengths[2] > 1
    assert all(160 <= approximate_tokens(call) <= 180 for call in model.calls)


def test_too_large_input_leaves_no_past(histories: Any, run: Styles) -> None:
    """A question larger than the budget is asked without a past; that is no error, and it is stored."""
    histories("s1").add_messages([SystemMessage("rule"), HumanMessage("q"), AIMessage("a")])
    model = FakeChatModel()
    trimmer = create_trim_preprocessor(50)
    chat = create_runnable_with_message_history(PROMPT | model, histories, preprocessor=trimmer, **KEYS)
    run(chat, {"input": "word " * 100}, S1)
    assert [len(m.text) for m in model.calls[0]] == [4, 500]
    assert len(histories("s1").messages) == 5


def test_too_large_input_raises_if_asked_to(histories: Any, run: Styles) -> None:
    """With `on_overflow="raise"` such a question is an error before the model is called, and nothing is stored."""
    model = FakeChatModel()
    trimmer = create_trim_preprocessor(50, on_overflow="raise")
    chat = create_runnable_with_message_history(PROMPT | model, histories, preprocessor=trimmer, **KEYS)
    with pytest.raises(ContextTooLargeError):
        run(chat, {"input": "word " * 100}, S1)
    assert not model.calls
    assert not histories("s1").messages


def test_a_budget_of_messages_is_one_of_past_messages(histories: Any, run: Styles) -> None:
    """The guide's "last two" are two, given to the factory or piped by hand, and the new input comes after them."""
    histories("s1").add_messages([HumanMessage("q0"), AIMessage("a0"), HumanMessage("q1"), AIMessage("a1")])
    trimmer = create_trim_preprocessor(2, token_counter=len)
    by_hand: Any = RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | trimmer) | PROMPT
    for before, options in ((PROMPT, {"preprocessor": trimmer}), (by_hand, {})):
        model = FakeChatModel()
        chat = create_runnable_with_message_history(before | model, histories, **KEYS, **options)
        explained = run(chat, {"input": "And now?"}, {**S1, "configurable": {"session_id": "s1", "turn_id": "t"}})
        assert explained is not None
        assert [m.text for m in model.calls[0]] == ["q1", "a1", "And now?"]
        histories("s1").delete_turn("turn:t")


def test_window_of_a_sequence(histories: Any, tmp_path: Path, run: Styles) -> None:
    """A trimmer that something follows, bound to a config or not, still reads only its window."""
    fill(histories, tmp_path, 100, whole=13)
    trimmer = create_trim_preprocessor(21, token_counter=len)
    for chain in (trimmer | RunnableLambda(lambda ms: ms[-2:]), trimmer.with_config(tags=["t"]) | (lambda ms: ms[-2:])):
        model = FakeChatModel()
        run(create_runnable_with_message_history(model, histories, preprocessor=chain), "And now?", S1)
        assert len(model.calls[0]) == 3


def test_other_preprocessors_get_everything(histories: Any, run: Styles) -> None:
    """A function, also in front of a trimmer, says no window: it is given the whole history."""
    for i in range(100):
        histories("s1").add_messages([HumanMessage(f"q{i}"), AIMessage(f"a{i}")])
    seen = Seen()
    chain = RunnableLambda(seen) | create_trim_preprocessor(3, token_counter=len)
    model = FakeChatModel()
    run(create_runnable_with_message_history(model, histories, preprocessor=chain), "And now?", S1)
    assert len(seen.given[0]) == 200
    assert texts(model.calls[0]) == ["q99", "a99", "And now?"]


def test_foreign_histories_give_the_whole_list(run: Styles) -> None:
    """LangChain's own history hands over everything, and the trimmer makes it fit all the same."""

    class Foreign(InMemoryChatMessageHistory):  # the class itself warns when it is made
        pass

    history = Foreign()
    for i in range(100):
        history.add_messages([HumanMessage(f"q{i}"), AIMessage(f"a{i}")])
    model, seen = FakeChatModel(), Seen()
    before: Any = RunnableLambda(seen) | create_trim_preprocessor(5, token_counter=len)
    run(create_runnable_with_message_history(model, lambda session_id: history, preprocessor=before), "And now?", S1)
    assert len(seen.given[0]) == 200
    assert texts(model.calls[0]) == ["q98", "a98", "q99", "a99", "And now?"]
    trimmer = create_trim_preprocessor(3, token_counter=len)
    run(create_runnable_with_message_history(model, lambda session_id: history, preprocessor=trimmer), "Again?", S1)
    assert texts(model.calls[1]) == ["And now?", model.calls[1][1].text, "Again?"]
    assert len(history.messages) == 204


def test_resent_conversation_counts_once(histories: Any, run: Styles) -> None:
    """A client that sends everything again does not lose its past: what is stored already is not new input."""
    model = FakeChatModel()
    chat = create_runnable_with_message_history(model, histories, preprocessor=create_trim_preprocessor(100))
    sent: list[BaseMessage] = []
    for i in range(12):
        sent.append(HumanMessage(f"fact {i} and a few more words to it", id=f"q{i}"))
        run(chat, list(sent), S1)
        sent.append(histories("s1").messages[-1])
    assert [len(call) for call in model.calls[-3:]] == [len(model.calls[-1])] * 3
    assert all(75 <= approximate_tokens(call) <= 100 for call in model.calls[-3:])
    assert histories("s1").messages == sent


@pytest.mark.parametrize("words", [1, 60], ids=["small", "too large"])
def test_trimmer_inside_the_wrapped_chain(histories: Any, run: Styles, words: int) -> None:
    """Piped before the model or behind a prompt, the new input is in what it trims: counted once and never lost."""
    question = "word " * words
    for i in range(30):
        histories("s1").add_messages([HumanMessage(f"q{i}"), AIMessage(f"a{i}")])
    trimmer = create_trim_preprocessor(60)
    bare, prompted, placed = FakeChatModel(), FakeChatModel(), FakeChatModel()
    run(create_runnable_with_message_history(trimmer | bare, histories), question, S1)
    chain = PROMPT | trimmer | prompted
    run(create_runnable_with_message_history(chain, histories, **KEYS), {"input": question}, S1)
    chain = RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | trimmer) | PROMPT | placed
    run(create_runnable_with_message_history(chain, histories, **KEYS), {"input": question}, S1)
    for model in (bare, prompted, placed):
        (shown,) = model.calls
        assert shown[-1].text == question
        if words == 1:
            assert 45 <= approximate_tokens(shown) <= 60
        else:
            assert len(shown) == 1


def test_trimmer_inside_the_wrapped_chain_uses_stored_counts(histories: Any) -> None:
    """The list that reaches it is the history's own, with the counts that were stored."""
    histories("s1").add_messages([HumanMessage("q"), AIMessage("a")])
    seen = Seen()
    chain = RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | RunnableLambda(seen))
    chat = create_runnable_with_message_history(chain | PROMPT | FakeChatModel(), histories, **KEYS)
    chat.invoke({"input": "And now?"}, S1)
    asyncio.run(chat.ainvoke({"input": "And now?"}, S1))
    assert [type(given) for given in seen.given] == [HistoryMessages] * 2
    assert seen.given[0].knows(1)


@pytest.mark.parametrize(
    "preprocessor",
    [
        create_trim_preprocessor(max_tokens=200),
        create_trim_preprocessor(max_tokens=30),
        create_trim_preprocessor(max_tokens=3, token_counter=len),
        create_history_preprocessor(lambda prompt: "They met.", max_tokens=200),
    ],
    ids=["trim", "tight", "messages", "summarize"],
)
def test_results_that_are_the_new_input_find_their_calls(preprocessor: Any) -> None:
    """A tool's results may come in a turn of their own: the calls that they answer stay right before them."""
    seen: list[list[BaseMessage]] = []
    calls = [{"name": "f", "args": {}, "id": i, "type": "tool_call"} for i in ("1", "2")]

    def model(messages: list[BaseMessage]) -> AIMessage:
        seen.append(messages)
        return AIMessage("", tool_calls=calls) if messages[-1].text == "Look." else AIMessage("Done.")

    chat = create_runnable_with_message_history(
        RunnableLambda(model), SQLiteChatMessageHistory.factory(":memory:"), preprocessor=preprocessor
    )
    config: Any = {"configurable": {"session_id": "s1"}}
    results = [ToolMessage("found " * 20, tool_call_id=i) for i in ("1", "2")]
    for value in ("Hello.", "Look.", results, "Thanks."):
        chat.invoke(value, config)
    assert [m.type for m in seen[2]][-4:] == ["human", "ai", "tool", "tool"]
    assert seen[2][-3].tool_calls == calls  # type: ignore[attr-defined]
    assert seen[2][-2:] == results
