"""Agents of others with our memory: what is stored and what the model is shown, whatever their state, saver and ids.

The rule: nothing is lost, nothing is stored twice, the order is kept, and the model is shown the past of its branch.
Where no rule can know (the last tests) a double is documented, and nothing is lost all the same.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Required

import pytest
from agent_threads import AGENTS, APPROVE, GRAPHS, INPUTS, SAVERS, Thread, call
from langchain.agents import AgentState
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history

STYLES = ("invoke", "ainvoke", "astream")
NESTED = "agent in a graph"
Cell = tuple[str, str | None, str, str]


def cells(kinds: Sequence[str], *elsewhere: tuple[str, str]) -> Any:
    """Each kind with each input in memory; those whose states have no ids also under other savers and styles."""
    chosen: list[Cell] = [(kind, "memory", given, "invoke") for kind in kinds for given in INPUTS]
    chosen += [(kind, saver, "pairs", style) for kind in kinds if kind in WITHOUT_IDS for saver, style in elsewhere]
    return parametrized(chosen)


def parametrized(chosen: Sequence[Cell]) -> Any:
    """Cells as cases of a test."""
    return pytest.mark.parametrize("cell", chosen, ids=lambda cell: "-".join(str(part) for part in cell), indirect=True)


WITHOUT_IDS = ("operator.add", "DeltaChannel", "create_deep_agent")
ELSEWHERE = (("sqlite", "astream"), ("mongodb", "ainvoke"))
EVERY_CELL: list[Cell] = [
    *((kind, saver, given, "invoke") for kind in AGENTS for saver in (None, *SAVERS) for given in INPUTS),
    *((kind, saver, "pairs", style) for kind in AGENTS for saver in ("sqlite", "mongodb") for style in STYLES[1:]),
    *((kind, saver, given, "astream") for kind in AGENTS for saver in (None, "memory") for given in INPUTS[:2]),
    *((kind, saver, given, "invoke") for kind in GRAPHS for saver in (None, "sqlite") for given in INPUTS),
    *((kind, "mongodb", "pairs", style) for kind in GRAPHS for style in STYLES),
]


@pytest.fixture
def cell(request: pytest.FixtureRequest) -> Cell:
    """Kind of agent, saver, input and style."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Thread]]:
    """Makes a thread of a cell."""
    made: list[Thread] = []

    def begin(cell: Cell, **options: Any) -> Thread:
        kind, saver, given, style = cell
        server = request.getfixturevalue("standalone") if saver == "mongodb" else None
        made.append(Thread(kind, saver, given, style, tmp_path, server, **options))
        return made[-1]

    yield begin
    for thread in made:
        thread.close()


@pytest.fixture
def thread(cell: Cell, start: Callable[..., Thread]) -> Thread:
    """The thread of the cell."""
    return start(cell)


def flat(turns: Sequence[Sequence[str]]) -> list[str]:
    """Turns as messages."""
    return [text for turn in turns for text in turn]


def linear(turns: Sequence[Sequence[str]]) -> list[list[str]]:
    """What a model is shown, turn by turn: all that was said before, and the question."""
    return [[*flat(turns[:i]), turn[0]] for i, turn in enumerate(turns)]


def check_stored(thread: Thread, turns: list[list[str]]) -> None:
    """Holds the store against the turns that were; an agent inside of a graph may have joined two of them into one."""
    assert thread.stored == flat(turns)
    if thread.kind != NESTED or len(thread.turns) == len(turns):
        assert thread.turns == turns
    ids = [message.id for message in thread.history.messages]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def failing(thread: Thread, value: Any) -> None:
    """A turn whose model raises."""
    thread.model.script = [RuntimeError("no model")]
    with pytest.raises(RuntimeError, match="no model"):
        thread.ask(value)


# -- plain turns: every cell


@parametrized(EVERY_CELL)
def test_four_turns(thread: Thread) -> None:
    """Four turns are eight messages, and the model is shown what came before."""
    turns = [[f"q{i}", f"a{i + 1}"] for i in range(4)]
    for question, _ in turns:
        thread.ask(question)
    check_stored(thread, turns)
    assert len(thread.stored) == 8
    assert thread.shown == linear(turns)


@pytest.mark.parametrize("saver", [None, "memory"])
@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("kind", [*AGENTS, *GRAPHS])
def test_the_same_text_four_times(start: Any, kind: str, given: str, saver: str | None) -> None:
    """A text that is said again is another message: four times "hi" are eight messages."""
    thread = start((kind, saver, given, "invoke"))
    turns = [["hi", f"a{i + 1}"] for i in range(4)]
    for question, _ in turns:
        thread.ask(question)
    check_stored(thread, turns)
    assert thread.shown == linear(turns)


@cells(AGENTS, *ELSEWHERE)
def test_every_turn_in_another_process(thread: Thread) -> None:
    """What decides is in the state and the store: with new objects for each turn nothing changes."""
    turns = [["hi", "a1"], ["q1", "a2"], ["hi", "a3"]]
    for question, _ in turns:
        thread.other_process()
        thread.ask(question)
    check_stored(thread, turns)
    assert thread.shown == linear(turns)


@cells(AGENTS)
def test_several_messages_at_once(thread: Thread) -> None:
    """Two messages of one input are one turn, in their order, though they say the same."""
    thread.ask("q0", "q0")
    thread.ask("q1", "q0")
    check_stored(thread, [["q0", "q0", "a1"], ["q1", "q0", "a2"]])
    assert thread.shown[-1] == ["q0", "q0", "a1", "q1", "q0"]


@cells(AGENTS, ("sqlite", "astream"))
def test_a_thread_older_than_the_middleware(cell: Cell, start: Any) -> None:
    """What a thread said before it had our middleware is moved in by its first run, once."""
    thread = start(cell, remembering=False)
    thread.ask("q0")
    thread.ask("q1")
    thread.remembering = True
    turns = [["q0", "a1"], ["q1", "a2"], ["q2", "a3"], ["q3", "a4"]]
    for question in ("q2", "q3"):
        thread.other_process()
        thread.ask(question)
    check_stored(thread, turns)
    assert thread.shown == linear(turns)


# -- stops


@cells(AGENTS, *ELSEWHERE)
def test_interrupted_and_resumed(thread: Thread) -> None:
    """Four turns, and one whose two tool calls a person approves, each in another process: fourteen messages."""
    turns = [[f"q{i}", f"a{i + 1}"] for i in range(4)]
    for question, _ in turns:
        thread.ask(question)
    thread.model.script = [call(1), call(2), AIMessage("done")]
    thread.ask("q4")
    check_stored(thread, turns)
    thread.other_process()
    thread.run(APPROVE)
    check_stored(thread, turns)
    thread.other_process()
    thread.run(APPROVE)
    turns.append(["q4", "look()", "seen", "look()", "seen", "done"])
    check_stored(thread, turns)
    assert len(thread.stored) == 14
    before = flat(turns[:4])
    assert thread.shown == [
        *linear(turns[:4]),
        [*before, "q4"],
        [*before, "q4", "look()", "seen"],
        [*before, "q4", "look()", "seen", "look()", "seen"],
    ]
    thread.ask("q5")
    check_stored(thread, [*turns, ["q5", "a8"]])
    assert thread.shown[-1] == [*flat(turns), "q5"]


@cells(AGENTS, ("sqlite", "astream"))
def test_interrupted_first_turn(thread: Thread) -> None:
    """A thread that begins with a turn that waits stores it whole when it ends, though every turn says the same."""
    for _ in range(2):
        thread.model.script = [call(1), AIMessage("done")]
        thread.ask("hi")
        thread.run(APPROVE)
    check_stored(thread, [["hi", "look()", "seen", "done"]] * 2)
    assert thread.shown[-1] == ["hi", "look()", "seen", "done", "hi", "look()", "seen"]


@cells(AGENTS, *ELSEWHERE)
def test_interrupted_and_left(thread: Thread) -> None:
    """A question asked while a run waits: what that run had said comes first, without the call nobody answered.

    deepagents puts a result for it into the state, so call and result are stored there.
    """
    thread.ask("q0")
    thread.model.script = [call()]
    thread.ask("q1")
    thread.other_process()
    thread.ask("q2")
    thread.ask("q3")
    left = ["q1", "look()", "(failed)"] if thread.kind == "create_deep_agent" else ["q1"]
    turns = [["q0", "a1"], left, ["q2", "a3"], ["q3", "a4"]]
    check_stored(thread, turns)
    assert thread.shown[-2:] == [[*flat(turns[:2]), "q2"], [*flat(turns[:3]), "q3"]]


@cells(AGENTS)
def test_left_where_a_chain_began_the_session(thread: Thread) -> None:
    """A run that waited before anything was stored is not taken for cleared, though a chain came first."""
    thread.model.script = [call()]
    thread.ask("q0")
    thread.chain("hi")
    thread.ask("q1")
    left = ["q0", "look()", "(failed)"] if thread.kind == "create_deep_agent" else ["q0"]
    turns = [["hi", "a2"], left, ["q1", "a3"]]
    check_stored(thread, turns)
    assert thread.shown[-1] == [*flat(turns[:2]), "q1"]


@cells(AGENTS)
def test_tools_without_a_stop(cell: Cell, start: Any) -> None:
    """Calls that nobody has to approve are one turn with their question, without a saver too."""
    thread = start((cell[0], None, *cell[2:]))
    for i in range(2):
        thread.model.script = [call(i), AIMessage("done")]
        thread.ask("hi")
    check_stored(thread, [["hi", "look()", "seen", "done"]] * 2)
    assert thread.shown[2:] == [
        ["hi", "look()", "seen", "done", "hi"],
        ["hi", "look()", "seen", "done", "hi", "look()", "seen"],
    ]


# -- failures


@cells((*AGENTS, *GRAPHS), *ELSEWHERE)
def test_failed_and_asked_again(thread: Thread) -> None:
    """The model fails, and the app asks again: the state holds both questions, as two if they have no ids.

    A chain that fails stores nothing, and is only given the last message.
    """
    thread.ask("q0")
    question = thread.question("q1")
    failing(thread, question)
    check_stored(thread, [["q0", "a1"]])
    again = question if thread.given == "ids" else thread.question("q1")
    thread.ask(again)
    asked = ["q1"] if thread.given == "ids" or thread.kind in GRAPHS else ["q1", "q1"]
    turns = [["q0", "a1"], [*asked, "a3"]]
    check_stored(thread, turns)
    assert thread.shown[-1] == ["q0", "a1", *asked]
    thread.ask("q2")
    check_stored(thread, [*turns, ["q2", "a4"]])
    assert thread.shown[-1] == [*flat(turns), "q2"]


@cells((*AGENTS, *GRAPHS))
def test_failed_without_a_saver(cell: Cell, start: Any) -> None:
    """Without a saver nothing of a failed run is left, and the next one is a turn of its own."""
    thread = start((cell[0], None, *cell[2:]))
    thread.ask("q0")
    failing(thread, "q1")
    thread.ask("q1")
    check_stored(thread, [["q0", "a1"], ["q1", "a3"]])
    assert thread.shown[-1] == ["q0", "a1", "q1"]


@cells((*AGENTS, *GRAPHS), *ELSEWHERE)
def test_failed_and_continued(thread: Thread) -> None:
    """The model fails, and another process goes on with `invoke(None, config)`: one turn."""
    thread.ask("q0")
    failing(thread, "q1")
    thread.other_process()
    thread.run(None)
    turns = [["q0", "a1"], ["q1", "a3"]]
    check_stored(thread, turns)
    assert thread.shown[-1] == ["q0", "a1", "q1"]
    thread.ask("q1")
    check_stored(thread, [*turns, ["q1", "a4"]])
    assert thread.shown[-1] == [*flat(turns), "q1"]


@cells(AGENTS)
def test_first_turn_failed(thread: Thread) -> None:
    """The very first model call fails twice, then the run is continued: the question is there once."""
    failing(thread, "q0")
    thread.model.script = [RuntimeError("no model")]
    with pytest.raises(RuntimeError, match="no model"):
        thread.run(None)
    thread.run(None)
    thread.ask("q1")
    turns = [["q0", "a3"], ["q1", "a4"]]
    check_stored(thread, turns)
    assert thread.shown[-2:] == linear(turns)


@cells(AGENTS, ("sqlite", "astream"))
def test_failed_after_a_tool(thread: Thread) -> None:
    """The model fails after an approved call; continued elsewhere, the turn is whole and stored once."""
    thread.ask("q0")
    thread.model.script = [call(), RuntimeError("no model"), AIMessage("done")]
    thread.ask("q1")
    with pytest.raises(RuntimeError, match="no model"):
        thread.run(APPROVE)
    thread.other_process()
    thread.run(None)
    check_stored(thread, [["q0", "a1"], ["q1", "look()", "seen", "done"]])


# -- branches


@cells(AGENTS, *ELSEWHERE)
def test_forked_from_an_older_end(thread: Thread) -> None:
    """Four turns, a fork from the end of the second, a turn that goes on there: twelve messages, the branch is shown.

    An agent inside of a graph is shown the log: its state does not remember its turns (docs/agents.md).
    """
    turns, ends = [[f"q{i}", f"a{i + 1}"] for i in range(4)], []
    for question, _ in turns:
        thread.ask(question)
        ends.append(thread.end())
    thread.other_process()
    thread.ask("other", at=ends[1])
    thread.other_process()
    thread.ask("then")
    check_stored(thread, [*turns, ["other", "a5"], ["then", "a6"]])
    assert len(thread.stored) == 12
    past = flat(turns if thread.kind == NESTED else turns[:2])
    assert thread.shown[-2:] == [[*past, "other"], [*past, "other", "a5", "then"]]


@cells(AGENTS, ("sqlite", "astream"))
def test_forked_with_the_same_words(thread: Thread) -> None:
    """Branches that say the same as what they left are branches: three times from one end, all is kept."""
    thread.ask("hi")
    end = thread.end()
    for _ in range(3):
        thread.ask("hi", at=end)
    check_stored(thread, [["hi", f"a{i}"] for i in (1, 2, 3, 4)])
    if thread.kind != NESTED:
        assert thread.shown[1:] == [["hi", "a1", "hi"]] * 3


@pytest.mark.parametrize("node", ["model", "before_agent"])
@cells([kind for kind in AGENTS if kind != NESTED], ("sqlite", "astream"))
def test_replayed(thread: Thread, node: str) -> None:
    """A finished turn that is run again from its middle or beginning is a turn of its own, its question included."""
    for i in range(3):
        thread.ask(f"q{i}")
    past = [s for s in thread.states() if s.next and s.next[0].endswith(node) and len(s.values["messages"]) == 3]
    thread.run(None, at=past[-1].config)
    thread.ask("then")
    assert thread.turns == [["q0", "a1"], ["q1", "a2"], ["q2", "a3"], ["q1", "a4"], ["then", "a5"]]
    assert thread.shown[-2:] == [["q0", "a1", "q1"], ["q0", "a1", "q1", "a4", "then"]]


@cells(AGENTS, *ELSEWHERE)
def test_messages_put_into_the_state(thread: Thread) -> None:
    """What `update_state` puts into a thread between two runs is stored when the next one begins, once."""
    thread.ask("q0")
    thread.update([thread.question("put in"), AIMessage("noted")])
    thread.other_process()
    thread.ask("q1")
    turns = [["q0", "a1"], ["put in", "noted"], ["q1", "a2"]]
    check_stored(thread, turns)
    assert thread.shown[-1] == ["q0", "a1", "put in", "noted", "q1"]
    thread.ask("q2")
    check_stored(thread, [*turns, ["q2", "a3"]])
    assert thread.shown[-1] == [*flat(turns), "q2"]


# -- the same session from elsewhere


@cells(AGENTS, *ELSEWHERE)
def test_cleared(thread: Thread) -> None:
    """What the state still holds of a session that was cleared is neither stored nor shown again."""
    thread.ask("hi")
    thread.ask("q1")
    thread.history.clear()
    thread.other_process()
    thread.ask("hi")
    thread.ask("q3")
    turns = [["hi", "a3"], ["q3", "a4"]]
    check_stored(thread, turns)
    assert thread.shown[-2:] == linear(turns)


@cells(AGENTS, *ELSEWHERE)
def test_chains_and_agents_by_turns(thread: Thread) -> None:
    """A chain and an agent take turns on one session: each is shown what the other said, and all is there once."""
    for question in ("q0", "q1", "q2"):
        thread.ask(question)
        thread.chain("hi")
    turns = [["q0", "a1"], ["hi", "a2"], ["q1", "a3"], ["hi", "a4"], ["q2", "a5"], ["hi", "a6"]]
    check_stored(thread, turns)
    assert thread.shown == linear(turns)


@cells(AGENTS)
def test_a_stored_past_given_again(thread: Thread) -> None:
    """What is stored and is given to the thread again with its ids, a chain's turn among it, is known."""
    thread.ask("q0")
    thread.chain("hi")
    said = thread.history.messages
    thread.ask(*said, "q1")
    check_stored(thread, [["q0", "a1"], ["hi", "a2"], ["q1", "a3"]])


# -- a graph by hand around the chain


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
def test_a_graph_that_stops_before_the_chain(tmp_path: Path, style: str) -> None:
    """A node that waits for a person before the one that calls our chain: each turn is stored once, when it is said."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        thread = Thread("chain in a graph", None, "ids", style, tmp_path)
        chain = create_runnable_with_message_history(thread.model, histories)

        def ask(state: Any) -> Any:
            return {"messages": [HumanMessage(f"they say {interrupt('?')}")]}

        def answer(state: Any, config: RunnableConfig) -> Any:
            return {"messages": [chain.invoke(state["messages"][-2:], config)]}

        async def aanswer(state: Any, config: RunnableConfig) -> Any:
            return {"messages": [await chain.ainvoke(state["messages"][-2:], config)]}

        graph: Any = StateGraph(MessagesState)
        graph.add_node("ask", ask).add_node("answer", answer if style == "invoke" else aanswer)
        thread.agent = graph.add_edge(START, "ask").add_edge("ask", "answer").compile(InMemorySaver())
        for i in range(2):
            thread.ask("hi")
            assert len(histories("s1", "u1").messages) == 3 * i
            thread.run(Command(resume="yes"))
        thread.close()
        stored = [m.text for m in histories("s1", "u1").messages]
        assert stored == ["hi", "they say yes", "a1", "hi", "they say yes", "a2"]
        assert thread.shown[-1] == stored[:-1]


# -- where no rule can know: a double is allowed, a loss is not


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("kind", AGENTS)
def test_two_runs_at_once(start: Any, kind: str, given: str) -> None:
    """Two runs race on one thread: all that either said is stored, at most twice, and a later turn goes on."""
    thread = start((kind, "memory", given, "invoke"))
    thread.ask("q0")
    together = threading.Barrier(2, timeout=30)
    thread.model.before_answer = together.wait
    runs = [threading.Thread(target=thread.ask, args=(text,)) for text in ("left", "right")]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    thread.model.before_answer = None
    thread.ask("then")
    stored = thread.stored
    assert stored[:2] == ["q0", "a1"]
    assert stored[-2:] == ["then", "a4"]
    for text in ("left", "right", "a2", "a3"):
        assert stored.count(text) in (1, 2)
    assert stored.count("q0") == 1
    assert set(stored) == {"q0", "a1", "left", "right", "a2", "a3", "then", "a4"}


@pytest.mark.parametrize("saver", [None, "memory"])
@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("kind", [kind for kind in AGENTS if kind != "operator.add"])
def test_a_whole_past_resent(start: Any, kind: str, given: str, saver: str | None) -> None:
    """A client that sends the whole conversation each time: with ids it is stored once, without at most as sent."""
    thread = start((kind, saver, given, "invoke"))
    sent: list[Any] = []
    for i in range(3):
        sent.append(thread.question(f"q{i}"))
        answer = thread.ask(*sent)["messages"][-1]
        sent.append(answer if given == "ids" else ("assistant", answer.text))
    turns = [["q0", "a1"], ["q1", "a2"], ["q2", "a3"]]
    if given == "ids":
        check_stored(thread, turns)
        assert thread.shown == linear(turns)
    assert [text for i, text in enumerate(thread.stored) if text not in thread.stored[:i]] == flat(turns)
    assert thread.stored.count("q0") <= 3
    assert thread.stored.count("q2") == 1
    assert thread.stored[-2:] == ["q2", "a3"]


@pytest.mark.parametrize("number", [0, 1])
@cells(AGENTS, ("mongodb", "ainvoke"))
def test_an_input_replayed(thread: Thread, number: int) -> None:
    """The checkpoint before an input is run again: its answer is added to all that was; the past may stand twice."""
    for i in range(3):
        thread.ask(f"q{i}")
    starts = [s for s in reversed(thread.states()) if s.next == ("__start__",)]
    thread.run(None, at=starts[number].config)
    thread.ask("then")
    before = ["q0", "a1", "q1", "a2", "q2", "a3"]
    stored = thread.stored
    assert stored[:6] == before
    assert stored[-3:] == ["a4", "then", "a5"]
    assert set(stored[6:-3]) <= set(before[: 2 * number + 1])
    assert len(stored) <= 9 + 2 * number + 1
    if thread.given == "ids" and thread.kind != NESTED and number:
        assert stored[6:-3] == ["q1"]
        assert thread.shown[-2] == ["q0", "a1", "q1"]


def shortened(left: list[Any], right: list[Any]) -> list[Any]:
    """Keeps the last three."""
    return operator.add(left, right)[-3:]


class ShortState(AgentState[Any]):
    messages: Required[Annotated[list[Any], shortened]]


@pytest.mark.parametrize("given", INPUTS)
def test_a_reducer_that_shortens(start: Any, given: str) -> None:
    """A state that keeps the last three messages: the model sees those, and all that was said is stored."""
    thread = start(("create_agent", "memory", given, "invoke"), state=ShortState)
    turns = [[f"q{i}", f"a{i + 1}"] for i in range(5)]
    for question, _ in turns:
        thread.ask(question)
    check_stored(thread, turns)
    assert thread.shown == [shown[-3:] for shown in linear(turns)]
