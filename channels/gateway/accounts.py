"""What calls cost and who may make them: budgets of keys, usage records, metrics and spans.

Every call of a backend leaves one record in the log, `gateway_call`: who, which model, how long, tokens and
US dollars, never what was written. Budgets are kept by each process for itself.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, cast

import structlog
from genai_prices import Usage, calc_price
from prometheus_client import CollectorRegistry, Counter, Histogram

from channels.gateway.config import Backend, Budget, Kind
from channels.gateway.upstreams import Operation
from channels.gateway.wire import FINISHED, ApiError, ApiRequest, JsonObject, Part
from flow_engine.ports.telemetry import Tracing

log: Any = structlog.get_logger("flow_engine.gateway")

MINUTE_S: Final = 60
DAY_S: Final = 86_400

_PRICED: Final[Mapping[Kind, str]] = {"openai": "openai", "gemini": "google"}
_PROVIDER: Final[Mapping[Kind, str]] = {
    "openai": "openai",
    "gemini": "gcp.gemini",
    "vllm": "vllm",
    "ollama": "ollama",
}
"""Names by OpenTelemetry's conventions for generative AI."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

CallOutcome = Literal["ok", "failed", "cancelled"]


class Metrics:
    """Labels are names of the operator's table, statuses and kinds: few, and none of a client's choosing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "flow_engine_gateway_requests_total",
            "Requests by route, status and what the cache had.",
            ("operation", "status", "cache"),
            registry=registry,
        )
        self.calls = Counter(
            "flow_engine_gateway_calls_total",
            "Calls of backends by what became of them.",
            ("backend", "outcome"),
            registry=registry,
        )
        self.tokens = Counter(
            "flow_engine_gateway_tokens_total",
            "Tokens that backends counted, in and out.",
            ("backend", "direction"),
            registry=registry,
        )
        self.dollars = Counter(
            "flow_engine_gateway_usd_total",
            "US dollars by public prices.",
            ("backend",),
            registry=registry,
        )
        self.first_event = Histogram(
            "flow_engine_gateway_first_event_seconds",
            "Seconds from the question to the first event of the answer.",
            ("backend",),
            registry=registry,
            buckets=_SECONDS,
        )
        self.duration = Histogram(
            "flow_engine_gateway_call_seconds",
            "Seconds from the question to the end of the answer.",
            ("backend",),
            registry=registry,
            buckets=_SECONDS,
        )


@dataclass(slots=True)
class _Window:
    """What is used in the window that ends at `until`, in seconds since 1970."""

    until: int = 0
    used: float = 0.0

    def at(self, now: float, length_s: int) -> _Window:
        if now >= self.until:
            self.until, self.used = (int(now) // length_s + 1) * length_s, 0.0
        return self


class _Spent:
    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.requests, self.tokens, self.dollars = _Window(), _Window(), _Window()


class Books:
    """Budgets, metrics and spans of one gateway. `clock` gives seconds since 1970, UTC."""

    def __init__(
        self,
        budgets: Sequence[Budget],
        metrics: Metrics,
        tracing: Tracing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spent = [_Spent(budget) for budget in budgets]
        self.metrics = metrics
        self._tracing = tracing
        self._clock = clock

    def admit(self, tenant: str, key: str) -> None:
        """Count a request. Raises ApiError 429, with `Retry-After`, where a budget is used up."""
        now = self._clock()
        for spent in self._of(tenant, key):
            bounds = spent.budget
            self._refuse(
                spent.requests.at(now, MINUTE_S), bounds.requests_per_minute, now, "requests a minute"
            )
            self._refuse(spent.tokens.at(now, MINUTE_S), bounds.tokens_per_minute, now, "tokens")
            self._refuse(spent.dollars.at(now, DAY_S), bounds.usd_per_day, now, "dollars")
            spent.requests.used += 1

    @staticmethod
    def _refuse(window: _Window, bound: float | None, now: float, what: str) -> None:
        if bound is None or window.used < bound:
            return
        code = "insufficient_quota" if what == "dollars" else "rate_limit_exceeded"
        wait = max(1, int(window.until - now) + 1)
        raise ApiError(
            429,
            f"this key's {bound:g} {what} are used up for {wait} s",
            type=code,
            code=code,
            headers={"Retry-After": str(wait)},
        )

    def _of(self, tenant: str, key: str) -> list[_Spent]:
        return [s for s in self._spent if s.budget.key == key and s.budget.tenant in (None, tenant)]

    def account(self, tenant: str, key: str, request: ApiRequest, operation: Operation) -> Account:
        return Account(self, tenant, key, request, operation)

    def charge(self, account: Account, outcome: CallOutcome, error: str | None, seconds: float) -> None:
        """Write down one call of a backend, of `seconds` in all. `error` is a status or the name of an
        exception."""
        backend, read, wrote = account.backend, account.input_tokens, account.output_tokens
        assert backend is not None
        usd = _price(backend.kind, account.model, read, wrote)
        now = self._clock()
        for spent in self._of(account.tenant, account.key):
            spent.tokens.at(now, MINUTE_S).used += read + wrote
            spent.dollars.at(now, DAY_S).used += usd or 0.0
        metrics = self.metrics
        metrics.calls.labels(backend.name, outcome).inc()
        metrics.tokens.labels(backend.name, "in").inc(read)
        metrics.tokens.labels(backend.name, "out").inc(wrote)
        metrics.dollars.labels(backend.name).inc(usd or 0.0)
        metrics.duration.labels(backend.name).observe(seconds)
        log.info(
            "gateway_call",
            tenant=account.tenant,
            key=account.key,
            operation=account.operation,
            backend=backend.name,
            model=account.model,
            outcome=outcome,
            error=error,
            input_tokens=read,
            output_tokens=wrote,
            usd=usd,
            duration_ms=round(seconds * 1000),
        )
        if self._tracing.on:
            attributes: dict[str, str | int] = {
                "gen_ai.operation.name": account.operation,
                "gen_ai.provider.name": _PROVIDER[backend.kind],
                "gen_ai.request.model": account.model,
                "gen_ai.usage.input_tokens": read,
                "gen_ai.usage.output_tokens": wrote,
            }
            if error is not None:
                attributes["error.type"] = error
            name = f"{account.operation} {account.model}"
            self._tracing.finished(name, "client", seconds=seconds, attributes=attributes)


class Account:
    """Of one request that a backend is asked for."""

    def __init__(
        self, books: Books, tenant: str, key: str, request: ApiRequest, operation: Operation
    ) -> None:
        self._books = books
        self.tenant = tenant
        self.key = key
        self.operation = operation
        self.model = request.model
        self._streams = request.streams and operation == "chat"
        self.backend: Backend | None = None
        self.input_tokens = 0
        self.output_tokens = 0
        self._began = 0.0

    def began(self, backend: Backend) -> None:
        """A backend is asked; one that was asked before it has failed."""
        if self.backend is not None:
            self._books.charge(self, "failed", "passed_over", time.monotonic() - self._began)
        self.backend = backend
        self._began = time.monotonic()

    async def watched(self, parts: AsyncGenerator[Part]) -> AsyncGenerator[Part]:
        """The same parts, written down when they end. Raises ApiError as they do."""
        outcome: CallOutcome = "cancelled"
        error: str | None = None
        first = True
        try:
            async with aclosing(parts):
                async for part in parts:
                    if first and self.backend is not None:
                        first = False
                        seconds = time.monotonic() - self._began
                        self._books.metrics.first_event.labels(self.backend.name).observe(seconds)
                    self._count(part.parsed)
                    if part is FINISHED or not self._streams:
                        outcome = "ok"
                    yield part
            outcome = "ok"
        except ApiError as failed:
            outcome, error = "failed", str(failed.error.get("code") or failed.status)
            raise
        finally:
            if self.backend is not None:
                self._books.charge(self, outcome, error, time.monotonic() - self._began)

    def _count(self, parsed: JsonObject) -> None:
        usage: Any = parsed.get("usage")
        if isinstance(usage, dict):
            counted = cast("JsonObject", usage)
            self.model = str(parsed.get("model") or self.model)
            self.input_tokens = _whole_number(counted.get("prompt_tokens"))
            self.output_tokens = _whole_number(counted.get("completion_tokens"))


def _whole_number(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _price(kind: Kind, model: str, read: int, wrote: int) -> float | None:
    """In US dollars by public prices: 0 for a server of one's own, None for a model that is not listed."""
    provider = _PRICED.get(kind)
    if provider is None:
        return 0.0
    if not _is_listed(provider, model):
        return None
    return float(
        calc_price(Usage(input_tokens=read, output_tokens=wrote), model, provider_id=provider).total_price
    )


@lru_cache(maxsize=1_000)
def _is_listed(provider: str, model: str) -> bool:
    """Kept, since to find out that a model is not there takes long."""
    try:
        calc_price(Usage(), model, provider_id=provider)
    except (LookupError, ValueError):
        return False
    return True
