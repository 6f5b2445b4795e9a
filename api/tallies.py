"""Prometheus's counters and histograms, for what every request counts: a count is an addition, and the locks
that each of them takes at every count are taken when a scrape asks. What a scrape gets is the same."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample


class TalliedCounter(Counter):
    """`tally` is what no scrape has asked for yet: who counts all day adds to it, or is asked at every scrape
    how far it has counted."""

    tally = 0.0
    _ask: Callable[[], float] | None = None
    _heard = 0.0

    def asks(self, counted: Callable[[], float]) -> None:
        self._ask = counted

    def inc(self, amount: float = 1, exemplar: Any = None) -> None:
        if amount < 0:
            raise ValueError("counters only grow")
        self.tally += amount

    def _child_samples(self) -> Iterable[Sample]:
        tally, self.tally = self.tally, 0.0
        if self._ask is not None:
            heard, self._heard = self._heard, self._ask()
            tally += self._heard - heard
        super().inc(tally)
        return super()._child_samples()


class TalliedHistogram(Histogram):
    def _metric_init(self) -> None:
        super()._metric_init()
        self._tallies = [0] * len(self._upper_bounds)
        self._tally = 0.0

    def observe(self, amount: float, exemplar: Any = None) -> None:
        self._tallies[bisect_left(self._upper_bounds, amount)] += 1
        self._tally += amount

    def _child_samples(self) -> Iterable[Sample]:
        for place, tally in enumerate(self._tallies):
            self._buckets[place].inc(tally)
        self._sum.inc(self._tally)
        self._tallies, self._tally = [0] * len(self._tallies), 0.0
        return super()._child_samples()
