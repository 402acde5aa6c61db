"""Checks that the model sees the past: by the prompt when a chain is built, and by the models' input in first calls."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from langchain_core import prompts
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate, ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnablePassthrough, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.passthrough import RunnableAssign

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.chain_io import input_messages
from langchain_memkit.messages.notes import is_note

PAST_NOT_SHOWN = "memkit_past_not_shown"
"""The event that a turn's past reached none of its model calls, or reached them as a Python repr."""

AS_TEXT = (
    "Use MessagesPlaceholder({0!r}) in a ChatPromptTemplate, or make it text before the prompt: "
    "RunnablePassthrough.assign({0}=lambda x: get_buffer_string(x[{0!r}])) | prompt"
)
WITHOUT_INPUT = "the model would be given the past, but not the new input. Give input_messages_key={0!r} alone"
TOLD = {
    "not shown": (
        "the conversation has a past, and none of its text was found in what a model of this turn was given (said once "
        "for chains with these keys). Is history_messages_key the variable of the prompt, and does every step in "
        "between hand it on? See docs/errors.md"
    ),
    "repr": (
        "a model was given the past as the Python repr of messages (said once for chains with these keys). Use "
        "MessagesPlaceholder(...) in the prompt, or get_buffer_string(...) to make text of it. See docs/errors.md"
    ),
}

logger = logging.getLogger("langchain_memkit")


@dataclass(frozen=True, slots=True)
class Wiring:
    """The keys under which new input and past reach the runnable."""

    input_key: str | None = None  # None if the messages themselves are the input
    history_key: str | None = None  # None if the past is put before the new input
    plain: bool = False  # whether an input that is not a dict is put under `input_key`, which was inferred
    inferred: bool = False  # whether `history_key` was inferred, so that a caller who fills it means something else
    texts: frozenset[str] = frozenset()  # variables rendered as text, where a message would appear as its Python repr

    def read(self, value: Any) -> tuple[Any, list[BaseMessage]]:
        """Return the input of a chain as its prompt takes it, and the new messages in it."""
        is_dict = isinstance(value, dict)
        if (self.input_key or self.history_key) and not (is_dict or self.plain):
            raise ValueError(f"with keys, or several variables, the input must be a dict, not {type(value).__name__}")
        # Notes come back in the state of a graph or from a client; they are not part of the input.
        given = [m for m in input_messages(value, self.input_key) if not is_note(m)]
        if self.plain and not is_dict:
            return {self.input_key: list(given)}, given
        if self.inferred and is_dict and value.get(str(self.history_key)):
            raise ValueError(
                f"the input holds {self.history_key!r}, where the prompt is given the past. If that is the new input, "
                f"give input_messages_key={self.history_key!r}; if it is a past of your own, leave it out; to have it "
                f"replaced, give history_messages_key={self.history_key!r}"
            )
        return value, given

    def compose(self, value: Any, past: list[BaseMessage], asked: list[BaseMessage]) -> Any:
        """Return the input of the runnable: past and new input where it takes them."""
        if self.history_key:
            # Where the prompt renders text, a message would appear as its repr.
            texts = {name: _text(name, value[name]) for name in self.texts & value.keys()}
            return {**value, **texts, self.history_key: past}
        messages = [*past, *asked]
        return {**value, self.input_key: messages} if self.input_key else messages


def _text(name: str, value: Any) -> Any:
    """Return the text of a message; values other than messages as they are."""
    messages = list(value) if isinstance(value, (list, tuple)) else [value]
    if not any(isinstance(message, BaseMessage) for message in messages):
        return value
    if len(messages) == 1:
        content = messages[0].content
        parts = [content] if isinstance(content, str) else content
        if all(isinstance(part, str) or part.get("type") == "text" for part in parts):
            return str(messages[0].text)
    raise ValueError(
        f"the prompt shows {name!r} as text, and this input is more than one message of text: put "
        f"MessagesPlaceholder({name!r}) where the prompt has {{{name}}}"
    )


# -- when the chain is built


class _Variable(NamedTuple):
    name: str
    place: int
    messages: bool = False  # whether it is a placeholder for messages, else for text
    human: bool = False  # whether it is in a user message
    plain: bool = True  # whether it is an f-string, which renders messages as their repr; templates can do otherwise


def find_wiring(runnable: object, input_key: str | None, history_key: str | None) -> Wiring:
    """Find the keys under which the chain's first prompt takes new input and past; infer those that are not given."""
    if input_key is not None and input_key == history_key:
        msg = f"input_messages_key and history_messages_key are both {input_key!r}: {WITHOUT_INPUT.format(input_key)}"
        raise ConfigurationError(msg)
    asked = Wiring(input_key, history_key)
    prompt, added = first_prompt(runnable)
    variables = None if prompt is None else _variables(prompt)
    if prompt is None or variables is None:
        return asked
    # Keys that a step before the prompt assigns are not the caller's to give.
    variables = [variable for variable in variables if variable.name not in added]
    messages = {variable.name for variable in variables if variable.messages}
    texts = frozenset(v.name for v in variables if v.plain and not v.messages) - messages
    # Those that a caller must fill; optional placeholders for messages have an empty default.
    filled: Mapping[str, Any] = prompt.partial_variables
    free = [v for v in variables if not (filled.get(v.name) if v.messages else v.name in filled)]
    kinds = {"messages for": [v.name for v in variables if v.messages]}
    kinds["text for"] = [v.name for v in variables if not v.messages]
    told = " and ".join(f"{kind} {_listed(names, 'and')}" for kind, names in kinds.items() if names)
    takes = f"the chain begins with a prompt that takes {told or 'no variables'}"
    known = {variable.name for variable in variables} | added
    if history_key is not None:
        if history_key in texts:
            msg = f"{takes}: {history_key!r} would be shown as the Python repr of messages. "
            raise ConfigurationError(msg + AS_TEXT.format(history_key))
        if history_key not in known and not added:
            places = [v.name for v in free if v.messages]
            way = _give(history_messages_key=places) or _make_place(input_key, history_key)
            raise ConfigurationError(f"{takes}, and no {history_key!r}: the model would never see the past. {way}")
        if not (added or {v.name for v in free} - {history_key}):
            raise ConfigurationError(f"{takes}: {WITHOUT_INPUT.format(history_key)}")
        return Wiring(input_key, history_key, texts=texts)
    if input_key is None:
        return _inferred(prompt, free, texts, takes, assigned=bool(added))
    if input_key in texts:
        past = _before(free, [v for v in variables if v.name == input_key])
        if len(past) == 1:
            return Wiring(input_key, past[0], inferred=True, texts=texts)
        msg = f"{takes}: with input_messages_key={input_key!r} alone, {input_key!r} would be shown as the Python repr"
        behind = [v.name for v in free if v.messages]
        way = _give(history_messages_key=past) or _make_place(input_key, history_key, behind)
        raise ConfigurationError(f"{msg} of messages, the past and the new input. {way}")
    if input_key not in known and not added:
        way = "Give another input_messages_key, or history_messages_key as well"
        raise ConfigurationError(f"{takes}, and no {input_key!r}: the model would never see the past. {way}")
    return asked


def _inferred(
    prompt: BasePromptTemplate[Any], free: Sequence[_Variable], texts: frozenset[str], takes: str, *, assigned: bool
) -> Wiring:
    """Infer the wiring of a chain without keys."""
    places = list(dict.fromkeys(v.name for v in free if v.messages))
    rest = {v.name for v in free if not v.messages}
    alone = prompt.input_variables[0] if len(prompt.input_variables) == 1 and not assigned else None
    if alone in places:  # its only variable takes the whole conversation as a list
        return Wiring()
    if len(places) == 1 and not rest and not assigned:  # likewise, with an optional placeholder
        return Wiring(places[0], plain=True)
    questions = [v for v in free if v.human and not v.messages]
    names = {v.name for v in questions}
    past = _before(free, questions)
    if len(names) == 1 and len(past) == 1:
        return Wiring(questions[0].name, past[0], plain=rest == names, inferred=True, texts=texts | names)
    if alone is not None and alone not in texts and alone in rest:  # a template that may be able to render messages
        return Wiring()
    if not (past or assigned) and (questions or not places):
        way = _make_place(None, None, places)
        raise ConfigurationError(f"{takes}, and has no place for the past before the question. {way}")
    if len(places) == 1 and not questions:
        key = places[0]
        way = f"Give input_messages_key={key!r} if it takes the past and the new input, or history_messages_key={key!r}"
        raise ConfigurationError(f"{takes}. {way} and an input_messages_key if it takes the past alone")
    choice = _give(input_messages_key=sorted(names) or places, history_messages_key=past or places)
    raise ConfigurationError(f"{takes}. {choice or 'Give input_messages_key= and history_messages_key='}")


def wiring_advice(runnable: object, input_key: str | None, history_key: str | None) -> str | None:
    """Return what is wrong with these keys, for a caller that keeps them; None if no fault is known."""
    try:
        found = find_wiring(runnable, input_key, history_key)
    except ConfigurationError as error:
        return str(error)
    if (found.input_key, found.history_key) == (input_key, history_key):
        return None
    keys = {"input_messages_key": found.input_key, "history_messages_key": found.history_key}
    way = _give(**{name: [key] for name, key in keys.items() if key is not None})
    return f"the prompt that the chain begins with is not given the past as messages. {way}"


def first_prompt(runnable: object) -> tuple[BasePromptTemplate[Any] | None, frozenset[str]]:
    """Find the prompt that takes the chain's own input, if any, and the keys assigned to that before it."""
    added: frozenset[str] = frozenset()
    steps = [runnable]
    while steps:
        step = steps.pop(0)
        if isinstance(step, BasePromptTemplate):
            return step, added
        if isinstance(step, RunnableSequence):
            steps[:0] = step.steps
        elif isinstance(step, RunnableBindingBase):
            steps.insert(0, step.bound)
        elif isinstance(step, RunnableWithFallbacks):
            steps.insert(0, step.runnable)
        elif isinstance(step, RunnableAssign):
            added = frozenset({*added, *step.mapper.steps__})
        elif not isinstance(step, RunnablePassthrough):
            break
    return None, added


def _variables(prompt: object) -> list[_Variable] | None:
    """Return the variables of a prompt in the order of its messages; None if a subclass formats them differently."""
    if isinstance(prompt, (PromptTemplate, prompts.FewShotPromptTemplate)):
        # A subclass that formats in its own way may render messages correctly, so nothing can be concluded from its
        # variables.
        if type(prompt).format not in (PromptTemplate.format, prompts.FewShotPromptTemplate.format):
            return None
        return _text_variables(prompt, 0, [*prompt.input_variables, *prompt.partial_variables])
    if not isinstance(prompt, ChatPromptTemplate) or type(prompt).format_messages != ChatPromptTemplate.format_messages:
        return None
    found: list[_Variable] = []
    parts, place = list[Any](prompt.messages), -1
    while parts:
        part, place = parts.pop(0), place + 1
        if isinstance(part, ChatPromptTemplate):
            parts[:0] = part.messages
        elif isinstance(part, MessagesPlaceholder):
            found.append(_Variable(part.variable_name, place, messages=True))
        elif not isinstance(part, BaseMessage):
            found += _text_variables(part, place, getattr(part, "input_variables", ()))
    return found


def _text_variables(part: Any, place: int, names: Sequence[str]) -> list[_Variable]:
    inner = getattr(part, "prompt", part)
    templates = inner if isinstance(inner, list) else [inner]
    plain = all(getattr(template, "template_format", None) == "f-string" for template in templates)
    human = isinstance(part, prompts.HumanMessagePromptTemplate)
    return [_Variable(name, place, human=human, plain=plain) for name in names]


def _before(free: Sequence[_Variable], questions: Sequence[_Variable]) -> list[str]:
    """Return the placeholders for messages before the first question: what follows a question is not the past."""
    first = min((v.place for v in questions), default=-1)
    return list(dict.fromkeys(v.name for v in free if v.messages and v.place < first))


def _give(**choices: Sequence[str]) -> str | None:
    """Return the advice to pass one of these names for each argument; None if there are no names."""
    told = [f"{argument}={_listed(names, 'or')}" for argument, names in choices.items() if names]
    return f"Give {' and '.join(told)}" if told else None


def _make_place(input_key: str | None, history_key: str | None, behind: Sequence[str] = ()) -> str:
    """Return the advice for a prompt without a placeholder for the past, or with one `behind` the question only."""
    place = history_key or "chat_history"
    wanted = [] if input_key else ["input_messages_key= (the variable of the new input)"]
    wanted += [] if history_key else [f"history_messages_key={place!r}"]
    way = f"use a ChatPromptTemplate with MessagesPlaceholder({place!r}) before the message of the user"
    way += f", and give {' and '.join(wanted)}" if wanted else ""
    if behind:
        return f"If {_listed(behind, 'or')} is for the past, move it before the question. If not, {way}"
    return way[0].upper() + way[1:]


def _listed(names: Sequence[str], last: str) -> str:
    *most, end = (repr(name) for name in dict.fromkeys(names))
    return f"{', '.join(most)} {last} {end}" if most else end


# -- when the chain is called


def past_verdict(
    calls: Sequence[Sequence[BaseMessage]], past: Sequence[BaseMessage], asked: Sequence[BaseMessage]
) -> Literal["shown", "not shown", "repr"] | None:
    """Return whether the models of a turn were given any of the past, as text or as Python's repr.

    None if that cannot be told: without a model call, or if the past has no line that the new input does not contain as
    well.
    """
    texts = [str(message.text) for given in calls for message in given]
    if not texts:
        return None
    past = [message for message in past if not is_note(message)]
    suspects = [text for text in texts if "(content=" in text]  # first, since a repr of every message takes long
    written = [repr(message) for message in past] if suspects else []
    # A repr of the past contains its text as well, so such prompts are set apart before the text is searched.
    reprs = {text for text in suspects if any(each in text for each in written)}
    new = _words("\n".join(str(m.text) for m in asked))
    lines = {_words(line, 8) for message in past for line in str(message.text).splitlines()}
    # Lines that the new input repeats prove nothing.
    telling = [line for line in lines if line and f" {line} " not in f" {new} "]
    shown = _words("\n".join(text for text in texts if text not in reprs))
    if any(f" {line} " in f" {shown} " for line in telling):
        return "shown"
    return "repr" if reprs else "not shown" if telling else None


def _words(text: str, most: int | None = None) -> str:
    """Return the first words of a text, so that quoting, wrapping and indenting do not matter."""
    return " ".join(re.findall(r"\w+", text)[:most])


@lru_cache(maxsize=1000)  # apps create a chain for each request, and would otherwise log it with each
def warn_once(verdict: Literal["not shown", "repr"], input_key: str | None, history_key: str | None) -> None:
    """Log once in a process that chains with these keys do not show the past."""
    logger.warning(TOLD[verdict])
