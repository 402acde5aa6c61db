"""Who a message comes from."""

from __future__ import annotations

import langchain_core.messages
import pytest
from langchain_core.messages import AIMessage, HumanMessage, HumanMessageChunk, SystemMessage, ToolMessage

from langchain_memkit.messages.notes import Record, note_message
from langchain_memkit.messages.text import role_of
from langchain_memkit.messages.trimming import is_notification, is_user_message, notification_source
from langchain_memkit.preprocessors.prompt import summary_message

TASK = HumanMessage("Task 42 is done.", additional_kwargs={"lc_source": "async_subagent", "lc_data": {"task": 42}})


@pytest.mark.parametrize("source", ["async_subagent", "skills", "summarization", "anything else", ""])
def test_any_source_is_a_notification(source: str) -> None:
    """Whatever the harness calls itself, nobody has said it."""
    message = HumanMessage("Something happened.", additional_kwargs={"lc_source": source})
    assert notification_source(message) == source
    assert is_notification(message)
    assert not is_user_message(message)
    assert role_of(message) == "notification"


@pytest.mark.parametrize("value", [None, 7, ["skills"], {"a": 1}])
def test_what_is_no_source(value: object) -> None:
    """Core takes a text for a source and nothing else; so do we."""
    message = HumanMessage("Hello!", additional_kwargs={"lc_source": value})
    assert notification_source(message) is None
    assert is_user_message(message)


def test_as_core_says() -> None:
    """Core's own function, where it is there, says the same of the same messages."""
    plain = HumanMessage("Hello!")
    core = getattr(langchain_core.messages, "get_notification_metadata", None)
    made = getattr(langchain_core.messages, "add_notification_metadata", None)
    marked = made(plain, source="skills") if made else HumanMessage("Hello!", additional_kwargs={"lc_source": "skills"})
    for message in (TASK, plain, marked, HumanMessage("x", additional_kwargs={"lc_source": 1})):
        expected = core(message) if core else None
        if core:
            assert notification_source(message) == (expected["source"] if expected else None)
    assert is_notification(marked)


def test_only_people_are_users() -> None:
    """A user's message is what a person said: no answers, results, system lines, notes or summaries."""
    others = [AIMessage("a"), SystemMessage("s"), ToolMessage("t", tool_call_id="1"), TASK]
    others += [note_message([Record("Tea at five.")]), summary_message("They spoke of tea.", "d")]
    assert not any(map(is_user_message, others))
    assert is_user_message(HumanMessage("Hello!"))
    assert is_user_message(HumanMessageChunk(content="Hello!"))


def test_roles() -> None:
    """Roles as people read them."""
    messages = [HumanMessage("h"), HumanMessageChunk(content="h"), AIMessage("a"), SystemMessage("s"), TASK]
    assert [role_of(message) for message in messages] == ["human", "human", "ai", "system", "notification"]
