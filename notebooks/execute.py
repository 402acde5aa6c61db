"""Runs notebooks from top to bottom and writes their outputs.

    python notebooks/execute.py 03                     one notebook, with the fake model; without a name, all of them
    python notebooks/execute.py --model content 01     with a real, small model on this machine, started for it: the
                                                       outputs that are committed; first `make content-model`, once
    MEMKIT_NOTEBOOK_MODEL=gpt-4.1-mini python notebooks/execute.py 01

What depends on the machine or the minute stays out (kernel versions, times of execution), and pictures are made small.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # where the folder tools is
from tools.local_model import local_model, model_file

CONTENT_MODEL = "Qwen2.5-Coder-1.5B-Instruct, 4 bit, on this machine"  # what notebooks print as the model's name
MAX_TOKENS = 48  # of an answer: it writes about eight in a second
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


@contextlib.contextmanager
def content_model() -> Iterator[None]:
    """Starts the model, and tells notebooks of it as a reader would: by environment variables."""
    with local_model(model_file("content-model"), MAX_TOKENS, context=8192) as server:
        os.environ |= {
            "MEMKIT_NOTEBOOK_MODEL": CONTENT_MODEL,
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": "none",
            "NO_PROXY": "127.0.0.1",
        }
        yield


def run(path: Path) -> Any:
    """Runs a notebook in its own folder; returns it with the new outputs, and leaves the file alone."""
    notebook = nbformat.read(path, as_version=4)
    options = {"timeout": 600, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": HERE}}, **options).execute()
    return notebook


def execute(path: Path) -> None:
    """Runs one notebook and writes it back."""
    notebook = run(path)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["content"])
    parser.add_argument("names", nargs="*", default=[""])
    options = parser.parse_args()
    with content_model() if options.model else contextlib.nullcontext():
        for path in sorted(HERE.glob("*.ipynb")):
            if any(re.match(re.escape(Path(name).name), path.name) for name in options.names):
                print(path.name, flush=True)
                execute(path)


if __name__ == "__main__":
    main()
