"""Parts 2 and 3 of `benchmarks.context`: running summaries, and what becomes of a fact in the first message."""

from __future__ import annotations

import itertools
import re
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from langchain.agents.middleware import SummarizationMiddleware
from langchain_classic.memory import ConversationSummaryBufferMemory
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langmem.short_term import RunningSummary, summarize_messages  # type: ignore[import-untyped]  # it has none
from pydantic import Field

from benchmarks.common import Row, say, spread
from benchmarks.conversations import FACT, MARKS, conversation_of, whole_messages
from langchain_memkit import SQLiteChatMessageHistory, create_history_preprocessor
from langchain_memkit.messages.tokens import approximate_tokens

BUDGET = 8_000
TRIGGER, KEEP = 6_000, 2_400  # memkit's defaults for that budget: 75%, and 40% of that
SUMMARY_WORDS = 120
FACT_MESSAGES = 366
FACT_WORDS = 40
MORE_TURNS = 200  # after a conversation was taken over: time for the second compaction


class Summariser(SimpleChatModel):
    """An ideal summariser: every fact of its prompt, then words spread over the prompt, 120 in all. Keeps its prompts.

    Its counting of tokens, which `ConversationSummaryBufferMemory` asks for, is the one all others use.
    """

    prompts: list[list[BaseMessage]] = Field(default_factory=list)
    spent: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "benchmark-summariser"

    def _call(self, messages: list[BaseMessage], *_: Any, **__: Any) -> str:
        begin = time.perf_counter()
        self.prompts.append(messages)
        text = text_of(messages)
        facts = [FACT] if FACT in text else []
        words = re.findall(r"\b[^\W\d_]{2,}", text)
        wanted = SUMMARY_WORDS - 2 - len(" ".join(facts).split())
        spread = [words[i * len(words) // wanted] for i in range(wanted)]
        number = len(self.prompts)
        summary = " ".join((f"s{number:05d}", *facts, *spread, f"e{number:05d}"))
        self.spent += time.perf_counter() - begin
        return summary

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        return approximate_tokens(messages)


def text_of(messages: Sequence[BaseMessage]) -> str:
    return "\n".join(str(message.text) for message in messages)


class System(Protocol):
    """A conversation with a running summary."""

    def take_over(self, messages: list[BaseMessage]) -> None:
        """Begins with a conversation that is there already."""

    def view(self, question: BaseMessage) -> list[BaseMessage]:
        """What the model is given for the next question, which it ends with."""

    def save(self, answer: list[BaseMessage]) -> None:
        """Adds what came after the question."""

    def log(self) -> list[BaseMessage]:
        """What it holds of the conversation itself."""


class Memkit:
    """`create_history_preprocessor(model, max_tokens=8000)`, piped by hand: given the whole list at each turn."""

    def __init__(self, model: Summariser) -> None:
        self._preprocessor = create_history_preprocessor(model, max_tokens=BUDGET)
        self._config: Any = {"configurable": {"session_id": "s1"}}
        self._log: list[BaseMessage] = []

    def take_over(self, messages: list[BaseMessage]) -> None:
        self._log = list(messages)

    def view(self, question: BaseMessage) -> list[BaseMessage]:
        self._log.append(question)
        return self._preprocessor.invoke(self._log, self._config)

    def save(self, answer: list[BaseMessage]) -> None:
        self._log += answer

    def log(self) -> list[BaseMessage]:
        return self._log


class Middleware:
    """LangChain's `SummarizationMiddleware` on the messages of an agent's state, merged by LangGraph's own reducer."""

    def __init__(self, model: Summariser, **options: Any) -> None:
        self._middleware: Any = SummarizationMiddleware(model, trigger=("tokens", TRIGGER), **options)
        self._state: Any = []

    def take_over(self, messages: list[BaseMessage]) -> None:
        self._merge(messages)

    def view(self, question: BaseMessage) -> list[BaseMessage]:
        self._merge([question])
        update = self._middleware.before_model({"messages": self._state}, Runtime())
        if update is not None:
            self._merge(update["messages"])
        return list(self._state)

    def save(self, answer: list[BaseMessage]) -> None:
        self._merge(answer)

    def _merge(self, messages: Any) -> None:
        self._state = add_messages(self._state, messages)

    def log(self) -> list[BaseMessage]:
        return list(self._state)


class Buffer:
    """langchain-classic's `ConversationSummaryBufferMemory` over a history.

    `save` is what `save_context` does, which takes one question and one answer only: add them, then prune.
    """

    def __init__(self, model: Summariser, history: Callable[[], BaseChatMessageHistory]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LangChain has deprecated both
            self._memory = ConversationSummaryBufferMemory(
                llm=model, chat_memory=history(), max_token_limit=TRIGGER, return_messages=True
            )
        self._question: list[BaseMessage] = []

    def take_over(self, messages: list[BaseMessage]) -> None:
        self._memory.chat_memory.add_messages(messages)
        self._prune()

    def view(self, question: BaseMessage) -> list[BaseMessage]:
        self._question = [question]
        return [*self._memory.load_memory_variables({})["history"], question]

    def save(self, answer: list[BaseMessage]) -> None:
        self._memory.chat_memory.add_messages([*self._question, *answer])
        self._prune()

    def _prune(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LangChain has deprecated the chain that it uses
            self._memory.prune()

    def log(self) -> list[BaseMessage]:
        return self._memory.chat_memory.messages


class LangMem:
    """langmem's `summarize_messages`, with the running summary that it returned before."""

    def __init__(self, model: Summariser, **options: Any) -> None:
        self._model = model
        self._options = options
        self._log: list[Any] = []
        self._running: RunningSummary | None = None

    def take_over(self, messages: list[BaseMessage]) -> None:
        self._log = list(messages)

    def view(self, question: BaseMessage) -> list[BaseMessage]:
        self._log.append(question)
        result = summarize_messages(
            self._log, running_summary=self._running, model=self._model, max_tokens=BUDGET, **self._options
        )
        self._running = result.running_summary
        return list(result.messages)

    def save(self, answer: list[BaseMessage]) -> None:
        self._log += answer

    def log(self) -> list[BaseMessage]:
        return self._log


Maker = Callable[[Summariser, Path], System]
SYSTEMS: dict[str, Maker] = {
    "memkit": lambda model, _: Memkit(model),
    "middleware": lambda model, _: Middleware(model),
    "middleware keep=2400": lambda model, _: Middleware(model, keep=("tokens", KEEP)),
    "middleware untrimmed": lambda model, _: Middleware(model, keep=("tokens", KEEP), trim_tokens_to_summarize=None),
    "buffer, memory": lambda model, _: Buffer(model, InMemoryChatMessageHistory),
    "buffer, store": lambda model, folder: Buffer(
        model, lambda: SQLiteChatMessageHistory(Path(folder, "chat.db"), str(uuid4()))
    ),
    "langmem": lambda model, _: LangMem(model),
    "langmem 6000": lambda model, _: LangMem(model, max_tokens_before_summary=TRIGGER),
}


class Observed:
    """A system with all that is noted about it, turn by turn; nothing of that is in its time."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.model = Summariser()
        self.system = SYSTEMS[name](self.model, folder)
        self.times: list[float] = []
        self.written: set[int] = set()
        self.last_view: list[BaseMessage] = []
        self.views: list[int] = []  # tokens
        self.compactions: list[tuple[int, int]] = []  # prompts before and after
        self.counts: Counter[str] = Counter()
        self.first_gone: set[int] = set()  # from the view, at the first compaction
        self.gone_unseen: set[int] = set()  # neither in the last view nor ever given to the summariser whole
        self._marks: Counter[tuple[str, str]] = Counter()  # in how many prompts
        self._looked_at = 0

    def take_over(self, messages: list[BaseMessage]) -> None:
        self.written |= whole_messages(text_of(messages))
        self._timed(lambda: self.system.take_over(list(messages)))
        self._look_at_prompts()

    def turn(self, turn: list[BaseMessage]) -> None:
        """One turn; then everything is looked at."""
        self.written |= whole_messages(text_of(turn[:1]))
        shown: list[list[BaseMessage]] = []
        spent = self._timed(lambda: shown.append(self.system.view(turn[0])))
        view = shown[0]
        self._look_at_prompts()
        self._look_at_view(view, turn[0])
        self.times.append(spent + self._timed(lambda: self.system.save(turn[1:])))
        self.written |= whole_messages(text_of(turn[1:]))
        self._look_at_prompts()

    def _timed(self, function: Callable[[], object]) -> float:
        """Seconds, without those of the summariser."""
        before = self.model.spent
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin - (self.model.spent - before)

    def _look_at_prompts(self) -> None:
        new = self.model.prompts[self._looked_at :]
        for prompt in new:
            self._marks.update(set(MARKS.findall(text_of(prompt))))
            self.counts["input"] += approximate_tokens(prompt)
            self.counts["broken_prompts"] += broken_pairs(prompt)
        if new:
            self.compactions.append((self._looked_at, len(self.model.prompts)))
        self._looked_at = len(self.model.prompts)

    def _look_at_view(self, view: list[BaseMessage], question: BaseMessage) -> None:
        self.last_view = view
        self.views.append(approximate_tokens(view))
        self.counts["broken_views"] += broken_pairs(view)
        self.counts["without_question"] += all(message.id != question.id for message in view)
        self.counts["over_budget"] += self.views[-1] > BUDGET
        in_view = whole_messages(text_of(view))
        self.gone_unseen = self.written - self.seen() - in_view
        self.counts["with_gaps"] += bool(self.gone_unseen)
        if self.compactions and not self.first_gone:
            self.first_gone = self.written - in_view

    def given_in(self, compaction: tuple[int, int]) -> set[int]:
        """Messages that the prompts of one compaction hold whole."""
        return whole_messages("\n".join(text_of(prompt) for prompt in self.model.prompts[slice(*compaction)]))

    def seen(self) -> set[int]:
        """Messages of which the summariser was given the beginning and the end."""
        return {int(n) for letter, n in self._marks if letter == "a" and ("z", n) in self._marks}

    def twice(self) -> int:
        """Messages that the summariser was given in more than one prompt."""
        return sum(times > 1 for (letter, _), times in self._marks.items() if letter == "a")

    def largest_prompt(self) -> int:
        return max((approximate_tokens(prompt) for prompt in self.model.prompts), default=0)


def broken_pairs(messages: Sequence[BaseMessage]) -> bool:
    """Whether a provider would refuse it: a call without its result directly after it, or a result without its call."""
    waiting: set[str | None] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                return True
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            return True
        if isinstance(message, AIMessage):
            waiting = {call["id"] for call in message.tool_calls}
    return bool(waiting)


def conversations(words: Sequence[int], turns: int, budget: float, folder: Path) -> Iterator[Row]:
    """Part 2: a row per length of message and system; the systems take turns, turn by turn, in alternating order.

    Args:
        words: Of each message.
        turns: Of each conversation.
        budget: Seconds after which a system takes no part in further turns; its row says how many it made.
        folder: For files.
    """
    for length in words:
        say(f"summaries: {turns} turns with messages of {length} words")
        systems = [Observed(name, folder) for name in SYSTEMS]
        said: dict[str, list[BaseMessage]] = {observed.name: [] for observed in systems}
        for number, turn in enumerate(itertools.islice(conversation_of(length), turns)):
            for observed in systems if number % 2 == 0 else reversed(systems):
                if sum(observed.times) < budget:
                    observed.turn(turn)
                    said[observed.name] += turn
        for observed in systems:
            yield figures(observed, said[observed.name], length, turns)


def figures(observed: Observed, said: list[BaseMessage], words: int, turns: int) -> Row:
    """A row of part 2."""
    tokens, gone = approximate_tokens(said), observed.gone_unseen
    row = {
        "measurement": "summaries",
        "words": words,
        "system": observed.name,
        "turns": len(observed.times),
        "messages": len(said),
        "tokens": tokens,
        "calls": len(observed.model.prompts),
        "input_tokens": observed.counts["input"],
        "input_share": round(observed.counts["input"] / tokens, 3),
        "largest_prompt": observed.largest_prompt(),
        "view_tokens_median": round(statistics.median(observed.views)),
        "view_tokens_min": min(observed.views[len(observed.views) // 2 :]),  # the first half begins with nothing
        "view_tokens_max": max(observed.views),
        "seen_or_in_view": round(1 - len(gone) / len(observed.written), 4),
        "gone_unseen": len(gone),
        "given_twice": observed.twice(),
        **{name: observed.counts[name] for name in COUNTED},
        **spread(observed.times),
    }
    if len(observed.times) < turns:
        row["stopped_after_seconds"] = round(sum(observed.times), 1)
    return row


COUNTED = ("with_gaps", "broken_views", "broken_prompts", "without_question", "over_budget")


def facts(folder: Path) -> Iterator[Row]:
    """Part 3: a fact in message 0 of 366; a conversation that grew turn by turn, and one that was taken over whole."""
    for scenario in ("grown", "taken over"):
        say(f"facts: a conversation of {FACT_MESSAGES} messages, {scenario}")
        for name in SYSTEMS:
            observed = Observed(name, folder)
            turns = conversation_of(FACT_WORDS, tools=False, fact=True)
            first = list(itertools.islice(turns, FACT_MESSAGES // 2))
            if scenario == "grown":
                for turn in first:
                    observed.turn(turn)
            else:
                observed.take_over([message for turn in first for message in turn])
                for turn in itertools.islice(turns, MORE_TURNS):
                    observed.turn(turn)
                    if len(observed.compactions) >= 2:
                        break
            yield fate(observed, scenario)


def fate(observed: Observed, scenario: str) -> Row:
    """A row of part 3: where the fact was found."""
    prompts, (first, second) = observed.model.prompts, observed.compactions[:2]
    summary = f"{first[1]:05d}"  # the last one that the first compaction wrote
    marks = set(MARKS.findall(text_of(prompts[second[0]])))
    return {
        "measurement": "facts",
        "scenario": scenario,
        "system": observed.name,
        "messages": len(observed.written),
        "compactions": len(observed.compactions),
        "calls": len(prompts),
        "first_gone": len(observed.first_gone),
        "first_gone_given": len(observed.first_gone & observed.given_in(first)),
        "fact_in_first_input": any(FACT in text_of(prompt) for prompt in prompts[slice(*first)]),
        "first_summary_in_second_prompt": {("s", summary), ("e", summary)} <= marks,
        "fact_in_second_prompt": FACT in text_of(prompts[second[0]]),
        "fact_in_last_view": FACT in text_of(observed.last_view),
        "gone_unseen": len(observed.gone_unseen),
        "given_twice": observed.twice(),
        "largest_prompt": observed.largest_prompt(),
        "view_tokens_max": max(observed.views),
        "message_0_in_its_log": 0 in whole_messages(text_of(observed.system.log())),
    }
