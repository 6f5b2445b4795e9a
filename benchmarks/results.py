"""What a run finds out, as plain records."""

from __future__ import annotations

from dataclasses import dataclass


class MeasurementFailed(RuntimeError):
    """The service did not do what the measurement is about, so its numbers would mean nothing."""


BUDGET_MARGIN = 1.2
"""A budget is missed beyond this, the noise of a busy machine."""


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """`measured` is the most that any repetition took; `goal` None: told, not judged."""

    call: str
    measured: int
    goal: int | None
    commands: tuple[str, ...]

    @property
    def met(self) -> bool:
        return self.goal is None or self.measured <= self.goal


@dataclass(frozen=True, slots=True)
class Rate:
    """One kind of request under load in a scene. `loops` is the CPU of a request in loops of `budgets.py`; a
    `budget` of None is told, not judged. `per_core` is what one core would do if nothing else used it:
    the inverse of the service's CPU time a request."""

    scene: str
    scenario: str
    tasks: int
    requests: int
    per_second: float
    per_core: float
    p50_ms: float
    p99_ms: float
    service_cpu_us: float
    redis_cpu_us: float
    client_share: float
    service_share: float
    rss_mb: float
    loops: float
    budget: float | None = None

    @property
    def label(self) -> str:
        return f"{self.scene}, {self.tasks} tasks: {self.scenario}"

    @property
    def met(self) -> bool:
        return self.budget is None or self.loops <= self.budget * BUDGET_MARGIN


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `at_most` None: told, not judged."""

    name: str
    value: float
    unit: str
    at_most: float | None = None

    @property
    def met(self) -> bool:
        return self.at_most is None or self.value <= self.at_most


@dataclass(frozen=True, slots=True)
class Results:
    """`setting` says on what and how it was measured."""

    setting: dict[str, str]
    round_trips: tuple[RoundTrips, ...] = ()
    rates: tuple[Rate, ...] = ()
    figures: tuple[Figure, ...] = ()

    @property
    def missed(self) -> list[str]:
        return [
            *(row.call for row in self.round_trips if not row.met),
            *(row.label for row in self.rates if not row.met),
            *(row.name for row in self.figures if not row.met),
        ]
