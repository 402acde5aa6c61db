"""A chat app's server: sessions with titles, streaming, regenerate, edit, undo, fork, and "why did it say that?".

pip install "langchain-memkit[mongodb]" langchain-openai fastapi uvicorn
MEMKIT_URI=mongodb://localhost:27017 uvicorn --app-dir examples chat_api:app

It needs OPENAI_API_KEY, or OPENAI_BASE_URL of a server of your own. Without MEMKIT_URI conversations are in chat.db.
The header X-User stands for your authentication: replace `user`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from langchain_memkit import (
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    errors,
    explain_last_turn,
    session,
)

logger = logging.getLogger("chat")
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "You are a friendly assistant."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one factory for the process; all requests share its connections."""
    uri = os.environ.get("MEMKIT_URI", "chat.db")
    kind: Any = MongoDBChatMessageHistory if uri.startswith("mongodb") else SQLiteChatMessageHistory
    model = ChatOpenAI(model=os.environ.get("CHAT_MODEL", "gpt-4o-mini"), stream_usage=True)
    async with kind.factory(uri) as histories:
        await histories.asetup()
        trim = create_trim_preprocessor(int(os.environ.get("CHAT_TOKENS", "8000")))
        app.state.histories, app.state.model = histories, model
        app.state.chat = create_runnable_with_message_history(
            PROMPT | model, histories, preprocessor=trim, on_dropped_turn="raise"
        )
        yield


app = FastAPI(title="A chat with memory", lifespan=lifespan)


# Which pages may call it is for you to say: app.add_middleware(CORSMiddleware, allow_origins=["https://chat.example"])


class BodyLimit:
    """Answers 413 to a request whose body is longer than so many bytes, whether or not it says how long it is."""

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        left = self.most

        async def limited() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, "The request is too large.")
            return message

        await self.app(scope, limited, send)


app.add_middleware(BodyLimit, most=500_000)


def told(error: Exception) -> tuple[int, str]:
    """Return status and text for an error. Only what memkit says of arguments goes out: others may tell too much."""
    if isinstance(error, errors.ConfigurationError):
        return 422, str(error)
    if isinstance(error, (errors.HistoryConflictError, errors.IdempotencyConflictError)):
        return 409, "The conversation has changed meanwhile: load it again."
    if isinstance(error, (errors.HistoryReadError, errors.HistoryWriteError)):
        return 503, "The conversation is not available at the moment."
    return 500, "Something went wrong."


@app.exception_handler(errors.MemkitError)
async def failed(request: Request, error: Exception) -> JSONResponse:
    status, text = told(error)
    return JSONResponse({"detail": text}, status)


def user(x_user: Annotated[str, Header()]) -> str:
    """Return the user whom your app has authenticated."""
    return x_user


User = Annotated[str, Depends(user)]


class Question(BaseModel):
    """A message of the user; with `replaces`, the position of the turn in whose place it is asked."""

    text: str = Field(min_length=1, max_length=20_000)
    replaces: int | None = None


class Details(BaseModel):
    """What a list of conversations shows; what is left out stays as it is."""

    title: str | None = None
    metadata: dict[str, Any] | None = None


# -- conversations


@app.get("/sessions")
async def list_sessions(user: User, before: str | None = None, folder: str | None = None) -> list[dict[str, Any]]:
    """List a page of the user's conversations, the last used first; `before` is the cursor of the page's last one."""
    where = {"folder": folder} if folder else None
    page = await app.state.histories.alist_sessions(user, limit=50, before=before, where=where)
    names = ("session_id", "title", "preview", "metadata", "turns", "updated_at", "cursor")
    return [{name: getattr(info, name) for name in names} for info in page]


@app.patch("/sessions/{session_id}")
async def update_session(session_id: str, user: User, details: Details) -> None:
    await app.state.histories.aupdate_session(session_id, user, **details.model_dump())


@app.post("/sessions/{session_id}/title")
async def generate_title(session_id: str, user: User) -> str:
    title: str = await app.state.histories.agenerate_title(session_id, app.state.model, user)
    return title


@app.delete("/sessions/{session_id}")
async def delete_session(session_id: str, user: User) -> None:
    await app.state.histories(session_id, user).aclear()


@app.get("/sessions/{session_id}")
async def read_session(session_id: str, user: User) -> list[dict[str, Any]]:
    """Return the messages that are shown, each with the position of its turn."""
    turns = app.state.histories(session_id, user).aiter_turns()
    return [{"seq": t.seq, "role": m.type, "text": m.text, "id": m.id} async for t in turns for m in t.messages]


@app.get("/search")
async def search(q: str, user: User) -> list[dict[str, Any]]:
    """Find what was said, the newest first."""
    hits = await app.state.histories.asearch_messages(user, q)
    return [{"session_id": hit.session_id, "seq": hit.seq, "excerpt": hit.excerpt} for hit in hits]


# -- talking


@app.post("/sessions/{session_id}/messages")
async def ask(session_id: str, user: User, question: Question) -> StreamingResponse:
    """Stream an answer; the turn is stored before the stream ends, in place of an older one if asked for."""
    return await answer(question.text, config_of(session_id, user, question.replaces))


@app.post("/sessions/{session_id}/regenerate")
async def regenerate(session_id: str, user: User) -> StreamingResponse:
    """Have the last question answered again; the old answer is replaced when the new one is complete."""
    again = await app.state.histories(session_id, user).aregenerate()
    return await answer(again.messages, config_of(session_id, user, again.replaces))


@app.post("/sessions/{session_id}/undo")
async def undo(session_id: str, user: User) -> bool:
    """Take the last edit or regenerated answer back, and say whether there was one."""
    undone: bool = await app.state.histories(session_id, user).aundo_edit()
    return undone


@app.post("/sessions/{session_id}/fork")
async def fork(session_id: str, user: User, into: str, at: int | None = None) -> None:
    """Copy a conversation, or its turns up to a position, into a new session."""
    await app.state.histories(session_id, user).afork(into, at=at)


@app.get("/sessions/{session_id}/why")
async def why(session_id: str, user: User) -> dict[str, Any]:
    """Show what the model was given in the last turn, and from where each part came."""
    trace = explain_last_turn(app.state.chat, config_of(session_id, user))
    if trace is None:
        raise HTTPException(404, "No turn of this conversation is among the last ones of this process.")
    return trace.to_dict()


def config_of(session_id: str, user: str, replaces: int | None = None) -> RunnableConfig:
    config = session(session_id, user_id=user)
    if replaces is not None:
        config["configurable"]["replaces"] = replaces
    return config


async def answer(question: Any, config: RunnableConfig) -> StreamingResponse:
    """Stream the answer as server-sent events: token, then end, or error if nothing is stored."""
    chunks = app.state.chat.astream({"input": question}, config)
    first = await anext(chunks, None)  # the history is read before it: what fails until then is answered with a status

    async def events() -> AsyncIterator[str]:
        try:
            async with aclosing(chunks):
                if first is not None:
                    yield event("token", first.text)
                async for chunk in chunks:
                    yield event("token", chunk.text)
            yield event("end", "")
        except Exception as error:
            logger.exception("an answer was not completed or not stored")
            yield event("error", told(error)[1])

    return StreamingResponse(events(), media_type="text/event-stream")


def event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
