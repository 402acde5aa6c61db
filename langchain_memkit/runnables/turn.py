"""One turn as a runnable: check the ids, capture the input, load the past, run, and save before the call returns.

The steps are flows (see `_sync`), written once for sync and async calls.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.callbacks.manager import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs

from langchain_memkit._compat import ContextOverflowError
from langchain_memkit._histories import is_native, stored_ids
from langchain_memkit._sync import Step, adrive, as_step, both, drive, event, shielded
from langchain_memkit.base import CONTEXT, GetSessionHistory, HistoryView, Memory, TurnContext, check_id
from langchain_memkit.messages.chain_io import StreamedOutput, input_messages
from langchain_memkit.messages.notes import compose_notes, is_note
from langchain_memkit.preprocessors.budget import asks_for_window, load
from langchain_memkit.runnables.memories import insert_note
from langchain_memkit.runnables.saving import OpenTurn, TurnOptions
from langchain_memkit.runnables.session import session_history
from langchain_memkit.runnables.wiring import PAST_NOT_SHOWN, ModelInputWatch, Wiring, once_per_process, source_location

__all__ = ["HistoryTurn"]

logger = logging.getLogger("langchain_memkit")

TOLD = {
    "not shown": (
        "the conversation has a past, and none of its text was found in what a model of this turn was given (said once "
        "for chains of this shape). Is history_messages_key the variable of the prompt, and does every step in between "
        "hand it on? See docs/errors.md"
    ),
    "repr": (
        "a model was given the past as the Python repr of messages (said once for chains of this shape). Use "
        "MessagesPlaceholder(...) in the prompt, or get_buffer_string(...) to make text of it. See docs/errors.md"
    ),
}


class HistoryTurn(Runnable[Any, Any]):
    """Runnable that performs the whole turn; `RunnableWithMessageHistory` binds it."""

    watched: bool = True  # whether it is still unknown if the models are given the past

    def __init__(
        self,
        runnable: Runnable[Any, Any],
        get_session_history: GetSessionHistory,
        *,
        input_key: str | None,
        history_key: str | None,
        specs: Sequence[ConfigurableFieldSpec] | None,
        options: TurnOptions,
    ) -> None:
        self.runnable = runnable
        self.name = "RunnableWithMessageHistory"
        self._get_session_history = get_session_history
        self._input_key = input_key
        self._history_key = history_key
        self._specs = specs
        self._options = options
        self.wiring = Wiring(input_key, history_key)

    @property
    def preprocessor(self) -> Any:
        """The preprocessor of the history; None if there is none."""
        return self._options.preprocessor

    def open(self, input: Any, config: RunnableConfig | None = None) -> OpenTurn:
        """Build the turn's prompt as a dry run: load and compose, without calling the model or storing anything."""

        def opened(value: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> OpenTurn:
            return drive(self._tried(value, config))

        turn: OpenTurn = self._call_with_config(opened, input, config)
        return turn

    async def aopen(self, input: Any, config: RunnableConfig | None = None) -> OpenTurn:
        """Run `open` asynchronously."""

        async def opened(value: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig) -> OpenTurn:
            return await adrive(self._tried(value, config))

        turn: OpenTurn = await self._acall_with_config(opened, input, config)
        return turn

    # -- the four ways to run

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn and return the runnable's output."""

        def turn_of(value: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> Any:
            turn = drive(self._open(value, config))
            try:
                try:
                    output = self.runnable.invoke(turn.input, turn.config, **kwargs)
                except ContextOverflowError as error:
                    turn = drive(self._smaller(turn, value, config, error))
                    output = self.runnable.invoke(turn.input, turn.config, **kwargs)
            except Exception:
                drive(self._options.model_failed(turn))
                raise
            drive(self._finished(turn, output))
            return output

        return self._call_with_config(turn_of, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run `invoke` asynchronously."""

        async def turn_of(value: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig) -> Any:
            turn = await adrive(self._open(value, config))
            try:
                try:
                    output = await self.runnable.ainvoke(turn.input, turn.config, **kwargs)
                except ContextOverflowError as error:
                    turn = await adrive(self._smaller(turn, value, config, error))
                    output = await self.runnable.ainvoke(turn.input, turn.config, **kwargs)
            except Exception:
                await shielded(lambda: self._options.model_failed(turn))
                raise
            await shielded(lambda: self._finished(turn, output))
            return output

        return await self._acall_with_config(turn_of, input, config)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Stream one turn; it is saved when the stream ends or is closed."""
        yield from self.transform(iter([input]), config, **kwargs)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Run `stream` asynchronously."""

        async def once() -> AsyncIterator[Any]:
            yield input

        async with aclosing(self.atransform(once(), config, **kwargs)) as chunks:  # type: ignore[type-var]  # a generator
            async for chunk in chunks:
                yield chunk

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Stream one turn for a streamed input, which is collected first."""
        inner: list[Any] = []

        def turn_of(
            values: Iterator[Any], run_manager: CallbackManagerForChainRun, config: RunnableConfig
        ) -> Iterator[Any]:
            inner.append(self._stream(values, config, kwargs))
            return inner[0]  # type: ignore[no-any-return]  # the generator just made

        outer = self._transform_stream_with_config(input, turn_of, config)
        try:
            yield from outer
        finally:
            # Core's wrapper ends without closing the generator, and the partial answer would not be saved.
            for generator in inner:
                generator.close()

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run `transform` asynchronously."""
        inner: list[Any] = []

        def turn_of(
            values: AsyncIterator[Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
        ) -> AsyncIterator[Any]:
            inner.append(self._astream(values, config, kwargs))
            return inner[0]  # type: ignore[no-any-return]  # the generator just made

        try:
            async with aclosing(self._atransform_stream_with_config(input, turn_of, config)) as outer:  # type: ignore[type-var]  # a generator
                async for chunk in outer:
                    yield chunk
        finally:
            for generator in inner:
                await generator.aclose()

    def _stream(self, values: Iterator[Any], config: RunnableConfig, kwargs: dict[str, Any]) -> Iterator[Any]:
        gathered = StreamedOutput()
        for value in values:
            gathered.add(value)
        turn = drive(self._open(gathered.value, config))
        streamed = StreamedOutput()
        chunks = iter(self.runnable.stream(turn.input, turn.config, **kwargs))
        try:
            while True:
                try:
                    chunk = next(chunks)
                except StopIteration:
                    break
                except ContextOverflowError as error:
                    turn = drive(self._smaller(turn, gathered.value, config, error, streamed))
                    chunks = iter(self.runnable.stream(turn.input, turn.config, **kwargs))
                    continue
                streamed.add(chunk)
                yield chunk
        except Exception:
            drive(self._options.model_failed(turn))
            raise
        except BaseException:  # closed by the consumer, collected, or Ctrl-C
            # Save before the model's stream is closed, since some wrappers run it to its end first.
            drive(self._options.abort(turn, streamed))
            raise
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        drive(self._finished(turn, streamed.value))

    async def _astream(
        self, values: AsyncIterator[Any], config: RunnableConfig, kwargs: dict[str, Any]
    ) -> AsyncIterator[Any]:
        gathered = StreamedOutput()
        async for value in values:
            gathered.add(value)
        turn = await adrive(self._open(gathered.value, config))
        streamed = StreamedOutput()
        chunks = aiter(self.runnable.astream(turn.input, turn.config, **kwargs))
        try:
            while True:
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    break
                except ContextOverflowError as error:
                    turn = await adrive(self._smaller(turn, gathered.value, config, error, streamed))
                    chunks = aiter(self.runnable.astream(turn.input, turn.config, **kwargs))
                    continue
                streamed.add(chunk)
                yield chunk
        except Exception:
            await shielded(lambda: self._options.model_failed(turn))
            raise
        # Closed by the consumer, collected, or cancelled. Shielded, so that a second cancellation cannot interrupt the
        # save.
        except BaseException:
            await shielded(lambda: self._options.abort(turn, streamed))
            raise
        finally:
            if hasattr(chunks, "aclose"):
                await chunks.aclose()
        await shielded(lambda: self._finished(turn, streamed.value))

    # -- the steps of a turn

    async def _tried(self, value: Any, config: RunnableConfig) -> OpenTurn:
        return await self._open(value, config, trial=True)

    async def _open(self, value: Any, config: RunnableConfig, scale: float = 1.0, *, trial: bool = False) -> OpenTurn:
        """Check the ids, capture the input, load the past and compose the prompt. Nothing is stored.

        Args:
            value: The input of the chain.
            config: The config of the call.
            scale: Share of the budget to use; less than 1 after a context overflow.
            trial: Whether this is a dry run.
        """
        if (self._input_key or self._history_key) and not (isinstance(value, dict) or self.wiring.plain):
            msg = (
                f"with input_messages_key or history_messages_key the input must be a dict, not {type(value).__name__}"
            )
            raise ValueError(msg)
        # Notes come back in the state of a graph or from a client; they are not part of the input.
        given = [m for m in input_messages(value, self._input_key) if not is_note(m)]
        value = self.wiring.as_dict(value, given)
        configurable = config.get("configurable") or {}
        turn_id = configurable.get("turn_id")
        # One id per call makes every retry of its save idempotent; a caller's own id extends that to retries of the
        # call.
        turn_id = str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")
        history = configurable.get("message_history")  # callers of `.bound` pass it, as with LangChain's class
        if history is None:
            history = await session_history(self._get_session_history, self._specs, configurable)
        memories = await self._options.memories.bind(self._specs, configurable, history)
        native = is_native(history)
        ids = [m.id for m in given if m.id]
        known: set[str] = set()
        read: HistoryView | None = None
        # Only resent messages have ids, so plain input costs no lookup.
        if native and ids:
            known, read = await self._look_up(history, memories, ids, config)
            given, known = _new_or_whole(given, known)
        # The runnable finds the history where LangChain's class puts it.
        context = TurnContext(self._asked(given, known), scale=scale)
        config = {**config, "configurable": {**configurable, "message_history": history, CONTEXT: context}}
        if read is None:
            read = await self._options.memories.beside(memories, self._past(history, config, native=native))
        view = read
        # For other packages' histories there is no lookup by id: the loaded messages are all that is known.
        known |= {m.id for m in view.messages if m.id} & {m.id for m in given}
        given, known = _new_or_whole(given, known)
        new = [m for m in given if not m.id or m.id not in known]
        context.asked = asked = self._asked(given, known)
        context.past = view.messages
        chain = self._options.preprocessor
        whole = chain is None
        loaded = await self._options.memories.load(memories, view, asked, config, whole=whole, trial=trial)
        past: list[BaseMessage] = view.messages
        if chain is not None:
            # Reserve room for the largest possible note: which records repeat the past is known only once that is cut.
            most = compose_notes(loaded, asked)
            context.notes = [] if most is None else [most]
            past = await Step(lambda: chain.invoke(past, config), lambda: chain.ainvoke(past, config))
        note = compose_notes(loaded, [*past, *asked])
        context.notes = [] if note is None else [note]
        asked_ids = {m.id for m in asked if m.id}
        # A client may resend stored messages as input; the model must not see them twice.
        if any(m.id in asked_ids for m in past):
            past = [m for m in past if m.id not in asked_ids]
        before, after = insert_note(past, asked, note, apart=self._history_key is not None)
        composed = self._compose(value, before, after)
        # Epoch and time of this read travel with the turn: if the session is cleared before the save, the append is
        # refused.
        epoch, since = (view.epoch, view.read_at) if native else (None, None)
        watch = ModelInputWatch(before, asked) if self.watched and before and not trial else None
        if watch is not None:
            config = merge_configs(config, {"callbacks": [watch]})
        return OpenTurn(
            history=history,
            native=native,
            memories=memories,
            turn_id=turn_id,
            epoch=epoch,
            since=since,
            new=new,
            shown=[*before, *after],
            asked=asked,
            input=composed,
            config=config,
            # With a TTL the turns may expire before the save, so that this turn draws a new epoch.
            begun=native and view.seq > 0 and not getattr(history, "ttl", None),
            head=view.head,
            watch=watch,
        )

    async def _look_up(
        self, history: Any, memories: list[Memory], ids: list[str], config: RunnableConfig
    ) -> tuple[set[str], HistoryView | None]:
        """Look up which messages are stored; on an event loop read the past at once, if it does not depend on that."""
        chain, stored = self._options.preprocessor, stored_ids(history, ids)
        if asks_for_window(chain):  # the window depends on which part of the input is new
            return await stored, None

        reads = both(stored, self._past(history, config, native=True))
        return await self._options.memories.beside(memories, reads)

    def _past(self, history: Any, config: RunnableConfig, *, native: bool) -> Step[HistoryView]:
        return as_step(lambda: load(history, self._options.preprocessor, config, native=native))

    async def _finished(self, turn: OpenTurn, output: Any) -> None:
        """Store the turn, and warn once if no model of it was given any of the past."""
        await self._options.save(turn, output)
        verdict = None if turn.watch is None else turn.watch.verdict()
        if verdict is None or not self.watched:
            return
        self.watched = False
        if verdict != "shown":
            keys = (self._input_key, self._history_key)
            if once_per_process(
                (verdict, *keys, source_location(self._get_session_history), source_location(self.runnable))
            ):
                logger.warning(TOLD[verdict])
            await event(turn.config, PAST_NOT_SHOWN, {"reason": verdict, "turn_id": turn.turn_id})

    def _asked(self, given: list[BaseMessage], known: set[str]) -> list[BaseMessage]:
        """Return the part of the input that the model sees after the past."""
        return given if self._history_key else ([m for m in given if not m.id or m.id not in known] or given[-1:])

    async def _smaller(
        self,
        turn: OpenTurn,
        value: Any,
        config: RunnableConfig,
        error: ContextOverflowError,
        streamed: StreamedOutput | None = None,
    ) -> OpenTurn:
        """Rebuild the turn with less of the past after a context overflow, or raise the model's error.

        Turn id, epoch, history and new input stay those of the first attempt; only the prompt changes.
        """
        context: TurnContext = turn.config["configurable"][CONTEXT]
        said = streamed is not None and not streamed.empty
        await self._options.overflowed(context, turn.config, error, said=said)
        again = await self._open(value, config, context.scale)
        made = {"shown": again.shown, "asked": again.asked, "input": again.input}
        return replace(turn, **made, config=again.config, watch=again.watch)

    def _compose(self, value: Any, past: list[BaseMessage], asked: list[BaseMessage]) -> Any:
        if self._history_key:
            return {**self.wiring.with_texts(value), self._history_key: past}
        messages = [*past, *asked]
        return {**value, self._input_key: messages} if self._input_key else messages


def _new_or_whole(given: list[BaseMessage], known: set[str]) -> tuple[list[BaseMessage], set[str]]:
    """Return the input and the ids of its stored messages; treat all of it as new if only a part has ids.

    Removing the known answers from a conversation whose questions have no ids would store the questions alone.
    """
    stored = [i for i, message in enumerate(given) if message.id in known]
    if not stored or all(message.id for message in given[: stored[-1]]):
        return given, known
    return [message.model_copy(update={"id": None}) for message in given], set()
