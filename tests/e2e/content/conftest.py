"""The content model behind a real server, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from langchain_openai import ChatOpenAI

from tools.local_model import local_model, model_file


@pytest.fixture(scope="session")
def model() -> Iterator[ChatOpenAI]:
    """The content model: fetched by `make e2e-content`, never by a test."""
    try:
        path = model_file("content-model")
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
    with local_model(path, 300, 4096) as server, openai.DefaultHttpxClient(trust_env=False) as http:
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
