"""What the reading verbs of a history do, as flows."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from langchain_core.messages import HumanMessage

from langchain_memkit.backends._history.rows import Enough, Page, Scope, TurnStore
from langchain_memkit.base import HistoryMessages, HistoryView, Position, TokenCounter, Turn, Window
from langchain_memkit.errors import ConfigurationError, MessageDecodeError
from langchain_memkit.messages.authors import is_user_message
from langchain_memkit.messages.counting import count_tokens, counter_name
from langchain_memkit.messages.turns import cut_tail

logger = logging.getLogger("langchain_memkit")

FORWARD_PAGE = 200
BACKWARD_PAGE = 64
MAX_PAGE = 2000
MAX_SEQ = 2**63 - 1
MOST_SAID = 10_000

_said: set[tuple[str, str]] = set()  # conversations without a user that were met, by one of their turns


class ReadingFlows:
    """The flows of `TurnHistory` that read; what it knows of its session is declared here."""

    token_counter: TokenCounter | None
    _store: TurnStore
    _scope: Scope
    _on_corrupt: Literal["report", "raise"]

    async def _view(self, max_messages: int | None, max_tokens: int | None, window: Window | None) -> HistoryView:
        max_messages, max_tokens = check_limit(max_messages, "max_messages"), check_limit(max_tokens, "max_tokens")
        if window is not None:
            return await self._window(window)
        counter = self.token_counter
        head, turns = await self._newest(max_messages, max_tokens, sliced=True, counter=counter)
        tokens = [n for t in turns for n in t.tokens]
        messages = [m for t in turns for m in t.messages]
        kept = cut_tail(messages, tokens, max_messages=max_messages, max_tokens=max_tokens)
        return self._as_view(head, turns, len(messages) - len(kept), None, counter)

    async def _window(self, window: Window) -> HistoryView:
        """The rows that a preprocessor asked for. It cuts them itself, so none is cut here, but at `after`."""
        after, counter = window.after, self.token_counter
        if after is None:
            counter = window.counter
            head, turns = await self._newest(window.max_messages, window.max_tokens, counter=counter)
            begin: int | None = 0
        else:
            head, turns = await self._newest(None, None, after=after)
            begin = _place_after(turns, after) if after.seq == 0 or after.epoch == head.epoch else None
        if begin is None:  # cleared or expired since: what was known of it is void
            return await self._window(replace(window, after=None))
        return self._as_view(head, turns, begin, window, counter)

    async def _newest(
        self,
        max_messages: int | None,
        max_tokens: int | None,
        *,
        sliced: bool = False,
        after: Position | None = None,
        counter: TokenCounter | None = None,
    ) -> tuple[Page, list[Turn]]:
        """The newest turns that hold at least so much, or all that come after a position; oldest first."""
        # a turn is rarely less than two messages, so half the limit is usually one page and all of it
        limit = BACKWARD_PAGE if max_messages is None else max_messages // 2 + 2
        recount = max_tokens is not None and not same_counter(counter, self.token_counter)
        turns: list[Turn] = []
        head: Page | None = None
        older: Any | None = None
        messages = tokens = 0
        while True:
            enough = Enough(
                max_messages - messages if sliced and max_messages is not None else None,
                max_tokens - tokens if max_tokens is not None and not recount else None,
            )
            floor = after.seq if after else 0
            page = await self._store.page_back(self._scope, older, min(limit, MAX_PAGE), enough, floor)
            head, older, limit = head or page, page.older, limit * 2
            found = [replace(t, tokens=count_tokens(t.messages, counter)) if recount else t for t in page.turns]
            turns += found
            messages += sum(len(t.messages) for t in found)
            tokens += sum(sum(t.tokens) for t in found)
            if (
                older is None
                or (max_messages is not None and _is_full(turns, max_messages))
                or (max_tokens is not None and tokens > max_tokens)
                or (after is not None and any(_is_at(turn, after) for turn in found))
            ):
                break
        turns.reverse()
        if not turns and not head.seq and after is None and self._scope.user_id:
            await self._say_whose_rows_are_there()
        return head, turns

    async def _say_whose_rows_are_there(self) -> None:
        """An app that has begun to pass a `user_id` finds its old conversations empty: said where one is met."""
        if self._store.layout != "turns":
            return
        name = await self._store.unowned(self._scope.session_id)
        if name is None:
            return
        found = (self._scope.session_id, name)
        if found not in _said:
            if len(_said) >= MOST_SAID:
                _said.clear()
            _said.add(found)
            logger.warning(
                "session %r of user %r is empty, but there is a conversation of the same session_id that was stored "
                "without a user_id, which no user is shown. langchain_memkit.migrate.migrate(histories, histories, "
                "user_id=...) copies all such conversations to one user; without user_id they are read as before",
                self._scope.session_id,
                self._scope.user_id,
            )

    def _as_view(
        self, head: Page, turns: list[Turn], begin: int, window: Window | None, counter: TokenCounter | None
    ) -> HistoryView:
        """What was read, without the first `begin` messages of it."""
        problems = self._report(turns)
        known = HistoryMessages(
            [m for t in turns for m in t.messages][begin:],
            [n for t in turns for n in t.tokens][begin:],
            counter_name(counter),
            [t for t in turns for _ in t.messages][begin:],
            head.epoch,
            window,
        )
        return HistoryView(known, head.seq, head.epoch, head.read_at, tuple(problems), head.head)

    async def _last_questions(self, n: int) -> list[str]:
        limit = check_limit(n, "n") or 0
        questions: list[str] = []
        older: Any | None = None
        while len(questions) < limit:
            page = await self._store.page_back(self._scope, older, min(limit, MAX_PAGE), Enough())
            for turn in page.turns:
                questions += [m.text for m in reversed(turn.messages) if is_user_message(m)]
            older = page.older
            if older is None:
                break
        return questions[:limit]

    async def _page_forward(
        self, after: Any | None, before_seq: int | None, *, hidden: bool = False
    ) -> tuple[list[Turn], Any | None]:
        turns, after = await self._store.page_forward(self._scope, after, FORWARD_PAGE, hidden=hidden)
        if before_seq is not None:
            within = [turn for turn in turns if turn.seq < before_seq]
            turns, after = within, after if len(within) == len(turns) else None
        self._report(turns)
        return turns, after

    def _report(self, turns: Iterable[Turn]) -> list[str]:
        problems = [problem for turn in turns for problem in turn.problems]
        if problems and self._on_corrupt == "raise":
            msg = f"{len(problems)} unreadable in session {self._scope.session_id!r}: {problems[0]}"
            raise MessageDecodeError(msg)
        if problems:
            shown = "; ".join(problems[:3])
            logger.warning("%d unreadable in session %r, left out: %s", len(problems), self._scope.session_id, shown)
        return problems


def same_counter(one: TokenCounter | None, other: TokenCounter | None) -> bool:
    """Whether counts of one are counts of the other."""
    name = counter_name(one)
    return one is other or (name == counter_name(other) and "<" not in name)


def _is_at(turn: Turn, position: Position) -> bool:
    if position.seq:
        return turn.seq <= position.seq
    return turn.op == position.op and position.message_id in [m.id for m in turn.messages]


def _place_after(turns: list[Turn], position: Position) -> int | None:
    """How many messages of these turns, oldest first, are up to the position; None if it is not among them."""
    begin = found = 0
    is_known = position.seq > 0
    for turn in turns:
        ids = [m.id for m in turn.messages]
        if turn.op == position.op and turn.seq == position.seq:
            if position.message_id in ids:
                found = begin + ids.index(position.message_id) + 1
            elif not is_known:  # rows of langchain-mongodb that we wrote: a message each, and one op for the turn
                found = begin
            is_known = True
        elif turn.seq < position.seq:
            found = begin + len(ids)
        begin += len(ids)
    return found if is_known else None


def _is_full(turns: list[Turn], max_messages: int) -> bool:
    """Whether these turns, newest first, settle what the newest messages are, cut at a turn."""
    count = sum(len(turn.messages) for turn in turns)
    if count != max_messages:
        return count > max_messages
    # full to the message: nothing older is needed if the oldest row begins a turn, as rows of chains do
    return max_messages > 0 and isinstance(turns[-1].messages[0] if turns[-1].messages else None, HumanMessage)


def check_limit(value: Any, name: str) -> int | None:
    """A limit or position that makes sense, or an error that names the argument."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SEQ:
        msg = f"{name} must be a whole number from 0, or None for no limit; got {value!r:.50}"
        raise ConfigurationError(msg)
    return value


def check_texts(ids: Iterable[Any]) -> None:
    """Message ids are texts: anything else could be an operator by the time it reaches a filter."""
    for value in ids:
        if not isinstance(value, str):
            msg = f"message ids must be str, not {type(value).__name__}"
            raise TypeError(msg)
