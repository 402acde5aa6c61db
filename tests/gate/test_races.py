"""A writer that is stopped at any step, or dies there, while the other side clears, purges and appends.

A sample is run, always the same; all of them: `pytest tests/gate/test_races.py --gate-nightly -s`.
"""

from __future__ import annotations

import gc
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from gatekit import races
from gatekit.races import Case, Ran
from gatekit.systems import Place
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit.errors import StaleTurnError

SAMPLE = {"standalone": 120, "replica_set": 100, "sqlite": 100}
AT_ONCE = 4  # on a server: each waits for its journal
PROCESSES = 2


def describe(ran: Ran) -> str:
    """One race in words."""
    case = ran.case
    where = f"{ran.steps[case.stop]} ({case.stop})" if case.stop < len(ran.steps) else "nowhere"
    end = "goes on" if case.dies is None else f"dies {case.dies} writes later"
    whose = "a user's" if case.owned else "nobody's"
    return f"{case.writer}, {whose} {case.state} session, stopped {where}, {case.things}, {end}: {'; '.join(ran.wrong)}"


def chosen(cases: Sequence[Case], place: Place, nightly: bool) -> list[Case]:
    """All of them for `nightly`, else a sample, always the same."""
    return list(cases) if nightly else random.Random(23).sample(cases, min(SAMPLE[place.kind], len(cases)))


def judge(place: Place, cases: Sequence[Case], total: int, ran: Sequence[Ran], figure: Any) -> None:
    """The figures of a run, and what was wrong."""
    wrong = [describe(each) for each in ran if each.wrong]
    kinds = Counter(text.partition(":")[0] for each in ran for text in set(each.wrong))
    print(f"{place.kind}: {len(cases)} races of {total}, {sum(each.looks for each in ran)} looks, {len(wrong)} wrong")
    print("\n".join([f"{n} x {kind}" for kind, n in kinds.most_common()] + wrong[:40]))
    figure(f"{place.kind}: races", len(cases), at_least=100)
    figure(f"{place.kind}: writers stopped", sum(each.reached for each in ran), at_least=int(0.95 * len(cases)))
    figure(f"{place.kind}: races that left content, or showed what was not stored", len(wrong), at_most=0)


@pytest.mark.gate(row=23, memkit_only=True, limit=3600)
@pytest.mark.filterwarnings(  # the event loop of an async writer ends while pymongo's monitor connects
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_races_on_a_server(place: Place, system: Any, collection: Any, nightly: bool, figure: Any) -> None:
    """Whatever is cleared or purged while a writer stands is nowhere afterwards, and no reader saw a void turn."""
    race = races.on_server(place.with_options(f"appName={uuid4().hex}"), system)
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def run_all(cases: Sequence[Case]) -> list[Ran]:
            return list(pool.map(race, cases))

        every = races.all_cases(run_all, ["chain", "async chain", "append"])
        cases = chosen(every, place, nightly)
        ran = run_all(cases)
    database = collection.database
    stored = races.left_on_server([database[name] for name in database.list_collection_names()])
    for token in sorted(stored - set().union(*(each.shown for each in ran))):
        found = [each for each in ran if token.split("-")[1] == str(each.number)]
        for each in found:
            each.wrong.append(f"content left: {token}")
    gc.collect()  # here, where the warnings are expected
    judge(place, cases, len(every), ran, figure)


@pytest.fixture
def files(forks: Any, system: Any, tmp_path: Path) -> Any:
    """Processes that run races on files."""
    lines, processes = [], []
    for _ in range(PROCESSES):
        line, end = forks.Pipe()
        process = forks.Process(target=races.run_in_files, args=(system.name, tmp_path, end), daemon=True)
        process.start()
        end.close()
        lines.append(line)
        processes.append(process)

    def run_all(cases: Sequence[Case]) -> list[Ran]:
        ran = []
        for begin in range(0, len(cases), 40 * PROCESSES):
            for i, line in enumerate(lines):
                line.send(cases[begin + i : begin + 40 * PROCESSES : PROCESSES])
            ran += [each for line in lines for each in line.recv()]
        return ran

    yield run_all
    for line, process in zip(lines, processes, strict=True):
        line.send(None)
        process.join(10)
        line.close()


@pytest.mark.gate(row=23, memkit_only=True, limit=3600)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_races_in_a_file(
    place: Place, files: Callable[[Sequence[Case]], list[Ran]], nightly: bool, figure: Any
) -> None:
    """The same in a file, whose writer is a process that is killed: nothing is left in any of its bytes."""
    every = races.all_cases(files, ["chain", "append"])
    cases = chosen(every, place, nightly)
    judge(place, cases, len(every), files(cases), figure)


class Careless:
    """Writers with a fault each, which the harness must see: what each of them stores is noticed in the end."""

    @staticmethod
    def forgets(history: Any, said: str) -> None:
        """Loads, and stores whatever was erased since."""
        history.view()
        races.step("model")
        history.append_turn([HumanMessage(said), AIMessage(f"re: {said}")])

    @staticmethod
    def leaves(history: Any, said: str) -> None:
        """Stores what nobody sees."""
        races.step("model")
        history.delete_turn(history.append_turn([HumanMessage(said), AIMessage(f"re: {said}")]))

    @staticmethod
    def takes_back(history: Any, said: str) -> None:
        """Shows a turn, and takes it back."""
        races.step("model")
        seq = history.append_turn([HumanMessage(said), AIMessage(f"re: {said}")])
        races.step("after insert")
        history.delete_turn(seq)
        raise StaleTurnError("cleared")

    @staticmethod
    def clears(history: Any, said: str) -> None:
        """Takes what others stored along."""
        races.step("model")
        history.clear()
        raise StaleTurnError("cleared")


@pytest.mark.gate(row=23, memkit_only=True)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "things", "seen"),
    [
        (Careless.forgets, "clear", "erased, and shown again"),
        (Careless.leaves, "append", "content left"),
        (Careless.takes_back, "append", "shown, and never stored"),
        (Careless.clears, "append", "acknowledged, and lost"),
    ],
    ids=["forgets", "leaves", "takes back", "clears"],
)
def test_the_races_see_each_fault(fault: Any, things: str, seen: str, place: Place, system: Any) -> None:
    """A writer with one fault is found out, by the name of the fault."""
    histories = system.histories(place)

    def start(case: Case, session: str, user: str | None, said: str) -> Any:
        return races.in_thread(case.stop, lambda: fault(histories(session, user), said))

    def stored(session: str) -> set[str]:
        with closing(sqlite3.connect(place.uri)) as connection:
            return {said.decode() for line in connection.iterdump() for said in races.SAID.findall(line.encode())}

    ran = races.run(Case("chain", "going", True, 0, things, None), histories, start, stored)
    assert ran.reached
    assert seen in {text.partition(":")[0] for text in ran.wrong}, ran.wrong
