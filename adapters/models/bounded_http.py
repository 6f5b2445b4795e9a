"""The HTTP client for model servers: no proxies of the environment, no redirects, bounded answers."""

from collections.abc import AsyncIterator

import httpx2

from flow_engine.json_values import marks_of_values

CONNECT_WITHIN_S = 5.0
MOST_RESPONSE_BYTES = 16 * 1024 * 1024
"""Of one response on the wire: a backstop under the limit on the answer's text, which it never reaches."""


class _Bounded(httpx2.AsyncByteStream):
    def __init__(
        self, stream: httpx2.AsyncByteStream, request: httpx2.Request, most_values: int | None
    ) -> None:
        self._stream = stream
        self._request = request
        self._most_values = most_values

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = values = 0
        async for chunk in self._stream:
            read += len(chunk)
            if read > MOST_RESPONSE_BYTES:
                raise httpx2.ReadError(f"more than {MOST_RESPONSE_BYTES} bytes", request=self._request)
            if self._most_values is not None:
                values += marks_of_values(chunk)
                if values > self._most_values:
                    raise httpx2.ReadError(f"more than {self._most_values} values", request=self._request)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Breaks a response off that has more bytes than any model's answer or, where `most_values` is set, more
    commas and brackets that open. Raises httpx2.ReadError then."""

    most_values: int | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, request, self.most_values)
        return response


def model_http_client(timeout_s: float) -> httpx2.AsyncClient:
    """`timeout_s`, in seconds, is for each wait of a request; the whole of it is bounded by the caller."""
    limits = httpx2.Limits(max_connections=1_000, max_keepalive_connections=20)
    return httpx2.AsyncClient(
        transport=BoundedTransport(trust_env=False, limits=limits),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx2.Timeout(timeout_s, connect=min(CONNECT_WITHIN_S, timeout_s)),
    )
