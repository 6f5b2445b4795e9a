"""Routes for operators: health and metrics. They need no key."""

from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response
from typing_extensions import TypedDict

from api.endpoints import Call, Endpoint, json_response
from flow_engine.errors import FlowEngineError

Probe = Callable[[], Awaitable[None]]


class Health(TypedDict):
    status: str


class Readiness(TypedDict):
    """`checks` tells of every store `ok` or why it is not."""

    status: str
    checks: Mapping[str, str]


async def verdicts(probes: Mapping[str, Probe]) -> Mapping[str, str | None]:
    """By the name of what was asked, why it is not ready; None where it is."""
    found: dict[str, str | None] = {}
    for name, probe in probes.items():
        try:
            await probe()
            found[name] = None
        except FlowEngineError as error:
            found[name] = error.detail
    return found


class OperatorRoutes:
    """`probes` by the name of what they ask; one raises a FlowEngineError while its store is not ready.
    `scrape` gives the metrics in Prometheus's text format."""

    def __init__(self, probes: Mapping[str, Probe], scrape: Callable[[], Awaitable[bytes]]) -> None:
        self._probes = dict(probes)
        self._scrape = scrape

    async def live(self, call: Call) -> Response:
        return json_response(Health(status="ok"))

    async def ready(self, call: Call) -> Response:
        """503 while a store is not ready. `Retry-After` is 1 second."""
        checks = {name: verdict or "ok" for name, verdict in (await verdicts(self._probes)).items()}
        ready = all(verdict == "ok" for verdict in checks.values())
        reply = Readiness(status="ok" if ready else "unavailable", checks=checks)
        return json_response(reply, 200 if ready else 503, None if ready else {"Retry-After": "1"})

    async def metrics(self, call: Call) -> Response:
        return Response(await self._scrape(), media_type=CONTENT_TYPE_LATEST)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET /health/live", self.live, "The process answers", Health, audience="operators", scopes=()
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
            ),
        ]
