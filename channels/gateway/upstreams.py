"""The servers that answer: what the gateway asks of each, and those that speak OpenAI's own protocol.

An answer is a stream of `Part`s: one for a plain request, one an event for a streamed one. It ends in
order, or with `UpstreamFailed`: a stream that ends without `[DONE]` has failed, however complete it looks.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Literal, Protocol, cast

import httpx2

from channels.gateway.config import Backend
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


class Wire:
    """The HTTP of one backend: where it is, its key, and its failures in the gateway's terms."""

    def __init__(self, backend: Backend, http: httpx2.AsyncClient, key: str | None) -> None:
        self.backend = backend
        self._http = http
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout = httpx2.Timeout(backend.timeout_s, connect=min(5.0, backend.timeout_s))

    @asynccontextmanager
    async def post(self, path: str, content: bytes) -> AsyncGenerator[httpx2.Response]:
        """The reply once its head is there. Raises UpstreamFailed for what goes wrong then or within."""
        url = self.backend.url + path
        with self.translated():
            async with self._http.stream(
                "POST", url, content=content, headers=self._headers, timeout=self._timeout
            ) as response:
                if response.status_code >= 400:
                    body = await response.aread()
                    retry_after = response.headers.get("retry-after")
                    raise UpstreamFailed.answered(self.backend.name, response.status_code, body, retry_after)
                if response.status_code >= 300:
                    raise self.failed(502, f"answered with status {response.status_code}", broken=True)
                yield response

    async def whole(self, path: str, content: bytes) -> Part:
        """A plain reply, which must be one JSON object. Raises UpstreamFailed, 502 for one that was cut."""
        within = self.backend.timeout_s
        try:
            async with asyncio.timeout(within), self.post(path, content) as response:
                body = await response.aread()
        except TimeoutError:
            raise self.failed(504, f"gave no answer within {within:g} s", broken=True) from None
        try:
            return Part(body, parsed_part(body))
        except ValueError:
            raise self.failed(502, "gave an answer that is cut or no JSON", broken=False) from None

    def failed(self, status: int, what: str, *, broken: bool) -> UpstreamFailed:
        return UpstreamFailed.silent(self.backend.name, status, what, broken=broken)

    @contextmanager
    def translated(self) -> Generator[None]:
        """The one place where the HTTP client's errors become the gateway's."""
        try:
            yield
        except httpx2.ConnectError as error:
            raise self.failed(502, "cannot be reached", broken=True) from error
        except httpx2.TimeoutException as error:
            within = f"was silent for {self.backend.timeout_s:g} s"
            raise self.failed(504, within, broken=True) from error
        except httpx2.HTTPError as error:
            raise self.failed(502, "broke off", broken=False) from error

    @asynccontextmanager
    async def pieces(self, path: str, content: bytes) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The body of a streamed reply as it comes."""
        async with self.post(path, content) as response:
            yield response.aiter_bytes()

    async def drained(self, pieces: AsyncIterator[bytes]) -> None:
        """The finished reply's last bytes; what is wrong with them no longer matters."""
        try:
            async with asyncio.timeout(DRAIN_S):
                async for _ in pieces:
                    pass
        except (TimeoutError, httpx2.HTTPError):
            return


_PATHS: Mapping[Operation, str] = {"chat": "/chat/completions", "embeddings": "/embeddings"}


class OpenAiUpstream:
    """Implements `Upstream` for kinds `openai`, `vllm` and `gemini`: every field goes as it came, in both
    directions, but for `model` and the `stream_options.include_usage` of our own accounts."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def check(self, request: ApiRequest, operation: Operation) -> None:
        return

    async def ask(self, request: ApiRequest, model: str, operation: Operation) -> AsyncGenerator[Part]:
        content = _content(request, model, operation)
        if operation == "embeddings" or not request.streams:
            yield await self._wire.whole(_PATHS[operation], content)
            return
        deadline = asyncio.get_running_loop().time() + self._wire.backend.timeout_s
        reader, any_yet = EventReader(), False
        async with self._wire.pieces(_PATHS[operation], content) as pieces:
            async for piece in pieces:
                for event in self._events(reader, piece):
                    if event.data == b"[DONE]":
                        yield FINISHED
                        await self._wire.drained(pieces)
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


def _content(request: ApiRequest, model: str, operation: Operation) -> bytes:
    """The bytes that came where nothing is to be changed."""
    changed: JsonObject = {} if model == request.model else {"model": model}
    if operation == "chat" and request.streams and not request.wants_usage:
        options: Any = request.body.get("stream_options")
        if options is None or isinstance(options, dict):
            changed["stream_options"] = {**cast("JsonObject", options or {}), "include_usage": True}
    return written({**request.body, **changed}) if changed else request.raw
