"""What `VectorMemory` finds in four kinds of chat within a number of tokens, beside rank fusion over pieces.

    python -m benchmarks.recall_chats [--locomo FILE] [--ikat FOLDER] [--embeddings minilm]

The recall set (texts/recall.json) is always asked. FILE is a LoCoMo file: long chats of two friends. FOLDER holds
topic files of TREC iKAT 2023 (`*topics*.json`): chats of a user and an assistant whose answers have some 900
characters, the questions also in a form that stands alone, and statements about the person who asks. Neither is part
of this project (CC BY-NC 4.0, CC BY-SA 4.0). Two sets are made of iKAT:

- `statements`: twelve topics of other people are one chat over a month, into which the person's statements are put,
  each at the end of a message of its own, drawn at random, three times over. The topic's questions that need a
  statement are asked of it; evidence is the message, quoted in its middle.
- `answers`: twelve topics are one chat; every follow-up question with a long answer is asked in its form that stands
  alone; evidence is the answer.

Labels flatter small pieces, since any piece of the message counts. So there are also `answer words`: the share of the
words of the evidence (of the statement, where that is a part of a message) that are not in the question and stand in
the best pieces that fit into 1,024 tokens. Rank fusion is that of benchmarks/recall_systems.py (BM25 over stems,
cosine of the same vectors) over pieces of whole sentences of at most 250 or 1,000 characters. Brackets hold 95%
intervals over questions (bootstrap); `difference` is that to the better rank fusion, question by question.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from benchmarks.dialogues import Dialogue, Found, Question, Turn, locomo_dialogues, recall_set, score, tokens
from benchmarks.recall_floors import Kept, interval, kept, shared_embedder
from benchmarks.recall_systems import Fused
from langchain_memkit.ranking.tokenize import tokenize

MEMKIT = "langchain-memkit"
PIECES = (250, 1_000)  # characters, at most
TOPICS = 12  # in one chat
DRAWN = 3  # chats for each person's statements
LONG = 200  # characters of an answer that is asked for
BEGIN = datetime(2023, 1, 1, tzinfo=UTC)
SENTENCE = re.compile(r"(?<=[.!?])\s+")
METRICS = ("R@512", "R@1,024", "R@2,048", "MRR", "answer words")
RECALL = {
    "R@512": "recall within 512",
    "R@1,024": "recall within 1,024",
    "R@2,048": "recall within 2,048",
    "MRR": "MRR",
}


@dataclass(frozen=True)
class Asked:
    """A question with the text whose words answer it."""

    question: Question
    answer: str


Chat = tuple[Dialogue, Sequence[Asked]]


def topics_in(folder: Path) -> list[dict[str, Any]]:
    """The topics of all files."""
    return [topic for file in sorted(folder.glob("*topics*.json")) for topic in json.loads(file.read_text())]


def chat_of(topics: Sequence[Mapping[str, Any]], added: Mapping[tuple[int, int], str]) -> Iterator[Turn]:
    """The turns of some topics, three days apart, with statements at the end of the messages that they are added to."""
    for session, topic in enumerate(topics):
        for place, turn in enumerate(topic["turns"]):
            at = BEGIN + timedelta(days=3 * session, minutes=place)
            said = f"{turn['utterance']} {added.get((session, place), '')}".strip()
            yield Turn(f"D{session}:{2 * place}", "user", said, f"s{session}", at)
            yield Turn(f"D{session}:{2 * place + 1}", "assistant", turn["response"], f"s{session}", at)


def middle_of(text: str, size: int = 20) -> str:
    """A part of a text by which its piece is known."""
    start = max(0, len(text) // 2 - size // 2)
    return text[start : start + size].strip()


def statements(topics: Sequence[Mapping[str, Any]]) -> Iterator[Chat]:
    """For each topic three chats of others, in which its person's statements were made."""
    chance = random.Random(5)
    for number, topic in [*enumerate(topics)] * DRAWN:
        others = [topics[(number + 1 + 3 * i) % len(topics)] for i in range(TOPICS)]
        places = [(session, place) for session, other in enumerate(others) for place in range(len(other["turns"]))]
        chosen = dict(zip(topic["ptkb"], chance.sample(places, len(topic["ptkb"])), strict=True))
        added = {place: topic["ptkb"][name] for name, place in chosen.items()}
        asked = [
            Asked(
                Question(turn["resolved_utterance"], frozenset([f"D{session}:{2 * place}"]), 1, middle_of(text)), text
            )
            for turn in topic["turns"]
            for name in map(str, turn["ptkb_provenance"])
            if name in chosen
            for (session, place), text in [(chosen[name], topic["ptkb"][name])]
        ]
        yield (
            Dialogue(f"statements-{number}-{chance.getrandbits(32)}", "user", tuple(chat_of(others, added)), ()),
            asked,
        )


def answers(topics: Sequence[Mapping[str, Any]]) -> Iterator[Chat]:
    """Chats of twelve topics, with the follow-up questions whose answer is long."""
    for first in range(0, len(topics), TOPICS):
        some = topics[first : first + TOPICS]
        asked = [
            Asked(Question(turn["resolved_utterance"], frozenset([f"D{session}:{2 * place + 1}"]), 1), turn["response"])
            for session, topic in enumerate(some)
            for place, turn in enumerate(topic["turns"])
            if place and turn["resolved_utterance"].strip() != turn["utterance"].strip()
            if len(turn["response"]) > LONG
        ]
        yield Dialogue(f"answers-{first}", "user", tuple(chat_of(some, {})), ()), asked


def asked_of(dialogue: Dialogue) -> Chat:
    """A conversation whose questions are answered by the texts of its evidence."""
    texts = {turn.id: turn.text for turn in dialogue.turns}
    asked = [Asked(one, " ".join(texts.get(name, "") for name in sorted(one.evidence))) for one in dialogue.questions]
    return dialogue, asked


class FusedPieces:
    """Rank fusion over pieces of rounds: whole sentences of at most so many characters, packed."""

    def __init__(self, embeddings: Embeddings, folder: Path, most: int) -> None:
        self.most = most
        self.system = Fused(embeddings, folder)
        self.pieces: list[Found] = []

    def save(self, dialogue: Dialogue) -> None:
        self.pieces = [piece for turns in dialogue.rounds() for piece in self._pieces(turns)]
        made = [Turn(str(i), "", piece.text, "", BEGIN) for i, piece in enumerate(self.pieces)]
        self.system.save(replace(dialogue, turns=tuple(made)))

    def search(self, question: str) -> list[Found]:
        return [self.pieces[int(one.ids[0])] for one in self.system.search(question, 80)]

    def _pieces(self, turns: Sequence[Turn]) -> Iterator[Found]:
        lines: list[tuple[str, str]] = []
        size = 0
        for turn in turns:
            for text in self._cut(turn.text):
                if lines and size + len(text) > self.most:
                    yield Found(tuple(name for name, _ in lines), "\n".join(line for _, line in lines))
                    lines, size = [], 0
                lines.append((turn.id, f"{turn.speaker}: {text}"))
                size += len(text)
        yield Found(tuple(name for name, _ in lines), "\n".join(line for _, line in lines))

    def _cut(self, text: str) -> Iterator[str]:
        kept = ""
        for sentence in SENTENCE.split(text):
            if kept and len(kept) + 1 + len(sentence) > self.most:
                yield kept
                kept = sentence
            else:
                kept = f"{kept} {sentence}".strip()
        yield kept


def answer_words(found: Sequence[Found], asked: Asked, most: int = 1_024) -> float:
    """The share of the answer's own words in the best pieces that fit."""
    own = set(tokenize(asked.answer)) - set(tokenize(asked.question.text))
    shown: set[str] = set()
    for one in found:
        most -= tokens(one.text)
        if most < 0:
            break
        shown.update(tokenize(one.text))
    return len(own & shown) / len(own) if own else 1.0


def measured(chats: Sequence[Chat], embedder: str) -> dict[str, np.ndarray[Any, Any]]:
    """For each system a row of all metrics for each question."""
    embeddings = shared_embedder(embedder)
    names = [MEMKIT, *(f"rank fusion, {most:,}" for most in PIECES)]
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    with kept(embedder, [dialogue for dialogue, _ in chats]) as memories, tempfile.TemporaryDirectory() as folder:
        for memory, (dialogue, asked) in zip(memories, chats, strict=True):
            others = [FusedPieces(embeddings, Path(folder), most) for most in PIECES]
            for other in others:
                other.save(dialogue)
            for one in asked:
                systems: list[Kept | FusedPieces] = [memory, *others]
                for name, system in zip(names, systems, strict=True):
                    rows[name].append(_row(system, one))
    return {name: np.array(some) for name, some in rows.items()}


def _row(system: Kept | FusedPieces, asked: Asked) -> list[float]:
    found = system.search(asked.question.text)
    got = score(found, asked.question)
    return [*(got[name] for name in RECALL.values()), answer_words(found, asked)]


def sets_in(locomo: Path | None, ikat: Path | None) -> dict[str, list[Chat]]:
    """The sets by name: the recall set, and those of the files that are there."""
    sets = {"recall set": [asked_of(dialogue) for dialogue in recall_set().dialogues]}
    if locomo:
        sets["LoCoMo"] = [asked_of(dialogue) for dialogue in locomo_dialogues(locomo)]
    if ikat:
        topics = topics_in(ikat)
        sets |= {"statements": [*statements(topics)], "answers": [*answers(topics)]}
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--locomo", type=Path, help="a LoCoMo file")
    parser.add_argument("--ikat", type=Path, help="a folder with iKAT's topics")
    parser.add_argument("--embeddings", default="wordllama", help="wordllama or minilm")
    options = parser.parse_args()
    for name, chats in sets_in(options.locomo, options.ikat).items():
        rows = measured(chats, options.embeddings)
        print(f"\n{name}, {options.embeddings}: {len(rows[MEMKIT])} questions")
        for i, metric in enumerate(METRICS):
            better = max((rows[other][:, i] for other in rows if other != MEMKIT), key=np.mean)
            cells = "   ".join(f"{system} {interval(some[:, i])}" for system, some in rows.items())
            print(f"  {metric:13} {cells}   difference {interval(rows[MEMKIT][:, i] - better)}", flush=True)


if __name__ == "__main__":
    main()
