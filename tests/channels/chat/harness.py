"""A chat on loopback with real sockets, on a scripted model, and a client that keeps every frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
from websockets.asyncio.client import ClientConnection, connect

from adapters.http_door import listen
from adapters.models.scripted import Says, ScriptedModel, Step
from api.auth import Authenticator, LocalOnly
from channels.chat.sessions import Sessions
from channels.chat.settings import ChatSettings
from flow_engine.ports.models import LLMRequest
from flow_engine.ports.telemetry import Tracing
from memory.chat_in_process import InProcessChat
from service.chat import chat_server, chat_service
from service.settings import Settings

WITHIN_S = 30.0

Script = Sequence[Step] | Callable[[LLMRequest], Step]

FINE: Script = (Says("fine"),)

WEATHER = {
    "name": "weather_agent",
    "description": "Tells the weather of a city.",
    "task": "Tell the weather.",
    "examples": ["What is the weather in Rome?", "Will it rain tomorrow?", "How hot is it in Milan today?"],
}
ORDERS = {
    "name": "order_agent",
    "description": "Takes orders of pizza and drinks.",
    "task": "Take an order.",
    "examples": ["I would like to order a pizza", "Two margheritas please", "Cancel my order"],
}


@dataclass
class Client:
    """One WebSocket. `frames` are all that came, oldest first."""

    socket: ClientConnection
    frames: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, **frame: Any) -> None:
        await self.socket.send(orjson.dumps(frame).decode())

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(WITHIN_S):
            frame: dict[str, Any] = orjson.loads(await self.socket.recv())
        self.frames.append(frame)
        return frame

    async def until(self, is_it: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        while not is_it(frame := await self.next()):
            pass
        return frame

    async def final(self, message_id: str) -> dict[str, Any]:
        return await self.until(lambda frame: frame["id"] == message_id and frame["final"])

    async def say(self, message_id: str, content: str) -> dict[str, Any]:
        """The final frame of the answer."""
        await self.send(type="message", id=message_id, content=content)
        return await self.final(message_id)

    def text(self, message_id: str) -> str:
        return "".join(f["content"] for f in self.frames if f["id"] == message_id and f["type"] == "dialogue")

    def of(self, message_id: str, kind: str) -> list[dict[str, Any]]:
        return [f for f in self.frames if f["id"] == message_id and f["type"] == kind]

    @property
    def numbers(self) -> list[int]:
        return [f["seq"] for f in self.frames if f["seq"] is not None]

    @property
    def session(self) -> str:
        return self.frames[0]["session"]


@dataclass
class Chat:
    """A running chat. `port` is on loopback."""

    port: int
    http: httpx.AsyncClient
    sessions: Sessions
    model: ScriptedModel

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/chat/ws"

    async def add(self, *rows: Mapping[str, Any]) -> None:
        for row in rows:
            answer = await self.http.post("/v1/ai-agents", json=row)
            assert answer.status_code == 201, answer.text

    @asynccontextmanager
    async def client(
        self, user: str = "u1", *, query: str = "", headers: Mapping[str, str] | None = None, **hello: Any
    ) -> AsyncGenerator[Client]:
        async with connect(self.url + query, additional_headers=headers, proxy=None) as opened:
            client = Client(opened)
            await client.send(type="hello", user=user, **{"session": None, "after": None, **hello})
            await client.next()
            yield client

    async def decisions(self, session: str) -> list[dict[str, Any]]:
        return (await self.http.get(f"/v1/chat/sessions/{session}/decisions")).json()

    async def runs(self, session: str) -> list[dict[str, Any]]:
        return (await self.http.get(f"/v1/chat/sessions/{session}/runs")).json()


@asynccontextmanager
async def running_chat(
    directory: Path,
    script: Script = FINE,
    *,
    routing: bool = False,
    authenticator: Authenticator | None = None,
    shared: Any = None,
    on_wire: bool = False,
    settings: Mapping[str, Any] | None = None,
    tracing: Tracing | None = None,
    **chat: Any,
) -> AsyncGenerator[Chat]:
    """Without `routing` the scores decide alone; `settings` are the engine's, `chat` the chat's. `on_wire`
    has the model of the environment asked instead of the script."""
    model = ScriptedModel(script)
    base = Settings(data_dir=directory, llm_model="openai:scripted" if routing else None, **(settings or {}))
    if shared is None and base.redis_url is None:
        store = InProcessChat(monotonic=asyncio.get_running_loop().time)
        shared = (store, store)
    async with chat_service(
        base,
        ChatSettings(**chat),
        authenticator or LocalOnly(),
        model=None if on_wire else model,
        shared=shared,
        tracing=tracing,
    ) as service:
        listening = listen("127.0.0.1", 0)
        port: int = listening.getsockname()[1]
        server = chat_server(service.app)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WITHIN_S) as http:
                yield Chat(port, http, service.sessions, model)
        finally:
            server.should_exit = True
            await serving
