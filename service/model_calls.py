"""Every attempt at a model call in the log, in the metrics and, where traces are on, as a span."""

from __future__ import annotations

from adapters.models.audit import CallLog, ModelCallRecord
from flow_engine.ports.tracing import Tracing
from service.observing import PrometheusObserver


class ObservedCalls:
    """Implements `CallLog` around another."""

    def __init__(self, log: CallLog, observer: PrometheusObserver, tracing: Tracing) -> None:
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
        told: dict[str, str | int] = {
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": record.input_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "flow_engine.model.purpose": purpose,
        }
        if outcome != "ok":
            told["error.type"] = outcome
        self._tracing.finished(f"model {purpose}", "client", seconds=seconds, attributes=told)
        await self._log.write(record)
