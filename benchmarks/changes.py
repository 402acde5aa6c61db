"""Whether the newer of two statements stands in a note of `VectorMemory` when something has changed.

    python -m benchmarks.changes [--locomo FILE] [--embeddings minilm] [--tokens 1024] [--tokens 256] [--misses]

texts/changes.json holds people who tell an assistant about themselves for a year, each with 10 pairs of statements of
which the newer changes the older, with a question that both answer and the newer one answers rightly; 10 look-alikes,
of which the question needs the older one, or both; and 30 or 60 everyday requests. Each has a key: the words without
which the statement does not answer the question. Five sets, a hundred pairs and a hundred look-alikes each:

- `seen`: whoever made the rules and weights of an earlier version looked at these.
- `unseen`: by another writer, asked for the same ("neither made easy nor made hard"). Nobody looked at the texts.
- `earlier`: by two more writers, asked for the same.
- `fresh`: by two more writers.
- `reworded`: by a third writer, who was asked for questions that share hardly a word with either statement, half of
  the time.

texts/changes_among_talk.json holds two more sets of 60 pairs and 60 look-alikes, a third of them plain, rambling (the
fact is said in passing) and implied (it must be inferred). They are told among 80 rounds of real small talk, of a
LoCoMo file that the user has (CC BY-NC 4.0, no part of this project):

- `among talk`: the rules were tried on these.
- `among talk, unseen`: by another writer; measured once.

`newer` is the share of pairs whose newer statement stands in the note with its key, `right` that of the look-alikes of
which all that is needed does. No rule prefers the newer statement: a note has the date of each, and a model reads them
in the order in which they were said.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage

from benchmarks.common import TEXTS, console
from benchmarks.dialogues import Dialogue, locomo_dialogues
from benchmarks.recall_floors import WORDS_ONLY, shared_embedder
from langchain_memkit import SQLiteChatMessageHistory, VectorMemory
from langchain_memkit.ranking.score import Ranking

TOKENS = 1_024
BEGIN = datetime(2024, 1, 1, 9, tzinfo=UTC)
TODAY = datetime(2025, 1, 2, 9, tzinfo=UTC)
ROUNDS = 8  # of a session
REPLIES = (
    "Noted.",
    "Good to know.",
    "Thanks for telling me.",
    "Got it.",
    "I see.",
    "Understood!",
    "All right.",
    "Nice.",
)
SETS = ("fresh", "earlier", "unseen", "seen", "reworded")
AMONG_TALK = ("among talk", "among talk, unseen")
Person = dict[str, Any]


def people(name: str) -> list[Person]:
    """The people of a set."""
    file = "changes_among_talk.json" if name in AMONG_TALK else "changes.json"
    found: list[Person] = json.loads((TEXTS / file).read_text(encoding="utf-8"))[name]
    return found


def small_talk(dialogue: Dialogue, chance: random.Random, size: int = 80) -> list[tuple[str, str]]:
    """Consecutive rounds of a conversation, each a message and its answer."""
    rounds = [(said[0].text, said[1].text) for said in dialogue.rounds() if len(said) == 2]
    first = chance.randrange(len(rounds) - size)
    return rounds[first : first + size]


def told(
    person: Person, chance: random.Random, talk: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[datetime, str, str]]:
    """What a person says in a year, with the replies: older statements in its first half, newer ones in its second.

    Requests of the person stand among them, or the rounds of `talk`.
    """
    items = [*person["pairs"], *person["look_alikes"]]
    requests = person.get("fillers", ())
    fillers = [*talk] or [(text, "") for text in chance.sample(requests, len(requests))]
    half = len(fillers) // 2
    for number, (name, others) in enumerate((("older", fillers[:half]), ("newer", fillers[half:]))):
        rounds = [*((item[name], "") for item in items), *others]
        chance.shuffle(rounds)
        for place, (text, reply) in enumerate(rounds):
            at = BEGIN + timedelta(days=182.5 * (number + place / len(rounds)))
            yield at, text, reply or chance.choice(REPLIES)


def stands(item: Person, name: str, note: str) -> bool:
    """Whether a note quotes a statement (`older` or `newer`) with its key, which may be several words."""
    given = item[f"{name}_key"]
    keys = [given] if isinstance(given, str) else given
    said = " ".join(item[name].split())
    quoted = [line.removeprefix("> ").removeprefix("human: ").strip() for line in note.splitlines()]
    pieces = " ".join(line for line in quoted if len(line) > 8 and line in said).casefold()
    return all(key.casefold() in pieces for key in keys)


def measured(
    some: Sequence[Person],
    embedder: str,
    tokens: int = TOKENS,
    misses: bool = False,
    dialogues: Sequence[Dialogue] = (),
) -> dict[str, float]:
    """The figures of a set: `newer` and `right`, and how often search finds both statements early.

    With `dialogues` the statements are told among their rounds.
    """
    newer = right = first = 0
    pairs = sum(len(person["pairs"]) for person in some)
    look_alikes = sum(len(person["look_alikes"]) for person in some)
    words_only = embedder == WORDS_ONLY
    embeddings = DeterministicFakeEmbedding(size=8) if words_only else shared_embedder(embedder)
    ranking = Ranking(relevance=0.0) if words_only else Ranking()
    for number, person in enumerate(some):
        clock = [BEGIN]
        now = partial(clock.__getitem__, 0)
        with SQLiteChatMessageHistory.factory(":memory:", now=now) as histories:
            chance = random.Random(number)
            talk = small_talk(dialogues[number % len(dialogues)], chance) if dialogues else ()
            past = VectorMemory.factory(histories, embeddings, now=now)
            for place, (clock[0], text, reply) in enumerate(told(person, chance, talk)):
                past(f"s{place // ROUNDS}", "u1").save([HumanMessage(text), AIMessage(reply)])
            options: dict[str, Any] = {"max_tokens": tokens, "token_counter": "o200k_base", "ranking": ranking}
            today = VectorMemory(histories, embeddings, "s", user_id="u1", now=lambda: TODAY, **options)
            for pair in person["pairs"]:
                hits = [hit.text for hit in today.search(pair["question"], k=3)]
                first += all(any(pair[name] in hit for hit in hits) for name in ("older", "newer"))
            for item in [*person["pairs"], *person["look_alikes"]]:
                note = _note(today, item["question"])
                needed = ("older", "newer") if item.get("needs") == "both" else (item.get("needs", "newer"),)
                held = all(stands(item, name, note) for name in needed)
                if "needs" in item:
                    right += held
                else:
                    newer += held
                if misses and not held:
                    console.print(f"\n{item['question']}\n  {item['older']}\n  {item['newer']}\n{note}")
    return {"newer": newer / pairs, "right": right / look_alikes, "both in the first 3 hits": first / pairs}


def _note(memory: VectorMemory, question: str) -> str:
    return "".join(note.text for note in memory.load(question))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--locomo", type=Path, help="a LoCoMo file, for the sets among talk")
    parser.add_argument("--embeddings", action="append", default=[], help="minilm, in addition")
    parser.add_argument("--tokens", type=int, action="append", default=[], help=f"of a note ({TOKENS:,} without it)")
    parser.add_argument("--misses", action="store_true", help="print the notes that lack something")
    options = parser.parse_args()
    talk = locomo_dialogues(options.locomo) if options.locomo else []
    for tokens, name in product(options.tokens or [TOKENS], [*SETS, *(AMONG_TALK if talk else ())]):
        dialogues = talk if name in AMONG_TALK else []
        for embedder in ("wordllama", WORDS_ONLY, *options.embeddings):
            row = measured(people(name), embedder, tokens, options.misses, dialogues)
            figures = ", ".join(f"{key} {value:.3f}" for key, value in row.items())
            console.print(f"{tokens} tokens, {name}, {embedder}: {figures}")


if __name__ == "__main__":
    main()
