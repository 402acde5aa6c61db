"""The tools with which the model of an agent keeps notes of its user."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any, TypeAlias

from langchain.tools import ToolRuntime
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import Field

from langchain_memkit._sync import Flow, Step, adrive, drive
from langchain_memkit.base import HistoryView
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.notes import compose_notes
from langchain_memkit.messages.text import one_line
from langchain_memkit.middleware.run import AgentTurns, ids_of_call
from langchain_memkit.runnables.session import BoundSession

NO_USER = "tools=True needs a user_id, in the runtime context or in config['configurable']: notes are a user's"

MAX_TITLE = 200  # characters
MAX_TEXT = 4000
MAX_NOTES = 1000  # of one user
SHOWN_TITLES = 50

Title: TypeAlias = Annotated[str, Field(description="A few words that the note is found by, as the user says them.")]
Text: TypeAlias = Annotated[str, Field(description="What to keep, in full.")]
Query: TypeAlias = Annotated[str, Field(description="What to look for, in a few words.")]


def memory_tools(turns: AgentTurns) -> list[BaseTool]:
    """Return the tools `remember`, `recall` and `forget`; notes are kept in the first `KeyValueMemory` of the user."""
    prompt = turns.options.prompt
    if not any(is_note_memory(entry) for entry in prompt.entries):
        msg = 'tools=True needs a memory for notes: put KeyValueMemory.factory(store) into memories (extra "matching")'
        raise ConfigurationError(msg)

    async def bound(runtime: ToolRuntime) -> tuple[BoundSession, Any]:
        """Return the session of the call, and the memory that keeps the notes."""
        session = await turns.bind(ids_of_call(runtime.config, runtime.context))
        notes = next((memory for memory in session.memories if is_note_memory(memory)), None)
        if notes is None:
            raise ConfigurationError(NO_USER)
        return session, notes

    async def remember(title: Title, text: Text, runtime: ToolRuntime) -> str:
        _, notes = await bound(runtime)
        title, text = _checked(title, "title", MAX_TITLE), _checked(text, "text", MAX_TEXT)
        titles: list[str] = await Step(notes.titles, notes.atitles)
        # Bounded, since a model in a loop could add notes without end.
        if title not in titles and len(titles) >= MAX_NOTES:
            raise ToolException(f"There are {len(titles)} notes, and no room for more: forget some first.")
        await Step(partial(notes.add, {title: text}), partial(notes.aadd, {title: text}))
        return f"Remembered: {title}"

    async def recall(query: Query, runtime: ToolRuntime) -> str:
        session, notes = await bound(runtime)
        asked = HumanMessage(_checked(query, "query", MAX_TEXT))
        # The model sees the conversation anyway, so memories search without it.
        nothing = HistoryView([], epoch=(runtime.state.get("memkit_turn") or {}).get("epoch", 0))
        if note := compose_notes(await prompt.load(session, nothing, [asked], runtime.config)):
            return str(note.text)
        titles: list[str] = await Step(notes.titles, notes.atitles)
        known = "; ".join(one_line(title) for title in titles[:SHOWN_TITLES])
        return "Nothing is known about that." + (f" Titles of notes: {known}" if known else "")

    async def forget(title: Title, runtime: ToolRuntime) -> str:
        _, notes = await bound(runtime)
        title = _checked(title, "title", MAX_TITLE)
        if title not in await Step(notes.titles, notes.atitles):
            raise ToolException(f"There is no note with the title {title!r}.")
        await Step(partial(notes.remove, [title]), partial(notes.aremove, [title]))
        return f"Forgotten: {title}"

    return [
        _tool(remember, "Keep a note for the user, for this and later conversations; the same title replaces one."),
        _tool(recall, "Look up what is known of the user from notes and earlier conversations."),
        _tool(forget, "Strike out the note with this title."),
    ]


def _tool(flow: Callable[..., Flow[str]], about: str) -> BaseTool:
    """Build a tool with the flow's name and arguments, for sync and async calls."""

    @wraps(flow)
    def call(*args: Any, **kwargs: Any) -> str:
        return drive(flow(*args, **kwargs))

    @wraps(flow)
    async def acall(*args: Any, **kwargs: Any) -> str:
        return await adrive(flow(*args, **kwargs))

    # A model's invalid arguments are answered with the error text, so that it can correct itself.
    return StructuredTool.from_function(call, acall, description=about, handle_tool_error=True)


def is_note_memory(entry: Any) -> bool:
    """Return whether a memory, or what a factory makes, keeps notes of one user: shared ones are not a model's."""
    try:
        from langchain_memkit.memories.key_value import KeyValueMemory, KeyValueMemoryFactory
    except ImportError:  # the extra is not installed
        return False
    return isinstance(entry, KeyValueMemoryFactory) or (isinstance(entry, KeyValueMemory) and bool(entry.user_id))


def _checked(value: str, name: str, most: int) -> str:
    """Validate and strip a text argument that the model gave: not empty, valid Unicode, at most `most` characters."""
    text = " ".join(value.split()) if name == "title" else value.strip()
    if not text or len(text) > most:
        raise ToolException(f"{name} must be 1 to {most} characters, not {len(text)}.")
    if text.encode(errors="replace").decode() != text:  # it holds a lone surrogate
        raise ToolException(f"{name} is not valid text.")
    return text
