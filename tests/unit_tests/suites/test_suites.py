"""LangChain's own tests of what ours replaces, from its source packages (`make test` gets them)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PARTS = Path(__file__).parents[3] / ".parts"
CORE, CLASSIC = "langchain_core-1.7.2", "langchain_classic-1.0.8"


def run_suite(package: str, path: str, *options: str) -> str:
    """The report of LangChain's tests with ours in the place of theirs, warnings as errors."""
    sources = PARTS / package
    assert sources.is_dir(), f"{package} is missing: run `python tools/parts.py suites`"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "memkit_in_langchains_place", "-p", "no:cacheprovider"),
        *("-c", os.devnull, "--rootdir", str(sources), "-W", "error", *options),
        *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", path),
    ]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_langchain_cores_own_suite() -> None:
    """23 of 23 pass with `create_runnable_with_message_history` in the class's place."""
    # core's tests make an InMemoryChatMessageHistory, which is deprecated: their doing, not ours
    theirs = "ignore:The class `InMemoryChatMessageHistory` was deprecated"
    assert "23 passed" in run_suite(CORE, "tests/unit_tests/runnables/test_history.py", "-W", theirs)


def test_langchain_classics_own_cases_of_a_history_aware_retriever() -> None:
    """They hold with our `create_history_aware_retriever`: no history, none given, and whatever the model says."""
    assert "1 passed" in run_suite(CLASSIC, "tests/unit_tests/chains/test_history_aware_retriever.py")
