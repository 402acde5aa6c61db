"""A model behind HTTP that fails in every way a server can: the question is searched for all the same."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.retrievers import CondenseQuestionRetriever

Run = Callable[..., Any]
TALK = [HumanMessage("Who is the president of France?"), AIMessage("Emmanuel Macron.")]
FOLLOW_UP = "How old is he?"
GOOD = "How old is Emmanuel Macron?"


class Server(ThreadingHTTPServer):
    """OpenAI's protocol on the loopback interface; `behaviour` says how it fails."""

    daemon_threads = True
    behaviour = "good"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.given_up = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.0"  # each connection ends with its answer: none outlives the loop of its call
    server: Server

    def do_POST(self) -> None:
        """A chat completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(asked)
        kind = self.server.behaviour
        if kind == "slow":
            self.server.given_up.wait(60)
        if kind == "hangs up":
            self.close_connection = True
            return
        if kind in ("429", "500", "401"):
            self._send(int(kind), json.dumps({"error": {"message": "no", "type": "t", "code": kind}}))
        elif kind == "no structure" and "response_format" in asked:
            self._send(400, json.dumps({"error": {"message": "response_format is not supported"}}))
        elif kind == "not json":
            self._send(200, "<html>Welcome</html>")
        elif kind == "no choices":
            self._send(200, json.dumps({"id": "1", "object": "chat.completion", "model": "m", "choices": []}))
        else:
            self._send(200, self._completion(kind))

    def _completion(self, kind: str) -> str:
        said = {
            "good": json.dumps({"question": GOOD}),
            "no structure": f"Standalone question: {GOOD}",
            "text": GOOD,
            "other json": json.dumps({"answer": 48}),
            "answers": json.dumps({"question": "Emmanuel Macron is 48 years old."}),
            "blanks": json.dumps({"question": " "}),
            "half": '{"question": "How old',
            "slow": json.dumps({"question": GOOD}),
        }[kind]
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

    def _send(self, status: int, body: str) -> None:
        data = body.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client has given up
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    """One that listens on a free port."""
    with Server() as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield made
        made.given_up.set()
        made.shutdown()


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(retriever, "invoke", ...)` in both styles."""

    def call(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)

        async def main() -> Any:
            result = await getattr(target, f"a{verb}")(*args, **kwargs)
            await asyncio.sleep(0.02)  # the connection is closed in the loop's next round
            return result

        return asyncio.run(main())

    return call


def over(server: Server, timeout: float = 60, **options: Any) -> CondenseQuestionRetriever:
    """A retriever that finds what it was asked, with a model of the server's."""
    address = f"http://127.0.0.1:{server.server_port}/v1"
    model: Any = ChatOpenAI(model="m", base_url=address, api_key="sk-none", max_retries=0)  # type: ignore[arg-type]
    inner = RunnableLambda(lambda text: [Document(text)])
    return CondenseQuestionRetriever(retriever=inner, llm=model, timeout=timeout, **options)


def told(found: list[Document]) -> dict[str, Any]:
    """What the first document tells of the question."""
    return found[0].metadata["memkit_question"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "fault",
    ["429", "500", "401", "slow", "hangs up", "not json", "no choices", "answers", "blanks", "half", "other json"],
)
def test_faults_change_nothing_for_the_user(
    run: Run, server: Server, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No exception, one warning, the weighted question; and the next turn asks the model again."""
    server.behaviour = fault
    retriever = over(server, timeout=0.5 if fault == "slow" else 60)
    with caplog.at_level(logging.WARNING, "langchain_memkit"):
        found = run(retriever, "invoke", {"input": FOLLOW_UP, "chat_history": TALK})
    assert told(found)["by"] == "weighted", told(found)
    assert told(found)["reason"].startswith(("the model failed", "the model took too long", "the rewrite was refused"))
    assert len([record for record in caplog.records if record.name == "langchain_memkit"]) == 1
    asked = len(server.requests)
    assert asked == 1 or (fault, asked) == ("slow", 0)  # a busy machine may not come to asking in so short a time
    server.given_up.set()
    server.behaviour = "good"
    assert run(over(server), "condense_question", FOLLOW_UP, TALK).question == GOOD


def test_structured_output_over_http(run: Run, server: Server) -> None:
    """The schema is sent; JSON and plain text in its place are understood."""
    for server.behaviour in ("good", "text"):
        assert told(run(over(server), "invoke", {"input": FOLLOW_UP, "chat_history": TALK}))["question"] == GOOD
    assert [r["response_format"]["type"] for r in server.requests] == ["json_schema"] * 2


def test_server_without_structured_output(run: Run, server: Server) -> None:
    """It is asked once more for plain text, and from then on for that."""
    server.behaviour = "no structure"
    retriever = over(server)
    for question in (FOLLOW_UP, "Where was he born?"):
        run(retriever, "condense_question", question, TALK)
    assert ["response_format" in request for request in server.requests] == [True, False, False]


def test_a_first_question_sends_nothing(run: Run, server: Server) -> None:
    """Without a history not one request, then one for each; the conversation is read from a bound history."""
    history = SQLiteChatMessageHistory(":memory:", "s1")
    retriever = over(server, history=history)
    run(retriever, "invoke", FOLLOW_UP)
    assert server.requests == []
    history.add_messages(TALK)
    assert run(retriever, "invoke", FOLLOW_UP)[0].page_content == GOOD
    assert len(server.requests) == 1
