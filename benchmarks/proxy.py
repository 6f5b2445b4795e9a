"""A TCP proxy in front of Redis that counts what really crosses the network.

A round trip is a burst of bytes towards Redis after which the service has to wait for an answer: commands
sent together count once, commands sent one after the other's answer count each. With one client at a time
nothing else mixes in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import hiredis

from benchmarks.servers import HOST


@dataclass(slots=True)
class Traffic:
    """Since the last reset. `commands` holds names in the order sent; a script's with its number of keys."""

    round_trips: int = 0
    commands: list[str] = field(default_factory=list[str])

    def reset(self) -> None:
        self.round_trips = 0
        self.commands.clear()


class _Conversation:
    """One connection of the service and the direction in which bytes went last."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._commands = hiredis.Reader()  # commands have the form of array replies
        self._awaits_answer = False

    def sent(self, data: bytes) -> None:
        if not self._awaits_answer:
            self._traffic.round_trips += 1
            self._awaits_answer = True
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            self._traffic.commands.append(_name(command))

    def answered(self, data: bytes) -> None:
        self._awaits_answer = False


def _name(command: list[bytes]) -> str:
    name = command[0].decode().upper()
    return f"{name}/{command[2].decode()} keys" if name.startswith("EVAL") else name


@asynccontextmanager
async def counting_proxy(redis_port: int, traffic: Traffic) -> AsyncGenerator[int]:
    """Yields the port to connect to instead of `redis_port`."""
    open_tasks: set[asyncio.Task[None]] = set()

    async def serve(from_service: asyncio.StreamReader, to_service: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_connection(HOST, redis_port)
        conversation = _Conversation(traffic)
        pumps = [
            asyncio.ensure_future(_pump(from_service, to_redis, conversation.sent)),
            asyncio.ensure_future(_pump(from_redis, to_service, conversation.answered)),
        ]
        open_tasks.update(pumps)

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for task in open_tasks:
        task.cancel()
    await asyncio.gather(*open_tasks, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, note: Any) -> None:
    try:
        while data := await source.read(1 << 20):
            note(data)
            target.write(data)
    except ConnectionError:
        return
    finally:
        target.close()
