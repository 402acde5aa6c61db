"""The systems of benchmarks/entities.py: the memory of LangChain's old guide, written anew, and memkit's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import spacy
from langchain_core.messages import BaseMessage, HumanMessage
from spacy.language import Language

from benchmarks.talks import Said, Talk
from langchain_memkit import SQLiteKeyValueStore
from langchain_memkit.backends.spacy import REPACKAGED, SpacyEntityExtractor, _checked
from langchain_memkit.memories.entity import EntityMemory

__all__ = ["MODEL", "Key", "Memkit", "Read", "Seed", "System", "full_pipeline", "is_junk", "read_talk", "says_junk"]

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


def read_talk(nlp: Language, talk: Talk) -> Read:
    """What the model takes for names, dates and numbers."""
    return {
        said.id: [(name.text, name.label_, name.start_char, name.end_char) for name in nlp(said.text).ents]
        for said in talk.messages
    }


def human(said: Said, named: bool = True) -> BaseMessage:
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

    def save(self, talk: Talk) -> None:
        """Takes the messages of a talk one by one."""

    def load(self, talk: Talk, query: str) -> str:
        """What would stand in the prompt."""

    def keys(self, talk: Talk, read: Read) -> list[Key]:
        """What it has stored."""

    def holding(self, talk: Talk, name: str) -> set[str]:
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

    def save(self, talk: Talk) -> None:
        memory = self.memories[talk.name] = SpacyEntityMemory(self.nlp)
        for said in talk.messages:
            memory.save_context({"input": said.text})

    def load(self, talk: Talk, query: str) -> str:
        return self.memories[talk.name].load_memory_variables({"input": query})["entities"]

    def keys(self, talk: Talk, read: Read) -> list[Key]:
        labels: dict[str, Counter[str]] = {}
        for text, label, _, _ in (name for names in read.values() for name in names):
            labels.setdefault(text, Counter())[label] += 1
        stored = self.memories[talk.name].entities
        return [Key(name, labels[name].most_common(1)[0][0], len(text)) for name, text in stored.items()]

    def holding(self, talk: Talk, name: str) -> set[str]:
        stored = self.memories[talk.name].entities
        mine = [f"\n{text}\n" for key, text in stored.items() if plain(key) == plain(name)]
        return {said.id for said in talk.messages if any(f"\n{said.text}\n" in text for text in mine)}


class Memkit:
    """An `EntityMemory` with its defaults for each talk, each of a user of its own, over one store.

    Args:
        extractor: Is shared.
        named: Whether messages say who spoke.
        folder: For SQLite files, a new one at each start; None: stores in memory.
    """

    def __init__(self, extractor: SpacyEntityExtractor, *, named: bool = True, folder: Path | None = None) -> None:
        self.extractor = extractor
        self.named = named
        self.files: Iterator[Path] | None = (folder / f"{id(self)}-{n}.db" for n in count()) if folder else None
        self.store: SQLiteKeyValueStore | None = None
        self.start()

    def start(self) -> None:
        if self.store:
            self.store.close()
        self.store = SQLiteKeyValueStore(next(self.files)) if self.files else None
        self.memories = EntityMemory.factory(self.extractor, self.store)

    def of(self, talk: Talk) -> EntityMemory:
        return self.memories(talk.name, talk.name)

    def save(self, talk: Talk) -> None:
        memory = self.of(talk)
        for said in talk.messages:
            memory.save([human(said, self.named)])

    def rebuild(self, talk: Talk) -> None:
        """Takes a talk from its history, all at once."""
        history = SimpleNamespace(messages=[human(said, self.named) for said in talk.messages])
        self.of(talk).rebuild(history, progress=False)

    def load(self, talk: Talk, query: str) -> str:
        return "\n".join(message.text for message in self.of(talk).load(query))

    def keys(self, talk: Talk, read: Read) -> list[Key]:
        sizes = [(entity, sum(len(fact.text) for fact in entity.facts)) for entity in self.of(talk).entities()]
        return [Key(entity.name, _label(entity, read), size) for entity, size in sizes]

    def holding(self, talk: Talk, name: str) -> set[str]:
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
