"""`create_conversational_rag_chain`: from a question to a stored answer that is made from retrieved documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from langchain_core.language_models import LanguageModelLike
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import coerce_to_runnable

from langchain_memkit.base import GetSessionHistory, Preprocessor, check_arguments
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.preprocessors import create_trim_preprocessor
from langchain_memkit.retrievers import CondenseQuestionRetriever
from langchain_memkit.retrievers.question import Mode
from langchain_memkit.runnables import RunnableWithMessageHistory, create_runnable_with_message_history
from langchain_memkit.runnables.rag_prompt import RagPrompt
from langchain_memkit.runnables.rag_questions import LastQuestions
from langchain_memkit.runnables.rag_turn import ANSWER, CONTEXT, HISTORY, STANDALONE, Answering, RagPolicy, RagTurn

__all__ = ["create_conversational_rag_chain"]

MODES = get_args(Mode)
OURS = ("output_messages_key", "history_messages_key")


def create_conversational_rag_chain(
    llm: LanguageModelLike | Runnable[Any, Any] | Callable[..., Any],
    retriever: Runnable[Any, Any] | Callable[..., Any],
    get_session_history: GetSessionHistory,
    *,
    prompt: str | BasePromptTemplate[Any] | None = None,
    input_messages_key: str = "input",
    condense: Mode = "auto",
    n_questions: int | None = None,
    max_tokens: int | None = 4000,
    **options: Any,
) -> RunnableWithMessageHistory:
    """Build a chain that condenses the question, retrieves documents, answers from them and stores the turn.

    Every call is one turn of the session that its config names: the past conversation is loaded, the question is
    rewritten to stand alone, documents are retrieved with that, the model answers the question from them, and the
    original question is stored with the answer. The stored answer names its documents by id (by a digest of the text
    where they have none) in `response_metadata["memkit_documents"]`. If retriever or model fails, nothing is stored
    and the error is raised.

    Documents are untrusted. The model receives them as numbered records, quoted line by line, in a user message just
    before the question; it is instructed to answer from them alone, to cite them as [1], and to say so if they hold no
    answer.

    Args:
        llm: A chat or string model, or a function or runnable that takes messages; it also rewrites questions.
        retriever: A LangChain retriever, or a runnable or function from a string to documents. It is wrapped in a
            `CondenseQuestionRetriever` with the same model, unless it is one already.
        get_session_history: As in `create_runnable_with_message_history`: best `X.factory(...)` of a memkit history.
        prompt: An instruction in place of the default one; or a prompt template that takes `context` and the question,
            and may take `chat_history`, `standalone_question` and other keys of the input. Under a
            `MessagesPlaceholder` these are messages, else text. If its only placeholders for messages have other
            names, they would not receive the past, and a `UserWarning` says so.
        input_messages_key: The key of the question in the input.
        condense: When the question is rewritten, as `mode` of `CondenseQuestionRetriever`.
        n_questions: Number of the user's last questions that retriever and model see as the past, as in
            `last_questions(n)`. None: the conversation, answers included.
        max_tokens: Budget for the past conversation with the new question; older turns are left out. None: no limit.
            Not used with `n_questions` or a `preprocessor`.
        **options: Further options of `create_runnable_with_message_history`: `preprocessor`, `memories`, `before_save`,
            `history_factory_config`, and all that begin with `on_`.

    Returns:
        A runnable from `{"input": question}` to a dict with `input`, `chat_history`, `context` (the documents),
        `standalone_question` and `answer`, both text. Other keys of the input come back as well. A stream gives dicts
        that add up: the input, the question and documents, the answer in pieces.

    Raises:
        ConfigurationError: The arguments do not fit together.

    Example:
        >>> from langchain_core.documents import Document
        >>> from langchain_core.runnables import RunnableLambda
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> retriever = RunnableLambda(lambda question: [Document("Tea is served at five.", id="house-1")])
        >>> model = RunnableLambda(lambda messages: "At five [1].")
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> chat = create_conversational_rag_chain(model, retriever, histories)
        >>> answer = chat.invoke({"input": "When is tea?"}, {"configurable": {"session_id": "s1"}})
        >>> answer["answer"], answer["context"][0].page_content
        ('At five [1].', 'Tea is served at five.')
        >>> histories("s1").messages[-1].response_metadata
        {'memkit_documents': ['house-1'], 'memkit_cited': ['house-1']}
    """
    for name in OURS:
        if name in options:
            msg = f"{name} cannot be set: the chain's keys are {ANSWER!r} and {HISTORY!r}"
            raise ConfigurationError(msg)
    if input_messages_key in {"", ANSWER, CONTEXT, HISTORY, STANDALONE}:
        msg = f"input_messages_key={input_messages_key!r}: the chain's output has that key for something else"
        raise ConfigurationError(msg)
    check_arguments(options, create_conversational_rag_chain, create_runnable_with_message_history)
    options["preprocessor"] = _preprocessor(n_questions, max_tokens, options.get("preprocessor"))
    if not (isinstance(llm, Runnable) or callable(llm)):
        msg = f"llm must be a model, or a runnable or function of messages, not {type(llm).__name__}"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    answering = Answering(
        coerce_to_runnable(llm),
        _condensing(retriever, llm, condense, n_questions),
        RagPrompt(prompt, input_messages_key),
        input_messages_key,
    )
    chain: type[RunnableWithMessageHistory] = ConversationalRag  # with the constructor of its parent
    return chain(
        answering,
        get_session_history,
        input_messages_key=input_messages_key,
        output_messages_key=ANSWER,
        history_messages_key=HISTORY,
        **options,
    )


class ConversationalRag(RunnableWithMessageHistory):
    """A conversational RAG chain, whose turns store the ids of the answer's documents."""

    _turn_type = RagTurn
    _policy_type = RagPolicy


def _condensing(retriever: Any, llm: Any, mode: Mode, n_questions: int | None) -> Runnable[Any, Any]:
    """Wrap the retriever in a `CondenseQuestionRetriever`, unless it contains one.

    Raises:
        ConfigurationError: The mode is unknown, or contradicts the given retriever's own.
    """
    if mode not in MODES:
        msg = f"condense must be one of {', '.join(map(repr, MODES))}, not {mode!r:.50}"
        raise ConfigurationError(msg)
    bare = _condensing_within(retriever)
    if bare is not None:
        if mode not in ("auto", bare.mode):
            msg = f"condense={mode!r}, but the retriever has mode={bare.mode!r}: set it there"
            raise ConfigurationError(msg)
        return retriever  # type: ignore[no-any-return]  # a runnable, as was just seen
    known: dict[str, Any] = {} if n_questions is None else {"n": n_questions}
    return CondenseQuestionRetriever(retriever=retriever, llm=llm, mode=mode, **known)


def _condensing_within(runnable: Any) -> CondenseQuestionRetriever | None:
    """Find the `CondenseQuestionRetriever` within a runnable: bound, with fallbacks, or first in a sequence."""
    while not isinstance(runnable, CondenseQuestionRetriever):
        for name in ("bound", "first", "runnable", "default"):
            inner = getattr(runnable, name, None)
            if isinstance(inner, Runnable):
                runnable = inner
                break
        else:
            return None
    return runnable


def _preprocessor(n_questions: int | None, max_tokens: int | None, given: Any) -> Preprocessor | None:
    """Return the preprocessor that limits the past.

    Raises:
        ConfigurationError: Both `n_questions` and a preprocessor are given.
    """
    if n_questions is None:
        return given if given is not None or max_tokens is None else create_trim_preprocessor(max_tokens)
    if given is not None:
        msg = "n_questions and preprocessor each say what is known of the past: give one of them"
        raise ConfigurationError(msg)
    return LastQuestions(n_questions)
