"""`python -m benchmarks`: measure, print, and end with 1 when a goal is missed, 2 when measuring failed."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import uvloop

from benchmarks.budgets import read_budgets, write_budgets
from benchmarks.micro import measure_lint, measure_parts
from benchmarks.processes import Cores
from benchmarks.report import beside_to_text, to_json, to_text
from benchmarks.results import MeasurementFailed, Rate, Results
from benchmarks.roundtrips import count_round_trips
from benchmarks.throughput import CONTROL, SCENES, LoadPlan, compare_rates, measure_rates

BOUND_S = 600.0
Part = Literal["round-trips", "load", "parts"]
PARTS: tuple[Part, ...] = ("round-trips", "load", "parts")


class Options(argparse.Namespace):
    quick: bool
    aof: bool
    only: list[Part] | None
    connections: int
    seconds: float
    log_level: str
    json: Path | None
    beside: Path | None
    control: bool
    set_budgets: bool


def _options(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about 20 seconds in all, less exact")
    parser.add_argument("--aof", action="store_true", help="Redis keeps a log, synced every second")
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated; default: everything")
    parser.add_argument("--connections", type=int, default=32, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of load for each kind of request and scene"
    )
    parser.add_argument("--log-level", default="warning", choices=("info", "warning"), help="of the service")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument(
        "--beside", type=Path, metavar="CHECKOUT", help="load only, by turns with that code's"
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help="load only, on a slower service than budgets allow: ends with 1",
    )
    parser.add_argument("--set-budgets", action="store_true", help="write what is measured as the budgets")
    return parser.parse_args(arguments, Options())


def _setting(options: Options, cores: Cores) -> dict[str, str]:
    redis = "append-only file, synced every second" if options.aof else "no persistence"
    seconds = _plan(options).seconds
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "cores": str(cores),
        "Redis": f"a server of its own, {redis}",
        "load": f"{options.connections} connections, {seconds:g} s for each kind of request, "
        f"log level {options.log_level}",
    }


def _plan(options: Options) -> LoadPlan:
    seconds = 0.5 if options.quick else options.seconds
    scenes = CONTROL if options.control else SCENES
    budgets = {} if options.set_budgets else read_budgets()
    return LoadPlan(options.connections, seconds, options.aof, options.log_level, scenes, budgets)


async def _run(options: Options) -> Results:
    cores = Cores.choose()
    parts = ["load"] if options.control else options.only or PARTS
    rounds = 3 if options.quick else 9
    figures = (*measure_parts(rounds=rounds), *measure_lint(rounds=rounds)) if "parts" in parts else ()
    repeat = 5 if options.quick else 25
    async with asyncio.timeout(BOUND_S):
        trips = await count_round_trips(cores, repeat=repeat) if "round-trips" in parts else ()
        rates, idle = await measure_rates(cores, _plan(options)) if "load" in parts else ((), ())
    return Results(_setting(options, cores), trips, rates, (*idle, *figures))


async def _compare(options: Options, other: Path) -> Sequence[tuple[Rate, Rate]]:
    async with asyncio.timeout(BOUND_S):
        return await compare_rates(Cores.choose(), _plan(options), other)


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are stopped too
    try:
        if options.beside is not None:
            pairs = uvloop.run(_compare(options, options.beside.resolve()))
            print("\n".join(beside_to_text(pairs)))
            return 0
        results = uvloop.run(_run(options))
    except KeyboardInterrupt:  # the servers are down by now
        print("stopped before the end", file=sys.stderr)
        return 130
    except MeasurementFailed as failure:
        print(failure, *failure.__notes__, sep="\n", file=sys.stderr)
        return 2
    print(to_text(results))
    if options.set_budgets:
        write_budgets(results.rates)
    if options.json is not None:
        options.json.write_bytes(to_json(results))
    return 1 if results.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
