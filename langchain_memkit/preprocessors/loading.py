"""What a turn reads of its history: no more than its preprocessor asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_memkit._histories import read_messages
from langchain_memkit._sync import Step
from langchain_memkit.base import HistoryMessages, HistoryView, Preprocessor, Window
from langchain_memkit.messages.turns import cut_tail


def asks_for_window(preprocessor: Preprocessor | None) -> bool:
    """Whether it (or the first of a sequence) says itself how much of the history it needs."""
    return hasattr(getattr(preprocessor, "first", preprocessor), "window")


async def load(history: Any, preprocessor: Preprocessor | None, config: RunnableConfig, *, native: bool) -> HistoryView:
    """Reads the history of a turn.

    Args:
        history: Any chat history.
        preprocessor: What will be applied; if it (or the first of a sequence) has `window`, it is asked.
        config: Of the turn.
        native: Whether the history is one of ours, which can read a part of itself.
    """
    if not native:
        return HistoryView(list(await read_messages(history)))
    size: int | None = getattr(history, "history_size", None)
    first: Any = getattr(preprocessor, "first", preprocessor)
    if not asks_for_window(preprocessor):
        return await Step(lambda: history.view(max_messages=size), lambda: history.aview(max_messages=size))
    window: Window = await Step(lambda: first.window(config), lambda: first.awindow(config))
    bounded = window.max_messages is not None or window.max_tokens is not None
    if size is not None and bounded:  # without bounds, a fixed end beside a summary would leave a gap between the two
        window = replace(window, max_messages=min(size, size if window.max_messages is None else window.max_messages))
    view: HistoryView = await Step(lambda: history.view(window=window), lambda: history.aview(window=window))
    return _newest_of(view, size) if size is not None and bounded else view


def _newest_of(view: HistoryView, size: int) -> HistoryView:
    """The view cut to a `history_size`: a window is read in whole rows, so it may hold more."""
    read: Any = view.messages
    if len(read) <= size:
        return view
    begin = len(read) - len(cut_tail(read, read.tokens, max_messages=size))
    kept = HistoryMessages(read[begin:], read.tokens[begin:], read.counter, read.turns[begin:], read.epoch, read.window)
    return view._replace(messages=kept)
