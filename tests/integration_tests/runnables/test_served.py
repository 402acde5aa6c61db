"""Chains behind a real FastAPI app: annotations are evaluated here, as FastAPI needs them."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    SQLiteChatMessageHistory,
    create_conversational_rag_chain,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1"}}


def test_one_app_serves_a_chat_and_a_rag_chain(tmp_path: Path) -> None:
    """Routes typed by both chains' schemas answer, and the app's OpenAPI page names each schema by itself."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    found = RunnableLambda(lambda _: [Document("Tea is at five.", id="d1")])
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    rag = create_conversational_rag_chain(FakeChatModel(), found, histories, condense="off")
    chat_input, chat_output = chat.get_input_schema(), chat.get_output_schema()
    rag_input, rag_output = rag.get_input_schema(), rag.get_output_schema()
    app = FastAPI()

    @app.post("/chat")
    def ask(body: chat_input) -> chat_output:
        return chat.invoke(body.root, S1)

    @app.post("/rag")
    def search(body: rag_input) -> rag_output:
        return rag.invoke(dict(body), S1)

    with TestClient(app) as client:
        answer = client.post("/chat", json=[{"type": "human", "content": "My name is Nemo."}])
        assert (answer.status_code, answer.json()["content"]) == (200, "Noted.")
        answer = client.post("/rag", json={"input": "What is my name?"})
        assert (answer.status_code, answer.json()["answer"]) == (200, "You told me: My name is Nemo.")
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    ours = {name for name in schemas if "ChatHistory" in name}
    assert {chat_input.__name__, rag_input.__name__, rag_output.__name__} <= ours
    assert [type(message) for message in histories("s1").messages[:2]] == [HumanMessage, AIMessage]
    histories.close()
