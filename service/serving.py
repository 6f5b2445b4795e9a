"""What programs that serve have in common: keys at the door, an end in order, a server as long as a block."""

import asyncio
import gc
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
import uvloop
from starlette.requests import HTTPConnection

from adapters.http_door import listen
from adapters.telemetry import tracing_to
from api.auth import Authenticator, LocalOnly, Principal, Scope, refuse_proxied, require
from flow_engine.ports.telemetry import Tracing
from service.logs import StandardError, configure_logging
from service.settings import Settings


class KeyDoor:
    """Implements the doorkeepers of the chat and of the gateway by the API keys of the engine."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def check(self, connection: HTTPConnection) -> None:
        if isinstance(self._authenticator, LocalOnly):
            refuse_proxied(connection.scope["headers"])

    def admit(self, connection: HTTPConnection, scopes: Sequence[Scope]) -> Principal:
        self.check(connection)
        principal = self._authenticator.authenticate(connection.scope["headers"])
        require(principal, scopes)
        return principal


def run_until_stopped(settings: Settings, serve: Callable[[Tracing], Coroutine[Any, Any, None]]) -> None:
    """Serves with uvicorn until SIGINT or SIGTERM, with traces and logs as the settings say. A second one
    waits for nobody."""
    _answer_signals(_interrupt)
    end_in_order_at_a_hangup()
    with tracing_to(settings.traces) as tracing:
        configure_logging(settings.log_level, tracing)
        with suppress(KeyboardInterrupt):
            uvloop.run(serve(tracing))


def announce(line: str) -> None:
    """Says on standard error that a program serves. Lost where that is full, as lines of the log are."""
    StandardError().msg(line.encode())


def collect_seldom(after: int = 50_000) -> None:
    """Fewer and later collections of the garbage: what lives now stays, and requests make few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(after, 50, 100)


def end_in_order_at_a_hangup() -> None:
    """As at SIGTERM, where it would end the process at once: of a terminal that is closed, or by who means
    workers. One that is ignored, as by nohup, stays so."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _interrupt(*_: object) -> None:
    """uvicorn passes a signal on when it has shut down: SIGTERM's own default would end the process there,
    before jobs are given back and traces sent. Raised again, in the midst of that, it would leave the thread
    of a store behind, which the process would wait for."""
    _answer_signals(signal.SIG_DFL)
    raise KeyboardInterrupt


def _answer_signals(answer: Callable[..., None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, answer)


@asynccontextmanager
async def served_here(server: uvicorn.Server) -> AsyncGenerator[str]:
    """Serves on a free port of loopback until the block ends. Its `host:port`."""
    listening = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
