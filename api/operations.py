"""Routes for operators: health and metrics, which need no key; and behind one stores, jobs, dead letters,
events, model calls, latency of routes."""

from asyncio import gather
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response
from typing_extensions import TypedDict

from api.endpoints import Call, Endpoint, Parameter, for_watchers, json_response, whole
from flow_engine.errors import CallTheOperator, FlowEngineError, RetryLater
from flow_engine.use_cases import operating

ROWS, ROWS_AT_MOST = 50, 200
SECONDS, REQUESTS = "flow_engine_http_request_seconds", "flow_engine_http_requests"

log: Any = structlog.get_logger("flow_engine.http")

Probe = Callable[[], Awaitable[None]]


class Health(TypedDict):
    status: str


class Readiness(TypedDict):
    """`checks` tells of every store `ok` or why it is not."""

    status: str
    checks: Mapping[str, str]


async def verdicts(probes: Mapping[str, Probe]) -> Mapping[str, FlowEngineError | None]:
    """By the name of what was asked, why it is not ready; None where it is."""
    found: dict[str, FlowEngineError | None] = {}
    for name, probe in probes.items():
        try:
            await probe()
            found[name] = None
        except FlowEngineError as error:
            found[name] = error
    return found


class StoreRow(TypedDict):
    """`status` is `ok` or `unavailable`; `detail` why."""

    name: str
    status: str
    detail: str | None


class OperationsReply(TypedDict):
    release: str
    stores: Sequence[StoreRow]
    processes: Sequence[operating.ProcessRow]
    backlog: operating.BacklogReply | None


class RouteLatency(TypedDict):
    """Times in milliseconds, estimated within the buckets of the histogram; null without a request. `errors`
    are replies of 500 and above."""

    method: str
    route: str
    requests: int
    errors: int
    meanMs: float | None
    p50Ms: float | None
    p95Ms: float | None
    p99Ms: float | None


class LatencyReply(TypedDict):
    """Of every route that was asked for, since this service started; the busiest first."""

    routes: Sequence[RouteLatency]


class OperationsRoutes:
    """`probes` by the name of what they ask; one raises a FlowEngineError while its store is not ready.
    `scrape` gives the metrics in Prometheus's text format."""

    def __init__(
        self,
        operations: operating.Operations,
        probes: Mapping[str, Probe],
        scrape: Callable[[], Awaitable[bytes]],
        release: str,
    ) -> None:
        self._operations = operations
        self._probes = dict(probes)
        self._scrape = scrape
        self._release = release

    async def alive(self, call: Call) -> Response:
        return json_response(Health(status="ok"))

    async def ready(self, call: Call) -> Response:
        """503 while a store is not ready, and the log says why. `Retry-After` is 1 second."""
        found = await verdicts(self._probes)
        wrong = {name: verdict for name, verdict in found.items() if verdict is not None}
        checks = {name: verdict.detail if verdict else "ok" for name, verdict in found.items()}
        if not wrong:
            return json_response(Readiness(status="ok", checks=checks))
        reasons = {name: verdict.reason for name, verdict in wrong.items() if verdict.reason}
        log.warning("not_ready", **{name: checks[name] for name in wrong}, reasons=reasons)
        return json_response(Readiness(status="unavailable", checks=checks), 503, {"Retry-After": "1"})

    async def metrics(self, call: Call) -> Response:
        return Response(await self._scrape(), media_type=CONTENT_TYPE_LATEST)

    async def overview(self, call: Call) -> Response:
        """200 also while a store is away: what it would have told is left out."""
        found, (processes, backlog) = await gather(verdicts(self._probes), self._at_work())
        stores = [
            StoreRow(
                name=name,
                status="ok" if verdict is None else "unavailable",
                detail=None if verdict is None else verdict.detail,
            )
            for name, verdict in found.items()
        ]
        return json_response(
            OperationsReply(release=self._release, stores=stores, processes=processes, backlog=backlog)
        )

    async def _at_work(self) -> tuple[Sequence[operating.ProcessRow], operating.BacklogReply | None]:
        """A store that takes no write may tell of them all the same."""
        try:
            return await self._operations.processes(), await self._operations.backlog()
        except (RetryLater, CallTheOperator):
            return [], None

    async def latency(self, call: Call) -> Response:
        return json_response(LatencyReply(routes=route_latencies((await self._scrape()).decode())))

    async def jobs(self, call: Call) -> Response:
        return json_response(await self._operations.jobs(call.tenant_id, limit=page_limit(call)))

    async def dead_letters(self, call: Call) -> Response:
        return json_response(await self._operations.dead_letters(call.tenant_id, limit=page_limit(call)))

    async def replay(self, call: Call) -> Response:
        return json_response(await self._operations.replay(call.tenant_id, call.path("letter_id")))

    async def events(self, call: Call) -> Response:
        before = call.query("before")
        return json_response(await self._operations.events(call.tenant_id, before, limit=page_limit(call)))

    async def model_calls(self, call: Call) -> Response:
        before = call.query("before")
        return json_response(
            await self._operations.model_calls(call.tenant_id, before, limit=page_limit(call))
        )

    async def live(self, call: Call) -> Response:
        return json_response(await self._operations.live(call.tenant_id))

    def endpoints(self) -> list[Endpoint]:
        return [
            *self._open_to_all(),
            for_watchers(
                "GET /operations",
                self.overview,
                "Stores, processes and what waits to be done",
                OperationsReply,
            ),
            for_watchers("GET /operations/latency", self.latency, "How long each route takes", LatencyReply),
            *self._of_work(),
            for_watchers(
                "GET /live-conversations",
                self.live,
                "How many conversations are not closed, by version",
                operating.LiveReply,
                scopes=("operator", "designer"),
            ),
        ]

    def _of_work(self) -> list[Endpoint]:
        return [
            for_watchers(
                "GET /jobs",
                self.jobs,
                "Background jobs, the first to be due first",
                operating.JobsReply,
                parameters=(LIMIT,),
            ),
            for_watchers(
                "GET /dead-letters",
                self.dead_letters,
                "Jobs that were given up, the latest first",
                operating.LettersReply,
                parameters=(LIMIT,),
            ),
            for_watchers(
                "POST /dead-letters/{letter_id}/replay",
                self.replay,
                "Have a job that was given up done again",
                operating.LetterReplayed,
                problems=(404,),
            ),
            for_watchers(
                "GET /events",
                self.events,
                "Events of the reporting stream, the newest first",
                operating.EventsReply,
                parameters=(_BEFORE_ENTRY, LIMIT),
            ),
            for_watchers(
                "GET /model-calls",
                self.model_calls,
                "Calls of language models, the newest first, with what they cost",
                operating.ModelCallsReply,
                parameters=(_BEFORE_ENTRY, LIMIT),
            ),
        ]

    def _open_to_all(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET /health/live", self.alive, "The process answers", Health, audience="operators", scopes=()
            ),
            Endpoint(
                "GET /health/ready",
                self.ready,
                "Every store that requests need answers",
                Readiness,
                audience="operators",
                scopes=(),
                problems=(503,),
            ),
            Endpoint(
                "GET /metrics",
                self.metrics,
                "Prometheus metrics",
                str,
                audience="operators",
                scopes=(),
                media_types=("text/plain",),
                problems=(503,),
            ),
        ]


BEFORE = Parameter("before", "The 'nextBefore' of the page before")
_BEFORE_ENTRY = replace(BEFORE, check=operating.check_before)
LIMIT = Parameter("limit", f"Rows of a page, {ROWS} if not given", whole(1, ROWS_AT_MOST))


def page_limit(call: Call) -> int:
    return call.limit(ROWS, at_most=ROWS_AT_MOST)


def route_latencies(scraped: str) -> Sequence[RouteLatency]:
    """Of metrics in Prometheus's text format, the busiest routes first. Milliseconds."""
    buckets: dict[tuple[str, str], list[tuple[float, float]]] = {}
    seconds: dict[tuple[str, str], float] = {}
    errors: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(scraped):
        if family.name not in (SECONDS, REQUESTS):
            continue
        for sample in family.samples:
            of = sample.labels["method"], sample.labels["route"]
            if sample.name == f"{SECONDS}_bucket":
                buckets.setdefault(of, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name == f"{SECONDS}_sum":
                seconds[of] = sample.value
            elif sample.name == f"{REQUESTS}_total" and sample.labels["status"] >= "500":
                errors[of] = errors.get(of, 0) + sample.value
    rows: list[RouteLatency] = []
    for (method, route), counted in buckets.items():
        counted.sort()
        requests = counted[-1][1]
        p50, p95, p99 = (quantile_ms(counted, share) for share in (0.5, 0.95, 0.99))
        rows.append(
            RouteLatency(
                method=method,
                route=route,
                requests=int(requests),
                errors=int(errors.get((method, route), 0)),
                meanMs=round(seconds[method, route] / requests * 1000, 2) if requests else None,
                p50Ms=p50,
                p95Ms=p95,
                p99Ms=p99,
            )
        )
    return sorted(rows, key=lambda row: (-row["requests"], row["route"], row["method"]))


def quantile_ms(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """What `share` of the requests lies below, in milliseconds. `buckets`: an upper end in seconds with the
    number of requests up to there. At most the last end that is finite; None without requests."""
    total = buckets[-1][1]
    if not total:
        return None
    lower = below = 0.0
    for upper, count in buckets:
        if count >= share * total:
            if upper == float("inf"):
                break
            return round((lower + (upper - lower) * (share * total - below) / (count - below)) * 1000, 2)
        lower, below = upper, count
    return round(lower * 1000, 2)
