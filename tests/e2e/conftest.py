"""One real model server and one real mongod per test session; per test a model client and a database of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import openai
import pytest
from langchain_openai import ChatOpenAI
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory
from tools.local_model import ModelServer, local_model, model_file
from tools.local_mongodb import local_mongodb

MAX_TOKENS = 24


@pytest.fixture(scope="session")
def smoke_model() -> Path:
    """The smoke model: fetched by `make e2e`, never by a test."""
    try:
        return model_file("smoke-model")
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def model_server(smoke_model: Path) -> Iterator[ModelServer]:
    """The server, for all tests."""
    with local_model(smoke_model, MAX_TOKENS) as server:
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
