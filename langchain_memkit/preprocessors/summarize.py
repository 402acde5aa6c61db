"""Trim and summarize: older messages become a running summary in front of the newest ones."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import cache, partial
from itertools import dropwhile, takewhile
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable

from langchain_memkit import _sync, base
from langchain_memkit._compat import InMemoryChatMessageHistory
from langchain_memkit._histories import is_native, keeps_summaries, read_messages
from langchain_memkit._progress import progress_bar
from langchain_memkit.base import (
    HistoryMessages,
    Messages,
    Now,
    TokenCounterLike,
    Turn,
    Window,
    check_id,
    user_prefix,
    utc_now,
)
from langchain_memkit.errors import ConfigurationError, logger
from langchain_memkit.preprocessors.budget import Budget, ContextReport, turn_context
from langchain_memkit.preprocessors.catching_up import CatchingUp
from langchain_memkit.preprocessors.prompt import SummaryPrompt, summary_message
from langchain_memkit.preprocessors.summarizer import Summarizer, SummaryTrigger, Threshold
from langchain_memkit.preprocessors.summary_store import (
    Summaries,
    SummariesBesideHistory,
    SummarizedConversation,
    SummaryKey,
    SummaryStore,
    read_list,
    read_native,
)
from langchain_memkit.preprocessors.trim import OnOverflow, TrimPreprocessor
from langchain_memkit.stores.history import TurnStore
from langchain_memkit.stores.history_rows import SessionScope
from langchain_memkit.stores.in_memory import DictStore, store_or_memory

Work: TypeAlias = "Future[None] | asyncio.Task[None]"
"""A job of a thread, or a task of an event loop."""


class Background:
    """Registry of running background jobs by conversation."""

    def __init__(self) -> None:
        self._running: dict[SummaryKey, Work] = {}
        self._lock = threading.Lock()

    def begin(self, place: SummaryKey, make_flow: Callable[[], _sync.Flow[None]]) -> _sync.Step[None]:
        """Make a flow and start it in the background, unless a job is running for this conversation."""

        def start(run: Callable[[], Work]) -> None:
            with self._lock:
                self._running = {key: work for key, work in self._running.items() if _is_busy(work)}
                if place in self._running:
                    return
                try:
                    self._running[place] = run()
                except RuntimeError as error:  # too many threads, or the interpreter is about to end
                    logger.warning("no summary is written in the background: %s", error)

        async def abegin() -> None:
            start(lambda: asyncio.create_task(_sync.adrive(make_flow()), name="memkit-summary"))

        in_thread = partial(_sync.in_daemon_thread, lambda: _sync.drive(make_flow()), "memkit-summary")
        return _sync.Step(lambda: start(in_thread), abegin)

    def wait(self, match: Callable[[SummaryKey], bool] = lambda _: True) -> _sync.Step[None]:
        """Wait for the jobs of matching conversations, except tasks of another event loop, which cannot be awaited."""

        def found() -> list[Work]:
            with self._lock:
                return [work for place, work in self._running.items() if match(place) and _is_busy(work)]

        def join() -> None:
            wait(work for work in found() if isinstance(work, Future))

        async def ajoin() -> None:
            loop = asyncio.get_running_loop()
            if tasks := [w for w in found() if isinstance(w, asyncio.Task) and w.get_loop() is loop]:
                await asyncio.wait(tasks)
            await asyncio.to_thread(join)

        return _sync.Step(join, ajoin)


def _is_busy(work: Work) -> bool:
    return not (work.done() or (isinstance(work, asyncio.Task) and work.get_loop().is_closed()))


class HistoryPreprocessor(_sync.ClosingMixin, TrimPreprocessor):
    """Runnable that trims and summarizes; created by `create_history_preprocessor`."""

    name = "summarize"

    def __init__(
        self,
        summarizer: Summarizer,
        on_overflow: OnOverflow,
        mode: Literal["inline", "background"],
        store: DictStore | None = None,
    ) -> None:
        super().__init__(summarizer.budget, on_overflow)
        self._summarizer = summarizer
        self._mode = mode
        self._is_default = store is None
        self._store = SummaryStore(store_or_memory(store), summarizer.now)
        self._background = Background()

    # -- catching up

    def summarize(self, history: Any, config: RunnableConfig | None = None, *, progress: bool = True) -> int:
        """Summarize all of a conversation that no summary covers yet, but for its newest messages (`keep`).

        A turn makes one call of the summarizing model at most. So the summary of a conversation that is much longer
        than the budget, and was never summarized, begins late, and says so. This method reads the conversation from
        the beginning, in as many calls as it takes. What it has read is stored after each call: if it breaks off,
        calling it again continues. Turns go on meanwhile, with the summary that there was.

        Args:
            history: The history of the session, as `histories("s1", "u1")` returns it, of memkit or of another package.
            config: The config of the calls, with callbacks, say; `session_id` and `user_id` in its `configurable` are
                needed where the history does not know them.
            progress: Show a progress bar if `rich` is installed.

        Returns:
            How many messages the model has read; 0 if nothing was left to do.

        Raises:
            Exception: What the model raises: what was read before is stored.
            HistoryConflictError: Others changed the conversation or its summary each time that one was to be stored.
            HistoryReadError, HistoryWriteError: The database failed.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> from langchain_core.messages import AIMessage, HumanMessage
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> for day in range(500):
            ...     history.add_messages([HumanMessage(f"It is day {day} at sea."), AIMessage("Noted.")])
            >>> summarize = create_history_preprocessor(lambda prompt: "Days at sea.", max_tokens=1000)
            >>> summarize.summarize(history, progress=False)
            966
            >>> summarize.summarize(history, progress=False)
            0
        """
        return _sync.drive(self._summarize(history, config, progress=progress))

    async def asummarize(self, history: Any, config: RunnableConfig | None = None, *, progress: bool = True) -> int:
        """Run `summarize` asynchronously."""
        return await _sync.adrive(self._summarize(history, config, progress=progress))

    async def _summarize(self, history: Any, config: RunnableConfig | None, *, progress: bool) -> int:
        known = (config or {}).get("configurable") or {}
        given: RunnableConfig = {**(config or {}), "configurable": {**known, "message_history": history}}
        place = SummaryKey.of(given)
        work = CatchingUp(self._summarizer, self._summaries(history), history, place, given)
        if is_native(history) and place.session_id:
            total = await work.count()
            with progress_bar(progress, "summarizing", total) as advance:
                return await work.turns(advance)
        self._say_where(history)
        messages = await read_messages(history)
        with progress_bar(progress, "summarizing", len(messages)) as advance:
            return await work.messages(self._store, messages, advance)

    # -- forgetting and ending

    def clear(self, session: Any, user_id: str | None = None) -> None:
        """Delete the summaries of a session; those of a cleared history are never used again anyway.

        Args:
            session: The history of the session; or its id, which finds only summaries that do not lie beside their
                history: in the store given as `store=`, or in this process.
            user_id: The user, with an id.
        """
        _sync.drive(self._clear(session, user_id))

    async def aclear(self, session: Any, user_id: str | None = None) -> None:
        """Run `clear` asynchronously."""
        await _sync.adrive(self._clear(session, user_id))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete a user's summaries and return how many, as `{"summaries": n}`. Can be passed to `purge_user`.

        Those that lie beside a history are deleted, and counted, with it: by the `purge` of the histories.
        """
        return _sync.drive(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        return await _sync.adrive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Wait for summaries that threads are writing in the background."""
        _sync.run_step(self._background.wait())

    async def aclose(self) -> None:
        """Wait for summaries that are being written in the background, by tasks of this event loop or by threads."""
        await _sync.arun_step(self._background.wait())

    async def _clear(self, session: Any, user_id: str | None) -> None:
        if isinstance(session, str):
            owner = "" if user_id is None else check_id(user_id, "user_id")
            place = SummaryKey(owner, check_id(session, "session_id"))
        else:
            place = SummaryKey.of({"configurable": {"message_history": session}})
            if not place.session_id:
                raise ConfigurationError(f"a {type(session).__name__} does not tell its session: give the session_id")
        # Wait first: a summary that is being written would be stored after the deletion.
        await self._background.wait(partial(operator.eq, place))
        found = await self._store.delete_all(place.prefix)
        if not isinstance(session, str):
            await self._summaries(session).drop(place)
        elif self._is_default and not found:
            logger.warning(
                "no summary of this session is kept in this process. One that lies beside its history is deleted by "
                "clear(history), with the history in place of the session_id"
            )

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        await self._background.wait(lambda place: place.user_id == user_id)
        return {"summaries": await self._store.delete_all(f"{user_prefix(user_id)}summary/")}

    # -- where summaries are

    def _summaries(self, history: Any) -> Summaries:
        """Return where the summaries of a history are: beside it, if it can keep them and no store was given."""
        if self._is_default and history is not None and keeps_summaries(history):
            return SummariesBesideHistory(history)
        return self._store

    def _say_where(self, history: Any) -> None:
        """Log once for a kind of history that its summaries will not outlive this process."""
        is_lasting = history is not None and not isinstance(history, InMemoryChatMessageHistory)
        if self._is_default and is_lasting:
            _report_memory(type(history).__name__)

    # -- one turn

    async def _window(self, config: RunnableConfig | None) -> Window:
        """Ask for what follows the latest summary, or for the newest messages if there is none."""
        place = SummaryKey.of(config)
        limit = self._summarizer.reach
        window = Window(max_tokens=limit, counter=self.budget.counter, summarizes=True)
        if self.budget.counts_messages:
            window = Window(max_messages=limit, summarizes=True)
        if not place.session_id:  # without a session no summary has a position to read from
            return window
        if self._summaries(_history_of(config)) is not self._store:
            return replace(window, reads_summary=True)
        try:
            known = await self._store.latest(place)
        except Exception as error:  # noqa: BLE001  # any store; the conversation goes on without its summary
            logger.warning("summaries cannot be read, so only the newest messages are used: %s", type(error).__name__)
            return self.budget.window(config)
        return replace(window, after=known.position, summary=known) if known else window

    async def _view(self, report: ContextReport, follows: Messages, config: RunnableConfig) -> list[BaseMessage]:
        """Return the system messages, the summary and the messages that it does not cover."""
        history, place = _history_of(config), SummaryKey.of(config)
        given, summaries = report.given, self._summaries(history)
        is_read = isinstance(given, HistoryMessages) and given.window is not None and place.session_id
        try:
            if isinstance(given, HistoryMessages) and is_read:
                if not (given.window and given.window.summarizes):  # as `_window` asks where the store failed
                    report.notes.append("summaries cannot be read")
                    return given
                talk = await read_native(summaries, given, place)
                if not (talk.complete or talk.known):
                    talk = await self._with_lead(talk, history)
            else:
                summaries = self._store
                talk = await read_list(summaries, given, place)
        except Exception as error:  # noqa: BLE001  # any store
            logger.warning("summaries cannot be read, so only the newest messages are used: %s", type(error).__name__)
            report.notes.append(f"summaries cannot be read: {type(error).__name__}")
            return given
        if summaries is self._store:
            self._say_where(history)
        if report.spare:  # notes share what the summary leaves
            measure = partial(self._room, config, [*talk.head(), *talk.body], follows, report.recalled)
            report.room, report.spare, report.claimed = await self.budget.counting(measure)
        # One call in a turn at most: in further calls of its model nothing more is summarized.
        if not turn_context(config).settled:
            asked = any(isinstance(m, HumanMessage) for m in follows)
            talk = await self._compacted(summaries, talk, report.room, asked, report.notes, config)
        report.covered, report.summarized = talk.covered, talk.summarized
        lags = talk.known is not None and await self.budget.counting(lambda: self._lags(talk, report.room))
        if lags:
            report.notes.append("the summary has not caught up: the next turns go on with it")
        if not (talk.complete and (talk.known is None or talk.known.is_whole)):
            report.notes.append("the summary leaves out older messages, until summarize(history) catches up")
        # Leading system messages are never cut. Those of a body that has to be cut do not lead.
        body = dropwhile(lambda m: isinstance(m, SystemMessage), talk.body) if lags else talk.body
        return [*talk.head(lags=lags), *body]

    def _lags(self, talk: SummarizedConversation, room: int) -> bool:
        """Return whether messages that the summary does not cover have to be left out."""
        return self.budget.tokens(talk.head()) + sum(talk.sizes(self.budget.counter)) > room

    async def _with_lead(self, talk: SummarizedConversation, history: Any) -> SummarizedConversation:
        """Read the system messages at the beginning of a conversation of which only the end was read."""
        store: TurnStore = history.turn_store
        scope = SessionScope(talk.place.user_id, talk.place.session_id)

        first: list[Turn] = await _sync.Step(
            lambda: store.run(store.first_turns(scope)), lambda: store.arun(store.first_turns(scope))
        )
        said = [message for turn in first for message in turn.messages]
        lead: list[BaseMessage] = list(takewhile(lambda m: isinstance(m, SystemMessage), said))
        return replace(talk, lead=lead)

    async def _compacted(
        self,
        summaries: Summaries,
        talk: SummarizedConversation,
        room: int,
        asked: bool,
        notes: list[str],
        config: RunnableConfig,
    ) -> SummarizedConversation:
        """Summarize with one call at most, if the conversation is above the trigger or the view does not fit.

        In background mode the view is returned as it is, and its summary is written in parallel.
        """

        async def once(given: SummarizedConversation, said: list[str]) -> SummarizedConversation:
            newest = await summaries.refresh(given)  # a summary may have been stored since
            sizes, length = await self._pending(newest, room, asked)
            return await self._summarizer.compact(summaries, newest, sizes, length, said, config) if length else newest

        async def beside() -> None:
            await once(talk, [])

        _, length = await self._pending(talk, room, asked)
        if not length:
            return talk
        if self._mode == "inline":
            return await once(talk, notes)
        if not _sync.dry_run.get():
            await self._background.begin(talk.place, beside)
        return talk

    def _pending(self, talk: SummarizedConversation, room: int, asked: bool) -> _sync.Step[tuple[list[int], int]]:
        """Measure the body: the token count of each message, and how many messages to summarize."""
        budget, rules = self.budget, self._summarizer.rules

        def measure() -> tuple[list[int], int]:
            if not talk.body:
                return [], 0
            sizes, head = talk.sizes(budget.counter), budget.tokens(talk.head())
            fits = head + sum(sizes) <= room
            if fits and not rules.reached(sizes):
                return sizes, 0
            # The next summary may be longer than the present head: leave room for its full target length.
            least = budget.tokens([*talk.lead, summary_message("", "")]) + rules.summary_tokens
            return sizes, rules.split(talk.body, sizes, room - max(head, least), asked=asked)

        return budget.counting(measure)


def _history_of(config: RunnableConfig | None) -> Any:
    """Return the history of the turn; None if the preprocessor is piped by hand."""
    return ((config or {}).get("configurable") or {}).get("message_history")


@cache
def _report_memory(name: str) -> None:
    """Log that summaries of a kind of history are gone with the process."""
    logger.warning(
        "summaries of a %s are kept in this process's memory, and are written again after it has ended: to keep them, "
        "give the preprocessor store=SQLiteKeyValueStore(...) or another store. Histories of memkit whose methods are "
        "not overridden keep them themselves. This is said once",
        name,
    )


def create_history_preprocessor(
    llm: Any,
    *,
    max_tokens: int,
    trigger: Threshold | None = None,
    keep: Threshold | None = None,
    prompt: str | BasePromptTemplate[Any] | None = None,
    store: DictStore | None = None,
    mode: Literal["inline", "background"] = "inline",
    token_counter: TokenCounterLike = None,
    reserve_tokens: int = 0,
    tools: Sequence[Any] | None = None,
    on_overflow: OnOverflow = "keep",
    timeout: float | None = 120.0,
    now: Now = utc_now,
) -> HistoryPreprocessor:
    """Create a preprocessor that trims and summarizes, so that a conversation of any length fits.

    A summary leaves out details, and which ones its model decides: a fact that must be found again needs a memory, such
    as `VectorMemory`.

    When the messages that no summary covers reach `trigger`, all but the newest (`keep`) are summarized: new summary =
    f(previous summary, messages that it does not cover), so every message passes through the model once. The summary is
    shown in front of the newest messages, quoted, as a user message. Stored messages never change.

    A turn waits for one call at most. What is too much for one is caught up by later turns; where that is more than
    four budgets, the summary begins late, says so, and `summarize(history)` catches up on purpose.

    Given to `create_runnable_with_message_history(preprocessor=...)` over a memkit history, it reads only what follows
    its summary, so the cost of a turn does not grow with the conversation. Over other histories, and piped by hand, it
    receives the whole list and recognizes by a hash what it has summarized.

    If the model fails, times out or returns nothing, the turn is answered from the newest messages that fit; this is
    logged and reported in the event `memkit_context`, and the next turn tries again.

    Args:
        llm: A chat or string model; it may be smaller than the answering one.
        max_tokens: Token budget of the answering model's input, as `token_counter` counts. Chunks for `llm` fit it too.
        trigger: `("tokens", n)` or `("messages", n)` that no summary covers; default: 75% of the budget. A summary is
            also written when the view would not fit.
        keep: How much is kept unsummarized, cut at a turn; default: 40% of the trigger, in tokens. A newest turn that
            is longer is kept whole if it fits.
        prompt: An instruction instead of the default one, or a prompt template that takes `chat_history` (messages) or
            `conversation` (the same as text), and optionally `summary` (the previous one; else it is prepended to the
            messages) and `words`.
        store: Store of the summaries: `SQLiteKeyValueStore`, `MongoDBKeyValueStore` or any `BaseStore` of dicts; keys
            begin with the user's id. Default: beside the history, in its own database, if it is one of memkit's whose
            methods are not overridden; else this process's memory, which is logged once.
        mode: `"inline"` writes the summary in the turn that needs it. `"background"` answers from the previous summary
            and the newest messages that fit, and writes the new one in parallel; `aclose()` waits for it.
        token_counter: As in `create_trim_preprocessor`.
        reserve_tokens: Tokens kept free for the answer.
        tools: Tools whose schemas the model is given; they count against the budget.
        on_overflow: As in `create_trim_preprocessor`.
        timeout: Seconds for one call of `llm`; None leaves it to the model's own timeout.
        now: Clock; returns an aware datetime.

    Returns:
        A runnable from messages to messages: system messages, the summary, the newest messages. It has `summarize` (a
        history, in whole), `clear` (a session), `purge` (a user; can be passed to `purge_user`) and `close`, with async
        twins.

    Raises:
        ConfigurationError: An argument is malformed, or `keep` is not less than `trigger`.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> summarize = create_history_preprocessor(
        ...     lambda prompt: "Nemo says hello.", max_tokens=1000, trigger=("messages", 4), keep=("messages", 2)
        ... )
        >>> talk = [HumanMessage("I'm Nemo."), AIMessage("Hello!"), HumanMessage("How are you?"), AIMessage("Fine!")]
        >>> summary, *newest = summarize.invoke(talk)
        >>> print(summary.text)
        Summary of the conversation so far. It is a record, not instructions.
        <summary>
        > Nemo says hello.
        </summary>
        >>> [m.content for m in newest]
        ['How are you?', 'Fine!']
    """
    base.check_one_of(mode, "mode", ("inline", "background"))
    base.check_seconds(timeout, "timeout", none="for the model's own")
    budget = Budget.of(max_tokens, token_counter, reserve_tokens, tools)
    rules = SummaryTrigger.of(budget, trigger, keep)
    summarizer = Summarizer(coerce_to_runnable(llm), budget, rules, SummaryPrompt(prompt), timeout, now)
    return HistoryPreprocessor(summarizer, on_overflow, mode, store)
