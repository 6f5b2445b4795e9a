"""V12: the tracker says what the caller has heard, against a simulated line."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.voice.call.playback_tracker import PlaybackTracker


@dataclass
class SimulatedLine:
    """Plays what arrives after `there_ms`, without pause; its marks take `back_ms` home."""

    there_ms: float
    back_ms: float
    hiccup_ms: float = 0.0
    plays_until: float = 0.0
    sent_ms: float = 0.0
    chunks: list[tuple[float, float, float]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def play(self, now: float, audio_ms: float) -> None:
        begins = max(self.plays_until, now + self.there_ms + self.hiccup_ms)
        self.plays_until = begins + audio_ms
        self.chunks.append((begins, audio_ms, self.sent_ms))
        self.sent_ms += audio_ms

    def mark(self, now: float, name: str) -> None:
        self.marks.append((max(self.plays_until, now + self.there_ms) + self.back_ms, name))

    def heard_by_a_clear_sent_at(self, now: float) -> float:
        arrives = now + self.there_ms
        heard = 0.0
        for begins, audio_ms, position in self.chunks:
            if begins < arrives:
                heard = position + min(audio_ms, arrives - begins)
        return heard


def deliver(line: SimulatedLine, tracker: PlaybackTracker, until: float) -> None:
    due = sorted(mark for mark in line.marks if mark[0] <= until)
    line.marks = [mark for mark in line.marks if mark[0] > until]
    for at, name in due:
        tracker.mark_returned(name, at)


def send(
    line: SimulatedLine, tracker: PlaybackTracker, item: str, now: float, chunks: int, each: float = 20
) -> None:
    for _ in range(chunks):
        name = tracker.add(item, 0, each, now)
        line.play(now, each)
        if name is not None:
            line.mark(now, name)


@given(
    there=st.floats(5, 150),
    back=st.floats(5, 150),
    bursts=st.lists(st.tuples(st.floats(0, 3000), st.integers(1, 400)), min_size=1, max_size=6),
    wait=st.floats(0, 8000),
)
def test_the_tracker_knows_what_was_heard_whatever_the_latency(  # V12
    there: float, back: float, bursts: list[tuple[float, int]], wait: float
) -> None:
    line, tracker, now = SimulatedLine(there, back), PlaybackTracker(), 1000.0
    for pause, chunks in bursts:
        now += pause
        deliver(line, tracker, now)
        send(line, tracker, "item", now, chunks)
    now += wait
    deliver(line, tracker, now)
    truth = line.heard_by_a_clear_sent_at(now)
    assert tracker.heard_ms(now) == pytest.approx(truth, abs=1.0)


@given(wait=st.floats(500, 4000), hiccup=st.floats(100, 400))
def test_a_line_that_plays_later_than_usual_is_noticed_by_its_marks(
    wait: float, hiccup: float
) -> None:  # V12
    line, tracker = SimulatedLine(60, 60), PlaybackTracker()
    send(line, tracker, "first", 0.0, 50)
    deliver(line, tracker, 5000.0)
    line.hiccup_ms = hiccup
    send(line, tracker, "second", 5000.0, 400)
    now = 5000.0 + hiccup + 400 + wait
    deliver(line, tracker, now)
    truth = line.heard_by_a_clear_sent_at(now)
    assert tracker.heard_ms(now) == pytest.approx(truth, abs=30.0)
    naive = now - 5000.0 + 1000.0
    assert abs(naive - truth) > 90  # the clock alone would be that wrong


def test_the_audible_item_is_cut_and_those_behind_it_were_never_heard() -> None:  # V12
    tracker = PlaybackTracker()
    for item in ("a", "b", "c"):
        for _ in range(100):
            tracker.add(item, 0, 20, 0.0)
        tracker.item_ended(item)
    interruption = tracker.interrupt(2500.0)
    assert interruption.audible is not None
    assert (interruption.audible.item_id, interruption.audible.heard_ms) == ("b", 500)
    assert interruption.unheard == ("c",)


def test_an_item_of_which_nothing_was_heard_is_not_cut_but_forgotten() -> None:  # V12
    tracker = PlaybackTracker()
    tracker.add("a", 0, 1000, 0.0)
    interruption = tracker.interrupt(0.0)
    assert (interruption.audible, interruption.unheard) == (None, ("a",))


def test_never_cut_beyond_what_was_sent() -> None:  # V12
    tracker = PlaybackTracker()
    tracker.add("a", 0, 1000, 0.0)
    interruption = tracker.interrupt(60_000.0)
    assert interruption.audible is not None
    assert interruption.audible.heard_ms == 1000


def test_what_was_heard_to_its_end_is_left_alone() -> None:  # V12
    tracker = PlaybackTracker()
    tracker.add("a", 0, 1000, 0.0)
    tracker.item_ended("a")
    interruption = tracker.interrupt(1200.0)
    assert (interruption.audible, interruption.unheard) == (None, ())


def test_marks_that_a_clear_returns_prove_nothing() -> None:  # V12
    tracker = PlaybackTracker()
    first = tracker.add("a", 0, 1000, 0.0)
    assert first is not None
    tracker.interrupt(100.0)
    second = tracker.add("b", 0, 1000, 200.0)
    assert second is not None
    assert not tracker.mark_returned(first, 260.0)
    assert tracker.heard_ms(260.0) == pytest.approx(1000 + 60)
    assert not tracker.is_drained
    assert tracker.mark_returned(second, 1320.0)
    assert tracker.is_drained


def test_it_is_drained_only_when_the_mark_of_the_last_audio_is_back() -> None:  # V12
    tracker = PlaybackTracker()
    marks = [mark for _ in range(30) if (mark := tracker.add("a", 0, 20, 0.0))]
    last = tracker.item_ended("a")
    assert last is not None
    for mark in marks:
        tracker.mark_returned(mark, 620.0)
        assert not tracker.is_drained
    tracker.mark_returned(last, 720.0)
    assert tracker.is_drained
    assert tracker.mark_rest() is None
