"""The overview's sections about what fits: trimming, summaries, long sessions, token counters."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.overview_text import DEPLOYMENTS, Results, bars, every, one, share, span, table
from benchmarks.report import Row, number

__all__ = ["BEHIND", "BLOCKS"]

SUMMARIZERS = {
    "memkit": "memkit, its defaults for 8,000 tokens",
    "middleware": "`SummarizationMiddleware` at 6,000 tokens, its other defaults",
    "middleware keep=2400": '`SummarizationMiddleware`, `keep=("tokens", 2400)`',
    "middleware untrimmed": '`SummarizationMiddleware`, `keep=("tokens", 2400)`, `trim_tokens_to_summarize=None`',
    "buffer, memory": "`ConversationSummaryBufferMemory`, 6,000 tokens, history in memory",
    "buffer, store": "`ConversationSummaryBufferMemory`, 6,000 tokens, over a store, which it cannot cut",
    "langmem": "langmem `summarize_messages(max_tokens=8000)`",
    "langmem 6000": "langmem, `max_tokens_before_summary=6000`",
}
SHOWN = {
    "calls": "{calls:,}",
    "input / conversation": "{input_share:.2f}",
    "gone unseen": "{gone_unseen:,}",
    "given twice": "{given_twice:,}",
    "broken pairs": "{broken_views:,}",
    "without question": "{without_question:,}",
    "over budget": "{over_budget:,}",
    "ms a turn": "{median_ms:.2g}",
}
ASKED = {
    "median_ms": ("a turn of the preprocessor piped by hand", number, " ms"),
    "calls": ("calls of the summarizer", number, ""),
    "input_share": ("tokens given to the summarizer by those of the conversation", share, ""),
}
BACKENDS = {"sqlite": DEPLOYMENTS["sqlite"], "mongodb": DEPLOYMENTS["standalone"]}
COUNTERS = {
    "default": ("approximate", ""),
    "exact": ("o200k_base", ""),
    "stored": ("o200k_base", "stored"),
}
MODES = {
    "default": "approximate, the same counts",
    "exact": "exact o200k_base",
    "stored": "exact, counts stored with the messages",
}


# -- trimming


def _trimming(results: Results) -> tuple[list[int], list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Sizes, lines of ratios, lines of times."""
    trims, found = every(results["context"]["rows"], measurement="trim"), results["context"]["ratios"]
    sizes = sorted({row["messages"] for row in trims})
    ratios: list[tuple[str, ...]] = []
    times: list[tuple[str, ...]] = []
    for budget in dict.fromkeys(row["budget"] for row in trims):
        to = f"to {budget} {'of the tokens' if budget.endswith('%') else 'tokens'}"
        for mode, title in MODES.items():
            where = {"ratio": "trim_messages / memkit", "counter": mode, "budget": budget}
            ratios.append((to, title, *(number(one(found, messages=size, **where)["value"]) for size in sizes)))
            counter, form = COUNTERS[mode]
            ours = [one(_of(trims, "memkit", counter, budget, size), form=form) for size in sizes]
            times.append((to, f"memkit, {title}", *(number(row["median_ms"]) for row in ours)))
            if mode != "stored":
                theirs = [_of(trims, "trim_messages", counter, budget, size) for size in sizes]
                least = (number(min(row["median_ms"] for row in those)) for those in theirs)
                times.append((to, f"`trim_messages`, {title}", *least))
    return sizes, ratios, times


def _trim_ratios(results: Results) -> str:
    sizes, ratios, _ = _trimming(results)
    return table(("`trim_messages` / memkit, by messages", "counter", *(f"{size:,}" for size in sizes)), ratios)


def _trim_times(results: Results) -> str:
    sizes, _, times = _trimming(results)
    return table(("ms, by messages", "", *(f"{size:,}" for size in sizes)), times)


def _of(trims: list[Row], system: str, counter: str, budget: str, size: int) -> list[Row]:
    return every(trims, system=system, counter=counter, budget=budget, messages=size)


# -- summaries


def _summaries(results: Results) -> str:
    found = every(results["context"]["rows"], measurement="summaries")
    words = sorted({row["words"] for row in found})
    lines = []
    for system, name in SUMMARIZERS.items():
        those = [one(found, system=system, words=size) for size in words]
        stopped = [" (stopped)" if "stopped_after_seconds" in row else "" for row in those]
        cells = (" / ".join(form.format(**row) for row in those) for form in SHOWN.values())
        lines.append((name + (stopped[0] if all(stopped) else ""), *cells))
    return table((f"messages of {' / '.join(map(str, words))} words", *SHOWN), lines)


def _facts(results: Results) -> str:
    found = every(results["context"]["rows"], measurement="facts")
    scenarios = list(dict.fromkeys(row["scenario"] for row in found))
    asked = ("fact_in_first_input", "fact_in_second_prompt", "fact_in_last_view", "message_0_in_its_log")
    lines = []
    for system, name in SUMMARIZERS.items():
        here = [one(found, system=system, scenario=scenario) for scenario in scenarios]
        shown = [" / ".join("yes" if row[key] else "no" for row in here) for key in asked]
        lines.append((name, *shown, " / ".join(f"{row['gone_unseen']:,}" for row in here)))
    head = ("shown to the summarizer", "in its next input", "in the last turn", "message still stored", "gone unseen")
    return table((f"conversation {' / '.join(scenarios)}", *head), lines)


# -- turns


def _turns(results: Results) -> str:
    rows = results["context"]["rows"]
    lines = []
    for row in every(rows, measurement="turn"):
        before = one(rows, measurement="first_turn", backend=row["backend"], stored=row["stored"])
        cells = (f"{row['stored']:,}", f"{number(row['median_ms'])} ms", str(row["rows"]), str(row["given"]))
        lines.append((BACKENDS[row["backend"]], *cells, f"{number(before['seconds'])} s, {before['calls']} calls"))
    return table(("", "stored", "a turn", "rows read", "messages given", "first turn over all of it"), lines)


def context_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """Trims and turns in which a peer is faster, and summaries for which another asks the model less often."""
    rows = results["context"]["rows"]
    for row in every(results["context"]["ratios"], ratio="trim_messages / memkit"):
        if row["value"] < 1:
            title = f"trimming {row['messages']:,} messages to {row['budget']}, {MODES[row['counter']]}"
            yield ("Context", title, "", f"`trim_messages`: {number(row['value'])} of its time")
    found = every(rows, measurement="summaries")
    for system, name in list(SUMMARIZERS.items())[1:]:
        pairs = [(one(found, system="memkit", words=r["words"]), r) for r in every(found, system=system)]
        for key, (what, text, unit) in ASKED.items():
            those = [(ours, theirs) for ours, theirs in pairs if theirs[key] < ours[key]]
            if those:
                sizes = ", ".join(str(ours["words"]) for ours, _ in those)
                mine, others = (" / ".join(text(pair[side][key]) for pair in those) + unit for side in (0, 1))
                unseen = sum(theirs["gone_unseen"] for _, theirs in those) if key != "median_ms" else 0
                note = f" ({unseen} messages gone unseen)" if unseen else ""
                yield ("Context", f"{what}, messages of {sizes} words", mine, f"{name}: {others}{note}")


# -- counters


def _counters(results: Results) -> str:
    rows, found = results["tokens"]["rows"], results["tokens"]["ratios"]
    lines = []
    for row in every(rows, measurement="error"):
        text = row["text"]
        times = (
            number(1000 * one(rows, measurement="time", text=text, counter=name)["median_ms"])
            for name in ("approximate", "langchain-core", "o200k_base")
        )
        lines.append((text, number(one(found, text=text)["value"]), *times, f"{row['error_percent']:+.1f}%"))
    head = (
        "time, langchain-core / memkit",
        "memkit, µs",
        "langchain-core, µs",
        "exact o200k_base, µs",
        "error of memkit's",
    )
    return table(("", *head), lines)


def counters_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """Texts of which the default counter says far too little."""
    low = [row for row in every(results["tokens"]["rows"], measurement="error") if row["error_percent"] < -10]
    for row in low:
        error = span([row["error_percent"]])
        yield ("Token counters", f"the default counter, {row['text']}", f"{error}%", "exact counts: name an encoding")


BLOCKS = {
    "trimming, ratios": _trim_ratios,
    "trimming, times": _trim_times,
    "summaries": _summaries,
    "summaries, a fact": _facts,
    "long sessions": _turns,
    "context, bars": lambda results: bars(results["context"]["ratios"]),
    "token counters": _counters,
}
BEHIND = (context_behind, counters_behind)
