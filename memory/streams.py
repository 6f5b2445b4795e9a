"""Streams on Redis: events on their way, and what a core CTI writes (F40).

    {tenant:conversation}::outbox            stream: what a commit wrote down, in field `event`
    {tenant:conversation}::outbox::webhook   stream: what has left the outbox and waits for the webhook
    {flow-engine}:events                     stream for consumers: `event, tenant, conversation, kind`

An event leaves the outbox only when it is in the reporting stream and, where there is a webhook, in its
queue. The two are independent from then on: a webhook that is away holds nobody else up. One server moves
an event by one script, so that it comes to the stream exactly once. On a cluster the stream is in another
slot than the outbox: the event is first appended, then moved, and a crash in between appends it again.

The stream of a CTI is a source of jobs.

    STREAM            one message of the CTI an entry: `kind`, `tenant`, `body`; for the group `flow-engine`
    {STREAM}::buried  what could not be taken: the fields of the entry with `id`, `reason` and `attempts`

An entry is acknowledged after it took effect, so it comes at least once. One whose holder was killed is
handed out again when its lease is over. Nothing is ever removed from the stream: that is its writer's.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from flow_engine.ports.delivery import QueuedEvent, ShareUsedUp
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Claim, Job
from flow_engine.runtime.events import kind_of
from memory.driver import Driver, Script, Value
from memory.erasing import forget_events
from memory.keys import EVENTS_KEY, ConversationKeys, event_shares_key

WEBHOOK_QUEUE_LIFETIME_S = 7 * 24 * 60 * 60
SHARES_WINDOW_S = 60
KEPT_S = 30 * 24 * 60 * 60
"""Of what holds what people said and is found by no conversation, or by none any more."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Beyond about `stream_length` events the reporting stream forgets the oldest, read or not, and with each
    new event those that are older than `kept_s` seconds. With `webhook`, events that leave an outbox are
    queued for it."""

    stream_length: int
    webhook: bool
    kept_s: int = KEPT_S


class RedisEvents:
    """Implements `EventQueues`. Raises RetryLater when Redis does not answer or takes no writes. Events are
    JSON texts as bytes."""

    def __init__(self, driver: Driver, routing: Routing, *, clock: Callable[[], float] = time.time) -> None:
        self._driver = driver
        self._routing = routing
        self._clock = clock
        self._append, self._move, self._take = (Script.read(name) for name in ("append", "move", "take"))

    async def in_outbox(self, conversation: ConversationRef, *, at_most: int) -> Sequence[QueuedEvent]:
        return await self._read(ConversationKeys.of(conversation).named["outbox"], at_most)

    async def publish(self, conversation: ConversationRef, events: Sequence[QueuedEvent]) -> int:
        routing, keys = self._routing, ConversationKeys.of(conversation)
        shared = {
            "length": routing.stream_length,
            "kept_s": routing.kept_s,
            "shares_lifetime": 2 * SHARES_WINDOW_S,
            "tenant": conversation.tenant_id,
            "conversation": conversation.conversation_id,
        }
        kinds = [kind_of(queued.event) for queued in events]
        queues = {name: keys.named[name] for name in ("outbox", "snapshot")}
        queues["webhook_queue"] = keys.webhook_queue
        window, into_s = divmod(self._clock(), SHARES_WINDOW_S)
        stream = {"stream": EVENTS_KEY, "shares": event_shares_key(int(window))}
        used_up = ShareUsedUp(SHARES_WINDOW_S - into_s)
        if self._driver.single_node:
            queues |= stream
        else:
            bodies = [
                part for queued, kind in zip(events, kinds, strict=True) for part in (queued.event, kind)
            ]
            if not await self._driver.run(self._append, stream, {**shared, "events": bodies}):
                raise used_up
        ids = [
            part
            for queued, kind in zip(events, kinds, strict=True)
            for part in (queued.id, kind, queued.event if queued.rewritten else b"")
        ]
        rules = {"for_webhook": "1" if routing.webhook else "0", "queue_lifetime": WEBHOOK_QUEUE_LIFETIME_S}
        moved = int(await self._driver.run(self._move, queues, {**rules, **shared, "events": ids}))
        if moved < 0:
            raise used_up
        taken = moved < len(events) and not self._driver.single_node
        # By others who moved them, or erased the conversation: then they were appended too late.
        if taken and await self._driver.hget(keys.named["snapshot"], "revision") is None:
            await forget_events(self._driver, conversation)
        return moved

    async def for_webhook(self, conversation: ConversationRef, *, at_most: int) -> Sequence[QueuedEvent]:
        return await self._read(ConversationKeys.of(conversation).webhook_queue, at_most)

    async def taken(self, conversation: ConversationRef, event: QueuedEvent) -> None:
        queue = ConversationKeys.of(conversation).webhook_queue
        await self._driver.run(self._take, {"webhook_queue": queue}, {"id": event.id})

    async def _read(self, key: str, at_most: int) -> Sequence[QueuedEvent]:
        found = await self._driver.xrange(key, at_most=at_most)
        return [QueuedEvent(entry_id, fields[b"event"]) for entry_id, fields in found]


GROUP = "flow-engine"
MOST_BURIED = 10_000
MOST_BURIED_FIELDS = 1_000
"""Of one entry: a script passes on only so many thousand values at once."""
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
            named = {
                name.decode(errors="replace"): value
                for name, value in zip(flat[::2], flat[1::2], strict=True)
            }
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

    async def retry(self, claim: Claim, due_at: datetime, *, delayed: bool = False) -> None:
        """Not later than when its lease would be over; then, if it is `delayed`."""
        left_ms = max(0, int((due_at - datetime.now(UTC)).total_seconds() * 1000))
        idle_ms = 0 if delayed else max(0, self._lease_ms - left_ms)
        self._held.pop(claim.job.subject, None)
        await self._settled(claim, idle_ms=idle_ms, attempts=claim.attempt - delayed)

    async def bury(self, claim: Claim, reason: str, now: datetime) -> None:
        fields = dict(islice(self._held.pop(claim.job.subject, {}).items(), MOST_BURIED_FIELDS))
        told = {"id": claim.job.subject, "reason": reason, "attempts": claim.attempt}
        letter: list[Value] = [part for pair in ({**fields, **told}).items() for part in pair]
        await self._settled(claim, letter=letter)

    async def _settled(
        self,
        claim: Claim,
        *,
        idle_ms: int | None = None,
        attempts: int | None = None,
        letter: Sequence[Value] = (),
    ) -> bool:
        args = {
            "group": GROUP,
            "holder": claim.token,
            "id": claim.job.subject,
            "idle_ms": "" if idle_ms is None else idle_ms,
            "attempts": claim.attempt if attempts is None else attempts,
            "most_buried": MOST_BURIED,
            "buried_s": KEPT_S,
            "letter": letter,
        }
        return bool(await self._driver.run(self._settle, self._keys, args))
