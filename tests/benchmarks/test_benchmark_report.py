"""docs/benchmarks.md, its plots and README's six figures are those of the committed results, and of nothing else."""

from __future__ import annotations

import copy
import datetime
import re
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import overview
from benchmarks.common import environment
from benchmarks.plots import plots

DESCRIPTION = ".//{http://purl.org/dc/elements/1.1/}description"


@pytest.fixture(scope="module")
def results() -> Any:
    """The committed results."""
    return overview.read()


@pytest.fixture(scope="module")
def page() -> str:
    """docs/benchmarks.md."""
    return overview.PAGE.read_text()


def test_the_page_is_that_of_the_results(results: Any, page: str) -> None:
    """Making it again changes nothing, and each table is in it, once."""
    assert overview.made(page, results) == page
    assert sorted(re.findall("<!-- made of the results: (.*) -->", page)) == sorted(overview.BLOCKS)
    assert page.count("<!-- end -->") == len(overview.BLOCKS)


def test_the_readme_has_the_figures_of_the_results(results: Any) -> None:
    """Making them again changes nothing, and they are six."""
    text = overview.README.read_text()
    assert overview.readme(text, results) == text
    shown = text.split(overview.BEGIN)[1].split(overview.END)[0]
    assert len(re.findall(r"^\| \[", shown, re.MULTILINE)) == 6


def test_links_of_the_readme_lead_to_headings(page: str) -> None:
    """Each figure leads to the part of the page that tells of it."""
    headings = {title.lower().replace(" ", "-") for title in re.findall("^#+ (.*)$", page, re.MULTILINE)}
    wanted = re.findall(r"\(docs/benchmarks\.md#([^)]*)\)", overview.README.read_text())
    assert len(wanted) >= 7
    assert set(wanted) <= headings


def test_an_edited_figure_is_found(results: Any, page: str) -> None:
    """Whoever changes a digit of a table is told: what is made of the results differs, in every table."""
    for part in overview.BLOCK.finditer(page):
        edited = re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), part[0])
        changed = page[: part.start()] + edited + page[part.end() :]
        assert changed != page
        assert overview.made(changed, results) == page
    text = overview.README.read_text()
    edited = re.sub(r"(?<=langchain-mongodb: )\d", lambda digit: str((int(digit[0]) + 1) % 10), text, count=1)
    assert edited != text
    assert overview.readme(edited, results) == text


def test_the_plots_are_those_of_the_results(results: Any, page: str) -> None:
    """Each shows what it would show if it was drawn now, stands on the page, and is small; there are no others."""
    drawn = plots(results)
    assert {file.name for file in overview.IMAGES.glob("benchmark-*")} == set(drawn)
    for name, text in drawn.items():
        committed = (overview.IMAGES / name).read_text()
        shown = [ElementTree.fromstring(svg).findtext(DESCRIPTION) for svg in (committed, text)]
        assert shown[0]
        assert shown[0] == shown[1]
        assert f"](images/{name})" in page
        assert len(committed) < 40_000


def test_plots_are_the_same_twice(results: Any) -> None:
    """Drawing them again gives the same bytes, without a date."""
    first = plots(results)
    assert plots(results) == first
    assert not [name for name, text in first.items() if "<dc:date>" in text]


def test_what_is_ahead_of_memkit_is_listed_by_rule(results: Any) -> None:
    """A peer that becomes faster, finds more or loses less appears by itself; one that falls behind goes."""
    before = overview.behind(results)
    changed = copy.deepcopy(results)
    for row in changed["history"]["ratios"]:
        if row["ratio"] == "turn, peer_history_size / memkit" and row["stored"] == 100_000:
            row["value"] = 0.5
        if row["ratio"].startswith("append_pairs"):
            row["value"] = 1.5
    for row in changed["recall"]["rows"]:
        if row["measurement"] == "recall" and row["system"] == "mem0 infer=False":
            row["MRR"] = 0.99
    after = overview.behind(changed)
    for wanted in ("a turn that sees the last 20, MongoDB, standalone, 100,000 stored", "MRR, all, MiniLM"):
        assert wanted not in before
        assert wanted in after
    assert "two messages in a call" in before
    assert "two messages in a call" not in after


def test_each_result_says_where_and_with_what(results: Any, page: str) -> None:
    """Machine and versions stand in each; a date stands on the page where the result has one, and nowhere else."""
    for result in results.values():
        assert result["machine"]
        assert {"langchain-memkit", "langchain-core"} <= result["versions"].keys()
    named = [results[name] for name in overview.PARTS]
    assert page.count(f"| {overview.UNTOLD} |") == len([result for result in named if "date" not in result])
    dated = {**results, "tokens": {**results["tokens"], "date": "2031-02-03"}}
    assert overview.measured(dated).count("| 2031-02-03 |") == 1
    assert set(overview.PARTS) | {"gate peer"} == set(results)


def test_results_are_dated_from_now_on() -> None:
    """What every benchmark writes about itself has the day."""
    assert datetime.date.fromisoformat(environment(quick=True)["date"])


def test_a_look_writes_nothing() -> None:
    """`--quick` of the overview, and of a benchmark, leaves every committed file as it is."""
    kept = [overview.PAGE, overview.README, *overview.IMAGES.iterdir(), *overview.RESULTS.iterdir()]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept}
    for module in ("tokens", "overview"):
        command = [sys.executable, "-m", f"benchmarks.{module}", "--quick"]
        done = subprocess.run(command, cwd=overview.ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept} == before
    assert "written" not in done.stdout


def test_one_command_runs_them_all() -> None:
    """`make bench` runs each benchmark that the page shows, and makes the page at its end."""
    recipe = (overview.ROOT / "Makefile").read_text().split("\nbench: ")[2].split("\n\n")[0]
    *benchmarks, last = re.findall(r"-m benchmarks\.(\w+)", recipe)
    (looped,) = re.findall(r"for name in ([\w ]+); do \$\(PY\) -m benchmarks\.\$\$name ", recipe)
    benchmarks += looped.split()
    assert set(benchmarks) == {name for name in overview.PARTS if not name.startswith("gate")}
    assert last == "overview"
