"""How a call ends by somebody's wish: when all that was said has been heard, but not later than a bound.

A call that goes elsewhere is not over before the line has been moved. While that is tried, the end of the
line is the move's if it succeeds, and the caller's if not; a call that could not be moved goes on.
"""

from __future__ import annotations

from channels.voice.call.ports import EndReason

LEAVE_WITHIN_S = 15.0


class CallTermination:
    """One call's. `now` arguments are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.is_under_way = False
        self.last_words = False
        """Something is still to be said before, which has not begun."""
        self.target: str | None = None
        self.is_moving = False
        self._reason: EndReason = "failed"
        self._until = 0.0
        self._line_is_gone = False

    def begin(self, reason: EndReason, target: str | None, now: float, *, last_words: bool) -> bool:
        """False when the call is leaving already: the first wish counts."""
        if self.is_under_way:
            return False
        self.is_under_way, self.last_words = True, last_words
        self.target, self._reason = target, reason
        self._until = now + LEAVE_WITHIN_S * (2 if last_words else 1)
        return True

    @property
    def may_speak(self) -> bool:
        """Whether the model may be asked for anything more."""
        return not self.is_under_way or self.last_words

    @property
    def waits(self) -> bool:
        """Whether only the audio that is on its way has to be heard."""
        return self.is_under_way and not self.last_words

    def is_due(self, now: float) -> bool:
        return self.is_under_way and now >= self._until

    def line_stopped(self) -> EndReason | None:
        """Why the call ends with its line; None while a move may be what ended it."""
        if self.is_moving:
            self._line_is_gone = True
            return None
        return self._reason if self.is_under_way and self.target is None else "caller_hung_up"

    def go(self) -> EndReason | None:
        """Why the call ends now; None where the line is to be moved first, which begins with that."""
        if self.target is None:
            return self._reason
        self.is_moving = True
        return None

    def moved(self, *, done: bool) -> EndReason | None:
        """Why the call ends; None where it goes on."""
        if done:
            return "transferred"
        if self._line_is_gone:
            return "caller_hung_up"
        self.is_under_way = self.last_words = self.is_moving = False
        return None
