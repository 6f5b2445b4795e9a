"""`python -m benchmarks.gateway`: what the gateway adds to a request, a streamed chunk and the first token.

Three programs by turns on the first core, one process each: the gateway, a bare relay on httpx
(`gateway_relay`), and LiteLLM's proxy where it is named by `--litellm-python`, or with `--litellm` installed
in a temporary environment first. The model server and the clients are on the last core. What is compared is
the CPU time that a program takes, which other programs on the machine hardly move, and the time of the first
chunk beside that of the model server asked directly. Exits with 1 when a goal is missed, with 2 when a
program did not do what was to be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import uvloop

from benchmarks.client import LoadClient, build_request
from benchmarks.gateway_load import MODEL, PATH, Pace, body_of, model_server, streams
from benchmarks.processes import Cores, cpu_seconds, resident_mb
from benchmarks.results import Figure, MeasurementFailed
from benchmarks.servers import HOST, Server, free_port, running_process

FIRST_TOKEN_MS = 3.0
TIMES_THE_RELAY = 1.5
BOUND_S = 900.0
LITELLM_STARTS_WITHIN_S = 180.0
GATEWAY, RELAY, LITELLM = "gateway", "httpx relay", "LiteLLM proxy"

Starter = Callable[[int], AbstractAsyncContextManager[Server]]


class Options(argparse.Namespace):
    seconds: float
    connections: int
    streams: int
    chunks: int
    firsts: int
    rounds: int
    log_level: str
    litellm: bool
    litellm_python: str | None
    json: Path | None


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time in microseconds a plain request and a streamed chunk; seconds to the first chunk of each
    stream that was asked alone; memory in MB."""

    request_us: float
    kept_us: float | None
    chunk_us: float
    firsts: Sequence[float]
    delay_ms: float
    rss_mb: float


@asynccontextmanager
async def _gateway(core: int, log_level: str, backend: int) -> AsyncGenerator[Server]:
    with TemporaryDirectory(prefix="flow-bench-gateway-") as folder:
        config = Path(folder, "gateway.toml")
        config.write_text(
            f'[[backends]]\nname = "b"\nkind = "openai"\nurl = "http://{HOST}:{backend}/v1"\n'
            f'models = ["{MODEL}"]\n'
        )
        port = free_port()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLOW_ENGINE_")}
        environment = {**inherited, "FLOW_ENGINE_DATA_DIR": folder, "FLOW_ENGINE_LOG_LEVEL": log_level}
        command = [sys.executable, "-m", "service.cli", "gateway", "serve", "--config", str(config)]
        async with running_process(
            [*command, "--port", str(port)], port, core, environment, Path(folder, "log")
        ) as server:
            yield server


@asynccontextmanager
async def _relay(core: int, backend: int) -> AsyncGenerator[Server]:
    with TemporaryDirectory(prefix="flow-bench-relay-") as folder:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.gateway_relay", "--port", str(port)]
        command += ["--backend", f"http://{HOST}:{backend}"]
        async with running_process(command, port, core, os.environ, Path(folder, "log")) as server:
            yield server


@asynccontextmanager
async def _litellm(python: str, core: int, backend: int) -> AsyncGenerator[Server]:
    with TemporaryDirectory(prefix="flow-bench-litellm-") as folder:
        config = Path(folder, "config.yaml")
        entry = {"model": f"openai/{MODEL}", "api_base": f"http://{HOST}:{backend}/v1", "api_key": "bench"}
        models = {"model_list": [{"model_name": MODEL, "litellm_params": entry}]}
        config.write_text(json.dumps(models))  # JSON is YAML
        port = free_port()
        command = [str(Path(python).parent / "litellm"), "--config", str(config), "--host", HOST]
        environment: Mapping[str, str] = {
            **os.environ,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        async with running_process(
            [*command, "--port", str(port), "--num_workers", "1"],
            port,
            core,
            environment,
            Path(folder, "log"),
            starts_within_s=LITELLM_STARTS_WITHIN_S,
        ) as server:
            yield server


async def _requests_us(server: Server, options: Options, body: bytes) -> float:
    request = build_request("POST", PATH, server.port, body)
    client = LoadClient(server.port, [itertools.repeat(request) for _ in range(options.connections)])
    await client.open()
    try:
        await client.run(options.seconds / 4)
        before = cpu_seconds(server.pid)
        load = await client.run(options.seconds)
        return (cpu_seconds(server.pid) - before) / len(load.latencies) * 1e6
    finally:
        client.close()


async def _measure(server: Server, pace: Pace, options: Options, *, keeps: bool) -> Cost:
    request_us = await _requests_us(server, options, body_of())
    kept_us = await _requests_us(server, options, body_of(temperature=0)) if keeps else None
    pace.chunks, pace.pause_s = options.chunks, 0.005
    await streams(server.port, 1, options.streams)
    before = cpu_seconds(server.pid)
    answers = await streams(server.port, 2, options.streams)
    spent = cpu_seconds(server.pid) - before
    delays = [delay for answer in answers for delay in answer.delays]
    pace.chunks, pace.pause_s = 2, 0.001
    firsts = [answer.first for answer in await streams(server.port, options.firsts, 1)]
    chunk_us = spent / len(delays) * 1e6
    return Cost(request_us, kept_us, chunk_us, firsts, median(delays) * 1e3, resident_mb(server.pid))


async def _round(starters: Mapping[str, Starter], options: Options) -> dict[str, Cost]:
    found: dict[str, Cost] = {}
    pace = Pace()
    async with model_server(pace) as backend:
        pace.chunks = 2
        pace.pause_s = 0.001
        direct = [answer.first for answer in await streams(backend, options.firsts, 1)]
        for name, starter in starters.items():
            async with starter(backend) as server:
                cost = await _measure(server, pace, options, keeps=name == GATEWAY)
            found[name] = replace(cost, firsts=[each - median(direct) for each in cost.firsts])
    return found


def _best(rounds: Sequence[Mapping[str, Cost]], name: str) -> Cost:
    """Of several rounds the least of each: what disturbs only adds."""
    costs = [each[name] for each in rounds]
    kept = [cost.kept_us for cost in costs if cost.kept_us is not None]
    return Cost(
        min(cost.request_us for cost in costs),
        min(kept) if kept else None,
        min(cost.chunk_us for cost in costs),
        min((cost.firsts for cost in costs), key=median),
        min(cost.delay_ms for cost in costs),
        min(cost.rss_mb for cost in costs),
    )


def _figures(costs: Mapping[str, Cost]) -> list[Figure]:
    gateway, relay = costs[GATEWAY], costs[RELAY]
    figures = [
        Figure("first token later, median", median(gateway.firsts) * 1e3, "ms", FIRST_TOKEN_MS),
        Figure("CPU a request / relay's", gateway.request_us / relay.request_us, "times", TIMES_THE_RELAY),
        Figure("CPU a chunk / relay's", gateway.chunk_us / relay.chunk_us, "times", TIMES_THE_RELAY),
    ]
    if other := costs.get(LITELLM):
        figures += [
            Figure("CPU a request / LiteLLM's", gateway.request_us / other.request_us, "times", 1.0),
            Figure("CPU a chunk / LiteLLM's", gateway.chunk_us / other.chunk_us, "times", 1.0),
            Figure("first token / LiteLLM's", median(gateway.firsts) / median(other.firsts), "times", 1.0),
        ]
    return figures


def _print(costs: Mapping[str, Cost], figures: Sequence[Figure], cores: Cores) -> None:
    print(f"cores: programs by turns on {cores.service}, model server and clients on {cores.rest}")
    print(f"\n{'':16}{'us/request':>12}{'cached':>10}{'us/chunk':>10}{'chunk ms':>10}", end="")
    print(f"{'first +p50 ms':>15}{'+p99 ms':>9}{'MB':>7}")
    for name, cost in costs.items():
        kept = "" if cost.kept_us is None else f"{cost.kept_us:.0f}"
        p99 = quantiles(cost.firsts, n=100)[98] * 1e3
        print(f"{name:16}{cost.request_us:12.0f}{kept:>10}{cost.chunk_us:10.0f}{cost.delay_ms:10.2f}", end="")
        print(f"{median(cost.firsts) * 1e3:15.2f}{p99:9.2f}{cost.rss_mb:7.0f}")
    print()
    for figure in figures:
        goal = f"goal: at most {figure.at_most:g}"
        print(f"{figure.name:28}{figure.value:8.2f} {figure.unit:6}{goal}{'' if figure.met else '  MISSED'}")


def _litellm_python(options: Options, stack: AsyncExitStack) -> str | None:
    if options.litellm_python:
        return options.litellm_python
    if not options.litellm:
        return sys.executable if importlib.util.find_spec("litellm") else None
    folder = stack.enter_context(TemporaryDirectory(prefix="flow-bench-litellm-"))
    venv.create(folder, with_pip=True)
    python = str(Path(folder, "bin", "python"))
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "litellm[proxy]"], check=False)
    if installed.returncode:
        raise MeasurementFailed("LiteLLM could not be installed")
    return python


async def _run(options: Options) -> int:
    cores = Cores.choose()
    os.sched_setaffinity(0, {cores.rest})
    async with AsyncExitStack() as stack:
        python = _litellm_python(options, stack)
        starters: dict[str, Starter] = {
            GATEWAY: partial(_gateway, cores.service, options.log_level),
            RELAY: partial(_relay, cores.service),
        }
        if python is not None:
            starters[LITELLM] = partial(_litellm, python, cores.service)
        async with asyncio.timeout(BOUND_S):
            rounds = [await _round(starters, options) for _ in range(options.rounds)]
    costs = {name: _best(rounds, name) for name in starters}
    figures = _figures(costs)
    _print(costs, figures, cores)
    if python is None:
        print("\nLiteLLM's proxy is not installed, so it was not measured (see --litellm).")
    if options.json:
        found = {"costs": {n: asdict(c) for n, c in costs.items()}, "figures": [asdict(f) for f in figures]}
        options.json.write_text(json.dumps(found, indent=2))
    return 0 if all(figure.met for figure in figures) else 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gateway", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of plain requests, each kind")
    parser.add_argument("--connections", type=int, default=8, help="of plain requests")
    parser.add_argument("--streams", type=int, default=6, help="at once, a chunk every 5 ms")
    parser.add_argument("--chunks", type=int, default=300, help="of each stream")
    parser.add_argument(
        "--firsts", type=int, default=200, help="streams one after the other, for the first token"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of which the best counts")
    parser.add_argument("--log-level", default="warning", choices=("info", "warning"), help="of the gateway")
    parser.add_argument("--litellm", action="store_true", help="install LiteLLM's proxy for this run")
    parser.add_argument("--litellm-python", metavar="PATH", help="an interpreter that has litellm[proxy]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    try:
        return uvloop.run(_run(parser.parse_args(arguments, Options())))
    except MeasurementFailed as failure:
        print("\n".join([str(failure), *getattr(failure, "__notes__", ())]), file=sys.stderr)
        return 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
