"""Public view of the entities of a user: `Entity`, `Fact` and the list that `EntityMemory.entities` returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, tzinfo

from langchain_memkit._timezones import in_timezone
from langchain_memkit.matching.names import display_form
from langchain_memkit.memories.entity.registry import EntityRegistry
from langchain_memkit.memories.entity.rows import FactRow
from langchain_memkit.messages.text import printable, printable_html


def display_name(book: EntityRegistry, root: str) -> tuple[str, list[str]]:
    """Return the display name of an entity, and its other spellings, the most frequent first."""
    groups = book.groups
    spellings: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for key in groups.parts.get(root, ()):
        row = book.facts[key]
        form = display_form(row.surface) or row.key
        spellings[form] += 1
        own[form] += groups.root[row.key] == root  # short names never become the display name
    spellings.update({rule.name: 0 for rule in book.rules if groups.shown.get(root) == rule.other})

    def quality(form: str) -> tuple[bool, int, bool, int, str]:
        return form != form.lower(), own[form], form != form.upper(), len(form), form

    # A person's decision comes first; else a spelling with capitals, of these the most frequent, then one that is not
    # all capitals, then the longest.
    best = groups.shown.get(root) or max(own, key=quality, default=root)
    return best, sorted(spellings.keys() - {best}, key=lambda form: (-spellings[form], form))


def facts_about(book: EntityRegistry, name: str) -> list[FactRow]:
    """Return the facts of every entity that a name may mean, oldest first; a sentence about two of them once."""
    return list(book.rows(book.asked([book.key_of(name) or ""], name)).values())


def list_entities(book: EntityRegistry, zone: tzinfo, most: int) -> EntityList:
    """List all entities of a registry, the last mentioned first, each with at most so many facts, the newest."""
    found = EntityList()
    for root in book.groups.parts:
        rows = book.rows([root], most)
        (name, aliases), kind = display_name(book, root), book.groups.kinds.get(root, "")
        maybe = sorted(display_name(book, other)[0] for other in book.groups.maybe.get(root, ()))
        said = book.description(root, rows)
        facts = [fact_of(row, zone) for row in rows.values()]
        since, last, text = facts[0].created_at, facts[-1].created_at, said.text if said else ""
        found.append(Entity(name, kind, tuple(aliases), tuple(maybe), tuple(facts), since, last, text))
    found.sort(key=lambda entity: entity.name)
    found.sort(key=lambda entity: entity.last, reverse=True)
    return found


SHOWN = 3  # newest facts of each entity that are shown in a notebook
WIDTH = 80  # characters of the newest fact in `repr`


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence that mentions an entity.

    Attributes:
        text: The sentence as it was said; of a sentence over 300 characters the part around the name.
        role: `"human"` or `"ai"`.
        speaker: The message's `name`; empty if it has none.
        session_id: The conversation in which it was said.
        message_id: Id of the message; derived from its text if it has none.
        created_at: When it was said; aware, in the time zone of the memory, by default UTC.
        start: Where the name begins in the message, in characters.
        end: Where the name ends in the message.
    """

    text: str
    role: str
    speaker: str
    session_id: str
    message_id: str
    created_at: datetime
    start: int
    end: int


def fact_of(row: FactRow, zone: tzinfo) -> Fact:
    """Return a row as people see it, dated in a time zone."""
    at = in_timezone(row.at, zone)
    return Fact(row.text, row.role, row.speaker, row.session, row.message, at, row.start, row.end)


@dataclass(frozen=True, slots=True)
class Entity:
    """A person, place or thing that was mentioned.

    Attributes:
        name: The display name.
        type: `"PERSON"`, `"ORG"`, `"GPE"`, ...: the type of most mentions; empty if unknown.
        aliases: Other spellings and names that were seen, the most frequent first.
        maybe: Names of other entities that may be the same; `merge` or `split` decides.
        facts: The sentences that mention it, oldest first.
        since: Time of the first fact.
        last: Time of the last fact.
        description: One sentence by the model given as `describe`; empty without one.
    """

    name: str
    type: str
    aliases: tuple[str, ...]
    maybe: tuple[str, ...]
    facts: tuple[Fact, ...]
    since: datetime
    last: datetime
    description: str = ""


class EntityList(list[Entity]):
    """List of entities, the last mentioned first. Prints one line per entity, and is a table in a notebook."""

    def __repr__(self) -> str:
        """Return one line per entity: name, type, number of facts, first and last date, newest fact or description."""
        lines = [f"{len(self) or 'no'} {'entity' if len(self) == 1 else 'entities'}"]
        for entity in self:
            since, last = entity.since.date().isoformat(), entity.last.date().isoformat()
            newest = printable(entity.description or entity.facts[-1].text)
            newest = newest if len(newest) <= WIDTH else newest[: WIDTH - 3] + "..."
            kind = f" ({entity.type})" if entity.type else ""
            lines.append(f"{printable(entity.name)}{kind}: {len(entity.facts)} from {since} to {last}: {newest}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return an HTML table; stored text is escaped."""
        if not self:
            return "<p>No entities.</p>"
        names = ("name", "type", "also", "maybe the same", "facts", "last", "newest")
        head = "".join(f"<th>{name}</th>" for name in names)
        rows = ""
        for entity in self:
            newest = [entity.description] if entity.description else [f.text for f in entity.facts[: -SHOWN - 1 : -1]]
            texts = [entity.name, entity.type, ", ".join(entity.aliases), ", ".join(entity.maybe)]
            texts += [str(len(entity.facts)), entity.last.date().isoformat()]
            cells = [*map(printable_html, texts), "<br>".join(map(printable_html, newest))]
            rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
