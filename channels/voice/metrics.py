"""Prometheus metrics of the voice agent. Labels are reasons and outcomes, never ids or numbers."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from channels.voice.call.ports import EndReason

RefusedBecause = Literal["busy", "draining", "not_allowed"]
ToolOutcome = Literal["answered", "failed", "stopped"]
Side = Literal["line", "model"]


class Counting:
    """What the bridge and the HTTP side count."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._active = Gauge(
            "flow_engine_voice_calls_active",
            "Calls that are going on, until everything that belongs to their end is done.",
            registry=self.registry,
        )
        self._ended = self._counter(
            "flow_engine_voice_calls", "Calls that have ended, by why they did.", ("reason",)
        )
        self._refused = self._counter(
            "flow_engine_voice_calls_refused", "Calls that were not let in, by why not.", ("reason",)
        )
        self._tools = self._counter(
            "flow_engine_voice_tool_calls",
            "Tools that the model called, by what became of them. Counted when their call ends.",
            ("outcome",),
        )
        self._barge_ins = self._counter(
            "flow_engine_voice_barge_ins", "Times that a caller spoke while the agent could be heard."
        )
        self._dropped = self._counter(
            "flow_engine_voice_dropped_frames",
            "Audio frames thrown away, by the side they were for: it was too slow, or they came too late.",
            ("side",),
        )
        self._reconnects = self._counter(
            "flow_engine_voice_model_reconnects",
            "Times that a call went on with a new connection to the model.",
        )

    def call_started(self) -> None:
        self._active.inc()

    def call_ended(self, reason: EndReason) -> None:
        self._active.dec()
        self._ended.labels(reason).inc()

    def call_refused(self, reason: RefusedBecause) -> None:
        self._refused.labels(reason).inc()

    def tool_called(self, outcome: ToolOutcome, times: int = 1) -> None:
        self._tools.labels(outcome).inc(times)

    def barged_in(self, times: int = 1) -> None:
        self._barge_ins.inc(times)

    def frames_dropped(self, side: Side, frames: int = 1) -> None:
        self._dropped.labels(side).inc(frames)

    def model_reconnected(self) -> None:
        self._reconnects.inc()

    def _counter(self, name: str, told: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, told, labels, registry=self.registry)
