"""`memkit doctor`: check this machine, files and servers, with one line per check and advice for each problem."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Literal, NamedTuple

from packaging.requirements import Requirement

from langchain_memkit.backends.sqlite import inspection as files
from langchain_memkit.backends.sqlite.database import REPAIR, TABLES
from langchain_memkit.backends.sqlite.inspection import library_version
from langchain_memkit.cli.output import Output
from langchain_memkit.cli.targets import Target, require_mongodb
from langchain_memkit.errors import ConfigurationError, HistoryReadError, MissingExtraError, SpacyModelMissing

__all__ = ["Check", "check_environment", "doctor", "package_version"]

PACKAGE = "langchain-memkit"


class Check(NamedTuple):
    """The result of one check: its subject, its status, what was found, and advice if something is wrong."""

    subject: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def package_version(name: str = PACKAGE) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_environment() -> Iterator[Check]:
    """Run the checks that need neither a server nor a file."""
    yield Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("SQLite", "ok", library_version())
    yield Check(PACKAGE, "ok", package_version() or "run from a source tree that is not installed")
    yield Check("langchain-core", "ok", package_version("langchain-core") or "?")
    yield from _extras()
    yield _spacy()


def _extras() -> Iterator[Check]:
    """Check the installed extras; a missing extra is reported as ok, since it may not be needed."""
    try:
        lines = requires(PACKAGE) or []
    except PackageNotFoundError:
        return
    requirements = [Requirement(line) for line in lines]
    extras = sorted({line.rpartition("==")[2].strip(" \"')") for line in lines if "extra ==" in line} - {"all"})
    for extra in extras:
        wanted = [r for r in requirements if r.marker and r.marker.evaluate({"extra": extra}) and r.name != PACKAGE]
        versions = {r.name: package_version(r.name) for r in wanted}
        missing = [name for name, found in versions.items() if found is None]
        unfit = [f"{r.name} {versions[r.name]} is not {r.specifier}" for r in wanted if not _fits(r)]
        install = f'pip install "{PACKAGE}[{extra}]"'
        if missing:
            yield Check(f"extra {extra}", "ok", f"not installed: {', '.join(missing)}", f"if you need it: {install}")
        elif unfit:
            yield Check(f"extra {extra}", "warn", ", ".join(unfit), install)
        elif wanted:
            yield Check(f"extra {extra}", "ok", ", ".join(f"{name} {found}" for name, found in versions.items()))


def _fits(requirement: Requirement) -> bool:
    found = package_version(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def _spacy() -> Check:
    """Check that a trained pipeline can be loaded, which takes a second."""
    if package_version("spacy") is None:
        return Check("spaCy pipeline", "ok", "spaCy is not installed: only SpacyEntityExtractor needs it")
    try:
        from langchain_memkit.backends.spacy import SpacyEntityExtractor

        return Check("spaCy pipeline", "ok", repr(SpacyEntityExtractor()))
    except (SpacyModelMissing, ConfigurationError) as error:
        return Check("spaCy pipeline", "warn", "none that may be used", str(error))
    except Exception as error:  # noqa: BLE001  # whatever is broken in spaCy, the other checks are printed
        found = f"spaCy cannot be used: {type(error).__name__}: {error}"
        return Check("spaCy pipeline", "warn", found, 'pip install "langchain-memkit[spacy]"')


MB = 1_000_000
LITTLE_ROOM = 500 * MB
LARGE_LOG = 64 * MB  # SQLite checkpoints the log after 4 MB, unless a reader never ends
LARGE_COLLECTION = 100_000
EVERYBODY = 0o006  # may read or write
OTHERS = {  # tables of other packages
    "message_store": ("langchain-community's SQL history", "sql"),
    "checkpoints": ("LangGraph's checkpoints", "langgraph"),
}
OLDEST_SERVER = (5, 0)


def doctor(output: Output, places: Iterable[Target], *, fix: bool, as_json: bool) -> int:
    """Check this machine and the given targets.

    Args:
        output: Where to print.
        places: Files and databases; none to check this machine only.
        fix: Build missing indexes, after announcing them.
        as_json: Print a list of objects instead of lines.

    Returns:
        The exit code: 1 if any check fails.
    """
    checks = list(check_environment())
    for place in places:
        checks += _looked_at(output, place, fix)
    if as_json:
        plain = [{name: output.scrubbed(text) for name, text in check._asdict().items()} for check in checks]
        output.raw(json.dumps(plain, indent=2))
    else:
        for check in checks:
            output.line(f"{check.status:<5} {check.subject}: {check.found}")
            if check.advice:
                output.line(f"      -> {check.advice}")
    return int(any(check.status == "fail" for check in checks))


def _looked_at(output: Output, place: Target, fix: bool) -> list[Check]:
    """Run all checks of a target; a target that cannot be read is a failed check."""
    checks: list[Check] = []
    try:
        # Fix first, so that the checks show the result.
        if fix:
            _fix(output, place)
        for check in _database(place) if place.is_mongodb else _file(place):
            checks.append(check)  # noqa: PERF402  # checks before an error are kept
    except (ConfigurationError, MissingExtraError) as error:
        checks.append(Check(place.label, "fail", str(error)))
    except HistoryReadError as error:
        advice = "is the server running, are host, user and password right, does a firewall stand in between?"
        advice = advice if place.is_mongodb else ""  # errors of files contain their own advice
        checks.append(Check(place.label, "fail", output.brief(error), advice))
    except OSError as error:
        checks.append(Check(place.label, "fail", error.strerror or str(error), "may this user read it?"))
    return checks


# -- SQLite


def _file(place: Target) -> Iterator[Check]:
    name = place.label
    if place.is_sql_url or place.path.is_dir() or not files.is_sqlite(place.path):
        yield Check(name, "fail", "is no SQLite file", "give a file, or mongodb://...")
        return
    facts = files.inspect_file(place.path)
    whole = "ok" if not facts.problems else "; ".join(facts.problems)
    advice = REPAIR if facts.problems else ""
    yield Check(f"{name}: integrity", "fail" if facts.problems else "ok", whole, advice)
    yield _version(name, facts)
    wal = facts.journal_mode == "wal"
    yield Check(
        f"{name}: journal", "ok" if wal else "warn", facts.journal_mode, "" if wal else "the next use makes it wal"
    )
    yield _log(name, facts)
    if os.name == "posix":
        yield _rights(name, facts)
    free = facts.disk_free
    short = free < max(LITTLE_ROOM, facts.size)
    sizes = f"{_mb(facts.size)} in use, {_mb(facts.unused)} of them free inside, {_mb(free)} free on the disk"
    yield Check(
        f"{name}: room", "warn" if short else "ok", sizes, "make room: a full disk refuses turns" if short else ""
    )
    for fault in facts.faults:
        found = "missing" if fault.state == "missing" else "not as memkit makes it"
        fixable = fault.state == "missing" and not fault.sql.startswith("CREATE TABLE")
        advice = (
            f"memkit doctor {name} --fix" if fixable else "restore a backup, or move all to a new file: memkit migrate"
        )
        yield Check(f"{name}: {fault.name}", "fail", found, advice)
    for table, (what, kept_as) in OTHERS.items():
        if table in facts.tables:
            advice = f"to move them in: memkit migrate --from {name} --from-format {kept_as} --to ..."
            yield Check(f"{name}: {table}", "ok", f"conversations of {what}", advice)
    others = sorted(table for table in facts.tables - TABLES if not table.startswith("sqlite_"))
    if others:
        advice = "it is not written anew after a clear, see docs/operations.md" if facts.version else ""
        yield Check(f"{name}: tables of others", "ok", ", ".join(others), advice)


def _version(name: str, facts: files.FileFacts) -> Check:
    subject, found = f"{name}: format", f"{facts.version} of {facts.known_version}"
    if facts.version > facts.known_version:
        return Check(subject, "fail", f"{found}: of a newer memkit", "pip install --upgrade langchain-memkit")
    if facts.version == 0:
        return Check(subject, "warn", "nothing of memkit is in it", "the first use makes its tables")
    older = facts.version < facts.known_version
    return Check(subject, "ok", found, "the next use brings it up to date" if older else "")


def _rights(name: str, facts: files.FileFacts) -> Check:
    subject = f"{name}: rights"
    mode = next(iter(facts.modes.values()))
    for file, of_file in facts.modes.items():
        if of_file & EVERYBODY:
            found = f"{of_file:04o}: every user of this machine may {'read' if of_file & 0o004 else 'write'} {file}"
            return Check(subject, "warn", found, f"chmod 600 {name}*, or 660 to share it with a group")
    return Check(subject, "ok", f"{mode:04o}: its owner{' and its group' if mode & 0o060 else ' alone'}")


def _log(name: str, facts: files.FileFacts) -> Check:
    subject, size = f"{name}: write-ahead log", facts.log_size
    if not size:
        return Check(subject, "ok", "empty")
    if size < LARGE_LOG:
        advice = "copy it together with the file, or back up with sqlite3 FILE '.backup COPY'"
        return Check(subject, "ok", f"{_mb(size)}: an app has the file open, or was killed; nothing is lost", advice)
    return Check(
        subject, "warn", _mb(size), "a reader never ends, so it grows: restart the apps that have the file open"
    )


def _mb(size: int) -> str:
    return f"{size / MB:,.1f} MB"


# -- MongoDB


def _database(place: Target) -> Iterator[Check]:
    server = require_mongodb()
    facts = server.inspect_server(place.where)
    numbers = tuple(int(part) for part in re.findall(r"\d+", facts.version)[:2])
    old = "" if numbers >= OLDEST_SERVER else "memkit needs partial unique indexes: MongoDB 5.0 or newer"
    yield Check(f"{place.label}: version", "warn" if old else "ok", facts.version, old)
    yield _topology(place.label, facts)
    default = f"; the server's default: {facts.default_write_concern}" if facts.default_write_concern else ""
    pinned = f"majority, with journal: memkit asks for it, whatever the connection string says{default}"
    yield Check(f"{place.label}: write concern", "ok", pinned)
    kinds = server.kinds_in(place.where, place.database, place.keys)
    names = [name for name in kinds if place.collection in (None, name) and kinds[name]]
    if not names:
        what = place.collection or f"database {place.database}"
        yield Check(
            f"{place.label}, {what}", "warn", "nothing of memkit in it", "is the name right? The first use makes it"
        )
    for name in names:
        yield from _collection(place, name)


def _topology(label: str, facts: Any) -> Check:
    subject = f"{label}: topology"
    if facts.topology == "standalone":
        return Check(subject, "ok", "standalone", "one server: when it is down nothing is read or stored")
    if facts.topology == "sharded":
        return Check(subject, "ok", "sharded cluster", "shard key: {user_id: 1, session_id: 1}, see docs/operations.md")
    found = f"replica set of {len(facts.members) + facts.arbiters}"
    if facts.unhealthy:
        return Check(
            subject, "warn", f"{found}; not well: {', '.join(facts.unhealthy)}", "a majority must be up to store"
        )
    if facts.arbiters:
        advice = "an arbiter stores nothing: with one node down there is no majority to store with"
        return Check(subject, "warn", f"{found}, {facts.arbiters} of them an arbiter", advice)
    unknown = "" if facts.unhealthy is not None else " (this user may not ask how its members are)"
    return Check(subject, "ok", found + unknown)


def _collection(place: Target, name: str) -> Iterator[Check]:
    facts = require_mongodb().inspect_collection(place.where, place.database, name, place.keys, place.user_id_key)
    holds = ", ".join(sorted(facts.kinds))
    yield Check(facts.name, "ok", f"{facts.size:,} documents: {holds}")
    if facts.unowned_rows:
        many = "at least " if facts.unowned_rows >= LARGE_COLLECTION else ""
        found = f"{many}{facts.unowned_rows:,}, read in place by histories without a user"
        advice = "to give them to a user: memkit migrate --from ... --user USER --to ..."
        yield Check(f"{facts.name}: rows of langchain-mongodb", "ok", found, advice)
    faulty = {fault.name for fault in facts.faults}
    for index in facts.indexes:
        if index.startswith("memkit_") and index not in faulty:
            yield Check(f"{facts.name}: index {index}", "ok", "present")
    for fault in facts.faults:
        needed = "turns" in facts.kinds and fault.model.document.get("unique")
        # First use builds no index on a collection this large, so a missing one is a failure, not a warning.
        large = facts.size > LARGE_COLLECTION
        found = f"{fault.state}{', and without it turns could be lost or doubled' if needed else ''}"
        found += ", and the collection is too large for it to be built at first use" if large else ""
        yield Check(
            f"{facts.name}: index {fault.name}",
            "fail" if needed or large else "warn",
            found,
            f"memkit doctor --fix builds it{'' if large else '; so does the first use'}",
        )


# -- fixing


def _fix(output: Output, place: Target) -> None:
    """Announce what is missing, and build it."""
    if place.is_mongodb:
        server = require_mongodb()
        for name, kinds in server.kinds_in(place.where, place.database, place.keys).items():
            if place.collection not in (None, name) or not kinds:
                continue
            facts = server.inspect_collection(place.where, place.database, name, place.keys, place.user_id_key)
            if facts.faults:
                dropped = [fault.present_as for fault in facts.faults if fault.present_as]
                drop = f"dropping {', '.join(dropped)}, " if dropped else ""
                built = ", ".join(fault.name for fault in facts.faults)
                output.note(f"{facts.name}: {drop}building {built} over {facts.size:,} documents ...")
                server.build_indexes(place.where, place.database, name, facts.faults)
    elif not (place.is_sql_url or place.path.is_dir()) and files.is_sqlite(place.path):
        faults = [f for f in files.inspect_file(place.path).faults if f.state == "missing"]
        # A missing table cannot be rebuilt, since its rows are lost.
        faults = [f for f in faults if not f.sql.startswith("CREATE TABLE")]
        if faults:
            output.note(f"{place.label}: building {', '.join(fault.name for fault in faults)} ...")
            files.build_missing(place.path, faults)
