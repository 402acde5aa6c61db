"""The plots of the overview, as SVG: the same results give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common import every, number
from benchmarks.overview import (
    DEPLOYMENTS,
    ENGINES,
    FOUR,
    NAMES,
    OTHERS,
    QUESTIONS,
    SYSTEMS,
    WORDS,
    Results,
    exact,
    four,
    share,
)

OURS, ALIKE, FLOOR = "#0b5fa5", "#6baed6", "#9a9a9a"
THEIRS = ("#b5461a", "#e08a3c", "#7a5195")
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small files, and no font of this machine in them
    "svg.hashsalt": "langchain-memkit",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
}
Line = tuple[str, list[float], list[float], str, str]
"""Name, places, values, colour, style."""


def plots(results: Results) -> dict[str, str]:
    """The files of docs/images by name."""
    with mpl.rc_context(STYLE):
        return {
            "benchmark-turn.svg": turn(results),
            "benchmark-trimming.svg": trimming(results),
            "benchmark-recall.svg": recall(results),
            "benchmark-followups.svg": followups(results),
        }


def turn(results: Results) -> str:
    rows = every(results["history"]["rows"], measurement="turn")
    figure = Figure(figsize=(8.4, 3.4))
    drawn: list[str] = []
    for i, place in enumerate(("standalone", "replica_set")):
        axes = figure.add_axes((0.095 + 0.475 * i, 0.145, 0.4, 0.755))
        lines: list[Line] = []
        for system, colour, style in (
            ("peer", THEIRS[0], "-"),
            ("peer_history_size", THEIRS[1], "-"),
            ("memkit", OURS, "-"),
            ("floor", FLOOR, "--"),
        ):
            found = every(rows, deployment=place, system=system, shape="pairs")
            name = SYSTEMS[system].replace("`", "")
            lines.append((name, [r["stored"] for r in found], [r["median_ms"] for r in found], colour, style))
        drawn += curves(axes, DEPLOYMENTS[place], "messages stored", lines, legend=i == 0)
    figure.axes[0].set_ylabel("a turn, ms (median)")
    for axes in figure.axes:
        axes.set_ylim(0.8, 9_000)
    return svg(figure, "A turn that sees the last 20 messages, by messages stored", drawn)


def trimming(results: Results) -> str:
    rows = every(results["context"]["rows"], measurement="trim", budget="4,000")
    figure = Figure(figsize=(8.4, 3.4))
    drawn: list[str] = []
    for i, (counter, title) in enumerate({"approximate": "approximate counter", "o200k_base": "exact counts"}.items()):
        axes = figure.add_axes((0.095 + 0.475 * i, 0.145, 0.4, 0.755))
        lines: list[Line] = []
        for system, form, name, colour in (
            ("trim_messages", "" if counter == "approximate" else "list", "trim_messages", THEIRS[0]),
            ("memkit", "", "memkit", OURS),
            ("memkit", "stored", "memkit, counts stored", ALIKE),
        ):
            found = every(rows, counter=counter, system=system, form=form)
            if found:
                lines.append((name, [r["messages"] for r in found], [r["median_ms"] for r in found], colour, "-"))
        drawn += curves(axes, title, "messages in the log", lines, legend=i == 1)
    figure.axes[0].set_ylabel("to 4,000 tokens, ms (median)")
    for axes in figure.axes:
        axes.set_ylim(0.2, 9_000)
    return svg(figure, "Trimming to 4,000 tokens, by messages in the log", drawn)


def recall(results: Results) -> str:
    metric = "recall within 1,024"
    rows = every(results["recall"]["rows"], measurement="recall", where="all")
    found = [row for row in rows if row["embedder"] == "minilm" or row["system"] == WORDS]
    found.sort(key=lambda row: row[metric])
    names = [NAMES[row["system"]].replace("`", "") for row in found]
    figure = Figure(figsize=(8.4, 2.9))
    axes = figure.add_axes((0.46, 0.15, 0.5, 0.82))
    colours = [
        OURS if row["system"] == "memkit" else FLOOR if "no package" in name else THEIRS[1]
        for row, name in zip(found, names, strict=True)
    ]
    values = [row[metric] for row in found]
    axes.barh(range(len(found)), values, color=colours, height=0.68)
    for i, value in enumerate(values):
        axes.text(value + 0.008, i, share(value), va="center")
    axes.set_yticks(range(len(found)), names)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the evidence found within 1,024 tokens; MiniLM")
    return svg(
        figure, "Evidence within 1,024 tokens, LoCoMo", [f"{n}: {share(v)}" for n, v in zip(names, values, strict=True)]
    )


def followups(results: Results) -> str:
    rows = results["followups"]["rows"]
    figure = Figure(figsize=(8.4, 3.8))
    systems = (*OTHERS, "memkit weighted", "human rewrite")
    colours = ("#d9c7b8", THEIRS[1], THEIRS[0], OURS, FLOOR)
    drawn: list[str] = []
    for i, (masked, title) in enumerate(((True, "earlier answers left out"), (False, "nothing left out (default)"))):
        axes = figure.add_axes((0.08 + 0.475 * i, 0.33, 0.42, 0.6))
        for k, (system, colour) in enumerate(zip(systems, colours, strict=True)):
            values = [exact(row) for row in four(rows, system, masked=masked)]
            places = [j + (k - 2) * 0.16 for j in range(len(FOUR))]
            axes.bar(places, values, width=0.15, color=colour, label=QUESTIONS[system].replace("`", ""))
            drawn.append(f"{title}, {QUESTIONS[system]}: {', '.join(map(share, values))}")
        axes.set_xticks(range(len(FOUR)), [f"{data.partition(' ')[0]}\n{ENGINES[engine]}" for data, engine in FOUR])
        axes.tick_params(axis="x", length=0)
        axes.set_ylim(0, 1)
        axes.set_title(title, loc="left")
    figure.axes[0].set_ylabel("recall@10")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.07, 0.0), ncols=2, frameon=False)
    return svg(figure, "Follow-up questions: recall@10", drawn)


def curves(axes: Axes, title: str, below: str, lines: Sequence[Line], *, legend: bool) -> Iterator[str]:
    """Lines on logarithmic axes; gives what they show as text."""
    for name, places, values, colour, style in lines:
        axes.plot(places, values, style, color=colour, marker="o", markersize=3.5, label=name)
        yield f"{title}, {name}: {', '.join(map(number, values))}"
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({int(place) for line in lines for place in line[1]})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(visible=True, axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_xlabel(below)
    axes.set_title(title, loc="left")
    if legend:
        axes.legend(frameon=False, loc="upper left")


def svg(figure: Figure, title: str, drawn: Sequence[str]) -> str:
    """The file, with what it shows as its description: readers who see no picture have that, and so has the test."""
    file = io.StringIO()
    about: dict[str, Any] = {"Title": title, "Description": "; ".join(drawn), "Date": None, "Creator": None}
    figure.savefig(file, format="svg", metadata=about)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
