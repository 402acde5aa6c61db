"""Trimming: keep the newest whole turns that fit the budget."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import Any, Literal, TypeAlias, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_memkit._sync import adrive, drive, event
from langchain_memkit.base import CONTEXT, Messages, TokenCounter, TokenCounterLike, TurnContext, Window, check_one_of
from langchain_memkit.errors import ConfigurationError, ContextTooLargeError
from langchain_memkit.messages import trimming
from langchain_memkit.messages.results import SHORTENED, ResultShortener, fit_loop
from langchain_memkit.messages.trimming import Kinds, MessageType, is_note, is_summary, leading_system_count
from langchain_memkit.preprocessors import budget as budgets

OnOverflow: TypeAlias = Literal["keep", "raise"]


class TrimPreprocessor(Runnable[Any, list[BaseMessage]]):
    """Runnable from messages to messages within a token budget; created by `create_trim_preprocessor`.

    It reports what it did in the event `memkit_context`.
    """

    name = "trim"

    def __init__(
        self, budget: budgets.Budget, on_overflow: OnOverflow, *, include_system: bool = True, start_on: Kinds = None
    ) -> None:
        policy: str = on_overflow
        if policy == "truncate_tool_results":
            msg = f"on_overflow={policy!r} is gone: shorten results in a step behind, create_trim_preprocessor(...) | f"
            raise ConfigurationError(msg)
        check_one_of(policy, "on_overflow", get_args(OnOverflow))
        self.budget = budget
        self._on_overflow = on_overflow
        self._include_system = include_system
        self._start_on = start_on

    @property
    def token_counter(self) -> TokenCounter:
        """The token counter."""
        return self.budget.counter

    def window(self, config: RunnableConfig | None = None) -> Window:
        """Return the part of the history to read: the newest rows that fill the budget, or what a summary leaves."""
        return drive(self._window(config))

    async def awindow(self, config: RunnableConfig | None = None) -> Window:
        """Run `window` asynchronously."""
        return await adrive(self._window(config))

    async def _window(self, config: RunnableConfig | None) -> Window:
        return self.budget.window(config)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """Apply it to a list of messages, oldest first; the list itself is not changed."""
        return self._call_with_config(lambda value, config: drive(self._applied(value, config)), input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """Run `invoke` asynchronously; a custom token counter runs in a thread, since it may do I/O."""
        return await self._acall_with_config(lambda value, config: adrive(self._applied(value, config)), input, config)

    async def _applied(self, value: object, config: RunnableConfig) -> list[BaseMessage]:
        messages, budget = budgets.as_messages(value), self.budget
        context = budgets.turn_context(config)
        own: list[BaseMessage] = []
        if context.in_run:
            messages, own = self._parts(messages, context)
        # Nothing follows a prompt, and nothing follows an agent's run.
        is_whole = isinstance(value, PromptValue) or context.in_run
        follows = [] if is_whole else budgets.new_input(config, messages)
        # Notes are no dialogue. They are searched for in the newest messages only, since the list may be long.
        newest = range(max(len(messages) - 500, 0), len(messages))
        places = [] if budget.counts_messages else [i for i in newest if is_note(messages[i])]
        notes = [messages[i] for i in places]
        given = [m for i, m in enumerate(messages) if i not in places] if places else messages
        report = await budget.counting(lambda: self._report(config, given, own, follows, notes))
        view = await self._view(report, own or follows, config)

        def fit() -> list[BaseMessage]:
            kept = self._fitted(view, own, follows, report, context)
            for place, note in zip(places, notes, strict=True):  # back, with those of their records that fit
                before = {id(m) for m in messages[:place]}
                after = max((i for i, m in enumerate(kept, 1) if id(m) in before), default=leading_system_count(kept))
                fitting = budget.fit_note(note, [*kept, *follows], context, report.notes)
                kept = [*kept[:after], *([fitting] if fitting else ()), *kept[after:]]
            return kept

        shown = await budget.counting(fit)
        report.kept = budgets.parts_of_run(shown, own)[0] if own else shown
        report.shortened = sum(m.response_metadata.get(trimming.STATUS) == SHORTENED for m in shown)
        if report.summarized and not any(map(is_summary, report.kept)):
            report.notes.append("the summary does not fit and is left out")
        context.reports[report.preprocessor] = report
        callbacks: Any = config.get("callbacks")
        handlers = getattr(callbacks, "handlers", callbacks) or ()
        # Building the event costs more than trimming, and the recorder of a turn's trace finds the report itself.
        in_turn = CONTEXT in (config.get("configurable") or {})
        if any(not (in_turn and getattr(handler, "finds_reports", False)) for handler in handlers):
            await event(config, budgets.EVENT, await budget.counting(report.event))
        return list(shown)

    def _parts(self, messages: list[BaseMessage], context: TurnContext) -> tuple[Any, list[BaseMessage]]:
        """Split what an agent's call is given into the past, as it was read if it is unchanged, and the run so far."""
        past, own = budgets.parts_of_run(messages, context.asked)
        read = context.past
        is_unchanged = len(past) == len(read) and all(a is b for a, b in zip(past, read, strict=True))
        return (read if is_unchanged else past), own

    def _report(
        self,
        config: RunnableConfig,
        given: list[BaseMessage],
        own: Messages,
        follows: Messages,
        notes: list[BaseMessage],
    ) -> budgets.ContextReport:
        """Measure the room that there is, before anything is left out."""
        budget, context = self.budget, budgets.turn_context(config)
        room, spare, claimed = self._room(config, given, own or follows, notes)
        return budgets.ContextReport(
            preprocessor=str(self.name),
            budget=budget,
            room=room,
            given=given,
            recalled=notes,
            spare=spare,
            reserved=budget.reserved if context.schemas is None else budget.reserve_tokens,
            beside=budget.beside(context),
            claimed=claimed,
        )

    def _room(
        self, config: RunnableConfig, given: Messages, follows: Messages, notes: Messages
    ) -> tuple[int, int, int]:
        """Return the tokens for the past, how many more there are for what must be kept, and what a run claims."""
        budget, context = self.budget, budgets.turn_context(config)
        if not context.in_run:
            return *budget.room(config, given, follows, notes), 0
        lead = _input_length(follows)
        in_loop = lead < len(follows)
        room, spare = budget.room(config, given, follows[:lead], notes, in_loop=in_loop)
        if budget.counts_messages:
            return room, spare, 0
        sizes = self._shortener(context).sizes(follows)
        room += sum(sizes[:lead])
        claimed = budget.claim(sizes, room) if in_loop else sum(sizes)
        return room - claimed, spare, claimed

    def _shortener(self, context: TurnContext | None) -> ResultShortener:
        """Return what shortens tool results: in an agent's run the same one for each call, since it counts once."""
        if context is None:
            return ResultShortener(self.budget.counter)
        key = str(self.name)
        if key not in context.shorteners:
            context.shorteners[key] = ResultShortener(self.budget.counter, context.reader)
        shortener: ResultShortener = context.shorteners[key]
        return shortener

    async def _view(
        self, report: budgets.ContextReport, follows: Messages, config: RunnableConfig
    ) -> list[BaseMessage]:
        """Return the messages to trim: the given ones."""
        return report.given

    def _fitted(
        self,
        view: Messages,
        own: list[BaseMessage],
        follows: Messages,
        report: budgets.ContextReport,
        context: TurnContext,
    ) -> list[BaseMessage]:
        if not own:
            return self.trim(view, report.room, follows, report.spare, report, context)
        if self.budget.counts_messages:
            return [*self.trim(view, report.room, own, report.spare, report, context), *own]
        lead = _input_length(own)
        room = report.room + report.claimed
        return self._trim_run(view, own, lead, room, report.spare, report, context)

    def trim(
        self,
        messages: Messages,
        room: int,
        follows: Messages = (),
        spare: int = 0,
        report: budgets.ContextReport | None = None,
        context: TurnContext | None = None,
    ) -> list[BaseMessage]:
        """Return the newest messages within `room` tokens; `create_trim_preprocessor` describes what is kept.

        `follows` is what will come after them: a new question (then none of `messages` must be kept) or tool results
        (then their calls must be kept). What must be kept may use `spare` tokens more, which notes then have to give
        up. The `report` is told by how much that is too long; the `context` is that of the turn.
        """
        is_loop = not follows and bool(messages) and isinstance(messages[-1], trimming.RESULTS)
        if is_loop and not self.budget.counts_messages:
            lead = leading_system_count(messages)
            questions = [i for i in range(lead, len(messages)) if isinstance(messages[i], HumanMessage)]
            start = questions[-1] if questions else lead
            run = trimming.whole_tool_groups(messages[start:])
            newest = messages[trimming.trailing_results(messages, start) :]
            waits = bool(run) and any(run[-1] is result for result in newest)
            if waits and (questions or self._start_on is None):
                return self._trim_run(messages[:start], run, min(len(questions), 1), room, spare, report)
        asked = any(isinstance(m, HumanMessage) for m in follows)
        answers = list(takewhile(lambda m: isinstance(m, trimming.RESULTS), follows))
        if not answers:
            return self._trim(messages, room, spare, asked=asked, report=report, context=context)
        # Trim together with the tool results, which keeps their calls, then take the results off again.
        kept = self._trim(
            [*messages, *answers],
            room + self.budget.tokens(answers),
            spare,
            asked=asked,
            report=report,
            context=context,
        )
        end, given = trimming.trailing_results(kept, 0), {getattr(m, "tool_call_id", id(m)) for m in answers}
        return [*kept[:end], *(m for m in kept[end:] if getattr(m, "tool_call_id", id(m)) not in given)]

    def _trim_run(
        self,
        past: Messages,
        own: list[BaseMessage],
        lead: int,
        room: int,
        spare: int,
        report: budgets.ContextReport | None,
        context: TurnContext | None = None,
    ) -> list[BaseMessage]:
        """Return what fits of the past, and a run after it, whose loop is shortened if it outgrows the room.

        The first `lead` messages of the run are its input. The past is given what the run has not claimed.
        """
        count = self.budget.tokens
        system = leading_system_count(past) if self._include_system else 0
        least = count(past[:system])
        results = self._shortener(context)
        shown, taken = fit_loop(own, results.sizes(own), room - least, results, lead=lead)
        total = taken + least
        if total > room + spare:
            without = [m for i, m in enumerate(past) if i >= system or not is_summary(m)]
            if len(without) < len(past):
                return self._trim_run(without, own, lead, room, spare, report, context)
            self._overflows(total, room + spare, report)
        left = room - (report.claimed if report is not None and report.claimed else taken)
        kept = self.trim(past, left, shown, spare + room - left - taken, report, context) if past else []
        return [*kept, *shown]

    def _trim(
        self,
        messages: Messages,
        room: int,
        spare: int,
        *,
        asked: bool,
        report: budgets.ContextReport | None,
        context: TurnContext | None,
    ) -> list[BaseMessage]:
        budget = self.budget
        size = cache(budgets.token_sizes(messages, budget.counter))
        lead = leading_system_count(messages) if self._include_system else 0
        left = room - sum(map(size, range(lead)))
        cut = trimming.find_cut_point(messages, size, left, lead=lead, start_on=self._start_on)
        shown = messages
        if cut.start > lead and not budget.counts_messages:
            # Tool results give way before turns do. Those at the end the model is yet to see, if nothing new is asked.
            unseen = len(messages) if asked else trimming.trailing_results(messages, lead)
            results = self._shortener(context)

            def line(i: int) -> tuple[BaseMessage, int]:
                return (messages[i], size(i)) if i >= unseen else results.line(messages[i], size(i))

            cut = trimming.find_cut_point(messages, lambda i: line(i)[1], left, lead=lead, start_on=self._start_on)
            shown = list(messages)
            free = left - sum(line(i)[1] for i in range(cut.start, len(messages)))
            free -= 0 if cut.task is None else size(cut.task)
            # The newest results stay whole as long as there is room for them.
            for i in reversed(range(cut.start, len(messages))):
                free -= size(i) - line(i)[1]
                if free < 0:
                    shown[i] = line(i)[0]
        start, task, fits = cut
        if asked and start >= len(messages):
            task = None  # a new question follows: drop an old one of whose answer nothing fits
        kept = [*messages[:lead], *(messages[task : task + 1] if task is not None else ()), *shown[start:]]
        whole = trimming.whole_tool_groups(kept)
        if self._start_on is not None and len(whole) < len(kept):  # the message to start on may have been dropped
            return self._trim(whole, room, spare, asked=asked, report=report, context=context)
        return whole if fits else self._least(whole, lead, room + spare, asked=asked, report=report)

    def _least(
        self,
        kept: list[BaseMessage],
        lead: int,
        room: int,
        *,
        asked: bool,
        report: budgets.ContextReport | None,
    ) -> list[BaseMessage]:
        """Return of messages that must be kept but do not fit what must be kept before the rest."""
        count = self.budget.tokens
        if asked and count(kept) > room:
            kept = kept[:lead]
        if count(kept) > room:
            kept = [m for i, m in enumerate(kept) if i >= lead or not is_summary(m)]
        total = count(kept)
        if total > room:
            self._overflows(total, room, report)
        return kept

    def _overflows(self, total: int, room: int, report: budgets.ContextReport | None) -> None:
        """Raise if `on_overflow` says so; else tell the report."""
        if self._on_overflow == "raise":
            raise ContextTooLargeError(
                "what has to be kept (system lines, the newest question, results it waits for) is too large: "
                f"{total} tokens, and room for {max(room, 0)} beside system prompt, tools and what is reserved"
            )
        if report is not None:
            report.over = max(report.over, total - room)


def _input_length(run: Messages) -> int:
    """Return the number of messages of a run before its first answer."""
    return next((i for i, message in enumerate(run) if isinstance(message, AIMessage)), len(run))


def create_trim_preprocessor(
    max_tokens: int,
    *,
    token_counter: TokenCounterLike = None,
    strategy: Literal["last"] = "last",
    reserve_tokens: int = 0,
    tools: Sequence[Any] | None = None,
    include_system: bool = True,
    start_on: MessageType | Sequence[MessageType] | None = None,
    on_overflow: OnOverflow = "keep",
) -> TrimPreprocessor:
    """Create a preprocessor that keeps the newest messages within a token budget.

    Messages are cut only between turns. If the newest turn alone is too long, as the loop of an agent may be, its
    question and its newest whole tool groups are kept. No tool call is left without its result, and no result without
    its call. Pipe it before a prompt, or give it to `create_runnable_with_message_history(preprocessor=...)`, where the
    new input shares the budget and no more of the history is read than fits.

    It works from the newest message back and stops when the budget is used up, so its cost depends on what it keeps,
    not on the length of the list. Token counts stored in memkit histories are used if the same `token_counter` made
    them.

    Args:
        max_tokens: Token budget of the model's input, as `token_counter` counts.
        token_counter: None or `"approximate"` (four characters a token), the name of an OpenAI encoding or model for
            exact counts (`"o200k_base"`, extra `tokens`), a model, a function of messages, or `len` to count messages.
        strategy: Only `"last"`, as in `trim_messages`.
        reserve_tokens: Tokens kept free for the answer.
        tools: Tools whose schemas the model is given; they count against the budget.
        include_system: Keep leading system messages (and summaries). Later ones are kept if they are among the newest
            messages.
        start_on: Message types that the kept messages may begin with, after system messages, as in `trim_messages`;
            default: the beginning of a turn.
        on_overflow: What to do if the messages that must be kept (system messages, the newest human message, and tool
            results that the model has not seen yet) do not fit: `"keep"` returns them all the same, `"raise"` raises.

    Returns:
        A runnable from messages to messages, in order; messages are the same objects, unless a call without a result
        was taken out of one.

    Raises:
        ConfigurationError: An argument is malformed.
        ContextTooLargeError: Raised by the runnable, with `on_overflow="raise"`.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> trimmer = create_trim_preprocessor(max_tokens=2, token_counter=len)
        >>> talk = [HumanMessage("I'm Nemo."), AIMessage("Hello!"), HumanMessage("How are you?"), AIMessage("Fine!")]
        >>> [m.content for m in trimmer.invoke(talk)]
        ['How are you?', 'Fine!']
    """
    check_one_of(strategy, "strategy", ("last",))  # a memory keeps what is newest
    budget = budgets.Budget.of(max_tokens, token_counter, reserve_tokens, tools)
    kinds = trimming.message_types(start_on, "start_on")
    return TrimPreprocessor(budget, on_overflow, include_system=include_system, start_on=kinds)
