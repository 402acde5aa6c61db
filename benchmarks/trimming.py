"""Part 1 of `benchmarks.context`: `create_trim_preprocessor` beside langchain-core's `trim_messages`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, trim_messages
from langchain_core.runnables import Runnable

from benchmarks.conversations import log_of
from benchmarks.measure import MIN_RUNS, Case, alternate
from langchain_memkit import SQLiteChatMessageHistory, create_trim_preprocessor
from langchain_memkit.messages.tokens import OpenAITokenCounter, approximate_tokens

EXACT = "o200k_base"
SMALL = 4_000
WORDS = 20
SLOW = 50_000  # messages of which the peer counts 95% exactly for half a minute
CALLS = 20  # of what takes less than a millisecond, in one run


def trimming(sizes: Sequence[int], runs: int, budget: float, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """A row per size, budget, counter and system; what the systems keep must be the same messages."""
    exact = OpenAITokenCounter(EXACT)
    logs = {size: log_of(size, WORDS) for size in sizes}
    stored: dict[int, list[BaseMessage]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder,
        SQLiteChatMessageHistory.factory(Path(folder, "chat.db"), token_counter=EXACT) as histories,
    ):
        for size, log in logs.items():
            say(f"trimming: storing and counting {size:,} messages")
            histories(f"s{size}").add_messages(log)
            stored[size] = histories(f"s{size}").messages
    totals = {size: {"approximate": approximate_tokens(log), EXACT: exact(log)} for size, log in logs.items()}
    for share in ("4,000", "95%"):
        say(f"trimming to {share}{' tokens' if share == '4,000' else ' of the log'}")
        found: list[Case] = []
        for size, log in logs.items():
            budgets = {n: SMALL if share == "4,000" else total * 95 // 100 for n, total in totals[size].items()}
            found += cases(log, stored[size], exact, budgets, share)
        yield from alternate(found, runs, budget)


def cases(
    log: list[BaseMessage],
    stored: list[BaseMessage],
    exact: OpenAITokenCounter,
    budgets: dict[str, int],
    share: str,
) -> Iterator[Case]:
    """Every system on one log with one budget, after one call of each that is compared."""

    def one(message: BaseMessage) -> int:
        return exact([message])

    one.__annotations__["message"] = BaseMessage  # trim_messages looks for the class, not for its name

    def theirs(counter: Any, name: str) -> Runnable[Any, list[BaseMessage]]:
        return trim_messages(
            max_tokens=budgets[name], token_counter=counter, strategy="last", include_system=True, start_on="human"
        )

    def ours(name: str) -> Runnable[Any, list[BaseMessage]]:
        return create_trim_preprocessor(budgets[name], token_counter=name)

    approximate = ours("approximate")
    kept = {"approximate": approximate.invoke(log), EXACT: ours(EXACT).invoke(log)}
    if ours(EXACT).invoke(stored) != kept[EXACT]:
        raise AssertionError(f"{len(log):,} messages to {share}: with stored counts other messages are kept")
    systems: list[tuple[str, str, str, Runnable[Any, list[BaseMessage]], list[BaseMessage]]] = [
        ("approximate", "memkit", "", approximate, log),
        ("approximate", "trim_messages", "", theirs("approximate", "approximate"), log),
        (EXACT, "memkit", "", ours(EXACT), log),
        (EXACT, "memkit", "stored", ours(EXACT), stored),
        (EXACT, "trim_messages", "list", theirs(exact, EXACT), log),
        (EXACT, "trim_messages", "message", theirs(one, EXACT), log),
    ]
    for counter, system, form, trimmer, messages in systems:
        row = {"measurement": "trim", "messages": len(log), "budget": share, "max_tokens": budgets[counter]}
        row |= {"counter": counter, "system": system, "form": form, "kept": len(kept[counter])}
        fast = system == "memkit" and share != "95%"
        slow = system != "memkit" and counter == EXACT and share == "95%" and len(log) >= SLOW
        if slow and form == "message":
            continue
        yield Case(
            row,
            run=checked(trimmer, messages, kept[counter], CALLS if fast else 1),
            calls=CALLS if fast else 1,
            least=1 if slow else MIN_RUNS,
        )


def checked(
    trimmer: Runnable[Any, list[BaseMessage]], messages: list[BaseMessage], expected: list[BaseMessage], calls: int
) -> Callable[[], None]:
    """One run; looking at the length and both ends of what was kept costs nothing beside it."""
    ends = len(expected), expected[0].id, expected[1].id, expected[-1].id

    def run() -> None:
        kept = trimmer.invoke(messages)
        for _ in range(calls - 1):
            kept = trimmer.invoke(messages)
        if (len(kept), kept[0].id, kept[1].id, kept[-1].id) != ends:
            raise AssertionError(f"{len(kept)} messages were kept, not the same {len(expected)}")

    return run
