"""What the engine counts, as Prometheus metrics. Labels are kinds and reasons, never ids."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter

COUNTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "contacts_started": ("Contacts started.", ("channel",)),
    "contacts_ended": ("Contacts ended or superseded.", ("channel", "how")),
    "task_changes": ("Changes of task asked for, by the refusal's code or `accepted`.", ("outcome",)),
    "prompts": ("Prompts given, by whether the last user turn had been read.", ("memory",)),
    "checkpoints_reached": ("Checkpoints reached.", ()),
    "jobs_done": ("Background jobs done.", ("kind",)),
    "jobs_failed": ("Attempts at background jobs that failed.", ("kind",)),
    "jobs_buried": ("Background jobs given up.", ("kind",)),
    "jobs_unhandled": ("Background jobs put off because this process has no handler for them.", ("kind",)),
    "values_mined": ("Values read from dialogues, by who found them.", ("source",)),
    "mined_values_dropped": ("Values of models' answers that were refused.", ("reason",)),
    "model_calls_failed": ("Model calls of background work without a usable answer.", ("purpose", "reason")),
    "events_published": ("Events appended to the reporting stream.", ()),
    "webhook_events": ("Attempts to send an event to the webhook, by what became of them.", ("outcome",)),
    "tasks_stalled": ("Required tasks that could have been entered for several turns and were not.", ()),
}
"""Every name that is counted: its meaning and its labels."""


class PrometheusObserver:
    """Implements `Observer`. A name or a label that COUNTED does not list is a bug: KeyError, ValueError."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            name: Counter(f"flow_engine_{name}_total", meaning, labels, registry=registry)
            for name, (meaning, labels) in COUNTED.items()
        }

    def count(self, what: str, amount: int = 1, /, **labels: str) -> None:
        counter = self._counters[what]
        (counter.labels(**labels) if labels else counter).inc(amount)
