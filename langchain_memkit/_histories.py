"""Access to any chat history as steps: memkit's own, and other packages' through LangChain's methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig, run_in_executor

from langchain_memkit._compat import BaseChatMessageHistory
from langchain_memkit._sync import Step, as_step
from langchain_memkit.base import HistoryView, Messages, Preprocessor, Window, check_size
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, logger
from langchain_memkit.messages.trimming import cut_tail

T = TypeVar("T")

History: TypeAlias = Any
"""A chat history of any package: LangChain's class, a subclass of it, or an object with the same methods."""

VERBS = ("messages", "aget_messages", "add_message", "add_messages", "aadd_messages", "clear", "aclear")
"""Names of the methods of a LangChain chat history."""

HANDS = ("append_turn", "aappend_turn", "edit", "aedit", "view", "aview", "iter_turns", "aiter_turns", "turn_store")
"""Names of memkit's own methods through which the text of a conversation passes."""

STORE_HANDS = ("append", "page_back", "page_forward", "storable")
"""Names of the methods of a turn store through which it passes."""


def is_native(history: History) -> bool:
    """Return whether a history is used through `append_turn` and `view` instead of LangChain's methods.

    That is so if it has the two, and neither a subclass nor the object itself overrides one of LangChain's methods: the
    override would be bypassed.
    """
    return has_native(history, "append_turn", "view")


def has_native(history: History, *methods: str) -> bool:
    """Return whether a history has these memkit methods, and they may be used in place of LangChain's."""
    if not all(hasattr(history, method) for method in methods):
        return False
    if not hasattr(history, "append_turn"):
        # another package's history that has some of memkit's methods: there is no memkit class whose methods it
        # overrides
        return True
    changed = [verb for verb in VERBS if overrides(history, verb)]
    if changed:
        _report(f"{type(history).__module__}.{type(history).__qualname__}", tuple(changed))
    return not changed


def overrides(history: History, verb: str, *, without: Sequence[str] = ()) -> bool:
    """Return whether a method is overridden, on the object or by a subclass of the class that defines `append_turn`.

    Overrides in classes that define one of the methods `without` do not count.
    """
    spaces = [getattr(history, "__dict__", {}), *(vars(kind) for kind in type(history).__mro__)]
    native = [i for i, names in enumerate(spaces) if "append_turn" in names]
    # none of them may define it: a wrapper can have it from `__getattr__`
    above = spaces[: native[-1]] if native else spaces
    return any(verb in names and not any(other in names for other in without) for names in above)


@cache
def _report(name: str, changed: tuple[str, ...]) -> None:
    """Warn once per class about the cost of its overrides, and name the alternatives."""
    single = ", every message is stored as a turn of its own" if "add_message" in changed else ""
    logger.warning(
        "%s overrides %s, so it is used through LangChain's methods, without turn_id, retried saves and the check for "
        "a clear meanwhile (every turn reads all of `messages`%s); before_save= (what is stored) and preprocessor= "
        "(what the model is shown) avoid that, see docs/subclasses.md",
        name,
        ", ".join(changed),
        single,
    )


def keeps_summaries(history: History) -> bool:
    """Return whether summaries may be stored beside a history: in its own database, as plain text.

    Not beside one whose class, or that of its store, changes what is written or read: it may encrypt it.
    """
    return _is_plain(history, "put_summary") and bool(history.turn_store.keeps_summaries)


def keeps_index(history: History) -> bool:
    """Return whether what is derived from turns may be stored with them; otherwise as `keeps_summaries`."""
    return _is_plain(history, "keep_index") and bool(history.turn_store.keeps_index)


def _is_plain(history: History, method: str) -> bool:
    """Return whether neither a history nor its store changes what is stored, below the class that has a method."""
    if not is_native(history) or any(overrides(history, verb) for verb in HANDS):
        return False
    store = history.turn_store
    spaces = [getattr(store, "__dict__", {}), *(vars(kind) for kind in type(store).__mro__)]
    owner = next((i for i, names in enumerate(spaces) if method in names), None)
    if owner is None:  # it wraps another store
        return False
    return not any(verb in names for verb in STORE_HANDS for names in spaces[:owner])


def read_messages(history: History) -> Step[list[BaseMessage]]:
    """Read the whole conversation, oldest first, in whatever form the history keeps its messages."""
    read: Step[Any] = _step(history, lambda: history.messages, "aget_messages")

    async def converted() -> list[BaseMessage]:
        return to_messages(await read, f"`messages` of a {type(history).__name__}")

    return as_step(converted)


def to_messages(given: Any, name: str) -> list[BaseMessage]:
    """Convert messages in any form that LangChain takes: messages, dicts, (role, text), or texts of the user.

    Raises:
        ConfigurationError: LangChain makes no messages of them. `name` says whose they are; none is quoted.
    """
    problem = f"a {type(given).__name__}"
    if not isinstance(given, (str, Mapping)):
        try:
            return convert_to_messages(given)
        except Exception as error:  # noqa: BLE001  # core raises whatever a wrong message leads to
            problem = f"what langchain-core makes no messages of ({type(error).__name__})"
    msg = f"{name} must be a list of messages, or of (role, text), not of (question, answer), not {problem}"
    raise ConfigurationError(msg)  # outside of `except`: core's error quotes the messages, so do not chain it


def asks_for_window(preprocessor: Preprocessor | None) -> bool:
    """Return whether a preprocessor (or the first of a sequence) has `window`, to say how much history it needs."""
    return hasattr(getattr(preprocessor, "first", preprocessor), "window")


def check_replaces(seq: object, history: History) -> None:
    """Refuse the `replaces` of a config, unless it is None, or a position and turns of the history can be replaced."""
    if seq is None:
        return
    check_size(seq, "replaces", 1)
    verbs = ("append_turn", "aappend_turn", "view", "aview")
    if not (has_native(history, "regenerate") and is_native(history)) or any(overrides(history, v) for v in verbs):
        raise ConfigurationError(
            f"the config has `replaces`, but turns of a {type(history).__name__} cannot be replaced: that takes a "
            "history of langchain_memkit whose methods are not overridden. Leave `replaces` out, or use such a history"
        )
    history.turn_store.check_edits()


async def load_history(
    history: History, preprocessor: Preprocessor | None, config: RunnableConfig, *, native: bool
) -> HistoryView:
    """Read the history of a turn: a memkit history (`native`) in part, if the preprocessor says how much it needs."""
    if not native:
        return HistoryView(await read_messages(history))
    size: int | None = getattr(history, "history_size", None)
    configurable, given = config.get("configurable") or {}, dict[str, Any]()
    if configurable.get("replaces"):
        given = {name: configurable.get(name) for name in ("replaces", "turn_id")}
    if not asks_for_window(preprocessor):
        given["max_messages"] = size
        return await Step(lambda: history.view(**given), lambda: history.aview(**given))
    first: Any = getattr(preprocessor, "first", preprocessor)
    window: Window = await Step(lambda: first.window(config), lambda: first.awindow(config))
    # Apply `history_size` to bounded windows only, and to none of which a summary is made: cut to the newest messages,
    # they would leave a gap between the summary and them.
    is_bounded = window.max_messages is not None or window.max_tokens is not None
    if window.summarizes or not is_bounded:
        size = None
    if size is not None:
        window = replace(window, max_messages=min(size, size if window.max_messages is None else window.max_messages))
    given["window"] = window
    view: HistoryView = await Step(lambda: history.view(**given), lambda: history.aview(**given))
    read: Any = view.messages
    if size is None or len(read) <= size:
        return view
    # Windows are read in whole rows, so they may hold more.
    begin = len(read) - len(cut_tail(read, read.tokens, max_messages=size))
    return view._replace(messages=read.cut(begin))


async def add_messages(history: History, messages: Messages) -> None:
    """Append messages.

    Raises:
        HistoryWriteError: The history has no method that adds any, as where it is only read.
    """
    try:
        await _step(history, lambda: history.add_messages(messages), "aadd_messages", messages)
    except (AttributeError, NotImplementedError) as error:
        if not _only_reads(history):
            raise
        raise HistoryWriteError(
            f"a {type(history).__name__} has neither add_messages nor add_message, so nothing was stored: define "
            'add_messages(messages) in it, or give on_save_error="log" to go on without saving',
            messages=messages,
        ) from error


def _only_reads(history: History) -> bool:
    """Return whether a history has none of the methods that add messages, or merely LangChain's, which call them."""
    verbs = ("add_messages", "add_message")
    found = [getattr(getattr(history, verb, None), "__func__", None) for verb in verbs if hasattr(history, verb)]
    return all(function in [getattr(BaseChatMessageHistory, verb) for verb in verbs] for function in found)


def append_turn(
    history: History,
    messages: Messages,
    *,
    head: object,
    after: int | None,
    trace: object = None,
    index: object = None,
    **given: object,
) -> Step[int]:
    """Append a turn to one of memkit's histories.

    `head` merely saves a query, `after` (the `expected_seq`) tells of turns of others, `trace` of the models' input,
    and `index` holds what memories derived. None is passed to a subclass's override, which may not take them; the last
    three not to a layout without positions.
    """
    if not (overrides(history, "append_turn") or overrides(history, "aappend_turn")):
        placed = getattr(getattr(history, "turn_store", None), "layout", "") == "turns"
        more = {"expected_seq": after, "trace": trace, "index": index or None} if placed else {}
        more["head"] = head
        given |= {name: value for name, value in more.items() if value is not None}
    return Step(lambda: history.append_turn(messages, **given), lambda: history.aappend_turn(messages, **given))


def clear_messages(history: History) -> Step[None]:
    """Clear the session."""
    return _step(history, lambda: history.clear(), "aclear")


def stored_ids(history: History, ids: Sequence[str], replaces: int | None = None) -> Step[set[str]]:
    """Return those of the message ids that one of memkit's histories holds, with one indexed query.

    With `replaces`, those before that position: a message of what is replaced is new input, if it is given again.
    """
    found: Step[set[str]] = Step(lambda: history.stored_ids(ids), lambda: history.astored_ids(ids))
    if replaces is None:
        return found

    async def before() -> set[str]:
        later = await turns_between(history, replaces - 1)
        return await found - {message.id for turn in later for message in turn.messages}

    return as_step(before)


def turns_between(
    history: History, after_seq: int | None, before_seq: int | None = None, **options: bool
) -> Step[list[Any]]:
    """Return the turns between two positions in one of memkit's histories, oldest first; None for no limit."""
    given: dict[str, Any] = {"after_seq": after_seq, "before_seq": before_seq, **options}

    async def asynchronous() -> list[Any]:
        return [turn async for turn in history.aiter_turns(**given)]

    return Step(lambda: list(history.iter_turns(**given)), asynchronous)


async def epoch_at(history: History, seq: int) -> int | None:
    """Return the epoch of the turn at a position in one of memkit's histories; None if the turn was erased."""
    return next((turn.epoch for turn in await turns_between(history, seq - 1, seq + 1)), None)


async def seq_of(history: History, op: str, after_seq: int) -> int | None:
    """Search one of memkit's histories after a position for a turn by its op, and return its position or None."""
    return next((turn.seq for turn in await turns_between(history, after_seq) if turn.op == op), None)


def _step(history: History, sync: Callable[[], T], twin: str, *args: object) -> Step[T]:
    async def asynchronous() -> T:
        # the async methods of langchain-community's SQLChatMessageHistory over a sync engine only raise
        if not hasattr(history, twin) or not getattr(history, "async_mode", True):
            return await run_in_executor(None, sync)
        result: T = await getattr(history, twin)(*args)
        return result

    return Step(sync, asynchronous)
