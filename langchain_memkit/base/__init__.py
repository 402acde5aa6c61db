"""The vocabulary of the package: a memory, a turn, a view of a history, and the aliases that everything else uses.

*Memory is a list of messages.* A history keeps turns; a view is what was read of it; a preprocessor takes messages and
returns messages; a memory loads messages. Nothing here does I/O.

Read `memory` first, then `turns`. `aliases` has the type aliases, `purge` deletes a user everywhere, `ids` and `given`
validate what callers pass in.
"""

from langchain_memkit.base.aliases import (
    GetSessionHistory,
    Now,
    Preprocessor,
    TokenCounter,
    TokenCounterLike,
    utc_now,
)
from langchain_memkit.base.given import (
    check_arguments,
    describe_error,
    did_you_mean,
    file_given,
    kind_given,
    seconds_given,
    shown,
    value_or_kind,
)
from langchain_memkit.base.ids import check_id, check_text, session, user_prefix
from langchain_memkit.base.memory import EntityExtractor, Memory, MemoryFactory, Mention, Query, SavedTurn
from langchain_memkit.base.purge import Purgeable, apurge_user, purge_user
from langchain_memkit.base.turns import (
    CONTEXT,
    Head,
    HistoryMessages,
    HistoryView,
    Position,
    SessionInfo,
    Turn,
    TurnContext,
    Window,
)

__all__ = [
    "CONTEXT",
    "EntityExtractor",
    "GetSessionHistory",
    "Head",
    "HistoryMessages",
    "HistoryView",
    "Memory",
    "MemoryFactory",
    "Mention",
    "Now",
    "Position",
    "Preprocessor",
    "Purgeable",
    "Query",
    "SavedTurn",
    "SessionInfo",
    "TokenCounter",
    "TokenCounterLike",
    "Turn",
    "TurnContext",
    "Window",
    "apurge_user",
    "check_arguments",
    "check_id",
    "check_text",
    "describe_error",
    "did_you_mean",
    "file_given",
    "kind_given",
    "purge_user",
    "seconds_given",
    "session",
    "shown",
    "user_prefix",
    "utc_now",
    "value_or_kind",
]
