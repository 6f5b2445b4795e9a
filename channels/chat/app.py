"""The chat's ASGI application: REST, the WebSocket, and probes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from channels.chat.connection import Connection
from channels.chat.http import (
    Doorkeeper,
    Endpoint,
    Principal,
    bug,
    http_problem,
    json_response,
    log,
    problem_of,
    routes,
)
from channels.chat.sessions import Sessions
from channels.chat.tokens import Tokens
from flow_engine.errors import CorrectTheInput, FlowEngineError

SOCKET_PATH: Final = "/v1/chat/ws"
REFUSED: Final = 4401
"""The close code of a refused upgrade; on the wire it is the status 403."""

Probe = Callable[[], Awaitable[object]]


def chat_app(
    endpoints: Sequence[Endpoint],
    sessions: Sessions,
    tokens: Tokens,
    doorkeeper: Doorkeeper,
    probes: Sequence[Probe],
) -> Starlette:
    """`probes` raise FlowEngineError while what they look at is away."""

    async def socket(websocket: WebSocket) -> None:
        try:
            principal = _admitted(websocket, tokens, doorkeeper)
        except CorrectTheInput as refusal:
            log.info("socket_refused", code=refusal.code)
            await websocket.close(REFUSED)
            return
        await Connection(websocket, principal, sessions).serve()

    async def ready(request: Request) -> Response:
        try:
            for probe in probes:
                await probe()
        except FlowEngineError as away:
            return problem_of(away)
        return json_response({"status": "ready"})

    async def live(request: Request) -> Response:
        return json_response({"status": "ok"})

    return Starlette(
        routes=[
            *routes(endpoints, doorkeeper),
            WebSocketRoute(SOCKET_PATH, socket),
            Route("/health/ready", ready),
            Route("/health/live", live),
        ],
        exception_handlers={HTTPException: http_problem, Exception: bug},
    )


def _admitted(websocket: WebSocket, tokens: Tokens, doorkeeper: Doorkeeper) -> Principal:
    """Raises CorrectTheInput. A query never holds an API key: those stand in logs."""
    token = websocket.query_params.get("token")
    return tokens.holder(token) if token is not None else doorkeeper.admit(websocket, ("chat",))
