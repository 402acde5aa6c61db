"""The partial answer of a cancelled model call: a callback collects its tokens, without forcing the model to stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.tracers.context import register_configure_hook

__all__ = ["Partial", "gathering"]

_current: ContextVar[Partial | None] = ContextVar("memkit_partial", default=None)
register_configure_hook(_current, inheritable=False)


class Partial(BaseCallbackHandler):
    """Callback that collects the chunks of calls that have not ended; a model that does not stream leaves nothing."""

    run_inline = True  # on the event loop, since no method blocks

    def __init__(self) -> None:
        self._chunks: dict[UUID, list[BaseMessage]] = {}
        self._text: dict[UUID, str] = {}

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Begin a call; chunks of an earlier attempt are discarded."""
        self._chunks, self._text = {run_id: []}, {}

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        """Collect a piece of the answer."""
        piece = getattr(chunk, "message", None)
        if run_id in self._chunks:
            self._chunks[run_id].append(piece if isinstance(piece, AIMessageChunk) else AIMessageChunk(content=token))

    def on_stream_event(self, event: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Collect a piece of the answer in LangChain's newer streaming protocol; a model may send both."""
        delta = event.get("delta") or {}
        if delta.get("type") == "text-delta":
            self._text[run_id] = self._text.get(run_id, "") + str(delta.get("text") or "")

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Drop a call that ended: its answer is complete."""
        self._chunks.pop(run_id, None)

    def messages(self) -> list[BaseMessage]:
        """Return the partial answer as one message, without its tool calls; an empty list if nothing was said."""
        for run_id, chunks in self._chunks.items():
            total: Any = None if chunks else AIMessage(self._text.get(run_id, ""))
            for piece in chunks:
                total = piece if total is None else total + piece
            if total is not None and (total.content or total.tool_calls):
                return [AIMessage(total.content, id=total.id, name=total.name)]
        return []


@contextmanager
def gathering(partial: Partial) -> Iterator[None]:
    """Let `partial` listen to the models that are called inside the `with` block."""
    token = _current.set(partial)
    try:
        yield
    finally:
        _current.reset(token)
