"""Reading and writing a vector store of others: checked, in batches, with errors that say what to do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from math import isfinite
from typing import TypeVar
from weakref import WeakKeyDictionary

from langchain_core.documents import Document
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._sync import Flow, Step, adrive, drive, drive_in_thread
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MemkitError
from langchain_memkit.memories.vector.foreign.dialects import (
    FilterBuilder,
    Wanted,
    belongs,
    dialect_of,
    packed,
    restored,
)

__all__ = ["Access"]

T = TypeVar("T")

BATCH = 500  # documents that are added or deleted at once
PAGE = 1000  # documents that are asked for at first where a store can only search
MOST = 1_000_000  # and at last
ANYTHING = "memory"  # what is searched for where all is wanted: some embedders refuse an empty text
LATELY = 10_000  # documents that are kept for stores without `get_by_ids`

_locks: WeakKeyDictionary[VectorStore, ForkSafeLock] = WeakKeyDictionary()


class Access:
    """What a vector store of others can do for us, as flows.

    Args:
        store: The store.
        filter_builder: See `ForeignStore`.

    Raises:
        ConfigurationError: How the store filters is not known, or it cannot delete.
    """

    def __init__(self, store: VectorStore, filter_builder: FilterBuilder | None) -> None:
        self.store = store
        self.name = type(store).__name__
        self._dialect = dialect_of(store, filter_builder)
        if _lacks(store, "delete") and _lacks(store, "adelete"):
            raise self._cannot_delete()
        self._lock = _locks.setdefault(store, ForkSafeLock()) if self._dialect.serial else None
        # for stores that search and nothing else
        self._lately: OrderedDict[str, Document] | None = OrderedDict() if _lacks(store, "get_by_ids") else None

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow that uses the store and nothing else."""
        if self._lock is None:
            return drive(flow)
        with self._lock:
            return drive(flow)

    async def arun(self, flow: Flow[T]) -> T:
        """Async twin of `run`; a store whose threads must take turns does its work in one."""
        if self._lock is not None:
            return await drive_in_thread(flow, self.run)
        return await adrive(flow)

    async def get(self, ids: Sequence[str]) -> list[Document]:
        """The documents with these ids that are there, in this order."""
        if not ids:
            return []
        store = self.store
        if self._lately is not None:
            return [self._lately[name] for name in ids if name in self._lately]
        step = Step(partial(store.get_by_ids, list(ids)), partial(store.aget_by_ids, list(ids)))
        by_id = {document.id: document for document in map(restored, await self._read(step))}
        return [by_id[name] for name in dict.fromkeys(ids) if name in by_id]

    async def put(self, documents: Iterable[Document]) -> list[str]:
        """Adds documents, which the store embeds, in place of those with the same ids; returns what was not there yet.

        What is there already is never added: FAISS takes the vector before it finds that it knows the id, and gives
        wrong documents from then on.
        """
        wanted = {document.id: document for document in documents if document.id}
        known = {document.id: document for document in await self.get(list(wanted))}
        new = [d for name, d in wanted.items() if name not in known or not _same(known[name], d)]
        await self._delete([d.id for d in new if d.id in known])
        store = self.store
        for i in range(0, len(new), BATCH):
            some = [packed(document) for document in new[i : i + BATCH]]
            ids = [document.id for document in some]
            step = Step(partial(store.add_documents, some, ids=ids), partial(store.aadd_documents, some, ids=ids))
            await self._write(step, "stored")
        self._keep(new)
        return [document.id for document in new if document.id]

    async def remove(self, ids: Iterable[str]) -> int:
        """Deletes documents; those that are not there are no error. Returns how many were."""
        names = list(dict.fromkeys(ids))
        if self._lately is None:
            names = [document.id or "" for document in await self.get(names)]
        await self._delete(names)
        left = await self.get(names)
        if left:
            raise self._still_there()
        return len(names)

    async def page(self, wanted: Wanted, k: int) -> tuple[list[Document], bool]:
        """Documents with this metadata, as many as come, and whether these are all."""
        listing, store = self._dialect.listing, self.store
        if listing is not None:
            work = partial(listing, store, wanted)
            found = await self._read(Step(work, partial(run_in_executor, None, work)))
            return self._own(found, wanted), True
        filters = self._dialect.filters(store, wanted)
        found = await self._read(
            Step(
                partial(store.similarity_search, ANYTHING, k=k, **filters),
                partial(store.asimilarity_search, ANYTHING, k=k, **filters),
            )
        )
        return self._own(found, wanted), len(found) < k

    async def everything(self, wanted: Wanted) -> list[Document]:
        """All documents with this metadata."""
        k, whole = PAGE, False
        found: list[Document] = []
        while not whole:
            found, whole = await self.page(wanted, k)
            if not whole and k >= MOST:
                raise self._too_many()
            k *= 4
        return found

    async def remove_all(self, wanted: Wanted) -> int:
        """Deletes all documents with this metadata, and looks again until nothing comes back."""
        gone: set[str] = set()
        k, whole = PAGE, False
        while True:
            found, whole = await self.page(wanted, k)
            ids = {document.id for document in found if document.id}
            if ids & gone:
                raise self._still_there()
            gone |= ids
            await self._delete(sorted(ids))
            if not ids and whole:
                break
            if not ids:  # what comes is of others: the store does not filter
                if k >= MOST:
                    raise self._too_many()
                k *= 4
        if await self.get(sorted(gone)):
            raise self._still_there()
        return len(gone)

    async def search(self, query: str, k: int, wanted: Wanted) -> list[tuple[Document, float]]:
        """The most similar documents with this metadata, best first, from 1 for the best to 0 for the last.

        Cosine, its distance and the squared distance of normal vectors are one line to another: so scaled they agree,
        and nobody has to know which of them a score is.
        """
        filters, store = self._dialect.filters(self.store, wanted), self.store
        text = query.encode("utf-8", "replace").decode()
        scored = Step(
            partial(store.similarity_search_with_score, text, k=k, **filters),
            partial(store.asimilarity_search_with_score, text, k=k, **filters),
        )
        plain = Step(
            partial(store.similarity_search, text, k=k, **filters),
            partial(store.asimilarity_search, text, k=k, **filters),
        )
        try:
            pairs = await self._read(scored)
        except NotImplementedError:
            found = await self._read(plain)
            pairs = [(document, float(len(found) - i)) for i, document in enumerate(found)]
        documents = [restored(document) for document, _ in pairs]
        scores = _scaled([float(score) for _, score in pairs])
        hits = [(d, s) for d, s in zip(documents, scores, strict=True) if d.id and belongs(d, wanted)]
        self._keep(document for document, _ in hits)
        return hits

    def _own(self, found: Iterable[Document], wanted: Wanted) -> list[Document]:
        documents = [d for d in map(restored, found) if d.id and belongs(d, wanted)]
        self._keep(documents)
        return documents

    def _keep(self, documents: Iterable[Document]) -> None:
        if self._lately is not None:
            self._lately.update((document.id, document) for document in documents if document.id)
            while len(self._lately) > LATELY:
                self._lately.popitem(last=False)

    async def _delete(self, ids: Sequence[str | None]) -> None:
        store = self.store
        for i in range(0, len(ids), BATCH):  # never with an empty list: to some stores that means everything
            some = [name for name in ids[i : i + BATCH] if name]
            step = Step(partial(store.delete, ids=some), partial(store.adelete, ids=some))
            try:
                done = await self._write(step, "deleted")
            except NotImplementedError as error:
                raise self._cannot_delete() from error
            if done is False:
                raise self._still_there()
            if self._lately is not None:
                for name in some:
                    self._lately.pop(name, None)

    async def _read(self, step: Step[T]) -> T:
        try:
            return await step
        except (MemkitError, NotImplementedError):
            raise
        except Exception as error:
            msg = f"{self.name} cannot be read: {type(error).__name__}"
            raise HistoryReadError(msg) from error

    async def _write(self, step: Step[T], what: str) -> T:
        try:
            return await step
        except (MemkitError, NotImplementedError):
            raise
        except Exception as error:
            msg = f"memories were perhaps not {what} in {self.name}: {type(error).__name__}; calling again is safe"
            raise HistoryWriteError(msg, maybe_stored=True) from error

    def _cannot_delete(self) -> ConfigurationError:
        return ConfigurationError(f"{self.name} cannot delete, and a memory must be able to forget: use another store")

    def _still_there(self) -> HistoryWriteError:
        msg = f"{self.name} still holds what it was told to delete; call again, and if it stays look into the store"
        return HistoryWriteError(msg, maybe_stored=True)

    def _too_many(self) -> HistoryWriteError:
        msg = f"{self.name} does not filter and holds over {MOST:,} documents, so nobody can tell what is a user's"
        return HistoryWriteError(msg, maybe_stored=True)


def _lacks(store: VectorStore, name: str) -> bool:
    return getattr(type(store), name) is getattr(VectorStore, name)


def _same(stored: Document, document: Document) -> bool:
    """Whether a record says what is stored; a retry, which dates and rates it anew, changes nothing."""
    marks = [[bool(d.metadata.get("open")), d.metadata.get("epoch", 0)] for d in (stored, document)]
    return stored.page_content == document.page_content and marks[0] == marks[1]


def _scaled(scores: Sequence[float]) -> list[float]:
    """Scores that come best first, be they similarities or distances, as 1 for the best and 0 for the last."""
    known = [score for score in scores if isfinite(score)]
    if not known or known[0] == known[-1]:
        return [float(isfinite(score)) for score in scores]
    best, last = known[0], known[-1]
    return [min(1.0, max(0.0, (score - last) / (best - last))) if isfinite(score) else 0.0 for score in scores]
