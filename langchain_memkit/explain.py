"""Inspection of a turn's prompt: which messages, from where, at how many tokens, and what was left out."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, merge_configs

from langchain_memkit._sync import CONDENSED, EventRecorder, Step, adrive, drive
from langchain_memkit.base import TokenCounter
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.fanout import LOAD_ERROR, REMARK
from langchain_memkit.messages.notes import split_notes
from langchain_memkit.messages.text import message_text, role_of
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens, counter_name
from langchain_memkit.preprocessors.budget import EVENT, part_of
from langchain_memkit.runnables import RunnableWithMessageHistory
from langchain_memkit.runnables.saving import OpenTurn

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["RecalledRecord", "ShownMessage", "TurnExplanation", "aexplain_turn", "explain_turn"]

PARTS = ("system", "summary", "history", "notes", "input")  # "reserved" is a part as well, but has no messages
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
    """One message of the prompt.

    Attributes:
        part: `"system"`, `"summary"`, `"history"`, `"notes"` (records of memories) or `"input"`.
        role: `"human"`, `"ai"`, `"tool"`, `"system"`; `"notification"`: a human message that an agent's harness added.
        text: Its text; tool calls, and images and files by name, in brackets.
        tokens: Its size, as `TurnExplanation.counter` counts.
        id: Its id, if it has one.
    """

    part: str
    role: str
    text: str
    tokens: int
    id: str | None


@dataclass(frozen=True, slots=True)
class RecalledRecord:
    """One recalled record in the prompt.

    Attributes:
        memory: The kind of memory.
        score: Relevance, if the memory computes one; comparable within one memory only.
        about: The subject, an entity's name or a title; or the speaker.
        source: Where it comes from: a session, a file, a title; empty if unknown.
        date: When it was said or written; None if unknown.
        text: Its text, word for word.
    """

    memory: str
    score: float | None
    about: str
    source: str
    date: datetime | None
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class TurnExplanation:
    """The prompt of a turn, shown as text, as a table in notebooks, in colours with rich, or as data with `to_dict()`.

    Attributes:
        messages: The messages in the model's order.
        tokens: Sums by part; with `"reserved"` if tokens are reserved for the answer and the schemas of tools.
        max_tokens: The budget, answer and tools included; None without a preprocessor of memkit. The instruction and
            the documents of a RAG chain are added to it.
        dropped: Number of messages that were read, but are neither shown nor summarized.
        summarized: Number of messages that the summary covers.
        dropped_ids: Ids of the dropped messages; None for a message without one.
        summarized_ids: Ids of the messages that were read in this turn and summarized; of earlier turns only the count
            is known.
        recalled: Records of memories, in the model's order.
        notes: Problems and remarks.
        counter: The token counter: `"approximate"`, the name of an encoding, `"len"` for messages.
        searched_for: What a retriever searched for in place of a follow-up question; None if it was not
            rewritten.
    """

    messages: list[ShownMessage]
    tokens: dict[str, int]
    max_tokens: int | None = None
    dropped: int = 0
    summarized: int = 0
    dropped_ids: list[str | None] = field(default_factory=list)
    summarized_ids: list[str | None] = field(default_factory=list)
    recalled: list[RecalledRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counter: str = "approximate"
    searched_for: str | None = None

    @property
    def kept(self) -> int:
        """Number of history messages that are shown unchanged."""
        return sum(message.part == "history" for message in self.messages)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with dates in ISO 8601."""
        recalled = [{**asdict(r), "date": r.date and r.date.isoformat()} for r in self.recalled]
        return {**asdict(self), "recalled": recalled}

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the display, each with the part whose colour it has."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        yield f"{self.size}; {self.left_out}", ""
        for part, n in self.tokens.items():
            if n:
                yield f"{part:>8} {'█' * round(BAR * n / whole):<{BAR}} {n:>7,}", part
        for m in self.messages:
            yield f"{m.part:>8} {m.role:>6} {m.tokens:>6,}  {excerpt(unframed(m))}", m.part
        if self.searched_for is not None:
            yield f"searched for: {excerpt(self.searched_for)}", ""
        for r in self.recalled:
            known = f" ({excerpt(known_of(r))})" if known_of(r) else ""
            yield f"recalled {score_of(r):>6} {excerpt(r.memory)}{known}: {excerpt(r.text)}", "notes"
        for note in self.notes:
            yield f"    note {excerpt(note)}", ""

    def __str__(self) -> str:
        """Format a bar for each part, a line for each message, and one for each recalled record."""
        return "\n".join(line for line, _ in self._lines())

    __repr__ = __str__  # a Python prompt displays it

    @property
    def size(self) -> str:
        """Total tokens and the budget, in words."""
        of = f" of {self.max_tokens:,}" if self.max_tokens else ""
        unit = "messages" if self.counter == "len" else f"tokens ({self.counter})"
        return f"{sum(self.tokens.values()):,}{of} {unit}"

    @property
    def left_out(self) -> str:
        """The numbers of kept, summarized and dropped messages and of recalled records, in words."""
        recalled = f", {len(self.recalled):,} records recalled" if self.recalled else ""
        return f"{self.kept:,} messages kept, {self.summarized:,} summarized, {self.dropped:,} dropped{recalled}"

    def _repr_html_(self) -> str:
        """Render a table for notebooks; stored text is escaped."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        bar = "".join(
            f'<div title="{p}: {n:,}" style="width:{100 * n / whole:.2f}%;background:{COLOURS[p]}"></div>'
            for p, n in self.tokens.items()
        )
        legend = " ".join(
            f'<span style="color:{COLOURS[p]}">&#9632;</span> {p} {n:,}' for p, n in self.tokens.items() if n
        )
        shown = [(m.part, m.role, f"{m.tokens:,}", m.text) for m in self.messages]
        recalled = [(r.memory, score_of(r), known_of(r), r.text) for r in self.recalled]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        if self.searched_for is not None:
            notes += f"<p>searched for: {html.escape(self.searched_for)}</p>"
        return (
            f"<div><b>{html.escape(self.size)}</b>; {self.left_out}"
            f'<div style="display:flex;height:1em;background:#eee">{bar}</div>{legend}{notes}'
            + _table(("part", "role", "tokens", "text"), shown)
            + (_table(("recalled by", "score", "of", "text"), recalled) if recalled else "")
            + "</div>"
        )

    def __rich__(self) -> Text:
        """Render in colours for a terminal, as `rich.print` displays it, with all stored text free of rich's markup."""
        # here: rich comes with an extra, and only who prints with it calls this
        from rich.text import Text

        return Text("\n").join(Text(line, style=COLOURS.get(part, "")) for line, part in self._lines())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table in HTML, whose last column is text as it was said."""
    titles = "".join(f"<th>{title}</th>" for title in head)
    body = ""
    for *cells, text in rows:
        body += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        body += f'<td style="text-align:left;white-space:pre-wrap">{html.escape(text)}</td></tr>'
    return f"<table><tr>{titles}</tr>{body}</table>"


def score_of(record: RecalledRecord) -> str:
    """Format the score with two digits; an empty string if there is none."""
    return "" if record.score is None else f"{record.score:.2f}"


def known_of(record: RecalledRecord) -> str:
    """Format subject, date and source, as far as they are known."""
    day = record.date.date().isoformat() if record.date else ""
    return ", ".join(part for part in (record.about, day, record.source) if part)


def unframed(message: ShownMessage) -> str:
    """Return the text of a summary or note without the frame around it, which would fill the line."""
    tag = {"summary": "summary", "notes": "records"}.get(message.part)
    inner = message.text.partition(f"<{tag}>\n")[2].removesuffix(f"\n</{tag}>") if tag else ""
    if tag == "summary":
        inner = "\n".join(line.removeprefix("> ") for line in inner.splitlines())
    return inner or message.text


def excerpt(text: str) -> str:
    """Return the beginning of a text as one line without control characters, which a terminal would obey."""
    line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text[: 10 * EXCERPT].split()))
    return line if len(line) <= EXCERPT else line[: EXCERPT - 3] + "..."


# -- how a prompt is looked at


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
    return drive(_explain(runnable, input, config))


async def aexplain_turn(
    runnable: Runnable[Any, Any], input: Any, config: RunnableConfig | None = None
) -> TurnExplanation:
    """Run `explain_turn` asynchronously."""
    return await adrive(_explain(runnable, input, config))


async def _explain(runnable: Any, input: Any, config: RunnableConfig | None) -> TurnExplanation:
    """Open the turn of a chain, a RAG chain or an agent's middleware, or run a preprocessor, and look at the prompt."""
    recorder, found, alone = EventRecorder(), runnable, False
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
    merged = merge_configs({"callbacks": [recorder]}, ensure_config(config))
    # The history of an enclosing chain is another conversation's than this chain's or agent's.
    if alone or not isinstance(found, Runnable):
        merged["configurable"] = {k: v for k, v in merged["configurable"].items() if k != "message_history"}
    if hasattr(found, "aopen"):
        opened = await Step(lambda: found.open(input, merged), lambda: found.aopen(input, merged))
        return _explained(opened.shown, opened, found.preprocessor, recorder.events)
    if not _is_ours(found) or any(isinstance(step, BaseLanguageModel) for step in _steps(found)):
        msg = (
            "explain_turn takes what create_runnable_with_message_history returned, an agent's "
            "MessageHistoryMiddleware, or a preprocessor (several in a row, without a model), "
            f"not this {type(runnable).__name__}"
        )
        raise ConfigurationError(msg)
    shown = await Step(lambda: runnable.invoke(input, merged), lambda: runnable.ainvoke(input, merged))
    return _explained(shown, None, runnable, recorder.events)


def _steps(runnable: Any) -> list[Any]:
    """Return the bare runnables of a sequence; a single runnable as a list of one."""
    found = _bare(runnable)
    return [_bare(step) for step in found.steps] if isinstance(found, RunnableSequence) else [found]


def _bare(runnable: Any) -> Any:
    while isinstance(runnable, RunnableBindingBase):
        runnable = runnable.bound
    return runnable


def _is_ours(runnable: object) -> bool:
    """Return whether the runnable contains a preprocessor with a `window`, as memkit's own have."""
    return any(hasattr(step, "window") for step in _steps(runnable))


def _explained(
    shown: Sequence[BaseMessage], opened: OpenTurn | None, preprocessor: Any, events: Mapping[str, list[Any]]
) -> TurnExplanation:
    """Combine the prompt with the reports of all preprocessors in a sequence, and with what memories said."""
    counters = [step.token_counter for step in _steps(preprocessor) if hasattr(step, "token_counter")]
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
    heard = events[EVENT]
    notes = [note for event in heard for note in event["notes"]]
    notes += [event["message"] for event in (*events[LOAD_ERROR], *events[REMARK])]
    if preprocessor is not None and not heard:
        notes.append("the preprocessor does not say what it left out")
    tokens = {part: sum(m.tokens for m in messages if m.part == part) for part in PARTS}
    max_tokens = min((event["max_tokens"] for event in heard), default=None)
    if max_tokens is not None:
        # The budget does not include the instruction and documents of a RAG chain; `len` counts past messages only.
        max_tokens += beside + (tokens["input"] if counter_name(counter) == "len" else 0)
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
        # The outer retriever speaks first.
        searched_for=next((e["searched_for"] for e in events[CONDENSED] if e["searched_for"] != e["original"]), None),
    )


def _names(messages: Sequence[BaseMessage]) -> set[int | str]:
    """Return the identities of messages: the objects' own, and their ids."""
    return {id(m) for m in messages} | {m.id for m in messages if m.id}
