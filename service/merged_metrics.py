"""The metrics of several processes as those of one: what each has counted is sent, and added up."""

import itertools
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest

from service.observing import OWN_GAUGES

Families = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]
"""Name, meaning, type and samples of each metric; a sample is its name, labels and value."""

_EACH_HAS_ITS_OWN = {f"flow_engine_{name}" for name in OWN_GAUGES}
"""The other gauges are of what workers share."""


def families_of(registry: CollectorRegistry) -> Families:
    """As of now."""
    return [
        (each.name, each.documentation, each.type, [(s.name, s.labels, s.value) for s in each.samples])
        for each in registry.collect()
    ]


def merged_families(parts: Iterable[Families]) -> Families:
    """They are added up; of what all share the highest counts, and what began first has the time."""
    families: dict[str, tuple[str, str, dict[tuple[object, ...], tuple[dict[str, str], float]]]] = {}
    for name, meaning, kind, samples in itertools.chain.from_iterable(parts):
        _, _, known = families.setdefault(name, (meaning, kind, {}))
        for sample, labels, value in samples:
            key = (sample, *sorted(labels.items()))
            if key not in known:
                known[key] = labels, value
            elif sample.endswith("_created"):
                known[key] = labels, min(value, known[key][1])
            elif kind == "gauge" and name not in _EACH_HAS_ITS_OWN:
                known[key] = labels, max(value, known[key][1])
            else:
                known[key] = labels, value + known[key][1]
    return [
        (name, meaning, kind, [(str(key[0]), *sample) for key, sample in samples.items()])
        for name, (meaning, kind, samples) in families.items()
    ]


class _Collected(CollectorRegistry):
    def __init__(self, families: Families) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for name, meaning, kind, samples in self._families:
            metric = Metric(name, meaning, kind)
            for sample, labels, value in samples:
                metric.add_sample(sample, labels, value)
            yield metric


def exposition(families: Families) -> bytes:
    """Prometheus's text format."""
    return generate_latest(_Collected(families))
