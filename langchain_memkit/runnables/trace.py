"""The trace of a turn: what each call of a model was given, from where each message came, and what was left out.

`TurnRecorder` is a callback that keeps references while the turn runs; `TurnTrace` is made of them when somebody asks.
"""

from __future__ import annotations

import html
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.tracers.context import register_configure_hook

from langchain_memkit._sync import CONDENSED, dry_run
from langchain_memkit.base import TokenCounter, TurnContext
from langchain_memkit.memories.fanout import LOAD_ERROR, REMARK
from langchain_memkit.messages.notes import is_note, records_of, split_notes
from langchain_memkit.messages.text import message_text, role_of
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens, count_tool_tokens, counter_name
from langchain_memkit.preprocessors.budget import EVENT, ContextReport, part_of

if TYPE_CHECKING:
    from rich.text import Text

PARTS = ("system", "summary", "history", "notes", "documents", "prompt", "input", "tools")
PAST = ("summary", "history", "notes", "reserved")  # what a budget in messages counts
BAR = 40  # characters
EXCERPT = 100  # characters
PALETTE = "#8d99ae #e9c46a #2a9d8f #8ab17d #577590 #b5838d #e76f51 #9d8189 #cccccc"
COLOURS = dict(zip((*PARTS, "reserved"), PALETTE.split(), strict=True))
STYLE = (  # without colours of text and background, so that it fits light and dark pages
    "<style>.memkit-trace{max-width:64rem}.memkit-trace>div{display:flex;height:1.1em;margin:.5em 0;background:#8883}"
    ".memkit-trace table{border-collapse:collapse;width:100%;margin:.8em 0 .3em}.memkit-trace p{margin:.3em 0}"
    # twice the class: Jupyter's style of tables outranks it once
    ".memkit-trace.memkit-trace :is(td,th){text-align:left;vertical-align:top;padding:.3em .6em}.memkit-trace tr"
    "{border-top:1px solid #8885}.memkit-trace td{white-space:nowrap}.memkit-trace td:last-child{width:100%}</style>"
)
SCORE = "<small>score: how well the record fits the question; more is better, and comparable within one memory</small>"
NOT_STORED = "[its text is not stored with the trace]"
INNER_CHAINS = {  # last part of a step's name -> the purpose of model calls within
    "chat_retriever_chain": "retrieval",  # langchain_classic's history-aware retriever
    **dict.fromkeys(("before_agent", "before_model", "after_model"), "middleware"),  # hooks of an agent's middleware
}

Stop = Literal["answer", "any"]


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message that a model was given.

    Attributes:
        part: Where it comes from: `"system"`, `"summary"`, `"history"`, `"notes"` (records of memories), `"documents"`
            (of a RAG chain), `"prompt"` (what else the chain's prompt adds), `"input"`.
        role: `"human"`, `"ai"`, `"tool"`, `"system"`; `"notification"`: a human message that an agent's harness added.
        text: Its text; tool calls, and images and files by name, in brackets.
        tokens: Its size, as `TurnTrace.counter` counts.
        id: Its id, if it has one.
    """

    part: str
    role: str
    text: str
    tokens: int
    id: str | None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model.

    Attributes:
        purpose: `"answer"`; or of a call that only prepares one: `"summary"`, `"question"` (a follow-up question is
            rewritten), `"summarization"` (langchain's middleware), `"preprocessor"`, `"retrieval"`, `"tool"` and
            `"middleware"` (made inside a preprocessor of your own, a retriever, a tool or a hook of a middleware).
        model: The model's name; empty if it does not tell it.
        messages: What it was given, in order.
        tool_tokens: Size of the schemas of its tools.
        usage: What the provider counted (`usage_metadata`); None if it did not, or was not called.
        seconds: How long it took; None if it was not called.
        error: The type of the error that it raised; None if it raised none.
    """

    purpose: str
    model: str
    messages: list[ShownMessage]
    tool_tokens: int = 0
    usage: dict[str, Any] | None = None
    seconds: float | None = None
    error: str | None = None


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
        why: Why it was found, in words, if the memory tells; empty in a stored trace, since it quotes the question.
    """

    memory: str
    score: float | None
    about: str
    source: str
    date: datetime | None
    text: str
    why: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class TurnTrace:
    """What the models of a turn were given: as text, as a table in notebooks, in colours with rich, as `to_dict()`.

    Attributes:
        messages: What the model was given in the call that gave the answer, in order.
        tokens: Sums by part; with `"tools"` for their schemas, and `"reserved"` if the budget reserves tokens.
        max_tokens: The preprocessor's budget; None without a preprocessor of memkit. What a chain's own prompt, its
            documents and tools add comes on top of it, unless `reserve_tokens` or `tools` tells the preprocessor.
        dropped: Number of messages that were read, but are neither shown nor summarized.
        summarized: Number of messages that the summary covers.
        unread_turns: Number of older turns that were not even read, since they could not have been shown; hidden ones
            count. None if there are some and nobody knows how many: where turns expire, were edited, or have no
            positions.
        dropped_ids: Ids of the dropped messages; None for a message without one.
        summarized_ids: Ids of the messages that were read in this turn and summarized; of earlier turns only the count
            is known.
        recalled: Records of memories and documents, in the model's order.
        notes: Problems and remarks, among them what memories left out and why.
        counter: The token counter: `"approximate"`, the name of an encoding, `"len"` for messages.
        searched_for: What a retriever searched for in place of a follow-up question; None if it was not
            rewritten.
        calls: All calls of models, in order, those for summaries and the like included.
        ran: Names of the retrievers and tools that ran, and in a dry run of all functions and prompts, in order.
        seconds: Duration of `"load"` (reading and composing, with the calls that prepare), `"model"` (the answering
            calls) and `"save"`; what did not happen is missing.
        turn_id: The id under which the turn is stored; None outside of memkit's chains and agents.
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
    calls: list[ModelCall] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    turn_id: str | None = None
    unread_turns: int | None = 0

    @property
    def kept(self) -> int:
        """Number of history messages that are shown unchanged."""
        return sum(message.part == "history" for message in self.messages)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with dates in ISO 8601."""
        recalled = [{**asdict(r), "date": r.date and r.date.isoformat()} for r in self.recalled]
        return {**asdict(self), "recalled": recalled}

    def to_stored(self, *, redacted: bool) -> dict[str, Any]:
        """Return the data that is stored with the turn: without text that is stored elsewhere, under a message's id.

        Only the texts of system prompts, a rewritten question, and names and titles of records are kept, and none of
        them if the turn was `redacted`. Each message stands once, in `shown`; a call has their places.
        """
        data = replace(self, messages=[]).to_dict()  # they are those of a call
        del data["messages"]
        places: dict[tuple[Any, ...], int] = {}
        for call in data["calls"]:
            tokens, given = Counter[str](), list[int]()
            for message in call["messages"]:
                tokens[message["part"]] += message["tokens"]
                if redacted or message["part"] != "system":
                    message["text"] = ""
                given.append(places.setdefault(tuple(message.values()), len(places)))
            call |= {"messages": given, "tokens": {**tokens, "tools": call["tool_tokens"]}}
        for record in data["recalled"]:
            del record["why"]
            record |= {"text": "", **({"about": "", "source": ""} if redacted else {})}
        names = [each.name for each in fields(ShownMessage)]
        shown = [dict(zip(names, message, strict=True)) for message in places]
        return {**data, "v": 2, "searched_for": None if redacted else self.searched_for, "shown": shown}

    @classmethod
    def from_stored(cls, data: Mapping[str, Any], texts: Mapping[str, str]) -> Self:
        """Return the trace that was stored with a turn; `texts` has those of the conversation by message id.

        The text of a new input that had no id is under `"input"`. Damaged data raises any error.
        """

        def shown(place: Any) -> ShownMessage:
            message = data["shown"][place] if isinstance(place, int) else place  # itself, as in memkit 0.2.0
            name = message["id"] or ("input" if message["part"] == "input" else "")
            return ShownMessage(**{**message, "text": message["text"] or texts.get(name, NOT_STORED)})

        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        calls = list[ModelCall]()
        for call in data["calls"]:
            told = {name: value for name, value in call.items() if name != "tokens"}
            calls.append(ModelCall(**{**told, "messages": [shown(message) for message in call["messages"]]}))
        recalled = [
            RecalledRecord(**{**r, "text": NOT_STORED, "date": r["date"] and datetime.fromisoformat(r["date"])})
            for r in data["recalled"]
        ]
        messages = next((call.messages for call in reversed(calls) if call.purpose == "answer"), [])
        return cls(**known | {"messages": messages, "calls": calls, "recalled": recalled})

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the display, each with the part whose colour it has."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        yield f"{self.size}; {self.left_out}", ""
        for part, n in self.tokens.items():
            if n:
                yield f"{part:>9} {'█' * round(BAR * n / whole):<{BAR}} {n:>7,}", part
        for m in self.messages:
            yield f"{m.part:>9} {m.role:>6} {m.tokens:>6,}  {excerpt(unframed(m))}", m.part
        if self.searched_for is not None:
            yield f"searched for: {excerpt(self.searched_for)}", ""
        for r in self.recalled:
            known = f" ({excerpt(known_of(r))})" if known_of(r) else ""
            why = f"; {excerpt(r.why)}" if r.why else ""
            yield f" recalled {score_of(r):>6} {excerpt(r.memory)}{known}{why}: {excerpt(r.text)}", "notes"
        for call in self.told_calls:
            yield f"     call {excerpt(call)}", ""
        if "model" in self.seconds:
            yield f"     took {', '.join(f'{name} {s:.3f} s' for name, s in self.seconds.items())}", ""
        for note in self.notes:
            yield f"     note {excerpt(note)}", ""

    def __str__(self) -> str:
        """Format a bar for each part, a line for each message, and one for each recalled record and model call."""
        return "\n".join(line for line, _ in self._lines())

    __repr__ = __str__  # a Python prompt displays it

    @property
    def told_calls(self) -> list[str]:
        """A line for each model call: purpose, model, size, duration, usage; none for a call that was only tried."""
        told = list[str]()
        for call in self.calls:
            size = sum(m.tokens for m in call.messages) + call.tool_tokens
            usage = call.usage or {}
            counted = f", provider counted {usage['input_tokens']:,} in" if usage.get("input_tokens") else ""
            counted += f" and {usage['output_tokens']:,} out" if counted and "output_tokens" in usage else ""
            took = f" in {call.seconds:.3f} s" if call.seconds is not None else ""
            failed = f", failed with {call.error}" if call.error else ""
            told.append(f"{call.purpose} {call.model or 'model'}: {size:,} given{took}{counted}{failed}")
        return told if len(told) > 1 or any(call.seconds for call in self.calls) else []

    @property
    def size(self) -> str:
        """Total tokens and the budget, in words."""
        of = f" of {self.max_tokens:,}" if self.max_tokens else ""
        unit = "messages" if self.counter == "len" else f"tokens ({self.counter})"
        parts: Sequence[str] = list(self.tokens)
        if self.counter == "len" and self.max_tokens:  # outside of memkit's chains nobody knows what is history
            parts = PAST if self.turn_id else (*PAST, "prompt")
        counted = sum(self.tokens.get(part, 0) for part in parts)
        return f"{counted:,}{of} {unit}"

    @property
    def left_out(self) -> str:
        """The numbers of kept, summarized and dropped messages, of unread turns and recalled records, in words."""
        found, unread = len(self.recalled), self.unread_turns
        recalled = f", {found:,} record{'s' if found > 1 else ''} recalled" if found else ""
        older = "older turns" if unread is None else f"{unread:,} older turn{'s' if unread > 1 else ''}"
        more = "" if unread == 0 else f", {older} not read"
        return f"{self.kept:,} messages kept, {self.summarized:,} summarized, {self.dropped:,} dropped{more}{recalled}"

    def _repr_html_(self) -> str:
        """Render a table for notebooks; stored text is escaped."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        parts = [(part, n, COLOURS[part]) for part, n in self.tokens.items() if n]
        bar = "".join(
            f'<i title="{p}: {n:,}" style="width:{100 * n / whole:.2f}%;background:{c}"></i>' for p, n, c in parts
        )
        legend = " &ensp; ".join(f'<span style="color:{c}">&#9632;</span> {p} {n:,}' for p, n, c in parts)
        shown = [(m.part, m.role, f"{m.tokens:,}", m.text) for m in self.messages]
        recalled = [(r.memory, score_of(r), known_of(r), r.why, r.text) for r in self.recalled]
        said = [*self.told_calls, *self.notes]
        if self.searched_for is not None:
            said.append(f"searched for: {self.searched_for}")
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in said)
        records = _table(("recalled by", "score", "of", "why", "text"), recalled) + SCORE if recalled else ""
        table = _table(("part", "role", "tokens", "text"), shown)
        size = f"<b>{html.escape(self.size)}</b>; {self.left_out}"
        return f'{STYLE}<div class="memkit-trace">{size}<div>{bar}</div>{legend}{notes}{table}{records}</div>'

    def __rich__(self) -> Text:
        """Render in colours for a terminal, as `rich.print` displays it, with all stored text free of rich's markup."""
        # here: rich comes with an extra, and only who prints with it calls this
        from rich.text import Text

        return Text("\n").join(Text(line, style=COLOURS.get(part, "")) for line, part in self._lines())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table in HTML, whose last column is text as it was said; parts of a prompt have their colours."""
    titles = "".join(f"<th>{title}</th>" for title in head)
    body = ""
    for first, *cells, text in rows:
        colour = f' style="border-left:.4em solid {COLOURS[first]}"' if first in COLOURS else ""
        others = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        body += f"<tr><td{colour}>{html.escape(first)}</td>{others}"
        body += f'<td style="white-space:pre-wrap">{html.escape(text)}</td></tr>'
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
    tag = {"summary": "summary", "notes": "records", "documents": "records"}.get(message.part)
    inner = message.text.partition(f"<{tag}>\n")[2].removesuffix(f"\n</{tag}>") if tag else ""
    if tag == "summary":
        inner = "\n".join(line.removeprefix("> ") for line in inner.splitlines())
    return inner or message.text


def excerpt(text: str) -> str:
    """Return the beginning of a text as one line without control characters, which a terminal would obey."""
    line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text[: 10 * EXCERPT].split()))
    return line if len(line) <= EXCERPT else line[: EXCERPT - 3] + "..."


# -- what is kept while a turn runs


class ModelReached(BaseException):
    """A dry run has reached the model that would answer. Not an `Exception`: retries and fallbacks would go on."""


@dataclass(slots=True)
class _Call:
    """A model call as callbacks tell of it."""

    purpose: str
    model: str
    given: list[BaseMessage]
    tools: Sequence[Any]
    began: float
    seconds: float | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None


class TurnRecorder(BaseCallbackHandler):
    """Callback that keeps what the models of one turn are given, by reference; `trace` makes sense of it.

    Args:
        stop: For a dry run: raise `ModelReached` at the first call of an answering model, or of `"any"` model.
        configurable: The ids in the config of the turn's call.
    """

    run_inline = True  # it only keeps references, which needs no thread
    finds_reports = True  # in the turn's context, so that no event has to be built for it
    ignore_retry = True

    def __init__(self, stop: Stop | None = None, configurable: Mapping[str, Any] | None = None) -> None:
        self.stop = stop
        self.configurable = configurable or {}
        self.owner: object = None  # what runs the turn
        self.composing = False  # whether the prompt is being made, so that model calls only prepare the answer
        self.stopped_at: str | None = None  # the purpose of the call before which a dry run ended
        self.turn_id: str | None = None
        self.preprocessor: Any = None
        self.asked: list[BaseMessage] = []
        self.shown: list[BaseMessage] = []
        self.past: Sequence[BaseMessage] = ()
        self.seconds: dict[str, float] = {}
        self.reports: Mapping[str, ContextReport] = {}
        self.calls: dict[UUID, _Call] = {}
        self._calls_before = 0  # number of calls before the prompt was composed
        self._events: list[tuple[str, Any]] = []
        self._began = time.perf_counter()
        self._ran: list[tuple[UUID, UUID | None, str]] = []
        self._inner: dict[UUID, str] = {}  # runs inside a retriever or a tool, with the purpose of model calls there
        self._running: dict[UUID, str] = {}  # those retrievers and tools that have not ended

    @property
    def _unheard(self) -> bool:
        """Whether what happens belongs to a dry run within the turn, which has a recorder of its own."""
        return dry_run.get() and not self.stop

    @property
    def ignore_chain(self) -> bool:
        """Whether it is not told of each step, which would cost a turn on an event loop a tenth."""
        return self.stop is None

    def opened(self, turn_id: str, preprocessor: object, shown: Sequence[BaseMessage], context: TurnContext) -> None:
        """Keep what the turn has composed. Called again for each further call of an agent's model, and each retry."""
        self.turn_id, self.preprocessor, self.past = turn_id, preprocessor, context.past
        self.shown, self.asked, self.reports = list(shown), list(context.asked), context.reports
        self.composing = False
        self._calls_before = len(self.calls)
        self.seconds.setdefault("load", time.perf_counter() - self._began)

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Keep how long the `with` block takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - began

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of every model that is called in the `with` block, which writes nothing if the recorder stops it."""
        token, stop = _recording.set(self), _stopping.set(Stopper(self) if self.stop else None)
        dry = dry_run.set(bool(self.stop))
        try:
            yield
        finally:
            _recording.reset(token)
            _stopping.reset(stop)
            dry_run.reset(dry)

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        """Keep the name of a step."""
        self._started(serialized, **kwargs)

    def on_retriever_start(self, serialized: Any, query: str, *, run_id: UUID, **kwargs: Any) -> None:
        """Keep the name of a retriever, and that model calls below it only prepare an answer."""
        self._started(serialized, run_id, **kwargs)
        self._inner[run_id] = self._running[run_id] = "retrieval"

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        """Keep the name of a tool, and that model calls below it do not give the answer."""
        self._started(serialized, run_id, **kwargs)
        self._inner[run_id] = self._running[run_id] = "tool"

    def _started(self, serialized: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        if self._unheard:
            return
        name = str(kwargs.get("name") or (serialized or {}).get("name") or "")
        self._ran.append((run_id, parent_run_id, name))
        within = self._inner.get(parent_run_id) if parent_run_id else None
        if inner := within or INNER_CHAINS.get(name.rpartition(".")[2]):
            self._inner[run_id] = inner

    def _ended(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        """Keep that a retriever or a tool has ended."""
        self._running.pop(run_id, None)

    on_retriever_end = on_retriever_error = on_tool_end = on_tool_error = _ended

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Keep what a chat model is given."""
        self._called([message for batch in messages for message in batch], run_id, **kwargs)

    def on_llm_start(self, serialized: Any, prompts: list[str], *, run_id: UUID, **kwargs: Any) -> None:
        """Keep what a string model is given, as one message for each prompt."""
        self._called([HumanMessage(prompt) for prompt in prompts], run_id, **kwargs)

    def _called(self, given: list[BaseMessage], run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        if run_id in self.calls or self._unheard:
            return
        known, params = kwargs.get("metadata") or {}, kwargs.get("invocation_params") or {}
        purpose = str(known.get("memkit") or ("lc_internal_call" in known and known.get("lc_source", "internal")) or "")
        if not purpose:
            within = self._inner.get(parent_run_id) if parent_run_id else None
            if not self.stop:  # the steps between are not told
                within = within or next(iter(self._running.values()), None)
            purpose = within or ("preprocessor" if self.composing else "answer")
        model = str(known.get("ls_model_name") or params.get("model") or kwargs.get("name") or "")
        self.calls[run_id] = _Call(purpose, model, given, params.get("tools") or (), time.perf_counter())
        if self.stop == "any" or (self.stop and purpose == "answer"):
            self.stopped_at = purpose  # `Stopper` hears of the call next

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Keep the duration of a call, and the provider's count of its tokens."""
        if call := self.calls.get(run_id):
            call.seconds = time.perf_counter() - call.began
            for generation in (each for batch in response.generations for each in batch):
                message = getattr(generation, "message", None)
                call.usage = getattr(message, "usage_metadata", None) or call.usage
                call.model = str(getattr(message, "response_metadata", {}).get("model_name") or "") or call.model

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Keep the duration and the kind of error of a call that failed."""
        if call := self.calls.get(run_id):
            call.seconds, call.error = time.perf_counter() - call.began, type(error).__name__

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keep the reports of preprocessors, memories and retrievers."""
        if not self._unheard:
            self._events.append((name, data))

    # -- what it says

    @property
    def answering(self) -> list[list[BaseMessage]]:
        """What each call of an answering model was given."""
        return [call.given for call in self.calls.values() if call.purpose == "answer"]

    @property
    def composed_for(self) -> _Call | None:
        """The first call of an answering model since the prompt was composed last; None if there was none."""
        calls = list(self.calls.values())[self._calls_before :]
        return next((call for call in calls if call.purpose == "answer"), None)

    def trace(self, output: Sequence[BaseMessage] | None = None) -> TurnTrace:
        """Combine what was kept; `output` is shown in place of a model's input, for a preprocessor alone."""
        heard = self._reports()
        counters = [step.token_counter for step in steps_of(self.preprocessor) if hasattr(step, "token_counter")]
        counter: TokenCounter = counters[-1] if counters else approximate_tokens
        calls = [self._seen(call, counter) for call in list(self.calls.values())]
        answers = [i for i, call in enumerate(calls) if call.purpose == "answer"]
        given = list(self.calls.values())[answers[-1]].given if answers else list(output or ())
        messages = calls[answers[-1]].messages if answers else self._parts(given, counter)
        tokens = {part: sum(m.tokens for m in messages if m.part == part) for part in PARTS}
        tokens["tools"] = calls[answers[-1]].tool_tokens if answers else 0
        reserved = max((event["reserved"] for event in heard), default=0)
        max_tokens = min((event["max_tokens"] for event in heard), default=None)
        own = _names(self.shown)
        left = [m for m in self.asked if self.shown and not _names([m]) & own]
        events = self._events
        notes = [note for event in heard for note in event["notes"]]
        notes += [data["message"] for name, data in events if name in (LOAD_ERROR, REMARK)]
        if self.preprocessor is not None and not heard:
            notes.append("the preprocessor does not say what it left out")
        if left:
            notes.append(f"{len(left):,} of the run's own messages are left out, since they outgrow the budget")
        if max_tokens is not None:
            notes += _beyond(tokens, max_tokens, reserved, in_messages=counter_name(counter) == "len")
        condensed = [data for name, data in events if name == CONDENSED and data["searched_for"] != data["original"]]
        took = [call.seconds for call in calls if call.purpose == "answer" and call.seconds is not None]
        records = split_notes(given)[1]
        return TurnTrace(
            messages=messages,
            tokens={**tokens, **({"reserved": reserved} if reserved else {})},
            max_tokens=max_tokens,
            dropped=sum(event["dropped"] for event in heard) + len(left),
            summarized=max((event["summarized"] for event in heard), default=0),
            dropped_ids=[*(each for event in heard for each in event["dropped_ids"]), *(m.id for m in left)],
            summarized_ids=[message_id for event in heard for message_id in event["summarized_ids"]],
            recalled=[
                RecalledRecord(r.memory, r.score, r.about or r.role, r.source, r.date, r.text, r.why) for r in records
            ],
            notes=notes,
            counter=counter_name(counter),
            searched_for=condensed[0]["searched_for"] if condensed else None,  # the outer retriever speaks first
            calls=calls,
            ran=self._leaves(),
            seconds={**self.seconds, **({"model": sum(took)} if took else {})},
            turn_id=self.turn_id,
            unread_turns=getattr(self.past, "unread", 0),
        )

    def _reports(self) -> list[Any]:
        """Return the last report of each preprocessor: an agent's run has one for every call of its model."""
        if self.reports:
            return [report.event() for report in self.reports.values()]
        return list({data["preprocessor"]: data for name, data in self._events if name == EVENT}.values())

    def _leaves(self) -> list[str]:
        """Return the names of the steps that have no steps inside, each once."""
        parents = {parent for _, parent, _ in self._ran}
        return list(dict.fromkeys(name for run, _, name in self._ran if run not in parents and name))

    def _seen(self, call: _Call, counter: TokenCounter) -> ModelCall:
        size = count_tool_tokens(call.tools, counter) if call.tools else 0
        messages = self._parts(call.given, counter)
        return ModelCall(call.purpose, call.model, messages, size, call.usage, call.seconds, call.error)

    def _parts(self, given: Sequence[BaseMessage], counter: TokenCounter) -> list[ShownMessage]:
        """Tell from where each message comes: by identity and id, else (for what a prompt has made) by its text."""
        asked, past = _names(self.asked), _names([*self.shown, *self.past])
        said = {(m.type, str(m.text)) for m in self.past}
        questions = [text for m in self.asked if (text := str(m.text).strip())]

        def part(message: BaseMessage) -> str:
            names, text = _names([message]), str(message.text)
            if is_note(message):
                return "documents" if all(r.memory == "retriever" for r in records_of(message)) else "notes"
            if names & asked:
                return "input"
            if names & past or part_of(message) != "history":
                return part_of(message)
            if any(question in text for question in questions):
                return "input"
            return "history" if (message.type, text) in said else "prompt"

        pairs = zip(given, count_tokens(given, counter), strict=True)
        return [ShownMessage(part(m), role_of(m), message_text(m), size, m.id) for m, size in pairs]


def _beyond(tokens: Mapping[str, int], max_tokens: int, reserved: int, *, in_messages: bool) -> list[str]:
    """Tell by how much the prompt exceeds the budget, and which part of that the budget does not know of."""
    known = sum(tokens[part] for part in ("summary", "history", "notes")) + reserved
    known += 0 if in_messages else tokens["input"]
    if known > max_tokens:
        return [f"{known - max_tokens:,} more than the budget: what has to be shown does not fit"]
    over = sum(tokens.values()) + reserved - max_tokens - (tokens["input"] if in_messages else 0)
    beside = {part: tokens[part] for part in ("system", "documents", "prompt", "tools") if tokens[part]}
    if over <= 0 or in_messages or not beside:
        return []
    told = ", ".join(f"{part} {n:,}" for part, n in beside.items())
    return [f"{over:,} more than the budget, which does not count what the chain adds ({told}): see reserve_tokens="]


def _names(messages: Sequence[BaseMessage]) -> set[int | str]:
    """Return the identities of messages: the objects' own, and their ids."""
    return {id(m) for m in messages} | {m.id for m in messages if m.id}


def steps_of(runnable: Any) -> list[Any]:
    """Return the bare runnables of a sequence; a single runnable as a list of one."""
    found = bare(runnable)
    return [bare(step) for step in found.steps] if isinstance(found, RunnableSequence) else [found]


def bare(runnable: Any) -> Any:
    """Return a runnable without the bindings around it."""
    while isinstance(runnable, RunnableBindingBase):
        runnable = runnable.bound
    return runnable


class Stopper(BaseCallbackHandler):
    """Callback that ends a dry run at the call that its recorder stopped at.

    Not inline: on an event loop the calls of all other callbacks would be left without having been awaited. Which of
    the two hears first is not certain, so it tells the recorder.
    """

    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, recorder: TurnRecorder) -> None:
        self._recorder = recorder

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        """Raise `ModelReached` if the run ends at this call of a chat model."""
        self._recorder.on_chat_model_start(serialized, messages, **kwargs)
        self._stop()

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        """Raise `ModelReached` if the run ends at this call of a string model."""
        self._recorder.on_llm_start(serialized, prompts, **kwargs)
        self._stop()

    def _stop(self) -> None:
        if self._recorder.stopped_at:
            raise ModelReached


# -- which recorder is at work

RECENT: deque[TurnRecorder] = deque(maxlen=32)
"""The last turns of this process, the newest at the end."""

_recording: ContextVar[TurnRecorder | None] = ContextVar("memkit_recorder", default=None)
_stopping: ContextVar[Stopper | None] = ContextVar("memkit_stopper", default=None)
for _each in (_recording, _stopping):  # so they hear of every model called in their context
    register_configure_hook(_each, inheritable=True)


def recorder_of(owner: object, configurable: Mapping[str, Any]) -> TurnRecorder:
    """Return a recorder for a new turn, which joins the last turns of this process; in a dry run the dry run's own."""
    recorder = _recording.get()
    if recorder is None or recorder.stop is None:
        recorder = TurnRecorder(configurable=configurable)
        RECENT.append(recorder)
    recorder.owner, recorder.composing = owner, True
    return recorder


def recorded(recorder: TurnRecorder, config: RunnableConfig) -> RunnableConfig:
    """Return a config with the recorder among its callbacks; a dry run's hears of all calls already."""
    if recorder.stop:
        return config
    callbacks = config.get("callbacks")
    if not isinstance(callbacks, BaseCallbackManager):
        return merge_configs(config, {"callbacks": [recorder]})
    heard = callbacks.copy()  # a third of the time of `merge_configs`
    heard.add_handler(recorder, inherit=True)
    return {**config, "callbacks": heard}
