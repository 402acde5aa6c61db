"""R25: a new process, and a user with a long past asks for the first time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from gatekit.cold import fill
from gatekit.systems import Place

HERE = Path(__file__).resolve().parent
PROCESSES = 3
TIMES = {"sqlite": 25, "standalone": 8}  # the bare read, at most
SECONDS = {1_000: 1.0, 10_000: 5.0}


@pytest.mark.gate("R25", memkit_only=True, limit=150)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_the_first_question_in_a_new_process(place: Place, figure: Any) -> None:
    """With 1,000 and 10,000 rounds: held to the driver alone, which reads the same records in the same process."""
    for rounds, limit in SECONDS.items():
        user = f"u{rounds}"
        fill(place, user, rounds)
        found = [asked(place, user) for _ in range(PROCESSES)]
        assert all(one["found"] and one["records"] >= rounds for one in found), found
        first = median(one["first"] for one in found)
        times = median(one["first"] / one["bare"] for one in found)
        named = f"{place.kind}: first recall from {rounds} rounds"
        figure(named, 1000 * first, at_most=1000 * limit, unit=" ms")
        figure(f"{named}, times the bare read", times, at_most=TIMES[place.kind])


def asked(place: Place, user: str) -> dict[str, Any]:
    """What a new process measures."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    given = json.dumps([place.kind, place.uri, place.database, user])
    command = [sys.executable, "-m", "gatekit.cold", given]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # what `measured` returns
