"""The HTTP application: endpoints of a table behind one way in, and every error as a problem document."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from api.agents import AgentRoutes
from api.auth import ANYONE, Authenticator, require
from api.calls import Call, Endpoint
from api.designers import DesignerRoutes
from api.diagrams import DiagramRoutes
from api.dispatch import Dispatch, DispatchingApi
from api.helpers import HelperRoutes
from api.memory_routes import MemoryRoutes
from api.metrics import Metrics
from api.migrations import MigrationRoutes
from api.openapi import openapi_document, plain_path, prefix_of
from api.operations import OperatorRoutes
from api.problems import error_response, internal_error, problem_response
from api.schemas import SchemaRoutes
from api.tracing import traced
from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding, FlowEngineError
from flow_engine.ports.tracing import Tracing, Untraced

PREFIX = "/v1"
MAX_BODY_BYTES = 1_200_000  # a document of 1 MB with room for what JSON adds

log: Any = structlog.get_logger("flow_engine.http")


class _AnyId(Convertor[str]):
    """Conversation ids are the callers' own: slashes and line breaks included."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


@dataclass(frozen=True, slots=True)
class Routes:
    agents: AgentRoutes
    memory: MemoryRoutes
    designers: DesignerRoutes
    migrations: MigrationRoutes
    diagrams: DiagramRoutes
    helpers: HelperRoutes
    schemas: SchemaRoutes
    operators: OperatorRoutes

    def endpoints(self) -> list[Endpoint]:
        return [
            *self.agents.endpoints(),
            *self.memory.endpoints(),
            *self.designers.endpoints(),
            *self.migrations.endpoints(),
            *self.diagrams.endpoints(),
            *self.helpers.endpoints(),
            *self.schemas.endpoints(),
            *self.operators.endpoints(),
        ]


def create_app(
    routes: Routes,
    authenticator: Authenticator,
    metrics: Metrics,
    *,
    version: str,
    unlisted: Sequence[Endpoint] = (),
    tracing: Tracing | None = None,
) -> FastAPI:
    """`unlisted` endpoints pass the same way in, but stand at the root and outside the OpenAPI document."""
    register_url_convertor("id", _AnyId())

    dispatch = Dispatch(_bug)
    app = DispatchingApi(
        dispatch,
        title="Flow Engine",
        version=version,
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,
    )
    endpoints = routes.endpoints()
    gateway = _Gateway(authenticator, metrics, tracing or Untraced())
    for endpoint in endpoints:
        handle = gateway.guarded(endpoint)
        prefix = prefix_of(endpoint, PREFIX)
        dispatch.add(endpoint, handle, (prefix, ""))
        # Plain routes: a typed body is parsed by the endpoint itself, in one pass over its bytes.
        app.router.routes.append(Route(prefix + endpoint.path, handle, methods=[endpoint.method]))
        if prefix:  # the bare paths answer too
            app.router.routes.append(Route(endpoint.path, handle, methods=[endpoint.method]))
    for endpoint in unlisted:
        handle = gateway.guarded(endpoint)
        app.router.routes.append(Route(endpoint.path, handle, methods=[endpoint.method]))
    document = openapi_document(endpoints, prefix=PREFIX, title="Flow Engine", version=version)
    app.openapi = lambda: document
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(Exception, _bug)
    return app


class _Gateway:
    """What every request passes: key, scope, bounded body, problem documents, metrics and one log line."""

    def __init__(self, authenticator: Authenticator, metrics: Metrics, tracing: Tracing) -> None:
        self._authenticator = authenticator
        self._metrics = metrics
        self._tracing = tracing

    def guarded(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        route = plain_path(endpoint.path)

        async def handle(request: Request) -> Response:
            started = time.perf_counter()
            code: str | None = None
            try:
                response = await endpoint.handler(await self._admit(endpoint, request))
            except FlowEngineError as error:
                code = error.code
                response = error_response(error)
                self._note_problem(endpoint, error)
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
        return traced(handle, route, endpoint.method, self._tracing)

    async def _admit(self, endpoint: Endpoint, request: Request) -> Call:
        structlog.contextvars.clear_contextvars()
        principal = self._authenticator.authenticate(request) if endpoint.scopes else ANYONE
        if endpoint.scopes:
            require(principal, endpoint.scopes)
        body = b"" if endpoint.body is None else await read_body(request)
        return Call(request, principal, body)

    def _note_problem(self, endpoint: Endpoint, error: FlowEngineError) -> None:
        self._metrics.problem(error.code)
        self._tracing.note({"flow_engine.problem.code": error.code})
        if isinstance(error, CallTheOperator):
            log.error("operator_needed", route=endpoint.path, code=error.code, detail=error.detail)


async def read_body(request: Request) -> bytes:
    """Raises CorrectTheInput `too_large` as soon as the body is."""
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


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router itself refuses: an unknown path, a method that the path does not have."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "path_unknown", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return problem_response(
        error.status_code, str(error.detail), code, "see /openapi.json for what there is", headers=headers
    )


def _allowed(request: Request) -> str:
    """The methods of every route of the path: the router itself names those of the first one only."""
    routes = [route for route in request.app.router.routes if isinstance(route, Route)]
    partly = [route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
    return ", ".join(sorted({method for route in partly for method in route.methods or ()}))


async def _bug(request: Request, error: Exception) -> Response:
    log.error("bug", route=request.scope.get("path"), exc_info=error)
    return internal_error()
