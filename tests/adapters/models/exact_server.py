"""A server on loopback that answers with exact bytes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adapters.models.fake_http import FakeServer, Received


@dataclass(frozen=True, slots=True)
class Reply:
    """The bytes of a reply's body, piece by piece: each `pause_s` seconds after the one before. One that is
    `cut` promises a byte more than it sends, and so breaks off."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pause_s: float = 0.0
    cut: bool = False


class ExactServer(FakeServer):
    """Answers with the bytes of a script, whatever is asked. None: the connection breaks off without a word.
    `requests` holds what it was sent, oldest first."""

    def __init__(self, script: Callable[[Received], Reply | None]) -> None:
        super().__init__()
        self._script = script
        self.requests: list[Received] = []

    async def answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        self.requests.append(received)
        reply = self._script(received)
        if reply is None:
            return
        lines = [f"HTTP/1.1 {reply.status} Scripted", f"Content-Type: {reply.content_type}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()] + ["Connection: close"]
        if reply.cut:
            lines.append(f"Content-Length: {sum(map(len, reply.pieces)) + 1}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for piece in reply.pieces:
            await asyncio.sleep(reply.pause_s)
            writer.write(piece)
            await writer.drain()
