"""A cell runs on the kernel's event loop: a sync call there is as it should be, and no log line says otherwise."""

from __future__ import annotations

import nbformat
from nbclient import NotebookClient

CELL = """
import asyncio
asyncio.get_running_loop()
from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history, session
from langchain_memkit.testing import FakeChatModel
chat = create_runnable_with_message_history(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"))
print(chat.invoke("hi", session("s1")).text)
"""


def test_a_sync_call_in_a_cell() -> None:
    """The answer is all that the cell prints, on either stream."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=600).execute()
    assert [(output.name, output.text) for output in notebook.cells[0].outputs] == [("stdout", "Noted.\n")]
