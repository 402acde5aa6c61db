"""Notebooks as pages of the documentation: what was said, done and shown, as it was committed. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

__all__ = ["page_of"]

TERMINAL = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal


def page_of(path: Path) -> str:
    """A notebook as Markdown."""
    notebook = nbformat.read(path, as_version=4)
    return "\n\n".join(part for cell in notebook.cells for part in _parts(cell)) + "\n"


def _parts(cell: Any) -> Iterator[str]:
    if cell.cell_type != "code":
        yield cell.source
        return
    yield _fenced(cell.source, "python")
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" in data:
            yield f'<img alt="" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
        elif "image/svg+xml" in data:
            yield f"<div>{data['image/svg+xml']}</div>"
        elif "text/html" in data:
            yield f'<div class="notebook-output">{data["text/html"]}</div>'
        else:
            text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", []))
            yield _fenced(TERMINAL.sub("", text).rstrip("\n"), "text")


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
