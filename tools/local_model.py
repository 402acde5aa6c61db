"""A real, small language model on this machine, behind an OpenAI-compatible server (llama.cpp) on the loopback.

```python
with local_model(model_file("content-model")) as server:
    ChatOpenAI(model="local", base_url=f"{server.url}/v1", api_key="none")
```

The model is a file that `python tools/parts.py smoke-model` (or `content-model`) has fetched. The server is a process
of its own, so that a crash of it does not take the caller along. It computes on one core.

That process is `python local_model.py MODEL PROMPTS MAX_TOKENS CONTEXT PARENT`: it listens on a free port, says
`READY <address>`, writes each prompt that the model is given into the folder PROMPTS, and ends when it is told to or
when the process PARENT is gone. Only there xllamacpp is needed.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ModelServer", "ModelServerError", "local_model", "model_file"]

STARTUP_TIMEOUT = 60.0  # seconds; half a second is usual


class ModelServerError(Exception):
    """The model server did not start, or it is gone; the text ends with its log."""


class ModelServer:
    """The process of the server.

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
                [sys.executable, __file__, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the caller only, which then ends it
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
    """The messages in the template of the models here (ChatML); what opens the answer is left out."""
    messages = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", text, re.DOTALL)
    opening = "<|im_start|>assistant\n"
    if text != "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in messages) + opening:
        raise ModelServerError(f"This prompt has another template than ChatML: {text}")
    return messages


def is_healthy(url: str) -> bool:
    """Whether the model is loaded; asked directly, whatever proxy the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


@contextlib.contextmanager
def local_model(model: Path, max_tokens: int = 24, context: int = 1024) -> Iterator[ModelServer]:
    """Starts a server for a `with` block; arguments as `ModelServer`."""
    with tempfile.TemporaryDirectory() as folder:
        server = ModelServer(model, Path(folder), max_tokens, context)
        try:
            server.wait()
            yield server
        finally:
            server.stop()


def model_file(part: str) -> Path:
    """Where `tools/parts.py` has put a model; `FileNotFoundError` says how to fetch it."""
    parts = runpy.run_path(str(Path(__file__).with_name("parts.py")))
    path: Path = parts["PARTS"] / parts[{"smoke-model": "MODEL", "content-model": "CONTENT_MODEL"}[part]]
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing. Fetch it: python tools/parts.py {part}")
    return path


def serve(model: str, prompts: str, max_tokens: str, context: str, parent: str) -> None:
    """Loads the model and serves it, until the parent is gone."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = model
    options.model_alias = {"local"}
    options.hostnames = ["127.0.0.1"]
    options.port = 0  # the system picks one
    options.n_ctx = int(context)
    options.n_parallel = 1
    options.n_predict = int(max_tokens)  # also for a request that names no limit
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.path_prompts_log_dir = prompts
    options.offline = True
    options.ui = False
    server = xllamacpp.Server(options)
    print(f"READY {server.listening_address}", flush=True)
    while os.getppid() == int(parent):
        time.sleep(0.5)
    os._exit(0)  # threads of the server would keep the process


if __name__ == "__main__":
    serve(*sys.argv[1:])
