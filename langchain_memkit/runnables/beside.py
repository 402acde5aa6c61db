"""What a call of a model holds beside the conversation: told before the call where it is known, and measured after."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase

from langchain_memkit._lru import LRUCache
from langchain_memkit.base import HistoryMessages, Messages, TurnContext
from langchain_memkit.messages.tokens import count_schema_tokens, tool_schemas
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.runnables.wiring import first_prompt

logger = logging.getLogger("langchain_memkit")


@dataclass(frozen=True, slots=True)
class ChainFrame:
    """What a chain puts around the conversation, as far as its steps tell it."""

    prompt: BasePromptTemplate[Any] | None  # that takes the chain's own input; None if its text cannot be known
    schemas: str | None  # of the tools that are bound to its model; None if no model is found
    model: object  # that model

    @classmethod
    def of(cls, runnable: object) -> Self:
        """Look at the steps of a chain."""
        prompt, added = first_prompt(runnable)
        model, tools = first_model(runnable)
        is_known = not added and _is_plain(prompt)
        return cls(prompt if is_known else None, None if model is None else tool_schemas(tools), model)

    def beside(self, given: Any, asked: Messages) -> list[BaseMessage]:
        """Return the messages that the prompt adds to the conversation; `given` is its input without a past.

        The new input is not among them, and is taken out of the text that the prompt puts it in.
        """
        if self.prompt is None:
            return []
        values = given if isinstance(given, Mapping) else dict.fromkeys(self.prompt.input_variables, given)
        try:
            made = self.prompt.format_prompt(**values).to_messages()
        except Exception:  # noqa: BLE001  # the chain raises it in its own words
            return []
        own = {id(message) for message in asked}
        rest = [message for message in made if id(message) not in own]
        if len(rest) < len(made):
            return rest
        text = "\n".join(str(message.text) for message in asked)
        return [_without(message, text) for message in rest if message.type != "human" or message.content != text]


def _without(message: BaseMessage, text: str) -> BaseMessage:
    """Return a human message of a prompt without the input in it; every other message as it is."""
    is_input = isinstance(message, HumanMessage) and isinstance(message.content, str) and bool(text)
    if not is_input or text not in str(message.content):
        return message
    return HumanMessage(str(message.content).replace(text, "", 1))


def _is_plain(prompt: object) -> bool:
    """Return whether formatting a prompt calls nothing of the user's, so that it can be done once more."""
    if not isinstance(prompt, (ChatPromptTemplate, PromptTemplate)):
        return False
    formats = type(prompt).format_prompt in (ChatPromptTemplate.format_prompt, PromptTemplate.format_prompt)
    return formats and not any(map(callable, prompt.partial_variables.values()))


def first_model(runnable: object) -> tuple[object, Sequence[Any]]:
    """Return the first model of a chain, and the tools that are bound to it; None if no model is in sight."""
    steps: list[Any] = [runnable]
    tools: Sequence[Any] = ()
    while steps:
        step = steps.pop(0)
        if isinstance(step, RunnableSequence):
            steps[:0] = step.steps
        elif isinstance(step, RunnableBindingBase):
            tools = step.kwargs.get("tools") or tools
            steps.insert(0, step.bound)
        elif isinstance(step, RunnableWithFallbacks):
            steps.insert(0, step.runnable)
        elif isinstance(step, BaseLanguageModel):
            return step, tools
    return None, ()


def model_window(model: object, *, usual: int = 32_000) -> int:
    """Return how many tokens a model takes, by its profile; `usual` if it does not tell."""
    profile = getattr(model, "profile", None)
    tells = isinstance(profile, Mapping) and isinstance(profile.get("max_input_tokens"), int)
    return int(profile["max_input_tokens"]) if tells and profile else usual


class Measured:
    """What calls of one chain or agent held beyond what was known of them: left free from a session's next call on."""

    def __init__(self, *, sessions: int = 1000) -> None:
        self._lock = threading.Lock()
        self._excess = LRUCache[object, int](sessions)
        self._is_told = False
        self._is_long_told = False

    def __reduce__(self) -> tuple[type[Measured], tuple[()]]:
        """Copy and pickle as nothing measured: another process, or another chain, has calls of its own."""
        return Measured, ()

    def excess(self, place: object) -> int:
        """Return the tokens that the last call of a session held beyond what was known of it.

        For a session without a call it is the least of the others', since what middleware adds to one user's calls
        says nothing of another's.
        """
        with self._lock:
            known = self._excess.get(place)
            return min(self._excess.values(), default=0) if known is None else known

    def measure(self, place: object, budget: Budget, context: TurnContext, shown: Messages, call: Any) -> None:
        """Compare what a call was given with what was composed for it; say once that it was more than the budget.

        Args:
            place: The user and the session.
            budget: The budget of the preprocessor.
            context: What was known of the call.
            shown: The messages that were composed.
            call: The call, as the recorder of the turn kept it, with the messages `given` and the `tools`.
        """
        # What is the same on both sides needs not be counted.
        known = [*shown, *context.beside]
        added, changed = _but(call.given, known), _but(known, call.given)
        schemas = count_schema_tokens(tool_schemas(call.tools), budget.counter)
        more = budget.tokens(added) - budget.tokens(changed)
        more += schemas - count_schema_tokens(context.schemas or "", budget.counter)
        excess = max(more, 0)
        over = any(report.over for report in context.reports.values())
        with self._lock:
            self._excess.put(place, excess)
            if self._is_told or not (excess or over):
                return
        held = budget.tokens(call.given) + schemas + budget.reserve_tokens
        if held <= budget.max_tokens:
            return
        self._is_told = True
        why = "system prompt, tools, the new input and what else has to be shown take more than that"
        if not over:
            why = (
                f"{excess} of them were added after the prompt was composed. From the next call on room is left "
                "for them; reserve_tokens= leaves it from the first"
            )
        logger.warning("a call of the model held %d tokens of max_tokens=%d: %s", held, budget.max_tokens, why)

    def check_length(self, past: Sequence[BaseMessage], model: object) -> None:
        """Say once that a history alone, of which nothing is left out, is longer than the model takes."""
        if self._is_long_told or not isinstance(past, HistoryMessages):
            return
        window = model_window(model)
        length = sum(past.tokens)
        if length > window:
            self._is_long_told = True
            logger.warning(
                "a history of %d tokens is given to a model that takes %d: max_tokens= of the chain, or of the "
                "middleware, leaves out what is oldest",
                length,
                window,
            )


def _but(messages: Messages, others: Messages) -> list[BaseMessage]:
    """Return the messages that are not among the others, by identity or by type and text."""
    same = {id(message) for message in others}
    texts = {(message.type, str(message.text)) for message in others}
    return [m for m in messages if id(m) not in same and (m.type, str(m.text)) not in texts]
