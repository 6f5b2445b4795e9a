"""Small parts of a call's state."""

from dataclasses import dataclass, field

from channels.voice.call.events import TokenUsage
from flow_engine.values import JsonValue

DIGITS_TOGETHER_S = 1.5
KEYS = "0123456789*#ABCD"
MOST_DIGITS = 40


@dataclass(slots=True)
class Counts:
    """What happened in a call, for logs and metrics; durations in seconds."""

    interruptions: int = 0
    late_audio: int = 0
    """Frames of the model that came when nobody was to hear them any more."""
    unheard: int = 0
    """Frames of the caller that the model did not get: it was away for too long, or too slow."""
    tools_answered: int = 0
    tools_failed: int = 0
    """The model got an error for an answer."""
    tools_stopped: int = 0
    old_marks: int = 0
    tool_seconds: list[float] = field(default_factory=list[float])
    response_seconds: list[float] = field(default_factory=list[float])
    """From the end of each turn of the caller to the first audio of its response."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0

    def tool_finished(self, output: JsonValue) -> None:
        if isinstance(output, dict) and "error" in output:
            self.tools_failed += 1
        else:
            self.tools_answered += 1

    def used(self, usage: TokenUsage | None) -> None:
        if usage is not None:
            self.tokens_in += usage.input
            self.tokens_out += usage.output
            self.tokens_cached += usage.cached


@dataclass(slots=True)
class Watch:
    """Notices that events stop, at the cost of an addition an event; times in seconds."""

    since: float
    events: int = 0
    _seen: int = 0

    def silent_s(self, now: float) -> float:
        if self.events != self._seen:
            self._seen, self.since = self.events, now
        return now - self.since


class OpenTools:
    """Calls of tools that have not been answered."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self._known: set[str] = set()

    def begin(self, call_id: str) -> bool:
        """False for a call that was asked for before."""
        if call_id in self._known:
            return False
        self._known.add(call_id)
        self.running.add(call_id)
        return True


@dataclass(slots=True)
class Keypad:
    """Digits that belong together: pressed with less than 1.5 seconds between them. What is no key of a phone
    is refused in silence, and so is more than 40 characters."""

    _digits: str = ""
    _pressed_at: float = 0.0

    def press(self, digit: str, now: float) -> None:
        if len(digit) == 1 and digit in KEYS and len(self._digits) < MOST_DIGITS:
            self._digits, self._pressed_at = self._digits + digit, now

    def take(self, now: float) -> str:
        """All digits once nothing more is pressed; empty until then."""
        if now - self._pressed_at < DIGITS_TOGETHER_S:
            return ""
        digits, self._digits = self._digits, ""
        return digits
