"""Background jobs by the time they are due, on Redis or its twin in this process (F41).

Commits put jobs in; everything here takes them out again. The clocks of the processes may differ by less
than a lease: a job is then taken over late or done twice, never lost.
"""

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import orjson

from flow_engine.ports.jobs import Claim, DeadLetter, DueJob, Job
from memory import keys
from memory.codec import decode_instant, encode_instant
from memory.driver import Driver, Script

MOST_LETTERS = 10_000
UNKNOWN_AGAIN_AFTER = timedelta(hours=1)


_SCHEDULE_KEYS = {"jobs": keys.JOBS_KEY, "leases": keys.JOB_LEASES_KEY}


class RedisJobSchedule:
    """Implements `JobSchedule`. Every method raises RetryLater when Redis does not answer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._schedule = Script.read("schedule_job")
        self._claim = Script.read("claim_jobs")
        self._renew = Script.read("renew_job")
        self._settle = Script.read("settle_job")

    async def schedule(self, due: DueJob) -> None:
        """Write a job down as a commit does; one that waits for its next attempt is left as it is."""
        args = {"name": due.job.name, "due": keys.due_score(due.due_at)}
        await self._driver.run(self._schedule, _SCHEDULE_KEYS, args)

    async def claim(self, now: datetime, *, at_most: int, lease_s: float) -> Sequence[Claim]:
        token = uuid.uuid4().hex
        lease_end = _own_score(now + timedelta(seconds=lease_s))
        found = await self._driver.run(
            self._claim,
            _SCHEDULE_KEYS,
            {"now": keys.due_score(now), "lease_end": lease_end, "wanted": at_most, "token": token},
        )
        claims: list[Claim] = []
        for name, attempt, delays in zip(found[::3], found[1::3], found[2::3], strict=True):
            try:
                claims.append(Claim(Job.named(name.decode()), token, int(attempt), int(delays)))
            except ValueError:  # a newer release wrote it down, or nobody: it is left for one that knows it
                await self._settled(name, token, again_at=_own_score(now + UNKNOWN_AGAIN_AFTER))
        return claims

    async def renew(self, claim: Claim, now: datetime, *, lease_s: float) -> bool:
        lease_end = _own_score(now + timedelta(seconds=lease_s))
        args = {"name": claim.job.name, "token": claim.token, "lease_end": lease_end}
        return bool(await self._driver.run(self._renew, _SCHEDULE_KEYS, args))

    async def finish(self, claim: Claim) -> None:
        await self._settled(claim.job.name.encode(), claim.token)

    async def retry(self, claim: Claim, due_at: datetime, *, delayed: bool = False) -> None:
        delays = claim.delays + 1 if delayed else 0
        await self._settled(claim.job.name.encode(), claim.token, again_at=_own_score(due_at), delays=delays)

    async def bury(self, claim: Claim, reason: str, now: datetime) -> None:
        """The job's earlier letter, if it has one, is replaced; beyond MOST_LETTERS the oldest go."""
        name = claim.job.name
        letter = orjson.dumps(
            {"job": name, "reason": reason, "attempts": claim.attempt, "buriedAt": encode_instant(now)}
        )
        await self._settled(name.encode(), claim.token, letter=letter, buried_at=keys.due_score(now))

    async def _settled(
        self,
        name: bytes,
        token: str,
        *,
        again_at: str = "",
        delays: int = 0,
        letter: bytes = b"",
        buried_at: int = 0,
    ) -> None:
        args = {
            "name": name,
            "token": token,
            "again_at": again_at,
            "delays": delays,
            "letter_id": sha256(name).hexdigest()[:16] if letter else "",
            "letter": letter,
            "buried_at": buried_at,
            "most_letters": MOST_LETTERS,
        }
        await self._driver.run(self._settle, {**_SCHEDULE_KEYS, **keys.LETTER_KEYS}, args)


class RedisDeadLetters:
    """Implements `DeadLetters`. Every method raises RetryLater when Redis does not answer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._replay = Script.read("replay_job")

    async def list(self, *, at_most: int) -> Sequence[DeadLetter]:
        found = await self._driver.zrange(keys.DEAD_LETTERS_KEY, at_most=at_most, highest_first=True)
        ids = [letter_id.decode() for letter_id, _ in found]
        texts = await self._driver.hmget(keys.DEAD_LETTER_TEXTS_KEY, ids) if ids else ()
        letters = [_letter(each, text) for each, text in zip(ids, texts, strict=True) if text is not None]
        return [letter for letter in letters if letter is not None]

    async def one(self, letter_id: str) -> DeadLetter | None:
        text = await self._driver.hget(keys.DEAD_LETTER_TEXTS_KEY, letter_id)
        return None if text is None else _letter(letter_id, text)

    async def replay(self, letter_id: str, now: datetime) -> bool:
        text = await self._driver.hget(keys.DEAD_LETTER_TEXTS_KEY, letter_id)
        if text is None:
            return False
        args = {"letter_id": letter_id, "name": orjson.loads(text)["job"], "now": keys.due_score(now)}
        return bool(await self._driver.run(self._replay, {"jobs": keys.JOBS_KEY, **keys.LETTER_KEYS}, args))


def _own_score(at: datetime) -> str:
    """Half a millisecond past a whole one: no commit writes such a score, see claim_jobs.lua."""
    return f"{keys.due_score(at)}.5"


def _letter(letter_id: str, text: bytes) -> DeadLetter | None:
    """None for a job that only a newer release knows: its letter is left for that."""
    fields = orjson.loads(text)
    try:
        job = Job.named(fields["job"])
    except ValueError:
        return None
    return DeadLetter(
        id=letter_id,
        job=job,
        reason=fields["reason"],
        attempts=fields["attempts"],
        buried_at=decode_instant(fields["buriedAt"].encode()),
    )
