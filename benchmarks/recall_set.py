"""Makes benchmarks/texts/recall.json, the recall set: conversations, and questions with the messages that answer them.

    python -m benchmarks.recall_set

Three conversations over many sessions: two friends; a user and an assistant with long answers; four people over a
year. What is said, and what is asked, is written by hand in benchmarks/texts/recall/*.txt. This puts it into sessions,
gives it dates, names and numbers, and puts talk in between that uses the same words. The same each time.

A file of texts has blocks, separated by empty lines. The first line of a block says what it is:

- `talk`: who talks (the first has the user's part), in how many sessions, from when, how many days apart.
- `fact NAME`: told once, by that person (A); B and C are others.
- `both`: told by everybody, each with another value of a slot, in different sessions.
- `again NAME N`: told in N sessions, each time with the next value of a slot.
- `each N`, `often NAME N`: told N times by everybody, or by one; all these answer the question.
- `theme NAME`: what a session is about: its beginning, and after `...` its end.
- `mid`: a detail that is told in the sessions of several themes, in words that do not name the theme.
- `several NAME`: told in parts, after `---` in a later session.
- `filler`, `close`: talk that nobody asks about. `nobody`: questions that nothing answers.

`{slot} = a | b` gives a slot its values; `{A}`, `{B}` are the speakers' names, `{month}`, `{date}`, `{day}` when it was
said. `? KIND 1+3 "words": question` is asked afterwards; the messages 1 and 3 of the block answer it, and only where
they contain these words, if any are given (a long message may be found in part).

Kinds of questions: `exact` has the words of what answers it, `paraphrase` others; `name` is of one of many people in
the same role; `speaker` asks for what one person said of what all talk about, `role` for what the user said, or the
assistant; `date` for one of many times; `neighbour` for a message beside the one that the question describes; `session`
for a detail whose subject is named elsewhere in its session; several messages answer `multi`; `long` is answered by a
sentence of a long message; `repeated` has words of a request that is made every week.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

__all__ = ["FILE", "made"]

TEXTS = Path(__file__).parent / "texts"
FILE = TEXTS / "recall.json"
NAMES = ("friends", "assistant", "year")
SEED = 20
ASSISTANT = "assistant"  # begins no talk of its own
MINUTE = "%Y-%m-%d %H:%M"
MIDS, MIDS_ASKED = 3, 2  # details in the session of a theme; and how many of them are asked for
ASK = re.compile(r'\? (?P<kind>[a-z]+) (?P<turns>[\d+]+)(?: "(?P<quote>[^"]+)")?: (?P<text>.+)')
SLOT = re.compile(r"(?P<first>(?:^|(?<=[.!?] )))?\{(?P<name>\w+)\}", re.MULTILINE)
Values = dict[str, str]


@dataclass
class Ask:
    """A question about a block: the numbers of the messages that answer it, from 0."""

    kind: str
    turns: list[int]
    quote: str
    text: str


@dataclass
class Block:
    """What stands between two empty lines."""

    kind: str
    args: list[str]
    slots: dict[str, list[str]] = field(default_factory=dict)
    parts: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])  # of a speaker's letter and a text
    asks: list[Ask] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # of `nobody`

    def values(self, number: int) -> Values:
        """The slots with their value of this number."""
        return {name: values[number % len(values)] for name, values in self.slots.items()}


@dataclass
class Beat:
    """A part of a block as it is said in a session. `asked` holds the questions of which this is the last part."""

    turns: list[tuple[str, str]]
    voices: Values
    values: Values
    asked: list[Ask] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # of the messages of this and of the parts before it
    before: Beat | None = None


def made() -> str:
    """The whole file."""
    prompts = {block.kind: block.lines for block in _blocks(TEXTS / "recall" / "prompts.txt")}
    return _json({"conversations": [_talk(name) for name in NAMES], "prompts": prompts}) + "\n"


def _json(value: object, indent: str = "") -> str:
    """JSON with a line for each message and each question."""
    if isinstance(value, dict) and not isinstance(value.get("text"), str):
        inner = [f"{indent} {json.dumps(key)}: {_json(one, indent + ' ')}" for key, one in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    if isinstance(value, list) and value and not (len(value) == 4 and isinstance(value[0], str)):
        return "[\n" + ",\n".join(f"{indent} {_json(one, indent + ' ')}" for one in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


# -- reading the texts


def _blocks(file: Path) -> list[Block]:
    found: list[Block] = []
    open_block = False
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        if not line:
            open_block = False
        elif not open_block:
            open_block = True
            kind, *args = ["small talk"] if line == "small talk" else line.split(" ")
            found.append(Block(kind, args))
        else:
            _read(found[-1], line)
    return found


def _read(block: Block, line: str) -> None:
    if block.kind in ("talk", "nobody", "everyday", "small talk"):
        block.lines.append(line)
    elif line.startswith("{") and " = " in line and not line.startswith("{A}"):
        name, _, values = line.partition(" = ")
        block.slots[name.strip("{}")] = values.split(" | ")
    elif line in ("...", "---"):
        block.parts.append([])
    elif line.startswith("?"):
        ask = ASK.fullmatch(line)
        assert ask is not None, line
        block.asks.append(
            Ask(ask["kind"], [int(n) - 1 for n in ask["turns"].split("+")], ask["quote"] or "", ask["text"])
        )
    elif line.startswith("  "):
        letter, text = block.parts[-1][-1]
        block.parts[-1][-1] = (letter, f"{text}\n{line.strip()}")
    else:
        letter, _, text = line.partition(": ")
        assert text, line
        block.parts[-1].append((letter, text))


def _filled(text: str, values: Values) -> str:
    """The text with its slots filled, in capitals where a sentence begins."""

    def value(match: re.Match[str]) -> str:
        found = values[match["name"]]
        return found if match["first"] is None else found[:1].upper() + found[1:]

    return SLOT.sub(value, text)


# -- putting them into sessions


class _Plan:
    """Which beats are in which session of a conversation."""

    def __init__(
        self, blocks: Sequence[Block], people: Sequence[str], starts: Sequence[datetime], chance: random.Random
    ):
        self.blocks, self.people, self.starts, self.chance = blocks, people, starts, chance
        self.beats: list[list[Beat]] = [[] for _ in starts]
        self.themes: dict[int, tuple[Beat, Beat]] = {}

    def of(self, kind: str) -> list[Block]:
        return [block for block in self.blocks if block.kind == kind]

    def voices(self, speaker: str) -> Values:
        others = [name for name in self.people if name != speaker]
        self.chance.shuffle(others)
        if len(others) > 1 and self.people[0] in others and self.chance.random() < 0.5:
            others.sort(key=lambda name: name != self.people[0])  # in half of the cases the first one answers
        return {"A": speaker, "B": others[0], "C": others[-1]}

    def emptiest(self, among: Sequence[int]) -> int:
        """A session of these with the fewest beats."""
        return min(among, key=lambda i: (len(self.beats[i]), self.chance.random()))

    def put(self, session: int, block: Block, speaker: str, values: Values, asks: bool = True) -> Beat:
        start = self.starts[session]
        when = {"month": f"{start:%B}", "date": f"{start:%B %Y}", "day": f"{start.day} {start:%B}"}
        beat = Beat(block.parts[0], self.voices(speaker), {**when, **values}, block.asks if asks else [])
        self.beats[session].append(beat)
        return beat

    def fill(self) -> None:
        every = range(len(self.starts))
        themes = self.of("theme")
        for block, session in zip(themes, self.chance.sample(every, len(themes)), strict=True):
            self.theme(block, session)
        for number, block in enumerate(self.of("mid")):
            self.mid(number, block, len(self.of("mid")))
        for block in self.of("again"):
            speaker, times = block.args
            for number, session in enumerate(self.apart(block, int(times))):
                self.put(session, block, speaker, block.values(number))
        for block in self.of("each"):
            for number, speaker in enumerate(self.people):
                self.often(block, speaker, number * int(block.args[0]))
        for block in self.of("often"):
            self.often(block, block.args[0], 0)
        for block in self.of("both"):
            sessions: list[int] = []
            for number, speaker in enumerate(self.people):
                sessions.append(self.emptiest([i for i in every if i not in sessions]))
                self.put(sessions[-1], block, speaker, block.values(number))
        for block in self.of("several"):
            self.several(block)
        for block in self.of("fact"):
            self.put(self.emptiest(every), block, block.args[0], {})

    def theme(self, block: Block, session: int) -> None:
        values = block.values(0)
        voices = self.voices(block.args[0])
        first, last = (Beat(part, voices, values) for part in block.parts)
        self.themes[session] = (first, last)

    def mid(self, number: int, block: Block, mids: int) -> None:
        """Into the sessions of all themes but some, so that each has `MIDS` details."""
        for place, (session, (first, _)) in enumerate(self.themes.items()):
            offset = (number + place) % mids
            if offset < MIDS:
                values = {**block.values(place), **first.values}
                self.put(session, block, first.voices["A"], values, asks=offset < MIDS_ASKED)

    def apart(self, block: Block, times: int) -> list[int]:
        """Sessions in order; of different months where a question names the month only."""
        by_month: dict[int, list[int]] = {}
        months_only = any("{month}" in ask.text or "{date}" in ask.text for ask in block.asks)
        for i, start in enumerate(self.starts):
            by_month.setdefault(start.month if months_only else i, []).append(i)
        months = self.chance.sample(list(by_month), times)
        return sorted(self.emptiest(by_month[month]) for month in months)

    def often(self, block: Block, speaker: str, first: int) -> None:
        """Told so often by one person, with the values from `first` on."""
        times = int(block.args[-1])
        told = [
            self.put(session, block, speaker, block.values(first + number), asks=False)
            for number, session in enumerate(self.apart(block, times))
        ]
        told[-1].asked = block.asks
        for one, before in zip(told[1:], told, strict=False):
            one.before = before

    def several(self, block: Block) -> None:
        sessions = sorted(self.chance.sample(range(len(self.starts)), len(block.parts)))
        before: Beat | None = None
        for part, session in zip(block.parts, sessions, strict=True):
            last = part is block.parts[-1]
            beat = Beat(part, self.voices(block.args[0]), {}, block.asks if last else [], before=before)
            self.beats[session].append(beat)
            before = beat


def _talk(name: str) -> dict[str, object]:
    head, *blocks = _blocks(TEXTS / "recall" / f"{name}.txt")
    about = dict(line.split(" ", 1) for line in head.lines)
    people = about["people"].split(", ")
    chance = random.Random(f"{SEED} {name}")
    plan = _Plan(blocks, people, _starts(about, chance), chance)
    plan.fill()
    turns: list[list[str]] = []
    questions: list[dict[str, object]] = []
    for number, start in enumerate(plan.starts):
        minutes = 0
        said: list[tuple[str, str]] = []
        for beat in _session(plan, number):
            beat.ids = [*(beat.before.ids if beat.before else ())]
            values = beat.values | {letter: beat.voices[letter] for letter in "ABC"}
            for letter, text in beat.turns:
                said.append((beat.voices[letter], _filled(text, values)))
                beat.ids.append(f"D{number + 1}:{len(said)}")
            for ask in beat.asked:
                evidence = [beat.ids[i] for i in ask.turns]
                if ask.kind in ("speaker", "role") and beat.before:
                    evidence = beat.ids[ask.turns[0] :: len(beat.turns)]
                asked: dict[str, object] = {"kind": ask.kind, "text": _filled(ask.text, values), "evidence": evidence}
                questions.append(asked | ({"quote": ask.quote} if ask.quote else {}))
        for i, (speaker, text) in enumerate(said, 1):
            minutes += chance.randint(1, 3)
            at = start + timedelta(minutes=minutes)
            turns.append([f"D{number + 1}:{i}", speaker, f"{at.strftime(MINUTE)}", text])
    (nobody,) = plan.of("nobody")
    return {"name": name, "user": people[0], "turns": turns, "questions": questions, "unanswerable": nobody.lines}


def _starts(about: Values, chance: random.Random) -> list[datetime]:
    """When the sessions begin."""
    low, high = map(int, about["days"].split())
    begin = datetime.strptime(about["from"], MINUTE).replace(tzinfo=UTC)
    starts = [begin]
    while len(starts) < int(about["sessions"]):
        starts.append(starts[-1] + timedelta(days=chance.randint(low, high), minutes=chance.randint(-40, 40)))
    return starts


def _session(plan: _Plan, number: int) -> Iterator[Beat]:
    """The beats of a session in order, with talk in between."""
    chance, beats, closes = plan.chance, plan.beats[number], plan.of("close")
    chance.shuffle(beats)
    chatter: list[Block] = []

    def talk() -> Beat:
        if not chatter:
            chatter.extend(chance.sample(plan.of("filler"), len(plan.of("filler"))))
        speaker = plan.people[0] if ASSISTANT in plan.people else chance.choice(plan.people)
        return plain(chatter.pop(), speaker)

    def plain(block: Block, speaker: str) -> Beat:
        return Beat(
            block.parts[0], plan.voices(speaker), {slot: chance.choice(block.slots[slot]) for slot in block.slots}
        )

    first, last = plan.themes.get(number, (None, None))
    yield first or talk()
    for beat in beats:
        yield from (talk() for _ in range(chance.randint(1, 2)))
        yield beat
    yield talk()
    if last:
        yield last
    yield plain(chance.choice(closes), plan.people[0])


if __name__ == "__main__":
    FILE.write_text(made(), encoding="utf-8")
