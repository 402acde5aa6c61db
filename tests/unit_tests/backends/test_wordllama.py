"""`WordLlamaEmbeddings` with the real table: what comes out, long texts, threads, forks, a clean process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from langchain_memkit.backends import wordllama
from langchain_memkit.backends.wordllama import DIMS, PART, WordLlamaEmbeddings
from langchain_memkit.errors import ConfigurationError, MissingExtraError
from testkit.examples import examples

TEXTS = [
    "I like tea.",
    "She drinks coffee every morning.",
    "Pay your taxes by April.",
    "Biscuit, my dog, was born in Lisbon in 2019.",
    "😀 \x00 你好 São Paulo \n\t e\u0301",
    "word " * 300,
]
EMPTY = ["", " ", "\ud83d"]


class TestUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[WordLlamaEmbeddings]:
        """The class under test."""
        return WordLlamaEmbeddings


class TestIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[WordLlamaEmbeddings]:
        """The class under test."""
        return WordLlamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        """The shortest vectors."""
        return {"dims": 64}


def run(code: str, *arguments: str, **env: str) -> str:
    """What code prints in a fresh process, warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ) | env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# --- what comes out


def test_alike_texts_have_like_vectors() -> None:
    """Drinks are nearer to each other than to taxes, at every length; a store finds the right text."""
    for dims in DIMS:
        embeddings = WordLlamaEmbeddings(dims)
        tea, coffee, tax = np.array(embeddings.embed_documents(TEXTS[:3]))
        assert tea @ coffee > 0.2 > tea @ tax
        store = InMemoryVectorStore(embeddings)
        store.add_texts(TEXTS[:4])
        assert store.similarity_search("Where was the dog born?", k=1)[0].page_content == TEXTS[3]


def test_every_vector_has_length_one() -> None:
    """Floats, finite, of the length asked for: for nothing, blanks, halves of pairs, emoji and control characters."""
    for dims in DIMS:
        vectors = WordLlamaEmbeddings(dims).embed_documents([*TEXTS, *EMPTY])
        assert {len(vector) for vector in vectors} == {dims}
        assert all(type(number) is float for number in vectors[0])
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert WordLlamaEmbeddings().embed_documents([]) == []


def test_short_vectors_begin_the_long_ones() -> None:
    """64 and 128 dimensions are the beginning of 256, at length 1 again."""
    long = np.array(WordLlamaEmbeddings().embed_query(TEXTS[0]))
    for dims in DIMS:
        part = long[:dims] / np.linalg.norm(long[:dims])
        assert np.allclose(WordLlamaEmbeddings(dims).embed_query(TEXTS[0]), part, atol=1e-6)


def test_nothing_is_near_to_a_text_without_words() -> None:
    """An empty text is a blank, which is at right angles to what people say."""
    embeddings = WordLlamaEmbeddings()
    empty = embeddings.embed_query("")
    assert empty == embeddings.embed_query(" ")
    assert np.abs(np.array(embeddings.embed_documents(TEXTS[:4])) @ np.array(empty)).max() < 0.2


def test_a_batch_is_what_single_calls_give() -> None:
    """To the last bit, whatever stands beside a text, in both styles."""
    embeddings = WordLlamaEmbeddings()
    alone = [embeddings.embed_query(text) for text in TEXTS]
    assert embeddings.embed_documents(TEXTS) == alone
    assert embeddings.embed_documents([*TEXTS[::-1], "x" * 50_000])[:-1] == alone[::-1]

    async def both() -> list[Any]:
        return await asyncio.gather(embeddings.aembed_documents(TEXTS), embeddings.aembed_query(TEXTS[0]))

    assert asyncio.run(both()) == [alone, alone[0]]


def test_as_the_library_has_it() -> None:
    """The vectors are those of wordllama's own `embed`, at each length; a long text differs by its cuts only."""
    texts = [text for text in TEXTS if text.strip()]
    random.seed(1)
    words = " ".join(texts).split()
    texts.append(" ".join(random.choices(words, k=8000)))
    assert len(texts[-1]) > 3 * PART
    code = """
        import json, sys, wordllama
        from pathlib import Path
        texts = json.load(sys.stdin)
        for dims in (64, 128, 256):
            here = Path(wordllama.__file__).parent
            model = wordllama.WordLlama.load(cache_dir=here, disable_download=True, trunc_dim=dims)
            print(json.dumps(model.embed(texts, norm=True).tolist()))
    """

    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    for dims, line in zip(DIMS, done.stdout.splitlines(), strict=True):
        assert np.allclose(WordLlamaEmbeddings(dims).embed_documents(texts), json.loads(line), atol=1e-5)


def test_word_by_word_finds_the_pieces_of_the_tokenizer() -> None:
    """Blanks in a row, line ends, other scripts, marks of the model within words: the same pieces as of the whole."""
    tokenizer, _ = wordllama._load()
    chance = random.Random(1)
    bits = [*"ab \n\t\u2581.'\r\x00", "  ", "the ", "ing", "São", "文字", "😀\u200d", "<s>", "</s>", "<unk>", "x" * 30]
    texts = ["".join(chance.choices(bits, k=chance.randint(0, 20))) for _ in range(5000)]
    for text in [*TEXTS, *EMPTY[:2], *texts, Path(__file__).read_text(encoding="utf-8")]:
        assert wordllama._ids_of(tokenizer, text) == tokenizer.encode(text, add_special_tokens=False).ids
    assert any("<s>" in text for text in texts)


# --- long texts


@pytest.mark.parametrize("text", ["word " * 100_000, "x" * 200_000, "😀" * 30_000, " " * 50_000, "\n" * 50_000])
def test_huge_texts_are_read_whole_in_parts(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without blanks: no part is longer than the bound, nothing is left out, and memory stays flat."""
    longest, total = 0, 0
    parts = wordllama._parts

    def watched(text: str) -> Any:
        nonlocal longest, total
        for part in parts(text):
            longest, total = max(longest, len(part)), total + len(part)
            yield part

    monkeypatch.setattr(wordllama, "_parts", watched)
    assert np.isclose(np.linalg.norm(WordLlamaEmbeddings().embed_query(text)), 1)
    assert longest <= PART
    assert len(text) * 0.99 < total <= len(text)


def test_the_end_of_a_long_text_counts() -> None:
    """What stands behind the first part moves the vector."""
    embeddings = WordLlamaEmbeddings()
    tea, both = "tea " * PART, "tea " * PART + "taxes " * PART
    tax = np.array(embeddings.embed_query("taxes"))
    assert np.array(embeddings.embed_query(both)) @ tax > np.array(embeddings.embed_query(tea)) @ tax + 0.3


# --- threads, forks, a clean process


def test_threads_load_once_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 threads that come at once read the files once and get what one gets."""
    expected = WordLlamaEmbeddings().embed_documents(TEXTS)
    wordllama._load.cache_clear()
    loads = []
    original = wordllama.safe_open
    monkeypatch.setattr(wordllama, "safe_open", lambda *a, **k: loads.append(1) or original(*a, **k))
    barrier = threading.Barrier(8)

    def work(n: int) -> bool:
        barrier.wait()
        return all(WordLlamaEmbeddings().embed_documents(TEXTS) == expected for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert loads == [1]


def test_texts_do_not_stay_in_memory() -> None:
    """8,000 new texts in four threads leave nothing behind; the tokenizer's own cache would hold 30 MB of them."""
    code = """
        from concurrent.futures import ThreadPoolExecutor
        from resource import RUSAGE_SELF, getrusage
        from langchain_memkit import WordLlamaEmbeddings
        embed = lambda number: len(WordLlamaEmbeddings().embed_query(f"{number}" + " parrot" * 20))
        with ThreadPoolExecutor(4) as pool:
            for begin, end in ((0, 2000), (2000, 10000)):
                assert set(pool.map(embed, range(begin, end))) == {256}
                print(getrusage(RUSAGE_SELF).ru_maxrss)
    """
    assert np.ptp([int(size) for size in run(code).split()]) / (2**20 if sys.platform == "darwin" else 2**10) < 10


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("loaded", [True, False])
def test_a_forked_process_goes_on(loaded: bool) -> None:
    """Forked while threads embed, or while one loads: each child gets the same vectors, and says nothing."""
    embeddings = WordLlamaEmbeddings()
    expected = embeddings.embed_documents(TEXTS)
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            if not loaded:
                wordllama._load.cache_clear()
            embeddings.embed_documents(TEXTS)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(examples(4)):
            child = os.fork()
            if child == 0:
                try:
                    os._exit(0 if embeddings.embed_documents(TEXTS) == expected else 1)
                except BaseException:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_process_stays_as_it_was(tmp_path: Path) -> None:
    """No warning, no logger configured, no library for networks or torch, no socket, no file written."""
    out = run(
        """
        import logging, sys
        opened = []
        sys.addaudithook(lambda event, args: opened.append((event, args)) if event.startswith("socket") or (
            event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")) else None)
        from langchain_core.embeddings import Embeddings
        before = set(sys.modules)
        opened.clear()
        from langchain_memkit.backends.wordllama import WordLlamaEmbeddings
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        assert "safetensors" in new
        WordLlamaEmbeddings().embed_documents(["I like tea.", ""] * 100)
        print(sorted(new & {"requests", "urllib3", "httpx", "torch", "toml", "wordllama", "transformers"}))
        print(opened, logging.getLogger().handlers, logging.getLogger().level == logging.WARNING)
        """,
        HOME=str(tmp_path),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert out.splitlines() == ["[]", "[] [] True"]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_read_before_first_use() -> None:
    """Making one, and showing it, loads no table."""
    wordllama._load.cache_clear()
    assert repr(WordLlamaEmbeddings(128)) == "WordLlamaEmbeddings(dims=128)"
    assert wordllama._load.cache_info().currsize == 0


# --- wrong arguments


@pytest.mark.parametrize("dims", [0, 32, 512, 256.5, "256", None])
def test_wrong_dims(dims: Any) -> None:
    """Only what the table can be cut to."""
    with pytest.raises(ConfigurationError, match="64, 128, 256"):
        WordLlamaEmbeddings(dims)


def test_what_is_no_text() -> None:
    """A string is no list of texts."""
    embeddings: Any = WordLlamaEmbeddings()
    with pytest.raises(TypeError, match="embed_query"):
        embeddings.embed_documents("tea")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, when one is made; so it does for a package without its table."""
    monkeypatch.setattr(wordllama, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "langchain-memkit\[local\]" \(wordllama is missing\)'):
        WordLlamaEmbeddings()
    monkeypatch.undo()
    monkeypatch.setattr(wordllama, "WEIGHTS", "weights/none.safetensors")
    with pytest.raises(MissingExtraError, match=r"holds no weights/none"):
        WordLlamaEmbeddings()
