"""A whole service in process: its spans are kept, its metrics at hand, its jobs run when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fakeredis import FakeServer
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adapters.models.audit import AuditedModel, LoggedCalls
from adapters.models.scripted import Answers, Fails, ScriptedModel
from adapters.outbound.fake import ScriptedOutbound
from adapters.telemetry.otel import OpenTelemetryTracing
from api.auth import LocalOnly
from flow_engine.ports.outbound import OutboundReply
from flow_engine.ports.telemetry import Tracing, Untraced
from memory.in_process import embedded
from service.logs import configure_logging
from service.observing import ObservedCalls, PrometheusObserver, own_observer
from service.settings import Settings
from service.wiring import Service, ServiceDependencies, assemble
from tests.api.harness import BASE_URL, HANDLER, Scene, SettableClock, sqlite_in_memory
from tests.flow_engine.documents.samples import JsonObject

Step = Answers | Fails


@dataclass
class Watched:
    """`scene` talks to the service. `finished` has the spans that are over, oldest first."""

    scene: Scene
    service: Service
    observer: PrometheusObserver
    server: FakeServer
    exporter: InMemorySpanExporter

    @property
    def finished(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.finished if span.name == name]

    async def work(self, *, after_s: float = 1.0) -> list[str]:
        """Run every job that is due by then, and say which kinds those were."""
        self.scene.clock.advance(seconds=after_s)
        [jobs] = self.service.jobs
        claims = await jobs.schedule.claim(self.scene.clock.now(), at_most=50, lease_s=15.0)
        for claim in claims:
            await jobs.run(claim)
        return [claim.job.kind for claim in claims]

    def metric(self, name: str, **labels: str) -> float:
        """0 for what was never counted."""
        return self.observer.registry.get_sample_value(f"flow_engine_{name}", labels) or 0.0


@asynccontextmanager
async def watched(
    document: JsonObject,
    *steps: Step,
    traced: bool = True,
    log_level: str | None = None,
    **settings: Any,
) -> AsyncIterator[Watched]:
    clock, server, observer, exporter = SettableClock(), FakeServer(), own_observer(), InMemorySpanExporter()
    tracing: Tracing = OpenTelemetryTracing(SimpleSpanProcessor(exporter)) if traced else Untraced()
    if log_level is not None:
        configure_logging(log_level, tracing)
    log = ObservedCalls(LoggedCalls(), observer, tracing)
    scripted = ScriptedModel(list(steps))
    model = AuditedModel(scripted, log, clock, lambda: "call", name="scripted:model")
    memory, flows, outbound = (
        embedded(server),
        sqlite_in_memory(),
        ScriptedOutbound({HANDLER: [OutboundReply(200, b"false")] * 9}),
    )
    dependencies = ServiceDependencies(clock, outbound, memory, flows, model, observer, tracing)
    given = Settings(**{"samples": False, **settings})
    service = assemble(given, dependencies, LocalOnly(), base_url=BASE_URL)
    transport = httpx.ASGITransport(app=service.app, raise_app_exceptions=False)
    async with service.opened(), httpx.AsyncClient(transport=transport, base_url=BASE_URL) as http:
        scene = Scene(service.app, http, clock, outbound, memory, flows, service)
        await scene.publish(document)
        exporter.clear()
        yield Watched(scene, service, observer, server, exporter)
