"""Run the gateway in this process until it is stopped: its table of backends put together with the rest."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from adapters.http_door import Door, DoorLimits, door_server, listen, origin
from api.auth import Authenticator, authenticator_for
from channels.gateway import accounts, cache, ollama, upstreams
from channels.gateway.answering import Answering
from channels.gateway.app import MOST_BODY_BYTES, Doorkeeper, GatewayRoutes, gateway_app
from channels.gateway.config import Backend, GatewayFile, GatewaySettings, read_gateway_file
from channels.gateway.database import FILE_NAME, GatewayDatabase
from channels.gateway.routing import Breaker, Routing, Server
from channels.gateway.usage import UsageRecords
from flow_engine.errors import CallTheOperator
from flow_engine.ports.outbound import header_key
from flow_engine.ports.telemetry import Tracing, Untraced
from service.assistant import OwnDoor, assistant_routes
from service.serving import KeyDoor, announce, collect_seldom, run_until_stopped
from service.settings import Settings, read_settings

log: Any = structlog.get_logger("flow_engine.gateway")


ANSWERS_END_WITHIN_S = 10
"""So long may answers go on when the gateway stops; then they are told to be cut off."""


class GatewayDoor(Door):
    """Bodies may carry images."""

    limits = DoorLimits(body_bytes=MOST_BODY_BYTES)


def gateway_file(path: Path | None, gateway: GatewaySettings) -> GatewayFile:
    """`path`, else the setting's. Raises CallTheOperator: `gateway_config_missing` where there is neither,
    `gateway_config_invalid`."""
    path = path or gateway.gateway_config
    if path is None:
        raise CallTheOperator(
            "gateway_config_missing", "name the file by --config or FLOW_ENGINE_GATEWAY_CONFIG"
        )
    return read_gateway_file(path)


@asynccontextmanager
async def gateway_service(
    settings: Settings,
    gateway: GatewaySettings,
    file: GatewayFile,
    door: Doorkeeper,
    *,
    tracing: Tracing | None = None,
    more_routes: Sequence[BaseRoute] = (),
    environ: Mapping[str, str] = os.environ,
) -> AsyncGenerator[Starlette]:
    """The gateway's application, which works while this is open. Raises CallTheOperator for a database that
    cannot be opened."""
    async with AsyncExitStack() as stack:
        database = GatewayDatabase(settings.data_dir / FILE_NAME)
        answering = Answering(
            gateway.gateway_cache, cache.ResponseCache(database, gateway.gateway_cache_ttl_s)
        )
        usage = UsageRecords(database, gateway.gateway_usage_days)
        await stack.enter_async_context(database.running())
        stack.push_async_callback(answering.aclose)
        servers: list[Server] = []
        for backend in file.backends:
            wire = upstreams.Wire(backend, _key_of(backend, environ))
            stack.callback(wire.close)
            upstream = (
                ollama.OllamaUpstream(wire) if backend.kind == "ollama" else upstreams.OpenAiUpstream(wire)
            )
            servers.append(Server(backend, upstream, Breaker(gateway.gateway_breaker_failures)))
        routing = Routing(servers)
        books = accounts.Books(
            file.budgets, usage, accounts.Metrics(CollectorRegistry()), tracing or Untraced()
        )
        routes = GatewayRoutes(routing, answering, books, door, gateway.gateway_heartbeat_s).routes()
        yield gateway_app([*routes, *more_routes], books)


def _key_of(backend: Backend, environ: Mapping[str, str]) -> str | None:
    if backend.key_env is None:
        return None
    try:
        key = header_key(environ.get(backend.key_env))
    except ValueError as error:
        raise CallTheOperator("gateway_config_invalid", f"{backend.key_env}: {error}") from None
    if key is None:
        log.warning("backend_without_key", backend=backend.name, variable=backend.key_env)
    return key


def gateway_server(app: Starlette, *, signals: bool = True) -> uvicorn.Server:
    """To be served on a socket that is bound already. Bodies have at most 32 MiB."""
    return door_server(app, door=GatewayDoor, signals=signals, ends_within_s=ANSWERS_END_WITHIN_S)


def serve_until_stopped(config: Path | None, host: str, port: int) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start."""
    settings, gateway = read_settings(Settings), read_settings(GatewaySettings)
    file, authenticator = gateway_file(config, gateway), authenticator_for(settings.api_keys_file, host)
    run_until_stopped(settings, partial(_serve, settings, gateway, file, authenticator, host, port))


async def _serve(
    settings: Settings,
    gateway: GatewaySettings,
    file: GatewayFile,
    authenticator: Authenticator,
    host: str,
    port: int,
    tracing: Tracing,
) -> None:
    listening = listen(host, port)
    at = cast("int", listening.getsockname()[1])
    door = OwnDoor(KeyDoor(authenticator))
    own = "127.0.0.1" if host in ("0.0.0.0", "", "localhost") else "[::1]" if host == "::" else host  # noqa: S104
    assistant = assistant_routes(file, gateway, door, f"http://{own}:{at}/v1")
    more = assistant.routes() if file.workspaces else []
    try:
        async with gateway_service(settings, gateway, file, door, tracing=tracing, more_routes=more) as app:
            collect_seldom()
            announce(f"Gateway on {origin(host, at)}/v1. Ctrl-C stops it.")
            await gateway_server(app).serve(sockets=[listening])
    finally:
        assistant.close()
