"""Checks of this machine for `memkit doctor`: Python, packages, extras, the trained spaCy pipeline."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from langchain_memkit.backends.sqlite.inspection import library_version
from langchain_memkit.errors import ConfigurationError, SpacyModelMissing

__all__ = ["Check", "check_environment", "package_version"]

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
