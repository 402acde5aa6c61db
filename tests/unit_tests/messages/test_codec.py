"""What is stored is plain data of exact types; what only looks like it is refused, one message at a time."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit.errors import MessageDecodeError
from langchain_memkit.messages.codec import decode_legacy_message, decode_message, encode_message


class Code(str):
    """Text that cannot be hashed, as BSON's `Code` cannot."""

    __hash__ = None  # type: ignore[assignment]  # on purpose


@pytest.mark.parametrize(
    "data",
    [
        {"role": Code("human"), "content": "hi"},
        {"role": "human", "content": Code("hi")},
        {"role": "human", "content": "hi", "id": Code("1")},
        {"role": "human", "content": "hi", "name": Code("n")},
        {"role": "ai", "content": "hi", "tool_calls": [{"name": Code("f"), "args": {}, "id": "1"}]},
        {"role": "human", "content": {"_memkit": Code("int"), "value": "0x1"}},
        {"role": "human", "content": "hi", "additional_kwargs": {"a": [{"b": Code("c")}]}},
    ],
)
def test_text_of_other_classes(data: dict[str, Any]) -> None:
    """A `str` of another class is damage, in our form and in LangChain's."""
    with pytest.raises(MessageDecodeError):
        decode_message(data)
    with pytest.raises(MessageDecodeError):
        decode_legacy_message({"type": data["role"], "data": {k: v for k, v in data.items() if k != "role"}})


def test_long_numbers() -> None:
    """Numbers of 4,300 digits come back."""
    most = 10**4300 - 1
    for number in (most, -most, 2**63, -(2**63)):
        message = HumanMessage("hi", additional_kwargs={"n": number})
        back = decode_message(encode_message(message))
        assert back == message
        assert str(back.additional_kwargs["n"]) == str(number)


def test_unknown_types_are_named_if_they_are_names() -> None:
    """The error names a type of another version, and nothing that could have been said."""
    with pytest.raises(MessageDecodeError, match="unknown message type 'video'"):
        decode_message({"role": "video", "content": "hi"})
    with pytest.raises(MessageDecodeError, match=r"unknown message type$"):
        decode_message({"role": "My name is Nemo.", "content": "hi"})
