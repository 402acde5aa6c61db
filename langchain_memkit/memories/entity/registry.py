"""The entities of one user: surface forms, which of them are one, facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nsmallest
from itertools import pairwise
from typing import NamedTuple

from langchain_memkit.matching.fuzzy import KeyFinder, NameMatch
from langchain_memkit.matching.names import PERSON, Links, compatible, display_form, is_common_word, name_key, relation
from langchain_memkit.matching.normalize import fold_text
from langchain_memkit.memories.entity.rows import DescriptionRow, EntityKeys, FactRow, ResolutionRule, id_in

RECENT = 64  # forms in the small index, which is rebuilt whenever one is added


class SurfaceFormIndex:
    """Surface forms with the name keys that they stand for, searched in one pass over a text.

    Two automata are kept: a large one that is rebuilt rarely, and a small one for the forms added last. Adding a name
    therefore rebuilds at most 64 forms, not the whole index.
    """

    def __init__(self) -> None:
        self._forms: dict[str, str] = {}
        self._recent: dict[str, str] = {}
        self._big: KeyFinder | None = None
        self._small: KeyFinder | None = None

    def find(self, text: str) -> list[NameMatch]:
        """Find the known names in a text; overlapping ones from the two automata are all returned."""
        self._big = self._big or KeyFinder(self._forms)
        self._small = self._small or KeyFinder(self._recent)
        return self._big.find(text) + (self._small.find(text) if self._recent else [])

    def add(self, form: str, key: str) -> None:
        """Add a surface form and the key itself to the index."""
        for name in (form, key):
            if name and name not in self._forms and name not in self._recent:
                self._recent[name] = key
                self._small = None
        # The large automaton is rebuilt by the next search, once for every 64 new forms.
        if len(self._recent) > RECENT:
            self._forms.update(self._recent)
            self._recent, self._big, self._small = {}, None, None

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Replace the whole index by these pairs of surface form and key."""
        self._forms = {name: key for form, key in pairs for name in (form, key) if name}
        self._recent, self._big, self._small = {}, None, None


Names = Mapping[str, Mapping[str, object]]
"""The sessions in which each name occurs, by name key."""


@dataclass(slots=True)
class EntityClusters:
    """Names resolved to entities. An entity is identified by its *root*, the alphabetically first of its name keys."""

    # the root of each name
    root: dict[str, str] = field(default_factory=dict)
    # root of a full name by (short name, session), where the short name can only mean that full name
    moved: dict[tuple[str, str], str] = field(default_factory=dict)
    # the (name, session) pairs whose facts belong to each root
    parts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    # for each root, the other roots that may be the same entity
    maybe: dict[str, set[str]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)  # display name of a root, where a person decided it
    kinds: dict[str, str] = field(default_factory=dict)  # type of each root, by majority vote

    def roots_of(self, key: str) -> list[str]:
        """Return every root that a name stands for: its own first, then those it was moved to in some session."""
        own = self.root.get(key)
        if own is None:
            return []
        return list(dict.fromkeys([own, *(root for (name, _), root in self.moved.items() if name == key)]))


def resolve_entities(
    names: Names, votes: Mapping[str, Counter[str]], near: Links, rules: Sequence[ResolutionRule], firm: Container[str]
) -> EntityClusters:
    """Resolve names to entities.

    Rules of people come first, the latest before the others; then spellings with the same letters; then very similar
    names that are no person's. What is only similar is listed as possible duplicates.
    """
    groups = EntityClusters({name: name for name in (*names, *(key for r in rules for key in (r.key, r.other_key)))})
    root, members = groups.root, {name: [name] for name in groups.root}
    apart: list[tuple[str, str]] = []

    def barred(a: str, b: str) -> bool:
        return any({root[x], root[y]} == {root[a], root[b]} for x, y in apart)

    def join(a: str, b: str) -> None:
        first, last = sorted((root[a], root[b]))
        if first != last and not barred(first, last):
            members[first] += members[last]
            root.update(dict.fromkeys(members.pop(last), first))

    # Newest first: a join cannot be undone and a bar is never lifted here, so the first rule applied to a pair decides.
    for rule in reversed(rules):
        if rule.kind != "split":
            join(rule.key, rule.other_key)
        elif root[rule.key] != root[rule.other_key]:  # else a later decision says that they are one
            apart.append((rule.key, rule.other_key))
    kinds = {name: majority_kind(count) for name, count in votes.items()}
    pairs = [(k, a, b) for a, others in near.items() if a in names for b, k in others.items() if a < b and b in names]
    # "same" pairs before "close" ones and in alphabetical order, so that every process resolves the same rows alike.
    for kind, a, b in sorted((p for p in pairs if p[0] != "near"), key=lambda p: (p[0] != "same", *p)):
        ours = kinds.get(a, ""), kinds.get(b, "")
        # People are joined by "same" spellings only: names that are merely similar may well be two people.
        if kind == "same" or (PERSON not in ours and compatible(*ours)):
            join(a, b)
    totals: dict[str, Counter[str]] = {}
    for name, count in votes.items():
        if name in names:
            totals.setdefault(root[name], Counter()).update(count)
    groups.kinds = {entity: majority_kind(count) for entity, count in totals.items()}
    # In a session with two people called Priya it is unknown which one is meant: the short name keeps its facts.
    for (name, session), full in _full_names(names, groups, firm).items():
        if len(full) == 1 and not barred(name, full[0]):
            groups.moved[name, session] = full[0]
    for name, sessions in names.items():
        for session in sessions:
            entity = groups.moved.get((name, session), root[name])
            groups.parts.setdefault(entity, []).append((name, session))
    for _, a, b in pairs:
        first, second = root[a], root[b]
        if first != second and not barred(a, b) and {first, second} <= groups.parts.keys():
            groups.maybe.setdefault(first, set()).add(second)
            groups.maybe.setdefault(second, set()).add(first)
    for rule in rules:
        if rule.kind != "split" and root[rule.key] == root[rule.other_key]:
            groups.shown[root[rule.key]] = rule.other
    return groups


def majority_kind(votes: Counter[str]) -> str:
    """Return the type with the most votes; the alphabetically first of a tie, empty without votes."""
    return min(votes, key=lambda kind: (-votes[kind], kind), default="")


def _full_names(names: Names, groups: EntityClusters, firm: Container[str]) -> dict[tuple[str, str], list[str]]:
    """Return for first or last names in a session the roots of the full names of people in that session."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for full in names:
        words = full.split()
        root = groups.root[full]
        if len(words) == 1 or groups.kinds.get(root) != PERSON:
            continue
        # the last word is used only if the full name was seen inside a sentence: at its beginning it may be "Bravo
        # Joanna"
        for word in {words[0], words[-1] if full in firm else words[0]} & names.keys():
            if groups.root[word] != root and groups.kinds.get(groups.root[word], PERSON) in (PERSON, ""):
                for session in names[full].keys() & names[word].keys():
                    found.setdefault((word, session), {})[root] = None
    return {place: list(roots) for place, roots in found.items()}


ASKED = re.compile(r"[?\uff1f]\W*$")
WORDS = 200  # of a question are compared with misspelt names
MOST_SHORT = 4  # letters: shorter names have one spelling
ROLES = frozenset({"agent", "ai", "assistant", "bot", "human", "model", "system", "tool", "user"})


class Limits(NamedTuple):
    """How many facts are kept per entity (`facts`) and per user (`total`)."""

    facts: int
    total: int


def fact_order(row: FactRow) -> tuple[datetime, str, int, str]:
    """Return the sort key of a fact: by time, with ties broken the same way for every reader."""
    return row.at, row.message, row.start, row.text


class FactTexts(dict[str, tuple[str, bool, frozenset[str]]]):
    """For each sentence: what equal ones have in common, whether it is a question, and its words."""

    def __missing__(self, text: str) -> tuple[str, bool, frozenset[str]]:
        """Read a sentence when it is first asked for."""
        said, words = " ".join(text.split()).casefold().lstrip("> "), frozenset(fold_text(text).split())
        self[text] = said, ASKED.search(text) is not None, words
        return self[text]


class EntityRegistry:
    """All rows of one user, indexed by name. Not thread-safe: `EntityCache` guards it with a lock.

    Entities, surface forms and near names are derived from the rows; the derived parts that a change affects are
    dropped and computed again when they are next needed. `vocabulary` holds the names that the app passed as `names=`,
    each with its type, which is empty if none was given.
    """

    def __init__(self, keys: EntityKeys, vocabulary: Mapping[str, str]) -> None:
        self.keys = keys
        self.versions: frozenset[str] = frozenset()
        self.facts: dict[str, FactRow] = {}
        self.texts = FactTexts()
        self.rules: dict[str, ResolutionRule] = {}
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
        self._near: Links = {}
        self._like: dict[str, set[str]] = {}
        self._groups: EntityClusters | None = None
        self.forms = SurfaceFormIndex()
        self._refresh_forms()

    # -- what is in it

    def add(self, key: str, row: FactRow) -> None:
        """Add a fact under its store key; do nothing if the key is known."""
        if key in self.facts:
            return
        self.facts[key] = row
        sessions = self.names.get(row.key)
        if sessions is None:
            sessions = self.names[row.key] = {}
            self._compare(row.key)
        # The groups are reset only when this fact can change them: a new name or session, a new majority type, or the
        # first sighting of a name in the middle of a sentence. Resolving all names again for each fact would make saves
        # slow.
        if row.session not in sessions:
            sessions[row.session] = set()
            self._groups = None
        sessions[row.session].add(key)
        if row.expires_at:
            self._expiring.add(key)
        if row.label:
            votes = self._votes.setdefault(row.key, Counter())
            before = majority_kind(votes)
            votes[row.label] += 1
            if majority_kind(votes) != before:
                self._groups = None
        if _is_firm(row):
            # A name that is firm for the first time may be the full name that a short one is moved to.
            self._groups = self._groups if row.key in self._firm else None
            self._firm[row.key] += 1
        self.forms.add(display_form(row.surface), row.key)
        self.add_speaker(row.speaker)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove facts by store key; unknown keys are ignored."""
        gone = False
        for key in keys:
            row = self.facts.pop(key, None)
            if row is None:
                continue
            self._groups = None
            self.texts.pop(row.text, None)
            self._expiring.discard(key)
            if _is_firm(row):
                self._firm -= Counter((row.key,))
            stored = self.names[row.key][row.session]
            stored.discard(key)
            if row.label:
                self._votes[row.key] -= Counter((row.label,))
            if not stored:
                del self.names[row.key][row.session]
            if not self.names[row.key]:
                del self.names[row.key]
                gone = True
        if gone:
            self._refresh_forms()

    def change_rules(self, rules: dict[str, ResolutionRule]) -> None:
        """Replace all rules (merges, splits, renames) by these."""
        if rules != self.rules:
            self.rules = dict(sorted(rules.items()))
            self._groups = None
            self._refresh_forms()

    def add_speaker(self, speaker: str) -> None:
        """Register the name of a speaker, so that it is found in texts; roles ("user") are no names."""
        if speaker and speaker not in self._speakers and (key := name_key(speaker, given=True)) and key not in ROLES:
            self._speakers[speaker] = key
            self.forms.add(speaker, key)

    def contains(self, row: FactRow, besides: Collection[str] = ()) -> bool:
        """Return whether the fact is stored in any live generation of its session, under a key not in `besides`."""
        stored = (self.keys.fact(g, row) for g in self.generations.get(row.session, ()))
        return any(key in self.facts and key not in besides for key in stored)

    def of_session(self, session: str) -> list[str]:
        """Return the store keys of all facts of a session."""
        return [key for sessions in self.names.values() for key in sessions.get(session, ())]

    def expired(self, now: datetime) -> list[str]:
        """Return the store keys of facts that have expired by `now`."""
        return [key for key in self._expiring if (end := self.facts[key].expires_at) and end <= now]

    def surplus(self, limits: Limits, now: datetime) -> list[str]:
        """Return the store keys of facts to delete: expired ones, and the oldest of those over the limits."""
        # evict 5% more than needed: at the limit every further turn would have to search for the oldest facts again
        gone = set(self.expired(now))
        # So few facts cannot exceed either limit; this saves resolving the entities in most turns.
        if len(self.facts) - len(gone) <= min(limits):
            return sorted(gone)
        for parts in self.groups.parts.values():
            if sum(len(self.names[name][session]) for name, session in parts) > limits.facts:
                found = [key for name, session in parts for key in self.names[name][session] if key not in gone]
                if len(found) > limits.facts:  # not by expired facts alone
                    gone.update(self._oldest(found, len(found) - limits.facts + limits.facts // 20))
        if len(self.facts) - len(gone) > limits.total:
            fewer = limits.total - limits.total // 20
            gone.update(self._oldest(self.facts.keys() - gone, len(self.facts) - len(gone) - fewer))
        return sorted(gone)

    def _oldest(self, keys: Iterable[str], n: int) -> list[str]:
        return nsmallest(n, keys, key=lambda key: fact_order(self.facts[key]))

    # -- names

    def kind(self, key: str) -> str:
        """Return the type that the app gave for a name; empty if it gave none."""
        return self._given.get(key, "")

    def is_weak(self, key: str) -> bool:
        """Return whether a name may be a mere word, seen only at the beginning of sentences.

        There any word is capitalized: in "Glad you came" an extractor may take Glad for a person. A real name soon
        appears elsewhere in a chat as well. Names of several words, speakers, names from the app and names in a rule
        are never weak.
        """
        strong = " " in key or key in self._given or key in self._firm or key in self._speakers.values()
        return not strong and not any(key in (rule.key, rule.other_key) for rule in self.rules.values())

    def key_of(self, name: str) -> str | None:
        """Return the key of a name, or None; a common word counts as a name only if it is known as one."""
        key = name_key(name, given=True)
        known = key in self.names or key in self._given or key in self._speakers.values()
        return key if known else name_key(name)

    def _refresh_forms(self) -> None:
        """Rebuild the surface forms from all rows, so that names that are gone are no longer found."""
        rules = [pair for rule in self.rules.values() for pair in ((rule.name, rule.key), (rule.other, rule.other_key))]
        given = [(form, key) for form in self._vocabulary if (key := name_key(form, given=True))]
        seen = [(display_form(row.surface), row.key) for row in self.facts.values()]
        self.forms.reset([*given, *rules, *self._speakers.items(), *seen])

    def _compare(self, key: str) -> None:
        """Relate a new name to every known name that is near to it; done once per name."""
        if key in self._near:
            return
        near = self._near[key] = {}
        marks = {key[0], *key.split()}  # blocking keys: `relation` is None for two names that share none of these
        for other in set[str]().union(*(self._like.get(mark, ()) for mark in marks)):
            if kind := relation(key, other):
                near[other] = self._near[other][key] = kind
        for mark in marks:
            self._like.setdefault(mark, set()).add(key)

    # -- entities

    @property
    def groups(self) -> EntityClusters:
        """Return all names resolved to entities; computed when first needed after a change."""
        if self._groups is None:
            votes = dict(self._votes)
            for key, kind in self._given.items():
                if kind and key in self.names:
                    votes[key] = Counter({kind: 10**9})  # the app's type outvotes every extractor
            self._groups = resolve_entities(self.names, votes, self._near, list(self.rules.values()), self._firm)
        return self._groups

    def full_names(self, key: str) -> list[str]:
        """Return the one entity whose name contains this word; `[]` if there are several.

        "Blake" finds "Katherine Blake" while nobody else is called Blake.
        """
        found = {root for other in self.names if key in other.split() for root in self.groups.roots_of(other)}
        return list(found) if len(found) == 1 else []

    def other_half(self, root: str) -> str | None:
        """Return the only other entity whose name is a word of this one's, or contains it: maybe the same.

        "Marta" of one session may be the "Marta Vidal" of another: both are recalled, each under its own name. None if
        there is no such entity, or more than one.
        """
        near = [other for other in self.groups.maybe.get(root, ()) if _is_part(root, other) or _is_part(other, root)]
        return near[0] if len(near) == 1 else None

    def respelled(self, text: str) -> list[str]:
        """Return known names that are spelled with other spaces or another doubled letter in a text.

        "harison" finds Harrison, "lang chain" LangChain. The first 200 words are read.
        """
        words = fold_text(text).split()[:WORDS]
        found: dict[str, None] = {}
        for part in dict.fromkeys([*words, *map(" ".join, pairwise(words))]):
            if len(part) > MOST_SHORT and part not in self.names and not is_common_word(part):
                # Names that are the "same" begin with the same letter, so only those are compared.
                like = sorted(self._like.get(part[0], ()))
                found.update(dict.fromkeys(k for k in like if k in self.names and relation(part, k) == "same"))
        return list(found)

    def rows(self, root: str, now: datetime) -> dict[str, FactRow]:
        """Return the unexpired facts of an entity by store key, oldest first."""
        parts = self.groups.parts.get(root, [])
        found = [(key, self.facts[key]) for name, session in parts for key in self.names[name][session]]
        live = [(key, row) for key, row in found if row.expires_at is None or row.expires_at > now]
        # Deduplicate over generations: two processes that save a session's first turn at once each draw one, so the
        # same fact may be stored under both.
        once: dict[str, tuple[str, FactRow]] = {}
        for key, row in sorted(live, key=lambda pair: fact_order(pair[1])):
            once.setdefault(id_in(key), (key, row))
        return dict(once.values())

    def description(self, root: str, keys: Iterable[str]) -> DescriptionRow | None:
        """Return the newest description of an entity; None unless all facts behind it are among these store keys."""
        ids = set(map(id_in, keys))
        mine = [d for d in self.descriptions.values() if root in self.groups.roots_of(d.key) and ids >= set(d.facts)]
        return max(mine, key=lambda d: (d.at, d.text), default=None)

    def drop_descriptions(self) -> list[str]:
        """Remove descriptions that were made from facts that are gone, and return their store keys."""
        ids = set(map(id_in, self.facts)) if self.descriptions else set[str]()
        stale = [key for key, d in self.descriptions.items() if not ids >= set(d.facts)]
        for key in stale:
            del self.descriptions[key]
        return stale


def _is_firm(row: FactRow) -> bool:
    """Return whether an extractor saw the name where a common word would not be capitalized, i.e. inside a sentence."""
    first = row.surface[:1]
    if not row.label or first.islower():
        return False
    return not first.isupper() or any(char.isalnum() for char in row.text.partition(row.surface)[0])


def _is_part(short: str, full: str) -> bool:
    return " " not in short and short in full.split()
