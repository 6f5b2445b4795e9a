"""What a process counts and measures: the engine's work, model calls, itself and what waits (F36).

Labels are kinds, codes, channels and purposes: few, and never ids, names of tasks or texts.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from adapters.models.audit import CallLog, ModelCallRecord
from api.tallies import TalliedCounter
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.outages import Outage
from flow_engine.ports.clock import Clock
from flow_engine.ports.telemetry import Tracing
from flow_engine.values import utc_text
from memory.held import HeldConversations
from memory.operations import OwnProcess, RedisOperations

log: Any = structlog.get_logger("flow_engine.service")

COUNTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "task_changes": ("Changes of task asked for: accepted, or the code of the refusal.", ("outcome",)),
    "contacts_started": ("Contacts started, by channel.", ("channel",)),
    "contacts_ended": ("Contacts over, by channel: ended, or superseded by another.", ("channel", "how")),
    "memory_writes": ("Values written to the memory, by who wrote them.", ("source",)),
    "prompts": ("Prompts read, with a memory that had read every user turn (fresh) or not.", ("memory",)),
    "handler_failures": ("Closure handlers that gave no usable answer.", ("reason",)),
    "conversations_read": ("Conversations that were read whole, since this process did not hold them.", ()),
    "commits_lost": ("Commits that another writer was faster than; each was tried again.", ()),
    "revision_conflicts": ("Requests given up after too many lost commits.", ()),
    "forks": ("Conversations forked from another one.", ()),
    "replays": ("Requests answered with the reply that their Idempotency-Key has got before.", ()),
    "store_errors": ("Calls that a store did not answer, looks that found it not ready.", ("store",)),
    "jobs_done": ("Background jobs done.", ("kind",)),
    "jobs_failed": ("Attempts at background jobs that failed.", ("kind",)),
    "jobs_buried": ("Background jobs given up.", ("kind",)),
    "jobs_unhandled": ("Background jobs put off because this process has no handler for them.", ("kind",)),
    "values_mined": ("Values read from dialogues, by who found them.", ("source",)),
    "mined_values_dropped": ("Values of models' answers that were refused.", ("reason",)),
    "checkpoints_reached": ("Checkpoints that dialogues have reached.", ()),
    "model_calls": ("Attempts at model calls: ok, cancelled, or why they failed.", ("purpose", "outcome")),
    "model_tokens": ("Tokens of model calls, in and out.", ("purpose", "direction")),
    "model_calls_failed": ("Model calls of background work without a usable answer.", ("purpose", "reason")),
    "events_published": ("Events appended to the reporting stream.", ()),
    "events_put_off": ("Events that waited because their tenant had had its share of the stream.", ()),
    "webhook_events": ("Attempts to send an event to the webhook, by what became of them.", ("outcome",)),
    "tasks_stalled": ("Required tasks that could have been entered for several turns and were not.", ()),
}
"""Every name that is counted: its meaning and its labels."""

CHAT_COUNTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "chat_connections": ("WebSockets of the chat that have said hello.", ()),
    "chat_messages": ("Messages of users: queued, duplicate or busy.", ("outcome",)),
    "chat_answers": ("Answers by the state that they ended in.", ("state",)),
    "chat_decisions": ("Decisions of the orchestrator, by who decided.", ("action", "decided_by")),
    "chat_runs": ("Runs of agents, by how they ended.", ("status",)),
    "chat_tool_calls": ("Calls of tools that models made, the refused ones included.", ()),
    "http_requests": ("HTTP requests by route and status.", ("route", "method", "status")),
    "model_calls": COUNTED["model_calls"],
    "model_tokens": COUNTED["model_tokens"],
}
"""As `COUNTED`, of a process of `chat serve`."""

OWN_GAUGES: Mapping[str, str] = {
    "compiled_versions": "Compiled versions in this process's cache.",
    "streams_open": "Journals that are followed in this process.",
    "conversations_held": "Conversations whose state this process holds.",
}
"""Gauges of which each process has its part, with their meanings."""

SHARED_GAUGES: Mapping[str, str] = {
    "jobs_waiting": "Background jobs that are due and not taken yet.",
    "jobs_oldest_seconds": "For how long the oldest of the waiting jobs has been due, in seconds.",
    "dead_letters": "Background jobs that were given up and are kept.",
}
"""Those of the Redis that all share."""

LAG_EVERY_S = 0.5
LOOK_EVERY_S = 5.0
JOBS_LATE_AFTER_S = 30.0
JOBS_LATE = RetryLater(
    "jobs_late", "background jobs have been due for half a minute: is there a worker, are there enough?"
)
ASK_AGAIN_S = 0.1

_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_MODEL_BUCKETS = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60)


class CountingObserver:
    """Implements `Observer`. A name or a label that `counted` does not list is a bug: KeyError, ValueError.

    Counters without labels are there from the start, so that their first increase is seen as one. Times are
    in seconds.
    """

    def __init__(
        self, registry: CollectorRegistry, counted: Mapping[str, tuple[str, tuple[str, ...]]]
    ) -> None:
        self.registry = registry
        self._counters = {
            name: TalliedCounter(f"flow_engine_{name}_total", meaning, labels, registry=registry)
            for name, (meaning, labels) in counted.items()
        }
        # Finding them by label takes longer than counting.
        self._known: dict[tuple[object, ...], Counter] = {}
        self._model_seconds = Histogram(
            "flow_engine_model_call_seconds",
            "Time of one attempt at a model call, in seconds.",
            ("purpose",),
            registry=registry,
            buckets=_MODEL_BUCKETS,
        )

    def count(self, what: str, amount: int = 1, /, **labels: str) -> None:
        key = (what, *labels.items())
        counter = self._known.get(key)
        if counter is None:
            family = self._counters[what]
            counter = self._known[key] = family.labels(**labels) if labels else family
        counter.inc(amount)

    def warn(self, event: str, /, **details: str) -> None:
        log.warning(event, **details)

    def model_call_took(self, seconds: float, *, purpose: str) -> None:
        self._model_seconds.labels(purpose).observe(seconds)


class PrometheusObserver(CountingObserver):
    """The engine's: what it counts, and the gauges of its work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, COUNTED)
        self._lag = Histogram(
            "flow_engine_event_loop_lag_seconds",
            "How much later than asked for this process gets to do what is due, in seconds.",
            registry=registry,
            buckets=_LAG_BUCKETS,
        )
        self._gauges = {
            name: Gauge(f"flow_engine_{name}", meaning, registry=registry)
            for name, meaning in {**OWN_GAUGES, **SHARED_GAUGES}.items()
        }

    def event_loop_lagged(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def asks(self, gauge: str, number: Callable[[], int]) -> None:
        """At every scrape."""
        self._gauges[gauge].set_function(number)

    def conversations_are_held_by(self, holding: HeldConversations) -> None:
        """Asked at every scrape how many it holds, and how many were read."""
        self.asks("conversations_held", lambda: len(holding))
        self._counters["conversations_read"].asks(lambda: holding.reads)

    def backlog_is(self, waiting: int, oldest_s: float, dead_letters: int) -> None:
        for name, figure in zip(SHARED_GAUGES, (waiting, oldest_s, dead_letters), strict=True):
            self._gauges[name].set(figure)


def own_observer() -> PrometheusObserver:
    return PrometheusObserver(CollectorRegistry())


class ObservedCalls:
    """Implements `CallLog` around another: every attempt in the metrics and, with traces on, as a span.
    Durations in seconds, usage in tokens."""

    def __init__(self, log: CallLog, observer: CountingObserver, tracing: Tracing) -> None:
        self._log = log
        self._observer = observer
        self._tracing = tracing

    async def write(self, record: ModelCallRecord) -> None:
        purpose, seconds = record.purpose, record.duration_ms / 1000
        outcome = record.reason or record.status
        self._observer.count("model_calls", purpose=purpose, outcome=outcome)
        self._observer.count("model_tokens", record.input_tokens, purpose=purpose, direction="input")
        self._observer.count("model_tokens", record.output_tokens, purpose=purpose, direction="output")
        self._observer.model_call_took(seconds, purpose=purpose)
        attributes: dict[str, str | int] = {
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": record.input_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "flow_engine.model.purpose": purpose,
        }
        if outcome != "ok":
            attributes["error.type"] = outcome
        self._tracing.finished(f"model {purpose}", "client", seconds=seconds, attributes=attributes)
        await self._log.write(record)


class KeptCalls:
    """Implements `CallLog` around another: keeps the attempts that were made for a tenant where operators
    read them, without the conversation's id."""

    def __init__(self, log: CallLog, operations: RedisOperations, observer: CountingObserver) -> None:
        self._log, self._operations, self._observer = log, operations, observer

    async def write(self, record: ModelCallRecord) -> None:
        """Never raises for a store that is away or refuses: the attempt is not kept then."""
        await self._log.write(record)
        if record.tenant is None:
            return
        told = {
            "id": record.id,
            "at": utc_text(record.at),
            "purpose": record.purpose,
            "model": record.model,
            "status": record.status,
            "reason": record.reason,
            "inputTokens": record.input_tokens,
            "outputTokens": record.output_tokens,
            "durationMs": record.duration_ms,
        }
        try:
            await self._operations.note_call(record.tenant, told)
        except (RetryLater, CallTheOperator):
            self._observer.count("store_errors", store="memory")


class Watch:
    """Feeds the gauges that nothing counts into by itself, and says that this process lives and, in the log,
    why the memory is not `ready`, or the flow store. The lag twice a second, the others every 5 seconds."""

    def __init__(
        self,
        observer: PrometheusObserver,
        operations: RedisOperations,
        own: OwnProcess,
        clock: Clock,
        *,
        ready: Callable[[], Awaitable[None]],
        flows_ready: Callable[[], Awaitable[None]],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._observer = observer
        self._operations = operations
        self._own = own
        self._clock = clock
        self._pause = pause
        self._stopwatch = stopwatch
        self._late = Outage(log, "jobs_wait", "jobs_wait_no_more")
        self._probes = (
            ("memory", ready, Outage(log, "memory_not_ready", "memory_ready_again")),
            ("flows", flows_ready, Outage(log, "flow_store_not_ready", "flow_store_ready_again")),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Measures until the block ends. Then the process is no longer listed: it has ended in order."""

        async def again(look: Callable[[], Awaitable[None]], every_s: float) -> None:
            while True:
                await look()
                await self._pause(every_s)

        looks = again(self.measure_backlog, LOOK_EVERY_S), again(self.look_at_readiness, LOOK_EVERY_S)
        pending = {asyncio.create_task(each) for each in (*looks, again(self.measure_lag, 0))}
        try:
            yield
        finally:
            while pending:  # `wait_for`, in the store's driver, may swallow the first time
                for task in pending:
                    task.cancel()
                _, pending = await asyncio.wait(pending, timeout=ASK_AGAIN_S)
            with suppress(RetryLater, CallTheOperator):
                await self._operations.note_process(self._own, self._clock.now(), ends=True)

    async def measure_lag(self) -> None:
        began = self._stopwatch()
        await self._pause(LAG_EVERY_S)
        self._observer.event_loop_lagged(max(0.0, self._stopwatch() - began - LAG_EVERY_S))

    async def measure_backlog(self) -> None:
        """Logs once that jobs wait, and once that they do no more. While the store is away the last figures
        stay. Ages in seconds. Never raises for a store that is away or refuses."""
        now = self._clock.now()
        try:
            await self._operations.note_process(self._own, now)
            waiting, oldest_s, dead_letters = await self._operations.backlog(now)
        except (RetryLater, CallTheOperator):
            self._observer.count("store_errors", store="memory")
            return
        self._observer.backlog_is(waiting, oldest_s, dead_letters)
        if oldest_s > JOBS_LATE_AFTER_S:
            self._late.met(JOBS_LATE)
        else:
            self._late.ended()

    async def look_at_readiness(self) -> None:
        """Logs once what readiness would say, with the reason as the driver has it, and once that all is well
        again: whoever is never asked tells it too. Each time that it is not, a store error is counted."""
        for store, ready, outage in self._probes:
            try:
                await ready()
            except (RetryLater, CallTheOperator) as wrong:
                self._observer.count("store_errors", store=store)
                outage.met(wrong)
            else:
                outage.ended()
