"""The sender of a message: not every message with the user's role was written by a user. Pure."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, HumanMessage

from langchain_memkit.messages.cuts import is_note, is_summary

__all__ = ["is_notification", "is_user_message", "notification_source", "role_of"]

SOURCE = "lc_source"
"""Where langchain-core's `add_notification_metadata` (from 1.7.2 on) puts its `source`; harnesses set it themselves."""


def notification_source(message: BaseMessage) -> str | None:
    """Return the feature of an agent's harness that added a human message to the conversation; None for a person's.

    Core's `get_notification_metadata` says the same, from langchain-core 1.7.2 on. `SummarizationMiddleware` says
    "summarization"; deepagents names background tasks, skills and notes.

    Example:
        >>> notification_source(HumanMessage("Task 42 is done.", additional_kwargs={"lc_source": "async_subagent"}))
        'async_subagent'
        >>> notification_source(HumanMessage("Hello!")) is None
        True
    """
    # Read directly, since core's own function exists only from langchain-core 1.7.2 on.
    source = message.additional_kwargs.get(SOURCE) if isinstance(message, HumanMessage) else None
    return source if isinstance(source, str) else None


def is_notification(message: BaseMessage) -> bool:
    """Return whether an agent's harness added this human message to the conversation, so that no person wrote it."""
    return notification_source(message) is not None


def is_user_message(message: BaseMessage) -> bool:
    """Return whether a person wrote the message: a human message that is no notification, summary or note of memories.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> task = HumanMessage("Task 42 is done.", additional_kwargs={"lc_source": "async_subagent"})
        >>> [is_user_message(message) for message in (HumanMessage("Hello!"), AIMessage("Hi!"), task)]
        [True, False, False]
    """
    if not isinstance(message, HumanMessage) or is_notification(message):
        return False
    return not (is_note(message) or is_summary(message))


def role_of(message: BaseMessage) -> str:
    """Return the sender for display: `"human"`, `"ai"`, `"system"`, `"tool"`; `"notification"` for a harness.

    Example:
        >>> role_of(HumanMessage("Task 42 is done.", additional_kwargs={"lc_source": "async_subagent"}))
        'notification'
    """
    return "notification" if is_notification(message) else message.type.removesuffix("MessageChunk").lower()
