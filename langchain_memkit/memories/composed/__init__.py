"""Several memories combined into one.

`memory` is the public class. In the order of a load: `sources` asks every memory and tolerates one that fails or is
late, `composing` merges the results into one list of messages that fits. `factory` makes such memories; `templates`
holds other frames for records.
"""

from langchain_memkit.memories.composed.memory import ComposedMemory, ComposedMemoryFactory, llama_index_template
from langchain_memkit.memories.composed.sources import Source

__all__ = ["ComposedMemory", "ComposedMemoryFactory", "Source", "llama_index_template"]
