"""What every request passes: key, scope, bounded body, problem documents, metrics, a span and one log line.

Labels of metrics are routes and codes, never ids. A span tells the route, the outcome and the conversation:
no body, no header, no path with its ids, nothing about a person.
"""

import logging
import re
import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, generate_latest
from pydantic import TypeAdapter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.auth import ANYONE, Authenticator, Principal, header, require
from api.bodies import Body, parse_body
from api.endpoints import Call, Endpoint
from api.openapi import plain_path
from api.problems import error_response
from api.tallies import TalliedCounter, TalliedHistogram
from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding, FlowEngineError
from flow_engine.ports.telemetry import IDS_LOGGED, Tracing

MAX_BODY_BYTES = 1_200_000  # a document of 1 MB with room for what JSON adds

REQUEST_BASE_URL: ContextVar[str | None] = ContextVar("request_base_url", default=None)
"""Where the caller of the present request reaches this service, when nothing else tells."""

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")

_NO_BODY = TypeAdapter(Body)

log: Any = structlog.get_logger("flow_engine.http")


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._requests = TalliedCounter(
            "flow_engine_http_requests_total",
            "HTTP requests by route and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = TalliedHistogram(
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

    def of(self, route: str, method: str) -> "RouteMetrics":
        return RouteMetrics(self._requests, self._seconds, route, method)

    def problem(self, code: str) -> None:
        self._problems.labels(code).inc()

    async def scrape(self) -> bytes:
        """Of this process alone, in Prometheus's text format."""
        return generate_latest(self.registry)


class RouteMetrics:
    """What `Metrics` counts of one route, found once: to find a counter by its labels takes longer than to
    count. Seconds."""

    def __init__(self, requests: TalliedCounter, seconds: TalliedHistogram, route: str, method: str) -> None:
        self._requests, self._seconds, self._labels = requests, seconds, (route, method)
        self._known: dict[int, tuple[TalliedCounter, TalliedHistogram]] = {}

    def request(self, status: int, seconds: float) -> None:
        known = self._known.get(status)
        if known is None:
            counter = self._requests.labels(*self._labels, str(status))
            known = self._known[status] = counter, self._seconds.labels(*self._labels)
        known[0].tally += 1
        known[1].observe(seconds)


@dataclass(frozen=True, slots=True)
class WayIn:
    """What every endpoint of an application passes. `named_hosts`: addresses in a reply begin with the `Host`
    of its request (`REQUEST_BASE_URL`)."""

    authenticator: Authenticator
    metrics: Metrics
    tracing: Tracing
    named_hosts: bool = False


class Guarded:
    """An endpoint behind the way in: an ASGI application for the router, and `answer` for who has found it
    already. Each request leaves one JSON line in the log, but for probes and scrapes that went well. A
    FlowEngineError becomes its problem document."""

    def __init__(self, endpoint: Endpoint, way_in: WayIn) -> None:
        self._endpoint = endpoint
        self._way_in = way_in
        self._logs = log.is_enabled_for(logging.INFO)  # as configured at the start
        self._method, self._route = endpoint.method, plain_path(endpoint.path)
        self._counted = way_in.metrics.of(self._route, self._method)
        self._queries = None
        if endpoint.parameters is not None and endpoint.scopes:
            self._queries = {p.name: p for p in endpoint.parameters if p.place == "query"}
        is_probe = endpoint.audience == "operators"  # or a scrape
        self._unlogged = HTTPStatus.OK if is_probe else None
        traced = way_in.tracing.on and not is_probe
        self.answer = self._traced if traced else self._answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.answer(scope, receive)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, body: bytes | None = None) -> Response:
        """`body` is the whole of it where it is there already."""
        started = time.perf_counter()
        endpoint, code = self._endpoint, None
        try:
            principal = self._admit(scope)
            if self._method == "GET":
                body = b""
            elif body is None:
                body = await read_body(receive)
            elif len(body) > MAX_BODY_BYTES:
                raise _too_large()
            if endpoint.body is None and body:
                _refuse_body(body, self._queries or ())
                body = b""
            call = Call(scope, receive, principal, body)
            if scope["query_string"] and self._queries is not None:
                await call.refuse_wrong_parameters(self._queries)
            response = await endpoint.handler(call)
        except FlowEngineError as error:
            code = error.code
            response = error_response(error)
            self._way_in.metrics.problem(code)
            self._way_in.tracing.note({"flow_engine.problem.code": code})
            if isinstance(error, CallTheOperator):
                log.error("operator_needed", route=self._route, code=code, detail=error.detail)
        seconds = time.perf_counter() - started
        self._counted.request(response.status_code, seconds)
        if self._logs and response.status_code != self._unlogged:
            log.info(
                "request",
                route=self._route,
                method=self._method,
                status=response.status_code,
                code=code,
                ms=round(seconds * 1000, 2),
            )
        return response

    def _admit(self, scope: Scope) -> Principal:
        IDS_LOGGED.set({})
        way_in, scopes, principal = self._way_in, self._endpoint.scopes, ANYONE
        if scopes:
            principal = way_in.authenticator.authenticate(scope["headers"])
            require(principal, scopes)
        if way_in.named_hosts:
            host = header(scope["headers"], b"host", "")
            REQUEST_BASE_URL.set(f"http://{host}" if _HOST.fullmatch(host) else None)
        return principal

    async def _traced(self, scope: Scope, receive: Receive, body: bytes | None = None) -> Response:
        """Within a span of the caller's trace, where the caller has one."""
        tracing, method = self._way_in.tracing, self._method
        caller = header(scope["headers"], b"traceparent")
        known = {"http.request.method": method, "http.route": self._route}
        with tracing.span(f"{method} {self._route}", "server", parent=caller, attributes=known):
            response = await self._answer(scope, receive, body)
            tracing.note({"http.response.status_code": response.status_code})
            if response.status_code >= 500:
                tracing.note({"error.type": str(response.status_code)})
            conversation_id = IDS_LOGGED.get({}).get("conversation_id")
            if conversation_id is not None:
                tracing.note({"flow_engine.conversation.id": conversation_id})
            return response


async def read_body(receive: Receive) -> bytes:
    """Raises CorrectTheInput `too_large` as soon as the body is. At most 1,200,000 bytes; `json_invalid` for
    one that breaks off."""
    body, more = b"", True
    parts: list[bytes] = []
    size = 0
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CorrectTheInput("json_invalid", "the body ended before it was whole")
        body, more = message.get("body", b""), message.get("more_body", False)
        size += len(body)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        parts.append(body)
    return body if len(parts) == 1 else b"".join(parts)


def _refuse_body(body: bytes, queries: Iterable[str]) -> None:
    """Raises CorrectTheInput as `parse_body` for a body where none belongs: of something, that is, but of an
    empty object. `queries` are the names that the query may have."""
    if not body.strip():
        return
    try:
        parse_body(body, _NO_BODY)
    except CorrectTheInput as refused:
        if refused.code != "body_invalid":
            raise
        accepted = ", ".join(f"?{name}=" for name in queries)
        message = "this call takes no body" + (f"; accepted in its query are {accepted}" if accepted else "")
        findings = [Finding(found.pointer, found.code, message) for found in refused.findings]
        raise CorrectTheInput(refused.code, message, findings) from None


def _too_large() -> CorrectTheInput:
    return CorrectTheInput.breach("too_large", f"a body has at most {MAX_BODY_BYTES} bytes")
