"""The app of `docs/fastapi.md` behind a real web server: what a client is answered when something is wrong."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from langchain_memkit import SQLiteChatMessageHistory

PAGE = Path(__file__).parents[2] / "docs" / "fastapi.md"
STORE, SETUP = 'SQLiteChatMessageHistory.factory("chat.db")', "await histories.asetup()"
DOWN = 'MongoDBChatMessageHistory.factory("mongodb://nemo:secret@127.0.0.1:1", timeout=0.3)'


def app_of_the_page(changed: Callable[[str], str] = lambda code: code) -> Any:
    """The app that the page's blocks make, all but the block of the test client."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[:-1])
    namespace: dict[str, Any] = {}
    exec(changed(code), namespace)
    return namespace["app"]


@contextmanager
def served(app: Any) -> Iterator[httpx.Client]:
    """A client of the app, which uvicorn serves in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=30) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of the app as it stands in the page."""
    monkeypatch.chdir(tmp_path)
    with served(app_of_the_page()) as found:
        yield found


def events(answer: httpx.Response) -> list[tuple[str, str]]:
    """Name and data of each event of a stream."""
    return [
        (name, json.loads(data))
        for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer.text, re.MULTILINE)
    ]


def test_answers_and_streams(client: httpx.Client, tmp_path: Path) -> None:
    """Both routes remember, and the stream ends with its own event."""
    said = client.post("/chat/s1", params={"question": "My name is Nemo."})
    assert (said.status_code, said.json()) == (200, {"answer": "Noted.", "stored": "yes"})
    streamed = client.post("/stream/s1", params={"question": "What is my name?"})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    tokens = events(streamed)
    assert "".join(data for name, data in tokens if name == "token") == "You told me: My name is Nemo."
    assert tokens[-1] == ("end", "")
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        assert len(histories("s1", "u1").messages) == 4


@pytest.mark.parametrize("route", ["chat", "stream"])
@pytest.mark.parametrize("session_id", ["%00", "x" * 513])
def test_bad_ids(client: httpx.Client, route: str, session_id: str) -> None:
    """A bad id is a 422 that names it, before a stream begins."""
    answer = client.post(f"/{route}/{session_id}", params={"question": "Hello!"})
    assert answer.status_code == 422
    assert "session_id" in answer.json()["detail"]


@pytest.mark.parametrize("route", ["chat", "stream"])
def test_store_that_cannot_be_reached(route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is not there is a 503 without details, before a stream begins."""
    monkeypatch.chdir(tmp_path)

    def without_a_server(code: str) -> str:
        assert STORE in code
        assert SETUP in code
        code = code.replace(STORE, DOWN).replace(SETUP, "pass")
        return f"from langchain_memkit import MongoDBChatMessageHistory\n{code}"

    with served(app_of_the_page(without_a_server)) as client:
        answer = client.post(f"/{route}/s1", params={"question": "Hello!"})
    assert (answer.status_code, answer.json()) == (503, {"detail": "The conversation is not available at the moment."})


def test_save_that_fails(client: httpx.Client, tmp_path: Path) -> None:
    """What was said is shown, and that it is not stored is said: in the answer, and in the stream."""
    client.post("/chat/s1", params={"question": "My name is Nemo."})
    with sqlite3.connect(tmp_path / "chat.db") as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    other.close()
    said = client.post("/chat/s1", params={"question": "What is my name?"})
    assert said.json() == {"answer": "You told me: My name is Nemo.", "stored": "no"}
    tokens = events(client.post("/stream/s1", params={"question": "What is my name?"}))
    assert "".join(data for name, data in tokens if name == "token") == "You told me: My name is Nemo."
    assert tokens[-1][0] == "error"
