"""docs/cli.md is true: its commands print what it says, and no command or option is missing from it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import typer

from langchain_memkit.cli.app import app
from langchain_memkit.cli.output import FROM_URI, TO_URI, URI

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
LOCALHOST = "localhost:27017"


def options() -> Iterator[tuple[str, str]]:
    """Every command with each of its options; its other arguments by what they are called."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]  # it is a group
        for parameter in command.params:
            for option in parameter.opts:
                if option != "--help":
                    yield name, option if option.startswith("-") else parameter.metavar.strip("[].")


@pytest.mark.parametrize(("command", "option"), list(options()))
def test_every_option_is_documented(command: str, option: str) -> None:
    """Each option of a command stands in the section of that command."""
    text = PAGE.read_text()
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    (section,) = [body for head, body in sections.items() if f"memkit {command}" in head]
    assert (f"`{option}`" if option.startswith("-") else option) in section + (text if option == "-q" else "")


def test_the_environment_is_documented() -> None:
    """So does each variable that is read, and each exit code."""
    text = PAGE.read_text()
    assert all(f"`{name}`" in text for name in (URI, FROM_URI, TO_URI))
    assert all(f"\n| {code} |" in text for code in (0, 1, 2, 3, 130))


def fits(printed: list[str], expected: list[str]) -> bool:
    """Whether lines are what the page says; `...` stands for anything, alone for any lines; widths may differ."""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(fits(printed[i:], expected[1:]) for i in range(len(printed) + 1))
    pattern = " ".join(expected[0].split()).replace("[", "[[]").replace("...", "*")
    return bool(printed) and fnmatchcase(" ".join(printed[0].split()), pattern) and fits(printed[1:], expected[1:])


def test_commands_print_what_the_page_says(
    memkit: Callable[..., Any], standalone: Any, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of the page run in order in an empty folder and on an empty server."""
    client.drop_database("chat_history")
    blocks = re.findall(r"^```(python|console)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8
    namespace: dict[str, Any] = {}
    for language, block in blocks:
        if language == "python":
            exec(block, namespace)
            continue
        for command, expected in re.findall(r"^\$ memkit (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            done = memkit(*shlex.split(command.replace(LOCALHOST, standalone.hosts[0])))
            printed = done.output.replace(standalone.hosts[0], LOCALHOST).splitlines()
            assert fits(printed, expected.splitlines()), "\n".join(printed)
    client.drop_database("chat_history")
