"""Conversion of a chain's input and output into lists of messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    convert_to_messages,
    message_chunk_to_message,
    messages_from_dict,
)
from pydantic import BaseModel

from langchain_memkit.base import describe_value
from langchain_memkit.errors import UnsupportedOutputError
from langchain_memkit.messages.trimming import STATUS, same_message, whole_tool_groups

__all__ = ["StreamedOutput", "aborted", "input_messages", "output_messages", "without_echo"]


def input_messages(value: Any, key: str | None) -> list[BaseMessage]:
    """Return the new input of a turn as messages.

    Args:
        value: A string, a message, a list of them (or of what LangChain converts to messages), or a dict.
        key: The key of the input in a dict; None: its only key, else `"input"`.

    Raises:
        ValueError: The value is nothing of that kind.

    Example:
        >>> input_messages({"input": "hi"}, None)
        [HumanMessage(content='hi', additional_kwargs={}, response_metadata={})]
    """
    # A dict with a role is a message in OpenAI's format, unless it has the key of the input.
    if isinstance(value, Mapping) and ("role" not in value or key in value or "input" in value):
        value = _pick(value, key, "input")
    if isinstance(value, str):
        return [HumanMessage(value)]
    if isinstance(value, BaseMessage):
        return [_typed(value)]
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], list):  # chat models are traced with a batch of one
            if len(value) != 1:
                msg = f"Expected a single list of messages. Got {len(value)} lists."
                raise ValueError(msg)
            value = value[0]
        try:
            messages = convert_to_messages(list(value))
        except (NotImplementedError, ValueError):  # not chained: its text quotes the user's input
            messages = None
        if messages is None:
            msg = "Expected a list of messages, or of what langchain-core makes messages of, as ('human', 'hi')."
            raise ValueError(msg)
        return [_typed(message) for message in messages]
    msg = f"Expected str, BaseMessage, list[BaseMessage], or tuple[BaseMessage]. Got {describe_value(value)}."
    raise ValueError(msg)


def _typed(message: BaseMessage) -> BaseMessage:
    """Turn a bare `BaseMessage`, as LangServe builds from a request, into the message class that its type names."""
    if type(message) is not BaseMessage:
        return message
    return messages_from_dict([{"type": message.type, "data": dict(message)}])[0]


def _pick(value: Mapping[str, Any], key: str | None, default: str) -> Any:
    if key is None:
        key = next(iter(value)) if len(value) == 1 else default
    if key not in value:
        msg = f"the chain's input has no key {key!r}, only {sorted(map(str, value))}; set input_messages_key"
        raise ValueError(msg)
    return value[key]


def output_messages(output: Any, key: str | None) -> list[BaseMessage]:
    """Return the messages in a chain's output, with chunks turned into whole messages.

    Args:
        output: A string, a message, a list of them, a dict with them, or structured output (a pydantic object or a
            dict of plain values), which becomes an AI message holding its JSON.
        key: The key of the messages in a dict; None: its only key, else `"output"`, else `"messages"`.

    Raises:
        UnsupportedOutputError: The output is nothing of that kind.

    Example:
        >>> [m.content for m in output_messages({"answer": "yes"}, None)]
        ['yes']
    """
    value = output
    if isinstance(output, Mapping):
        value = _from_dict(output, key)
    if isinstance(value, str):
        return [AIMessage(value)]
    if isinstance(value, BaseMessage):
        return [_whole(value)]
    if isinstance(value, (list, tuple)) and all(isinstance(m, BaseMessage) for m in value):
        return [_whole(m) for m in value]
    if isinstance(value, BaseModel):
        return [AIMessage(value.model_dump_json())]
    msg = f"Expected str, BaseMessage, list[BaseMessage], or tuple[BaseMessage]. Got {describe_value(value)}."
    raise UnsupportedOutputError(msg, output=output)


def _whole(message: BaseMessage) -> BaseMessage:
    """Make a message storable: turn a chunk into a message, and drop the Python object that langchain-openai adds."""
    if isinstance(message, BaseMessageChunk):
        message = message_chunk_to_message(message)
    if isinstance(message.additional_kwargs.get("parsed"), BaseModel):
        rest = {k: v for k, v in message.additional_kwargs.items() if k != "parsed"}
        message = message.model_copy(update={"additional_kwargs": rest})
    return message


def _from_dict(output: Mapping[str, Any], key: str | None) -> Any:
    if key is not None and key in output:
        return output[key]
    if "generations" in output:  # a bare chat model, as traced
        return output["generations"][0][0]["message"]
    if key is None and output.keys() == {"raw", "parsed", "parsing_error"}:  # with_structured_output(include_raw=True)
        parsed = output["parsed"]
        return output["raw"].text if parsed is None else parsed if isinstance(parsed, BaseModel) else json.dumps(parsed)
    if key is None:
        names = [next(iter(output))] if len(output) == 1 else []
        for name in [*names, "output", "messages"]:
            value = output.get(name)
            if isinstance(value, (str, BaseMessage, list, tuple, BaseModel)) and _is_messages(value):
                return value
        try:
            return json.dumps(output, ensure_ascii=False)  # structured output as a plain dict
        except (TypeError, ValueError):
            pass
    wanted = key or "output"
    msg = f"the chain's output has no key {wanted!r} with messages, only {sorted(map(str, output))}; "
    raise UnsupportedOutputError(msg + "set output_messages_key", output=output)


def _is_messages(value: Any) -> bool:
    return not isinstance(value, (list, tuple)) or all(isinstance(m, BaseMessage) for m in value)


def without_echo(
    output: Sequence[BaseMessage], shown: Sequence[BaseMessage], asked: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Remove the messages that the chain was given and returns again, as a graph over `messages` does.

    Args:
        output: The chain's output.
        shown: The chain's input, history included, oldest first.
        asked: The new input, which ends `shown`.

    Returns:
        The new messages only. An output without the last question is not such a state, and all of it is new.
        Messages are recognised by id and content; those shown without an id by content and position.

    Example:
        >>> asked = [HumanMessage("hi")]
        >>> without_echo([HumanMessage("hi", id="7"), AIMessage("hello")], asked, asked)
        [AIMessage(content='hello', additional_kwargs={}, response_metadata={}, tool_calls=[], invalid_tool_calls=[])]
    """
    # A state that a graph returns contains the question; an output without it is an answer, all of which is new.
    if not asked or not any(same_message(message, asked[-1]) for message in output):
        return list(output)
    known = {m.id: m for m in shown if m.id}
    rest = [m for m in output if m.id is None or known.get(m.id) != m]
    unnamed = [m for m in shown if not m.id]
    echoed = len(rest) >= len(unnamed) and all(same_message(*pair) for pair in zip(rest, unnamed, strict=False))
    return rest[len(unnamed) :] if echoed else rest


def aborted(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Keep the usable part of an interrupted answer and mark it as aborted; unanswered tool calls are dropped.

    Returns:
        The messages with the last AI message marked `response_metadata["memkit_status"] = "aborted"`; `[]` if there is
        no AI message with content.
    """
    kept = [m for m in whole_tool_groups(messages) if m.content or not isinstance(m, AIMessage) or m.tool_calls]
    for i in reversed(range(len(kept))):
        if isinstance(kept[i], AIMessage):
            mark = {**kept[i].response_metadata, STATUS: "aborted"}
            kept[i] = kept[i].model_copy(update={"response_metadata": mark})
            return kept
    return []


class StreamedOutput:
    """Accumulator that adds the chunks of a stream up to the output that `invoke` would have returned.

    Example:
        >>> streamed = StreamedOutput()
        >>> for chunk in ("Hel", "lo"):
        ...     streamed.add(chunk)
        >>> streamed.value
        'Hello'
    """

    def __init__(self) -> None:
        self._total: Any = None
        self._chunks: list[Any] = []  # chunks that do not add up: whole messages, snapshots, states of a graph
        self.empty = True

    def add(self, chunk: Any) -> None:
        """Add the next chunk."""
        if self._chunks or not self._adds_up(chunk):
            if not (self._chunks or self.empty):
                self._chunks.append(self._total)
            self._chunks.append(chunk)
        self.empty = False

    def _adds_up(self, chunk: Any) -> bool:
        if type(chunk) in (dict, tuple) or (isinstance(chunk, BaseMessage) and not isinstance(chunk, BaseMessageChunk)):
            return False
        try:
            self._total = chunk if self.empty else self._total + chunk
        except TypeError:
            return False
        return True

    @property
    def value(self) -> Any:
        """The whole output so far; None before the first chunk."""
        return _resolve(self._chunks) if self._chunks else self._total


def _resolve(chunks: Sequence[Any]) -> Any:
    """Return the output that chunks which do not add up amount to."""
    if len(chunks) > 1 and all(isinstance(chunk, BaseMessage) for chunk in chunks):
        return list(chunks)
    if all(isinstance(c, tuple) and c and isinstance(c[0], tuple) for c in chunks):  # LangGraph with subgraphs
        # Chunks begin with the namespace of their subgraph; it is empty for the graph's own.
        own = [c[1] if len(c) == 2 else c[1:] for c in chunks if c[0] == ()]
        return _resolve(own) if own else None
    if all(isinstance(c, tuple) and len(c) == 2 for c in chunks):
        if all(isinstance(m, BaseMessage) and isinstance(metadata, Mapping) for m, metadata in chunks):
            return _joined([message for message, _ in chunks])
        for mode in ("values", "updates", "messages"):  # LangGraph with several stream modes: (mode, chunk)
            if found := [chunk for name, chunk in chunks if name == mode]:
                return _resolve(found)
    if all(isinstance(chunk, Mapping) for chunk in chunks):
        return _graph_updates(chunks) or chunks[-1]
    return chunks[-1]


def _graph_updates(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Merge a LangGraph stream of updates, `{node: {"messages": [...]}}`, into one state; None if it is not one."""
    messages: list[BaseMessage] = []
    for chunk in chunks:
        for update in chunk.values():
            if not (update is None or isinstance(update, Mapping)):
                return None
            found = (update or {}).get("messages", [])
            messages += [m for m in (found if isinstance(found, list) else [found]) if isinstance(m, BaseMessage)]
    return {"messages": messages} if messages else None


def _joined(chunks: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Merge the message chunks of a LangGraph `messages` stream by message id."""
    by_id: dict[str | None, BaseMessage] = {}
    for chunk in chunks:
        held = by_id.get(chunk.id)
        if isinstance(held, AIMessageChunk) and isinstance(chunk, AIMessageChunk):
            chunk = held + chunk  # stored below in place of the chunk
        by_id[chunk.id] = chunk
    return list(by_id.values())
