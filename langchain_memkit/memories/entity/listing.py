"""Public view of the entities of a user: `Entity`, `Fact` and the list that `EntityMemory.entities` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langchain_memkit.errors import MissingExtraError
from langchain_memkit.messages.text import printable, printable_html

__all__ = ["Entity", "EntityList", "Fact"]

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
        created_at: When it was said, aware, UTC.
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
    """List of entities, the last mentioned first. Prints one line per entity, and is a table in a notebook.

    Example:
        >>> EntityList()._repr_html_()
        '<p>No entities.</p>'
    """

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
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(entity))}</tr>" for entity in self)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def to_dataframe(self) -> Any:
        """Return a pandas `DataFrame` with one row per fact, with the entity's name and type in each row.

        Raises:
            MissingExtraError: pandas is not installed.

        Example:
            >>> list(EntityList().to_dataframe().columns)[:4]
            ['name', 'type', 'text', 'role']
        """
        try:
            import pandas  # type: ignore[import-untyped]  # brings no stubs, and mypy need not know them
        except ImportError as error:
            msg = "to_dataframe() needs pandas: pip install pandas"
            raise MissingExtraError(msg) from error
        columns = ["name", "type", "text", "role", "speaker", "session_id", "message_id", "created_at"]
        rows: list[list[Any]] = [
            [entity.name, entity.type, *(getattr(fact, column) for column in columns[2:])]
            for entity in self
            for fact in entity.facts
        ]
        return pandas.DataFrame(rows, columns=columns)


def _cells(entity: Entity) -> list[str]:
    newest = "<br>".join(printable_html(fact.text) for fact in entity.facts[: -SHOWN - 1 : -1])
    also, maybe = (printable_html(", ".join(names)) for names in (entity.aliases, entity.maybe))
    return [
        printable_html(entity.name),
        printable_html(entity.type),
        also,
        maybe,
        str(len(entity.facts)),
        entity.last.date().isoformat(),
        printable_html(entity.description) or newest,
    ]
