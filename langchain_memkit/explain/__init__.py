"""Inspection of a turn's prompt: which messages, from where, at how many tokens, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, merge_configs

from langchain_memkit._sync import CONDENSED
from langchain_memkit.base import TokenCounter
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.explain.view import PARTS, RecalledRecord, ShownMessage, TurnExplanation
from langchain_memkit.memories.fanout import LOAD_ERROR, REMARK
from langchain_memkit.messages.notes import split_notes
from langchain_memkit.messages.text import message_text, role_of
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens, counter_name
from langchain_memkit.preprocessors.budget import EVENT, part_of
from langchain_memkit.runnables import RunnableWithMessageHistory
from langchain_memkit.runnables.saving import OpenTurn

__all__ = ["RecalledRecord", "ShownMessage", "TurnExplanation", "aexplain_turn", "explain_turn"]


def explain_turn(runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None) -> TurnExplanation:
    """Show the prompt that a model would receive for an input, without calling it and without storing the turn.

    It loads and composes as the turn itself would, so a summary that is due is written, and a RAG chain retrieves
    documents and has a follow-up question rewritten. It does not show what prompts inside the wrapped runnable add, nor
    an agent's system prompt, nor the messages in a checkpointer's thread.

    Args:
        runnable: The result of `create_runnable_with_message_history` or `create_conversational_rag_chain` (also with
            a parser after it); for an agent, its `MessageHistoryMiddleware`; or a preprocessor, or a sequence of them.
        input: The input of the runnable (or agent); for a preprocessor, a list of messages.
        config: The config as for `invoke`, with the ids.

    Returns:
        Messages, tokens by part, and what was kept, summarized, dropped and recalled.

    Raises:
        ConfigurationError: The runnable is none of these; nothing was called.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> from langchain_memkit import create_trim_preprocessor
        >>> talk = [HumanMessage("I'm Nemo."), AIMessage("Hello!"), HumanMessage("How are you?"), AIMessage("Fine!")]
        >>> seen = explain_turn(create_trim_preprocessor(max_tokens=20), talk)
        >>> seen.tokens["history"], seen.dropped, [m.text for m in seen.messages]
        (14, 2, ['How are you?', 'Fine!'])
    """
    turn, config, listener = _prepare(runnable, config)
    if turn is None:
        return _explained(runnable.invoke(input, config), None, runnable, listener)
    opened = turn.open(input, config)
    return _explained(opened.shown, opened, turn.preprocessor, listener)


async def aexplain_turn(
    runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None
) -> TurnExplanation:
    """Run `explain_turn` asynchronously."""
    turn, config, listener = _prepare(runnable, config)
    if turn is None:
        return _explained(await runnable.ainvoke(input, config), None, runnable, listener)
    opened: OpenTurn = await turn.aopen(input, config)
    return _explained(opened.shown, opened, turn.preprocessor, listener)


class _Listener(BaseCallbackHandler):
    """Callback that collects the reports of preprocessors and memories, and the memories that failed."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.remarks: list[str] = []
        self.searched_for: str | None = None

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == EVENT:
            self.heard.append(data)
        elif name == CONDENSED and data["rewritten"] and self.searched_for is None:  # the outer one speaks first
            self.searched_for = data["question"]
        elif name == LOAD_ERROR:
            self.failed.append(data["message"])
        elif name == REMARK:
            self.remarks.append(data["message"])


class _Turn(Protocol):
    """The interface for opening a turn without running it, of a chain, a RAG chain or an agent's middleware."""

    preprocessor: Any

    def open(self, value: Any, config: RunnableConfig | None = None, /) -> OpenTurn: ...
    async def aopen(self, value: Any, config: RunnableConfig | None = None, /) -> OpenTurn: ...


def _prepare(runnable: Any, config: RunnableConfig | None) -> tuple[_Turn | None, RunnableConfig, _Listener]:
    listener, found, alone = _Listener(), runnable, False
    # Unwrap bindings and sequences until something is found that can open a turn.
    while not hasattr(found, "aopen"):
        if isinstance(found, RunnableBindingBase):
            config = merge_configs(found.config, config)
            alone = isinstance(found, RunnableWithMessageHistory)
            found = found.bound
        elif isinstance(found, RunnableSequence) and not _is_ours(found):
            found = found.first
        else:
            break
    # In this order: within a run, merging fills in the ids of that run where the config leaves them out.
    config = merge_configs({"callbacks": [listener]}, ensure_config(config))
    # The history of an enclosing chain is another conversation's than this chain's or agent's.
    if alone or not isinstance(found, Runnable):
        config["configurable"] = {k: v for k, v in config["configurable"].items() if k != "message_history"}
    if hasattr(found, "aopen"):
        return found, config, listener
    if not _is_ours(found) or any(isinstance(_bare(step), BaseLanguageModel) for step in _steps(found)):
        msg = (
            "explain_turn takes what create_runnable_with_message_history returned, an agent's "
            "MessageHistoryMiddleware, or a preprocessor (several in a row, without a model), "
            f"not this {type(runnable).__name__}"
        )
        raise ConfigurationError(msg)
    return None, config, listener


def _steps(runnable: Any) -> list[Any]:
    """Return the runnables of a sequence; a single runnable as a list of one."""
    found = _bare(runnable)
    return list(found.steps) if isinstance(found, RunnableSequence) else [found]


def _bare(runnable: Any) -> Any:
    while isinstance(runnable, RunnableBindingBase):
        runnable = runnable.bound
    return runnable


def _is_ours(runnable: Any) -> bool:
    """Return whether the runnable contains a preprocessor with a `window`, as memkit's own have."""
    return any(hasattr(step, "window") for step in _steps(runnable))


def _explained(
    shown: Sequence[BaseMessage], opened: OpenTurn | None, preprocessor: Any, listener: _Listener
) -> TurnExplanation:
    """Combine the prompt with the reports of all preprocessors in a sequence."""
    counters = [step.token_counter for step in map(_bare, _steps(preprocessor)) if hasattr(step, "token_counter")]
    counter: TokenCounter = counters[-1] if counters else approximate_tokens
    asked: Sequence[BaseMessage] = () if opened is None else opened.asked
    given = shown if opened is None or opened.given is None else opened.given
    sizes = count_tokens(given, counter)
    own, known = _names(asked), _names(shown)
    # A message that a template made was in neither past nor input; it holds the question, so it counts as input.
    parts = ["input" if _names([m]) & own else part_of(m) for m in given]
    parts = ["input" if p == "history" and not _names([m]) & known else p for p, m in zip(parts, given, strict=True)]
    messages = [
        ShownMessage(part, role_of(m), message_text(m), size, m.id)
        for part, m, size in zip(parts, given, sizes, strict=True)
    ]
    beside = sum(size for m, size in zip(given, sizes, strict=True) if not _names([m]) & known)
    left = [m for m in asked if not _names([m]) & known]
    heard = listener.heard
    notes = [*(note for event in heard for note in event["notes"]), *listener.failed, *listener.remarks]
    if preprocessor is not None and not heard:
        notes.append("the preprocessor does not say what it left out")
    tokens = {part: sum(m.tokens for m in messages if m.part == part) for part in PARTS}
    max_tokens = min((event["max_tokens"] for event in heard), default=None)
    if max_tokens is not None and counter_name(counter) == "len":  # such a budget counts past messages only
        max_tokens += tokens["input"]
    if max_tokens is not None:  # the budget does not include the instruction and documents of a RAG chain
        max_tokens += beside
    if left:
        notes.append(f"{len(left):,} of the run's own messages are left out, since they outgrow the budget")
    reserved = max((event["reserved"] for event in heard), default=0)
    total = sum(tokens.values()) + reserved
    if max_tokens is not None and total > max_tokens:
        notes.append(f"{total - max_tokens:,} more than the budget: what has to be shown does not fit")
    return TurnExplanation(
        messages=messages,
        tokens={**tokens, **({"reserved": reserved} if reserved else {})},
        max_tokens=max_tokens,
        dropped=sum(event["dropped"] for event in heard) + len(left),
        summarized=max((event["summarized"] for event in heard), default=0),
        dropped_ids=[*(message_id for event in heard for message_id in event["dropped_ids"]), *(m.id for m in left)],
        summarized_ids=[message_id for event in heard for message_id in event["summarized_ids"]],
        recalled=[
            RecalledRecord(r.memory, r.score, r.about or r.role, r.source, r.date, r.text)
            for r in split_notes(given)[1]
        ],
        notes=notes,
        counter=counter_name(counter),
        searched_for=listener.searched_for,
    )


def _names(messages: Sequence[BaseMessage]) -> set[int | str]:
    """Return the identities of messages: the objects' own, and their ids."""
    return {id(m) for m in messages} | {m.id for m in messages if m.id}
