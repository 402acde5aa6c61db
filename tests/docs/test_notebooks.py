"""The notebooks as they are committed: run in order, readable, and with the examples that their README names.

That they run is tested by `make notebooks`.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from testkit.notebooks import EXPECTED, FOLDER, NOTEBOOKS, check_outputs, read, sections, shown

README = (FOLDER / "README.md").read_text()
MOST = 200_000  # bytes, pictures included
EXAMPLES = re.findall(r"^\| (.+?) \| \[\d\d\]\((.+?)\) \| (.+?) \|$", README, re.MULTILINE)

named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_the_set_is_whole() -> None:
    """They are numbered from 01 without a gap, each stands in the README's first table, and no other file is there."""
    assert [path.name[:3] for path in NOTEBOOKS] == [f"{n:02}_" for n in range(1, len(NOTEBOOKS) + 1)]
    assert re.findall(r"^\| \[.*?\]\((.*?)\)", README, re.MULTILINE) == [path.name for path in NOTEBOOKS]


@named
def test_outputs_are_those_of_one_run(path: Path) -> None:
    """Every code cell was run once, from top to bottom, and none ended in an error or wrote to stderr."""
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


@named
def test_outputs_are_small_and_of_no_machine(path: Path) -> None:
    """A file is small; it holds no paths or hosts, control codes, times of execution, or versions of a kernel."""
    assert path.stat().st_size <= MOST
    notebook = read(path)
    assert notebook.metadata.language_info == {"name": "python"}
    assert not [cell.id for cell in notebook.cells if cell.metadata]
    texts = [shown(output) for cell in notebook.cells for output in cell.get("outputs", [])]
    for text in texts:
        assert not re.search(r"(^|[\s'\"(=:])(/[a-z]+){2,}|\\Users\\|127\.0\.0\.1|localhost|\x1b", text), text
        assert len(host := socket.gethostname()) < 4 or host not in text


@named
def test_a_real_model_may_be_named(path: Path) -> None:
    """Each takes the model that MEMKIT_NOTEBOOK_MODEL names, and says so in the beginning."""
    notebook = read(path)
    assert "MEMKIT_NOTEBOOK_MODEL" in "".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert "MEMKIT_NOTEBOOK_MODEL" in notebook.cells[0].source + notebook.cells[1].source


@pytest.mark.parametrize("path", [FOLDER / f"{path.stem}.ipynb" for path in EXPECTED], ids=lambda path: path.stem)
def test_what_is_recorded_is_what_is_expected(path: Path) -> None:
    """The outputs show what the notebook's TOML file asks for; its cells print, and leave asserting to that."""
    notebook = read(path)
    check_outputs(path.stem, notebook, "recorded")
    assert not [cell.source for cell in notebook.cells if re.search(r"^\s*assert\b", cell.source, re.MULTILINE)]


def test_explain_turn_shows_recalled_records_with_scores() -> None:
    """One notebook shows as a table what was recalled, by which memory, and with which score."""
    text = sections(read(FOLDER / "05_vector_memory.ipynb"))["7. Across conversations"]
    assert "<th>recalled by</th><th>score</th>" in text
    assert re.search(r"<td>VectorMemory</td><td>\d\.\d\d</td>", text)


@pytest.mark.parametrize(("example", "file", "heading"), EXAMPLES)
def test_the_examples_of_known_guides_run(example: str, file: str, heading: str) -> None:
    """The section that the README names is there, and so is what it quotes of the example."""
    text = sections(read(FOLDER / file))[heading]
    for quoted in re.findall(r'"(.+?)"', example):
        assert quoted in text.replace("\\'", "'"), quoted


def test_five_guides_are_covered() -> None:
    """Each guide has its table, and no row of one is malformed."""
    guides = README.split("## Where the examples of known guides run")[1].split("\n### ")[1:]
    assert len(guides) == 5
    rows = [line for guide in guides for line in guide.splitlines() if line.startswith("| ")]
    assert len(rows) == len(EXAMPLES) + len(guides)  # and a line of names in each
    assert len(EXAMPLES) >= 30
