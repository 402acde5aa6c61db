"""Vector memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeAlias

from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.vectorstores import VectorStore

from langchain_memkit import base
from langchain_memkit._histories import keeps_index, stored_ids, turns_between
from langchain_memkit._progress import progress_bar
from langchain_memkit._sync import Step, adrive, cpu_bound, drive
from langchain_memkit._timezones import TimezoneLike, check_timezone, timezone_of_query
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryReadError,
    HistoryWriteError,
    IdempotencyConflictError,
    StaleTurnError,
    logger,
)
from langchain_memkit.memories.rebuildable import DerivedMemory, DerivedMemoryFactory
from langchain_memkit.memories.vector.core import VectorMemoryConfig, check_floor
from langchain_memkit.memories.vector.importance import plain_importance
from langchain_memkit.memories.vector.recalling import ASKED, SHORT, HitList, recall, search
from langchain_memkit.memories.vector.rounds import SMALL_TALK, Splitter, TextSplitter
from langchain_memkit.memories.vector.turn_log import VECTORS, TurnLog
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.text import QUESTION, truncate_with_warning
from langchain_memkit.messages.tokens import resolve_counter
from langchain_memkit.messages.trimming import same_messages
from langchain_memkit.ranking.index import Index, IndexRecord
from langchain_memkit.ranking.question import Question, read_question
from langchain_memkit.ranking.score import Ranking
from langchain_memkit.stores.history import HistoryFactory

__all__ = ["VectorMemory", "VectorMemoryFactory"]

Moment: TypeAlias = datetime | None
"""An aware time; None for no limit."""

RATED = 4  # turns that are rated after a turn: its own, and what others stored meanwhile
OWN = 'VectorMemory.factory(SQLiteChatMessageHistory.factory("memory.db"), embedding)'


class VectorMemory(DerivedMemory):
    r"""Recalls what was said in all sessions of a user, from the turns of memkit's histories themselves.

    For a question every round (a user's input with everything that followed) gets a score: how much it has to do with
    the question, by its words, the similarity of the vectors, the neighbours and the session of a round, and the
    speakers, names and days that the question names. Rounds that score at least `floor` are quoted in a note, the best
    of them, as many as fit into `max_tokens`, oldest first. No model is called. A question unrelated to the records
    ("What is 2+2?") recalls nothing, and neither does a greeting.

    What it needs of a turn, its words and vectors, lies in the turn's row: whatever clears, purges, edits, hides, forks
    or expires a turn does so with what is recalled, at the next question, in every process. A turn that has none,
    since it was stored before or by another program, gets it when the user next asks something.

    There is one log: `clear` of the memory clears the session in the histories, `purge` of its factory purges the user
    there, and `forget_messages` hides the turns that hold the messages.

    Give it the factory of histories that the chain has. Where the chain's history is of another package, give it one of
    its own, in which it then keeps the turns that it is told of, with the `ttl` of that one.

    Args:
        histories: `SQLiteChatMessageHistory.factory(path)` or `MongoDBChatMessageHistory.factory(uri)`.
        embedding: The embedding model. What it embeds at once, without a server, says so by `is_local = True`: then
            the vectors are stored with the turn; else right after it. Each round is embedded once; greetings are not.
        session_id: The conversation.
        user_id: The user; required.
        max_tokens: Token budget of the note, its frame included. It limits what is quoted; `floor` decides what is
            related.
        k: Maximum number of rounds; None for as many as fit.
        ranking: Weights of the score; by default the measured recipe. `Ranking.generative_agents()` scores as that
            paper does.
        floor: The score from which on a record is related to a question, at least 0. The unit is a word that no other
            record has. `"auto"` is 1.25. If the question says "I" or "my", half of it is enough for at most three
            statements of the user. None or 0 recalls on any question, as `Ranking.generative_agents()` does unless a
            number is given. `search` has no floor.
        text_splitter: A splitter of langchain-text-splitters, for rounds longer than the embedder's window; default
            300 characters, cut at sentences.
        max_records: From how many records of a user is recalled at most; beyond that those that were neither said nor
            recalled for the longest time are left out. None for all.
        ttl: Seconds after which a record is recalled no more, though its turn stays.
        importance: A function, plain or async, from a text to its importance, 1 to 10; for example
            `create_model_importance(llm)`. Called once for each record; default `plain_importance` if the ranking
            weighs importance.
        reranker: A LangChain document compressor, for example a cross-encoder, that reorders the best 50.
        read_only: Store nothing, neither turns nor what is derived from them, and erase nothing.
        cache_bytes: How much memory the records of all users may take in this process, by default 96 MiB. Those of the
            user who asked last stay, however many they are.
        token_counter: Token counter; default an estimate of four characters per token.
        timezone: The zone in which days are quoted and meant in questions: a name ("Australia/Sydney"), a tzinfo, or a
            function of the user id, plain or async, that returns either. None: that of the chain, else UTC.
        now: Clock; returns an aware datetime.

    Raises:
        ConfigurationError: There is no `user_id`, an option is malformed, or the histories keep no index: they are of
            another layout, or of a class that changes what is stored.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> from langchain_memkit import SQLiteChatMessageHistory, VectorMemory, WordLlamaEmbeddings
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> histories("s1", "u1").add_messages([HumanMessage("My cat is called Nemo."), AIMessage("A fine name!")])
        >>> memories = VectorMemory.factory(histories, WordLlamaEmbeddings())
        >>> [hit.text for hit in memories("s2", "u1").search("What is the name of my cat?")]
        ['human: My cat is called Nemo.\nai: A fine name!']
        >>> histories("s1", "u1").clear()
        >>> len(memories("s2", "u1").search("What is the name of my cat?"))
        0
    """

    _core: VectorMemoryConfig
    _began: tuple[int, datetime] | None = None  # epoch of the session in its own history, and when, at the load

    def __init__(
        self,
        histories: HistoryFactory[Any],
        embedding: Embeddings,
        session_id: str,
        *,
        user_id: str | None = None,
        max_tokens: int = 1000,
        k: int | None = None,
        ranking: Ranking | None = None,
        floor: float | Literal["auto"] | None = "auto",
        text_splitter: TextSplitter | None = None,
        max_records: int | None = None,
        ttl: float | None = None,
        importance: Callable[[str], object] | None = None,
        reranker: BaseDocumentCompressor | None = None,
        read_only: bool = False,
        cache_bytes: int = 96 * 2**20,
        token_counter: base.TokenCounterLike = None,
        timezone: TimezoneLike = None,
        now: base.Now = base.utc_now,
    ) -> None:
        self._bind(session_id, user_id)
        base.check_size(cache_bytes, "cache_bytes", 0)
        for name, count in (("max_tokens", max_tokens), ("k", k), ("max_records", max_records)):
            if count is not None:
                base.check_size(count, name, 1)
        base.check_seconds(ttl, "ttl", none="to recall records for as long as their turns are shown")
        compressor: object = reranker
        if compressor is not None and not isinstance(compressor, BaseDocumentCompressor):
            kind = base.describe_type(compressor, BaseDocumentCompressor)
            raise ConfigurationError(f"reranker must be a LangChain document compressor, not {kind}")
        _check_histories(histories)
        weights = ranking or Ranking()
        rate = importance or (plain_importance if weights.importance else None)
        lasts = None if ttl is None else timedelta(seconds=ttl)
        splitter = Splitter(text_splitter)
        log = TurnLog(
            histories,
            embedding,
            splitter=splitter,
            importance=rate,
            ttl=lasts,
            max_records=max_records,
            read_only=read_only,
            now=now,
            cache_bytes=cache_bytes,
        )
        self._core = VectorMemoryConfig(
            log=log,
            max_tokens=max_tokens,
            k=k,
            ranking=weights,
            floor=check_floor(floor, weights),
            max_records=max_records,
            reranker=reranker,
            read_only=read_only,
            counter=resolve_counter(token_counter),
            now=now,
            timezone=check_timezone(timezone),
        )
        self.read_only = read_only

    @classmethod
    def factory(cls, histories: HistoryFactory[Any], embedding: Embeddings, **options: Any) -> VectorMemoryFactory:
        """Create a factory whose memories share what they hold: call it as `memories(session_id, user_id)`.

        Args:
            histories: The factory of histories, as in the class.
            embedding: The embedding model.
            **options: Options of the class, except the ids.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory, VectorMemory, WordLlamaEmbeddings
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> memories = VectorMemory.factory(histories, WordLlamaEmbeddings())
            >>> memories("s1", "u1")
            VectorMemory(session_id='s1', user_id='u1')
        """
        base.check_arguments(options, cls)
        return VectorMemoryFactory(cls(histories, embedding, "-", user_id="-", **options))

    def search(
        self, query: str, k: int = 10, *, session_id: str | None = None, since: Moment = None, until: Moment = None
    ) -> HitList:
        """Search the user's rounds, in all sessions, and return the best with their scores.

        Args:
            query: The question.
            k: Maximum number of hits; there are never more than `Ranking.candidates`.
            session_id: Search this session only.
            since: Only rounds at or after this time; aware.
            until: Only rounds before this time; aware.

        Returns:
            Hits, best first: a list that renders as a table in notebooks and has `plot()`.

        Raises:
            ConfigurationError: `k` is below 1, or a time is naive.
            HistoryReadError: The histories cannot be reached or read.
        """
        return drive(self._search(query, k, session_id, since, until))

    async def asearch(
        self, query: str, k: int = 10, *, session_id: str | None = None, since: Moment = None, until: Moment = None
    ) -> HitList:
        """Run `search` asynchronously."""
        return await adrive(self._search(query, k, session_id, since, until))

    # -- the turn

    @property
    def is_remote(self) -> bool:
        """Return whether reads wait for a server; see `DerivedMemory`."""
        return self._core.log.is_remote

    def check_history(self, history: Any) -> None:
        """Raise `ConfigurationError` if a history changes what it stores, in the place where this memory reads."""
        if self._recalls(history) and not keeps_index(history):
            raise ConfigurationError(
                f"{type(history).__name__} changes what it stores, and this memory reads it there as it is stored: "
                f"give the memory histories of its own, as in {OWN}"
            )

    def index_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        """Derive what a history is to store with a turn; nothing if that history is not what this memory recalls.

        Args:
            history: The history that stores the turn.
            messages: The turn as it is stored.

        Returns:
            The data by name, for `append_turn(index=)`.
        """
        return drive(self._index_turn(history, messages))

    async def aindex_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        """Run `index_turn` asynchronously."""
        return await adrive(self._index_turn(history, messages))

    def index(self, progress: bool = True) -> int:
        """Index all turns of the user that have no index yet, for example after an import.

        A question does that as well, but for the newest 1,000 turns at a time.

        Args:
            progress: Show a progress bar if `rich` is installed.

        Returns:
            How many turns were indexed.

        Raises:
            HistoryReadError: The histories cannot be reached or read.
        """
        return drive(self._index_all(progress))

    async def aindex(self, progress: bool = True) -> int:
        """Run `index` asynchronously."""
        return await adrive(self._index_all(progress))

    async def _index_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        if self.read_only or not self._recalls(history):
            return {}
        return {VECTORS: await self._core.log.derive(self._user, messages)}

    def _recalls(self, history: Any) -> bool:
        """Return whether a history keeps its turns where this memory looks for them."""
        store = getattr(history, "turn_store", None)
        is_same = store is not None and self._core.log.store.is_same(store)
        return is_same and getattr(history, "user_id", None) == self._user

    async def _index_all(self, progress: bool, batch: int = 1000) -> int:
        held = await self._core.log.look(self._user, most=0)
        count = left = len(held.lacking)
        with progress_bar(progress, "indexing", count) as advance:
            while left:
                held = await self._core.log.look(self._user, most=batch, rates=batch)
                done = left - len(held.lacking)
                if done <= 0:
                    break
                advance(done)
                left -= done
        while held.unrated:
            held = await self._core.log.look(self._user, rates=batch)
        return count - left

    # -- flows

    async def _search(self, query: str, k: int, session_id: str | None, since: Moment, until: Moment) -> HitList:
        if session_id is not None:
            base.check_id(session_id, "session_id")
        for name, moment in (("since", since), ("until", until)):
            if moment is not None and moment.tzinfo is None:
                msg = f"{name} must be an aware datetime, e.g. datetime(2026, 1, 2, tzinfo=UTC); got {moment!r:.50}"
                raise ConfigurationError(msg)
        base.check_size(k, "k", 1)

        def keep(entry: IndexRecord) -> bool:
            if session_id is not None and entry.session != session_id:
                return False
            if since is not None and (entry.at is None or entry.at < since):
                return False
            return until is None or (entry.at is not None and entry.at < until)

        if not query.strip():
            return HitList()
        question = await self._question(query)
        return await search(self._core, self._user, question, k, keep)

    async def _prefetch(self) -> Index:
        held = await self._core.log.look(self._user)
        # What is erased from now on is not to come back when the turn is saved.
        self._began = held.log.epoch_of(self._session), self._core.now()
        return held.index

    async def _load(self, query: str) -> list[BaseMessage]:
        shown = frozenset(message.id for message in getattr(query, "seen", ()) if message.id)

        def keep(entry: IndexRecord) -> bool:
            return not (entry.messages and shown.issuperset(entry.messages))

        question = await self._question(query)
        # a greeting or thanks recalls nothing, so nothing is read for it
        if SMALL_TALK.issuperset(question.words):
            self._take_fetched()
            self._began = None
            return []
        fetched: Index | None = self._take_fetched()
        index = await self._prefetch() if fetched is None else fetched
        return await recall(self._core, self._user, query, question, keep, index)

    async def _question(self, query: str) -> Question:
        """Read what is asked, once, with the days of the user's time zone."""
        text = truncate_with_warning(str(query), QUESTION, ASKED)
        zone = await timezone_of_query(self._core.timezone, self._user, query)
        now = self._core.now().astimezone(zone)
        return await cpu_bound(lambda: read_question(text, now), long=len(text) > SHORT)

    async def _save(self, messages: Sequence[BaseMessage]) -> None:
        if self.read_only or not messages:
            return
        store = getattr(messages, "store", None)
        self.save_was_checked = store is not None and self._core.log.store.is_same(store)
        if self.save_was_checked:  # the turn is stored there already
            await self._complete_later()
            return
        history = self._core.log.histories(self._session, self._user)
        given = [message for message in messages if not is_note(message)]
        if not given:
            self._began = None
            return
        count = len(given)
        try:
            view = await Step(lambda: history.view(max_messages=count), lambda: history.aview(max_messages=count))
            unsaved = await self._unsaved(history, given, view.messages)
        except HistoryReadError as error:
            raise HistoryWriteError(f"the turn is not stored, since what is stored cannot be read: {error}") from error
        if not unsaved:
            self._began = None
            return
        # What is erased from now on is not to come back; if there was a load, from then on.
        epoch, since = self._began or (view.epoch, view.read_at)
        turn_id = getattr(messages, "turn_id", None)
        options: Any = {"turn_id": turn_id, "epoch": epoch, "since": since}
        options["index"] = {VECTORS: await self._core.log.derive(self._user, unsaved)}
        try:
            await Step(
                lambda: history.append_turn(unsaved, **options), lambda: history.aappend_turn(unsaved, **options)
            )
        except (StaleTurnError, IdempotencyConflictError) as error:
            self._began = None
            logger.warning("vector memory does not keep a turn: %s", error)
            return
        self._began = None  # not after another error: a retry is of the same turn
        await self._complete_later()

    async def _unsaved(self, history: Any, given: list[BaseMessage], last: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return those of the messages that its own history does not have yet, as their ids or the last texts tell."""
        if same_messages(last, given):
            return []
        ids = [message.id for message in given if message.id]
        known = await stored_ids(history, ids) if ids else set[str]()
        places = [i for i, message in enumerate(given) if message.id in known]
        end = places[-1] + 1 if places else 0
        # Of a turn that is there in part, a message without an id is there if one after it is.
        return [message for message in given[:end] if message.id and message.id not in known] + given[end:]

    async def _complete_later(self) -> None:
        """Make what was not stored with a turn, since a server has to be asked for it."""
        if not self._core.log.is_whole_at_once:
            await self._core.log.look(self._user, rates=RATED)

    async def _delete_messages(self, ids: Collection[str]) -> int:
        """Hide the turns of this session that hold any of these messages."""
        log, wanted = self._core.log, set(ids)
        store = getattr(ids, "store", None)
        if store is not None and log.store.is_same(store):  # the history does not show them any more
            return 0
        history = log.histories(self._session, self._user)
        try:
            turns = await turns_between(history, None)
        except HistoryReadError as error:
            raise HistoryWriteError(f"no turn is hidden, since they cannot be read: {error}") from error
        found = [turn.seq for turn in turns if not wanted.isdisjoint(message.id for message in turn.messages)]
        for seq in found:
            await Step(partial(history.delete_turn, seq), partial(history.adelete_turn, seq))
        return len(found)

    async def _rebuild_sessions(self, user_id: str, sessions: Mapping[str, Any], progress: bool) -> Mapping[str, int]:
        raise ConfigurationError(
            "a memory over histories is derived from their turns, so there is nothing to rebuild: index() makes at "
            "once what the next questions would; langchain_memkit.migrate.migrate copies conversations of others"
        )

    async def _clear(self) -> None:
        self._began = None
        if self.read_only:
            return
        history = self._core.log.histories(self._session, self._user)
        await Step(history.clear, history.aclear)


def _check_histories(histories: object) -> None:
    """Raise `ConfigurationError` for what is no factory of histories that keep what is derived from their turns."""
    if isinstance(histories, VectorStore):
        raise ConfigurationError(
            f"a vector memory keeps what it recalls in the turns of histories, as in {OWN}, and not in a vector "
            f"store ({type(histories).__name__}); RetrieverMemory(store.as_retriever()) quotes documents"
        )
    if not isinstance(histories, HistoryFactory):
        kind = base.describe_type(histories, HistoryFactory)
        raise ConfigurationError(f"histories must be a factory of our histories, as in {OWN}, not {kind}")
    if not keeps_index(histories("-")):
        raise ConfigurationError(
            f"{histories!r} keeps nothing that is derived from turns: it is of another layout, or its class "
            f"changes what is stored. Give the memory histories of its own, as in {OWN}"
        )


class VectorMemoryFactory(DerivedMemoryFactory["VectorMemory"]):
    """Callable that creates vector memories over the same histories; made by `VectorMemory.factory`."""

    _core: VectorMemoryConfig

    async def _list_sessions(self, user_id: str) -> list[base.SessionInfo]:
        histories = self._core.log.histories
        return await Step(lambda: histories.list_sessions(user_id), lambda: histories.alist_sessions(user_id))

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        log = self._core.log
        if log.read_only:
            return {}
        log.forget(user_id)
        return await Step(lambda: log.histories.purge(user_id), lambda: log.histories.apurge(user_id))
