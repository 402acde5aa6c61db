"""Contract for memkit's vector stores. The list of cases is the specification. Needs hypothesis.

Example:
    ```python
    class TestMyStore(VectorStoreContract):
        @pytest.fixture
        def make_store(self):
            server = MyServer()
            return lambda embedding, **options: MyVectorStore(server, embedding, **options)
    ```
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.scoring.index import digest_of
from langchain_memkit.testing._vector_cases import AT, EMBEDDING, MakeStore, expected, facts, record
from langchain_memkit.testing._vector_hostile import HostileCases
from langchain_memkit.testing._vector_records import USERS, RecordCases
from langchain_memkit.testing._vector_searches import SearchCases
from langchain_memkit.testing.properties import SETTINGS

__all__ = ["AT", "EMBEDDING", "VectorStoreContract", "expected", "facts", "record"]

operations = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "add", "delete", "forget", "purge", "evict", "touch", "look", "reopen"]),
        st.sampled_from(USERS),
        st.sampled_from(["s1", "s2"]),
        st.integers(0, 3),
    ),
    max_size=20,
)


class VectorStoreContract(RecordCases, SearchCases, HostileCases):
    """Contract for a store that `VectorMemory` may use; give it a `make_store` fixture.

    `make_store(embedding, **options)` returns a new store object over one place per test; options are `cache_bytes` and
    `now`.
    """

    def test_threads(self, store: Any) -> None:
        """Parallel writers and readers lose nothing, and the cached index equals the stored records."""

        def work(worker: int) -> None:
            session = f"s{worker}"
            for n in range(15):
                begun = store.begin("u1", session)
                documents = [record(n, session_id=session)]
                assert store.write("u1", session, begun.generation, documents, store.embed([documents[0].page_content]))
                assert documents[0].id in store.index("u1")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        wanted = expected([record(n, session_id=f"s{w}") for w in range(4) for n in range(15)])
        assert facts(store.index("u1")) == wanted
        store.close()
        assert facts(store.index("u1")) == wanted

    def test_threads_add_to_one_record(self, store: Any) -> None:
        """Concurrent writers that extend the same record lose nothing: the second one begins again."""
        began = store.begin("u1", "s1")
        assert store.write("u1", "s1", began.generation, [record(1, "start")], [None])
        name = str(record(1).id)

        def work(word: str) -> None:
            for n in range(5):
                while True:
                    begun = store.begin("u1", "s1", [], [name])
                    old = begun.records[name]
                    said = f"{old.page_content[len('human: ') :].splitlines()[0]} {word}{n}"
                    expected = {name: digest_of(old.page_content)}
                    try:
                        arguments = ("u1", "s1", begun.generation, [record(1, said)], [None])
                        assert store.write(*arguments, expected=expected)
                    except HistoryConflictError:
                        continue
                    break

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, "abc"))
        said = store.get_by_ids([name], user_id="u1")[0].page_content.splitlines()[0].split()
        assert sorted(said[2:]) == sorted(f"{word}{n}" for word in "abc" for n in range(5))

    def test_two_users_never_meet(self, make_store: MakeStore) -> None:
        """Random operations of two users with equal words, on two store objects: each sees exactly its own."""
        stores = [make_store(EMBEDDING), make_store(EMBEDDING)]

        @settings(SETTINGS, max_examples=20)
        @given(operations)
        def check(steps: list[tuple[str, str, str, int]]) -> None:
            for user in USERS:
                stores[0].forget(user)
            model: dict[str, dict[str, tuple[str, int]]] = {user: {} for user in USERS}
            for i, (verb, user, session, n) in enumerate(steps):
                run(stores[i % 2], model[user], verb, user, session, n)
                for store in stores:
                    for each in USERS:
                        entries = store.index(each).entries
                        assert {entry.id for entry in entries} == model[each].keys()
                        found = store.similarity_search("what about number", k=50, filter={"user_id": each})
                        assert {document.id for document in found} == model[each].keys()
                        assert all(document.metadata["user_id"] == each for document in found)

        check()


def run(store: Any, mine: dict[str, tuple[str, int]], verb: str, user: str, session: str, n: int) -> None:
    """Perform one operation on a store, and on the model of what it should hold of a user."""
    document = record(n, user_id=user, session_id=session)
    name = str(document.id)
    if verb == "write":
        begun = store.begin(user, session)
        assert store.write(user, session, begun.generation, [document], store.embed([document.page_content]))
        mine[name] = (session, n)
    elif verb == "add":
        store.add_documents([Document("what about number", id=f"{user}-{n}", metadata={"user_id": user})])
        mine[f"{user}-{n}"] = ("", n)
    elif verb == "delete":
        store.delete([name], user_id=user)
        mine.pop(name, None)
    elif verb == "forget":
        assert store.forget(user, session) == sum(place == session for place, _ in mine.values())
        for key in [key for key, (place, _) in mine.items() if place == session]:
            del mine[key]
    elif verb == "purge":
        assert store.forget(user) == len(mine)
        mine.clear()
    elif verb == "evict":
        store.evict(user, max(n, len(mine)))
    elif verb == "touch":
        store.touch(user, [name], AT)
    elif verb == "reopen":
        store.close()
