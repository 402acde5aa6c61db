"""`memkit purge`: delete everything of a user, in every part of a file or a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import langchain_memkit
from langchain_memkit.backends.sqlite import SQLiteChatMessageHistory, SQLiteKeyValueStore, inspection
from langchain_memkit.base import Purgeable, check_id, purge_user, user_prefix
from langchain_memkit.cli.output import Output
from langchain_memkit.cli.targets import Target, require_mongodb
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate.sources import AnyFactory
from langchain_memkit.stores.history import HistoryFactory
from langchain_memkit.stores.key_value import KeyValueStore

# Prefixes of a user's keys, after the user's own prefix.
SHELVES = {"summary/": "summaries", "entities/": "entities", "key_value/": "key-values", "preferences/": "preferences"}
LAYOUTS: tuple[Literal["turns", "qa"], ...] = ("turns", "qa")
OTHER_KEYS = "other keys"
BOOKKEEPING = ("entities/session/", "entities/version/", "key_value/version", "preferences/session/")

Counts: TypeAlias = dict[tuple[str, str], int]
"""Numbers of a user's records, by kind and store."""


Count: TypeAlias = Callable[[str], Mapping[str, int]]


class ErasableStore(NamedTuple):
    """A store in which a user can be purged, and a function that counts the user's records."""

    where: str
    store: Purgeable
    found: Callable[[str], Mapping[str, int]]


def purge_places(output: Output, user_id: str, places: Sequence[Target], *, yes: bool, dry_run: bool) -> int:
    """Show the stored data of a user, ask for confirmation, and delete it; return 1 if there was data again afterwards.

    Raises:
        ConfigurationError: A target holds nothing of memkit, or the question was answered with no.
        HistoryReadError: A target cannot be read; nothing was deleted.
        HistoryWriteError: A target failed; calling again finishes the work.
    """
    check_id(user_id, "user_id")
    with ExitStack() as opened:
        parts = [part for place in places for part in open_stores(place, user_id, output, opened)]
        before = _counts(parts, user_id)
        if dry_run:
            _show(output, f"what there is of user {user_id!r}; nothing was deleted", before, None)
            return 0
        if not yes:
            _show(output, f"what there is of user {user_id!r}:", before, None)
            nothing = "nothing was deleted. Answer with y, or give --yes where nobody can answer"
            output.confirm(f"Delete all of this for good, of user {user_id!r}?", nothing)
        # Histories first: their tombstones refuse the turns in progress.
        ordered = sorted(parts, key=lambda part: not isinstance(part.store, HistoryFactory))
        purge_user(user_id, *(part.store for part in ordered))
        # Counted again, since an app may have written meanwhile.
        after = _counts(parts, user_id)
    _show(output, f"what there was of user {user_id!r}:", before, after)
    if left := sum(after.values()):
        output.fault(f"{left} are there: somebody wrote meanwhile. Stop that app, and run the command again")
    return int(left > 0)


def _counts(parts: Sequence[ErasableStore], user_id: str) -> Counts:
    """Count the user's records by kind and store."""
    return {(what, part.where): n for part in parts for what, n in part.found(user_id).items()}


def _show(output: Output, title: str, before: Counts, after: Counts | None) -> None:
    output.line(title)
    if after is None:
        output.table(("what", "where", "found"), [(*key, n) for key, n in before.items()])
        return
    rows = [(*key, before.get(key, 0), after.get(key, 0)) for key in dict.fromkeys([*before, *after])]
    output.table(("what", "where", "deleted", "left"), rows)


def open_stores(place: Target, user_id: str, output: Output, opened: ExitStack) -> list[ErasableStore]:
    """Open the stores of a file or database that may hold data of a user; `opened` closes them.

    An empty user id stands for what was stored without a user, which includes rows of langchain-mongodb.

    Raises:
        ConfigurationError: There is nothing of memkit.
    """
    found = list(_in_database(place, user_id, output, opened) if place.is_mongodb else _in_file(place, opened))
    if not found:
        where = f"{place.label}, database {place.database}," if place.is_mongodb else place.label
        raise ConfigurationError(f"{where} holds nothing of memkit, so nothing was done anywhere. Is the name right?")
    return found


def _in_file(place: Target, opened: ExitStack) -> Iterator[ErasableStore]:
    tables = inspection.tables_of(place.path) if place.is_sqlite else frozenset()
    if "turns" in tables:
        histories = opened.enter_context(SQLiteChatMessageHistory.factory(place.path))
        yield _histories(place.label, histories, partial(_old_records, place.path))
    if "key_values" in tables:
        yield _keys(place.label, opened.enter_context(SQLiteKeyValueStore(place.path)))


def _in_database(place: Target, user_id: str, output: Output, opened: ExitStack) -> Iterator[ErasableStore]:
    server = require_mongodb()
    for name, (found, *_) in server.inspect_database(place.where, place.database, place.keys, user_id=user_id).items():
        if place.collection not in (None, name):
            continue
        where, names = f"{place.label}, {place.database}.{name}", (place.where, place.database, name)
        for layout in LAYOUTS:
            if layout in found or (layout == "turns" and "langchain-mongodb" in found and not user_id):
                make = langchain_memkit.MongoDBChatMessageHistory.factory
                histories = make(*names, layout=layout, user_id_key=place.user_id_key)
                yield _histories(where, opened.enter_context(histories))
        if "key_value" in found:
            yield _keys(where, opened.enter_context(langchain_memkit.MongoDBKeyValueStore(*names)))
        if "vectors" in found:  # of a vector memory of version 0.1 or 0.2
            yield _vectors(where, server.OldVectors(*names))
        if "langchain-mongodb" in found and user_id:
            output.note(f"{where}: rows of langchain-mongodb carry no user and are left out: clear their sessions")


def _histories(where: str, factory: AnyFactory, others: Count = lambda user_id: {}) -> ErasableStore:
    """Return histories, with a function that counts what they purge besides turns."""

    def count(user_id: str) -> dict[str, int]:
        store = factory.turn_store  # which reads no titles, as `list_sessions` does
        sessions = store.run(store.sessions(user_id, hidden=True))
        return {"sessions": len(sessions), "turns": sum(session.turns for session in sessions), **others(user_id)}

    return ErasableStore(where, factory, count)


def _old_records(path: Path, user_id: str) -> dict[str, int]:
    count = inspection.count_old_records(path, user_id)
    return {"vectors": count} if count else {}


def _vectors(where: str, store: Any) -> ErasableStore:
    return ErasableStore(where, store, lambda user_id: {"vectors": store.count(user_id)})


def _keys(where: str, store: KeyValueStore) -> ErasableStore:
    def count(user_id: str) -> dict[str, int]:
        prefix = user_prefix(user_id)
        found = dict.fromkeys([*SHELVES.values(), OTHER_KEYS], 0)
        for key in store.yield_keys(prefix=prefix):
            rest = key[len(prefix) :]
            # Keys of sessions and versions are bookkeeping, not records.
            if not rest.startswith(BOOKKEEPING):
                found[next((what for shelf, what in SHELVES.items() if rest.startswith(shelf)), OTHER_KEYS)] += 1
        return {what: n for what, n in found.items() if n or what != OTHER_KEYS}

    return ErasableStore(where, store, count)
