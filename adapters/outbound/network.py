"""Connections to checked addresses only.

A name is resolved once a connection, and the connection is made to the very address that was checked.
A second answer of the name server, however different, is never asked for: rebinding has no moment to
happen. Above this layer nothing knows the address, so `Host`, SNI and certificate stay with the name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from typing import Protocol

import httpcore

from adapters.outbound.policy import AllowList, literal_address
from flow_engine.ports.outbound import OutboundFailed

# A name with many addresses must not turn one call into many attempts.
MAX_ATTEMPTS = 4


class Resolver(Protocol):
    """All addresses of a name, most preferred first. Raises OSError when there is none."""

    async def __call__(self, host: str, port: int) -> Sequence[str]: ...


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver, in a thread of the running loop."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """The network below the connection pool. `dialler` makes the TCP connections to addresses."""

    def __init__(self, allow: AllowList, resolver: Resolver, dialler: httpcore.AsyncNetworkBackend) -> None:
        self._allow = allow
        self._resolver = resolver
        self._dialler = dialler

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first checked address that answers; `timeout` seconds are shared by the
        attempts. Raises OutboundRefused, OutboundFailed, or what the dialler raises."""
        addresses = self._allow.decide(host, port, await self._addresses(host, port))[:MAX_ATTEMPTS]
        share = None if timeout is None else timeout / len(addresses)
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._dialler.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise OutboundFailed(f"{host!r} port {port} cannot be reached") from failure

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        literal = literal_address(host)
        if literal is not None:
            return [literal]
        try:
            addresses = await self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            raise OutboundFailed(f"{host!r} does not resolve") from error
        if not addresses:
            raise OutboundFailed(f"{host!r} does not resolve")
        return addresses
