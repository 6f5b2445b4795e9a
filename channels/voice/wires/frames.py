"""What the frames of every wire hold: JSON that somebody else wrote, and audio.

Every field is checked where it is taken. What is wrong is said by `Malformed` with the names of fields only;
the content may be a caller's words. Audio is base64 of whole samples, measured by its length, never decoded.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar, cast

import msgspec
import orjson

from channels.voice.call.events import Audio, Unreadable
from channels.voice.call.ports import AudioFormat

Object: TypeAlias = dict[str, object]
Event = TypeVar("Event")

NO_STRUCT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a frame that is not the struct that it was to be."""


class Malformed(Exception):
    """The frame is invalid JSON, or none of the wire's; the message names what is wrong without its
    content."""


def read_object(frame: bytes | str) -> Object:
    """The JSON object of a frame, bytes in UTF-8 or text. Raises Malformed."""
    try:
        message: object = orjson.loads(frame)
    except orjson.JSONDecodeError:
        raise Malformed("a frame that is not JSON") from None
    if not isinstance(message, dict):
        raise Malformed("a frame that is not an object")
    return cast(Object, message)


def event_decoder(
    kind: str, readers: Mapping[str, Callable[[Object], Event | None]]
) -> Callable[[bytes | str], Event | Unreadable | None]:
    """A decoder of frames, JSON objects whose field `kind` says which of `readers` makes their event. It
    gives None for a frame that nobody needs, and `Unreadable` for an invalid one; it never raises.

    A wire asks it for what its own decoder, which knows the one kind that nearly all frames are of, has not
    found to be a frame of that kind as it should be."""

    def decode(frame: bytes | str) -> Event | Unreadable | None:
        try:
            message = read_object(frame)
            read = readers.get(text(message, kind))
            return None if read is None else read(message)
        except Malformed as wrong:
            return Unreadable(str(wrong))

    return decode


def text(source: Object, key: str) -> str:
    value = source.get(key)
    if isinstance(value, str):
        return value
    raise Malformed(f"{key} that is no text")


def name(source: Object, key: str) -> str:
    """A text that something is called by, so not an empty one. Raises Malformed."""
    value = source.get(key)
    if isinstance(value, str) and value:
        return value
    raise Malformed(f"{key} that names nothing")


def optional_text(source: Object, key: str) -> str | None:
    """None when the field of the JSON object is missing or null. Raises Malformed for anything else that is
    no text."""
    return None if source.get(key) is None else text(source, key)


def part(source: Object, key: str) -> Object:
    """The JSON object in a field. Raises Malformed for anything else."""
    value = source.get(key)
    if isinstance(value, dict):
        return cast(Object, value)
    raise Malformed(f"{key} that is no object")


def optional_part(source: Object, key: str) -> Object:
    """Empty when the field of the JSON object is missing or null. Raises Malformed for anything else that is
    no object."""
    return {} if source.get(key) is None else part(source, key)


BYTES_PER_MS: Final[dict[AudioFormat, int]] = {"g711_ulaw": 8, "g711_alaw": 8, "pcm16": 48}

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_KEEPS_ALPHABET: Final = bytes(byte if byte in _ALPHABET else byte ^ 1 for byte in range(256))
"""Changes all other bytes: a translation without deletions takes a third of the time."""


def duration_ms(payload: Audio, fmt: AudioFormat) -> float:
    """How many milliseconds the base64 of `payload` plays."""
    return len(payload.rstrip(b"=")) * 3 // 4 / BYTES_PER_MS[fmt]


def audio_of(text: str) -> Audio | None:
    """The text as audio; None when it is not base64.

    Audio goes from one wire to the other by concatenation, so a quote in it would be a command of whoever
    sent it: nothing but the alphabet passes.
    """
    if len(text) % 4 or not text.isascii():
        return None
    payload = text.encode()
    bare = payload.rstrip(b"=")
    return payload if bare.translate(_KEEPS_ALPHABET) == bare else None
