"""Audio that can be told apart, for doubles that have neither ears nor a voice.

All functions take and give raw bytes, not base64. A bridge passes audio on without looking at it, so what
the doubles write into it arrives at the other side:

- A caller's speech carries its own text, over and over, with a checksum: whoever gets one whole round of it
  has understood, and silence between or around does no harm.
- An agent's speech carries, millisecond by millisecond, the number of its item and its own position, so that
  what a line played can be told exactly.

A fake model detects voice activity in it. It counts milliseconds of audio, not time, as the real one does:
audio that comes late is late for it too.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from channels.voice.call.ports import AudioFormat
from channels.voice.wires.frames import BYTES_PER_MS

_SILENT_BYTE: dict[AudioFormat, bytes] = {"g711_ulaw": b"\xff", "g711_alaw": b"\xd5", "pcm16": b"\x00"}

# A round is BEGIN, text and checksum in half bytes, END; none of these bytes is silent in any format.
_BEGIN = b"\x01"
_END = b"\x02"
_HALF = 0x10
_CHECKSUM_BYTES = 4

_UNIT = struct.Struct(">II")
_TAG = 0x5A00_0000
_MOST_ITEMS = 0x00FF_FFFF


def silence(ms: int, fmt: AudioFormat = "g711_ulaw") -> bytes:
    return _SILENT_BYTE[fmt] * (ms * BYTES_PER_MS[fmt])


def is_silent(raw: bytes, fmt: AudioFormat) -> bool:
    return not raw.strip(_SILENT_BYTE[fmt])


def speech(text: str, ms: int, fmt: AudioFormat = "g711_ulaw") -> bytes:
    """A caller who says `text`. Raises ValueError when `ms` is too short for one round of it."""
    encoded = text.encode()
    checked = encoded + zlib.crc32(encoded).to_bytes(_CHECKSUM_BYTES, "big")
    halves = (_HALF | half for byte in checked for half in divmod(byte, 16))
    one_round = _BEGIN + bytes(halves) + _END
    length = ms * BYTES_PER_MS[fmt]
    if len(one_round) > length:
        least = -(-len(one_round) // BYTES_PER_MS[fmt])
        raise ValueError(f"this text takes at least {least} ms, not {ms}")
    return (one_round * (length // len(one_round) + 1))[:length]


def understood(raw: bytes) -> str:
    """What a caller said in these bytes, several utterances parted by spaces; empty when nothing arrived
    whole."""
    texts: list[str] = []
    for text in _rounds(raw):
        if not texts or texts[-1] != text:
            texts.append(text)
    return " ".join(texts)


def _rounds(raw: bytes) -> Iterator[str]:
    for begun in raw.split(_BEGIN)[1:]:
        halves, ended, _ = begun.partition(_END)
        if not ended or len(halves) % 2 or any(half & 0xF0 != _HALF for half in halves):
            continue
        checked = bytes((high & 15) << 4 | low & 15 for high, low in zip(*[iter(halves)] * 2, strict=True))
        encoded, checksum = checked[:-_CHECKSUM_BYTES], checked[-_CHECKSUM_BYTES:]
        if zlib.crc32(encoded).to_bytes(_CHECKSUM_BYTES, "big") == checksum:
            yield encoded.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Milliseconds of one agent's item, or of an unknown one (None), which are counted from 0."""

    item: int | None
    begins_ms: float
    ends_ms: float


def agent_audio(item: int, begins_ms: int, ms: int, fmt: AudioFormat = "g711_ulaw") -> bytes:
    """`ms` milliseconds of an item from a position on. Raises ValueError for an item out of 0 … 2^24-1."""
    if not 0 <= item <= _MOST_ITEMS:
        raise ValueError(f"items are numbered 0 … {_MOST_ITEMS}, not {item}")
    filling = bytes(BYTES_PER_MS[fmt] - _UNIT.size)
    tag = _TAG | item
    return b"".join(_UNIT.pack(tag, at) + filling for at in range(begins_ms, begins_ms + ms))


def stretches(raw: bytes, fmt: AudioFormat = "g711_ulaw") -> list[Stretch]:
    """Whose audio these bytes are, from their beginning to their end."""
    size = BYTES_PER_MS[fmt]
    whole = _stretch(raw[:size])
    if whole is not None and whole.item is not None:
        ms = len(raw) // size
        if raw == agent_audio(whole.item, int(whole.begins_ms), ms, fmt):  # nearly always, and much faster
            return [Stretch(whole.item, whole.begins_ms, whole.begins_ms + ms)]
    found: list[Stretch] = []
    for at in range(0, len(raw), size):
        unit = raw[at : at + size]
        new = _stretch(unit) or Stretch(None, 0, len(unit) / size)
        last = found[-1] if found else None
        if last is None or last.item != new.item:
            found.append(new)
        elif new.item is None:
            found[-1] = Stretch(None, 0, last.ends_ms + new.ends_ms)
        elif last.ends_ms == new.begins_ms:
            found[-1] = Stretch(last.item, last.begins_ms, new.ends_ms)
        else:
            found.append(new)
    return found


def _stretch(unit: bytes) -> Stretch | None:
    if len(unit) < _UNIT.size:
        return None
    tag, begins_ms = _UNIT.unpack_from(unit)
    return Stretch(tag & _MOST_ITEMS, begins_ms, begins_ms + 1) if tag & ~_MOST_ITEMS == _TAG else None


@dataclass(frozen=True, slots=True)
class Began:
    """Speech, from `at_ms` milliseconds of all audio on."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Ended:
    at_ms: int
    text: str
    """Empty when the speech could not be understood."""


class FakeVad:
    def __init__(self) -> None:
        self.heard_ms = 0.0
        """All audio so far."""
        self.speech = bytearray()
        self._is_speech = False
        self._quiet_ms = 0.0

    def hear(
        self, raw: bytes, fmt: AudioFormat, *, silence_ms: float, padding_ms: float
    ) -> Began | Ended | None:
        ms = len(raw) / BYTES_PER_MS[fmt]
        began_ms = self.heard_ms
        self.heard_ms += ms
        if not is_silent(raw, fmt):
            self._quiet_ms = 0.0
            self.speech += raw
            if not self._is_speech:
                self._is_speech = True
                return Began(int(max(0.0, began_ms - padding_ms)))
        elif self._is_speech:
            self._quiet_ms += ms
            if self._quiet_ms >= silence_ms:
                return Ended(int(self.heard_ms), self.take())
        return None

    def take(self) -> str:
        """What was said up to here; listening begins anew."""
        text = understood(bytes(self.speech))
        self.forget()
        return text

    def forget(self) -> None:
        self.speech.clear()
        self._is_speech = False
        self._quiet_ms = 0.0
