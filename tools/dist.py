"""Builds what is released into a folder, wheel and source package, and checks both: run by `make wheel`.

    python tools/dist.py FOLDER

- The source package holds what the repository holds.
- The wheel that is built from it and the one that is built from the tree are the same, byte for byte.
- `twine check --strict` and `check-wheel-contents` find nothing.
- A user's app over the installed wheel (tests/typed) is clean under `mypy --strict`.
"""

from __future__ import annotations

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
    python("-m", "build", "--installer", "uv", "--quiet", "--outdir", str(folder), str(ROOT))
    python("-m", "build", "--installer", "uv", "--quiet", "--wheel", "--outdir", str(folder / "from-tree"), str(ROOT))
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    if wheel.read_bytes() != next((folder / "from-tree").glob("*.whl")).read_bytes():
        sys.exit("the wheel of the source package is not the wheel of the tree")
    check_source(source)
    python("-m", "twine", "--no-color", "check", "--strict", str(wheel), str(source))
    python("-m", "check_wheel_contents", "--no-config", "--package", str(ROOT / "langchain_memkit"), str(wheel))
    check_types(wheel)
    print(f"{wheel.name}, {wheel.stat().st_size / 1e3:.0f} kB; {source.name}, {source.stat().st_size / 1e3:.0f} kB")


def check_source(source: Path) -> None:
    """Compare the files of the source package with those of the repository, new ones among them."""
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()} - {"PKG-INFO"}
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    expected = {name for name in listed if name and (ROOT / name).exists()}
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
