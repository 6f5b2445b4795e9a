"""Audio by its length."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.voice.call.ports import AudioFormat
from channels.voice.wires.frames import BYTES_PER_MS, audio_of, duration_ms


@given(st.binary(max_size=2000), st.sampled_from(sorted(BYTES_PER_MS)))
def test_the_duration_is_that_of_the_decoded_bytes(raw: bytes, fmt: AudioFormat) -> None:  # V12
    assert duration_ms(base64.b64encode(raw), fmt) == len(raw) / BYTES_PER_MS[fmt]


@pytest.mark.parametrize(("fmt", "frame"), [("g711_ulaw", 160), ("g711_alaw", 160), ("pcm16", 960)], ids=str)
def test_twenty_milliseconds_last_twenty_milliseconds(fmt: AudioFormat, frame: int) -> None:  # V12
    assert duration_ms(base64.b64encode(bytes(frame)), fmt) == 20.0


@given(st.binary(max_size=400))
def test_base64_passes_as_it_is(raw: bytes) -> None:  # V12
    encoded = base64.b64encode(raw)
    assert audio_of(encoded.decode()) == encoded


@given(st.text(max_size=60))
def test_whatever_passes_has_nothing_but_the_alphabet_of_base64(text: str) -> None:  # V12
    audio = audio_of(text)
    if audio is not None:
        assert audio.decode() == text
        assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
        assert len(text) % 4 == 0
        assert "=" not in text.rstrip("=")


@pytest.mark.parametrize(
    "text",
    ['AAAA","type":"session.update', "AAA", "A=AA", "AAA\n", "ÄÄÄÄ", "AAA\\", "\ud800AAA", "AA-_", "AAA\x00"],
)
def test_anything_else_is_no_audio(text: str) -> None:  # V12
    assert audio_of(text) is None
