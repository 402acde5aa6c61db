"""The commands of the command line and their options. The docstrings of commands are their help texts."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import Annotated, Literal, NamedTuple

import typer
from langchain_core.messages import BaseMessage, message_to_dict

import langchain_memkit
from langchain_memkit import migrate as migration
from langchain_memkit._timezones import in_timezone, named_timezone
from langchain_memkit.backends.sqlite import SQLiteChatMessageHistory, inspection
from langchain_memkit.backends.sqlite.database import REPAIR, TABLES
from langchain_memkit.base import Turn, check_path
from langchain_memkit.cli.output import FROM_URI, STREAM, TO_URI, URI, Output, SafeGroup, readable, writable
from langchain_memkit.cli.purge import purge_places
from langchain_memkit.cli.report import write_report
from langchain_memkit.cli.targets import COLLECTION, Format, Target, check_target, detect_format, require_mongodb
from langchain_memkit.errors import ConfigurationError, HistoryReadError, MissingExtraError
from langchain_memkit.messages.text import message_text, role_of
from langchain_memkit.migrate.jsonl import MAX_BYTES, MAX_LINE_BYTES
from langchain_memkit.migrate.sources import AnyFactory, ConversationSource, history_source
from langchain_memkit.stores.history import HistoryFactory

OutputFormat = Literal["memkit", "langchain-mongodb", "qa"]
Layout = Literal["turns", "langchain", "qa"]
LAYOUTS: dict[OutputFormat, Layout] = {"memkit": "turns", "langchain-mongodb": "langchain", "qa": "qa"}
LINE_MB, ALL_MB = MAX_LINE_BYTES >> 20, MAX_BYTES >> 20
EVERYBODY = 0o006  # may read or write a file

app = typer.Typer(
    cls=SafeGroup,
    add_completion=False,  # it would write into the user's shell configuration
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    help=(
        "Lists, shows, moves, saves, deletes and checks conversations kept by langchain-memkit. "
        "WHERE is a SQLite file or mongodb://...; set MEMKIT_URI to keep a password out of the shell's history."
    ),
)


def _flag(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> bool:
    setattr(ctx.obj, str(param.name), value)
    return value


def _version(ctx: typer.Context, value: bool) -> None:
    if value:
        ctx.obj.line(f"langchain-memkit {getattr(langchain_memkit, '__version__', 'not installed')}")
        raise typer.Exit


def _option(option: str, text: str, metavar: str = "NAME", least: int | None = None) -> object:
    return typer.Option(option, help=text, show_default=False, metavar=metavar, min=least)


Text = str | None
Version = Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.", callback=_flag)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", callback=_flag)]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Draw no bar.")]
LineMB = Annotated[int, _option("--max-line", f"MB of a line (a turn), else {LINE_MB}; more is left out.", "MB", 1)]
SizeMB = Annotated[int, _option("--max-size", f"MB of all lines, else {ALL_MB}; then reading ends.", "MB", 1)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a list of objects.")]
Limit = Annotated[int, _option("--limit", "How many, else 20.", "N", 1)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")]
Database = Annotated[Text, _option("--database", "MongoDB: which; else the one in the URI, else chat_history.")]
Collection = Annotated[Text, _option("--collection", "MongoDB: which; else the only one that fits.")]
OnlyCollection = Annotated[Text, _option("--collection", "MongoDB: only this one; else all of the database.")]
SessionIdKey = Annotated[str, _option("--session-id-key", "langchain-mongodb: the session id's field, else SessionId.")]
HistoryKey = Annotated[str, _option("--history-key", "langchain-mongodb: the message's field, else History.")]
UserIdKey = Annotated[str, _option("--user-id-key", "Q/A documents: the user's field, userId or email.")]
Table = Annotated[str, _option("--table", "SQL: the table, else message_store.")]
SessionIdColumn = Annotated[str, _option("--session-id-column", "SQL: the session id's column, else session_id.")]
FromFormat = Annotated[
    Format | None, _option("--from-format", "What they are kept as; else it is found out.", "|".join(Format))
]
ToFormat = Annotated[OutputFormat, _option("--to-format", "What to keep them as, else memkit.", "|".join(LAYOUTS))]
From = Annotated[Text, _option("--from", f"A file, folder or URI to read; else {FROM_URI} or {URI}.", "WHERE")]
To = Annotated[Text, _option("--to", f"A file or URI to write; else {TO_URI} or {URI}.", "WHERE")]
Places = Annotated[list[str] | None, typer.Argument(metavar="[WHERE]...", help=f"Files and URIs; else {URI}.")]
In = Annotated[list[str] | None, _option("--in", f"A file or URI; give it again for more; else {URI}.", "WHERE")]
OnlyUser = Annotated[Text, _option("--user", "Only this user's conversations.")]
Timezone = Annotated[str, _option("--timezone", "In which days and times are shown, as Australia/Sydney; else UTC.")]
Owner = Annotated[Text, _option("--user", "Give everything to this user.")]


@app.callback()
def _root(version: Version = False) -> None:
    pass


@app.command()
def migrate(
    ctx: typer.Context,
    source: From = None,
    target: To = None,
    from_format: FromFormat = None,
    to_format: ToFormat = "memkit",
    from_database: Annotated[str | None, _option("--from-database", "MongoDB: which to read.")] = None,
    from_collection: Annotated[str | None, _option("--from-collection", "MongoDB: which to read.")] = None,
    to_database: Annotated[str | None, _option("--to-database", "MongoDB: which to write.")] = None,
    to_collection: Annotated[str | None, _option("--to-collection", "MongoDB: else message_store.")] = None,
    session_id_key: SessionIdKey = "SessionId",
    history_key: HistoryKey = "History",
    user_id_key: UserIdKey = "userId",
    table: Table = "message_store",
    session_id_column: SessionIdColumn = "session_id",
    user: Owner = None,
    dry_run: DryRun = False,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Copy every conversation into another store.

    Run it twice, or again after it broke off: each turn is there once.
    """
    output, keys = ctx.obj, (session_id_key, history_key)
    end = Target(_where(target, TO_URI), to_database, to_collection, keys, user_id_key)
    where = _where(source, FROM_URI)
    begin = Target(where, from_database, from_collection, keys, user_id_key, table, session_id_column)
    check_target(begin, "--from")
    check_target(end, "--to", exists=False)
    kept_as, collection = detect_format(begin, from_format, "--from")
    # A file of another application is not written to, unless it is named on both sides.
    if not (begin.is_file and end.is_file and begin.path.samefile(end.path)):
        _refuse_foreign(end)
    read, written = _source(begin, kept_as, collection), _factory(end, LAYOUTS[to_format], end.collection)
    there = _named(end, end.collection or COLLECTION)
    output.note(f"from {_named(begin, collection)} ({kept_as}) to {there} ({to_format})")
    with closing(written), closing(read) if isinstance(read, HistoryFactory) else nullcontext():
        if isinstance(read, HistoryFactory):
            in_place = read.turn_store.place == written.turn_store.place
            if in_place and to_format == "langchain-mongodb":
                output.note("one collection on both sides: its turns become rows of langchain-mongodb")
            elif kept_as is Format.LANGCHAIN_MONGODB and not in_place:
                read = history_source(read, "")  # only what belongs to nobody
        progress = _wants_bar(output, no_progress)
        report = migration.migrate(read, written, user_id=user, dry_run=dry_run, progress=progress)
    return _report(output, report, "moved")


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
    yes: Yes = False,
    session_id_key: SessionIdKey = "SessionId",
    history_key: HistoryKey = "History",
    user_id_key: UserIdKey = "userId",
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Write conversations to a file; one that is there is replaced after a question."""
    output, keys, where = ctx.obj, (session_id_key, history_key), _where(source, FROM_URI)
    place = Target(where, database, collection, keys, user_id_key)
    with closing(_histories(place, from_format)) as histories, writable(file, place) as opened:
        _ask_to_replace(output, file, yes)
        progress = _wants_bar(output, no_progress) and file != STREAM
        report = migration.export_history(histories, opened, user_id=user, progress=progress)
    output.beside = file == STREAM
    return _report(output, report, "exported")


@app.command("import")
def import_(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What memkit export wrote; .gz is unpacked; - is stdin.")],
    target: To = None,
    to_format: ToFormat = "memkit",
    database: Database = None,
    collection: Collection = None,
    user: OnlyUser = None,
    dry_run: DryRun = False,
    max_line: LineMB = LINE_MB,
    max_size: SizeMB = ALL_MB,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Read conversations from a file.

    Run it twice, or again after it broke off: each turn is there once.
    """
    output = ctx.obj
    place = Target(_where(target, TO_URI), database, collection)
    _refuse_foreign(check_target(place, "--to", exists=False))
    with closing(_factory(place, LAYOUTS[to_format], collection)) as histories, readable(file) as opened:
        limits = {"max_line_bytes": max_line << 20, "max_bytes": max_size << 20}
        progress = _wants_bar(output, no_progress)
        report = migration.import_history(histories, opened, user_id=user, dry_run=dry_run, **limits, progress=progress)
    return _report(output, report, "imported")


@app.command()
def purge(
    ctx: typer.Context,
    user: Annotated[str, _option("--user", "Whose.")],
    places: In = None,
    database: Database = None,
    collection: OnlyCollection = None,
    user_id_key: UserIdKey = "userId",
    yes: Yes = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Delete everything of a user, for good.

    In every part that memkit keeps: turns, summaries, entities, key-values, vectors.
    """
    names = Target("", database, collection, user_id_key=user_id_key)
    return purge_places(ctx.obj, user, _places(places, names, "--in"), yes=yes, dry_run=dry_run)


@app.command()
def report(
    ctx: typer.Context,
    file: Annotated[str, typer.Option("--output", "-o", help="The page to write; - is stdout.", metavar="FILE")],
    places: Places = None,
    user: Annotated[Text, _option("--user", "Whose; else what was stored without a user.")] = None,
    database: Database = None,
    collection: OnlyCollection = None,
    user_id_key: UserIdKey = "userId",
    timezone: Timezone = "UTC",
    yes: Yes = False,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Write a page about a user's conversations and memories.

    One file for a browser: no server, no script, nothing is loaded.
    """
    output, names = ctx.obj, Target("", database, collection, user_id_key=user_id_key)
    zone = named_timezone(timezone)
    _ask_to_replace(output, file, yes)
    output.beside = file == STREAM
    bar = _wants_bar(output, no_progress) and file != STREAM
    return write_report(output, user, _places(places, names, "WHERE"), file, zone=zone, progress=bar)


@app.command()
def doctor(
    ctx: typer.Context,
    places: Places = None,
    database: Database = None,
    collection: OnlyCollection = None,
    session_id_key: SessionIdKey = "SessionId",
    history_key: HistoryKey = "History",
    user_id_key: UserIdKey = "userId",
    fix: Annotated[bool, typer.Option("--fix", help="MongoDB: build missing indexes, after saying which.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Check this machine, files and servers.

    One line for everything that was looked at, and what to do where it is not well.
    """
    names = Target("", database, collection, (session_id_key, history_key), user_id_key)
    found = _places(places, names, "WHERE") if places or _where(None) else []  # without either: this machine only
    return _check_places(ctx.obj, found, fix=fix, as_json=as_json)


@app.command("list")
def list_(
    ctx: typer.Context,
    source: From = None,
    user: OnlyUser = None,
    limit: Limit = 20,
    before: Annotated[Text, _option("--before", "Go on after this session: a cursor that --json prints.")] = None,
    timezone: Timezone = "UTC",
    database: Database = None,
    collection: Collection = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List conversations, the last used first: of a user, else of everybody, each user's in turn."""
    when = Clock(timezone)
    with closing(_histories(Target(_where(source, FROM_URI), database, collection))) as histories:
        listed = partial(histories.list_sessions, limit=limit, before=before)
        found = [(owner, info) for owner in _owners(histories, user) for info in listed(owner or None)]
    objects = [{"user_id": owner, **asdict(info), "cursor": info.cursor} for owner, info in found]
    rows = [(when(info.updated_at), owner, info.session_id, info.turns, info.title) for owner, info in found]
    ctx.obj.table((when.head("last used"), "user", "session", "turns", "title"), rows, objects if as_json else None)


@app.command()
def show(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session id, as memkit list prints it.")],
    source: From = None,
    user: Annotated[Text, _option("--user", "Whose; else a conversation without an owner.")] = None,
    last: Annotated[int | None, _option("--last", "Only so many of the newest messages.", "N", 1)] = None,
    timezone: Timezone = "UTC",
    database: Database = None,
    collection: Collection = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print a conversation."""
    output, when = ctx.obj, Clock(timezone)
    place = Target(_where(source, FROM_URI), database, collection)
    with closing(_histories(place)) as histories:
        messages: list[tuple[Turn, BaseMessage]] = []
        for turn in histories(session, user).iter_turns():
            messages = [*messages, *((turn, message) for message in turn.messages)][-last if last else 0 :]
    if not messages:
        msg = f"{place.label} holds no session {session!r} of that user: memkit list prints what there is"
        raise ConfigurationError(msg)
    if as_json:
        output.objects({"seq": t.seq, "created_at": t.created_at, **message_to_dict(m)} for t, m in messages)
    else:
        for turn, said in messages:
            at = f"{when(turn.created_at)} {when.zone}" if turn.created_at else ""
            output.said(said.name or role_of(said), f"{at}  turn {turn.seq}", message_text(said))


@app.command()
def search(
    ctx: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="All of them, or how they begin.")],
    source: From = None,
    user: OnlyUser = None,
    limit: Limit = 20,
    timezone: Timezone = "UTC",
    database: Database = None,
    collection: Collection = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find what was said, the newest first: by a user, else by everybody, each user in turn."""
    when = Clock(timezone)
    with closing(_histories(Target(_where(source, FROM_URI), database, collection))) as histories:
        said = partial(histories.search_messages, text=" ".join(words), limit=limit)
        found = [(owner, hit) for owner in _owners(histories, user) for hit in said(owner or None)]
    objects = [{"user_id": o, **asdict(h), "message": message_to_dict(h.message)} for o, h in found]
    rows = [(when(h.created_at), o, h.session_id, h.seq, role_of(h.message), h.excerpt) for o, h in found]
    ctx.obj.table((when.head("said"), "user", "session", "turn", "by", "text"), rows, objects if as_json else None)


@app.command()
def stats(
    ctx: typer.Context,
    source: From = None,
    user: OnlyUser = None,
    timezone: Timezone = "UTC",
    database: Database = None,
    collection: Collection = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Count the sessions and turns of each user."""
    when = Clock(timezone)
    rows: list[dict[str, object]] = []
    with closing(_histories(Target(_where(source, FROM_URI), database, collection))) as histories:
        for owner in _owners(histories, user):
            sessions = histories.list_sessions(owner or None)
            dates = [date for info in sessions for date in (info.created_at, info.updated_at) if date]
            first, last = min(dates, default=None), max(dates, default=None)
            turns = sum(info.turns for info in sessions)
            rows.append({"user_id": owner, "sessions": len(sessions), "turns": turns, "first": first, "last": last})
    cells = [[when(v) if isinstance(v, datetime) else "" if v is None else v for v in row.values()] for row in rows]
    heads = ("user", "sessions", "turns", when.head("first"), when.head("last"))
    ctx.obj.table(heads, cells, rows if as_json else None)


def _ask_to_replace(output: Output, file: str, yes: bool) -> None:
    if file != STREAM and not yes and os.path.lexists(check_path(file)):
        output.confirm(f"Replace {file}?", "nothing was written. Answer with y, or give --yes where nobody can answer")


def _histories(place: Target, kept_as: Format | None = None) -> AnyFactory:
    """Open the histories of a target that memkit keeps, in any layout; other formats are refused."""
    kept_as, name = detect_format(check_target(place, "--from"), kept_as, "--from", of_server="--")
    histories = _source(place, kept_as, name)
    if isinstance(histories, HistoryFactory):
        return histories
    msg = f"{place.label} holds {kept_as}: move it into a store of memkit first (memkit migrate), then use that"
    raise ConfigurationError(msg)


def _owners(histories: AnyFactory, user: str | None) -> list[str]:
    """Return the user that was named, else everybody who has turns; an empty string stands for nobody."""
    store = histories.turn_store
    return [user] if user is not None else store.run(store.owners())


class Clock:
    """Shows times in the zone that `--timezone` names, and says in the head of a column which that is."""

    def __init__(self, name: str) -> None:
        self.zone = named_timezone(name)

    def __call__(self, at: datetime | None) -> str:
        """Return a time as it is shown; an empty text for none."""
        return f"{in_timezone(at, self.zone):%Y-%m-%d %H:%M}" if at else ""

    def head(self, name: str) -> str:
        """Return the head of a column of times."""
        return f"{name} ({self.zone})"


def _where(where: str | None, *names: str) -> str:
    """Return the argument, else the first of these environment variables that is set, else MEMKIT_URI."""
    return where or next((os.environ[name] for name in (*names, URI) if os.environ.get(name)), "")


def _places(given: list[str] | None, names: Target, option: str) -> list[Target]:
    """Return the files and servers that a command names; database and collection apply to the servers among them."""
    several = given or [_where(None)]
    of_file = replace(names, given_database=None, collection=None) if len(several) > 1 else names
    return [check_target(replace(names if "://" in w else of_file, where=w), option) for w in several]


def _wants_bar(output: Output, no_progress: bool) -> bool:
    return output.is_terminal and not (no_progress or output.quiet)


def _named(place: Target, collection: str | None) -> str:
    return f"{place.label}, {place.database}.{collection}" if place.is_mongodb and collection else place.label


def _source(place: Target, kept_as: Format, collection: str | None) -> AnyFactory | ConversationSource:
    """Return the source for `migrate` in the given format."""
    if kept_as is Format.SQL:
        return migration.langchain_sql_source(place.where, place.table, place.session_id_column)
    if kept_as is Format.FILE:
        return migration.langchain_file_source(place.where)
    if kept_as is Format.LANGGRAPH:
        names = {"database_name": place.named_database, "collection_name": collection}
        return migration.langgraph_source(place.where, **{name: value for name, value in names.items() if value})
    if kept_as is Format.VECTORS:
        names = {"database_name": place.named_database, "collection_name": collection}
        return migration.vector_records_source(place.where, **{name: value for name, value in names.items() if value})
    _refuse_foreign(place)
    return _factory(place, "qa" if kept_as is Format.QA else "turns", collection)


def _refuse_foreign(place: Target) -> None:
    """Refuse a file of another application, since opening it would create memkit's tables in it."""
    tables = inspection.tables_of(place.path) if place.is_sqlite else frozenset()
    if tables and tables.isdisjoint(TABLES):
        msg = f"{place.label} holds tables of something else and none of memkit: is the name right? Name a new file"
        raise ConfigurationError(msg)


def _factory(place: Target, layout: Layout, collection: str | None) -> AnyFactory:
    """Return a history factory for a target, or refuse a layout that it cannot hold."""
    if place.is_mongodb:
        names = (place.where, place.database, collection or COLLECTION)
        session_id, history = place.keys
        return langchain_memkit.MongoDBChatMessageHistory.factory(
            *names, layout=layout, session_id_key=session_id, history_key=history, user_id_key=place.user_id_key
        )
    if layout != "turns":
        msg = f"{place.label} is no MongoDB, and only that keeps rows of langchain-mongodb or Q/A documents"
        raise ConfigurationError(msg)
    if "://" in place.where or (place.path.exists() and not place.is_sqlite):
        msg = f"{place.label} is neither a SQLite file nor mongodb://..., and nothing else is written to"
        raise ConfigurationError(msg)
    return SQLiteChatMessageHistory.factory(place.path)


def _report(output: Output, report: migration.MigrationReport, verb: str) -> int:
    """Print the result; return the exit code."""
    done = f"would be {verb}" if report.dry_run else verb
    output.table([done, "count"], [(name, getattr(report, name)) for name in ("sessions", "turns", "messages")])
    if report.skipped:
        output.line()
        lines = [line.partition(": ") for line in report.skipped]
        output.table(["skipped", "why"], [(what, why or what) for what, _, why in lines])
    return int(bool(report.skipped))


# -- doctor


class Check(NamedTuple):
    """The result of one check: its subject, its status, what was found, and advice if something is wrong."""

    subject: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def _check_places(output: Output, places: Iterable[Target], *, fix: bool, as_json: bool) -> int:
    """Check this machine and the targets, print the checks, and return 1 if any fails; `fix` builds missing indexes."""
    checks: list[Check] = []  # what was asked for first, then the machine
    for place in places:
        try:
            for check in _check_server(output, place, fix) if place.is_mongodb else _check_file(place):
                checks.append(check)  # noqa: PERF402  # checks before an error are kept
        except (ConfigurationError, MissingExtraError) as error:
            checks.append(Check(place.label, "fail", str(error)))
        except HistoryReadError as error:
            advice = "is the server running, are host, user and password right, does a firewall stand in between?"
            # Errors of files contain their own advice.
            checks.append(Check(place.label, "fail", output.brief(error), advice if place.is_mongodb else ""))
        except OSError as error:
            checks.append(Check(place.label, "fail", error.strerror or str(error), "may this user read it?"))
    checks += _machine()
    if as_json:
        output.objects(check._asdict() for check in checks)
    else:
        for check in checks:
            output.line(f"{check.status:<5} {check.subject}: {check.found}")
            if check.advice:
                output.line(f"      -> {check.advice}")
    return int(any(check.status == "fail" for check in checks))


def _machine() -> Iterator[Check]:
    """Tell what needs neither a server nor a file."""
    yield Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("SQLite", "ok", inspection.library_version())
    yield Check("langchain-memkit", "ok", getattr(langchain_memkit, "__version__", "not installed"))
    yield Check("langchain-core", "ok", version("langchain-core"))


def _check_file(place: Target) -> Iterator[Check]:
    name = place.label
    if place.is_sql_url or place.path.is_dir() or not inspection.is_sqlite(place.path):
        yield Check(name, "fail", "is no SQLite file", "give a file, or mongodb://...")
        return
    facts = inspection.inspect_file(place.path)
    yield Check(name, "ok", ", ".join(f"{n:,} {table}" for table, n in facts.counts.items()) or "nothing of memkit")
    problems = "; ".join(facts.problems)
    yield Check(f"{name}: integrity", "fail" if problems else "ok", problems or "ok", REPAIR if problems else "")
    found = f"{facts.version} of {facts.known_version}"
    if facts.version > facts.known_version:
        yield Check(f"{name}: format", "fail", f"{found}: of a newer memkit", "pip install --upgrade langchain-memkit")
    elif facts.version:
        advice = "" if facts.version == facts.known_version else "the next use brings it up to date"
        yield Check(f"{name}: format", "ok", found, advice)
    if os.name == "posix":
        open_to = [f"{of_file:04o} {file}" for file, of_file in facts.modes.items() if of_file & EVERYBODY]
        if open_to:
            found = f"every user of this machine may read or write {', '.join(open_to)}"
            yield Check(f"{name}: rights", "warn", found, f"chmod 600 {name}*, or 660 to share it with a group")
        else:
            yield Check(f"{name}: rights", "ok", f"{facts.modes[str(place.path)]:04o}")


def _check_server(output: Output, place: Target, fix: bool) -> Iterator[Check]:
    server = require_mongodb()
    yield Check(f"{place.label}: server", "ok", server.describe_server(place.where))
    where = (place.where, place.database, place.keys, place.user_id_key)
    collections = server.inspect_database(*where)
    names = [name for name, facts in collections.items() if place.collection in (None, name) and facts.kinds]
    if not names:
        what = place.collection or f"database {place.database}"
        advice = "is the name right? The first use makes it"
        yield Check(f"{place.label}, {what}", "warn", "nothing of memkit in it", advice)
    for name in names:
        facts, full_name = collections[name], f"{place.database}.{name}"
        if fix and facts.missing:
            built = ", ".join(model.document["name"] for model in facts.missing)
            output.note(f"{full_name}: building {built} over {facts.size:,} documents ...")
            server.build_indexes(place.where, place.database, name, facts.missing)
            facts = server.inspect_database(*where)[name]
        holds = f"{facts.size:,} documents: {', '.join(sorted(facts.kinds))}"
        yield Check(full_name, "ok", holds if facts.missing else f"{holds}; all indexes are present")
        if "langchain-mongodb" in facts.kinds:
            n = server.count_sessions_without_text(place.where, place.database, name, place.keys)
            found = f"{n:,} sessions of langchain-mongodb have a number or an ObjectId as id: they are read by str(id)"
            yield from [Check(f"{full_name}: session ids", "ok", found)] if n else []
        for model in facts.missing:
            needed = "turns" in facts.kinds and model.document.get("unique")
            found = f"missing{', and without it turns could be lost or doubled' if needed else ''}"
            status: Literal["fail", "warn"] = "fail" if needed else "warn"
            yield Check(f"{full_name}: index {model.document['name']}", status, found, "memkit doctor --fix builds it")


def run(args: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    return int(typer.main.get_command(app).main(list(args), standalone_mode=False))
