"""What the model saw: of the last turns of this process, and of a turn that is only tried."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config

from langchain_memkit._histories import turns_between
from langchain_memkit._sync import Step, adrive, drive
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.text import message_text
from langchain_memkit.runnables import trace
from langchain_memkit.runnables.trace import ModelCall, RecalledRecord, ShownMessage, TurnRecorder, TurnTrace, steps_of
from langchain_memkit.runnables.turn import HistoryTurn

__all__ = [
    "ModelCall",
    "RecalledRecord",
    "ShownMessage",
    "TurnTrace",
    "aexplain_stored_turn",
    "aexplain_turn",
    "explain_last_turn",
    "explain_stored_turn",
    "explain_turn",
]


def explain_last_turn(runnable: Runnable[Any, Any], config: RunnableConfig | None = None) -> TurnTrace | None:
    """Show what the models of a session's last turn were given, from where each message came, and what was left out.

    The last 32 turns of this process are at hand, in memory only, those that failed included. A turn whose stream is
    still running is shown as far as it has come.

    Args:
        runnable: The chain, RAG chain or agent that ran the turn.
        config: The config as for `invoke`, with the ids; the last turn that was called with these. With a `turn_id`,
            that turn. Without a `user_id` only turns that have none are found, so that users stay apart; an agent whose
            runtime context names the user is asked with the `user_id` in the config.

    Returns:
        The trace of the turn; None if none of the last 32 turns of this process was called with these ids.

    Raises:
        ConfigurationError: It is no runnable.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history
        >>> from langchain_memkit.testing import FakeChatModel
        >>> chat = create_runnable_with_message_history(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"))
        >>> config = {"configurable": {"session_id": "s1"}}
        >>> _ = chat.invoke("My name is Nemo.", config), chat.invoke("What is my name?", config)
        >>> [(m.part, m.text) for m in explain_last_turn(chat, config).messages][-1]
        ('input', 'What is my name?')
    """
    _check(runnable)
    ids = {key: value for key, value in ensure_config(config).get("configurable", {}).items() if isinstance(value, str)}
    chains = [step for step in steps_of(runnable) if isinstance(step, HistoryTurn)]
    for recorder in reversed(list(trace.RECENT)):
        known = {"turn_id": recorder.turn_id, **recorder.configurable}
        # A config without a user or a session is not for just any: it would show one user what another was told.
        if ids.items() <= known.items() and _whose(ids) == _whose(known) and (recorder.owner in chains or not chains):
            return recorder.trace()
    return None


def explain_stored_turn(history: Any, seq: int | None = None) -> TurnTrace | None:
    """Show what the models of a stored turn were given, if the chain or agent has `trace=True`.

    The whole conversation is read, since a trace names its messages by their ids.

    Args:
        history: A history of memkit.
        seq: The position of the turn (`Turn.seq`); None for the last one that has a trace.

    Returns:
        The trace; None if no such turn has one. Texts that are stored nowhere else, those of records and summaries
        among them, are left out. Of a damaged one a line in `notes` tells that it is.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history
        >>> from langchain_memkit.testing import FakeChatModel
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> chat = create_runnable_with_message_history(FakeChatModel(), histories, trace=True)
        >>> config = {"configurable": {"session_id": "s1"}}
        >>> _ = chat.invoke("My name is Nemo.", config), chat.invoke("What is my name?", config)
        >>> [m.text for m in explain_stored_turn(histories("s1")).messages]
        ['My name is Nemo.', 'Noted.', 'What is my name?']
    """
    return drive(_stored(history, seq))


async def aexplain_stored_turn(history: Any, seq: int | None = None) -> TurnTrace | None:
    """Run `explain_stored_turn` asynchronously."""
    return await adrive(_stored(history, seq))


async def _stored(history: Any, seq: int | None) -> TurnTrace | None:
    if not hasattr(history, "iter_turns"):
        raise ConfigurationError(f"traces are stored by histories of langchain_memkit, not by {type(history).__name__}")
    turns = await turns_between(history, None)
    texts = {message.id: message_text(message) for turn in turns for message in turn.messages}
    traced = [turn for turn in turns if turn.trace is not None and seq in (None, turn.seq)]
    if not traced:
        return None
    texts["input"] = "\n".join(m.text for m in traced[-1].messages if m.type == "human")
    try:
        return TurnTrace.from_stored(traced[-1].trace, texts)
    except (AttributeError, LookupError, TypeError, ValueError):  # of damaged data
        return TurnTrace([], {}, notes=[f"the trace of turn {traced[-1].seq} is damaged, and cannot be shown"])


def explain_turn(
    runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None, *, run_inner: bool = True
) -> TurnTrace:
    """Show what the model would be given for an input: run everything up to its call, and stop there.

    The real runnable runs as a dry run: no history, memory, summary or checkpoint is written. Its prompts, functions
    and retrievers run (`ran` lists them), and so do models that only prepare the answer, for a summary that is due or
    a follow-up question (`calls` lists them). A checkpointer is read if the agent itself, or a chain that pipes it, is
    given; one inside a function is not known. A model that is called past LangChain cannot be stopped, and is not seen.

    Args:
        runnable: A chain, RAG chain, agent or other compiled graph, as it is called; or a preprocessor (a sequence of
            them), whose result is shown.
        input: Its input.
        config: The config as for `invoke`, with the ids.
        run_inner: Whether models that prepare the answer are called. If not, the trace ends at the first of them.

    Returns:
        The trace of the turn: messages, tokens by part, what was kept, summarized, dropped and recalled.

    Raises:
        ConfigurationError: It is no runnable; nothing was called.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> from langchain_memkit import create_trim_preprocessor
        >>> talk = [HumanMessage("I'm Nemo."), AIMessage("Hello!"), HumanMessage("How are you?"), AIMessage("Fine!")]
        >>> seen = explain_turn(create_trim_preprocessor(max_tokens=20), talk)
        >>> seen.tokens["history"], seen.dropped, [m.text for m in seen.messages]
        (14, 2, ['How are you?', 'Fine!'])
    """
    return drive(_explain(runnable, input, config, run_inner=run_inner))


async def aexplain_turn(
    runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None, *, run_inner: bool = True
) -> TurnTrace:
    """Run `explain_turn` asynchronously."""
    return await adrive(_explain(runnable, input, config, run_inner=run_inner))


async def _explain(runnable: Any, input: Any, config: RunnableConfig | None, *, run_inner: bool) -> TurnTrace:
    _check(runnable)
    recorder = TurnRecorder("answer" if run_inner else "any")
    target = _read_only(runnable)

    # The exception is caught here, since a flow is given ordinary exceptions only.
    def sync() -> Any:
        with suppress(trace.ModelReached):
            return target.invoke(input, config)

    async def asynchronous() -> Any:
        with suppress(trace.ModelReached):
            return await target.ainvoke(input, config)

    with recorder.listening():
        output = await Step(sync, asynchronous)
    ours = any(hasattr(step, "window") for step in steps_of(runnable))
    if ours and recorder.stopped_at in (None, "answer"):  # preprocessors that are piped by hand
        recorder.preprocessor = recorder.preprocessor or runnable
    alone = ours and isinstance(output, list)  # its result is what a model would be given
    if alone:
        recorder.shown = list(output)
    seen = recorder.trace(output if alone else None)
    if recorder.stopped_at is None and not alone:
        seen.notes.append("no model was called: what ran to the end is listed, and what it returned was not stored")
    elif recorder.stopped_at not in (None, "answer"):
        seen.notes.append(f"ended before the call for {recorder.stopped_at}, on which the answering call depends")
    return seen


def _whose(ids: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the session and the user that ids name."""
    return ids.get("session_id", ids.get("thread_id")), ids.get("user_id")


def _check(runnable: object) -> None:
    if not isinstance(runnable, Runnable):
        raise ConfigurationError(
            "give the chain, RAG chain or agent as it is called (for an agent, what create_agent returned, not its "
            f"middleware), or a preprocessor; got {type(runnable).__name__}"
        )


def _read_only(runnable: Any) -> Any:
    """Return a runnable whose graphs, as far as they can be found, write no checkpoints; itself if there are none."""
    if isinstance(runnable, RunnableBindingBase):
        bound = _read_only(runnable.bound)
        return runnable if bound is runnable.bound else runnable.model_copy(update={"bound": bound})
    if isinstance(runnable, RunnableSequence):
        steps = [_read_only(step) for step in runnable.steps]
        same = all(a is b for a, b in zip(steps, runnable.steps, strict=True))
        return runnable if same else RunnableSequence(*steps, name=runnable.name)
    if isinstance(runnable, HistoryTurn):
        inner = _read_only(runnable.runnable)
        return runnable if inner is runnable.runnable else replace(runnable, runnable=inner)
    saver: Any = getattr(runnable, "checkpointer", None)
    if not (hasattr(saver, "aput_writes") and hasattr(runnable, "copy")):
        return runnable
    reader: Any = copy.copy(saver)  # shares what is stored; the methods below hide those that write

    def put(config: Any, checkpoint: Any, *args: object) -> Any:
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def aput(*args: Any) -> Any:
        return put(*args)

    async def aput_writes(*args: object) -> None:
        pass

    reader.put, reader.aput, reader.put_writes, reader.aput_writes = put, aput, lambda *args: None, aput_writes
    return runnable.copy(update={"checkpointer": reader})
