"""Pure functions over messages: the codec of the stores (`codec`), turns and cuts (`turns`). No I/O."""

from langchain_memkit.messages.codec import decode_message, encode_message
from langchain_memkit.messages.cuts import whole_tool_groups
from langchain_memkit.messages.turns import cut_tail, group_starts, turn_starts

__all__ = ["cut_tail", "decode_message", "encode_message", "group_starts", "turn_starts", "whole_tool_groups"]
