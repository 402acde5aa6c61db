"""Hook of mkdocs: what pages link to outside docs/ comes along, below `project/`; on GitHub links work as they are.

Notebooks are shown as they were committed: nothing is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")  # of Markdown: a path, without its anchor
FENCED = re.compile(r"^(`{3,})\w*\n.*?^\1$", re.DOTALL | re.MULTILINE)
# A list behind a line of text: one for GitHub, and none for Python-Markdown.
BARE_LIST = re.compile(r"^(?!- |\* |[|>#\s]).*\n(?=- )", re.MULTILINE)
GITHUB_ONLY = re.compile(r"^\*On GitHub .*\n\n", re.MULTILINE)
TERMINAL = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal
IN_NAV = ("SECURITY.md", "CHANGELOG.md", "notebooks/README.md")


def source_of(page: str) -> PurePosixPath:
    """Where a page of the site lies in the repository."""
    return PurePosixPath(page.removeprefix("project/") if page.startswith("project/") else f"docs/{page}")


def place_of(source: str) -> str:
    """Where a file of the repository lies in the site."""
    source = re.sub(r"\.ipynb$", ".md", source)
    return source.removeprefix("docs/") if source.startswith("docs/") else f"project/{source}"


def resolved(page: str, link: str) -> str:
    """The file of the repository that a link of a page leads to."""
    return os.path.normpath(source_of(page).parent / link).replace(os.sep, "/")


def linked(page: str, text: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    for link in LINK.findall(text):
        if (ROOT / (source := resolved(page, link))).is_file():
            yield source


def made(config: Any, source: str) -> File:
    """A file of the site from one of the repository."""
    path, place = ROOT / source, place_of(source)
    included = InclusionLevel.INCLUDED if source in IN_NAV else InclusionLevel.NOT_IN_NAV
    if path.suffix == ".ipynb":
        return File.generated(config, place, content=page_of(path), inclusion=included)
    return File.generated(config, place, abs_src_path=str(path), inclusion=included)


def on_files(files: Files, config: Any) -> Files:
    """Adds the files that pages link to, and those that the added pages link to."""
    todo, wanted = list(files.documentation_pages()), list(IN_NAV)
    while todo or wanted:
        for source in wanted:
            if place_of(source) not in files.src_uris:
                files.append(file := made(config, source))
                todo += [file] if file.is_documentation_page() else []
        wanted = list(linked((page := todo.pop()).src_uri, page.content_string)) if todo else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads the links there."""
    here = page.file.src_uri

    def led(found: re.Match[str]) -> str:
        place = place_of(resolved(here, found[1]))
        return os.path.relpath(place, PurePosixPath(here).parent).replace(os.sep, "/")

    def text(part: str) -> str:
        if here.startswith("project/"):
            part = BARE_LIST.sub(r"\g<0>\n", part)
        return LINK.sub(led, GITHUB_ONLY.sub("", part))

    done, end = [], 0
    for code in FENCED.finditer(markdown):
        done += [text(markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*done, text(markdown[end:])])


def on_page_content(html: str, **_: Any) -> str:
    """Leaves the source code of the reference out of the search, which would find little else."""
    mark = '<details class="mkdocstrings-source"'
    return html.replace(mark, f"{mark} data-search-exclude")


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
