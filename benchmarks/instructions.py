"""`python -m benchmarks.instructions`: how many instructions a request of each kind executes, in the service
and in Redis' scripts, and a frame of a call.

Times scatter by a fifth on a busy machine; instructions do not, so two checkouts can be compared whatever
goes on beside them. An instruction is no unit of time: compare numbers of one kind. Needs valgrind and a C
compiler, and takes one to two minutes for each kind: the requests of `benchmarks.steps`, without client
sockets, are asked with the service under callgrind, then with Redis under it, and counted from the first on.
Frames of one call are given to the voice agent, and to the bare relay of `benchmarks.voice`, where their
sockets would give them what they read.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import uvloop
from picows import WSListener, WSUpgradeRequest, ws_create_server
from picows.picows import WSProtocol  # pyright: ignore

from benchmarks import scenarios
from benchmarks.processes import Cores
from benchmarks.results import MeasurementFailed
from benchmarks.servers import HOST, Server, redis_server
from benchmarks.steps import Lane, lives_of, service_on
from benchmarks.voice import CONFIG
from benchmarks.voice_load import Load, stamp_of
from benchmarks.voice_relay import LineEnd, ModelEnd
from channels.voice.bridge import LineSocket, ModelSocket
from channels.voice.call.machine import Call
from service.voice import trial_agent

KINDS = ("new contact", "prompt", "memory put", "prompt again", "change task", "end contact")
CALL_KINDS = ("frame to model", "frame to line", "tick of a call", "relay to model", "relay to line")
TASKS = 12
WARM = 12
"""Conversations before what is counted: the interpreter adapts its code to what it has seen."""
FRAMES = 10
"""Of a call, for each request that is asked for."""
BATCH = 50
_TOGGLE = "#include <valgrind/callgrind.h>\nvoid toggle(void) { CALLGRIND_TOGGLE_COLLECT; }\n"
_CALLGRIND = ("valgrind", "--tool=callgrind")
_COLLECTED = re.compile(r"Collected : (\d+)")
_SUMMARY = re.compile(r"^summary: (\d+)", re.MULTILINE)


async def ask(
    kind: str, requests: int, begin: Callable[[Server], None], end: Callable[[Server], None], *under: str
) -> None:
    """Ask so many requests of a kind, each of a conversation of its own, between `begin` and `end`, which are
    told of Redis; it is started by the command `under`."""
    cores = Cores.choose()
    async with redis_server(core=cores.rest, aof=False, under=under) as redis, service_on(redis.port) as app:
        lane = Lane(app)
        target = await scenarios.publish(lane, redis.port, TASKS)
        for life in lives_of(target, "warm-0000", WARM):
            for _, request in life:
                await lane.ask(request)
        lives = lives_of(target, "kind-0000", requests)
        place = next(number for number, (name, _) in enumerate(lives[0]) if name == kind)
        for life in lives:
            for _, request in life[:place]:
                await lane.ask(request)
        gc.collect()
        gc.freeze()
        begin(redis)
        for life in lives:
            await lane.ask(life[place][1])
        end(redis)


@asynccontextmanager
async def _agent(model_url: str) -> AsyncGenerator[str]:
    async with trial_agent(json.dumps(CONFIG).encode(), model_url) as agent:
        yield agent.line_url


@asynccontextmanager
async def _relay(model_url: str) -> AsyncGenerator[str]:
    server = await ws_create_server(lambda _: LineEnd(model_url), HOST, 0)
    yield f"ws://{HOST}:{server.sockets[0].getsockname()[1]}/media-stream"
    server.close()


def _the(kind: type, listener: type = object) -> Any:
    """The one object of its kind in this process; of protocols, the one with such a listener."""
    found = [thing for thing in gc.get_objects() if isinstance(thing, kind)]
    [one] = [thing for thing in found if isinstance(getattr(thing, "listener", None), listener)]
    return one


def _given(kind: str, load: Load) -> Callable[[], None]:
    """What happens once for each count."""
    if kind == "tick of a call":
        return cast(Call, _the(Call)).tick
    is_relay, to_model = kind.startswith("relay"), kind.endswith("model")
    end = (LineEnd if to_model else ModelEnd) if is_relay else (LineSocket if to_model else ModelSocket)
    [speaker] = chain.from_iterable(load.lines if to_model else load.models)
    text = speaker.frame(stamp_of(0.0))
    mask = b"\0\0\0\0" if to_model else b""  # a client's, which changes nothing
    frame = struct.pack("!BBH", 0x81, 126 + 128 * to_model, len(text)) + mask + text
    protocol, size = _the(WSProtocol, end), len(frame)

    def give() -> None:
        protocol.get_buffer(-1)[:size] = frame
        protocol.buffer_updated(size)

    return give


async def carry(kind: str, times: int, toggle: Callable[[], None]) -> None:
    """Give so many frames of one call to whoever bridges it, and have only them counted."""

    def accept(request: WSUpgradeRequest) -> WSListener:
        return load.accept(request)

    server = await ws_create_server(accept, HOST, 0)
    model_url = f"ws://{HOST}:{server.sockets[0].getsockname()[1]}"
    async with (_relay if kind.startswith("relay") else _agent)(model_url) as line_url:
        load = Load(line_url)
        await load.dial(1)
        give = _given(kind, load)
        for batch in range(WARM + times // BATCH):
            if batch == WARM:
                gc.collect()
                gc.freeze()
            if batch >= WARM:
                toggle()
            for _ in range(BATCH):
                give()
            if batch >= WARM:
                toggle()
            await asyncio.sleep(0.02)  # for the other ends to read
        load.hang_up()
    server.close()


def count(kind: str, requests: int, library: str) -> int:
    """Of the service, for a request, or of a call's bridge, for a frame. Raises MeasurementFailed."""
    asked = ("-m", __spec__.name, "--requests", str(requests), "--ask", kind, "--library", library)
    try:
        run = subprocess.run(
            (*_CALLGRIND, "--collect-atstart=no", "--callgrind-out-file=/dev/null", sys.executable, *asked),
            env={**os.environ, "PYTHONHASHSEED": "1"},  # the same run twice
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise MeasurementFailed("valgrind is not installed") from None
    found = _COLLECTED.search(run.stderr)
    if run.returncode or found is None:
        raise MeasurementFailed(f"the requests were not counted: {run.stderr[-2_000:]}")
    return int(found[1]) // (requests * FRAMES if kind in CALL_KINDS else requests)


def count_in_redis(kind: str, requests: int, folder: str) -> int:
    """Of its scripts, for a request. Raises MeasurementFailed."""
    out = Path(folder, "redis")

    def control(redis: Server, *what: str) -> None:
        subprocess.run(("callgrind_control", *what, str(redis.pid)), check=True, capture_output=True)

    def end(redis: Server) -> None:
        control(redis, "--dump")

    under = (*_CALLGRIND, "--toggle-collect=evalShaCommand", f"--callgrind-out-file={out}")
    uvloop.run(ask(kind, requests, lambda redis: control(redis, "--zero"), end, *under))
    found = _SUMMARY.search(out.with_suffix(".1").read_text())
    if found is None:
        raise MeasurementFailed("Redis' scripts were not counted")
    return int(found[1]) // requests


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.instructions", description=__doc__)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--kinds", nargs="+", choices=KINDS + CALL_KINDS, default=KINDS + CALL_KINDS)
    parser.add_argument("--ask", choices=KINDS + CALL_KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ask is not None:
        toggle = ctypes.CDLL(options.library).toggle
        if options.ask in CALL_KINDS:
            uvloop.run(carry(options.ask, options.requests * FRAMES, toggle))
        else:
            uvloop.run(ask(options.ask, options.requests, lambda _: toggle(), lambda _: toggle()))
        return 0
    with TemporaryDirectory(prefix="flow-bench-instructions-") as folder:
        library = str(Path(folder) / "toggle.so")
        compiled = subprocess.run(
            ("cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library), input=_TOGGLE, text=True, check=False
        )
        if compiled.returncode:
            raise MeasurementFailed("needs a C compiler, and valgrind's header files")
        print(f"{'':<16}{'service':>12}{'Redis':>12}")
        for kind in options.kinds:
            line = f"{kind:<16}{count(kind, options.requests, library):>12,}"
            if kind in KINDS:
                line += f"{count_in_redis(kind, options.requests, folder):>12,}"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
