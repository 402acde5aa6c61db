"""A question made to stand alone: the gate, then the model, whose answer is checked, then the weighted terms."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs

from langchain_memkit._sync import call_user_function, internal_call, model_call
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.retrievers.asking import SCHEMA, QuestionPrompt, question_in
from langchain_memkit.retrievers.checking import same_question
from langchain_memkit.retrievers.contextualize import Strength, Turn, expanded
from langchain_memkit.retrievers.gate import stands_alone

__all__ = ["Check", "Condenser", "Gate", "Mode", "Rewrites", "StandaloneQuestion"]

logger = logging.getLogger("langchain_memkit")

Mode: TypeAlias = Literal["auto", "llm", "weighted", "off"]
Gate: TypeAlias = Callable[[str, Sequence[Turn]], Any]
"""`gate(question, history)`, plain or async: whether the question stands alone, as a bool or with a reason."""
Check: TypeAlias = Callable[[str, str, Sequence[str]], str | None]
"""`check(question, rewrite, earlier questions)`: why a rewrite is not taken, in a few words; None if it is."""

EACH_RUN = ("turn_id", "run_id", "checkpoint_id", "checkpoint_ns")  # what is another in every run
ENDS = ("finish_reason", "stop_reason", "done_reason")  # why an answer ends: OpenAI, Google; Anthropic; Ollama
UNSUPPORTED = {400, 404, 405, 415, 422, 501}  # what servers say to a request for structured output that they cannot do


@dataclass(frozen=True)
class StandaloneQuestion:
    """What a question became, and why.

    Attributes:
        question: What is searched for; the original one, byte for byte, unless it was rewritten. By weighted terms: the
            question with the terms, for retrievers and for nobody to read.
        original: As it was asked.
        rewritten: Whether the two differ.
        by: Who decided: `"original"` (nothing was said before), `"gate"`, `"model"`, `"weighted"`, `"off"`.
        reason: In a few words.
        seconds: How long it took.

    Example:
        >>> found = StandaloneQuestion("How old is Macron?", "How old is he?", True, "model", "the model rewrote it")
        >>> found.question, found.rewritten
        ('How old is Macron?', True)
    """

    question: str
    original: str
    rewritten: bool
    by: Literal["original", "gate", "model", "weighted", "off"]
    reason: str
    seconds: float = 0.0


class Rewrites:
    """The last rewrites that were taken, and how the model is called; of one model and prompt. Safe with threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, str] = OrderedDict()
        self._of: tuple[Any, Any] = (None, None)
        self._structured: tuple[Any, Runnable[Any, Any] | None] = (None, None)

    def __reduce__(self) -> tuple[type[Rewrites], tuple[()]]:
        """A copy that is pickled, or goes deep, begins empty."""
        return Rewrites, ()

    def get(self, key: Hashable, of: tuple[Any, Any]) -> str | None:
        """What a question was rewritten to; forgets all if it was by another model, or by another prompt."""
        with self._lock:
            if not self._is(of):
                self._of = of
                self._kept.clear()
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, rewrite: str, size: int, of: tuple[Any, Any]) -> None:
        """Keeps a rewrite, and of all of them the `size` that were used last."""
        with self._lock:
            if not self._is(of):
                return
            self._kept[key] = rewrite
            self._kept.move_to_end(key)
            while len(self._kept) > size:
                self._kept.popitem(last=False)

    def _is(self, of: tuple[Any, Any]) -> bool:
        return all(mine is theirs for mine, theirs in zip(self._of, of, strict=True))

    def structured(self, llm: Runnable[Any, Any]) -> Runnable[Any, Any] | None:
        """The model made to return the schema; None if it cannot."""
        known, chain = self._structured
        if known is not llm:
            chain = None
            if isinstance(llm, BaseChatModel):
                try:
                    chain = llm.with_structured_output(SCHEMA, include_raw=True)
                except Exception as error:  # noqa: BLE001  # whatever a model says to what it cannot do
                    logger.debug("no structured output: %s", type(error).__name__)
            self._structured = (llm, chain)
        return chain

    def only_text(self, llm: Runnable[Any, Any]) -> None:
        """From now on the model is asked for plain text."""
        self._structured = (llm, None)


@dataclass(frozen=True)
class Condenser:
    """Makes questions stand alone; see `CondenseQuestionRetriever` for what the fields mean."""

    llm: Runnable[Any, Any] | None
    mode: Mode
    prompt: QuestionPrompt
    n: int
    max_tokens: int
    gate: Gate | None
    check: Check | None
    timeout: float | None
    cache_size: int
    rewrites: Rewrites

    async def condense(
        self, question: str, turns: Sequence[Turn], strength: Strength, config: RunnableConfig
    ) -> StandaloneQuestion:
        """What is to be searched for. Only errors of the caller's set-up are raised.

        Args:
            question: As it was asked.
            turns: What was said before, oldest first.
            strength: Of the weighted terms.
            config: Of the run.
        """
        begun = time.perf_counter()
        found = await self._condense(question, turns, strength, config)
        return replace(found, seconds=time.perf_counter() - begun)

    async def _condense(
        self, question: str, turns: Sequence[Turn], strength: Strength, config: RunnableConfig
    ) -> StandaloneQuestion:
        if self.mode == "off":
            return StandaloneQuestion(question, question, False, "off", "it is switched off")
        if not turns or not question.strip():
            reason = "nothing was said before" if question.strip() else "nothing is asked"
            return StandaloneQuestion(question, question, False, "original", reason)
        why = "there is no gate"
        if self.mode != "llm" and self.gate is not None:
            alone, why = await self._gate(self.gate, question, turns)
            if alone:
                return StandaloneQuestion(question, question, False, "gate", why)
        if self.mode != "weighted" and self.llm is not None:
            try:
                return await self._rewrite(self.llm, question, turns, config)
            except Exception as error:  # noqa: BLE001  # whatever a model raises must not cost the search
                why = _failure(error)
                told = "it was refused" if isinstance(error, _RefusedError) else why  # a check's words may quote
                logger.warning("a question was not rewritten, its terms are weighted instead: %s", told)
        text = expanded(question, turns, strength)
        return StandaloneQuestion(text, question, text != question, "weighted", why)

    async def _gate(self, gate: Gate, question: str, turns: Sequence[Turn]) -> tuple[bool, str]:
        if gate is stands_alone:
            return stands_alone(question, turns)
        try:
            said = await call_user_function(gate, question, turns, name="gate")
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # a gate is there to save work, not to cost the search
            logger.warning(
                "the gate failed, so the question is taken to need the conversation: %s", type(error).__name__
            )
            return False, f"the gate failed: {type(error).__name__}"
        if isinstance(said, tuple) and len(said) == 2:
            return bool(said[0]), str(said[1])
        return bool(said), "the gate says so"

    async def _rewrite(
        self, llm: Runnable[Any, Any], question: str, turns: Sequence[Turn], config: RunnableConfig
    ) -> StandaloneQuestion:
        recent = self.prompt.recent(turns, self.n, self.max_tokens)
        key = (question, recent, _of_run(config))
        reason = "the model rewrote it before"
        of = (llm, self.prompt.given)
        rewrite = self.rewrites.get(key, of) if self.cache_size else None
        if rewrite is None:
            rewrite = await self._asked(llm, self.prompt.build(question, recent), config)
            reason = "the model rewrote it"
            if problem := self._problem(question, rewrite, [asked for asked, _ in turns]):
                raise _RefusedError(problem)
            if same_question(rewrite, question):
                rewrite = question
            if self.cache_size:
                self.rewrites.put(key, rewrite, self.cache_size, of)
        if rewrite == question:
            return StandaloneQuestion(question, question, False, "model", "the model says that it stands alone")
        return StandaloneQuestion(rewrite, question, True, "model", reason)

    def _problem(self, question: str, rewrite: str, earlier: list[str]) -> str | None:
        if not rewrite.strip():
            return "it is empty"
        return None if self.check is None else self.check(question, rewrite, earlier)

    async def _asked(self, llm: Runnable[Any, Any], prompt: Any, config: RunnableConfig) -> str:
        """The question in the model's answer; plain text where structured output is offered but not done."""
        call = merge_configs(config, internal_call("condense_question", "question"))
        until = None if self.timeout is None else time.monotonic() + self.timeout
        structured = self.rewrites.structured(llm) if self.prompt.given is None else None
        if structured is not None:
            try:
                return _question(_unwrapped(await model_call(structured, prompt, call, self.timeout)))
            except Exception as error:
                if not (getattr(error, "status_code", None) in UNSUPPORTED or isinstance(error, NotImplementedError)):
                    raise
                self.rewrites.only_text(llm)
        left = None if until is None else max(0.0, until - time.monotonic())
        return _question(await model_call(llm, prompt, call, left))


def _of_run(config: RunnableConfig) -> frozenset[tuple[str, str]]:
    """What a run is configured with, the session among it: a model may answer by it."""
    configurable = config.get("configurable", {})
    return frozenset((k, str(v)) for k, v in configurable.items() if k not in EACH_RUN and isinstance(v, (str, int)))


class _RefusedError(Exception):
    """What the model returned is not taken."""


def _failure(error: Exception) -> str:
    if isinstance(error, _RefusedError):
        return f"the rewrite was refused: {error}"
    if isinstance(error, TimeoutError):
        return "the model took too long"
    return f"the model failed: {type(error).__name__}"


def _unwrapped(result: Any) -> Any:
    """What a call with `include_raw` says: the question, or what was written instead of one."""
    if not isinstance(result, dict):
        return result
    raw, parsed = result.get("raw"), result.get("parsed")
    if not (isinstance(parsed, dict) and isinstance(parsed.get("question"), str)):
        return raw
    _check_end(raw)  # half of the JSON is read as if it were whole
    return parsed["question"]


def _question(answer: Any) -> str:
    if not isinstance(answer, (str, BaseMessage)):
        msg = f"the model must return a message or text, not {type(answer).__name__}"
        raise TypeError(msg)
    text = str(answer.text if isinstance(answer, BaseMessage) else answer).strip()
    if "\n" not in text:
        _check_end(answer)
    return question_in(text)


def _check_end(answer: Any) -> None:
    """Refuses what was cut off at the model's limit of tokens."""
    told = getattr(answer, "response_metadata", {})
    if any(str(told.get(key, "")).lower() in ("length", "max_tokens") for key in ENDS):
        raise _RefusedError("it was cut off")
