"""What is released: version and changelog, Pythons, extras, the description, the types that a user sees."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from datetime import date
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import langchain_memkit

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_the_version_is_one() -> None:
    """pyproject.toml, the installed package, its attribute and the newest section of the changelog agree."""
    sections = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections.pop(0) == ("Unreleased", "")
    versions = [version for version, _ in sections]
    assert PROJECT["version"] == metadata.version("langchain-memkit") == langchain_memkit.__version__ == versions[0]
    assert versions == sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    days = [date.fromisoformat(day) for _, day in sections]
    assert days == sorted(days, reverse=True)


def test_the_pythons_are_the_same_everywhere() -> None:
    """What the classifiers name is what CI runs, what `make pythons` tries, and where the lower bounds stand."""
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == named[0]
    assert f"python: {named}".replace("'", '"') in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python={named}".replace("'", '"') in (ROOT / "noxfile.py").read_text()


def test_actions_are_pinned() -> None:
    """What CI runs of others is named by a commit, since a tag can be moved, with the version beside it."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    used = [use for file in workflows for use in re.findall(r"uses: (.+)", file.read_text())]
    assert len(used) >= 4
    assert [use for use in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []


def test_every_extra_is_tried_alone() -> None:
    """tools/extras.py knows a proof of each extra, and nothing besides; `all` brings all of them."""
    (brought,) = EXTRAS["all"]
    assert set(brought.partition("[")[2].rstrip("]").split(",")) == set(EXTRAS) - {"all"}
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import extras  # type: ignore[import-not-found]  # a script
    finally:
        sys.path.pop(0)
    assert set(extras.PROOFS) == set(EXTRAS) - {"all"}
    lazy = {extra for _, wanted, _ in langchain_memkit._LAZY.values() for extra in wanted.split(",") if extra}
    assert lazy <= set(EXTRAS)


def test_every_extra_that_is_asked_for_exists() -> None:
    """The extras that messages of the package, README and docs tell users to install are those of pyproject.toml."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "langchain_memkit").rglob("*.py")]
    found = {
        name for page in pages for name in re.findall(r'(?:langchain-memkit|"\.)\[([a-z][a-z,]*)\]', page.read_text())
    }
    assert {"mongodb", "agents,mongodb"} < found
    assert {extra for names in found for extra in names.split(",")} <= set(EXTRAS)


def test_every_requirement_has_a_range() -> None:
    """What users install has a lower and an upper bound; what only developers install, at least one of them."""
    for requirement in chain(PROJECT["dependencies"], *EXTRAS.values()):
        assert requirement.startswith("langchain-memkit[") or re.search(r">=[\d.]+,<\d", requirement), requirement
    for requirement in chain(*GROUPS.values()):
        assert isinstance(requirement, dict) or re.search(r"(==|>=[\d.]+,<)\d", requirement), requirement


def brought_by(*asked: str) -> set[str]:
    """Groups that a group brings, itself among them."""
    parts = [part["include-group"] for group in asked for part in GROUPS[group] if isinstance(part, dict)]
    return {*asked, *(brought_by(*parts) if parts else ())}


def test_dev_brings_every_group() -> None:
    """One environment for all targets, but for the oldest versions; then no target installs anything more."""
    assert brought_by("dev") == set(GROUPS) - {"floor"}
    (touched,) = re.findall(r"foreach group,([a-z0-9 -]+),", MAKEFILE)
    used = set(re.findall(r"\$\(call done,([a-z0-9-]+)\)", MAKEFILE)) - {"dev"}
    assert set(touched.split()) == used
    assert used - {"openai"} <= set(GROUPS)


def test_ci_tries_every_group_alone() -> None:
    """.ci/run makes a target of each group in an environment of its own, where what the group lacks is missed."""
    found = re.findall(r"^([a-z0-9 -]+): \$\(call done,([a-z0-9-]+)\)", MAKEFILE, re.MULTILINE)
    group_of = {target: group for targets, group in found for target in targets.split()}
    tried = re.findall(r"\bbare-([a-z0-9-]+)", (ROOT / ".ci" / "run").read_text())
    assert {group_of[target] for target in tried} == brought_by("dev") - {"dev", "server"}


def test_make_test_installs_little() -> None:
    """Its environment has all extras but spaCy, and no package of others that is large: those are in `third-party`."""
    (small,) = re.findall(r"^SMALL *:= ([a-z,]+)$", MAKEFILE, re.MULTILINE)
    assert set(small.split(",")) == set(EXTRAS) - {"all", "spacy"}
    assert brought_by("test") == {"test", "demo", "server"}
    large = (
        r"spacy|en-core|chroma|faiss|anthropic|google|deepagents|pandas|matplotlib|mkdocs|mypy|mem0|llama|jupyter|nb"
    )
    names = [part for group in brought_by("test") for part in GROUPS[group] if isinstance(part, str)]
    assert len(names) > 15
    assert [name for name in names if re.search(large, name)] == []


def test_a_release_stores_no_secret() -> None:
    """Nothing is signed or published with what is stored; what runs our code may write nothing."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "secrets." not in text
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE)
    build = text.partition("  build:")[2].partition("  attest:")[0]
    assert "make release-check" in build
    assert "write" not in re.sub(r"#.*", "", build)


def test_the_description_has_no_links_into_the_project() -> None:
    """On a package index they would lead nowhere; their text stays, and so does all else."""
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (rule,) = hook["substitutions"]
    readme = (ROOT / "README.md").read_text()
    shown = re.sub(rule["pattern"], rule["replacement"], readme)
    assert len(re.findall(r"\]\(", readme)) > 20
    assert not re.findall(r"\]\((?!https?:|#)", shown)
    assert re.sub(r"!?\[|\]\([^)]*\)|\]", "", shown) == re.sub(r"!?\[|\]\([^)]*\)|\]", "", readme)


def test_the_typed_app_uses_the_whole_front_door() -> None:
    """So that `make types` and `make wheel` see each name as a user's type checker does; py.typed is there."""
    app = (ROOT / "tests" / "typed" / "app.py").read_text()
    assert [name for name in langchain_memkit.__all__ if not re.search(rf"^    {name},$", app, re.MULTILINE)] == []
    assert "tests/typed" in PYPROJECT["tool"]["mypy"]["files"]
    assert (Path(langchain_memkit.__file__).parent / "py.typed").exists()


def test_building_says_what_is_wrong(tmp_path: Path) -> None:
    """tools/dist.py names its argument; what it checks is run by `make wheel`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "dist.py")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "usage: python tools/dist.py FOLDER\n")


def test_the_floor_is_what_the_ranges_begin_with() -> None:
    """`make floor` installs the lower bounds of what users install, so that the oldest promised versions are tested."""
    pinned = dict(line.split("==") for line in GROUPS["floor"] if "==" in line)
    for requirement in PROJECT["dependencies"] + EXTRAS["mongodb"]:
        name, bound = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()  # type: ignore[union-attr]  # all have one
        assert pinned[name] == bound
