"""`python -m benchmarks.instructions`: how many instructions the service executes for a request of each kind.

Times scatter by a fifth on a busy machine; instructions do not, so two checkouts can be compared whatever
goes on beside them. An instruction is no unit of time: compare numbers of one kind. Needs valgrind and a C
compiler, and takes one to two minutes for each kind: the requests of `benchmarks.steps`, without client
sockets, are asked under callgrind, which counts from when they begin.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from benchmarks.processes import Cores
from benchmarks.results import MeasurementFailed
from benchmarks.steps import Lane, beside_its_least, lives_of

KINDS = ("new contact", "prompt", "memory put", "prompt again", "change task", "end contact")
TASKS = 12
WARM = 12
"""Conversations before what is counted: the interpreter adapts its code to what it has seen."""
_TOGGLE = "#include <valgrind/callgrind.h>\nvoid toggle(void) { CALLGRIND_TOGGLE_COLLECT; }\n"
_CALLGRIND = ("valgrind", "--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=/dev/null")
_COLLECTED = re.compile(r"Collected : (\d+)")


async def ask(kind: str, requests: int, library: str) -> None:
    """Ask so many requests of a kind, each of a conversation of its own, and have only them counted."""
    toggle = ctypes.CDLL(library).toggle
    async with beside_its_least(Cores.choose(), TASKS) as (app, _, target):
        lane = Lane(app)
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
        toggle()
        for life in lives:
            await lane.ask(life[place][1])
        toggle()


def count(kind: str, requests: int, library: str) -> int:
    """Instructions of a request. Raises MeasurementFailed."""
    asked = ("-m", __spec__.name, "--requests", str(requests), "--ask", kind, "--library", library)
    try:
        run = subprocess.run(
            (*_CALLGRIND, sys.executable, *asked),
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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.instructions", description=__doc__)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--ask", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ask is not None:
        uvloop.run(ask(options.ask, options.requests, options.library))
        return 0
    with TemporaryDirectory(prefix="flow-bench-instructions-") as folder:
        library = str(Path(folder) / "toggle.so")
        compiled = subprocess.run(
            ("cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library), input=_TOGGLE, text=True, check=False
        )
        if compiled.returncode:
            raise MeasurementFailed("needs a C compiler, and valgrind's header files")
        for kind in options.kinds:
            print(f"{kind:<16}{count(kind, options.requests, library):>12,}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
