"""Between the loaded conversation and the stored answer: condense, retrieve, answer; and what is stored of it."""

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
    """From a question and a conversation to documents and an answer; stores nothing.

    Written out rather than piped, because a pipe of LangChain's that is closed early runs on to its end.
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
        """The input with `context`, `standalone_question` and `answer`."""
        config = ensure_config(config)
        value, messages = drive(self.prepared(input, config))
        return {**value, ANSWER: _text(self._llm.invoke(messages, config, **kwargs))}

    async def ainvoke(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Async twin of `invoke`."""
        config = ensure_config(config)
        value, messages = await adrive(self.prepared(input, config))
        return {**value, ANSWER: _text(await self._llm.ainvoke(messages, config, **kwargs))}

    def stream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any | None
    ) -> Iterator[dict[str, Any]]:
        """First the input, then what was found, then the answer in pieces: dicts that add up."""
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
        """Async twin of `stream`."""
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
        """The input with what was found, and what the model is asked."""
        asked = Asked.of(input_messages(given, self._input_key))
        query: Any = {"input": asked.question, HISTORY: [*given[HISTORY], *asked.before]}
        if not asked.question.strip():  # an image alone: there is nothing to search for
            value = {**given, CONTEXT: [], STANDALONE: asked.question}
            return value, await self._prompt.build(value, asked, config)
        retriever, heard = self._retriever, _Heard()
        listening = merge_configs(config, {"callbacks": [heard]})
        found = await Step(lambda: retriever.invoke(query, listening), lambda: retriever.ainvoke(query, listening))
        value = {**given, CONTEXT: found, STANDALONE: heard.question or asked.question}
        return value, await self._prompt.build(value, asked, config)


class _Heard(BaseCallbackHandler):
    """Hears what was searched for: documents tell it as well, but there may be none."""

    run_inline = True  # it only keeps a text, no thread is needed for that

    def __init__(self) -> None:
        self.question = ""

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == CONDENSED and not self.question:  # the first is ours; a retriever within may be of the same kind
            self.question = data["question"]


def _begins(config: RunnableConfig) -> bool:
    """Whether a stream begins; in a second try, with less of the past, its first chunks have gone out already."""
    context: TurnContext | None = config.get("configurable", {}).get(TURN)
    return context is None or context.scale == 1


def _given(value: dict[str, Any]) -> AddableDict:
    """The input without keys that are added to: strings and lists would be joined."""
    return AddableDict({key: given for key, given in value.items() if key not in (ANSWER, CONTEXT, STANDALONE)})


def _closable(chunks: Iterator[Any]) -> Any:
    """A stream that can be closed: those of LangChain are generators, others need not be."""
    return chunks if hasattr(chunks, "close") else (chunk for chunk in chunks)


def _aclosable(chunks: AsyncIterator[Any]) -> Any:
    return chunks if hasattr(chunks, "aclose") else (chunk async for chunk in chunks)


def _text(output: Any) -> str:
    """What a model says: chat models give messages, string models text."""
    if isinstance(output, str):
        return output
    if isinstance(output, BaseMessage):
        return str(output.text)
    msg = f"the model of a RAG chain must give a message or a string, not a {type(output).__name__}"
    raise UnsupportedOutputError(msg, output=output)


# -- the turn around it


class RagTurn(HistoryTurn):
    """A turn that stores what its answer was made from, and is tried with less of the past while nothing was said."""

    watched = (
        False  # of a prompt without `chat_history` that is meant: the past is in the question that was searched for
    )

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
        said = streamed is not None and ANSWER in (streamed.value or ())
        return await super()._smaller(turn, value, config, error, streamed if said else None)


@dataclass(frozen=True, slots=True)
class AnsweredTurn(OpenTurn):
    """A turn whose answer was made from documents."""

    documents: tuple[str, ...] = ()

    @classmethod
    def of(cls, turn: OpenTurn, output: Any) -> AnsweredTurn:
        """The turn with what its output says."""
        known = {field.name: getattr(turn, field.name) for field in fields(OpenTurn)}
        found = output.get(CONTEXT) if isinstance(output, dict) else None
        return cls(**known, documents=tuple(document_key(document) for document in found or ()))


class RagPolicy(Policy):
    """The same policy, which also notes in the answer what it was made from. The caller's output stays as it is."""

    async def save(self, turn: OpenTurn, output: Any) -> None:
        """Stores question and answer."""
        await super().save(AnsweredTurn.of(turn, output), output)

    async def abort(self, turn: OpenTurn, streamed: StreamedOutput) -> None:
        """Stores a part of an answer; a stream that was closed before the first word has none."""
        output = streamed.value
        if isinstance(output, dict) and ANSWER in output:
            await super().abort(AnsweredTurn.of(turn, output), streamed)

    async def _store(self, turn: OpenTurn, messages: list[BaseMessage], turn_id: str) -> None:
        if isinstance(turn, AnsweredTurn):
            asked, said = messages[: len(turn.new)], messages[len(turn.new) :]
            messages = [*asked, *(_with_documents(message, turn.documents) for message in said)]
        await super()._store(turn, messages, turn_id)


def _with_documents(message: BaseMessage, documents: Sequence[str]) -> BaseMessage:
    """The answer with the keys of the documents that it was given and, if it cites some, of those."""
    if not isinstance(message, AIMessage):
        return message
    known = {**message.response_metadata, DOCUMENTS: list(documents)}
    numbers = [int(number) for mark in CITATIONS.findall(message.text) for number in re.findall(r"\d+", mark)]
    if cited := [documents[number - 1] for number in dict.fromkeys(numbers) if 0 < number <= len(documents)]:
        known[CITED] = cited
    return message.model_copy(update={"response_metadata": known})
