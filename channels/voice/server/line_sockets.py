"""The line's WebSockets: picows on the very connections that uvicorn has accepted.

uvicorn answers HTTP, and hands a connection that asks for a WebSocket to what its `ws` setting names. Here
that is picows' protocol, which costs a third of what an ASGI application does for every frame. Nothing is
compressed (audio does not get smaller), frames are bounded, and silent peers are pinged.

The order of the checks: path, handshake, signature, room for a call. Only then somebody answers. Who may not
call gets the handshake all the same, and a close frame as the only one: carriers show their users the code
of a close, and nothing of a handshake that was refused.
"""

import asyncio
import base64
import binascii
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import structlog
from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    picows,
)
from uvicorn.server import ServerState

from adapters.http_door import problem
from channels.voice.carriers.carrier import Carrier
from channels.voice.metrics import Counting
from channels.voice.server.call_server import Admission, CallServer, Refusal
from channels.voice.server.http import MEDIA_TYPE, problem_document
from channels.voice.server.public_address import RequestInfo
from channels.voice.wires.sockets import PING_AFTER_S, PONG_WITHIN_S
from flow_engine.errors import CorrectTheInput

PATH = "/media-stream"
MAX_FRAME_BYTES = 1024 * 1024
MAX_HEAD_BYTES = 16 * 1024
CLOSE_WITHIN_S = 2.0

_CLOSE_CODES: dict[Refusal, WSCloseCode] = {
    "busy": WSCloseCode.TRY_AGAIN_LATER,
    "draining": WSCloseCode.SERVICE_RESTART,
}

# picows' stubs leave out the class that its own server is made of.
_WSProtocol = cast(Any, picows.WSProtocol)  # pyright: ignore[reportAttributeAccessIssue]

log: Any = structlog.get_logger("flow_engine.voice")


@dataclass(frozen=True, slots=True)
class LineSockets:
    """What uvicorn's `ws` setting takes: makes the protocol of a connection that asks for a WebSocket."""

    carrier: Carrier
    admission: Admission
    counting: Counting
    call_server: CallServer

    def __call__(self, *, server_state: ServerState, **_: object) -> asyncio.BaseProtocol:
        return _LineSocket(self, server_state.connections)

    def decide(
        self, info: RequestInfo, request: WSUpgradeRequest
    ) -> WSUpgradeResponseWithListener | WSListener:
        """A listener for the socket, or the response that refuses it, a problem document in JSON. A refusal
        that must not be a response is a listener that only closes."""
        if info.target.partition("?")[0].rstrip("/") != PATH:
            return _refused("path_unknown", f"WebSockets are at {PATH}")
        if not _is_handshake(request):
            return _refused("upgrade_invalid", "this is no handshake of WebSocket version 13")
        try:
            self.carrier.admit(info, None)
        except CorrectTheInput as error:
            log.warning("line_refused", code=error.code, reason=error.detail)
            self.counting.call_refused("not_allowed")
            return _Closing(WSCloseCode.POLICY_VIOLATION)
        refusal = self.admission.take(promised=True)
        if refusal is not None:
            log.warning("line_refused", code=refusal)
            self.counting.call_refused(refusal)
            return _Closing(_CLOSE_CODES[refusal])
        try:
            return self.call_server.answer()
        except Exception:  # the edge: past it picows shows the exception's text to the caller
            log.exception("bug", route=PATH)
            self.admission.release()
            return _Closing(WSCloseCode.INTERNAL_ERROR)

    def ended(self, listener: WSListener | None) -> None:
        if listener is not None and not isinstance(listener, _Closing):
            self.admission.release()


class _LineSocket(_WSProtocol):
    """One connection. While it is open it stands in uvicorn's list of connections, like those of HTTP, so
    that the server closes it and waits for it when it stops."""

    transport: WSTransport
    listener: WSListener | None

    def __init__(self, sockets: LineSockets, connections: set[Any]) -> None:
        super().__init__(
            host_port=None,  # a client's, as the path is
            ws_path=None,
            is_client_side=False,
            ws_listener_factory=self._listener_for,
            logger=_PicowsLog(),
            disconnect_on_exception=True,
            websocket_handshake_timeout=None,  # the handshake is there already
            enable_auto_ping=True,
            auto_ping_idle_timeout=PING_AFTER_S,
            auto_ping_reply_timeout=PONG_WITHIN_S,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            enable_auto_pong=True,
            max_frame_size=MAX_FRAME_BYTES,
            extra_headers=None,
            read_buffer_init_size=MAX_HEAD_BYTES,
        )
        self._sockets = sockets
        self._connections = connections

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.discard(self)
        self._sockets.ended(self.listener)

    def data_received(self, head: bytes) -> None:
        """Takes the head of the request, which uvicorn has read; all data after that comes by `get_buffer`,
        as this is a BufferedProtocol."""
        if len(head) > MAX_HEAD_BYTES:
            detail = f"the head of a WebSocket's request has at most {MAX_HEAD_BYTES} bytes"
            refusal = problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", detail)
            self.transport.underlying_transport.write(refusal)
            self.transport.disconnect()
            return
        # The request with `Connection: upgrade` alone, the one form that picows takes: browsers and proxies
        # send `keep-alive, Upgrade`, and uvicorn has checked it. Names come from uvicorn in lower case.
        lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        kept = [line for line in lines if not line.startswith(b"connection:")]
        rest = memoryview(b"\r\n".join((*kept, b"connection: upgrade", b"", b"")))
        while rest:
            room: memoryview = self.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            self.buffer_updated(size)
            rest = rest[size:]

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops: whoever was to be waited for has been."""
        self.transport.send_close(WSCloseCode.GOING_AWAY)
        self.transport.disconnect()

    def _listener_for(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener | WSListener:
        underlying = self.transport.underlying_transport
        peer = cast("tuple[str, int] | None", underlying.get_extra_info("peername"))
        info = RequestInfo(
            scheme="https" if underlying.get_extra_info("sslcontext") else "http",
            peer=peer[0] if peer else None,
            target=request.path.decode("latin-1"),
            headers=request.headers,
        )
        return self._sockets.decide(info, request)


class _PicowsLog:
    """As much of a `logging.Logger` as picows uses, as structured events. What is below a warning tells
    addresses of peers and the coming and going of sockets, and is left out."""

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.WARNING

    def log(self, level: int, message: str, *args: object) -> None:
        if self.isEnabledFor(level):
            self.warning(message, *args)

    def debug(self, message: str, *args: object) -> None:
        pass

    info = debug

    def warning(self, message: str, *args: object) -> None:
        log.warning("socket_broken", message=message % args)

    error = warning

    def exception(self, message: str, *args: object) -> None:
        log.error("socket_bug", message=message % args, exc_info=True)


class _Closing(WSListener):
    """Closes its socket at once, and waits a moment for the peer to have read why."""

    def __init__(self, code: WSCloseCode) -> None:
        self._code = code

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send_close(self._code)
        asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, transport.disconnect)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.CLOSE:
            transport.disconnect()


def _refused(code: str, detail: str) -> WSUpgradeResponseWithListener:
    status, body = problem_document(code, detail)
    response = WSUpgradeResponse.create_error_response(status, body, {"Content-Type": MEDIA_TYPE})
    return WSUpgradeResponseWithListener(response, None)


def _is_handshake(request: WSUpgradeRequest) -> bool:
    """What picows looks at only after it has a listener, and a call would have begun."""
    if request.headers.getall("sec-websocket-version", []) != ["13"]:
        return False
    try:
        key = base64.b64decode(request.headers.get("sec-websocket-key", "").encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return False
    return len(key) == 16
