"""Conversations with follow-up questions and what people made of them: from files that the user has, or made here.

CANARD, TREC CAsT 2019 and 2020 and TREC iKAT 2023 are not part of this project (their licences differ). What of them a
folder holds is read, in the folders and with the names that their authors give.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

KNOWN_ITEM = " (known item)"
CANARD, IKAT, TRAIN, LINES = "CANARD", "iKAT 2023", "iKAT 2023 train", "LoCoMo"
CAST_2019, CAST_2020 = f"CAsT 2019{KNOWN_ITEM}", f"CAsT 2020{KNOWN_ITEM}"
FEWEST_WORDS = 3  # of an answer that is a document; shorter ones say nothing that one could look for
LONG_LINE = 8  # words of a line of LoCoMo that is taken as a distractor
# What other passages a set gets: first all of the same kind, then some of the rest, drawn from all.
OTHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    CANARD: ((), (IKAT, TRAIN, LINES)),
    IKAT: ((TRAIN,), (CANARD,)),
    CAST_2019: ((), (CAST_2020, IKAT, CANARD)),
    CAST_2020: ((), (CAST_2019, IKAT, CANARD)),
}
UNKNOWN = re.compile(r"\s*(?:i don'?t know|cannotanswer|i do not know)\.?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Turn:
    """A question, what a person made of it so that it stands alone, and the answer, if the data has one."""

    asked: str
    rewrite: str
    answer: str | None = None
    title: str = ""  # of the page that the answer is from


@dataclass(frozen=True)
class Conversation:
    id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Question:
    """A turn after the first, what was said before, and the document that answers it.

    Attributes:
        conversation: Its id.
        turn: What is asked.
        past: Earlier turns, oldest first, each with the id of the document that answered it.
        gold: The id of the document that is looked for; None: there is none, and it is not asked.
    """

    conversation: str
    turn: Turn
    past: tuple[tuple[Turn, str | None], ...]
    gold: str | None

    @cached_property
    def answered(self) -> frozenset[str]:
        """The documents that answered earlier turns, and do not answer this one."""
        return frozenset(name for _, name in self.past if name is not None and name != self.gold)

    @cached_property
    def messages(self) -> list[BaseMessage]:
        """What was said before, as `create_conversational_rag_chain` stores it: answers name their documents."""
        said: list[BaseMessage] = []
        for turn, name in self.past:
            said.append(HumanMessage(turn.asked))
            names = [name] if name in self.answered else []
            if turn.answer or names:
                said.append(AIMessage(turn.answer or "", response_metadata={"memkit_documents": names}))
        return said


@dataclass(frozen=True)
class DataSet:
    """Conversations and their documents.

    Attributes:
        name: Of the set.
        conversations: All of them; their answers are the documents.
        others: Passages of other sets, in the order in which they are added.
        scored: Ids of the conversations whose questions are asked; None for all.
    """

    name: str
    conversations: tuple[Conversation, ...]
    others: tuple[str, ...] = ()
    scored: frozenset[str] | None = None

    @cached_property
    def ids(self) -> dict[str, str]:
        """Ids of the documents by their texts, each text once."""
        texts = (_document(self.name, turn) for one in self.conversations for turn in one.turns)
        return {text: f"d{number}" for number, text in enumerate(dict.fromkeys(filter(None, texts)))}

    def pool(self, more: int) -> list[Document]:
        """The documents, and so many others; in an order that says nothing, since it decides between equals."""
        new = [text for text in dict.fromkeys(self.others) if text not in self.ids][:more]
        texts = {**self.ids, **{text: f"x{number}" for number, text in enumerate(new)}}
        made = [Document(text, id=name) for text, name in texts.items()]
        random.Random(11).shuffle(made)
        return made

    @cached_property
    def questions(self) -> list[Question]:
        """All turns after the first that somebody rewrote."""
        found = []
        for one in self.conversations:
            if self.scored is None or one.id in self.scored:
                past = [(turn, self.ids.get(_document(self.name, turn) or "")) for turn in one.turns]
                found += [
                    Question(one.id, turn, tuple(past[:i]), gold)
                    for i, (turn, gold) in enumerate(past)
                    if i and turn.asked and turn.rewrite
                ]
        return found

    def limited(self, conversations: int) -> DataSet:
        """Only so many conversations are scored, drawn with a fixed seed; the documents of all stay."""
        names = [one.id for one in self.conversations]
        return replace(self, scored=frozenset(random.Random(13).sample(names, min(conversations, len(names)))))


def _document(name: str, turn: Turn) -> str | None:
    """A turn's document: its answer, headed by the page's title; where there are no answers, what was meant."""
    if name.endswith(KNOWN_ITEM):
        return turn.rewrite or None
    if not turn.answer or len(turn.answer.split()) < FEWEST_WORDS:
        return None
    return f"{turn.title}. {turn.answer}" if turn.title else turn.answer


# -- files


def canard(file: Path) -> Iterator[Conversation]:
    """QuAC's dialogs; the last turn of each holds all answers but its own."""
    dialogs: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in json.loads(file.read_text(encoding="utf-8")):
        dialogs[one["QuAC_dialog_id"]].append(one)
    for name, turns in dialogs.items():
        turns.sort(key=lambda turn: int(turn["Question_no"]))
        title, _section, *said = turns[-1]["History"]
        answers: dict[str, str] = {}
        for asked, answer in zip(said[::2], said[1::2], strict=False):
            answers.setdefault(asked, answer)
        known = {asked: answer for asked, answer in answers.items() if not UNKNOWN.fullmatch(answer)}
        yield Conversation(
            name, tuple(Turn(t["Question"], t["Rewrite"], known.get(t["Question"]), title) for t in turns)
        )


def cast_2019(file: Path) -> Iterator[Conversation]:
    """The rewrites are in a file beside it."""
    resolved = file.with_name("evaluation_topics_annotated_resolved_v1.0.tsv").read_text(encoding="utf-8")
    rewrites = dict(line.split("\t") for line in resolved.split("\n") if line.count("\t") == 1)
    for topic in json.loads(file.read_text(encoding="utf-8")):
        turns = ((turn["raw_utterance"], f"{topic['number']}_{turn['number']}") for turn in topic["turn"])
        yield Conversation(
            str(topic["number"]), tuple(Turn(t, rewrites[name]) for t, name in turns if name in rewrites)
        )


def cast_2020(file: Path) -> Iterator[Conversation]:
    for topic in json.loads(file.read_text(encoding="utf-8")):
        turns = (Turn(turn["raw_utterance"], turn["manual_rewritten_utterance"]) for turn in topic["turn"])
        yield Conversation(str(topic["number"]), tuple(turns))


def ikat(file: Path) -> Iterator[Conversation]:
    for topic in json.loads(file.read_text(encoding="utf-8")):
        turns = topic.get("turns") or topic.get("responses")
        yield Conversation(
            str(topic["number"]),
            tuple(
                Turn(t.get("utterance") or t.get("user_utterance") or "", t["resolved_utterance"], t.get("response"))
                for t in turns
            ),
        )


def lines(file: Path) -> list[str]:
    """LoCoMo's longer messages, as distractors only."""
    return [
        turn["text"]
        for talk in json.loads(file.read_text(encoding="utf-8"))
        for session in talk["conversation"].values()
        if isinstance(session, list)
        for turn in session
        if len(turn.get("text", "").split()) >= LONG_LINE
    ]


FILES: dict[str, tuple[str, Callable[[Path], Iterator[Conversation]]]] = {
    CANARD: ("canard/dev.json", canard),
    CAST_2019: ("cast/evaluation_topics_v1.0.json", cast_2019),
    CAST_2020: ("cast/2020_manual_evaluation_topics_v1.0.json", cast_2020),
    IKAT: ("ikat/2023_test_topics.json", ikat),
    TRAIN: ("ikat/2023_train_topics.json", ikat),
}
LINES_FILE = "locomo_dev.json"


def read_sets(folder: Path) -> list[DataSet]:
    """The sets of which there are files.

    Raises:
        FileNotFoundError: There are none at all.
    """
    found = {name: tuple(read(folder / file)) for name, (file, read) in FILES.items() if (folder / file).exists()}
    passages = {name: list(DataSet(name, conversations).ids) for name, conversations in found.items()}
    if (folder / LINES_FILE).exists():
        passages[LINES] = lines(folder / LINES_FILE)
    sets = [DataSet(name, found[name], tuple(_others(name, passages))) for name in OTHERS if name in found]
    if not sets:
        raise FileNotFoundError(f"{folder} holds none of {', '.join(file for file, _ in FILES.values())}")
    return sets


def _others(name: str, passages: Mapping[str, list[str]]) -> list[str]:
    first, rest = ([text for other in names for text in passages.get(other, [])] for names in OTHERS[name])
    random.Random(7).shuffle(rest)
    return first + rest


# -- made here: it shows that the benchmark works, and no more

OWN = "own (no evidence of quality)"
SYLLABLES = re.findall(
    "[a-z]+", "ba ber cal dor el fen gar hol is jor kel lum mar nor or pel quin ros sil tor ul vel wen yar zan"
)
TRADES = ("cartographer", "physician", "glassmaker", "botanist", "composer", "bridge builder", "watchmaker", "printer")
GOODS = (
    "tide clock",
    "folding loom",
    "rain organ",
    "salt lamp",
    "pocket sextant",
    "paper press",
    "ice saw",
    "sail cart",
)
USES = ("measuring the water in harbours", "weaving on ships", "concerts in the open", "lighting mines")
SEATS = ("a council of nine", "an elected mayor", "the guild of weavers", "a bishop")
LIVES = ("{who} was a {trade} in {town}.", "A {trade} by training, {who} came to {town} as a child and stayed there.")
BIRTHS = ("{last} came to the world in {year}, a baker's daughter.", "The year was {year}; {last} was a third child.")
WORKS = ("Her best known invention is the {thing} of {last}.", "{last} is remembered for one patent, her {thing}.")
PURPOSES = ("The {thing} was made for {use}.", "People bought a {thing} for {use}, as {last} had hoped.")
SIZES = ("The last census of {town} counted {people} inhabitants.", "{people} people have their home in {town} today.")
RULES = ("{town} is governed by {seat}, led by {ruler}.", "Since {ruler}, {seat} has had the say in {town}.")


def own_set(conversations: int = 12, others: int = 40) -> DataSet:
    """Invented people and towns, the same in every run."""
    chance = random.Random(4)
    talks = tuple(Conversation(f"own {i}", tuple(_talk(chance))) for i in range(conversations))
    more = [f"{_name(chance)} is a village known for its {chance.choice(GOODS)} museum." for _ in range(others)]
    return DataSet(OWN, talks, tuple(more))


def _name(chance: random.Random) -> str:
    return "".join(chance.sample(SYLLABLES, 3)).capitalize()


def _talk(chance: random.Random) -> Iterator[Turn]:
    first, last, town, ruler = (_name(chance) for _ in range(4))
    trade, thing, use, seat = (chance.choice(some) for some in (TRADES, GOODS, USES, SEATS))
    who = f"{first} {last}"
    words = {"who": who, "last": last, "town": town, "ruler": ruler, "trade": trade, "thing": thing, "use": use}
    words |= {"seat": seat, "year": str(chance.randint(1700, 1900)), "people": str(chance.randint(2, 90) * 1000)}
    for asked, rewrite, answers in (
        ("Who was {who}?", "Who was {who}?", LIVES),
        ("When was she born?", "When was {who} born?", BIRTHS),
        ("What did she invent?", "What did {who} invent?", WORKS),
        ("What was it used for?", "What was the {thing} of {last} used for?", PURPOSES),
        ("How many people live in {town}?", "How many people live in {town}?", SIZES),
        ("And who governs it?", "Who governs {town}?", RULES),
    ):
        yield Turn(asked.format(**words), rewrite.format(**words), chance.choice(answers).format(**words))
