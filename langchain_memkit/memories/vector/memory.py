"""Vector memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.vectorstores import VectorStore

from langchain_memkit import base
from langchain_memkit._sync import adrive, cpu_bound, drive
from langchain_memkit._timezones import TimezoneLike, check_timezone, timezone_of_query
from langchain_memkit.errors import (
    ConfigurationError,
)
from langchain_memkit.memories.over_histories import FactoryOverHistories, MemoryOverHistories, check_histories, own
from langchain_memkit.memories.vector.core import VectorMemoryConfig, check_floor
from langchain_memkit.memories.vector.importance import plain_importance
from langchain_memkit.memories.vector.recalling import ASKED, SHORT, HitList, recall, search
from langchain_memkit.memories.vector.rounds import SMALL_TALK, Splitter, TextSplitter
from langchain_memkit.memories.vector.turn_log import TurnLog, UserRecords
from langchain_memkit.messages.text import QUESTION, truncate_with_warning
from langchain_memkit.messages.tokens import resolve_counter
from langchain_memkit.ranking.index import Index, IndexRecord
from langchain_memkit.ranking.question import Question, read_question
from langchain_memkit.ranking.score import Ranking
from langchain_memkit.stores.history import HistoryFactory

__all__ = ["VectorMemory", "VectorMemoryFactory"]

Moment: TypeAlias = datetime | None
"""An aware time; None for no limit."""

RATED = 4  # turns that are rated after a turn: its own, and what others stored meanwhile
RATED_AT_ONCE = 1000


class VectorMemory(MemoryOverHistories):
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
    derives_by = "embedding"

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
        if isinstance(histories, VectorStore):
            kind = type(histories).__name__
            raise ConfigurationError(
                f"a vector memory keeps what it recalls in the turns of histories, as in {own(VectorMemory)}, and "
                f"not in a vector store ({kind}); RetrieverMemory(store.as_retriever()) quotes documents"
            )
        check_histories(histories, VectorMemory)
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

    # -- flows

    async def _index_all(self, progress: bool, *, anew: bool) -> int:
        count = await super()._index_all(progress, anew=anew)
        while (await self._core.log.look(self._user, rates=RATED_AT_ONCE)).unrated:
            pass
        return count

    async def _complete_later(self, turn: Sequence[BaseMessage]) -> None:
        log = self._core.log
        if log.rates_later:
            await log.look(self._user, rates=RATED)
        else:
            await super()._complete_later(turn)

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
        held: UserRecords = await self._look()
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


class VectorMemoryFactory(FactoryOverHistories["VectorMemory"]):
    """Callable that creates vector memories over the same histories; made by `VectorMemory.factory`."""

    _core: VectorMemoryConfig
