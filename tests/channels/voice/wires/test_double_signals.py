"""Audio of the doubles, which can be told apart."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.voice.call.ports import AudioFormat
from channels.voice.testing.signals import (
    Stretch,
    agent_audio,
    is_silent,
    silence,
    speech,
    stretches,
    understood,
)
from channels.voice.wires.frames import BYTES_PER_MS

FORMATS = st.sampled_from(sorted(BYTES_PER_MS))


@given(st.text(min_size=1, max_size=40), FORMATS, st.integers(0, 300), st.integers(0, 300))
def test_speech_is_understood_with_silence_around_it(
    text: str, fmt: AudioFormat, before: int, after: int
) -> None:
    """V12"""
    raw = silence(before, fmt) + speech(text, 400, fmt) + silence(after, fmt)
    assert understood(raw) == text


@example("\x80", 311, 2)  # two rounds that grow together
@given(st.text(min_size=1, max_size=40), st.integers(0, 3199), st.integers(1, 200))
def test_what_arrives_with_a_hole_is_understood_or_not_but_never_otherwise(
    text: str, at: int, length: int
) -> None:
    """V12"""
    raw = speech(text, 400)
    assert understood(raw[:at] + raw[at + length :]) in (text, "")


def test_utterances_in_one_turn_are_understood_in_order() -> None:  # V12
    raw = speech("A pizza.", 300) + silence(200) + speech("To take away.", 300)
    assert understood(raw) == "A pizza. To take away."


@pytest.mark.parametrize("raw", [b"", silence(100), agent_audio(3, 0, 200), speech("Hello", 300)[:3]])
def test_anything_else_is_not_understood(raw: bytes) -> None:  # V12
    assert understood(raw) == ""


@given(st.text(min_size=1, max_size=20), FORMATS)
def test_speech_and_silence_last_as_long_as_they_are_meant_to(text: str, fmt: AudioFormat) -> None:  # V12
    assert len(speech(text, 200, fmt)) == len(silence(200, fmt)) == 200 * BYTES_PER_MS[fmt]
    assert is_silent(silence(200, fmt), fmt)
    assert not is_silent(speech(text, 200, fmt), fmt)


def test_a_text_too_long_for_its_time_is_refused() -> None:  # V12
    with pytest.raises(ValueError, match="at least 27 ms"):
        speech("x" * 100, 20)


@given(st.integers(0, 2**24 - 1), st.integers(0, 100_000), st.integers(1, 300), FORMATS)
def test_an_agents_audio_says_whose_it_is(item: int, begins: int, ms: int, fmt: AudioFormat) -> None:  # V12
    assert stretches(agent_audio(item, begins, ms, fmt), fmt) == [Stretch(item, begins, begins + ms)]


@pytest.mark.parametrize("item", [-1, 2**24])
def test_an_item_out_of_range_is_refused(item: int) -> None:  # V12
    with pytest.raises(ValueError, match="numbered 0"):
        agent_audio(item, 0, 20)


def test_audio_of_several_is_parted() -> None:  # V12
    raw = agent_audio(1, 40, 20) + silence(60) + agent_audio(2, 0, 20) + agent_audio(2, 30, 5) + b"\xff" * 4
    assert stretches(raw) == [
        Stretch(1, 40, 60),
        Stretch(None, 0, 60),
        Stretch(2, 0, 20),
        Stretch(2, 30, 35),
        Stretch(None, 0, 0.5),
    ]
