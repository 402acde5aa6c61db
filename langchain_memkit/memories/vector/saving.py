"""Rounds into the store: embedded once, stored once, refused if their session was cleared meanwhile."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from langchain_core.documents import Document

from langchain_memkit._sync import Step, call_user_function, cpu_bound
from langchain_memkit.base import value_or_kind
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, HistoryReadError, HistoryWriteError
from langchain_memkit.memories.transcripts import Stretch
from langchain_memkit.memories.vector.core import Core
from langchain_memkit.memories.vector.plan import Known, Part, needs_index, parts_of, rest_of
from langchain_memkit.memories.vector.rounds import (
    Round,
    closed,
    documents_of,
    is_small_talk,
    lines_of_document,
    placed,
    rounds_of,
)
from langchain_memkit.scoring.index import Begun, digest_of

__all__ = ["begin", "micros", "same", "save", "write"]

logger = logging.getLogger("langchain_memkit")

SHORT = 2000  # characters that are not worth a thread
TRIES = 10  # of a turn that goes on with a round which others go on with at the same time


async def save(core: Core, user_id: str, session_id: str, stretch: Stretch, looked: Any = None) -> None:
    """Stores what is new of a turn; what goes on with a stored round is added to it.

    Args:
        core: The options.
        user_id: Whose.
        session_id: The conversation.
        stretch: The turn.
        looked: What the session was like when the turn was loaded: nothing is read then, unless that has changed.
    """
    if core.read_only:
        return

    def drafted() -> tuple[list[Round], list[list[Document]]]:
        rounds = [r._replace(expires_at=core.expiry(r.at, r.expires_at)) for r in rounds_of([stretch], core.now())]
        return rounds, [documents_of(r, user_id, session_id, micros(r.at), core.splitter) for r in rounds]

    contents = [message.content for message in stretch.messages]
    long = not all(isinstance(content, str) for content in contents) or sum(map(len, contents)) > SHORT
    rounds, drafts = await cpu_bound(drafted, long=long)
    if not rounds:
        return
    # what the first look was told: a forget after that concerns all that follow
    since: str | None = None if looked is None else looked.session.generation
    for left in reversed(range(TRIES)):
        try:
            texts, messages = [d for draft in drafts for d in draft], _messages(rounds)
            begun: Begun | None = _known(core, looked, texts)
            looked = None
            if begun is None:
                begun = await begin(core, user_id, session_id, texts, messages, since)
            since = since or begun.generation
            documents, expected = await _new(core, (user_id, session_id), rounds, drafts, begun)
        except HistoryReadError as error:
            msg = f"nothing of the turn was stored, since what is stored cannot be read: {error}"
            raise HistoryWriteError(msg) from error
        try:
            alive = await write(core, user_id, session_id, documents, begun, expected)
        except HistoryConflictError:  # somebody else went on with the same round
            if not left:
                raise
            continue
        if not alive:
            logger.warning("a session was cleared while a turn of it was saved: vector memory does not keep that turn")
        return


async def _new(
    core: Core, place: tuple[str, str], rounds: Sequence[Round], drafts: Sequence[Sequence[Document]], begun: Begun
) -> tuple[list[Document], dict[str, str]]:
    """Records to store, and the digests of stored ones that are changed."""
    last, lines = begun.last, [line for round_ in rounds for line in round_.lines]
    known = Known()
    known.read(begun.records.values())
    known.read([last] if last is not None else [])
    if needs_index(lines, begun, known):
        index = await Step(lambda: core.store.index(place[0]), lambda: core.store.aindex(place[0]))
        with index.lock:
            known.look(index.entries, place[1])
    ids = [draft[0].metadata["round_id"] for draft in drafts]
    documents: list[Document] = []
    for name, round_, draft in zip(ids, rounds, drafts, strict=True):
        if any(line.message for line in round_.lines) and (rest := rest_of(draft, begun.records)):
            known.hold(name, round_.lines)
            documents += rest
    parts = parts_of(rounds, ids, last, begun.records, known)
    expected: dict[str, str] = {}
    position = max(micros(rounds[0].at), begun.position + 1)
    waiting = last if last is not None and last.metadata.get("open") else None
    for i, part in enumerate(parts):
        round_ = rounds[0]._replace(lines=tuple(part.lines), closed=i + 1 < len(parts))
        end = None if part.round_id is None else await _end_of(core, place, part, last)
        if end is not None:
            documents += documents_of(round_, *place, position, core.splitter, last=end)
            expected[end.id or ""] = digest_of(end.page_content)
            continue
        if part.round_id is None and i == 0 and waiting is not None:  # its answer will not come
            documents.append(closed(waiting))
            expected[waiting.id or ""] = digest_of(waiting.page_content)
        if not part.again and len(parts) == len(rounds) and round_.lines == rounds[i].lines:
            documents += placed(drafts[i], position + len(documents))
            continue
        salt = str(position) if part.again else ""
        documents += documents_of(round_, *place, position + len(documents), core.splitter, salt=salt)
    return documents, expected


async def _end_of(core: Core, place: tuple[str, str], part: Part, last: Document | None) -> Document | None:
    """The last record of the round that a part goes on with; None if somebody has deleted it meanwhile."""
    if last is not None and part.round_id == (last.metadata.get("round_id") or last.id):
        return last
    index = await Step(lambda: core.store.index(place[0]), lambda: core.store.aindex(place[0]))
    with index.lock:
        mine = [entry for entry in index.entries if entry.round_id == part.round_id]
    if not mine:
        return None
    end = max(mine, key=lambda entry: entry.position).id
    return (await core.documents(place[0], [end])).get(end)


def _known(core: Core, looked: Any, documents: Sequence[Document]) -> Begun | None:
    """As `begin`, from what the turn found when it was loaded; None if it has to be looked up."""
    if looked is None:
        return None
    digests = {digest_of(document.page_content) for document in documents}
    return core.store._begun(looked, digests, [document.id for document in documents if document.id])  # type: ignore[no-any-return]  # a store is untyped


def _messages(rounds: Sequence[Round]) -> list[str] | None:
    """Ids of the messages of a turn that begins a round; None for one that may go on with a stored one."""
    if rounds[0].lines[0].role != "human":
        return None
    return [line.message for round_ in rounds for line in round_.lines if line.message]


async def begin(
    core: Core,
    user_id: str,
    session_id: str,
    documents: Sequence[Document],
    messages: Sequence[str] | None = None,
    since: str | None = None,
) -> Begun:
    """What is stored of a session, and of what is to be stored; see `begin` of the stores."""
    store = core.store
    digests = list({digest_of(document.page_content) for document in documents})
    ids = [document.id for document in documents if document.id]
    arguments = (user_id, session_id, digests, ids, messages, since)
    return await Step(lambda: store.begin(*arguments), lambda: store.abegin(*arguments))


async def write(
    core: Core,
    user_id: str,
    session_id: str,
    documents: Sequence[Document],
    begun: Begun,
    expected: Mapping[str, str],
) -> bool:
    """Embeds and stores records; returns whether the session is still the one that was begun.

    None at all: they are stored, but whoever stored them may have been killed before he told others. So these are told.
    """
    store = core.store
    worth = [_worth_embedding(document) for document in documents]
    vectors: list[Any] = [
        begun.vectors.get(digest_of(d.page_content)) if needed and begun.vectors else None
        for d, needed in zip(documents, worth, strict=True)
    ]
    new = [i for i, needed in enumerate(worth) if needed and vectors[i] is None]
    if new:
        texts = [documents[i].page_content for i in new]
        embedded = await Step(lambda: store.embed(texts), lambda: store.aembed(texts))
        for i, vector in zip(new, embedded, strict=True):
            vectors[i] = vector
    await _rate(core, documents)
    arguments = (user_id, session_id, begun.generation, documents, vectors)
    given: dict[str, Any] = {"expected": expected}
    if begun.state is not None:  # only stores of ours tell one
        given["state"] = begun.state
    alive: bool = await Step(lambda: store.write(*arguments, **given), lambda: store.awrite(*arguments, **given))
    if alive and (most := core.max_records) is not None:
        kept = [document.id for document in documents]
        await Step(lambda: store.evict(user_id, most, kept), lambda: store.aevict(user_id, most, kept))
    return alive


async def _rate(core: Core, documents: Sequence[Document]) -> None:
    """Asks for the importance of finished rounds: all at once where the function has a `batch`."""
    finished = [document for document in documents if not document.metadata.get("open")]
    if core.importance is None or not finished:
        return
    texts = [document.page_content for document in finished]
    batch: Any = getattr(core.importance, "batch", None)
    if batch is not None:
        values = await Step(lambda: batch(texts), lambda: core.importance.abatch(texts))
    else:
        values = []
        for text in texts:
            values.append(await call_user_function(core.importance, text, name="importance"))
    for document, value in zip(finished, values, strict=True):
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            msg = f"importance must return a number from 1 to 10; got {value_or_kind(value)}. Nothing was stored."
            raise ConfigurationError(msg)
        document.metadata["importance"] = float(value)


def _worth_embedding(document: Document) -> bool:
    return not document.metadata.get("open") and not is_small_talk(lines_of_document(document))


def same(stored: Document | None, document: Document) -> bool:
    """Whether there is a stored record that says what another one does, finished or not."""
    if stored is None:
        return False
    waiting = [bool(d.metadata.get("open")) for d in (stored, document)]
    return stored.page_content == document.page_content and waiting[0] == waiting[1]


def micros(at: datetime) -> int:
    """A time as a position: what is said later stands behind."""
    return int(at.timestamp() * 1_000_000)
