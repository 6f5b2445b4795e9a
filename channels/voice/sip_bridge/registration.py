"""What a server answers to a REGISTER (RFC 3261, 10.3): for how long it holds, and from where it came."""

import re

from channels.voice.sip_bridge.messages import SipMessage
from flow_engine.values import whole_number_in

EXPIRES_S = 300
LONGEST_S = 3600

_RECEIVED = re.compile(r";received=([^;\s]+)")
_RPORT = re.compile(r";rport=([0-9]{1,5})")
_ENTRY = re.compile(r'(?:"[^"]*"|<[^>]*>|[^,"<])+')
_EXPIRES = re.compile(r">[^>]*;\s*expires\s*=\s*([0-9]+)", re.IGNORECASE)


def seen_address(reply: SipMessage, own: tuple[str, int]) -> tuple[str, int]:
    """This side's, as the server sees it."""
    via = reply.first("via")
    host, port = _RECEIVED.search(via), _RPORT.search(via)
    return host[1] if host else own[0], int(port[1]) if port else own[1]


def granted_s(reply: SipMessage, contact: str) -> float:
    """For how many seconds `contact`, `<sip:user@host:port>`, is registered: the server names every phone of
    the account. Where it has rewritten the only one, that is meant."""
    entries = [entry for _, value in reply.all("contact") for entry in _ENTRY.findall(value)]
    begin = re.escape(contact.removesuffix(">"))
    own = [entry for entry in entries if re.search(begin + "[>;]", entry, re.IGNORECASE)]
    found = [_EXPIRES.search(entry) for entry in own or entries[: len(entries) == 1]]
    expires = found[0][1] if found and found[0] else reply.first("expires").partition(";")[0].strip()
    return float(min(whole_number_in(expires) or EXPIRES_S, LONGEST_S))
