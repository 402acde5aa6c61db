"""Builds what is released into a folder, wheel and source package, and checks both: run by `make wheel`.

    python tools/dist.py FOLDER

- The source package holds what the repository holds.
- Built again, in another folder and with other rights of files, both are the same, byte for byte; and so is the wheel
  that is built from the tree. Build tools have the versions of tools/build_constraints.txt, and files the time of the
  commit.
- `twine check --strict` and `check-wheel-contents` find nothing.
- A user's app over the installed wheel (tests/typed) is clean under `mypy --strict`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 3_000_000  # bytes: 1.4 MB today


def main() -> None:
    """Build into the folder, and check."""
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/dist.py FOLDER")
    folder = Path(sys.argv[1]).resolve()
    build(ROOT, folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_source(source)
    check_again(wheel, source)
    python("-m", "twine", "--no-color", "check", "--strict", str(wheel), str(source))
    python("-m", "check_wheel_contents", "--no-config", "--package", str(ROOT / "langchain_memkit"), str(wheel))
    check_types(wheel)
    print(f"{wheel.name}, {wheel.stat().st_size / 1e3:.0f} kB; {source.name}, {source.stat().st_size / 1e3:.0f} kB")


def build(tree: Path, folder: Path, *options: str) -> None:
    """Build what stands in a tree; the wheel from the source package, if both are asked for."""
    git = ["git", "log", "-1", "--format=%ct"]
    when = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    pins = str(ROOT / "tools" / "build_constraints.txt")
    os.environ.update({"SOURCE_DATE_EPOCH": when, "UV_CONSTRAINT": pins, "UV_BUILD_CONSTRAINT": pins})
    python("-m", "build", "--installer", "uv", "--quiet", *options, "--outdir", str(folder), str(tree))
    for name in ("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT"):
        del os.environ[name]


def listed() -> set[str]:
    """Name the files of the repository, new ones among them."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return {name for name in names if name and (ROOT / name).exists()}


def check_again(wheel: Path, source: Path) -> None:
    """Build from a copy, as somebody else would who checks what was released, and the wheel from the tree as well."""
    with tempfile.TemporaryDirectory() as folder:
        copy, again, direct = (Path(folder, name) for name in ("another place", "again", "direct"))
        before = os.umask(0o077)
        for name in listed():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
            if os.access(ROOT / name, os.X_OK):
                (copy / name).chmod(0o700)
        build(copy, again)
        os.umask(before)
        build(ROOT, direct, "--wheel")
        for built in (wheel, source):
            if (again / built.name).read_bytes() != built.read_bytes():
                sys.exit(f"{built.name}, built again in {again}, is another file")
        if (direct / wheel.name).read_bytes() != wheel.read_bytes():
            sys.exit("the wheel of the source package is not the wheel of the tree")
    for built in (wheel, source):
        print(
            f"built twice, byte for byte the same: sha256 {hashlib.sha256(built.read_bytes()).hexdigest()} {built.name}"
        )


def check_source(source: Path) -> None:
    """Compare the files of the source package with those of the repository, new ones among them."""
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()} - {"PKG-INFO"}
    expected = listed()
    if names != expected:
        sys.exit(f"{source.name} holds besides: {sorted(names - expected)}; it lacks: {sorted(expected - names)}")
    if (size := source.stat().st_size) > LARGEST:
        sys.exit(f"{source.name} has {size:,} bytes, more than {LARGEST:,}: is all of it needed?")


def check_types(wheel: Path) -> None:
    """Run `mypy --strict` on a user's app over the installed wheel, with no other setting."""
    with tempfile.TemporaryDirectory() as folder:
        user = Path(folder)
        venv.create(user / "venv", symlinks=True)
        there = {"base": str(user / "venv"), "platbase": str(user / "venv")}
        site, own = Path(sysconfig.get_path("purelib", "venv", there)), sysconfig.get_path("purelib")
        interpreter = str(user / "venv" / "bin" / "python")
        python("-m", "pip", "--python", interpreter, "install", "--quiet", "--no-deps", str(wheel))
        (site / "others.pth").write_text(f"{own}\n")  # what the app needs besides; our editable install does not follow
        shutil.copy(ROOT / "tests" / "typed" / "app.py", user)
        options = ["--strict", "--config-file=", "--cache-dir=cache", f"--python-executable={interpreter}"]
        python("-m", "mypy", *options, "app.py", cwd=user)


def python(*args: str, cwd: Path = ROOT) -> None:
    """Run the environment's Python; its failure is ours."""
    if code := subprocess.run([sys.executable, *args], cwd=cwd, check=False).returncode:
        sys.exit(code)


if __name__ == "__main__":
    main()
