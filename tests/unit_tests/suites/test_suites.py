"""LangChain's own tests of what ours replaces, from the source packages of the versions that are installed.

`python tools/parts.py suites` gets them; only their tests are copied, so that they run against what is installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import langchain_memkit

PARTS = Path(__file__).parents[3] / ".parts"
HISTORIES = ("runnables/test_history.py", "chat_history/test_chat_history.py")
# How many tests these are in the versions that ours is run on: the oldest, a usual one and the newest of this day.
KNOWN = {"1.3.3": 26, "1.7.2": 29, "1.8.2": 29}


def passed(package: str, folder: Path, paths: tuple[str, ...], *options: str) -> int:
    """How many of LangChain's tests pass with ours in the place of theirs, warnings as errors; all of them must."""
    version = importlib.metadata.version(package)
    sources = PARTS / f"{package.replace('-', '_')}-{version}"
    assert sources.is_dir(), f"{sources.name} is missing: run `python tools/parts.py suites` with {sys.executable}"
    shutil.copytree(sources / "tests", folder / "tests")
    # the plugin, and the package where this runs in a checkout
    ours = [str(Path(__file__).parent), str(Path(langchain_memkit.__file__).parents[1])]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", os.devnull, "--rootdir", str(folder)]
    command += ["-p", "memkit_in_langchains_place", "-p", "no:cacheprovider", "-W", "error", *options]
    command += ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    command += [f"tests/unit_tests/{path}" for path in paths]
    before = os.environ.get("PYTHONPATH")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment["PYTHONPATH"] = os.pathsep.join([*ours, before] if before else ours)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (package, "langchain-memkit"):
        module = importlib.import_module(name.replace("-", "_"))
        assert f"tested: {name} {importlib.metadata.version(name)} {module.__file__}\n" in done.stdout, done.stdout
    outcome = re.search(r"^(\d+) passed in ", done.stdout, re.MULTILINE)  # else some were skipped or left out
    assert outcome, done.stdout
    return int(outcome[1])


@pytest.mark.needs_retired_classes  # core's tests import core's own classes first
@pytest.mark.parametrize("ours", ["RunnableWithMessageHistory", "create_runnable_with_message_history"])
def test_langchain_cores_own_tests_of_histories(ours: str, tmp_path: Path) -> None:
    """All pass on the langchain-core that is installed, with the class or the factory function in the class's place."""
    # core's tests make an InMemoryChatMessageHistory, which is deprecated: their doing, not ours
    theirs = "ignore:The class `InMemoryChatMessageHistory` was deprecated"
    count = passed("langchain-core", tmp_path, HISTORIES, f"--runnable-with-message-history={ours}", "-W", theirs)
    version = importlib.metadata.version("langchain-core")
    assert count == KNOWN[version] if version in KNOWN else count >= min(KNOWN.values()), count


def test_langchain_classics_own_cases_of_a_history_aware_retriever(tmp_path: Path) -> None:
    """They hold with our `create_history_aware_retriever`: no history, none given, and whatever the model says."""
    assert passed("langchain-classic", tmp_path, ("chains/test_history_aware_retriever.py",)) == 1
