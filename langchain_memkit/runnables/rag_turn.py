"""The turn of a RAG chain: condense the question, retrieve, answer, and store the answer with its documents' ids."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, fields, replace
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.utils import AddableDict

from langchain_memkit._compat import ContextOverflowError
from langchain_memkit._events import CONDENSED
from langchain_memkit._sync import Step, adrive, drive
from langchain_memkit.base import CONTEXT as TURN
from langchain_memkit.base import TurnContext
from langchain_memkit.errors import UnsupportedOutputError
from langchain_memkit.messages.chain_io import StreamedOutput, input_messages
from langchain_memkit.retrievers.past import CITATIONS, CITED, DOCUMENTS, document_key
from langchain_memkit.runnables.rag_prompt import Asked, RagPrompt
from langchain_memkit.runnables.saving import OpenTurn, Policy
from langchain_memkit.runnables.turn import HistoryTurn

__all__ = ["Answering", "RagPolicy", "RagTurn"]

ANSWER = "answer"
CONTEXT = "context"
HISTORY = "chat_history"
STANDALONE = "standalone_question"


class Answering(Runnable[dict[str, Any], dict[str, Any]]):
    """Runnable that retrieves documents for a question in a conversation and answers from them; it stores nothing.

    It is written out, not piped, because a LangChain pipe runs on to its end when its stream is closed early.
    """

    def __init__(
        self, llm: Runnable[Any, Any], retriever: Runnable[Any, Any], prompt: RagPrompt, input_key: str
    ) -> None:
        self.name = "answer_from_records"
        self._llm = llm
        self._retriever = retriever
        self._prompt = prompt
        self._input_key = input_key

    def invoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return the input with `context`, `standalone_question` and `answer`."""
        config = ensure_config(config)
        value, messages = drive(self.prepared(input, config))
        return {**value, ANSWER: _text(self._llm.invoke(messages, config, **kwargs))}

    async def ainvoke(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Run `invoke` asynchronously."""
        config = ensure_config(config)
        value, messages = await adrive(self.prepared(input, config))
        return {**value, ANSWER: _text(await self._llm.ainvoke(messages, config, **kwargs))}

    def stream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any | None
    ) -> Iterator[dict[str, Any]]:
        """Stream dicts that add up: first the input, then question and documents, then the answer in pieces."""
        config = ensure_config(config)
        begins = _begins(config)
        if begins:
            yield _given(input)
        value, messages = drive(self.prepared(input, config))
        if begins:
            yield AddableDict({key: value[key] for key in (STANDALONE, CONTEXT)})
        empty = True
        with closing(_closable(self._llm.stream(messages, config, **kwargs))) as chunks:
            for piece in map(_text, chunks):
                if piece:
                    empty = False
                    yield AddableDict({ANSWER: piece})
        if empty:
            yield AddableDict({ANSWER: ""})

    async def astream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Run `stream` asynchronously."""
        config = ensure_config(config)
        begins = _begins(config)
        if begins:
            yield _given(input)
        value, messages = await adrive(self.prepared(input, config))
        if begins:
            yield AddableDict({key: value[key] for key in (STANDALONE, CONTEXT)})
        empty = True
        async with aclosing(_aclosable(self._llm.astream(messages, config, **kwargs))) as chunks:
            async for chunk in chunks:
                if piece := _text(chunk):
                    empty = False
                    yield AddableDict({ANSWER: piece})
        if empty:
            yield AddableDict({ANSWER: ""})

    async def prepared(self, given: dict[str, Any], config: RunnableConfig) -> tuple[dict[str, Any], Any]:
        """Retrieve the documents and build the prompt.

        Returns:
            The input with `context` and `standalone_question`, and the input of the model.
        """
        asked = Asked.of(input_messages(given, self._input_key))
        query: Any = {"input": asked.question, HISTORY: [*given[HISTORY], *asked.before]}
        if not asked.question.strip():  # an image without text: there is nothing to search for
            value = {**given, CONTEXT: [], STANDALONE: asked.question}
            return value, await self._prompt.build(value, asked, config)
        retriever, heard = self._retriever, _Heard()
        listening = merge_configs(config, {"callbacks": [heard]})
        found = await Step(lambda: retriever.invoke(query, listening), lambda: retriever.ainvoke(query, listening))
        value = {**given, CONTEXT: found, STANDALONE: heard.question or asked.question}
        return value, await self._prompt.build(value, asked, config)


class _Heard(BaseCallbackHandler):
    """Callback that records the condensed question; documents carry it too, but there may be none."""

    run_inline = True  # it only stores a string, which needs no thread

    def __init__(self) -> None:
        self.question = ""

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        # Only the first event is from this chain's retriever; an inner retriever may be of the same class.
        if name == CONDENSED and not self.question:
            self.question = data["question"]


def _begins(config: RunnableConfig) -> bool:
    """Return whether the stream's first chunks are due: before a retry after a context overflow they were sent."""
    context: TurnContext | None = config.get("configurable", {}).get(TURN)
    return context is None or context.scale == 1


def _given(value: dict[str, Any]) -> AddableDict:
    """Return the input without the output's own keys, whose strings and lists a stream would append to."""
    return AddableDict({key: given for key, given in value.items() if key not in (ANSWER, CONTEXT, STANDALONE)})


def _closable(chunks: Iterator[Any]) -> Any:
    """Return a stream that has `close`: LangChain's streams are generators, others may not be."""
    return chunks if hasattr(chunks, "close") else (chunk for chunk in chunks)


def _aclosable(chunks: AsyncIterator[Any]) -> Any:
    return chunks if hasattr(chunks, "aclose") else (chunk async for chunk in chunks)


def _text(output: Any) -> str:
    """Return the text of a model's output: chat models return messages, string models strings.

    Raises:
        UnsupportedOutputError: The output is neither.
    """
    if isinstance(output, str):
        return output
    if isinstance(output, BaseMessage):
        return str(output.text)
    msg = f"the model of a RAG chain must give a message or a string, not a {type(output).__name__}"
    raise UnsupportedOutputError(msg, output=output)


# -- the turn around it


class RagTurn(HistoryTurn):
    """Turn that stores the ids of its answer's documents; a context overflow is retried until the answer has begun."""

    watched = False  # a prompt without `chat_history` is intended: the past is in the condensed question

    async def _tried(self, value: Any, config: RunnableConfig) -> OpenTurn:
        turn = await super()._tried(value, config)
        answering: Answering = self.runnable  # type: ignore[assignment]  # made with it
        _, given = await answering.prepared(turn.input, turn.config)
        return replace(turn, given=given.to_messages() if isinstance(given, PromptValue) else given)

    async def _smaller(
        self,
        turn: OpenTurn,
        value: Any,
        config: RunnableConfig,
        error: ContextOverflowError,
        streamed: StreamedOutput | None = None,
    ) -> OpenTurn:
        # Input and documents may have been streamed already; only a begun answer rules out a second try.
        said = streamed is not None and ANSWER in (streamed.value or ())
        return await super()._smaller(turn, value, config, error, streamed if said else None)


@dataclass(frozen=True, slots=True)
class AnsweredTurn(OpenTurn):
    """Open turn with the ids of the documents that its answer was made from."""

    documents: tuple[str, ...] = ()

    @classmethod
    def of(cls, turn: OpenTurn, output: Any) -> AnsweredTurn:
        """Return the turn with the ids of the documents in its output."""
        known = {field.name: getattr(turn, field.name) for field in fields(OpenTurn)}
        found = output.get(CONTEXT) if isinstance(output, dict) else None
        return cls(**known, documents=tuple(document_key(document) for document in found or ()))


class RagPolicy(Policy):
    """Policy that also names in the stored answer its documents; the caller's output is not changed."""

    async def save(self, turn: OpenTurn, output: Any) -> None:
        """Store question and answer."""
        await super().save(AnsweredTurn.of(turn, output), output)

    async def abort(self, turn: OpenTurn, streamed: StreamedOutput) -> None:
        """Store a partial answer; nothing if the stream was closed before the first word of it."""
        output = streamed.value
        if isinstance(output, dict) and ANSWER in output:
            await super().abort(AnsweredTurn.of(turn, output), streamed)

    async def _store(self, turn: OpenTurn, messages: list[BaseMessage], turn_id: str) -> None:
        if isinstance(turn, AnsweredTurn):
            asked, said = messages[: len(turn.new)], messages[len(turn.new) :]
            messages = [*asked, *(_with_documents(message, turn.documents) for message in said)]
        await super()._store(turn, messages, turn_id)


def _with_documents(message: BaseMessage, documents: Sequence[str]) -> BaseMessage:
    """Return the answer with the ids of its documents and, if it cites some, of the cited ones."""
    if not isinstance(message, AIMessage):
        return message
    known = {**message.response_metadata, DOCUMENTS: list(documents)}
    numbers = [int(number) for mark in CITATIONS.findall(message.text) for number in re.findall(r"\d+", mark)]
    if cited := [documents[number - 1] for number in dict.fromkeys(numbers) if 0 < number <= len(documents)]:
        known[CITED] = cited
    return message.model_copy(update={"response_metadata": known})
