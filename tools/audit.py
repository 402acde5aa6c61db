"""Known advisories against what is installed, and against what our version ranges admit.

    python tools/audit.py              the committed list, and pip-audit where it is installed and reaches its service
    python tools/audit.py --online     the same; an error if pip-audit could not be asked

The list is tools/advisories.toml: it needs no network, and knows the packages that memkit depends on. pip-audit knows
every package, but needs PyPI's advisories. A mirror may serve packages without them and answer "not found", which
pip-audit takes for "nothing known": so it is first asked about a release that is known to be affected.

Exit code: 0 nothing found; 1 something was found; 2 pip-audit was wanted and could not be asked.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
OURS = "langchain-memkit"
AFFECTED = "langchain-core==1.2.4"  # CVE-2025-68664: a service that does not know it is none
SECONDS = 600
KNOWN_OPERATORS = {">=", "<=", "<", "==", "~="}


@dataclass(frozen=True)
class Advisory:
    """One entry of the list."""

    id: str
    package: str
    affected: tuple[SpecifierSet, ...]
    fixed: str
    title: str
    source: str
    aliases: tuple[str, ...] = ()
    unaffected: str = ""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Advisory:
        """Reads an entry; a missing field, or one that nobody knows, is an error."""
        ranges = tuple(SpecifierSet(text) for text in entry["affected"])
        if not ranges or not all(entry[name] for name in ("id", "package", "fixed", "title", "source")):
            msg = f"{entry['id']}: every field must say something"
            raise ValueError(msg)
        if any(Version(entry["fixed"]) in each for each in ranges):
            msg = f"{entry['id']}: {entry['fixed']} is in {entry['affected']}, so it is no fix"
            raise ValueError(msg)
        plain = {**entry, "affected": ranges, "aliases": tuple(entry.get("aliases", ()))}
        return cls(**{**plain, "package": canonicalize_name(entry["package"])})

    def hits(self, version: str) -> bool:
        """Whether a version is affected."""
        return any(each.contains(version, prereleases=True) for each in self.affected)

    def admitted_by(self, admits: SpecifierSet) -> bool:
        """Whether a range of ours admits a version that is affected.

        Ranges begin with a version that belongs to them, or with 0: if two have a version in common, the later one of
        their beginnings is such a version.
        """
        return any(
            admits.contains(begin, prereleases=True) and each.contains(begin, prereleases=True)
            for each in self.affected
            for begin in (_begin(admits), _begin(each))
        )

    def __str__(self) -> str:
        return f"{self.id} ({self.title}; fixed in {self.fixed}; {self.source})"


def _begin(range_: SpecifierSet) -> str:
    if strange := {each.operator for each in range_} - KNOWN_OPERATORS:
        msg = f"cannot tell where {str(range_)!r} begins: {', '.join(sorted(strange))}"
        raise ValueError(msg)
    begins = [Version(each.version.removesuffix(".*")) for each in range_ if each.operator in (">=", "==", "~=")]
    return str(max(begins, default=Version("0")))


def read_advisories(path: Path = ROOT / "tools" / "advisories.toml") -> list[Advisory]:
    """The committed list."""
    return [Advisory.of(entry) for entry in tomllib.loads(path.read_text())["advisory"]]


def admitted(path: Path = ROOT / "pyproject.toml") -> list[tuple[str, Requirement]]:
    """(where it stands, requirement) for each of our dependencies, those of the extras among them."""
    project = tomllib.loads(path.read_text())["project"]
    found = [("dependencies", text) for text in project["dependencies"]]
    found += [(f"extra {name}", text) for name, texts in project["optional-dependencies"].items() for text in texts]
    requirements = [(where, Requirement(text)) for where, text in found]
    return [(where, r) for where, r in requirements if canonicalize_name(r.name) != OURS]


def installed_version(package: str) -> str | None:
    """The version that is installed, if any."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def findings(
    advisories: Iterable[Advisory],
    requirements: Sequence[tuple[str, Requirement]],
    version_of: Callable[[str], str | None] = installed_version,
) -> Iterator[str]:
    """A line for each advisory that hits what is installed, or what a range of ours admits without a reason."""
    for advisory in advisories:
        version = version_of(advisory.package)
        if version is not None and advisory.hits(version):
            yield f"installed: {advisory.package} {version}: {advisory}"
        for where, requirement in requirements:
            ours = canonicalize_name(requirement.name) == advisory.package
            if ours and not advisory.unaffected and advisory.admitted_by(requirement.specifier):
                yield f"{where}: {requirement} admits what is affected: {advisory}"


def excuses(advisories: Iterable[Advisory], requirements: Sequence[tuple[str, Requirement]]) -> Iterator[str]:
    """A line for each advisory that a range of ours admits with a reason."""
    for advisory in advisories:
        ranges = [r.specifier for _, r in requirements if canonicalize_name(r.name) == advisory.package]
        if advisory.unaffected and any(map(advisory.admitted_by, ranges)):
            yield f"admitted: {advisory.package} with {advisory.id}, since {advisory.unaffected}"


# -- pip-audit


def run_pip_audit(*arguments: str) -> list[dict[str, Any]] | None:
    """What pip-audit says of each package; None if it says nothing that can be read."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        return list(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return None


def service_answers() -> bool:
    """Whether pip-audit finds the advisory of a release that has one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(AFFECTED + "\n")
        said = run_pip_audit("--requirement", str(file), "--no-deps", "--disable-pip")
    return bool(said) and any(package.get("vulns") for package in said)


def unexcused(said: Iterable[Mapping[str, Any]], advisories: Iterable[Advisory]) -> Iterator[str]:
    """A line for each advisory of pip-audit that the list gives no reason for."""
    excused = {(a.package, name) for a in advisories if a.unaffected for name in (a.id, *a.aliases)}
    for package in said:
        name = canonicalize_name(package["name"])
        for found in package.get("vulns", ()):
            if not {(name, known) for known in (found["id"], *found.get("aliases", ()))} & excused:
                fixed = ", ".join(found.get("fix_versions", ())) or "no release"
                text = re.sub(r"\s+", " ", found.get("description", ""))[:160]
                yield f"pip-audit: {name} {package['version']}: {found['id']} (fixed in {fixed}): {text}"


def ask_pip_audit(advisories: Sequence[Advisory]) -> tuple[list[str], str, bool]:
    """What pip-audit found, what is to be said of it, and whether it could be asked."""
    if importlib.util.find_spec("pip_audit") is None:
        return [], "pip-audit: not run, it is not installed (pip install pip-audit)", False
    if not service_answers():
        return [], f"pip-audit: not run, its service does not answer: it knows nothing of {AFFECTED}", False
    said = run_pip_audit("--skip-editable")
    if said is None:
        return [], "pip-audit: failed", False
    skipped = [package["name"] for package in said if "skip_reason" in package]
    told = f"pip-audit: ran, {len(said) - len(skipped)} packages"
    told += f", not {', '.join(skipped)}" if skipped else ""
    return list(unexcused(said, advisories)), told, True


def main(words: Sequence[str] | None = None) -> int:
    """Runs both; prints what ran and what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--online", action="store_true", help="an error if pip-audit could not be asked")
    wanted = parser.parse_args(words)
    advisories, requirements = read_advisories(), admitted()
    found = list(findings(advisories, requirements))
    packages = {advisory.package for advisory in advisories}
    print(
        f"tools/advisories.toml: ran, {len(advisories)} advisories of {len(packages)} packages, against what is "
        f"installed and {len(requirements)} version ranges"
    )
    for line in excuses(advisories, requirements):
        print(f"  {line}")
    more, told, asked = ask_pip_audit(advisories)
    print(told)
    for line in (*found, *more):
        print(f"FOUND {line}")
    return 1 if found or more else 2 if wanted.online and not asked else 0


if __name__ == "__main__":
    sys.exit(main())
