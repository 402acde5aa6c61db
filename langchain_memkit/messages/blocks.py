"""The parts of a message that cost tokens: text, tool calls, and payloads such as images, files and recordings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

__all__ = ["PAYLOAD_TOKENS", "block_cost", "loose_tool_calls", "role_of"]

PAYLOAD_TOKENS = 85
"""What one image, file or recording is counted as: OpenAI's price of a low-resolution image, as in langchain-core."""

IMAGES = frozenset({"image", "image_url", "input_image"})
PAYLOAD_KEYS = frozenset({"b64_json", "base64", "data", "file_data", "image_data"})
LONG = 1000  # characters; longer text in base64's alphabet is a payload under any key
HEAD = 200
BASE64 = re.compile(r"[A-Za-z0-9+/_=\r\n-]+")

ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (AIMessage, "assistant"),
    (HumanMessage, "user"),
    (ToolMessage, "tool"),
    (SystemMessage, "system"),
    (FunctionMessage, "function"),
)


def role_of(message: BaseMessage) -> str:
    """Return the role that the message has in OpenAI's API."""
    if isinstance(message, ChatMessage):
        return message.role
    role = message.additional_kwargs.get("__openai_role__") if isinstance(message, SystemMessage) else None
    if isinstance(role, str):
        return role
    return next((name for cls, name in ROLES if isinstance(message, cls)), message.type)


def block_cost(block: Any) -> tuple[str, int]:
    """Return the text of one content block, and the number of payloads in it.

    Args:
        block: A string or a content block of any provider.

    Returns:
        The text to count (the `repr` without payloads for blocks other than plain text), and the number.

    Example:
        >>> block_cost({"type": "text", "text": "hello"})
        ('hello', 0)
        >>> block_cost({"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"})
        ('', 1)
        >>> block_cost({"type": "file", "base64": "JVBERi0xLjcK", "mime_type": "application/pdf"})
        ("{'type': 'file', 'base64': '', 'mime_type': 'application/pdf'}", 1)
    """
    if isinstance(block, str):
        return block, 0
    if isinstance(block, dict):
        kind = block.get("type", "")
        if kind in IMAGES:
            return "", 1
        if kind == "text" and isinstance(text := block.get("text", ""), str):
            return text, 0
    payloads: list[str | bytes] = []
    return repr(_without_payloads(block, "", payloads)), len(payloads)


def _without_payloads(value: Any, key: object, found: list[str | bytes]) -> Any:
    """Replace each payload in the value by an empty string and append it to `found`."""
    if isinstance(value, dict):
        return {k: _without_payloads(v, k, found) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_payloads(item, key, found) for item in value]
    if isinstance(value, (str, bytes)) and _is_payload(value, key):
        found.append(value)
        return ""
    return value


def _is_payload(value: str | bytes, key: object) -> bool:
    if isinstance(value, bytes):
        return True
    if value.startswith("data:"):
        return ";base64," in value[:HEAD]
    # Only the beginning is matched, since payloads may have megabytes.
    named_or_long = key in PAYLOAD_KEYS or len(value) > LONG
    return named_or_long and BASE64.fullmatch(value[:HEAD]) is not None


def loose_tool_calls(message: AIMessage) -> Sequence[Mapping[str, Any]]:
    """Return the tool calls of a message that no content block repeats.

    Anthropic's and OpenAI's newer formats repeat calls in the content; a message built by hand or by another provider
    may not.
    """
    calls: list[Mapping[str, Any]] = [*message.tool_calls, *message.invalid_tool_calls]
    if not calls or isinstance(message.content, str):
        return calls
    blocks = [block for block in message.content if isinstance(block, dict)]
    carried = {str(block.get("call_id") or block.get("id") or block.get("name")) for block in blocks}
    return [call for call in calls if str(call["id"] or call["name"]) not in carried]
