"""Entity memory: who and what a user talked about, and the sentences that mention them, in any key-value store.

Top down: `memory` and `verbs` are the public class, `flows` holds the logic of each operation. A save turns messages
into facts (`mentions`) and facts into rows (`rows`). `shelf` stores the rows and caches them per user as a registry
(`book`), in which `forms` finds known names in a text and `groups` resolves names to entities. A load selects facts for
a question (`recall`). `portraits` and `listing` present entities to people.
"""

from langchain_memkit.memories.entity.listing import Entity, EntityList, Fact
from langchain_memkit.memories.entity.memory import EntityMemory, EntityMemoryFactory

__all__ = ["Entity", "EntityList", "EntityMemory", "EntityMemoryFactory", "Fact"]
