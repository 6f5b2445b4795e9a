"""`python -m benchmarks.instructions`: how many instructions a request of each kind executes, in the service
and in Redis' scripts.

Times scatter by a fifth on a busy machine; instructions do not, so two checkouts can be compared whatever
goes on beside them. An instruction is no unit of time: compare numbers of one kind. Needs valgrind and a C
compiler, and takes one to two minutes for each kind: the requests of `benchmarks.steps`, without client
sockets, are asked with the service under callgrind, then with Redis under it, and counted from the first on.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from benchmarks import scenarios
from benchmarks.processes import Cores
from benchmarks.results import MeasurementFailed
from benchmarks.servers import Server, redis_server
from benchmarks.steps import Lane, lives_of, service_on

KINDS = ("new contact", "prompt", "memory put", "prompt again", "change task", "end contact")
TASKS = 12
WARM = 12
"""Conversations before what is counted: the interpreter adapts its code to what it has seen."""
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


def count(kind: str, requests: int, library: str) -> int:
    """Of the service, for a request. Raises MeasurementFailed."""
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
    return int(found[1]) // requests


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
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--ask", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ask is not None:
        toggle = ctypes.CDLL(options.library).toggle
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
            counts = count(kind, options.requests, library), count_in_redis(kind, options.requests, folder)
            print(f"{kind:<16}{counts[0]:>12,}{counts[1]:>12,}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
