"""A real web server over a chain, and clients that hang up."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable, RunnableGenerator

from gatekit.systems import config

WORDS = ["one ", "two ", "three "]
YIELDED = {"before": 0, "during": 2, "after": 3}  # words that the model says before the client goes


def speaker(moment: str, reached: threading.Event) -> Runnable[Any, Any]:
    """A streaming model that says so many words and then, unless it has said all of them, thinks for a long time.

    Args:
        moment: A key of `YIELDED`.
        reached: Set when the words were taken.
    """

    async def speak(inputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for _ in inputs:
            pass
        for word in WORDS[: YIELDED[moment]]:
            yield AIMessageChunk(content=word)
        reached.set()
        if moment != "after":
            await asyncio.sleep(30)

    return RunnableGenerator(speak)


def app_of(chain: Any) -> FastAPI:
    """A chat service as people write it: one route for a stream of text, one for a stream of events."""
    app = FastAPI()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def words() -> AsyncIterator[str]:
            async for chunk in chain.astream("q", config("s1")):
                yield chunk.content

        return StreamingResponse(words())

    @app.get("/events")
    async def events() -> StreamingResponse:
        async def words() -> AsyncIterator[str]:
            async for event in chain.astream_events("q", config("s1"), version="v2"):
                if event["event"] == "on_chain_stream" and not event["parent_ids"]:
                    yield event["data"]["chunk"].content

        return StreamingResponse(words())

    return app


class Service:
    """uvicorn in a thread. `ended` is set when a request is over, for the server."""

    def __init__(self, chain: Any) -> None:
        self.ended = threading.Event()
        self._app = app_of(chain)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        options = uvicorn.Config(
            self._serve, log_level="critical", interface="asgi3", lifespan="off", timeout_graceful_shutdown=5
        )
        self._server = uvicorn.Server(options)
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._socket]))

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            self.ended.set()

    def __enter__(self) -> Self:
        """Begins to serve."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends, as uvicorn ends: open requests first."""
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()


class Client:
    """A browser that reads a stream, and goes."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), 10)
        self._connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._read = b""

    def read(self, text: str) -> None:
        """Reads until this came."""
        while text.encode() not in self._read:
            data = self._connection.recv(4096)
            assert data, f"the server ended without {text!r}: {self._read!r}"
            self._read += data

    def hang_up(self) -> None:
        """Goes."""
        self._connection.close()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Goes, if it is still there."""
        self.hang_up()
