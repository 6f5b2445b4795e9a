"""Background work wired together: which kind of job is run by what, and in which process (F37–F41)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from adapters import extraction
from adapters.jobs import JobRunner, Tuning
from adapters.webhook import Webhook
from api.conversations import CtiIntake
from flow_engine.errors import CallTheOperator
from flow_engine.ports import jobs, models, telemetry
from flow_engine.ports.clock import Clock
from flow_engine.ports.extraction import Extractor, ExtractsNothing
from flow_engine.ports.outbound import OutboundSender
from flow_engine.use_cases.archiving import KeptJournal
from flow_engine.use_cases.background import BackgroundDependencies, BackgroundWork
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.delivery import Delivery, ReadEvents, Relay
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.erasing import Erasures
from flow_engine.use_cases.rollouts import Rollouts
from flow_engine.use_cases.transactor import Transactor
from memory.connection import RedisMemory, connect
from memory.schedule import MOST_LETTERS, RedisDeadLetters, RedisJobSchedule
from memory.streams import CtiStream, RedisEvents, Routing
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class JobDependencies:
    """What jobs work with, the same as what requests do."""

    transactor: Transactor
    model: models.LanguageModel
    memory: RedisMemory
    outbound: OutboundSender
    clock: Clock
    observer: telemetry.Observer
    rollouts: Rollouts
    journal: KeptJournal


def reading_with(
    settings: Settings, model: models.LanguageModel, observer: telemetry.Observer, rollouts: Rollouts
) -> BackgroundDependencies:
    """What reads along, and with which model. Raises nothing: without a model there are the rules."""
    extractor: Extractor = extraction if settings.rules_extraction else ExtractsNothing()
    has_model = not isinstance(model, models.NoModel)
    return BackgroundDependencies(extractor, model, has_model=has_model, observer=observer, rollouts=rollouts)


def job_handlers(settings: Settings, parts: JobDependencies) -> Mapping[jobs.JobKind, jobs.JobHandler]:
    """Of every kind of job. Raises CallTheOperator `webhook_secret_missing`."""
    clock, observer = parts.clock, parts.observer
    work = BackgroundWork(parts.transactor, reading_with(settings, parts.model, observer, parts.rollouts))
    webhook = None
    if settings.webhook_url is not None:
        if settings.webhook_secret is None:
            raise CallTheOperator(
                "webhook_secret_missing",
                "FLOW_ENGINE_WEBHOOK_URL needs FLOW_ENGINE_WEBHOOK_SECRET: events are never sent unsigned",
            )
        secret = settings.webhook_secret.get_secret_value()
        webhook = Webhook(parts.outbound, settings.webhook_url, secret, clock)
    kept_s = int(timedelta(days=settings.journal_days).total_seconds())
    routing = Routing(settings.events_kept, webhook is not None, kept_s)
    events = RedisEvents(parts.memory.driver, routing)
    schedule = RedisJobSchedule(parts.memory.driver).schedule
    read = ReadEvents(parts.transactor)
    relay = Relay(events, clock, observer, schedule, has_webhook=webhook is not None, read=read)
    # Without a webhook too: jobs may be left from a time when there was one.
    delivery = Delivery(events, webhook, schedule, clock, observer)
    return {
        "mine": work.mine,
        "conclude": work.conclude,
        "expire": work.expire,
        "routing": work.routing,
        "relay": relay.relay,
        "deliver": delivery.deliver,
        "archive": parts.journal.archive,
        "prune": parts.journal.prune,
        "erase": Erasures(parts.transactor, parts.journal).finish,
    }


def job_runners(
    settings: Settings,
    parts: JobDependencies,
    agents: tuple[Conversations, DialogueService],
    tracing: telemetry.Tracing,
) -> Sequence[JobRunner]:
    """One for the jobs of commits and, where there is a stream of a core CTI to read, one for that.

    Raises CallTheOperator `webhook_secret_missing`, `redis_needed`.
    """
    memory, clock, observer = parts.memory, parts.clock, parts.observer
    schedule, handlers = RedisJobSchedule(memory.driver), job_handlers(settings, parts)
    tuning = Tuning(
        lease_s=settings.job_lease_s,
        timeout_s=settings.job_timeout_s,
        attempts=settings.job_attempts,
        concurrency=settings.jobs_at_once,
    )
    cause = memory.conversations.trace_of
    own = JobRunner(schedule, handlers, clock, observer, tuning, tracing=tracing, cause=cause)
    if settings.cti_stream is None:
        return (own,)
    if settings.redis_url is None:
        raise CallTheOperator("redis_needed", "FLOW_ENGINE_CTI_STREAM needs FLOW_ENGINE_REDIS_URL")
    stream = CtiStream(memory.driver, settings.cti_stream)
    intake = CtiIntake(*agents, stream.fields)
    in_order = replace(tuning, concurrency=1)  # what is read follows from what was read before
    read = JobRunner(stream, {"cti": intake.take}, clock, observer, in_order, tracing=tracing)
    return (own, read)


def check_workable(settings: Settings) -> None:
    """Raises CallTheOperator `redis_needed` where jobs cannot be run in a process of their own."""
    if settings.redis_url is None:
        raise CallTheOperator(
            "redis_needed", "set FLOW_ENGINE_REDIS_URL; without it, `serve` does the background work itself"
        )


async def dead_letters(settings: Settings, at_most: int) -> Sequence[jobs.DeadLetter]:
    """The latest first. Raises CallTheOperator `redis_needed`, RetryLater. Times are in UTC."""
    async with _letters(settings) as letters:
        return await letters.list(at_most=at_most)


async def replay_dead_letters(settings: Settings, letter_id: str | None) -> int:
    """How many are due again: of all, where no id is named. Raises as `dead_letters`."""
    async with _letters(settings) as letters:
        found = await letters.list(at_most=MOST_LETTERS) if letter_id is None else ()
        ids = [letter.id for letter in found] if letter_id is None else [letter_id]
        return sum([await letters.replay(each, datetime.now(UTC)) for each in ids])


@asynccontextmanager
async def _letters(settings: Settings) -> AsyncGenerator[RedisDeadLetters]:
    if settings.redis_url is None:
        raise CallTheOperator(
            "redis_needed", "set FLOW_ENGINE_REDIS_URL; without it, nothing is kept once `serve` has ended"
        )
    memory = connect(settings.redis_url, cluster=settings.redis_cluster)
    try:
        yield RedisDeadLetters(memory.driver)
    finally:
        await memory.close()
