"""The content model behind a real server, for all tests of this folder."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def model(start_model_server: Callable[..., Any]) -> Iterator[ChatOpenAI]:
    """The content model: fetched by `make e2e-content`, never by a test."""
    parts = runpy.run_path(str(ROOT / "tools" / "parts.py"))
    path: Path = parts["PARTS"] / parts["CONTENT_MODEL"]
    if not path.is_file():
        pytest.fail(f"{path.name} is missing. Fetch it: python tools/parts.py content-model", pytrace=False)
    with start_model_server(path, 300, 4096) as server, openai.DefaultHttpxClient(trust_env=False) as http:
        yield ChatOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            model="local",
            max_tokens=300,
            temperature=0,
            timeout=600,
            max_retries=0,
            http_client=http,
        )
