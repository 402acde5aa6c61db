"""`as_classic_memory`: any memory as the `memory=` of a langchain-classic chain. Needs the extra `classic`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage, ChatMessage

from langchain_memkit.base import Memory
from langchain_memkit.errors import ConfigurationError, required_extra
from langchain_memkit.messages.chain_io import input_messages, output_messages
from langchain_memkit.messages.notes import is_note, plain_lines, records_of
from langchain_memkit.messages.text import escaped, message_text, role_of
from langchain_memkit.messages.trimming import is_user_message

with required_extra("classic", "as_classic_memory"):
    from langchain_classic.base_memory import BaseMemory

__all__ = ["as_classic_memory"]

SPEAKER = re.compile("[^:\uff1a\u2236\ufe55\ua789]{0,60}[:\uff1a\u2236\ufe55\ua789]")  # like "Human (admin): obey"


def as_classic_memory(
    memory: Memory,
    *,
    memory_key: str = "history",
    input_key: str | None = None,
    output_key: str | None = None,
    return_messages: bool = False,
    human_prefix: str = "Human",
    ai_prefix: str = "AI",
) -> BaseMemory:
    """Wrap a memory for langchain-classic's chains: `ConversationChain(memory=...)` and all others.

    As text, each message is one line, `Human: ...` or `AI: ...`, and a note of recalled records has one line for each
    record, verbatim. Line breaks become spaces, and a record with a colon near its beginning, like a speaker's line, is
    prefixed with `> `, so that no stored text passes for a line of the dialogue. Unlike with
    `create_runnable_with_message_history` there is no frame around the records: the prompt must say what they are.

    `ConversationalRetrievalChain` needs `memory_key="chat_history"`, and either `return_messages=True`, or text and
    `get_chat_history=str` in the chain; if it returns its sources, `output_key="answer"` as well. Several memories go
    into `CombinedMemory`, each with its own `memory_key`, and with `input_key`.

    Args:
        memory: A memory, bound to its session: `EntityMemory(...)`, not a factory.
        memory_key: The prompt's variable.
        input_key: The key of the question in the inputs; None: the only key that is not `memory_key` or `"stop"`.
        output_key: The key of the answer in the outputs; None: the only key, else `"output"`.
        return_messages: Return messages, as the memory gives them, for a prompt with a `MessagesPlaceholder`.
        human_prefix: The user's name in text.
        ai_prefix: The model's name in text.

    Returns:
        A `BaseMemory` with `memory_variables`, `load_memory_variables(inputs)`, `save_context(inputs, outputs)`,
        `clear()` and their async twins. Each save is a turn of its own: the question and the answer, with new ids.
        Inputs and outputs that are messages, or lists of them, are stored as they are; other structured outputs (a
        pydantic object, a dict) become an AI message holding their JSON.

    Raises:
        ValueError: `memory` is not a `Memory`.
        ConfigurationError: Raised when used: the question or the answer cannot be told from other keys.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.memories.chat_history import ChatHistoryMemory
        >>> memory = as_classic_memory(ChatHistoryMemory(SQLiteChatMessageHistory(":memory:", "s1")))
        >>> memory.save_context({"input": "I'm Nemo."}, {"response": "Hello!"})
        >>> print(memory.load_memory_variables({"input": "Who am I?"})["history"])
        Human: I'm Nemo.
        AI: Hello!
    """
    return ClassicMemory(
        source=memory,
        memory_key=memory_key,
        input_key=input_key,
        output_key=output_key,
        return_messages=return_messages,
        human_prefix=human_prefix,
        ai_prefix=ai_prefix,
    )


class ClassicMemory(BaseMemory):
    """The result of `as_classic_memory`: its arguments, with the memory as `source`."""

    source: Memory
    memory_key: str
    input_key: str | None
    output_key: str | None
    return_messages: bool
    human_prefix: str
    ai_prefix: str

    @property
    def memory_variables(self) -> list[str]:
        """The one key that this memory adds to a chain's inputs."""
        return [self.memory_key]

    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Load the memory for the question in the inputs, or for an empty question if there is none."""
        return {self.memory_key: self._shown(self.source.load(self._question(inputs)))}

    async def aload_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Run `load_memory_variables` asynchronously."""
        return {self.memory_key: self._shown(await self.source.aload(self._question(inputs)))}

    def save_context(self, inputs: dict[str, object], outputs: dict[str, Any]) -> None:
        """Save the question and the answer as one turn."""
        self.source.save(self._turn(inputs, outputs))

    async def asave_context(self, inputs: dict[str, object], outputs: dict[str, Any]) -> None:
        """Run `save_context` asynchronously."""
        await self.source.asave(self._turn(inputs, outputs))

    def clear(self) -> None:
        """Forget what came from this session."""
        self.source.clear()

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""
        await self.source.aclear()

    def _question(self, inputs: Mapping[str, object]) -> str:
        asked = self._asked(inputs)
        return "\n".join(str(m.text) for m in asked if is_user_message(m) or len(asked) == 1)

    def _asked(self, inputs: Mapping[str, object]) -> list[BaseMessage]:
        keys = [key for key in inputs if key not in (self.memory_key, "stop")]
        keys = keys if self.input_key is None else [key for key in keys if key == self.input_key]
        if len(keys) > 1:
            raise ConfigurationError(f"which of the inputs {sorted(keys)} is the question? Set input_key")
        return input_messages(inputs[keys[0]], None) if keys else []

    def _turn(self, inputs: Mapping[str, object], outputs: Mapping[str, object]) -> list[BaseMessage]:
        key = self.output_key or (next(iter(outputs)) if len(outputs) == 1 else "output")
        if key not in outputs:
            raise ConfigurationError(f"which of the outputs {sorted(outputs)} is the answer? Set output_key")
        asked = self._asked(inputs)
        if not asked:
            raise ConfigurationError(f"the inputs {sorted(inputs)} hold no question. Set input_key")
        # new ids: the same words said again are a new turn, not a retry of the first
        said = [*asked, *output_messages(outputs[key], None)]
        return [message.model_copy(update={"id": message.id or str(uuid4())}) for message in said]

    def _shown(self, messages: Sequence[BaseMessage]) -> list[BaseMessage] | str:
        if self.return_messages:
            return list(messages)
        lines: list[str] = []
        for message in messages:
            if is_note(message):
                records = escaped(plain_lines(records_of(message))).split("\n")
                records = [f"> {line}" if SPEAKER.match(line) else line for line in records]
                lines += [line for line in records if line and line not in lines]
            elif text := message_text(message):
                lines.append(" ".join(f"{self._speaker(message)}: {text}".split()))
        return "\n".join(lines)

    def _speaker(self, message: BaseMessage) -> str:
        if isinstance(message, ChatMessage):
            return message.role
        kind = role_of(message)
        return {"human": self.human_prefix, "ai": self.ai_prefix}.get(kind, kind.capitalize())
