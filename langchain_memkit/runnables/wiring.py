"""Checks that the model sees the past: by the prompt when a chain is built, and by the models' input in first calls."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    FewShotPromptTemplate,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.runnables import Runnable, RunnablePassthrough, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.passthrough import RunnableAssign

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.notes import is_note

__all__ = [
    "PAST_NOT_SHOWN",
    "ModelInputWatch",
    "Wiring",
    "find_wiring",
    "once_per_process",
    "source_location",
    "wiring_advice",
]

PAST_NOT_SHOWN = "memkit_past_not_shown"
"""The event that a turn's past reached none of its model calls, or reached them as a Python repr."""

MOST_SAID = 1000  # notices remembered per process; then the set is emptied
AS_TEXT = (
    "Use MessagesPlaceholder({0!r}) in a ChatPromptTemplate, or make it text before the prompt: "
    "RunnablePassthrough.assign({0}=lambda x: get_buffer_string(x[{0!r}])) | prompt"
)
WITHOUT_INPUT = "the model would be given the past, but not the new input. Give input_messages_key={0!r} alone"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The keys under which new input and past reach the runnable.

    Attributes:
        input_key: The key of the new input; None if the messages themselves are the input.
        history_key: The key of the past; None if it is put before the new input.
        plain: Whether an input that is not a dict is put under `input_key`, which was inferred.
        inferred: Whether `history_key` was inferred, so that a caller who fills it means something else.
        texts: Variables that the prompt renders as text, where a message would appear as its Python repr.
    """

    input_key: str | None = None
    history_key: str | None = None
    plain: bool = False
    inferred: bool = False
    texts: frozenset[str] = frozenset()

    def as_dict(self, value: Any, given: Sequence[BaseMessage]) -> Any:
        """Return the input as the dict that the prompt takes.

        Args:
            value: The input of the chain.
            given: The messages in it.

        Raises:
            ValueError: The input has a value under the inferred key of the past.
        """
        if self.plain and not isinstance(value, dict):
            return {self.input_key: list(given)}
        if self.inferred and isinstance(value, dict) and value.get(str(self.history_key)):
            msg = (
                f"the input holds {self.history_key!r}, where the prompt is given the past. If that is the new input, "
                f"give input_messages_key={self.history_key!r}; if it is a past of your own, leave it out; to have it "
                f"replaced, give history_messages_key={self.history_key!r}"
            )
            raise ValueError(msg)
        return value

    def with_texts(self, value: dict[str, Any]) -> dict[str, Any]:
        """Replace messages by their text under the keys that the prompt renders as text.

        Raises:
            ValueError: A message there holds more than text, or there are several.
        """
        messages = {name: value[name] for name in self.texts & value.keys() if _is_messages(value[name])}
        return {**value, **{name: _text(name, found) for name, found in messages.items()}}


def _is_messages(value: Any) -> bool:
    return isinstance(value, BaseMessage) or (
        isinstance(value, (list, tuple)) and any(isinstance(m, BaseMessage) for m in value)
    )


def _text(name: str, value: Any) -> str:
    messages = [value] if isinstance(value, BaseMessage) else list(value)
    if len(messages) == 1 and isinstance(messages[0], BaseMessage):
        content = messages[0].content
        parts = [content] if isinstance(content, str) else content
        if all(isinstance(part, str) or part.get("type") == "text" for part in parts):
            return str(messages[0].text)
    msg = (
        f"the prompt shows {name!r} as text, and this input is more than one message of text: put "
        f"MessagesPlaceholder({name!r}) where the prompt has {{{name}}}"
    )
    raise ValueError(msg)


# -- when the chain is built


class _Variable(NamedTuple):
    name: str
    place: int
    messages: bool = False  # whether it is a placeholder for messages, else for text
    human: bool = False  # whether it is in a user message
    plain: bool = True  # whether it is an f-string, which renders messages as their repr; templates can do otherwise


def find_wiring(runnable: Any, input_key: str | None, history_key: str | None) -> Wiring:
    """Find the keys under which the chain's first prompt takes new input and past; infer those that are not given.

    Args:
        runnable: The wrapped runnable. Only a prompt that takes the chain's own input is considered.
        input_key: The given `input_messages_key`.
        history_key: The given `history_messages_key`.

    Raises:
        ConfigurationError: The model could not see the past, or the prompt can be read in two ways.
    """
    if input_key is not None and input_key == history_key:
        msg = f"input_messages_key and history_messages_key are both {input_key!r}: {WITHOUT_INPUT.format(input_key)}"
        raise ConfigurationError(msg)
    asked = Wiring(input_key, history_key)
    found = _first_prompt(runnable)
    variables = [] if found is None else _variables(found[0])
    if found is None or variables is None:
        return asked
    prompt, added = found
    # Keys that a step before the prompt assigns are not the caller's to give.
    variables = [variable for variable in variables if variable.name not in added]
    messages = {variable.name for variable in variables if variable.messages}
    texts = frozenset(v.name for v in variables if v.plain and not v.messages) - messages
    free = _unfilled(prompt, variables)
    takes = f"the chain begins with a prompt that takes {_told(variables)}"
    known = {variable.name for variable in variables} | added
    if history_key is not None:
        if history_key in texts:
            msg = f"{takes}: {history_key!r} would be shown as the Python repr of messages. "
            raise ConfigurationError(msg + AS_TEXT.format(history_key))
        if history_key not in known and not added:
            way = _give(history_messages_key=[v.name for v in free if v.messages]) or _make_place(
                input_key, history_key
            )
            raise ConfigurationError(f"{takes}, and no {history_key!r}: the model would never see the past. {way}")
        if not (added or {v.name for v in free} - {history_key}):
            raise ConfigurationError(f"{takes}: {WITHOUT_INPUT.format(history_key)}")
        return Wiring(input_key, history_key, texts=texts)
    if input_key is not None:
        if input_key in texts:
            past = _before(free, [v for v in variables if v.name == input_key])
            if len(past) == 1:
                return Wiring(input_key, past[0], inferred=True, texts=texts)
            msg = (
                f"{takes}: with input_messages_key={input_key!r} alone, {input_key!r} would be shown as the Python repr"
            )
            behind = [v.name for v in free if v.messages]
            way = _give(history_messages_key=past) or _make_place(input_key, history_key, behind)
            raise ConfigurationError(f"{msg} of messages, the past and the new input. {way}")
        if input_key not in known and not added:
            way = "Give another input_messages_key, or history_messages_key as well"
            raise ConfigurationError(f"{takes}, and no {input_key!r}: the model would never see the past. {way}")
        return asked
    return _inferred(prompt, free, texts, takes, assigned=bool(added))


def _inferred(
    prompt: BasePromptTemplate[Any],
    free: Sequence[_Variable],
    texts: frozenset[str],
    takes: str,
    *,
    assigned: bool,
) -> Wiring:
    """Infer the wiring of a chain without keys.

    Raises:
        ConfigurationError: The prompt has no place for the past, or can be read in several ways.
    """
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
        name = questions[0].name
        return Wiring(name, past[0], plain=rest == names, inferred=True, texts=texts | names)
    if alone is not None and alone not in texts and alone in rest:  # a template that may be able to render messages
        return Wiring()
    if not (past or assigned) and (questions or not places):
        raise ConfigurationError(
            f"{takes}, and has no place for the past before the question. {_make_place(None, None, places)}"
        )
    if len(places) == 1 and not questions:
        key = places[0]
        way = f"Give input_messages_key={key!r} if it takes the past and the new input, or history_messages_key={key!r}"
        raise ConfigurationError(f"{takes}. {way} and an input_messages_key if it takes the past alone")
    choice = _give(input_messages_key=sorted(names) or places, history_messages_key=past or places)
    raise ConfigurationError(f"{takes}. {choice or 'Give input_messages_key= and history_messages_key='}")


def wiring_advice(runnable: Any, input_key: str | None, history_key: str | None) -> str | None:
    """Return what is wrong with these keys, for a caller that keeps them; None if no fault is known."""
    try:
        found = find_wiring(runnable, input_key, history_key)
    except ConfigurationError as error:
        return str(error)
    if found.history_key == history_key and found.input_key == input_key:
        return None
    keys = {"input_messages_key": found.input_key, "history_messages_key": found.history_key}
    told = " and ".join(f"{name}={key!r}" for name, key in keys.items() if key is not None)
    return f"the prompt that the chain begins with is not given the past as messages. Give {told}"


def _first_prompt(runnable: Any) -> tuple[BasePromptTemplate[Any], frozenset[str]] | None:
    """Find the prompt that takes the chain's own input, and the keys assigned to that before it."""
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
            return None
    return None


def _variables(prompt: Any) -> list[_Variable] | None:
    """Return the variables of a prompt in the order of its messages; None if a subclass formats them differently."""
    if isinstance(prompt, (PromptTemplate, FewShotPromptTemplate)):
        # A subclass that formats in its own way may render messages correctly, so nothing can be concluded from its
        # variables.
        if type(prompt).format not in (PromptTemplate.format, FewShotPromptTemplate.format):
            return None
        return list(_text_variables(prompt, 0, [*prompt.input_variables, *prompt.partial_variables]))
    if not isinstance(prompt, ChatPromptTemplate) or type(prompt).format_messages != ChatPromptTemplate.format_messages:
        return None
    found: list[_Variable] = []
    for place, part in enumerate(_parts(prompt)):
        if isinstance(part, MessagesPlaceholder):
            found.append(_Variable(part.variable_name, place, messages=True))
        elif not isinstance(part, BaseMessage):
            found += _text_variables(part, place, getattr(part, "input_variables", ()))
    return found


def _parts(prompt: ChatPromptTemplate) -> Iterator[Any]:
    for part in prompt.messages:
        if isinstance(part, ChatPromptTemplate):
            yield from _parts(part)
        else:
            yield part


def _text_variables(part: Any, place: int, names: Iterable[str]) -> Iterator[_Variable]:
    inner = getattr(part, "prompt", part)
    templates = inner if isinstance(inner, list) else [inner]
    plain = all(getattr(template, "template_format", None) == "f-string" for template in templates)
    for name in names:
        yield _Variable(name, place, human=isinstance(part, HumanMessagePromptTemplate), plain=plain)


def _unfilled(prompt: BasePromptTemplate[Any], variables: Sequence[_Variable]) -> list[_Variable]:
    """Return the variables that a caller must fill; optional placeholders for messages have an empty default."""
    filled: Mapping[str, Any] = prompt.partial_variables
    return [v for v in variables if not (filled.get(v.name) if v.messages else v.name in filled)]


def _before(free: Sequence[_Variable], questions: Sequence[_Variable]) -> list[str]:
    """Return the placeholders for messages before the first question: what follows a question is not the past."""
    first = min((v.place for v in questions), default=-1)
    return list(dict.fromkeys(v.name for v in free if v.messages and v.place < first))


def _told(variables: Sequence[_Variable]) -> str:
    kinds = {"messages for": [v.name for v in variables if v.messages]}
    kinds["text for"] = [v.name for v in variables if not v.messages]
    told = [f"{kind} {_listed(names, 'and')}" for kind, names in kinds.items() if names]
    return " and ".join(told) or "no variables"


def _give(**choices: Sequence[str]) -> str | None:
    """Return the advice to pass one of these names for each argument; None if there are no names."""
    told = [f"{argument}={_listed(names, 'or')}" for argument, names in choices.items() if names]
    return f"Give {' and '.join(told)}" if told else None


def _make_place(input_key: str | None, history_key: str | None, behind: Sequence[str] = ()) -> str:
    """Return the advice for a prompt without a placeholder for the past.

    Args:
        input_key: The given `input_messages_key`.
        history_key: The given `history_messages_key`.
        behind: Placeholders for messages after the question.
    """
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

Verdict: TypeAlias = Literal["shown", "not shown", "repr"] | None


class ModelInputWatch(BaseCallbackHandler):
    """Callback that keeps the input of a turn's models, to find out whether it contains any of the past."""

    run_inline = True  # it only keeps references, which needs no thread
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, past: Sequence[BaseMessage], asked: Sequence[BaseMessage]) -> None:
        self.past = [message for message in past if not is_note(message)]
        self._asked = asked
        self._given: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **kwargs: Any) -> None:
        """Keep the input of a chat model."""
        self._given += [message for batch in messages for message in batch]

    def on_llm_start(self, serialized: Any, prompts: list[str], **kwargs: Any) -> None:
        """Keep the input of a string model."""
        self._given += prompts

    def verdict(self) -> Verdict:
        """Return whether a model was given any of the past, as text or as Python's repr; None if that cannot be told.

        It cannot without a model call, nor if the past has no line that the new input does not contain as well.
        """
        if not self._given:
            return None
        texts = [given if isinstance(given, str) else str(given.text) for given in self._given]
        suspects = [text for text in texts if "(content=" in text]  # first, since a repr of every message takes long
        written = [repr(message) for message in self.past] if suspects else []
        # A repr of the past contains its text as well, so such prompts are set apart before the text is searched.
        reprs = {text for text in suspects if any(each in text for each in written)}
        asked = _words("\n".join(str(m.text) for m in self._asked))
        lines = {_words(line, 8) for message in self.past for line in str(message.text).splitlines()}
        # Lines that the new input repeats prove nothing.
        telling = [line for line in lines if line and f" {line} " not in f" {asked} "]
        shown = _words("\n".join(text for text in texts if text not in reprs))
        if any(f" {line} " in f" {shown} " for line in telling):
            return "shown"
        return "repr" if reprs else "not shown" if telling else None


def source_location(part: Any) -> Hashable:
    """Return where a runnable or function was written, equal for all that one place of an app creates.

    Args:
        part: A runnable, a function or a factory.

    Example:
        >>> source_location(RunnablePassthrough())
        ('RunnablePassthrough', 'RunnablePassthrough')
    """
    if isinstance(part, RunnableSequence):
        return tuple(source_location(step) for step in part.steps)
    if isinstance(part, RunnableBindingBase):
        return source_location(part.bound)
    function = (getattr(part, "func", None) or getattr(part, "afunc", None)) if isinstance(part, Runnable) else part
    code = getattr(function, "__code__", None)
    if code is None:
        return type(part).__name__, part.get_name() if isinstance(part, Runnable) else ""
    return (code.co_filename, code.co_firstlineno, code.co_name)


_said: set[Hashable] = set()


def once_per_process(what: Hashable) -> bool:
    """Return whether a notice is due, being the first of its kind in this process.

    Apps create a chain for each request, and would otherwise log it with each.

    Args:
        what: Key of the notice.

    Example:
        >>> once_per_process("it rains"), once_per_process("it rains")
        (True, False)
    """
    if what in _said:
        return False
    if len(_said) >= MOST_SAID:
        _said.clear()
    _said.add(what)
    return True


def _words(text: str, most: int | None = None) -> str:
    """Return the words of a text without punctuation and layout, so that quoting, wrapping and indenting do not matter.

    Args:
        text: The text.
        most: Maximum number of words; None for all.
    """
    return " ".join(re.findall(r"\w+", text)[:most])
