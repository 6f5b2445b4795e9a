"""Scripts played over real sockets, and what was sent kept by the number of its commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson

from adapters.http_door import door_server, listen
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply
from memory.connection import RedisMemory
from tests.api.harness import Scene, open_scene
from tests.scripted.conversations import Ask, Script


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Wire:
    """HTTP/1.1 over one connection, which can be cut. A lost one is opened again."""

    port: int
    _open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, content: bytes = b"", *, key: str | None = None) -> Answer:
        reader, writer = await self._connected()
        writer.write(_message(method, path, content, key))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return Answer(int(head.split(" ", 2)[1]), await reader.readexactly(length))

    async def cut(self, ask: Ask, *, whole: bool) -> None:
        """Send the request, or half of its body, and cut the connection before any answer."""
        _, writer = await self._connected()
        message = _message(ask.method, ask.path, ask.content, ask.key)
        writer.write(message if whole else message[: -len(ask.content) // 2])
        await writer.drain()
        writer.transport.abort()
        self._open = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self.port, limit=16 * 1024 * 1024)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()


def _message(method: str, path: str, content: bytes, key: str | None) -> bytes:
    named = "" if key is None else f"idempotency-key: {key}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{named}content-length: {len(content)}\r\n\r\n"
    return head.encode() + content


HANDLER = "https://claims.example.com/close"
VERDICTS = (
    OutboundReply(200, b"true"),
    OutboundReply(200, b"false"),
    OutboundReply(503, b""),
    OutboundRefused("forbidden"),
    OutboundFailed("away"),
)


@asynccontextmanager
async def samples_served(
    memory: RedisMemory | None = None, **settings: Any
) -> AsyncGenerator[tuple[Scene, Wire]]:
    """A service with the samples, on a Redis in this process unless one is given. The closure handler that
    the samples name answers each way in turn."""
    answers = {HANDLER: VERDICTS * 200}
    async with (
        open_scene(samples=True, memory=memory, answers=answers, **settings) as scene,
        served(scene) as wire,
    ):
        yield scene, wire


@asynccontextmanager
async def served(scene: Scene) -> AsyncGenerator[Wire]:
    """The scene's service behind its door, on a port of its own."""
    listening = listen("127.0.0.1", 0)
    server = door_server(scene.app, signals=False)
    serving = asyncio.create_task(server.serve([listening]))
    wire = Wire(listening.getsockname()[1])
    try:
        yield wire
    finally:
        wire.close()
        scene.service.end_streams()
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving


@dataclass
class Played:
    """`sent` are replies by the number of their commit, `prompts` what `GET /prompt` told right after it."""

    script: Script
    sent: dict[int, bytes] = field(default_factory=dict[int, bytes])
    prompts: dict[int, str] = field(default_factory=dict[int, str])
    refused: int = 0
    faults: int = 0


async def play(scene: Scene, wire: Wire, script: Script) -> Played:
    """The script from its first request to its last, with the background work between them. Fails for a
    server error, and for a repetition that gets other bytes."""
    played, last = Played(script), 0
    talk = ConversationRef("default", script.conversation_id)
    for ask in script.asks:
        scene.clock.at += timedelta(seconds=ask.after_s)
        answer = await _asked(wire, ask, played)
        seq = (await scene.memory.listing.one(talk)).seq
        assert seq - last in (0, 1), f"{ask} made {seq - last} commits"
        if seq > last:
            played.sent[seq] = answer.body
            if b'"prompt":' not in answer.body:
                await _read_prompt(scene, wire, talk, seq, played)
        played.refused += answer.status != 200 or answer.json.get("result") is False
        await scene.work()
        last = (await scene.memory.listing.one(talk)).seq
    return played


async def _read_prompt(scene: Scene, wire: Wire, talk: ConversationRef, seq: int, played: Played) -> None:
    """What a model reads after a commit; telling a command with it is a commit of its own."""
    reply = await wire.send("GET", f"/v1/prompt/{talk.conversation_id}")
    after = (await scene.memory.listing.one(talk)).seq
    if after > seq:
        played.sent[after] = reply.body
    if reply.status == 200:
        played.prompts[after] = reply.json["prompt"]


async def _asked(wire: Wire, ask: Ask, played: Played) -> Answer:
    played.faults += ask.fault is not None
    if ask.fault in ("cut_within", "cut_after"):
        await wire.cut(ask, whole=ask.fault == "cut_after")
    answer = await wire.send(ask.method, ask.path, ask.content, key=ask.key)
    assert answer.status < 500, answer.body
    if ask.fault == "repeated":
        again = await wire.send(ask.method, ask.path, ask.content, key=ask.key)
        assert again == answer, "a repeated request gets the same bytes"
    return answer
