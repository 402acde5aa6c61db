"""The server of these tests itself: it ends, and it says why it did not start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.local_model import local_model

pytestmark = pytest.mark.e2e


def test_ends_with_its_block(smoke_model: Path) -> None:
    """A server is one process on a port of its own, and that process is gone after the block."""
    with local_model(smoke_model) as server:
        pid = server.process.pid
        os.kill(pid, 0)
    assert server.process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_failed_start_shows_the_log(tmp_path: Path) -> None:
    """A file that is no model: the error holds what the server said about it."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(Exception, match=r"(?s)has ended with 1.*broken\.gguf"), local_model(broken):
        pass


def test_crash_is_reported(smoke_model: Path) -> None:
    """After a crash the next test is told so, with the log, instead of a refused connection."""
    with local_model(smoke_model) as server:
        server.process.kill()
        server.process.wait()
        with pytest.raises(Exception, match=r"(?s)has ended with -9.*READY"):
            server.check()
