"""What is cleared stays cleared, whoever writes meanwhile."""

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

RUNS, TURNS = 40, 4


def hold_turns(chain: Any, session: str, acknowledged: list[str], failures: list[BaseException], reached: Any) -> None:
    """The writer."""
    try:
        for i in range(TURNS):
            chain.invoke(f"q{i}", config(session))
            acknowledged.append(f"q{i}")
            reached.release()
    except BaseException as error:
        failures.append(error)


@pytest.mark.gate(row=13)
def test_clear_against_a_writer(place: Place, system: Any, figure: Any) -> None:
    """In 40 runs a clear amid the turns of a writer leaves no half turn, and nothing that it was to erase."""
    histories = system.sharing(place)
    chain = system.chain(echo, histories)
    chance = random.Random(1)
    orphans = reappeared = amid = 0
    for k in range(RUNS):
        acknowledged: list[str] = []
        failures: list[BaseException] = []
        reached = threading.Semaphore(0)  # counts the acknowledged turns
        thread = threading.Thread(target=hold_turns, args=(chain, f"s{k}", acknowledged, failures, reached))
        begun, turns = time.monotonic(), chance.randint(1, TURNS - 1)
        thread.start()
        for _ in range(turns):
            assert reached.acquire(timeout=10), f"the writer failed: {failures}"
        time.sleep(chance.random() * (time.monotonic() - begun) / turns)  # somewhere in the next turn
        before = list(acknowledged)
        amid += 0 < len(before) < TURNS
        histories(f"s{k}").clear()
        thread.join(10)
        assert not failures, f"the writer failed: {failures}"
        said = texts(histories(f"s{k}"))
        orphans += len(split_turns(said))
        reappeared += len(set(before) & set(said))
    figure(f"{place.kind}: clears amid the turns, of {RUNS}", amid, at_least=10)
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


@pytest.mark.gate(row=13)
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
