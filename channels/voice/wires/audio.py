"""Audio as the wires carry it: base64 of whole samples, measured by its length and never decoded."""

from __future__ import annotations

from typing import Final

from channels.voice.call.events import Audio
from channels.voice.call.ports import AudioFormat

BYTES_PER_MS: Final[dict[AudioFormat, int]] = {"g711_ulaw": 8, "g711_alaw": 8, "pcm16": 48}

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def duration_ms(payload: Audio, fmt: AudioFormat) -> float:
    """How long the audio plays."""
    return len(payload.rstrip(b"=")) * 3 // 4 / BYTES_PER_MS[fmt]


def audio_of(text: str) -> Audio | None:
    """The text as audio; None when it is not base64.

    Audio goes from one wire to the other by concatenation, so a quote in it would be a command of whoever
    sent it: nothing but the alphabet passes.
    """
    payload = text.encode("ascii", "replace")
    if len(payload) % 4 or payload.rstrip(b"=").translate(None, _ALPHABET):
        return None
    return payload
