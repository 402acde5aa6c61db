"""Notebooks as tests read them: by section, and with what each section is to show."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EXPECTED = sorted((ROOT / "tests" / "notebooks").glob("*.toml"))


def read(path: Path) -> Any:
    """A notebook, checked against its format."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def sections(notebook: Any, sources: bool = True) -> dict[str, str]:
    """What stands under each heading, down to the next one: the sources of cells, and their outputs as text."""
    found, heading = {"": ""}, ""
    for cell in notebook.cells:
        for line in cell.source.splitlines(keepends=True):
            if cell.cell_type == "markdown" and (title := re.match(r"#+ (.*)", line)):
                heading = title[1]
                found[heading] = ""
            found[heading] += line * sources
        found[heading] += "\n" + "\n".join(map(shown, cell.get("outputs", [])))
    return found


def shown(output: Any) -> str:
    """An output, as far as it is text."""
    data = output.get("data", {})
    return str(output.get("text", "")) + "\n".join(text for kind, text in data.items() if not kind.startswith("image/"))


def check_outputs(name: str, notebook: Any, also: str = "shows") -> None:
    """Compare what a notebook shows with `tests/notebooks/NAME.toml`, if there is such a file.

    Each table of the file is a section, by its heading. `shows` are texts that stand there whichever model answers,
    `never` those that do not. `fake` is what stands there if the fake model answers, and `recorded` what stands in the
    notebook as it is committed: `also` says which of the two.
    """
    outputs = sections(notebook, sources=False)
    for path in (path for path in EXPECTED if path.stem == name):
        for heading, texts in tomllib.loads(path.read_text()).items():
            assert not texts.keys() - {"shows", "never", "fake", "recorded"}, heading
            output = outputs[heading]
            for text in [*texts.get("shows", ()), *texts.get(also, ())]:
                assert text in output, f"{name}, {heading!r} does not show {text!r} but:\n{output}"
            for text in texts.get("never", ()):
                assert text not in output, f"{name}, {heading!r} shows {text!r}:\n{output}"
