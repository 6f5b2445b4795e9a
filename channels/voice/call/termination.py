"""How a call ends by somebody's wish: when all that was said has been heard, but not later than a bound.

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
from enum import Enum, auto
from typing import Final

from channels.voice.call.ports import EndReason

LEAVE_WITHIN_S = 15.0


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


_NEXT: Final[Mapping[Phase, frozenset[Phase]]] = {
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

    def __init__(self) -> None:
        self.phase = Phase.TALKING
        self.target: str | None = None
        """Where the call is to be transferred to, a phone number or SIP address."""
        self._reason: EndReason = "failed"
        self._until = 0.0

    def _to(self, phase: Phase) -> None:
        if phase not in _NEXT[self.phase]:
            raise RuntimeError(f"a call cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase

    def begin(self, reason: EndReason, target: str | None, now: float, *, last_words: bool) -> bool:
        """False when the call is ending already: the first wish counts."""
        if self.phase is not Phase.TALKING:
            return False
        self._to(Phase.LAST_WORDS if last_words else Phase.PLAY_OUT)
        self.target, self._reason = target, reason
        self._until = now + LEAVE_WITHIN_S * (2 if last_words else 1)
        return True

    @property
    def is_under_way(self) -> bool:
        return self.phase is not Phase.TALKING

    @property
    def may_speak(self) -> bool:
        """Whether the model may be asked for anything more."""
        return self.phase in (Phase.TALKING, Phase.LAST_WORDS)

    def last_words_gone(self) -> None:
        """The last words have begun, or whoever was to say them is gone. Without effect in other phases."""
        if self.phase is Phase.LAST_WORDS:
            self._to(Phase.PLAY_OUT)

    def is_due(self, now: float) -> bool:
        """The bound has passed: 15 s after the wish, 30 s with last words."""
        return self.phase in (Phase.LAST_WORDS, Phase.PLAY_OUT) and now >= self._until

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
        if self.phase is Phase.OVER:
            return False
        self._to(Phase.OVER)
        return True
