"""The tools with which the model of an agent keeps notes and wishes of its user, and reads a shortened result again."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any, TypeAlias

from langchain.tools import ToolRuntime
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import Field

from langchain_memkit._histories import load_history, turns_between
from langchain_memkit._sync import Flow, Step, adrive, drive
from langchain_memkit.base import HistoryView
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.preferences import MAX_LINE, PreferenceMemory, PreferenceMemoryFactory
from langchain_memkit.messages.notes import compose_notes
from langchain_memkit.messages.text import message_text, one_line
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.middleware.run import AgentTurns, Run, RunHandle, ids_of_call
from langchain_memkit.middleware.state import State, messages_in
from langchain_memkit.runnables.session import BoundSession

NO_USER = "tools=True needs a user_id, in the runtime context or in config['configurable']: notes are a user's"
NO_PLACE = (
    "tools=True needs memories=[...] in which the model may write: KeyValueMemory.factory(store) for notes (extra "
    '"matching"), PreferenceMemory.factory(histories) for how the user wants to be answered'
)

MAX_TITLE = 200  # characters
MAX_TEXT = 4000
MAX_NOTES = 1000  # of one user
SHOWN_TITLES = 50

Title: TypeAlias = Annotated[str, Field(description="A few words that the note is found by, as the user says them.")]
Text: TypeAlias = Annotated[str, Field(description="What to keep, in full.")]
CallId: TypeAlias = Annotated[str, Field(description="The call_id that stands in the shortened result.")]
Word: TypeAlias = Annotated[
    str | None, Field(description="Give only the lines that hold this word or phrase; without it all of the result.")
]
Start: TypeAlias = Annotated[int, Field(description="The character to begin at, 0 for the first.", ge=0)]
Wish: TypeAlias = Annotated[
    str, Field(description="How the user wants to be answered: their own words, word for word.")
]
Line: TypeAlias = Annotated[str, Field(description="The whole preference, as it stands in the records.")]
Query: TypeAlias = Annotated[str, Field(description="What to look for, in a few words.")]


def memory_tools(turns: AgentTurns) -> list[BaseTool]:
    """Return the tools for the memories that a model may write in, of notes and of preferences."""
    entries = turns.options.prompt.entries
    tools: list[BaseTool] = []
    if any(is_note_memory(entry) for entry in entries):
        tools += note_tools(turns)
    if any(is_preference_memory(entry) for entry in entries):
        tools += preference_tools(turns)
    if not tools:
        raise ConfigurationError(NO_PLACE)
    return tools


async def _bound(turns: AgentTurns, runtime: ToolRuntime, is_wanted: Callable[[Any], bool]) -> tuple[BoundSession, Any]:
    """Return the session of a tool call, and the first memory of a kind."""
    session = await turns.bind(ids_of_call(runtime.config, runtime.context))
    memory = next((memory for memory in session.memories if is_wanted(memory)), None)
    if memory is None:
        raise ConfigurationError(NO_USER)
    return session, memory


def preference_tools(turns: AgentTurns) -> list[BaseTool]:
    """Return the tools `remember_preference` and `forget_preference`, for the first `PreferenceMemory`."""

    async def remember_preference(text: Wish, runtime: ToolRuntime) -> str:
        wish = " ".join(_checked(text, "text", MAX_LINE).split())
        # A web page that the model has read must not set rules for all conversations.
        quoted = _letters(wish)
        if not quoted or not any(quoted in _letters(said) for said in _said_by_user(runtime.state)):
            raise ToolException("The user did not say that. Give a part of what the user said, word for word.")
        _, memory = await _bound(turns, runtime, is_preference_memory)
        await Step(partial(memory.add, wish), partial(memory.aadd, wish))
        return f"Remembered: {wish}"

    async def forget_preference(text: Line, runtime: ToolRuntime) -> str:
        _, memory = await _bound(turns, runtime, is_preference_memory)
        wish = " ".join(_checked(text, "text", MAX_LINE).split())
        if not await Step(partial(memory.remove, wish), partial(memory.aremove, wish)):
            raise ToolException(f"There is no preference {wish!r}.")
        return f"Forgotten: {wish}"

    about = "Keep how the user wants to be answered from now on, in all conversations, once the user has said so."
    return [
        _tool(remember_preference, about),
        _tool(forget_preference, "Strike out a preference that the user no longer has."),
    ]


def _said_by_user(state: State) -> list[str]:
    """Return the texts of the user's messages that the model sees: of the transcript, the run and the state."""
    run = _run_of(state)
    known = [] if run is None else [*run.view.messages, *run.seen]
    return [message_text(message) for message in (*known, *messages_in(state)) if is_user_message(message)]


def _letters(text: str) -> str:
    """Return a text without case, spacing and punctuation, which a model may change when it quotes."""
    return "".join(character for character in text.casefold() if character.isalnum())


def note_tools(turns: AgentTurns) -> list[BaseTool]:
    """Return the tools `remember`, `recall` and `forget`; notes are kept in the first `KeyValueMemory` of the user."""
    prompt = turns.options.prompt
    bound = partial(_bound, turns, is_wanted=is_note_memory)

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
        run = _run_of(runtime.state)
        is_known = run is not None and run.loaded is not None  # else the run goes on in another process
        zone = run.context.timezone if run and is_known else await prompt.timezone_of(session)
        if note := compose_notes(await prompt.load(session, nothing, [asked], runtime.config, zone)):
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


READ_RESULT = "read_result"


def result_reader(turns: AgentTurns) -> BaseTool:
    """Return the tool that gives a shortened tool result of this session and user in full, or some of its lines."""

    async def read_result(call_id: CallId, runtime: ToolRuntime, word: Word = None, start: Start = 0) -> str:
        result = _result_of(_own_messages(runtime.state), call_id)
        if result is None:
            result = await _stored_result(turns, call_id, runtime)
        if result is None:
            raise ToolException(f"There is no result of a call with the id {call_id[:MAX_TITLE]!r}.")
        text = message_text(result)
        return page_of(lines_with(text, word) if word else text, start)

    return _tool(read_result, "Read a shortened result of an earlier tool call again.")


def _own_messages(state: Any) -> list[BaseMessage]:
    """Return the messages of the run, from the agent's state; those of earlier turns are read from the transcript.

    A state may still hold what was erased from the transcript since.
    """
    run = _run_of(state)
    if run is None:
        return []
    current = run.own
    known = {message.id for message in current}
    return [*(message for message in run.seen if message.id not in known), *current]


def _run_of(state: Any) -> Run | None:
    """Return the run of the agent's state; None if another process has begun it."""
    handle = state.get("memkit_run")
    return handle.run if isinstance(handle, RunHandle) else None


def _result_of(messages: list[BaseMessage], call_id: str) -> ToolMessage | None:
    """Return the newest result of a call."""
    results = (m for m in reversed(messages) if isinstance(m, ToolMessage) and m.tool_call_id == call_id)
    return next(results, None)


async def _stored_result(
    turns: AgentTurns, call_id: str, runtime: ToolRuntime, *, page: int = 50, pages: int = 40
) -> ToolMessage | None:
    """Search the newest turns of the session's transcript, at most so many pages, for the result of a call."""
    session = await turns.bind(ids_of_call(runtime.config, runtime.context))
    history = session.history
    end = 0
    if session.native:
        newest: HistoryView = await Step(partial(history.view, max_messages=1), partial(history.aview, max_messages=1))
        end = newest.seq
    if not end:  # a layout without positions, or a history of another package
        view = await load_history(history, None, runtime.config, native=session.native)
        return _result_of(list(view.messages), call_id)
    for _ in range(pages):
        if end <= 0:
            break
        begin = max(end - page, 0)
        for turn in reversed(await turns_between(history, begin, end + 1)):
            result = _result_of(turn.messages, call_id)
            if result is not None:
                return result
        end = begin
    return None


def page_of(text: str, start: int, *, most: int = 6000) -> str:
    r"""Return at most `most` characters of a text, from a character on, and where it goes on.

    Example:
        >>> page_of("Tea at five.", 0, most=3)
        'Tea\n[9 more characters: give start=3.]'
    """
    end = start + most
    left = len(text) - end
    if start and start >= len(text):
        raise ToolException(f"start={start} is beyond the end: there are {len(text)} characters.")
    return text[start:end] if left <= 0 else f"{text[start:end]}\n[{left:,} more characters: give start={end}.]"


def lines_with(text: str, word: str, *, around: int = 200) -> str:
    r"""Return the lines of a text that hold a word, in order; of a long line what stands around the word.

    Args:
        text: The text.
        word: A word or a phrase; upper and lower case are the same.
        around: Number of characters before and after the word, in a line of more than twice as many.

    Example:
        >>> lines_with("Tea at five.\nDinner at eight.", "dinner")
        'Dinner at eight.'
    """
    found: list[str] = []
    for line in text.splitlines():
        places = [match.start() for match in re.finditer(re.escape(word), line, re.IGNORECASE)]
        if not places:
            continue
        if len(line) <= 2 * around:
            found.append(line)
            continue
        end = 0
        for place in places:
            if place >= end:
                begin, end = max(place - around, 0), place + len(word) + around
                found.append(f"... {line[begin:end]} ...")
    if not found:
        return f"No line holds {word[:MAX_TITLE]!r}."
    return "\n".join(found)


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


def is_preference_memory(entry: Any) -> bool:
    """Return whether a memory, or what a factory makes, keeps how a user wants to be answered."""
    return isinstance(entry, (PreferenceMemory, PreferenceMemoryFactory))


def _checked(value: str, name: str, most: int) -> str:
    """Validate and strip a text argument that the model gave: not empty, valid Unicode, at most `most` characters."""
    text = " ".join(value.split()) if name == "title" else value.strip()
    if not text or len(text) > most:
        raise ToolException(f"{name} must be 1 to {most} characters, not {len(text)}.")
    if text.encode(errors="replace").decode() != text:  # it holds a lone surrogate
        raise ToolException(f"{name} is not valid text.")
    return text
