"""Parts of a call's state: counts, watches, the keypad, and its termination.

A call ends by somebody's wish: when all that was said has been heard, but not later than a bound.

    from            by                                  to
    talking         `begin`                             last words, or play-out when there are none
    last words      they begin, or their model is lost  play-out
    play-out        heard to the end, or too late       transferring where there is a target, else over
    last words      too late                            as from play-out
    transferring    the line stops                      left
    transferring    transferred                         over
    transferring    not transferred                     talking
    left            transferred, or not                 over
    any             `end`                               over

A call that goes elsewhere is not over before the line has been transferred. While that is tried, the end of
the line is the transfer's if it succeeds, and the caller's if not; a call that could not be transferred goes
on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from channels.voice.call.events import TokenUsage
from channels.voice.call.ports import EndReason
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


LINE_SILENT_S = 15.0
MODEL_SILENT_S = 20.0
"""Without an event in the middle of a response."""


class CallTimers:
    """What a call does by the clock. Times are seconds of one monotonic clock."""

    __slots__ = (
        "_line_since",
        "_model_since",
        "_quiet_since",
        "ends_at",
        "line_heard",
        "model_heard",
        "turn_ended_at",
    )

    def __init__(self, now: float, max_duration_s: float) -> None:
        self.ends_at = now + max_duration_s
        self._line_since = self._model_since = self._quiet_since = now
        self.line_heard = self.model_heard = False
        """To be set with each event: a flag costs less than a count, which is an object of its own."""
        self.turn_ended_at: float | None = None
        """Of the caller, while nothing of the response to it has been heard."""

    def turn_ended(self, now: float) -> None:
        """The caller's."""
        self._quiet_since = self.turn_ended_at = now

    def quiet(self, now: float) -> None:
        """Silence is counted from here on."""
        self._quiet_since = now

    def first_audio_s(self, now: float) -> list[float]:
        """Audio of a response is heard: the seconds since the turn it answers, empty where none waits."""
        ended_at, self.turn_ended_at = self.turn_ended_at, None
        return [] if ended_at is None else [now - ended_at]

    def is_line_silent(self, now: float) -> bool:
        if self.line_heard:
            self.line_heard, self._line_since = False, now
        return now - self._line_since >= LINE_SILENT_S

    def is_model_silent(self, now: float) -> bool:
        if self.model_heard:
            self.model_heard, self._model_since = False, now
        return now - self._model_since >= MODEL_SILENT_S

    def is_caller_silent(self, now: float, silence_s: float, *, calm: bool) -> bool:
        """Once for every `silence_s` seconds in which the call was calm."""
        if calm and now - self._quiet_since < silence_s:
            return False
        self._quiet_since = now
        return calm


@dataclass(slots=True)
class Keypad:
    """Digits that belong together: pressed with less than 1.5 seconds between them. What is no key of a phone
    is refused in silence, and so is more than 40 characters."""

    _digits: str = ""
    _pressed_at: float = 0.0

    def press(self, digit: str, now: float) -> bool:
        """Whether it was taken."""
        is_taken = len(digit) == 1 and digit in KEYS and len(self._digits) < MOST_DIGITS
        if is_taken:
            self._digits, self._pressed_at = self._digits + digit, now
        return is_taken

    def take(self, now: float) -> str:
        """All digits once nothing more is pressed; empty until then."""
        if now - self._pressed_at < DIGITS_TOGETHER_S:
            return ""
        digits, self._digits = self._digits, ""
        return digits


LEAVE_WITHIN_S = 15.0
MARK_WITHIN_S = 5.0
"""After what was said should have been heard to its end."""


class Phase(Enum):
    TALKING = auto()
    LAST_WORDS = auto()
    """Something is still to be said, which has not begun."""
    PLAY_OUT = auto()
    """Only the audio that is on its way has to be heard."""
    TRANSFERRING = auto()
    LEFT = auto()
    """The line has stopped while the transfer is tried."""
    OVER = auto()


_NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.TALKING: frozenset({Phase.LAST_WORDS, Phase.PLAY_OUT, Phase.OVER}),
    Phase.LAST_WORDS: frozenset({Phase.PLAY_OUT, Phase.TRANSFERRING, Phase.OVER}),
    Phase.PLAY_OUT: frozenset({Phase.TRANSFERRING, Phase.OVER}),
    Phase.TRANSFERRING: frozenset({Phase.TALKING, Phase.LEFT, Phase.OVER}),
    Phase.LEFT: frozenset({Phase.OVER}),
    Phase.OVER: frozenset(),
}


class CallTermination:
    """One call's. `now` arguments are seconds of one monotonic clock. A step that the table does not have
    raises RuntimeError: it would be a bug of the machine."""

    __slots__ = ("_reason", "_until", "is_over", "is_under_way", "phase", "target")

    def __init__(self) -> None:
        self.phase = Phase.TALKING
        self.is_under_way = self.is_over = False
        """By the phase. Each tick asks, and to name a member of an Enum costs as much as ten attributes."""
        self.target: str | None = None
        """Where the call is to be transferred to, a phone number or SIP address."""
        self._reason: EndReason = "failed"
        self._until = 0.0

    def _to(self, phase: Phase) -> None:
        if phase not in _NEXT[self.phase]:
            raise RuntimeError(f"a call cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase
        self.is_under_way, self.is_over = phase is not Phase.TALKING, phase is Phase.OVER

    def begin(self, reason: EndReason, target: str | None, now: float, *, last_words: bool) -> bool:
        """False when the call is ending already: the first wish counts."""
        if self.is_under_way:
            return False
        self._to(Phase.LAST_WORDS if last_words else Phase.PLAY_OUT)
        self.target, self._reason = target, reason
        self._until = now + LEAVE_WITHIN_S * (2 if last_words else 1)
        return True

    @property
    def may_speak(self) -> bool:
        """Whether the model may be asked for anything more."""
        return self.phase in (Phase.TALKING, Phase.LAST_WORDS)

    def last_words_gone(self) -> None:
        """The last words have begun, or whoever was to say them is gone. Without effect in other phases."""
        if self.phase is Phase.LAST_WORDS:
            self._to(Phase.PLAY_OUT)

    def is_due(self, now: float, heard_by: float) -> bool:
        """The bound has passed: 15 s after the wish, 30 s with last words, or 5 s after `heard_by`, when all
        that was said should have been heard."""
        until = max(self._until, heard_by + MARK_WITHIN_S)
        return self.is_under_way and now >= until and self.phase in (Phase.LAST_WORDS, Phase.PLAY_OUT)

    def line_stopped(self) -> EndReason | None:
        """Why the call ends with its line; None while a transfer may be what ended it."""
        if self.phase in (Phase.TRANSFERRING, Phase.LEFT):
            self.phase = Phase.LEFT
            return None
        return self._reason if self.is_under_way and self.target is None else "caller_hung_up"

    def leave(self) -> EndReason | None:
        """Everything was heard. Why the call ends now; None where it is to be transferred first, which begins
        with that."""
        if self.target is None:
            return self._reason
        self._to(Phase.TRANSFERRING)
        return None

    def transferred(self, *, done: bool) -> EndReason | None:
        """What became of the transfer: why the call ends, None where it goes on."""
        if done:
            return "transferred"
        if self.phase is Phase.LEFT:
            return "caller_hung_up"
        self._to(Phase.TALKING)
        self.target = None
        return None

    def end(self) -> bool:
        """False when the call was over already."""
        if self.is_over:
            return False
        self._to(Phase.OVER)
        return True
