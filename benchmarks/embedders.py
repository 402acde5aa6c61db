"""The embedders of benchmarks/recall.py and followups.py. Vectors are made once; the time it takes is kept apart."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from benchmarks.common import console

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
                raise ValueError(f"{folder / name} has the sha256 {found}, expected {expected}")
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


def embeddings_named(name: str) -> Embeddings | None:
    """`minilm` or `wordllama`, which make the same vector of a text and of a question; None: MiniLM is not there."""
    if name == "minilm":
        return MiniLM(PARTS) if (PARTS / WEIGHTS).exists() else None
    if name == "wordllama":
        from langchain_memkit import WordLlamaEmbeddings

        return WordLlamaEmbeddings()
    raise ValueError(f"embeddings must be one of {', '.join(DEFAULT)}, got {name!r}")


def shared_embedders(names: Sequence[str]) -> dict[str, Shared]:
    """Those that are there; says which is not."""
    found = {name: embeddings_named(name) for name in names}
    for name in [name for name, embeddings in found.items() if embeddings is None]:
        console.print(f"{name} is not measured: its files are not there (python tools/parts.py minilm)")
    return {name: Shared(embeddings) for name, embeddings in found.items() if embeddings is not None}


class Shared(Embeddings):
    """Gives every system the same vectors, each made once, and counts the time that it takes."""

    is_local = True

    def __init__(self, inner: Embeddings) -> None:
        self._inner = inner
        self._known: dict[str, list[float]] = {}
        self.seconds = 0.0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        begin = time.perf_counter()
        if new := [text for text in dict.fromkeys(texts) if text not in self._known]:
            made = np.array(self._inner.embed_documents(new), F)  # as stores keep them
            self._known.update(zip(new, made.tolist(), strict=True))
        found = [self._known[text] for text in texts]
        self.seconds += time.perf_counter() - begin
        return found

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        return self.embed_query(text)
