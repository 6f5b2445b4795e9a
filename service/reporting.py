"""Reporting wired together: what sends events on, and where to (F40)."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.webhook import Webhook
from flow_engine.errors import CallTheOperator
from flow_engine.ports.clock import Clock
from flow_engine.ports.jobs import JobHandler, JobKind
from flow_engine.ports.observing import Observer
from flow_engine.ports.outbound import OutboundSender
from memory.connection import RedisMemory
from memory.event_stream import RedisEvents, Routing
from memory.keys import outbox_key
from memory.schedule import RedisJobSchedule
from service.relay import Delivery, Relay
from service.settings import Settings


def reporting_handlers(
    settings: Settings, memory: RedisMemory, caller: OutboundSender, clock: Clock, observer: Observer
) -> Mapping[JobKind, JobHandler]:
    """Raises CallTheOperator `webhook_secret_missing`."""
    webhook = _webhook(settings, caller, clock)
    routing = Routing(
        outbox_key=outbox_key,
        stream_length=settings.events_kept,
        single_node=settings.redis_url is None or not settings.redis_cluster,
        webhook=webhook is not None,
    )
    events = RedisEvents(memory.client, routing)
    schedule = RedisJobSchedule(memory.client).schedule
    relay = Relay(events, clock, observer, None if webhook is None else schedule)
    # Without a webhook too: jobs may be left from a time when there was one.
    delivery = Delivery(events, webhook, schedule, clock, observer)
    return {"relay": relay.relay, "deliver": delivery.deliver}


def _webhook(settings: Settings, caller: OutboundSender, clock: Clock) -> Webhook | None:
    if settings.webhook_url is None:
        return None
    if settings.webhook_secret is None:
        raise CallTheOperator(
            "webhook_secret_missing",
            "FLOW_ENGINE_WEBHOOK_URL needs FLOW_ENGINE_WEBHOOK_SECRET: events are never sent unsigned",
        )
    return Webhook(caller, settings.webhook_url, settings.webhook_secret.get_secret_value(), clock)
