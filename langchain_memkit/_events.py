"""What callback handlers hear (`on_custom_event`)."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import RunnableConfig

from langchain_memkit._sync import Step

CONDENSED = "memkit_condense_question"
"""What a question became: heard with the fields of a `StandaloneQuestion`."""


def event(config: RunnableConfig, name: str, data: dict[str, Any]) -> Step[None]:
    """Tells callback handlers; only what a question became holds text of a message."""

    def sync() -> None:
        dispatch_custom_event(name, data, config=config)

    async def asynchronous() -> None:
        await adispatch_custom_event(name, data, config=config)

    return Step(sync, asynchronous)
