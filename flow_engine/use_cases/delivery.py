"""The jobs that send a conversation's events on: to the stream of all consumers, and to the webhook (F40).

1. Events of a conversation come in the order in which they were committed, however many processes work on
   them: nobody sends an event before its predecessor has arrived.
2. An event is forgotten only after it has arrived. A process that dies in between sends it again, under
   the same `eventId`.
3. Neither job does anything that is not found undone, so that both may run at any time.
4. A webhook that does not answer at all is waited for, with every conversation. One that answers, if only
   others, and does not take an event, for whatever reason, is tried again as often as any job, and the job
   then buried. The events stay queued, and later ones of that conversation with them; other conversations do
   not wait.
5. What a user said in a task where sensitive values are read waits until it was read, and what comes after it
   waits with it: at most 15 seconds, then a mask takes the place of its words.
6. A tenant whose share of the stream is used up is put off, and its events stay in their outboxes.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from flow_engine.masking import MASKS
from flow_engine.ports import delivery
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job, TryJobAgain
from flow_engine.ports.telemetry import Observer
from flow_engine.runtime.events import mark_of, without_mark
from flow_engine.runtime.privacy import masked_event, unread_words
from flow_engine.use_cases.transactor import Transactor

BATCH = 100
READ_WITHIN = timedelta(seconds=15)
"""A model answers in some seconds, or is asked again meanwhile."""
LOOKED_AGAIN_AFTER = timedelta(seconds=1)
DELIVERING_FOR = timedelta(seconds=20)

Schedule = Callable[[DueJob], Awaitable[None]]
"""Writes a job down; one that is written down already is moved to the new time."""


class ReadEvents:
    """Events of an outbox as everybody may see them, once the words in them have been read."""

    def __init__(self, transactor: Transactor) -> None:
        self._transactor = transactor

    async def ready(
        self, conversation: ConversationRef, waiting: Sequence[delivery.QueuedEvent]
    ) -> Sequence[delivery.QueuedEvent]:
        """The first of them, up to one whose words are still to be read. Where nothing waits for that, all as
        they are. Raises RetryLater, CallTheOperator for a conversation that cannot be read."""
        marks = [mark_of(queued.event) for queued in waiting]
        if not any(marks):
            return waiting
        loaded = await self._transactor.memory.load(conversation, with_turns=True)
        if loaded.session is None:
            return _unread(waiting)
        runner = await self._transactor.resume(conversation, loaded)
        secrets, hidden = runner.secrets(), loaded.mining.hidden
        unread, known = unread_words(runner.flow, loaded), {turn.name for turn in loaded.turns}
        ready: list[delivery.QueuedEvent] = []
        for queued, mark in zip(waiting, marks, strict=True):
            event, hidden_as = queued.event, None
            if secrets is not None:
                event = masked_event(event, secrets)
            if mark is not None:
                if mark.message in unread and self._transactor.clock.now() < mark.at + READ_WITHIN:
                    break
                lost = mark.message in unread or mark.message not in known
                hidden_as = MASKS[True] if lost else hidden.get(mark.message)
            ready.append(_shown(queued.id, event, hidden_as))
        return ready


def _shown(id: str, event: bytes, hidden_as: str | None) -> delivery.QueuedEvent:
    return delivery.QueuedEvent(id, without_mark(event, hidden_as), rewritten=True)


def _unread(waiting: Sequence[delivery.QueuedEvent]) -> Sequence[delivery.QueuedEvent]:
    """With a mask in place of all words that would have to be read first."""
    return [
        queued if mark_of(queued.event) is None else _shown(queued.id, queued.event, MASKS[True])
        for queued in waiting
    ]


class Relay:
    """Handler of `relay`. `has_webhook`: what was relayed is then to be delivered. In batches of 100 events;
    JSON texts, byte for byte. Without `read` nobody looks for sensitive values: where they may stand, a mask
    takes the place of the words. Raises RetryLater when the store does not answer."""

    def __init__(
        self,
        events: delivery.EventQueues,
        clock: Clock,
        observer: Observer,
        schedule: Schedule,
        *,
        has_webhook: bool,
        read: ReadEvents | None = None,
    ) -> None:
        self._events = events
        self._read = read
        self._clock = clock
        self._observer = observer
        self._schedule = schedule
        self._has_webhook = has_webhook

    async def relay(self, job: Job) -> None:
        conversation = job.conversation
        while True:
            waiting = await self._events.in_outbox(conversation, at_most=BATCH)
            ready = _unread(waiting) if self._read is None else await self._read.ready(conversation, waiting)
            if ready:
                try:
                    published = await self._events.publish(conversation, ready)
                except delivery.ShareUsedUp as used_up:
                    again_at = self._clock.now() + timedelta(seconds=used_up.again_after_s)
                    self._observer.count("events_put_off", len(ready))
                    await self._schedule(DueJob(job, again_at))
                    break
                self._observer.count("events_published", published)
            if len(ready) < len(waiting):  # the reading calls, too
                await self._schedule(DueJob(job, self._clock.now() + LOOKED_AGAIN_AFTER))
                break
            if len(waiting) < BATCH:
                break
        if self._has_webhook:  # also when nothing waited: an earlier attempt may have died here
            await self._schedule(DueJob(Job("deliver", conversation), self._clock.now()))


class Delivery:
    """Handler of `deliver`. Raises TryJobAgain when the webhook refuses an event. At most 20 seconds at a
    time for one conversation."""

    def __init__(
        self,
        events: delivery.EventQueues,
        webhook: delivery.EventReceiver | None,
        schedule: Schedule,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._events = events
        self._webhook = webhook
        self._schedule = schedule
        self._clock = clock
        self._observer = observer

    async def deliver(self, job: Job) -> None:
        """Without a webhook, what was queued for an earlier one is left to expire."""
        conversation, webhook = job.conversation, self._webhook
        until = self._clock.now() + DELIVERING_FOR
        while webhook is not None:
            waiting = await self._events.for_webhook(conversation, at_most=BATCH)
            for queued in waiting:
                if self._clock.now() >= until:  # others have a right to this worker too
                    await self._schedule(DueJob(job, self._clock.now()))
                    return
                try:
                    await webhook.send(conversation, queued.event)
                except delivery.ReceiverAway as away:
                    self._observer.count("webhook_events", outcome="away")
                    await self._schedule(DueJob(job, away.again_at))
                    return
                except delivery.ReceiverRefused as refused:
                    self._observer.count("webhook_events", outcome="refused")
                    raise TryJobAgain(str(refused)) from refused
                await self._events.taken(conversation, queued)
                self._observer.count("webhook_events", outcome="taken")
            if len(waiting) < BATCH:
                return
