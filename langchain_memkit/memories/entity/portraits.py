"""Build the `Entity` objects that people see from a registry. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from datetime import datetime

from langchain_memkit.matching.names import display_form
from langchain_memkit.memories.entity.book import Book, Limits
from langchain_memkit.memories.entity.listing import Entity, EntityList, Fact
from langchain_memkit.memories.entity.rows import FactRow

__all__ = ["called", "list_entities"]


def called(book: Book, root: str) -> tuple[str, list[str]]:
    """Return the display name of an entity, and its other spellings, the most frequent first."""
    groups = book.groups
    spellings: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for name, session in groups.parts.get(root, ()):
        for key in book.names[name][session]:
            form = display_form(book.facts[key].surface) or name
            spellings[form] += 1
            own[form] += groups.root[name] == root  # short names that were moved here never become the display name
    spellings.update({rule.name: 0 for rule in book.rules.values() if groups.shown.get(root) == rule.other})
    # A person's decision comes first; else a spelling with capitals, of these the most frequent, then one that is not
    # all capitals, then the longest.
    best = groups.shown.get(root) or max(own, key=lambda form: _quality(form, own[form]), default=root)
    others = sorted(spellings, key=lambda form: (-spellings[form], form))
    return best, [form for form in others if form != best]


def list_entities(book: Book, limits: Limits, now: datetime, gone: Container[tuple[str, str]] = ()) -> EntityList:
    """List all entities of a registry, the last mentioned first, without facts of messages that no longer exist.

    Args:
        book: The user's registry.
        limits: At most `limits.facts` facts per entity are listed, the newest.
        now: Facts that have expired by then are left out.
        gone: (session, message id) of messages that were erased.
    """
    found = []
    for root in book.groups.parts:
        rows = {k: row for k, row in book.rows(root, now).items() if (row.session, row.message) not in gone}
        if rows:
            found.append(_entity(book, root, rows, limits))
    found.sort(key=lambda entity: entity.name)
    return EntityList(sorted(found, key=lambda entity: entity.last, reverse=True))


def _entity(book: Book, root: str, rows: Mapping[str, FactRow], limits: Limits) -> Entity:
    name, aliases = called(book, root)
    maybe = sorted(called(book, other)[0] for other in book.groups.maybe.get(root, ()))
    facts = [_fact(row) for row in [*rows.values()][-limits.facts :]]
    said = book.description(root, rows)
    kind = book.groups.kinds.get(root, "")
    times: Sequence[datetime] = [fact.created_at for fact in facts]
    return Entity(
        name, kind, tuple(aliases), tuple(maybe), tuple(facts), times[0], times[-1], said.text if said else ""
    )


def _quality(form: str, count: int) -> tuple[bool, int, bool, int, str]:
    return form != form.lower(), count, form != form.upper(), len(form), form


def _fact(row: FactRow) -> Fact:
    return Fact(row.text, row.role, row.speaker, row.session, row.message, row.at, row.start, row.end)
