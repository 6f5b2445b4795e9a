"""A request as a span, in the trace of its caller where the caller has one.

Wrapped around the handlers only where traces are on. A span tells the route, the outcome and the
conversation: no body, no header, no path with its ids, nothing about a person.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from starlette.requests import Request
from starlette.responses import Response

from flow_engine.ports.tracing import Tracing

Handle = Callable[[Request], Awaitable[Response]]


def traced(handle: Handle, route: str, method: str, tracing: Tracing) -> Handle:
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
