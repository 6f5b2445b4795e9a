"""Where a request was really sent to, and from where: through proxies, if they are trusted to tell.

1. The setting `FLOW_ENGINE_PUBLIC_URL` wins over everything that a request says.
2. `X-Forwarded-Proto`, `-Host` and `-Port` count only from a proxy in `FLOW_ENGINE_TRUSTED_PROXIES`; of a
   list the first entry counts, which is what the outermost proxy was info for.
3. A request is local when it comes from a loopback address, to a local name, from no page of another host,
   and through no proxy: a tunnel that ends on this machine brings the whole world to loopback.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal
from urllib.parse import urlsplit

from adapters.outbound.policy import parse_target
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.ports.outbound import OutboundRefused

Network = IPv4Network | IPv6Network

PROXIES_SETTING = "FLOW_ENGINE_TRUSTED_PROXIES"

_FORWARDING = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
)
_PORT = re.compile(r":[0-9]{1,5}\Z")


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One request as it reached this process. `target` is path and query of the URL as sent; `headers` are
    found whatever their case. `peer` is None where the socket has no address."""

    scheme: Literal["http", "https"]
    peer: str | None
    target: str
    headers: Mapping[str, str]


def base_url(url: str, schemes: tuple[str, ...] = ("https", "http"), *, query: bool = False) -> str:
    """A URL that others are built on, without a slash at its end. Raises ValueError for one with credentials
    or a fragment, for another scheme, for a query where none is allowed, and for one that no request can
    reach."""
    parts = urlsplit(url)
    bare = parts.hostname and not (parts.fragment or ("?" in url and not query) or parts.username is not None)
    if parts.scheme not in schemes or not bare:
        accepted = " or ".join(f"{scheme}://host[:port][/path]" for scheme in schemes)
        raise ValueError(f"not a URL of the form {accepted}")
    try:
        parse_target(f"http:{url.partition(':')[2]}")  # a WebSocket's address is read by the same rules
    except OutboundRefused as refused:
        raise ValueError(str(refused)) from refused
    return url.rstrip("/")


def parse_proxies(text: str) -> tuple[Network, ...]:
    """Raises CorrectTheInput with a finding for each bad entry; its pointer is the entry's index."""
    networks: list[Network] = []
    findings: list[Finding] = []
    for index, entry in enumerate(part.strip() for part in text.split(",")):
        if not entry:
            continue
        try:
            networks.append(ip_network(entry))
        except ValueError:
            message = f"{entry!r} is no address and no CIDR range without host bits, such as 10.0.0.0/8"
            findings.append(Finding(pointer(index), "trusted_proxy_invalid", message))
    if findings:
        messages = "; ".join(finding.message for finding in findings)
        raise CorrectTheInput("trusted_proxies_invalid", f"{PROXIES_SETTING}: {messages}", findings)
    return tuple(networks)


class PublicAddress:
    def __init__(self, public_url: str | None = None, trusted: Sequence[Network] = ()) -> None:
        self._public_url = None if public_url is None else public_url.rstrip("/")
        self._trusted = tuple(trusted)

    def url(self, info: RequestInfo) -> str:
        """The URL of the request, http or https, as its sender knows it."""
        return self.origin(info) + info.target

    def origin(self, info: RequestInfo) -> str:
        """Scheme, host and port; with the prefix that a public URL may have."""
        if self._public_url is not None:
            return self._public_url
        host = info.headers.get("host", "")
        address = _address(info.peer)
        if address is None or not any(address in network for network in self._trusted):
            return f"{info.scheme}://{host}"
        scheme = _first(info, "x-forwarded-proto").lower() or info.scheme
        host = _first(info, "x-forwarded-host") or host
        port = _first(info, "x-forwarded-port")
        if port and not _PORT.search(host) and port != {"http": "80", "https": "443"}.get(scheme):
            host = f"{host}:{port}"
        return f"{scheme}://{host}"


def is_forwarded(info: RequestInfo) -> bool:
    """Whether a proxy has passed the request on, by its headers. False without any."""
    return any(name in info.headers for name in _FORWARDING)


def is_local(info: RequestInfo) -> bool:
    """By rule 3. False for an invalid host."""
    peer, origin = _address(info.peer), info.headers.get("origin")
    return (
        peer is not None
        and peer.is_loopback
        and not is_forwarded(info)
        and _is_local_name(info.headers.get("host", ""))
        and (origin is None or _is_local_name(origin.partition("://")[2]))
    )


def _first(info: RequestInfo, name: str) -> str:
    return info.headers.get(name, "").partition(",")[0].strip()


def _is_local_name(authority: str) -> bool:
    name = _PORT.sub("", authority).lower()
    if name == "localhost":
        return True
    address = _address(name.removeprefix("[").removesuffix("]"))
    return address is not None and address.is_loopback


def _address(text: str | None) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text or "")
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
