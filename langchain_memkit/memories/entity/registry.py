"""The entities of one user: surface forms, which of them are one, facts."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from langchain_memkit.matching.fuzzy import KeyFinder, NameMatch
from langchain_memkit.matching.names import (
    PERSON,
    PLACES,
    Links,
    display_form,
    is_common_word,
    name_key,
    parts_of,
    relation,
)
from langchain_memkit.matching.normalize import fold_text
from langchain_memkit.memories.entity.rows import DescriptionRow, FactRow, ResolutionRule, id_in
from langchain_memkit.stores.changes import Place

NEVER = datetime.max.replace(tzinfo=UTC)
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

    def holds(self, form: str) -> bool:
        """Return whether a surface form, or a key, is in the index."""
        return form in self._forms or form in self._recent

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


def forms_of(surface: str, key: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the forms under which a name is found again, each with its key; of a person the parts of the name too.

    Example:
        >>> list(forms_of("Anna Keller", "anna keller", "PERSON"))
        [('Anna Keller', 'anna keller'), ('Anna', 'anna'), ('Keller', 'keller')]
    """
    form = display_form(surface)
    yield form, key
    if kind == PERSON:
        for part in parts_of(form):
            if part_key := name_key(part, given=True):
                yield part, part_key


@dataclass(slots=True)
class EntityClusters:
    """Names resolved to entities. An entity is identified by its *root*, the alphabetically first of its name keys."""

    # the root of each name
    root: dict[str, str] = field(default_factory=dict)
    # the keys of the facts of each root, oldest first
    parts: dict[str, list[str]] = field(default_factory=dict)
    # for words with which longer names begin or end, these names
    longer: dict[str, list[str]] = field(default_factory=dict)
    # when each name was first said, in each session and ("") in any
    since: dict[tuple[str, str], datetime] = field(default_factory=dict)
    # for each root, the other roots that may be the same entity
    maybe: dict[str, set[str]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)  # display name of a root, where a person decided it
    kinds: dict[str, str] = field(default_factory=dict)  # type of each root, by majority vote
    apart: list[tuple[str, str]] = field(default_factory=list)  # names that a person split

    def barred(self, a: str, b: str) -> bool:
        """Return whether a person said that two names are of different entities."""
        ends = {self.root.get(a, a), self.root.get(b, b)}
        return any({self.root[x], self.root[y]} == ends for x, y in self.apart)

    def wholes(self, key: str) -> list[str]:
        """Return the names that a name may be short for: those with most words that begin or end with it."""
        names = [name for name in self.longer.get(key, ()) if not self.barred(key, name)]
        return [name for name in names if not set(names).intersection(self.longer.get(name, ()))]

    def owner(self, row: FactRow) -> str:
        """Return the root of the entity that a fact is about.

        "Anna" is "Anna Keller" if that is the only full name of a person to begin or end so that had been said by then:
        in this session, or if there was none, in any; if there was none either, the first one that came later. What a
        person decided, and the name of a place, stays.
        """
        own = self.root[row.key]
        people = [name for name in self.wholes(row.key) if self.kinds.get(self.root[name]) == PERSON]
        if self.kinds.get(own) in PLACES or any(self.root[name] == own for name in people):
            return own
        here = [name for name in people if self.since.get((name, row.session), NEVER) <= row.at]
        before = [name for name in people if self.since[name, ""] <= row.at]
        later = sorted(people, key=lambda name: (self.since[name, ""], name))[:1]
        roots = {self.root[name] for name in here or before or later}
        return roots.pop() if len(roots) == 1 else own

    def called(self, key: str) -> list[str]:
        """Return the roots of all entities that a name may mean.

        These are its own, those of names that it is short for, and those of names that can only be short for it.
        """
        own = [key] if self.root.get(key) in self.parts else []
        names = dict.fromkeys([*own, *self.wholes(key)])
        for name in list(names):
            for part in parts_of(name):
                if part in self.root and {self.root[whole] for whole in self.wholes(part)} == {self.root[name]}:
                    names[part] = None
        return [root for root in dict.fromkeys(self.root[name] for name in names) if root in self.parts]


def resolve_entities(
    facts: Mapping[str, FactRow], votes: Mapping[str, Counter[str]], near: Links, rules: Sequence[ResolutionRule]
) -> EntityClusters:
    """Resolve names to entities, and facts to these.

    Rules of people come first, the latest before the others; then spellings with the same letters. What is only similar
    is listed as possible duplicates.
    """
    groups = EntityClusters()
    for row in facts.values():
        for place in ((row.key, row.session), (row.key, "")):
            groups.since[place] = min(row.at, groups.since.get(place, row.at))
    names = dict.fromkeys(name for name, _ in groups.since)
    for name in names:
        for part in parts_of(name):
            groups.longer.setdefault(part, []).append(name)
    # In alphabetical order, so that every process resolves the same rows alike.
    pairs = sorted((a, b) for a in names for b in near.get(a, ()) if a < b and b in names)
    root = groups.root = {name: name for name in (*names, *(key for r in rules for key in (r.key, r.other_key)))}
    _join(groups, [pair for pair in pairs if near[pair[0]][pair[1]] == "same"], rules)
    totals: dict[str, Counter[str]] = {}
    for name in names:
        totals.setdefault(root[name], Counter()).update(votes[name])
    groups.kinds = {entity: majority_kind(count) for entity, count in totals.items()}
    for key, row in sorted(facts.items(), key=lambda pair: fact_order(pair[1])):
        groups.parts.setdefault(groups.owner(row), []).append(key)
    for a, b in pairs:
        first, second = root[a], root[b]
        if first != second and not groups.barred(a, b) and {first, second} <= groups.parts.keys():
            groups.maybe.setdefault(first, set()).add(second)
            groups.maybe.setdefault(second, set()).add(first)
    return groups


def _join(groups: EntityClusters, same: Iterable[tuple[str, str]], rules: Sequence[ResolutionRule]) -> None:
    """Give the same root to names that are one, by rules of people or by spelling."""
    root, members = groups.root, {name: [name] for name in groups.root}

    def join(a: str, b: str) -> None:
        first, last = sorted((root[a], root[b]))
        if first != last and not groups.barred(first, last):
            members[first] += members[last]
            root.update(dict.fromkeys(members.pop(last), first))

    # Newest first: a join cannot be undone and a bar is never lifted here, so the first rule applied to a pair decides.
    for rule in reversed(rules):
        if rule.kind != "split":
            join(rule.key, rule.other_key)
        elif root[rule.key] != root[rule.other_key]:  # else a later decision says that they are one
            groups.apart.append((rule.key, rule.other_key))
    for a, b in same:
        join(a, b)
    for rule in rules:
        if rule.kind != "split" and root[rule.key] == root[rule.other_key]:
            groups.shown[root[rule.key]] = rule.other


def majority_kind(votes: Counter[str]) -> str:
    """Return the type with the most votes; the alphabetically first of a tie, empty without votes."""
    return min(filter(None, votes), key=lambda kind: (-votes[kind], kind), default="")


WORDS = 200  # of a question are compared with misspelt names
MOST_SHORT = 4  # letters: shorter names have one spelling
ROLES = frozenset({"agent", "ai", "assistant", "bot", "human", "model", "system", "tool", "user"})


def fact_order(row: FactRow) -> tuple[datetime, str, int, str]:
    """Return the sort key of a fact: by time, with ties broken the same way for every reader."""
    return row.at, row.message, row.start, row.text


class FactTexts(dict[str, tuple[str, frozenset[str]]]):
    """For each sentence: what equal ones have in common, and its words."""

    def __missing__(self, text: str) -> tuple[str, frozenset[str]]:
        """Read a sentence when it is first asked for."""
        said, words = " ".join(text.split()).casefold().lstrip("> "), frozenset(fold_text(text).split())
        self[text] = said, words
        return self[text]


class EntityRegistry:
    """All facts of one user, indexed by name. Not thread-safe: `EntityLog` guards it with a lock.

    Entities, surface forms and near names are derived from the rows; the derived parts that a change affects are
    dropped and computed again when they are next needed. `vocabulary` holds the names that the app passed as `names=`,
    each with its type, which is empty if none was given.
    """

    def __init__(self, vocabulary: Mapping[str, str]) -> None:
        self.facts: dict[str, FactRow] = {}
        self.texts = FactTexts()
        self.rules: list[ResolutionRule] = []
        self.descriptions: dict[Place, list[DescriptionRow]] = {}
        self.names: dict[str, Counter[str]] = {}  # the types in the facts of each name; empty where nobody told it
        self._vocabulary = vocabulary
        self._given = {key: kind for form, kind in vocabulary.items() if (key := name_key(form, given=True))}
        self._speakers: dict[str, str] = {}  # keys by name
        self._turns_of: Counter[str] = Counter()  # of each speaker
        self._firm: Counter[str] = Counter()
        self._near: Links = {}
        self._like: dict[str, set[str]] = {}
        self._groups: EntityClusters | None = None
        self.forms = SurfaceFormIndex()
        self._refresh_forms()

    # -- what is in it

    def add(self, key: str, row: FactRow) -> None:
        """Add a fact under its key; do nothing if the key is known."""
        if key in self.facts:
            return
        self.facts[key] = row
        self._compare(row.key)
        votes = self.names.setdefault(row.key, Counter())
        before = majority_kind(votes)
        votes[row.label] += 1
        # The groups are made again only if this fact can change them: by a name that is new (in its session, or so
        # early) or by a new majority type. Resolving all names again for each fact would make saves slow.
        groups = self._groups
        since = groups.since.get((row.key, row.session), NEVER) if groups else NEVER
        if groups and since <= row.at and majority_kind(votes) == before:
            keys = groups.parts.setdefault(groups.owner(row), [])
            insort(keys, key, key=lambda each: fact_order(self.facts[each]))
        else:
            self._groups = None
        for form, name in forms_of(row.surface, row.key, row.label):
            self.forms.add(form, name)
            self._firm[name] += _is_firm(row)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove facts by key; unknown keys are ignored."""
        gone = False
        for key in keys:
            row = self.facts.pop(key, None)
            if row is None:
                continue
            self._groups = None
            self.texts.pop(row.text, None)
            self.names[row.key] -= Counter((row.label,))
            for _, name in forms_of(row.surface, row.key, row.label):
                self._firm[name] -= _is_firm(row)
            if not self.names[row.key]:
                del self.names[row.key]
                gone = True
        if gone:
            self._refresh_forms()

    def change_rules(self, rules: list[ResolutionRule]) -> None:
        """Replace all rules (merges, splits, renames) by these, oldest first."""
        if rules != self.rules:
            self.rules = rules
            self._groups = None
            self._refresh_forms()

    def add_speakers(self, speakers: Mapping[str, str]) -> None:
        """Register the speakers of a turn, as `speaker_names` returns them, so that they are found in texts."""
        self._turns_of.update(speakers.keys())
        for speaker, key in speakers.items():
            self._speakers[speaker] = key
            self.forms.add(speaker, key)

    def remove_speakers(self, speakers: Iterable[str]) -> None:
        """Take the speakers of a turn out again; those who spoke in no other turn are no longer found."""
        self._turns_of.subtract(speakers)
        gone = [speaker for speaker in speakers if self._turns_of[speaker] <= 0]
        for speaker in gone:
            del self._turns_of[speaker]
            del self._speakers[speaker]
        if gone:
            self._refresh_forms()

    # -- names

    def kind(self, key: str) -> str:
        """Return the type that the app gave for a name; empty if it gave none."""
        return self._given.get(key, "")

    def usual_kind(self, key: str) -> str:
        """Return the type that a name has in most facts, or that the app gave; empty if nobody told it."""
        return self.kind(key) or majority_kind(self.names.get(key, Counter()))

    def is_weak(self, key: str) -> bool:
        """Return whether a name may be a mere word, seen only at the beginning of sentences.

        There any word is capitalized: in "Glad you came" an extractor may take Glad for a person. A real name soon
        appears elsewhere in a chat as well. Names of several words, speakers, names from the app and names in a rule
        are never weak.
        """
        strong = " " in key or key in self._given or self._firm[key] or key in self._speakers.values()
        return not strong and not any(key in (rule.key, rule.other_key) for rule in self.rules)

    def key_of(self, name: str) -> str | None:
        """Return the key of a name, or None; a common word counts as a name only if it is known as one."""
        key = name_key(name, given=True)
        return key if key and self.forms.holds(key) else name_key(name)

    def _refresh_forms(self) -> None:
        """Rebuild the surface forms from all rows, so that names that are gone are no longer found."""
        rules = [pair for rule in self.rules for pair in ((rule.name, rule.key), (rule.other, rule.other_key))]
        pairs = [*rules, *self._speakers.items()]
        for form, kind in self._vocabulary.items():
            pairs += forms_of(form, str(name_key(form, given=True)), kind)
        for row in self.facts.values():
            pairs += forms_of(row.surface, row.key, row.label)
        self.forms.reset(pairs)

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
            given = {key: Counter({kind: 10**9}) for key, kind in self._given.items() if kind}  # outvotes all others
            votes = {**self.names, **given}
            self._groups = resolve_entities(self.facts, votes, self._near, self.rules)
        return self._groups

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

    def asked(self, keys: Iterable[str], text: str) -> list[str]:
        """Return the entities that these names, or other spellings in a text, may mean."""
        names = [*keys, *self.respelled(text)]
        return list(dict.fromkeys(root for name in names for root in self.groups.called(name)))

    def rows(self, roots: Sequence[str], most: int | None = None) -> dict[str, FactRow]:
        """Return the facts of entities by key, oldest first; of each entity the newest, at most so many."""
        parts = [self.groups.parts.get(root, []) for root in roots]
        found = [(key, self.facts[key]) for keys in parts for key in (keys if most is None else keys[-most:])]
        if len(roots) > 1:
            found.sort(key=lambda pair: fact_order(pair[1]))
        # A sentence is shown once: it may name an entity twice, as "Anna Keller" and "Anna", or two entities.
        once: dict[tuple[str, str, str], tuple[str, FactRow]] = {}
        for key, row in found:
            once.setdefault((row.session, row.message, row.text), (key, row))
        return dict(once.values())

    def description(self, root: str, keys: Iterable[str]) -> DescriptionRow | None:
        """Return the newest description of an entity; None unless all facts behind it are among these keys."""
        if not self.descriptions:
            return None
        ids = set(map(id_in, keys))
        told = (each for made in self.descriptions.values() for each in made)
        mine = [d for d in told if self.groups.root.get(d.key) == root and ids >= set(d.facts)]
        return max(mine, key=lambda d: (d.at, d.text), default=None)


def speaker_names(messages: Iterable[FactRow]) -> dict[str, str]:
    """Return the names of those who speak, with their keys; roles ("user") are no names."""
    keys = {message.speaker: name_key(message.speaker, given=True) for message in messages if message.speaker}
    return {speaker: key for speaker, key in keys.items() if key and key not in ROLES}


def _is_firm(row: FactRow) -> bool:
    """Return whether the name stands where a common word would not be capitalized, i.e. inside a sentence."""
    before, found, _ = row.text.partition(row.surface)
    return bool(found) and not row.surface[:1].islower() and any(map(str.isalnum, before))
