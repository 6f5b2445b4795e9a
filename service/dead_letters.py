"""The jobs that were given up, for the command line: reading and replaying them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from flow_engine.errors import CallTheOperator
from flow_engine.ports.jobs import DeadLetter
from memory.connection import connect
from memory.schedule import MOST_LETTERS, RedisDeadLetters
from service.settings import Settings


async def listed(settings: Settings, at_most: int) -> Sequence[DeadLetter]:
    """The latest first. Raises CallTheOperator `redis_needed`, RetryLater."""
    async with _letters(settings) as letters:
        return await letters.list(at_most=at_most)


async def replayed(settings: Settings, letter_id: str | None) -> int:
    """How many are due again: of all, where no id is given. Raises as `listed`."""
    async with _letters(settings) as letters:
        found = await letters.list(at_most=MOST_LETTERS) if letter_id is None else ()
        ids = [letter.id for letter in found] if letter_id is None else [letter_id]
        return sum([await letters.replay(each, datetime.now(UTC)) for each in ids])


@asynccontextmanager
async def _letters(settings: Settings) -> AsyncGenerator[RedisDeadLetters]:
    if settings.redis_url is None:
        raise CallTheOperator(
            "redis_needed", "set FLOW_ENGINE_REDIS_URL; without it, nothing is kept once `serve` has ended"
        )
    memory = connect(settings.redis_url, cluster=settings.redis_cluster)
    try:
        yield RedisDeadLetters(memory.client)
    finally:
        await memory.close()
