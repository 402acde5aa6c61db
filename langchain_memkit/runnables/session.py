"""The session of a call: ids from the config, its history, its memories, and the past that a model is shown of it."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from pydantic import BaseModel

from langchain_memkit._compat import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_memkit._histories import is_native
from langchain_memkit._locks import shared_threads
from langchain_memkit._sync import Step, call_user_function, dry_run, event, gather
from langchain_memkit._timezones import TimezoneOfUser, timezone_of_user
from langchain_memkit.base import IDS, HistoryView, Memory, Preprocessor, Query, TurnContext, check_id
from langchain_memkit.errors import ConfigurationError, did_you_mean
from langchain_memkit.memories.fanout import REMARK, OnLoadError, name_of, report_load_error
from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.messages.notes import Record, compose_notes, tag_source
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.preprocessors.budget import budgets_of, parts_of_run
from langchain_memkit.preprocessors.trim import TrimPreprocessor
from langchain_memkit.runnables.beside import Measured

logger = logging.getLogger("langchain_memkit")

BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NO_ARGUMENTS = (BaseModel.__init__, BaseChatMessageHistory.__init__, InMemoryChatMessageHistory.__init__)
DROPPED_USER = (
    "config['configurable'] has a user_id that {} cannot take, so users would share what it gives. "
    "Give it a parameter `user_id=None`, or leave user_id out."
)

Specs = Sequence[ConfigurableFieldSpec] | None
"""The keys that `history_factory_config` names; None for `session_id` and `user_id`."""


Configurable = Mapping[str, Any]
"""`config["configurable"]` of a call."""


def turn_id_of(configurable: Configurable) -> str:
    """Return the id of a call: every retry of its save is idempotent; a caller's own extends that to repeated calls."""
    turn_id = configurable.get("turn_id")
    return str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")


async def session_history(
    function: Callable[..., Any], specs: Specs, configurable: Configurable, name: str = "get_session_history"
) -> Any:
    """Call `get_session_history` or a memory factory as its signature wants it, after checking every id."""
    own = getattr(function, "does_no_io", False)  # a factory of ours, whose calls are all alike
    kind: Any = type(function)
    parameters = _parameters_of_calls(kind) if own else inspect.signature(function).parameters
    given = configurable, parameters, name
    args, kwargs = _configured_ids(specs, *given) if specs else _standard_ids(*given)
    call = partial(function, *args, **kwargs)
    # A thread would only make a factory of ours slower.
    result = call() if own else await call_user_function(call, name=name)
    if result is None:
        msg = f"{name} returned None: it must return what it makes, so perhaps its `return` is missing"
        raise ConfigurationError(msg)
    return result


def checked_function(function: object, specs: Specs = None, name: str = "get_session_history") -> Callable[..., Any]:
    """Return an argument that can be called with the ids, else raise a ConfigurationError that names one that can."""
    if not callable(function):
        raise ConfigurationError(
            f"{name} must be a function of session_id, or X.factory(...), not {_mistaken(function)}"
        )
    maker = getattr(function, "__self__", None)
    if isinstance(maker, type) and getattr(function, "__name__", "") == "factory":
        msg = f"{name} is the method {maker.__name__}.factory itself: call it, as in {maker.__name__}.factory(...)"
        raise ConfigurationError(msg)
    if not isinstance(function, type):
        return function
    parameters = inspect.signature(function).parameters
    of, kinds = function.__name__, {parameter.kind for parameter in parameters.values()}
    # `*args` of LangChain's base classes takes nothing.
    own_init = inspect.getattr_static(function, "__init__") not in NO_ARGUMENTS
    star = own_init and inspect.Parameter.VAR_POSITIONAL in kinds
    if len(specs or ()) < 2 and kinds and kinds.isdisjoint(BY_POSITION) and not star:
        raise ConfigurationError(
            f"{name} is the class {of}, which takes no session_id by position: keep one for each session in a dict, "
            f"sessions, and give lambda session_id: sessions.setdefault(session_id, {of}()), or "
            "SQLiteChatMessageHistory.factory(...)"
        )
    # A call passes only the configured ids, so a class that requires more would fail in each turn: refuse it now.
    named = (*BY_POSITION, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind in named]
    others = [n for n in needed if n not in ("session_id", "user_id", *(spec.id for spec in specs or ()))]
    if others and "session_id" in parameters:
        factory = f"{of}.factory({', '.join(others)}), or " if hasattr(function, "factory") else ""
        given = needed if "session_id" in needed else [*needed, "session_id=session_id"]
        raise ConfigurationError(
            f"{name} is the class {of}, which needs {', '.join(others)} besides session_id: give {factory}a "
            f"function, as in lambda session_id: {of}({', '.join(given)})"
        )
    return function


def _mistaken(given: object) -> str:
    """Describe what was given in place of a function, with the line to write; of an address nothing is shown."""
    kind = type(given).__name__
    if isinstance(given, Runnable):
        line = "create_runnable_with_message_history(model, SQLiteChatMessageHistory.factory('chat.db'))"
        agent = "a model of an agent goes into create_agent(model, tools)"
        return f"a {kind}. Runnables come first: {line}; {agent}"
    if isinstance(given, BaseChatMessageHistory) or hasattr(given, "add_messages"):
        line = f"{kind}.factory(...), which makes one for each"
        if not hasattr(given, "factory"):
            line = f"lambda session_id: sessions.setdefault(session_id, {kind}()), with a dict sessions"
        return f"a {kind}, which is the history of one session. Write {line}"
    if isinstance(given, (str, os.PathLike)):
        text = os.fspath(given)
        is_address = "://" in text or "@" in text  # which may hold a password
        shown = repr(given)[:80] if isinstance(given, str) else f"a {kind}"
        if not is_address:
            return f"{shown}. For a file write SQLiteChatMessageHistory.factory({text!r:.80})"
        if text.startswith("mongodb"):
            return "an address. For a MongoDB server write MongoDBChatMessageHistory.factory(connection_string)"
        return "an address. Give a function, as in lambda session_id: YourHistory(session_id)"
    return f"a {kind}. As in SQLiteChatMessageHistory.factory('chat.db')"


def check_runnable(runnable: object) -> None:
    """Refuse a factory of histories in place of the runnable, since it can be called like one."""
    if _makes_histories(runnable):
        line = "create_runnable_with_message_history(model, histories)"
        msg = f"the runnable is a {type(runnable).__name__}, which makes histories; it comes second: {line}"
        raise ConfigurationError(msg)


def _makes_histories(value: object) -> bool:
    return callable(value) and hasattr(value, "turn_store")


def check_history(history: object) -> None:
    """Refuse what is no chat history, of any package: `messages` or one of the verbs is enough to be one."""
    is_class = isinstance(history, type)
    # A property `messages` would read the history.
    has_messages = inspect.getattr_static(history, "messages", None) is not None
    verbs = ("add_message", "add_messages", "aget_messages")
    if not is_class and (has_messages or any(hasattr(history, verb) for verb in verbs)):
        return
    advice = "return a history of the session, as in SQLiteChatMessageHistory('chat.db', session_id)"
    if is_class:
        advice = "call it"
    elif _makes_histories(history):
        advice = "call it, or give it as it is in place of the function"
    elif isinstance(history, Memory):
        advice = f"{advice}; memories go into memories="
    what = f"the class {history.__name__}" if isinstance(history, type) else f"a {type(history).__name__}"
    raise ConfigurationError(f"get_session_history returned {what}, which is no chat history: {advice}")


@lru_cache(maxsize=64)
def _parameters_of_calls(kind: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters with which an object of a class is called."""
    (_, *parameters) = inspect.signature(kind.__call__).parameters.values()  # without `self`
    return {parameter.name: parameter for parameter in parameters}


Arguments = tuple[list[Any], dict[str, Any]]


def _standard_ids(configurable: Configurable, parameters: Mapping[str, inspect.Parameter], name: str) -> Arguments:
    """Return the arguments: `session_id` (else `thread_id`) by position, `user_id` by name if the function takes it."""
    args: list[Any] = []
    if parameters:
        session_id = configurable.get("session_id", configurable.get("thread_id"))
        if session_id is None:
            raise _missing(["session_id"], ["session_id"], configurable)
        args = [check_id(session_id, "session_id")]
    user_id, wanted = configurable.get("user_id"), parameters.get("user_id")
    if user_id is None:
        if wanted is not None and wanted.default is wanted.empty and len(parameters) > 1:
            raise _missing(["user_id"], ["session_id", "user_id"], configurable)
        return args, {}
    if wanted is None and inspect.Parameter.VAR_KEYWORD not in {p.kind for p in parameters.values()}:
        raise ConfigurationError(DROPPED_USER.format(name))
    return args, {"user_id": check_id(user_id, "user_id")}


def _configured_ids(
    specs: Sequence[ConfigurableFieldSpec], configurable: Configurable, parameters: Iterable[str], name: str
) -> Arguments:
    """Return the arguments for a function with `history_factory_config`: a single id by position, several by name."""
    names, parameters, extra = [spec.id for spec in specs], list(parameters), dict[str, Any]()
    if configurable.get("user_id") is not None and "user_id" not in names:
        if "user_id" not in parameters:
            raise ConfigurationError(DROPPED_USER.format(name))
        extra = {"user_id": check_id(configurable["user_id"], "user_id")}
        parameters.remove("user_id")
    missing = sorted(set(names) - configurable.keys())
    if missing and parameters:
        raise _missing(missing, names, configurable)
    for spec in specs:
        # Other fields need not be ids: LangChain's class passes on empty texts and long ones, as a token.
        is_id = spec.id in ("session_id", "user_id") or len(names) == 1
        if is_id and spec.annotation is str and spec.id in configurable:
            check_id(configurable[spec.id], spec.id)
    if len(names) == 1:
        return ([configurable[names[0]]] if parameters else []), extra
    if set(names) != set(parameters):
        raise ValueError(f"Expected keys {sorted(names)} do not match parameter names {sorted(parameters)} of {name}.")
    return [], {key: configurable[key] for key in names} | extra


def _missing(missing: list[str], expected: list[str], configurable: Iterable[str]) -> ValueError:
    example = {"configurable": dict.fromkeys(missing, "[your-value-here]")}
    given = [name for name in configurable if name not in (*IDS, *expected)]
    slips = [f". It has {name!r}{slip}" for name in given if (slip := did_you_mean(name, missing))]
    return ValueError(
        f"Missing keys {missing} in config['configurable'] Expected keys are {sorted(expected)}."
        f" When using via .invoke() or .stream(), pass in a config; e.g., chain.invoke(..., {example}){''.join(slips)}"
    )


# -- what the model is shown

SMALLER = 0.7  # share of the budget that a retry after a context overflow uses


class BoundSession(NamedTuple):
    """A session's history, whether it is one of memkit's own, its further memories, and its user."""

    history: Any
    native: bool
    memories: list[Memory]
    user_id: str | None = None


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    """The entries of `memories=` and the preprocessor, which make what the model is shown of a session."""

    entries: Sequence[Any]  # memories and factories of them
    preprocessor: Preprocessor | None  # as a runnable; None shows the whole past
    on_load_error: OnLoadError
    on_context_overflow: Literal["retry", "raise"]
    timezone: tzinfo | TimezoneOfUser | None = None
    measured: Measured = field(default_factory=Measured)

    async def bind(self, specs: Specs, configurable: Configurable, history: object) -> BoundSession:
        """Return the session of a history with its memories, factories called."""
        check_history(history)
        # The ids of the history in use, since `history_factory_config` may name them differently in the config.
        named = {"session_id": configurable.get("thread_id"), "user_id": None, **configurable}
        ids = {name: getattr(history, name, None) or named[name] for name in ("session_id", "user_id")}
        bound: list[Memory] = []
        for i, entry in enumerate(self.entries):
            memory = entry
            if not isinstance(entry, Memory):
                by_specs = specs and {spec.id for spec in specs} == {*inspect.signature(entry).parameters}
                given = configurable if by_specs else {k: v for k, v in ids.items() if v is not None}
                memory = await session_history(entry, specs if by_specs else None, given, name=f"memories[{i}]")
            if not isinstance(memory, Memory):
                raise ConfigurationError(f"memories[{i}] made a {type(memory).__name__}, not a Memory")
            # A single object in `memories=` would serve every session.
            for name, value in ids.items():
                if getattr(memory, name) not in (None, value):
                    of = f"{name} {getattr(memory, name)!r}, but this turn has {value!r}"
                    msg = f"memories[{i}] ({type(memory).__name__}) is bound to {of}: give its factory instead"
                    raise ConfigurationError(msg)
            bound.append(memory)
            memory.check_history(history)
        return BoundSession(history, is_native(history), bound, ids["user_id"])

    async def timezone_of(self, session: BoundSession) -> tzinfo | None:
        """Return the time zone of a session's user, which may ask the app: once a turn."""
        return await timezone_of_user(self.timezone, session.user_id)

    async def beside(self, memories: Sequence[Memory], *reads: Step[Any]) -> list[Any]:
        """Perform the reads of the history while the memories prefetch what they can; return what the reads return.

        On an event loop all go at once, and all memories prefetch; in sync code only those that wait for a server,
        since a thread costs more than reading a file.
        """
        able: list[Any] = [memory for memory in memories if hasattr(memory, "aprefetch")]
        if not able and len(reads) == 1:
            return [await reads[0]]
        remote = [memory for memory in able if getattr(memory, "is_remote", False)]

        def sync() -> list[Any]:
            reading: list[Future[None]] = []
            with suppress(RuntimeError):  # at interpreter shutdown no threads can be started
                reading += [shared_threads().submit(memory.prefetch) for memory in remote]
            try:
                return [read.sync() for read in reads]
            finally:  # a memory whose read has not begun, since all threads are busy, reads in its own load
                wait([each for each in reading if not each.cancel()])

        steps = [*reads, *(Step(lambda: None, memory.aprefetch) for memory in able)]
        found: list[Any] = (await Step(sync, gather(steps).asynchronous))[: len(reads)]
        for result in found:
            if isinstance(result, Exception):
                raise result
        return found

    async def load(
        self,
        session: BoundSession,
        view: HistoryView,
        asked: Sequence[BaseMessage],
        config: RunnableConfig,
        zone: tzinfo | None,
    ) -> list[Record]:
        """Load the records that the memories of a session hold for the new input, dated in the user's time zone.

        A memory that fails is handled by `on_load_error`, except for a `ConfigurationError`, which is always raised.
        """
        memories = session.memories
        if not memories:
            return []
        past, remarks = view.messages, list[str]()
        # During tool calls nothing new is asked: search for the question that they were made for.
        texts = [str(m.text) for m in asked if is_user_message(m)]
        question = "\n".join(texts or [next((str(m.text) for m in reversed(past) if is_user_message(m)), "")])
        seen = past if self.preprocessor is None else ()  # without it the model sees all of the past
        more: Any = {"trial": dry_run.get(), "remarks": remarks, "timezone": zone}
        query = Query(question, past, view.epoch, seen, **more)
        # On an event loop all memories load at the same time. A failure is returned as a value and stops no other.
        results = await gather([Step(partial(m.load, query), partial(m.aload, query)) for m in memories])
        loaded: list[Record] = []
        for memory, result in zip(memories, results, strict=True):
            if isinstance(result, Exception):
                await report_load_error(memory, result, self.on_load_error, config)
            else:
                loaded += tag_source(result, name_of(memory), zone)
        for remark in remarks:
            await event(config, REMARK, {"message": remark})
        return loaded

    async def compose(
        self, context: TurnContext, loaded: Sequence[Record], config: RunnableConfig, *, in_run: bool = False
    ) -> tuple[list[BaseMessage], list[BaseMessage], BaseMessage | None]:
        """Preprocess the past; return it with the new input and a note of the records that neither of them contains.

        Records that do not fit are left out. `in_run` says that the input is an agent's run so far. A preprocessor of
        memkit, and whatever is piped with it, is given past and run together and may cut both; without one the run
        stays as it is, since a function made for histories may not expect it.
        """
        asked, budgets, remarks = [*context.asked], budgets_of(self.preprocessor), list[str]()
        past: Any = context.past
        context.in_run = in_run and bool(budgets)
        context.excess = self.measured.excess(_place(config))
        if (chain := self.preprocessor) is not None:
            # The preprocessor sets room aside for the largest possible note: which records repeat the past is known
            # only once that is cut.
            most = compose_notes(loaded, asked)
            context.notes = [] if most is None else [most]
            given: Any = [*past, *asked] if context.in_run else past
            shown = await Step(lambda: chain.invoke(given, config), lambda: chain.ainvoke(given, config))
            past, asked = parts_of_run(shown, asked) if context.in_run else (shown, asked)
        note: BaseMessage | None = compose_notes(loaded, [*past, *asked])
        for budget in budgets if note is not None else ():
            note = await budget.counting(partial(budget.fit_note, note, [*past, *asked], context, remarks))
        for remark in remarks:
            await event(config, REMARK, {"message": remark})
        context.notes = [] if note is None else [note]
        context.settled = True
        return past, asked, note

    async def measure(
        self, context: TurnContext, shown: Sequence[BaseMessage], call: Any, config: RunnableConfig
    ) -> None:
        """Compare what a model was given with what was composed, so that the next call has room for the difference."""
        counting = [budget for budget in budgets_of(self.preprocessor) if not budget.counts_messages]
        if counting:
            budget = min(counting, key=lambda each: each.max_tokens)
            place = _place(config)
            await budget.counting(lambda: self.measured.measure(place, budget, context, shown, call))

    async def shrink(self, context: TurnContext, config: RunnableConfig, error: ContextOverflowError) -> None:
        """Scale the budget down for one retry after a context overflow, or raise the model's error."""
        if context.scale < 1 or not context.used or self.on_context_overflow == "raise":
            raise error
        logger.warning("the model was given more than its context holds; trying once with %d%%", 100 * SMALLER)
        await event(config, "memkit_context_overflow", {"error": type(error).__name__, "scale": SMALLER})
        context.scale = SMALLER


def _place(config: RunnableConfig) -> tuple[Any, Any]:
    """Return user and session of a turn."""
    configurable = config.get("configurable") or {}
    history = configurable.get("message_history")
    session_id = configurable.get("session_id", configurable.get("thread_id"))
    user_id = getattr(history, "user_id", None) or configurable.get("user_id")
    return user_id, getattr(history, "session_id", None) or session_id


def memory_entries(entries: Any) -> list[Any]:
    """Validate the `memories` argument and wrap retrievers into memories."""
    if not isinstance(entries, Sequence):
        raise ConfigurationError(f"memories must be a list, not {type(entries).__name__}")
    found: list[Any] = []
    for i, entry in enumerate(entries):
        is_class = isinstance(entry, type)
        if is_class or not (isinstance(entry, (Memory, Runnable)) or callable(entry)):
            name = f"the class {entry.__name__}" if is_class else type(entry).__name__
            maker = entry.__name__ if is_class and hasattr(entry, "factory") else "X"
            kinds = f"a Memory, a function (session_id, user_id) that makes one ({maker}.factory(...)), or a retriever"
            raise ConfigurationError(f"memories[{i}] must be {kinds}, not {name}")
        if isinstance(entry, TrimPreprocessor):
            raise ConfigurationError(f"memories[{i}] is a preprocessor: give it as preprocessor=")
        is_retriever = isinstance(entry, Runnable) and not isinstance(entry, Memory)
        found.append(RetrieverMemory(entry) if is_retriever else entry)
    return found
