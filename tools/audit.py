"""Known advisories against what is installed, and against what our version ranges admit.

    python tools/audit.py              the committed list
    python tools/audit.py --online     and pip-audit, which has to be installed and to reach its service

The list is tools/advisories.toml: it needs no network, and knows the packages that memkit depends on. pip-audit knows
every package, but needs PyPI's advisories. A mirror may serve packages without them and answer "not found", which
pip-audit takes for "nothing known": so it is first asked about a release that is known to be affected.

Exit code: 0 nothing found; 1 something was found; 2 pip-audit could not be asked.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
AFFECTED = "langchain-core==1.2.4"  # CVE-2025-68664: a service that does not know it is none


@dataclass(frozen=True)
class Advisory:
    """One entry of the list."""

    package: str
    id: str
    affected: tuple[SpecifierSet, ...]
    unaffected: str

    @classmethod
    def of(cls, package: str, advisory_id: str, affected: Sequence[str], unaffected: str = "") -> Advisory:
        """Read an entry; it is an error if nothing is affected."""
        if not affected:
            raise ValueError(f"{advisory_id}: no range is affected")
        return cls(canonicalize_name(package), advisory_id, tuple(map(SpecifierSet, affected)), unaffected)

    def hits(self, version: str) -> bool:
        """Return whether a version is affected."""
        return any(each.contains(version, prereleases=True) for each in self.affected)

    def admitted_by(self, admits: SpecifierSet) -> bool:
        """Return whether a range of ours admits a version that is affected.

        Ranges begin with a version that belongs to them, or with 0: if two have a version in common, the later one of
        their beginnings is such a version.
        """
        begins = [(each, begin) for each in self.affected for begin in (_begin(admits), _begin(each))]
        return any(all(r.contains(begin, prereleases=True) for r in (admits, each)) for each, begin in begins)

    def __str__(self) -> str:
        return f"{self.id} ({' or '.join(map(str, self.affected))}; https://osv.dev/vulnerability/{self.id})"


def _begin(range_: SpecifierSet) -> str:
    if strange := {each.operator for each in range_} - {">=", "<=", "<", "==", "~="}:
        raise ValueError(f"cannot tell where {str(range_)!r} begins: {', '.join(sorted(strange))}")
    begins = [Version(each.version.removesuffix(".*")) for each in range_ if each.operator in (">=", "==", "~=")]
    return str(max(begins, default=Version("0")))


def read_advisories(path: Path = ROOT / "tools" / "advisories.toml") -> list[Advisory]:
    """Read the committed list."""
    listed = tomllib.loads(path.read_text())
    reasons = {(package, name): why for package, ids in listed.pop("unaffected").items() for name, why in ids.items()}
    known = {(package, name): ranges for package, ids in listed.items() for name, ranges in ids.items()}
    if strange := reasons.keys() - known.keys():
        raise ValueError(f"a reason for what is not listed: {strange}")
    return [Advisory.of(*key, ranges, reasons.get(key, "")) for key, ranges in known.items()]


def admitted(path: Path = ROOT / "pyproject.toml") -> list[tuple[str, Requirement]]:
    """Return (where it stands, requirement) for each of our dependencies, those of the extras among them."""
    project = tomllib.loads(path.read_text())["project"]
    listed = {"dependencies": project["dependencies"]}
    listed |= {f"extra {name}": texts for name, texts in project["optional-dependencies"].items()}
    return [(where, Requirement(text)) for where, texts in listed.items() for text in texts]


def installed_version(package: str) -> str | None:
    """Return the version that is installed, if any."""
    return next((found.version for found in importlib.metadata.distributions(name=package)), None)


def findings(
    advisories: Iterable[Advisory],
    requirements: Sequence[tuple[str, Requirement]],
    version_of: Callable[[str], str | None] = installed_version,
) -> Iterator[str]:
    """Give a line for each advisory that hits what is installed, or what a range of ours admits without a reason."""
    for advisory in advisories:
        version = version_of(advisory.package)
        if version is not None and advisory.hits(version):
            yield f"installed: {advisory.package} {version}: {advisory}"
        for where, requirement in requirements:
            ours = canonicalize_name(requirement.name) == advisory.package
            if ours and not advisory.unaffected and advisory.admitted_by(requirement.specifier):
                yield f"{where}: {requirement} admits what is affected: {advisory}"


def pip_audit(*arguments: str) -> int:
    """Run pip-audit, and return its exit code: 1 if it found something."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", *arguments]
    return subprocess.run(command, check=False).returncode


def audit_online(advisories: Sequence[Advisory]) -> int:
    """Ask pip-audit about what is installed, but for what the list gives a reason for."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(AFFECTED + "\n")
        file.flush()
        if pip_audit("--requirement", file.name, "--no-deps", "--disable-pip") != 1:
            print(f"pip-audit could not be asked: it knows nothing of {AFFECTED}")
            return 2
    return pip_audit("--skip-editable", *(f"--ignore-vuln={a.id}" for a in advisories if a.unaffected))


def main() -> int:
    """Run both; print what was found."""
    advisories, requirements = read_advisories(), admitted()
    found = list(findings(advisories, requirements))
    print(f"{len(advisories)} advisories, against what is installed and {len(requirements)} version ranges")
    for line in found:
        print(f"  FOUND {line}")
    online = audit_online(advisories) if "--online" in sys.argv[1:] else 0
    return 1 if found else online


if __name__ == "__main__":
    sys.exit(main())
