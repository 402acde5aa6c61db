"""A new process, and a user with a long past asks for the first time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gatekit.cold import fill
from gatekit.systems import Place

HERE = Path(__file__).resolve().parent
PROCESSES = 3
# Of the bare read's processor time, at most: half as much again as was measured, which is 17 and 14, and 6 to 8 and 4,
# since what is derived lies compressed in the rows of the turns. Of 1,000 rounds most is what a process does once.
TIMES = {"sqlite": {1_000: 36, 10_000: 21}, "standalone": {1_000: 11, 10_000: 6}}


@pytest.mark.gate(row=25, memkit_only=True, limit=150)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_the_first_question_in_a_new_process(place: Place, figure: Any) -> None:
    """With 1,000 and 10,000 rounds: held to the driver alone, which reads the same records in the same processes."""
    for rounds, limit in TIMES[place.kind].items():
        user = f"u{rounds}"
        fill(place, user, rounds)
        found = [asked(place, user) for _ in range(PROCESSES)]
        assert all(one["found"] and one["records"] >= rounds for one in found), found
        first, bare = (min(one[name] for one in found) for name in ("first", "bare"))
        named = f"{place.kind}: first recall from {rounds} rounds"
        figure(f"{named}, processor time", 1000 * first, at_most=1000 * limit * bare, unit=" ms")
        figure(f"{named}, times the bare read", first / bare, at_most=limit)


def asked(place: Place, user: str) -> dict[str, Any]:
    """What a new process measures."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    given = json.dumps([place.kind, place.uri, place.database, user])
    command = [sys.executable, "-m", "gatekit.cold", given]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # what `measured` returns
