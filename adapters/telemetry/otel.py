"""Implements `Tracing` by OpenTelemetry's SDK. Only this module knows it; nothing global is set."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from types import TracebackType

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span, set_span_in_context, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from adapters.telemetry import Destination
from flow_engine.errors import FlowEngineError
from flow_engine.ports import telemetry

_KINDS: Mapping[telemetry.SpanKind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "consumer": SpanKind.CONSUMER,
}
_PROPAGATOR = TraceContextTextMapPropagator()


class OpenTelemetryTracing:
    """Implements `Tracing`. Sampling follows the caller's `traceparent`, else OTEL_TRACES_SAMPLER."""

    on = True

    def __init__(self, processor: SpanProcessor) -> None:
        named = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", "flow-engine"),
                "service.version": version("flow-engine"),
            }
        )
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("flow_engine")

    def span(
        self,
        name: str,
        kind: telemetry.SpanKind = "internal",
        *,
        parent: str | None = None,
        attributes: telemetry.Attributes | None = None,
    ) -> _Entered:
        context = None if parent is None else _PROPAGATOR.extract({"traceparent": parent})
        return _Entered(self._tracer.start_span(name, context, _KINDS[kind], attributes))

    def finished(
        self, name: str, kind: telemetry.SpanKind, *, seconds: float, attributes: telemetry.Attributes
    ) -> None:
        now = time.time_ns()
        began = now - round(seconds * 1e9)
        span = self._tracer.start_span(name, None, _KINDS[kind], start_time=began)
        _add(span, attributes)
        span.end(now)

    def note(self, attributes: telemetry.Attributes) -> None:
        _add(get_current_span(), attributes)

    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(get_current_span()))
        return carrier.get("traceparent")

    def close(self) -> None:
        self._provider.shutdown()


def _add(span: Span, attributes: telemetry.Attributes) -> None:
    span.set_attributes(attributes)
    if "error.type" in attributes:
        span.set_status(StatusCode.ERROR)


class _Entered:
    """A span while it is current. Of an exception it keeps the code or the type: messages may hold data."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._current = use_span(span, record_exception=False, set_status_on_exception=False)

    def __enter__(self) -> None:
        self._current.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._current.__exit__(kind, error, trace)
        if error is not None:
            told = error.code if isinstance(error, FlowEngineError) else type(error).__name__
            _add(self._span, {"error.type": told})
        self._span.end()


def exporting(destination: Destination) -> OpenTelemetryTracing:
    if destination == "otlp":
        return OpenTelemetryTracing(BatchSpanProcessor(OTLPSpanExporter()))
    # Not standard output: that holds the log, one event a line.
    console = ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
    return OpenTelemetryTracing(SimpleSpanProcessor(console))
