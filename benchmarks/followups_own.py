"""A few conversations with follow-up questions that are made here: they show that the benchmark works, and no more."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from benchmarks.followups_data import Conversation, DataSet, Turn

__all__ = ["OWN", "own_set"]

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
