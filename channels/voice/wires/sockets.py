"""WebSockets on picows: whole messages in, text frames out, bounded both ways.

picows calls back at once for every frame, without a task or a queue between the socket and whoever handles
it; that is where most of the time of a bridge goes otherwise.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog
from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,  # pyright: ignore[reportUnknownVariableType] - untyped keywords
)

from adapters.outbound.network import public_tls

log: Any = structlog.get_logger("flow_engine.voice")

MAX_LINE_MESSAGE = 1024 * 1024
MAX_MODEL_MESSAGE = 4 * 1024 * 1024
MOST_UNSENT_BYTES = 8 * 1024 * 1024
MOST_UNREADABLE = 50
CLOSE_WITHIN_S = 5.0
HANDSHAKE_WITHIN_S = 4.5
"""Less than a whole connection may take, so that it is this limit that closes the socket."""

PING_AFTER_S = 10.0
PONG_WITHIN_S = 10.0

TEXT = WSMsgType.TEXT


class MessageSocket(WSListener):
    """One connection. Subclasses handle `message` and `gone`; `gone` is called once. What the other side does
    not read is kept up to `MOST_UNSENT_BYTES` bytes; beyond that the connection is given up as failed.
    `is_congested` says that something is waiting, so that what is worthless late need not be sent."""

    __slots__ = (
        "_begun",
        "_closing",
        "_is_given_up",
        "_max_message",
        "_transport",
        "_unreadable",
        "is_congested",
        "said_goodbye",
    )

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._transport: WSTransport | None = None
        """While it is connected."""
        self._begun: bytearray | None = None
        """A message that comes in several frames, as far as it is there."""
        self._unreadable = 0
        self._is_given_up = False
        """Nobody waits for it to be connected any more."""
        self._closing: asyncio.TimerHandle | None = None
        self.is_congested = False
        self.said_goodbye = False
        """The other side has sent a close frame: it ends the connection on purpose."""

    async def connect(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """To the server at a ws or wss URL. Raises TimeoutError, OSError, WSError. Cancelled, it is not
        connected later either."""
        try:
            await ws_connect(
                lambda: self,
                url,
                ssl_context=public_tls() if url.startswith("wss:") else None,
                extra_headers=headers,
                websocket_handshake_timeout=HANDSHAKE_WITHIN_S,
                max_frame_size=self._max_message,
                max_redirects=0,
                enable_auto_ping=True,
                auto_ping_idle_timeout=PING_AFTER_S,
                auto_ping_reply_timeout=PONG_WITHIN_S,
            )
        except asyncio.CancelledError:
            self._is_given_up = True  # picows goes on with the handshake
            self.drop()
            raise

    def message(self, message: bytes) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        raise NotImplementedError

    def send(self, message: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        if self.is_congested and transport.underlying_transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            log.warning("socket_given_up", reason="the other side does not read")
            self.drop()
        else:
            transport.send(TEXT, message)

    def close(self) -> None:
        """Send what is waiting, say goodbye, and see that the connection ends within seconds. Never
        raises."""
        transport = self._transport
        if transport is not None and self._closing is None:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(CLOSE_WITHIN_S, transport.disconnect, False)

    def drop(self) -> None:
        """End the connection now; what is waiting is lost."""
        if self._transport is not None:
            self._transport.disconnect(False)

    def unreadable(self, what: str) -> None:
        """Note a message that is invalid; too many of them end the connection."""
        self._unreadable += 1
        log.debug("message_unreadable", what=what)
        if self._unreadable == MOST_UNREADABLE:
            log.warning("socket_given_up", reason="the other side sends garbage")
            self.drop()

    # picows ----------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self._is_given_up:
            self.drop()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is TEXT and frame.fin and self._begun is None:
            self.message(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            self.said_goodbye = True
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif kind in (TEXT, WSMsgType.CONTINUATION):
            begun = self._begun = bytearray() if self._begun is None else self._begun
            begun += frame.get_payload_as_bytes()
            if len(begun) > self._max_message:
                log.warning("socket_given_up", reason="a message is too large")
                self.drop()
            elif frame.fin:
                self._begun = None
                self.message(bytes(begun))
        elif kind == WSMsgType.BINARY:
            self.unreadable("a binary frame")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._transport is not None:
            self._transport = None
            if self._closing is not None:
                self._closing.cancel()
            task = asyncio.get_running_loop().create_task(_settled(transport))
            _settling.add(task)
            task.add_done_callback(_settling.discard)
            self.gone()

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False


_settling: set[asyncio.Task[None]] = set()


async def _settled(transport: WSTransport) -> None:
    """picows keeps why a connection broke for whoever waits for its end, and complains if nobody does."""
    try:
        await transport.wait_disconnected()
    except WSError as error:
        log.warning("socket_broken", reason=str(error))
