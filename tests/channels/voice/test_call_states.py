"""The states of a call: every step that their tables have, and none that they have not (V12)."""

from __future__ import annotations

from itertools import product

import pytest

from channels.voice.call.dialogue import ResponseScheduler
from channels.voice.call.ports import EndReason
from channels.voice.call.state import LEAVE_WITHIN_S, CallTermination, Phase


def reached(phase: Phase, target: str | None = "+390212345678") -> CallTermination:
    termination = CallTermination()
    reason: EndReason = "transferred" if target else "agent_hung_up"
    if phase is Phase.TALKING:
        return termination
    if phase is Phase.OVER:
        termination.end()
        return termination
    termination.begin(reason, target, 0.0, last_words=phase is Phase.LAST_WORDS)
    if phase in (Phase.TRANSFERRING, Phase.LEFT):
        assert termination.leave() is None
    if phase is Phase.LEFT:
        assert termination.line_stopped() is None
    assert termination.phase is phase
    return termination


class TestTermination:
    @pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.TALKING])
    def test_the_first_wish_counts(self, phase: Phase) -> None:  # V12
        termination = reached(phase)
        assert termination.begin("agent_hung_up", None, 0.0, last_words=False) is False
        assert termination.phase is phase

    @pytest.mark.parametrize("phase", Phase)
    def test_it_ends_once_from_anywhere(self, phase: Phase) -> None:  # V12
        termination = reached(phase)
        assert termination.end() is (phase is not Phase.OVER)
        assert termination.end() is False

    @pytest.mark.parametrize("phase", [Phase.TALKING, Phase.OVER, Phase.LEFT, Phase.TRANSFERRING])
    def test_only_a_call_that_is_leaving_can_be_transferred(self, phase: Phase) -> None:  # V12
        termination = reached(phase)
        termination.target = "+390212345678"
        with pytest.raises(RuntimeError, match=f"from {phase.name} to TRANSFERRING"):
            termination.leave()

    @pytest.mark.parametrize(
        ("phase", "done", "reason"),
        [
            (Phase.TRANSFERRING, True, "transferred"),
            (Phase.TRANSFERRING, False, None),
            (Phase.LEFT, True, "transferred"),
            (Phase.LEFT, False, "caller_hung_up"),
        ],
    )
    def test_what_becomes_of_a_transfer(self, phase: Phase, done: bool, reason: str | None) -> None:  # V12
        termination = reached(phase)
        assert termination.transferred(done=done) == reason
        assert (termination.phase is Phase.TALKING) is (reason is None)

    def test_a_call_that_goes_on_can_leave_again_by_another_wish(self) -> None:  # V12
        termination = reached(Phase.TRANSFERRING)
        termination.transferred(done=False)
        assert termination.begin("agent_hung_up", None, 50.0, last_words=False)
        assert termination.leave() == "agent_hung_up"

    @pytest.mark.parametrize(("last_words", "bound"), [(False, LEAVE_WITHIN_S), (True, 2 * LEAVE_WITHIN_S)])
    def test_nothing_is_waited_for_beyond_the_bound(self, last_words: bool, bound: float) -> None:  # V12
        termination = CallTermination()
        termination.begin("agent_hung_up", None, 0.0, last_words=last_words)
        assert [termination.is_due(now, 0.0) for now in (bound - 0.1, bound)] == [False, True]
        assert [termination.is_due(now, 60.0) for now in (64.9, 65.0)] == [False, True]


class TestResponses:
    def test_a_response_is_idle_requested_or_active_and_never_two_of_them(self) -> None:  # V12
        steps = {
            "request": lambda s: s.requested(1.0),
            "start": lambda s: s.started("r1", 1.0),
            "end": lambda s: s.ended("r1"),
            "end another": lambda s: s.ended("r0"),
            "refuse": lambda s: s.refused(1.0),
            "fail": lambda s: s.failed(1.0),
            "lose": lambda s: s.connection_lost(),
            "speak": lambda s: s.speech_started(1.0),
            "pause": lambda s: s.turn_ended(1.0),
        }
        for path in product(steps, repeat=4):
            scheduler = ResponseScheduler()
            for step in path:
                steps[step](scheduler)
                states = (scheduler.is_idle, scheduler.is_requested, scheduler.active is not None)
                assert sum(states) == 1, path
                assert not (scheduler.may_request(100.0) and not scheduler.is_idle), path
                assert not (scheduler.may_request(100.0) and scheduler.caller_speaks), path
