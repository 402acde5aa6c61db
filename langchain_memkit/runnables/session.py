"""The session of a call: ids from the config, and the call of `get_session_history`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from langchain_core.runnables import ConfigurableFieldSpec
from pydantic import BaseModel

from langchain_memkit._compat import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_memkit._sync import Step, call_user_function
from langchain_memkit.base import GetSessionHistory, check_id, did_you_mean
from langchain_memkit.base.validation import IDS
from langchain_memkit.errors import ConfigurationError

NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NO_ARGUMENTS = (BaseModel.__init__, BaseChatMessageHistory.__init__, InMemoryChatMessageHistory.__init__)
DROPPED_USER = (
    "config['configurable'] has a user_id that {} cannot take, so users would share what it gives. "
    "Give it a parameter `user_id=None`, or leave user_id out."
)


def session_history(
    function: GetSessionHistory,
    specs: Sequence[ConfigurableFieldSpec] | None,
    configurable: dict[str, Any],
    name: str = "get_session_history",
) -> Step[Any]:
    """Prepare the call of `get_session_history` by its signature, after checking every id.

    Args:
        function: `get_session_history` or a memory factory, plain or async.
        specs: The keys that `history_factory_config` names; None for `session_id` and `user_id`.
        configurable: `config["configurable"]` of the call.
        name: The function's name, for errors.

    Returns:
        The step that calls it; it raises a `ConfigurationError` if the function returns None.

    Raises:
        TypeError: An id is not a string.
        ValueError: An id is missing or malformed, or the function cannot take one that is present.
    """
    own = getattr(function, "does_no_io", False)  # a factory of ours, whose calls are all alike
    kind: Any = type(function)
    parameters = _parameters_of_calls(kind) if own else inspect.signature(function).parameters
    args, kwargs = (
        _configured_ids(specs, configurable, list(parameters), name)
        if specs
        else _standard_ids(parameters, configurable, name)
    )

    def checked(result: Any) -> Any:
        if result is None:
            msg = f"{name} returned None: it must return what it makes, so perhaps its `return` is missing"
            raise ConfigurationError(msg)
        return result

    def call() -> Any:
        return checked(function(*args, **kwargs))

    async def acall() -> Any:
        return checked(await function(*args, **kwargs))

    async def call_now() -> Any:
        return call()

    if own:  # a thread would only make it slower
        return Step(call, call_now)
    return call_user_function(acall if inspect.iscoroutinefunction(function) else call, name=name)


def checked_function(
    function: object, specs: Sequence[ConfigurableFieldSpec] | None = None, name: str = "get_session_history"
) -> GetSessionHistory:
    """Validate that the argument can be called with the ids, and is not a class that needs further arguments.

    Args:
        function: The `get_session_history=` argument.
        specs: The keys that `history_factory_config` names.
        name: The argument's name, for errors.

    Raises:
        ConfigurationError: It cannot be called so; the text names the factory, or a function that can.
    """
    if not callable(function):
        msg = f"{name} must be callable: a function of session_id, or X.factory(...)"
        raise ConfigurationError(msg)
    maker = getattr(function, "__self__", None)
    if isinstance(maker, type) and getattr(function, "__name__", "") == "factory":
        msg = f"{name} is the method {maker.__name__}.factory itself: call it, as in {maker.__name__}.factory(...)"
        raise ConfigurationError(msg)
    if isinstance(function, type):
        parameters = list(_parameters(function))
        if len(specs or ()) < 2 and _by_name_only(function, parameters):
            of = function.__name__
            msg = (
                f"{name} is the class {of}, which takes no session_id by position: keep one for each session in a "
                f"dict, sessions, and give lambda session_id: sessions.setdefault(session_id, {of}()), or "
                "SQLiteChatMessageHistory.factory(...)"
            )
            raise ConfigurationError(msg)
        # A call passes only the configured ids, so a class that requires more would fail in each turn: refuse it now.
        needed = [p.name for p in parameters if p.default is p.empty and p.kind in NAMED]
        others = [n for n in needed if n not in ("session_id", "user_id", *(spec.id for spec in specs or ()))]
        if others and any(p.name == "session_id" for p in parameters):
            of = function.__name__
            factory = f"{of}.factory({', '.join(others)})" if hasattr(function, "factory") else ""
            way_out = f"{factory}, or " if factory else ""
            given = needed if "session_id" in needed else [*needed, "session_id=session_id"]
            msg = (
                f"{name} is the class {of}, which needs {', '.join(others)} besides session_id: give {way_out}a "
                f"function, as in lambda session_id: {of}({', '.join(given)})"
            )
            raise ConfigurationError(msg)
    return function


@lru_cache(maxsize=64)
def _parameters_of_calls(kind: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters with which an object of a class is called."""
    (_, *parameters) = inspect.signature(kind.__call__).parameters.values()  # without `self`
    return {parameter.name: parameter for parameter in parameters}


def _by_name_only(kind: type, parameters: Sequence[inspect.Parameter]) -> bool:
    """Return whether a class has parameters, but none by position; `*args` of LangChain's base classes do not count."""
    kinds = {parameter.kind for parameter in parameters}
    if not kinds or not kinds.isdisjoint(BY_POSITION):
        return False
    return inspect.Parameter.VAR_POSITIONAL not in kinds or inspect.getattr_static(kind, "__init__") in NO_ARGUMENTS


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    """Return the parameters of a callable; none if it has no signature."""
    try:
        return inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()


def _standard_ids(
    parameters: Mapping[str, inspect.Parameter], configurable: dict[str, Any], name: str
) -> tuple[list[Any], dict[str, Any]]:
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
    specs: Sequence[ConfigurableFieldSpec], configurable: dict[str, Any], parameters: list[str], name: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments for a factory with `history_factory_config`: a single id by position, several by name."""
    names = [spec.id for spec in specs]
    extra: dict[str, Any] = {}
    if configurable.get("user_id") is not None and "user_id" not in names:
        if "user_id" not in parameters:
            raise ConfigurationError(DROPPED_USER.format(name))
        extra = {"user_id": check_id(configurable["user_id"], "user_id")}
        parameters = [parameter for parameter in parameters if parameter != "user_id"]
    missing = sorted(set(names) - configurable.keys())
    if missing and parameters:
        raise _missing(missing, names, configurable)
    for spec in specs:
        if spec.annotation is str and spec.id in configurable:
            check_id(configurable[spec.id], spec.id)
    if len(names) == 1:
        return ([configurable[names[0]]] if parameters else []), extra
    if set(names) != set(parameters):
        msg = f"Expected keys {sorted(names)} do not match parameter names {sorted(parameters)} of {name}."
        raise ValueError(msg)
    return [], {key: configurable[key] for key in names} | extra


def _missing(missing: list[str], expected: list[str], configurable: Iterable[str]) -> ValueError:
    example = {"configurable": dict.fromkeys(missing, "[your-value-here]")}
    given = [name for name in configurable if name not in (*IDS, *expected)]
    slips = [f". It has {name!r}{slip}" for name in given if (slip := did_you_mean(name, missing))]
    return ValueError(
        f"Missing keys {missing} in config['configurable'] Expected keys are {sorted(expected)}."
        f" When using via .invoke() or .stream(), pass in a config; e.g., chain.invoke(..., {example}){''.join(slips)}"
    )
