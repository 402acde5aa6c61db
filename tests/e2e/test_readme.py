"""README's blocks as a stranger runs them: unchanged, in a process of their own, with a real model behind a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory

pytestmark = pytest.mark.e2e

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
FIRST, ASKED = BLOCKS[:2]


def run(program: str, folder: Path, url: str) -> str:
    """What the program prints, in this folder, with this server in place of OpenAI's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environment = kept | {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_first_block_of_the_readme_talks_to_a_real_model(model_server: Any, tmp_path: Path) -> None:
    """The model answers, the turn is stored, and in the next process it is given the turn before the question."""
    model_server.check()
    assert "model = ChatOpenAI(" in FIRST
    told = run(FIRST, tmp_path, model_server.url)
    assert told.strip()
    asked = run(FIRST.rsplit("print(", 1)[0] + ASKED, tmp_path, model_server.url)
    assert asked.strip()
    prompt = model_server.prompts("What is my name?")[-1]
    assert [role for role, _ in prompt] == ["system", "user", "assistant", "user"]
    assert prompt[1][1] == "My name is Nemo."
    assert prompt[2][1].strip() == told.strip()
    assert prompt[3][1] == "What is my name?"
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        stored = [message.text for message in histories("s1", user_id="u1").messages]
    assert stored[0::2] == ["My name is Nemo.", "What is my name?"]
    assert [text.strip() for text in stored[1::2]] == [told.strip(), asked.strip()]


def test_all_blocks_of_the_readme_run_with_a_real_model(model_server: Any, mongodb_uri: str, tmp_path: Path) -> None:
    """One after the other in one process, on a real MongoDB; the last one shows what was recalled for the answer."""
    model_server.check()
    program = "\n".join(BLOCKS).replace("mongodb://localhost:27017", mongodb_uri)
    shown = run(program, tmp_path, model_server.url)
    assert "1 record recalled" in shown
    assert "recalled" in shown.rsplit("We adopted a parrot and called him Kiwi.", 1)[0]
    prompt = model_server.prompts("What is the name of our parrot?")[-1]
    assert "> human: We adopted a parrot and called him Kiwi." in "\n".join(text for _, text in prompt)
