"""All rules about where an outbound call may go (F45). Pure: no name is resolved here.

1. Only `http` and `https`, without user information, to a host that has one reading: numbers which
   some resolvers take for an IPv4 address (`127.1`, `0x7f.1`, `2130706433`), zone ids and characters
   outside of host names are refused before anything is resolved.
2. Every address that a name leads to must be public. One that is not refuses the whole name: a mix of
   public and internal addresses is what an attacker's name server answers, not what a partner's does.
3. An operator's allow-list lifts rule 2, never rule 1. A name entry vouches for that exact name,
   wherever it leads; an address or CIDR entry vouches for the addresses, whatever name leads there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

import httpx2

from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.ports.outbound import OutboundRefused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ALLOW_SETTING = "FLOW_ENGINE_OUTBOUND_ALLOW"

# httpx2 lets the error of a lone surrogate, which JSON can carry, through as it is.
_UNREADABLE = (httpx2.InvalidURL, UnicodeError)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_NUMBER_AT_THE_END = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")
_ENTRY = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:]+)(:(?P<port>[0-9]{1,5}))?")

# An own table of the IANA special-purpose registries: `is_global` differs between patch releases of
# Python (2002::/16, 64:ff9b:1::/48) and calls multicast global.
_SPECIAL_V4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud platform"),  # public by its number, yet answered by the Azure host
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
# Only 2000::/3 is global unicast; these parts of it are not ordinary hosts either.
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
_SPECIAL_V6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("2001::/23", "reserved"),  # Teredo, which embeds an IPv4 address, and protocol assignments
        ("2001:db8::/32", "reserved"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "reserved"),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Target:
    """Where one request goes. `host` is lower case ASCII without a trailing dot, IPv6 without
    brackets; `path` is percent-encoded and holds the query."""

    scheme: str
    host: str
    port: int
    path: bytes

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The value of the `Host` header: the port is left out where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def host_and_port(url: str) -> str | None:
    """A server as an allow-list names it, of its URL; None for what is none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "wss": 443, "http": 80, "ws": 80}.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return f"[{parts.hostname}]:{port}" if ":" in parts.hostname else f"{parts.hostname}:{port}"


def parse_target(url: str) -> Target:
    """Read a URL by rule 1, or raise OutboundRefused. Messages leave path and query out: they may
    hold credentials."""
    try:
        return _target(httpx2.URL(url))
    except _UNREADABLE as error:
        raise OutboundRefused("the URL cannot be read without doubt") from error


def redirect_target(current: Target, location: bytes) -> Target:
    """Where a `Location` header leads, by the same rules as a URL that a caller gives. From https to
    http is refused: what was asked for in private would be asked again in the open."""
    base = f"{current.scheme}://{current.authority}{current.path.decode('ascii')}"
    try:
        target = _target(httpx2.URL(base).join(location.decode("latin-1")))
    except _UNREADABLE as error:
        raise OutboundRefused(f"{current.host!r} redirects to a URL that cannot be read") from error
    if current.scheme == "https" and target.scheme != "https":
        raise OutboundRefused(f"{current.host!r} redirects from https to {target.scheme}")
    return target


def _target(url: httpx2.URL) -> Target:
    if url.scheme not in _DEFAULT_PORTS:
        raise OutboundRefused(f"the URL's scheme is {url.scheme!r}; http and https are accepted")
    if url.userinfo:
        raise OutboundRefused("the URL holds a user or password, which is never sent")
    port = _DEFAULT_PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 65536:
        raise OutboundRefused(f"port {port} does not exist")
    host = url.raw_host.decode("ascii")
    try:
        return Target(url.scheme, _normal_host(host), port, url.raw_path)
    except ValueError as error:
        raise OutboundRefused(f"{host!r} is not a host name or address with one reading") from error


def _normal_host(host: str) -> str:
    """One spelling for each host, of ASCII text. Raises ValueError when there may be two readings."""
    if ":" in host:
        return str(_address(host))
    host = host.lower().removesuffix(".")
    if _NUMBER_AT_THE_END.fullmatch(host):
        return str(IPv4Address(host))
    if not _NAME.fullmatch(host):
        raise ValueError("not a host name")
    return host


def _address(text: str) -> Address:
    """An address in the form that is judged and dialled: IPv4-mapped IPv6 is its IPv4 address."""
    if "%" in text:
        raise ValueError("a zone id names an interface of this machine")
    address = ip_address(text)
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def literal_address(host: str) -> str | None:
    """The host itself when it is an address, which nothing needs to resolve; None for a name."""
    try:
        return str(_address(host))
    except ValueError:
        return None


def _special_kind(address: Address) -> str | None:
    """What makes an address no public host; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((kind for network, kind in _SPECIAL_V4 if address in network), None)
    if address in _NAT64:
        # In networks with IPv6 only, every public IPv4 host is reached in this form.
        return _special_kind(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address not in _GLOBAL_UNICAST_V6:
        if address.is_loopback:
            return "loopback"
        if address.is_link_local:
            return "link-local"
        if address.is_multicast:
            return "multicast"
        return "private" if address in IPv6Network("fc00::/7") else "reserved"
    return next((kind for network, kind in _SPECIAL_V6 if address in network), None)


@dataclass(frozen=True, slots=True)
class AllowList:
    """What an operator lets outbound calls reach beside public addresses. Port None is any port."""

    names: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[tuple[Network, int | None], ...] = ()

    @classmethod
    def parse(cls, text: str, *named: str | None) -> AllowList:
        """Read `FLOW_ENGINE_OUTBOUND_ALLOW`: names, `host:port`, addresses (IPv6 with a port in
        brackets) and CIDR ranges, separated by commas. `named` are URLs of servers that the operator has
        named elsewhere: naming one is allowing it (F45).

        Raises CorrectTheInput with a finding for each bad entry; its pointer is the entry's index.
        """
        names: set[tuple[str, int | None]] = set()
        networks: list[tuple[Network, int | None]] = []
        findings: list[Finding] = []
        servers = filter(None, map(host_and_port, filter(None, named)))
        for index, entry in enumerate(part.strip() for part in (*text.split(","), *servers)):
            if not entry:
                continue
            try:
                host, port = _read_entry(entry)
            except ValueError as error:
                findings.append(
                    Finding(
                        pointer(index),
                        "outbound_allow_entry_invalid",
                        f"{entry!r}: {error}. Accepted: a host name, host:port, an address, [IPv6]:port or a "
                        "CIDR range without host bits, such as 10.0.0.0/8",
                    )
                )
                continue
            if isinstance(host, str):
                names.add((host, port))
            else:
                networks.append((host, port))
        if findings:
            raise CorrectTheInput(
                "outbound_allow_invalid", f"{ALLOW_SETTING} has entries that cannot be read", findings
            )
        return cls(frozenset(names), tuple(networks))

    def decide(self, host: str, port: int, addresses: Sequence[str]) -> tuple[str, ...]:
        """The addresses that may be dialled for `host` (as Target has it), in the order given.

        Raises OutboundRefused when any of them is forbidden. The message does not tell the address:
        callers may show it to people who should not learn the inner network.
        """
        try:
            read = [_address(text) for text in addresses]
        except ValueError as error:
            raise OutboundRefused(f"{host!r} leads to an address that cannot be read") from error
        if self.names.isdisjoint({(host, port), (host, None)}):
            for address in read:
                kind = _special_kind(address)
                if kind is not None and not any(
                    address in network and allowed_port in (None, port)
                    for network, allowed_port in self.networks
                ):
                    raise OutboundRefused(
                        f"{host!r} port {port} leads to a {kind} address; public addresses and the "
                        f"entries of {ALLOW_SETTING} are accepted"
                    )
        return tuple(dict.fromkeys(str(address) for address in read))

    def visible_refusal(self, url: str) -> str | None:
        """Why the URL can never be called, as far as its text shows: by rule 1, or for an address in it. None
        when the name has to be resolved to know."""
        try:
            target = parse_target(url)
            is_local = target.host == "localhost" or target.host.endswith(".localhost")
            address = "127.0.0.1" if is_local else literal_address(target.host)
            if address is not None:
                self.decide(target.host, target.port, [address])
        except OutboundRefused as refused:
            return str(refused)
        return None


def _read_entry(entry: str) -> tuple[str | Network, int | None]:
    if "/" in entry:
        return ip_network(entry), None
    whole = literal_address(entry)
    if whole is not None:
        return ip_network(whole), None
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError("not a host, host:port or CIDR range")
    port = None if match["port"] is None else int(match["port"])
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"port {port} does not exist")
    host = match["host"]
    if host.startswith("["):
        host = str(_address(host[1:-1]))
    else:
        try:
            host = _normal_host(httpx2.URL(scheme="http", host=host).raw_host.decode("ascii"))
        except _UNREADABLE as error:
            raise ValueError("not a host name") from error
    address = literal_address(host)
    return (host if address is None else ip_network(address)), port
