"""LangGraph's threads as a source: the messages in the latest checkpoint of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_memkit.base import Turn, check_id
from langchain_memkit.errors import MessageDecodeError
from langchain_memkit.migrate.sources import Conversation, message_turn, unreadable


@dataclass(frozen=True)
class ThreadSource:
    """Source over the threads of a checkpointer."""

    checkpoints: Any
    channel: str

    def __post_init__(self) -> None:
        import langchain_memkit.backends.langgraph_checkpoints  # noqa: F401  # fails now if an extra is missing

    def size(self) -> None:
        """Return None: messages are counted when a thread is read."""

    def conversations(self) -> Iterator[Conversation]:
        """Iterate over the threads."""
        from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint

        with closing(self.checkpoints.rows()) as rows:
            for thread_id, kind, blob, metadata, older in rows:
                owner, problem = _owner(metadata)
                problems = [problem] if problem else []
                try:
                    state = decode_checkpoint(kind, blob)
                    if self._keeps_differences(state):
                        state["channel_values"][self.channel] = self._replayed(state, older, problems)
                except MessageDecodeError as error:
                    yield Conversation(thread_id, owner, partial(iter, [unreadable(f"thread: {error}")]))
                else:
                    # By id, since an agent with `MessageHistoryMiddleware` may have stored the same messages under
                    # other turns.
                    yield Conversation(thread_id, owner, partial(self._turns, thread_id, state, problems), by_id=True)

    def _keeps_differences(self, state: Any) -> bool:
        """Return whether the channel is a `DeltaChannel`: it was written to, but the checkpoint lacks its value."""
        values = state.get("channel_values") if isinstance(state, dict) else None
        versions = state.get("channel_versions") if isinstance(state, dict) else None
        written = isinstance(versions, dict) and self.channel in versions
        return written and isinstance(values, dict) and self.channel not in values

    def _replayed(self, latest: Any, older: Any, problems: list[str]) -> list[Any]:
        """Rebuild the channel's list from the last checkpoint that holds it whole and the writes since."""
        from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint, replayed

        seed, version = None, None
        steps: list[list[Any]] = []
        for found in older(self.channel):
            if found is None:
                problems.append("a checkpoint that it is built on is gone: what was said before it is not there")
                break
            kind, blob, writes = found
            # `older` goes from the newest checkpoint to the oldest, so the writes are replayed in reverse order of this
            # list.
            steps.append([decode_checkpoint(*write) for write in writes])
            state = decode_checkpoint(kind, blob)
            values = state.get("channel_values") if isinstance(state, dict) else None
            if isinstance(values, dict) and self.channel in values:
                seed, version = values[self.channel], (state.get("channel_versions") or {}).get(self.channel)
                break
        if not any(steps) and version != latest["channel_versions"][self.channel]:
            problems.append(f"no writes of its {self.channel!r} were found (another writes_collection_name?)")
        return replayed(seed, (write for step in reversed(steps) for write in step))

    def _turns(self, thread_id: Any, state: Any, problems: list[str]) -> Iterator[Turn]:
        from langchain_memkit.backends.langgraph_checkpoints import decode_message_of_graph

        for problem in problems:
            yield unreadable(f"thread: {problem}")
        values = state.get("channel_values") if isinstance(state, dict) else None
        stored = values.get(self.channel) if isinstance(values, dict) else None
        if not isinstance(stored, list):
            yield unreadable(f"thread: {self._why_nothing(state)}")
            return
        when = _date(state.get("ts"))
        messages: list[BaseMessage] = []
        for i, value in enumerate(stored):
            try:
                message, lost = decode_message_of_graph(value)
            except MessageDecodeError as error:
                yield unreadable(f"message {i}: {error}")
                continue
            if message.additional_kwargs.get("lc_source") == "summarization":
                yield unreadable(f"message {i}: a summary of SummarizationMiddleware; what it stands for is not there")
                continue
            messages.append(message)
            name = ("graph", message.id, "") if message.id else ("graph", f"{i}:{message!r}", str(thread_id))
            yield message_turn(message, name, when, f"message {i}", lost)
        if waiting := _unanswered(messages):
            yield unreadable(f"thread: {waiting} tool calls have no results yet; move it again when they have")

    def _why_nothing(self, state: Any) -> str:
        versions = state.get("channel_versions") if isinstance(state, dict) else None
        if isinstance(versions, dict) and self.channel in versions:
            return f"its {self.channel!r} are no list: nothing is moved"
        return f"its state has no {self.channel!r}"


def _owner(metadata: Any) -> tuple[str, str]:
    """Return the owner of a thread and a problem with it, both empty strings if there is none.

    The owner is the `user_id` of the thread's config, which LangGraph stores with every checkpoint.
    """
    from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint

    try:
        found = metadata.get("user_id") if isinstance(metadata, dict) else json.loads(metadata).get("user_id")
    except (AttributeError, TypeError, ValueError, RecursionError):
        return "", ""
    try:
        if isinstance(found, (list, tuple)) and len(found) == 2:  # MongoDBSaver stores each value with its type
            found = decode_checkpoint(*found)
        if found is None:
            return "", ""
        is_number = isinstance(found, int) and not isinstance(found, bool)
        return check_id(str(found) if is_number else found, "user_id"), ""
    except (TypeError, ValueError) as error:
        return "", f"moved as nobody's: {error}"


def _unanswered(messages: list[BaseMessage]) -> int:
    """Return the number of tool calls in the last AI message that have no result."""
    answered = {m.tool_call_id for m in messages if isinstance(m, ToolMessage)}
    last = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
    return sum(call.get("id") not in answered for call in last.tool_calls) if last else 0


def _date(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None
