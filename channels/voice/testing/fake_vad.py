"""Voice activity detection of a fake model: where speech begins and ends in the audio that it is given.

It hears milliseconds of audio, not time, as the real one does: audio that comes late is late for it too.
"""

from __future__ import annotations

from dataclasses import dataclass

from channels.voice.call.ports import AudioFormat
from channels.voice.testing.signals import is_silent, understood
from channels.voice.wires.audio import BYTES_PER_MS


@dataclass(frozen=True, slots=True)
class Began:
    """Speech, from `at_ms` of all audio on."""

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
