"""`CondenseQuestionRetriever`: wraps any retriever so that follow-up questions reach it as standalone ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelLike
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, ensure_config
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.runnables.config import patch_config
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator, model_validator

from langchain_memkit._sync import CONDENSED, adrive, drive, event
from langchain_memkit.base import Memory, did_you_mean
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.retrievers.expansion import CAREFUL, STRONG, Strength, Turn
from langchain_memkit.retrievers.history import answered_by, as_messages, question_answer_pairs, question_of, read_past
from langchain_memkit.retrievers.rewriter import (
    Check,
    Condenser,
    Gate,
    Mode,
    QuestionPrompt,
    RewriteCache,
    StandaloneQuestion,
    refusal,
)
from langchain_memkit.retrievers.search import Search
from langchain_memkit.retrievers.standalone import stands_alone

__all__ = ["CondenseQuestionRetriever", "create_history_aware_retriever"]

QUESTION = "memkit_question"
"""Metadata key of a document that holds the `StandaloneQuestion` it was found with, as a dict."""


class CondenseQuestionRetriever(BaseRetriever):
    """Wraps any retriever so that follow-up questions reach it as standalone questions.

    A question is searched for unchanged, byte for byte and without a model call, if there is no history or if the gate
    decides that it is standalone. Otherwise the model rewrites it, and the rewrite is validated. Without a model, and
    whenever it fails, times out, or returns something else than such a question, the conversation is added with small
    weights: to the query vector of a vector store, as terms of a `BM25Retriever`, as text for every other retriever.

    Give `invoke` a question, or `{"input": question, "chat_history": messages}`. Every document (a copy of the inner
    retriever's) tells in `metadata["memkit_question"]` what was searched for and why; callback handlers receive the
    same as event `memkit_condense_question`. LangChain's `create_retrieval_chain` passes a retriever the question only:
    give it `retriever.with_config(run_name="aware")`, which receives the conversation, too.

    Args:
        retriever: A LangChain retriever, or any runnable or function from a string to documents.
        llm: A chat model, a string model, or a runnable or function from messages to text; None for no model.
        mode: `"auto"`: the gate, then the model if there is one, else weighted terms. `"llm"`: the model for every
            question with a history, without the gate. `"weighted"`: never a model. `"off"`: the inner retriever only.
        prompt: Prompt for the model: an instruction, or a template that takes `input`, and `chat_history` (messages) or
            `questions` (text).
        n: Maximum number of past questions that the model is given, oldest first.
        max_tokens: Token budget for those.
        gate: `gate(question, history)` decides whether a question is standalone. It receives the turns as
            `(question, answer or None)`, oldest first, and returns a bool or `(bool, reason)`. None for no gate.
        check: `check(question, rewrite, earlier_questions)` returns why a rewrite is rejected, or None to accept it.
            None for no check, for prompts that ask for something else than a question (search terms, say).
        fuse_original: Also search for the original question, and merge by reciprocal rank fusion.
        skip_answered: Leave out the documents that answered earlier turns (the newest 100), which the answers name as
            `memkit_documents` in their `response_metadata`.
        timeout: Seconds for the model to rewrite a question; None for no limit.
        cache_size: How many rewrites are cached; 0 for none.
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
        >>> retriever.condense_question("Where was Barack Obama born?", talk).by
        'gate'
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", hide_input_in_errors=True)

    retriever: Any = Field(repr=False)
    llm: Any = Field(default=None, repr=False)
    mode: Mode = "auto"
    prompt: Any = Field(default=None, repr=False)
    n: int = Field(default=3, ge=1)
    max_tokens: int = Field(default=1000, ge=1)
    gate: Gate | None = Field(default=stands_alone, repr=False)
    check: Check | None = Field(default=refusal, repr=False)
    fuse_original: bool = False
    skip_answered: bool = False
    timeout: float | None = Field(default=10.0, gt=0)
    cache_size: int = Field(default=100, ge=0)
    history: Any = Field(default=None, repr=False)
    k: int | None = Field(default=None, ge=1)

    _rewrites: RewriteCache = PrivateAttr(default_factory=RewriteCache)

    if not TYPE_CHECKING:  # type checkers read the fields

        def __init__(self, **kwargs: Any) -> None:
            try:
                super().__init__(**kwargs)
            except ValidationError as error:  # its text quotes the arguments, which may hold credentials
                msg = "; ".join(_told(problem) for problem in error.errors(include_input=False, include_url=False))
                raise ConfigurationError(msg) from None

    @field_validator("retriever", "llm")
    @classmethod
    def _runnable(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None or isinstance(value, Runnable) or callable(value):
            return None if value is None else coerce_to_runnable(value)
        hint = "; call its as_retriever()" if hasattr(value, "as_retriever") else ""
        kind = "a model, or a runnable or function of messages"
        if info.field_name == "retriever":
            kind = "a LangChain retriever, or a runnable or function from a string to documents"
        msg = f"{info.field_name} must be {kind}, not {type(value).__name__}{hint}"
        raise ConfigurationError(msg)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        QuestionPrompt(self.prompt)
        if self.retriever is None:
            msg = "retriever must be a retriever, or a runnable or function from a string to documents"
            raise ConfigurationError(msg)
        if self.mode == "llm" and self.llm is None:
            msg = 'mode="llm" needs an llm'
            raise ConfigurationError(msg)
        if not (self.history is None or isinstance(self.history, Memory) or hasattr(self.history, "add_messages")):
            msg = f"history must be a LangChain chat history or a memory, not {type(self.history).__name__}"
            raise ConfigurationError(msg)
        return self

    @property
    def InputType(self) -> Any:  # noqa: N802  # LangChain's name
        """Type of the input: a question, or a dict with `input` and `chat_history`."""
        return str | dict[str, Any]

    # -- searching

    def invoke(
        self,
        input: str | Mapping[str, Any],  # noqa: A002  # LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
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

    async def ainvoke(
        self,
        input: str | Mapping[str, Any],  # noqa: A002  # LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Run `invoke` asynchronously."""
        question, more = question_of(input)
        return await super().ainvoke(question, config, **{**kwargs, **more, "run_config": ensure_config(config)})

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return drive(self._documents(query, run_manager.get_child(), **kwargs))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await adrive(self._documents(query, run_manager.get_child(), **kwargs))

    async def _documents(
        self,
        question: str,
        callbacks: Any,
        *,
        chat_history: Any = None,
        run_config: RunnableConfig | None = None,
        k: int | None = None,
        **options: Any,
    ) -> list[Document]:
        # Model and inner retriever run as children of this run, with the caller's config otherwise.
        config = patch_config(run_config, callbacks=callbacks)
        search = {"retriever": self.retriever, "k": self.k if k is None else k, "options": options, "config": config}
        turns, skipped = await self._past(question, chat_history)
        strength = self._strength(turns, skipped)
        found = await self._condenser.condense(question, turns, strength, config)
        if found.by == "off":
            return await Search(**search).run(found, turns)
        await event(config, CONDENSED, asdict(found))
        chosen = Search(**search, skipped=skipped, fuse=self.fuse_original, strength=strength)
        documents = await chosen.run(found, turns)
        return [_marked(document, found) for document in documents]

    # -- the question alone

    def condense_question(
        self, question: str, chat_history: Any = None, config: RunnableConfig | None = None
    ) -> StandaloneQuestion:
        """Make a question standalone without searching: return what would be searched for, and why.

        Args:
            question: The original question.
            chat_history: The messages before it, oldest first; None for the bound history.
            config: Config of the run that the model call belongs to.

        Example:
            >>> from langchain_core.runnables import RunnableLambda
            >>> retriever = CondenseQuestionRetriever(retriever=RunnableLambda(lambda text: []))
            >>> found = retriever.condense_question("How old is he?", [("human", "Who is the president of France?")])
            >>> found.by, found.reason
            ('weighted', "'he' points back")
        """
        return drive(self._question(question, chat_history, config))

    async def acondense_question(
        self, question: str, chat_history: Any = None, config: RunnableConfig | None = None
    ) -> StandaloneQuestion:
        """Run `condense_question` asynchronously."""
        return await adrive(self._question(question, chat_history, config))

    async def _question(self, question: str, chat_history: Any, config: RunnableConfig | None) -> StandaloneQuestion:
        turns, skipped = await self._past(question, chat_history)
        return await self._condenser.condense(question, turns, self._strength(turns, skipped), ensure_config(config))

    async def _past(self, question: str, chat_history: Any) -> tuple[list[Turn], frozenset[str]]:
        """Read the turns before the question, and the keys of documents to leave out."""
        if self.mode == "off":
            return [], frozenset()
        messages: list[BaseMessage] = as_messages(chat_history)
        if chat_history is None and self.history is not None:
            messages = list(await read_past(self.history, question))
        return question_answer_pairs(messages), answered_by(messages) if self.skip_answered else frozenset()

    def _strength(self, turns: list[Turn], skipped: frozenset[str]) -> Strength:
        """Choose how strongly the conversation is added to the question.

        `STRONG` with `skip_answered`, if there are documents to leave out or no turn was answered. Else `CAREFUL`: the
        words of the answers would find their own documents again.
        """
        answered = any(answer for _, answer in turns)
        return STRONG if skipped or (self.skip_answered and not answered) else CAREFUL

    @property
    def _condenser(self) -> Condenser:
        return Condenser(
            llm=self.llm,
            mode=self.mode,
            prompt=QuestionPrompt(self.prompt),
            n=self.n,
            max_tokens=self.max_tokens,
            gate=self.gate,
            check=self.check,
            timeout=self.timeout,
            cache_size=self.cache_size,
            rewrites=self._rewrites,
        )


def _told(problem: Any) -> str:
    """Format one pydantic error as a line."""
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ConfigurationError):
        return str(cause)
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return f"no such argument: {name}{did_you_mean(name, CondenseQuestionRetriever.model_fields)}"
    return f"{name}: {problem['msg']}"


def _marked(document: Document, found: StandaloneQuestion) -> Document:
    return document.model_copy(update={"metadata": {**document.metadata, QUESTION: asdict(found)}})


def create_history_aware_retriever(
    llm: LanguageModelLike, retriever: Runnable[str, list[Document]], prompt: BasePromptTemplate[Any], **options: Any
) -> Runnable[Any, list[Document]]:
    """Create a history-aware retriever like LangChain's, that survives model failures and skips standalone questions.

    For existing apps: their prompt may ask for anything, so the model's rewrite is searched for unchecked, and
    documents come back as the retriever returned them. New code should use `CondenseQuestionRetriever`, which validates
    a rewrite and reports it.

    Args:
        llm: A chat or string model.
        retriever: A LangChain retriever, or a runnable from a string to documents.
        prompt: A template that takes `input` and `chat_history`.
        **options: Arguments of `CondenseQuestionRetriever`, here with the defaults `check=None`, `timeout=None` and
            `cache_size=0`.

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
    unchecked: dict[str, Any] = {"check": None, "timeout": None, "cache_size": 0}
    ours = CondenseQuestionRetriever(retriever=retriever, llm=llm, prompt=prompt, **{**unchecked, **options})
    # Wrap it in a function: create_retrieval_chain passes a BaseRetriever the question without the conversation.
    chain: Runnable[Any, Any] = RunnableLambda(ours.invoke, ours.ainvoke) | _unmarked
    return chain.with_config(run_name="history_aware_retriever")


def _unmarked(documents: list[Document]) -> list[Document]:
    return [
        document.model_copy(update={"metadata": {k: v for k, v in document.metadata.items() if k != QUESTION}})
        for document in documents
    ]
