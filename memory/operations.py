"""What operators see on Redis, beside what conversations and jobs are kept under.

    {flow-engine}:processes        sorted set: a process as JSON, by when it was last seen (ms since 1970)
    {tenant:model-calls}           stream: the account of a model call an entry, in field `call`

Neither holds a conversation's id: there is nothing to erase in them.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from flow_engine.ports.jobs import Job
from flow_engine.ports.operations import ProcessKind, SeenJob, SeenProcess, StreamPart
from memory import keys
from memory.driver import Driver, Script

FORGOTTEN_AFTER = timedelta(minutes=10)
"""A process that was not seen for so long is no longer listed."""
CALLS_KEPT = 5_000
CALLS_LIFETIME_S = 30 * 24 * 60 * 60
EXAMINED = 1_000
"""Entries of a stream that one page looks at, whoever they belong to."""


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """The process that says it lives. `started_at` is in UTC."""

    name: str
    kind: ProcessKind
    release: str
    started_at: datetime


class RedisOperations:
    """Implements `OperationsLog`. Every method raises RetryLater when Redis does not answer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._note_process, self._note_call = Script.read("note_process"), Script.read("note_call")
        self._latest = Script.read("latest_entries")

    async def note_process(self, own: OwnProcess, now: datetime, *, ends: bool = False) -> None:
        """It lives at `now` (UTC), or ends and is listed no more."""
        told = {
            "name": own.name,
            "kind": own.kind,
            "release": own.release,
            "startedAt": keys.due_score(own.started_at),
        }
        args = {
            "process": orjson.dumps(told),
            "seen": keys.due_score(now - 2 * FORGOTTEN_AFTER if ends else now),
            "forgotten": keys.due_score(now - FORGOTTEN_AFTER),
            "lifetime": 2 * int(FORGOTTEN_AFTER.total_seconds()),
        }
        await self._driver.run(self._note_process, {"processes": keys.PROCESSES_KEY}, args)

    async def note_call(self, tenant_id: str, call: Mapping[str, object]) -> None:
        """Keep the account of a model call, as JSON, for 30 days or until CALLS_KEPT others have followed."""
        args = {"call": orjson.dumps(call), "kept": CALLS_KEPT, "lifetime": CALLS_LIFETIME_S}
        await self._driver.run(self._note_call, {"calls": keys.calls_key(tenant_id)}, args)

    async def processes(self) -> Sequence[SeenProcess]:
        found = await self._driver.zrange(keys.PROCESSES_KEY, at_most=EXAMINED, highest_first=True)
        seen: list[SeenProcess] = []
        for text, score in found:
            told: dict[str, Any] = orjson.loads(text)
            began = _instant(told["startedAt"])
            seen.append(SeenProcess(told["name"], told["kind"], told["release"], began, _instant(score)))
        return seen

    async def jobs(self, now: datetime, *, at_most: int) -> Sequence[SeenJob]:
        listed: list[tuple[Job, float]] = []
        for name, score in await self._driver.zrange(keys.JOBS_KEY, at_most=at_most):
            with suppress(ValueError):  # a newer release wrote it down, or nobody
                listed.append((Job.named(name.decode()), score))
        names = [job.name for job, _ in listed]
        leases = await self._driver.hmget(keys.JOB_LEASES_KEY, names) if names else ()
        seen: list[SeenJob] = []
        for (job, score), lease in zip(listed, leases, strict=True):
            # A lease is `token:attempt:end:again`, see claim_jobs.lua; without a token nobody holds the job.
            held = lease is not None and not lease.startswith(b":") and score > keys.due_score(now)
            seen.append(SeenJob(job, _instant(score), held))
        return seen

    async def backlog(self, now: datetime) -> tuple[int, float, int]:
        score = keys.due_score(now)
        waiting = await self._driver.zcount(keys.JOBS_KEY, up_to=score)
        first = await self._driver.zrange(keys.JOBS_KEY, at_most=1)
        oldest_s = max(0.0, (score - first[0][1]) / 1000) if first else 0.0
        return waiting, oldest_s, await self._driver.zcount(keys.DEAD_LETTERS_KEY)

    async def events(self, tenant_id: str, before: str | None, *, at_most: int) -> StreamPart:
        return await self._part(keys.EVENTS_KEY, tenant_id, before, at_most)

    async def model_calls(self, tenant_id: str, before: str | None, *, at_most: int) -> StreamPart:
        return await self._part(keys.calls_key(tenant_id), "", before, at_most)

    async def _part(self, stream: str, tenant_id: str, before: str | None, at_most: int) -> StreamPart:
        args = {"before": before or "", "at_most": at_most, "examined": EXAMINED, "tenant": tenant_id}
        following, found = await self._driver.run(self._latest, {"stream": stream}, args)
        entries = [
            (entry_id.decode(), dict(zip([name.decode() for name in flat[::2]], flat[1::2], strict=True)))
            for entry_id, flat in found
        ]
        return StreamPart(entries, following.decode() or None)


def _instant(score: float) -> datetime:
    return datetime.fromtimestamp(score / 1000, UTC)
