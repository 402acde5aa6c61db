"""Calls of a model that are ours, and no part of an answer, are marked as langchain marks its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    CondenseQuestionRetriever,
    EntityMemory,
    SQLiteChatMessageHistory,
    create_history_preprocessor,
)
from langchain_memkit.memories.key_value import create_model_matcher
from langchain_memkit.memories.vector.importance import create_model_importance

try:
    from langchain.agents.middleware.internal_call_transformer import internal_call_metadata
except ImportError:  # before langchain 1.5
    internal_call_metadata = dict
TALK: list[BaseMessage] = [
    message for i in range(30) for message in (HumanMessage(f"question {i} " + "word " * 20), AIMessage(f"answer {i}"))
]
Call = Callable[[Any, str, Any], Any]


class Metadata(BaseCallbackHandler):
    """What the calls of a chat model carry."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, Any], list[str]]] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        """Keeps it."""
        self.heard.append((kwargs["metadata"], kwargs["tags"]))


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """Calls a verb in both styles."""

    def called(target: Any, verb: str, value: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(value)
        return asyncio.run(getattr(target, f"a{verb}")(value))

    return called


def summarize(model: Any, call: Call) -> None:
    """Summarizes a long conversation."""
    call(create_history_preprocessor(model, max_tokens=400), "invoke", TALK)


def condense(model: Any, call: Call) -> None:
    """Rewrites a question."""
    retriever = CondenseQuestionRetriever(retriever=RunnableLambda(lambda text: [Document(text)]), llm=model)
    call(retriever, "invoke", {"input": "What about the second one?", "chat_history": TALK[:4]})


def rate(model: Any, call: Call) -> None:
    """Rates memories."""
    call(create_model_importance(model), "batch", ["I moved to Sydney.", "Hello."])


def match(model: Any, call: Call) -> None:
    """Finds titles."""
    matcher = create_model_matcher(model)
    call(
        RunnableLambda(lambda _: matcher("poems", ["Poems"]), lambda _: matcher.acall("poems", ["Poems"])), "invoke", 0
    )


def describe(model: Any, call: Call) -> None:
    """Describes an entity."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    memory = EntityMemory(histories, lambda text: ["Nemo"], "s1", user_id="u1", describe=model)
    call(memory, "save", [HumanMessage("Nemo is a captain."), AIMessage("Noted.")])


@pytest.mark.parametrize(
    ("purpose", "use"),
    [
        ("summary", summarize),
        ("question", condense),
        ("importance", rate),
        ("matcher", match),
        ("entities", describe),
    ],
)
def test_each_call_is_marked(call: Call, purpose: str, use: Callable[[Any, Call], None]) -> None:
    """Each carries its purpose, langchain's mark where it has one, and the tag that keeps its tokens out of streams."""
    metadata = Metadata()
    use(FakeListChatModel(responses=["1. A captain."], callbacks=[metadata]), call)
    assert metadata.heard
    for known, tags in metadata.heard:
        assert {"memkit": purpose, **internal_call_metadata()}.items() <= known.items()
        assert "nostream" in tags


def test_langchain_is_not_loaded_for_it() -> None:
    """Where no agent runs, nothing is imported to mark a call."""
    code = """
        import sys
        from langchain_memkit import create_history_preprocessor
        from langchain_core.messages import AIMessage, HumanMessage
        talk = [m("word " * 20) for _ in range(30) for m in (HumanMessage, AIMessage)]
        said = create_history_preprocessor(lambda prompt: "They talked.", max_tokens=400).invoke(talk)
        print("They talked." in said[0].text, "langchain" in sys.modules)
    """
    command = [sys.executable, "-W", "error", "-c", "\n".join(line.strip() for line in code.splitlines())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True False\n", done.stderr
