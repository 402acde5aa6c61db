"""Pure functions over messages: the codec of the stores (`codec`), turns and cuts (`turns`). No I/O."""

from langchain_memkit.messages.codec import decode_message, encode_message
from langchain_memkit.messages.turns import cut_tail, drop_open_tool_calls, group_starts, turn_starts

__all__ = ["cut_tail", "decode_message", "drop_open_tool_calls", "encode_message", "group_starts", "turn_starts"]
