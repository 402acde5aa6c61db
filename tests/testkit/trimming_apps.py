"""How apps shorten what an agent's model sees: the recipes of LangChain's and LangGraph's guides, as middleware.

Each is used as it is, and with our middleware before or behind it: the model must see the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import HumanMessage, RemoveMessage, SystemMessage, trim_messages
from langgraph.graph.message import REMOVE_ALL_MESSAGES


class Trimmed(AgentMiddleware[Any, Any, Any]):
    """LangChain's guide to short-term memory, "Trim messages": the first message and the newest few."""

    def before_model(self, state: Any, runtime: Any) -> Any:
        """Before a call."""
        messages = state["messages"]
        if len(messages) <= 3:
            return None
        recent = messages[-3:] if len(messages) % 2 == 0 else messages[-4:]
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), messages[0], *recent]}


class TrimmedByCore(AgentMiddleware[Any, Any, Any]):
    """`trim_messages` of langchain-core over the state, which begins with a question."""

    def before_model(self, state: Any, runtime: Any) -> Any:
        """Before a call."""
        kept = trim_messages(state["messages"], max_tokens=5, token_counter=len, start_on="human")
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept]}


class OldDeleted(AgentMiddleware[Any, Any, Any]):
    """LangChain's guide, "Delete messages": the two oldest go after each answer."""

    def after_model(self, state: Any, runtime: Any) -> Any:
        """After a call."""
        messages = state["messages"]
        return {"messages": [RemoveMessage(id=m.id) for m in messages[:2]]} if len(messages) > 2 else None


class OwnSummary(AgentMiddleware[Any, Any, Any]):
    """A summary of the app's own, of the class `kind`, in the place of all messages but the newest three."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def before_model(self, state: Any, runtime: Any) -> Any:
        """Before a call."""
        messages = state["messages"]
        if len(messages) < 6:
            return None
        kept = messages[-3:]
        while kept[0].type == "tool":  # without its call, which providers refuse
            kept = kept[1:]
        summary = self.kind(f"summary up to {messages[-4].text}")
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary, *kept]}


class SummaryState(AgentState[Any]):
    """With LangGraph's key."""

    summary: NotRequired[str]


class SummaryInAKey(AgentMiddleware[Any, Any, Any]):
    """LangGraph's guide, "Summarize messages": the summary is in a key of the state, and stands before each prompt."""

    state_schema = SummaryState

    def after_model(self, state: Any, runtime: Any) -> Any:
        """After a call."""
        messages = state["messages"]
        if len(messages) < 6:
            return None
        removed = [RemoveMessage(id=m.id) for m in messages[:-2]]
        return {"summary": f"summary up to {messages[-3].text}", "messages": removed}

    def _with_summary(self, request: Any) -> Any:
        if not (summary := request.state.get("summary")):
            return request
        return request.override(messages=[SystemMessage(summary), *request.messages])

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        """Around a call."""
        return handler(self._with_summary(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Around a call."""
        return await handler(self._with_summary(request))


class RequestTrimmed(AgentMiddleware[Any, Any, Any]):
    """The newest three messages of each request; the state keeps all."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        """Around a call."""
        return handler(request.override(messages=request.messages[-3:]))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Around a call."""
        return await handler(request.override(messages=request.messages[-3:]))


RECIPES: dict[str, Callable[[], Any]] = {
    "trimmed": Trimmed,
    "trim_messages": TrimmedByCore,
    "old ones deleted": OldDeleted,
    "own summary": lambda: OwnSummary(SystemMessage),
    "own summary, by a user": lambda: OwnSummary(HumanMessage),
    "summary in a key": SummaryInAKey,
    "request trimmed": RequestTrimmed,
}
"""By what they do."""
