"""SIP messages as datagrams carry them (RFC 3261), and digests (RFC 7616).

As much as a phone needs that is registered with one server. Headers stand in their order, with the names in
lower case and written out: `v` is `via`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import md5, sha256

from flow_engine.values import whole_number_in

MOST_HEADERS = 200

_REQUEST = re.compile(r"([A-Z]{3,16}) (\S+) SIP/2\.0")
_STATUS = re.compile(r"SIP/2\.0 ([1-6][0-9]{2}) ?(.*)")
_SHORT: Mapping[str, str] = {
    "v": "via", "f": "from", "t": "to", "i": "call-id", "m": "contact", "l": "content-length",
    "c": "content-type", "k": "supported", "s": "subject",
}  # fmt: skip
_CHALLENGE = re.compile(r'\b(\w+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))')
_HASHES = {"MD5": md5, "SHA-256": sha256}


class NotSip(ValueError):
    """A datagram that is no SIP message; the text says why."""


@dataclass(frozen=True, slots=True)
class SipMessage:
    """A request has a `method`, a response a `status`; the other one is empty, or 0."""

    method: str
    uri: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def first(self, name: str) -> str:
        """The header's value; empty without one."""
        return next((value for each, value in self.headers if each == name), "")

    def all(self, name: str) -> list[tuple[str, str]]:
        """Every header of that name, in order."""
        return [header for header in self.headers if header[0] == name]

    @property
    def number(self) -> int:
        """That of its CSeq; 0 without one."""
        return whole_number_in(self.first("cseq").partition(" ")[0]) or 0


def read_message(datagram: bytes) -> SipMessage:
    """Raises NotSip."""
    head, _, body = datagram.partition(b"\r\n\r\n")
    line, *rest = head.decode("utf-8", "replace").replace("\r\n ", " ").replace("\r\n\t", " ").split("\r\n")
    request, status = _REQUEST.fullmatch(line), _STATUS.fullmatch(line)
    if (request is None and status is None) or len(rest) > MOST_HEADERS:
        raise NotSip("no request and no response of SIP/2.0")
    headers: list[tuple[str, str]] = []
    for each in rest:
        name, colon, value = each.partition(":")
        if not colon:
            raise NotSip("a header without a colon")
        name = name.strip().lower()
        headers.append((_SHORT.get(name, name), value.strip()))
    # A length beyond the datagram cuts nothing off, however many digits it has.
    body = body[: whole_number_in(dict(headers).get("content-length", ""))]
    if request is not None:
        return SipMessage(request[1], request[2], 0, tuple(headers), body)
    return SipMessage("", "", int(status[1]) if status is not None else 0, tuple(headers), body)


def write_message(start: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """`start` is the request or status line."""
    lines = [start, *(f"{name}: {value}" for name, value in headers), f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def write_response(
    request: SipMessage,
    status: str,
    *,
    tag: str = "",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> bytes:
    """`status` with its phrase, as in `200 OK`; `tag` is this side's in a dialog."""
    to = request.first("to")
    if tag and ";tag=" not in to.lower():
        to = f"{to};tag={tag}"
    kept = [*request.all("via"), *request.all("record-route"), ("from", request.first("from")), ("to", to)]
    same = [("call-id", request.first("call-id")), ("cseq", request.first("cseq"))]
    return write_message(f"SIP/2.0 {status}", [*kept, *same, *headers], body)


def credentials(challenge: str, username: str, password: str, method: str, uri: str, nonce_use: str) -> str:
    """The value that answers a `WWW-Authenticate` or `Proxy-Authenticate`. `nonce_use` is the client's nonce.
    Raises NotSip for a challenge that cannot be answered."""
    fields = {name.lower(): quoted or bare for name, quoted, bare in _CHALLENGE.findall(challenge)}
    algorithm = fields.get("algorithm", "MD5").upper()
    if not challenge.lower().startswith("digest") or algorithm not in _HASHES or "nonce" not in fields:
        raise NotSip("a challenge that is no digest by MD5 or SHA-256")

    hash_of = _HASHES[algorithm]  # MD5 is what the protocol has, and nothing else is made with it

    def hashed(*parts: str) -> str:
        return hash_of(":".join(parts).encode(), usedforsecurity=False).hexdigest()

    realm, nonce = fields.get("realm", ""), fields["nonce"]
    secret, action = hashed(username, realm, password), hashed(method, uri)
    digest = {"username": username, "realm": realm, "nonce": nonce, "uri": uri}
    plain = f", algorithm={algorithm}"
    if "auth" in [each.strip() for each in fields.get("qop", "").split(",")]:
        digest["response"] = hashed(secret, nonce, "00000001", nonce_use, "auth", action)
        digest["cnonce"] = nonce_use
        plain += ", qop=auth, nc=00000001"
    else:
        digest["response"] = hashed(secret, nonce, action)
    if "opaque" in fields:
        digest["opaque"] = fields["opaque"]
    return "Digest " + ", ".join(f'{name}="{value}"' for name, value in digest.items()) + plain
