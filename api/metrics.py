"""Prometheus metrics of the HTTP side. Labels are routes and codes, never ids."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._requests = Counter(
            "flow_engine_http_requests_total",
            "HTTP requests by route and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "flow_engine_http_request_seconds",
            "Time from the request's arrival to its reply, in seconds.",
            ("route", "method"),
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._problems = Counter(
            "flow_engine_problems_total",
            "Problem documents sent, by their code.",
            ("code",),
            registry=self.registry,
        )

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def problem(self, code: str) -> None:
        self._problems.labels(code).inc()
