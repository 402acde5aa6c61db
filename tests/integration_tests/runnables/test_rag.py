"""The article's app with real parts: question documents on a real MongoDB, vectors, and a model behind HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import add
from typing import Any

import openai
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory, WordLlamaEmbeddings
from langchain_memkit.runnables.rag import create_conversational_rag_chain
from testkit.styles import Styles

C1: Any = {"configurable": {"session_id": "c1", "user_id": "nnaji"}}
FIRST, SECOND = "Who is the president of France?", "How old is he?"
STANDALONE = "How old is the president of France?"
DOCUMENTS = [
    Document("Emmanuel Macron is the president of France.", id="d1", metadata={"source": "france.md"}),
    Document("The president of France, Emmanuel Macron, is 48 years old.", id="d2", metadata={"source": "ages.md"}),
    Document("The old town of Bern is six hundred years old.", id="d3"),
    Document("Tea is served at five in the garden.", id="d4"),
]


class Server(ThreadingHTTPServer):
    """Speaks OpenAI's chat completions. Rewrites the one question it knows, and answers with the first record."""

    daemon_threads = True
    structured = True
    fail: Callable[[bool], int] = staticmethod(lambda rewriting: 200)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []

    def said(self, body: dict[str, Any]) -> tuple[int, str]:
        """Status and text for a request."""
        self.asked.append(body)
        prompt = str(body["messages"][-1]["content"])
        rewriting = "Latest question" in prompt
        if (status := self.fail(rewriting)) != 200:
            return status, "slow down"
        if rewriting:
            return (200, json.dumps({"question": STANDALONE})) if body.get("response_format") else (200, STANDALONE)
        note = next(m["content"] for m in reversed(body["messages"]) if "ecord" in m["content"])
        first = re.search(r"- \[1\].*?:\n> (.*)", note)
        return 200, f"{first[1]} [1]" if first else "The records do not tell."


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_POST(self) -> None:
        """Answers, in one piece or streamed."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("response_format") and not self.server.structured:
            return self._send(400, json.dumps({"error": {"message": "response_format is not supported"}}))
        status, text = self.server.said(body)
        if status != 200:
            return self._send(status, json.dumps({"error": {"message": text}}))
        whole = {"id": "r1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return self._send(200, json.dumps({**whole, "object": "chat.completion", "choices": [choice]}))
        deltas: list[Any] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": word} for word in re.findall(r"\S+\s*", text)]
        chunks = [
            {**whole, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": d, "finish_reason": None}]}
            for d in deltas
        ]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return self._send(200, "".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")

    def _send(self, status: int, text: str, kind: str = "application/json") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name in the base class
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A model server of the test's own."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for the whole test, as an app has."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def model(server: Server, runner: asyncio.Runner) -> Iterator[ChatOpenAI]:
    """langchain-openai over connections that end with the test."""
    http, ahttp = openai.DefaultHttpxClient(trust_env=False), openai.DefaultAsyncHttpxClient(trust_env=False)
    yield ChatOpenAI(
        base_url=f"http://127.0.0.1:{server.server_port}/v1",
        api_key="none",  # type: ignore[arg-type]
        model="local",
        max_retries=0,
        http_client=http,
        http_async_client=ahttp,
    )
    http.close()
    runner.run(ahttp.aclose())


@pytest.fixture(params=["qa", "turns", "sqlite"])
def histories(request: pytest.FixtureRequest, database: str, runner: asyncio.Runner) -> Iterator[Any]:
    """The article's documents, ours on the same server, and a file."""
    if request.param == "sqlite":
        with SQLiteChatMessageHistory.factory(":memory:") as factory:
            yield factory
        return
    uri = request.getfixturevalue("standalone").uri
    factory = MongoDBChatMessageHistory.factory(uri, database, layout=request.param)
    yield factory
    runner.run(factory.aclose())


@pytest.fixture
def retriever() -> Any:
    """A vector store of LangChain's, with real vectors."""
    store = InMemoryVectorStore(WordLlamaEmbeddings())
    store.add_documents(DOCUMENTS)
    return store.as_retriever(search_kwargs={"k": 2})


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Callable[..., dict[str, Any]]:
    """`run(chain, value)` in each style, on one event loop; the output, of a stream as the sum of its chunks."""
    styles = Styles(request.param)

    def call(chain: Any, value: Any) -> dict[str, Any]:
        result: Any = (
            runner.run(styles._acall(chain, value, C1, None)) if styles.asynchronous else styles(chain, value, C1)
        )
        return dict(reduce(add, result)) if isinstance(result, list) else result

    return call


def stored(histories: Any) -> list[BaseMessage]:
    """The conversation, as a new history reads it."""
    return list(histories("c1", user_id="nnaji").messages)


def test_the_articles_conversation(run: Any, server: Server, model: ChatOpenAI, histories: Any, retriever: Any) -> None:
    """Who is the president? How old is he? Rewritten, searched, answered from a record, stored as asked."""
    chat = create_conversational_rag_chain(model, retriever, histories)
    first, second = run(chat, {"input": FIRST}), run(chat, {"input": SECOND})
    assert first["answer"] == "Emmanuel Macron is the president of France. [1]"
    assert (second["standalone_question"], second["input"]) == (STANDALONE, SECOND)
    assert second["answer"] == "The president of France, Emmanuel Macron, is 48 years old. [1]"
    assert [m.text for m in second["chat_history"]] == [FIRST, first["answer"]]
    assert len(server.asked) == 3, "the first question is not rewritten, the second is rewritten once"
    assert FIRST in str(server.asked[1]["messages"])
    assert [(m["role"], m["content"]) for m in server.asked[2]["messages"]][-1] == ("user", SECOND)
    messages = stored(histories)
    assert [m.text for m in messages] == [FIRST, first["answer"], SECOND, second["answer"]]
    assert [m.response_metadata.get("memkit_documents") for m in messages[1::2]] == [
        [d.id for d in output["context"]] for output in (first, second)
    ]


@pytest.mark.parametrize("histories", ["qa"], indirect=True)
@pytest.mark.parametrize("status", [429, 500])
def test_model_down(run: Any, server: Server, model: ChatOpenAI, histories: Any, retriever: Any, status: int) -> None:
    """Down while it rewrites: terms are weighted, the answer comes. Down while it answers: raised, not stored."""
    chat = create_conversational_rag_chain(model, retriever, histories)
    run(chat, {"input": FIRST})
    server.fail = lambda rewriting: status if rewriting else 200
    output = run(chat, {"input": SECOND})
    assert output["answer"].endswith(" [1]")
    assert output["context"][0].metadata["memkit_question"]["by"] == "weighted"
    assert "d2" in [d.id for d in output["context"]]
    server.fail = lambda rewriting: 200 if rewriting else status
    with pytest.raises(openai.APIStatusError):
        run(chat, {"input": "And where does he live?"})
    assert [m.text for m in stored(histories)][::2] == [FIRST, SECOND]


@pytest.mark.parametrize("histories", ["sqlite"], indirect=True)
def test_server_without_structured_output(
    run: Any, server: Server, model: ChatOpenAI, histories: Any, retriever: Any
) -> None:
    """Many local servers refuse `response_format`: the rewrite comes as plain text."""
    server.structured = False
    chat = create_conversational_rag_chain(model, retriever, histories)
    run(chat, {"input": FIRST})
    assert run(chat, {"input": SECOND})["standalone_question"] == STANDALONE


def test_last_questions_of_the_article(
    run: Any, server: Server, model: ChatOpenAI, histories: Any, retriever: Any
) -> None:
    """Only the user's last three questions are known, to the rewrite and to the answer."""
    chat = create_conversational_rag_chain(model, retriever, histories, n_questions=3)
    questions = ["Is there tea?", "Is Bern old?", FIRST, "Is France a republic?"]
    for question in questions:
        run(chat, {"input": question})
    output = run(chat, {"input": SECOND})
    history = histories("c1", user_id="nnaji")
    assert [m.text for m in output["chat_history"]] == questions[1:]
    assert history.last_questions(4) == [SECOND, *reversed(questions[1:])]
    told = [m["content"] for m in server.asked[-1]["messages"] if m["role"] == "user"]
    assert [told[0], *told[1:3], told[-1]] == [*questions[1:], SECOND]
    assert not [m for m in server.asked[-1]["messages"] if m["role"] == "assistant"]
    assert output["standalone_question"] == STANDALONE


@pytest.mark.parametrize("histories", ["qa"], indirect=True)
def test_documents_of_the_article(
    run: Any, standalone: Any, database: str, model: ChatOpenAI, histories: Any, retriever: Any
) -> None:
    """A document that the article's own code wrote is the first turn; ours beside it has the same plain fields."""
    with MongoClient(standalone.uri, tz_aware=True) as client:
        collection = client[database]["message_store"]
        theirs = {"question": FIRST, "response": "Emmanuel Macron.", "userId": "nnaji", "chatId": "c1"}
        collection.insert_one({**theirs, "isActive": True, "isDeleted": False})
        chat = create_conversational_rag_chain(model, retriever, histories)
        output = run(chat, {"input": SECOND})
        assert output["chat_history"] == [HumanMessage(FIRST), AIMessage("Emmanuel Macron.")]
        assert output["standalone_question"] == STANDALONE
        document = collection.find_one({"question": SECOND})
    assert document is not None
    assert document["response"] == output["answer"]
    assert (document["chatId"], document["userId"], document["isDeleted"]) == ("c1", "nnaji", False)
    assert stored(histories)[-1].response_metadata["memkit_documents"] == [d.id for d in output["context"]]
