"""What the reading verbs of a history do, as flows."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Literal

from langchain_core.messages import HumanMessage

from langchain_memkit._flow import Flow
from langchain_memkit.backends._history.rows import Page, Scope, TurnStore
from langchain_memkit.base import HistoryView, Turn
from langchain_memkit.errors import ConfigurationError, MessageDecodeError
from langchain_memkit.messages.turns import cut_tail

logger = logging.getLogger("langchain_memkit")

FORWARD_PAGE = 200
BACKWARD_PAGE = 64
MAX_PAGE = 2000
MAX_SEQ = 2**63 - 1


class ReadingFlows:
    """The flows of `TurnHistory` that read; what it knows of its session is declared here."""

    session_id: str
    _store: TurnStore
    _scope: Scope
    _on_corrupt: Literal["report", "raise"]

    def _view(self, max_messages: int | None, max_tokens: int | None) -> Flow[HistoryView]:
        max_messages, max_tokens = check_limit(max_messages, "max_messages"), check_limit(max_tokens, "max_tokens")
        # a turn is rarely less than two messages, so half the limit is usually one page and all of it
        limit = BACKWARD_PAGE if max_messages is None else max_messages // 2 + 2
        turns: list[Turn] = []
        head: Page | None = None
        older: Any | None = None
        while True:
            wanted = None if max_messages is None else max_messages - sum(len(t.messages) for t in turns)
            page = yield from self._store.page_back(self._scope, older, min(limit, MAX_PAGE), wanted)
            head, older, limit = head or page, page.older, limit * 2
            turns += page.turns
            if (
                older is None
                or (max_messages is not None and _is_full(turns, max_messages))
                or (max_tokens is not None and sum(sum(t.tokens) for t in turns) > max_tokens)
            ):
                break
        turns.reverse()
        problems = self._report(turns)
        messages = [m for t in turns for m in t.messages]
        tokens = [n for t in turns for n in t.tokens]
        kept = cut_tail(messages, tokens, max_messages=max_messages, max_tokens=max_tokens)
        return HistoryView(kept, head.seq, head.epoch, head.read_at, tuple(problems))

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
