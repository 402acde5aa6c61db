"""What the model of an agent is given: messages, notes, tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Annotated, Any, TypeAlias

from langchain.tools import ToolRuntime
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import Field

from langchain_memkit._sync import Flow, Step, adrive, cpu_bound, drive
from langchain_memkit.base import HistoryMessages, HistoryView, Memory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.notes import compose_notes
from langchain_memkit.messages.text import one_line
from langchain_memkit.messages.tokens import approximate_tokens
from langchain_memkit.messages.trimming import RESULTS, group_starts, whole_tool_groups
from langchain_memkit.middleware.run import Run
from langchain_memkit.middleware.state import is_foreign_summary
from langchain_memkit.middleware.turn import TurnStart, config_of_turn, ids_of_call
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.runnables.memories import insert_note
from langchain_memkit.runnables.saving import TurnOptions

__all__ = ["NO_USER", "memory_tools", "shown"]

NO_USER = "tools=True needs a user_id, in the runtime context or in config['configurable']: notes are a user's"

MAX_TITLE = 200  # characters
MAX_TEXT = 4000
MAX_NOTES = 1000  # of one user
SHOWN_TITLES = 50

Title: TypeAlias = Annotated[str, Field(description="A few words that the note is found by, as the user says them.")]
Text: TypeAlias = Annotated[str, Field(description="What to keep, in full.")]
Query: TypeAlias = Annotated[str, Field(description="What to look for, in a few words.")]


def memory_tools(turns: TurnStart) -> list[BaseTool]:
    """Return the tools `remember`, `recall` and `forget` over the memories of the current user.

    Args:
        turns: The middleware's turn starter; notes are kept in the first `KeyValueMemory` among its memories that
            belongs to the user.

    Raises:
        ConfigurationError: None of the memories can keep notes of a user.
    """
    memories = turns.policy.memories
    if not any(_keeps_notes(entry) for entry in memories.entries):
        msg = (
            "tools=True needs a memory in which notes of a user can be kept: "
            'put KeyValueMemory.factory(store) into memories (extra "matching")'
        )
        raise ConfigurationError(msg)

    async def bound(runtime: ToolRuntime) -> list[Memory]:
        return (await turns.bind(ids_of_call(runtime.config, runtime.context))).memories

    async def remember(title: Title, text: Text, runtime: ToolRuntime) -> str:
        notes = _notes(await bound(runtime))
        title, text = _checked(title, "title", MAX_TITLE), _checked(text, "text", MAX_TEXT)
        titles: list[str] = await Step(notes.titles, notes.atitles)
        # Bounded, since a model in a loop could add notes without end.
        if title not in titles and len(titles) >= MAX_NOTES:
            msg = f"There are {len(titles)} notes, and no room for more: forget some first."
            raise ToolException(msg)
        entry = {title: text}
        await Step(partial(notes.add, entry), partial(notes.aadd, entry))
        return f"Remembered: {title}"

    async def recall(query: Query, runtime: ToolRuntime) -> str:
        found = await bound(runtime)
        asked = HumanMessage(_checked(query, "query", MAX_TEXT))
        # The model sees the conversation anyway, so memories search without it.
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
    """Build a tool with the flow's name and arguments, for sync and async calls."""

    @wraps(flow)
    def call(*args: Any, **kwargs: Any) -> str:
        return drive(flow(*args, **kwargs))

    @wraps(flow)
    async def acall(*args: Any, **kwargs: Any) -> str:
        return await adrive(flow(*args, **kwargs))

    # A model's invalid arguments are answered with the error text, so that it can correct itself.
    return StructuredTool.from_function(call, acall, description=about, handle_tool_error=True)


def _keeps_notes(entry: Any) -> bool:
    """Return whether the memory keeps notes of a user; entries shared by the whole app are not a model's to change."""
    try:
        from langchain_memkit.memories.key_value import KeyValueMemory, KeyValueMemoryFactory
    except ImportError:  # the extra is not installed
        return False
    return isinstance(entry, KeyValueMemoryFactory) or (isinstance(entry, KeyValueMemory) and bool(entry.user_id))


def _notes(memories: Sequence[Memory]) -> Any:
    found = next((memory for memory in memories if _keeps_notes(memory)), None)
    if found is None:
        raise ConfigurationError(NO_USER)
    return found


def _checked(value: str, name: str, most: int) -> str:
    """Validate and strip a text argument that the model gave: not empty, valid Unicode, at most `most` characters."""
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


async def shown(
    run: Run,
    policy: TurnOptions,
    given: Sequence[BaseMessage],
    messages: Sequence[BaseMessage],
    config: RunnableConfig,
    *,
    trial: bool = False,
) -> list[BaseMessage]:
    """Build the messages for one call of the model.

    Args:
        run: The run.
        policy: Its options.
        given: The messages of the request, as the middleware before this one left them.
        messages: The messages of the state.
        config: The config of the call.
        trial: Whether this is a dry run.

    Returns:
        A summary of LangChain's `SummarizationMiddleware` if there is one, then past, note and the run's own messages.
    """
    summary = [m for m in given if is_foreign_summary(m)][-1:]
    # From the request, not from the state: other middleware may have edited the messages for this call.
    own = run.own_of_request(given, messages)
    ids = {m.id for m in (*own, *run.own(messages)) if m.id}
    past = _past(run, given, ids, summarized=bool(summary))
    context, chain = run.context, policy.preprocessor
    context.asked, context.past, context.notes = [*summary, *own], past, []
    inside = config_of_turn(config, run.history, context)
    # Memories are loaded once per run, so that later calls of the same run see the same note.
    if run.loaded is None:
        seen = run.view._replace(messages=past)
        whole = chain is None
        run.loaded = await policy.memories.load(run.memories, seen, own, inside, whole=whole, trial=trial)
    kept: list[BaseMessage] = past
    if chain is not None:
        # Reserve room for the largest possible note: which records repeat the past is known only once that is cut.
        most = run.note(own)
        context.notes = [] if most is None else [most]
        kept = await Step(lambda: chain.invoke(past, inside), lambda: chain.ainvoke(past, inside))
    note = run.note([*kept, *own])
    context.notes = [] if note is None else [note]
    budget: Budget | None = getattr(getattr(chain, "first", chain), "budget", None)
    # In a thread, since an app's token counter may do I/O.
    if budget is not None:
        fit = partial(budget.fit_run, own, [*summary, *context.notes], context.scale)
        own = await cpu_bound(fit, long=budget.counter is not approximate_tokens)
    before, after = insert_note(_whole(kept, own), own, note, apart=False)
    return [*summary, *before, *after]


def _past(run: Run, given: Sequence[BaseMessage], own: set[str], *, summarized: bool) -> list[BaseMessage]:
    """Return the transcript before the run, without the run's own messages and the branches that this thread left."""
    read = run.view.messages
    if not isinstance(read, HistoryMessages):
        return [m for m in read if m.id not in own]
    skip, hidden = run.marker["skip"], set[str]()
    places: list[int] = []
    for i in range(_first_kept(run, given, read) if summarized else 0, len(read)):
        turn = read.turns[i]
        # A row with one of the run's messages, an aborted attempt for instance, is part of the run: the state has it.
        if read[i].id in own:
            hidden.add(turn.op)
        if not (turn.op in hidden or any(begin <= turn.seq <= end for begin, end in skip)):
            places.append(i)
    if len(places) == len(read):
        return read
    return HistoryMessages(
        [read[i] for i in places],
        [read.tokens[i] for i in places],
        read.counter,
        [read.turns[i] for i in places],
        read.epoch,
        read.window,
    )


def _first_kept(run: Run, given: Sequence[BaseMessage], read: HistoryMessages) -> int:
    """Return the position in the transcript that a summary in the state leaves off at: the oldest message it kept."""
    kept = {m.id for m in given if m.id in run.older and not is_foreign_summary(m)}
    if kept:
        return next((i for i, m in enumerate(read) if m.id in kept), 0)
    # It kept nothing from before the run. Turns that others added since the thread's last one were not summarized.
    return next((i for i, t in enumerate(read.turns) if t.seq > run.marker["base"]), len(read))


def _whole(past: list[BaseMessage], own: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Drop incomplete tool groups, which providers refuse; the last one is kept if the run begins with its results."""
    if not (own and isinstance(own[0], RESULTS)):
        return whole_tool_groups(past)
    last = group_starts(past)[-1] if past else 0
    return [*whole_tool_groups(past[:last]), *past[last:]]
