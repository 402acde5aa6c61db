"""Pure functions over messages. No I/O.

Where a conversation may be cut: `turns`, `cuts`. What it costs: `counting`, `blocks`, `openai_tokens`. What it says:
`text`, `sentences`. Who says it: `authors`. What memories recall, as a message: `notes`, `unsaid`. What goes into a
chain and comes out of it: `chain_io`. How messages are stored: `codec`.
"""

from langchain_memkit.messages.codec import decode_message, encode_message
from langchain_memkit.messages.cuts import whole_tool_groups
from langchain_memkit.messages.turns import cut_tail, group_starts, turn_starts

__all__ = ["cut_tail", "decode_message", "encode_message", "group_starts", "turn_starts", "whole_tool_groups"]
