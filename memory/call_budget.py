"""The budget of model calls a minute, shared by every process on one Redis."""

from __future__ import annotations

import time
from collections.abc import Callable

from memory.driver import Driver, Script
from memory.keys import model_calls_key

WINDOW_S = 60


class RedisCallBudget:
    """Fixed windows of a minute by the wall clock: one counter a window, gone after the next one.

    Raises RetryLater when Redis does not answer.
    """

    def __init__(
        self, driver: Driver, calls_a_minute: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._driver = driver
        self._calls = calls_a_minute
        self._clock = clock
        self._take = Script.read("take_call")

    async def take(self) -> float:
        """0 when a call is granted, else the seconds until the next window."""
        window, into = divmod(self._clock(), WINDOW_S)
        granted = await self._driver.run(
            self._take,
            {"calls": model_calls_key(int(window))},
            {"budget": self._calls, "lifetime": 2 * WINDOW_S},
        )
        return 0.0 if granted else WINDOW_S - into
