"""Two reads of a turn that go on at the same time."""

from __future__ import annotations

import pytest

from langchain_memkit._sync import Step, adrive, drive
from langchain_memkit.runnables.saving import TurnOptions


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_two_reads_give_both_results_or_the_first_error(style: str) -> None:
    """The history is read, and resent messages are looked up, in one go: both succeed, or the first error is raised."""

    def step(result: object) -> Step[object]:
        def read() -> object:
            if isinstance(result, Exception):
                raise result
            return result

        async def aread() -> object:
            return read()

        return Step(read, aread)

    async def both(*results: object) -> list[object]:
        flow = TurnOptions().prompt.beside([], *map(step, results))
        return drive(flow) if style == "sync" else await adrive(flow)

    assert await both(1, "two") == [1, "two"]
    for results in ((KeyError("1"), LookupError()), (1, KeyError("1"))):
        with pytest.raises(KeyError):
            await both(*results)
