"""A gateway on a real socket, in front of doubles, for the length of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import orjson

from adapters.http_door import listen
from adapters.models.fake_http import Received
from api.auth import Authenticator, LocalOnly
from channels.gateway.config import GatewayFile, GatewaySettings
from channels.gateway.connection import Pool
from channels.gateway.wire import EventReader
from flow_engine.ports.telemetry import Tracing
from service.gateway import gateway_server, gateway_service
from service.serving import KeyDoor
from service.settings import Settings
from tests.adapters.models.exact_server import Reply

HELLO: Sequence[Mapping[str, str]] = ({"role": "user", "content": "Hello"},)


@dataclass(frozen=True, slots=True)
class World:
    """`origin` without `/v1`."""

    origin: str
    http: httpx2.AsyncClient
    pool: Pool
    clients: list[openai.AsyncOpenAI] = field(default_factory=list[openai.AsyncOpenAI])

    async def chat(self, headers: Mapping[str, str] | None = None, /, **fields: Any) -> httpx2.Response:
        body = {"model": "m", "messages": HELLO, **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=dict(headers or {}))

    async def quick(self, **fields: Any) -> tuple[int, bytes]:
        """Status and body, by a client that costs little: for tests of many requests."""
        body = {"model": "m", "messages": HELLO, **fields}
        async with self.pool.post("/v1/chat/completions", orjson.dumps(body), 10) as reply:
            parts = list[bytes]()
            while piece := await reply.piece():
                parts.append(piece)
            return reply.status, b"".join(parts)

    async def streamed(self, **fields: Any) -> list[bytes]:
        """The data of every event."""
        return events_of((await self.chat(stream=True, **fields)).content)

    def openai(self) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{self.origin}/v1", api_key="any", max_retries=0)
        self.clients.append(client)
        return client


def events_of(content: bytes) -> list[bytes]:
    return [event.data for event in EventReader().feed(content)]


@asynccontextmanager
async def gateway(
    data_dir: Path,
    *backends: Mapping[str, Any],
    authenticator: Authenticator | None = None,
    budgets: Sequence[Mapping[str, Any]] = (),
    tracing: Tracing | None = None,
    **settings: Any,
) -> AsyncGenerator[World]:
    """`backends` as in the file; a `name`, `kind` and `models` of its own is given to each that has none."""
    named = [
        {"name": f"b{number}", "kind": "openai", "models": ["m"], **backend}
        for number, backend in enumerate(backends)
    ]
    file = GatewayFile.model_validate({"backends": named, "budgets": budgets})
    async with gateway_service(
        Settings(data_dir=data_dir),
        GatewaySettings(**settings),
        file,
        KeyDoor(authenticator or LocalOnly()),
        tracing=tracing,
        environ={"SECRET": "sk-upstream"},
    ) as app:
        listening = listen("127.0.0.1", 0)
        server = gateway_server(app)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
        limits = httpx2.Limits(max_connections=400)
        try:
            async with httpx2.AsyncClient(
                base_url=origin, timeout=10, limits=limits, trust_env=False
            ) as http:
                world = World(origin, http, Pool(origin, {"Content-Type": "application/json"}))
                yield world
                world.pool.close()
                for client in world.clients:
                    await client.close()
        finally:
            server.should_exit = True
            await serving


def completion(text: str = "Hi", finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": finish,
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], "usage": usage}


def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


CHUNKS: Sequence[Mapping[str, Any]] = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({}, "stop"),
)


def plain(body: Any, **more: Any) -> Reply:
    return Reply([orjson.dumps(body)], **more)


def stream(*chunks: Any, done: bool = True, **more: Any) -> Reply:
    pieces = [
        b"data: " + (each if isinstance(each, bytes) else orjson.dumps(each)) + b"\n\n" for each in chunks
    ]
    return Reply(
        [*pieces, *([b"data: [DONE]\n\n"] if done else [])], content_type="text/event-stream", **more
    )


def either(body: Any = None, chunks: Sequence[Any] = CHUNKS) -> Callable[[Received], Reply]:
    """A script that streams `chunks` where a stream is asked for, and answers `body` else."""
    return lambda got: stream(*chunks) if got.body.get("stream") else plain(body or completion())
