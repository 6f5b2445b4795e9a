"""A business's API on this machine: it answers from a table and writes down its requests.

async with FakeBusiness({"POST /api/orders": {"id": "o-1"}}) as business:
    ...  # run a config with business.url as its base_url
assert business.calls[0].body == {"items": [...]}
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import parse_qsl

import orjson

from adapters.http_door import door_server, listen
from flow_engine.values import JsonValue

_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is more than its body, JSON. `after_s` is how many seconds it takes to come."""

    body: JsonValue = None
    status: int = 200
    after_s: float = 0.0


NOT_FOUND: Final = Reply({"error": "this business has no such address"}, 404)


@dataclass(frozen=True, slots=True)
class BusinessCall:
    """A request to the business. `at` is in seconds of the running loop; an empty body is None."""

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    body: JsonValue


class FakeBusiness:
    """`answers`, JSON, are by method and path, as in `GET /api/orders`; an unknown path gets `otherwise`,
    which is an error 404 unless something else is given."""

    def __init__(
        self,
        answers: Mapping[str, JsonValue | Reply] | None = None,
        *,
        otherwise: JsonValue | Reply = NOT_FOUND,
    ) -> None:
        self.calls: list[BusinessCall] = []
        self._answers = dict(answers or {})
        self._otherwise = otherwise
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        listening = listen("127.0.0.1", 0)
        self._port = listening.getsockname()[1]
        self._server = door_server(self._app, signals=False, interface="asgi3")
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        await self._serving

    async def _app(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        content = b""
        while True:
            part = await receive()
            content += part.get("body", b"")
            if not part.get("more_body"):
                break
        method, path = str(scope["method"]), str(scope["path"])
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        body: JsonValue = orjson.loads(content) if content else None
        self.calls.append(BusinessCall(asyncio.get_running_loop().time(), method, path, query, body))
        answer = self._answers.get(f"{method} {path}", self._otherwise)
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        await asyncio.sleep(reply.after_s)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(reply.body)})
