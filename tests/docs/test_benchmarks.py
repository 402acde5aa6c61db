"""The benchmarks run, and their result is complete. What they measure is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = {
    "standalone": {"memkit", "peer", "peer_history_size", "peer_equal_writes", "floor", "chain"},
    "replica_set": {"memkit", "peer", "peer_history_size", "floor", "chain"},
    "sqlite": {"memkit", "chain"},
}
HISTORIES = {"memkit", "peer", "peer_history_size"}


def expected_systems(measurement: str, deployment: str) -> set[str]:
    """Who takes part in a measurement."""
    parts = PARTS[deployment]
    return (
        parts
        & {
            "turn": HISTORIES | {"floor", "chain"},
            "read_last_20": HISTORIES,
            "append_one_call": {"memkit", "peer", "peer_equal_writes"},
            "append_pairs": {"memkit", "peer", "peer_equal_writes"},
            "kept_histories": set() if deployment == "sqlite" else {"memkit", "peer"},
        }[measurement]
    )


def test_the_history_benchmark_has_every_row(tmp_path: Path) -> None:
    """A quick run measures every system, size and shape, and derives ratios above 0."""
    file = tmp_path / "history.json"
    command = [sys.executable, "-m", "benchmarks.history", "--quick", "--output", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(file.read_text())
    rows = result["rows"]
    sizes = {row["stored"] for row in rows if "stored" in row}
    for deployment in PARTS:
        for measurement in ("append_one_call", "append_pairs", "turn", "read_last_20", "kept_histories"):
            found = [r for r in rows if (r["deployment"], r["measurement"]) == (deployment, measurement)]
            assert {row["system"] for row in found} == expected_systems(measurement, deployment)
            if measurement in ("turn", "read_last_20"):
                for system in {row["system"] for row in found} - {"chain"}:
                    shapes = {"pairs", "import"} if system == "memkit" else {"pairs"}
                    places = {(row["shape"], row["stored"]) for row in found if row["system"] == system}
                    assert places == {(shape, size) for shape in shapes for size in sizes}
    assert all(0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"] for row in rows if "median_ms" in row)
    assert result["ratios"]
    assert all(ratio["value"] > 0 for ratio in result["ratios"])
    assert result["write_concerns"]["replica_set"]["peer"]["write"] == {"w": "majority", "j": True}
    assert {"langchain-memkit", "langchain-core", "langchain-mongodb", "pymongo", "mongod"} <= result["versions"].keys()


def test_the_committed_result_is_of_a_full_run() -> None:
    """benchmarks/results/history.json comes from a full run, and states the bars."""
    result = json.loads((ROOT / "benchmarks" / "results" / "history.json").read_text())
    assert result["quick"] is False
    assert {ratio["bar"] for ratio in result["ratios"] if "bar" in ratio} == {">= 100", "<= 1.3", "<= 2"}
    assert {row["stored"] for row in result["rows"] if "stored" in row} == {20, 1_000, 10_000, 100_000}


def test_the_token_benchmark_has_every_row(tmp_path: Path) -> None:
    """A quick run counts and times three languages and code, and finds the errors of the committed full run."""
    file = tmp_path / "tokens.json"
    command = [sys.executable, "-m", "benchmarks.tokens", "--quick", "--output", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    committed = json.loads((ROOT / "benchmarks" / "results" / "tokens.json").read_text())
    assert committed["quick"] is False
    found = []
    for rows in (json.loads(file.read_text())["rows"], committed["rows"]):
        errors = {row["text"]: row for row in rows if row["measurement"] == "error"}
        assert errors.pop("code")["o200k_base"] > 10_000  # the standard library: its size differs by Python version
        timed = {(row["text"], row["counter"]) for row in rows if row["measurement"] == "time"}
        counters = ("langchain-core", "approximate", "o200k_base", "cl100k_base")
        assert timed == {(text, counter) for text in (*errors, "code") for counter in counters}
        found.append(errors)
    assert found[0] == found[1]
    assert set(found[0]) == {"english", "german", "chinese"}
