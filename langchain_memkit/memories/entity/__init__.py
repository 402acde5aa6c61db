"""Entities: who and what a user talked about, and what was said of them, in any key-value store.

From the door inwards: `memory` and its `verbs` are what people call, `flows` what these do. Saving makes facts of
messages (`mentions`) and rows of facts (`rows`), which `shelf` stores and reads into a user's `book`; there `forms`
finds known names in a text, and `groups` decides which of them mean one entity. Loading chooses facts for a question
(`recall`). `portraits` and `listing` are for people.
"""

from langchain_memkit.memories.entity.factory import EntityMemoryFactory
from langchain_memkit.memories.entity.listing import Entity, EntityList, Fact
from langchain_memkit.memories.entity.memory import EntityMemory

__all__ = ["Entity", "EntityList", "EntityMemory", "EntityMemoryFactory", "Fact"]
