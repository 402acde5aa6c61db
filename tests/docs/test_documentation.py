"""The documentation runs: README and docs blocks, docstring examples, links."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import langchain_memkit
from langchain_memkit import errors, testing

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LOCALHOST = "mongodb://localhost:27017"

# design section 4: these stand unchanged in the README
SNIPPETS = [
    """\
# 1. no key, no server
chat = create_runnable_with_message_history(model, SQLiteChatMessageHistory.factory("chat.db"))
chat.invoke("My name is Nemo.", {"configurable": {"session_id": "s1"}})
""",
    """\
# 2. drop-in on MongoDB: only the imports change
from langchain_memkit import MongoDBChatMessageHistory, RunnableWithMessageHistory
chat = RunnableWithMessageHistory(prompt | model, lambda session_id: MongoDBChatMessageHistory(uri, session_id),
                                  input_messages_key="input", history_messages_key="chat_history")
""",
    """\
# 3. an agent on the same store, with the same config
histories = MongoDBChatMessageHistory.factory(uri)
agent = create_agent(model, tools, middleware=[MessageHistoryMiddleware(histories, \
preprocessor=create_history_preprocessor(model, max_tokens=8000))])
agent.invoke({"messages": [("user", "hi")]}, {"configurable": {"session_id": "s1", "user_id": "u1"}})
""",
]


def blocks(page: Path, language: str = "python") -> list[str]:
    """The fenced blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standalone: Any) -> None:
    """The Python blocks of a page run in order, and print what the comments below `print` say."""
    monkeypatch.chdir(tmp_path)
    with MongoClient(standalone.uri) as client:
        client.drop_database("chat_history")  # each page begins with an empty server
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(block.replace(LOCALHOST, standalone.uri), str(page), "exec"), namespace)
        expected = re.findall(r"^ *print\(.*\)\n *# (.*)$", block, re.MULTILINE)
        assert printed.getvalue().split("\n")[: len(expected)] == expected
    for value in list(namespace.values()):
        if hasattr(value, "list_sessions"):
            value.close()


def test_snippets_stand_in_the_readme() -> None:
    """The snippets of the design are README blocks, to the letter."""
    assert all(snippet in blocks(PAGES[0]) for snippet in SNIPPETS)


def test_snippets_remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standalone: Any) -> None:
    """The snippets run unchanged, and the conversation is remembered: in both stores, and by the agent."""
    monkeypatch.chdir(tmp_path)
    with MongoClient(standalone.uri) as client:
        client.drop_database("chat_history")
    first, second, third = SNIPPETS
    namespace: dict[str, Any] = {"model": testing.FakeChatModel(), "uri": standalone.uri}
    exec("from langchain_memkit import *\nfrom langchain_core.prompts import *\n" + first, namespace)
    config = {"configurable": {"session_id": "s1"}}
    assert namespace["chat"].invoke("What is my name?", config).text == "You told me: My name is Nemo."
    prompt = "prompt = ChatPromptTemplate([MessagesPlaceholder('chat_history'), ('human', '{input}')])\n"
    exec(prompt + second, namespace)
    namespace["chat"].invoke({"input": "My name is Dory."}, config)
    assert namespace["chat"].invoke({"input": "What is my name?"}, config).text == "You told me: My name is Dory."
    exec("from langchain.agents import create_agent\ntools = []\n" + third, namespace)
    with namespace["histories"] as histories:
        assert [m.text for m in histories("s1", user_id="u1").messages] == ["hi", "Noted."]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links name files that exist."""
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_error_is_explained() -> None:
    """docs/errors.md has a row for each error."""
    page = (ROOT / "docs" / "errors.md").read_text()
    assert all(f"`{name}`" in page for name in errors.__all__)


def modules() -> Iterator[str]:
    """Every module of the package."""
    yield "langchain_memkit"
    for info in pkgutil.walk_packages(langchain_memkit.__path__, "langchain_memkit."):
        yield info.name


@pytest.mark.parametrize("name", list(modules()))
def test_docstring_examples(name: str, standalone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctests pass; fenced examples of what needs a server run on one."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    if not name.startswith(("langchain_memkit.backends.mongodb", "langchain_memkit.testing.mongod")):
        return
    for _, item in inspect.getmembers(module, lambda o: inspect.isclass(o) and o.__module__ == name):
        members = [m for _, m in inspect.getmembers(item, callable)]
        ours = [m for m in members if (getattr(m, "__module__", None) or "").startswith("langchain_memkit")]
        for part in (item, *ours):
            for block in re.findall(r"```python\n(.*?)```", inspect.getdoc(part) or "", re.DOTALL):
                setting = "from langchain_core.messages import *\nfrom langchain_memkit import *\n"
                exec(setting + textwrap.dedent(block).replace(LOCALHOST, standalone.uri), {})


STORES = ("KeyValue", "Vector")


def public() -> Iterator[tuple[str, Any]]:
    """What users meet: the front door, the testing kit, and the verbs of histories and factories."""
    for module in (langchain_memkit, testing):
        for name in module.__all__:
            yield name, getattr(module, name)
    factory = type(langchain_memkit.SQLiteChatMessageHistory.factory(":memory:"))
    histories = [langchain_memkit.SQLiteChatMessageHistory, langchain_memkit.MongoDBChatMessageHistory, factory]
    stores = [getattr(langchain_memkit, f"{name}{kind}Store") for name in ("SQLite", "MongoDB") for kind in STORES]
    for cls in (*histories, *stores, langchain_memkit.VectorMemory, langchain_memkit.ComposedMemory):
        for name, member in inspect.getmembers(cls):
            if not name.startswith("_") and callable(member) and member.__module__.startswith("langchain_memkit"):
                yield f"{cls.__name__}.{name}", member


@pytest.mark.parametrize(("name", "item"), list(public()), ids=lambda x: x if isinstance(x, str) else "")
def test_public_names_are_documented(name: str, item: Any) -> None:
    """Public names have a docstring; those of the front door and the main verbs show an example."""
    text = inspect.getdoc(item) or ""
    assert len(text) > 20, name
    if name in langchain_memkit.__all__ or name.endswith((".append_turn", ".tail", ".factory")):
        assert "Example" in text, name
