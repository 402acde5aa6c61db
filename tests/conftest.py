"""For all tests: examples drawn at random have no time limit each, and what fails is named when it fails."""

from __future__ import annotations

import pytest
from hypothesis import settings

# a busy machine is no defect
settings.register_profile("memkit", parent=settings.default, deadline=None)
settings.load_profile("memkit")


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
    """Add it to the process that prints."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamesOfFailures(config))
