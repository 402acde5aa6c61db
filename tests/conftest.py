"""For all tests: examples drawn at random have no time limit each, and what fails is named when it fails."""

from __future__ import annotations

import gc
import re
import signal
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from langchain_memkit.errors import MemkitError

pytest.register_assert_rewrite("testkit")  # so that a failed case shows its values

# a busy machine is no defect
settings.register_profile("memkit", parent=settings.default, deadline=None)
settings.load_profile("memkit")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and tests, which stay to the end, to no garbage collection: each would walk through all of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def interrupt(number: int, frame: object) -> None:
    """Do what Python's own handler of Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Keep garbage collection out of a test that fills the stack, where finalizers fail."""
    gc.disable()
    yield
    gc.enable()


class NamesOfFailures:
    """Prints the name of a test at the moment it fails, since the summary of a long run comes minutes later."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write one line for what failed."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write(f"\nFAILED {report.nodeid} ({report.when})\n")


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that prints name failures, and `asyncio.run` not format what it returns.

    Where Python's own handler of Ctrl-C is in place `asyncio.run` sets another, and to take that back formats the task
    and what it returned, twice: where these are messages it takes longer than most tests.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamesOfFailures(config))
        config.pluginmanager.register(ErrorsFormatted())


# -- errors never carry what was said

USERINFO = re.compile(r"mongodb(?:\+srv)?://[^/\s'\"]*@")
LEAST = 12  # characters: shorter texts, as "hi", stand in any traceback


class ErrorsFormatted:
    """Prints how many errors were formatted and searched for what was said."""

    def __init__(self) -> None:
        self.count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add those of a test."""
        if report.when == "teardown":
            self.count += sum(value for name, value in report.user_properties if name == "errors_formatted")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the sum."""
        if self.count:
            terminalreporter.write_line(f"{self.count} errors were formatted with all causes and searched for text")


def chain_of(error: BaseException) -> list[BaseException]:
    """The error with every cause and context, those that a traceback leaves out among them."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and not any(each is other for other in found):
            found.append(each)
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return found


@pytest.fixture
def told_by(request: pytest.FixtureRequest) -> Iterator[Callable[[BaseException], str]]:
    """All that an error says: `traceback.format_exception` of it and of everything that it is chained to."""
    formatted: list[BaseException] = []

    def told(error: BaseException) -> str:
        formatted.append(error)
        return "\n".join(line for each in chain_of(error) for line in traceback.format_exception(each))

    yield told
    request.node.user_properties.append(("errors_formatted", len(formatted)))


@pytest.fixture
def errors_tell_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Formats each error of memkit's that a test provokes; none may say what the messages say that it carries."""
    # here, since langchain-core, once imported, sets filters of warnings, which pytest keeps from when it collects on
    from langchain_memkit.errors import MemkitError

    raised: list[MemkitError] = []

    def init(self: MemkitError, *args: Any, **kwargs: Any) -> None:
        super(MemkitError, self).__init__(*args, **kwargs)
        raised.append(self)

    monkeypatch.setattr(MemkitError, "__init__", init, raising=False)
    yield
    request.node.user_properties.append(("errors_formatted", len(raised)))
    while raised:
        error = raised.pop()
        carried = [*getattr(error, "messages", ()), *getattr(error, "stored", ()), getattr(error, "output", None)]
        texts = {str(getattr(m, "text", "") or "").strip()[:500] for m in carried}
        # without frames and their source lines, where a test's own literals stand
        said = "".join(
            line
            for each in chain_of(error)
            for line in traceback.TracebackException.from_exception(each, limit=0).format_exception_only()
        )
        assert [text for text in texts if len(text) >= LEAST and text in said] == [], said
        assert not USERINFO.search(said), said


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of the contracts and of the gate are watched."""
    for item in items:
        bases = getattr(getattr(item, "cls", None), "__mro__", ())
        watched = any(cls.__module__.startswith("langchain_memkit.testing") for cls in bases)
        if hasattr(item, "fixturenames") and (watched or item.get_closest_marker("gate")):
            item.fixturenames.insert(0, "errors_tell_nothing")
