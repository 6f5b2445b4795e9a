"""The one client for calls to the outside: webhooks, custom handlers, declarative tools (F45).

Decisions, each where a general HTTP client would be more obliging:

- Redirects are followed for GET and HEAD only, at most three, each target checked like a first one. A
  redirect of any other method fails: repeating a body elsewhere was never asked for.
- To another origin none of the caller's headers nor the body goes along, credentials or not.
- Bodies travel unencoded. An answer with a content encoding fails unread, so that nothing expands.
- No proxies from the environment, no cookies, no HTTP/2, no upgrades.
- One time limit covers everything: waiting for a connection, name, connect, TLS, redirects, the body.

It stands on httpcore2, the layer of httpx2 that makes connections, because only there is the moment
between resolving and connecting open to a check, with pooling still by name: a pool by address would
hand a TLS connection verified for one name to another name on the same address.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple

import httpcore2

from adapters.outbound.network import GuardedNetwork, Resolver, public_tls, resolve
from adapters.outbound.policy import AllowList, Target, parse_target, redirect_target
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply, UnusableAnswer

MAX_BODY_BYTES = 1024 * 1024
MAX_CHUNKS = 20_000
"""Pieces of one answer's body, each of which takes time however small it is."""
MAX_REDIRECTS = 3
MAX_CONNECTIONS = 64
MAX_IDLE_CONNECTIONS = 16
IDLE_SECONDS = 5.0

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})

_BROKEN_OFF = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, OSError)
_REPEATABLE = frozenset({"GET", "HEAD"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Where the request goes, how it is framed and how the answer is encoded are the client's to say.
RESERVED_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class _Redirect(NamedTuple):
    status: int
    location: bytes


class GuardedClient:
    """Implements `OutboundSender`. One instance serves a whole process and one event loop.

    `allow` is the operator's allow-list; an answer's body of more than `max_bytes` bytes fails. `tls` is for
    a private certificate authority; unset, certificates are verified against the public ones and those of
    `SSL_CERT_FILE`. `resolver` and `dialler` are the two places where the network is touched.
    """

    def __init__(
        self,
        allow: AllowList,
        *,
        max_bytes: int = MAX_BODY_BYTES,
        tls: ssl.SSLContext | None = None,
        resolver: Resolver = resolve,
        dialler: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls or public_tls(),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=GuardedNetwork(allow, resolver, dialler),
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        """Send one request and read its whole answer within `timeout_s` seconds.

        Raises OutboundRefused for an address, method or header that the policy forbids, and
        OutboundFailed when there is no usable answer, UnusableAnswer where one came all the same. Their
        messages name the host, never the path, query, headers or bodies.
        """
        if method not in METHODS:
            raise OutboundRefused(f"method {method!r}; accepted are {', '.join(sorted(METHODS))}")
        reserved = sorted(name for name in headers or {} if name.strip().lower() in RESERVED_HEADERS)
        if reserved:
            raise OutboundRefused(f"headers that only the client sets: {', '.join(map(repr, reserved))}")
        target = first = parse_target(url)
        headers = headers or {}
        status = 0
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(1 + MAX_REDIRECTS):
                    answer = await self._exchange(method, target, headers, content, timeout_s)
                    if isinstance(answer, OutboundReply):
                        return answer
                    if method not in _REPEATABLE:
                        raise UnusableAnswer(
                            f"{target.host!r} redirects a {method}, which is not repeated elsewhere",
                            answer.status,
                        )
                    following = redirect_target(target, answer.location)
                    if following.origin != target.origin:
                        headers, content = {}, b""
                    target, status = following, answer.status
                raise UnusableAnswer(
                    f"more than {MAX_REDIRECTS} redirects, the last to {target.host!r}", status
                )
        except TimeoutError as error:
            raise OutboundFailed(f"{first.host!r} did not answer within {timeout_s:g} s") from error
        except _BROKEN_OFF as error:
            raise OutboundFailed(f"the exchange with {first.host!r} broke off") from error

    async def aclose(self) -> None:
        """Close every connection. Calls after that open new ones."""
        await self._pool.aclose()

    async def _exchange(
        self, method: str, target: Target, headers: Mapping[str, str], content: bytes, timeout_s: float
    ) -> OutboundReply | _Redirect:
        """One request on the wire, the caller's headers over the client's: the reply, or a redirect. Raises
        OutboundFailed for text that no header can hold, UnusableAnswer."""
        merged = {"user-agent": "flow-engine", "accept": "*/*"}
        merged |= {name.lower(): value for name, value in headers.items()}
        merged |= {"host": target.authority, "accept-encoding": "identity"}
        if content or method not in _REPEATABLE:
            merged["content-length"] = str(len(content))
        try:
            wire = [(name.encode("ascii"), value.encode("ascii")) for name, value in merged.items()]
        except UnicodeEncodeError as error:
            raise OutboundFailed("a header holds characters outside of ASCII") from error
        async with self._pool.stream(
            method,
            httpcore2.URL(
                scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path
            ),
            headers=wire,
            content=content or None,
            extensions={"timeout": {"connect": timeout_s}},
        ) as response:
            if response.status in _REDIRECTS:
                location = _header(response, b"location")
                if location is not None:
                    return _Redirect(response.status, location)
            if (_header(response, b"content-encoding") or b"identity").strip().lower() != b"identity":
                raise UnusableAnswer(
                    f"{target.host!r} answers in an encoding that was not accepted", response.status
                )
            body, chunks = bytearray(), 0
            async for chunk in response.aiter_stream():
                body += chunk
                chunks += 1
                if len(body) > self._max_bytes or chunks > MAX_CHUNKS:
                    most = f"{self._max_bytes} bytes" if chunks <= MAX_CHUNKS else f"{MAX_CHUNKS} chunks"
                    raise UnusableAnswer(f"{target.host!r} answers with more than {most}", response.status)
            return OutboundReply(response.status, bytes(body))


def _header(response: httpcore2.Response, wanted: bytes) -> bytes | None:
    """All values of a header, joined as a list is; None without one."""
    values = [value for name, value in response.headers if name.lower() == wanted]
    return b",".join(values) if values else None
