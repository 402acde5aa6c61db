"""The vocabulary of the package: a memory, a turn, a view of a history, and the aliases that everything else uses.

*Memory is a list of messages.* A history keeps turns; a view is what was read of it; a preprocessor takes messages and
returns messages; a memory loads messages. Nothing here does I/O.

Read `memory` first, then `turns`. `aliases` has the type aliases, `purge` deletes a user everywhere, `ids` and `given`
validate what callers pass in.
"""

from langchain_memkit.base.memory import (
    EntityExtractor,
    Memory,
    MemoryFactory,
    Mention,
    Purgeable,
    Query,
    SavedTurn,
    apurge_user,
    purge_user,
)
from langchain_memkit.base.turns import (
    CONTEXT,
    GetSessionHistory,
    HistoryMessages,
    HistoryView,
    Now,
    Position,
    Preprocessor,
    SessionHead,
    SessionInfo,
    TokenCounter,
    TokenCounterLike,
    Turn,
    TurnContext,
    Window,
    utc_now,
)
from langchain_memkit.base.validation import (
    check_arguments,
    check_id,
    check_path,
    check_seconds,
    check_text,
    describe_error,
    describe_type,
    describe_value,
    did_you_mean,
    safe_repr,
    session,
    user_prefix,
)

__all__ = [
    "CONTEXT",
    "EntityExtractor",
    "GetSessionHistory",
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
    "SessionHead",
    "SessionInfo",
    "TokenCounter",
    "TokenCounterLike",
    "Turn",
    "TurnContext",
    "Window",
    "apurge_user",
    "check_arguments",
    "check_id",
    "check_path",
    "check_seconds",
    "check_text",
    "describe_error",
    "describe_type",
    "describe_value",
    "did_you_mean",
    "purge_user",
    "safe_repr",
    "session",
    "user_prefix",
    "utc_now",
]
