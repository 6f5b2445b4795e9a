"""A small HTTP server on loopback for the doubles of model servers: one request a connection."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Received:
    """One request: header names in lower case, and the JSON body, `{}` where there is none."""

    path: str
    headers: Mapping[str, str]
    body: Body
    raw: bytes = b""


class FakeServer:
    """Serves on a free port while `running`. `left` holds when clients went away before their answer was
    whole, in seconds of the event loop's clock."""

    def __init__(self) -> None:
        self.port = 0
        self.left: list[float] = []

    async def answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        """Write one reply. The end of the connection ends its body."""
        raise NotImplementedError

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        connections: set[asyncio.Task[None]] = set()
        writers: set[asyncio.StreamWriter] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            task = asyncio.create_task(self._serve(reader, writer))
            connections.add(task)
            task.add_done_callback(lambda done: (connections.discard(done), writers.discard(writer)))

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024, limit=64 * 1024 * 1024)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in writers:  # of a task that has not begun, too
                writer.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both: list[asyncio.Future[Any]] = []
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            content = await reader.readexactly(int(headers.get("content-length", "0")))
            body: Body = json.loads(content) if content else {}
            received = Received(request.split(" ")[1], headers, body, content)
            answering = asyncio.ensure_future(self.answer(received, writer))
            both = [answering, asyncio.ensure_future(reader.read(1))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left.append(asyncio.get_running_loop().time())
            else:
                answering.result()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone, as clients do that have heard enough
        finally:
            writer.close()
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
