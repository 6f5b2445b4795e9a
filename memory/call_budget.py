"""The budget of model calls a minute, shared by every process on one Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from memory.keys import model_calls_key
from memory.translate import store_errors_translated

WINDOW_S = 60


class RedisCallBudget:
    """Fixed windows of a minute by the wall clock: one counter a window, gone after the next one.

    `client` is an asyncio client of redis-py. Raises RetryLater when Redis does not answer.
    """

    def __init__(self, client: Any, calls_a_minute: int, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._calls = calls_a_minute
        self._clock = clock

    async def take(self) -> float:
        """0 when a call is granted, else the seconds until the next window."""
        window, into = divmod(self._clock(), WINDOW_S)
        key = model_calls_key(int(window))
        with store_errors_translated():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.incr(key)
                pipe.expire(key, 2 * WINDOW_S)
                taken, _ = await pipe.execute()
        return 0.0 if taken <= self._calls else WINDOW_S - into
