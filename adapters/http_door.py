"""The door of an HTTP server: how much and how slowly a client may send before anything reads a key.

1. Request line and headers (trailers too) have at most `head_bytes` together: 414 for the line, else 431.
2. A head is whole within `head_s` seconds of its first byte, or of the connection: 408.
3. A body never stands still for `body_s` seconds while the application waits for it: 408.
4. Of a request that is answered already, at most `body_bytes` more are read and thrown away.
5. Of a reply that waits to be taken, something is taken within `taken_s` seconds; else the connection is cut.

Whoever breaks a rule gets a problem document (RFC 9457) where no reply has begun, and the connection closes.
What it still sends is thrown away for `linger_s` seconds, since a reset would take the reply from it.
A request that arrives in one piece, as nearly all do, costs no timer.

A request that a server which stops has cut off gets 503 `stopping` where no reply has begun.
"""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from flow_engine.errors import CallTheOperator
from flow_engine.problems import problem_document


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Bytes and seconds."""

    head_bytes: int = 65_536
    head_s: float = 10.0
    body_bytes: int = 4_000_000
    body_s: float = 20.0
    linger_s: float = 2.0
    taken_s: float = 60.0


STOPPING = orjson.dumps(
    problem_document(
        503,
        "Try again later",
        "stopping",
        "this process stops: repeat the request, with the same Idempotency-Key",
    )
)
STOPPING_HEADERS = [
    (b"content-type", b"application/problem+json"),
    (b"content-length", b"%d" % len(STOPPING)),
    (b"retry-after", b"1"),
]


class Door(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 over httptools, with the rules. To be given to `uvicorn.Config(http=Door)`."""

    limits = DoorLimits()

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._head_open = True
        self._body_open = False
        self._head_bytes = 0
        self._request_bytes = 0
        self._last_data_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._refusal: bytes | None = None
        self._closing = False
        self._any_request = False  # whether there is a cycle: uvicorn has none before the first request

    # What arrives ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # For who gives a client up: the end that uvicorn makes waits until all that was sent is taken.
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._after(self.limits.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._request_bytes += len(data)
        super().data_received(data)
        if self._closing:
            return
        if self._head_open:
            # Of a line that has not ended yet the parser has told nothing, or only the beginning of the URL.
            if self._request_bytes > self.limits.head_bytes:
                line, headers = HTTPStatus.REQUEST_URI_TOO_LONG, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self._refuse(self._too_large(headers if self.headers else line))
            elif self._timer is None:
                self._after(self.limits.head_s, self._head_is_late)
        elif self._body_open:
            self._last_data_at = self.loop.time()
            if self._request_bytes > self.limits.head_bytes + self.limits.body_bytes:
                detail = f"a request has at most {self.limits.body_bytes} bytes"
                self._refuse(problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail))
            elif self._timer is None:
                self._after(self.limits.body_s, self._body_may_stand_still)
        elif self._timer is not None:
            self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        """Also for what the callbacks below have refused: the parser knows errors of one kind only. The reply
        is a problem document, JSON."""
        refusal = self._refusal or problem(HTTPStatus.BAD_REQUEST, "http_invalid", "this is no HTTP request")
        self._refuse(refusal)

    def _unsupported_upgrade_warning(self) -> None:
        """Who is not switched to another protocol is answered in this one (RFC 9110, 7.8), which is no matter
        for the log; uvicorn would tell the operator to install something."""

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is another protocol's, with limits of its own in bytes."""
        self._stop_timer()
        self._stop_watching()
        self._closing = True
        super().handle_websocket_upgrade()

    # The parser's callbacks --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_open, self._body_open = True, False
        self._head_bytes = self._request_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url), HTTPStatus.REQUEST_URI_TOO_LONG)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if [name for name, _ in self.headers].count(b"host") > 1:  # RFC 9112, 3.2: whose request it is
            self._refusal = problem(HTTPStatus.BAD_REQUEST, "http_invalid", "accepted is one Host header")
            raise httptools.HttpParserError("more than one Host")
        super().on_headers_complete()  # which raises for an address that cannot be read: of a head, then
        self._head_open, self._body_open = False, True
        self._stop_timer()
        self._any_request = True

    def on_message_complete(self) -> None:
        self._body_open = False
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        async def cut_off(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:  # by a server that stops: nobody else cancels it
                if cycle.response_started:
                    cycle.disconnected = True  # or uvicorn reports a bug, with a traceback for each reader
                    self.transport.close()
                    return
                await send({"type": "http.response.start", "status": 503, "headers": STOPPING_HEADERS})
                await send({"type": "http.response.body", "body": STOPPING})

        super()._start_asgi_task(cycle, cut_off)

    # What is taken -----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _watch(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._taking = self.loop.call_later(self.limits.taken_s, self._may_not_be_taken, unsent)

    def _may_not_be_taken(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._watch()
        else:
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    # The rules ---------------------------------------------------------------------------------------

    def _count_head(self, size: int, status: HTTPStatus) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.head_bytes:
            self._refusal = self._too_large(status)
            raise httptools.HttpParserError("head too large")

    def _too_large(self, status: HTTPStatus) -> bytes:
        limit = self.limits.head_bytes
        return problem(status, "head_too_large", f"request line and headers have at most {limit} bytes")

    def _head_is_late(self) -> None:
        self._timer = None
        if self._head_open:
            seconds = self.limits.head_s
            detail = f"request line and headers have to be whole within {seconds:g} s"
            self._refuse(problem(HTTPStatus.REQUEST_TIMEOUT, "head_late", detail))

    def _body_may_stand_still(self) -> None:
        self._timer = None
        if not self._body_open:
            return
        paused = self.flow.read_paused  # the application has not taken what is there: the client may wait
        waited_s = 0.0 if paused else self.loop.time() - self._last_data_at
        if waited_s < self.limits.body_s:
            self._after(self.limits.body_s - waited_s, self._body_may_stand_still)
            return
        detail = f"nothing of the body has come for {self.limits.body_s:g} s"
        self._refuse(problem(HTTPStatus.REQUEST_TIMEOUT, "body_late", detail))

    # The end -----------------------------------------------------------------------------------------

    def _refuse(self, reply: bytes) -> None:
        self._closing = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not self._any_request:
            self.transport.write(reply)
        else:
            cycle = self.cycle
            if not self._body_open and not cycle.response_complete:
                cycle.keep_alive = False  # it was asked whole: its reply is the last one
                return
            if not self._body_open or not (cycle.response_started or self.pipeline):
                self.transport.write(reply)
            cycle.response_started = cycle.response_complete = cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._after(self.limits.linger_s, self.transport.close)

    def _after(self, seconds: float, action: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, action)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def problem(status: HTTPStatus, code: str, detail: str) -> bytes:
    """A whole HTTP/1.1 response that closes its connection: a problem document (RFC 9457)."""
    document = orjson.dumps(
        problem_document(status.value, "The request cannot be taken as it is", code, detail)
    )
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(document)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + document


def origin(host: str, port: int) -> str:
    """`http://host:port`, an IPv6 address in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening TCP socket; port 0 is any free one. Between all that are `shared` on one port the kernel
    spreads its connections. Raises CallTheOperator `address_not_free`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        where = cast("tuple[str, int]", address[:2])
        listening = socket.create_server(where, family=family, backlog=2048, reuse_port=shared)
    except (OSError, UnicodeError) as error:
        raise address_not_free(host, port, error) from error
    # asyncio sets this for sockets of its own only; without it a reply in two writes waits 40 ms for an ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_not_free(host: str, port: int, error: OSError | UnicodeError) -> CallTheOperator:
    """UnicodeError is of a host that can be no name, such as one with an empty part."""
    return CallTheOperator("address_not_free", f"cannot listen on {host!r} port {port}: {error}")


class _Guest(uvicorn.Server):
    """Signals are those of the program that it runs in."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def door_config(
    app: Any, *, door: type[Door] = Door, ws: Any = "none", ends_within_s: int = 3, **more: Any
) -> uvicorn.Config:
    """Of a server behind a door, to be served on a socket that is bound already. Requests that are under way
    when it stops have `ends_within_s` seconds. `more` is uvicorn's own."""
    return uvicorn.Config(
        app,
        http=cast("Any", door),
        ws=ws,
        lifespan="off",
        access_log=False,
        proxy_headers=False,  # which proxies are believed, and in what, is decided behind the door
        server_header=False,
        log_config=None,
        timeout_graceful_shutdown=ends_within_s,
        **more,
    )


def door_server(app: Any, *, signals: bool = True, **config: Any) -> uvicorn.Server:
    """By a `door_config`. Without `signals` it leaves those of the process alone."""
    return (uvicorn.Server if signals else _Guest)(door_config(app, **config))
