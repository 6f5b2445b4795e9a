"""Run the background work in a process of its own until it is stopped."""

from __future__ import annotations

import asyncio
import signal

import typer
import uvloop
from prometheus_client import start_http_server

from adapters.jobs.running import JobRunner
from adapters.jobs.streaq_worker import StreaqWorker
from adapters.jobs.worker import Worker
from adapters.telemetry.loading import tracing_to
from flow_engine.errors import CallTheOperator
from flow_engine.ports.tracing import Tracing
from service.logs import configure_logging
from service.settings import Settings
from service.wiring import build_service

HERE = "127.0.0.1"


def work_until_stopped(settings: Settings, metrics_port: int | None) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start."""
    with tracing_to(settings.traces) as tracing:
        configure_logging(settings.log_level, tracing)
        uvloop.run(_work(settings, metrics_port, tracing))


def worker_for(settings: Settings, runner: JobRunner) -> Worker | StreaqWorker:
    """Raises CallTheOperator `redis_needed`, `engine_unsuitable`."""
    if settings.redis_url is None:
        raise CallTheOperator(
            "redis_needed", "set FLOW_ENGINE_REDIS_URL; without it, `serve` does the background work itself"
        )
    engine = settings.jobs_engine or ("builtin" if settings.redis_cluster else "streaq")
    if engine == "builtin":
        return Worker(runner)
    if settings.redis_cluster:
        raise CallTheOperator("engine_unsuitable", "on a cluster set FLOW_ENGINE_JOBS_ENGINE=builtin")
    return StreaqWorker(runner, settings.redis_url)


async def _work(settings: Settings, metrics_port: int | None, tracing: Tracing) -> None:
    service = build_service(settings, host=HERE, port=8080, tracing=tracing)
    worker = worker_for(settings, service.jobs)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with service.opened(), worker.running() as working:
        port = metrics_port or settings.worker_metrics_port
        if port is not None:
            start_http_server(port, settings.worker_metrics_host, service.metrics.registry)
        typer.echo("Flow Engine's worker runs. Ctrl-C stops it.", err=True)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if working.done():
            working.result()
