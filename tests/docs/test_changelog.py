"""The changelog's table of renamed names: it is complete, its new names are there, and its old ones are refused."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

import langchain_memkit as memkit
from langchain_memkit.migrate import import_history

ROOT = Path(__file__).parents[2]
# What was public in 0.1.0: each module's names, with the members of a class and all arguments, its own as "(path=)".
PUBLIC: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "names_0_1_0.json").read_text())


def rows() -> list[tuple[str, str, str]]:
    """The table: the name in 0.1.0, the name in 0.2.0, what to do."""
    text = (ROOT / "CHANGELOG.md").read_text().partition("### Renamed or moved")[2].partition("\n|---|---|---|\n")[2]
    table = [line.strip("| ").split(" | ") for line in text.partition("\n\n")[0].splitlines()]
    assert [len(row) for row in table] == [3] * len(table)
    return [(old, new, what) for old, new, what in table]


def names(cell: str) -> list[str]:
    """The names in a cell: "`A`, `B`: `x`, `y`" are A.x, B.x, A.y and B.y; before an argument stands no dot."""
    owners, colon, members = cell.partition(": ")
    found = re.findall(r"`([^`]+)`", members if colon else cell)
    if not colon:
        return found
    return [f"{owner}{'' if m[0] == '(' else '.'}{m}" for owner in re.findall(r"`([^`]+)`", owners) for m in found]


def works(name: str) -> bool:
    """Whether a name of `langchain_memkit` is there: a.module.Name, Class.member, or one's argument, as f(x=)."""
    path, bracket, argument = name.partition("(")
    target: Any = memkit
    for part in path.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            if not inspect.ismodule(target):
                return part in getattr(target, "model_fields", {}) or part in getattr(
                    target, "__dataclass_fields__", {}
                )
            try:
                target = import_module(f"{target.__name__}.{part}")
            except ModuleNotFoundError:
                return False
    if not bracket:
        return True
    taken = [*inspect.signature(target).parameters.values()]
    if "__init__" in vars(target):  # of a pydantic model, whose signature lists its fields only
        init = inspect.signature(target.__init__).parameters.values()
        taken += [p for p in init if p.kind is not p.VAR_KEYWORD or "Unpack" in str(p.annotation)]
    return any(p.kind is p.VAR_KEYWORD or p.name == argument.rstrip("=)") for p in taken)


def public() -> Iterator[str]:
    """All of 0.1.0's."""
    for module, found in PUBLIC.items():
        prefix = module.removeprefix("langchain_memkit").lstrip(".")
        for name, members in found.items():
            whole = f"{prefix}.{name}".lstrip(".")
            yield whole
            yield from (f"{whole}{m}" if m[0] == "(" else f"{whole}.{m}" for m in members)


def told(name: str, gone: set[str]) -> bool:
    """Whether the table has it, or what it is a part of, or its sync twin."""
    owner, dot, member = name.rpartition(".")
    parts = {name, re.sub(r"\(.*", "", name), owner}
    return bool(parts & gone) or bool(dot and member[0] == "a" and told(f"{owner}.{member[1:]}", gone))


def test_every_name_that_went_is_in_the_table() -> None:
    """Whatever was public in 0.1.0 works, or the table says what became of it."""
    gone = {name for old, _, _ in rows() for name in names(old)}
    assert [name for name in public() if not works(name) and not told(name, gone)] == []


@pytest.mark.parametrize("name", [name for old, _, _ in rows() for name in names(old)])
def test_no_old_name_works(name: str) -> None:
    """It is gone, so that nobody uses it without a word."""
    assert not works(name)


@pytest.mark.parametrize("name", [name for _, new, _ in rows() for name in names(new)])
def test_every_new_name_works(name: str) -> None:
    """It can be imported, or is a member or an argument."""
    assert works(name)


@pytest.mark.parametrize("argument", ["gate", "check", "fuse_original", "cache_size"])
def test_arguments_that_went_are_refused(argument: str) -> None:
    """None is dropped without a word, as pydantic would."""
    retriever = InMemoryVectorStore(DeterministicFakeEmbedding(size=8)).as_retriever()
    with pytest.raises(memkit.errors.ConfigurationError, match=f"no such argument: {argument}"):
        memkit.CondenseQuestionRetriever(retriever=retriever, **{argument: None})


HISTORIES = memkit.SQLiteChatMessageHistory.factory(":memory:")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: memkit.create_trim_preprocessor(max_tokens=9, on_overflow="truncate_tool_results"), ValueError),
        (lambda: memkit.explain_turn(memkit.MessageHistoryMiddleware(HISTORIES), "hi"), ValueError),
        (lambda: import_history(iter(["{}"]), HISTORIES), ValueError),
        (lambda: memkit.create_runnable_with_message_history(str, HISTORIES, before_sve=list), ValueError),
        (lambda: memkit.ChatHistoryMemory.factory(lambda session_id: HISTORIES("s1")).purge("u1"), ValueError),
    ],
)
def test_calls_that_changed_are_refused(call: Callable[[], Any], error: type[Exception]) -> None:
    """The second table: what meant something in 0.1.0 and no longer does is an error."""
    with pytest.raises(error):
        call()
