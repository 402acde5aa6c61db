"""Exports in which a turn stands twice, or two turns under one name."""

from __future__ import annotations

import io
import json
from pathlib import Path

from langchain_core.messages import HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.migrate import export_history, import_history


def test_repeated_lines(tmp_path: Path) -> None:
    """A line that stands twice is stored once, another turn under the same name is named, and the rest goes in."""
    old = SQLiteChatMessageHistory.factory(":memory:")
    for text in "abc":
        old("s1").append_turn([HumanMessage(text)], turn_id=text)
    file = io.StringIO()
    export_history(old, file, progress=False)
    head, first, second, third, end = file.getvalue().splitlines()
    other = json.dumps({**json.loads(second), "messages": [{"role": "human", "content": "other"}]})
    new = SQLiteChatMessageHistory.factory(tmp_path / "new.db")
    lines = f"{head}\n{first}\n{first}\n{second}\n{other}\n{third}\n{end}\n"
    report = import_history(new, io.StringIO(lines), progress=False)
    assert [m.text for m in new("s1").messages] == ["a", "b", "c"]
    assert (report.turns, len(report.skipped)) == (4, 1), "the repeated line arrived twice, the other turn did not"
    assert "turn:b" in report.skipped[0]
