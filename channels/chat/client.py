"""A client of the chat's WebSocket, for the terminal and for demonstrations."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from channels.chat.app import SOCKET_PATH
from flow_engine.errors import CallTheOperator, RetryLater

OPEN_WITHIN_S: Final = 10.0


@dataclass(slots=True)
class ChatClient:
    """One connection, text frames of JSON. `last_seq` is the number to say hello with after it was lost, 0
    before the first frame."""

    socket: ClientConnection
    session: str = ""
    last_seq: int = 0

    async def send(self, **frame: Any) -> None:
        """Raises RetryLater `connection_lost`."""
        try:
            await self.socket.send(orjson.dumps(frame).decode())
        except ConnectionClosed as closed:
            raise _lost(closed) from None

    async def receive(self) -> dict[str, Any]:
        """The next frame, as JSON holds it. Raises RetryLater `connection_lost`."""
        try:
            frame: dict[str, Any] = orjson.loads(await self.socket.recv())
        except ConnectionClosed as closed:
            raise _lost(closed) from None
        self.last_seq = frame["seq"] or self.last_seq
        return frame


@asynccontextmanager
async def chat_client(
    url: str, user: str, *, session: str | None = None, token: str | None = None, key: str | None = None
) -> AsyncGenerator[ChatClient]:
    """`url` is the URL of `flow-engine chat serve`, http or https. The welcome has been received. Raises
    CallTheOperator `chat_refused`: not reached, or not with this credential."""
    address = url.rstrip("/").replace("http", "ws", 1) + SOCKET_PATH + (f"?token={token}" if token else "")
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        opened = await connect(
            address, additional_headers=headers, open_timeout=OPEN_WITHIN_S, proxy=None, max_size=None
        )
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise CallTheOperator("chat_refused", f"no chat at {url}: {error}") from None
    async with opened:
        client = ChatClient(opened)
        await client.send(type="hello", user=user, session=session, after=None)
        welcome = await client.receive()
        if welcome["type"] == "error":
            raise CallTheOperator("chat_refused", welcome["content"]["message"])
        client.session = welcome["session"]
        yield client


def _lost(closed: ConnectionClosed) -> RetryLater:
    code = closed.rcvd.code if closed.rcvd else None
    return RetryLater("connection_lost", f"the connection is closed, code {code}")
