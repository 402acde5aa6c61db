"""Counting tokens: the default against langchain-core's, what a counter may be, names, and what histories store."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import tool
from pydantic import BaseModel

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.tokens import (
    DENSE,
    PAYLOAD_TOKENS,
    OpenAITokenCounter,
    approximate_tokens,
    count_text,
    count_tokens,
    count_tool_tokens,
    counter_name,
    resolve_counter,
)
from langchain_memkit.testing import FakeChatModel
from testkit.examples import examples
from testkit.properties import messages

TURN = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]
CALL = {"name": "weather", "args": {"city": "Perth"}, "id": "call_1"}
PAYLOAD = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ" * 25_000  # a megabyte


def is_ordinary(message: BaseMessage) -> bool:
    """Whether langchain-core's numbers are wanted for it: not for Chinese, Japanese and Korean."""
    if DENSE.search(json.dumps(message.model_dump(), ensure_ascii=False, default=str)):
        return False
    if not isinstance(message, AIMessage):
        return not isinstance(message, RemoveMessage)
    return not message.invalid_tool_calls and not (message.tool_calls and isinstance(message.content, list))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(messages.filter(is_ordinary), max_size=4))
def test_the_default_counts_as_langchain_core(batch: list[BaseMessage]) -> None:
    """Every message type, names, tool calls, text and image blocks: the numbers of count_tokens_approximately."""
    assert approximate_tokens(batch) == count_tokens_approximately(batch)


@pytest.mark.parametrize("language", ["chinese", "japanese", "korean"])
def test_dense_scripts_are_counted_within_fifteen_percent(language: str) -> None:
    """The default beside o200k_base, in messages, content blocks and single texts."""
    texts = (
        (Path(__file__).parents[3] / "benchmarks" / "texts" / f"{language}.txt")
        .read_text(encoding="utf-8")
        .strip()
        .split("\n\n")
    )
    exact = OpenAITokenCounter("o200k_base")([HumanMessage(text) for text in texts])
    as_blocks: list[BaseMessage] = [HumanMessage([{"type": "text", "text": text}]) for text in texts]
    for told in (approximate_tokens([HumanMessage(t) for t in texts]), sum(map(count_text, texts))):
        assert told == pytest.approx(exact, rel=0.15)
    assert approximate_tokens(as_blocks) == pytest.approx(exact, rel=0.15)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(messages, max_size=4))
def test_a_list_counts_as_the_sum_of_its_messages(batch: list[BaseMessage]) -> None:
    """The number for a list is the sum of the numbers for each, whatever the messages hold."""
    assert approximate_tokens(batch) == sum(count_tokens(batch))


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "base64": PAYLOAD, "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PAYLOAD}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PAYLOAD}"},
        {"type": "audio", "source_type": "base64", "data": PAYLOAD, "mime_type": "audio/wav"},
        {"type": "input_audio", "input_audio": {"data": PAYLOAD, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PAYLOAD}"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PAYLOAD}},
        {"type": "media", "mime_type": "video/mp4", "data": PAYLOAD.encode()},
        {"type": "image_generation_call", "id": "ig_1", "result": PAYLOAD},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "base64", "data": PAYLOAD}}]},
    ],
    ids=lambda block: block["type"],
)
def test_payloads_cost_a_fixed_number(block: dict[str, Any]) -> None:
    """A megabyte of base64 costs what an image costs, and a short description of its block."""
    for count in (approximate_tokens, OpenAITokenCounter("o200k_base")):
        tokens = count([HumanMessage([block])])
        assert PAYLOAD_TOKENS < tokens < PAYLOAD_TOKENS + 50


def test_text_in_blocks_is_no_payload() -> None:
    """The text of a document is counted, under whatever key it stands."""
    text = "All the king's horses and all the king's men " * 100
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    for block in (plain, {"type": "file", "text": text}, {"type": "tool_result", "content": text}):
        assert approximate_tokens([HumanMessage([block])]) == count_tokens_approximately([HumanMessage([block])])


def test_tool_calls_beside_list_content_are_counted_once() -> None:
    """Calls that no block repeats are added; those that a block carries are not counted twice."""
    text = {"type": "text", "text": "Let me look."}
    plain = approximate_tokens([AIMessage([text])])
    loose = AIMessage([text], tool_calls=[CALL])
    assert count_tokens_approximately([loose]) == plain
    assert approximate_tokens([loose]) > plain + 10
    for block in (
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Perth"}},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "tool_call", "id": "call_1", "name": "weather", "args": {"city": "Perth"}},
    ):
        carried = AIMessage([text, block], tool_calls=[CALL])
        assert approximate_tokens([carried]) == count_tokens_approximately([carried])


def test_calls_with_broken_arguments_are_counted() -> None:
    """Arguments that are no JSON are sent to the model again, so they count."""
    broken = AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{" * 400, "id": "1", "error": None}])
    assert approximate_tokens([broken]) > 100


def test_the_default_is_fast() -> None:
    """A message costs well under what langchain-core's function takes: less than half of the calls."""
    message = AIMessage("The weather in Perth is fine today. " * 9)

    def calls(count: Callable[[Sequence[BaseMessage]], int]) -> int:
        seen: list[str] = []
        sys.setprofile(lambda frame, event, argument: seen.append(event))
        count([message])
        sys.setprofile(None)
        return seen.count("call") + seen.count("c_call")

    assert calls(approximate_tokens) < 0.5 * calls(count_tokens_approximately)


def each(message: BaseMessage) -> int:
    """A counter of one message; its annotation is a string here, as in every module with postponed ones."""
    return len(message.text)


def test_what_a_counter_may_be() -> None:
    """None, a word, an encoding, a model's name, functions of many and of one, and a model."""
    model = FakeChatModel(custom_get_token_ids=lambda text: list(range(len(text))))
    talk = [HumanMessage("Donaudampfschifffahrt"), AIMessage("Ja.")]
    for given_, expected in (
        (None, 16),
        ("approximate", 16),
        (count_tokens_approximately, 16),
        ("o200k_base", 18),
        ("gpt-4", 20),
        (len, 2),
        (lambda batch: 7 * len(batch), 14),
        (each, 24),
        (model, len("Human: Donaudampfschifffahrt") + len("AI: Ja.")),
    ):
        counter = resolve_counter(given_)
        assert counter(talk) == expected
        assert resolve_counter(counter) is counter


def test_counters_of_one_message_are_told_as_by_trim_messages() -> None:
    """An annotation that is the class itself counts as well, and means the same to trim_messages."""

    def one(message):  # type: ignore[no-untyped-def]
        return 10

    one.__annotations__ = {"message": BaseMessage}
    assert resolve_counter(one)(TURN) == 20
    assert len(trim_messages(TURN, max_tokens=10, token_counter=one)) == 1


@pytest.mark.parametrize("wrong", ["gpt", "claude-sonnet-4", "o200k", "gpt-4.7", ""])
def test_what_is_no_counter_says_what_is(wrong: str) -> None:
    """Unknown names are refused, with a list of what is possible."""
    with pytest.raises(ConfigurationError, match=r"approximate.*(o200k_base|encoding).*function") as caught:
        resolve_counter(wrong)
    assert "gpt-4o" in str(caught.value)


class Weighing:
    """A counter that is an object."""

    def count(self, batch: Sequence[BaseMessage]) -> int:
        """Ten for each."""
        return 10 * len(batch)

    __call__ = count


class NamedModel(FakeChatModel):
    """A model that says its name."""

    model_name: str = "small-1"


def test_names_of_counters() -> None:
    """Names that several processes share are stable; what belongs to one object has a `<` and is never trusted."""
    for counter, name in (
        (None, "approximate"),
        (approximate_tokens, "approximate"),
        (resolve_counter(count_tokens_approximately), "approximate"),
        (resolve_counter("gpt-4o-mini"), "o200k_base"),
        (resolve_counter("gpt-3.5-turbo"), "cl100k_base"),
        (len, "len"),
        (each, "each"),
        (resolve_counter(each), "each"),
        (resolve_counter(NamedModel()), "NamedModel:small-1"),
    ):
        assert counter_name(counter) == name
    for untrusted in (
        lambda batch: 1,
        Weighing(),
        Weighing().count,
        functools.partial(each),
        resolve_counter(FakeChatModel()),
        resolve_counter(NamedModel(custom_get_token_ids=lambda text: [])),
    ):
        assert "<" in counter_name(untrusted)
    each_long = functools.wraps(each)(lambda message: 1)
    each_long.__qualname__ = "a" * 100
    assert len(counter_name(each_long)) == 80
    assert "<" in counter_name(each_long)


def test_a_failing_counter_is_reported_and_estimated(caplog: pytest.LogCaptureFixture) -> None:
    """A counter that raises costs a warning with its name and the message's type, not the turn."""

    def broken(batch: Sequence[BaseMessage]) -> int:
        raise OSError("no network")

    with caplog.at_level(logging.WARNING, "langchain_memkit"):
        assert count_tokens([HumanMessage("a" * 40), RemoveMessage(id="1")], broken) == [10, 0]
    assert [record.message.split(".")[-1] for record in caplog.records] == ["broken failed on a human message: OSError"]


class Forecast(BaseModel):
    """The weather of tomorrow."""

    city: str
    days: int = 1


def weather(city: str) -> str:
    """The weather in a city."""
    return city


def test_tools_cost_their_schemas() -> None:
    """Tools, functions, classes and dicts are counted by any counter; more tools cost more; none cost nothing."""
    schema = {"type": "function", "function": {"name": "weather", "description": "The weather in a city."}}
    for counter in (None, approximate_tokens, OpenAITokenCounter("o200k_base")):
        for one in (tool(weather), weather, Forecast, schema):
            assert 15 < count_tool_tokens([one], counter) < 80
            assert count_tool_tokens([one, Forecast], counter) > count_tool_tokens([one], counter)
        assert count_tool_tokens([], counter) == 0
    assert count_tool_tokens([weather], len) == 0
    assert count_tool_tokens([tool(weather)]) == count_tool_tokens([weather])


def test_histories_store_and_trust_the_counts_of_a_name(tmp_path: Path) -> None:
    """What `gpt-4o` counted is used by `o200k_base` and counted again by others; a wrong name fails at once."""
    path = tmp_path / "chat.db"
    turn = [HumanMessage("Donaudampfschifffahrtsgesellschaft " * 9), AIMessage("Ja.")]
    SQLiteChatMessageHistory(path, "s1", token_counter="gpt-4o").append_turn(turn)
    exact = count_tokens(turn, OpenAITokenCounter("o200k_base"))
    for counter, expected in (
        ("o200k_base", exact),
        (None, count_tokens(turn)),
        (each, [len(message.text) for message in turn]),
    ):
        (stored,) = SQLiteChatMessageHistory.factory(path, token_counter=counter)("s1").iter_turns()
        assert stored.tokens == expected
    with pytest.raises(ConfigurationError, match="gpt-nonsense"):
        SQLiteChatMessageHistory(path, "s1", token_counter="gpt-nonsense")


def test_tool_messages_count_the_id_of_their_call() -> None:
    """The fast path and the slow one agree on tool messages."""
    short, long = (ToolMessage("sunny", tool_call_id="x" * size) for size in (1, 41))
    assert approximate_tokens([long]) - approximate_tokens([short]) == 10
