"""An app that derives from its transcripts whatever can be derived, and what is asked of it after a fault."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda
from pymongo import MongoClient

from gatekit.systems import Place, answer_to, config
from langchain_memkit import (
    EntityMemory,
    KeyValueMemory,
    Memory,
    MongoDBKeyValueStore,
    SQLiteKeyValueStore,
    VectorMemory,
    WordLlamaEmbeddings,
    create_history_preprocessor,
)
from langchain_memkit.base import Mention, utc_now
from langchain_memkit.memories.derived_log import unpack
from langchain_memkit.memories.vector import turn_index
from langchain_memkit.messages.notes import is_note, records_of

NAMES = re.compile(r"\b(?:Nemo|Dory|Coral)\b")
MARK = re.compile(r"\bturn\d+\b")  # says which turn a text is of
TELLING = re.compile(r"\bturn\d+\b|\bcanary-[\w-]+")  # what a summary keeps
QUESTIONS = ("What did Nemo tell Dory?", "Who saw Coral at reef 2?")
SESSION = "s1"
ELSEWHERE = "s2"  # the user's other session, in which nothing is said


def as_list(prompt: Any) -> list[BaseMessage]:
    """A prompt as messages."""
    return list(prompt.to_messages() if hasattr(prompt, "to_messages") else prompt)


def question(n: int, canary: str = "") -> str:
    """What is said in a turn."""
    return f"turn{n}: {'Nemo told Dory' if n % 2 else 'Coral saw Nemo'} something at reef {n} {canary}".strip() + "."


class Trigger(Memory):
    """Does something when it is told of a turn."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def load(self, query: str = "") -> list[BaseMessage]:
        """Nothing."""
        return []

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Does it."""
        self.action()

    def clear(self) -> None:
        """Nothing."""


class Embedder(WordLlamaEmbeddings):
    """Says when a turn is embedded."""

    def __init__(self, begun: Callable[[], Any]) -> None:
        super().__init__(64)
        self.begun = begun

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors."""
        self.begun()
        return super().embed_documents(texts)


class App:
    """Histories with summaries, entities, recall and entries by title, all in one place.

    Args:
        system: What makes histories and chains.
        place: Where everything is kept.
        now: A clock, for the histories and what is recalled of them.
        options: Time limits of a server.

    Attributes:
        at: What is done, once, when a turn comes to a moment: "summary", "model", "told first" (its memories are going
            to be told of it), "names" (that are looked for), "embedding" (before it is stored), "told last".
        parts: What `purge_user` takes; what is recalled goes with the histories.
        shown: What the model was given last, by thread.
    """

    def __init__(self, system: Any, place: Place, *, now: Any = utc_now, **options: Any) -> None:
        self.at: dict[str, Callable[[], Any]] = {}
        embedding = Embedder(lambda: self._reached("embedding"))
        if place.kind == "sqlite":
            self.store: Any = SQLiteKeyValueStore(place.uri)
        else:
            self.store = MongoDBKeyValueStore(place.uri, place.database, **options)
        self.shown: dict[int, list[BaseMessage]] = {}
        self.histories = system.histories(place, now=now, **options)
        self.entities = EntityMemory.factory(self.histories, self._names, max_tokens=6000)
        self.vectors = VectorMemory.factory(self.histories, embedding, max_tokens=6000, now=now)
        self.books = KeyValueMemory.factory(self.store)
        self.summaries = create_history_preprocessor(
            RunnableLambda(self._digest),
            max_tokens=20_000,
            trigger=("messages", 4),
            keep=("messages", 2),
            store=self.store,
        )
        first, last = (Trigger(lambda name=name: self._reached(name)) for name in ("told first", "told last"))
        memories = [first, self.books, self.entities, self.vectors, last]
        model = RunnableLambda(self._answer)
        self.chain = system.chain(model, self.histories, preprocessor=self.summaries, memories=memories)
        self.parts = [self.histories, self.books, self.summaries]

    def _reached(self, moment: str) -> None:
        self.at.pop(moment, lambda: None)()

    def _answer(self, messages: list[BaseMessage]) -> Any:
        self.shown[threading.get_ident()] = messages
        self._reached("model")
        return answer_to(messages)

    def _names(self, text: str) -> list[Mention]:
        self._reached("names")
        return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in NAMES.finditer(text)]

    def _digest(self, prompt: Any) -> str:
        """A model that summarizes: it repeats every line."""
        self._reached("summary")
        said = prompt if isinstance(prompt, str) else " ".join(m.text for m in as_list(prompt))
        return "Talk of " + " ".join(dict.fromkeys(TELLING.findall(said)))

    def turn(self, user: str, n: int, canary: str = "") -> str:
        """One turn, with an id of its own; the answer."""
        answer: str = self.chain.invoke(question(n, canary), config(SESSION, user, f"turn{n}")).text
        return answer

    def add_book(self, user: str, n: int, canary: str = "") -> None:
        """An entry by title."""
        self.books(SESSION, user).add({f"book {n}": f"of turn{n} {canary}"})

    def log(self, user: str) -> list[str]:
        """The marks of what stands in the transcript, in order."""
        return [mark for m in self.histories(SESSION, user).messages for mark in MARK.findall(m.text)]

    def recalled(self, user: str, session: str = ELSEWHERE) -> tuple[list[str], list[tuple[str, float]]]:
        """What the memories have to say in a session, in which nothing was said: texts of notes, and scores."""
        memory, notes = self.vectors(session, user), []
        for asked in QUESTIONS:
            for message in [*self.entities(session, user).load(asked), *memory.load(asked)]:
                notes += [record.text for record in records_of(message)]
        return notes, [(hit.text, round(hit.score, 6)) for asked in QUESTIONS for hit in memory.search(asked)]

    def index(self, user: str) -> int:
        """Derives what turns lack; of how many that was."""
        return sum(memory(ELSEWHERE, user).index(progress=False) for memory in (self.entities, self.vectors))


class Undisturbed:
    """What is recalled of turns that nothing happened to."""

    def __init__(self, system: Any, place: Place) -> None:
        self._app = App(system, place)
        self._known: dict[int, Any] = {}

    def recalled(self, turns: int) -> Any:
        """After so many of them."""
        if turns not in self._known:
            for n in range(turns):
                self._app.turn(f"calm{turns}-", n)
            self._known[turns] = self._app.recalled(f"calm{turns}-")
        return self._known[turns]


def ahead(app: App, user: str, stored: dict[str, list[str]]) -> set[str]:
    """Marks of turns that are known to anything derived, and do not stand in the transcript."""
    known = {mark for those in stored.values() for row in those if user in row for mark in MARK.findall(row)}
    return known - set(app.log(user))


def after_fault(app: App, calm: Undisturbed, user: str, turn: int, *, index: bool) -> list[str]:
    """What is wrong after a fault in this turn: as it stands, or indexed; then with the turn repeated.

    Args:
        app: One that nothing happened to.
        calm: To compare with.
        user: Whose turn it was.
        turn: Its number; those before it were acknowledged.
        index: Whether all is derived before the turn is repeated.
    """
    wrong = []
    stored = len(app.log(user)) // 2
    if app.log(user) != in_order(stored) or stored not in (turn, turn + 1):
        wrong.append(f"log: {app.log(user)} before turn{turn}")
    if index:
        app.index(user)
        if app.recalled(user) != calm.recalled(stored):
            wrong.append(f"indexed, but otherwise than {stored} undisturbed turns")
    app.turn(user, turn)
    if app.log(user) != in_order(turn + 1):
        wrong.append(f"log: {app.log(user)} after turn{turn} was repeated")
    if app.recalled(user) != calm.recalled(turn + 1):
        wrong.append(f"recalled otherwise than after {turn + 1} undisturbed turns")
    if lacked := app.index(user):
        wrong.append(f"{lacked} turns still lacked something")
    app.turn(user, turn + 1)
    view = [
        sorted(set(MARK.findall(message.text))) for message in app.shown[threading.get_ident()] if not is_note(message)
    ]
    seen = Counter(mark for marks in view for mark in marks)
    if set(seen) != set(in_order(turn + 2)):
        wrong.append(f"the model was shown {view} of {turn + 2} turns")
    return [f"{user}: {each}" for each in wrong]


def in_order(turns: int) -> list[str]:
    """The marks of a log of so many turns."""
    return [f"turn{n}" for n in range(turns) for _ in range(2)]


def rows(place: Place) -> dict[str, list[str]]:
    """Every row or document of every table or collection, as text; indexes of turns as the texts that they hold."""
    if place.kind != "sqlite":
        with MongoClient(place.uri) as client:
            database = client[place.database]
            return {name: [_shown(row) for row in database[name].find()] for name in database.list_collection_names()}
    with closing(sqlite3.connect(place.uri)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [_shown(row) for row in connection.execute(f'SELECT * FROM "{name}"')] for name in tables}


def _shown(row: Any) -> str:
    """A row as text, with the texts of an index, which are compressed in it."""
    values = [*row.values(), *row.get("index", {}).values()] if isinstance(row, dict) else row
    indexes = [value for value in values if isinstance(value, bytes)]
    made = [turn_index.decode(value) for value in indexes]
    texts = [record.text for index in made if index for record in index.records]
    return str((row, texts, [unpack(value) for value in indexes]))


def indexes_of(place: Place, user: str) -> list[bytes]:
    """A piece of the middle of each index of a user's turns in a file, as it stands there."""
    with closing(sqlite3.connect(place.uri)) as connection:
        found = connection.execute("SELECT made FROM turn_indexes WHERE user_id = ? AND name = 'vectors'", (user,))
        return [data[len(data) // 2 :][:60] for (data,) in found]


def found_in(place: Place, text: str | bytes) -> list[tuple[str, bytes]]:
    """Where a text stands in the files of a database, whatever SQLite says: name of the file, and what is around it."""
    found, wanted = [], re.escape(text.encode() if isinstance(text, str) else text)
    for file in Path(place.uri).parent.iterdir():
        data = file.read_bytes()
        found += [(file.name, data[max(m.start() - 99, 0) : m.end() + 9]) for m in re.finditer(wanted, data)]
    return found
