"""llama.cpp's OpenAI-compatible server: `python model_server.py MODEL PROMPTS MAX_TOKENS CONTEXT PARENT`.

A process of its own, so that a crash of it does not take the tests along. It listens on a free port of the loopback
interface, says `READY <address>`, writes each prompt that the model is given into the folder PROMPTS, and ends when it
is told to or when the process PARENT is gone.
"""

from __future__ import annotations

import os
import sys
import time

import xllamacpp


def main(model: str, prompts: str, max_tokens: str, context: str, parent: str) -> None:
    """Loads the model and serves."""
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
    main(*sys.argv[1:])
