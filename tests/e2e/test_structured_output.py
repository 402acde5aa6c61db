"""`with_structured_output(method="json_schema")` of a real model: the transcript holds the JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from langchain_memkit import create_runnable_with_message_history

pytestmark = pytest.mark.e2e

Call = Callable[..., Any]
Documents = Callable[[str], list[dict[str, Any]]]

QUESTION = "The sea: which hue, and is it wet? Answer as JSON."  # 17 tokens of answer
CONFIG = {"configurable": {"session_id": "s1", "user_id": "nemo"}}


class Look(BaseModel):
    """How a thing looks."""

    hue: Literal["red", "blue"]
    wet: bool


def stored_answer(documents: Documents) -> dict[str, Any]:
    """What the only turn of the session holds beside its question."""
    ((asked, answered),) = (document["messages"] for document in documents("s1"))
    assert (asked["role"], asked["content"], answered["role"]) == ("human", QUESTION, "ai")
    return answered


def test_object(model: Any, histories: Any, model_server: Any, documents: Documents, call: Call) -> None:
    """A pydantic object is stored as its JSON, and the next turn's prompt holds that as what the model said."""
    chat = create_runnable_with_message_history(model.with_structured_output(Look, method="json_schema"), histories)
    answer = call(chat, "invoke", QUESTION, CONFIG)
    assert type(answer) is Look
    as_json = answer.model_dump_json()
    assert stored_answer(documents)["content"] == as_json
    assert type(call(histories("s1", "nemo"), "view").messages[-1]) is AIMessage
    call(create_runnable_with_message_history(model, histories), "invoke", "Are you sure?", CONFIG)
    assert model_server.prompts(about=as_json)[-1][1:] == [
        ("user", QUESTION),
        ("assistant", as_json),
        ("user", "Are you sure?"),
    ]


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_dict(model: Any, histories: Any, documents: Documents, call: Call, way: str) -> None:
    """A dict by JSON schema is stored as its JSON; of a stream of growing dicts, the last one."""
    schema = Look.model_json_schema()
    chat = create_runnable_with_message_history(model.with_structured_output(schema, method="json_schema"), histories)
    answer = call(chat, way, QUESTION, CONFIG)
    answer = answer[-1] if way == "stream" else answer
    assert Look.model_validate(answer)
    assert json.loads(stored_answer(documents)["content"]) == answer


def test_object_with_raw_message(model: Any, histories: Any, documents: Documents, call: Call) -> None:
    """With `include_raw=True` it is stored as JSON as well."""
    bound = model.with_structured_output(Look, method="json_schema", include_raw=True)
    chat = create_runnable_with_message_history(bound, histories)
    answer = call(chat, "invoke", QUESTION, CONFIG)
    assert answer["parsing_error"] is None
    assert stored_answer(documents)["content"] == answer["parsed"].model_dump_json()
