"""The HTTP application: endpoints of a table behind one way in, and every error as a problem document."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import Authenticator, LocalOnly, proxy_header, refuse_proxied
from api.console import console_routes
from api.endpoints import PREFIX, Endpoint, Room
from api.gateway import Guarded, Metrics, WayIn
from api.openapi import openapi_document, prefix_of, reference_routes
from api.problems import bugs_answered, error_response, internal_error, problem_response
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.telemetry import Tracing, Untraced

log: Any = structlog.get_logger("flow_engine.http")


class _AnyId(Convertor[str]):
    """Conversation ids are the callers' own: slashes and line breaks included."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _PartOfConversation(Route):
    """A path that goes on behind a conversation's id. What is percent-encoded is the id's: `a%2Fjournal` is
    the conversation `a/journal`, not the journal of `a`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        segments = self.path.partition(":id}")[2].count("/")
        sent: bytes = scope.get("raw_path") or b""
        if any(b"%2f" in segment.lower() for segment in sent.rsplit(b"/", segments)[1:]):
            return Match.NONE, {}
        return super().matches(scope)


def create_app(
    rooms: Sequence[Room],
    authenticator: Authenticator,
    metrics: Metrics,
    *,
    version: str,
    unlisted: Sequence[Endpoint] = (),
    tracing: Tracing | None = None,
    cors_origins: Sequence[str] = (),
    named_hosts: bool = False,
) -> FastAPI:
    """The endpoints of `rooms`, looked through in order. `unlisted` ones pass the same way in, but stand at
    the root and outside the OpenAPI document. Pages of `cors_origins`, URLs without a path, may read replies;
    for `named_hosts` see `WayIn`. Raises ValueError for a hot endpoint that the table cannot find."""
    register_url_convertor("id", _AnyId())

    hot = HotEndpoints()
    app = _Api(
        hot,
        keyless=isinstance(authenticator, LocalOnly),
        cors_origins=cors_origins,
        title="Flow Engine",
        version=version,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    endpoints = [row for room in rooms for row in room.endpoints()]
    way_in = WayIn(authenticator, metrics, tracing or Untraced(), named_hosts)
    for endpoint in endpoints:
        guarded = Guarded(endpoint, way_in)
        prefix = prefix_of(endpoint, PREFIX)
        if endpoint.hot:
            hot.add(endpoint, guarded)
        # Plain routes: a typed body is parsed by the endpoint itself, in one pass over its bytes.
        route = _PartOfConversation if ":id}/" in endpoint.path else Route
        app.router.routes.append(route(prefix + endpoint.path, guarded, methods=[endpoint.method]))
        if prefix:  # the bare paths answer too
            app.router.routes.append(route(endpoint.path, guarded, methods=[endpoint.method]))
    for endpoint in unlisted:
        guarded = Guarded(endpoint, way_in)
        app.router.routes.append(Route(endpoint.path, guarded, methods=[endpoint.method]))
    # Made when somebody asks: it takes longer than all the rest of a start.
    app.openapi = cache(
        partial(openapi_document, endpoints, prefix=PREFIX, title="Flow Engine", version=version)
    )
    app.router.routes.extend((*reference_routes("Flow Engine"), *console_routes()))
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(Exception, _bug)
    return app


_BEFORE_PATHS = f"{PREFIX}/"


class HotEndpoints:
    """The calls that conversations live by, found in a table by their path.

    Middleware and the router's search through every route cost more than the rest of the way in; whatever is
    not in the table goes there. A path here is one fixed segment, or that and a conversation's id.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Guarded] = {}
        """By method and path, of a path with an id as far as the slash before it."""

    def add(self, endpoint: Endpoint, guarded: Guarded) -> None:
        """Raises ValueError for a path that the table cannot find."""
        head, found, rest = endpoint.path.partition("/{conversation_id:id}")
        if rest or "{" in head or "/" in head[1:]:
            raise ValueError(f"{endpoint.path} is no fixed path, nor a segment and a conversation's id")
        for prefix in (PREFIX, ""):  # the bare paths answer too
            self._known[endpoint.method, prefix + head + found[:1]] = guarded

    def find(self, scope: Scope) -> Guarded | None:
        """Sets `path_params` of a scope whose path holds an id. None where the router has to look; the id is
        percent-decoded UTF-8."""
        method, path = scope["method"], scope["path"]
        to_id = path.find("/", len(_BEFORE_PATHS) if path.startswith(_BEFORE_PATHS) else 1) + 1
        if not to_id:
            return self._known.get((method, path))
        guarded = self._known.get((method, path[:to_id])) if to_id < len(path) else None
        if guarded is not None:
            scope["path_params"] = {"conversation_id": path[to_id:]}
        return guarded


class _Api(FastAPI):
    """FastAPI behind the table of hot endpoints. `keyless`: what comes through a proxy is refused."""

    def __init__(
        self, hot: HotEndpoints, *, keyless: bool, cors_origins: Sequence[str], **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._hot = hot
        self._keyless = keyless
        self._tells_browsers = bool(cors_origins)
        self._way_in: ASGIApp = self._answer
        if cors_origins:
            self._way_in = CORSMiddleware(
                self._answer,
                allow_origins=cors_origins,
                allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
                allow_headers=("*",),  # of these pages; what a header may say is decided where it is read
                expose_headers=("ETag", "Idempotency-Replayed", "Link", "Retry-After"),
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._way_in(scope, receive, send)

    def answer_to(self, scope: Scope) -> Callable[[bytes], Awaitable[Response]] | None:
        """What answers a call of the table from its whole body, as `__call__` would. None for any other
        request, and where replies have to tell browsers what they may."""
        if self._tells_browsers or (self._keyless and proxy_header(scope["headers"]) is not None):
            return None
        guarded = self._hot.find(scope)
        return None if guarded is None else partial(_answered, guarded, scope, _nothing_more)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keyless and scope["type"] == "http" and not scope["path"].startswith("/health/"):
            try:
                refuse_proxied(scope["headers"])
            except CorrectTheInput as refused:
                await error_response(refused)(scope, receive, send)
                return
        guarded = self._hot.find(scope) if scope["type"] == "http" else None
        if guarded is None:
            await super().__call__(scope, receive, send)
            return
        response = await _answered(guarded, scope, receive)
        await response(scope, receive, send)


def _answered(
    guarded: Guarded, scope: Scope, receive: Receive, body: bytes | None = None
) -> Awaitable[Response]:
    return bugs_answered(guarded.answer(scope, receive, body), partial(_logged_bug, scope))


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router itself refuses: an unknown path, a method that the path does not have."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "path_unknown", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    headers, detail = error.headers, "see /openapi.json for what there is"
    if error.status_code == 405:  # the router itself names the methods of the path's first route only
        routes = [route for route in request.app.router.routes if isinstance(route, Route)]
        partly = [route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
        headers = {"Allow": ", ".join(sorted({m for route in partly for m in route.methods or ()}))}
        detail = f"accepted here: {headers['Allow']}"
    elif request.url.path.endswith("/"):
        detail = f"no route ends with '/'; {detail}"
    return problem_response(error.status_code, str(error.detail), code, detail, headers=headers)


def _logged_bug(scope: Scope, error: Exception) -> Response:
    log.error("bug", route=scope.get("path"), exc_info=error)
    return internal_error()


async def _bug(request: Request, error: Exception) -> Response:
    return _logged_bug(request.scope, error)
