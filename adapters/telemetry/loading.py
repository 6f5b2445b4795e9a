"""The one place where OpenTelemetry's SDK is imported: when traces are asked for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal

from flow_engine.ports.tracing import Tracing, Untraced

Destination = Literal["otlp", "console"]


@contextmanager
def tracing_to(destination: Destination | None) -> Generator[Tracing]:
    """`otlp`: to the collector that the standard OTEL_EXPORTER_OTLP_ENDPOINT names; `console`: to standard
    error, one JSON object a line. On leaving, what is not sent yet is sent."""
    if destination is None:
        yield Untraced()
        return
    layer: Any = import_module("adapters.telemetry.otel")
    tracing = layer.exporting(destination)
    try:
        yield tracing
    finally:
        tracing.close()
