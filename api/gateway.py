"""What every request passes: key, scope, bounded body, problem documents, metrics, a span and one log line.

Labels of metrics are routes and codes, never ids. A span tells the route, the outcome and the conversation:
no body, no header, no path with its ids, nothing about a person.
"""

import re
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.auth import ANYONE, Authenticator, require
from api.endpoints import Call, Endpoint
from api.openapi import plain_path
from api.problems import error_response
from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding, FlowEngineError
from flow_engine.ports.telemetry import Tracing

MAX_BODY_BYTES = 1_200_000  # a document of 1 MB with room for what JSON adds

Handle = Callable[[Request], Awaitable[Response]]

REQUEST_BASE_URL: ContextVar[str | None] = ContextVar("request_base_url", default=None)
"""Where the caller of the present request reaches this service, when nothing else tells."""

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")

log: Any = structlog.get_logger("flow_engine.http")


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._requests = Counter(
            "flow_engine_http_requests_total",
            "HTTP requests by route and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "flow_engine_http_request_seconds",
            "Time from the request's arrival to its reply, in seconds.",
            ("route", "method"),
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._problems = Counter(
            "flow_engine_problems_total",
            "Problem documents sent, by their code.",
            ("code",),
            registry=self.registry,
        )

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def problem(self, code: str) -> None:
        self._problems.labels(code).inc()

    async def scrape(self) -> bytes:
        """Of this process alone, in Prometheus's text format."""
        return generate_latest(self.registry)


class Gateway:
    """Wraps the handlers of endpoints. `named_hosts`: addresses in a reply begin with the `Host` of its
    request (`REQUEST_BASE_URL`). Each request leaves one JSON line in the log. A FlowEngineError becomes its
    problem document."""

    def __init__(
        self, authenticator: Authenticator, metrics: Metrics, tracing: Tracing, *, named_hosts: bool = False
    ) -> None:
        self._authenticator = authenticator
        self._metrics = metrics
        self._tracing = tracing
        self._named_hosts = named_hosts

    def guarded(self, endpoint: Endpoint) -> Handle:
        route = plain_path(endpoint.path)

        async def handle(request: Request) -> Response:
            started = time.perf_counter()
            code: str | None = None
            try:
                response = await endpoint.handler(await self._admit(endpoint, request))
            except FlowEngineError as error:
                code = error.code
                response = error_response(error)
                self._metrics.problem(code)
                self._tracing.note({"flow_engine.problem.code": code})
                if isinstance(error, CallTheOperator):
                    log.error("operator_needed", route=endpoint.path, code=code, detail=error.detail)
            seconds = time.perf_counter() - started
            self._metrics.request(route, endpoint.method, response.status_code, seconds)
            log.info(
                "request",
                route=route,
                method=endpoint.method,
                status=response.status_code,
                code=code,
                ms=round(seconds * 1000, 2),
            )
            return response

        if not self._tracing.on or endpoint.audience == "operators":  # probes and scrapes are no traces
            return handle
        return _traced(handle, route, endpoint.method, self._tracing)

    async def _admit(self, endpoint: Endpoint, request: Request) -> Call:
        structlog.contextvars.clear_contextvars()
        principal = self._authenticator.authenticate(request) if endpoint.scopes else ANYONE
        if endpoint.scopes:
            require(principal, endpoint.scopes)
        if self._named_hosts:
            host = request.headers.get("host", "")
            REQUEST_BASE_URL.set(f"http://{host}" if _HOST.fullmatch(host) else None)
        body = b"" if endpoint.body is None else await read_body(request)
        call = Call(request, principal, body)
        if request.scope["query_string"] and endpoint.parameters is not None and endpoint.scopes:
            call.refuse_unknown_parameters([p.name for p in endpoint.parameters if p.place == "query"])
        return call


async def read_body(request: Request) -> bytes:
    """Raises CorrectTheInput `too_large` as soon as the body is. At most 1,200,000 bytes; `json_invalid` for
    one that breaks off."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                message = f"a body has at most {MAX_BODY_BYTES} bytes"
                raise CorrectTheInput("too_large", message, [Finding("", "too_large", message)])
            parts.append(part)
    except ClientDisconnect:
        raise CorrectTheInput("json_invalid", "the body ended before it was whole") from None
    return b"".join(parts)


def _traced(handle: Handle, route: str, method: str, tracing: Tracing) -> Handle:
    """The handler within a span of the caller's trace, where the caller has one."""
    name, known = f"{method} {route}", {"http.request.method": method, "http.route": route}

    async def in_a_span(request: Request) -> Response:
        caller = request.headers.get("traceparent")
        with tracing.span(name, "server", parent=caller, attributes=known):
            response = await handle(request)
            tracing.note({"http.response.status_code": response.status_code})
            if response.status_code >= 500:
                tracing.note({"error.type": str(response.status_code)})
            conversation_id = structlog.contextvars.get_contextvars().get("conversation_id")
            if conversation_id is not None:
                tracing.note({"flow_engine.conversation.id": conversation_id})
            return response

    return in_a_span
