"""How much background work waits, for those who watch it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from memory.keys import DEAD_LETTERS_KEY, JOBS_KEY, due_score
from memory.translate import store_errors_translated


class RedisBacklog:
    """`client` is a redis-py asyncio client, standalone or cluster."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def read(self, now: datetime) -> tuple[int, float, int]:
        """Due jobs that nobody has taken, the age of the oldest in seconds, and buried jobs."""
        score = due_score(now)
        with store_errors_translated():
            waiting = await self._client.zcount(JOBS_KEY, "-inf", score)
            first = await self._client.zrange(JOBS_KEY, 0, 0, withscores=True)
            buried = await self._client.zcard(DEAD_LETTERS_KEY)
        oldest_s = max(0.0, (score - first[0][1]) / 1000) if first else 0.0
        return int(waiting), oldest_s, int(buried)
