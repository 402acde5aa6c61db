"""Contract for any LangChain chat history. The list of cases is the specification.

Example:
    ```python
    class TestMyHistory(LangChainHistoryContract):
        @pytest.fixture
        def make_history(self):
            server = MyServer()
            return lambda session_id, user_id=None: MyHistory(server, session_id)
    ```
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk

from langchain_memkit.testing._styles import BothStyles, Call

__all__ = ["LangChainHistoryContract", "exchange", "text_of_each"]

MakeHistory: TypeAlias = Callable[..., Any]


def exchange(text: str) -> list[BaseMessage]:
    """Make a question and its answer."""
    return [HumanMessage(text), AIMessage(f"re: {text}")]


def text_of_each(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the text of each message."""
    return [message.text for message in messages]


def one_of_each() -> list[BaseMessage]:
    """Make every message type with every kind of field, tool calls and artifacts included."""
    call = {"name": "search", "args": {"q": "sea", "deep": {"k": [1, None, 2.5]}}, "id": "c1", "type": "tool_call"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return [
        SystemMessage("Be brief."),
        HumanMessage([{"type": "text", "text": "What is this? 🐠"}, image, "plain"], name="Nemo"),
        AIMessage(
            "",
            tool_calls=[call],
            invalid_tool_calls=[{"name": "f", "args": "{", "id": "c2", "error": "cut", "type": "invalid_tool_call"}],
            usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
            response_metadata={"model_name": "m", "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}},
            additional_kwargs={"refusal": None, "a.b": {"$gt": 1, "": "empty"}},
        ),
        ToolMessage(
            "found",
            tool_call_id="c1",
            artifact={"docs": [Document("the sea", metadata={"page": 3})], 7: ("a", {"b"}, b"\x00\xff")},
            status="error",
        ),
        FunctionMessage(content="42", name="f"),
        ChatMessage(content="aye", role="pirate"),
        RemoveMessage(id="gone"),
        AIMessageChunk(content="par", tool_call_chunks=[tool_call_chunk(name="f", args='{"a', id="c3", index=0)]),
        HumanMessageChunk(content="tial"),
        HumanMessage("extra", mood="calm"),
    ]


class LangChainHistoryContract(BothStyles):
    """Contract for any LangChain chat history; give it a `make_history` fixture.

    `make_history(session_id, user_id=None)` returns a new history object over one store per test.
    """

    def test_starts_empty(self, make_history: MakeHistory, call: Call) -> None:
        """A new session has no messages, and adding none stores none."""
        history = make_history("s1")
        assert call(history, "messages") == []
        call(history, "add_messages", [])
        assert call(history, "messages") == []

    def test_order_within_and_across_batches(self, make_history: MakeHistory, call: Call) -> None:
        """Messages come back in the order in which they were added."""
        history = make_history("s1")
        for text in "abc":
            call(history, "add_messages", exchange(text))
        assert text_of_each(call(history, "messages")) == ["a", "re: a", "b", "re: b", "c", "re: c"]

    def test_is_seen_by_another_object(self, make_history: MakeHistory, call: Call) -> None:
        """Messages that one object stored are read by another: no state lives in the object."""
        call(make_history("s1"), "add_messages", exchange("a"))
        assert text_of_each(call(make_history("s1"), "messages")) == ["a", "re: a"]

    def test_every_message_type_round_trips(self, make_history: MakeHistory, call: Call) -> None:
        """Each type with tool calls, artifacts, list content and odd keys comes back equal, id apart."""
        history, given = make_history("s1"), one_of_each()
        call(history, "add_messages", given)
        stored = call(history, "messages")
        assert [type(m) for m in stored] == [type(m) for m in given]
        for got, want in zip(stored, given, strict=True):
            assert got == (want if want.id else want.model_copy(update={"id": got.id}))

    def test_ids_come_back_and_arguments_stay_untouched(self, make_history: MakeHistory, call: Call) -> None:
        """Given ids are kept, missing ones are made, and the caller's objects are not changed."""
        history, named, unnamed = make_history("s1"), HumanMessage("a", id="my-id"), AIMessage("b")
        call(history, "add_messages", [named, unnamed])
        first, second = call(history, "messages")
        assert first.id == "my-id"
        assert second.id
        assert unnamed.id is None

    def test_single_message_verbs(self, make_history: MakeHistory) -> None:
        """The verbs for a single message append one message."""
        history = make_history("s1")
        history.add_user_message("a")
        history.add_ai_message("b")
        history.add_message(SystemMessage("c"))
        assert [m.type for m in history.messages] == ["human", "ai", "system"]
        assert "Human: a" in str(history)

    def test_clear_spares_other_sessions(self, make_history: MakeHistory, call: Call) -> None:
        """Clearing one session empties it and no other one; it can be used again, and cleared twice."""
        for session in ("s1", "s2"):
            call(make_history(session), "add_messages", exchange(session))
        call(make_history("s1"), "clear")
        call(make_history("s1"), "clear")
        assert call(make_history("s1"), "messages") == []
        assert text_of_each(call(make_history("s2"), "messages")) == ["s2", "re: s2"]
        call(make_history("s1"), "add_messages", exchange("new"))
        assert text_of_each(call(make_history("s1"), "messages")) == ["new", "re: new"]

    def test_unicode_and_odd_text(self, make_history: MakeHistory, call: Call) -> None:
        """Emoji, NUL, lone surrogates and long text come back unchanged."""
        history = make_history("s1")
        odd = ["🐠 naïve 中文", "nul\x00inside", "lone \ud83d end", "é" * 100_000, "$where", '{"$ne": 1}', ""]
        call(history, "add_messages", [HumanMessage(text) for text in odd])
        assert [m.content for m in call(history, "messages")] == odd

    def test_unusual_session_ids(self, make_history: MakeHistory, call: Call) -> None:
        """Every text is a session id: operators, quotes, wildcards and other scripts are plain text."""
        ids = ["$ne", '{"$gt": ""}', "a.b", "a%", "a_", "' OR 1=1 --", "日本", "x" * 512]
        for session in ids:
            call(make_history(session), "add_messages", [HumanMessage(session)])
        for session in ids:
            assert text_of_each(call(make_history(session), "messages")) == [session]

    def test_two_writers_never_split_a_turn(self, make_history: MakeHistory) -> None:
        """Question and answer of parallel writers stay together, and none is lost."""

        def write(writer: int) -> None:
            for i in range(10):
                make_history("s1").add_messages(exchange(f"{writer}-{i}"))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        stored = text_of_each(make_history("s1").messages)
        assert sorted(stored[::2]) == sorted(f"{w}-{i}" for w in range(4) for i in range(10))
        assert stored[1::2] == [f"re: {question}" for question in stored[::2]]

    def test_sync_and_async_agree(self, make_history: MakeHistory) -> None:
        """Each style reads what the other one has written."""

        async def write_and_read() -> list[BaseMessage]:
            await make_history("s1").aadd_messages(exchange("async"))
            return list(await make_history("s1").aget_messages())

        make_history("s1").add_messages(exchange("sync"))
        assert asyncio.run(write_and_read()) == make_history("s1").messages
