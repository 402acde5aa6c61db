"""`examples/chat_api.py` as it is: a server process, a real mongod, the local model, and a client over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STARTUP_TIMEOUT = 60.0  # seconds


@pytest.fixture
def client(model_server: Any, mongodb_uri: str, database: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of the running app, as a user of the test's own."""
    environment = {
        **os.environ,
        "MEMKIT_URI": mongodb_uri,
        "OPENAI_BASE_URL": f"{model_server.url}/v1",
        "OPENAI_API_KEY": "none",
        "CHAT_MODEL": "local",
        "NO_PROXY": "*",
    }
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "chat_api:app"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + STARTUP_TIMEOUT
        while not (found := re.search(r"running on (http://\S+)", log.read_text())) and time.monotonic() < deadline:
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        assert found, log.read_text()
        with httpx.Client(base_url=found[1], headers={"X-User": database}, trust_env=False, timeout=120) as client:
            yield client
    finally:
        server.terminate()
        server.wait(20)


def said(response: httpx.Response) -> str:
    """The answer in a stream of events, which was stored."""
    assert response.status_code == 200, response.text
    events = re.findall(r"event: (\w+)\ndata: (.*)\n", response.text)
    assert [name for name, _ in events][-1] == "end", events
    return "".join(json.loads(data) for name, data in events if name == "token")


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
