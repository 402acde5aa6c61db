"""Moving conversations: between layouts, backends and collections; into memkit, out of it, and back.

Nothing is read twice into the target: every turn keeps the name it is stored under, so a second run adds what is new
and nothing else, and a run that broke off is finished by the next one. What cannot be read is counted and named.
"""

# to read it: `sources` (`foreign`, `threads`, `joining` for those of other packages) and `writing` are the two ends;
# `moving` goes between stores, `files` between a store and `lines`
from __future__ import annotations

from langchain_memkit.migrate.files import aexport_history, aimport_history, export_history, import_history
from langchain_memkit.migrate.foreign import (
    langchain_file_source,
    langchain_memory_source,
    langchain_sql_source,
    langgraph_source,
)
from langchain_memkit.migrate.moving import amigrate, migrate
from langchain_memkit.migrate.report import MigrationReport

__all__ = [
    "MigrationReport",
    "aexport_history",
    "aimport_history",
    "amigrate",
    "export_history",
    "import_history",
    "langchain_file_source",
    "langchain_memory_source",
    "langchain_sql_source",
    "langgraph_source",
    "migrate",
]
