"""The six figures of the README, beside the peers: taken from the results, none written by hand."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.overview_followups import OTHERS, SYSTEMS, mean
from benchmarks.overview_memories import NAMES, PACKAGES, REFERENCES, WORDS
from benchmarks.overview_text import Results, duration, every, forms, one, share, table, where_and_with, wrapped

__all__ = ["BEGIN", "END", "block"]

BEGIN, END = "<!-- figures: made by python -m benchmarks.overview -->", "<!-- end of figures -->"
PAGE = "docs/benchmarks.md"
NODES = "replica_set"
USED = ("history", "context", "recall", "followups")
TOLD = (
    "langchain-memkit",
    "langchain-core",
    "langchain-mongodb",
    "langchain-classic",
    "pymongo",
    "mongod",
)


def block(results: Results) -> str:
    """What stands between the marks: the table, where and with what, and what to mind."""
    lines = [make(results) for make in (_turn, _one_call, _halves, _trim, _evidence, _follow)]
    below = f"""{_told(results)}. Medians of one run on a shared machine: read the ratios. The last two lines are of
    development data, on which memkit's weights were chosen. What each side was given, all else that was measured, and
    [where memkit is behind]({PAGE}#where-memkit-is-behind): [{PAGE}]({PAGE}), made by `make bench`."""
    return "\n".join([BEGIN, table(("", "memkit", "beside it"), lines), "", wrapped(below), END])


def _told(results: Results) -> str:
    used = [results[name] for name in (*USED, "gate memkit", "gate peer")]
    machine = forms(where_and_with(result)[0] for result in used)
    versions = {name: forms(r["versions"][name] for r in used if name in r["versions"]) for name in TOLD}
    return f"{machine}; " + ", ".join(f"{name} {value}" for name, value in versions.items())


def _link(text: str, anchor: str) -> str:
    return f"[{text}]({PAGE}#{anchor})"


def _turn(results: Results) -> tuple[str, ...]:
    turns = every(results["history"]["rows"], measurement="turn", deployment=NODES, shape="pairs")
    least, most = min(r["stored"] for r in turns), max(r["stored"] for r in turns)

    def both(system: str) -> str:
        return " and ".join(duration(one(turns, system=system, stored=n)["median_ms"]) for n in (least, most))

    what = f"that sees the last 20 messages, with {least} and with {most:,} stored, MongoDB of three nodes"
    others = f"langchain-mongodb, `history_size=20`: {both('peer_history_size')}; with `trim_messages`: {both('peer')}"
    return (f"{_link('A turn', 'histories')} {what}", both("memkit"), others)


def _one_call(results: Results) -> tuple[str, ...]:
    rows = every(results["history"]["rows"], measurement="append_one_call", deployment=NODES)
    ours, theirs = (one(rows, system=name) for name in ("memkit", "peer"))
    many = _link(f"{ours['messages']:,} messages", "histories")
    what = f"{many} saved in one call, same servers, same writes asked for"
    return (what, duration(ours["median_ms"]), f"langchain-mongodb: {duration(theirs['median_ms'])}")


def _halves(results: Results) -> tuple[str, ...]:
    name = "half turns after 60 kills"

    def counted(system: str) -> Iterator[str]:
        figures = results[f"gate {system}"]["rows"]["R3"]["figures"]
        for place in ("standalone", NODES):
            yield str(one(figures, name=f"{place}: {name}")["badness"])

    what = f"{_link('Half turns', 'reliability')} after 60 kills of the writing process, one server and three nodes"
    return (what, " and ".join(counted("memkit")), f"langchain-mongodb: {' and '.join(counted('peer'))}")


def _trim(results: Results) -> tuple[str, ...]:
    rows = every(results["context"]["rows"], measurement="trim", counter="approximate")
    size = max(row["messages"] for row in rows)

    def both(system: str) -> str:
        here = every(rows, messages=size, system=system)
        return " and ".join(duration(one(here, budget=budget)["median_ms"]) for budget in ("4,000", "95%"))

    what = f"{_link(f'{size:,} messages', 'context')} trimmed to 4,000 tokens, and to 95% of their tokens"
    return (what, both("memkit"), f"`trim_messages` of langchain-core: {both('trim_messages')}")


def _evidence(results: Results) -> tuple[str, ...]:
    metric = "recall within 1,024"
    rows = every(results["recall"]["rows"], measurement="recall", where="all")
    rows = [row for row in rows if row["embedder"] == "minilm" or row["system"] == WORDS]
    at = {row["system"]: row[metric] for row in rows}
    package, reference = (max(names, key=lambda name: at[name]) for names in (PACKAGES, REFERENCES))
    others = "; ".join(f"{NAMES[name]}: {share(at[name])}" for name in (package, reference))
    what = f"{_link('Evidence found', 'recall')} within 1,024 tokens, four conversations of LoCoMo, MiniLM, no model"
    return (what, share(at["memkit"]), f"the best package, {others}")


def _follow(results: Results) -> tuple[str, ...]:
    rows = results["followups"]["rows"]
    raw, *expansions = OTHERS
    best = max(expansions, key=lambda name: mean(rows, name))
    others = (
        f"as asked: {share(mean(rows, raw))}; best other expansion, {SYSTEMS[best]}: {share(mean(rows, best))}; "
        f"rewritten by a person: {share(mean(rows, 'human rewrite'))}"
    )
    asked = _link("Follow-up questions", "follow-ups")
    what = f"{asked} with the answer among ten, earlier ones left out, no model; mean of CANARD, iKAT by BM25, MiniLM"
    return (what, share(mean(rows, "memkit weighted")), others)
