"""`python -m benchmarks.voice`: how many calls one core of the voice agent holds, beside a bare relay.

The bridges run by turns on the first core, the load on the last: at each step so many calls at once, 20 ms
frames both ways, and the time that a frame takes from when it was due on one side to its arrival on the
other. A bridge holds the calls of a step when p99 of that is under 5 ms and every frame arrived. Exits with 1
when the agent holds fewer than `--goal`. With `--beside` the agent of another checkout runs by turns too, and
the ratios of both are printed: they are worth more than figures where other programs use the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from benchmarks.processes import Cores, pinned
from benchmarks.results import MeasurementFailed
from benchmarks.servers import ROOT, free_port, running_process

LIMIT_MS = 5.0
ALL_FRAMES = 0.97
STEPS = "100,300,400,500,600,700"
BESIDE = "voice agent of the other checkout"
STOP_BEYOND_MS = 25.0
"""p99 after which greater steps are not tried."""
CONFIG = {
    "version": "2.0",
    "agent": {"id": "bench", "name": "Bench", "type": "bench"},
    "session": {"mode": "inline", "instructions": "Talk.", "tools": []},
}


@dataclass(frozen=True, slots=True)
class Bridge:
    name: str
    command: list[str]
    environment: dict[str, str]
    checkout: Path = ROOT
    """Where the code is."""


class Options(argparse.Namespace):
    steps: str
    seconds: float
    goal: int
    rounds: int
    json: Path | None
    beside: Path | None


def main(options: Options) -> int:
    cores = Cores.choose()
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "bench.json")
        config.write_text(json.dumps(CONFIG))
        for _ in range(options.rounds):
            for make in (_relay, _agent, *_besides(options)):
                port, model_port = free_port(), free_port()
                bridge = make(port, model_port, config)
                try:
                    steps = asyncio.run(_measure(bridge, port, model_port, cores, options))
                except MeasurementFailed as failure:
                    print("\n".join([str(failure), *failure.__notes__]), file=sys.stderr)
                    return 2
                results[bridge.name] = _better(results.get(bridge.name, []), steps)
    print(f"cores: bridge {cores.service}, load {cores.rest}; {options.seconds:g} s a step")
    held = {name: _report(name, steps) for name, steps in results.items()}
    if options.beside is not None:
        _compare(results["voice agent"], results[BESIDE])
    if options.json:
        options.json.write_text(json.dumps({"held": held, "steps": results}, indent=2))
    print(f"\ngoal: {options.goal} calls; the voice agent holds {held['voice agent']}")
    return 0 if held["voice agent"] >= options.goal else 1


def _agent(port: int, model_port: int, config: Path) -> Bridge:
    command = [sys.executable, "-m", "service.cli", "voice", "serve", "--config", str(config)]
    environment = {
        "FLOW_ENGINE_REALTIME_URL": f"ws://127.0.0.1:{model_port}",
        "FLOW_ENGINE_VOICE_MAX_CALLS": "5000",
        "FLOW_ENGINE_VOICE_DRAIN_S": "0",
        "FLOW_ENGINE_LOG_LEVEL": "warning",
        "OPENAI_API_KEY": "bench",
    }
    return Bridge("voice agent", [*command, "--port", str(port)], environment)


def _besides(options: Options) -> list[Callable[[int, int, Path], Bridge]]:
    beside = options.beside
    if beside is None:
        return []
    return [
        lambda port, model_port, config: replace(
            _agent(port, model_port, config), name=BESIDE, checkout=beside
        )
    ]


def _compare(agent: list[dict[str, float]], beside: list[dict[str, float]]) -> None:
    """This agent's figures divided by the other's, for the steps that both have: below 1 is faster."""
    others = {step["calls"]: step for step in beside}
    print("\nratios, this agent to the other one (below 1: less)")
    for step in agent:
        if (other := others.get(step["calls"])) is not None:
            cpu, p99 = (step[name] / max(other[name], 1e-9) for name in ("bridge_cpu", "p99_ms"))
            print(f"{step['calls']:>6.0f} calls: CPU {cpu:.2f}, p99 {p99:.2f}")


def _relay(port: int, model_port: int, config: Path) -> Bridge:
    command = [sys.executable, "-m", "benchmarks.voice_relay", "--port", str(port)]
    return Bridge("bare relay", [*command, "--model", f"ws://127.0.0.1:{model_port}"], {})


async def _measure(
    bridge: Bridge, port: int, model_port: int, cores: Cores, options: Options
) -> list[dict[str, float]]:
    """Raises MeasurementFailed."""
    environment = {**os.environ, **bridge.environment}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        async with running_process(
            bridge.command, port, cores.service, environment, log, checkout=bridge.checkout
        ) as server:
            load = [
                *(sys.executable, "-m", "benchmarks.voice_load"),
                *("--bridge", f"ws://127.0.0.1:{port}/media-stream", "--pid", str(server.pid)),
                *("--model-port", str(model_port), "--calls", options.steps),
                *("--seconds", str(options.seconds), "--stop-beyond-ms", str(STOP_BEYOND_MS)),
            ]
            with pinned(cores.rest):
                done = subprocess.run(load, capture_output=True, text=True, timeout=600, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in lines if "calls" in line]


def _better(old: list[dict[str, float]], new: list[dict[str, float]]) -> list[dict[str, float]]:
    """Per number of calls the step with less delay, with the least CPU of any: other programs only ever add
    to both."""
    best = {step["calls"]: step for step in old}
    for step in new:
        known = best.get(step["calls"], step)
        cpu = min(known["bridge_cpu"], step["bridge_cpu"])
        best[step["calls"]] = {**min(known, step, key=itemgetter("p99_ms")), "bridge_cpu": cpu}
    return [best[calls] for calls in sorted(best)]


def _report(name: str, steps: list[dict[str, float]]) -> int:
    print(f"\n{name}")
    print(f"{'calls':>6} {'p50 ms':>8} {'p99 ms':>8} {'core':>6} {'core/100':>9} {'load':>6}")
    held = 0
    for step in steps:
        share = step["bridge_cpu"] / step["calls"] * 100
        holds = step["p99_ms"] < LIMIT_MS and step["frames_share"] >= ALL_FRAMES
        held = int(step["calls"]) if holds else held
        print(
            f"{step['calls']:>6.0f} {step['p50_ms']:>8.2f} {step['p99_ms']:>8.2f} {step['bridge_cpu']:>6.0%} "
            f"{share:>9.1%} {step['load_cpu']:>6.0%}{'' if holds else '  not held'}"
        )
    return held


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default=STEPS, help="numbers of calls at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each step")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--beside", type=Path, help="another checkout, whose agent is measured by turns")
    parser.add_argument("--goal", type=int, default=500)
    parser.add_argument("--json", type=Path)
    raise SystemExit(main(parser.parse_args(namespace=Options())))
