"""Counting tokens: what a token counter may be, and the default that costs next to nothing.

Histories store the tokens of each message with the name of the counter, so that reading with the same counter need not
count again.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.utils import count_tokens_approximately

from langchain_memkit.base import TokenCounter, TokenCounterLike
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.blocks import PAYLOAD_TOKENS, block_cost, loose_tool_calls, role_of
from langchain_memkit.messages.openai_tokens import OpenAITokenCounter

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

__all__ = ["approximate_tokens", "count_text", "count_tokens", "count_tool_tokens", "counter_name", "resolve_counter"]

logger = logging.getLogger("langchain_memkit")

APPROXIMATE = "approximate"
MAX_NAME = 80
CHARS_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 3
PLAIN_ROLES = {HumanMessage: len("user"), AIMessage: len("assistant"), ToolMessage: len("tool")}


def approximate_tokens(messages: Sequence[BaseMessage]) -> int:
    """Tokens of messages, estimated at four characters a token: the default, as fast as adding up lengths.

    The numbers are those of LangChain's `count_tokens_approximately`, with two differences: tool calls of an AI message
    whose content is a list are counted even if no block repeats them, and images, files and recordings cost 85 tokens
    each in whatever block they come, never a quarter of their base64 characters.

    Beside `o200k_base`, English, German and code come out 7 to 10 % too high, which is on the safe side; of Chinese it
    sees a third (`benchmarks/results/tokens.json`). Name an encoding for scripts without Latin letters: `"o200k_base"`.

    Args:
        messages: Any messages, in any order.

    Returns:
        The sum over the messages, each rounded up; 3 a message for its frame are in it, `RemoveMessage` counts 0.

    Example:
        >>> approximate_tokens([HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")])
        16
    """
    total = 0
    for message in messages:
        kind = type(message)
        content = message.content
        chars = PLAIN_ROLES.get(kind)
        if chars is None or content.__class__ is not str or (kind is AIMessage and _has_calls(message)):
            total += _approximate_any(message)
            continue
        chars += len(content)
        if message.name:
            chars += len(message.name)
        if kind is ToolMessage:
            chars += len(message.tool_call_id)  # type: ignore[attr-defined]  # its class was compared
        total += TOKENS_PER_MESSAGE - -chars // CHARS_PER_TOKEN
    return total


def _has_calls(message: Any) -> bool:
    return bool(message.tool_calls or message.invalid_tool_calls)


def _approximate_any(message: BaseMessage) -> int:
    """The same for every type and content, slower."""
    if isinstance(message, RemoveMessage):
        return 0
    blocks = [message.content] if isinstance(message.content, str) else message.content
    costs = [block_cost(block) for block in blocks]
    chars = sum(len(text) for text, _ in costs) + len(role_of(message)) + len(message.name or "")
    if isinstance(message, AIMessage) and (calls := loose_tool_calls(message)):
        chars += len(repr(calls))
    if isinstance(message, ToolMessage):
        chars += len(message.tool_call_id)
    payloads = sum(number for _, number in costs)
    return TOKENS_PER_MESSAGE + PAYLOAD_TOKENS * payloads - -chars // CHARS_PER_TOKEN


class _EachMessage:
    """A counter of one message, made to take a list."""

    def __init__(self, count: Callable[[BaseMessage], int]) -> None:
        self._count = count
        self.name = counter_name(count)

    def __call__(self, messages: Sequence[BaseMessage]) -> int:
        return sum(self._count(message) for message in messages)


class _ModelCounter:
    """A model's own counting."""

    def __init__(self, model: BaseLanguageModel[Any]) -> None:
        self._model = model
        names = [getattr(model, field, None) for field in ("model_name", "model", "model_id")]
        name = next((name for name in names if isinstance(name, str) and name), None)
        kind = type(model).__name__
        # without a name, or counting with a function of the caller's, another model may hide behind the same class
        self.name = f"{kind}:{name}" if name and model.custom_get_token_ids is None else f"<{kind}>"

    def __call__(self, messages: Sequence[BaseMessage]) -> int:
        return self._model.get_num_tokens_from_messages(list(messages))


def resolve_counter(token_counter: TokenCounterLike = None) -> TokenCounter:
    """What a `token_counter` argument means, as a function of a list of messages.

    Args:
        token_counter: One of

            - None or `"approximate"`: `approximate_tokens` (so is LangChain's `count_tokens_approximately`)
            - an encoding or a model of OpenAI's, `"o200k_base"`, `"gpt-4o"`: `OpenAITokenCounter`, exact
            - a function of a list of messages; `len` counts messages
            - a function of one message: the annotation of its first parameter is `BaseMessage`
            - a chat model or LLM: its `get_num_tokens_from_messages`, which may ask a server for each message

    Returns:
        A counter; resolving it again returns the same one.

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
        return _ModelCounter(token_counter)
    if not callable(token_counter):
        msg = (  # type: ignore[unreachable]  # callers without types
            "token_counter must be 'approximate', the name of an OpenAI encoding or model, a function of messages, "
            f"or a model, not {type(token_counter).__name__}."
        )
        raise ConfigurationError(msg)
    return _EachMessage(token_counter) if _takes_one(token_counter) else token_counter  # type: ignore[arg-type, return-value]  # the annotation told


def _takes_one(function: Callable[..., int]) -> bool:
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except ValueError:  # some builtins have no signature
        return False
    return first is not None and (first.annotation is BaseMessage or first.annotation == BaseMessage.__name__)


def count_tokens(messages: Sequence[BaseMessage], counter: TokenCounter | None = None) -> list[int]:
    """Tokens of each message by itself; `None` counts with `approximate_tokens`.

    A counter that fails (some know not every message type, some need a network) must not cost a turn: its message is
    then estimated at four characters a token.

    Example:
        >>> count_tokens([HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")])
        [8, 8]
    """
    count = counter or approximate_tokens
    counts: list[int] = []
    for message in messages:
        try:
            counts.append(max(0, int(count([message]))))
        except Exception as error:  # noqa: BLE001  # any counter, any error
            if not isinstance(message, RemoveMessage):
                name = counter_name(counter)
                logger.warning("token counter %s failed on a %s message: %s", name, message.type, type(error).__name__)
            counts.append(len(str(message.content)) // CHARS_PER_TOKEN)
    return counts


def count_text(text: str, counter: TokenCounter | None = None) -> int:
    """Tokens of a text as a message of the user's: `count_tokens([HumanMessage(text)], counter)[0]`.

    Example:
        >>> count_text("My name is Nemo."), count_text("My name is Nemo.", len)
        (8, 1)
    """
    if counter is None or counter is approximate_tokens:  # then no message need be made
        return TOKENS_PER_MESSAGE - -(PLAIN_ROLES[HumanMessage] + len(text)) // CHARS_PER_TOKEN
    return count_tokens([HumanMessage(text)], counter)[0]


def counter_name(counter: Callable[..., int] | None) -> str:
    """Which counter made the stored numbers, so that another one does not trust them.

    Returns:
        At most 80 characters. A name with `<` in it belongs to one object only and is never trusted: lambdas, functions
        inside functions, bound methods, and objects without a `name`.

    Example:
        >>> counter_name(None), counter_name(len), counter_name(lambda messages: 1)
        ('approximate', 'len', '<lambda>')
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
    """Tokens that tools add to each request: their schemas, as JSON in OpenAI's format.

    Providers write the schemas down in their own way, so this is near the truth and not exact.

    Args:
        tools: What `bind_tools` takes: tools, functions, pydantic classes, or schemas as dicts.
        counter: A resolved counter; None for `approximate_tokens`.

    Returns:
        0 for no tools.

    Example:
        >>> def weather(city: str) -> str:
        ...     "The weather in a city."
        >>> count_tool_tokens([weather])
        49
        >>> count_tool_tokens([])
        0
    """
    if not tools:
        return 0
    from langchain_core.utils.function_calling import convert_to_openai_tool

    schemas = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools]
    text = json.dumps(schemas, ensure_ascii=False, default=str)
    count = counter or approximate_tokens
    return max(0, count([SystemMessage(text)]) - count([SystemMessage("")]))
