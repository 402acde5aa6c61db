"""R23: a writer that is stopped at any step, or dies there, while the other side clears, purges and appends."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from gatekit import races
from gatekit.races import Case, Ran
from gatekit.systems import Place

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


@pytest.mark.gate("R23", memkit_only=True, limit=3600)
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
    judge(place, cases, len(every), ran, figure)


@pytest.fixture
def files(forks: Any, system: Any, tmp_path: Path) -> Any:
    """Processes that run races on files."""
    lines, processes = [], []
    for _ in range(PROCESSES):
        line, end = forks.Pipe()
        process = forks.Process(target=races.run_in_files, args=(system.name, tmp_path, end))
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


@pytest.mark.gate("R23", memkit_only=True, limit=3600)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_races_in_a_file(
    place: Place, files: Callable[[Sequence[Case]], list[Ran]], nightly: bool, figure: Any
) -> None:
    """The same in a file, whose writer is a process that is killed: nothing is left in any of its bytes."""
    every = races.all_cases(files, ["chain", "append"])
    cases = chosen(every, place, nightly)
    judge(place, cases, len(every), files(cases), figure)
