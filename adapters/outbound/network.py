"""Connections to checked addresses only, below the pools of httpcore2.

A name is resolved once a connection, and the connection is made to the very address that was checked.
A second answer of the name server, however different, is never asked for: rebinding has no moment to
happen. Above this layer nothing knows the address, so `Host`, SNI and certificate stay with the name.

Names that somebody else chose are looked up in threads of their own: a name server that never answers
would otherwise keep the few threads in which a process resolves the names of its own stores.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any, Final, Protocol, TypeAlias, cast

import httpcore2
import httpx2
import structlog

from adapters.outbound.policy import AllowList, literal_address
from flow_engine.ports.outbound import OutboundFailed

log: Any = structlog.get_logger("flow_engine.outbound")

MAX_ATTEMPTS: Final = 4
"""A name with many addresses must not turn one call into many attempts."""

READ_BYTES: Final = 4096
"""At once: what a server puts into them, such as chunks of one byte, is read in milliseconds, in which nobody
else is served. The 64 KiB that httpcore2 would take were a second."""

LOOKUP_WITHIN_S: Final = 5.0
MOST_LOOKUPS: Final = 64
MOST_OF_A_DOMAIN: Final = 8
"""Look-ups under way at once for names with the same last two labels: who answers for one answers for all."""


@cache
def public_tls(*, trust_env: bool = True) -> ssl.SSLContext:
    """What TLS of this process is verified by: the public certificates or, with `trust_env`, those of
    `SSL_CERT_FILE`. Read once: reading them takes 20 ms, in which nobody is served. Where they cannot be
    read, every certificate is refused."""
    try:
        return httpx2.create_ssl_context(trust_env=trust_env)
    except OSError as error:
        log.error("certificates_unreadable", setting="SSL_CERT_FILE", reason=str(error))
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


Addresses: TypeAlias = Sequence[str]
SystemLookup: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]


class Resolver(Protocol):
    """All addresses of a name, most preferred first. Raises OSError when there is none."""

    async def __call__(self, host: str, port: int) -> Addresses: ...


class Lookups:
    """Implements `Resolver`: asks the system's in threads of its own, one a name, for any event loop.

    Whoever asks waits `within_s` seconds at most, for a free place too; then TimeoutError, an OSError. The
    thread itself ends with the system's own limit: until then it holds its place, among `most` in all and
    `most_of_a_domain` of one domain.
    """

    def __init__(
        self,
        lookup: SystemLookup = socket.getaddrinfo,
        *,
        within_s: float = LOOKUP_WITHIN_S,
        most: int = MOST_LOOKUPS,
        most_of_a_domain: int = MOST_OF_A_DOMAIN,
    ) -> None:
        self._lookup = lookup
        self._within_s = within_s
        self._most = most
        self._most_of_a_domain = most_of_a_domain
        self._under_way: dict[tuple[str, int], Future[Addresses]] = {}
        self._lock = threading.Lock()

    async def __call__(self, host: str, port: int) -> Addresses:
        async with asyncio.timeout(self._within_s):
            while isinstance(found := self._begun(host, port), list):
                await asyncio.wait(map(asyncio.wrap_future, found), return_when=asyncio.FIRST_COMPLETED)
            return await asyncio.wrap_future(found)

    def _begun(self, host: str, port: int) -> Future[Addresses] | list[Future[Addresses]]:
        """The look-up of the name; or, where there is no place for it, those that are in its way."""
        with self._lock:
            known = self._under_way.get((host, port))
            if known is not None:
                return known
            everything = list(self._under_way.values())
            of_domain = [f for (name, _), f in self._under_way.items() if _domain(name) == _domain(host)]
            if len(of_domain) >= self._most_of_a_domain:
                return of_domain
            if len(everything) >= self._most:
                return everything
            future: Future[Addresses] = Future()
            future.set_running_or_notify_cancel()
            self._under_way[(host, port)] = future
        # A daemon, so that a silent name server does not hold up the end of the process.
        threading.Thread(target=self._look_up, args=(host, port, future), daemon=True).start()
        return future

    def _look_up(self, host: str, port: int, future: Future[Addresses]) -> None:
        try:
            found = self._lookup(host, port, type=socket.SOCK_STREAM)
            addresses = [str(address[0]) for *_, address in found]
        except (OSError, UnicodeError) as error:
            self._finish(host, port)
            future.set_exception(error)
        else:
            self._finish(host, port)
            future.set_result(addresses)

    def _finish(self, host: str, port: int) -> None:
        with self._lock:
            del self._under_way[(host, port)]


resolve: Final[Resolver] = Lookups()
"""The one of the process."""


def _domain(host: str) -> str:
    return ".".join(host.rsplit(".", 2)[-2:])


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """The network below a connection pool; a name has `timeout` seconds to be resolved and connected.
    `dialler` makes the TCP connections to addresses, by default the system's. Raises OutboundRefused for an
    address that `AllowList.decide` forbids."""

    def __init__(
        self,
        allow: AllowList,
        resolver: Resolver = resolve,
        dialler: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._allow = allow
        self._resolver = resolver
        # httpcore2 declares AnyIOBackend twice, once for installations without anyio.
        self._dialler = dialler or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore2's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first checked address that answers; `timeout` seconds are shared by the
        attempts. Raises OutboundRefused, OutboundFailed, or what the dialler raises."""
        addresses = self._allow.decide(host, port, await self._addresses(host, port))[:MAX_ATTEMPTS]
        share = None if timeout is None else timeout / len(addresses)
        failure: Exception | None = None
        for address in addresses:
            try:
                return _Sipped(
                    await self._dialler.connect_tcp(address, port, share, local_address, socket_options)
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise OutboundFailed(f"{host!r} port {port} cannot be reached") from failure

    async def _addresses(self, host: str, port: int) -> Addresses:
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


class _Sipped(httpcore2.AsyncNetworkStream):
    """A connection of which at most `READ_BYTES` are read at once. Raises what the one below raises."""

    def __init__(self, below: httpcore2.AsyncNetworkStream) -> None:
        self._below = below

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._below.read(min(max_bytes, READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._below.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._below.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        return _Sipped(await self._below.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._below.get_extra_info(info)
