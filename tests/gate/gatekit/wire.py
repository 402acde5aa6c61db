"""A proxy on the loopback between a client and one server, which sees each command and can break it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from bson import decode

OP_MSG = 2013
QUIET = ("hello", "ismaster", "isMaster", "ping", "endSessions", "saslStart", "saslContinue")


class CutError(Exception):
    """Ends the connection."""


class Wire:
    """Passes everything on. `on_command(name)` is called for each command before it is passed on.

    It may raise `CutError` (the server never gets the command), return "deaf" (the server does, but the reply is
    lost), wait, or return None.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.place: Any = None
        self.on_command: Callable[[str], str | None] = lambda name: None
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._down = False

    def __enter__(self) -> Self:
        """Begins to listen."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends every connection."""
        self.go_down()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def go_down(self) -> None:
        """From now on every connection is ended at once, as by a server that is gone."""
        self._down = True
        with self._lock:
            for each in list(self._open):
                _end(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._down:
                _end(client)
                client.close()
                continue
            server = socket.create_connection(self._target, 5)
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            state = {"deaf": False}
            threading.Thread(target=self._forward, args=(client, server, state), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client, state), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        try:
            while True:
                head = _read(client, 16)
                body = _read(client, struct.unpack("<i", head[:4])[0] - 16)
                name = _command(head, body)
                if name and name not in QUIET and self.on_command(name) == "deaf":
                    state["deaf"] = True
                server.sendall(head + body)
        except (OSError, CutError):
            self._end_both(client, server)

    def _back(self, server: socket.socket, client: socket.socket, state: dict[str, bool]) -> None:
        try:
            while True:
                head = _read(server, 16)
                body = _read(server, struct.unpack("<i", head[:4])[0] - 16)
                if state["deaf"]:
                    raise CutError
                client.sendall(head + body)
        except (OSError, CutError):
            self._end_both(client, server)

    def _end_both(self, client: socket.socket, server: socket.socket) -> None:
        for each in (client, server):
            _end(each)
            with self._lock:
                known = each in self._open
                self._open.discard(each)
            if not known:  # the second of the two threads: nobody uses it any more
                each.close()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise CutError
        data += piece
    return bytes(data)


def _command(head: bytes, body: bytes) -> str | None:
    if struct.unpack("<i", head[12:16])[0] != OP_MSG or body[4] != 0:
        return None
    (size,) = struct.unpack("<i", body[5:9])
    return next(iter(decode(body[5 : 5 + size])), None)
