"""Writing records: written once for both call styles and for every backend."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from langchain_core.documents import Document

from langchain_memkit._sync import adrive, cpu_bound, drive
from langchain_memkit.backends._vectors.backend import Beginning
from langchain_memkit.backends._vectors.embedding import checked
from langchain_memkit.backends._vectors.reading import Reading
from langchain_memkit.backends._vectors.rows import Row, Written, check_ids, record_row, shown_of
from langchain_memkit.backends._vectors.shelf import Looked
from langchain_memkit.base import check_id
from langchain_memkit.scoring.index import Begun

FEW = 50  # records that go into an index without a thread
SHORT = 2000  # characters that are not worth one
NOTHING: Mapping[str, str] = MappingProxyType({})


class Writing(Reading):
    """A store that is written to; see `SQLiteVectorStore` and `MongoDBVectorStore`."""

    def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> Begun:
        """What has to be known of a session before records of it are written.

        Args:
            user_id: Whose.
            session_id: The conversation.
            digests: Of texts that are to be embedded, as `digest_of` makes them.
            ids: Of records of this session that are to be written.
            messages: Ids of the messages that are to be written, if they begin a new round: then the last record may be
                left out where it waits for nothing and says none of this. None: it is always read.
            since: The generation that the first try of the same turn was told, where this is another one: it is
                returned, and if the session was forgotten since, `write` refuses it.

        Returns:
            The session's generation (drawn now if it has none), its last record, the vectors of texts of this user
            that are stored already, and the session's records with these ids.

        Raises:
            TypeError: An id or digest is no string.
            ValueError: An id is empty or malformed.
            HistoryReadError: The store cannot be reached or read.
            HistoryWriteError: A new session could not be stored.
        """
        place = _place(user_id, session_id)
        return drive(self._begin(*place, check_ids(digests), check_ids(ids), messages, since))

    async def abegin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> Begun:
        """Async twin of `begin`."""
        place = _place(user_id, session_id)
        return await adrive(self._begin(*place, check_ids(digests), check_ids(ids), messages, since))

    async def _begin(
        self,
        user_id: str,
        session_id: str,
        digests: list[str],
        ids: list[str],
        messages: Collection[str] | None,
        since: str | None,
    ) -> Begun:
        backend = self._backend
        found: Beginning = await self._step(lambda: backend.begin(user_id, session_id, digests, ids, messages))
        if since is not None:
            found = found._replace(generation=since)
        now = self._now()
        last = [shown.document for shown in shown_of(found.last, now)]
        records = {shown.document.id or "": shown.document for shown in shown_of(found.records, now)}
        vectors = {
            digest: np.frombuffer(vector, "<f4")
            for digest, vector in found.vectors.items()
            if vector and len(vector) % 4 == 0
        }
        position = found.position if isinstance(found.position, int) else 0  # it may be damaged
        return Begun(found.generation, last[0] if last else None, vectors, records, position)

    def _begun(self, looked: Looked, digests: Collection[str], ids: Collection[str]) -> Begun | None:
        """As `begin`, from what is held since a turn looked; None if that is not enough any more. Nothing is read."""
        held, (generation, state), last = looked
        with held.index.lock:
            texts, known = held.texts, [name for name in ids if name in held.index]
            wanted = known if last is None else [*known, last.id]
            vectors = {digest: held.vector_of(digest) for digest in digests}
            if any(name not in texts for name in wanted):
                return None
            shown = {name: texts[name].document(name) for name in wanted}
        records = {name: document for name in known if (document := shown[name]) is not None}
        here = last.stamp if last is not None else 0
        return Begun(
            generation,
            None if last is None else shown[last.id],
            {digest: vector for digest, vector in vectors.items() if vector is not None},
            records,
            0 if last is None else last.position,
            here if state is None else state,
        )

    def write(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Any],
        delete: Collection[str] = (),
        expected: Mapping[str, str] = NOTHING,
        state: int | None = None,
    ) -> bool:
        """Stores records of a session, in place of those with the same ids, and deletes others.

        Args:
            user_id: Whose.
            session_id: The conversation.
            generation: As `begin` told it.
            documents: Records, with their ids, and their user and session in the metadata.
            vectors: One for each, as `embed` or `begin` gave it; None: not embedded.
            delete: Ids of records of this user.
            expected: Digests by id of records of this session that must be stored with that text, as `digest_of` makes
                them: so that nobody's answer is lost where two go on from the same record.
            state: As `begun` told it: records are added only if nobody else added any since. None: in any case.

        Returns:
            Whether the session is still the one that began; if it was forgotten meanwhile, nothing is stored.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is malformed, or a document is of another session.
            ConfigurationError: A vector is none, or of another model.
            MessageEncodeError: A value in the metadata would not come back equal. Nothing was stored.
            HistoryConflictError: A record that was expected is gone or has another text, somebody else added records
                since, or an id belongs to another session. Nothing was stored.
            HistoryWriteError: The store failed; `maybe_stored` says whether the outcome is unknown. Calling again is
                safe.

        Example:
            >>> from langchain_core.documents import Document
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> begun = store.begin("u1", "s1")
            >>> said = Document("human: hello", id="r1", metadata={"user_id": "u1", "session_id": "s1"})
            >>> store.write("u1", "s1", begun.generation, [said], store.embed([said.page_content]))
            True
            >>> [session.session_id for session in store.sessions("u1")], store.forget("u1", "s1")
            (['s1'], 1)
            >>> store.write("u1", "s1", begun.generation, [said], [None])
            False
        """
        place = _place(user_id, session_id)
        work = self._write(*place, generation, documents, vectors, check_ids(delete), _digests(expected), state)
        return drive(work)

    async def awrite(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Any],
        delete: Collection[str] = (),
        expected: Mapping[str, str] = NOTHING,
        state: int | None = None,
    ) -> bool:
        """Async twin of `write`."""
        place = _place(user_id, session_id)
        work = self._write(*place, generation, documents, vectors, check_ids(delete), _digests(expected), state)
        return await adrive(work)

    async def _write(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Any],
        delete: list[str],
        expected: dict[str, str],
        state: int | None,
    ) -> bool:
        check_id(generation, "generation")
        if len(documents) != len(vectors):
            msg = f"there are {len(documents)} documents and {len(vectors)} vectors"
            raise ValueError(msg)
        long = sum(len(document.page_content) for document in documents) > SHORT
        rows: list[Row] = await cpu_bound(lambda: [record_row(d, user_id, session_id) for d in documents], long=long)
        return await self._store(user_id, rows, vectors, delete, (session_id, generation), expected, state)

    async def _store(
        self,
        user_id: str,
        rows: Sequence[Row],
        vectors: Sequence[Any],
        delete: Sequence[str] = (),
        place: tuple[str, str] | None = None,
        expected: Mapping[str, str] = NOTHING,
        state: int | None = None,
    ) -> bool:
        """Rows of a user, each id once, with their vectors."""
        embedded = [i for i, vector in enumerate(vectors) if vector is not None]
        if embedded:
            dims = await self._embedder.known()
            for i, vector in zip(embedded, checked([vectors[i] for i in embedded], dims), strict=True):
                rows[i].vector = None if vector is None else vector.tobytes()
        distinct = list({row.entry.id: row for row in rows}.values())
        removed = [name for name in delete if name not in {row.entry.id for row in distinct}]
        if not distinct and not removed and place is None:
            return True
        written: Written | None = await self._step(
            lambda: self._backend.write(user_id, distinct, removed, place, expected, state)
        )
        if written is None:
            return False
        long = len(rows) > FEW or sum(len(row.text) for row in rows) > SHORT
        await cpu_bound(partial(self._shelf.wrote, user_id, distinct, removed, written), long=long)
        return True

    def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Keeps that records were recalled; an earlier time than the stored one changes nothing.

        Args:
            user_id: Whose.
            ids: Of the records; those that are not there, or another user's, are passed over.
            at: When, aware.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is malformed, or `at` is naive.
            HistoryWriteError: The store failed.
        """
        if names := check_ids(ids):
            self._backend.run(self._backend.touch(check_id(user_id, "user_id"), names, _aware(at)))

    async def atouch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Async twin of `touch`."""
        if names := check_ids(ids):
            await self._backend.arun(self._backend.touch(check_id(user_id, "user_id"), names, _aware(at)))


def _place(user_id: str, session_id: str) -> tuple[str, str]:
    return check_id(user_id, "user_id"), check_id(session_id, "session_id")


def _digests(expected: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(check_ids(expected), (check_id(digest, "digest") for digest in expected.values()), strict=True))


def _aware(at: datetime) -> datetime:
    if at.tzinfo is None:
        msg = "at must be aware, e.g. datetime.now(UTC)"
        raise ValueError(msg)
    return at
