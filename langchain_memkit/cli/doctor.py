"""`memkit doctor`: check this machine, files and servers, with one line per check and advice for each problem."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Literal, NamedTuple

import langchain_memkit
from langchain_memkit.backends.sqlite import inspection as files
from langchain_memkit.backends.sqlite.database import REPAIR
from langchain_memkit.cli.output import Output
from langchain_memkit.cli.targets import Target, require_mongodb
from langchain_memkit.errors import ConfigurationError, HistoryReadError, MissingExtraError

__all__ = ["Check", "check_places"]

EVERYBODY = 0o006  # may read or write


class Check(NamedTuple):
    """The result of one check: its subject, its status, what was found, and advice if something is wrong."""

    subject: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def check_places(output: Output, places: Iterable[Target], *, fix: bool, as_json: bool) -> int:
    """Check this machine and the given targets, and print the checks; return 1 if any of them fails.

    With `fix`, missing indexes of collections are announced and built.
    """
    checks = list(_environment())
    for place in places:
        try:
            for check in _database(output, place, fix) if place.is_mongodb else _file(place):
                checks.append(check)  # noqa: PERF402  # checks before an error are kept
        except (ConfigurationError, MissingExtraError) as error:
            checks.append(Check(place.label, "fail", str(error)))
        except HistoryReadError as error:
            advice = "is the server running, are host, user and password right, does a firewall stand in between?"
            # Errors of files contain their own advice.
            checks.append(Check(place.label, "fail", output.brief(error), advice if place.is_mongodb else ""))
        except OSError as error:
            checks.append(Check(place.label, "fail", error.strerror or str(error), "may this user read it?"))
    if as_json:
        plain = [{name: output.scrubbed(text) for name, text in check._asdict().items()} for check in checks]
        output.raw(json.dumps(plain, indent=2))
    else:
        for check in checks:
            output.line(f"{check.status:<5} {check.subject}: {check.found}")
            if check.advice:
                output.line(f"      -> {check.advice}")
    return int(any(check.status == "fail" for check in checks))


def _environment() -> Iterator[Check]:
    """Tell what needs neither a server nor a file."""
    yield Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("SQLite", "ok", files.library_version())
    yield Check("langchain-memkit", "ok", getattr(langchain_memkit, "__version__", "not installed"))
    yield Check("langchain-core", "ok", version("langchain-core"))


def _file(place: Target) -> Iterator[Check]:
    name = place.label
    if place.is_sql_url or place.path.is_dir() or not files.is_sqlite(place.path):
        yield Check(name, "fail", "is no SQLite file", "give a file, or mongodb://...")
        return
    facts = files.inspect_file(place.path)
    yield Check(name, "ok", ", ".join(f"{n:,} {table}" for table, n in facts.counts.items()) or "nothing of memkit")
    if facts.problems:
        yield Check(f"{name}: integrity", "fail", "; ".join(facts.problems), REPAIR)
    else:
        yield Check(f"{name}: integrity", "ok", "ok")
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
            yield Check(f"{name}: rights", "ok", f"{facts.modes[name]:04o}")
    for part, state in facts.faults.items():
        yield Check(f"{name}: {part}", "fail", state, "restore a backup, or move all to a new file: memkit migrate")


def _database(output: Output, place: Target, fix: bool) -> Iterator[Check]:
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
        if fix and facts.faults:
            dropped = [fault.name for fault in facts.faults if fault.has_name]
            drop = f"dropping {', '.join(dropped)}, " if dropped else ""
            built = ", ".join(fault.name for fault in facts.faults)
            output.note(f"{full_name}: {drop}building {built} over {facts.size:,} documents ...")
            server.build_indexes(place.where, place.database, name, facts.faults)
            facts = server.inspect_database(*where)[name]
        holds = f"{facts.size:,} documents: {', '.join(sorted(facts.kinds))}"
        yield Check(full_name, "ok", holds if facts.faults else f"{holds}; all indexes are present")
        for fault in facts.faults:
            needed = "turns" in facts.kinds and fault.model.document.get("unique")
            found = f"{fault.state}{', and without it turns could be lost or doubled' if needed else ''}"
            status: Literal["fail", "warn"] = "fail" if needed else "warn"
            yield Check(f"{full_name}: index {fault.name}", status, found, "memkit doctor --fix builds it")
