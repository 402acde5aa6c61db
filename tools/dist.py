"""Builds what is released into a folder, wheel and source package, and checks both.

    python tools/dist.py FOLDER

- The source package holds what the repository holds.
- The wheel that is built from it and the one that is built from the tree are the same, byte for byte.
- `twine check --strict` and `check-wheel-contents` find nothing.
- The description that a package index shows is the README, without links that lead nowhere there.
- Building leaves nothing behind.
- A user's app over the installed wheel (tests/typed) is clean under `mypy --strict`.

Run it with the environment's Python.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MADE = {"PKG-INFO"}  # what building adds to a source package
LARGEST = 3_000_000  # bytes: 1.4 MB today


class DistError(Exception):
    """What is wrong with what was built."""


def main(args: list[str]) -> int:
    """Builds into the folder, checks, and returns the exit code."""
    if len(args) != 1:
        print("usage: python tools/dist.py FOLDER", file=sys.stderr)
        return 2
    try:
        for line in checked(Path(args[0]).resolve()):
            print(f"    {line}", flush=True)
    except DistError as error:
        print(f"    FAILED: {error}", file=sys.stderr)
        return 1
    return 0


def checked(folder: Path) -> Iterator[str]:
    """Each check as a line that says what was found well."""
    before = lying_around()
    python("-m", "build", "--quiet", "--outdir", str(folder), str(ROOT))
    python("-m", "build", "--quiet", "--wheel", "--outdir", str(folder / "from-tree"), str(ROOT))
    if left := lying_around() - before:
        raise DistError(f"building left behind: {', '.join(sorted(left))}")
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    yield source_package(source)
    if wheel.read_bytes() != next((folder / "from-tree").glob("*.whl")).read_bytes():
        raise DistError("the wheel of the source package is not the wheel of the tree")
    yield f"{wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB, the same from the source package and from the tree"
    python("-m", "twine", "--no-color", "check", "--strict", str(wheel), str(source))
    python("-m", "check_wheel_contents", "--no-config", "--package", str(ROOT / "langchain_memkit"), str(wheel))
    yield "twine check --strict, check-wheel-contents: nothing found"
    yield description(wheel)
    yield typed(wheel)


def lying_around() -> set[str]:
    """What stands beside the project's folders, `build/` and caches among it."""
    return {path.name for path in ROOT.iterdir()} | {path.name for path in ROOT.glob("build/*")}


def source_package(source: Path) -> str:
    """The files of the source package are those of the repository."""
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()} - MADE
    expected = in_repository() if (ROOT / ".git").exists() else names  # an unpacked one is built from as well
    if names != expected:
        more, fewer = sorted(names - expected), sorted(expected - names)
        raise DistError(f"{source.name} holds besides: {more}; it lacks: {fewer}")
    if (size := source.stat().st_size) > LARGEST:
        raise DistError(f"{source.name} has {size:,} bytes, more than {LARGEST:,}: is all of it needed?")
    return f"{source.name}: {len(names)} files, {size / 1e3:.0f} kB"


def in_repository() -> set[str]:
    """Tracked files, and new ones that are not ignored."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


def description(wheel: Path) -> str:
    """What an index shows is the README, without links that lead nowhere there."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        shown = str(message_from_string(archive.read(name).decode()).get_payload())
    readme = (ROOT / "README.md").read_text()
    if dead := re.findall(r"\]\((?![a-z]+:|#)[^)\s]*\)", shown):
        raise DistError(f"these links lead nowhere on a package index: {', '.join(dead)}")
    blocks = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    if blocks.findall(shown) != blocks.findall(readme):
        raise DistError("the code of the README has changed on its way into the description")
    return f"description: {len(shown.splitlines())} lines, {len(blocks.findall(shown))} blocks of code, no dead links"


def typed(wheel: Path) -> str:
    """A user's app over the installed wheel, under `mypy --strict` and with no other setting."""
    with tempfile.TemporaryDirectory() as folder:
        user = Path(folder)
        venv.create(user / "venv", symlinks=sys.platform != "win32")
        there = {"base": str(user / "venv"), "platbase": str(user / "venv")}
        site, own = Path(sysconfig.get_path("purelib", "venv", there)), sysconfig.get_path("purelib")
        interpreter = str(Path(sysconfig.get_path("scripts", "venv", there)) / "python")
        python("-m", "pip", "--python", interpreter, "install", "--quiet", "--no-deps", str(wheel))
        (site / "others.pth").write_text(f"{own}\n")  # what the app needs besides; our editable install does not follow
        shutil.copy(ROOT / "tests" / "typed" / "app.py", user)
        options = ["--strict", "--config-file=", "--cache-dir=cache", f"--python-executable={interpreter}"]
        found = python("-m", "mypy", *options, "app.py", cwd=user)
    return f"mypy --strict on tests/typed/app.py over the installed wheel: {found.strip()}"


def python(*args: str, cwd: Path = ROOT) -> str:
    """Runs the environment's Python and returns what it printed; its failure is ours."""
    done = subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError(f"python {' '.join(args)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
