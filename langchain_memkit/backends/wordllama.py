"""`WordLlamaEmbeddings`: local embeddings from a table of word pieces. Needs the extra `local`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import BPE

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.errors import ConfigurationError, MissingExtraError

__all__ = ["WordLlamaEmbeddings"]

Vector: TypeAlias = npt.NDArray[np.float32]

DIMS = (64, 128, 256)
TOKENS = "tokenizers/l2_supercat_tokenizer_config.json"
WEIGHTS = "weights/l2_supercat_256.safetensors"
PART = 10_000  # characters tokenized at once: takes 7 ms and 4 MB, for emoji 40 MB
SHORT = 2_000  # characters that take less time than a switch to a thread and back: half a millisecond
COMMON = 24  # characters of the longest word that is cached
REMEMBERED = 8192  # words in the cache: 2 MB
GAP = "\u2581"  # the tokenizer's sign for a blank
WORD = re.compile(f"\n|{GAP}*[^{GAP}\n]+|{GAP}+")
SPECIAL = re.compile("</?s>|<unk>")  # special tokens, which the tokenizer finds even within words
BLANK = " "  # embedded in place of an empty text

_guard = ForkSafeLock()


class WordLlamaEmbeddings(Embeddings):
    """Embeddings that need no key, no server, no download and no torch: the default where no other model is given.

    WordLlama's table has a vector for each of 32,000 word pieces; the vector of a text is the mean of those of its
    pieces. So it knows which words are similar, but not their order: "A beats B" and "B beats A" get the same vector.
    It is made for English. One core embeds some 8,000 chat messages a second. A sentence model finds more: any
    LangChain `Embeddings` can take its place.

    The table (16 MB, in the wheel of `wordllama`) is read from its file at first use, once per process, in 0.2 s.
    The library itself is not imported, since that configures the root logger and loads an HTTP client. The vectors
    equal those of its `embed(texts, norm=True)`. Threads and forked processes may share an object.

    Args:
        dims: Number of dimensions: 256, 128 or 64. The shorter vectors are the beginning of the longest, and find less.

    Attributes:
        dims: The number of dimensions.

    Raises:
        ConfigurationError: `dims` is none of these numbers.
        MissingExtraError: The package `wordllama` is not installed.

    Example:
        >>> embeddings = WordLlamaEmbeddings()
        >>> tea, coffee, tax = embeddings.embed_documents(["I like tea.", "She drinks coffee.", "Pay your taxes."])
        >>> near = lambda a, b: sum(x * y for x, y in zip(a, b))
        >>> len(tea), near(tea, coffee) > near(tea, tax)
        (256, True)
    """

    is_local: ClassVar = True
    """Embedding needs no server: a memory does it before a turn is stored, and stores the vectors with it."""

    def __init__(self, dims: int = 256) -> None:
        if dims not in DIMS:
            raise ConfigurationError(f"dims must be one of {', '.join(map(str, DIMS))}, not {dims!r:.50}")
        self.dims = dims
        _folder()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dims={self.dims})"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts. On an event loop use `aembed_documents`, which does it in a thread.

        Args:
            texts: Texts of any length and number. A long one is read in parts, and whole. An empty one gets the vector
                of a blank, so that every vector has the length 1 and no store divides by zero.

        Returns:
            A vector of `dims` numbers and length 1 for each text, in order; it does not depend on the other texts.

        Raises:
            TypeError: `texts` is a single string.
        """
        given: object = texts
        if isinstance(given, str):  # its letters would be embedded as texts
            raise TypeError("texts must be a list of texts, not a str: embed_query takes one")
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Embed one text; the vector is the one that `embed_documents` returns."""
        vector: list[float] = self._vector(text).tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Run `embed_documents` asynchronously: at once for a few short texts, else in a thread."""
        return self.embed_documents(texts) if _is_quick(texts) else await super().aembed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Run `embed_query` asynchronously: at once for a short text, else in a thread."""
        return self.embed_query(text) if _is_quick([text]) else await super().aembed_query(text)

    def _vector(self, text: str) -> Vector:
        with _guard:  # loaded once per process, whichever thread comes first
            tokenizer, table = _load()
        total, count = np.zeros(table.shape[1], np.float32), 0
        for part in _parts(_readable(text)):
            ids = _ids_of(tokenizer, part)
            total, count = total + table[ids].sum(axis=0), count + len(ids)
        if not count:
            return self._vector(BLANK)
        vector = total[: self.dims] / count
        return vector / np.linalg.norm(vector)


def _ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokenize a text to the ids that `tokenizer.encode` gives, but word by word, which takes a third of the time."""
    # No piece spans the blank before a word or the end of a line, so a word has the same pieces wherever it stands.
    # Special tokens are the exception.
    if not text or SPECIAL.search(text):
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids
    found: list[int] = []
    for word in WORD.findall(f"{GAP}{text.replace(' ', GAP)}"):
        found += _pieces_of(word) if len(word) <= COMMON else _pieces_of.__wrapped__(word)
    return found


@lru_cache(maxsize=REMEMBERED)
def _pieces_of(word: str) -> tuple[int, ...]:
    return tuple([token.id for token in _load()[0].model.tokenize(word)])


def _is_quick(texts: Sequence[str]) -> bool:
    """Return whether embedding takes less time than a thread switch: the texts are short and the model is loaded."""
    return _load.cache_info().currsize > 0 and sum(map(len, texts)) <= SHORT


def _parts(text: str) -> Iterator[str]:
    """Split a text at blanks into parts of at most `PART` characters."""
    # The blank itself is dropped: a part is tokenized as if it followed one, so the pieces stay the same.
    start = 0
    while len(text) - start > PART:
        blank = text.rfind(" ", start + 1, start + PART)
        end = blank if blank > 0 else start + PART
        yield text[start:end]
        start = end + (blank > 0)
    yield text[start:]


def _readable(text: str) -> str:
    """Replace lone surrogates, which no tokenizer accepts."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _folder() -> Path:
    """Return the folder of the package `wordllama`, without importing it."""
    spec = find_spec("wordllama")
    folder = Path(str(spec.origin)).parent if spec else None
    if folder and all((folder / file).is_file() for file in (TOKENS, WEIGHTS)):
        return folder
    what = f"{folder} holds no {WEIGHTS}" if folder else "wordllama is missing"
    raise MissingExtraError(f'WordLlamaEmbeddings needs an extra: pip install "langchain-memkit[local]" ({what})')


@lru_cache(maxsize=1)
def _load() -> tuple[Any, Vector]:
    """Load the tokenizer and the table."""
    folder = _folder()
    text = (folder / TOKENS).read_text(encoding="utf-8")
    tokenizer, model = Tokenizer.from_str(text), json.loads(text)["model"]
    # Without its cache, which would keep 10,000 whole texts (50 MB) in each thread that uses it.
    merges = [tuple(merge.split(" ")) for merge in model["merges"]]
    options = {name: model[name] for name in ("unk_token", "fuse_unk", "byte_fallback")}
    tokenizer.model = BPE(model["vocab"], merges, cache_capacity=0, **options)
    with safe_open(folder / WEIGHTS, framework="np") as file:
        return tokenizer, file.get_tensor("embedding.weight").astype(np.float32)
