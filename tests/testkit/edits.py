"""Cases of turns that replace others: a question edited, an answer regenerated, and what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit import (
    EntityMemory,
    InMemoryChatMessageHistory,
    PreferenceMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, HistoryWriteError, StaleTurnError
from langchain_memkit.stores.in_memory import MemoryStore
from langchain_memkit.testing.langchain_histories import MakeHistory, exchange, text_of_each
from testkit.styles import Styles
from testkit.turns import streaming


def at(replaces: int | None = None, **more: Any) -> Any:
    """The config of a turn that replaces others."""
    return {
        "configurable": {"session_id": "s1", "user_id": "u1", **more} | ({"replaces": replaces} if replaces else {})
    }


def told(get_session_history: MakeHistory) -> list[str]:
    """The texts of the session, read backwards and forwards."""
    history: Any = get_session_history("s1", "u1")
    texts = text_of_each(history.messages)
    assert text_of_each(list(history.iter_messages())) == texts
    return texts


class Recording:
    """Answers with the next text, and keeps what it was shown."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.shown: list[list[str]] = []

    def __call__(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """The next answer."""
        self.shown.append([m.text for m in messages])
        return AIMessage(self.answers.pop(0))


class EditedTurnCases:
    """Cases of a chain whose turns replace others; give it a `get_session_history` fixture, as for other turns."""

    @pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
    def run(self, request: pytest.FixtureRequest) -> Styles:
        """Return `run(chain, value, config)` in each style."""
        return Styles(request.param)

    def test_regenerate(self, get_session_history: MakeHistory, run: Styles) -> None:
        """The model sees what came before the question, and its answer takes the place of the old one, repeatedly."""
        model = Recording("A", "B", "B2", "B3")
        chat = create_runnable_with_message_history(model, get_session_history)
        history: Any = get_session_history("s1", "u1")
        run(chat, "a", at())
        run(chat, "b", at())
        for answer in ("B2", "B3"):
            again = history.regenerate()
            assert told(get_session_history)[-1] == ("B" if answer == "B2" else "B2")  # nothing has changed yet
            run(chat, again.messages, at(again.replaces))
            assert model.shown[-1] == ["a", "A", "b"]
            assert told(get_session_history) == ["a", "A", "b", answer]
        assert history.undo_edit()
        assert told(get_session_history) == ["a", "A", "b", "B2"]

    def test_edited_question(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A question in the middle is asked anew: all that followed it is gone, and a resent conversation fits."""
        model = Recording("A", "B", "C", "D", "E")
        chat = create_runnable_with_message_history(model, get_session_history)
        for text in "abc":
            run(chat, text, at())
        stored: Any = get_session_history("s1", "u1").messages
        run(chat, "d", at(2))
        assert model.shown[-1] == ["a", "A", "d"]
        assert told(get_session_history) == ["a", "A", "d", "D"]
        # A client that sends all it shows, with ids, the edited question under its old one.
        run(chat, [*stored[:2], HumanMessage("e", id=stored[2].id)], at(4))
        assert model.shown[-1] == ["a", "A", "e"]
        assert told(get_session_history) == ["a", "A", "e", "E"]
        assert [turn.seq for turn in get_session_history("s1", "u1").iter_turns()] == [1, 5]  # type: ignore[attr-defined]

    def test_retried(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A retry with the same turn_id is stored once, and sees what the first try saw."""
        model = Recording("A", "B", "B")
        dropped: list[HistoryWriteError] = []
        chat = create_runnable_with_message_history(model, get_session_history, on_dropped_turn=dropped.append)
        run(chat, "a", at())
        run(chat, "b", at(1, turn_id="t1"))
        run(chat, "b", at(1, turn_id="t1"))
        assert model.shown[1:] == [["b"], ["b"]]
        assert told(get_session_history) == ["b", "B"]
        with pytest.raises(HistoryConflictError, match="no turn at position 1"):
            run(chat, "b", at(1, turn_id="t2"))
        assert len(model.shown) == 3

    def test_model_fails(self, get_session_history: MakeHistory, run: Styles) -> None:
        """The old answer is still there after an error of the model, also where the question would be kept."""

        def model(messages: list[BaseMessage]) -> AIMessage:
            raise RuntimeError

        get_session_history("s1", "u1").add_messages(exchange("a"))
        chat = create_runnable_with_message_history(model, get_session_history, on_model_error="save_input")
        with pytest.raises(RuntimeError):
            run(chat, "b", at(1))
        assert told(get_session_history) == ["a", "re: a"]

    def test_aborted(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A stream that is stopped replaces the old answer by what was said, and that can be taken back."""
        if not run.streams:
            pytest.skip("only streams stop")

        def model(_: object) -> Any:
            yield from ("new ", "answer ", "to the end")

        get_session_history("s1", "u1").add_messages(exchange("a"))
        chat = create_runnable_with_message_history(streaming(model), get_session_history)
        run(chat, "a", at(1), stop_after=1)
        assert told(get_session_history) == ["a", "new "]
        assert get_session_history("s1", "u1").undo_edit()  # type: ignore[attr-defined]
        assert told(get_session_history) == ["a", "re: a"]

    def test_edited_during_the_turn(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A turn that began before an edit is answered, but not stored; so is one that replaces what is replaced."""
        dropped: list[HistoryWriteError] = []
        history: Any = get_session_history("s1", "u1")

        def model(messages: list[BaseMessage]) -> AIMessage:
            history.edit(history.view().messages.turns[-1].seq, exchange("edited"))
            return AIMessage("late")

        history.add_messages(exchange("a"))
        chat = create_runnable_with_message_history(model, get_session_history, on_dropped_turn=dropped.append)
        run(chat, "b", at())
        run(chat, "b", at(history.regenerate().replaces))
        assert told(get_session_history) == ["edited", "re: edited"]
        assert [type(error) for error in dropped] == [StaleTurnError] * 2

    def test_turn_saved_meanwhile(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A turn that is stored while the answer is given anew is replaced with the rest: never both tails."""
        history: Any = get_session_history("s1", "u1")

        def model(messages: list[BaseMessage]) -> AIMessage:
            get_session_history("s1", "u1").add_messages(exchange("other"))
            return AIMessage("new")

        history.add_messages(exchange("a"))
        chat = create_runnable_with_message_history(model, get_session_history)
        run(chat, "b", at(1))
        assert told(get_session_history) == ["b", "new"]

    def test_what_memories_know(self, get_session_history: MakeHistory, run: Styles) -> None:
        """What memories learned from the replaced turns goes, the rest stays, and nothing is left to be indexed."""
        vectors = VectorMemory.factory(get_session_history, DeterministicFakeEmbedding(size=16))
        entities = EntityMemory.factory(
            get_session_history,  # type: ignore[arg-type]
            lambda text: [w for w in text.split() if w.istitle()],
        )
        preferences = PreferenceMemory.factory(
            get_session_history,  # type: ignore[arg-type]
            find=lambda text: [text] if "Always" in text else [],
        )
        factories: list[Any] = [vectors, entities, preferences]
        model = Recording(*["Noted."] * 9)
        chat = create_runnable_with_message_history(model, get_session_history, memories=factories)
        run(chat, "My sister Dory lives in Sydney.", at())
        run(chat, "Always answer in French. Marlin likes anemones.", at())
        history: Any = get_session_history("s1", "u1")
        run(chat, "Nemo likes bubbles.", at(history.regenerate().replaces))
        run(chat, "Bruce likes fish.", at())
        known = " ".join(hit.text for hit in vectors("s1", "u1").search("likes", k=9))  # type: ignore[attr-defined]
        assert all(word in known for word in ("Dory", "Nemo", "Bruce"))
        assert "Marlin" not in known
        assert {entity.name for entity in entities("s1", "u1").entities()} >= {"Dory", "Nemo", "Bruce"}
        assert "Marlin" not in {entity.name for entity in entities("s1", "u1").entities()}
        assert preferences("s1", "u1").preferences() == []
        assert [factory("s1", "u1").index(progress=False) for factory in factories] == [0, 0, 0]

    def test_summaries(self, get_session_history: MakeHistory, run: Styles) -> None:
        """A summary of what came before stays valid, one of what was replaced is never shown."""
        summarized: list[str] = []

        def summarize(prompt: Any) -> str:
            summarized.append(str(prompt))
            return f"summary {len(summarized)}"

        shorten = create_history_preprocessor(
            summarize, max_tokens=4000, trigger=("messages", 8), keep=("messages", 4), store=MemoryStore()
        )
        model = Recording(*"ABCDEFGHIJKLMNOPQRS")
        chat = create_runnable_with_message_history(model, get_session_history, preprocessor=shorten)
        history: Any = get_session_history("s1", "u1")
        for text in "abcdef":
            run(chat, f"question {text}", at())
        count = len(summarized)
        assert count
        for _ in range(3):
            again = history.regenerate()
            run(chat, again.messages, at(again.replaces))
            assert "summary" in model.shown[-1][0]
            assert model.shown[-1][-1] == "question f"
        assert len(summarized) == count
        for text in "ghij":
            run(chat, f"question {text}", at())
        assert len(summarized) > count
        assert not any("question a" in text for text in summarized[count:])  # nothing was summarized again
        run(chat, "question z", at(2))
        assert model.shown[-1] == ["question a", "A", "question z"]
        run(chat, "question y", at())
        assert not any("summary" in text or "question b" in text for text in model.shown[-1])

    def test_lists_and_searches(self, get_session_history: MakeHistory) -> None:
        """A list of sessions and a search leave out what was replaced; a stored title stays."""
        histories: Any = get_session_history
        history: Any = get_session_history("s1", "u1")
        for text in ("the reef", "the turtle"):
            history.append_turn(exchange(text))
        histories.update_session("s1", "u1", metadata={"folder": "sea"})
        history.edit(1, exchange("the shark"))
        [info] = histories.list_sessions("u1", limit=5)
        assert (info.turns, info.title, info.preview) == (1, "the shark", "re: the shark")
        assert info.metadata == {"folder": "sea"}
        assert [found.excerpt for found in histories.search_messages("u1", "the")] == ["re: the shark", "the shark"]
        assert histories.search_messages("u1", "turtle") == []
        history.undo_edit()
        histories.update_session("s1", "u1", title="Fish")
        [info] = histories.list_sessions("u1", limit=5)
        assert (info.turns, info.title, info.preview) == (2, "Fish", "re: the turtle")
        assert info.metadata == {"folder": "sea"}
        assert histories.search_messages("u1", "shark") == []

    def test_refused(self, get_session_history: MakeHistory, run: Styles) -> None:
        """Histories of others, overridden ones and a wrong position are refused before the model is called."""

        class Shouting(SQLiteChatMessageHistory):
            def add_messages(self, messages: Sequence[BaseMessage]) -> None:
                super().add_messages([m.model_copy(update={"content": m.text.upper()}) for m in messages])

        model = Recording()

        class Foreign(InMemoryChatMessageHistory):  # the class itself warns when it is made
            pass

        foreign = Foreign()
        histories: list[Any] = [lambda session_id, user_id=None: foreign, Shouting.factory(":memory:")]
        for each in histories:
            with pytest.raises(ConfigurationError, match="cannot be replaced"):
                run(create_runnable_with_message_history(model, each), "a", at(1))
        chat = create_runnable_with_message_history(model, get_session_history)
        with pytest.raises(ConfigurationError, match="replaces"):
            run(chat, "a", {"configurable": {"session_id": "s1", "user_id": "u1", "replaces": "1"}})
        with pytest.raises(HistoryConflictError):
            run(chat, "a", at(1))
