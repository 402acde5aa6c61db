"""The commands of the command line and their options. The docstrings of commands are their help texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from langchain_memkit.cli import doctor as doctoring
from langchain_memkit.cli import move
from langchain_memkit.cli import purge as purging
from langchain_memkit.cli.doctor import package_version
from langchain_memkit.cli.output import FROM_URI, TO_URI, URI, SafeGroup
from langchain_memkit.cli.targets import Format, Target, target_of
from langchain_memkit.migrate.jsonl import MAX_BYTES, MAX_LINE_BYTES

__all__ = ["app", "run"]

LINE_MB, ALL_MB = MAX_LINE_BYTES >> 20, MAX_BYTES >> 20

app = typer.Typer(
    cls=SafeGroup,
    add_completion=False,  # it would write into the user's shell configuration
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    help=(
        "Moves, saves, deletes and checks conversations kept by langchain-memkit. "
        "WHERE is a SQLite file or mongodb://...; set MEMKIT_URI to keep a password out of the shell's history."
    ),
)


def _debug(ctx: typer.Context, value: bool) -> bool:
    ctx.obj.debug = value
    return value


def _quiet(ctx: typer.Context, value: bool) -> bool:
    ctx.obj.quiet = value
    return value


def _version(ctx: typer.Context, value: bool) -> None:
    if value:
        ctx.obj.line(f"langchain-memkit {package_version() or 'not installed'}")
        raise typer.Exit


def _text(option: str, text: str, **more: Any) -> Any:
    return typer.Option(option, help=text, show_default=False, **{"metavar": "NAME", **more})


def _mb(option: str, text: str) -> Any:
    return typer.Option(option, help=text, metavar="MB", min=1)


Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.", callback=_debug)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", callback=_quiet)]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Draw no bar.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")]
Database = Annotated[str | None, _text("--database", "MongoDB: which; else the one in the URI, else chat_history.")]
Collection = Annotated[str | None, _text("--collection", "MongoDB: which; else the only one that fits.")]
OnlyCollection = Annotated[str | None, _text("--collection", "MongoDB: only this one; else all of the database.")]
SessionIdKey = Annotated[
    str, typer.Option("--session-id-key", metavar="NAME", help="langchain-mongodb: the field of the session id.")
]
HistoryKey = Annotated[
    str, typer.Option("--history-key", metavar="NAME", help="langchain-mongodb: the field of the message.")
]
UserIdKey = Annotated[
    str, typer.Option("--user-id-key", metavar="NAME", help="Q/A documents: the field of the user, or email.")
]
Table = Annotated[str | None, _text("--table", "SQL: the table, else message_store.")]
SessionIdColumn = Annotated[str | None, _text("--session-id-column", "SQL: the column of the session id.")]
FromFormat = Annotated[
    Format | None, _text("--from-format", "What they are kept as; else it is found out.", metavar="|".join(Format))
]
ToFormat = Annotated[
    move.OutputFormat, typer.Option("--to-format", help="What to keep them as.", metavar="|".join(move.OutputFormat))
]
From = Annotated[
    str | None, _text("--from", f"A file, folder or URI to read; else {FROM_URI} or {URI}.", metavar="WHERE")
]
To = Annotated[str | None, _text("--to", f"A file or URI to write; else {TO_URI} or {URI}.", metavar="WHERE")]
In = Annotated[list[str] | None, _text("--in", f"A file or URI; give it again for more; else {URI}.", metavar="WHERE")]
OnlyUser = Annotated[str | None, _text("--user", "Only this user's conversations.")]
Owner = Annotated[str | None, _text("--user", "Give everything to this user.")]


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def migrate(
    ctx: typer.Context,
    source: From = None,
    target: To = None,
    from_format: FromFormat = None,
    to_format: ToFormat = move.OutputFormat.MEMKIT,
    from_database: Annotated[str | None, _text("--from-database", "MongoDB: which to read.")] = None,
    from_collection: Annotated[str | None, _text("--from-collection", "MongoDB: which to read.")] = None,
    to_database: Annotated[str | None, _text("--to-database", "MongoDB: which to write.")] = None,
    to_collection: Annotated[str | None, _text("--to-collection", "MongoDB: else message_store.")] = None,
    session_id_key: SessionIdKey = "SessionId",
    history_key: HistoryKey = "History",
    user_id_key: UserIdKey = "userId",
    table: Table = None,
    session_id_column: SessionIdColumn = None,
    user: Owner = None,
    dry_run: DryRun = False,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Copy every conversation into another store.

    Run it twice, or again after it broke off: each turn is there once.
    """
    names: Any = {"keys": (session_id_key, history_key), "user_id_key": user_id_key}
    columns: Any = {"table": table, "session_id_column": session_id_column}
    begin = target_of(
        _given(source, FROM_URI), "--from", database=from_database, collection=from_collection, **columns, **names
    )
    end = target_of(
        _given(target, TO_URI), "--to", database=to_database, collection=to_collection, exists=False, **names
    )
    progress = not no_progress
    return move.migrate(ctx.obj, begin, end, from_format, to_format, user, dry_run=dry_run, progress=progress)


@app.command("export")
def export_(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write: JSON lines; .gz is packed; - is stdout.")
    ],
    source: From = None,
    from_format: FromFormat = None,
    database: Database = None,
    collection: Collection = None,
    user: OnlyUser = None,
    session_id_key: SessionIdKey = "SessionId",
    history_key: HistoryKey = "History",
    user_id_key: UserIdKey = "userId",
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Write conversations to a file."""
    names: Any = {"keys": (session_id_key, history_key), "user_id_key": user_id_key}
    place = target_of(_given(source, FROM_URI), "--from", database=database, collection=collection, **names)
    return move.export(ctx.obj, file, place, from_format, user, progress=not no_progress)


@app.command("import")
def import_(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What memkit export wrote; .gz is unpacked; - is stdin.")],
    target: To = None,
    to_format: ToFormat = move.OutputFormat.MEMKIT,
    database: Database = None,
    collection: Collection = None,
    user: OnlyUser = None,
    dry_run: DryRun = False,
    max_line: Annotated[int, _mb("--max-line", "MB of a line, which is a turn; a longer one is left out.")] = LINE_MB,
    max_size: Annotated[int, _mb("--max-size", "MB of all lines, unpacked; then reading ends.")] = ALL_MB,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Read conversations from a file.

    Run it twice, or again after it broke off: each turn is there once.
    """
    place = target_of(_given(target, TO_URI), "--to", database=database, collection=collection, exists=False)
    limits = {"max_line": max_line, "max_size": max_size}
    return move.import_(ctx.obj, file, place, to_format, user, dry_run=dry_run, progress=not no_progress, **limits)


@app.command()
def purge(
    ctx: typer.Context,
    user: Annotated[str, _text("--user", "Whose.")],
    places: In = None,
    database: Database = None,
    collection: OnlyCollection = None,
    user_id_key: UserIdKey = "userId",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Delete everything of a user, for good.

    In every part that memkit keeps: turns, summaries, entities, key-values, vectors.
    """
    found = _places(places, "--in", database, collection, user_id_key)
    return purging.purge(ctx.obj, user, found, yes=yes, dry_run=dry_run)


@app.command()
def doctor(
    ctx: typer.Context,
    places: Annotated[
        list[str] | None, typer.Argument(metavar="[WHERE]...", help=f"Files and URIs; else {URI}.")
    ] = None,
    database: Database = None,
    collection: OnlyCollection = None,
    session_id_key: SessionIdKey = "SessionId",
    history_key: HistoryKey = "History",
    user_id_key: UserIdKey = "userId",
    fix: Annotated[bool, typer.Option("--fix", help="Build missing indexes, after saying which.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
    debug: Debug = False,
) -> int:
    """Check this machine, files and servers.

    One line for everything that was looked at, and what to do where it is not well.
    """
    keys = (session_id_key, history_key)
    some = places or _given(None)  # without either, check this machine only
    found = _places(places, "WHERE", database, collection, user_id_key, keys=keys) if some else []
    return doctoring.doctor(ctx.obj, found, fix=fix, as_json=as_json)


def _given(where: str | None, *names: str) -> str | None:
    """Return the argument, else the first of these environment variables that is set, else MEMKIT_URI."""
    return where or next((os.environ[name] for name in (*names, URI) if os.environ.get(name)), None)


def _places(
    given: list[str] | None, option: str, database: str | None, collection: str | None, user_id_key: str, **names: Any
) -> list[Target]:
    """Return the files and servers that a command names; database and collection apply to the servers among them."""
    found = []
    for where in given or [_given(None) or ""]:
        of_server: Any = {"database": database, "collection": collection}
        is_file = "://" not in where and len(given or ()) > 1
        found.append(target_of(where, option, **({} if is_file else of_server), user_id_key=user_id_key, **names))
    return found


def run(args: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    command = typer.main.get_command(app)
    return int(command.main(list(args), standalone_mode=False))
