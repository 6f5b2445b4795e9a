"""The HTTP client for the MCP servers that a flow names: addresses that designers chose (F45).

The SDK of MCP brings its own HTTP library, whose connections are made here by the rules of
`adapters/outbound/policy.py`: a name is resolved once, and the connection is made to the very address
checked. No proxies of the environment, no redirects beyond what the SDK follows within one origin, bounded
answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

import httpcore2
import httpx2

from adapters.models.bounded_http import BoundedTransport
from adapters.outbound.network import MAX_ATTEMPTS, Resolver, resolve
from adapters.outbound.policy import AllowList, literal_address, parse_target
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused

CONNECT_WITHIN_S: Final = 3.0
MOST_CONNECTIONS: Final = 8


class GuardedDialler(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses only. Refusals leave as the library's own connection errors."""

    def __init__(self, allow: AllowList, resolver: Resolver = resolve) -> None:
        self._allow = allow
        self._resolver = resolver
        # httpcore2 declares AnyIOBackend twice, once for installations without anyio.
        self._system = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore2's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            addresses = self._allow.decide(host, port, await self._addresses(host, port))[:MAX_ATTEMPTS]
        except (OutboundRefused, OutboundFailed) as error:
            raise httpcore2.ConnectError(str(error)) from error
        share = None if timeout is None else timeout / len(addresses)
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._system.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise httpcore2.ConnectError(f"{host!r} port {port} cannot be reached") from failure

    async def _addresses(self, host: str, port: int) -> tuple[str, ...]:
        literal = literal_address(host)
        if literal is not None:
            return (literal,)
        try:
            addresses = tuple(await self._resolver(host, port))
        except (OSError, UnicodeError) as error:
            raise OutboundFailed(f"{host!r} does not resolve") from error
        if not addresses:
            raise OutboundFailed(f"{host!r} does not resolve")
        return addresses


class GuardedTransport(BoundedTransport):
    """Sends nothing to an address that `allow` forbids."""

    def __init__(self, allow: AllowList, resolver: Resolver = resolve) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=MOST_CONNECTIONS,
            network_backend=GuardedDialler(allow, resolver),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            target = parse_target(str(request.url))
        except OutboundRefused as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        request.url = request.url.copy_with(host=target.host)
        return await super().handle_async_request(request)


def guarded_client(allow: AllowList, timeout_s: float) -> httpx2.AsyncClient:
    """For an address that somebody else chose. `timeout_s` is for each wait of a request."""
    return _client(GuardedTransport(allow), timeout_s, {})


def trusted_client(headers: Mapping[str, str], timeout_s: float) -> httpx2.AsyncClient:
    """For an address of the operator's own configuration."""
    return _client(BoundedTransport(trust_env=False), timeout_s, headers)


def _client(
    transport: httpx2.AsyncBaseTransport, timeout_s: float, headers: Mapping[str, str]
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=transport,
        headers=dict(headers),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx2.Timeout(timeout_s, connect=min(CONNECT_WITHIN_S, timeout_s)),
    )
