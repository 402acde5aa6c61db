"""The overview's sections about what is stored: histories, moves between stores, and the gate's counts."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.overview_text import DEPLOYMENTS, Results, bars, every, one, span, table
from benchmarks.report import Row, number

__all__ = ["BEHIND", "BLOCKS", "SYSTEMS"]

SYSTEMS = {
    "memkit": "memkit",
    "peer": "langchain-mongodb, `trim_messages`",
    "peer_history_size": "langchain-mongodb, `history_size=20`",
    "peer_equal_writes": "langchain-mongodb, majority and journal asked for",
    "floor": "bare pymongo",
    "chain": "the chain alone, messages from memory",
}
PLAIN = {**SYSTEMS, "peer": "langchain-mongodb"}  # where nothing is trimmed
ROWS = {"pairs": "two messages", "import": "an import"}
WHAT = {
    "turn": "a turn that sees the last 20",
    "read_last_20": "reading the last 20",
    "append_one_call": "messages in one call",
    "append_pairs": "two messages in a call",
}


# -- histories


def _sizes(rows: list[Row]) -> list[int]:
    return sorted({row["stored"] for row in rows if "stored" in row})


def _by_size(results: Results) -> str:
    result = results["history"]
    sizes = _sizes(result["rows"])
    lines = []
    for what in ("turn", "read_last_20"):
        for place in ("standalone", "replica_set"):
            for peer in ("peer", "peer_history_size"):
                name = (
                    SYSTEMS[peer] if (what, peer) != ("read_last_20", "peer") else "langchain-mongodb, all of it read"
                )
                where = {"ratio": f"{what}, {peer} / memkit", "deployment": place}
                ratios = [number(one(result["ratios"], stored=size, **where)["value"]) for size in sizes]
                lines.append((f"{WHAT[what]}, {DEPLOYMENTS[place]}", name, *ratios))
    return table(("peer / memkit, by messages stored", "", *(f"{size:,}" for size in sizes)), lines)


def _at_once(results: Results) -> str:
    result = results["history"]
    rows, found = result["rows"], result["ratios"]
    return table(("", "peer", "peer / memkit", "memkit", "peer"), [*_appends(rows, found), *_kept(rows, found)])


def _appends(rows: list[Row], found: list[Row]) -> Iterator[tuple[str, ...]]:
    for what in ("append_one_call", "append_pairs"):
        many = every(rows, measurement=what)[0]["messages"]
        title = f"{many:,} messages in one call" if what == "append_one_call" else WHAT[what]
        for peer in ("peer", "peer_equal_writes"):
            for place in DEPLOYMENTS:
                for row in every(found, ratio=f"{what}, {peer} / memkit", deployment=place):
                    ours, theirs = (
                        one(rows, measurement=what, deployment=place, system=s)["median_ms"] for s in ("memkit", peer)
                    )
                    cells = (number(row["value"]), f"{number(ours)} ms", f"{number(theirs)} ms")
                    yield (f"{title}, {DEPLOYMENTS[place]}", PLAIN[peer], *cells)


def _kept(rows: list[Row], found: list[Row]) -> Iterator[tuple[str, ...]]:
    for what in ("connections", "threads"):
        for place in ("standalone", "replica_set"):
            ratio = one(found, ratio=f"{what} of a kept history, peer / memkit", deployment=place)
            ours, theirs = (
                one(rows, measurement="kept_histories", deployment=place, system=s) for s in ("memkit", "peer")
            )
            title = f"{what} of {ours['histories']} kept histories, {DEPLOYMENTS[place]}"
            yield (title, PLAIN["peer"], number(ratio["value"]), f"{ours[what]:,}", f"{theirs[what]:,}")


def _turns(results: Results) -> str:
    rows = results["history"]["rows"]
    turns, sizes = every(rows, measurement="turn"), _sizes(rows)
    lines = []
    for place, name in DEPLOYMENTS.items():
        for system in ("memkit", "peer", "peer_history_size", "floor", "chain"):
            for shape in ("pairs", "import") if system == "memkit" else (None,):
                here = [r for r in every(turns, deployment=place, system=system) if shape in (None, r.get("shape"))]
                at = {row.get("stored", sizes[0]): number(row["median_ms"]) for row in here}
                title = SYSTEMS[system] + (f", rows of {ROWS[shape]}" if shape else "")
                if at:
                    lines.append((name, title, *(at.get(size, "") for size in sizes)))
    return table(("a turn, ms, by messages stored", "", *(f"{size:,}" for size in sizes)), lines)


def _growth(results: Results) -> str:
    found, sizes = results["history"]["ratios"], _sizes(results["history"]["rows"])
    lines = []
    for place, name in DEPLOYMENTS.items():
        for shape in ROWS:
            where = {"deployment": place, "shape": shape}
            grown = [
                number(one(found, ratio=f"turn({sizes[-1]:,}) / turn({size:,})", **where)["value"])
                for size in sizes[:2]
            ]
            floor = [row["value"] for row in every(found, ratio="turn / (floor + chain alone)", **where)]
            lines.append((name, ROWS[shape], *grown, span(floor) if floor else ""))
    names = [f"{sizes[-1]:,} / {size:,} stored" for size in sizes[:2]]
    return table(("a turn of memkit", "rows of", *names, "turn / (floor + chain)"), lines)


def histories_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """Where the peer is faster, and bars that are missed."""
    result = results["history"]
    for row in result["ratios"]:
        what, _, rest = row["ratio"].partition(", ")
        if what in WHAT and row["value"] < 1:
            peer = rest.removesuffix(" / memkit")
            where = {key: row[key] for key in ("deployment", "messages", "stored") if key in row}
            ours, theirs = (
                every(result["rows"], measurement=what, system=system, **where)[0]["median_ms"]
                for system in ("memkit", peer)
            )
            stored = f", {row['stored']:,} stored" if "stored" in row else ""
            title = f"{WHAT[what]}, {DEPLOYMENTS[row['deployment']]}{stored}"
            yield ("Histories", title, f"{number(ours)} ms", f"{PLAIN[peer]}: {number(theirs)} ms")
    floors = every(result["ratios"], ratio="turn / (floor + chain alone)")
    times = f"{span(row['value'] for row in floors)} times"
    yield ("Histories", "time of a turn by that of bare pymongo and the chain alone", times, PLAIN["floor"])
    missed: dict[tuple[str, str, str], list[Row]] = {}
    for row in result["ratios"]:
        if not row.get("holds", True):
            missed.setdefault((row["ratio"], row["deployment"], row["shape"]), []).append(row)
    for (name, place, shape), those in missed.items():
        title = f"{name}, {DEPLOYMENTS[place]}, rows of {ROWS[shape]}"
        yield ("Histories", title, span(row["value"] for row in those), f"our bar: {those[0]['bar']}")


# -- moves


def _moves(results: Results) -> str:
    result = results["moving"]
    lines = []
    for row in every(result["ratios"], ratio="time, memkit / floor"):
        times = (
            one(result["rows"], move=row["move"], system=system)["median_ms"] / 1000 for system in ("memkit", "floor")
        )
        lines.append((row["move"], number(row["value"]), *(f"{number(seconds)} s" for seconds in times)))
    many = result["rows"][0]["messages"]
    return table((f"{many:,} messages", "memkit / floor", "memkit", "floor"), lines)


def moves_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """The drivers alone are always faster; how much."""
    found = every(results["moving"]["ratios"], ratio="time, memkit / floor")
    yield (
        "Moves between stores",
        "time of a move by that of the drivers alone",
        f"{span(row['value'] for row in found)} times",
        "the drivers, which check nothing",
    )


# -- the gate


def _reliability(results: Results) -> str:
    lines = []
    for name, row in results["gate peer"]["rows"].items():
        ours = {figure["name"]: figure["measured"] for figure in results["gate memkit"]["rows"][name]["figures"]}
        for figure in row["figures"]:
            if figure["name"] in ours:
                cells = (
                    text.removeprefix(f"{figure['name']}: ") for text in (ours[figure["name"]], figure["measured"])
                )
                lines.append((name, figure["name"].replace("replica_set", "three nodes"), *cells, figure["bound"]))
    return table(("", "", "memkit", "langchain-mongodb", "bound"), lines)


def reliability_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """Bounded figures in which memkit is worse by more than a twentieth."""
    for name, row in results["gate peer"]["rows"].items():
        ours = {figure["name"]: figure for figure in results["gate memkit"]["rows"][name]["figures"]}
        for theirs in row["figures"]:
            mine = ours.get(theirs["name"])
            if mine and theirs["bound"].startswith("<=") and mine["badness"] > 1.05 * theirs["badness"]:
                cells = (figure["measured"].removeprefix(f"{figure['name']}: ") for figure in (mine, theirs))
                first, second = cells
                yield ("Reliability", f"{name}: {theirs['name']}", first, f"langchain-mongodb: {second}")


BLOCKS = {
    "histories, ratios by size": _by_size,
    "histories, other ratios": _at_once,
    "histories, turns": _turns,
    "histories, growth": _growth,
    "histories, bars": lambda results: bars(results["history"]["ratios"]),
    "moves": _moves,
    "moves, bars": lambda results: bars(results["moving"]["ratios"]),
    "reliability": _reliability,
}
BEHIND = (histories_behind, moves_behind, reliability_behind)
