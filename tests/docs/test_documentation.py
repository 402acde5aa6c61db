"""The documentation runs: README and docs blocks, docstring examples, links."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
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
LINKING = [*PAGES, *sorted((ROOT / "docs" / "reference").glob("*.md")), ROOT / "notebooks" / "README.md"]
LINKING += [ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
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


def without_key(block: str) -> str:
    """The block as its comments say that it is written without a key of a model's."""
    return re.sub(r"^.*# no key\? (.*)$", r"\1", block, flags=re.MULTILINE)


def blocks(page: Path, language: str = "python") -> list[str]:
    """The fenced blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


# a page moves one in, which makes the other; LangChain warns of each once in a process
@pytest.mark.filterwarnings("ignore:The class `(ConversationBufferMemory|InMemoryChatMessageHistory)` was deprecated")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standalone: Any) -> None:
    """The Python blocks of a page run in order, and print what comments below `print`, or a `text` block, say."""
    monkeypatch.chdir(tmp_path)
    with MongoClient(standalone.uri) as client:
        client.drop_database("chat_history")  # each page begins with an empty server
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = StringIO()
    for language, block in re.findall(r"^```(python|text)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if language == "text":
            wanted, got = (re.sub(r"\d{4}-\d\d-\d\d", "DATE", text) for text in (block, printed.getvalue()))
            assert doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS), got
            continue
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(without_key(block).replace(LOCALHOST, standalone.uri), str(page), "exec"), namespace)
        expected = re.findall(r"^ *print\(.*\)(?:  # .*)?\n *# (.*)$", block, re.MULTILINE)
        assert printed.getvalue().split("\n")[: len(expected)] == expected
    for value in list(namespace.values()):
        if hasattr(value, "list_sessions") and not isinstance(value, type):
            value.close()


@pytest.mark.filterwarnings("ignore:The class `InMemoryChatMessageHistory` was deprecated")  # one side keeps it
@pytest.mark.parametrize(("name", "number"), [("coming-from.md", 3), ("moving-from-rwmh.md", 2)])
def test_both_sides_of_differences_answer_alike(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a page says to replace runs, what it says to write instead runs, and they answer the same."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / name
    setting, differences = blocks(page)[0], blocks(page, "diff")
    assert len(differences) == number
    for difference in differences:
        lines = difference.splitlines()
        before, after = ("\n".join(line[1:] for line in lines if line[:1] in (mark, " ", "")) for mark in "-+")
        command = [sys.executable, "-W", "ignore", "-c", f"{setting}\n{before}\nprint(answer)"]
        old = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        namespace: dict[str, Any] = {}
        exec(f"{setting}\n{after}", namespace)
        assert old.stdout == f"{namespace['answer']}\n", old.stderr
        assert namespace["answer"].startswith("You told me: My name is ")
        for value in namespace.values():
            if hasattr(value, "list_sessions"):
                value.close()


@pytest.mark.parametrize(
    ("page", "suite"),
    [
        ("backends.md", "TestDictHistory"),
        ("backends.md", "TestDictKeyValues"),
        ("backends.md", "TestWholeHistory"),
        ("memories.md", "TestRemarks"),
    ],
)
def test_suites_of_the_documentation_pass(page: str, suite: str, tmp_path: Path) -> None:
    """The contract suites that pages show are collected by pytest, and every case passes."""
    (tmp_path / "test_page.py").write_text("\n".join(blocks(ROOT / "docs" / page)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-k", suite]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert re.search(r"^\d\d+ passed", done.stdout.splitlines()[-1]), done.stdout


def test_snippets_stand_in_the_readme() -> None:
    """The snippets of the design stand in README's blocks, to the letter."""
    assert all(any(snippet in block for block in blocks(PAGES[0])) for snippet in SNIPPETS)


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


def places(page: Path) -> set[str]:
    """What a link may name on a page, as GitHub makes it of the headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*?) *$", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links name files that exist, and headings that are there."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not place or target.suffix != ".md" or place in places(target), link


def test_costs_are_those_of_the_readme() -> None:
    """docs/memories.md repeats the reads and writes of the README's table, which another test counts."""
    rows = re.findall(r"\[`(\w+)`\].*\| (?:0 to )?(\d), (\d), 0", (ROOT / "docs" / "memories.md").read_text())
    assert {name for name, _, _ in rows} == {"EntityMemory", "KeyValueMemory", "PreferenceMemory", "VectorMemory"}
    for name, reads, writes in rows:
        assert re.search(rf"`{name}`\].*\| \+{reads}, \+{writes}, ", PAGES[0].read_text()), name
    assert "a chain's turn is one read and one write" in (ROOT / "docs" / "histories.md").read_text()
    assert re.search(r"`MongoDBChatMessageHistory`.*\| 1, 1, ", PAGES[0].read_text())


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
    if not name.startswith("langchain_memkit.backends.mongodb"):
        return
    for _, item in inspect.getmembers(module, lambda o: inspect.isclass(o) and o.__module__ == name):
        members = [m for _, m in inspect.getmembers(item, callable)]
        ours = [m for m in members if (getattr(m, "__module__", None) or "").startswith("langchain_memkit")]
        for part in (item, *ours):
            for block in re.findall(r"```python\n(.*?)```", inspect.getdoc(part) or "", re.DOTALL):
                setting = "from langchain_core.messages import *\nfrom langchain_memkit import *\n"
                exec(setting + textwrap.dedent(block).replace(LOCALHOST, standalone.uri), {})


def public() -> Iterator[tuple[str, Any]]:
    """What users meet: the front door, the testing kit, and the verbs of histories and factories."""
    for module in (langchain_memkit, testing):
        for name in module.__all__:
            yield name, getattr(module, name)
    factory = type(langchain_memkit.SQLiteChatMessageHistory.factory(":memory:"))
    histories = [langchain_memkit.SQLiteChatMessageHistory, langchain_memkit.MongoDBChatMessageHistory, factory]
    stores = [langchain_memkit.SQLiteKeyValueStore, langchain_memkit.MongoDBKeyValueStore]
    for cls in (*histories, *stores, langchain_memkit.VectorMemory, langchain_memkit.ComposedMemory):
        for name, member in inspect.getmembers(cls):
            if not name.startswith("_") and callable(member) and member.__module__.startswith("langchain_memkit"):
                yield f"{cls.__name__}.{name}", member


@pytest.mark.parametrize(("name", "item"), list(public()), ids=lambda x: x if isinstance(x, str) else "")
def test_public_names_are_documented(name: str, item: Any) -> None:
    """Public names have a docstring; those of the front door and the main verbs show an example, if they are ours."""
    text = inspect.getdoc(item) or ""
    assert len(text) > 20, name
    if str(getattr(item, "__module__", "")).startswith("langchain_core."):
        return
    if name in langchain_memkit.__all__ or name.endswith((".append_turn", ".tail", ".factory")):
        assert "Example" in text, name
