"""Pure functions over messages. No I/O.

Where a conversation may be cut: `trimming`. Token counts: `tokens`. Texts, senders and sentences: `text`. Records of
memories as a message: `notes`. Input and output of a chain: `chain_io`. The storage format: `codec`.
"""

from langchain_memkit.messages.codec import decode_message, encode_message
from langchain_memkit.messages.trimming import cut_tail, group_starts, turn_starts, whole_tool_groups

__all__ = ["cut_tail", "decode_message", "encode_message", "group_starts", "turn_starts", "whole_tool_groups"]
