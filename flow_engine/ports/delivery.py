"""The ports that events go through on their way out (F40): the queues that hold them, and the webhook."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from flow_engine.ports.dialogue import ConversationRef


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """`id` is that of its entry in the queue that it was read from. `event` is a JSON text in UTF-8;
    `rewritten`: another one than is queued, to be sent on in its place."""

    id: str
    event: bytes
    rewritten: bool = False


class EventQueues(Protocol):
    """Events of a conversation from its outbox to the stream of all consumers, and to the webhook's queue.

    Every method raises RetryLater when the store does not answer.
    """

    async def in_outbox(self, conversation: ConversationRef, *, at_most: int) -> Sequence[QueuedEvent]:
        """The oldest events of a conversation that no consumer can see yet, in order."""
        ...

    async def publish(self, conversation: ConversationRef, events: Sequence[QueuedEvent]) -> int:
        """Send events of the outbox on; the number of those that nobody else had sent on meanwhile.

        Raises ShareUsedUp, and sends none, when the tenant has had its part of the stream for now.
        """
        ...

    async def for_webhook(self, conversation: ConversationRef, *, at_most: int) -> Sequence[QueuedEvent]:
        """The oldest events that the webhook has not taken yet, in order."""
        ...

    async def taken(self, conversation: ConversationRef, event: QueuedEvent) -> None: ...


class EventReceiver(Protocol):
    """Somebody outside who wants every event."""

    async def send(self, conversation: ConversationRef, event: bytes) -> None:
        """Returns once the event was taken. Raises ReceiverAway or ReceiverRefused. `event` is a JSON text in
        UTF-8."""
        ...


class ShareUsedUp(Exception):
    """Other tenants' events would be pushed out of the stream. `again_after_s`: when there is room. In
    seconds. An error of the tenant's rate, not of an event."""

    def __init__(self, again_after_s: float) -> None:
        super().__init__("the tenant's share of the stream is used up")
        self.again_after_s = again_after_s


class ReceiverAway(Exception):
    """It does not answer at all: nothing is wrong with the event. `again_at` (UTC): not before."""

    def __init__(self, again_at: datetime) -> None:
        super().__init__("the receiver is away")
        self.again_at = again_at


class ReceiverRefused(Exception):
    """It answered, and did not take this event. An error of this event: others may be taken."""
