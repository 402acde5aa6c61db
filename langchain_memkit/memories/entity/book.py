"""All that is known of one user's entities, as it was read; who is meant by a name is decided here. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from heapq import nsmallest
from itertools import pairwise
from typing import NamedTuple

from langchain_memkit.matching.finder import Found
from langchain_memkit.matching.folding import fold_text
from langchain_memkit.matching.names import Relation, display_form, is_ordinary, name_key, relation
from langchain_memkit.memories.entity.forms import Forms
from langchain_memkit.memories.entity.groups import Groups, fold_names, winner
from langchain_memkit.memories.entity.rows import DescriptionRow, FactRow, Keys, Rule, id_in

__all__ = ["Book", "Limits", "speaker_key"]

WORDS = 200  # of a question
MOST_SHORT = 4  # letters: shorter names have one spelling
ROLES = frozenset({"agent", "ai", "assistant", "bot", "human", "model", "system", "tool", "user"})


class Limits(NamedTuple):
    """How many facts are kept of an entity, and of a user."""

    facts: int
    total: int


def speaker_key(name: str) -> str | None:
    """The key of a speaker's name; None for a mere role ("user")."""
    key = name_key(name, given=True)
    return None if key is None or key in ROLES else key


def in_order(row: FactRow) -> tuple[datetime, str, int, str]:
    """Sorts facts by time, in the same order for every reader."""
    return row.at, row.message, row.start, row.text


class Book:
    """The rows of one user. Not for several threads at once: `Shelf` holds a lock.

    Args:
        keys: Of the user.
        vocabulary: Names that the app gave, with their kinds.
    """

    def __init__(self, keys: Keys, vocabulary: Mapping[str, str]) -> None:
        self.keys = keys
        self.versions: frozenset[str] = frozenset()
        self.facts: dict[str, FactRow] = {}
        self.rules: dict[str, Rule] = {}
        self.descriptions: dict[str, DescriptionRow] = {}
        self.unreadable: set[str] = set()
        self.generations: dict[str, set[str]] = {}
        self.names: dict[str, dict[str, set[str]]] = {}
        self._expiring: set[str] = set()
        self._vocabulary = vocabulary
        self._given = {key: kind for form, kind in vocabulary.items() if (key := name_key(form, given=True))}
        self._speakers: dict[str, str] = {}
        self._votes: dict[str, Counter[str]] = {}
        self._firm: Counter[str] = Counter()
        self._near: dict[str, dict[str, Relation]] = {}
        self._like: dict[str, set[str]] = {}
        self._groups: Groups | None = None
        self._forms = Forms()
        self._refresh_forms()

    # -- what is in it

    def add(self, key: str, row: FactRow) -> None:
        """Takes a fact in; one that is there stays."""
        if key in self.facts:
            return
        self.facts[key] = row
        sessions = self.names.get(row.key)
        if sessions is None:
            sessions = self.names[row.key] = {}
            self._compare(row.key)
        if row.session not in sessions:
            sessions[row.session] = set()
            self._groups = None
        sessions[row.session].add(key)
        if row.expires_at:
            self._expiring.add(key)
        if row.label:
            votes = self._votes.setdefault(row.key, Counter())
            before = winner(votes)
            votes[row.label] += 1
            if winner(votes) != before:
                self._groups = None
        if _is_firm(row):
            self._groups = self._groups if row.key in self._firm else None
            self._firm[row.key] += 1
        self._forms.learn(display_form(row.surface), row.key)
        if row.speaker:
            self.hear(row.speaker)

    def remove(self, keys: Iterable[str]) -> None:
        """Takes facts out; those that are not there are no error."""
        gone = False
        for key in keys:
            row = self.facts.pop(key, None)
            if row is None:
                continue
            self._groups = None
            self._expiring.discard(key)
            if _is_firm(row):
                self._firm -= Counter((row.key,))
            stored = self.names[row.key][row.session]
            stored.discard(key)
            if row.label:
                self._votes[row.key][row.label] -= 1
                self._votes[row.key] += Counter()  # without zeros
            if not stored:
                del self.names[row.key][row.session]
            if not self.names[row.key]:
                del self.names[row.key]
                gone = True
        if gone:
            self._refresh_forms()

    def change_rules(self, rules: dict[str, Rule]) -> None:
        """Takes decisions of people, all of them."""
        if rules != self.rules:
            self.rules = dict(sorted(rules.items()))
            self._groups = None
            self._refresh_forms()

    def hear(self, speaker: str) -> None:
        """Takes the name of someone who spoke."""
        if speaker not in self._speakers and (key := speaker_key(speaker)):
            self._speakers[speaker] = key
            self._forms.learn(speaker, key)

    def holds(self, row: FactRow) -> bool:
        """Whether the fact is there, in any live generation."""
        return any(self.keys.fact(row.session, g, row) in self.facts for g in self.generations.get(row.session, ()))

    def part(self, name: str, session: str) -> set[str]:
        """Keys of the facts that a name has in a session."""
        return self.names[name][session]

    def of_session(self, session: str) -> list[str]:
        """Keys of the facts of a session."""
        return [key for sessions in self.names.values() for key in sessions.get(session, ())]

    def expired(self, now: datetime) -> list[str]:
        """Facts whose time is over."""
        return [key for key in self._expiring if (end := self.facts[key].expires_at) and end <= now]

    def surplus(self, limits: Limits, now: datetime) -> list[str]:
        """Facts that have to go: expired ones, and the oldest of what is too many."""
        # a twentieth more than is too much, or every further turn would look for what is oldest
        gone = set(self.expired(now))
        if len(self.facts) - len(gone) <= min(limits):
            return sorted(gone)
        for parts in self.groups.parts.values():
            if sum(len(self.names[name][session]) for name, session in parts) > limits.facts:
                found = [key for name, session in parts for key in self.names[name][session] if key not in gone]
                gone.update(self._oldest(found, len(found) - limits.facts + limits.facts // 20))
        if len(self.facts) - len(gone) > limits.total:
            fewer = limits.total - limits.total // 20
            gone.update(self._oldest(self.facts.keys() - gone, len(self.facts) - len(gone) - fewer))
        return sorted(gone)

    def _oldest(self, keys: Iterable[str], n: int) -> list[str]:
        return nsmallest(n, keys, key=lambda key: in_order(self.facts[key]))

    # -- names

    def kind(self, key: str) -> str:
        """What the app said that a name is; empty if nothing."""
        return self._given.get(key, "")

    def is_weak(self, key: str) -> bool:
        """Whether a name may be a mere word: an extractor saw it, but only with the capital of a sentence's beginning.

        "Glad you came" makes a person of Glad; in every chat that was tried, real names soon stand elsewhere too.
        """
        strong = " " in key or key in self._given or key in self._firm or key in self._speakers.values()
        return not strong and not any(key in (rule.key, rule.other_key) for rule in self.rules.values())

    def key_of(self, name: str) -> str | None:
        """The key of a name; a common word is a name only where somebody is called so."""
        key = name_key(name, given=True)
        known = key in self.names or key in self._given or key in self._speakers.values()
        return key if known else name_key(name)

    def find(self, text: str) -> list[Found]:
        """Known names in a text."""
        return self._forms.find(text)

    def _refresh_forms(self) -> None:
        """The forms from the beginning: names that are gone are not looked for."""
        rules = [pair for rule in self.rules.values() for pair in ((rule.name, rule.key), (rule.other, rule.other_key))]
        given = [(form, key) for form in self._vocabulary if (key := name_key(form, given=True))]
        seen = [(display_form(row.surface), row.key) for row in self.facts.values()]
        self._forms.start_over([*given, *rules, *self._speakers.items(), *seen])

    def _compare(self, key: str) -> None:
        """Finds the names that a new one is near to, once."""
        if key in self._near:
            return
        near = self._near[key] = {}
        marks = {key[0], *key.split()}  # two names that share neither are far apart
        for other in set[str]().union(*(self._like.get(mark, ()) for mark in marks)):
            if kind := relation(key, other):
                near[other] = self._near[other][key] = kind
        for mark in marks:
            self._like.setdefault(mark, set()).add(key)

    # -- entities

    @property
    def groups(self) -> Groups:
        """Names as entities."""
        if self._groups is None:
            names: dict[str, Mapping[str, object]] = dict(self.names)
            votes = dict(self._votes)
            for key, kind in self._given.items():
                if kind and key in names:
                    votes[key] = Counter({kind: 10**9})  # the app knows best
            self._groups = fold_names(names, votes, self._near, list(self.rules.values()), self._firm)
        return self._groups

    def roots(self, key: str) -> list[str]:
        """The entities that a name means."""
        return self.groups.roots_of(key)

    def full_names(self, key: str) -> list[str]:
        """The one entity in whose name a word stands ("Blake" of "Katherine Blake"); none if there are several."""
        found = {root for other in self.names if key in other.split() for root in self.groups.roots_of(other)}
        return list(found) if len(found) == 1 else []

    def other_half(self, root: str) -> str | None:
        """The only other entity that has a word of this one for a name, or the other way round; it may be the same.

        "Marta" of one session may be the "Marta Vidal" of another. Both are told apart in what is shown.
        """
        near = [other for other in self.groups.maybe.get(root, ()) if _is_part(root, other) or _is_part(other, root)]
        return near[0] if len(near) == 1 else None

    def respelled(self, text: str) -> list[str]:
        """Known names that stand in a text with other spaces or another doubled letter: "harison", "lang chain"."""
        words = fold_text(text).split()[:WORDS]
        found: dict[str, None] = {}
        for part in dict.fromkeys([*words, *map(" ".join, pairwise(words))]):
            if len(part) > MOST_SHORT and part not in self.names and not is_ordinary(part):
                like = sorted(self._like.get(part[0], ()))
                found.update(dict.fromkeys(k for k in like if k in self.names and relation(part, k) == "same"))
        return list(found)

    def rows(self, root: str, now: datetime) -> dict[str, FactRow]:
        """The facts of an entity that have not expired, oldest first, with their keys in the store."""
        parts = self.groups.parts.get(root, [])
        found = [(key, self.facts[key]) for name, session in parts for key in self.names[name][session]]
        live = [(key, row) for key, row in found if row.expires_at is None or row.expires_at > now]
        once: dict[str, tuple[str, FactRow]] = {}  # two who store a session's first turn at once each draw a generation
        for key, row in sorted(live, key=lambda pair: in_order(pair[1])):
            once.setdefault(id_in(key), (key, row))
        return dict(once.values())

    def description(self, root: str, keys: Iterable[str]) -> DescriptionRow | None:
        """What a model said of an entity; None unless every fact that it was made of is among these."""
        ids = set(map(id_in, keys))
        mine = [d for d in self.descriptions.values() if root in self.groups.roots_of(d.key) and ids >= set(d.facts)]
        return max(mine, key=lambda d: (d.at, d.text), default=None)

    def drop_descriptions(self) -> list[str]:
        """Takes out descriptions that rest on facts which are gone; returns their keys."""
        ids = set(map(id_in, self.facts)) if self.descriptions else set[str]()
        stale = [key for key, d in self.descriptions.items() if not ids >= set(d.facts)]
        for key in stale:
            del self.descriptions[key]
        return stale


def _is_firm(row: FactRow) -> bool:
    """Whether an extractor saw a name as a name where a common word has no capital letter."""
    first = row.surface[:1]
    if not row.label or first.islower():
        return False
    before = row.text.partition(row.surface)[0]
    return not first.isupper() or any(char.isalnum() for char in before)


def _is_part(short: str, full: str) -> bool:
    return " " not in short and short in full.split()
