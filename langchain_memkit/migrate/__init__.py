"""Migration of conversations: between layouts, backends and collections, from other packages, and to and from files.

Every turn keeps the idempotency key it is stored under, so a second run adds only new turns, and an interrupted run is
finished by the next one. Whatever cannot be read is counted and named.
"""

# How the modules fit together: `sources` reads (with `foreign` for other packages, `old_vectors` and
# `old_memories` for what older versions kept apart), `transfer` writes and connects two
# stores, `jsonl` connects a store and a file.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_memkit.errors import missing_name
from langchain_memkit.migrate.foreign import (
    langchain_file_source,
    langchain_memory_source,
    langchain_sql_source,
    langgraph_source,
)
from langchain_memkit.migrate.jsonl import aexport_history, aimport_history, export_history, import_history
from langchain_memkit.migrate.old_memories import MovedMemories, amove_memories, move_memories
from langchain_memkit.migrate.old_vectors import vector_records_source
from langchain_memkit.migrate.transfer import MigrationReport, amigrate, migrate

__all__ = [
    "MigrationReport",
    "MovedMemories",
    "aexport_history",
    "aimport_history",
    "amigrate",
    "amove_memories",
    "export_history",
    "import_history",
    "langchain_file_source",
    "langchain_memory_source",
    "langchain_sql_source",
    "langgraph_source",
    "migrate",
    "move_memories",
    "vector_records_source",
]


def _lacking(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


if not TYPE_CHECKING:  # a type checker would believe that every name exists
    __getattr__ = _lacking
