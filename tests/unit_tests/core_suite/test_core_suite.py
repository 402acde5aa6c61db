"""langchain-core's own tests of the class that our factory replaces, from its source package (`make test` gets it)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / ".parts" / "langchain_core-1.7.2"


def test_langchain_cores_own_suite() -> None:
    """23 of 23 pass with `create_runnable_with_message_history` in the class's place, warnings as errors."""
    assert SOURCES.is_dir(), "langchain-core's sources are missing: run `python tools/parts.py core-tests`"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "memkit_in_the_classs_place", "-p", "no:cacheprovider"),
        *("-c", os.devnull, "--rootdir", str(SOURCES), "-W", "error"),
        # core's tests make an InMemoryChatMessageHistory, which is deprecated: their doing, not ours
        *("-W", "ignore:The class `InMemoryChatMessageHistory` was deprecated"),
        *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
        "tests/unit_tests/runnables/test_history.py",
    ]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=SOURCES, env=environment, capture_output=True, text=True, check=False)
    assert "23 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
