"""The documentation as a site: whole, built without a warning or a network, and loading nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MODULES = ("", ".testing", ".migrate", ".retrievers", ".errors", ".classic")
COMPONENTS = [
    *(
        "agents",
        "chains",
        "cli",
        "composed",
        "context",
        "entities",
        "histories",
        "long-runs",
        "key-value",
        "rag",
        "recall",
        "testing",
        "embeddings",
    ),
]
COLUMNS = 125  # of code: what docs/stylesheets/site.css leaves room for
# mkdocs in a process that cannot look up a host, nor connect to one
OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError(f"the network is not to be used: {args}")
socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
from mkdocs.__main__ import cli
cli()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


class Page(HTMLParser):
    """What a page of HTML names: ids, what it links to, what it loads; and the headings of things documented."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.headings: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag names."""
        given = {name: value or "" for name, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        if re.fullmatch(r"h[1-6]", tag) and "doc-heading" in given.get("class", ""):
            self.headings.append(given["id"])
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
        elif tag != "link" or given.get("rel") not in ("canonical", "next", "prev"):
            self.loads += [given[name] for name in ("src", "href", "srcset", "data", "poster") if name in given]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page of the site."""
    return {path: Page(path) for path in site.rglob("*.html")}


def nav(entries: Any) -> list[str]:
    """The pages of the navigation, in order."""
    if isinstance(entries, str):
        return [entries]
    return [page for entry in (entries.values() if isinstance(entries, dict) else entries) for page in nav(entry)]


def settings() -> Any:
    """mkdocs.yml."""
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_every_page_is_in_the_navigation_once() -> None:
    """Whatever lies in docs/ can be found from each page of the site."""
    docs = ROOT / "docs"
    assert sorted(page for page in nav(settings()["nav"]) if not page.startswith("project/")) == sorted(
        path.relative_to(docs).as_posix() for path in docs.rglob("*.md")
    )


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page], site: Path) -> None:
    """Scripts, styles, fonts and pictures are files of the site."""
    for path, page in pages.items():
        for load in page.loads:
            assert not urlsplit(load).scheme or load.startswith("data:"), (path, load)
            assert not urlsplit(load).netloc, (path, load)
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_links_of_the_site_lead_somewhere(pages: dict[Path, Page], site: Path) -> None:
    """Every link within the site names a page or file that is there, and a place that is on it."""
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links begin at the site's root, wherever that will be
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_relative_to(site.resolve()), (path, link)
            assert target.exists(), (path, link)
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in pages[target].ids, (path, link)


def documented(pages: dict[Path, Page]) -> Counter[int]:
    """How often each thing has a heading in the reference, by identity."""
    headings = [h for path, page in pages.items() if path.parent.parent.name == "reference" for h in page.headings]
    return Counter(id(resolve_name(heading)) for heading in headings)


def test_every_public_name_is_in_the_reference_once(pages: dict[Path, Page]) -> None:
    """What a module of the front door names in `__all__` has one heading, on one page."""
    found = documented(pages)
    for module in MODULES:  # in one test: the site is built once for it
        home = import_module(f"langchain_memkit{module}")
        # LangChain's own classes are in LangChain's reference
        modules = {name: getattr(getattr(home, name), "__module__", "") for name in home.__all__}
        names = [name for name in home.__all__ if not modules[name].startswith("langchain_core")]
        assert {name: found[id(getattr(home, name))] for name in names} == dict.fromkeys(names, 1)


def test_docstrings_are_readable(pages: dict[Path, Page]) -> None:
    """Arguments are tables, examples are code, and no mark of a docstring is left in the text."""
    reference = [page for path, page in pages.items() if path.parent.parent.name == "reference"]
    assert len(reference) == len(list((ROOT / "docs" / "reference").glob("*.md")))
    for page in reference:
        prose = re.sub(
            r"<(pre|code)\b.*?</\1>|<span class=\"doc-section-title\">.*?</span>", "", page.text, flags=re.DOTALL
        )
        assert not re.search(r"&gt;&gt;&gt;|```|\b(Args|Examples?|Returns|Raises|Attributes):\s", prose)
    whole = "".join(page.text for page in reference)
    assert whole.count("Parameters:") > 100
    assert whole.count("Examples:") > 50


def test_keywords_are_in_the_reference(pages: dict[Path, Page]) -> None:
    """What a chain takes as `**options` is named with its default, and the source can be unfolded."""
    [page] = [page for path, page in pages.items() if path.parent.parts[-2:] == ("reference", "chains")]
    text = unescape(re.sub(r"<[^>]+>", "", page.text))
    assert 'on_save_error="raise"' in text.split("create_runnable_with_message_history(")[1].split("Parameters:")[0]
    assert "Source code in" in text


def test_search_finds_text_and_no_source(site: Path) -> None:
    """The index of the search has the guides and the reference, without the functions' code."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert any(entry["location"] == "privacy/#erase-a-user" for entry in index)
    assert not any("Source code in" in entry["text"] for entry in index)


def test_code_fits_a_window_of_1280_pixels() -> None:
    """No line of code is longer than what the page shows without scrolling."""
    for path in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(r"^```\w+\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            assert max(map(len, block.splitlines()), default=0) <= COLUMNS, (path, block)


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_page_of_a_component_says_four_things(name: str) -> None:
    """When to use it, how, what it costs and what it promises, at its top."""
    page = (ROOT / "docs" / f"{name}.md").read_text()
    rows = re.findall(r"^\| (When|How|Costs|Promises) \| \S.{20,} \|$", page, re.MULTILINE)
    assert rows == ["When", "How", "Costs", "Promises"]
    assert page.index("| When |") < page.index("```")
    guides = next(part["Guides"] for part in settings()["nav"] if "Guides" in part)
    components = [part for part in guides if part.keys() <= {"Conversations", "Memories", "Tools"}]
    assert sorted(nav(components)) == sorted(f"{component}.md" for component in COMPONENTS)
