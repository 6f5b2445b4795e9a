"""Small parts of a call's state."""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.voice.ports import EndReason

DIGITS_TOGETHER_S = 1.5


@dataclass(slots=True)
class Counts:
    """What happened in a call, for logs and metrics."""

    interruptions: int = 0
    late_audio: int = 0
    tools: int = 0
    old_marks: int = 0


@dataclass(frozen=True, slots=True)
class Leaving:
    reason: EndReason
    until: float
    target: str | None = None


@dataclass(slots=True)
class Watch:
    """Notices that events stop, at the cost of an addition an event."""

    since: float
    events: int = 0
    _seen: int = 0

    def silent_s(self, now: float) -> float:
        if self.events != self._seen:
            self._seen, self.since = self.events, now
        return now - self.since


@dataclass(slots=True)
class OpenTools:
    """Calls of tools that have not been answered."""

    running: set[str] = field(default_factory=set[str])
    orphans: dict[str, str] = field(default_factory=dict[str, str])
    """Calls whose model is gone, with the tool's name: the next one never asked for them."""


@dataclass(slots=True)
class Keypad:
    """Digits that belong together: pressed with less than `DIGITS_TOGETHER_S` between them."""

    _digits: str = ""
    _pressed_at: float = 0.0

    def press(self, digit: str, now: float) -> None:
        self._digits, self._pressed_at = self._digits + digit, now

    def take(self, now: float) -> str:
        """All digits once nothing more is pressed; empty until then."""
        if now - self._pressed_at < DIGITS_TOGETHER_S:
            return ""
        digits, self._digits = self._digits, ""
        return digits
