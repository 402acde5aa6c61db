"""`examples/chat_api.py` as it is: a server process, a real mongod, the local model, and a client over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from langchain_memkit import SQLiteChatMessageHistory

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STARTUP_TIMEOUT = 60.0  # seconds


@contextmanager
def serving(folder: Path, user: str, model_url: str, **environment: str) -> Iterator[httpx.Client]:
    """A client of the app, which runs as a process of its own."""
    known = {"OPENAI_BASE_URL": f"{model_url}/v1", "OPENAI_API_KEY": "none", "CHAT_MODEL": "local", "NO_PROXY": "*"}
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "chat_api:app"]
    log = folder / "log"
    with log.open("wb") as out:
        whole = {**os.environ, **known, **environment}
        server = subprocess.Popen(command, env=whole, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + STARTUP_TIMEOUT
        while not (found := re.search(r"running on (http://\S+)", log.read_text())) and time.monotonic() < deadline:
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        assert found, log.read_text()
        with httpx.Client(base_url=found[1], headers={"X-User": user}, trust_env=False, timeout=120) as client:
            yield client
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture
def client(model_server: Any, mongodb_uri: str, database: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of the running app, as a user of the test's own."""
    with serving(tmp_path, database, model_server.url, MEMKIT_URI=mongodb_uri) as client:
        yield client


def events_of(response: httpx.Response) -> list[tuple[str, str]]:
    """Names and texts in a stream of events."""
    assert response.status_code == 200, response.text
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", response.text)]


def said(response: httpx.Response) -> str:
    """The answer in a stream of events, which was stored."""
    events = events_of(response)
    assert events[-1][0] == "end", events
    return "".join(text for name, text in events if name == "token")


def test_a_day_in_a_chat_app(client: httpx.Client) -> None:
    """Ask, list, title, search, edit, regenerate, undo, fork, why, delete; another user sees none of it."""
    first = said(client.post("/sessions/s1/messages", json={"text": "Tell me about the sea."}))
    second = said(client.post("/sessions/s1/messages", json={"text": "And about reefs?"}))
    shown = client.get("/sessions/s1").json()
    assert [(m["seq"], m["role"], m["text"]) for m in shown] == [
        (1, "human", "Tell me about the sea."),
        (1, "ai", first),
        (2, "human", "And about reefs?"),
        (2, "ai", second),
    ]
    trace = client.get("/sessions/s1/why").json()
    assert [m["part"] for m in trace["messages"]] == ["system", "history", "history", "input"]
    assert trace["calls"][0]["usage"]["input_tokens"] > 10

    (info,) = client.get("/sessions").json()
    assert (info["title"], info["turns"]) == ("Tell me about the sea.", 2)
    client.patch("/sessions/s1", json={"title": "Reefs", "metadata": {"folder": "sea"}})
    assert [one["title"] for one in client.get("/sessions", params={"folder": "sea"}).json()] == ["Reefs"]
    assert client.get("/sessions", params={"folder": "land"}).json() == []
    assert client.post("/sessions/s1/title").json()
    assert {hit["seq"] for hit in client.get("/search", params={"q": "reefs"}).json()} >= {2}

    edited = said(client.post("/sessions/s1/messages", json={"text": "And about tides?", "replaces": 2}))
    assert [m["text"] for m in client.get("/sessions/s1").json()][2:] == ["And about tides?", edited]
    assert client.post("/sessions/s1/undo").json() is True
    assert [m["text"] for m in client.get("/sessions/s1").json()][2:] == ["And about reefs?", second]
    again = said(client.post("/sessions/s1/regenerate"))
    assert [m["text"] for m in client.get("/sessions/s1").json()][2:] == ["And about reefs?", again]

    assert client.post("/sessions/s1/fork", params={"into": "s2", "at": 1}).status_code == 200
    assert [m["text"] for m in client.get("/sessions/s2").json()] == ["Tell me about the sea.", first]

    other = {"X-User": "dory"}
    assert client.get("/sessions", headers=other).json() == []
    assert client.get("/sessions/s1", headers=other).json() == []
    assert client.get("/sessions/s1/why", headers=other).status_code == 404

    client.delete("/sessions/s1")
    assert [one["session_id"] for one in client.get("/sessions").json()] == ["s2"]


def test_what_is_wrong_has_a_status(client: httpx.Client) -> None:
    """A conversation that changed is 409, a malformed id or cursor 422, no user 422."""
    said(client.post("/sessions/s1/messages", json={"text": "Hello."}))
    gone = client.post("/sessions/s1/messages", json={"text": "Hello?", "replaces": 7})
    assert gone.status_code == 409
    assert client.get("/sessions", params={"before": "nonsense"}).status_code == 422
    assert client.post(f"/sessions/{'x' * 600}/messages", json={"text": "Hello."}).status_code == 422
    assert client.get("/sessions", headers={"X-User": ""}).status_code == 422
    assert len(client.get("/sessions/s1").json()) == 2


def test_regenerated_by_many_at_once(client: httpx.Client) -> None:
    """One of six is stored and ends; the others are told that theirs are not."""
    said(client.post("/sessions/s1/messages", json={"text": "Tell me about the sea."}))
    with ThreadPoolExecutor(6) as pool:
        streams = [*pool.map(lambda _: client.post("/sessions/s1/regenerate"), range(6))]
    last = [events_of(response)[-1] for response in streams if response.status_code == 200]
    refused = [text for name, text in last if name == "error"] + [
        response.json()["detail"] for response in streams if response.status_code != 200
    ]
    assert {text.partition(":")[0] for text in refused} <= {"The conversation has changed meanwhile"}
    stored = client.get("/sessions/s1").json()[-1]["text"]
    ended = [
        "".join(text for name, text in events_of(r) if name == "token") for r in streams if '"error"' not in r.text
    ]
    assert len(refused) + [name for name, _ in last].count("end") == 6
    assert len(refused) >= 1
    assert stored in ended


def test_pages_by_a_cursor_in_a_url(client: httpx.Client) -> None:
    """The cursor of the last conversation is put into the URL as it is, whatever the names of conversations are."""
    for name in ("a b+c", "d&e=f", "last"):
        said(client.post(f"/sessions/{quote(name, safe='')}/messages", json={"text": "Hello."}))
    listed = client.get("/sessions").json()
    assert [one["session_id"] for one in listed] == ["last", "d&e=f", "a b+c"]
    for i, one in enumerate(listed):
        rest = client.get(f"/sessions?before={one['cursor']}").json()
        assert [each["session_id"] for each in rest] == [each["session_id"] for each in listed[i + 1 :]]


def test_long_bodies(client: httpx.Client) -> None:
    """They are 413, with a length and without; nothing is stored."""
    long = json.dumps({"text": "x" * 600_000}).encode()
    kind = {"Content-Type": "application/json"}
    for body in (long, iter([long[:300_000], long[300_000:]])):
        response = client.post("/sessions/s1/messages", content=body, headers=kind)
        assert (response.status_code, response.json()) == (413, {"detail": "The request is too large."})
    assert client.post("/sessions/s1/messages", json={"text": "x" * 20_001}).status_code == 422
    assert client.get("/sessions").json() == []


class Failing(BaseHTTPRequestHandler):
    """A model's server whose answers are errors that tell too much."""

    def do_POST(self) -> None:
        """Answer with an error."""
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"error": {"message": "key sk-upstream at 10.0.0.1"}}).encode()
        self.send_response(200 if "title" in self.server.how else 500)  # type: ignore[attr-defined]  # the test's
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_errors_of_others_are_not_told(tmp_path: Path) -> None:
    """Whatever the model's server says, the client is told that something failed; `ValueError`s among it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as upstream:
        Thread(target=upstream.serve_forever, daemon=True).start()
        with serving(tmp_path, "u1", f"http://127.0.0.1:{upstream.server_port}") as client:
            SQLiteChatMessageHistory(tmp_path / "chat.db", "s1", user_id="u1").add_user_message("Hello.")
            for upstream.how in ("title", "answer"):  # type: ignore[attr-defined]  # as above
                for path in ("/sessions/s1/title", "/sessions/s1/messages", "/sessions/s1/regenerate"):
                    # A server closes a connection on which something has failed.
                    response = client.post(path, json={"text": "Hello?"}, headers={"Connection": "close"})
                    told = response.text
                    assert response.status_code == 500 or "event: error" in told, told
                    assert not [word for word in ("upstream", "10.0.0.1", "Error: ") if word in told], told
        upstream.shutdown()
