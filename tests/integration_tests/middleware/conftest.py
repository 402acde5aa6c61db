"""The kit of the unit tests."""

from __future__ import annotations

import sys
from pathlib import Path

# --import-mode=importlib puts no folder of tests there
sys.path.append(str(Path(__file__).resolve().parents[2] / "unit_tests" / "middleware"))
