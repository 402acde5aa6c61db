"""docs/reliability.md shows the committed record of the gate, and nothing else."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

GATE = Path(__file__).parents[1] / "gate"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that writes the record."""
    monkeypatch.syspath_prepend(str(GATE))
    return import_module("gatekit.record")


def test_the_table_is_that_of_the_records(record: Any) -> None:
    """Making the page again from the committed records changes nothing, and every row is in it."""
    page = record.PAGE.read_text()
    assert record.page(page) == page
    for name in record.BOUNDS:
        assert f"| {name} | " in page


def test_messages_are_text(record: Any) -> None:
    """What a test said breaks no table: bars, line breaks, tags; nor does it tell where it ran."""
    figure = {"name": "x", "measured": "a|b\n<b> `c`", "bound": "<= 0", "passed": False, "badness": 1}
    row = {"passed": 0, "failed": 1, "seconds": 1, "figures": [figure]}
    assert record._peer_cell(row) == "1 of 1 fail<br>a/b &lt;b&gt; 'c' (&lt;= 0)"
    assert record._memkit_cell(row, None) == "0 of 1 hold, 1 s<br>1 counts of harm: worst a/b &lt;b&gt; 'c'"
    assert record.scrubbed(f"{record.ROOT}/x 127.0.0.1:27017 gate_0123456789ab") == ".../x 127.0.0.1 gate_0123456789ab"


def test_a_part_of_the_gate_is_no_record(record: Any) -> None:
    """A run that left out rows is refused, and nothing is written."""
    before = json.loads((record.RECORDS / "memkit.json").read_text())
    with pytest.raises(ValueError, match="R2, R3"):
        record.write("memkit", {"rows": {"R1": {}}})
    assert json.loads((record.RECORDS / "memkit.json").read_text()) == before
