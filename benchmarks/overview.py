"""One page of all results: docs/benchmarks.md, its plots, and the six figures of the README: `make bench` ends with it.

Nothing is measured here, and no figure is written by hand: the words of the page stand in it, its tables are made of
benchmarks/results and of the gate's record, in seconds. A test finds a figure that was changed in one place only.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import overview_context, overview_followups, overview_memories, overview_storage
from benchmarks.overview_figures import BEGIN, END, block
from benchmarks.overview_text import Results, forms, table, where_and_with, wrapped

__all__ = ["IMAGES", "PAGE", "README", "files", "made", "read", "readme"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
GATE = ROOT / "tests" / "gate" / "results"
PAGE, IMAGES, README = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images", ROOT / "README.md"
PARTS = {
    "history": "Histories",
    "context": "Context",
    "tokens": "Token counters",
    "moving": "Moves between stores",
    "entities": "Entities",
    "titles": "Titles",
    "recall": "Recall",
    "followups": "Follow-ups",
    "gate memkit": "Reliability",
}
UNTOLD = "not recorded"
BLOCK = re.compile(r"<!-- made of the results: (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def read() -> Results:
    """The committed results."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}
    gate = {f"gate {name}": json.loads((GATE / f"{name}.json").read_text()) for name in ("memkit", "peer")}
    return {**found, **gate}


def measured(results: Results) -> str:
    """Where, when and with what, and what of that no result says."""
    lines = []
    for name, title in PARTS.items():
        machine, versions = where_and_with(results[name])
        lines.append((title, results[name].get("date", UNTOLD), machine, versions))
    undated = sum(date == UNTOLD for _, date, *_ in lines)
    told = "Each part is a run of its own and stands until that part is run again: they were not measured in one go."
    if undated:
        told += f" {undated} of {len(lines)} were written before results held a date, and none is made up here."
    if "mongod" not in results["recall"]["versions"]:
        told += " The result of recall does not name the mongod of its speed part."
    if ";" in (machines := forms(machine for _, _, machine, _ in lines)):
        told += f" The machines differ: {machines}."
    return "\n\n".join([table(("", "date", "machine", "versions"), lines), wrapped(told)])


def behind(results: Results) -> str:
    """What is faster or finds more than memkit, and bars that are missed: by rule, not chosen."""
    ahead: dict[tuple[str, ...], list[str]] = {}
    for part in (overview_storage, overview_context, overview_memories, overview_followups):
        for rule in part.BEHIND:
            for *what, other in rule(results):
                ahead.setdefault(tuple(what), []).append(other)
    titles = list(PARTS.values())
    lines = sorted(
        ((*what, "; ".join(others)) for what, others in ahead.items()), key=lambda line: titles.index(line[0])
    )
    return table(("", "", "memkit", "ahead of it"), lines)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "where and with what": measured,
    "where memkit is behind": behind,
    **overview_storage.BLOCKS,
    **overview_context.BLOCKS,
    **overview_memories.BLOCKS,
    **overview_followups.BLOCKS,
}


def made(text: str, results: Results) -> str:
    """The page with the tables of these results in their places."""

    def put(found: re.Match[str]) -> str:
        return f"<!-- made of the results: {found[1]} -->\n{BLOCKS[found[1]](results)}\n<!-- end -->"

    return BLOCK.sub(put, text)


def readme(text: str, results: Results) -> str:
    """README.md with the six figures of these results in their place."""
    before, rest = text.split(BEGIN)
    return f"{before}{block(results)}{rest.split(END)[1]}"


def files(results: Results) -> dict[Path, str]:
    """All that is made, by where it belongs."""
    from benchmarks.overview_plots import plots  # matplotlib takes a second, which the tables need not wait for

    drawn = {IMAGES / name: text for name, text in plots(results).items()}
    return {PAGE: made(PAGE.read_text(), results), README: readme(README.read_text(), results), **drawn}


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables of docs/benchmarks.md, its plots, and README's figures.")
    parser.add_argument("--quick", action="store_true", help="says what would change, and writes nothing")
    options = parser.parse_args()
    for path, text in files(read()).items():
        same = path.exists() and path.read_text() == text
        said = "unchanged" if same else "would change" if options.quick else "written"
        if not (same or options.quick):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        print(f"{said}: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
