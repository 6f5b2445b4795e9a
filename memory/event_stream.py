"""Events on their way, on Redis (F40).

    {tenant:conversation}::outbox            stream: what a commit wrote down, in field `event`
    {tenant:conversation}::outbox::webhook   stream: what has left the outbox and waits for the webhook
    {flow-engine}:events                     stream for consumers: `event, tenant, conversation, kind`

An event leaves the outbox only when it is in the reporting stream and, where there is a webhook, in its
queue. The two are independent from then on: a webhook that is away holds nobody else up. One server moves
an event by one script, so that it comes to the stream exactly once. On a cluster the stream is in another
slot than the outbox: the event is first appended, then moved, and a crash in between appends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from redis.exceptions import RedisError

from flow_engine.errors import RetryLater
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.events import kind_of

EVENTS_KEY = "{flow-engine}:events"
WEBHOOK_QUEUE_LIFETIME_S = 7 * 24 * 60 * 60

_HERE = Path(__file__).parent
_MOVE, _APPEND, _TAKE = (
    (_HERE / f"{name}.lua").read_text(encoding="utf-8") for name in ("move", "append", "take")
)


class RedisCommands(Protocol):
    """The part of a redis-py asyncio client, standalone or cluster, that moves events."""

    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    async def xrange(self, name: str, min: str = "-", max: str = "+", count: int | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """`id` is that of its entry in the queue that it was read from."""

    id: str
    event: bytes


@dataclass(frozen=True, slots=True)
class Routing:
    """`outbox_key` names a conversation's outbox, with its hash tag. Beyond about `stream_length` events
    the reporting stream forgets the oldest, read or not."""

    outbox_key: Callable[[ConversationRef], str]
    stream_length: int
    single_node: bool
    webhook: bool


class RedisEvents:
    """Raises RetryLater `events_unavailable` when Redis does not answer or takes no writes."""

    def __init__(self, redis: RedisCommands, routing: Routing) -> None:
        self._redis = redis
        self._routing = routing

    async def in_outbox(self, conversation: ConversationRef, *, at_most: int) -> Sequence[QueuedEvent]:
        """The oldest events of a conversation that no consumer can see yet, in order."""
        return await self._read(self._routing.outbox_key(conversation), at_most)

    async def publish(self, conversation: ConversationRef, events: Sequence[QueuedEvent]) -> int:
        """Send events of the outbox on; the number of those that nobody else had sent on meanwhile."""
        routing = self._routing
        keys = [routing.outbox_key(conversation), self._queue_key(conversation)]
        ids = (conversation.tenant_id, conversation.conversation_id)
        length = routing.stream_length
        with _errors_translated():
            if routing.single_node:
                keys.append(EVENTS_KEY)
            else:
                await self._redis.eval(_APPEND, 1, EVENTS_KEY, length, *ids, *_with_kinds(events, "event"))
            webhook = "1" if routing.webhook else "0"
            moved = _with_kinds(events, "id")
            return int(
                await self._redis.eval(
                    _MOVE, len(keys), *keys, webhook, WEBHOOK_QUEUE_LIFETIME_S, length, *ids, *moved
                )
            )

    async def for_webhook(self, conversation: ConversationRef, *, at_most: int) -> Sequence[QueuedEvent]:
        """The oldest events that the webhook has not taken yet, in order."""
        return await self._read(self._queue_key(conversation), at_most)

    async def taken(self, conversation: ConversationRef, event: QueuedEvent) -> None:
        with _errors_translated():
            await self._redis.eval(_TAKE, 1, self._queue_key(conversation), event.id)

    async def _read(self, key: str, at_most: int) -> Sequence[QueuedEvent]:
        with _errors_translated():
            found = await self._redis.xrange(key, count=at_most)
        return [QueuedEvent(entry_id.decode(), fields[b"event"]) for entry_id, fields in found]

    def _queue_key(self, conversation: ConversationRef) -> str:
        return f"{self._routing.outbox_key(conversation)}::webhook"


def _with_kinds(events: Sequence[QueuedEvent], what: str) -> Iterator[str | bytes]:
    for queued in events:
        yield queued.id if what == "id" else queued.event
        yield kind_of(queued.event)


@contextmanager
def _errors_translated() -> Generator[None]:
    """Whatever Redis has against it, the job that asked is tried again and at last buried."""
    try:
        yield
    except RedisError as error:
        raise RetryLater("events_unavailable", "Redis does not pass events on now") from error
