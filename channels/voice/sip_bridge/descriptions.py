"""Descriptions of audio as INVITEs and their answers carry them (RFC 4566, RFC 3264).

As much as a phone needs that speaks G.711.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from flow_engine.values import whole_number_in

MU_LAW = 0
A_LAW = 8
EVENTS = 101
"""The type of telephone events where this side chooses it."""

NOWHERE = "0.0.0.0"  # noqa: S104 - how phones of RFC 2543 say that they do not listen

_NAMES: Mapping[int, str] = {MU_LAW: "PCMU", A_LAW: "PCMA"}
_MIRRORED: Mapping[str, str] = {
    "sendrecv": "sendrecv", "sendonly": "recvonly", "recvonly": "sendonly", "inactive": "inactive",
}  # fmt: skip
_UNHEARD: Mapping[str, str] = {"sendrecv": "sendonly", "recvonly": "inactive"}


@dataclass(frozen=True, slots=True)
class AudioOffer:
    """Where the other side hears, the first payload type of it that this side speaks (0: µ-law, 8: A-law),
    and that of its telephone events, None where it has none. `direction` is what the other side does.
    `before` and `after` are its other media, to be refused where they stand (RFC 3264, 6)."""

    host: str
    port: int
    payload_type: int
    events_type: int | None
    direction: str = "sendrecv"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def hears(self) -> bool:
        return self.direction in ("sendrecv", "recvonly")

    @property
    def speaks(self) -> bool:
        return self.direction in ("sendrecv", "sendonly")


UNDESCRIBED = AudioOffer(NOWHERE, 9, MU_LAW, None, "inactive")
"""Of an INVITE without a description: this side makes the offer, which the ACK answers (RFC 3261, 13.2.1)."""


@dataclass(slots=True)
class _Section:
    """The lines from one `m=` to the next; `media` is empty for those before the first. `host` is None where
    none is said, and empty where it is no address of IPv4."""

    media: list[str] = field(default_factory=list[str])
    host: str | None = None
    direction: str = ""
    events_type: int | None = None


def read_offer(body: bytes) -> AudioOffer | None:
    """None where there is no G.711 audio in the description."""
    session, *sections = _sections(body)
    if any(len(section.media) < 4 for section in sections):
        return None
    refusals = [" ".join([each.media[0], "0", *each.media[2:]]) for each in sections]
    for at, section in enumerate(sections):
        if (offer := _audio(section, session)) is not None:
            return replace(offer, before=tuple(refusals[:at]), after=tuple(refusals[at + 1 :]))
    return None


def _sections(body: bytes) -> list[_Section]:
    sections = [_Section()]
    for line in body.decode("utf-8", "replace").splitlines():
        kind, _, value = line.strip().partition("=")
        words, here = value.split(), sections[-1]
        if kind == "m":
            sections.append(_Section(words))
        elif kind == "c":
            here.host = _ipv4(words)
        elif kind == "a" and value.lower() in _MIRRORED:
            here.direction = value.lower()
        elif value.lower().startswith("rtpmap:") and "telephone-event/8000" in value.lower():
            here.events_type = whole_number_in(words[0].partition(":")[2])
    return sections


def _ipv4(words: list[str]) -> str:
    """Empty for a name too: a socket would look it up, and have all calls wait."""
    try:
        return str(IPv4Address(words[2])) if words[:2] == ["IN", "IP4"] else ""
    except (IndexError, ValueError):
        return ""


def _audio(section: _Section, session: _Section) -> AudioOffer | None:
    kind, port_text, transport, *types = section.media
    port = whole_number_in(port_text) or 0
    spoken = next((number for number in map(whole_number_in, types) if number in (MU_LAW, A_LAW)), None)
    host = session.host if section.host is None else section.host
    if (kind, transport) != ("audio", "RTP/AVP") or spoken is None or not 0 < port < 65_536 or not host:
        return None
    direction = section.direction or session.direction or "sendrecv"
    if host == NOWHERE:
        direction = _UNHEARD.get(direction, direction)
    return AudioOffer(host, port, spoken, section.events_type, direction)


def write_offer(host: str, port: int, version: int = 1) -> bytes:
    """The description of all that a phone speaks, for RTP to `host` and `port`. `version` counts those of a
    call."""
    return "\r\n".join([*_head(host, port, version), *_audio_lines(port, _NAMES, EVENTS), ""]).encode()


def write_answer(offer: AudioOffer, host: str, port: int, version: int = 1) -> bytes:
    """The description that takes the offer; otherwise as `write_offer`."""
    kept = _audio_lines(port, (offer.payload_type,), offer.events_type, _MIRRORED[offer.direction])
    before, after = ([f"m={refused}" for refused in media] for media in (offer.before, offer.after))
    return "\r\n".join([*_head(host, port, version), *before, *kept, *after, ""]).encode()


def _head(host: str, port: int, version: int) -> list[str]:
    return ["v=0", f"o=- {port} {version} IN IP4 {host}", "s=-", f"c=IN IP4 {host}", "t=0 0"]


def _audio_lines(
    port: int, spoken: Iterable[int], events_type: int | None, direction: str = "sendrecv"
) -> list[str]:
    names = {number: f"{_NAMES[number]}/8000" for number in spoken}
    if events_type is not None:
        names[events_type] = "telephone-event/8000"
    return [
        f"m=audio {port} RTP/AVP {' '.join(map(str, names))}",
        *(f"a=rtpmap:{number} {name}" for number, name in names.items()),
        *([] if events_type is None else [f"a=fmtp:{events_type} 0-15"]),
        *("a=ptime:20", f"a={direction}"),
    ]
