"""`tools/audit.py`: which versions an advisory hits, which ranges admit them, and what pip-audit says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("memkit_audit", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def advisory(audit: ModuleType, *affected: str, **more: Any) -> Any:
    """An entry of the list."""
    return audit.Advisory.of("Some_Package", "CVE-1", affected, **more)


@pytest.mark.parametrize(
    ("affected", "version", "hit"),
    [
        (["<1.2.5"], "1.2.4", True),
        (["<1.2.5"], "1.2.5", False),
        (["<1.2.5"], "1.2.5rc1", False),  # as PEP 440 orders it: below, and not before 1.2.5's own pre-releases
        (["<1.2.5"], "1.2.4rc1", True),
        (["<=1.3.8"], "1.3.8", True),
        (["<=1.3.8"], "1.3.9", False),
        ([">=1.0.0,<1.2.5", "<0.3.81"], "1.1", True),
        ([">=1.0.0,<1.2.5", "<0.3.81"], "0.3.80", True),
        ([">=1.0.0,<1.2.5", "<0.3.81"], "0.3.81", False),
        ([">=1.0.0,<1.2.5", "<0.3.81"], "0.9", False),
        ([">=1.0.0,<1.2.5"], "10.0", False),
        (["<4.18.2"], "4.2", True),
    ],
)
def test_versions(audit: ModuleType, affected: list[str], version: str, hit: bool) -> None:
    """Versions are numbers, not text; each of several ranges counts, and nothing between them."""
    assert advisory(audit, *affected).hits(version) is hit


@pytest.mark.parametrize(
    ("affected", "admits", "hit"),
    [
        (["<4.18.2"], ">=4.13,<5", True),
        (["<4.18.2"], ">=4.18.2,<5", False),
        (["<4.18.2"], "==4.18.1", True),
        (["<4.18.2"], "~=4.17", True),
        (["<4.18.2"], "", True),
        (["<4.18.2"], "<5", True),
        ([">=1.0.0,<1.2.5", "<0.3.81"], ">=0.3.81,<1", False),
        ([">=1.0.0,<1.2.5", "<0.3.81"], ">=0.3.81,<2", True),  # it begins before the range, and reaches into it
        ([">=1.0.0,<1.2.5", "<0.3.81"], ">=1.2.5,<3", False),
        ([">=2,<2.1"], ">=1,<3", True),
        ([">=2,<2.1"], ">=1,<2", False),
        (["<=1.3.8"], ">=1.3.8,<2", True),
        (["==1.5"], ">=1,<2", True),
    ],
)
def test_ranges(audit: ModuleType, affected: list[str], admits: str, hit: bool) -> None:
    """A range of ours that has one version in common with an affected one admits it."""
    assert advisory(audit, *affected).admitted_by(SpecifierSet(admits)) is hit


def test_ranges_that_are_not_understood(audit: ModuleType) -> None:
    """Better an error than a range that is taken for another."""
    for strange in (">1", "!=1", "===1"):
        with pytest.raises(ValueError, match="cannot tell"):
            advisory(audit, "<2").admitted_by(SpecifierSet(strange))


def test_findings(audit: ModuleType) -> None:
    """What is installed must not be affected; what a range admits needs a reason; other packages count for nothing."""
    bad, excused = advisory(audit, "<2"), advisory(audit, "<2", unaffected="we do not use it")
    wide = [("extra x", Requirement("some.package>=1,<3")), ("extra y", Requirement("other>=1"))]
    assert list(audit.findings([bad, excused], wide, lambda name: None)) == [
        f"extra x: {wide[0][1]} admits what is affected: {bad}"
    ]
    assert list(audit.findings([bad], [("extra x", Requirement("some-package>=2"))], lambda name: "2.0")) == []
    installed = list(audit.findings([excused], wide, {"some-package": "1.9"}.get))
    assert [line.partition(":")[0] for line in installed] == ["installed"]


@pytest.mark.parametrize(
    "wrong",
    ["[p]\nCVE-1 = []", '[p]\nCVE-1 = ["about 2"]', "[p.CVE-1]\nsurprise = 1", '[unaffected.p]\nCVE-2 = "not listed"'],
)
def test_malformed_entries(audit: ModuleType, wrong: str, tmp_path: Path) -> None:
    """An entry without a range, with a field that nobody reads, or a reason for what is not listed."""
    (listed := tmp_path / "list.toml").write_text('[p]\nCVE-1 = ["<2"]\n[unaffected.p]\nCVE-1 = "not used"\n')
    (entry,) = audit.read_advisories(listed)
    assert (entry.hits("1"), entry.unaffected) == (True, "not used")
    listed.write_text(wrong if "unaffected" in wrong else f"{wrong}\n[unaffected]\n")
    with pytest.raises((ValueError, TypeError)):
        audit.read_advisories(listed)


def test_the_committed_list(audit: ModuleType) -> None:
    """It is read; each entry has an id of a kind that can be looked up, and nothing that is installed here is hit."""
    known = audit.read_advisories()
    assert len({(a.package, a.id) for a in known}) == len(known) >= 20
    assert [a.id for a in known if not re.match(r"(CVE-\d{4}-\d+|GHSA(-\w{4}){3})$", a.id)] == []
    assert list(audit.findings(known, [])) == []
    where = [name for name, _ in audit.admitted()]
    assert {"dependencies", "extra mongodb", "extra agents"} <= set(where)
