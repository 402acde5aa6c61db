"""Entities as people look at them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langchain_memkit.errors import MissingExtraError
from langchain_memkit.messages.text import printable, printable_html

__all__ = ["Entity", "EntityList", "Fact"]

SHOWN = 3  # facts of each entity in a notebook
WIDTH = 80  # characters of a fact in a line


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence in which an entity is named.

    Attributes:
        text: The sentence, as it was said; of a long one what is around the name.
        role: `"human"` or `"ai"`.
        speaker: The message's `name`; empty if it has none.
        session_id: Where it was said.
        message_id: Of the message; made up from its text if it has none.
        created_at: When, aware, UTC.
        start: Where the name begins in the message, in characters.
        end: Where it ends.
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
    """Someone or something that was named.

    Attributes:
        name: The spelling that is shown.
        type: `"PERSON"`, `"ORG"`, `"GPE"`, ...: what most mentions were taken for; empty if nothing is known.
        aliases: Other spellings and names that were seen, the most frequent first.
        maybe: Names of other entities that may be the same; `merge` or `split` says so.
        facts: Oldest first.
        since: Of the first fact.
        last: Of the last fact.
        description: By a model, if `describe` was given one; else empty.
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
    """Entities, the last mentioned first; prints a line for each, and is a table in a notebook.

    Example:
        >>> EntityList()._repr_html_()
        '<p>No entities.</p>'
    """

    def __repr__(self) -> str:
        """Return a line for each: name, type, how many facts, since when, the newest."""
        lines = [f"{len(self) or 'no'} {'entity' if len(self) == 1 else 'entities'}"]
        for entity in self:
            since, last = entity.since.date().isoformat(), entity.last.date().isoformat()
            newest = printable(entity.description or entity.facts[-1].text)
            newest = newest if len(newest) <= WIDTH else newest[: WIDTH - 3] + "..."
            kind = f" ({entity.type})" if entity.type else ""
            lines.append(f"{printable(entity.name)}{kind}: {len(entity.facts)} from {since} to {last}: {newest}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a table in which stored text is text."""
        if not self:
            return "<p>No entities.</p>"
        names = ("name", "type", "also", "maybe the same", "facts", "last", "newest")
        head = "".join(f"<th>{name}</th>" for name in names)
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(entity))}</tr>" for entity in self)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def to_dataframe(self) -> Any:
        """Return a pandas `DataFrame` with one line for each fact, and the entity's name and type in it.

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
