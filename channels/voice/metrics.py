"""Prometheus metrics of the voice agent, and figures of single calls. Labels are reasons and outcomes, never
ids or numbers; histograms are in seconds."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from typing_extensions import TypedDict

from channels.voice.call.ports import EndReason
from channels.voice.call.state import Counts

RefusedBecause = Literal["busy", "draining", "not_allowed"]

_CALL_BUCKETS_S = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
_TOOL_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120)
MOST_CALLS, MOST_TURNS = 50, 100
"""Ended calls of an agent, and turns of each, the last ones, whose figures are told one by one."""

_RESPONSE_BUCKETS_S = (0.2, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 5, 10)


class CallFigures(TypedDict):
    """`seconds` and `reason` are null while the call goes on. `turnsMs` are milliseconds from the end of each
    turn of the caller to the first audio of its answer, of the last `MOST_TURNS`; `turns` counts all."""

    callId: str
    startedAt: str
    seconds: float | None
    reason: EndReason | None
    bargeIns: int
    turns: int
    turnsMs: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class CountedCall:
    """`began_at` has its zone; `counts` go on to be counted while the call goes on."""

    call_id: str
    began_at: datetime
    counts: Counts


class Counting:
    """What the bridge and the HTTP side count; durations in seconds."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._going_on: dict[CountedCall, None] = {}
        self._last: deque[CallFigures] = deque(maxlen=MOST_CALLS)
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
            "flow_engine_voice_barge_ins", "Times that a caller spoke or pressed a key over the agent."
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
        self._tokens = self._counter(
            "flow_engine_voice_model_tokens",
            "Tokens that the model has reported: cached ones are among those of the input.",
            ("kind",),
        )
        self._duration = self._histogram(
            "flow_engine_voice_call_seconds",
            "How long calls were, from the first event of the line to their end.",
            _CALL_BUCKETS_S,
        )
        self._tool_time = self._histogram(
            "flow_engine_voice_tool_seconds", "What the model's tools took to answer.", _TOOL_BUCKETS_S
        )
        self._response_time = self._histogram(
            "flow_engine_voice_response_seconds",
            "From the end of a turn of the caller to the first audio of the answer.",
            _RESPONSE_BUCKETS_S,
        )

    def call_began(self, call: CountedCall) -> None:
        self._going_on[call] = None
        self._active.inc()

    def calls(self) -> Sequence[CallFigures]:
        """Those that go on, then the last `MOST_CALLS` that have ended, each the latest first."""
        return [*map(_figures, reversed(self._going_on)), *reversed(self._last)]

    def call_ended(self, call: CountedCall, reason: EndReason, duration_s: float) -> None:
        """Once for every call that began. `duration_s` is in seconds."""
        del self._going_on[call]
        counts = call.counts
        self._last.append({**_figures(call), "seconds": round(duration_s, 3), "reason": reason})
        self._active.dec()
        self._ended.labels(reason).inc()
        self._duration.observe(duration_s)
        self._barge_ins.inc(counts.interruptions)
        self._dropped.labels("line").inc(counts.late_audio)
        self._dropped.labels("model").inc(counts.unheard)
        for outcome, times in (
            ("answered", counts.tools_answered),
            ("failed", counts.tools_failed),
            ("stopped", counts.tools_stopped),
        ):
            self._tools.labels(outcome).inc(times)
        for kind, tokens in (
            ("input", counts.tokens_in),
            ("output", counts.tokens_out),
            ("cached", counts.tokens_cached),
        ):
            self._tokens.labels(kind).inc(tokens)
        for seconds in counts.tool_seconds:
            self._tool_time.observe(seconds)
        for seconds in counts.response_seconds:
            self._response_time.observe(seconds)

    def call_refused(self, reason: RefusedBecause) -> None:
        self._refused.labels(reason).inc()

    def model_renewed(self) -> None:
        self._reconnects.inc()

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


def _figures(call: CountedCall) -> CallFigures:
    answers = call.counts.response_seconds
    return CallFigures(
        callId=call.call_id,
        startedAt=call.began_at.isoformat(),
        seconds=None,
        reason=None,
        bargeIns=call.counts.interruptions,
        turns=len(answers),
        turnsMs=[round(seconds * 1000) for seconds in answers[-MOST_TURNS:]],
    )
