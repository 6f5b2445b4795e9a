"""What calls cost and who may make them: budgets of keys, usage records, metrics and spans.

Every call of a backend leaves a usage record and a line in the log, `gateway_call`, with the same fields:
who, which model, how long, tokens and US dollars, never what was written. Requests and tokens a minute are
counted by each process for itself, a day's dollars by all that share the usage records. Tokens are those that
backends have counted; a call that is cancelled or fails mostly has none.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Histogram

from adapters.models.prices import price_at
from channels.gateway import config, database, upstreams
from channels.gateway.usage import DAY_S, UsageRecord, UsageRecords
from channels.gateway.wire import FINISHED, ApiError, ApiRequest, Part, object_of, whole_number
from flow_engine.ports.telemetry import Tracing

MINUTE_S: Final = 60
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_PRICED: Final[Mapping[config.Kind, str]] = {"openai": "openai", "gemini": "google"}
_PROVIDER: Final[Mapping[config.Kind, str]] = {
    "openai": "openai",
    "gemini": "gcp.gemini",
    "vllm": "vllm",
    "ollama": "ollama",
}
"""Names by OpenTelemetry's conventions for generative AI."""

_DURATIONS = tuple(0.01 * 2**step for step in range(14))
_TOKENS = tuple(float(4**step) for step in range(14))
"""Buckets by the same conventions."""

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
        common = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        self.duration = Histogram(
            "gen_ai_client_operation_duration_seconds",
            "Seconds from the question to the end of the answer, by OpenTelemetry's conventions.",
            (*common, "error_type"),
            registry=registry,
            buckets=_DURATIONS,
        )
        self.usage = Histogram(
            "gen_ai_client_token_usage",
            "Tokens of a call, in and out, by OpenTelemetry's conventions.",
            (*common, "gen_ai_token_type"),
            registry=registry,
            buckets=_TOKENS,
        )


@dataclass(slots=True)
class _Window:
    """What is used in the minute that ends at `until`, in seconds since 1970."""

    until: int = 0
    used: float = 0.0

    def at(self, now: float) -> _Window:
        if not self.until - MINUTE_S <= now < self.until:  # a clock that was put back begins one, too
            self.until, self.used = (int(now) // MINUTE_S + 1) * MINUTE_S, 0.0
        return self


class _Spent:
    def __init__(self, budget: config.Budget) -> None:
        self.budget = budget
        self.requests, self.tokens = _Window(), _Window()


class Books:
    """Budgets, usage records, metrics and spans of one gateway. `clock` gives seconds since 1970, UTC."""

    def __init__(
        self,
        budgets: Sequence[config.Budget],
        usage: UsageRecords,
        metrics: Metrics,
        tracing: Tracing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spent = [_Spent(budget) for budget in budgets]
        self._usage = usage
        self.metrics = metrics
        self._tracing = tracing
        self._clock = clock

    def admit(self, tenant: str, key: str) -> None:
        """Count a request. Raises ApiError 429, with `Retry-After` in seconds, where a budget is used up."""
        now = self._clock()
        mine = self._of(tenant, key)
        for spent in mine:
            bounds = spent.budget
            requests, tokens = spent.requests.at(now), spent.tokens.at(now)
            self._refuse(requests.used, bounds.requests_per_minute, requests.until - now, "requests a minute")
            self._refuse(tokens.used, bounds.tokens_per_minute, tokens.until - now, "tokens a minute")
            if bounds.usd_per_day is not None:
                used = self._usage.spent_today(bounds.tenant, key)
                self._refuse(used, bounds.usd_per_day, DAY_S - now % DAY_S, "dollars a day")
        for spent in mine:
            spent.requests.used += 1

    @staticmethod
    def _refuse(used: float, bound: float | None, left_s: float, what: str) -> None:
        if bound is None or used < bound:
            return
        code = "insufficient_quota" if what == "dollars a day" else "rate_limit_exceeded"
        wait = max(1, int(left_s) + 1)
        raise ApiError(
            429,
            f"this key's {bound:g} {what} are used up for {wait} s",
            type=code,
            code=code,
            headers={"Retry-After": str(wait)},
        )

    def _of(self, tenant: str, key: str) -> list[_Spent]:
        return [s for s in self._spent if s.budget.key == key and s.budget.tenant in (None, tenant)]

    def charge(
        self,
        account: Account,
        backend: config.Backend,
        outcome: CallOutcome,
        error: str | None,
        seconds: float,
    ) -> None:
        """Write down one call of a backend, of `seconds` in all. `error` is a status or a code."""
        counted = account.counted
        now = self._clock()
        first_ms = None if account.first_s is None else round(account.first_s * 1000)
        record = UsageRecord(
            now,
            account.tenant,
            account.key,
            account.operation,
            backend.name,
            account.answered_by or account.model,
            outcome,
            error,
            counted.read,
            counted.wrote,
            _price(backend.kind, (account.answered_by, account.model), counted),
            first_ms,
            round(seconds * 1000),
        )
        self._usage.add(record)
        for spent in self._of(account.tenant, account.key):
            spent.tokens.at(now).used += counted.read + counted.wrote
        database.log.info(
            "gateway_call", **{name: value for name, value in asdict(record).items() if name != "at"}
        )
        self._observe(account, backend, record, seconds)
        if self._tracing.on:
            name = f"{account.operation} {account.model}"
            attributes = _attributes(account, backend, record)
            self._tracing.finished(name, "client", seconds=seconds, attributes=attributes)

    def _observe(
        self, account: Account, backend: config.Backend, record: UsageRecord, seconds: float
    ) -> None:
        metrics, counted = self.metrics, account.counted
        metrics.calls.labels(backend.name, record.outcome).inc()
        metrics.dollars.labels(backend.name).inc(record.usd or 0.0)
        if account.first_s is not None:
            metrics.first_event.labels(backend.name).observe(account.first_s)
        common = (account.operation, _PROVIDER[backend.kind], account.model)
        metrics.duration.labels(*common, record.error or "").observe(seconds)
        for direction, kind, tokens in (("in", "input", counted.read), ("out", "output", counted.wrote)):
            if tokens:
                metrics.tokens.labels(backend.name, direction).inc(tokens)
                metrics.usage.labels(*common, kind).observe(tokens)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Tokens; `cached` of those that were read came from the backend's own cache."""

    read: int = 0
    wrote: int = 0
    cached: int = 0


def _attributes(
    account: Account, backend: config.Backend, record: UsageRecord
) -> dict[str, str | int | float]:
    """Of a span, by OpenTelemetry's conventions for generative AI."""
    address = urlsplit(backend.url)
    found: dict[str, str | int | float] = {
        "gen_ai.operation.name": account.operation,
        "gen_ai.provider.name": _PROVIDER[backend.kind],
        "gen_ai.request.model": account.model,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "server.address": address.hostname or "",
        "server.port": address.port or (443 if address.scheme == "https" else 80),
    }
    for name in ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty"):
        value = account.body.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[f"gen_ai.request.{name}"] = value
    if account.answered_by:
        found["gen_ai.response.model"] = account.answered_by
    if account.answer_id:
        found["gen_ai.response.id"] = account.answer_id
    if record.error is not None:
        found["error.type"] = record.error
    return found


class Account:
    """Of one request that a backend is asked for. `model` is the resolved one, `answered_by` the one that the
    answer names; `first_s` is how long the first event took, in seconds."""

    def __init__(
        self,
        books: Books,
        tenant: str,
        key: str,
        request: ApiRequest,
        model: str,
        operation: upstreams.Operation,
    ) -> None:
        self._books = books
        self.tenant = tenant
        self.key = key
        self.operation = operation
        self.model = model
        self.body = request.body
        self._streams = request.streams and operation == "chat"
        self._backend: config.Backend | None = None
        self._began = 0.0
        self.first_s: float | None = None
        self.answered_by = ""
        self.answer_id = ""
        self.counted = _Counted()

    def began(self, backend: config.Backend, failure: ApiError | None) -> None:
        """A request goes to a backend; the one before it has failed, with `failure`."""
        if self._backend is not None:
            self._charge("failed", failure)
        self._backend = backend
        self._began = time.monotonic()

    def _charge(self, outcome: CallOutcome, failure: ApiError | None) -> None:
        if self._backend is not None:
            error = None if failure is None else _kind(failure)
            self._books.charge(self, self._backend, outcome, error, time.monotonic() - self._began)

    async def watched(self, parts: AsyncGenerator[Part]) -> AsyncGenerator[Part]:
        """The same parts, written down when they end. Raises ApiError as they do."""
        outcome: CallOutcome = "cancelled"
        failure: ApiError | None = None
        try:
            async with aclosing(parts):
                async for part in parts:
                    if self.first_s is None:
                        self.first_s = time.monotonic() - self._began
                        self.answer_id = _text(part.parsed.get("id"))
                    if part.parsed.get("usage"):
                        match part.parsed:
                            case {"usage": {"prompt_tokens_details": {"cached_tokens": cached}}}:
                                pass
                            case _:
                                cached = 0
                        usage = object_of(part.parsed["usage"])
                        self.answered_by = _text(part.parsed.get("model"))
                        read, wrote = (
                            whole_number(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")
                        )
                        self.counted = _Counted(read, wrote, min(whole_number(cached), read))
                    if part is FINISHED or not self._streams:
                        outcome = "ok"
                    yield part
            outcome = "ok"
        except ApiError as failed:
            outcome, failure = "failed", failed
            raise
        finally:
            self._charge(outcome, failure)


def _kind(failure: ApiError) -> str:
    """Its code, else its status: what a backend writes there may be anybody's words."""
    code = str(failure.error.get("code") or "")
    return code if _CODE.fullmatch(code) else str(failure.status)


def _text(value: Any) -> str:
    """As a database can hold it: without lone surrogates."""
    return str(value or "").encode("utf-8", "replace").decode()


def _price(kind: config.Kind, models: Sequence[str], counted: _Counted) -> float | None:
    """In US dollars by public prices, of the first of `models` that has one: 0 for a server of one's own,
    None where none is listed."""
    provider = _PRICED.get(kind)
    if provider is None:
        return 0.0
    prices = (
        price_at(provider, model, counted.read, counted.wrote, counted.cached) for model in models if model
    )
    return next((each for each in prices if each is not None), None)
