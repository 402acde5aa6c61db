"""One real model server and one real mongod per test session; per test a model client and a database of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import runpy
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import openai
import pytest
from langchain_openai import ChatOpenAI
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory
from tools.local_mongodb import local_mongodb

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 24
STARTUP_TIMEOUT = 60.0  # seconds; half a second is usual


class ModelServerError(Exception):
    """The model server did not start, or it is gone; the text ends with its log."""


class ModelServer:
    """The process of `model_server.py`.

    Args:
        model: A GGUF file.
        folder: An empty one, for the log and the prompts.
        max_tokens: Most tokens of an answer.
        context: Tokens that the model can be given.
    """

    def __init__(self, model: Path, folder: Path, max_tokens: int, context: int) -> None:
        self.url = ""
        self._prompts, self._log = folder / "prompts", folder / "log"
        self._prompts.mkdir()
        arguments = [model, self._prompts, max_tokens, context, os.getpid()]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "model_server.py", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the tests only, which then end it
            )

    def wait(self) -> None:
        """Finds the address, and returns once `GET /health` answers 200 there."""
        deadline = time.monotonic() + STARTUP_TIMEOUT
        while time.monotonic() < deadline:
            self.check()
            ready = re.search(r"^READY (http://\S+)$", self._log.read_text(errors="replace"), re.MULTILINE)
            if ready and is_healthy(ready[1]):
                self.url = ready[1]
                return
            time.sleep(0.02)
        raise ModelServerError(f"The model server did not answer for {STARTUP_TIMEOUT:g} s. Its log:\n{self._end()}")

    def check(self) -> None:
        """Raises with the log if the process has ended, which a client sees as a refused connection only."""
        if (code := self.process.poll()) is not None:
            raise ModelServerError(f"The model server has ended with {code}. Its log:\n{self._end()}")

    def stop(self) -> None:
        """Ends the process, by its own pid."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def prompts(self, about: str) -> list[list[tuple[str, str]]]:
        """What the model was given, as the server wrote it down: (role, text), every prompt with this text in it."""
        texts = [path.read_text("utf-8", "replace") for path in sorted(self._prompts.iterdir())]
        return [read_prompt(text) for text in texts if about in text]

    def _end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def read_prompt(text: str) -> list[tuple[str, str]]:
    """The messages in the template of the smoke model (ChatML); what opens the answer is left out."""
    messages = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", text, re.DOTALL)
    opening = "<|im_start|>assistant\n"
    assert text == "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in messages) + opening
    return messages


def is_healthy(url: str) -> bool:
    """Whether the model is loaded; asked directly, whatever proxy the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The smoke model: fetched by `make e2e`, never by a test."""
    parts = runpy.run_path(str(HERE.parents[1] / "tools" / "parts.py"))
    path: Path = parts["PARTS"] / parts["MODEL"]
    if not path.is_file():
        pytest.fail(f"{path.name} is missing. Fetch it: python tools/parts.py smoke-model", pytrace=False)
    return path


@pytest.fixture(scope="session")
def start_model_server(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Any]:
    """Makes servers of the test's own, each for a `with` block."""

    @contextlib.contextmanager
    def start(model: Path, max_tokens: int = MAX_TOKENS, context: int = 1024) -> Iterator[ModelServer]:
        server = ModelServer(model, tmp_path_factory.mktemp("model_server"), max_tokens, context)
        try:
            server.wait()
            yield server
        finally:
            server.stop()

    return start


@pytest.fixture(scope="session")
def model_server(model_file: Path, start_model_server: Any) -> Iterator[ModelServer]:
    """The server, for all tests."""
    with start_model_server(model_file) as server:
        yield server


@pytest.fixture(scope="session")
def mongodb_uri() -> Iterator[str]:
    """A standalone mongod, for all tests."""
    with local_mongodb() as server:
        yield server.uri


@pytest.fixture
def database() -> str:
    """A database name of the test's own."""
    return f"e2e_{uuid4().hex[:12]}"


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for the whole test, as an app has."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def model(model_server: ModelServer, runner: asyncio.Runner) -> Iterator[ChatOpenAI]:
    """The model, over connections that end with the test (langchain-openai's shared ones outlive their event loop)."""
    model_server.check()
    http, ahttp = openai.DefaultHttpxClient(trust_env=False), openai.DefaultAsyncHttpxClient(trust_env=False)
    yield ChatOpenAI(
        base_url=f"{model_server.url}/v1",
        api_key="none",
        model="local",
        max_tokens=MAX_TOKENS,
        temperature=0,
        max_retries=0,
        stream_usage=True,
        http_client=http,
        http_async_client=ahttp,
    )
    http.close()
    runner.run(ahttp.aclose())


@pytest.fixture
def histories(mongodb_uri: str, database: str, runner: asyncio.Runner) -> Iterator[Any]:
    """`get_session_history` on the test's database."""
    factory = MongoDBChatMessageHistory.factory(mongodb_uri, database)
    yield factory
    runner.run(factory.aclose())


@pytest.fixture
def documents(mongodb_uri: str, database: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """`documents(session_id)`: the turns that are stored, in order, as the driver alone reads them."""
    with MongoClient(mongodb_uri, tz_aware=True) as client:
        collection = client[database]["message_store"]
        yield lambda session_id: list(collection.find({"session_id": session_id, "kind": "turn"}).sort("seq"))


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Callable[..., Any]:
    """`call(chat, "invoke", ...)` in both styles; a stream is read to its end and comes back as a list."""
    if request.param == "sync":

        def sync(target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            result = getattr(target, name)(*args, **kwargs)
            return list(result) if name == "stream" else result

        return sync

    async def asynchronous(target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        result = getattr(target, f"a{name}")(*args, **kwargs)
        return [chunk async for chunk in result] if name == "stream" else await result

    return lambda *args, **kwargs: runner.run(asynchronous(*args, **kwargs))
