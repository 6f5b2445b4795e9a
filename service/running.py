"""Run the service, or its background work alone, in this process until SIGINT or SIGTERM."""

import asyncio
import gc
import signal
from contextlib import AsyncExitStack
from typing import Any, cast

import structlog
import typer
import uvicorn
import uvloop
from prometheus_client import start_http_server

from adapters.http_door import Door, origin
from adapters.jobs import Worker
from adapters.telemetry import tracing_to
from flow_engine.ports.telemetry import Tracing
from service.background import check_workable
from service.logs import configure_logging
from service.settings import Settings
from service.wiring import build_service

log: Any = structlog.get_logger("flow_engine.service")


def serve_until_stopped(settings: Settings, host: str, port: int) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start. Prints its
    URL on standard error."""
    # uvicorn passes a signal on when it has shut down: SIGTERM's own default would end the process there,
    # before jobs are given back and traces sent.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tracing_to(settings.traces) as tracing:
        configure_logging(settings.log_level, tracing)
        try:
            uvloop.run(_serve(settings, host, port, tracing))
        except KeyboardInterrupt:  # uvicorn has shut down in order before it passes the signal on
            return


async def _serve(settings: Settings, host: str, port: int, tracing: Tracing) -> None:
    service = build_service(settings, host=host, port=port, tracing=tracing)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(service.opened())
        if settings.works_in_serve:
            for runner in service.jobs:
                taking = await stack.enter_async_context(Worker(runner).running())
                taking.add_done_callback(_report)
        service.app.openapi()  # kept from now on: made during a request it would hold up the others
        # Fewer and later collections: what lives now stays, and requests make few cycles.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)
        config = uvicorn.Config(
            service.app,
            host=host,
            port=port,
            http=cast("type[asyncio.Protocol]", Door),
            ws="none",
            lifespan="off",
            access_log=False,
            proxy_headers=False,  # nothing here depends on who forwarded a request
            log_config=None,
        )
        typer.echo(f"Flow Engine on {origin(host, port)} (API reference: /docs). Ctrl-C stops it.", err=True)
        await uvicorn.Server(config).serve()


def _report(taking: asyncio.Task[None]) -> None:
    """Requests are answered all the same; what they leave to do is kept, for the next start."""
    if not taking.cancelled():
        log.critical("background_work_stopped", exc_info=taking.exception())


def work_until_stopped(settings: Settings, metrics_port: int | None) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start."""
    with tracing_to(settings.traces) as tracing:
        configure_logging(settings.log_level, tracing)
        uvloop.run(_work(settings, metrics_port, tracing))


async def _work(settings: Settings, metrics_port: int | None, tracing: Tracing) -> None:
    service = build_service(settings, host="127.0.0.1", port=8080, tracing=tracing)
    check_workable(settings)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(service.opened())
        working = [await stack.enter_async_context(Worker(runner).running()) for runner in service.jobs]
        port = metrics_port or settings.worker_metrics_port
        if port is not None:
            start_http_server(port, settings.worker_metrics_host, service.metrics.registry)
        typer.echo("Flow Engine's worker runs. Ctrl-C stops it.", err=True)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({*working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for ended in working:
            if ended.done():
                ended.result()
