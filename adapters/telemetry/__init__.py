"""Traces by OpenTelemetry, whose SDK is imported here, when they are wanted, and metrics of the stores."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from flow_engine.ports.telemetry import Tracing, Untraced

Destination = Literal["otlp", "console"]


@contextmanager
def tracing_to(destination: Destination | None) -> Generator[Tracing]:
    """`otlp`: to the collector that the standard OTEL_EXPORTER_OTLP_ENDPOINT names; `console`: to standard
    error, one JSON object a line. On leaving, what is not sent yet is sent."""
    if destination is None:
        yield Untraced()
        return
    from adapters.telemetry.otel import exporting  # noqa: PLC0415

    tracing = exporting(destination)
    try:
        yield tracing
    finally:
        tracing.close()
