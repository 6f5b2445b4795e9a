"""The short way in for the calls of a conversation.

They are found by their path in a table. Middleware and the router's search through every route cost more
than the rest of the way in; whatever is not in the table goes there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.calls import Endpoint

Handler = Callable[[Request], Awaitable[Response]]
OnBug = Callable[[Request, Exception], Awaitable[Response]]
_PARAMETER = "/{conversation_id:id}"


class Dispatch:
    """Static paths, and paths that end in a conversation's id, of the agents' and tools' endpoints."""

    def __init__(self, on_bug: OnBug) -> None:
        self._whole: dict[tuple[str, str], Handler] = {}
        self._before_id: dict[tuple[str, str], Handler] = {}
        self._on_bug = on_bug

    def add(self, endpoint: Endpoint, handler: Handler, prefixes: Iterable[str]) -> None:
        if endpoint.audience not in ("agents", "tools"):
            return
        for prefix in prefixes:
            path, found, _ = (prefix + endpoint.path).partition(_PARAMETER)
            (self._before_id if found else self._whole)[endpoint.method, path] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer the request if it is in the table; False leaves it to the router."""
        method, path = scope["method"], scope["path"]
        handler = self._whole.get((method, path))
        if handler is None:
            handler = self._for_conversation(scope, method, path)
        if handler is None:
            return False
        request = Request(scope, receive)
        try:
            response = await handler(request)
        except Exception as error:  # noqa: BLE001  the outermost layer: a bug is logged and answered
            response = await self._on_bug(request, error)
        await response(scope, receive, send)
        return True

    def _for_conversation(self, scope: Scope, method: str, path: str) -> Handler | None:
        start = path.find("/", 4 if path.startswith("/v1/") else 1)
        if start < 0 or start + 1 == len(path):
            return None
        handler = self._before_id.get((method, path[:start]))
        if handler is not None:
            scope["path_params"] = {"conversation_id": path[start + 1 :]}
        return handler


class DispatchingApi(FastAPI):
    """FastAPI with the short way before it."""

    def __init__(self, dispatch: Dispatch, **settings: Any) -> None:
        super().__init__(**settings)
        self._dispatch = dispatch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and await self._dispatch(scope, receive, send):
            return
        await super().__call__(scope, receive, send)
