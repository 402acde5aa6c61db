"""One turn as a runnable: check the ids, capture the input, load the past, run, and save before the call returns.

The steps are flows (see `_sync`), written once for sync and async calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_memkit._histories import asks_for_window, check_replaces, load_history, stored_ids
from langchain_memkit._sync import (
    Step,
    adrive,
    as_step,
    closing_stream,
    drive,
    dry_run,
    event,
    shielded,
    warn_if_blocking,
)
from langchain_memkit.base import CONTEXT, GetSessionHistory, HistoryView, TurnContext
from langchain_memkit.memories.chat_history import PreprocessorLike
from langchain_memkit.messages.chain_io import StreamedOutput
from langchain_memkit.messages.notes import insert_note
from langchain_memkit.preprocessors.budget import budgets_of
from langchain_memkit.runnables.beside import ChainFrame
from langchain_memkit.runnables.saving import OpenTurn, TurnOptions
from langchain_memkit.runnables.session import BoundSession, Specs, session_history, turn_id_of
from langchain_memkit.runnables.trace import TurnRecorder, recorded, recorder_of
from langchain_memkit.runnables.wiring import PAST_NOT_SHOWN, Wiring, past_verdict, warn_once


@dataclass(eq=False, repr=False)
class HistoryTurn(Runnable[Any, Any]):
    """Runnable that performs the whole turn; `RunnableWithMessageHistory` binds it."""

    runnable: Runnable[Any, Any]
    _get_session_history: GetSessionHistory
    wiring: Wiring
    _specs: Specs
    _options: TurnOptions
    name: str | None = "RunnableWithMessageHistory"
    watched: bool = field(default=True, init=False)  # whether it is still unknown if the models are given the past
    frame: ChainFrame = field(init=False)

    def __post_init__(self) -> None:
        self.frame = ChainFrame.of(self.runnable)

    @property
    def preprocessor(self) -> PreprocessorLike:
        """The preprocessor of the history; None if there is none."""
        return self._options.prompt.preprocessor

    # -- the four ways to run

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn and return the runnable's output."""
        warn_if_blocking()
        return self._call_with_config(lambda value, config: drive(self._run(value, config, kwargs)), input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run `invoke` asynchronously."""
        return await self._acall_with_config(
            lambda value, config: adrive(self._run(value, config, kwargs)), input, config
        )

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Stream one turn; it is saved when the stream ends or is closed."""
        yield from self.transform(iter([input]), config, **kwargs)

    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Run `stream` asynchronously."""

        async def once() -> AsyncIterator[Any]:
            yield input

        return self.atransform(once(), config, **kwargs)

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Stream one turn for a streamed input, which is collected first."""
        warn_if_blocking()
        # Core's wrapper ends without closing the generator, and the partial answer would not be saved.
        with ExitStack() as inner:

            def turn_of(values: Iterator[Any], run_manager: object, config: RunnableConfig) -> Iterator[Any]:
                return inner.enter_context(closing(self._stream(values, config, kwargs)))

            yield from self._transform_stream_with_config(input, turn_of, config)

    def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run `transform` asynchronously."""

        def turn_of(values: AsyncIterator[Any], run_manager: object, config: RunnableConfig) -> AsyncIterator[Any]:
            return self._astream(values, config, kwargs)

        # Core's wrapper for this style does close the generator.
        return closing_stream(self._atransform_stream_with_config(input, turn_of, config))

    async def _run(self, value: Any, config: RunnableConfig, kwargs: dict[str, Any]) -> Any:
        def call(turn: OpenTurn) -> Step[Any]:
            runnable, given = self.runnable, (turn.input, turn.config)
            return Step(partial(runnable.invoke, *given, **kwargs), partial(runnable.ainvoke, *given, **kwargs))

        turn = await self._open(value, config)
        try:
            try:
                output = await call(turn)
            except ContextOverflowError as error:
                turn = await self._smaller(turn, error, StreamedOutput())
                output = await call(turn)
        except Exception:
            await as_step(lambda: self._options.model_failed(turn), shield=True)
            raise
        await as_step(lambda: self._finished(turn, output), shield=True)
        return output

    def _stream(self, values: Iterator[Any], config: RunnableConfig, kwargs: dict[str, Any]) -> Generator[Any]:
        gathered = StreamedOutput()
        for value in values:
            gathered.add(value)
        turn = drive(self._open(gathered.value, config))
        streamed = StreamedOutput()
        chunks = self.runnable.stream(turn.input, turn.config, **kwargs)
        try:
            while True:
                try:
                    for chunk in chunks:
                        streamed.add(chunk)
                        yield chunk
                    break
                except ContextOverflowError as error:
                    turn = drive(self._smaller(turn, error, streamed))
                    chunks = self.runnable.stream(turn.input, turn.config, **kwargs)
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
        chunks = self.runnable.astream(turn.input, turn.config, **kwargs)
        try:
            while True:
                try:
                    async for chunk in chunks:
                        streamed.add(chunk)
                        yield chunk
                    break
                except ContextOverflowError as error:
                    turn = await adrive(self._smaller(turn, error, streamed))
                    chunks = self.runnable.astream(turn.input, turn.config, **kwargs)
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

    async def _open(
        self,
        called_with: Any,
        config: RunnableConfig,
        earlier: TurnContext | None = None,
        recorder: TurnRecorder | None = None,
    ) -> OpenTurn:
        """Check the ids, capture the input, load the past and compose the prompt. Nothing is stored.

        After a context overflow there are the context of the `earlier` call, whose `scale` is less than 1 then, and a
        `recorder`.
        """
        wiring, prompt = self.wiring, self._options.prompt
        value, given = wiring.read(called_with)
        configurable = config.get("configurable") or {}
        turn_id = turn_id_of(configurable)
        if recorder is None:
            recorder = recorder_of(self, configurable)
            config = recorded(recorder, config)
        history = configurable.get("message_history")  # callers of `.bound` pass it, as with LangChain's class
        if history is None:
            history = await session_history(self._get_session_history, self._specs, configurable)
        session = await prompt.bind(self._specs, configurable, history)
        check_replaces(configurable.get("replaces"), history)
        # The runnable finds the history where LangChain's class puts it.
        if earlier is None:
            context = TurnContext(timezone=await prompt.timezone_of(session))
        else:
            context = TurnContext(scale=earlier.scale, settled=True, timezone=earlier.timezone)
        config = {**config, "configurable": {**configurable, "message_history": history, CONTEXT: context}}
        view, given, known = await self._read(given, session, config)
        context.asked = asked = self._asked(given, known)
        context.past = view.messages
        if prompt.preprocessor is None:
            prompt.measured.check_length(view.messages, self.frame.model)
        else:
            context.beside = self.frame.beside(wiring.compose(value, [], asked), asked)
            context.schemas = self.frame.schemas
        loaded = await prompt.load(session, view, asked, config, context.timezone)
        asked_ids = {m.id for m in asked if m.id}

        async def composed() -> tuple[list[BaseMessage], list[BaseMessage]]:
            past, _, note = await prompt.compose(context, loaded, config)
            # A client may resend stored messages as input; the model must not see them twice.
            if any(m.id in asked_ids for m in past):
                past = [m for m in past if m.id not in asked_ids]
            before, after = insert_note(past, asked, note, apart=wiring.history_key is not None)
            recorder.opened(turn_id, prompt.preprocessor, [*before, *after], context)
            return before, after

        async def composed_beside(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
            context.beside = messages
            return (await composed())[0]

        if budgets_of(prompt.preprocessor):
            context.compose_beside = composed_beside
        before, after = await composed()
        return OpenTurn(
            session=session,
            view=view,
            turn_id=turn_id,
            # Epoch and time of this read travel with the turn: if the session is cleared before the save, the append
            # is refused.
            epoch=view.epoch,
            since=view.read_at,
            new=[m for m in given if not m.id or m.id not in known],
            shown=[*before, *after],
            asked=asked,
            called_with=called_with,
            input=wiring.compose(value, before, after),
            config=config,
            recorder=recorder,
            before=before,
        )

    async def _read(
        self, given: list[BaseMessage], session: BoundSession, config: RunnableConfig
    ) -> tuple[HistoryView, list[BaseMessage], set[str]]:
        """Read the past; return it with the input, and with the ids of those of its messages that are stored."""
        history, native, memories, _ = session
        prompt, known, view = self._options.prompt, set[str](), None
        reads = as_step(lambda: load_history(history, prompt.preprocessor, config, native=native))
        replaces = config["configurable"].get("replaces")
        # Only resent messages have ids, so plain input costs no lookup. Both reads go at once on an event loop, unless
        # the window of a preprocessor depends on which part of the input is new.
        if native and (ids := [m.id for m in given if m.id]):
            if asks_for_window(prompt.preprocessor):
                known = await stored_ids(history, ids, replaces)
            else:
                known, view = await prompt.beside(memories, stored_ids(history, ids, replaces), reads)
        given, known = _new_or_whole(given, known)
        config["configurable"][CONTEXT].asked = self._asked(given, known)
        if view is None:
            [view] = await prompt.beside(memories, reads)
        # For other packages' histories there is no lookup by id: the loaded messages are all that is known.
        known |= {m.id for m in view.messages if m.id} & {m.id for m in given if m.id}
        return view, *_new_or_whole(given, known)

    async def _finished(self, turn: OpenTurn, output: Any) -> None:
        """Store the turn, and warn once if no model of it was given any of the past."""
        with turn.recorder.timing("save"):
            await self._options.save(turn, output)
        # The first call: of an agent within the chain further ones hold its loop as well.
        call = turn.recorder.composed_for
        if call is not None and self.preprocessor is not None and not dry_run.get():
            context = turn.config["configurable"][CONTEXT]
            await self._options.prompt.measure(context, turn.recorder.shown, call, turn.config)
        if not (self.watched and turn.before) or dry_run.get():
            return
        verdict = past_verdict(turn.recorder.answering, turn.before, turn.asked)
        if verdict is None or not self.watched:
            return
        self.watched = False
        if verdict != "shown":
            warn_once(verdict, self.wiring.input_key, self.wiring.history_key)
            await event(turn.config, PAST_NOT_SHOWN, {"reason": verdict, "turn_id": turn.turn_id})

    def _asked(self, given: list[BaseMessage], known: set[str]) -> list[BaseMessage]:
        """Return the part of the input that the model sees after the past."""
        if self.wiring.history_key:
            return given
        return [m for m in given if not m.id or m.id not in known] or given[-1:]

    async def _smaller(self, turn: OpenTurn, error: ContextOverflowError, streamed: StreamedOutput) -> OpenTurn:
        """Rebuild the turn with less of the past after a context overflow, or raise the model's error."""
        if self._has_answered(streamed):
            raise error
        context: TurnContext = turn.config["configurable"][CONTEXT]
        await self._options.prompt.shrink(context, turn.config, error)
        again = await self._open(turn.called_with, turn.config, context, turn.recorder)
        # Turn id, epoch and new input stay those of the first attempt; only the prompt changes.
        made = {"shown": again.shown, "asked": again.asked, "input": again.input, "before": again.before}
        return replace(turn, **made, config=again.config)

    def _has_answered(self, streamed: StreamedOutput) -> bool:
        """Return whether the answer has begun, so that a second try would repeat it."""
        return not streamed.empty


def _new_or_whole(given: list[BaseMessage], known: set[str]) -> tuple[list[BaseMessage], set[str]]:
    """Return the input and the ids of its stored messages; treat all of it as new if only a part has ids.

    Removing the known answers from a conversation whose questions have no ids would store the questions alone.
    """
    stored = [i for i, message in enumerate(given) if message.id in known]
    if not stored or all(message.id for message in given[: stored[-1]]):
        return given, known
    return [message.model_copy(update={"id": None}) for message in given], set()
