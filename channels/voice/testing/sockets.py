"""What both doubles need of a WebSocket: whole text messages, a close code, and ways to behave badly."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

MOST_BYTES = 64 * 1024 * 1024
"""A double takes what a real server would refuse: it is not the one that is tested."""

ABNORMAL = 1006
"""The close code of a connection that ended without one."""

T = TypeVar("T")


class Socket(WSListener):
    """One side of a connection. Reads whole messages, of text or bytes alike."""

    def __init__(
        self,
        on_message: Callable[[bytes], None],
        on_open: Callable[[], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.closed = asyncio.Event()
        self.close_code: int = ABNORMAL
        self._on_message = on_message
        self._on_open = on_open
        self._on_close = on_close
        self._transport: WSTransport | None = None
        self._parts: list[bytes] = []

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self.closed.is_set()

    def send(self, message: bytes | str) -> None:
        """Without effect when nobody is there any more."""
        transport = self._transport
        if transport is not None and not self.closed.is_set() and not transport.is_close_frame_sent:
            transport.send(WSMsgType.TEXT, message)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Politely: the code, then the end of the connection. Never raises for one that is gone."""
        if self._transport is not None and not self.closed.is_set():
            # Its enumeration lists some codes only; the wire knows any number.
            self._transport.send_close(code, reason.encode())  # type: ignore[arg-type]
            self._transport.disconnect()

    def drop(self) -> None:
        """The connection is gone, without a word."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def stop_reading(self) -> None:
        """Leave unread what the other side sends from now on."""
        if self.is_open and self._transport is not None:
            self._transport.underlying_transport.pause_reading()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self._on_open is not None:
            self._on_open()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self.close_code = int(frame.get_close_code().value)
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            self._parts.append(frame.get_payload_as_bytes())
            if frame.fin:
                message = b"".join(self._parts)
                self._parts.clear()
                self._on_message(message)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.closed.set()
        if self._on_close is not None:
            self._on_close()


class Peer(Protocol):
    """The other side of a connection within the process."""

    def message(self, message: bytes) -> None: ...

    def gone(self) -> None: ...


class LocalSocket(Socket):
    """One side of a connection within the process: no network, and no time between the two."""

    def __init__(self, on_message: Callable[[bytes], None], open_peer: Callable[[LocalSocket], Peer]) -> None:
        super().__init__(on_message)
        self._is_read = True
        self._peer = open_peer(self)

    @property
    def is_open(self) -> bool:
        return not self.closed.is_set()

    def deliver(self, message: bytes) -> None:
        """What the other side sends."""
        if self.is_open and self._is_read:
            self._on_message(message)

    def send(self, message: bytes | str) -> None:
        if self.is_open:
            self._peer.message(message.encode() if isinstance(message, str) else message)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Of either side. Never raises for one that is closed."""
        if self.is_open:
            self.close_code = code
            self.closed.set()
            self._peer.gone()

    def drop(self) -> None:
        self.close(ABNORMAL)

    def stop_reading(self) -> None:
        self._is_read = False


class Delay(Generic[T]):
    """Gives on what it is given, in order, each a constant number of seconds later. Times are the loop's."""

    def __init__(self, delay_s: float, give: Callable[[T, float], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay_s = delay_s
        self._give = give
        self._on_the_way: deque[tuple[float, T]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, thing: T) -> None:
        due = self._loop.time() + self._delay_s
        self._on_the_way.append((due, thing))
        if not self._delay_s:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_at(due, self._arrive)

    def flush(self) -> None:
        """Give on what is due by now, without waiting for the timer to be late."""
        now = self._loop.time()
        while self._on_the_way and self._on_the_way[0][0] <= now:
            due, thing = self._on_the_way.popleft()
            self._give(thing, due)

    def cancel(self) -> None:
        """Nothing arrives any more."""
        self._on_the_way.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arrive(self) -> None:
        self._timer = None
        self.flush()
        if self._on_the_way:
            self._timer = self._loop.call_at(self._on_the_way[0][0], self._arrive)


async def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  (conditions are of any kind, none of them tells)
            await asyncio.sleep(0.005)
