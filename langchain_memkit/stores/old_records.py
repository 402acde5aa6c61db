"""What vector memories of versions 0.1 and 0.2 kept in stores of their own."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class OldRecord(NamedTuple):
    """A record that a vector memory of version 0.1 or 0.2 kept: a round of a conversation, or a part of a long one."""

    user_id: str
    session_id: str
    round_id: str
    created_at: object
    expires_at: datetime | None
    text: object
    metadata: object
