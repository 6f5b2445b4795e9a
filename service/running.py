"""Run the service, in this process or in several, or its background work alone, until SIGINT or SIGTERM."""

import asyncio
import gc
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Final

import structlog
import typer
import uvicorn
import uvloop
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, start_http_server

from adapters import http_door, http_whole, jobs, telemetry
from api.auth import LOCAL
from flow_engine.errors import FlowEngineError
from flow_engine.ports.telemetry import Tracing
from service import background, logs, supervisor, wiring
from service.serving import announce, collect_seldom, end_in_order_at_a_hangup, run_until_stopped
from service.settings import Settings, refusal_line

FINISHED_WITHIN_S: Final = 10
"""So long may requests go on when their process stops; then they are cut off, also where nobody reads the
reply."""

log: Any = structlog.get_logger("flow_engine.service")


def serve_until_stopped(settings: Settings, host: str, port: int) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start, or the port
    is not free. Prints its URL on standard error."""

    async def serve(tracing: Tracing) -> None:
        service = wiring.build_service(settings, host=host, port=port, tracing=tracing)
        async with opened(service, settings) as app:
            listening = http_door.listen(host, port)
            _announce(host, port)
            await _Server(server_config(app), service.end_streams).serve([listening])

    run_until_stopped(settings, serve)


def serve_by_workers(settings: Settings, host: str, port: int, workers: int) -> int:
    """The exit status, after SIGINT or SIGTERM. They need a Redis that they share. Raises CallTheOperator
    `address_not_free`; what else forbids to start ends the first worker, and with it this."""
    # A socket that is shared would split the requests of whoever serves there.
    http_door.listen(host, port).close()
    logs.configure_logging(settings.log_level)

    def serve(listening: socket.socket, channel: Connection) -> None:
        try:
            _serve_as_worker(settings, (host, port), listening, supervisor.ChannelEnd(channel))
        except FlowEngineError as refused:
            typer.echo(refusal_line(refused), err=True)
            raise SystemExit(2) from None

    gc.collect()
    gc.freeze()  # the workers share what lives now, as long as no collection touches it
    return supervisor.Supervisor(
        workers,
        partial(http_door.listen, host, port, shared=True),
        serve,
        all_ready=lambda: _announce(host, port, f" with {workers} workers"),
    ).run()


def serve_mcp_until_input_ends(settings: Settings) -> None:
    """MCP over the standard streams, for whoever started it: everything is allowed. Raises FlowEngineError
    when the set-up forbids to start. Logs go to standard error, one JSON object a line."""
    logs.configure_logging(settings.log_level, to=logs.StandardError)

    async def serve() -> None:
        service = wiring.build_service(settings, host="127.0.0.1", port=8080, kind="mcp")
        async with service.opened():
            await service.mcp.serve_standard_streams(LOCAL)

    with suppress(KeyboardInterrupt):
        uvloop.run(serve())


def _serve_as_worker(
    settings: Settings, address: tuple[str, int], listening: socket.socket, channel: supervisor.ChannelEnd
) -> None:
    host, port = address
    with telemetry.tracing_to(settings.traces) as tracing:
        logs.configure_logging(settings.log_level, tracing)

        async def serve() -> None:
            service = wiring.build_service(
                settings, host=host, port=port, tracing=tracing, scrape=channel.merged
            )
            async with opened(service, settings) as app:
                server = _WorkerServer(server_config(app), service.end_streams)
                registry = service.metrics.registry
                try:
                    await server.serve_beside_others(
                        listening, lambda: channel.open(registry, leave=server.leave, stop=server.stop)
                    )
                finally:
                    channel.close(registry)

        with suppress(KeyboardInterrupt):  # SIGTERM before it served
            uvloop.run(serve())


class _Server(uvicorn.Server):
    """What would go on for ever ends before it waits for the rest."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


class _WorkerServer(_Server):
    """One of several on a port: on SIGTERM its requests have FINISHED_WITHIN_S seconds, whatever follows."""

    _when_started: Callable[[], None]
    _leaves_by = 0.0

    async def serve_beside_others(self, listening: socket.socket, when_started: Callable[[], None]) -> None:
        self._when_started = when_started
        await self.serve([listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._when_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop()

    def stop(self) -> None:
        self.should_exit = True

    def leave(self) -> None:
        """Take no new connection, close each kept one with its next reply, and stop when none is left. Idle
        ones end by the time limit that they have anyway: closed now, they might lose a request under way."""
        self._end_streams()
        for server in self.servers:
            server.close()
        closing = [(b"connection", b"close")]
        self.config.encoded_headers += closing  # from these uvicorn makes the others, once a second
        self.server_state.default_headers = [*self.server_state.default_headers, *closing]
        self._leaves_by = time.monotonic() + FINISHED_WITHIN_S

    async def on_tick(self, counter: int) -> bool:
        left_by_all = not self.server_state.connections or time.monotonic() >= self._leaves_by
        return (self._leaves_by > 0 and left_by_all) or await super().on_tick(counter)


@asynccontextmanager
async def opened(service: wiring.Service, settings: Settings) -> AsyncGenerator[FastAPI]:
    """The service's application while its stores are open and its background work goes on."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(service.opened())
        if settings.works_in_serve:
            for runner in service.jobs:
                taking = await stack.enter_async_context(jobs.Worker(runner).running())
                taking.add_done_callback(_report)
        service.app.openapi()  # kept from now on: made during a request it would hold up the others
        collect_seldom()
        yield service.app


def server_config(app: FastAPI, **more: Any) -> uvicorn.Config:
    door = http_whole.WholeRequests
    return http_door.door_config(app, door=door, ends_within_s=FINISHED_WITHIN_S, **more)


def _announce(host: str, port: int, how: str = "") -> None:
    announce(
        f"Flow Engine on {http_door.origin(host, port)}{how} "
        "(console: /console, API reference: /docs). Ctrl-C stops it."
    )


def _report(taking: asyncio.Task[None]) -> None:
    """Requests are answered all the same; what they leave to do is kept, for the next start."""
    if not taking.cancelled():
        log.critical("background_work_stopped", exc_info=taking.exception())


def _serve_metrics(host: str, port: int, registry: CollectorRegistry) -> None:
    """In a thread of its own. Raises CallTheOperator `address_not_free`."""
    try:
        start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        raise http_door.address_not_free(host, port, error) from error


def work_until_stopped(settings: Settings, metrics_port: int | None) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start."""
    end_in_order_at_a_hangup()
    with telemetry.tracing_to(settings.traces) as tracing:
        logs.configure_logging(settings.log_level, tracing)
        uvloop.run(_work(settings, metrics_port, tracing))


async def _work(settings: Settings, metrics_port: int | None, tracing: Tracing) -> None:
    service = wiring.build_service(settings, host="127.0.0.1", port=8080, kind="worker", tracing=tracing)
    background.check_workable(settings)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(service.opened())
        working = [await stack.enter_async_context(jobs.Worker(runner).running()) for runner in service.jobs]
        port = metrics_port or settings.worker_metrics_port
        if port is not None:
            _serve_metrics(settings.worker_metrics_host, port, service.metrics.registry)
        collect_seldom()
        announce("Flow Engine's worker runs. Ctrl-C stops it.")
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({*working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for ended in working:
            if ended.done():
                ended.result()
