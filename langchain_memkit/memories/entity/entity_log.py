"""The entities of users, as an entity memory holds them in process: derived from the turns of their histories."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langchain_core.messages import BaseMessage

from langchain_memkit._sync import call_user_function, cpu_bound
from langchain_memkit.base import EntityExtractor
from langchain_memkit.memories.derived_log import UNDATED, DerivedLog, HeldTurns, Said
from langchain_memkit.memories.entity import rows as stored
from langchain_memkit.memories.entity.mentions import facts_of, message_facts, read_mentions
from langchain_memkit.memories.entity.registry import EntityRegistry, speaker_names
from langchain_memkit.memories.entity.rows import DescriptionRow, FactRow, ResolutionRule, fact_id, id_in
from langchain_memkit.memories.entity.statements import NameSpan
from langchain_memkit.stores.changes import ChangedRow, Place
from langchain_memkit.stores.history import HistoryFactory

ENTITIES = "entities"
"""The name of the index in a turn's row, and in that of a decision."""
DESCRIBED = "described"
"""The name of the index that holds what a model said of entities after a turn."""
MANY = 1000  # facts; a larger registry is searched and changed in a thread
SHORT = 2000  # characters: finding the names of shorter texts is not worth a thread
FACT_BYTES = 1500  # of a fact in process


@dataclass
class UserEntities(HeldTurns):
    """The entities of one user."""

    book: EntityRegistry = field(default_factory=lambda: EntityRegistry({}))
    keys: dict[Place, list[str]] = field(default_factory=dict)  # of the facts of each row
    speakers: dict[Place, list[str]] = field(default_factory=dict)
    forgotten: dict[str, datetime] = field(default_factory=dict)  # names, and until when what was said is not quoted
    has_lost: bool = True  # facts, so that what a model said of entities may rest on some that are gone

    @property
    def nbytes(self) -> int:
        """Return the memory that they take, about."""
        return super().nbytes + FACT_BYTES * len(self.book.facts)

    def put(self, row: ChangedRow) -> bool:
        """Hold the facts of a row, and what a model said of entities after it."""
        facts = stored.decode_facts(row.index.get(ENTITIES), row, UNDATED)
        keys = self.keys[row.place] = list[str]()
        if speakers := speaker_names(facts or ()):
            self.book.add_speakers(speakers)
            self.speakers[row.place] = [*speakers]
        for fact in facts or ():
            if fact.key and not self._is_forgotten(fact):
                keys.append(f"{row.session_id}/{row.seq}/{fact_id(fact)}")
                self.book.add(keys[-1], fact)
        if made := stored.decode_descriptions(row.index.get(DESCRIBED), row, UNDATED):
            self.book.descriptions[row.place] = made
        return facts is not None

    def drop(self, place: Place) -> None:
        """Forget the facts of a row."""
        keys = self.keys.pop(place, ())
        self.has_lost = self.has_lost or bool(keys)
        self.book.remove(keys)
        self.book.remove_speakers(self.speakers.pop(place, ()))
        self.book.descriptions.pop(place, None)

    def decide(self, rows: Sequence[ChangedRow]) -> None:
        """Take in which names are one, which are not, and what is forgotten; of two that differ the last holds."""
        rules: list[ResolutionRule] = []
        forgotten: dict[str, datetime] = {}
        for row in rows:
            rule = stored.decode_rule(row.index.get(ENTITIES))
            if rule is None:
                continue
            if rule.kind == "forget":
                forgotten[rule.key] = row.created_at or UNDATED
                rules = [each for each in rules if rule.key not in (each.key, each.other_key)]
            else:
                rules.append(rule)
        self.book.change_rules(rules)
        self.forgotten = forgotten
        self.has_lost = True
        self.book.remove([key for key, fact in self.book.facts.items() if self._is_forgotten(fact)])

    def outdated(self) -> list[tuple[Place, str, bytes]]:
        """Return the rows with descriptions that rest on facts that are gone: place, op and what stays of them."""
        is_unsure = bool(self.lacking)  # whether those facts are in turns that were not read yet
        if not self.has_lost or is_unsure:
            return []
        self.has_lost = False
        ids = set(map(id_in, self.book.facts))
        found = []
        for place, made in self.book.descriptions.items():
            valid = [each for each in made if ids.issuperset(each.facts)]
            if len(valid) < len(made):
                found.append((place, self.rows[place].op, stored.encode_descriptions(valid)))
        return found

    def _is_forgotten(self, fact: FactRow) -> bool:
        until = self.forgotten.get(fact.key)
        return until is not None and fact.at <= until


class EntityLog(DerivedLog[UserEntities]):
    """The entities of all users over histories.

    Args:
        histories: A factory of histories whose store keeps an index.
        extractor: Finds the names in a text.
        vocabulary: Names that are always found, with their types.
        **options: As of `DerivedLog`.
    """

    name = ENTITIES
    other_names = (DESCRIBED,)

    def __init__(
        self,
        histories: HistoryFactory[Any],
        extractor: EntityExtractor,
        vocabulary: Mapping[str, str],
        **options: Any,
    ) -> None:
        super().__init__(histories, **options)
        self.extractor = extractor
        self.vocabulary = vocabulary
        self.is_whole_at_once = bool(getattr(extractor, "is_local", False))

    def new_user(self) -> UserEntities:
        """Return what is held of a user of whom nothing was read yet."""
        return UserEntities(book=EntityRegistry(self.vocabulary))

    async def look(self, user_id: str, *, most: int | None = None, held: UserEntities | None = None) -> UserEntities:
        """Look at what changed; descriptions that rest on what was erased are erased as well."""
        held = await super().look(user_id, most=most, held=held)
        await self.keep(user_id, DESCRIBED, await self.held(held.outdated))
        return held

    async def decide_rule(self, user_id: str, rule: ResolutionRule, after: datetime | None = None) -> None:
        """Store a decision of a user about what was said up to a time."""
        await self.decide(user_id, stored.encode_rule(rule), after)

    async def describe(self, user_id: str, place: Place, made: Sequence[DescriptionRow]) -> None:
        """Store what a model said of entities after a turn, in its row."""
        row = (await self.held_of(user_id)).rows.get(place)
        if row is not None:
            await self.keep(user_id, DESCRIBED, [(place, row.op, stored.encode_descriptions(made))])

    async def derive(self, user_id: str, messages: Sequence[BaseMessage]) -> bytes | None:
        """Make the facts of a turn that is to be stored; None if the extractor is slow, so that they follow."""
        if not self.is_whole_at_once:
            return None
        said = message_facts("", messages, UNDATED)
        found = await self.extract([source.text for source in said])
        held = await self.known_of(user_id)
        is_long = len(held.book.facts) > MANY or sum(len(source.text) for source in said) > SHORT
        return await self.held(lambda: _encode(held.book, said, found), long=is_long)

    async def read(self, turns: Sequence[Said]) -> list[Any]:
        """Read the names in turns."""
        sources = [message_facts(session_id, messages, UNDATED) for (session_id, _), messages in turns]
        found = iter(await self.extract([source.text for said in sources for source in said]))
        return [(said, [next(found) for _ in said]) for said in sources]

    def encode(self, held: UserEntities, read: Any) -> bytes:
        """Encode the facts of a turn: its sentences with the names that were read, or are known by then."""
        return _encode(held.book, *read)

    async def extract(self, texts: Sequence[str]) -> list[list[NameSpan]]:
        """Extract the names of each text; several texts go through the extractor's `batch` at once if it has one."""
        extractor: Any = self.extractor

        def read(some: list[str]) -> Any:
            """Consume a generator here, in the thread in which `batch` is called, so that its work happens there."""
            result = extractor.batch(some)
            return result if inspect.isawaitable(result) else list(result)

        found: list[Any] = []
        if callable(getattr(extractor, "batch", None)) and len(texts) > 1:
            found = list(await call_user_function(read, list(texts), name="the extractor"))
        else:
            for text in texts:
                found.append(await call_user_function(extractor, text, name="the extractor"))
        long = sum(map(len, texts)) > SHORT
        return await cpu_bound(lambda: [read_mentions(*pair) for pair in zip(found, texts, strict=True)], long=long)


def _encode(book: EntityRegistry, said: Sequence[FactRow], found: Sequence[Sequence[NameSpan]]) -> bytes:
    """Encode the facts of a turn: of each message, in order, the sentences with the names that are found in it."""
    return stored.encode_facts(facts_of(zip(said, found, strict=True), book))
