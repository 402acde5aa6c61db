"""Hook of mkdocs: what pages link to outside docs/ comes along, below `project/`; on GitHub the links work as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"(\]\()((?:\.\./)+)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the files that pages link to."""
    for page in list(files.documentation_pages()):
        for _, _, path in OUTSIDE.findall(page.content_string):
            uri = f"project/{path}"
            if (ROOT / path).is_file() and uri not in files.src_uris:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads the links there."""
    depth = page.file.src_uri.count("/")
    if page.file.src_uri.startswith("project/"):
        return markdown
    return OUTSIDE.sub(lambda found: f"{found[1]}{'../' * depth}project/{found[3]}", markdown)
