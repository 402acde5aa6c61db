"""Seeing what the model saw: which messages, from where, at how many tokens, and what was left out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, merge_configs

from langchain_memkit.base import TokenCounter
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.telling import LOAD_ERROR
from langchain_memkit.messages.counting import approximate_tokens, count_tokens, counter_name
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.text import said
from langchain_memkit.preprocessors.report import EVENT, part_of
from langchain_memkit.runnables import RunnableWithMessageHistory
from langchain_memkit.runnables.saving import OpenTurn
from langchain_memkit.runnables.turn import HistoryTurn

__all__ = ["ShownMessage", "TurnExplanation", "aexplain_turn", "explain_turn"]

PARTS = ("system", "summary", "history", "notes", "input")  # and "reserved", which no message is
BAR = 40  # characters
EXCERPT = 100  # characters
COLOURS = {
    "system": "#8d99ae",
    "summary": "#e9c46a",
    "history": "#2a9d8f",
    "notes": "#8ab17d",
    "input": "#e76f51",
    "reserved": "#cccccc",
}


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message that the model is given.

    Attributes:
        part: `"system"`, `"summary"`, `"history"`, `"notes"` (what memories recalled) or `"input"`.
        role: `"human"`, `"ai"`, `"tool"`, `"system"`.
        text: What it says; tool calls, and images and files by name, in brackets.
        tokens: How large it is, as `TurnExplanation.counter` counts.
        id: Its id, if it has one.
    """

    part: str
    role: str
    text: str
    tokens: int
    id: str | None


@dataclass(frozen=True, slots=True, repr=False)
class TurnExplanation:
    """What a turn would give the model. Prints as text, shows as a table in notebooks, and is data: `to_dict()`.

    Attributes:
        messages: In the order in which the model gets them.
        tokens: In sum, by part; with `"reserved"` if something is, for the answer and the schemas of tools.
        max_tokens: The budget, answer and tools included; None if no preprocessor of ours takes part.
        dropped: How many of the messages that were read are neither shown nor in a summary.
        summarized: How many messages the summary stands for.
        dropped_ids: Ids of what was dropped; None for a message without one.
        summarized_ids: Ids of what was read in this turn and is summarized; of earlier turns only the count is known.
        notes: What did not go as wished.
        counter: What counted: `"approximate"`, the name of an encoding, `"len"` for messages.
    """

    messages: list[ShownMessage]
    tokens: dict[str, int]
    max_tokens: int | None = None
    dropped: int = 0
    summarized: int = 0
    dropped_ids: list[str | None] = field(default_factory=list)
    summarized_ids: list[str | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counter: str = "approximate"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        """A bar for each part, then a line for each message."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        lines = [f"{self._size()}; {self._left_out()}"]
        lines += [f"{p:>8} {'█' * round(BAR * n / whole):<{BAR}} {n:>7,}" for p, n in self.tokens.items() if n]
        lines += [f"{m.part:>8} {m.role:>6} {m.tokens:>6,}  {_line(_unframed(m))}" for m in self.messages]
        return "\n".join([*lines, *(f"    note {_line(note)}" for note in self.notes)])

    def __repr__(self) -> str:
        """The same: what a prompt shows."""
        return str(self)

    def _size(self) -> str:
        of = f" of {self.max_tokens:,}" if self.max_tokens else ""
        unit = "messages" if self.counter == "len" else f"tokens ({self.counter})"
        return f"{sum(self.tokens.values()):,}{of} {unit}"

    def _left_out(self) -> str:
        return f"{self.summarized:,} messages summarized, {self.dropped:,} dropped"

    def _repr_html_(self) -> str:
        """The same for notebooks; what was said is shown as text, whatever it holds."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        bar = "".join(
            f'<div title="{p}: {n:,}" style="width:{100 * n / whole:.2f}%;background:{COLOURS[p]}"></div>'
            for p, n in self.tokens.items()
        )
        legend = " ".join(
            f'<span style="color:{COLOURS[p]}">&#9632;</span> {p} {n:,}' for p, n in self.tokens.items() if n
        )
        rows = "".join(
            f"<tr><td>{m.part}</td><td>{html.escape(m.role)}</td><td>{m.tokens:,}</td>"
            f'<td style="text-align:left;white-space:pre-wrap">{html.escape(m.text)}</td></tr>'
            for m in self.messages
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f"<div><b>{html.escape(self._size())}</b>; {self._left_out()}"
            f'<div style="display:flex;height:1em;background:#eee">{bar}</div>{legend}{notes}'
            f"<table><tr><th>part</th><th>role</th><th>tokens</th><th>text</th></tr>{rows}</table></div>"
        )


def _unframed(message: ShownMessage) -> str:
    """A summary or records without the words around them, which would take up the line."""
    tag = {"summary": "summary", "notes": "records"}.get(message.part)
    inner = message.text.partition(f"<{tag}>\n")[2] if tag else ""
    return inner.removesuffix(f"\n</{tag}>") or message.text


def _line(text: str) -> str:
    """The beginning of a text as one line without control characters, which a terminal would obey."""
    line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text[: 10 * EXCERPT].split()))
    return line if len(line) <= EXCERPT else line[: EXCERPT - 3] + "..."


def explain_turn(runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None) -> TurnExplanation:
    """Shows what the model would be given for an input, without calling it and without storing the turn.

    Loads and composes as the turn itself would, so a summary that is due is written. What prompts inside the wrapped
    runnable add is not seen.

    Args:
        runnable: What `create_runnable_with_message_history` returned (with a parser behind it, if you like), or a
            preprocessor, or several in a row.
        input: What the runnable would be invoked with; for a preprocessor, a list of messages.
        config: As for `invoke`, with the ids.

    Returns:
        Messages, tokens by part, and what was summarized and dropped.

    Raises:
        ConfigurationError: The runnable is neither; nothing was called.

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
        return _explained(runnable.invoke(input, config), 0, runnable, listener)
    opened = turn.open(input, config)
    return _explained(opened.shown, len(opened.asked), turn.preprocessor, listener)


async def aexplain_turn(
    runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None
) -> TurnExplanation:
    """Async twin of `explain_turn`."""
    turn, config, listener = _prepare(runnable, config)
    if turn is None:
        return _explained(await runnable.ainvoke(input, config), 0, runnable, listener)
    opened: OpenTurn = await turn.aopen(input, config)
    return _explained(opened.shown, len(opened.asked), turn.preprocessor, listener)


class _Listener(BaseCallbackHandler):
    """Keeps what preprocessors say of their work, and which memories failed."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.failed: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == EVENT:
            self.heard.append(data)
        elif name == LOAD_ERROR:
            self.failed.append(f"{data['memory']} could not be loaded: {data['error']}: {data['message']}")


def _prepare(runnable: Any, config: RunnableConfig | None) -> tuple[HistoryTurn | None, RunnableConfig, _Listener]:
    listener, found, alone = _Listener(), runnable, False
    while not isinstance(found, HistoryTurn):
        if isinstance(found, RunnableBindingBase):
            config = merge_configs(found.config, config)
            alone = isinstance(found, RunnableWithMessageHistory)
            found = found.bound
        elif isinstance(found, RunnableSequence) and not _is_ours(found):
            found = found.first
        else:
            break
    # in this order: within a run, merging fills in the ids of that run for what a config leaves out
    config = merge_configs({"callbacks": [listener]}, ensure_config(config))
    if alone:  # an enclosing chain's history is not ours
        config["configurable"] = {k: v for k, v in config["configurable"].items() if k != "message_history"}
    if isinstance(found, HistoryTurn):
        return found, config, listener
    if not _is_ours(found) or any(isinstance(_bare(step), BaseLanguageModel) for step in _steps(found)):
        msg = (
            "explain_turn takes what create_runnable_with_message_history returned, or a preprocessor (several in a "
            f"row, without a model), not this {type(runnable).__name__}"
        )
        raise ConfigurationError(msg)
    return None, config, listener


def _steps(runnable: Any) -> list[Any]:
    """The runnables of a sequence, or the one."""
    found = _bare(runnable)
    return list(found.steps) if isinstance(found, RunnableSequence) else [found]


def _bare(runnable: Any) -> Any:
    while isinstance(runnable, RunnableBindingBase):
        runnable = runnable.bound
    return runnable


def _is_ours(runnable: Any) -> bool:
    """Whether a preprocessor of ours (or one that says what it needs) is in it."""
    return any(hasattr(step, "window") for step in _steps(runnable))


def _explained(shown: Sequence[BaseMessage], asked: int, preprocessor: Any, listener: _Listener) -> TurnExplanation:
    """What came out, and what all preprocessors in a row said of it."""
    counters = [step.token_counter for step in map(_bare, _steps(preprocessor)) if hasattr(step, "token_counter")]
    counter: TokenCounter = counters[-1] if counters else approximate_tokens
    past = len(shown) - asked
    messages = [
        ShownMessage(
            "input" if i >= past and not is_note(m) else part_of(m),
            m.type.removesuffix("MessageChunk").lower(),
            said(m),
            count,
            m.id,
        )
        for i, (m, count) in enumerate(zip(shown, count_tokens(shown, counter), strict=True))
    ]
    heard = listener.heard
    notes = [*(note for event in heard for note in event["notes"]), *listener.failed]
    if preprocessor is not None and not heard:
        notes.append("the preprocessor does not say what it left out")
    tokens = {part: sum(m.tokens for m in messages if m.part == part) for part in PARTS}
    max_tokens = min((event["max_tokens"] for event in heard), default=None)
    if max_tokens is not None and counter_name(counter) == "len":  # such a budget is one of past messages
        max_tokens += tokens["input"]
    reserved = max((event["reserved"] for event in heard), default=0)
    return TurnExplanation(
        messages,
        {**tokens, **({"reserved": reserved} if reserved else {})},
        max_tokens,
        sum(event["dropped"] for event in heard),
        max((event["summarized"] for event in heard), default=0),
        [message_id for event in heard for message_id in event["dropped_ids"]],
        [message_id for event in heard for message_id in event["summarized_ids"]],
        notes,
        counter_name(counter),
    )
