"""Requests that arrive whole, as nearly all of an agent do, answered without a parser and ASGI's messages.

1. A piece that is one whole request, of usual form, is read at once: its line by one pattern, its headers as
   a block, which a client sends again and again and which is known then. The application that has `answer_to`
   is asked whether it answers the request from its body. If so, one task makes the response, and head and
   body leave in one write.
2. Everything else is uvicorn's, with the door's rules: a body that comes later, `Expect`, an upgrade, another
   version of HTTP, a request that is pipelined behind one under way, unusual signs in address or headers.
   Nothing was taken of it then.
3. The bytes that are sent are those that uvicorn sends; what it counts and when it closes is the same.
4. A connection has one timer for all the pauses between its requests.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from adapters.http_door import STOPPING, STOPPING_HEADERS, Door

_SIGNS = rb"A-Za-z0-9._~%:@!$&'()*+,;="
_LINE = re.compile(rb"([A-Z]++) (/[%b/-]*+)(?:\?([%b/?-]*+))? HTTP/1\.1\r\n" % (_SIGNS, _SIGNS))
"""With an address of which the parser's own reader makes the same path and query."""
_FIELD = rb"([A-Za-z0-9!#$%&'*+.^_`|~-]++):[ \t]*+([\x21-\x7e\x80-\xff][\t\x20-\x7e\x80-\xff]*+)\r\n"
_FIELDS = re.compile(b"(?:%b)*+" % _FIELD)
_EACH_FIELD = re.compile(_FIELD)

HEADERS_KNOWN = 1_024
"""Blocks of headers that a process knows again, the last ones."""
HEADERS_BYTES = 4_096
"""Of a block of usual size, at most."""

_log = logging.getLogger("uvicorn.error")


class WholeResponse(Protocol):
    """What is sent: `raw_headers` with names in lower case, `body` in full."""

    @property
    def status_code(self) -> int: ...
    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def body(self) -> bytes | memoryview: ...


Answer = Callable[[bytes], Awaitable[WholeResponse]]


@runtime_checkable
class AnswersWhole(Protocol):
    def answer_to(self, scope: dict[str, Any]) -> Answer | None:
        """What makes the response from the body; None where the request has to go through ASGI. `scope` is
        ASGI's, as far as the request itself tells it: nothing of its connection."""
        ...


class _Headers(NamedTuple):
    """Of a request of usual form: names in lower case; how long its body is, in bytes."""

    fields: tuple[tuple[bytes, bytes], ...]
    body_bytes: int
    keep_alive: bool


@lru_cache(maxsize=HEADERS_KNOWN)
def _read_headers(block: bytes) -> _Headers | None:
    """None for headers that ask for more than a usual reply, or are not written as usual."""
    if _FIELDS.fullmatch(block) is None:
        return None
    body_bytes, keep_alive = None, True
    fields = tuple([(name.lower(), value) for name, value in _EACH_FIELD.findall(block)])
    if [name for name, _ in fields].count(b"host") > 1:
        return None
    for name, value in fields:
        if value[-1:] in b" \t" or name in _ASKS_FOR_MORE:
            return None
        if name == b"connection":
            if value.lower() not in _CONNECTION:
                return None
            keep_alive = keep_alive and value.lower() != b"close"
        elif name == b"content-length":
            if body_bytes is not None or not value.isdigit() or len(value) > _LENGTH_DIGITS:
                return None
            body_bytes = int(value)
    return _Headers(fields, body_bytes or 0, keep_alive)


_ASKS_FOR_MORE = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
_CONNECTION = frozenset({b"close", b"keep-alive"})
_LENGTH_DIGITS = 9


class _Nobody:
    """Waits for a message: nobody does."""

    def set(self) -> None:
        return


class _Exchange:
    """Stands where uvicorn and the door look for the request that is under way: one for all of a connection,
    since they come one after the other."""

    message_event = _Nobody()
    keep_alive = disconnected = response_started = response_complete = False


class WholeRequests(Door):
    """To be given to `uvicorn.Config(http=WholeRequests)`."""

    app: Any
    cycle: Any

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        usual = not self.access_log and self.limit_concurrency is None and not self.root_path
        self._answer_to = self.app.answer_to if usual and isinstance(self.app, AnswersWhole) else None
        self._between_requests = True
        """Of what the parser has got nothing is left over."""
        self._exchange = _Exchange()
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._default_headers: list[tuple[bytes, bytes]] = []
        self._default_head, self._closes = b"", False

    # What arrives ------------------------------------------------------------------------------------

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answer_to is None or not self._between_requests or not self._take(data, self._answer_to):
            super().data_received(data)

    def on_message_begin(self) -> None:
        self._between_requests = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._between_requests = True
        super().on_message_complete()

    def _take(self, data: bytes, answer_to: Callable[[dict[str, Any]], Answer | None]) -> bool:
        """Begin to answer the one request that `data` is; False, and nothing done, where it is not one."""
        line, end, under_way = _LINE.match(data), data.find(b"\r\n\r\n") + 4, self.cycle
        if (
            line is None
            or not line.end() < end <= min(line.end() + HEADERS_BYTES, self.limits.head_bytes)
            or self._closing
            or (under_way is not None and not under_way.response_complete)
        ):
            return False
        headers = _read_headers(data[line.end() : end - 2])
        if headers is None or len(data) - end != headers.body_bytes:
            return False
        method, raw_path, query = line.groups()
        path = raw_path.decode("ascii")
        answer = answer_to(
            {
                "type": "http",
                "method": method.decode("ascii"),
                "path": unquote(path) if "%" in path else path,
                "raw_path": raw_path,
                "query_string": query or b"",
                "headers": headers.fields,
            }
        )
        if answer is None:
            return False
        self._idle_since = None
        self._head_open, self._any_request = False, True
        if self._timer is not None:
            self._stop_timer()
        exchange = self.cycle = self._exchange
        exchange.keep_alive = headers.keep_alive
        exchange.response_started = exchange.response_complete = False
        self.tasks.add(self.loop.create_task(self._respond(exchange, answer, data[end:])))
        return True

    # What is sent ------------------------------------------------------------------------------------

    async def _respond(self, exchange: _Exchange, answer: Answer, body: bytes) -> None:
        try:
            try:
                response = await answer(body)
                status, headers, content = response.status_code, response.raw_headers, response.body
            except asyncio.CancelledError:  # by a server that stops
                exchange.keep_alive = False
                status, headers, content = 503, STOPPING_HEADERS, STOPPING
            except Exception as error:  # noqa: BLE001  as uvicorn's
                _log.error("Exception in ASGI application\n", exc_info=error)
                exchange.keep_alive = False
                status, headers, content = 500, _BROKEN_HEADERS, _BROKEN
            if self.flow.write_paused and not exchange.disconnected:
                await self.flow.drain()
            if not exchange.disconnected:
                self._send(exchange, status, headers, content)
        finally:  # by the task itself: a callback of its end would be one more turn of the loop
            self.tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _send(
        self, exchange: _Exchange, status: int, headers: list[tuple[bytes, bytes]], body: bytes | memoryview
    ) -> None:
        if self._default_headers is not self.server_state.default_headers:
            self._default_headers = self.server_state.default_headers
            self._default_head = b"".join([b"%b: %b\r\n" % header for header in self._default_headers])
            self._closes = (b"connection", b"close") in self._default_headers
        if self._closes:
            exchange.keep_alive = False
        elif not exchange.keep_alive:
            headers = [*headers, (b"connection", b"close")]
        head = b"\r\n".join([*map(b": ".join, headers), b"", b""])
        self.transport.write(b"".join((STATUS_LINE[status], self._default_head, head, body)))
        exchange.response_started = exchange.response_complete = True
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.flow.read_paused:
            self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._may_be_idle)

    def _may_be_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.timeout_keep_alive_handler()
        else:
            self._idle_timer = self.loop.call_later(left, self._may_be_idle)


_BROKEN = b"Internal Server Error"
_BROKEN_HEADERS = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21")]
