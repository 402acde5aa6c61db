"""Adapters for third-party vector stores: filter syntax, listing, and metadata that every store accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from langchain_memkit.errors import ConfigurationError

__all__ = ["Dialect", "FilterBuilder", "dialect_of", "from_store", "matches_metadata", "to_store"]

Wanted: TypeAlias = Mapping[str, str]
FilterBuilder: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, Any]]

PACKED = "memkit"  # the metadata field that holds all non-plain values, as JSON
EXACT = 2**53  # larger integers go into the JSON: some stores keep every number as a float


@dataclass(frozen=True, slots=True)
class Dialect:
    """Adapter for one class of vector store.

    Attributes:
        filters: Function from the store and the wanted metadata to keyword arguments of `similarity_search` that
            restrict the search to documents with that metadata.
        listing: Function that returns all documents with the wanted metadata without a search; None if the store
            offers no way.
        serial: Whether calls must be serialized because the store is not thread-safe.
    """

    filters: Callable[[Any, Wanted], Mapping[str, Any]]
    listing: Callable[[Any, Wanted], list[Document]] | None = None
    serial: bool = False


def dialect_of(store: VectorStore, filter_builder: FilterBuilder | None) -> Dialect:
    """Find the adapter of a store by the name of its class or of a parent class in a `langchain_*` package.

    Raises:
        ConfigurationError: The store is unknown and no `filter_builder` is given.
    """
    names = [cls.__name__ for cls in type(store).__mro__ if cls.__module__.startswith("langchain_")]
    known = next((DIALECTS[name] for name in names if name in DIALECTS), None)
    if filter_builder is not None:
        build = filter_builder
        return Dialect(
            lambda _, wanted: _checked(build(dict(wanted))),
            known.listing if known else None,
            serial=bool(known and known.serial),
        )
    if known is None:
        msg = (
            f"how {type(store).__name__} filters is not known, and users must not find each other's memories: give "
            "filter_builder=, a function from {'user_id': ...}, at times with 'session_id', to the keyword arguments "
            "of its similarity_search, e.g. lambda wanted: {'filter': wanted}"
        )
        raise ConfigurationError(msg)
    return known


def _checked(arguments: Any) -> Mapping[str, Any]:
    if not isinstance(arguments, Mapping):
        msg = f"filter_builder must return the keyword arguments as a dict, not {type(arguments).__name__}"
        raise ConfigurationError(msg)
    return arguments


# -- documents as a third-party store keeps them


def to_store(document: Document) -> Document:
    """Convert a document to a form that every store accepts; `from_store` is the inverse.

    Plain metadata values stay fields, so that the store's own tools show them; all others go into one field of JSON.
    """
    plain = {name: value for name, value in document.metadata.items() if _is_plain(value)}
    rest = {name: value for name, value in document.metadata.items() if name not in plain and value is not None}
    # The JSON includes the id, since some stores do not return ids from a search.
    text = json.dumps({"id": document.id, **rest}, ensure_ascii=False, separators=(",", ":"))
    return Document(id=document.id, page_content=document.page_content, metadata={**plain, PACKED: text})


def from_store(document: Document) -> Document:
    """Restore a packed document, dropping fields that fail validation: others may write to the store too."""
    try:
        rest = json.loads(document.metadata.get(PACKED) or "{}")
    except (TypeError, ValueError, RecursionError):
        rest = {}
    rest = rest if isinstance(rest, dict) else {}
    record_id, size = rest.pop("id", None), len(document.page_content)
    known = {**rest, **{name: value for name, value in document.metadata.items() if name not in (PACKED, "_id")}}
    kept = {name: value for name, value in known.items() if name not in CHECKS or CHECKS[name](value, size)}
    if len(kept.get("messages") or ()) != len(kept.get("said") or ()):
        kept.pop("messages", None)
    found = document.id or (record_id if isinstance(record_id, str) else None)
    return Document(id=found, page_content=document.page_content, metadata=kept)


def matches_metadata(document: Document, wanted: Wanted) -> bool:
    """Return whether a document has this metadata; checked on every result, in case the store ignores filters."""
    return all(document.metadata.get(name) == value for name, value in wanted.items())


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, bool, float)) or (isinstance(value, int) and abs(value) < EXACT)


def _is_text(value: Any, size: int) -> bool:
    return isinstance(value, str)


def _is_number(value: Any, size: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _is_whole(value: Any, size: int) -> bool:
    return _is_number(value, size) and value == int(value)


def _is_time(value: Any, size: int) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _is_said(value: Any, size: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(span, list)
        and len(span) == 4
        and all(isinstance(part, str) for part in span[:2])
        and all(type(part) is int for part in span[2:])
        and 0 <= span[2] <= span[3] <= size
        for span in value
    )


def _are_texts(value: Any, size: int) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


CHECKS: Mapping[str, Callable[[Any, int], bool]] = {
    "user_id": _is_text,
    "session_id": _is_text,
    "round_id": _is_text,
    "position": _is_whole,
    "chunk": _is_whole,
    "epoch": _is_whole,
    "importance": _is_number,
    "created_at": _is_time,
    "expires_at": _is_time,
    "said": _is_said,
    "messages": _are_texts,
}


# -- the dialects


def _operators(wanted: Wanted) -> dict[str, Any]:
    """Build the filter with `$eq` and `$and` operators, as Chroma, MongoDB and others take it."""
    conditions = [{name: {"$eq": value}} for name, value in wanted.items()]
    return conditions[0] if len(conditions) == 1 else {"$and": conditions}


def _chroma_filters(store: Any, wanted: Wanted) -> Mapping[str, Any]:
    return {"filter": _operators(wanted)}


def _chroma_listing(store: Any, wanted: Wanted) -> list[Document]:
    found = store.get(where=_operators(wanted), include=["metadatas", "documents"])
    rows = zip(found["ids"], found["documents"], found["metadatas"], strict=True)
    return [Document(id=name, page_content=text or "", metadata=metadata or {}) for name, text, metadata in rows]


def _faiss_filters(store: Any, wanted: Wanted) -> Mapping[str, Any]:
    # FAISS filters after fetching, by default only 20 documents of all users: fetch everything.
    return {"filter": dict(wanted), "fetch_k": max(1, store.index.ntotal)}


def _faiss_listing(store: Any, wanted: Wanted) -> list[Document]:
    found = ((name, store.docstore.search(name)) for name in list(store.index_to_docstore_id.values()))
    documents = [(name, document) for name, document in found if isinstance(document, Document)]
    return [Document(id=n, page_content=d.page_content, metadata=d.metadata) for n, d in documents]


def _memory_filters(store: Any, wanted: Wanted) -> Mapping[str, Any]:
    return {"filter": lambda document: matches_metadata(document, wanted)}


def _memory_listing(store: Any, wanted: Wanted) -> list[Document]:
    rows = list(store.store.values())
    return [Document(id=row["id"], page_content=row["text"], metadata=row["metadata"]) for row in rows]


def _atlas_filters(store: Any, wanted: Wanted) -> Mapping[str, Any]:
    return {"pre_filter": _operators(wanted)}


def _atlas_listing(store: Any, wanted: Wanted) -> list[Document]:
    # Read the collection, not the search index: the index lags behind, and a deletion must not miss documents.
    text, vector = store._text_key, store._embedding_key
    rows = store.collection.find(_operators(wanted), {vector: 0} if vector else None)
    return [Document(id=str(row.pop("_id")), page_content=str(row.pop(text, "")), metadata=row) for row in rows]


CHROMA = Dialect(_chroma_filters, _chroma_listing)
DIALECTS: Mapping[str, Dialect] = {
    "Chroma": CHROMA,
    "FAISS": Dialect(_faiss_filters, _faiss_listing, serial=True),
    "InMemoryVectorStore": Dialect(_memory_filters, _memory_listing),
    "MongoDBAtlasVectorSearch": Dialect(_atlas_filters, _atlas_listing),
    "PGVector": Dialect(_chroma_filters),
}
