"""Run the HTTP side until a signal to stop, without cutting anybody off.

The first SIGINT or SIGTERM: no further calls, those that go on may come to their end for `drain_s` seconds;
what is left then is ended, with its lifecycle run. The second signal ends at once.
"""

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any, cast

import structlog
import uvicorn

from adapters.http_door import door_server, listen
from channels.voice.server.app import VoiceApp
from channels.voice.server.call_server import CallServer

END_WITHIN_S = 45.0
"""For the ends of calls that were cut: each may tell the business by HTTP."""

CLOSE_WITHIN_S = 2

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log: Any = structlog.get_logger("flow_engine.voice")


def server_of(app: VoiceApp) -> uvicorn.Server:
    """To be served on a socket that is bound already; leaves the process's signals alone."""
    # Signals are taken by `serve_voice`: for uvicorn the first one would close every call's socket.
    return door_server(app.asgi, ws=app.sockets, signals=False, ends_within_s=CLOSE_WITHIN_S)


class _Stopping:
    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.insisted = asyncio.Event()

    def signal(self) -> None:
        (self.insisted if self.requested.is_set() else self.requested).set()


async def serve_voice(
    app: VoiceApp,
    call_server: CallServer,
    host: str,
    port: int,
    *,
    drain_s: float,
    started: Callable[[int], None] = lambda port: None,
) -> None:
    """Returns after a signal. `started` is called with the port, which matters when 0 was requested.

    Raises CallTheOperator `address_not_free`. Calls have `drain_s` seconds to end.
    """
    listening = listen(host, port)
    server = server_of(app)
    stopping = _Stopping()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.signal)
    # Fewer and later collections: a pause is heard by everybody who is on the phone.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    serving = loop.create_task(server.serve(sockets=[listening]))
    started(cast(int, listening.getsockname()[1]))
    try:
        await _first(serving, stopping.requested.wait())
        app.admission.drain()
        log.info("draining", live_calls=app.admission.live)
        for step, limit_s in ((app.admission.idle(), drain_s), (call_server.close(), END_WITHIN_S)):
            if not await _within(limit_s, step, stopping.insisted):
                log.warning("calls_cut", live_calls=app.admission.live)
        server.should_exit = True
        server.force_exit = stopping.insisted.is_set()
        await serving
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        if app.sip is not None:
            await app.sip.close()


async def _within(limit_s: float, step: Coroutine[None, None, None], insisted: asyncio.Event) -> bool:
    """Whether the step was done in time, and before somebody insisted. It is cancelled otherwise."""
    task = asyncio.get_running_loop().create_task(step)
    if insisted.is_set():
        limit_s = 0
    try:
        async with asyncio.timeout(limit_s):
            await _first(task, insisted.wait())
    except TimeoutError:
        pass
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait({task})
    return False


async def _first(task: asyncio.Task[None], other: Coroutine[None, None, object]) -> None:
    """Returns when either is done; the other one is cancelled, the task is not."""
    waiting = asyncio.get_running_loop().create_task(other)
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
