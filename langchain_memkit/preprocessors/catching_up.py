"""Catching up on purpose: a conversation is summarized from its beginning, in as many calls as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._sync import Step
from langchain_memkit.base import HistoryMessages, Position, Turn, TurnContext
from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.messages.tokens import counter_name
from langchain_memkit.preprocessors.prompt import Chunk, summary_message
from langchain_memkit.preprocessors.summarizer import Summarizer, check_after
from langchain_memkit.preprocessors.summary_store import (
    Summaries,
    SummarizedConversation,
    SummaryKey,
    SummaryRecord,
    SummaryStore,
    read_list,
)
from langchain_memkit.stores.history import TurnStore
from langchain_memkit.stores.history_rows import SessionScope, TurnPage

Advance: TypeAlias = Callable[[int], None]
"""Moves a progress bar on by some steps."""

PAGE = 200  # turns that are read at a time
STUCK = (
    "the summary cannot be stored: others change this conversation or its summary all the time. Call summarize again "
    "when they have ended, which goes on from what is stored; if that does not help, preprocessor.clear(history) "
    "deletes the summaries of this conversation and none of its messages"
)


class ForwardReader:
    """Reads the turns of a memkit history after a position, oldest first, a page at a time."""

    def __init__(self, history: Any, scope: SessionScope, after: Position | None) -> None:
        self._store: TurnStore = history.turn_store
        self._scope = scope
        self._counter = counter_name(history.token_counter)
        self._after = after
        # The turn of the position is read as well: it may have more messages.
        self._next: Any = after.seq - 1 if after and after.seq else None
        self._turns: list[Turn] = []
        self._messages: list[BaseMessage] = []
        self.tokens: list[int] = []
        self.first: Turn | None = None  # that was read, perhaps that of the position
        self.is_passed = after is None
        self.is_ended = False

    async def more(self) -> None:
        """Read a page, and note whether it was the last one."""
        page, self._next = await self._page(self._next)
        self.is_ended = self._next is None
        for turn in page:
            self.first = self.first or turn
            for message, tokens in zip(turn.messages, turn.tokens, strict=True):
                if self._follows(turn, message):
                    self._turns.append(turn)
                    self._messages.append(message)
                    self.tokens.append(tokens)

    def _page(self, begin: Any) -> Step[TurnPage]:
        store, scope = self._store, self._scope
        return Step(
            lambda: store.run(store.page_forward(scope, begin, PAGE)),
            lambda: store.arun(store.page_forward(scope, begin, PAGE)),
        )

    def _follows(self, turn: Turn, message: BaseMessage) -> bool:
        """Return whether a message comes after the position."""
        after = self._after
        if self.is_passed or after is None:
            return True
        if after.seq and turn.seq > after.seq:  # the message at the position is not there any more
            self.is_passed = True
            return True
        is_it = turn.op == after.op and message.id == after.message_id
        self.is_passed = is_it
        return False

    def rest(self) -> HistoryMessages:
        """Return what was read and not taken."""
        return HistoryMessages(self._messages, self.tokens, self._counter, self._turns, 0)

    def take(self, length: int) -> None:
        """Drop the first messages of the rest."""
        del self._turns[:length], self._messages[:length], self.tokens[:length]


@dataclass(frozen=True)
class CatchingUp:
    """The work of `summarize()` on one conversation."""

    summarizer: Summarizer
    summaries: Summaries
    history: Any
    place: SummaryKey
    config: RunnableConfig

    @property
    def _scope(self) -> SessionScope:
        return SessionScope(self.place.user_id, self.place.session_id)

    async def count(self) -> int | None:
        """Return about how many turns there are to read; None if that is unknown."""
        history = self.history
        view = await Step(lambda: history.view(max_messages=0), lambda: history.aview(max_messages=0))
        begun = await self._begun()
        done = begun.position.seq if begun and begun.position else 0
        return max(view.seq - done, 0) if view.seq else None

    async def turns(self, advance: Advance, *, tries: int = 3) -> int:
        """Summarize a conversation of a memkit history; return how many messages the model has read.

        It begins anew when others have changed the conversation or its summary meanwhile, but ends after some tries in
        which neither it nor they came any further, since each may cost a call of the model.
        """
        count, failed = 0, 0
        before: SummaryRecord | None = None
        while failed < tries:
            known = await self._begun()
            read = ForwardReader(self.history, self._scope, known.position if known else None)
            more, is_done = await self._go_on(read, known, advance)
            count += more
            if is_done:
                return count
            has_advanced = more > 0 or known != before
            failed = 1 if has_advanced else failed + 1
            before = known
        raise HistoryConflictError(STUCK)

    async def _begun(self) -> SummaryRecord | None:
        """Return the record from which to go on: the whole one that reaches furthest and is not outdated."""
        unfinished = await self.summaries.latest(self.place, unfinished=True)
        shown = await self.summaries.latest(self.place)
        found = [record for record in (unfinished, shown) if record and record.is_whole and record.position]
        for record in sorted(found, key=lambda record: record.covered, reverse=True):
            if await self._is_there(record.position):
                return record
        return None

    async def _is_there(self, position: Position | None) -> bool:
        """Return whether the turn at a position is shown as it was, or its session was not edited since."""
        if position is None:
            return False
        read = ForwardReader(self.history, self._scope, position)
        await read.more()
        if not position.seq:  # rows of another package
            while not (read.is_passed or read.is_ended):
                await read.more()
            return read.is_passed
        history = self.history
        view = await Step(lambda: history.view(max_messages=0), lambda: history.aview(max_messages=0))
        turn = read.first
        same = turn is not None and (turn.seq, turn.epoch, turn.op) == (position.seq, position.epoch, position.op)
        return same or view.epoch == position.epoch

    async def _go_on(self, read: ForwardReader, known: SummaryRecord | None, advance: Advance) -> tuple[int, bool]:
        """Summarize what follows a record; return how many messages that were, and whether all is done."""
        unfinished = await self.summaries.latest(self.place, unfinished=True)
        lead: list[BaseMessage] = [SystemMessage(text) for text in known.lead] if known else []
        count = 0
        while True:
            talk = await self._filled(read, known, lead)
            length = await self._length(talk, is_ended=read.is_ended)
            if not length:
                return count, await self._finish(known, unfinished)
            chunks = await self._chunks(talk, length)
            record = await self.summarizer.read(talk, chunks, self.config)
            end = chunks[-1].end or 0
            options: dict[str, Any] = {"turns": talk.turns(0, end), "unfinished": True}
            kept = await self.summaries.add(self.place, record, unfinished, **options)
            if kept is None:
                return count, False
            await check_after(self.summaries, self.place, kept, self.config)
            advance(len(set(talk.turns(0, end))))
            lead, known, unfinished = talk.lead, kept, kept
            read.take(len(talk.source) - len(talk.body) + end)
            count += end

    async def _filled(
        self, read: ForwardReader, known: SummaryRecord | None, lead: list[BaseMessage]
    ) -> SummarizedConversation:
        """Read until there is more than one call takes, beside what is kept, or the end."""
        enough = 2 * self.summarizer.capacity + self.summarizer.rules.keep[1]
        while not read.is_ended and sum(read.tokens) <= enough:
            await read.more()
        rest = read.rest()
        begin = 0
        if known is None and not lead:
            begin = next((i for i, m in enumerate(rest) if not isinstance(m, SystemMessage)), len(rest))
            lead = list(rest[:begin])
        return SummarizedConversation(self.place, lead, known, list(rest[begin:]), [], rest, native=True)

    async def _length(self, talk: SummarizedConversation, *, is_ended: bool) -> int:
        """Return how many messages are to be summarized: all, or at the end all but those that are kept."""
        if not talk.body:
            return 0
        if not is_ended:
            return len(talk.body)
        length = await self.summarizer.budget.counting(lambda: self._but_kept(talk))
        shown = await self.summaries.latest(self.place)
        if shown is None or shown.is_whole or shown.position is None:
            return length
        # A summary that leaves out messages may reach further, which is taken over only as a whole.
        return max(length, talk.length_of(shown))

    def _but_kept(self, talk: SummarizedConversation) -> int:
        budget, rules = self.summarizer.budget, self.summarizer.rules
        sizes = talk.sizes(budget.counter)
        kept = len(sizes) if rules.keep[0] == "messages" else sum(sizes)
        if kept <= rules.keep[1]:
            return 0
        head = budget.tokens([*talk.lead, summary_message("", "")]) + rules.summary_tokens
        return rules.split(talk.body, sizes, budget.usable(TurnContext()) - head, asked=True)

    def _chunks(self, talk: SummarizedConversation, length: int) -> Step[list[Chunk]]:
        def split() -> list[Chunk]:
            return self.summarizer.whole_chunks(talk.body[:length], talk.sizes(self.summarizer.budget.counter))

        return self.summarizer.budget.counting(split)

    async def _finish(self, known: SummaryRecord | None, unfinished: SummaryRecord | None) -> bool:
        """Show the summary that has caught up; return False if another one has taken its place meanwhile."""
        if known is None or unfinished is None or known.key != unfinished.key:
            return True
        shown = await self.summaries.latest(self.place)
        kept = await self.summaries.add(self.place, known, shown, moved=unfinished)
        return kept is not None

    async def messages(self, store: SummaryStore, messages: list[BaseMessage], advance: Advance) -> int:
        """Summarize a conversation of another package's history; return how many messages the model has read."""
        count = 0
        while True:
            talk = await read_list(store, messages, self.place, whole=True)
            length = await self.summarizer.budget.counting(partial(self._but_kept, talk))
            if not length:
                return count
            chunks = await self._chunks(talk, length)
            record = await self.summarizer.read(talk, chunks, self.config)
            await store.add(talk.place, record, talk.known)
            advance(chunks[-1].end or 0)
            count += chunks[-1].end or 0
