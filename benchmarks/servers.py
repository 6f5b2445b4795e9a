"""A real Redis and a real service, each a process of its own, stopped whatever happens."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from redis.asyncio import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS

from benchmarks.processes import pinned
from benchmarks.results import MeasurementFailed

HOST = "127.0.0.1"
STARTS_WITHIN_S = 90.0
STOPS_WITHIN_S = 5.0
HASH_MAX_LISTPACK_VALUE = "8192"
"""In bytes, as in docker-compose.yml: hashes of so small values are stored in one piece."""
ROOT = Path(__file__).resolve().parents[1]
_FLOW_ENGINE = (sys.executable, "-m", "service.cli")


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    port: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def redis_server(*, core: int, aof: bool, under: Sequence[str] = ()) -> AsyncGenerator[Server]:
    """Redis on loopback in a temporary directory, started by the command `under`; with `aof` it syncs its log
    once a second."""
    with TemporaryDirectory(prefix="flow-bench-redis-") as folder:
        log = ("--appendonly", "yes" if aof else "no", "--appendfsync", "everysec")
        async with _redis(Path(folder), core, *log, under=under) as server:
            yield server


@asynccontextmanager
async def redis_cluster(nodes: int, *, core: int) -> AsyncGenerator[Sequence[Server]]:
    """Primaries with equal shares of the slots, in their order, that know of one another; nothing on disk."""
    with TemporaryDirectory(prefix="flow-bench-cluster-") as folder:
        async with AsyncExitStack() as stack:
            servers: list[Server] = []
            buses = [free_port() for _ in range(nodes)]
            for number in range(nodes):
                home = Path(folder, str(number))
                home.mkdir()
                clustered = ("--cluster-enabled", "yes", "--cluster-port", str(buses[number]))
                servers.append(await stack.enter_async_context(_redis(home, core, *clustered)))
            edges = [number * SLOTS // nodes for number in range(nodes + 1)]
            for number, server in enumerate(servers):
                async with Redis(port=server.port) as client:
                    await client.execute_command(
                        "CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1
                    )
                    await client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                    await client.execute_command("CLUSTER", "MEET", HOST, servers[0].port, buses[0])
            for server in servers:
                async with asyncio.timeout(STARTS_WITHIN_S), Redis(port=server.port) as client:
                    while (await client.execute_command("CLUSTER INFO"))["cluster_state"] != "ok":
                        await asyncio.sleep(0.05)
            yield servers


@asynccontextmanager
async def _redis(folder: Path, core: int, *options: str, under: Sequence[str] = ()) -> AsyncGenerator[Server]:
    port = free_port()
    command = [*under, "redis-server", "--port", str(port), "--bind", HOST, "--dir", str(folder)]
    command += ["--save", "", "--maxmemory-policy", "noeviction"]
    command += ["--hash-max-listpack-value", HASH_MAX_LISTPACK_VALUE, *options]
    async with running_process(command, port, core, os.environ, folder / "redis.log") as server:
        yield server


@asynccontextmanager
async def service_process(
    redis_port: int,
    *,
    core: int,
    unsafe: bool,
    log_level: str,
    workers: int = 1,
    checkout: Path = ROOT,
    **settings: str,
) -> AsyncGenerator[Server]:
    """The service with a flow store of its own, against the Redis (or a proxy of it) on `redis_port`: the
    code of a `checkout`, with more `settings`."""
    with TemporaryDirectory(prefix="flow-bench-service-") as folder:
        port = free_port()
        command = [*_FLOW_ENGINE, "serve", "--port", str(port)]
        if workers > 1:
            command += ["--workers", str(workers)]
        environment = {**_environment(folder, redis_port, unsafe, log_level), **settings}
        log = Path(folder) / "service.log"
        async with running_process(command, port, core, environment, log, checkout=checkout) as server:
            yield server


@asynccontextmanager
async def worker_process(
    redis_port: int, *, core: int, log_level: str, **settings: str
) -> AsyncGenerator[Server]:
    """A worker on any Redis; `port` is that of its metrics. Versions come from Redis, not from its store."""
    with TemporaryDirectory(prefix="flow-bench-worker-") as folder:
        port = free_port()
        command = [*_FLOW_ENGINE, "worker", "--metrics-port", str(port)]
        environment = {**_environment(folder, redis_port, True, log_level), **settings}
        async with running_process(command, port, core, environment, Path(folder) / "worker.log") as server:
            yield server


def _environment(folder: str, redis_port: int, unsafe: bool, log_level: str) -> Mapping[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLOW_ENGINE_")}
    return {
        **inherited,
        "FLOW_ENGINE_DATA_DIR": folder,
        "FLOW_ENGINE_REDIS_URL": f"redis://{HOST}:{redis_port}/0",
        "FLOW_ENGINE_REDIS_UNSAFE": str(unsafe).lower(),
        "FLOW_ENGINE_SAMPLES": "false",
        "FLOW_ENGINE_LOG_LEVEL": log_level,
    }


@asynccontextmanager
async def running_process(
    command: Sequence[str],
    port: int,
    core: int,
    environment: Mapping[str, str],
    log: Path,
    *,
    starts_within_s: float = STARTS_WITHIN_S,
    checkout: Path = ROOT,
) -> AsyncGenerator[Server]:
    """A program on one core, which serves on `port`; what it prints goes to `log`. Raises MeasurementFailed
    where it does not listen in time."""
    with log.open("wb") as output, pinned(core):
        process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        await _listening(process, port, starts_within_s)
        yield Server(process.pid, port)
    except MeasurementFailed as failure:
        failure.add_note(f"{command[0]} said last: {log.read_text(errors='replace')[-2000:] or 'nothing'}")
        raise
    finally:
        process.terminate()
        try:
            process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _listening(process: subprocess.Popen[bytes], port: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise MeasurementFailed(f"{process.args!r} does not listen on port {port}")
