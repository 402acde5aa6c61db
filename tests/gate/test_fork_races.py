"""Forks beside writers, clears, edits and purges, by threads of several processes.

A few of each kind of race are run; 1,000 on each store: `pytest tests/gate/test_fork_races.py --gate-nightly -s`, or
any number: `MEMKIT_FORK_RACES=150`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from gatekit import fork_races
from gatekit.fork_races import KINDS, Lane, Ran
from gatekit.races import SAID
from gatekit.systems import Place

RACES = {"standalone": 44, "replica_set": 33, "sqlite": 33}
NIGHTLY = 1000
LANES = 2  # each with two processes


@pytest.mark.gate(row=23, memkit_only=True, limit=1800)
def test_forks_beside_others(
    place: Place, system: Any, forks: Any, nightly: bool, figure: Any, request: pytest.FixtureRequest
) -> None:
    """A copy is whole or not there, no turn is lost, nothing is stuck, and a purged user's words are nowhere."""
    count = int(os.environ.get("MEMKIT_FORK_RACES", NIGHTLY if nightly else RACES[place.kind]))
    system.histories(place).setup()
    if place.kind == "sqlite":
        raw_rows = partial(fork_races.rows_of_file, place.uri)
    else:
        raw_rows = partial(fork_races.documents_of, request.getfixturevalue("collection"))
    with ExitStack() as stack:
        lanes = [Lane(forks, system, place, raw_rows, seed) for seed in range(LANES)]
        for lane in lanes:
            stack.callback(lane.close)
        kinds = list(islice(cycle([*KINDS, "anything"]), count))

        def run(n: int) -> list[Ran]:
            return [lanes[n].race(number, kinds[number]) for number in range(n, count, LANES)]

        with ThreadPoolExecutor(LANES) as pool:
            ran = [each for some in pool.map(run, range(LANES)) for each in some]
    if place.kind == "sqlite":  # each race ends with a purge
        system.histories(place).close()
        left = {said for file in Path(place.uri).parent.glob("chat.db*") for said in SAID.findall(file.read_bytes())}
        figure("sqlite: words of purged users in the bytes of the file", len(left), at_most=0)
    wrong = [each for each in ran if each.wrong]
    print(fork_races.summary(place.kind, ran))
    print("\n".join(map(str, wrong[:12])))
    for kind in dict.fromkeys(kinds):
        those = [each for each in ran if each.kind == kind]
        print(f"  {kind}: {sum(bool(each.wrong) for each in those)} of {len(those)} wrong")
    figure(f"{place.kind}: races of forks", len(ran), at_least=min(count, 30))
    for name in ("lost", "stuck", "left", "shown"):
        those = [each for each in wrong if any(name in text.partition(":")[0] for text in each.wrong)]
        figure(f"{place.kind}: forks: {name}", len(those), at_most=0)
    figure(f"{place.kind}: forks: races with anything wrong", len(wrong), at_most=0)
