"""The way in by HTTP: key and scope, a bounded body, and every error as a problem document (RFC 9457)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol

import orjson
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from channels.http_requests import Principal, whole_body
from flow_engine import errors, problems
from flow_engine.ports.telemetry import Observer, Tracing
from flow_engine.values import JsonValue, whole_number_in

MAX_BODY_BYTES: Final = 1_000_000
BODY_WITHIN_S: Final = 20.0

Scope = Literal["designer", "agent", "chat"]

log: Any = structlog.get_logger("flow_engine.chat")

_STATUS_OF_KIND: Mapping[type[errors.FlowEngineError], int] = {
    errors.CorrectTheInput: 422,
    errors.LookElsewhere: 404,
    errors.ReloadAndDecide: 409,
    errors.RetryLater: 503,
    errors.CallTheOperator: 500,
}
_STATUS_OF_CODE: Mapping[str, int] = {
    "json_invalid": 400,
    "key_missing": 401,
    "key_unknown": 401,
    "token_invalid": 401,
    "scope_missing": 403,
    "host_not_local": 403,
    "origin_not_local": 403,
    "proxied_without_keys": 403,
    "too_slow": 408,
    "revision_stale": 412,
    "too_large": 413,
    "model_failed": 503,
}


class Doorkeeper(Protocol):
    """Keys are texts of an `Authorization` header. Raises CorrectTheInput: `key_missing`, `key_unknown`,
    `scope_missing`, `host_not_local`, `proxied_without_keys`."""

    def check(self, connection: HTTPConnection) -> None:
        """What nobody may, whatever they show; part of `admit`."""
        ...

    def admit(self, connection: HTTPConnection, scopes: Sequence[Scope]) -> Principal:
        """Any one of `scopes` is enough."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was let in. `body` holds the bytes as they came, empty where the route takes none."""

    request: Request
    principal: Principal
    body: bytes

    def path(self, name: str) -> str:
        return self.request.path_params[name]

    def json(self) -> JsonValue:
        """The body as JSON. Raises CorrectTheInput `json_invalid`."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise _invalid(f"the body is no JSON: {error.msg} at byte {error.pos}") from None

    def object(self) -> dict[str, JsonValue]:
        """Raises CorrectTheInput `json_invalid`, also for JSON that is no object."""
        body = self.json()
        if not isinstance(body, dict):
            raise _invalid("the body must be a JSON object")
        return body

    @property
    def if_match(self) -> int | None:
        """The revision of `If-Match`, None without one. Raises CorrectTheInput `revision_stale` for a tag
        that no row ever has."""
        tag = self.request.headers.get("if-match")
        if tag is None or tag.strip() == "*":
            return None
        revision = whole_number_in(tag.strip().removeprefix("W/").strip('"'))
        if revision is None:
            raise errors.CorrectTheInput(
                "revision_stale", 'If-Match names no revision; accepted is such as "3"'
            )
        return revision


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`path` is that of the URL, with names in braces. `scopes`: any one is enough; none refuses nobody."""

    method: str
    path: str
    scopes: tuple[Scope, ...]
    handler: Handler


def routes(
    endpoints: Sequence[Endpoint], doorkeeper: Doorkeeper, observer: Observer, tracing: Tracing
) -> list[Route]:
    """Each counted, logged and traced."""
    return [
        Route(endpoint.path, _guarded(endpoint, doorkeeper, observer, tracing), methods=[endpoint.method])
        for endpoint in endpoints
    ]


def _guarded(
    endpoint: Endpoint, doorkeeper: Doorkeeper, observer: Observer, tracing: Tracing
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        name = f"{endpoint.method} {endpoint.path}"
        with tracing.span(name, "server", parent=request.headers.get("traceparent")):
            response = await answered(request)
            status = response.status_code
            tracing.note({"http.response.status_code": status, "http.route": endpoint.path})
        log.info("request", route=endpoint.path, method=endpoint.method, status=status)
        observer.count("http_requests", route=endpoint.path, method=endpoint.method, status=str(status))
        return response

    async def answered(request: Request) -> Response:
        try:
            principal = doorkeeper.admit(request, endpoint.scopes)
            body = b""
            if endpoint.method in {"POST", "PUT", "PATCH"}:
                body = await whole_body(request, most_bytes=MAX_BODY_BYTES, within_s=BODY_WITHIN_S)
            response = await endpoint.handler(Call(request, principal, body))
        except errors.FlowEngineError as error:
            response = problem_of(error)
            if isinstance(error, errors.CallTheOperator):
                log.error("operator_needed", route=endpoint.path, code=error.code, detail=error.detail)
        return response

    return handle


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, dict(headers or {}), media_type="application/json")


def problem_of(error: errors.FlowEngineError) -> Response:
    status = _STATUS_OF_CODE.get(error.code, _STATUS_OF_KIND[type(error)])
    return _sent(status, *problems.problem_of(error, status, HTTPStatus(status).phrase))


def _sent(status: int, document: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(document), status, dict(headers or {}), media_type="application/problem+json"
    )


async def http_problem(request: Request, error: Exception) -> Response:
    """What the router itself refuses, as a problem document in JSON: an unknown path, a method that the path
    does not have."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "path_unknown", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    status = error.status_code
    document = problems.problem_document(status, HTTPStatus(status).phrase, code, str(error.detail))
    return _sent(status, document, error.headers)


async def bug(request: Request, error: Exception) -> Response:
    log.error("bug", route=request.scope.get("path"), exc_info=error)
    detail = "the service has an error, which is logged"
    return _sent(500, problems.problem_document(500, HTTPStatus(500).phrase, "internal_error", detail))


def _invalid(message: str) -> errors.CorrectTheInput:
    return errors.CorrectTheInput("json_invalid", message, [errors.Finding("", "json_invalid", message)])
