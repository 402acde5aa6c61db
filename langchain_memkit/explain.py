"""Seeing what the model saw: which messages, from where, at how many tokens, and what was left out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from langchain_memkit.base import TokenCounter
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.counting import approximate_tokens, count_tokens
from langchain_memkit.preprocessors.report import EVENT, part_of
from langchain_memkit.runnables.saving import OpenTurn
from langchain_memkit.runnables.turn import HistoryTurn

__all__ = ["ShownMessage", "TurnExplanation", "aexplain_turn", "explain_turn"]

PARTS = ("system", "summary", "history", "input")
BAR = 40  # characters
EXCERPT = 100  # characters
COLOURS = {"system": "#8d99ae", "summary": "#e9c46a", "history": "#2a9d8f", "input": "#e76f51"}


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message that the model is given.

    Attributes:
        part: `"system"`, `"summary"`, `"history"` or `"input"`.
        role: `"human"`, `"ai"`, `"tool"`, `"system"`.
        text: What it says.
        tokens: How large it is.
        id: Its id, if it has one.
    """

    part: str
    role: str
    text: str
    tokens: int
    id: str | None


@dataclass(frozen=True, slots=True)
class TurnExplanation:
    """What a turn would give the model. Prints as text, shows as a table in notebooks, and is data: `to_dict()`.

    Attributes:
        messages: In the order in which the model gets them.
        tokens: In sum, by part.
        max_tokens: The budget; None if no preprocessor of ours takes part.
        dropped: How many of the messages that were read are neither shown nor in a summary.
        summarized: How many messages the summary stands for.
        notes: What did not go as wished.
    """

    messages: list[ShownMessage]
    tokens: dict[str, int]
    max_tokens: int | None = None
    dropped: int = 0
    summarized: int = 0
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        """A bar for each part, then a line for each message."""
        total = sum(self.tokens.values())
        of = f" of {self.max_tokens:,}" if self.max_tokens else ""
        lines = [f"{total:,}{of} tokens; {self.summarized} messages summarized, {self.dropped} dropped"]
        whole = max(total, self.max_tokens or 0, 1)
        lines += [f"{p:>8} {'█' * round(BAR * n / whole):<{BAR}} {n:>7,}" for p, n in self.tokens.items() if n]
        for m in self.messages:
            text = " ".join(m.text.split())
            text = text if len(text) <= EXCERPT else text[: EXCERPT - 3] + "..."
            lines.append(f"{m.part:>8} {m.role:>6} {m.tokens:>6,}  {text}")
        return "\n".join([*lines, *(f"    note {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        """The same for notebooks; what was said is shown as text, whatever it holds."""
        total = sum(self.tokens.values())
        whole = max(total, self.max_tokens or 0, 1)
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
        of = f" of {self.max_tokens:,}" if self.max_tokens else ""
        return (
            f"<div><b>{total:,}{of} tokens</b>; {self.summarized} messages summarized, {self.dropped} dropped"
            f'<div style="display:flex;height:1em;background:#eee">{bar}</div>{legend}{notes}'
            f"<table><tr><th>part</th><th>role</th><th>tokens</th><th>text</th></tr>{rows}</table></div>"
        )


def explain_turn(runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None) -> TurnExplanation:
    """Shows what the model would be given for an input, without calling it and without storing the turn.

    Loads and composes as the turn itself would, so a summary that is due is written. What prompts inside the wrapped
    runnable add is not seen.

    Args:
        runnable: What `create_runnable_with_message_history` returned, or a preprocessor.
        input: What the runnable would be invoked with; for a preprocessor, a list of messages.
        config: As for `invoke`, with the ids.

    Returns:
        Messages, tokens by part, and what was summarized and dropped.

    Raises:
        ConfigurationError: The runnable is neither.

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
        return _explained(runnable.invoke(input, config), (), runnable, listener)
    opened = turn.open(input, config)
    return _explained(opened.shown, opened.asked, turn.preprocessor, listener)


async def aexplain_turn(
    runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None
) -> TurnExplanation:
    """Async twin of `explain_turn`."""
    turn, config, listener = _prepare(runnable, config)
    if turn is None:
        return _explained(await runnable.ainvoke(input, config), (), runnable, listener)
    opened: OpenTurn = await turn.aopen(input, config)
    return _explained(opened.shown, opened.asked, turn.preprocessor, listener)


class _Listener(BaseCallbackHandler):
    """Keeps what preprocessors say of their work."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == EVENT:
            self.heard.append(data)


def _prepare(runnable: Any, config: RunnableConfig | None) -> tuple[HistoryTurn | None, RunnableConfig, _Listener]:
    listener, found = _Listener(), runnable
    while not isinstance(found, HistoryTurn) and hasattr(found, "bound"):
        config = merge_configs(getattr(found, "config", None), config)
        found = found.bound
    config = merge_configs(ensure_config(config), {"callbacks": [listener]})
    if isinstance(found, HistoryTurn):
        return found, config, listener
    first = getattr(found, "first", found)
    if not hasattr(first, "window"):
        msg = (
            "explain_turn takes what create_runnable_with_message_history returned, or a preprocessor, not a "
            f"{type(found).__name__}"
        )
        raise ConfigurationError(msg)
    return None, config, listener


def _explained(
    shown: Sequence[BaseMessage], asked: Sequence[BaseMessage], preprocessor: Any, listener: _Listener
) -> TurnExplanation:
    first = getattr(preprocessor, "first", preprocessor)
    counter: TokenCounter = getattr(first, "token_counter", approximate_tokens)
    new = {id(m) for m in asked}
    messages = [
        ShownMessage("input" if id(m) in new else part_of(m), m.type, str(m.text), n, m.id)
        for m, n in zip(shown, count_tokens(shown, counter), strict=True)
    ]
    tokens = {part: sum(m.tokens for m in messages if m.part == part) for part in PARTS}
    heard = listener.heard[-1] if listener.heard else {}
    return TurnExplanation(
        messages,
        tokens,
        heard.get("max_tokens"),
        int(heard.get("dropped", 0)),
        int(heard.get("summarized", 0)),
        list(heard.get("notes", ())),
    )
