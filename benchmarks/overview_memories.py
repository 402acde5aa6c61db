"""The overview's sections about what is recalled: entities, titles, evidence."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.overview_text import DEPLOYMENTS, Results, bars, every, one, share, span, table
from benchmarks.report import Row, number

__all__ = ["BEHIND", "BLOCKS", "NAMES", "PACKAGES", "REFERENCES", "WORDS"]

METRICS = ("recall within 512", "recall within 1,024", "recall within 2,048", "recall@10", "MRR")
PACKAGES = {
    "VectorStoreRetrieverMemory": "langchain-classic `VectorStoreRetrieverMemory`",
    "TimeWeightedVectorStoreRetriever": "langchain-classic `TimeWeightedVectorStoreRetriever`",
    "langgraph InMemoryStore": "langgraph `InMemoryStore`",
    "LlamaIndex VectorMemory": "LlamaIndex `VectorMemory`",
    "mem0 infer=False": "mem0, `infer=False`",
}
WORDS = "BM25, stems"
REFERENCES = {
    "BM25 and cosine, ranks fused": "BM25 and cosine, ranks fused (no package)",
    WORDS: "BM25 of stems (no package)",
}
NAMES = {"memkit": "memkit `VectorMemory`", **PACKAGES, **REFERENCES}
EMBEDDERS = {"minilm": "MiniLM", "wordllama": "WordLlama", "none": "none"}
GUIDE = "SpacyEntityMemory"


# -- entities


def _entity_ratios(results: Results) -> str:
    found = results["entities"]["ratios"]
    lines = []
    for what, where in (
        ("characters injected, p95", {"talk": "all"}),
        ("time of a save", {"system": "memkit"}),
        ("time of a question", {"system": "memkit"}),
    ):
        lines.append((what, number(one(found, ratio=f"{what}, {GUIDE} / memkit", **where)["value"])))
    return table(("", "the guide's class / memkit"), lines)


def _entities(results: Results) -> str:
    rows, data = results["entities"]["rows"], results["entities"]["data"]
    systems = (GUIDE, "memkit", "memkit, no speakers", "memkit, SQLite")
    stored = [one(rows, measurement="stored", talk="all", system=name) for name in systems]
    given = [one(rows, measurement="injected", talk="all", system=name) for name in systems]

    def timed(what: str) -> list[str]:
        those = [every(rows, measurement=what, system=name) for name in systems]
        return [f"{number(row[0]['median_ms'])} ms" if row else "" for row in those]

    lines = [
        ("messages naming a speaker, stored under the name", *(f"{r['held']:,} of {r['naming']:,}" for r in stored)),
        ("keys; of them dates or numbers, by spaCy's labels", *(f"{r['keys']}; {r['junk_by_label']}" for r in stored)),
        ("the largest entity, of all characters", *(f"{r['largest_percent']}%" for r in stored)),
        ("characters for a question: median, most", *(f"{r['median']:,}, {r['max']:,}" for r in given)),
        ("questions that get nothing", *(f"{r['nothing']:,} of {r['questions']:,}" for r in given)),
        ("a message saved", *timed("save")),
        ("a question", *timed("load")),
    ]
    head = ("the guide's class", *(f"`EntityMemory`{name.removeprefix('memkit')}" for name in systems[1:]))
    return table((f"{data['talks']} conversations, {data['messages']:,} messages", *head), lines)


def entities_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """Where the guide's class is faster."""
    rows = results["entities"]["rows"]
    for what in ("save", "load"):
        guide = one(rows, measurement=what, system=GUIDE)["median_ms"]
        for row in every(rows, measurement=what):
            if row["median_ms"] > guide:
                yield ("Entities", f"{what}, {row['system']}", f"{number(row['median_ms'])} ms", f"{number(guide)} ms")


# -- titles


def _titles(results: Results) -> str:
    typos, *timed = results["titles"]["rows"]
    ratios = {row["ratio"]: row["value"] for row in results["titles"]["ratios"]}
    lines = [("`KeyFinder` of `KeyValueMemory`", "", f"{number(one(timed, system='memkit')['median_ms'])} ms")]
    for name, title in (
        ("title in message", "`title in message`, title by title"),
        ("rapidfuzz extractOne", "rapidfuzz `process.extractOne` of `partial_ratio`"),
    ):
        ratio = number(ratios[f"time, {name} / memkit"])
        lines.append((title, ratio, f"{number(one(timed, system=name)['median_ms'])} ms"))
    return table((f"a message among {typos['titles']:,} titles", "peer / memkit", "time"), lines)


def _typos(results: Results) -> str:
    typos = results["titles"]["rows"][0]
    lines = [
        ("titles with one typo that are found", f"{typos['recall_percent']}%"),
        (f"titles found that nobody meant, {typos['passages']} passages", str(typos["false_hits"])),
        ("making the index, once", f"{typos['build_seconds']} s"),
    ]
    return table(("memkit", ""), lines)


def titles_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """What a loop over the titles does not do: it finds only what is written."""
    typos = results["titles"]["rows"][0]
    if typos["false_hits"]:
        found = f"{typos['false_hits']} in {typos['passages']} passages"
        yield ("Titles", f"titles found that nobody meant, {typos['titles']:,} titles", found, "exact search: none")


# -- recall


def _leads(results: Results) -> str:
    lines = []
    for row in results["recall"]["ratios"]:
        if row["ratio"].endswith("low end"):
            metric = row["ratio"].removesuffix(", memkit - best other, low end")
            lead = f"{share(row['difference'])} ({share(row['value'])} to {share(row['high'])})"
            lines.append((EMBEDDERS[row["embedder"]], metric, NAMES[row["of"]], lead))
    return table(("vectors", "metric", "best other", "memkit's lead"), lines)


def _recall(results: Results) -> str:
    (data,) = results["recall"]["data"]
    found = every(results["recall"]["rows"], measurement="recall", where="all")
    found.sort(key=lambda row: (list(EMBEDDERS).index(row["embedder"]), -row["recall within 1,024"]))
    lines = [
        (EMBEDDERS[row["embedder"]], NAMES[row["system"]], *(share(row[metric]) for metric in METRICS)) for row in found
    ]
    what = f"{data['conversations']} conversations, {data['messages']:,} messages, {data['questions']} questions"
    return table(("vectors", what, *METRICS), lines)


def _conversations(results: Results) -> str:
    found = _with_minilm(every(results["recall"]["rows"], measurement="recall"))
    places = [place for place in dict.fromkeys(row["where"] for row in found) if place.startswith("conv")]
    lines = []
    for system in dict.fromkeys(row["system"] for row in found):
        at = (one(found, system=system, where=place)["recall within 1,024"] for place in places)
        lines.append((NAMES[system], *map(share, at)))
    return table(("recall within 1,024 tokens", *places), lines)


def _with_minilm(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["embedder"] == "minilm" or row["system"] == WORDS]


def _times(results: Results) -> str:
    timed = _with_minilm(every(results["recall"]["rows"], measurement="time"))
    ours = one(timed, system="memkit")
    lines = []
    for row in timed:
        ratio = "" if row is ours else number(row["query_ms"] / ours["query_ms"])
        lines.append((NAMES[row["system"]], ratio, number(row["query_ms"]), number(row["add_ms"])))
    return table(("", "a question / memkit's", "a question, ms", "a message saved, ms"), lines)


def _speed(results: Results) -> str:
    rows = [row for row in results["recall"]["rows"] if "deployment" in row and "median_ms" in row]
    lines = []
    for place, name in DEPLOYMENTS.items():
        at = {(row["measurement"], row["system"]): row["median_ms"] for row in every(rows, deployment=place)}
        ratios = (at[what, "memkit"] / at[what, "floor"] for what in ("search", "save"))
        keys = (("search", "memkit"), ("search", "floor"), ("load", "memkit"), ("save", "memkit"), ("save", "floor"))
        lines.append((name, *map(number, ratios), *(number(at[key]) for key in keys)))
    head = ("search / floor", "save / insert", "search, ms", "its floor", "load", "save", "an insert")
    return table((f"{rows[0]['rounds']:,} rounds of one user", *head), lines)


def _million(results: Results) -> str:
    lines = [
        (
            f"{row['rounds']:,} rounds of {row['users']:,} users",
            f"{number(row['search_ms'])} ms",
            f"{number(row['first_search_ms'])} ms",
            f"{number(row['process_mb'])} MB",
            f"{number(row['process_after_each_mb'])} MB",
            f"{number(row['file_mb'])} MB",
        )
        for row in every(results["recall"]["rows"], measurement="million")
    ]
    head = ("a search", "the first one", "the process", "after a search of each user", "the file")
    return table(("one SQLite file", *head), lines)


def recall_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """Packages that answer or save faster, and parts of the data in which another finds more."""
    rows = results["recall"]["rows"]
    timed = _with_minilm(every(rows, measurement="time"))
    ours = one(timed, system="memkit")
    for key, what in (("query_ms", "a question"), ("add_ms", "a message saved")):
        for row in timed:
            if row[key] < ours[key]:
                yield (
                    "Recall",
                    f"time of {what}",
                    f"{number(ours[key])} ms",
                    f"{NAMES[row['system']]}: {number(row[key])} ms",
                )
    for what, least in (("search", "numpy and the texts by their keys"), ("save", "one insert")):
        pairs = (every(rows, measurement=what, deployment=place) for place in DEPLOYMENTS)
        ratios = [one(p, system="memkit")["median_ms"] / one(p, system="floor")["median_ms"] for p in pairs]
        yield ("Recall", f"time of a {what} by the least that could be done", f"{span(ratios)} times", least)
    found = every(rows, measurement="recall")
    for row in found:
        if row["system"] != "memkit":
            mine = one(found, system="memkit", embedder=row["embedder"], where=row["where"])
            for metric in METRICS:
                if row[metric] > mine[metric]:
                    title = f"{metric}, {row['where']}, {EMBEDDERS[row['embedder']]}"
                    yield ("Recall", title, share(mine[metric]), f"{NAMES[row['system']]}: {share(row[metric])}")


BLOCKS = {
    "entities, ratios": _entity_ratios,
    "entities": _entities,
    "entities, bars": lambda results: bars(results["entities"]["ratios"]),
    "titles": _titles,
    "titles, typos": _typos,
    "recall, leads": _leads,
    "recall": _recall,
    "recall, conversations": _conversations,
    "recall, times": _times,
    "recall, speed": _speed,
    "recall, a million": _million,
    "recall, bars": lambda results: bars(results["recall"]["ratios"]),
}
BEHIND = (entities_behind, titles_behind, recall_behind)
