"""What an app takes out of its state, or corrects there, the model does not see again; the transcript keeps it."""

from __future__ import annotations

import operator
from functools import cache
from typing import Annotated, Any, Required

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows, send, texts
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from langchain_memkit import (
    MessageHistoryMiddleware,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    purge_user,
)
from langchain_memkit.middleware.state import HistoryState
from testkit.styles import Styles
from testkit.trimming_apps import RECIPES, OwnSummary, Trimmed

TURNS = 8
APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


@pytest.fixture(params=["first", "last"])
def place(request: pytest.FixtureRequest) -> str:
    """Where our middleware stands in the list."""
    return str(request.param)


@pytest.fixture
def history_of(histories: Any) -> Any:
    """Our middleware."""
    return MessageHistoryMiddleware(histories)


def beside(middleware: Any, others: list[Any], place: str) -> list[Any]:
    """A list of middleware with ours first or last."""
    return [middleware, *others] if place == "first" else [*others, middleware]


def saved(middleware: list[Any], model: Any, tools: Any = (), **options: Any) -> Any:
    """An agent whose state is kept."""
    return create_agent(model, [*tools], middleware=middleware, checkpointer=InMemorySaver(), **options)


def as_node(middleware: list[Any], model: Any, tools: Any = ()) -> Any:
    """An agent that is a node of the app's graph, which keeps the state."""
    agent = create_agent(model, [*tools], middleware=middleware)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    return graph.add_edge(START, "agent").compile(checkpointer=InMemorySaver())


def talk(run: Any, agent: Any, questions: Any) -> None:
    """Asks one after another."""
    for question in questions:
        run(agent, asking(question), CONFIG)


# -- the recipes of the guides: what the model sees is what it sees without us


NODES = [("trim_messages", as_node), ("own summary", as_node)]


@cache
def shown_without_us(recipe: str, made: Any, questions: tuple[str, ...]) -> list[list[str]]:
    """What the model gets in each call of an agent with a recipe alone."""
    control = Scripted()
    talk(Styles("invoke"), made([RECIPES[recipe]()], control), questions)
    return [texts(call) for call in control.calls]


@pytest.mark.parametrize(("recipe", "made"), [*((name, saved) for name in RECIPES), *NODES])
def test_recipe(history_of: Any, history: Any, run: Any, recipe: str, place: str, made: Any) -> None:
    """In eight turns each call of the model gets what it gets without us; the transcript holds all, once."""
    model, questions = Scripted(), tuple(f"q{i}" for i in range(TURNS))
    talk(run, made(beside(history_of, [RECIPES[recipe]()], place), model), questions)
    assert [texts(call) for call in model.calls] == shown_without_us(recipe, made, questions)
    stored = [[text for text in row if not text.startswith("summary up to")] for row in rows(history)]
    assert stored == [[f"q{i}", f"ok {i + 1}"] for i in range(TURNS)]
    if recipe != "own summary, by a user":  # it is one more message of a user
        assert len(history.messages) == 2 * TURNS


@pytest.mark.parametrize("recipe", ["trim_messages", "own summary", "request trimmed"])
def test_recipe_with_the_same_words(history_of: Any, history: Any, run: Any, recipe: str, place: str) -> None:
    """A user who says the same each time: what is shown is the newest of it."""
    model, questions = Scripted(), ("hi",) * 8
    talk(run, saved(beside(history_of, [RECIPES[recipe]()], place), model), questions)
    assert [texts(call) for call in model.calls] == shown_without_us(recipe, saved, questions)
    assert rows(history) == [["hi", f"ok {i + 1}"] for i in range(8)]


@pytest.mark.parametrize("recipe", ["trim_messages", "own summary"])
def test_recipe_with_tools(history_of: Any, history: Any, run: Any, recipe: str, place: str) -> None:
    """With calls of tools between: each turn is stored whole, and the model sees what it sees without us."""

    def script() -> list[Any]:
        return [line for i in range(6) for line in (calling(("look_up", {"word": str(i)})), f"done {i}")]

    control, model = Scripted(script=script()), Scripted(script=script())
    questions = [f"q{i}" for i in range(6)]
    talk(run, saved([RECIPES[recipe]()], control, [look_up]), questions)
    talk(run, saved(beside(history_of, [RECIPES[recipe]()], place), model, [look_up]), questions)
    assert [texts(call) for call in model.calls] == [texts(call) for call in control.calls]
    assert rows(history) == [[f"q{i}", "look_up", f"{i} is a word", f"done {i}"] for i in range(6)]


# -- `update_state`


def messages_of(agent: Any) -> list[Any]:
    """The state's messages."""
    found: list[Any] = agent.get_state(CONFIG).values["messages"]
    return found


def test_corrected(history_of: Any, history: Any, run: Any, place: str) -> None:
    """A message that `update_state` corrects is shown as corrected; the transcript keeps what was said."""
    model = Scripted()
    agent = saved(beside(history_of, [AgentMiddleware()], place), model)
    talk(run, agent, ["typo", "more"])
    question, answer, *_ = messages_of(agent)
    corrected = [HumanMessage("better", id=question.id), AIMessage("Noted.", id=answer.id)]
    agent.update_state(CONFIG, {"messages": corrected})
    talk(run, agent, ["go on", "still"])
    assert model.calls[2][:2] == corrected
    assert model.shown == ["better", "Noted.", "more", "ok 2", "go on", "ok 3", "still"]
    assert [m.text for m in history.messages][:2] == ["typo", "ok 1"]
    assert len(history.messages) == 8


@pytest.mark.parametrize("removed", [(0,), (1,), (0, 1), (2, 3), (3,), (2,)], ids=str)
def test_removed(history_of: Any, history: Any, run: Any, removed: tuple[int, ...]) -> None:
    """A message that `update_state` removes, the last one too, is not shown; the transcript keeps it, once."""
    control, model = Scripted(), Scripted()
    for its_model, middleware in ((control, []), (model, [history_of])):
        agent = saved(middleware, its_model)
        talk(run, agent, ["my card is 4111", "more"])
        said = messages_of(agent)
        agent.update_state(CONFIG, {"messages": [RemoveMessage(said[i].id) for i in removed]})
        talk(run, agent, ["go on", "still"])
    assert [texts(call) for call in model.calls] == [texts(call) for call in control.calls]
    assert [m.text for m in history.messages][:4] == ["my card is 4111", "ok 1", "more", "ok 2"]
    assert len(history.messages) == 8


def test_log_is_corrected_by_edit(history_of: Any, history: Any, run: Any) -> None:
    """`history.edit` corrects the past for good: the model sees that, whatever the state still holds."""
    model = Scripted()
    agent = saved([history_of], model)
    talk(run, agent, ["q", "typo"])
    question = messages_of(agent)[2]
    history.edit(2, [HumanMessage("better"), AIMessage("fine")])
    agent.update_state(CONFIG, {"messages": [HumanMessage("of the state", id=question.id)]})
    talk(run, agent, ["go on", "still"])
    assert model.shown == ["q", "ok 1", "better", "fine", "go on", "ok 3", "still"]
    assert rows(history) == [["q", "ok 1"], ["better", "fine"], ["go on", "ok 3"], ["still", "ok 4"]]


# -- what the transcript removes, beside what the state removes


@pytest.mark.parametrize("recipe", ["none", "trim_messages", "own summary", "request trimmed"])
def test_deleted_turn(history_of: Any, history: Any, run: Any, recipe: str, place: str) -> None:
    """A turn that was deleted from the transcript is not shown, though the state holds it; nor comes back what went."""
    model = Scripted()
    others = [RECIPES[recipe]()] if recipe in RECIPES else []
    agent = saved(beside(history_of, others, place), model)
    talk(run, agent, ["q0", "q1", "q2"])
    history.delete_turn(3)
    talk(run, agent, ["q3"])
    assert not {"q2", "ok 3"} & {*model.shown}
    assert model.shown[-1] == "q3"
    talk(run, agent, ["q4"])
    assert not {"q2", "ok 3"} & {*model.shown}
    assert rows(history) == [["q0", "ok 1"], ["q1", "ok 2"], ["q3", "ok 4"], ["q4", "ok 5"]]


def emptied(history: Any, histories: Any, how: str) -> None:
    """Clears the session or purges the user."""
    if how == "clear":
        history.clear()
    else:
        purge_user("u1", histories)


@pytest.mark.parametrize("how", ["clear", "purge"])
@pytest.mark.parametrize(
    "recipe", [name for name in RECIPES if name != "summary in a key"]
)  # that key only the app can erase
def test_emptied(history_of: Any, histories: Any, history: Any, run: Any, recipe: str, how: str, place: str) -> None:
    """Nothing of before comes back from the state, its summaries of that included, in this run and later ones."""
    model = Scripted()
    agent = saved(beside(history_of, [RECIPES[recipe]()], place), model)
    talk(run, agent, [f"q{i}" for i in range(5)])
    emptied(history, histories, how)
    talk(run, agent, ["new"])
    if not recipe.startswith("own summary"):  # that sums up in this very run what its state holds
        assert model.shown == ["new"]
    talk(run, agent, ["newer"])
    assert [text for text in model.shown if not text.startswith("summary")] == ["new", "ok 6", "newer"]
    assert rows(history)[:1] != [["q0", "ok 1"]]
    assert not {f"q{i}" for i in range(5)} & {m.text for m in history.messages}


def test_summary_of_langchain_is_erased(history_of: Any, history: Any, run: Any) -> None:
    """A summary that stands in the state when the session is cleared is not shown any more."""
    model = Scripted()
    summarize: Any = SummarizationMiddleware(Scripted(script=["SUM"]), trigger=("messages", 7), keep=("messages", 1))
    agent = saved([history_of, summarize], model)
    talk(run, agent, ["q0", "q1", "q2", "q3"])
    assert "SUM" in model.shown[0]
    history.clear()
    talk(run, agent, ["q4"])
    assert model.shown == ["q4"]


OTHER: Any = {"configurable": {**CONFIG["configurable"], "user_id": "u2"}}
SHORT: Any = {"trigger": ("messages", 6), "keep": ("messages", 2)}


def said_so_far(messages: list[Any]) -> str:
    """Sums up by repeating the prompt, which holds what is summed up."""
    return f"SUM {messages[-1].text}"


def summarizing(history_of: Any, place: str, model: Any, tools: Any = ()) -> Any:
    """An agent whose state LangChain sums up, again and again."""
    summarize: Any = SummarizationMiddleware(Scripted(script=[said_so_far] * 30), **SHORT)
    return saved(beside(history_of, [summarize], place), model, tools)


@pytest.mark.parametrize("how", ["clear", "purge", "another user"])
def test_later_summary_of_what_was_erased(
    history_of: Any, histories: Any, history: Any, run: Any, how: str, place: str
) -> None:
    """The state holds what was erased, so summaries that are made later hold it too: the model sees what is stored."""
    model = Scripted()
    agent = summarizing(history_of, place, model)
    talk(run, agent, ["my pin is 4711"])
    config = OTHER if how == "another user" else CONFIG
    if config is CONFIG:
        emptied(history, histories, how)
    for i in range(12):
        run(agent, asking(f"q{i}"), config)
        assert not [text for text in model.shown if "4711" in text or "SUM" in text]
    assert any("4711" in m.text for m in messages_of(agent))
    assert [text for text in model.shown if text.startswith("q")] == [f"q{i}" for i in range(12)]
    assert len(model.shown) == 23


def test_later_summary_of_two_users(history_of: Any, run: Any, place: str) -> None:
    """A user who comes back sees all of their own turns, though a summary stands for those of both."""
    model = Scripted()
    agent = summarizing(history_of, place, model)
    talk(run, agent, ["q0"])
    run(agent, asking("my pin is 4711"), OTHER)
    talk(run, agent, [f"q{i}" for i in range(1, 8)])
    assert not [text for text in model.shown if "4711" in text or "SUM" in text]
    assert [text for text in model.shown if text.startswith("q")] == [f"q{i}" for i in range(8)]


def test_later_summary_where_the_call_failed(history_of: Any, histories: Any, history: Any, run: Any) -> None:
    """A summary is stored, then the model fails, then another process goes on: the summary is not shown."""
    model = Scripted()
    agent = summarizing(history_of, "first", model)
    talk(run, agent, ["my pin is 4711", "what?"])
    history.clear()
    talk(run, agent, ["q0"])
    model.script = [RuntimeError("down")]
    with pytest.raises(RuntimeError, match="down"):
        run(agent, asking("q1"), CONFIG)
    assert any("SUM" in m.text for m in messages_of(agent))
    again = summarizing(MessageHistoryMiddleware(histories), "first", model)
    again.checkpointer = agent.checkpointer
    talk(run, again, ["q2", "q3"])
    assert not [text for text in model.shown if "4711" in text or "SUM" in text]


def test_later_summary_within_a_run(history_of: Any, history: Any, run: Any, place: str) -> None:
    """A run whose own question is summed up together with what was erased keeps its question and its calls."""
    calls = [calling(("look_up", {"word": str(i)})) for i in range(4)]
    model = Scripted(script=["ok", *calls, "done"])
    agent = summarizing(history_of, place, model, [look_up])
    talk(run, agent, ["my pin is 4711"])
    history.clear()
    talk(run, agent, ["look all up"])
    results = [text for i in range(4) for text in ("", f"{i} is a word")]
    assert model.shown == ["look all up", *results]
    talk(run, agent, ["and?"])
    assert model.shown == ["look all up", *results, "done", "and?"]


def test_what_the_app_removed_under_a_void_summary(history_of: Any, history: Any, run: Any, place: str) -> None:
    """What the app itself removed does not come back when a summary is not shown."""
    model = Scripted()
    agent = summarizing(history_of, place, model)
    talk(run, agent, ["my pin is 4711"])
    history.clear()
    talk(run, agent, ["my card is 4111"])
    agent.update_state(CONFIG, {"messages": [RemoveMessage(messages_of(agent)[-2].id)]})
    talk(run, agent, [f"q{i}" for i in range(4)])
    assert [text for text in model.shown if text[0] in "mqS"] == ["q0", "q1", "q2", "q3"]


def test_summary_once_nothing_erased_is_left(history_of: Any, history: Any, run: Any, place: str) -> None:
    """A summary that is made after the app took out of the state what was erased is shown."""
    model = Scripted()
    agent = summarizing(history_of, place, model)
    talk(run, agent, ["my pin is 4711"])
    history.clear()
    agent.update_state(CONFIG, {"messages": [RemoveMessage(m.id) for m in messages_of(agent)]})
    talk(run, agent, [f"q{i}" for i in range(4)])
    assert "SUM" in model.shown[0]
    assert "q0" not in model.shown


def test_of_another_user(histories: Any, history_of: Any, history: Any, run: Any) -> None:
    """A thread that another user goes on with shows and stores nothing of the first one's, though its end is gone."""
    model = Scripted()
    agent = saved([history_of, OwnSummary(SystemMessage)], model)
    talk(run, agent, ["q0", "q1", "q2", "q3"])
    agent.update_state(CONFIG, {"messages": [RemoveMessage(messages_of(agent)[-1].id)]})
    run(agent, asking("hello"), OTHER)
    assert rows(histories("s1", "u2")) == [["hello", "ok 5"]]
    run(agent, asking("more"), OTHER)
    assert rows(histories("s1", "u2")) == [["hello", "ok 5"], ["more", "ok 6"]]
    assert [text for text in model.shown if not text.startswith("summary")] == ["hello", "ok 5", "more"]


def test_cleared_where_the_end_is_gone(history_of: Any, history: Any, run: Any) -> None:
    """A question whose answer the app has removed does not come back after a clear."""
    model = Scripted()
    agent = saved([history_of], model)
    talk(run, agent, ["q0", "q1"])
    agent.update_state(CONFIG, {"messages": [RemoveMessage(messages_of(agent)[-1].id)]})
    history.clear()
    talk(run, agent, ["new"])
    assert model.shown == ["new"]
    assert rows(history) == [["new", "ok 3"]]


def test_system_message_of_the_input(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """A system message that a run is asked with is a part of its turn, and stored with it."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    for i in range(2):
        run(agent, {"messages": [("system", f"be brief {i}"), ("user", f"q{i}")]}, CONFIG)
    assert rows(history) == [["be brief 0", "q0", "ok 1"], ["be brief 1", "q1", "ok 2"]]
    assert model.shown == ["be brief 0", "q0", "ok 1", "be brief 1", "q1"]


def test_system_message_of_a_thread_before(histories: Any, history: Any, run: Any) -> None:
    """What a thread had of system messages before it had our middleware is shown in front, and not stored."""
    model, saver = Scripted(), InMemorySaver()
    before = create_agent(model, [], checkpointer=saver)
    run(before, {"messages": [("system", "be brief"), ("user", "q0")]}, CONFIG)
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=saver)
    talk(run, agent, ["q1", "q2"])
    assert model.shown == ["be brief", "q0", "ok 1", "q1", "ok 2", "q2"]
    assert rows(history) == [["q0", "ok 1"], ["q1", "ok 2"], ["q2", "ok 3"]]


# -- rows of others


def test_rows_of_others_are_shown_as_stored(histories: Any, history: Any, run: Any, place: str) -> None:
    """What a chain or another thread said on the session is no affair of this thread's state."""
    model = Scripted()
    history.add_messages([HumanMessage("before"), AIMessage("all")])
    agent = saved(beside(MessageHistoryMiddleware(histories), [RECIPES["trim_messages"]()], place), model)
    talk(run, agent, ["q0", "q1"])
    create_runnable_with_message_history(model, histories).invoke("chained", CONFIG)
    talk(run, agent, ["q2", "q3"])
    other: Any = {"configurable": {**CONFIG["configurable"], "thread_id": "other"}}
    run(agent, asking("elsewhere"), other)
    talk(run, agent, ["q4"])
    assert model.shown == ["before", "all", "chained", "ok 3", "q2", "ok 4", "q3", "ok 5", "elsewhere", "ok 6", "q4"]
    assert len(history.messages) == 2 + 2 * 7


def test_memory_of_a_thread_is_in_its_marker(histories: Any, history: Any, run: Any) -> None:
    """With other objects of ours, as in another process, what was removed stays removed."""
    model, saver = Scripted(), InMemorySaver()
    for i in range(8):
        stack = [MessageHistoryMiddleware(histories), RECIPES["trim_messages"]()]
        run(create_agent(model, [], middleware=stack, checkpointer=saver), asking(f"q{i}"), CONFIG)
    assert model.shown == ["q5", "ok 6", "q6", "ok 7", "q7"]
    assert len(history.messages) == 16
    (marker,) = {str(saver.get(CONFIG)["channel_values"]["memkit_turn"]["wrote"])}
    assert marker == "[[1, 8]]"


def test_removed_beside_a_partial_answer(history_of: Any, history: Any) -> None:
    """The words of a stopped model, which the state never had, are shown with their question, and go with it."""
    model = Scripted(script=["hello", "one two three four", "fine", "good"])
    agent = saved([history_of], model)
    agent.invoke(asking("hi"), CONFIG)
    model.on_word = lambda i: (_ for _ in ()).throw(KeyboardInterrupt) if i == 2 else None
    with pytest.raises(KeyboardInterrupt):
        list(agent.stream(asking("q"), CONFIG, stream_mode="messages"))
    model.on_word = None
    agent.invoke(asking("and?"), CONFIG)
    assert model.shown == ["hi", "hello", "q", "one two ", "and?"]
    question = next(m for m in messages_of(agent) if m.text == "q")
    agent.update_state(CONFIG, {"messages": [RemoveMessage(question.id)]})
    agent.invoke(asking("well?"), CONFIG)
    assert model.shown == ["hi", "hello", "and?", "fine", "well?"]
    assert [m.text for m in history.messages][2:4] == ["q", "one two "]


# -- budgets, pauses, markers of older versions


@pytest.mark.parametrize("recipe", ["trim_messages", "own summary"])
@pytest.mark.parametrize("budget", [create_trim_preprocessor, create_history_preprocessor])
def test_recipe_beside_a_budget(histories: Any, history: Any, run: Any, recipe: str, budget: Any, place: str) -> None:
    """With a preprocessor that has room the model sees what it sees without us."""
    made = budget(4000) if budget is create_trim_preprocessor else budget(Scripted(), max_tokens=4000)
    control, model = Scripted(), Scripted()
    questions = [f"q{i}" for i in range(8)]
    talk(run, saved([RECIPES[recipe]()], control), questions)
    ours = MessageHistoryMiddleware(histories, preprocessor=made)
    talk(run, saved(beside(ours, [RECIPES[recipe]()], place), model), questions)
    assert [texts(call) for call in model.calls] == [texts(call) for call in control.calls]
    assert len(history.messages) == 16


def test_summary_before_a_pause(histories: Any, history: Any, run: Any, place: str) -> None:
    """A run whose app sums up its state, and which waits then, is stored whole by whoever resumes it."""
    model, saver = Scripted(script=["a", "b", calling(("send", {"to": "all"})), "sent"]), InMemorySaver()

    def made() -> Any:
        others = [OwnSummary(SystemMessage), HumanInTheLoopMiddleware(interrupt_on={"send": True})]
        stack = beside(MessageHistoryMiddleware(histories), others, place)
        return create_agent(model, [send], middleware=stack, checkpointer=saver)

    talk(run, made(), ["q0", "q1", "q2"])
    run(made(), APPROVE, CONFIG)
    talk(run, made(), ["q3"])
    assert rows(history) == [["q0", "a"], ["q1", "b"], ["q2", "send", "sent to all", "sent"], ["q3", "ok 5"]]
    assert model.shown[0].startswith("summary up to")
    assert model.shown[-1] == "q3"


def as_of_before(agent: Any) -> None:
    """Leaves in the state the marker that 0.2.0 wrote."""
    marker = dict(agent.get_state(CONFIG).values["memkit_turn"])
    for name in ("wrote", "void"):
        del marker[name]
    agent.update_state(CONFIG, {"memkit_turn": {**marker, "base": 0}})


def test_marker_of_an_older_version(history_of: Any, history: Any, run: Any, place: str) -> None:
    """A thread of 0.2.0 goes on: what its state holds is shown once, and what is removed from then on stays removed."""
    model = Scripted()
    agent = saved(beside(history_of, [Trimmed()], place), model)
    talk(run, agent, ["q0"])
    as_of_before(agent)
    talk(run, agent, ["q1", "q2", "q3"])
    assert model.shown == ["q0", "ok 2", "q2", "ok 3", "q3"]
    assert len(history.messages) == 8


def test_waiting_marker_of_an_older_version(history_of: Any, history: Any, run: Any) -> None:
    """A run of 0.2.0 that waits for a person is resumed, and stored once."""
    model = Scripted(script=["a", calling(("send", {"to": "all"})), "sent"])
    agent = saved([history_of, HumanInTheLoopMiddleware(interrupt_on={"send": True})], model, [send])
    talk(run, agent, ["q0", "q1"])
    state = agent.get_state(CONFIG)
    marker = {k: v for k, v in state.values["memkit_turn"].items() if k not in ("wrote", "void")}
    saver = agent.checkpointer
    found = saver.get_tuple(CONFIG)
    found.checkpoint["channel_values"]["memkit_turn"] = {**marker, "base": 0}
    version = found.checkpoint["channel_versions"]["memkit_turn"]
    saver.put(found.config, found.checkpoint, found.metadata, {"memkit_turn": version})
    assert "wrote" not in agent.get_state(CONFIG).values["memkit_turn"]
    run(agent, APPROVE, CONFIG)
    assert rows(history) == [["q0", "a"], ["q1", "send", "sent to all", "sent"]]
    assert model.shown == ["q0", "a", "q1", "", "sent to all"]


def test_summary_of_langchain_of_an_older_version(history_of: Any, history: Any, run: Any) -> None:
    """What LangChain's summary stood for before the update stays summarized."""
    model = Scripted()
    summarize: Any = SummarizationMiddleware(
        Scripted(script=["SUM"] * 9), trigger=("messages", 5), keep=("messages", 2)
    )
    agent = saved([history_of, summarize], model)
    talk(run, agent, ["q0", "q1", "q2"])
    as_of_before(agent)
    talk(run, agent, ["q3"])
    assert "SUM" in model.shown[0]
    assert model.shown[1:] == ["ok 3", "q3"]
    assert len(history.messages) == 8


# -- states without ids


def newest(left: list[Any], right: list[Any]) -> list[Any]:
    """Keeps the last five, as `operator.add` would add them."""
    return operator.add(left, right)[-5:]


class NewestState(HistoryState):
    """Whose messages have no ids, unless they are given some."""

    messages: Required[Annotated[list[Any], newest]]


def test_deleted_from_a_state_without_ids(history_of: Any, history: Any, run: Any) -> None:
    """A turn that was deleted is not shown, though the state holds the same words without an id."""
    model = Scripted()
    history_of.state_schema = NewestState  # older releases of langchain take any of the schemas for `messages`
    agent = saved([history_of], model, state_schema=NewestState)
    talk(run, agent, ["q0", "q1", "q2", "q3"])
    assert model.shown == ["q1", "ok 2", "q2", "ok 3", "q3"]
    history.delete_turn(3)
    talk(run, agent, ["q4"])
    assert model.shown == ["q3", "ok 4", "q4"]


def test_redacted_in_a_state_without_ids(histories: Any, history: Any, run: Any) -> None:
    """What `before_save` changed has other words than the state: it is shown all the same, in the state's words."""

    def redact(messages: list[Any]) -> list[Any]:
        return [m.model_copy(update={"content": m.text.replace("4111", "[card]")}) for m in messages]

    model = Scripted()
    middleware = MessageHistoryMiddleware(histories, before_save=redact)
    middleware.state_schema = NewestState
    agent = saved([middleware], model, state_schema=NewestState)
    talk(run, agent, ["4111", "more 4111", "then"])
    assert model.shown == ["4111", "ok 1", "more 4111", "ok 2", "then"]
    assert [m.text for m in history.messages] == ["[card]", "ok 1", "more [card]", "ok 2", "then", "ok 3"]


class AddedState(HistoryState):
    """Which keeps all, without ids."""

    messages: Required[Annotated[list[Any], operator.add]]


@pytest.mark.parametrize("how", ["clear", "another user"])
@pytest.mark.parametrize("kind", ["system", "summary"])
def test_erased_from_a_state_without_ids(history_of: Any, history: Any, run: Any, how: str, kind: str) -> None:
    """A system message or a summary without an id is not shown after a clear, or to another user; what is new is."""
    origin = {"lc_source": "summarization"}
    secret: Any = SystemMessage("pin 4711") if kind == "system" else HumanMessage("4711", additional_kwargs=origin)
    model = Scripted()
    history_of.state_schema = AddedState
    agent = saved([history_of], model, state_schema=AddedState)
    run(agent, {"messages": [secret, HumanMessage("hi")]}, CONFIG)
    assert "4711" in model.shown[0]
    if how == "clear":
        history.clear()
    config = OTHER if how == "another user" else CONFIG
    run(agent, {"messages": [SystemMessage("be brief"), HumanMessage("hi")]}, config)
    assert model.shown == ["be brief", "hi"]
    run(agent, asking("more"), config)
    assert model.shown == ["be brief", "hi", "ok 2", "more"]
