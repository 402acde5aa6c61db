"""Pipeline that makes a question standalone: the gate, then the model with validation, then weighted terms."""

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

EACH_RUN = ("turn_id", "run_id", "checkpoint_id", "checkpoint_ns")  # config that differs in every run: not a cache key
ENDS = ("finish_reason", "stop_reason", "done_reason")  # why an answer ended: OpenAI, Google; Anthropic; Ollama
UNSUPPORTED = {400, 404, 405, 415, 422, 501}  # HTTP status codes of servers that cannot do structured output


@dataclass(frozen=True)
class StandaloneQuestion:
    """The question that is searched for, and how it came about.

    Attributes:
        question: The question to search for; the original, byte for byte, unless it was rewritten. With weighted terms:
            the question followed by the terms, meant for retrievers, not for people.
        original: The question as it was asked.
        rewritten: Whether the two differ.
        by: The deciding step: `"original"` (there was no history), `"gate"`, `"model"`, `"weighted"`, `"off"`.
        reason: The reason, in a few words.
        seconds: How long the decision took.

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
    """LRU cache of accepted rewrites for one model and prompt, and of how that model is called. Thread-safe.

    `get` and `put` take `of`, the pair of model and prompt: a change of either empties the cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, str] = OrderedDict()
        self._of: tuple[Any, Any] = (None, None)
        self._structured: tuple[Any, Runnable[Any, Any] | None] = (None, None)

    def __reduce__(self) -> tuple[type[Rewrites], tuple[()]]:
        """Pickle and deep-copy as an empty cache: the lock cannot be copied."""
        return Rewrites, ()

    def get(self, key: Hashable, of: tuple[Any, Any]) -> str | None:
        """Look up a rewrite; empty the cache first if it was filled with another model or prompt."""
        with self._lock:
            if not self._is(of):
                self._of = of
                self._kept.clear()
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, rewrite: str, size: int, of: tuple[Any, Any]) -> None:
        """Add a rewrite and evict the least recently used beyond `size`.

        Does nothing if model or prompt were changed while the rewrite was made.
        """
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
        """Return the model with structured output of the schema (made once); None if it does not support that."""
        known, chain = self._structured
        if known is not llm:
            chain = None
            if isinstance(llm, BaseChatModel):
                try:
                    chain = llm.with_structured_output(SCHEMA, include_raw=True)
                except Exception as error:  # noqa: BLE001  # models raise anything for what they do not support
                    logger.debug("no structured output: %s", type(error).__name__)
            self._structured = (llm, chain)
        return chain

    def only_text(self, llm: Runnable[Any, Any]) -> None:
        """Call the model for plain text from now on."""
        self._structured = (llm, None)


@dataclass(frozen=True)
class Condenser:
    """Makes questions standalone; `CondenseQuestionRetriever` documents the fields."""

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
        """Make a question standalone. Raises configuration errors only: model failures fall back to weighted terms.

        Args:
            question: The question as it was asked.
            turns: The turns before it, oldest first.
            strength: How strongly the conversation is added if terms are weighted.
            config: Config of the run.
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
            except Exception as error:  # noqa: BLE001  # whatever a model raises must not fail the search
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
        except Exception as error:  # noqa: BLE001  # a gate only saves work: it must not fail the search
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
        # The key holds all that the model's answer depends on: the question, the turns that the prompt shows, and the
        # run's config, since a configurable model may differ by session.
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
            if same_question(rewrite, question):  # keep the original, byte for byte
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
        """Call the model and return the question in its answer.

        Structured output is tried first, with the default prompt. If the server turns out not to support it, the model
        is asked again for plain text, within the same timeout, and not asked for structured output any more.
        """
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
    """Return the run's configurable values, such as the session id: a model may answer differently by them."""
    configurable = config.get("configurable", {})
    return frozenset((k, str(v)) for k, v in configurable.items() if k not in EACH_RUN and isinstance(v, (str, int)))


class _RefusedError(Exception):
    """The model's rewrite is rejected."""


def _failure(error: Exception) -> str:
    if isinstance(error, _RefusedError):
        return f"the rewrite was refused: {error}"
    if isinstance(error, TimeoutError):
        return "the model took too long"
    return f"the model failed: {type(error).__name__}"


def _unwrapped(result: Any) -> Any:
    """Return the parsed question of a call with `include_raw`, or the raw message if nothing was parsed."""
    if not isinstance(result, dict):
        return result
    raw, parsed = result.get("raw"), result.get("parsed")
    if not (isinstance(parsed, dict) and isinstance(parsed.get("question"), str)):
        return raw
    _check_end(raw)  # the parser completes JSON that was cut off, so a truncated question would pass
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
    """Raise if the answer was cut off at the model's token limit."""
    told = getattr(answer, "response_metadata", {})
    if any(str(told.get(key, "")).lower() in ("length", "max_tokens") for key in ENDS):
        raise _RefusedError("it was cut off")
