"""Conversion of a chain's input and output into lists of messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from langchain_core import messages as core
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, BaseMessageChunk, HumanMessage
from pydantic import BaseModel

from langchain_memkit.base import Messages, describe_value
from langchain_memkit.errors import UnsupportedOutputError
from langchain_memkit.messages.trimming import STATUS, same_message, whole_tool_groups


def input_messages(value: object, key: str | None) -> list[BaseMessage]:
    """Return the new input of a turn as messages; without a `key`, a dict's only one is taken, else `"input"`."""
    # A dict with a role is a message in OpenAI's format, unless it has the key of the input.
    if isinstance(value, Mapping) and ("role" not in value or key in value or "input" in value):
        if key is None:
            key = next(iter(value)) if len(value) == 1 else "input"
        if key not in value:
            msg = f"the chain's input has no key {key!r}, only {sorted(map(str, value))}; set input_messages_key"
            raise ValueError(msg)
        value = value[key]
    if isinstance(value, str):
        return [HumanMessage(value)]
    if isinstance(value, BaseMessage):
        return [_typed(value)]
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], list):  # chat models are traced with a batch of one
            if len(value) != 1:
                raise ValueError(f"Expected a single list of messages. Got {len(value)} lists.")
            value = value[0]
        messages: list[BaseMessage] | None = None
        with suppress(NotImplementedError, ValueError):  # not chained: their text quotes the user's input
            messages = core.convert_to_messages(list(value))
        if messages is not None:
            return [_typed(message) for message in messages]
        msg = "Expected a list of messages, or of what langchain-core makes messages of, as ('human', 'hi')."
        raise ValueError(msg)
    msg = f"Expected str, BaseMessage, list[BaseMessage], or tuple[BaseMessage]. Got {describe_value(value)}."
    raise ValueError(msg)


def _typed(message: BaseMessage) -> BaseMessage:
    """Turn a bare `BaseMessage`, as LangServe builds from a request, into the message class that its type names."""
    if type(message) is not BaseMessage:
        return message
    return core.messages_from_dict([{"type": message.type, "data": dict(message)}])[0]


def output_messages(output: object, key: str | None) -> list[BaseMessage]:
    """Return the messages in a chain's output, with chunks turned into whole messages.

    Structured output becomes an AI message with its JSON. Without a `key`, a dict's only one is taken, else `"output"`,
    else `"messages"`.
    """
    value = _from_dict(output, key) if isinstance(output, Mapping) else output
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
        message = core.message_chunk_to_message(message)
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
            is_list = isinstance(value, (list, tuple)) and all(isinstance(m, BaseMessage) for m in value)
            if is_list or isinstance(value, (str, BaseMessage, BaseModel)):
                return value
        with suppress(TypeError, ValueError):
            return json.dumps(output, ensure_ascii=False)  # structured output as a plain dict
    wanted = key or "output"
    msg = f"the chain's output has no key {wanted!r} with messages, only {sorted(map(str, output))}; "
    raise UnsupportedOutputError(msg + "set output_messages_key", output=output)


def without_echo(output: Messages, shown: Messages, asked: Messages) -> list[BaseMessage]:
    """Remove the messages that the chain was given and returns again, as a graph over `messages` does.

    Those of its input, `shown`, which `asked` ends, are recognised by id and content; without an id by content and
    position.
    """
    # A state that a graph returns contains the question; an output without it is an answer, all of which is new.
    if not asked or not any(same_message(message, asked[-1]) for message in output):
        return list(output)
    known = {m.id: m for m in shown if m.id}
    rest = [m for m in output if not (m.id in known and same_message(known[m.id], m))]
    unnamed = [m for m in shown if not m.id]
    echoed = len(rest) >= len(unnamed) and all(same_message(*pair) for pair in zip(rest, unnamed, strict=False))
    return rest[len(unnamed) :] if echoed else rest


def aborted(messages: Messages) -> list[BaseMessage]:
    """Return the usable part of an interrupted answer, its last AI message marked as aborted; `[]` if there is none."""
    kept = [m for m in whole_tool_groups(messages) if m.content or not isinstance(m, AIMessage) or m.tool_calls]
    for i in reversed(range(len(kept))):
        if isinstance(kept[i], AIMessage):
            mark = {**kept[i].response_metadata, STATUS: "aborted"}
            kept[i] = kept[i].model_copy(update={"response_metadata": mark})
            return kept
    return []


class StreamedOutput:
    """Accumulator that adds the chunks of a stream up to the output that `invoke` would have returned."""

    def __init__(self) -> None:
        self._total: Any = None
        self._chunks: list[Any] = []  # chunks that do not add up: whole messages, snapshots, states of a graph
        self.empty = True

    def add(self, chunk: Any) -> None:
        """Add the next chunk."""
        is_first, self.empty = self.empty, False
        is_whole = isinstance(chunk, BaseMessage) and not isinstance(chunk, BaseMessageChunk)
        if not (self._chunks or is_whole or type(chunk) in (dict, tuple)):
            with suppress(TypeError):
                self._total = chunk if is_first else self._total + chunk
                return
        if not (self._chunks or is_first):
            self._chunks.append(self._total)
        self._chunks.append(chunk)

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


def _joined(chunks: Messages) -> list[BaseMessage]:
    """Merge the message chunks of a LangGraph `messages` stream by message id."""
    by_id: dict[str | None, BaseMessage] = {}
    for chunk in chunks:
        held = by_id.get(chunk.id)
        if isinstance(held, AIMessageChunk) and isinstance(chunk, AIMessageChunk):
            chunk = held + chunk  # stored below in place of the chunk
        by_id[chunk.id] = chunk
    return list(by_id.values())
