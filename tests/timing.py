"""What is measured in real time, on a machine that may be busy, or not run for a while."""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec

P = ParamSpec("P")
ROUNDS: Final = 4
LONGEST_STRETCH_S: Final = 0.02


def in_the_best_round(
    test: Callable[P, Awaitable[None]], late: type[AssertionError] = AssertionError
) -> Callable[P, Awaitable[None]]:
    """A test whose assertions must hold in one round of four: a machine that is busy elsewhere makes a line
    late in some of them, a line that is late by itself is late in all. The test must leave nothing behind.
    Raises the AssertionError of the last round; one that is not `late` at once."""

    @functools.wraps(test)
    async def rounds(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(ROUNDS - 1):
            try:
                return await test(*args, **kwargs)
            except late:
                continue
        return await test(*args, **kwargs)

    return rounds


def takes_less_than(
    seconds: float, work: Callable[[], object], clock: Callable[[], float] = time.process_time
) -> bool:
    """Whether `work` takes less CPU time than that in one round of four; mostly the first one tells. A
    collection of others' garbage and a machine that is not run are CPU time of the process too."""
    for _ in range(ROUNDS):
        began = clock()
        work()
        if clock() - began < seconds:
            return True
    return False


class PatientLoop(asyncio.SelectorEventLoop):
    """An event loop for which a pause of the machine is no time: between two looks at the clock at most
    `LONGEST_STRETCH_S` seconds pass, and it looks as often while it waits. After a collection of garbage, or
    where the process was not run, no deadline is over before what has arrived meanwhile is read. What a test
    holds against its deadlines is to go by this clock too: `asyncio.get_running_loop().time`."""

    def __init__(self) -> None:
        self._told = self._looked_at = time.monotonic()
        super().__init__(_Waiting(self.time))

    def time(self) -> float:
        now = time.monotonic()
        self._told += min(now - self._looked_at, LONGEST_STRETCH_S)
        self._looked_at = now
        return self._told


def paused_s() -> float:
    """How many seconds the pauses have been so far that the running PatientLoop has left out."""
    return time.monotonic() - asyncio.get_running_loop().time()


class _Waiting(selectors.DefaultSelector):
    """Waits by that clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        until = float("inf") if timeout is None else self._clock() + timeout
        while True:
            left = until - self._clock()
            ready = super().select(min(max(left, 0.0), LONGEST_STRETCH_S / 2))
            if ready or left <= 0:
                return ready
