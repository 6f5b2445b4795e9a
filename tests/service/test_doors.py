"""Every server of the project has the same door: what is too long is refused before anything reads a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.channels.chat.harness import running_chat
from tests.channels.gateway.gateway_world import gateway
from tests.channels.voice.server.front_desk import open_desk

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def of_chat(directory: Path) -> AsyncGenerator[int]:
    async with running_chat(directory) as chat:
        yield chat.port


@asynccontextmanager
async def of_gateway(directory: Path) -> AsyncGenerator[int]:
    async with gateway(directory, {"url": "http://127.0.0.1:9"}) as world:
        yield int(world.origin.rpartition(":")[2])


@asynccontextmanager
async def of_voice(directory: Path) -> AsyncGenerator[int]:
    async with open_desk() as desk:
        yield desk.port


@pytest.mark.parametrize("served", [of_chat, of_gateway, of_voice])
async def test_a_head_that_is_too_long_is_refused_at_the_door(
    served: Callable[[Path], AbstractAsyncContextManager[int]], tmp_path: Path
) -> None:  # contract 12, A4
    async with served(tmp_path) as port:
        for head, status in (
            (b"GET /%b HTTP/1.1\r\n" % (b"x" * 70_000), b"414"),
            (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: %b\r\n" % (b"x" * 70_000), b"431"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + b"\r\n")
            async with asyncio.timeout(30):
                reply = await reader.read()
            assert reply.startswith(b"HTTP/1.1 %b " % status)
            assert b"application/problem+json" in reply
            assert b"connection: close" in reply
            writer.close()
