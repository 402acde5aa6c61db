"""`CondenseQuestionRetriever`: wraps any retriever so that follow-up questions reach it as standalone ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, BaseLanguageModel, LanguageModelLike
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.base import Runnable, RunnableLambda, coerce_to_runnable
from langchain_core.runnables.config import RunnableConfig, ensure_config, merge_configs, patch_config
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator, model_validator

from langchain_memkit._sync import CONDENSED, adrive, drive, event, internal_call, model_call
from langchain_memkit.base import Memory
from langchain_memkit.errors import ConfigurationError, did_you_mean, logger
from langchain_memkit.retrievers import rewriter
from langchain_memkit.retrievers.expansion import Turn, expanded
from langchain_memkit.retrievers.history import Past, as_messages, question_of, read_past
from langchain_memkit.retrievers.search import search_documents

Asked: TypeAlias = str | Mapping[str, Any]
UNSUPPORTED = {400, 404, 405, 415, 422, 501}  # HTTP status codes of servers that cannot do structured output


def check_kind(value: object, name: str, call: str) -> None:
    """Refuse a model as `retriever`, and a retriever as `llm`: both are runnables, so the mistake would be built."""
    inner: Any = value
    wrong: dict[str, tuple[type, str]] = {
        "retriever": (BaseLanguageModel, "model"),
        "llm": (BaseRetriever, "retriever"),
    }
    kind, what = wrong[name]
    while not isinstance(inner, kind) and isinstance(getattr(inner, "bound", None), Runnable):
        inner = inner.bound
    if isinstance(inner, kind):
        msg = f"{name} is a {type(inner).__name__}, which is a {what}, so the two may be swapped: {call}"
        raise ConfigurationError(msg)


class CondenseQuestionRetriever(BaseRetriever):
    """Wraps any retriever so that follow-up questions reach it as standalone questions.

    The first question of a conversation is searched for unchanged, and no model is called. Every further one is
    rewritten by the model in one call, and the rewrite is validated; what the model leaves as it is, is searched for
    unchanged, byte for byte. Without a model, and whenever the model fails, times out, or returns something else than
    such a question, the conversation is added with small weights: to the query vector of a vector store, as terms of a
    `BM25Retriever`, as text for every other retriever.

    Give `invoke` a question, or `{"input": question, "chat_history": messages}`. Every document (a copy of the inner
    retriever's) tells in `metadata["memkit_question"]` what was searched for and why; callback handlers receive the
    same as event `memkit_condense_question`. LangChain's `create_retrieval_chain` passes a retriever the question only:
    give it `retriever.with_config(run_name="aware")`, which receives the conversation, too.

    For rules of your own, override `refusal` (the validation of a rewrite) in a subclass. To decide yourself which
    questions are rewritten, give a function as `llm` that returns the others as they are.

    Args:
        retriever: A LangChain retriever, or any runnable or function from a string to documents.
        llm: A chat model, a string model, or a runnable or function from messages to text; None for no model.
        mode: `"llm"`: the model rewrites every follow-up question. `"weighted"`: never a model. `"off"`: the inner
            retriever only. None: `"llm"` with a model, else `"weighted"`.
        prompt: Prompt for the model: an instruction, or a template that takes `input`, and `chat_history` (messages) or
            `questions` (text).
        n: Maximum number of past questions that the model is given, oldest first.
        max_tokens: Token budget for those.
        skip_answered: Leave out the documents that answered earlier turns (the newest 100), which the answers name as
            `memkit_documents` in their `response_metadata`.
        timeout: Seconds for the model to rewrite a question; None for no limit.
        history: The chat history or memory of the conversation; then a string is enough as input.
        k: How many documents to return; None for as many as the inner retriever returns.

    Raises:
        ConfigurationError: The arguments do not fit together; the input is not a question; `chat_history` does not
            hold messages.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> pages = [Document("Macron is 48.", id="1"), Document("France is a republic.", id="2")]
        >>> retriever = CondenseQuestionRetriever(
        ...     retriever=RunnableLambda(lambda text: [page for page in pages if page.page_content[:6] in text]),
        ...     llm=RunnableLambda(lambda messages: "How old is Emmanuel Macron?"),
        ... )
        >>> talk = [("human", "Who is the president of France?"), ("ai", "Emmanuel Macron.")]
        >>> found = retriever.invoke({"input": "How old is he?", "chat_history": talk})
        >>> found[0].page_content, found[0].metadata["memkit_question"]["by"]
        ('Macron is 48.', 'model')
        >>> retriever.condense_question("Who is the president of France?").by
        'original'
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", hide_input_in_errors=True)

    retriever: Any = Field(repr=False)
    llm: Any = Field(default=None, repr=False)
    mode: rewriter.Mode | None = None
    prompt: Any = Field(default=None, repr=False)
    n: int = Field(default=3, ge=1)
    max_tokens: int = Field(default=1000, ge=1)
    skip_answered: bool = False
    timeout: float | None = Field(default=10.0, gt=0)
    history: Any = Field(default=None, repr=False)
    k: int | None = Field(default=None, ge=1)

    _marks: ClassVar[bool] = True  # whether documents tell what was searched for
    _text_only: object = PrivateAttr(default=None)  # the model that turned out not to support structured output

    if not TYPE_CHECKING:  # type checkers read the fields

        def __init__(self, **kwargs: Any) -> None:
            try:
                super().__init__(**kwargs)
            except ValidationError as error:  # its text quotes the arguments, which may hold credentials
                msg = "; ".join(_told(problem) for problem in error.errors(include_input=False, include_url=False))
                raise ConfigurationError(msg) from None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "stands_alone"):
            msg = (
                f"{cls.__name__} has stands_alone, which is never called any more: the model rewrites every follow-up "
                "question. To leave some as they are, give a function as llm= that returns them"
            )
            raise ConfigurationError(msg)

    @field_validator("mode", mode="before")
    @classmethod
    def _mode(cls, value: object) -> object:
        rewriter.check_mode(value, "mode")
        return value

    @field_validator("retriever", "llm")
    @classmethod
    def _runnable(cls, value: object, info: ValidationInfo) -> Runnable[Any, Any] | None:
        if value is None and info.field_name == "llm":
            return None
        check_kind(value, str(info.field_name), "CondenseQuestionRetriever(retriever=retriever, llm=llm)")
        if callable(value) or isinstance(value, Runnable):
            return coerce_to_runnable(value)
        hint = "; call its as_retriever()" if hasattr(value, "as_retriever") else ""
        msg = f"{info.field_name} must be a LangChain runnable or a function, not {type(value).__name__}{hint}"
        raise ConfigurationError(msg)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        rewriter.QuestionPrompt(self.prompt)
        if self.mode == "llm" and self.llm is None:
            raise ConfigurationError('mode="llm" needs an llm')
        if not (self.history is None or isinstance(self.history, Memory) or hasattr(self.history, "add_messages")):
            msg = f"history must be a LangChain chat history or a memory, not {type(self.history).__name__}"
            raise ConfigurationError(msg)
        return self

    @property
    def InputType(self) -> Any:  # noqa: N802  # LangChain's name
        """Type of the input: a question, or a dict with `input` and `chat_history`."""
        return Asked

    # -- the rule that a subclass may override

    def refusal(self, question: str, rewrite: str, earlier: Sequence[str]) -> str | None:
        """Return why a model's rewrite is rejected, or None to accept it; an error of it counts as a rejection.

        Args:
            question: The original question.
            rewrite: The model's rewrite.
            earlier: Earlier questions of the conversation, oldest first.
        """
        return rewriter.refusal(question, rewrite, earlier)

    # -- searching

    def invoke(self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Retrieve the documents for a question.

        Args:
            input: The question; or a dict with `input`, and with `chat_history` in place of the bound history.
            config: Config of the run.
            **kwargs: `k`, the number of documents; others are passed to the inner retriever.

        Returns:
            Copies of the inner retriever's documents, best first.
        """
        question, more = question_of(input)
        return super().invoke(question, config, **{**kwargs, **more, "run_config": ensure_config(config)})

    async def ainvoke(self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Run `invoke` asynchronously."""
        question, more = question_of(input)
        return await super().ainvoke(question, config, **{**kwargs, **more, "run_config": ensure_config(config)})

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        return drive(self._documents(query, run_manager.get_child(), **kwargs))

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
        return await adrive(self._documents(query, run_manager.get_child(), **kwargs))

    async def _documents(
        self, question: str, callbacks: Any, *, chat_history: object = None, k: int | None = None, **options: Any
    ) -> list[Document]:
        # Model and inner retriever run as children of this run, with the caller's config otherwise.
        config = patch_config(options.pop("run_config", None), callbacks=callbacks)
        found, past = await self._condensed(question, chat_history, config)
        if found.by != "off":
            await event(config, CONDENSED, asdict(found))
        documents = await search_documents(self.retriever, found, past, self.k if k is None else k, options, config)
        if found.by == "off" or not self._marks:
            return documents
        mark = {"memkit_question": asdict(found)}
        return [page.model_copy(update={"metadata": {**page.metadata, **mark}}) for page in documents]

    # -- the question alone

    def condense_question(
        self, question: str, chat_history: Any = None, config: RunnableConfig | None = None
    ) -> rewriter.StandaloneQuestion:
        """Make a question standalone without searching: return it, what would be searched for, and why.

        Args:
            question: The original question.
            chat_history: The messages before it, oldest first; None for the bound history.
            config: Config of the run that the model call belongs to.

        Example:
            >>> from langchain_core.runnables import RunnableLambda
            >>> retriever = CondenseQuestionRetriever(retriever=RunnableLambda(lambda text: []))
            >>> found = retriever.condense_question("How old is he?", [("human", "Who is the president of France?")])
            >>> found.by, found.reason
            ('weighted', 'no model is asked')
            >>> found.question, found.searched_for
            ('How old is he?', 'How old is he? How old is he? France president')
        """
        return drive(self._condensed(question, chat_history, ensure_config(config)))[0]

    async def acondense_question(
        self, question: str, chat_history: Any = None, config: RunnableConfig | None = None
    ) -> rewriter.StandaloneQuestion:
        """Run `condense_question` asynchronously."""
        return (await adrive(self._condensed(question, chat_history, ensure_config(config))))[0]

    async def _condensed(
        self, question: str, chat_history: object, config: RunnableConfig
    ) -> tuple[rewriter.StandaloneQuestion, Past]:
        """Make the question standalone, and return it with the conversation before it."""
        if self.mode == "off":
            off = rewriter.StandaloneQuestion(question, question, False, "off", "it is switched off", 0.0, question)
            return off, Past()
        if chat_history is None and self.history is not None:
            chat_history = await read_past(self.history, question)
        past = Past.of(as_messages(chat_history), skip_answered=self.skip_answered)
        begun = time.perf_counter()
        text, by, reason = await self._decided(question, past, config)
        seconds = time.perf_counter() - begun
        searched_for = expanded(text, past.turns, past.strength) if by == "weighted" else text
        return rewriter.StandaloneQuestion(text, question, text != question, by, reason, seconds, searched_for), past

    async def _decided(self, question: str, past: Past, config: RunnableConfig) -> tuple[str, rewriter.DecidedBy, str]:
        """Return the question, who decided on it, and why. A model's failure falls back to weighted terms."""
        if not question.strip():
            return question, "original", "nothing is asked"
        if not past.turns:
            return question, "original", "nothing was said before"
        why = "no model is asked"
        if self.mode != "weighted" and self.llm is not None:
            try:
                rewrite = await self._rewritten(question, past.turns, config)
                if rewriter.same_question(rewrite, question):  # keep the original, byte for byte
                    return question, "model", "the model says that it stands alone"
                return rewrite, "model", "the model rewrote it"
            except rewriter.RefusedError as error:
                why, told = f"the rewrite was refused: {error}", "it was refused"  # a check's words may quote
            except TimeoutError:
                why = told = "the model took too long"
            except Exception as error:  # noqa: BLE001  # whatever a model raises must not fail the search
                why = told = f"the model failed: {type(error).__name__}"
            logger.warning("a question was not rewritten, its terms are weighted instead: %s", told)
        return question, "weighted", why

    async def _rewritten(self, question: str, turns: Sequence[Turn], config: RunnableConfig) -> str:
        """Ask the model for a rewrite and validate it.

        Structured output is tried first, with the default prompt. If the server turns out not to support it, the model
        is asked again for plain text, within the same timeout, and not asked for structured output any more.
        """
        prompt = rewriter.QuestionPrompt(self.prompt)
        asked = prompt.build(question, prompt.recent(turns, self.n, self.max_tokens))
        call = merge_configs(config, internal_call("condense_question", "question"))
        begun, answer = time.monotonic(), None
        if (structured := self._structured()) is not None:
            try:
                answer = await model_call(structured, asked, call, self.timeout)
            except Exception as error:
                if not (getattr(error, "status_code", None) in UNSUPPORTED or isinstance(error, NotImplementedError)):
                    raise
                self._text_only, structured = self.llm, None
        if structured is None:
            left = None if self.timeout is None else max(0.0, self.timeout - (time.monotonic() - begun))
            answer = await model_call(self.llm, asked, call, left)
        rewrite = rewriter.question_of_answer(answer)
        problem = self.refusal(question, rewrite, [text for text, _ in turns]) if rewrite.strip() else "it is empty"
        if problem:
            raise rewriter.RefusedError(problem)
        return rewrite

    def _structured(self) -> Runnable[Any, Any] | None:
        """Return the model with structured output; None if it does not support that."""
        if self.prompt is None and isinstance(self.llm, BaseChatModel) and self._text_only is not self.llm:
            with suppress(Exception):  # models raise anything for what they do not support
                return self.llm.with_structured_output(rewriter.SCHEMA, include_raw=True)
        return None


def _told(problem: Mapping[str, Any]) -> str:
    """Format one pydantic error as a line."""
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ConfigurationError):
        return str(cause)
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return f"no such argument: {name}{did_you_mean(name, CondenseQuestionRetriever.model_fields)}"
    return f"{name}: {problem['msg']}"


class HistoryAwareRetriever(CondenseQuestionRetriever):
    """Searches for whatever the model makes of a question, and returns the documents as they are."""

    _marks: ClassVar[bool] = False

    def refusal(self, question: str, rewrite: str, earlier: Sequence[str]) -> str | None:
        """Accept the rewrite."""
        return None


def create_history_aware_retriever(
    llm: LanguageModelLike, retriever: Runnable[str, list[Document]], prompt: BasePromptTemplate[Any], **options: Any
) -> Runnable[Any, list[Document]]:
    """Create a history-aware retriever like LangChain's, that survives failures of the model.

    For existing apps: their prompt may ask for anything, so the model's rewrite is searched for unchecked, and
    documents come back as the retriever returned them. New code should use `CondenseQuestionRetriever`, which validates
    a rewrite and reports it.

    Args:
        llm: A chat or string model.
        retriever: A LangChain retriever, or a runnable from a string to documents.
        prompt: A template that takes `input` and `chat_history`.
        **options: Arguments of `CondenseQuestionRetriever`, here with the default `timeout=None`.

    Returns:
        A runnable from `{"input": question, "chat_history": messages}` to documents, best first.

    Raises:
        ValueError: The prompt does not take `input` and `chat_history`.

    Example:
        >>> from langchain_core.prompts import ChatPromptTemplate
        >>> prompt = ChatPromptTemplate([("placeholder", "{chat_history}"), ("human", "{input}")])
        >>> model = RunnableLambda(lambda messages: "How old is Emmanuel Macron?")
        >>> parrot = RunnableLambda(lambda question: [Document(question)])
        >>> aware = create_history_aware_retriever(model, parrot, prompt)
        >>> talk = [("human", "Who is the president of France?"), ("ai", "Emmanuel Macron.")]
        >>> aware.invoke({"input": "How old is he?", "chat_history": talk})[0].page_content
        'How old is Emmanuel Macron?'
    """
    ours = HistoryAwareRetriever(retriever=retriever, llm=llm, prompt=prompt, **{"timeout": None, **options})
    # Wrap it in a function: create_retrieval_chain passes a BaseRetriever the question without the conversation.
    chain: Runnable[Any, list[Document]] = RunnableLambda(ours.invoke, ours.ainvoke)
    return chain.with_config(run_name="history_aware_retriever")
