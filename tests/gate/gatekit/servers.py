"""Servers with options that `local_mongodb` does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from langchain_memkit.testing._mongod import Node, find_mongod, guarded
from langchain_memkit.testing.mongod import OPTIONS


@contextlib.contextmanager
def server(folder: Path, *options: str) -> Iterator[str]:
    """A standalone server for the length of a `with` block; yields its `host:port`."""
    with guarded(folder) as members:
        node = Node(find_mongod(folder), folder / "node0", [*OPTIONS, *options], 60.0)
        members.append(node)
        node.launch()
        yield node.host
