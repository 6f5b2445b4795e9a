"""Which backend is asked, and which one instead: weights, fallbacks, and a breaker for each backend.

1. A model's backends are those of the table that name it, with a weight above 0; one is drawn by weight.
2. Before the first event of an answer, a failure that is passing goes on to the backend's `fallbacks`, in
   order, which are asked for the same model. After the first event nothing is tried again.
3. A backend that fails `failures` times in a row (refused, silent, 5xx) is left alone for `OPEN_S` seconds;
   then one request tries it.
"""

import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from channels.gateway import config, upstreams, wire

OPEN_S = 5.0


class Breaker:
    """Of one backend. Times are seconds of `clock`."""

    def __init__(self, failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._clock = clock
        self._in_a_row = 0
        self._until = 0.0

    def wait_s(self) -> float:
        """For how long, in seconds, the backend is left alone; 0 when it may be asked. Whoever gets the first
        0 after that time is to try it, and the others wait for `OPEN_S` more."""
        now = self._clock()
        if now < self._until:
            return self._until - now
        if self._in_a_row >= self._failures:
            self._until = now + OPEN_S
        return 0.0

    def worked(self) -> None:
        self._in_a_row, self._until = 0, 0.0

    def failed(self) -> None:
        self._in_a_row += 1
        if self._in_a_row >= self._failures:
            self._until = self._clock() + OPEN_S


@dataclass(frozen=True, slots=True)
class Server:
    """A backend with all that it takes to ask it."""

    backend: config.Backend
    upstream: upstreams.Upstream
    breaker: Breaker


@dataclass(frozen=True, slots=True)
class Route:
    """Where one request goes: the server drawn first, then those to fall back on. `model` is the resolved
    name, which all of them are asked for."""

    model: str
    servers: tuple[Server, ...]


class Routing:
    """The table of backends. `draw` gives a number from 0 to 1 (1 excluded)."""

    def __init__(self, servers: Sequence[Server], draw: Callable[[], float] = random.random) -> None:
        self._servers: Mapping[str, Server] = {server.backend.name: server for server in servers}
        self._draw = draw

    def models(self) -> dict[str, str]:
        """The backend of each model that clients may name, aliases included."""
        found: dict[str, str] = {}
        for server in self._servers.values():
            if server.backend.weight:
                for name in (*server.backend.models, *server.backend.aliases):
                    found.setdefault(name, server.backend.name)
        return found

    def route(self, request: wire.ApiRequest, operation: upstreams.Operation) -> Route:
        """Raises ApiError: 404 `model_not_found`, 400 `unsupported` for what the backend cannot do."""
        able = [s for s in self._servers.values() if s.backend.weight and s.backend.resolved(request.model)]
        if not able:
            known = ", ".join(self.models()) or "none"
            raise wire.ApiError(
                404,
                f"the model {request.model!r} does not exist here; there are: {known}",
                param="model",
                code="model_not_found",
            )
        first = self._drawn(able)
        first.upstream.check(request, operation)
        others = [self._servers[name] for name in first.backend.fallbacks]
        return Route(first.backend.resolved(request.model) or request.model, (first, *others))

    def _drawn(self, servers: Sequence[Server]) -> Server:
        left = self._draw() * sum(server.backend.weight for server in servers)
        for server in servers:
            left -= server.backend.weight
            if left < 0:
                return server
        return servers[-1]


async def asked(
    route: Route,
    request: wire.ApiRequest,
    operation: upstreams.Operation,
    began: Callable[[config.Backend, wire.ApiError | None], None],
) -> AsyncGenerator[wire.Part]:
    """The answer of the first server that gives one. `began` is called for each that is asked, with what
    the one before it has failed with.

    Raises ApiError: what the last of them failed with. A fallback that cannot do what is asked is passed
    over.
    """
    failure: wire.ApiError | None = None
    for server in route.servers:
        try:
            if (wait := server.breaker.wait_s()) > 0:
                headers = {"Retry-After": str(int(wait) + 1)}
                message = f"backend {server.backend.name!r} is left alone after many failures"
                raise wire.UpstreamFailed(
                    503, message, type="upstream_error", code="upstream_down", headers=headers
                )
            server.upstream.check(request, operation)
        except wire.ApiError as refused:
            failure = failure or refused
            continue
        began(server.backend, failure)
        any_yet = False
        try:
            async with aclosing(server.upstream.ask(request, route.model, operation)) as parts:
                async for part in parts:
                    if not any_yet:
                        any_yet = True
                        server.breaker.worked()
                    yield part
            return
        except wire.UpstreamFailed as failed:
            if failed.broken:
                server.breaker.failed()
            else:
                server.breaker.worked()
            if any_yet or not failed.passing:
                raise
            failure = failed
    assert failure is not None
    raise failure
