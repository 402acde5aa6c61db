"""Environments of their own for what is released: `make wheel`, `sbom`, `extras`, `floor`, `newest` and `pythons`.

Each session builds the wheel and installs it by uv, which can override a requirement, into a new environment below
`.nox`. Its tests run in a copy, out of reach of the working tree's package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path

import nox

from langchain_memkit import _LAZY
from tools.local_mongodb import local_mongodb

nox.options.default_venv_backend = "uv"
nox.options.error_on_external_run = True
os.environ["UV_PYTHON_DOWNLOADS"] = "never"
logging.getLogger("pymongo").setLevel(logging.WARNING)  # nox shows what libraries log

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PARALLEL = ("-n", os.environ.get("WORKERS", "3"), "--dist", "worksteal", "-o", "tmp_path_retention_policy=failed")
# those which need no server
ALL_UNIT_TESTS = ("tests/unit_tests", "tests/third_party/spacy")
UNIT_TESTS = (*ALL_UNIT_TESTS, "--ignore", "tests/unit_tests/suites")
RETIRED = ("-m", "needs_retired_classes")
TOGETHER = sorted({wanted for _, wanted, _ in _LAZY.values() if "," in wanted})


def built(session: nox.Session) -> str:
    """Build the wheel, and return its path."""
    folder = Path(session.create_tmp())
    session.run("uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT), external=True)
    return str(next(folder.glob("*.whl")))


def tests_alone(session: nox.Session, *parts: str) -> None:
    """Go to a copy of the tests, with the parts that they need."""
    session.install("pip")  # which fetches the parts
    session.run("python", str(ROOT / "tools" / "parts.py"), *parts)
    copy = Path(session.create_tmp()) / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "benchmarks" / "texts", copy / "benchmarks" / "texts")
    for name in ("tests", "tools", "docs"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / ".parts").symlink_to(ROOT / ".parts")
    session.chdir(copy)


def pytest(session: nox.Session, *arguments: str, **options: object) -> None:
    """Run tests at once."""
    session.run("python", "-m", "pytest", *session.posargs, *PARALLEL, *arguments, **options)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build and check what is released; import the wheel where nothing but langchain-core is installed."""
    folder = Path(session.create_tmp(), "dist")
    shutil.rmtree(folder, ignore_errors=True)
    session.run(sys.executable, str(ROOT / "tools" / "dist.py"), str(folder), external=True)
    session.install(str(next(folder.glob("*.whl"))))
    session.run("uv", "pip", "check", external=True)
    session.run("python", "-I", "-W", "error", str(ROOT / "tools" / "extras.py"))
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(folder, DIST)


@nox.session
def sbom(session: nox.Session) -> None:
    """List what the wheel brings with all extras on this day, as CycloneDX, and the sums of all files of a release."""
    DIST.mkdir(exist_ok=True)
    wheel = next(DIST.glob("*.whl"), None) or Path(built(session))
    session.install(f"{wheel}[all]")
    target = DIST / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    options = ("--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library")
    there = str(Path(session.bin, "python"))
    session.run(sys.executable, "-m", "cyclonedx_py", "environment", *options, "-o", str(target), there, external=True)
    listed = json.loads(target.read_text())
    names = {part["name"] for part in listed["components"]}
    version = listed["metadata"]["component"]["version"]
    if version != wheel.name.split("-")[1] or not {"langchain-core", "spacy"} <= names:
        session.error(f"{target.name} is not of this wheel, or lacks what it brings: {sorted(names)}")
    if "file:" in target.read_text():
        session.error(f"{target.name} names files of this machine")
    files = sorted(file for file in DIST.iterdir() if file.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    session.log("%s: %d components", target.name, len(names))


@nox.session
@nox.parametrize("extra", [extra for extra in EXTRAS if extra != "all"] + TOGETHER)
def extras(session: nox.Session, extra: str) -> None:
    """Install one extra alone, and use it."""
    session.install(f"{built(session)}[{extra}]")
    session.run("uv", "pip", "check", external=True)
    with local_mongodb() if extra == "mongodb" else nullcontext() as server:
        session.chdir(session.create_tmp())
        uri = server.uri if server else ""
        session.run("python", "-I", str(ROOT / "tools" / "extras.py"), extra, env={"MEMKIT_MONGODB": uri})


@nox.session
def floor(session: nox.Session) -> None:
    """Run the unit tests on the oldest supported dependencies."""
    session.install(f"{built(session)}[all]", "--group", "floor", "--compile-bytecode")
    tests_alone(session, "suites")
    pytest(session, *ALL_UNIT_TESTS)


@nox.session
def newest(session: nox.Session) -> None:
    """Run code of others and the unit tests on the newest LangChain, the latter without what version 2.0 removes.

    The newest langchain-core, langchain and langgraph are chosen first, whatever else would hold them back.
    langchain-core asks for a certifi of its own week, which not every package index has.
    """
    tmp = Path(session.create_tmp())
    (tmp / "override").write_text("certifi>=2025\n")
    override = ("--override", str(tmp / "override"))
    session.install(*override, "langchain-core", "langchain", "langgraph")
    installed = str(session.run("uv", "pip", "freeze", silent=True, external=True)).splitlines()
    chosen = [line for line in installed if line.partition("==")[0] in ("langchain", "langchain-core", "langgraph")]
    (tmp / "newest").write_text("\n".join(chosen))
    session.install(*override, "--constraint", str(tmp / "newest"), f"{built(session)}[all]", "--group", "third-party")
    session.log("with %s", " ".join(chosen))
    tests_alone(session, "suites", "openssl11")
    pytest(session, "tests/strangers", "tests/unit_tests/suites")
    pytest(session, *UNIT_TESTS, *RETIRED)
    core = "import langchain_core, pathlib; print(pathlib.Path(langchain_core.__file__).parent)"
    for name in ("chat_history.py", "runnables/history.py"):
        Path(str(session.run("python", "-I", "-c", core, silent=True)).strip(), name).unlink()
    pytest(session, *UNIT_TESTS, "-m", "not needs_retired_classes")
    # A marked test that passes without them is marked wrongly.
    command = ("python", "-m", "pytest", "-q", "-rN", "--tb=no", *UNIT_TESTS, *RETIRED)
    last = str(session.run(*command, silent=True, success_codes=[1])).splitlines()[-1]
    if " passed" in last:
        session.error(f"these tests need nothing that was removed: {last}")


@nox.session(python=["3.11", "3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """Run the unit tests on a supported Python."""
    session.install(f"{built(session)}[all]", "--group", "third-party", "--compile-bytecode")
    tests_alone(session, "suites")
    pytest(session, *ALL_UNIT_TESTS)
