"""Runs notebooks from top to bottom and writes their outputs: python notebooks/execute.py [name ...]; else all of them.

What depends on the machine or the minute stays out (kernel versions, times of execution), and pictures are made small.
"""

from __future__ import annotations

import base64
import io
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def small(picture: str) -> str:
    """A PNG with 64 colours, which is plenty for a chart: a third of the size."""
    reduced = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(reduced, "PNG", optimize=True)
    return base64.b64encode(reduced.getvalue()).decode()


def execute(path: Path) -> None:
    """Runs one notebook, in its own folder, and writes it back."""
    notebook = nbformat.read(path, as_version=4)
    options = {"timeout": 300, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": HERE}}, **options).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number:02}", nbformat.from_dict({})
        for output in cell.get("outputs", []):
            if output.output_type != "stream":
                output.metadata = nbformat.from_dict({})
                output.data.update({kind: small(data) for kind, data in output.data.items() if kind == "image/png"})
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def main() -> None:
    """Executes what was named."""
    names = sys.argv[1:] or [""]
    for path in sorted(HERE.glob("*.ipynb")):
        if any(re.match(re.escape(Path(name).name), path.name) for name in names):
            print(path.name, flush=True)
            execute(path)


if __name__ == "__main__":
    main()
