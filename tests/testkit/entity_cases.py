"""Cases of `entity_cases.toml`: what an entity memory must know after a few turns."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.base import EntityExtractor, Mention
from langchain_memkit.memories.entity import EntityMemory
from langchain_memkit.messages.notes import records_of

Case = Mapping[str, Any]

FILE = Path(__file__).with_name("entity_cases.toml")


def entity_cases() -> dict[str, Case]:
    """Return all cases by kind and number."""
    kinds = tomllib.loads(FILE.read_text("utf-8"))
    return {f"{kind}-{n}": case for kind, group in kinds.items() for n, case in enumerate(group, 1)}


def finder(names: Mapping[str, str]) -> Callable[[str], list[Mention]]:
    """Make an extractor that finds these names as they are written, the longest first."""
    longest = sorted(names, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest) or "(?!)")
    return lambda text: [Mention(m.group(), names[m.group()], *m.span()) for m in pattern.finditer(text)]


def told(extractor: EntityExtractor, *turns: str | list[str]) -> EntityMemory:
    """Return a memory to which each turn was loaded and saved: what the user says, or that and the answer."""
    memory = EntityMemory(SQLiteChatMessageHistory.factory(":memory:"), extractor, "s1", user_id="u1")
    for turn in turns:
        asked, *answers = [turn] if isinstance(turn, str) else turn
        memory.load(asked)
        memory.save([HumanMessage(asked), *map(AIMessage, answers)])
    return memory


def shown(memory: EntityMemory, question: str) -> list[str]:
    """Return the sentences that a question is given."""
    return [record.text for note in memory.load(question) for record in records_of(note)]


def problems(case: Case, extractor: EntityExtractor) -> list[str]:
    """Return what is wrong after the turns of a case, a line each."""
    memory = told(extractor, *case["said"])
    found: list[str] = []
    if "asked" in case:
        given = shown(memory, case["asked"])
        found += [f"not shown: {text}" for text in case.get("shown", ()) if text not in given]
        found += [f"shown: {text}" for text in case.get("hidden", ()) if text in given]
    if "about" in case:
        facts = [fact.text for fact in memory.about(case["about"])]
        found += [f"about {case['about']}: {facts}"] if facts != case["facts"] else []
    return found
