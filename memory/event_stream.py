"""Events on their way, on Redis (F40).

    {tenant:conversation}::outbox            stream: what a commit wrote down, in field `event`
    {tenant:conversation}::outbox::webhook   stream: what has left the outbox and waits for the webhook
    {flow-engine}:events                     stream for consumers: `event, tenant, conversation, kind`

An event leaves the outbox only when it is in the reporting stream and, where there is a webhook, in its
queue. The two are independent from then on: a webhook that is away holds nobody else up. One server moves
an event by one script, so that it comes to the stream exactly once. On a cluster the stream is in another
slot than the outbox: the event is first appended, then moved, and a crash in between appends it again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flow_engine.ports.delivery import QueuedEvent, ShareUsedUp
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.events import kind_of
from memory.driver import Driver, Script
from memory.keys import EVENTS_KEY, ConversationKeys, event_shares_key

WEBHOOK_QUEUE_LIFETIME_S = 7 * 24 * 60 * 60
SHARES_WINDOW_S = 60


@dataclass(frozen=True, slots=True)
class Routing:
    """Beyond about `stream_length` events the reporting stream forgets the oldest, read or not. With
    `webhook`, events that leave an outbox are queued for it."""

    stream_length: int
    webhook: bool


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
        ids = [part for queued, kind in zip(events, kinds, strict=True) for part in (queued.id, kind)]
        rules = {"for_webhook": "1" if routing.webhook else "0", "queue_lifetime": WEBHOOK_QUEUE_LIFETIME_S}
        moved = int(await self._driver.run(self._move, queues, {**rules, **shared, "events": ids}))
        if moved < 0:
            raise used_up
        return moved

    async def for_webhook(self, conversation: ConversationRef, *, at_most: int) -> Sequence[QueuedEvent]:
        return await self._read(ConversationKeys.of(conversation).webhook_queue, at_most)

    async def taken(self, conversation: ConversationRef, event: QueuedEvent) -> None:
        queue = ConversationKeys.of(conversation).webhook_queue
        await self._driver.run(self._take, {"webhook_queue": queue}, {"id": event.id})

    async def _read(self, key: str, at_most: int) -> Sequence[QueuedEvent]:
        found = await self._driver.xrange(key, at_most=at_most)
        return [QueuedEvent(entry_id, fields[b"event"]) for entry_id, fields in found]
