"""What the caller has heard: a tracker of audio that went to the line (V12).

The model speaks faster than people listen, so that most of what it has said is still waiting on the line.
How far the caller is, is not known but worked out from two things:

1. The play-out: audio is played in order, without pause, from the moment it arrives. All times here are
   those of the line as this side sees it, so that the way of the audio and the way of a `clear` cancel out.
2. The marks: the line returns each one when all audio before it has been played. Their usual delay is the way
   there and back. A mark that comes later than that says that the line plays later than was worked out.

A mark that returns after a `clear` says nothing, because a `clear` returns all of them: each clear begins
a new generation, and marks of old generations are ignored.

Milliseconds throughout; times are of any one monotonic clock.
"""

from collections import deque
from dataclasses import dataclass

MARK_EVERY_MS = 500.0
LATE_MS = 20.0
"""A mark's delay beyond its usual one that is taken as the line's, not the network's."""


@dataclass(slots=True)
class _Item:
    item_id: str
    content_index: int
    begins_ms: float
    ends_ms: float
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """An item of which the caller heard the first `heard_ms` of `sent_ms` milliseconds; 0 where that is
    unknown."""

    item_id: str
    content_index: int
    heard_ms: int
    sent_ms: float


@dataclass(frozen=True, slots=True)
class Interruption:
    """What a `clear` does to the items: the audible one is cut, those behind it were never heard."""

    audible: Cut | None
    unheard: tuple[str, ...]
    had_audio: bool
    """Whether anything was left on the line to be thrown away."""


class PlaybackTracker:
    """One call's. Positions count the milliseconds of audio sent since the call began; `now_ms` is a
    monotonic clock."""

    __slots__ = (
        "_confirmed_ms",
        "_generation",
        "_items",
        "_last_id",
        "_late_ms",
        "_mark_count",
        "_marked_ms",
        "_marks",
        "_unmarked_ms",
        "_usual_delay_ms",
        "plays_until_ms",
        "sounded",
    )

    def __init__(self) -> None:
        self.sounded: set[str] = set()
        """All items of which audio was ever sent."""
        self._items: deque[_Item] = deque()
        self._last_id: str | None = None
        """Of `_items`."""
        self.plays_until_ms = 0.0
        """When all that was sent has been played, by what was worked out."""
        self._late_ms = 0.0
        self._usual_delay_ms: float | None = None
        self._generation = 0
        self._marks: deque[tuple[str, float, float]] = deque()
        """Not returned yet: name, position, and when the position is played by what was worked out."""
        self._marked_ms = 0.0
        """Position of the last mark."""
        self._unmarked_ms = 0.0
        """Sent since then."""
        self._confirmed_ms = 0.0
        self._mark_count = 0

    def add(self, item_id: str, content_index: int, audio_ms: float, now_ms: float) -> str | None:
        """`audio_ms` milliseconds of audio go to the line now. Returns the name of a mark to send behind
        them, None where none is due."""
        # Every number kept here is an object to be fetched and replaced: two are enough for a frame.
        if item_id != self._last_id:
            self._begin(item_id, content_index)
        self._unmarked_ms = unmarked_ms = self._unmarked_ms + audio_ms
        if now_ms >= self.plays_until_ms + self._late_ms:
            self.plays_until_ms, self._late_ms = now_ms, 0.0
        self.plays_until_ms += audio_ms
        return self._new_mark() if unmarked_ms >= MARK_EVERY_MS else None

    def item_ended(self, item_id: str) -> str | None:
        """No more audio of the item comes. Returns the name of a mark to send, None where no audio is
        unmarked."""
        for item in reversed(self._items):
            if item.item_id == item_id:
                item.is_whole = True
                break
        return self.mark_rest()

    def nothing_follows(self) -> str | None:
        """No more audio of any item comes, because whoever sent it is gone. Returns as `item_ended`."""
        for item in self._items:
            item.is_whole = True
        return self.mark_rest()

    def mark_rest(self) -> str | None:
        """The name of a mark behind all audio, if there is none yet."""
        return self._new_mark() if self._unmarked_ms > 0.0 else None

    def mark_returned(self, name: str, now_ms: float) -> bool:
        """Whether the mark was one of this generation: its audio has been played. False for an unknown
        one."""
        if not any(mark[0] == name for mark in self._marks):
            return False
        position = planned = 0.0
        while self._marks:
            returned, position, planned = self._marks.popleft()
            if returned == name:
                break
        self._confirmed_ms = position
        delay = now_ms - planned
        if self._usual_delay_ms is None or delay < self._usual_delay_ms:
            self._usual_delay_ms = delay
        late = delay - self._usual_delay_ms
        self._late_ms = late if late > LATE_MS else 0.0
        items = self._sent_items()
        while items and items[0].is_whole and items[0].ends_ms <= self._confirmed_ms:
            items.popleft()
        if not items:
            self._last_id = None
        return True

    @property
    def is_drained(self) -> bool:
        """All audio that was sent has been confirmed as played, or thrown away."""
        return not self._marks and self._unmarked_ms <= 0.0

    def heard_ms(self, now_ms: float) -> float:
        """The position in milliseconds up to which the caller has heard when a `clear` sent now arrives."""
        waiting = max(0.0, self.plays_until_ms + self._late_ms - now_ms)
        return max(self._confirmed_ms, self._sent_ms - waiting)

    def waiting_ms(self, now_ms: float) -> float:
        """Milliseconds of audio that the caller has yet to hear."""
        return self._sent_ms - self.heard_ms(now_ms)

    def interrupt(self, now_ms: float) -> Interruption:
        """The line is cleared now. Marks sent so far say nothing any more."""
        heard = self.heard_ms(now_ms)
        had_audio = not self.is_drained
        audible: Cut | None = None
        unheard: list[str] = []
        for item in self._sent_items():
            if item.is_whole and item.ends_ms <= heard:
                continue
            heard_of_item = int(min(heard, item.ends_ms) - item.begins_ms)
            if heard_of_item > 0:
                audible = Cut(item.item_id, item.content_index, heard_of_item, item.ends_ms - item.begins_ms)
            else:
                unheard.append(item.item_id)
        self._generation += 1
        self._items.clear()
        self._last_id = None
        self._marks.clear()
        self._marked_ms = self._confirmed_ms = self._sent_ms
        self._unmarked_ms = 0.0
        self.plays_until_ms = now_ms
        self._late_ms = 0.0
        return Interruption(audible, tuple(unheard), had_audio)

    def sent_ms(self, item_id: str) -> float:
        """How many milliseconds of the item's audio were sent and are remembered; 0 for an unknown item."""
        return sum(item.ends_ms - item.begins_ms for item in self._sent_items() if item.item_id == item_id)

    def is_heard(self, item_id: str, now_ms: float) -> bool:
        """Whether the whole item has been played at `now_ms` milliseconds, as far as can be told."""
        for item in self._sent_items():
            if item.item_id == item_id and not (item.is_whole and item.ends_ms <= self.heard_ms(now_ms)):
                return False
        return True

    @property
    def _sent_ms(self) -> float:
        return self._marked_ms + self._unmarked_ms

    def _sent_items(self) -> deque[_Item]:
        """The items, the last one as far as it has been sent."""
        if self._items:
            self._items[-1].ends_ms = self._sent_ms
        return self._items

    def _begin(self, item_id: str, content_index: int) -> None:
        items = self._sent_items()
        if items:
            items[-1].is_whole = True
        items.append(_Item(item_id, content_index, self._sent_ms, self._sent_ms))
        self._last_id = item_id
        self.sounded.add(item_id)

    def _new_mark(self) -> str:
        self._mark_count += 1
        name = f"{self._generation}-{self._mark_count}"
        self._marked_ms, self._unmarked_ms = self._sent_ms, 0.0
        self._marks.append((name, self._marked_ms, self.plays_until_ms))
        return name
