"""Several memories as one.

`memory` is the public class. In the order of a load: `sources` asks every memory and bears that one fails or is late,
`composing` makes one list of messages that fits. `factory` makes such memories; `templates` are other frames for
records.
"""

from langchain_memkit.memories.composed.factory import ComposedMemoryFactory
from langchain_memkit.memories.composed.memory import ComposedMemory
from langchain_memkit.memories.composed.sources import Source
from langchain_memkit.memories.composed.templates import llama_index_template

__all__ = ["ComposedMemory", "ComposedMemoryFactory", "Source", "llama_index_template"]
