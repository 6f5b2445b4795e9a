"""`python -m tests.service.small_workers N`: the real supervisor over workers that load nothing.

A worker answers one line a connection: `pid`, `wait SECONDS`, `scrape`. A line of digits on standard output
is the port, the others are the log. They are looked at every LOOKS_EVERY_S seconds. With an exit status in
REFUSES no worker starts. While the folder that HOLDS names is there none gets ready; one that has begun to
start leaves a file with its pid in it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry, Counter, Gauge

from adapters.http_door import listen
from service.logs import configure_logging
from service.supervisor import LOOKS_EVERY_S, ChannelEnd, Supervisor


def serve(listening: socket.socket, channel: Connection) -> None:
    refused = os.environ.get("REFUSES")
    if refused:
        raise SystemExit(int(refused))
    uvloop.run(_serve(listening, ChannelEnd(channel), stopped=_held()))


def _held() -> bool:
    """Whether it was to stop meanwhile: it gets ready all the same and ends then, as a real worker does."""
    folder, stopped = os.environ.get("HOLDS"), False
    own = Path(folder or "") / str(os.getpid())
    if folder and own.parent.is_dir():
        own.touch()
        while own.exists():
            try:
                time.sleep(0.01)
            except KeyboardInterrupt:
                stopped = True
    return stopped


async def _serve(listening: socket.socket, end: ChannelEnd, *, stopped: bool) -> None:
    registry, stop = CollectorRegistry(), asyncio.Event()
    served = Counter("served_total", "Lines.", registry=registry)
    Gauge("started", "One in each.", registry=registry).set(1)
    for number in range(1_000):  # more than a channel takes at once
        Gauge(f"filling_{number}", "Nothing. " * 50, registry=registry)
    working: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        what, _, argument = (await reader.readline()).decode().strip().partition(" ")
        served.inc()
        match what:
            case "wait":
                await asyncio.sleep(float(argument))
                reply = b"waited"
            case "scrape":
                reply = await end.merged()
            case _:
                reply = str(os.getpid()).encode()
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(answer(reader, writer))
        working.add(task)
        task.add_done_callback(working.discard)

    server = await asyncio.start_server(take, sock=listening)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    end.open(registry, leave=stop.set, stop=stop.set)
    if not stopped:
        await stop.wait()
    server.close()
    await asyncio.gather(*working)
    end.close(registry)


def main() -> int:
    configure_logging("info")
    first = listen("127.0.0.1", 0, shared=True)
    port = first.getsockname()[1]
    workers = Supervisor(
        int(sys.argv[1]),
        partial(listen, "127.0.0.1", port, shared=True),
        serve,
        all_ready=lambda: print(port, flush=True),
        looks_every_s=float(os.environ.get("LOOKS_EVERY_S", LOOKS_EVERY_S)),
    )
    first.close()
    return workers.run()


if __name__ == "__main__":
    sys.exit(main())
