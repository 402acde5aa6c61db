"""Texts into vectors that belong together: checked, scaled to length 1, and all of one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from langchain_core.embeddings import Embeddings

from langchain_memkit._sync import AsStep, Step
from langchain_memkit.backends._vectors.rows import Vector, readable
from langchain_memkit.base import kind_given
from langchain_memkit.errors import ConfigurationError, HistoryReadError

PROBE = "A memory keeps what was said, by whom and when."
"""Its vector tells one model from another; never changed, because it is stored."""
ALIKE = 0.99
NEARLY = 1e-6


class ProbeStore(Protocol):
    """Where the probe's vector is kept; both are flows."""

    async def probe(self) -> bytes | None: ...
    async def keep_probe(self, probe: bytes) -> bytes: ...


class Embedder:
    """The embedding model of a store, with what is known of its vectors.

    Args:
        embedding: The model.
        store: Keeps the probe.
        step: Makes a step of a flow of the store.
    """

    def __init__(self, embedding: Embeddings, store: ProbeStore, step: AsStep) -> None:
        if not isinstance(embedding, Embeddings):
            msg = f"embedding must be a LangChain Embeddings object, not {kind_given(embedding, Embeddings)}"  # type: ignore[unreachable]  # callers without types
            raise ConfigurationError(msg)
        self.embedding = embedding
        self.dims: int | None = None  # known once the model was compared with the one whose vectors are stored
        self._store = store
        self._step = step

    async def documents(self, texts: Sequence[str]) -> list[Vector | None]:
        """Vectors of texts to store; the first time the probe is embedded along with them. None for all zeros."""
        if not texts:
            return []
        first = self.dims is None
        vectors = await self._embedded([*map(readable, texts), *([PROBE] if first else [])])
        if first:
            await self._compare(vectors.pop())
        return vectors

    async def query(self, text: str) -> Vector:
        """The vector of a question. Where nothing is stored, nothing is compared."""
        if self.dims is None and await self._step(self._store.probe) is not None:
            await self.known()
        model, asked = self.embedding, readable(text)
        vector = await Step(lambda: model.embed_query(asked), lambda: model.aembed_query(asked))
        try:
            (found,) = checked([vector], self.dims)
        except ConfigurationError:
            found = None
        if found is None:
            expected = "finite numbers that are not all 0" + (f", {self.dims} of them" if self.dims else "")
            msg = (
                f"the question's vector is of no use: {type(model).__name__} should have given a list of {expected}. "
                "The store was not searched; nothing can be said of what is in it."
            )
            raise HistoryReadError(msg)
        return found

    async def known(self) -> int:
        """The dimensions of the model, which is compared with the one whose vectors are stored."""
        if self.dims is None:
            await self._compare((await self._embedded([PROBE]))[0])
        assert self.dims is not None  # noqa: S101  # the comparison says so or raises
        return self.dims

    async def _embedded(self, texts: list[str]) -> list[Vector | None]:
        model = self.embedding
        vectors = await Step(lambda: model.embed_documents(texts), lambda: model.aembed_documents(texts))
        if len(vectors) != len(texts):
            msg = f"the embedding model returned {len(vectors)} vectors for {len(texts)} texts. Nothing was stored."
            raise ConfigurationError(msg)
        return checked(vectors, self.dims)

    async def _compare(self, probe: Vector | None) -> None:
        if probe is None:
            msg = (
                f"{type(self.embedding).__name__} gave a vector of all zeros for a plain English sentence. Use another "
                "embedding model. Nothing was stored."
            )
            raise ConfigurationError(msg)
        stored = await self._step(self._store.probe)
        if stored is None:
            stored = await self._step(lambda: self._store.keep_probe(probe.tobytes()))
        if len(stored) % 4 or not stored:
            msg = "what the store knows of its embedding model is damaged"
            raise HistoryReadError(msg)
        known = np.frombuffer(stored, "<f4")
        if len(known) != len(probe):
            reason = f"has {len(probe)} dimensions, the stored vectors have {len(known)}"
        elif not float(known @ probe) > ALIKE:
            reason = "gives other vectors for the same text"
        else:
            self.dims = len(probe)
            return
        msg = (
            f"this store was filled with another embedding model: the one given ({type(self.embedding).__name__}) "
            f"{reason}. Use the same model, or a new file or collection."
        )
        raise ConfigurationError(msg)


def checked(vectors: Sequence[Any], dims: int | None) -> list[Vector | None]:
    """Vectors scaled to length 1; None for one that is all zeros: the model knows none of the words.

    Args:
        vectors: Numbers, as the model gave them.
        dims: How many each should have; None for as many as the first.

    Raises:
        ConfigurationError: A vector is none, or not of that length.
    """
    found: list[Vector | None] = []
    for i, vector in enumerate(vectors):
        if _is_ready(vector, dims):
            found.append(vector)
            continue
        try:
            numbers = np.asarray(vector, np.float64)
        except (OverflowError, TypeError, ValueError):
            numbers = np.empty((0, 0))
        dims = dims if dims is not None else numbers.size
        with np.errstate(over="ignore"):
            largest = np.abs(numbers).max(initial=0.0)
        if numbers.ndim != 1 or not numbers.size or not np.isfinite(largest):
            problem = "is no list of finite numbers"
        elif numbers.size != dims:
            problem = f"has {numbers.size} dimensions instead of {dims}"
        elif not largest:
            found.append(None)
            continue
        else:
            numbers = numbers / largest  # so that squares neither overflow nor vanish
            found.append((numbers / np.sqrt(numbers @ numbers)).astype("<f4"))
            continue
        msg = f"vector {i} of the embedding model {problem}. Nothing was stored."
        raise ConfigurationError(msg)
    return found


def _is_ready(vector: Any, dims: int | None) -> bool:
    """Whether it is one that was checked already."""
    plain = isinstance(vector, np.ndarray) and vector.dtype == "<f4" and vector.shape == (dims,)
    return plain and abs(float(vector @ vector) - 1) < NEARLY


def question_vector(vector: Any, dims: int | None) -> Vector:
    """A caller's own vector to search by, scaled to length 1.

    Raises:
        ConfigurationError: It is none, or not of that length.
    """
    (found,) = checked([vector], dims)
    if found is None:
        msg = "the vector to search by is all zeros, so it has no direction: nothing is near to it"
        raise ConfigurationError(msg)
    return found
