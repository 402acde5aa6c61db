"""Entity memory: who and what a user talked about, and the sentences that mention them, in any key-value store.

Top down: `memory` has the public class and the logic of each operation. A save turns messages into facts (`mentions`)
and facts into rows (`rows`). `cache` stores the rows and holds them per user as a `registry`, which finds names in a
text and resolves them to entities. A load selects facts for a question (`recall`). `listing` presents them to people.
"""

from langchain_memkit.memories.entity.listing import Entity, EntityList, Fact
from langchain_memkit.memories.entity.memory import EntityMemory, EntityMemoryFactory

__all__ = ["Entity", "EntityList", "EntityMemory", "EntityMemoryFactory", "Fact"]
