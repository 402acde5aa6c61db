"""`memkit report`: one page for a browser about a user's conversations and what was derived from them.

The page is one file without scripts, and its policy forbids to load anything. Turns are read in order, a page at a
time, and summed up; texts are kept of the newest conversations only. Nothing that is stored is trusted: `html` escapes
every value, and `known` takes no type for granted.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, tzinfo
from importlib.resources import files
from itertools import accumulate, islice
from string import Template
from typing import Any, TypeVar
from urllib.parse import quote

import langchain_memkit
from langchain_memkit._progress import progress_bar
from langchain_memkit._sync import drive
from langchain_memkit._timezones import in_timezone, timezone_name
from langchain_memkit.base import SessionInfo, check_id, user_prefix
from langchain_memkit.cli.output import Output, writable
from langchain_memkit.cli.purge import SHELVES, open_stores
from langchain_memkit.cli.targets import Target
from langchain_memkit.messages.text import message_text, printable_html, role_of
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.migrate.jsonl import open_for_writing
from langchain_memkit.stores.history import HistoryFactory, TurnHistory
from langchain_memkit.stores.history_rows import SessionScope
from langchain_memkit.stores.key_value import KeyValueStore

LISTED, ROWS, FACTS, BARS = 200, 100, 5, 62  # conversations; rows of other lists; facts of an entity; bars of a chart
TITLE, TEXT, SUMMARY = 120, 300, 4000  # characters that are shown
KEYS = 500  # read at once
MOST = 10**6  # facts of an entity that are counted
CHARTS = ("turns", "conversations begun")
UNITS = {1: "by day", 7: "by week"}
SHORTEST = 14  # days that a chart shows at least
# As in `TurnTrace`; each is also the class of its colour.
PARTS = ("system", "summary", "history", "notes", "documents", "prompt", "input", "tools")
ROLES = {"human": "the user", "ai": "the model", "tool": "tool results"}
SPEAKERS = {"the user": "input", "the model": "history", "tool results": "tools", "others": "system"}  # and colours
FIELDS = ("key", "title", "surface", "label", "session", "session_id")
TOTALS = ("conversations", "turns", "messages", "tokens", "entities", "facts", "key-value notes", "preferences")
NAMES = "Names as they were written, with the newest sentences that hold them. "
WISHES = "How the user said they want to be answered, newest first. Of two wishes of one kind the newer holds. "
RECALLED = (
    "How often records of memories and documents were shown to a model. The score says how well a record fits the "
    "question: higher is better, comparable within one memory. "
)
UNTRACED = "No turn has a stored trace, so what models were given, and what was recalled, is not known."
DAMAGED = "{} turns or messages are damaged and left out."

T = TypeVar("T", str, dict[str, Any], list[Any])
Row = Mapping[str, Any]
Said = tuple[datetime, str, str]  # when, what, and in which session
SAID = ("at", "said", "in session")


@dataclass
class Findings:
    """Everything that the page shows; what has expired at the time of the report is left out."""

    now: datetime  # in the time zone in which days and times are shown
    total: Counter[str] = field(default_factory=Counter)
    conversations: list[Html] = field(default_factory=list)
    days: dict[str, Counter[date]] = field(default_factory=lambda: {name: Counter() for name in CHARTS})
    said: Counter[str] = field(default_factory=Counter)  # tokens by who said it
    given: Counter[str] = field(default_factory=Counter)  # tokens given to models, by part
    calls: dict[str, list[float]] = field(default_factory=dict)  # sums by purpose, in the order of the table
    recalled: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # memory, about, source
    scores: dict[tuple[str, str, str], float] = field(default_factory=dict)  # the best of each
    facts: Counter[str] = field(default_factory=Counter)  # by name
    names: dict[str, tuple[str, str]] = field(default_factory=dict)  # as it was written, and its type
    newest: dict[str, list[Said]] = field(default_factory=lambda: defaultdict(list))  # facts, by name
    described: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, Html]] = field(default_factory=list)
    wishes: list[Said] = field(default_factory=list)
    sizes: list[tuple[str, str, int]] = field(default_factory=list)  # what, where, how many
    characters: Counter[tuple[str, str]] = field(default_factory=Counter)  # of text, by what and where

    def local(self, at: datetime) -> datetime:
        """Return a time in the zone of the page."""
        return in_timezone(at, self.now.tzinfo or UTC)


def write_report(
    output: Output,
    user_id: str | None,
    places: Sequence[Target],
    file: str,
    *,
    zone: tzinfo = UTC,
    progress: bool = False,
) -> int:
    """Write the page about a user to a file; return 1 if something could not be read.

    Args:
        output: What the command prints to.
        user_id: The user; None for what was stored without one.
        places: The files and databases to read; what they hold is added up.
        file: The page to write; `-` is stdout.
        zone: The time zone of the user, in which days and times are shown.
        progress: Whether to draw a progress bar.

    Raises:
        ConfigurationError: A place holds nothing of memkit, or the file cannot be written.
        HistoryReadError: A place cannot be read; nothing was written.
    """
    owner = "" if user_id is None else check_id(user_id, "user_id")
    found = Findings(datetime.now(zone))
    with ExitStack() as opened:
        targets = [opened.enter_context(writable(file, place)) for place in places]
        parts = [part for place in places for part in open_stores(place, owner, output, opened)]
        found.sizes = [(what, part.where, n) for part in parts for what, n in part.found(owner).items()]
        found.sizes += [("bytes of the file", each.label, each.path.stat().st_size) for each in places if each.is_file]
        stores = [(part.where, part.store) for part in parts if isinstance(part.store, KeyValueStore)]
        histories = [(part.where, part.store) for part in parts if isinstance(part.store, HistoryFactory)]
        newest = [(where, info) for where, make in histories for info in make.list_sessions(user_id, limit=LISTED)]
        titles = {(where, info.session_id): info.title for where, info in newest}
        listed = [(where, make, make.turn_store.sessions(owner)) for where, make in histories]
        sessions = [(info, where, make) for where, make, each in listed for info in make.turn_store.run(each)]
        sessions.sort(key=lambda each: each[0].updated_at or datetime.min.replace(tzinfo=UTC), reverse=True)
        with progress_bar(progress, "reading", sum(info.turns for info, *_ in sessions)) as advance:
            for i, (info, where, make) in enumerate(sessions):
                advance(info.turns)
                try:
                    history = make(info.session_id, user_id)
                except (TypeError, ValueError):  # an id of another package that is invalid here
                    found.total["damaged"] += info.turns
                    continue
                info = replace(info, title=titles.get((where, info.session_id), ""))
                entry = _read_session(found, info, where, history, [store for _, store in stores if i < LISTED])
                found.conversations += [entry] if i < LISTED else []
            for where, store in stores:
                _read_keys(found, where, store, user_prefix(owner))
            for _, make in histories:
                if owner and make.turn_store.keeps_index:
                    _read_memories(found, make, owner)
        found.total.update({"tokens": found.said.total(), "entities": len(found.facts), "facts": found.facts.total()})
        with open_for_writing(targets[0]) as page:
            of = "without a user" if user_id is None else f"of {user_id}"
            page.write(_page(found, of, ", ".join(output.scrubbed(place.label) for place in places)))
    output.table(("reported", "count"), [(name, found.total[name]) for name in TOTALS])
    if found.total["damaged"]:
        output.fault(DAMAGED.format(found.total["damaged"]))
    return int(found.total["damaged"] > 0)


# -- what is found


def _read_session(
    found: Findings, info: SessionInfo, where: str, history: TurnHistory, stores: Sequence[KeyValueStore]
) -> Html:
    """Add a conversation to the sums; return its entry in the list, with the summary beside it or in a store."""
    tokens, dates, question, answer, messages, epoch = Counter[str](), list[datetime](), "", "", 0, 0
    for turn in history.iter_turns():
        found.total.update({"turns": 1, "damaged": len(turn.problems)})
        messages, epoch = messages + len(turn.messages), turn.epoch
        if turn.created_at:
            dates = [*dates[:1], found.local(turn.created_at)]
            found.days["turns"][dates[-1].date()] += 1
        for message, n in zip(turn.messages, turn.tokens, strict=False):
            text = message_text(message)
            tokens[ROLES.get(role_of(message), "others")] += n
            found.characters["turns", where] += len(text)
            question = question or (text[:TEXT] if is_user_message(message) else "")
            answer = text[:TEXT] if message.type == "ai" and text else answer
        read_trace(found, known(dict, getattr(turn, "trace", None)))
    found.total.update({"conversations": 1, "messages": messages})
    found.said.update(tokens)
    found.days["conversations begun"].update(at.date() for at in dates[:1])
    covered, summary = 0.0, ""
    prefix = f"{user_prefix(history.user_id or '')}summary/{quote(info.session_id, safe='')}/"
    for _, row in (each for store in stores for each in _rows(store, prefix, found.now)):
        # A summary of another epoch is one of erased turns.
        if known(dict, row.get("position")).get("epoch") == epoch and _number(row.get("covered")) >= covered:
            covered, summary = _number(row.get("covered")), known(str, row.get("text"))[:SUMMARY]
    store = history.turn_store
    if store.keeps_summaries:
        beside = store.run(store.summary(SessionScope(history.user_id or "", info.session_id)))
        row = dict(beside.value) if beside else {}
        reached = _number(row.get("covered")) - _number(row.get("leftOut"))
        if reached > covered:
            covered, summary = reached, known(str, row.get("text"))[:SUMMARY]
    told = [("session", info.session_id), ("begun", dates and dates[0]), ("first question", _lines(question))]
    told += [("last answer", _lines(answer)), ("summary", _lines(summary))]
    title = info.title or question or info.session_id
    reach = f"summary covers {min(int(covered), messages):,} of {messages:,} messages" if summary else ""
    size = html("{} turns, {} messages, {} tokens", info.turns, messages, tokens.total())
    facts = joined(html("<dt>{}</dt><dd><bdi>{}</bdi></dd>", *each) for each in told if each[1])
    body = html('<dl class="facts">{}</dl>{}', facts, _bar("tokens by who said it", SPEAKERS, tokens))
    return _entry(title, [reach, size, str(dates[-1].date()) if dates else ""], body)


def read_trace(found: Findings, trace: Row) -> None:
    """Add what a stored trace tells of a turn to the sums."""
    found.total["traces"] += bool(trace)
    for call in (known(dict, each) for each in known(list, trace.get("calls"))):
        sizes, usage = known(dict, call.get("tokens")), known(dict, call.get("usage"))
        parts = {part: int(_number(sizes.get(part))) for part in PARTS}
        found.given.update(parts)
        counted = [_number(usage.get(name)) for name in ("input_tokens", "output_tokens")]
        sums = [1, sum(parts.values()), *counted, _number(call.get("seconds"))]
        purpose = known(str, call.get("purpose"))[:TITLE]
        found.calls[purpose] = [a + b for a, b in zip(sums, found.calls.get(purpose, [0] * 5), strict=True)]
    for record in (known(dict, each) for each in known(list, trace.get("recalled"))):
        memory, about, source = (known(str, record.get(name))[:TITLE] for name in ("memory", "about", "source"))
        found.recalled[memory, about, source] += 1
        if record.get("score") is not None:
            best = found.scores.get((memory, about, source), 0)
            found.scores[memory, about, source] = max(_number(record["score"]), best)


def _read_keys(found: Findings, where: str, store: KeyValueStore, prefix: str) -> None:
    """Add what memories keep in a key-value store."""
    begin, described, seen = f"{prefix}entities/session/", dict[str, tuple[str, set[str]]](), set[str]()
    # A fact holds while the generation of its session is there: clearing a session deletes that first.
    live = {key.removeprefix(begin) for key in store.yield_keys(prefix=begin)}
    for shelf, what in SHELVES.items():
        for key, row in _rows(store, prefix + shelf, found.now):
            kind, _, path = key.partition("/")
            generation, _, fact = path.rpartition("/")
            stored, text = _when(row.get("at")), known(str, row.get("text"))
            at = stored and found.local(stored)
            name, title, surface, label, *sessions = (known(str, row.get(each))[:TEXT] for each in FIELDS)
            if not text or (kind == "fact" and generation not in live):
                continue
            found.characters[what, where] += len(text)
            if kind == "description":
                described[name] = text[:SUMMARY], set(map(str, known(list, row.get("facts")))) or {""}
            elif kind == "fact" and at and name:
                seen |= {fact} if described else set()  # keys are sorted: descriptions come first
                found.facts[name] += 1
                found.names[name] = surface or name, label
                found.newest[name] = sorted([*found.newest[name], (at, text[:TEXT], "".join(sessions))])[-FACTS:]
            elif kind == "entry":
                found.total["key-value notes"] += 1
                found.notes += [(title, _lines(text[:TEXT]))] if len(found.notes) < ROWS else []
            elif kind == "line" and at:
                found.total["preferences"] += 1
                found.wishes.append((at, text[:TEXT], "".join(sessions)))
    # A description holds while every fact that it was made from is there.
    found.described |= {name: text for name, (text, facts) in described.items() if facts <= seen}


def _read_memories(found: Findings, histories: HistoryFactory[Any], user_id: str) -> None:
    """Add what memories keep in the rows of turns; nothing is read for names, and nothing stored."""
    from langchain_memkit.memories.preferences import PreferenceMemory

    for line in PreferenceMemory(histories, "-", user_id=user_id, read_only=True).preferences():
        found.total["preferences"] += 1
        found.wishes.append((found.local(line.at), line.text[:TEXT], line.session_id))
    try:
        from langchain_memkit.memories.entity.entity_log import EntityLog
        from langchain_memkit.memories.entity.listing import list_entities
    except ImportError:  # who has not installed what finds names has none
        return
    log = EntityLog(histories, lambda text: [], {}, read_only=True, now=lambda: found.now, cache_bytes=0)
    held = drive(log.look(user_id, most=0))
    for entity in list_entities(held.book, UTC, MOST):
        name = entity.name
        found.facts[name] += len(entity.facts)
        found.names[name] = name, entity.type
        shown = [(found.local(fact.created_at), fact.text[:TEXT], fact.session_id) for fact in entity.facts[-FACTS:]]
        found.newest[name] = sorted([*found.newest[name], *shown])[-FACTS:]
        if entity.description:
            found.described[name] = entity.description[:SUMMARY]


def _rows(store: KeyValueStore, prefix: str, now: datetime) -> Iterator[tuple[str, Row]]:
    """Yield the rows under a prefix that have not expired, each with the part of its key after the prefix."""
    keys = store.yield_keys(prefix=prefix)
    while some := list(islice(keys, KEYS)):
        for key, value in zip(some, store.mget(some), strict=True):
            row = known(dict, value)
            if all(at is None or at > now for at in (_when(row.get(name)) for name in ("expires_at", "expiresAt"))):
                yield key.removeprefix(prefix), row


def known(kind: type[T], value: object) -> T:
    """Return a stored value if it is of the type that it should have, else an empty one."""
    return value if isinstance(value, kind) else kind()


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) and 0 <= value < 1e15 else 0


def _when(value: object) -> datetime | None:
    with suppress(ValueError):
        at = datetime.fromisoformat(known(str, value))
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return None


# -- the page


class Html(str):
    """Markup that may stand in the page as it is; every other text is escaped."""

    __slots__ = ()


def html(template: str, *values: object) -> Html:
    """Fill values into a template of markup, escaped, without control characters and direction marks.

    Example:
        >>> html("<b>{}</b>: {}", "<script>", html("<i>{}</i>", 1000))
        '<b>&lt;script&gt;</b>: <i>1,000</i>'
    """
    return Html(template.format(*(v if isinstance(v, Html) else printable_html(_shown(v)) for v in values)))


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value or "")


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Join markup."""
    return Html(between.join(parts))


def _lines(text: object) -> Html:
    # Isolated: text from right to left does not reorder what stands around it.
    return joined((html("<bdi>{}</bdi>", line) for line in known(str, text).splitlines()), "<br>")


def _page(found: Findings, of: str, places: str) -> str:
    template = files("langchain_memkit.cli").joinpath("report.html").read_text("utf-8")
    style = template.partition("<style>")[2].partition("</style>")[0]
    sections = [(head, body) for head, body in sections_of(found) if body]
    return Template(template).substitute(
        digest=f"sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}",
        title=html("Conversations {}", of),
        about=html("<bdi>{}</bdi>, {} {}", places, found.now, timezone_name(found.now)),
        zone=html("{}", timezone_name(found.now)),
        version=html("{}", getattr(langchain_memkit, "__version__", "")),
        links=joined(html('<a href="#{}">{}</a>', head, head) for head, _ in sections),
        tiles=joined(html("<div><dt>{}</dt><dd>{}</dd></div>", n, found.total[n]) for n in TOTALS if found.total[n]),
        damaged=html(f"<p>{DAMAGED}</p>", found.total["damaged"]) if found.total["damaged"] else "",
        sections=joined(html('<section id="{}"><h2>{}</h2>{}</section>', h, h, body) for h, body in sections),
    )


def sections_of(found: Findings) -> Iterator[tuple[str, Html]]:
    """Yield the head and the content of each section; the content is empty if there is nothing to show."""
    yield "Time", joined(map(_chart, found.days, found.days.values(), ("history", "documents")))
    yield "Tokens", _tokens(found)
    older = found.total["conversations"] - len(found.conversations)
    more = html('<p class="muted">{} older conversations are counted, and not listed.</p>', older) if older else Html()
    yield "Conversations", joined([*found.conversations, more])
    scores = {key: f"{score:.2f}" for key, score in found.scores.items()}
    recalled = [(*key, n, scores.get(key)) for key, n in found.recalled.most_common(ROWS)]
    heads = ("memory", "about", "from", "#times", "#best score")
    yield "Recalled", _table(_first(RECALLED, len(found.recalled)), heads, recalled)
    entities = [_entity(found, name, n) for name, n in found.facts.most_common(ROWS)]
    note = html('<p class="muted">{}</p>', _first(NAMES, len(found.facts)))
    yield "Entities", joined([note, *entities] if entities else [])
    yield "Preferences", _table(_first(WISHES, len(found.wishes)), SAID, sorted(found.wishes, reverse=True)[:ROWS])
    yield "Notes", _table(_first("", found.total["key-value notes"]), ("title", "text"), found.notes)
    sizes = [(what, where, n, found.characters[what, where]) for what, where, n in found.sizes if n]
    yield "Sizes", _table("", ("what", "where", "#records", "#characters of text"), sizes)


def _first(note: str, total: int) -> str:
    return f"{note}{ROWS} of {total:,} are listed." if total > ROWS else note


def _chart(what: str, days: Counter[date], colour: str) -> Html:
    """Draw a bar for each day or week or so, at most 62 of them."""
    if not days:
        return Html()
    first, span = min(days), max((max(days) - min(days)).days + 1, SHORTEST)
    size = next((size for size in (1, 7, 30, 365) if span <= BARS * size), span // BARS + 1)
    bars = [0] * -(-span // size)
    for day, n in days.items():
        bars[(day - first).days // size] += n
    dates = [str(date.fromordinal(first.toordinal() + i * size)) for i in range(len(bars))]
    heights = [100 * n / max(bars) for n in bars]
    rect = '<rect class="{}" x="{}" y="{}" width=".8" height="{}"/>'
    drawn = joined(html(rect, colour, i + 0.1, 100 - height, height) for i, height in enumerate(heights))
    head = f"{what} {UNITS.get(size, f'in {size} days')}, at most {max(bars):,}"
    rows = [row for row in zip(dates, bars, strict=True) if row[1]]
    return html(
        '<h3>{}</h3><svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} 100" preserveAspectRatio="none">{}'
        '</svg><div class="axis"><span>{}</span><span>{}</span></div>{}',
        *(head, what, str(len(bars)), drawn, dates[0], dates[-1]),
        _entry("As a table", [], _table("", ("from", f"#{what}"), rows)),
    )


def _bar(label: str, colours: Mapping[str, str], sizes: Counter[str]) -> Html:
    """Draw one bar of the parts, and a legend that says it in words."""
    shown = [(name, colour, sizes[name]) for name, colour in colours.items() if sizes[name]]
    begins, whole = [0, *accumulate(n for *_, n in shown)], sum(n for *_, n in shown)
    rect = '<rect class="{}" x="{}%" width="{}%" height="100%"/>'
    starts = zip(shown, begins, strict=False)
    drawn = joined(html(rect, colour, 100 * at / whole, 100 * n / whole) for (_, colour, n), at in starts)
    item = '<li><i class="{}"></i>{} <b>{}</b>, {} %</li>'
    legend = joined(html(item, colour, name, n, str(round(100 * n / whole))) for name, colour, n in shown)
    bar = '<svg class="bar" role="img" aria-label="{}">{}</svg><ul class="legend">{}</ul>'
    return html(bar, label, drawn, legend) if shown else Html()


def _tokens(found: Findings) -> Html:
    said = html("<h3>What was said, by whom</h3>{}", _bar("tokens by who said it", SPEAKERS, found.said))
    if not found.total["traces"]:
        return html('{}<p class="muted">{}</p>', said, UNTRACED) if found.total["turns"] else Html()
    given = _bar("tokens given to models, by part", {part: part for part in PARTS}, found.given)
    most = sorted(found.calls.items(), key=lambda call: call[1], reverse=True)
    heads = ("calls for", "#calls", "#tokens given", "#provider: in", "#provider: out", "#seconds")
    note = f"From the stored traces of {found.total['traces']:,} turns."
    calls = _table(note, heads, [(purpose, *sums) for purpose, sums in most[:ROWS]])
    return html("{}<h3>What models were given, by part</h3>{}<h3>Calls of models</h3>{}", said, given, calls)


def _entity(found: Findings, name: str, n: int) -> Html:
    described = html("<blockquote>{}</blockquote>", _lines(found.described[name])) if name in found.described else ""
    (surface, label), facts = found.names[name], _table("", SAID, found.newest[name][::-1])
    return _entry(surface, [label, html("{} facts", n)], html("{}{}", described, facts))


def _entry(title: str, told: Iterable[object], body: Html) -> Html:
    """Lay out something that opens to show more."""
    small = joined(html("<small>{}</small>", each) for each in told if each)
    entry = "<details><summary><strong><bdi>{}</bdi></strong>{}</summary><div>{}</div></details>"
    return html(entry, title[:TITLE], small, body)


def _table(note: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """Lay out rows; a `#` before its head puts a column of numbers at the right."""
    kinds = [Html(' class="n"' if head[0] == "#" else "") for head in heads]
    lines = [[html("<td{}>{}</td>", *each) for each in zip(kinds, row, strict=True)] for row in rows]
    head = joined(html("<th{}>{}</th>", kind, head.strip("#")) for kind, head in zip(kinds, heads, strict=True))
    body = joined(html("<tr>{}</tr>", joined(line)) for line in lines)
    table = '<p class="muted">{}</p><div class="scroll" tabindex="0"><table><thead><tr>{}</tr></thead>{}</table></div>'
    return html(table, note, head, body) if rows else Html()
