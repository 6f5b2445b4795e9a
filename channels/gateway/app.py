"""The gateway's ASGI application: OpenAI's routes, probes and metrics.

A request runs beside a watch on its connection: whoever goes away cancels what is done for it, before the
first event as after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from channels.gateway import accounts, database, upstreams
from channels.gateway.answering import Answering, Served
from channels.gateway.routing import Routing
from channels.gateway.wire import DONE_FRAME, FINISHED, ApiError, error_frame, frame, read_request, written
from channels.http_requests import Principal, whole_body
from flow_engine.errors import CorrectTheInput

MOST_BODY_BYTES: Final = 32 * 1024 * 1024
MOST_VALUES: Final = 500_000
"""Reading more holds other requests up. OpenAI takes 300,000 tokens at once, each of which may be one."""
BODY_WITHIN_S: Final = 60.0

Scope = Literal["gateway", "workspace"]


class Doorkeeper(Protocol):
    """Any one of the scopes is enough. Raises CorrectTheInput: `key_missing`, `key_unknown`, `scope_missing`,
    `host_not_local` and the like."""

    def admit(self, request: Request, scopes: Sequence[Scope], /) -> Principal: ...


_REFUSED: Final = {"key_missing": 401, "key_unknown": 401}
_BODY_REFUSED: Final = {"too_large": 413, "too_slow": 408, "json_invalid": 400}


def admitted(doorkeeper: Doorkeeper, request: Request, scope: Scope) -> Principal:
    """Raises ApiError 401 for a key that is missing or unknown, 403 for one that may not."""
    try:
        return doorkeeper.admit(request, (scope,))
    except CorrectTheInput as refused:
        status = _REFUSED.get(refused.code, 403)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        code = "invalid_api_key" if status == 401 else refused.code
        raise ApiError(status, refused.detail, code=code, headers=headers) from None


async def read_body(request: Request) -> bytes:
    """Raises ApiError: 413 for more than 32 MiB, or 500,000 values, 408 for a body that is not whole within a
    minute, 400 for one that ends early."""
    try:
        body = await whole_body(request, most_bytes=MOST_BODY_BYTES, within_s=BODY_WITHIN_S)
    except CorrectTheInput as refused:
        raise ApiError(_BODY_REFUSED[refused.code], refused.detail, code=refused.code) from None
    if max(body.count(b","), body.count(b"[") + body.count(b"{")) > MOST_VALUES:
        told = f"a body has at most {MOST_VALUES:,} commas, and as many brackets that open"
        raise ApiError(413, told, code="too_many_values")
    return body


def error_response(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.headers, media_type="application/json")


async def watched(receive: Receive, work: Awaitable[None], ended: Callable[[], bool] = lambda: False) -> bool:
    """Do `work` unless the client goes away: then it is cancelled, but for what is left of it when the reply
    has `ended`. Whether it was done."""

    async def client_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing = asyncio.ensure_future(work)
    gone = asyncio.create_task(client_gone())
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if ended():
            await asyncio.wait((doing,))
        done = doing.done()
    finally:
        doing.cancel()
        gone.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)
    if done:
        doing.result()
    return done


class EventStream:
    """Server-sent events to one client. While it is `beating`, comments go out after `heartbeat_s` seconds of
    silence."""

    def __init__(self, send: Send, heartbeat_s: float, headers: Callable[[], dict[str, str]]) -> None:
        self._send = send
        self._heartbeat_s = heartbeat_s
        self._headers = headers
        self._last = time.monotonic()
        self.begun = False
        self.ended = False

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Bytes of whole events. The head goes out before the first."""
        self._last = time.monotonic()
        if not self.begun:
            self.begun = True
            fixed = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
            headers = {**fixed, "X-Accel-Buffering": "no", **self._headers()}
            raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        if not self.ended:
            self.ended = last
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def fail(self, error: ApiError) -> None:
        """Instead of the end: its last event, or the whole reply where nothing has gone out."""
        if self.begun:
            await self.write(error_frame(error), last=True)
            return
        self.ended = True
        raw = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        raw.append((b"content-type", b"application/json"))
        await self._send({"type": "http.response.start", "status": error.status, "headers": raw})
        await self._send({"type": "http.response.body", "body": error.body(), "more_body": False})

    @asynccontextmanager
    async def beating(self) -> AsyncGenerator[None]:
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self) -> None:
        while not self.ended:
            idle = time.monotonic() - self._last
            if idle >= self._heartbeat_s:
                await self.write(b": waiting\n\n")
                idle = 0.0
            await asyncio.sleep(self._heartbeat_s - idle)


@dataclass(slots=True)
class _Answer:
    """An ASGI response that does its work while it is sent. `status` is what the metrics are told."""

    served: Served
    operation: upstreams.Operation
    streams: bool
    heartbeat_s: float
    books: accounts.Books
    status: int = 200

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        out = EventStream(send, self.heartbeat_s, self.served.origin.headers)
        work = self._stream(out) if self.streams else self._plain(scope, receive, send)
        try:
            if self.served.origin.outcome == "hit-l1":  # nobody is asked, so there is nothing to cancel
                await work
            elif not await watched(receive, work, lambda: out.ended):
                self.status = 499
        except asyncio.CancelledError:  # the server stops, and has waited for this answer long enough
            await self._fail(stopping(), out)
        requests, outcome = self.books.metrics.requests, self.served.origin.outcome
        requests.labels(self.operation, str(self.status), outcome).inc()

    async def _plain(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self.served.parts) as parts:
                data = b"".join([part.data async for part in parts])
        except ApiError as error:
            self.status = error.status
            await error_response(error)(scope, receive, send)
            return
        headers = self.served.origin.headers()
        await Response(data, 200, headers, media_type="application/json")(scope, receive, send)

    async def _stream(self, out: EventStream) -> None:
        try:
            async with out.beating(), aclosing(self.served.parts) as parts:
                async for part in parts:
                    if part is FINISHED:
                        await out.write(DONE_FRAME, last=True)
                    elif part.shown:
                        await out.write(frame(part.data))
        except ApiError as error:
            await self._fail(error, out)
        except Exception as error:  # noqa: BLE001  the edge: past it the stream has no end
            await self._fail(logged_bug("/v1/chat/completions", error), out)

    async def _fail(self, error: ApiError, out: EventStream) -> None:
        if not out.ended:
            self.status = error.status
            await out.fail(error)


def stopping() -> ApiError:
    """What an answer ends with that the server has waited for long enough."""
    again = {"Retry-After": "1"}
    return ApiError(503, "the gateway stops; ask again", code="stopping", type="server_error", headers=again)


def logged_bug(route: str, error: Exception) -> ApiError:
    """What its caller is told of it. `route` is a path without ids."""
    database.log.error("bug", route=route, exc_info=error)
    told = "the gateway has an error, which is logged"
    return ApiError(500, told, code="internal_error", type="server_error")


class GatewayRoutes:
    """The routes of scope `gateway`. `heartbeat_s` is in seconds."""

    def __init__(
        self,
        routing: Routing,
        answering: Answering,
        books: accounts.Books,
        doorkeeper: Doorkeeper,
        heartbeat_s: float,
    ) -> None:
        self._routing = routing
        self._answering = answering
        self._books = books
        self._doorkeeper = doorkeeper
        self._heartbeat_s = heartbeat_s

    def routes(self) -> list[BaseRoute]:
        chat = partial(self._answer, operation="chat", needs="messages")
        embeddings = partial(self._answer, operation="embeddings", needs="input")
        return [
            Route("/v1/chat/completions", self._guarded("chat", chat), methods=["POST"]),
            Route("/v1/embeddings", self._guarded("embeddings", embeddings), methods=["POST"]),
            Route("/v1/models", self._guarded("models", self._models), methods=["GET"]),
            Route("/v1/models/{model:path}", self._guarded("model", self._model), methods=["GET"]),
        ]

    def _guarded(self, operation: str, handler: Callable[[Request, Principal], Awaitable[Any]]) -> Any:
        async def handle(request: Request) -> Any:
            try:
                return await handler(request, admitted(self._doorkeeper, request, "gateway"))
            except ApiError as error:
                self._books.metrics.requests.labels(operation, str(error.status), "none").inc()
                return error_response(error)

        return handle

    async def _answer(
        self, http: Request, caller: Principal, operation: upstreams.Operation, needs: str
    ) -> _Answer:
        request = read_request(await read_body(http), needs=needs)
        route = self._routing.route(request, operation)
        who = caller.tenant_id, caller.name
        self._books.admit(*who)
        account = accounts.Account(self._books, *who, request, route.model, operation)
        control = http.headers.get("cache-control", "")
        served = self._answering.answer(request, route, operation, control, account)
        streams = request.streams and operation == "chat"
        return _Answer(served, operation, streams, self._heartbeat_s, self._books)

    async def _models(self, request: Request, caller: Principal) -> Response:
        data = [_model(name, owner) for name, owner in self._routing.models().items()]
        return Response(written({"object": "list", "data": data}), media_type="application/json")

    async def _model(self, request: Request, caller: Principal) -> Response:
        name, models = request.path_params["model"], self._routing.models()
        if name not in models:
            raise ApiError(
                404, f"the model {name!r} does not exist here", param="model", code="model_not_found"
            )
        return Response(written(_model(name, models[name])), media_type="application/json")


def _model(name: str, owner: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def gateway_app(routes: Sequence[BaseRoute], books: accounts.Books) -> Starlette:
    """`routes` are those of the gateway and, where there are workspaces, of the assistant."""
    paths = ", ".join(route.path for route in routes if isinstance(route, Route))

    async def ready(request: Request) -> Response:
        return Response(written({"status": "ok"}), media_type="application/json")

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(books.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        code = {404: "path_unknown", 405: "method_not_allowed"}.get(status, "http_error")
        message = str(getattr(error, "detail", ""))
        if status == 404:
            message = f"there is nothing at {request.url.path}; there are: {paths}"
        return error_response(ApiError(status, message, code=code))

    async def bug(request: Request, error: Exception) -> Response:
        return error_response(logged_bug(request.url.path, error))

    probes = [Route(f"/health/{name}", ready) for name in ("ready", "live")]
    return Starlette(
        routes=[*routes, *probes, Route("/metrics", metrics)],
        exception_handlers={HTTPException: refused, Exception: bug},
    )
