"""R13: what is cleared stays cleared, whoever writes meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gatekit.systems import Place, config, echo, split_turns, texts
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

RUNS = 40


@pytest.mark.gate("R13")
def test_clear_against_a_writer(place: Place, system: Any, figure: Any) -> None:
    """In 40 runs a clear between the turns of a writer leaves no half turn, and nothing that it was to erase."""
    histories = system.sharing(place)
    chain = system.chain(echo, histories)
    chance = random.Random(1)
    orphans = reappeared = 0
    for k in range(RUNS):
        acknowledged: list[str] = []
        failures: list[BaseException] = []

        def write(session: str, acknowledged: list[str] = acknowledged, failures: list[Any] = failures) -> None:
            try:
                for i in range(4):
                    chain.invoke(f"q{i}", config(session))
                    acknowledged.append(f"q{i}")
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=write, args=(f"s{k}",))
        thread.start()
        time.sleep(chance.uniform(0, 0.03))
        before = list(acknowledged)
        histories(f"s{k}").clear()
        thread.join(10)
        assert not failures, f"the writer failed: {failures}"
        said = texts(histories(f"s{k}"))
        orphans += len(split_turns(said))
        reappeared += len(set(before) & set(said))
    figure(f"{place.kind}: orphans in {RUNS} runs", orphans, at_most=0)
    figure(f"{place.kind}: erased turns that came back", reappeared, at_most=0)


def call(style: str, chain: Any) -> None:
    """One turn in one of four styles."""

    async def astream() -> None:
        async for _ in chain.astream("what did I say?", config("s1")):
            pass

    if style == "invoke":
        chain.invoke("what did I say?", config("s1"))
    elif style == "stream":
        list(chain.stream("what did I say?", config("s1")))
    else:
        asyncio.run(astream() if style == "astream" else chain.ainvoke("what did I say?", config("s1")))


def everything(history: Any, histories: Any) -> str:
    """What any way of reading shows."""
    return repr(
        (
            history.messages,
            history.tail(max_messages=50),
            history.view(),
            list(history.iter_messages()),
            [turn.messages for turn in history.iter_turns()],
            history.stored_ids(["canary-id"]),
            asyncio.run(history.aget_messages()),
            histories.list_sessions(),
        )
    )


@pytest.mark.gate("R13")
@pytest.mark.parametrize("style", ["invoke", "stream", "ainvoke", "astream"])
def test_cleared_during_a_turn(style: str, place: Place, system: Any, request: pytest.FixtureRequest) -> None:
    """A turn that has read what is then erased is answered, but not stored: its text comes back nowhere."""
    histories = system.histories(place)
    histories("s1").add_messages([HumanMessage("canary", id="canary-id"), AIMessage("Noted.")])

    def model(messages: Any) -> AIMessage:
        histories("s1").clear()
        return AIMessage(f"You said {messages[0].text}.")

    call(style, system.chain(RunnableLambda(model), histories))
    assert texts(histories("s1")) == []
    histories("s1").add_user_message("a new beginning")
    assert texts(histories("s1")) == ["a new beginning"]
    if system.name != "memkit":
        return
    assert "canary" not in everything(histories("s1"), histories)
    if place.kind == "sqlite":
        left = b"".join(file.read_bytes() for file in Path(place.uri).parent.iterdir() if file.is_file())
        assert b"canary" not in left
        assert b"a new beginning" in left
    else:
        assert "canary" not in str(list(request.getfixturevalue("collection").find()))
