"""A handler that tests of chains give to a run."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler


class Heard(BaseCallbackHandler):
    """Keeps the custom events by name."""

    def __init__(self) -> None:
        self.events: dict[str, list[Any]] = {}

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keeps one."""
        self.events.setdefault(name, []).append(data)
