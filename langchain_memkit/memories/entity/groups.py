"""Entity resolution: which names mean one entity. Pure.

It is computed from all rows at once, so the order in which they were stored does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from langchain_memkit.matching.names import PERSON, Relation, compatible
from langchain_memkit.memories.entity.rows import Rule

__all__ = ["Groups", "fold_names"]

Names = Mapping[str, Mapping[str, object]]
"""Name keys, each with the sessions in which it stands."""


@dataclass(slots=True)
class Groups:
    """Names resolved to entities. An entity is identified by its *root*, the alphabetically first of its name keys.

    Attributes:
        root: The root of each name.
        moved: Root of a full name by (short name, session), where the short name can only mean that full name.
        parts: The (name, session) pairs whose facts belong to each root.
        maybe: For each root, the other roots that may be the same entity.
        shown: Display name of a root, where a person decided it.
        kinds: Type of each root, by majority vote.
    """

    root: dict[str, str] = field(default_factory=dict)
    moved: dict[tuple[str, str], str] = field(default_factory=dict)
    parts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    maybe: dict[str, set[str]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def roots_of(self, key: str) -> list[str]:
        """Return every root that a name stands for: its own first, then those it was moved to in some session."""
        own = self.root.get(key)
        if own is None:
            return []
        return list(dict.fromkeys([own, *(root for (name, _), root in self.moved.items() if name == key)]))


class _Union:
    """Union-find over name keys, with pairs that must never be joined."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}
        self.apart: list[tuple[str, str]] = []

    def find(self, name: str) -> str:
        parent = self.parent.setdefault(name, name)
        while parent != name:
            # Path halving keeps the trees flat.
            self.parent[name] = self.parent[parent]
            name, parent = parent, self.parent[parent]
        return name

    def barred(self, a: str, b: str) -> bool:
        ends = {self.find(a), self.find(b)}
        return any({self.find(x), self.find(y)} == ends for x, y in self.apart)

    def join(self, a: str, b: str) -> None:
        first, last = sorted((self.find(a), self.find(b)))
        if first != last and not self.barred(first, last):
            self.parent[last] = first


def fold_names(
    names: Names,
    votes: Mapping[str, Counter[str]],
    near: Mapping[str, Mapping[str, Relation]],
    rules: Sequence[Rule],
    firm: Container[str],
) -> Groups:
    """Resolve names to entities.

    Rules of people come first, the latest before the others; then spellings with the same letters; then very similar
    names that are no person's. What is only similar is listed as possible duplicates.

    Args:
        names: Every name with its sessions.
        votes: For each name, how often it was labelled with which type.
        near: For each name, the related names.
        rules: Decisions of people, oldest first; a later one wins.
        firm: Names that were seen elsewhere than at the beginning of a sentence.
    """
    union = _Union()
    for name in names:
        union.find(name)
    # Newest first: a join cannot be undone and a bar is never lifted here, so the first rule applied to a pair decides.
    for rule in reversed(rules):
        if rule.kind != "split":
            union.join(rule.key, rule.other_key)
        elif union.find(rule.key) != union.find(rule.other_key):  # else a later decision says that they are one
            union.apart.append((rule.key, rule.other_key))
    kinds = {name: winner(count) for name, count in votes.items()}
    pairs = [(kind, a, b) for a, others in near.items() if a in names for b, kind in others.items() if a < b]
    pairs = [pair for pair in pairs if pair[2] in names]
    # "same" pairs before "close" ones and in alphabetical order, so that every process resolves the same rows alike.
    for kind, a, b in sorted((p for p in pairs if p[0] != "near"), key=lambda p: (p[0] != "same", *p)):
        ours = kinds.get(a, ""), kinds.get(b, "")
        # People are joined by "same" spellings only: names that are merely similar may well be two people.
        if kind == "same" or (PERSON not in ours and compatible(*ours)):
            union.join(a, b)
    groups = Groups({name: union.find(name) for name in union.parent})
    totals: dict[str, Counter[str]] = {}
    for name, count in votes.items():
        if name in names:
            totals.setdefault(groups.root[name], Counter()).update(count)
    groups.kinds = {root: winner(count) for root, count in totals.items()}
    groups.moved = _moved(names, groups, union, firm)
    _fill(groups, names, pairs, union, rules)
    return groups


def winner(votes: Counter[str]) -> str:
    """Return the type with the most votes; the alphabetically first of a tie, empty without votes."""
    return min(votes, key=lambda kind: (-votes[kind], kind)) if votes else ""


def _moved(names: Names, groups: Groups, union: _Union, firm: Container[str]) -> dict[tuple[str, str], str]:
    """Find first or last names that occur in a session together with exactly one full name of a person."""
    found: dict[tuple[str, str], set[str]] = {}
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
                    found.setdefault((word, session), set()).add(root)
    # In a session with two people called Priya it is unknown which one is meant: the short name keeps its facts.
    one = {place: next(iter(roots)) for place, roots in found.items() if len(roots) == 1}
    return {place: root for place, root in one.items() if not union.barred(place[0], root)}


def _fill(
    groups: Groups, names: Names, pairs: Sequence[tuple[str, str, str]], union: _Union, rules: Sequence[Rule]
) -> None:
    for name, sessions in names.items():
        for session in sessions:
            root = groups.moved.get((name, session), groups.root[name])
            groups.parts.setdefault(root, []).append((name, session))
    for _, a, b in pairs:
        first, second = groups.root[a], groups.root[b]
        if first != second and not union.barred(a, b) and first in groups.parts and second in groups.parts:
            groups.maybe.setdefault(first, set()).add(second)
            groups.maybe.setdefault(second, set()).add(first)
    for rule in rules:
        if rule.kind != "split" and groups.root[rule.key] == groups.root[rule.other_key]:
            groups.shown[groups.root[rule.key]] = rule.other
