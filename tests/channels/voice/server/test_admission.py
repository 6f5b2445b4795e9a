"""How many calls are let in. The reference is a plain count with expiring reservations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from channels.voice.server.call_server import PROMISE_S, Admission

pytestmark = pytest.mark.anyio


class AdmissionMachine(RuleBasedStateMachine):
    LIMIT = 3

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.admission = Admission(self.LIMIT, lambda: self.time)
        self.live = 0
        self.promises: list[float] = []
        self.draining = False

    def _free(self) -> bool:
        self.promises = [until for until in self.promises if until > self.time]
        return not self.draining and self.live + len(self.promises) < self.LIMIT

    @rule()
    def promise(self) -> None:
        free = self._free()
        assert (self.admission.promise() is None) is free
        if free:
            self.promises.append(self.time + PROMISE_S)

    @rule(promised=st.booleans())
    def take(self, promised: bool) -> None:
        free = self._free()
        if promised and self.promises:
            self.promises.pop(0)
            free = True
        assert (self.admission.take(promised=promised) is None) is free
        self.live += free

    @rule()
    def release(self) -> None:
        if self.live:
            self.live -= 1
            self.admission.release()

    @rule(seconds=st.sampled_from([0.1, 5.0, PROMISE_S]))
    def wait(self, seconds: float) -> None:
        self.time += seconds

    @rule()
    def drain(self) -> None:
        self.draining = True
        self.admission.drain()

    @invariant()
    def never_more_than_allowed(self) -> None:
        assert self.admission.live == self.live <= self.LIMIT


AdmissionMachine.TestCase.settings = settings(max_examples=60, deadline=None)
TestAdmission = AdmissionMachine.TestCase  # V12


async def test_idle_waits_for_promised_calls_too() -> None:  # V12
    times = [0.0]

    def tick() -> float:
        times[0] += 1
        return times[0]

    admission = Admission(1, tick)
    assert admission.promise() is None
    await admission.idle()
    assert times[0] >= PROMISE_S
