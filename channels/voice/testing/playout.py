"""Play-out: the line's, worked out and not waited for, and that of a server which plays itself (SIP).

Audio plays in order, without pause while there is some, at its own pace. A mark is reached when everything
before it has been played; `clear` throws away what waits and gives back every mark that waited.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from channels.voice.testing.signals import Stretch, stretches


class OutputBuffer:
    """`tell` takes the kind of an event and the id of the response that plays. Audio takes its milliseconds
    to play."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._plays_until = 0.0
        self._response_id = ""
        self._timer: asyncio.TimerHandle | None = None

    def play(self, response_id: str, ms: int) -> None:
        now = self._loop.time()
        if self._timer is None:
            self._tell("output_audio_buffer.started", response_id)
            self._plays_until = now
        else:
            self._timer.cancel()
        self._response_id = response_id
        self._plays_until += ms / 1000
        self._timer = self._loop.call_at(self._plays_until, self._drained)

    def clear(self) -> None:
        if self._timer is not None:
            self.stop()
            self._tell("output_audio_buffer.cleared", self._response_id)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drained(self) -> None:
        self._timer = None
        self._tell("output_audio_buffer.stopped", self._response_id)


_SAME_MS = 1e-6


@dataclass(frozen=True, slots=True)
class Heard:
    """Audio that the caller heard, between two times (seconds). `item` is None for audio of nobody known."""

    at: float
    until: float
    item: int | None
    begins_ms: float
    ends_ms: float


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clear threw away, at `at` seconds. `marks` are those that it gave back unplayed."""

    at: float
    dropped: tuple[Stretch, ...]
    marks: tuple[str, ...]

    @property
    def dropped_ms(self) -> float:
        return sum(stretch.ends_ms - stretch.begins_ms for stretch in self.dropped)


class Playout:
    """`now` arguments are seconds and never go back. Audio plays `speed` times as fast as it would."""

    def __init__(self, begins_at: float, *, speed: float = 1.0) -> None:
        self.heard: list[Heard] = []
        self.clears: list[Cleared] = []
        self.reached: deque[str] = deque()
        """Marks to be given back, for whoever sends them to take away."""
        self._ms_per_s = 1000 * speed
        self._played_until = begins_at
        self._waiting: deque[Stretch | str] = deque()

    def play(self, raw: bytes, now: float) -> None:
        self.advance(now)
        self._waiting.extend(stretches(raw))

    def mark(self, name: str, now: float) -> None:
        self.advance(now)
        self._waiting.append(name)
        self.advance(now)

    def clear(self, now: float) -> None:
        self.advance(now)
        marks = tuple(waiting for waiting in self._waiting if isinstance(waiting, str))
        dropped = tuple(waiting for waiting in self._waiting if isinstance(waiting, Stretch))
        self._waiting.clear()
        self.reached.extend(marks)
        self.clears.append(Cleared(now, dropped, marks))

    def advance(self, now: float) -> None:
        """Let the caller hear what plays until `now`, in seconds."""
        waiting = self._waiting
        while waiting:
            head = waiting[0]
            if isinstance(head, str):
                self.reached.append(head)
                waiting.popleft()
                continue
            left_ms = (now - self._played_until) * self._ms_per_s
            if left_ms <= _SAME_MS:
                break
            waiting.popleft()
            ends_ms = head.begins_ms + left_ms
            if head.ends_ms - ends_ms > _SAME_MS:
                waiting.appendleft(Stretch(head.item, ends_ms, head.ends_ms))
            else:
                ends_ms = head.ends_ms
            at = self._played_until
            self._played_until = until = at + (ends_ms - head.begins_ms) / self._ms_per_s
            last = self.heard[-1] if self.heard else None
            goes_on = last is not None and last.item == head.item and last.until == at
            if last is not None and goes_on and abs(last.ends_ms - head.begins_ms) <= _SAME_MS:
                self.heard[-1] = Heard(last.at, until, last.item, last.begins_ms, ends_ms)
            else:
                self.heard.append(Heard(at, until, head.item, head.begins_ms, ends_ms))
        if not waiting:
            self._played_until = max(now, self._played_until)

    def waiting_ms(self, now: float) -> float:
        """How many milliseconds the audio lasts that has yet to be played."""
        self.advance(now)
        return sum(left.ends_ms - left.begins_ms for left in self._waiting if isinstance(left, Stretch))

    def heard_ms(self, item: int) -> float:
        """How many milliseconds of an item the caller has heard; 0 for an unknown item."""
        return sum(heard.ends_ms - heard.begins_ms for heard in self.heard if heard.item == item)
