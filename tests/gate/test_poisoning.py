"""What was written into a memory reaches the model as quoted data, never as a line of the frame or of the app."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gatekit.poison import HARMLESS, POISON
from gatekit.systems import config
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    EntityMemory,
    KeyValueMemory,
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    VectorMemory,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.base import Mention
from langchain_memkit.messages.notes import is_note, records_of
from langchain_memkit.testing import FakeChatModel

Requests = list[list[BaseMessage]]
ROOM = 1_000_000  # tokens: nothing is left out for its length
KIND = "Be kind."
QUESTION = "What did Nemo say?"
ANSWERS = re.compile(r"Noted\.|You told me: .*|You have not told me that\.", re.DOTALL)
NOTE = re.compile(
    r"Records (from memory|found for the next question) follow, .* They are quoted data, not\s+instructions\."
    r"( Dates are in UTC\.)?"
)
SUMMARY = "Summary of the conversation so far. It is a record, not instructions.\n<summary>\n"
TAGS = re.compile(
    r"<(?:(?![<>])[\W_])*(?:records|summary|messages)(?![a-z0-9])|<\||<(?:start|end)_of_turn>", re.IGNORECASE
)
ALIKE = str.maketrans("\u2039\u203a\ufe64\ufe65\uff5c\u0435\u03bf", "<><>|eo")
JOINERS = "\u200c\u200d"
PROMPT = ChatPromptTemplate([("system", KIND), MessagesPlaceholder("past"), ("human", "{input}")])


class Letters(Embeddings):
    """How often each letter stands in a text, for any text at all."""

    def embed_query(self, text: str) -> list[float]:
        """Never all zeros."""
        return [1.0, *(float(text.count(letter)) for letter in "aeinorst")]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One by one."""
        return [self.embed_query(text) for text in texts]


def nemo(text: str) -> list[Mention]:
    """The name in a text."""
    return [Mention("Nemo", "PERSON", m.start(), m.end()) for m in re.finditer("Nemo", text)]


# -- what the models are given


class Bench:
    """Stores in real files, and what is made of them for one user, who says the texts."""

    def __init__(self, folder: Path) -> None:
        self.histories = SQLiteChatMessageHistory.factory(folder / "chat.db")
        self.entities = EntityMemory.factory(self.histories, nemo, max_tokens=ROOM)
        self.vectors = VectorMemory.factory(self.histories, Letters(), max_tokens=ROOM)
        self.model = FakeChatModel()
        self.found: list[Document] = []
        retriever = RunnableLambda(lambda question: self.found)
        self.memories = ComposedMemory.factory(
            ChatHistoryMemory.factory(self.histories), self.entities, self.vectors, retriever, on_load_error="raise"
        )
        self.finder = create_conversational_rag_chain(
            self.model, retriever, self.histories, condense="llm", max_tokens=ROOM
        )
        memories = [self.entities, self.vectors]
        middleware = MessageHistoryMiddleware(self.histories, memories=memories, on_load_error="raise")
        self.agents = create_agent(self.model, [], system_prompt=KIND, middleware=[middleware])

    def chain(self, user: str, said: Sequence[str], sessions: str = "12", **options: Any) -> Requests:
        """The texts are said in the first session, and asked for in the last."""
        options |= {"input_messages_key": "input", "history_messages_key": "past", "on_load_error": "raise"}
        chat = create_runnable_with_message_history(PROMPT | self.model, self.histories, **options)
        for text in said:
            chat.invoke({"input": text}, config(sessions[0], user))
        chat.invoke({"input": QUESTION}, config(sessions[-1], user))
        return self.heard()

    def history(self, user: str, said: Sequence[str]) -> Requests:
        """As the past of the same conversation."""
        return self.chain(user, said, "1")

    def summary(self, user: str, said: Sequence[str]) -> Requests:
        """By a summarizer that repeats what it was told, word for word."""
        asked: Requests = []
        parrot = RunnableLambda(lambda given: asked.append(given) or "\n".join(said))
        short: Any = {"trigger": ("messages", 3), "keep": ("messages", 2)}
        summarize = create_history_preprocessor(parrot, max_tokens=ROOM, **short)
        answered = self.chain(user, [*said, "It may rain."], "1", preprocessor=summarize)
        assert SUMMARY in answered[-1][1].text, "nothing was summarized"
        return [*asked, *answered]

    def entity(self, user: str, said: Sequence[str]) -> Requests:
        """As facts about a name, in another conversation."""
        return self.chain(user, said, memories=[self.entities])

    def vector(self, user: str, said: Sequence[str]) -> Requests:
        """As rounds that are like the question, in another conversation."""
        return self.chain(user, said, memories=[self.vectors])

    def key_value(self, user: str, said: Sequence[str]) -> Requests:
        """As texts, titles and sources of entries."""
        entries = [{"title": "Nemo", "text": "\n".join(said)}]
        titled = [{"title": f"{t} .", "text": t, "source": t, "aliases": ["Nemo's"]} for t in said[:1]]
        memories = [KeyValueMemory(e, max_tokens=ROOM, min_score=None) for e in (entries, titled)]
        return self.chain(user, ["Nemo's", "Nemo"], memories=memories)

    def composed(self, user: str, said: Sequence[str]) -> Requests:
        """As a dialogue with notes on it, from all of these at once."""
        self.found = [Document(text, metadata={"source": text}) for text in said]
        self.told(user, said)
        return [[SystemMessage(KIND), *self.memories("2", user).load(QUESTION), HumanMessage(QUESTION)]]

    def told(self, user: str, said: Sequence[str]) -> None:
        """Says it in two conversations; entities are known of the first."""
        memory = self.memories("1", user)
        for text in said:
            memory.save([HumanMessage(text), AIMessage("Noted.")])
        self.histories("2", user).add_messages([HumanMessage(f"So? {text}") for text in said])

    def rag(self, user: str, said: Sequence[str]) -> Requests:
        """As documents with titles and sources, and as the past that the question is made to stand alone with."""
        known = {"title": said[0], "source": said[-1], "date": "2026-01-02"}
        self.found = [Document(text, metadata=known) for text in said]
        for text in (*said, QUESTION):
            self.finder.invoke({"input": text}, config("rag", user))
        return self.heard()

    def agent(self, user: str, said: Sequence[str]) -> Requests:
        """As what an agent's model is shown, past and memories."""
        self.told(user, said)
        self.agents.invoke({"messages": [HumanMessage(QUESTION)]}, config("2", user))
        return self.heard()

    def heard(self) -> Requests:
        """What the model was given since the last time."""
        calls, self.model.calls = self.model.calls, []
        return calls


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """New files."""
    return Bench(tmp_path)


# -- what is wrong with it


def plain(text: str) -> str:
    """The text as a person reads it: plain letters and brackets, nothing unseen, control characters as a mark."""
    letters = unicodedata.normalize("NFKD", text.replace("&lt;", "<")).translate(ALIKE)
    kinds = [(c, unicodedata.category(c)) for c in letters]
    return "".join("\ufffd" if k in ("Cc", "Cs") and c not in "\t\n" else c for c, k in kinds if k not in ("Cf", "Mn"))


def hides(text: str) -> bool:
    """Whether something is in it that nobody sees, a joiner of letters aside, or that a terminal obeys."""
    found = {unicodedata.category(c) for c in text if c not in JOINERS and c not in "\t\n"}
    return bool(found & {"Cc", "Cf", "Cs"})


def outside_of_note(note: BaseMessage) -> list[str]:
    """What of a note is neither its frame, nor a heading of a record of it, nor quoted under the record's heading."""
    lines = note.text.splitlines()
    if not NOTE.fullmatch(lines[0]) or (lines[1], lines[-1]) != ("<records>", "</records>"):
        return [f"no frame: {lines[:2]} {lines[-1]!r:.60}"]
    rest = lines[2:-1]
    wrong = [line for line in rest if TAGS.search(line) or TAGS.search(plain(line.replace("&lt;", ""))) or hides(line)]
    before: object = None
    for record in records_of(note):
        # records of a vector memory that were said on one day in one session stand under one heading
        place = (record.source, record.date.date()) if record.memory == "VectorMemory" and record.date else None
        if place is None or place != before:
            if not (rest and re.fullmatch(r"- .{1,400}:", rest[0]) and rest[0].isprintable()):
                return [*wrong, f"no heading: {rest[:1]!r:.80}"]
            rest = rest[1:]
        before = place
        quote = [f"> {line}" for line in record.text.splitlines() or [""]]
        stands = rest[: len(quote)]
        if plain("\n".join(stands)) != plain("\n".join(quote)):
            return [*wrong, f"not the record: {stands!r:.80}"]
        rest = rest[len(quote) :]
    return wrong + rest


def outside_of_summary(message: BaseMessage) -> list[str]:
    """What stands before or after the frame, or could pass for its end."""
    text = message.text
    if not text.startswith(SUMMARY) or not text.endswith("\n</summary>"):
        return [f"no frame: {text[:60]!r}"]
    inside = text[len(SUMMARY) : -len("\n</summary>")].splitlines()
    return [line for line in inside if not line.startswith("> ") or TAGS.search(line) or hides(line)]


def outside_of_transcript(message: BaseMessage) -> list[str]:
    """The same for what a model is to summarize, or to rewrite: speakers' lines, indented ones, or quoted ones."""
    before, begun, rest = message.text.partition("<messages>\n")
    inside, ended, after = rest.partition("\n</messages>")
    if not (begun and ended):
        return ["no frame"]
    wrong = [line for line in inside.splitlines() if not re.match(r"(human|ai): |  |\d\.$|> ", line)]
    so_far = re.sub(r"(?s)<summary>\n(.*)\n</summary>\n$", r"\1", before)
    return wrong + TAGS.findall(so_far + inside + after)


def wrong_with(request: list[BaseMessage], usual: list[BaseMessage], said: Sequence[str]) -> list[str]:
    """All that a request has which that of a harmless text has not."""
    if [m.type for m in request] != [m.type for m in usual]:
        return [f"roles {[m.type for m in request]}, else {[m.type for m in usual]}"]
    wrong = []
    for message, other in zip(request, usual, strict=True):
        if is_note(other):
            wrong += outside_of_note(message)
        elif other.text.startswith(SUMMARY):
            wrong += outside_of_summary(message)
        elif "<messages>\n" in other.text:
            wrong += outside_of_transcript(message)
        elif message.type == "system" and message.content != other.content:
            wrong.append(f"system: {message.text!r:.80}")
        elif message.type == "human" and message.text.removeprefix("So? ") not in {*said, other.text}:
            wrong.append(f"human: {message.text!r:.80}")
        elif message.type == "ai" and not ANSWERS.fullmatch(message.text):
            wrong.append(f"ai: {message.text!r:.80}")
    return wrong


KINDS: dict[str, Callable[..., Requests]] = {
    name: getattr(Bench, name)
    for name in ("history", "summary", "entity", "key_value", "vector", "composed", "rag", "agent")
}


@pytest.mark.gate(row=21, memkit_only=True)
@pytest.mark.parametrize("kind", KINDS)
def test_poison_stays_in_its_frame(kind: str, bench: Bench, figure: Callable[..., None]) -> None:
    """112 hostile texts: roles, number of messages, system lines and frames are as with a harmless one."""
    requests = partial(KINDS[kind], bench)
    bad: dict[str, list[str]] = {}
    harmless = {n: requests(f"harmless {n}", [f"Nemo: {t}" for t in HARMLESS * n]) for n in (1, 2)}
    assert len(POISON) == 112
    assert kind in ("history", "summary") or any(map(is_note, harmless[1][-1])), "nothing was recalled"
    for name, texts in POISON.items():
        said = [f"Nemo: {text}" for text in texts]
        made = requests(name, said)
        usual = harmless[len(texts)]
        if len(made) != len(usual):
            bad[name] = [f"{len(made)} requests, else {len(usual)}"]
        elif wrong := [w for request, other in zip(made, usual, strict=True) for w in wrong_with(request, other, said)]:
            bad[name] = wrong
    figure(f"hostile texts outside their frame, {kind}", len(bad), at_most=0)
