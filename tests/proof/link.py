"""A TCP proxy that can be told to hold, to cut, and to go elsewhere: the network between two processes."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

CHUNK = 65_536


class Link:
    """Passes bytes from `port` to `target` on loopback.

    While held, nothing passes. `cut_chance` is how likely the answer to a request that holds `cut_marker` is
    thrown away together with its connection: the request has taken effect, and nobody is told.
    """

    def __init__(self, port: int, target: int, *, cut_marker: bytes = b"EVALSHA") -> None:
        self.port = port
        self.target = target
        self.cut_chance = 0.0
        self.cuts = 0
        self._cut_marker = cut_marker
        self._passing = asyncio.Event()
        self._passing.set()
        self._random = random.Random(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._tasks)
        await asyncio.sleep(0)  # what is closed is gone with the next turn of the loop

    def hold(self) -> None:
        self._passing.clear()

    def release(self) -> None:
        self._passing.set()

    def cut_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
                await self._join(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        cut = asyncio.Event()

        async def out() -> None:
            while data := await reader.read(CHUNK):
                await self._passing.wait()
                if self._cut_marker in data and self._random.random() < self.cut_chance:
                    cut.set()
                far_writer.write(data)
                await far_writer.drain()

        async def back() -> None:
            while data := await far_reader.read(CHUNK):
                await self._passing.wait()
                if cut.is_set():
                    self.cuts += 1
                    return
                writer.write(data)
                await writer.drain()

        sides = {asyncio.create_task(out()), asyncio.create_task(back())}
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)
            far_writer.close()
