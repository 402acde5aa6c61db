"""Every notebook runs from top to bottom, and shows what it did when it was recorded: `make notebooks`.

Cells print values and do not assert. What must be among them stands in the TOML file of the notebook's name.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from notebooks.execute import run
from testkit.notebooks import NOTEBOOKS, check_outputs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_shows_what_is_expected(path: Path) -> None:
    """With the fake model, or the one that MEMKIT_NOTEBOOK_MODEL names."""
    check_outputs(path.stem, run(path), "shows" if "MEMKIT_NOTEBOOK_MODEL" in os.environ else "fake")
