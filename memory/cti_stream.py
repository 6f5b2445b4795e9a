"""What a core CTI writes into a Redis stream, as a source of jobs (F40).

    STREAM            one message of the CTI an entry: `kind`, `tenant`, `body`; for the group `flow-engine`
    {STREAM}::buried  what could not be taken: the fields of the entry with `id`, `reason` and `attempts`

An entry is acknowledged after it took effect, so it comes at least once. One whose holder was killed is
handed out again when its lease is over. Nothing is ever removed from the stream: that is its writer's.
"""

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Claim, Job
from memory.driver import Driver, Script, Value

GROUP = "flow-engine"
MOST_BURIED = 10_000
DEFAULT_TENANT = "default"


def buried_key(stream: str) -> str:
    """In the hash slot of the stream."""
    return f"{stream}::buried" if "{" in stream else f"{{{stream}}}::buried"


class CtiStream:
    """Implements `JobSchedule`: each entry is a job `cti`, whose subject is the entry's id.

    Raises RetryLater when Redis does not answer.
    """

    def __init__(self, driver: Driver, stream: str) -> None:
        self._driver = driver
        self._keys = {"entries": stream, "buried": buried_key(stream)}
        self._holder = uuid.uuid4().hex
        self._lease_ms = 0
        self._held: dict[str, Mapping[str, bytes]] = {}
        self._take, self._settle = Script.read("take_entries"), Script.read("settle_entry")

    def fields(self, job: Job) -> Mapping[str, bytes]:
        """What the CTI wrote, while the job is held here."""
        return self._held[job.subject]

    async def claim(self, now: datetime, *, at_most: int, lease_s: float) -> Sequence[Claim]:
        """The oldest entries. Time is Redis' own: `now` counts for nothing."""
        self._lease_ms = int(lease_s * 1000)
        args = {"group": GROUP, "holder": self._holder, "idle_ms": self._lease_ms, "wanted": at_most}
        found = await self._driver.run(self._take, {"entries": self._keys["entries"]}, args)
        claims: list[Claim] = []
        for entry_id, attempt, flat in found:
            named = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
            self._held[entry_id.decode()] = named
            tenant = named.get("tenant", DEFAULT_TENANT.encode()).decode(errors="replace")
            job = Job("cti", ConversationRef(tenant, ""), entry_id.decode())
            claims.append(Claim(job, self._holder, int(attempt)))
        return claims

    async def renew(self, claim: Claim, now: datetime, *, lease_s: float) -> bool:
        return await self._settled(claim, idle_ms=0)

    async def finish(self, claim: Claim) -> None:
        await self._settled(claim)
        self._held.pop(claim.job.subject, None)

    async def retry(self, claim: Claim, due_at: datetime) -> None:
        """Not later than when its lease would be over."""
        left_ms = max(0, int((due_at - datetime.now(UTC)).total_seconds() * 1000))
        self._held.pop(claim.job.subject, None)
        await self._settled(claim, idle_ms=max(0, self._lease_ms - left_ms))

    async def bury(self, claim: Claim, reason: str, now: datetime) -> None:
        fields = self._held.pop(claim.job.subject, {})
        told = {"id": claim.job.subject, "reason": reason, "attempts": claim.attempt}
        letter: list[Value] = [part for pair in ({**fields, **told}).items() for part in pair]
        await self._settled(claim, letter=letter)

    async def _settled(
        self, claim: Claim, *, idle_ms: int | None = None, letter: Sequence[Value] = ()
    ) -> bool:
        args = {
            "group": GROUP,
            "holder": claim.token,
            "id": claim.job.subject,
            "idle_ms": "" if idle_ms is None else idle_ms,
            "most_buried": MOST_BURIED,
            "letter": letter,
        }
        return bool(await self._driver.run(self._settle, self._keys, args))
