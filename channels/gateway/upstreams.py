"""The servers that answer: what the gateway asks of each, and those that speak OpenAI's own protocol.

An answer is a stream of `Part`s: one for a plain request, one an event for a streamed one. It ends in
order, or with `UpstreamFailed`: a stream that ends without `[DONE]` has failed, however complete it looks.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal, Protocol, cast

from channels.gateway.config import Backend
from channels.gateway.connection import Connection, ConnectionFailed, Failing, Pool
from channels.gateway.wire import (
    FINISHED,
    ApiError,
    ApiRequest,
    EventReader,
    JsonObject,
    Part,
    UpstreamFailed,
    parsed_part,
    written,
)

Operation = Literal["chat", "embeddings"]
DRAIN_S: Final = 1.0
"""How long the end of a finished reply is waited for, so that its connection can be used again."""


class Upstream(Protocol):
    """A backend. Closing a generator cancels the request to the server."""

    def check(self, request: ApiRequest, operation: Operation) -> None:
        """Raises ApiError 400 `unsupported` for what this kind of server cannot do."""
        ...

    def ask(self, request: ApiRequest, model: str, operation: Operation) -> AsyncGenerator[Part]:
        """`model` is the server's own name of it. Raises UpstreamFailed."""
        ...


_FAILURES: Final[Mapping[Failing, tuple[int, str, bool]]] = {
    "unreachable": (502, "cannot be reached", True),
    "silent": (504, "was silent for {:g} s", True),
    "lost": (502, "broke off", False),
}
"""Status, words, and whether it counts against the backend."""


class Wire:
    """The HTTP of one backend: where it is, its key, and its failures in the gateway's terms."""

    def __init__(self, backend: Backend, key: str | None) -> None:
        self.backend = backend
        authorization = {"Authorization": f"Bearer {key}"} if key else {}
        self._pool = Pool(backend.url, {"Content-Type": "application/json", **authorization})

    def close(self) -> None:
        self._pool.close()

    @asynccontextmanager
    async def post(self, path: str, content: bytes) -> AsyncGenerator[Connection]:
        """The reply once its head is there. Raises UpstreamFailed for what goes wrong then or within."""
        within = self.backend.timeout_s
        head = asyncio.timeout(within)
        try:
            async with head, self._pool.post(path, content, within) as reply:
                if reply.status >= 300:
                    body = await _body(reply)
                    retry_after = reply.headers.get("retry-after")
                    raise UpstreamFailed.answered(self.backend.name, reply.status, body, retry_after)
                if reply.headers.get("content-encoding", "identity") != "identity":
                    raise self.failed(502, "answered in an encoding that was not asked for", broken=False)
                head.reschedule(None)
                yield reply
        except ConnectionFailed as error:
            status, what, broken = _FAILURES[error.failing]
            raise self.failed(status, what.format(within), broken=broken) from error
        except TimeoutError:
            if not head.expired():
                raise
            raise self.failed(504, f"gave no answer within {within:g} s", broken=True) from None

    async def whole(self, path: str, content: bytes) -> Part:
        """A plain reply, which must be one JSON object. Raises UpstreamFailed, 502 for one that was cut."""
        within = self.backend.timeout_s
        try:
            async with asyncio.timeout(within), self.post(path, content) as reply:
                body = await _body(reply)
        except TimeoutError:
            raise self.failed(504, f"gave no answer within {within:g} s", broken=True) from None
        try:
            return Part(body, parsed_part(body))
        except ValueError:
            raise self.failed(502, "gave an answer that is cut or no JSON", broken=False) from None

    def failed(self, status: int, what: str, *, broken: bool) -> UpstreamFailed:
        return UpstreamFailed.silent(self.backend.name, status, what, broken=broken)


async def _body(reply: Connection) -> bytes:
    parts: list[bytes] = []
    while piece := await reply.piece():
        parts.append(piece)
    return b"".join(parts)


async def drained(reply: Connection) -> None:
    """The finished reply's last bytes; what is wrong with them no longer matters."""
    with suppress(TimeoutError, ConnectionFailed):
        async with asyncio.timeout(DRAIN_S):
            while await reply.piece():
                pass


_PATHS: Mapping[Operation, str] = {"chat": "/chat/completions", "embeddings": "/embeddings"}


class OpenAiUpstream:
    """Implements `Upstream` for kinds `openai`, `vllm` and `gemini`: every field goes as it came, in both
    directions, but for `model` and the `stream_options.include_usage` of our own accounts."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def check(self, request: ApiRequest, operation: Operation) -> None:
        return

    async def ask(self, request: ApiRequest, model: str, operation: Operation) -> AsyncGenerator[Part]:
        changed: JsonObject = {} if model == request.model else {"model": model}
        if operation == "chat" and request.streams and not request.wants_usage:
            options: Any = request.body.get("stream_options")
            if options is None or isinstance(options, dict):
                changed["stream_options"] = {**cast("JsonObject", options or {}), "include_usage": True}
        content = written({**request.body, **changed}) if changed else request.raw
        if operation == "embeddings" or not request.streams:
            yield await self._wire.whole(_PATHS[operation], content)
            return
        deadline = asyncio.get_running_loop().time() + self._wire.backend.timeout_s
        reader, any_yet = EventReader(), False
        async with self._wire.post(_PATHS[operation], content) as reply:
            while piece := await reply.piece():
                for event in self._events(reader, piece):
                    if event.data == b"[DONE]":
                        yield FINISHED
                        await drained(reply)
                        return
                    yield self._part(event.name, event.data, request)
                    any_yet = True
                if not any_yet and asyncio.get_running_loop().time() > deadline:
                    raise self._wire.failed(504, "sent no event in time", broken=True)
        raise self._wire.failed(502, "ended its answer before it was finished", broken=False)

    def _events(self, reader: EventReader, piece: bytes) -> Any:
        try:
            return list(reader.feed(piece))
        except ValueError as error:
            raise self._wire.failed(
                502, f"sent what is none of the protocol: {error}", broken=False
            ) from None

    def _part(self, name: str, data: bytes, request: ApiRequest) -> Part:
        try:
            parsed = parsed_part(data)
        except ValueError:
            raise self._wire.failed(502, "sent an event that is no JSON object", broken=False) from None
        if name == "error" or ("error" in parsed and "choices" not in parsed):
            raise broken_off(parsed)
        ours = not request.wants_usage and parsed.get("choices") == [] and parsed.get("usage") is not None
        return Part(data, parsed, shown=not ours)


def broken_off(parsed: JsonObject) -> ApiError:
    """The error that a server sends within its stream: the client gets it as it is, and nothing after it."""
    found: Any = parsed.get("error", parsed)
    error = cast("JsonObject", found) if isinstance(found, dict) else {"message": str(found)}
    defaults: JsonObject = {"message": "the backend broke off", "type": "upstream_error", "code": None}
    return ApiError(502, "", error={**defaults, **error})
