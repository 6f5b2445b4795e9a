"""Requests that arrive whole, as nearly all of an agent do, answered without ASGI's messages.

1. An application that has `answer_to` is asked, once the head is read, whether it answers the request from
   its whole body. If so, and if the body comes in the same piece, one task makes the response, and head and
   body leave in one write.
2. Everything else is uvicorn's, with the door's rules: a body that comes later, `Expect`, an upgrade, another
   version of HTTP, a request that is pipelined behind one under way, an address of unusual characters. What
   was taken of it so far is handed over.
3. The bytes that are sent are those that uvicorn sends; what it counts and when it closes is the same.
4. A connection has one timer for all the pauses between its requests.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from adapters.http_door import Door

_SIGNS = rb"A-Za-z0-9._~%:@!$&'()*+,;="
_PLAIN_ADDRESS = re.compile(rb"(/[%b-][%b/-]*)(?:\?([%b/?-]*))?" % (_SIGNS, _SIGNS, _SIGNS))
"""Of which the parser's own reader of addresses makes the same path and query."""

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
    parser: Any
    scope: Any
    cycle: Any
    url: bytes

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        usual = not self.access_log and self.limit_concurrency is None and not self.root_path
        self._answer_to = self.app.answer_to if usual and isinstance(self.app, AnswersWhole) else None
        self._waiting: Answer | None = None
        """For the rest of the body."""
        self._body = b""
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

    def on_message_begin(self) -> None:
        """Without uvicorn's scope, which only what is handed over needs."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._head_open, self._body_open = True, False
        self._head_bytes = self._request_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > self.limits.head_bytes:
            self._head_bytes -= len(url)
            super().on_url(url)
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self.limits.head_bytes:
            self._head_bytes -= len(name) + len(value) + 4
            super().on_header(name, value)
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._waiting = self._answer()
        if self._waiting is None:
            self._hand_over_head()
            return
        self._body = b""
        self._head_open, self._body_open = False, True
        if self._timer is not None:
            self._stop_timer()

    def _answer(self) -> Answer | None:
        """Who answers the request whose head is complete, if it may come whole."""
        address = None if self._answer_to is None else _PLAIN_ADDRESS.fullmatch(self.url)
        parser, under_way = self.parser, self.cycle
        if (
            self._answer_to is None
            or address is None
            or self.expect_100_continue
            or (under_way is not None and not under_way.response_complete)
            or parser.should_upgrade()
            or parser.get_http_version() != "1.1"
        ):
            return None
        raw_path, query = address.groups()
        path = raw_path.decode("ascii")
        return self._answer_to(
            {
                "type": "http",
                "method": parser.get_method().decode("ascii"),
                "path": unquote(path) if "%" in path else path,
                "raw_path": raw_path,
                "query_string": query or b"",
                "headers": self.headers,
            }
        )

    def on_body(self, body: bytes) -> None:
        if self._waiting is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        if self._waiting is None:
            super().on_message_complete()
            return
        self._body_open = False
        exchange = self.cycle = self._exchange
        exchange.keep_alive, self._any_request = self.parser.should_keep_alive(), True
        exchange.response_started = exchange.response_complete = False
        answer, self._waiting = self._waiting, None
        task = self.loop.create_task(self._respond(exchange, answer, self._body))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def all_fed(self) -> None:
        if self._waiting is not None:
            self._hand_over()

    def send_400_response(self, msg: str) -> None:
        if self._waiting is not None:
            self._hand_over()
        super().send_400_response(msg)

    def _hand_over_head(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.expect_100_continue = url, expects
        self.headers = self.scope["headers"] = headers
        super().on_headers_complete()

    def _hand_over(self) -> None:
        self._waiting = None
        self._hand_over_head()
        if self._body:
            super().on_body(self._body)

    # What is sent ------------------------------------------------------------------------------------

    async def _respond(self, exchange: _Exchange, answer: Answer, body: bytes) -> None:
        try:
            response = await answer(body)
            status, headers, content = response.status_code, response.raw_headers, response.body
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  as uvicorn's: a stop cancels
            _log.error("Exception in ASGI application\n", exc_info=error)
            exchange.keep_alive = False
            status, headers, content = 500, _BROKEN_HEADERS, _BROKEN
        if self.flow.write_paused and not exchange.disconnected:
            await self.flow.drain()
        if not exchange.disconnected:
            self._send(exchange, status, headers, content)

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
