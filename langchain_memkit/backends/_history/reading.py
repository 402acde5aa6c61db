"""What the reading verbs of a history do, as flows."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage

from langchain_memkit._flow import Flow
from langchain_memkit.backends._history.rows import Page, Scope, TurnStore
from langchain_memkit.base import HistoryMessages, HistoryView, Position, TokenCounter, Turn, Window
from langchain_memkit.errors import ConfigurationError, MessageDecodeError
from langchain_memkit.messages.counting import counter_name
from langchain_memkit.messages.turns import cut_tail

logger = logging.getLogger("langchain_memkit")

FORWARD_PAGE = 200
BACKWARD_PAGE = 64
MAX_PAGE = 2000
MAX_SEQ = 2**63 - 1


class ReadingFlows:
    """The flows of `TurnHistory` that read; what it knows of its session is declared here."""

    session_id: str
    token_counter: TokenCounter | None
    _store: TurnStore
    _scope: Scope
    _on_corrupt: Literal["report", "raise"]

    def _view(self, max_messages: int | None, max_tokens: int | None, window: Window | None) -> Flow[HistoryView]:
        max_messages, max_tokens = check_limit(max_messages, "max_messages"), check_limit(max_tokens, "max_tokens")
        if window is not None:
            return (yield from self._window(window))
        head, turns = yield from self._newest(max_messages, max_tokens, sliced=True)
        tokens = [n for t in turns for n in t.tokens]
        kept = cut_tail(
            [m for t in turns for m in t.messages], tokens, max_messages=max_messages, max_tokens=max_tokens
        )
        owners = [t for t in turns for _ in t.messages]
        begin = len(tokens) - len(kept)
        return self._as_view(head, turns, kept, tokens[begin:], owners[begin:], None)

    def _window(self, window: Window) -> Flow[HistoryView]:
        """The rows that a preprocessor asked for. It cuts them itself, so none is cut here, but at `after`."""
        after = window.after
        if after is None:
            tokens = window.max_tokens
            if tokens and window.counter != counter_name(self.token_counter):
                tokens *= 4  # counted otherwise when stored (for Chinese, three times): rather too much than too little
            head, turns = yield from self._newest(window.max_messages, tokens)
            begin: int | None = 0
        else:
            head, turns = yield from self._newest(None, None, after=after)
            begin = _place_after(turns, after) if after.seq == 0 or after.epoch == head.epoch else None
        if begin is None:  # cleared or expired since: what was known of it is void
            return (yield from self._window(replace(window, after=None)))
        messages = [m for t in turns for m in t.messages][begin:]
        counts = [n for t in turns for n in t.tokens][begin:]
        owners = [t for t in turns for _ in t.messages][begin:]
        return self._as_view(head, turns, messages, counts, owners, window)

    def _newest(
        self, max_messages: int | None, max_tokens: int | None, *, sliced: bool = False, after: Position | None = None
    ) -> Flow[tuple[Page, list[Turn]]]:
        """The newest turns that hold at least so much, or all that come after a position; oldest first."""
        # a turn is rarely less than two messages, so half the limit is usually one page and all of it
        limit = BACKWARD_PAGE if max_messages is None else max_messages // 2 + 2
        turns: list[Turn] = []
        head: Page | None = None
        older: Any | None = None
        while True:
            wanted = max_messages - sum(len(t.messages) for t in turns) if sliced and max_messages is not None else None
            floor = after.seq if after else 0
            page = yield from self._store.page_back(self._scope, older, min(limit, MAX_PAGE), wanted, floor)
            head, older, limit = head or page, page.older, limit * 2
            turns += page.turns
            if (
                older is None
                or (max_messages is not None and _is_full(turns, max_messages))
                or (max_tokens is not None and sum(sum(t.tokens) for t in turns) > max_tokens)
                or (after is not None and any(_is_at(turn, after) for turn in page.turns))
            ):
                break
        turns.reverse()
        return head, turns

    def _as_view(
        self,
        head: Page,
        turns: list[Turn],
        messages: list[BaseMessage],
        tokens: list[int],
        owners: list[Turn],
        window: Window | None,
    ) -> HistoryView:
        problems = self._report(turns)
        known = HistoryMessages(messages, tokens, counter_name(self.token_counter), owners, head.epoch, window)
        return HistoryView(known, head.seq, head.epoch, head.read_at, tuple(problems))

    def _last_questions(self, n: int) -> Flow[list[str]]:
        limit = check_limit(n, "n") or 0
        questions: list[str] = []
        older: Any | None = None
        while len(questions) < limit:
            page = yield from self._store.page_back(self._scope, older, min(limit, MAX_PAGE), None)
            for turn in page.turns:
                questions += [m.text for m in reversed(turn.messages) if isinstance(m, HumanMessage)]
            older = page.older
            if older is None:
                break
        return questions[:limit]

    def _page_forward(self, after: Any | None, before_seq: int | None) -> Flow[tuple[list[Turn], Any | None]]:
        turns, after = yield from self._store.page_forward(self._scope, after, FORWARD_PAGE)
        if before_seq is not None:
            within = [turn for turn in turns if turn.seq < before_seq]
            turns, after = within, after if len(within) == len(turns) else None
        self._report(turns)
        return turns, after

    def _report(self, turns: Iterable[Turn]) -> list[str]:
        problems = [problem for turn in turns for problem in turn.problems]
        if problems and self._on_corrupt == "raise":
            msg = f"{len(problems)} unreadable in session {self.session_id!r}: {problems[0]}"
            raise MessageDecodeError(msg)
        if problems:
            shown = "; ".join(problems[:3])
            logger.warning("%d unreadable in session %r, left out: %s", len(problems), self.session_id, shown)
        return problems


def _is_at(turn: Turn, position: Position) -> bool:
    return turn.op == position.op if position.seq == 0 else turn.seq <= position.seq


def _place_after(turns: list[Turn], position: Position) -> int | None:
    """How many messages of these turns, oldest first, are up to the position; None if it is not among them."""
    begin = found = 0
    for turn in turns:
        ids = [m.id for m in turn.messages]
        if turn.op == position.op and turn.seq == position.seq:
            place = ids.index(position.message_id) + 1 if position.message_id in ids else 0
            found = begin + place
            if position.seq == 0:
                return found
        elif 0 < turn.seq < position.seq:
            found = begin + len(ids)
        begin += len(ids)
    return found if position.seq else None


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
