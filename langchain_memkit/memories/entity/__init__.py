"""Entity memory: who and what a user talked about, and the sentences that mention them, from the turns of histories.

Top down: `memory` has the public class and the logic of each operation. `entity_log` turns the messages of each turn
into facts (`mentions`), keeps them in the turn's row (`rows`), and holds them per user as a `registry`, which finds
names in a text and resolves them to entities. A load selects facts for a question (`recall`). `listing` presents them.
"""

from langchain_memkit.memories.entity.listing import Entity, EntityList, Fact
from langchain_memkit.memories.entity.memory import EntityMemory, EntityMemoryFactory

__all__ = ["Entity", "EntityList", "EntityMemory", "EntityMemoryFactory", "Fact"]
