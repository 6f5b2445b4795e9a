"""What the caller of a fake line hears."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.voice.testing.playout import Cleared, Heard, Playout
from channels.voice.testing.signals import Stretch, agent_audio, silence


def near(expected: float) -> object:
    return pytest.approx(expected, abs=1e-3)


def test_audio_plays_from_its_arrival_on_at_its_own_pace() -> None:  # V12
    line = Playout(10.0)
    line.play(agent_audio(7, 0, 1000), 10.5)
    line.advance(10.8)
    assert line.heard_ms(7) == near(300)
    assert line.waiting_ms(11.0) == near(500)
    line.advance(20)
    assert line.heard == [Heard(10.5, near(11.5), 7, 0, near(1000))]


def test_audio_that_comes_in_time_goes_on_without_a_gap() -> None:  # V12
    line = Playout(0.0)
    line.play(agent_audio(7, 0, 200), 0.0)
    line.play(agent_audio(7, 200, 200), 0.1)
    line.advance(1.0)
    assert line.heard == [Heard(0.0, near(0.4), 7, 0, near(400))]


def test_audio_that_comes_late_leaves_a_gap() -> None:  # V12
    line = Playout(0.0)
    line.play(agent_audio(7, 0, 200), 0.0)
    line.play(agent_audio(7, 200, 200), 0.5)
    line.advance(1.0)
    assert line.heard == [Heard(0.0, near(0.2), 7, 0, near(200)), Heard(0.5, near(0.7), 7, 200, near(400))]


def test_a_faster_line_plays_faster() -> None:  # V12
    line = Playout(0.0, speed=4.0)
    line.play(agent_audio(7, 0, 1000), 0.0)
    line.advance(0.125)
    assert line.heard_ms(7) == near(500)


def test_marks_come_back_when_what_is_before_them_was_played() -> None:  # V12
    line = Playout(0.0)
    line.mark("at once", 0.0)
    assert list(line.reached) == ["at once"]
    line.play(agent_audio(1, 0, 100), 0.0)
    line.mark("first", 0.0)
    line.play(agent_audio(2, 0, 100), 0.0)
    line.mark("second", 0.0)
    line.advance(0.09)
    assert list(line.reached) == ["at once"]
    line.advance(0.1001)
    assert list(line.reached) == ["at once", "first"]
    line.advance(0.3)
    assert list(line.reached) == ["at once", "first", "second"]


def test_a_clear_throws_away_what_waits_and_gives_back_its_marks() -> None:  # V12
    line = Playout(0.0)
    line.play(agent_audio(1, 0, 100), 0.0)
    line.mark("first", 0.0)
    line.play(agent_audio(2, 0, 100), 0.0)
    line.mark("second", 0.0)
    line.clear(0.04)
    dropped = (Stretch(1, near(40), 100), Stretch(2, 0, 100))  # type: ignore[arg-type]
    assert line.clears == [Cleared(0.04, dropped, ("first", "second"))]
    assert line.clears[0].dropped_ms == near(160)
    assert list(line.reached) == ["first", "second"]
    line.advance(5.0)
    assert (line.heard_ms(1), line.heard_ms(2)) == (near(40), 0)


def test_what_plays_after_a_clear_begins_on_arrival() -> None:  # V12
    line = Playout(0.0)
    line.play(agent_audio(1, 0, 5000), 0.0)
    line.clear(1.0)
    line.play(agent_audio(2, 0, 100), 1.5)
    line.advance(3.0)
    assert line.heard[-1] == Heard(1.5, near(1.6), 2, 0, near(100))


def test_audio_of_nobody_is_heard_too() -> None:  # V12
    line = Playout(0.0)
    line.play(silence(100), 0.0)
    line.advance(1.0)
    assert line.heard == [Heard(0.0, near(0.1), None, 0, near(100))]


@given(
    st.lists(
        st.tuples(st.sampled_from(["play", "mark", "clear", "wait"]), st.integers(1, 300)),
        max_size=40,
    )
)
def test_all_audio_is_heard_waiting_or_thrown_away_and_every_mark_comes_back_once(
    steps: list[tuple[str, int]],
) -> None:
    """V12"""
    line, now, sent, marks = Playout(0.0), 0.0, 0, 0
    for kind, amount in steps:
        if kind == "play":
            line.play(agent_audio(1, sent, amount), now)
            sent += amount
        elif kind == "mark":
            line.mark(str(marks), now)
            marks += 1
        elif kind == "clear":
            line.clear(now)
        else:
            now += amount / 1000
            line.advance(now)
        dropped = sum(clear.dropped_ms for clear in line.clears)
        assert line.heard_ms(1) + line.waiting_ms(now) + dropped == pytest.approx(sent, abs=0.01)
    line.advance(now + 100)
    assert list(line.reached) == [str(mark) for mark in range(marks)]


def test_audio_that_has_been_played_was_heard_to_its_last_bit() -> None:  # V12
    line = Playout(0.0)
    line.play(agent_audio(7, 0, 400), 0.0)
    for tick in range(1, 21):
        line.advance(0.02 * tick - 1e-10)
    assert line.waiting_ms(0.4 - 1e-10) == 0
    assert line.heard_ms(7) == 400
