"""Runnables with a durable conversation around them: the main entry point.

A call becomes a `turn`: `session` finds its history and loads the memories, the runnable answers, and `saving` stores
the turn before the answer is returned. `rag` puts retrieval into such a turn.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, RunnableConfig, ensure_config
from langchain_core.runnables.base import RunnableBindingBase, coerce_to_runnable
from langchain_core.runnables.utils import get_unique_config_specs
from pydantic import BaseModel, RootModel, create_model
from pydantic.errors import PydanticUserError

from langchain_memkit._compat import CoreRunnableWithMessageHistory
from langchain_memkit.base import GetSessionHistory, check_arguments, safe_repr
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.runnables.saving import TurnKeywords, TurnOptions
from langchain_memkit.runnables.session import check_runnable, checked_function
from langchain_memkit.runnables.turn import HistoryTurn
from langchain_memkit.runnables.wiring import Wiring, find_wiring, wiring_advice

__all__ = ["RunnableWithMessageHistory", "create_runnable_with_message_history"]


SESSION_ID = ConfigurableFieldSpec("session_id", str, "Session ID", "Unique identifier for a session.", "", True)


SHOW = "give preprocessor= to change what the model is shown, or let get_session_history return a history of your own"
STORE = "give before_save= to change what is stored, or let get_session_history return a history of your own"
NEVER_CALLED = {
    **dict.fromkeys(("_enter_history", "_aenter_history"), SHOW),
    **dict.fromkeys(("_get_input_messages", "_get_output_messages", "_exit_history", "_aexit_history"), STORE),
}
"""Methods that subclasses of LangChain's class override and memkit never calls, with what to do instead."""


class RunnableWithMessageHistory(CoreRunnableWithMessageHistory):  # core's class while it exists
    """Drop-in for LangChain's class of the same name that saves within the call and raises if that fails.

    Takes LangChain's arguments unchanged, and those of `create_runnable_with_message_history`, which is the same thing
    as a function. Works without LangChain's class, which core 2.0 removes. If the chain begins with a prompt that would
    not show the past under the given keys, a `UserWarning` says so; the keys are never refused or replaced.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.testing import FakeChatModel
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> chat = RunnableWithMessageHistory(FakeChatModel(), histories)
        >>> config = {"configurable": {"session_id": "s1"}}
        >>> _ = chat.invoke("My name is Nemo.", config)
        >>> chat.invoke("What is my name?", config).content
        'You told me: My name is Nemo.'
    """

    get_session_history: GetSessionHistory
    input_messages_key: str | None = None
    output_messages_key: str | None = None
    history_messages_key: str | None = None
    history_factory_config: Sequence[ConfigurableFieldSpec]

    _turn_type: ClassVar[type[HistoryTurn]] = HistoryTurn
    _options_type: ClassVar[type[TurnOptions]] = TurnOptions

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, way_out in NEVER_CALLED.items():
            if getattr(cls, name, None) is not getattr(RunnableWithMessageHistory, name, None):
                msg = f"{cls.__name__} overrides {name}, which is never called here: {way_out}. See docs/subclasses.md"
                raise ConfigurationError(msg)

    def __init__(
        self,
        runnable: Any,
        get_session_history: GetSessionHistory,
        *,
        input_messages_key: str | None = None,
        output_messages_key: str | None = None,
        history_messages_key: str | None = None,
        history_factory_config: Sequence[ConfigurableFieldSpec] | None = None,
        max_tokens: int | None = None,
        **options: Unpack[TurnKeywords],
    ) -> None:
        check_runnable(runnable)
        checked_function(get_session_history, history_factory_config)
        own = {name for each, field in type(self).model_fields.items() for name in (each, field.alias)}
        fields: dict[str, Any] = {name: value for name, value in options.items() if name in own}
        given: dict[str, Any] = {name: value for name, value in options.items() if name not in own}
        # Unknown arguments are refused here, since pydantic would drop them silently.
        check_arguments(given, create_runnable_with_message_history, TurnOptions)
        wiring = Wiring(input_messages_key, history_messages_key)
        made = self._options_type(output_key=output_messages_key, max_tokens=max_tokens, **given)
        turn = self._turn_type(coerce_to_runnable(runnable), get_session_history, wiring, history_factory_config, made)
        if advice := wiring_advice(runnable, input_messages_key, history_messages_key):
            warnings.warn(advice, stacklevel=2)
            turn.watched = False  # its warning would repeat this one
        fields |= {"input_messages_key": input_messages_key, "output_messages_key": output_messages_key}
        fields |= {"history_messages_key": history_messages_key}
        fields |= {"history_factory_config": history_factory_config or [SESSION_ID]}
        # Skip LangChain's constructor, which warns that it is deprecated.
        RunnableBindingBase.__init__(self, bound=turn, get_session_history=get_session_history, **fields)

    def __setattr__(self, name: str, value: object) -> None:
        _check_unchanged([name])
        super().__setattr__(name, value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values for some fields, but not for those that the turns were set up with."""
        _check_unchanged(update or ())
        return super().model_copy(update=update, deep=deep)

    @property
    def _turn(self) -> HistoryTurn:
        return cast("HistoryTurn", self.bound)

    def __repr__(self) -> str:
        """Name the wrapped runnable, the histories and the keys, but no messages and no credentials."""
        keys = ("input_messages_key", "output_messages_key", "history_messages_key")
        told = [self._turn.runnable.get_name(), safe_repr(self.get_session_history)]
        told += [f"{key}={getattr(self, key)!r}" for key in keys if getattr(self, key)]
        return f"{type(self).__name__}({', '.join(told)})"

    __str__ = __repr__

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """Keys of `config["configurable"]` that a call needs."""
        return get_unique_config_specs([*self._turn.runnable.config_specs, *self.history_factory_config])

    @property
    def OutputType(self) -> Any:  # noqa: N802  # LangChain's name
        """Output type of the wrapped runnable, if it declares one; else a dict or a list of messages, by the keys."""
        try:
            declared = self._turn.runnable.OutputType
        except TypeError:  # a runnable whose type cannot be inferred
            declared = Any
        if declared is not Any:
            return declared
        return dict[str, Any] if self.history_messages_key or self.input_messages_key else list[BaseMessage]

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the schema of the new input alone; history is not part of it."""
        name, many = "RunnableWithChatHistoryInput", Sequence[BaseMessage]
        either = bool(self.input_messages_key and self.history_messages_key)
        return _schema(name, str | BaseMessage | many if either else many, self.input_messages_key)

    def get_output_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the schema of the wrapped runnable's output."""
        kind = self.OutputType
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            return kind
        return _schema("RunnableWithChatHistoryOutput", kind)

    def _merge_configs(self, *configs: RunnableConfig | None) -> RunnableConfig:
        # Skip LangChain's method, and drop the history of an enclosing chain, which is another conversation's.
        config = ensure_config(RunnableBindingBase._merge_configs(self, *configs))
        configurable = {k: v for k, v in config.get("configurable", {}).items() if k != "message_history"}
        return {**config, "configurable": configurable}

    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Stream one turn; when `aclose()` returns, the partial answer is stored."""
        return self.bound.astream(input, self._merge_configs(config), **{**self.kwargs, **kwargs})

    def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run `astream` for a streamed input."""
        return self.bound.atransform(input, self._merge_configs(config), **{**self.kwargs, **kwargs})


def _check_unchanged(names: Iterable[str]) -> None:
    """Refuse to change a field that the turns were set up with, since the new value would be ignored."""
    for name in names:
        if name in RunnableWithMessageHistory.__annotations__:
            msg = f"{name} of a chain cannot be changed, its turns were set up with it: make another chain with {name}="
            raise AttributeError(msg)


def _schema(title: str, kind: Any, key: str | None = None) -> type[BaseModel]:
    """Build the schema of a value, or of a dict with it under `key`, titled as LangChain titles it.

    Servers know schemas by the names of their classes, and LangServe fails at a second class of one name with other
    content. So the name ends with a digest of the content.
    """
    definition: dict[str, Any] = {key: (kind, ...)} if key else {"__base__": RootModel[kind]}
    model: type[BaseModel] = create_model(title, **definition)
    try:
        says = json.dumps(model.model_json_schema(), sort_keys=True)
    except PydanticUserError:  # a type without a JSON schema
        says = repr(definition)
    digest = hashlib.sha256(says.encode()).hexdigest()[:8]
    return create_model(f"{title}_{digest}", __cls_kwargs__={"title": title}, **definition)


def create_runnable_with_message_history(
    runnable: Any,
    get_session_history: GetSessionHistory,
    *,
    input_messages_key: str | None = None,
    output_messages_key: str | None = None,
    history_messages_key: str | None = None,
    history_factory_config: Sequence[ConfigurableFieldSpec] | None = None,
    max_tokens: int | None = None,
    **options: Unpack[TurnKeywords],
) -> RunnableWithMessageHistory:
    """Put a durable conversation around any chain, model or graph.

    Every call is one turn of the session named in its config: the history is loaded, the runnable is called with it,
    and question and answer (tool messages included) are stored as one atomic turn before the call returns. A stream is
    stored when it ends. The config names the session as `session_id` (else `thread_id`), the owner as `user_id`, and
    `turn_id`, if given, makes a retried call store once.

    Args:
        runnable: A chat model, a chain, a function, or a compiled LangGraph graph over `messages`.
        get_session_history: Called with `session_id`, and `user_id` if it takes one; may be async. Best
            `SQLiteChatMessageHistory.factory(...)` or `MongoDBChatMessageHistory.factory(...)`; histories of other
            packages work without the guarantees about ids, clears and retries.
        input_messages_key: For dict input: the key of the new input. Where the chain begins with a prompt, this key and
            `history_messages_key` are inferred if its variables leave one reading; a plain string is an input then too.
        output_messages_key: For dict output: the key of the answer.
        history_messages_key: For dict input: the key for the history; without it, history is put before the input.
        history_factory_config: Further config keys for `get_session_history`, as in LangChain's class.
        max_tokens: What a call of the model may hold, at four characters a token: system prompt, the schemas of tools,
            notes and new input, and as much of the history as fits beside them. The oldest turns are left out, which
            is `preprocessor=create_trim_preprocessor(max_tokens)` in one word. None: all of the history is shown,
            and a warning says once when that is more than the model takes.
        preprocessor: Messages in, messages out, applied to the loaded history: `create_history_preprocessor(...)`,
            `create_trim_preprocessor(...)`, `trim_messages(...)`. It changes what the model sees, never what is
            stored. memkit's own declare how much they need, and memkit's histories read no more than that.
        memories: Further memories for the model. Each is a factory (`EntityMemory.factory(...)`, or a function
            `(session_id, user_id)` that makes a `Memory`), a `Memory`, or any LangChain retriever, which is only read.
            The records that they return for the new input form one note just before it, quoted, with source and date;
            it counts towards the preprocessor's budget and is never stored. Each memory saves the turn after the
            history has.
        before_save: A function from the messages of the turn to those to store, for history and memories alike; use
            it for redaction, for example.
        on_save_error: `"raise"` (a `HistoryWriteError` whose `.output` holds the answer), `"log"`, or a callable.
        on_model_error: The runnable raised: `"discard"` stores nothing, `"save_input"` keeps the question.
        on_abort: A stream was closed or cancelled: `"save_partial"` stores what had been yielded, marked
            `response_metadata["memkit_status"] = "aborted"`; `"discard"` stores nothing.
        on_dropped_turn: The session was cleared while the turn ran, so it is not stored: `"report"` logs and sends the
            event `memkit_dropped_turn` to callbacks, `"raise"` raises, or a callable.
        on_context_overflow: The prompt exceeds the model's context (core's `ContextOverflowError`), and a preprocessor
            of memkit can shorten it: `"retry"` does so once, with 70% of the budget, logs it and sends the event
            `memkit_context_overflow`; `"raise"` leaves the error to you.
        on_load_error: A memory cannot be loaded: `"report"` leaves it out of the turn, logs it and sends the event
            `memkit_load_error`; `"raise"` raises a `MemoryReadError`; or a callable. A `ConfigurationError` is raised.
        timezone: The zone in which a user's days are meant: a name ("Australia/Sydney"), a tzinfo, or a function of the
            `user_id`, plain or async, called once a turn, that returns either or None. It decides which day the notes
            say, and what "yesterday" and "on Tuesday" mean in questions. None: UTC, as for a function that fails, which
            is logged once. The note names the zone. A memory's own `timezone=` wins.
        trace: Whether to store with each turn, in the same write, what its models were given: by message ids, with the
            texts of system prompts alone and the names of records (none of both if there is `before_save`), scores,
            tokens and times. Read it with `explain_stored_turn`; needs a history of memkit with layout "turns".

    Returns:
        A runnable that takes the new input alone; an instance of LangChain's `RunnableWithMessageHistory` while core
        has that class.

    Raises:
        ConfigurationError: The options do not fit together, or the prompt that the chain begins with would not show
            the past to the model.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.testing import FakeChatModel
        >>> chat = create_runnable_with_message_history(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"))
        >>> config = {"configurable": {"session_id": "s1", "user_id": "u1"}}
        >>> _ = chat.invoke("I live in Sydney.", config)
        >>> chat.invoke("Where do I live?", config).content
        'You told me: I live in Sydney.'
    """
    wiring = find_wiring(runnable, input_messages_key, history_messages_key)
    keys: Any = {"input_messages_key": wiring.input_key, "history_messages_key": wiring.history_key}
    keys |= {"output_messages_key": output_messages_key, "history_factory_config": history_factory_config}
    chain = RunnableWithMessageHistory(runnable, get_session_history, max_tokens=max_tokens, **keys, **options)
    chain._turn.wiring = wiring
    return chain
