"""`memkit report` on files: what the page shows, and that stored text stays text."""

from __future__ import annotations

import hashlib
import re
import stat
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langchain_memkit import (
    EntityMemory,
    KeyValueMemory,
    PreferenceMemory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.base import user_prefix
from langchain_memkit.cli import report
from langchain_memkit.testing import FakeChatModel

Memkit = Callable[..., Any]

HOSTILE = (
    "</title></style><script>alert(1)</script><img src=x onerror=alert(2)> \" onload='x' &lt;b&gt; {0} $title ${links} "
    "\x1b[31m \u202eevil\u202c \u2066\u200b\u2028 ]]> <!-- --> javascript:alert(3) \ud800"
)
FOR_IDS = HOSTILE.replace("\ud800", "")
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
TAGS = (
    "a b bdi blockquote body br dd details div dl dt footer h1 h2 h3 head header html i li main meta nav p rect section"
)
TAGS += " small span strong style summary svg table td th thead title tr ul"
ATTRIBUTES = "aria-label charset class content height href http-equiv id lang name preserveaspectratio role tabindex"
ATTRIBUTES += " viewbox width x y"


class Page(HTMLParser):
    """What a browser would make of a page: tags with their attributes, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ends: list[str] = []
        self.texts: list[str] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Keep the end of a tag."""
        self.ends.append(tag)

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        """Keep a comment."""
        self.comments.append(data)

    @property
    def text(self) -> str:
        """All texts, one after the other."""
        return " ".join(" ".join(self.texts).split())


def fill(path: Path, text: str, user: str, session: str) -> None:
    """Stores a text in every field that the report reads, with the memories' own code and by hand."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    keys = SQLiteKeyValueStore(path)
    with SQLiteChatMessageHistory.factory(path, now=lambda: now) as histories:
        call = {"name": text, "args": {text: text}, "id": "c1"}
        turn = [HumanMessage(text), AIMessage("", tool_calls=[call]), ToolMessage(text, tool_call_id="c1", name=text)]
        histories(session, user).append_turn([*turn, AIMessage(text, name=text)])
        epoch = histories(session, user).view().epoch
        stored = text.encode("utf-8", "replace").decode()  # as the memories themselves do
        histories.update_session(session, user, title=stored)
    KeyValueMemory.factory(keys)(session, user).add([{"title": stored, "text": stored, "source": stored}])
    PreferenceMemory.factory(SQLiteChatMessageHistory.factory(path))(session, user).add(stored)
    position = {"epoch": epoch, "seq": 1, "op": stored, "message_id": None}
    summary = {"text": stored, "covered": 3, "position": position, "model": stored}
    row = {"key": stored, "surface": stored, "label": stored, "text": stored, "session": stored, "at": now.isoformat()}
    prefix = user_prefix(user)
    keys.mset(
        [
            (f"{prefix}summary/{user_prefix(session)}{epoch}/1", summary),
            (f"{prefix}entities/session/s/g", {}),
            (f"{prefix}entities/fact/s/g/f1", row),
            (f"{prefix}entities/description/d", {**row, "facts": ["f1"]}),
        ]
    )


def read_back(memkit: Memkit, *words: object) -> Page:
    """Runs a report and parses it."""
    done = memkit("report", *words, "-o", "page.html", "--yes")
    assert done.exit_code == 0, done.stderr
    return Page(Path("page.html").read_text(encoding="utf-8"))


def test_hostile_text_stays_text(memkit: Memkit, tmp_path: Path) -> None:
    """With tags, quotes, control characters and direction marks in every stored field the page has the same tags."""
    fill(tmp_path / "plain.db", "plain words", "u1", "s1")
    fill(tmp_path / "hostile.db", HOSTILE.replace("\u2028", ""), FOR_IDS, FOR_IDS)
    plain = read_back(memkit, "plain.db", "--user", "u1")
    hostile = read_back(memkit, "hostile.db", "--user", FOR_IDS)
    known = [[(tag, *sorted(a)) for tag, a in page.tags] for page in (plain, hostile)]
    assert known[0] == known[1]
    assert plain.ends == hostile.ends
    assert hostile.comments == []
    assert hostile.text.count("<script>alert(1)</script>") >= 15, "it is shown, as text"
    assert not UNSEEN.search(Path("page.html").read_text(encoding="utf-8"))


def test_the_page_is_alone(memkit: Memkit, tmp_path: Path) -> None:
    """It has no script, loads nothing, and its policy forbids both; its one style is named there by its hash."""
    fill(tmp_path / "chat.db", HOSTILE.replace("\u2028", ""), FOR_IDS, "s1")
    page = read_back(memkit, "chat.db", "--user", FOR_IDS)
    assert {tag for tag, _ in page.tags} <= set(TAGS.split())
    assert {name for _, attributes in page.tags for name in attributes} <= set(ATTRIBUTES.split())
    links = [attributes["href"] or "" for _, attributes in page.tags if "href" in attributes]
    targets = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert len(links) >= 5
    assert set(links) == targets
    policies = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    style = re.findall("<style>(.*?)</style>", Path("page.html").read_text(encoding="utf-8"), re.S)[0]
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert policies == [policy]
    assert not re.search("url|@import|expression|//", style)


def test_colours_can_be_told_apart() -> None:
    """Text has a contrast of 4.5 and edges one of 3 against both backgrounds, in light and in dark."""
    style = files("langchain_memkit.cli").joinpath("report.html").read_text("utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6});", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    )
    for colours in (light, {**light, **dark}):
        for back in ("back", "card"):
            assert all(contrast(colours[name], colours[back]) >= 4.5 for name in ("text", "muted", "accent"))
            assert all(contrast(colours[name], colours[back]) >= 3 for name in ("edge", "history", "documents"))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as the Web Content Accessibility Guidelines (WCAG) 2 define it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_what_the_memories_themselves_keep(memkit: Memkit, tmp_path: Path) -> None:
    """Turns, summary, entities, notes and preferences of the user are shown, and nothing of anybody else."""
    path = tmp_path / "chat.db"
    keys = SQLiteKeyValueStore(path)
    fits = create_history_preprocessor(lambda prompt: "Nemo sails.", max_tokens=300, store=keys)
    histories = SQLiteChatMessageHistory.factory(path)
    entities = EntityMemory.factory(histories, lambda text: [], names=["Nemo", "Marlin"])
    KeyValueMemory.factory(keys)("s1", "u1").add({"My Diary": "Dear diary"})
    PreferenceMemory.factory(histories)("s1", "u1").add("Never use emojis")
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=fits, memories=[entities])
    for day in range(30):
        chat.invoke(f"Nemo has nothing to tell of day {day}.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    chat.invoke("Marlin is a secret.", {"configurable": {"session_id": "s1", "user_id": "u2"}})
    histories.update_session("s1", "u1", title="Days at sea")
    done = memkit("report", path, "--user", "u1", "-o", "page.html")
    assert done.exit_code == 0
    counts = dict(re.findall(r"^(\S.*?)  +(\d+)$", done.stdout, re.M))
    assert {name: int(n) for name, n in counts.items() if name != "tokens"} == {
        "conversations": 1, "turns": 30, "messages": 60, "entities": 1, "facts": int(counts["facts"]),
        "key-value notes": 1, "preferences": 1,
    }  # fmt: skip
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    for text in (
        "Conversations of u1",
        "Days at sea",
        "Nemo has nothing to tell of day 0.",
        "Dear diary",
        "Never use emojis",
    ):
        assert text in page.text
    assert re.search(r"summary covers \d+ of 60 messages", page.text)
    assert "Nemo sails." in page.text
    assert "secret" not in page.text
    assert "Marlin" not in page.text


def test_what_was_cleared_is_not_shown(memkit: Memkit, tmp_path: Path) -> None:
    """Facts of a cleared session, descriptions made from them and its old summary are not shown."""
    path = tmp_path / "chat.db"
    fill(path, "a secret", "u1", "s1")
    keys = SQLiteKeyValueStore(path)
    keys.mdelete(["u1/entities/session/s/g"])
    with SQLiteChatMessageHistory.factory(path) as histories:
        histories("s1", "u1").clear()
        histories("s1", "u1").add_user_message("hello again")
        assert PreferenceMemory(histories, "s1", user_id="u1").remove("a secret") == 1
    keys.mdelete([key for key in keys.yield_keys(prefix="u1/") if key.startswith("u1/key")])
    page = read_back(memkit, path, "--user", "u1")
    assert "hello again" in page.text
    assert "secret" not in page.text


def test_a_description_holds_with_its_facts_only(memkit: Memkit, tmp_path: Path) -> None:
    """One that was made from a fact that is gone, or has expired, is not shown."""
    path = tmp_path / "chat.db"
    fill(path, "plain", "u1", "s1")
    keys = SQLiteKeyValueStore(path)
    (row,) = keys.mget(["u1/entities/fact/s/g/f1"])
    described = {**(row or {}), "text": "made of both", "facts": ["f1", "f2"]}
    past = (datetime.now(UTC) - timedelta(1)).isoformat()
    keys.mset([("u1/entities/description/d", described)])
    keys.mset([("u1/entities/fact/s/g/f2", {**(row or {}), "text": "too old", "expires_at": past})])
    page = read_back(memkit, path, "--user", "u1")
    assert not {"made of both", "too old"} & set(page.texts)
    keys.mset([("u1/entities/fact/s/g/f2", {**(row or {}), "text": "in time", "expires_at": None})])
    assert {"made of both", "in time"} <= set(read_back(memkit, path, "--user", "u1").texts)


@pytest.mark.parametrize("days", [1, 62, 63, 900, 20_000])
def test_charts(memkit: Memkit, tmp_path: Path, days: int) -> None:
    """Every turn stands in one of at most 62 bars, however long the time is."""
    begin = datetime(1970, 1, 2, tzinfo=UTC)
    clock = [begin]
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", now=lambda: clock[0]) as histories:
        for i, day in enumerate((0, 0, days // 2, days - 1)):
            clock[0] = begin + timedelta(days=day)
            histories(f"s{i % 2}").add_messages([HumanMessage("Hi"), AIMessage("Ho")])
    page = read_back(memkit, "chat.db")
    widths = [int((a["viewbox"] or "").split()[2]) for _, a in page.tags if a.get("class") == "chart"]
    assert len(widths) == 2
    assert all(1 <= width <= 62 for width in widths)
    turns = page.text.partition("As a table")[2].partition("conversations begun")[0]
    assert sum(int(n) for n in re.findall(r"\d{4}-\d\d-\d\d (\d+)", turns)) == 4
    assert "Conversations without a user" in page.text


def test_the_newest_are_listed_and_all_are_counted(memkit: Memkit, tmp_path: Path) -> None:
    """Of more than 200 conversations the newest 200 stand in the list, and the page says how many others there are."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        for i in range(205):
            histories(f"s{i}", "u1").add_user_message(f"question {i}")
    page = read_back(memkit, "chat.db", "--user", "u1")
    listed = re.findall(r"First question question (\d+)|first question question (\d+)", page.text)
    assert len(listed) == 200
    assert "5 older conversations are counted, and not listed." in page.text
    assert "question 204" in page.text
    assert "question 4 " not in page.text


def test_texts_are_not_held(memkit: Memkit, tmp_path: Path) -> None:
    """Of 40 MB of text no more than a page of turns is in memory at a time."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        for i in range(10):
            history = histories(f"s{i}", "u1")
            for _ in range(100):
                history.add_messages([HumanMessage("Hello"), AIMessage("x" * 40_000)])
    tracemalloc.start()
    read_back(memkit, "chat.db", "--user", "u1")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15e6


def test_a_file_that_is_there(memkit: Memkit, full: Path) -> None:
    """It is replaced after a question only, or with --yes, at once and for its owner's eyes; a database never is."""
    Path("page.html").write_text("mine")
    for answer in ("n\n", ""):
        done = memkit("report", full, "--user", "u1", "-o", "page.html", input=answer)
        assert (done.exit_code, Path("page.html").read_text()) == (2, "mine")
        assert "nothing was written" in done.stderr
    assert memkit("report", full, "--user", "u1", "-o", "page.html", input="y\n").exit_code == 0
    assert Path("page.html").read_text().startswith("<!DOCTYPE html>")
    assert stat.S_IMODE(Path("page.html").stat().st_mode) == 0o600
    before = full.read_bytes()
    for name in (full, f"{full}-wal"):
        done = memkit("report", full, "--user", "u1", "-o", name, "--yes")
        assert done.exit_code == 2
        assert "would replace it" in done.stderr
    assert full.read_bytes() == before
    assert [path.name for path in full.parent.glob("*.part")] == []


def test_stdout(memkit: Memkit, full: Path) -> None:
    """`-` writes the page to stdout, and the counts to stderr."""
    done = memkit("report", full, "--user", "u1", "-o", "-")
    assert done.exit_code == 0
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert "conversations" in done.stderr


def test_several_places_are_added_up(memkit: Memkit, tmp_path: Path) -> None:
    """Conversations of one file and notes of another make one page; what holds nothing of memkit is refused."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        histories("s1", "u1").add_user_message("Hello")
    KeyValueMemory.factory(SQLiteKeyValueStore(tmp_path / "notes.db"))("s1", "u1").add({"Boat": "Nautilus"})
    page = read_back(memkit, "chat.db", "notes.db", "--user", "u1")
    assert "Nautilus" in page.text
    assert "chat.db, notes.db" in page.text
    Path("other.txt").write_text("text")
    done = memkit("report", "chat.db", "other.txt", "--user", "u1", "-o", "other.html")
    assert (done.exit_code, Path("other.html").exists()) == (2, False)
    assert "holds nothing of memkit" in done.stderr


def test_damage_is_told(memkit: Memkit, tmp_path: Path) -> None:
    """Damaged messages are left out, and the page and the exit code say so."""
    path = tmp_path / "chat.db"
    with SQLiteChatMessageHistory.factory(path) as histories:
        histories("s1", "u1").add_messages([HumanMessage("sound"), AIMessage("sound")])
        histories("s1", "u1").add_user_message("damaged")
        store: Any = histories.turn_store
        with store._database.connection() as connection:
            connection.execute("""UPDATE turns SET messages = '[{"role": "alien"}]' WHERE seq = 2""")
            connection.commit()
    done = memkit("report", path, "--user", "u1", "-o", "page.html")
    assert done.exit_code == 1
    assert "damaged and left out" in done.stderr
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    assert "1 turns or messages are damaged and left out." in page.text
    assert "sound" in page.text


def test_nothing_of_the_user(memkit: Memkit, full: Path) -> None:
    """A user of whom nothing is stored has a page that says so with zeros."""
    page = read_back(memkit, full, "--user", "nobody")
    assert "0 Turns" in page.text or "Turns" not in page.text
    assert "u1" not in page.text


RECALLED = {"memory": "vector", "score": 0.5, "about": "Nemo", "source": "session s1", "date": None}
TRACE = {
    "v": 1,
    "calls": [
        {"purpose": "summary", "model": "m", "seconds": 0.5, "usage": None, "tokens": {"history": 50}},
        {
            "purpose": "answer", "model": "m", "seconds": 1.25, "usage": {"input_tokens": 90, "output_tokens": 7},
            "tokens": {"system": 10, "history": 30, "notes": 20, "input": 5, "tools": 15},
        },
    ],
    "recalled": [RECALLED],
}  # fmt: skip


def test_traces_are_summed_up() -> None:
    """Tokens by part, calls by purpose, and how often a record was recalled, with its best score."""
    found = report.Findings(datetime.now(UTC))
    for score in (0.5, 0.75, None):
        record = {**RECALLED, "score": score}
        report.read_trace(found, {**TRACE, "recalled": [record]})
    report.read_trace(found, {})
    assert found.total["traces"] == 3
    assert {part: n for part, n in found.given.items() if n} == {
        "system": 30, "history": 240, "notes": 60, "input": 15, "tools": 45,
    }  # fmt: skip
    assert found.calls == {"summary": [3, 150, 0, 0, 1.5], "answer": [3, 240, 270, 21, 3.75]}
    assert found.recalled == {("vector", "Nemo", "session s1"): 3}
    assert found.scores == {("vector", "Nemo", "session s1"): 0.75}
    text = Page("".join(body for _, body in report.sections_of(found))).text
    assert "vector Nemo session s1 3 0.75" in text
    assert "higher is better, comparable within one memory" in text
    assert "answer 3 240 270 21 3.8" in text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", HOSTILE, "answer", "1e5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*TRACE, HOSTILE]), inner, max_size=3),
    max_leaves=10,
)
CALL = st.dictionaries(
    st.sampled_from(["purpose", "model", "seconds", "usage", "tokens"]), VALUES
) | st.fixed_dictionaries({"tokens": st.dictionaries(st.sampled_from(report.PARTS), VALUES)})
RECORD = st.dictionaries(st.sampled_from(["memory", "score", "about", "source", "date"]), VALUES)


@given(st.fixed_dictionaries({}, optional={"calls": VALUES | st.lists(CALL), "recalled": VALUES | st.lists(RECORD)}))
def test_a_trace_is_data(trace: dict[str, Any]) -> None:
    """Whatever a stored trace holds, it breaks nothing, and stays text."""
    found = report.Findings(datetime.now(UTC))
    report.read_trace(found, trace)
    found.total["turns"] = 1
    markup = "".join(body for _, body in report.sections_of(found))
    page = Page(markup)
    assert {tag for tag, _ in page.tags} <= set(TAGS.split())
    assert not UNSEEN.search(markup)
