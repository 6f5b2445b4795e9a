"""The budget of model calls a minute, shared by every process on one Redis."""

import time
from collections.abc import Callable

from memory.driver import Driver, Script
from memory.keys import model_calls_key, model_shares_key

WINDOW_S = 60


class RedisCallBudget:
    """Fixed windows of a minute by the wall clock: one counter a window, gone after the next one. Budgets of
    one `name` are one.

    Raises RetryLater when Redis does not answer.
    """

    def __init__(
        self,
        driver: Driver,
        calls_a_minute: int,
        *,
        name: str = "model-calls",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._driver = driver
        self._calls = calls_a_minute
        self._name = name
        self._clock = clock
        self._take = Script.read("take_call")

    async def take(self, tenant_id: str = "") -> float:
        """0 when a call is granted, else the seconds until the next window.

        Once half of the minute's calls are gone, no tenant gets more than its equal part while others call.
        """
        window, into = divmod(self._clock(), WINDOW_S)
        minute = int(window)
        granted = await self._driver.run(
            self._take,
            {"calls": model_calls_key(minute, self._name), "shares": model_shares_key(minute, self._name)},
            {"budget": self._calls, "lifetime": 2 * WINDOW_S, "tenant": tenant_id},
        )
        return 0.0 if granted else WINDOW_S - into
