"""Tools with which a model takes notes for its user, looks things up, and strikes notes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Annotated, Any, TypeAlias

from langchain.tools import ToolRuntime
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import Field

from langchain_memkit._sync import Flow, Step, adrive, drive
from langchain_memkit.base import HistoryView, Memory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.text import one_line
from langchain_memkit.messages.unsaid import compose_notes
from langchain_memkit.middleware.turn_start import TurnStart, configured

__all__ = ["NO_USER", "memory_tools"]

NO_USER = "tools=True needs a user_id, in the runtime context or in config['configurable']: notes are a user's"

MAX_TITLE = 200  # characters
MAX_TEXT = 4000
MAX_NOTES = 1000  # of one user
SHOWN_TITLES = 50

Title: TypeAlias = Annotated[str, Field(description="A few words that the note is found by, as the user says them.")]
Text: TypeAlias = Annotated[str, Field(description="What to keep, in full.")]
Query: TypeAlias = Annotated[str, Field(description="What to look for, in a few words.")]


def memory_tools(turns: TurnStart) -> list[BaseTool]:
    """Return `remember`, `recall` and `forget`, on the memories of the user who is served.

    Args:
        turns: What the middleware was made with; notes are kept in the first `KeyValueMemory` among its memories that
            is the user's.

    Raises:
        ConfigurationError: No memory keeps notes of a user.
    """
    memories = turns.policy.memories
    if not any(_keeps_notes(entry) for entry in memories.entries):
        msg = (
            "tools=True needs a memory in which notes of a user can be kept: "
            'put KeyValueMemory.factory(store) into memories (extra "matching")'
        )
        raise ConfigurationError(msg)

    async def bound(runtime: ToolRuntime) -> list[Memory]:
        return (await turns.bind(configured(runtime.config, runtime.context))).memories

    async def remember(title: Title, text: Text, runtime: ToolRuntime) -> str:
        notes = _notes(await bound(runtime))
        title, text = _checked(title, "title", MAX_TITLE), _checked(text, "text", MAX_TEXT)
        titles: list[str] = await Step(notes.titles, notes.atitles)
        if title not in titles and len(titles) >= MAX_NOTES:
            msg = f"There are {len(titles)} notes, and no room for more: forget some first."
            raise ToolException(msg)
        entry = {title: text}
        await Step(partial(notes.add, entry), partial(notes.aadd, entry))
        return f"Remembered: {title}"

    async def recall(query: Query, runtime: ToolRuntime) -> str:
        found = await bound(runtime)
        asked = HumanMessage(_checked(query, "query", MAX_TEXT))
        # the conversation is before the model anyway
        nothing = HistoryView([], epoch=(runtime.state.get("memkit_turn") or {}).get("epoch", 0))
        loaded = await memories.load(found, nothing, [asked], runtime.config, whole=False)
        note = compose_notes(loaded)
        if note is not None:
            return str(note.text)
        titles: list[str] = await Step(_notes(found).titles, _notes(found).atitles)
        known = "; ".join(one_line(title) for title in titles[:SHOWN_TITLES])
        return "Nothing is known about that." + (f" Titles of notes: {known}" if known else "")

    async def forget(title: Title, runtime: ToolRuntime) -> str:
        notes = _notes(await bound(runtime))
        title = _checked(title, "title", MAX_TITLE)
        titles: list[str] = await Step(notes.titles, notes.atitles)
        if title not in titles:
            msg = f"There is no note with the title {title!r}."
            raise ToolException(msg)
        await Step(partial(notes.remove, [title]), partial(notes.aremove, [title]))
        return f"Forgotten: {title}"

    return [
        _tool(remember, "Keep a note for the user, for this and later conversations; the same title replaces one."),
        _tool(recall, "Look up what is known of the user from notes and earlier conversations."),
        _tool(forget, "Strike out the note with this title."),
    ]


def _tool(flow: Callable[..., Flow[str]], about: str) -> BaseTool:
    """Return a tool of the flow's name and arguments, for both call styles."""

    @wraps(flow)
    def call(*args: Any, **kwargs: Any) -> str:
        return drive(flow(*args, **kwargs))

    @wraps(flow)
    async def acall(*args: Any, **kwargs: Any) -> str:
        return await adrive(flow(*args, **kwargs))

    # what a model gives wrongly is told to the model
    return StructuredTool.from_function(call, acall, description=about, handle_tool_error=True)


def _keeps_notes(entry: Any) -> bool:
    """Return whether a user's notes can be kept in it. The app's own entries are not a model's to change."""
    try:
        from langchain_memkit.memories.key_value import KeyValueMemory, KeyValueMemoryFactory
    except ImportError:  # without the extra there is none
        return False
    return isinstance(entry, KeyValueMemoryFactory) or (isinstance(entry, KeyValueMemory) and bool(entry.user_id))


def _notes(memories: Sequence[Memory]) -> Any:
    found = next((memory for memory in memories if _keeps_notes(memory)), None)
    if found is None:
        raise ConfigurationError(NO_USER)
    return found


def _checked(value: str, name: str, most: int) -> str:
    """Return an argument of a model's, if it is text of a sensible length."""
    text = " ".join(value.split()) if name == "title" else value.strip()
    if not text or len(text) > most:
        msg = f"{name} must be 1 to {most} characters, not {len(text)}."
        raise ToolException(msg)
    try:
        text.encode()
    except UnicodeEncodeError:
        msg = f"{name} is not valid text."
        raise ToolException(msg) from None
    return text
