"""Trimming and summarizing: older messages become a running summary in front of the newest ones."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.callbacks.manager import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.stores import BaseStore

from langchain_memkit._sync import ClosingMixin, Step, adrive, arun_step, drive, run_step
from langchain_memkit.base import (
    Now,
    TokenCounter,
    TokenCounterLike,
    Window,
    check_id,
    kind_given,
    seconds_given,
    user_prefix,
    utc_now,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.preprocessors.background import Background
from langchain_memkit.preprocessors.budget import Budget, as_messages, new_input
from langchain_memkit.preprocessors.conversation import Conversation, catch_up, place_of, read_conversation
from langchain_memkit.preprocessors.memory_store import MemoryStore
from langchain_memkit.preprocessors.prompt import SummaryPrompt, summary_message
from langchain_memkit.preprocessors.records import Place, SummaryStore
from langchain_memkit.preprocessors.report import EVENT, ContextReport, has_listeners
from langchain_memkit.preprocessors.rules import Amount, Rules
from langchain_memkit.preprocessors.summarizer import Summarizer
from langchain_memkit.preprocessors.trim import OnOverflow, Trimmer

__all__ = ["HistoryPreprocessor", "create_history_preprocessor"]

logger = logging.getLogger("langchain_memkit")


class HistoryPreprocessor(ClosingMixin, Runnable[Any, list[BaseMessage]]):
    """What `create_history_preprocessor` makes."""

    def __init__(self, summarizer: Summarizer, trimmer: Trimmer, mode: Literal["inline", "background"]) -> None:
        self.name = "summarize"
        self._summarizer = summarizer
        self._trimmer = trimmer
        self._mode = mode
        self._budget = summarizer.budget
        self._rules = summarizer.rules
        self._store = summarizer.store
        self._background = Background()

    @property
    def token_counter(self) -> TokenCounter:
        """What counts."""
        return self._budget.counter

    @property
    def budget(self) -> Budget:
        """How much may be shown."""
        return self._budget

    # -- as a runnable

    def window(self, config: RunnableConfig | None = None) -> Window:
        """What of a history is needed: what comes after the summary, or all of it while there is none."""
        return drive(self._window(config))

    async def awindow(self, config: RunnableConfig | None = None) -> Window:
        """Async twin of `window`."""
        return await adrive(self._window(config))

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """The view of a list of messages, oldest first, which is not changed."""

        def run(value: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> list[BaseMessage]:
            report = drive(self._run(value, config))
            if has_listeners(config):
                dispatch_custom_event(EVENT, report.event(), config=config)
            return list(report.kept)

        return self._call_with_config(run, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """Async twin of `invoke`."""

        async def run(
            value: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
        ) -> list[BaseMessage]:
            report = await adrive(self._run(value, config))
            if has_listeners(config):
                data = await arun_step(self._summarizer.counting(report.event))
                await adispatch_custom_event(EVENT, data, config=config)
            return list(report.kept)

        return await self._acall_with_config(run, input, config)

    # -- forgetting and ending

    def clear(self, session_id: str, user_id: str | None = None) -> None:
        """Forgets the summaries of a session; of a cleared history they are never used again anyway."""
        drive(self._clear(session_id, user_id))

    async def aclear(self, session_id: str, user_id: str | None = None) -> None:
        """Async twin of `clear`."""
        await adrive(self._clear(session_id, user_id))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Forgets a user's summaries; returns how many. A part of `purge_user`."""
        return drive(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Waits for summaries that are being written in the background by threads."""
        run_step(self._background.wait())

    async def aclose(self) -> None:
        """Waits for summaries that are being written in the background, on this event loop or by threads."""
        await arun_step(self._background.wait())

    async def _clear(self, session_id: str, user_id: str | None) -> None:
        place = self._place(session_id, user_id)
        await self._background.wait(partial(operator.eq, place))
        await self._store.delete_all(place.prefix)

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        await self._background.wait(lambda place: place.user_id == user_id)
        return {"summaries": await self._store.delete_all(f"{user_prefix(user_id)}summary/")}

    def _place(self, session_id: str, user_id: str | None) -> Place:
        return Place("" if user_id is None else check_id(user_id, "user_id"), check_id(session_id, "session_id"))

    # -- one turn

    async def _window(self, config: RunnableConfig | None) -> Window:
        place = place_of(config)
        if not place.session_id:  # positions are of a session
            return Window()
        try:
            known = await self._store.latest(place)
        except Exception as error:  # noqa: BLE001  # any store; the conversation goes on without its summary
            logger.warning("summaries cannot be read, so only the newest messages are used: %s", type(error).__name__)
            return self._budget.window(config)
        return Window(after=known[1].position, summary=known) if known else Window()

    async def _run(self, value: Any, config: RunnableConfig) -> ContextReport:
        messages, place = as_messages(value), place_of(config)
        room: int = await self._summarizer.counting(lambda: self._budget.room(config, value))
        follows = new_input(config, value)
        asked = any(isinstance(m, HumanMessage) for m in follows)
        report = ContextReport(
            "summarize", self._budget.max_tokens, room, messages, [], self._budget.counter, self._budget.taken
        )
        try:
            talk = await read_conversation(messages, place, self._store)
        except Exception as error:  # noqa: BLE001  # any store
            logger.warning("summaries cannot be read, so only the newest messages are used: %s", type(error).__name__)
            report.notes.append(f"summaries cannot be read: {type(error).__name__}")
            view = messages
        else:
            if not talk.complete:
                report.notes.append("summaries cannot be read")
            talk = await self._compacted(talk, room, asked, report.notes, config)
            report.covered, report.summarized = talk.covered, talk.reach
            view = [*talk.head(), *talk.body]
        report.kept = await self._summarizer.counting(lambda: self._trimmer.trim(view, room, follows))
        return report

    async def _compacted(
        self, talk: Conversation, room: int, asked: bool, notes: list[str], config: RunnableConfig
    ) -> Conversation:
        """The conversation, summarized until there is no more than the trigger and the view fits."""
        alone = False
        while True:
            sizes, length, fits = await self._due(talk, room, asked)
            if not length:
                break
            if fits and self._mode == "background":
                await self._background.begin(talk.place, partial(self._beside, talk, room, asked, config))
                break
            if not alone:
                alone = True
                await self._background.wait(partial(operator.eq, talk.place))
                talk, before = await catch_up(talk, self._store), talk
                if talk is not before:
                    continue
            talk, problems = await self._summarizer.compact(talk, sizes, length, config)
            notes += problems
            if any(problem.startswith("no summary") for problem in problems):
                break
        return talk

    async def _beside(self, talk: Conversation, room: int, asked: bool, config: RunnableConfig) -> None:
        """What is done in the background: the one before may have ended after this conversation was read."""
        talk = await catch_up(talk, self._store)
        sizes, length, _ = await self._due(talk, room, asked)
        if length:
            await self._summarizer.compact(talk, sizes, length, config)

    def _due(self, talk: Conversation, room: int, asked: bool) -> Step[tuple[list[int], int, bool]]:
        """Tokens of each message of the body, how many of these are to be summarized, and whether all fits now."""

        def measure() -> tuple[list[int], int, bool]:
            if not (talk.complete and talk.body):
                return [], 0, True
            sizes, head = talk.sizes(self._budget.counter), self._summarizer.tokens(talk.head())
            fits = head + sum(sizes) <= room
            if fits and not self._rules.reached(sizes):
                return sizes, 0, fits
            least = self._summarizer.tokens([*talk.lead, summary_message("", "")]) + self._rules.summary_tokens
            return sizes, self._rules.split(talk.body, sizes, room - max(head, least), asked=asked), fits

        return self._summarizer.counting(measure)


def create_history_preprocessor(
    llm: Any,
    *,
    max_tokens: int,
    trigger: Amount | None = None,
    keep: Amount | None = None,
    prompt: str | BasePromptTemplate[Any] | None = None,
    store: BaseStore[str, dict[str, Any]] | None = None,
    mode: Literal["inline", "background"] = "inline",
    token_counter: TokenCounterLike = None,
    reserve_tokens: int = 0,
    tools: Sequence[Any] | None = None,
    on_overflow: OnOverflow = "keep",
    timeout: float | None = 120.0,
    now: Now = utc_now,
) -> HistoryPreprocessor:
    """Makes a preprocessor that trims and summarizes, so that a conversation of any length fits and no fact is lost.

    When there is more than `trigger`, all but the newest (`keep`) is summarized: new summary = f(summary so far,
    messages that it does not cover), in chunks that fit, so every message passes through the model, once. The summary
    stands in front of the newest messages, quoted, as a message of the user's. What is stored is never changed.

    Given to `create_runnable_with_message_history(preprocessor=...)` over a history of ours it asks for what comes
    after its summary and no more, so a turn costs the same at any length; over other histories, and piped by hand, it
    gets the whole list and recognises what it has summarized by a hash. (The first turn over a long conversation that
    was never summarized reads all of it, once.)

    If the model fails, takes too long or says nothing, the turn is answered from the newest messages that fit, this is
    logged and stands in the event `memkit_context`, and the next turn tries again.

    Args:
        llm: A chat or string model; it may be a smaller one than the one that answers.
        max_tokens: What the answering model may be given, as `token_counter` counts. Chunks for `llm` fit it as well.
        trigger: `("tokens", n)` or `("messages", n)` that no summary covers; default: 75% of the budget. It is also
            summarized when the view would not fit.
        keep: How much stays as it is, cut at a turn; default: 40% of the trigger, in tokens. A newest turn that is
            longer is kept whole if it fits.
        prompt: An instruction instead of the default one, or a prompt template that takes `chat_history` (messages) or
            `conversation` (the same as text), and perhaps `summary` (so far; else it is put in front) and `words`.
        store: Where summaries are kept; default: this process's memory. `SQLiteKeyValueStore`, `MongoDBKeyValueStore`
            or any `BaseStore` of dicts; keys begin with the user's id.
        mode: `"inline"` writes the summary in the turn that needs it. `"background"` answers from the summary so far
            and a longer end, and writes beside it; `aclose()` waits for that. Where the end does not fit: inline.
        token_counter: As in `create_trim_preprocessor`.
        reserve_tokens: Tokens kept free for the answer.
        tools: Tools whose schemas the model is given.
        on_overflow: As in `create_trim_preprocessor`.
        timeout: Seconds for one call of `llm`; None: its own.
        now: A clock.

    Returns:
        A runnable from messages to messages: system lines, the summary, the newest messages. It has `aclear`/`clear`
        (a session), `purge` (a user; a part of `purge_user`), and `aclose`/`close`.

    Raises:
        ConfigurationError: An argument makes no sense, or `keep` is not less than `trigger`.

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
    if mode not in ("inline", "background"):
        msg = f"mode must be 'inline' or 'background', not {mode!r:.50}"
        raise ConfigurationError(msg)
    if not (isinstance(llm, Runnable) or callable(llm)):
        msg = f"llm must be a model or a function, not {type(llm).__name__}"
        raise ConfigurationError(msg)
    if store is not None and not isinstance(store, BaseStore):
        msg = f"store must be a BaseStore of langchain_core.stores, not {kind_given(store, BaseStore)}"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    seconds_given(timeout, "timeout", none="for the model's own")
    if not callable(now):
        msg = f"now must be a function that returns the time, not {type(now).__name__}"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    budget = Budget.of(max_tokens, token_counter, reserve_tokens, tools)
    rules = Rules.of(budget, trigger, keep)
    records = SummaryStore(MemoryStore() if store is None else store, now)
    summarizer = Summarizer(coerce_to_runnable(llm), budget, rules, SummaryPrompt(prompt), records, timeout, now)
    return HistoryPreprocessor(summarizer, Trimmer.of(budget.counter, on_overflow=on_overflow), mode)
