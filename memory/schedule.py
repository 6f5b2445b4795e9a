"""Background jobs by the time they are due, on Redis or its twin in this process (F41).

Commits put jobs in; everything here takes them out again. The clocks of the processes may differ by less
than a lease: a job is then taken over late or done twice, never lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import orjson

from flow_engine.ports.jobs import Claim, DeadLetter, DueJob, Job
from memory.instants import decode_instant, encode_instant
from memory.keys import (
    DEAD_LETTER_TEXTS_KEY,
    DEAD_LETTERS_KEY,
    JOB_LEASES_KEY,
    JOBS_KEY,
    due_score,
)
from memory.script import Script
from memory.translate import store_errors_translated

MOST_LETTERS = 10_000
UNKNOWN_AGAIN_AFTER = timedelta(hours=1)


class RedisJobSchedule:
    """Implements `JobSchedule`. `client` is a redis-py asyncio client, standalone or cluster."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._claim = Script.read("claim_jobs")
        self._renew = Script.read("renew_job")
        self._settle = Script.read("settle_job")

    async def schedule(self, due: DueJob) -> None:
        """Write a job down as a commit does: again, it only moves its time."""
        with store_errors_translated():
            await self._client.zadd(JOBS_KEY, {due.job.name: due_score(due.due_at)})

    async def claim(self, now: datetime, *, at_most: int, lease_s: float) -> Sequence[Claim]:
        token = uuid.uuid4().hex
        until = _own_score(now + timedelta(seconds=lease_s))
        with store_errors_translated():
            found = await self._claim.run(
                self._client, (JOBS_KEY, JOB_LEASES_KEY), (due_score(now), until, at_most, token)
            )
        claims: list[Claim] = []
        for name, attempt in zip(found[::2], found[1::2], strict=True):
            try:
                claims.append(Claim(Job.named(name.decode()), token, int(attempt)))
            except ValueError:  # a newer release wrote it down: it is left for one that knows it
                await self._give_back(name.decode(), token, _own_score(now + UNKNOWN_AGAIN_AFTER))
        return claims

    async def renew(self, claim: Claim, now: datetime, *, lease_s: float) -> bool:
        until = _own_score(now + timedelta(seconds=lease_s))
        with store_errors_translated():
            return bool(
                await self._renew.run(
                    self._client, (JOBS_KEY, JOB_LEASES_KEY), (claim.job.name, claim.token, until)
                )
            )

    async def finish(self, claim: Claim) -> None:
        await self._give_back(claim.job.name, claim.token, "")

    async def retry(self, claim: Claim, due_at: datetime) -> None:
        await self._give_back(claim.job.name, claim.token, _own_score(due_at))

    async def bury(self, claim: Claim, reason: str, now: datetime) -> None:
        """The job's earlier letter, if it has one, is replaced; beyond MOST_LETTERS the oldest go."""
        name = claim.job.name
        letter = orjson.dumps(
            {"job": name, "reason": reason, "attempts": claim.attempt, "buriedAt": encode_instant(now)}
        )
        await self._give_back(name, claim.token, "", _letter_id(name), letter, due_score(now))

    async def _give_back(
        self,
        name: str,
        token: str,
        again_at: str,
        letter_id: str = "",
        letter: bytes = b"",
        buried_at: int = 0,
    ) -> None:
        keys = (JOBS_KEY, JOB_LEASES_KEY, DEAD_LETTERS_KEY, DEAD_LETTER_TEXTS_KEY)
        args = (name, token, again_at, letter_id, letter, buried_at, MOST_LETTERS)
        with store_errors_translated():
            await self._settle.run(self._client, keys, args)


class RedisDeadLetters:
    """Implements `DeadLetters`. `client` is a redis-py asyncio client, standalone or cluster."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._replay = Script.read("replay_job")

    async def list(self, *, at_most: int) -> Sequence[DeadLetter]:
        with store_errors_translated():
            ids = await self._client.zrange(DEAD_LETTERS_KEY, 0, at_most - 1, desc=True)
            texts = await self._client.hmget(DEAD_LETTER_TEXTS_KEY, ids) if ids else ()
        found = zip(ids, texts, strict=True)
        return [_letter(letter_id.decode(), text) for letter_id, text in found if text is not None]

    async def replay(self, letter_id: str, now: datetime) -> bool:
        with store_errors_translated():
            text = await self._client.hget(DEAD_LETTER_TEXTS_KEY, letter_id)
            if text is None:
                return False
            keys = (JOBS_KEY, DEAD_LETTERS_KEY, DEAD_LETTER_TEXTS_KEY)
            args = (letter_id, orjson.loads(text)["job"], due_score(now))
            return bool(await self._replay.run(self._client, keys, args))


def _own_score(at: datetime) -> str:
    """Half a millisecond past a whole one: no commit writes such a score, see claim_jobs.lua."""
    return f"{due_score(at)}.5"


def _letter_id(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]


def _letter(letter_id: str, text: bytes) -> DeadLetter:
    fields = orjson.loads(text)
    return DeadLetter(
        id=letter_id,
        job=Job.named(fields["job"]),
        reason=fields["reason"],
        attempts=fields["attempts"],
        buried_at=decode_instant(fields["buriedAt"].encode()),
    )
